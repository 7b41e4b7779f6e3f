"""Small records: states of blocks, positions of cursors, and descriptions of queues and durable subscriptions.

How it works: a stored message is never rewritten when it is settled; its block gets a new state instead, and a durable
subscription that lags keeps what it settled ahead of its front as runs. Both grow with the number of *gaps*, not with
the number of messages: a block settled in order costs six bytes.

Invariants: every `decode_*` returns the arguments of its `encode_*` (counts above their limit are capped, runs are
joined), or raises StateError, whatever the bytes are. A few bytes never become many objects: runs are returned as
ranges.

Deliberately not here: keys (keys.py), messages (chunks.py), when a state is written, and its meaning in memory.

Source: DESIGN section 7. Normative: FORMAT.md.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping
from itertools import pairwise
from struct import Struct
from struct import error as StructError
from typing import Final

from attrs import frozen

from .keys import BLOCK_SIZE, StoreFormatError

BITMAP: Final = 0
RUNS: Final = 1

CURSOR_LAYOUT: Final = 1
DURABLE_LAYOUT: Final = 1
PRODUCER_LAYOUT: Final = 1

KIND_QUEUE: Final = 0
KIND_TOPIC: Final = 1

ATTEMPTS_MAX: Final = 2**16 - 1
"""More attempts than this are kept as this many: no redelivery limit is that high, and the field has two bytes."""

_BITMAP_BYTES_MAX: Final = BLOCK_SIZE // 8
_BIG_ENDIAN: Final = sys.byteorder == "big"
_U64_END: Final = 2**64

_QUEUE: Final = Struct("<BB")
_U32: Final = Struct("<I")
_U64: Final = Struct("<Q")
_TWO_U64: Final = Struct("<QQ")
_PLACED: Final = Struct("<BQQ")


class StateError(StoreFormatError):
    """A small record that can't be read, or values that do not fit into one. The message names the record."""


@frozen
class CursorRecord:
    """Place of a durable subscription in one queue."""

    front: int
    """Lowest sequence that it may still need."""
    handed_to: int
    """Sequences below may have been handed to its consumer."""
    settled: tuple[range, ...]
    """Runs that the subscription settled from the front on, ascending and apart from each other."""
    attempts: dict[int, int]
    """Number of times that a returned element was handed over, by sequence; 0: seen, but not charged."""


@frozen
class DurableRecord:
    """Description of a durable subscription. Any of the strings may be empty."""

    client_id: str
    """client-id of the connection that made it."""
    name: str
    """Unique beside `client_id`."""
    destination: str
    """Destination of the subscription, wildcards as written."""
    selector: str
    """Selector of the messages it wants; empty: all."""
    created_ms: int
    """Wall time, milliseconds since the epoch."""
    last_seen_ms: int
    """Time at which a consumer was connected last, in milliseconds since the epoch."""


# ---------------------------------------------------------------------- the state of a block


def encode_state(mask: int, attempts: Mapping[int, int]) -> bytes:
    """The state of a block: bit k of `mask` is set if element k of the block is settled; `attempts` says, by place in
    the block, how often elements that came back were handed over (0: seen by a consumer, but not charged; capped at
    ATTEMPTS_MAX).

    Raises StateError for a place outside of the block. O(runs + attempts).
    """
    if mask < 0 or mask.bit_length() > BLOCK_SIZE:
        raise StateError(
            f"block state: {mask.bit_length()} bits for a block of {BLOCK_SIZE} elements, or less than none"
        )
    bitmap_bytes = (mask.bit_length() + 7) >> 3
    run_count = (mask & ~(mask << 1)).bit_count()
    if run_count * 4 < bitmap_bytes:
        settled = bytes((RUNS, run_count)) + _shorts(_runs_of(mask))
    else:
        settled = bytes((BITMAP, bitmap_bytes)) + mask.to_bytes(bitmap_bytes, "little")
    if not attempts:
        return settled
    pairs: list[int] = []
    for place in sorted(attempts):
        if not 0 <= place < BLOCK_SIZE or attempts[place] < 0:
            raise StateError(f"block state: {attempts[place]} attempts of element {place} of {BLOCK_SIZE}")
        pairs += (place, min(attempts[place], ATTEMPTS_MAX))
    return settled + _shorts(pairs)


def decode_state(value: bytes) -> tuple[int, dict[int, int]]:
    """Mask and attempts, as `encode_state` was given them. Raises StateError for anything malformed."""
    if len(value) < 2:
        raise StateError(f"block state: it has {len(value)} bytes, at least 2 are needed")
    kind, size = value[0], value[1]
    stop = 2 + (size if kind == BITMAP else size * 4)
    if kind not in (BITMAP, RUNS):
        raise StateError(f"block state: unknown kind {kind}: it is damaged, or of a later version")
    if stop > len(value) or (len(value) - stop) % 4:
        raise StateError(f"block state: {len(value)} bytes, of which {stop} for what is settled and 4 for each attempt")
    mask = 0
    if kind == BITMAP:
        if size > _BITMAP_BYTES_MAX:
            raise StateError(f"block state: a bitmap of {size} bytes for {BLOCK_SIZE} elements")
        mask = int.from_bytes(value[2:stop], "little")
    else:
        end_before = -1
        borders = _from_shorts(value[2:stop])
        for start, end in zip(borders[::2], borders[1::2], strict=True):
            if not end_before < start < end <= BLOCK_SIZE:
                raise StateError(f"block state: the run {start} to {end} is not in order, or not in the block")
            mask |= (1 << end) - (1 << start)
            end_before = end
    pairs = _from_shorts(value[stop:])
    places = pairs[::2]
    if any(place >= following for place, following in pairwise(places)) or (places and places[-1] >= BLOCK_SIZE):
        raise StateError("block state: its attempts are not in order, or not in the block")
    return mask, dict(zip(places, pairs[1::2], strict=True))


def _runs_of(mask: int) -> list[int]:
    """First place and end of each run of ones, ascending."""
    borders: list[int] = []
    place = 0
    while mask:
        gap = (mask & -mask).bit_length() - 1
        mask >>= gap
        length = (~mask & (mask + 1)).bit_length() - 1  # how many ones lie at the end
        mask >>= length
        borders += (place + gap, place + gap + length)
        place += gap + length
    return borders


def _shorts(numbers: list[int]) -> bytes:
    column = array("H", numbers)
    if _BIG_ENDIAN:
        column.byteswap()
    return column.tobytes()


def _from_shorts(data: bytes) -> list[int]:
    column = array("H", data)
    if _BIG_ENDIAN:
        column.byteswap()
    return column.tolist()


# ---------------------------------------------------------------------- the cursor of a durable subscription


def encode_cursor(front: int, handed_to: int, settled: Iterable[int], attempts: Mapping[int, int]) -> bytes:
    """Encode the place of a durable subscription. `settled`: sequences from `front` on, in any order, each once;
    `attempts` by sequence, from `front` on.

    Raises StateError for a sequence below the front or beyond 64 bits. O(n log n), O(n) if `settled` is sorted.
    """
    ordered = sorted(settled)
    # Borders between runs are where the next sequence is not the next number.
    breaks = [place for place, (a, b) in enumerate(pairwise(ordered), 1) if b != a + 1]
    runs = [(ordered[a], ordered[b - 1] + 1) for a, b in pairwise((0, *breaks, len(ordered)))] if ordered else []
    return encode_cursor_runs(front, handed_to, runs, attempts)


def encode_cursor_runs(
    front: int, handed_to: int, settled: Iterable[tuple[int, int]], attempts: Mapping[int, int]
) -> bytes:
    """Encode a cursor from runs that ascend and are apart, each from its first sequence to behind its last. O(runs)."""
    runs = list(settled)
    try:
        out = bytearray(_PLACED.pack(CURSOR_LAYOUT, front, handed_to))
    except StructError as error:
        raise StateError(f"cursor at {front}, handed to {handed_to}: {error}") from error
    _put_varint(out, len(runs))
    position = front
    for first, stop in runs:
        if first < position or stop > _U64_END:
            raise StateError(f"cursor at {front}: settled {first} to {stop - 1} is below its front, twice, or too high")
        _put_varint(out, first - position)
        _put_varint(out, stop - 1 - first)
        position = stop
    _put_varint(out, len(attempts))
    position = front
    for sequence in sorted(attempts):
        count = attempts[sequence]
        if not position <= sequence < _U64_END or not 0 <= count < _U64_END:
            raise StateError(f"cursor at {front}: {count} attempts of {sequence} are below its front, or too many")
        _put_varint(out, sequence - position)
        _put_varint(out, count)
        position = sequence + 1
    return bytes(out)


def decode_cursor(value: bytes) -> CursorRecord:
    """Decode the place of a durable subscription, settled sequences as runs. Raises StateError for anything malformed.
    O(bytes).
    """
    if len(value) < _PLACED.size:
        raise StateError(f"cursor: it has {len(value)} bytes, at least {_PLACED.size} are needed")
    layout, front, handed_to = _PLACED.unpack_from(value)
    if layout != CURSOR_LAYOUT:
        raise StateError(f"cursor: unknown layout {layout}: it is damaged, or of a later version")
    offset = _PLACED.size
    settled: list[range] = []
    position = front
    run_count, offset = _varint(value, offset)
    for place in range(run_count):
        gap, offset = _varint(value, offset)
        more, offset = _varint(value, offset)
        # A gap of none would make one run of two: two ways to say the same.
        first = position + gap
        position = first + more + 1
        if position > _U64_END or (place and not gap):
            raise StateError(f"cursor at {front}: the run from {first} is not apart from the one before, or too long")
        settled.append(range(first, position))
    attempts: dict[int, int] = {}
    position = front
    attempt_count, offset = _varint(value, offset)
    for _place in range(attempt_count):
        gap, offset = _varint(value, offset)
        count, offset = _varint(value, offset)
        position += gap
        if position >= _U64_END:
            raise StateError(f"cursor at {front}: it counts attempts of {position}, which is no sequence")
        attempts[position] = count
        position += 1
    if offset != len(value):
        raise StateError(f"cursor at {front}: {len(value) - offset} bytes too many")
    return CursorRecord(front, handed_to, tuple(settled), attempts)


def _put_varint(out: bytearray, number: int) -> None:
    """Seven bits a byte, the lowest first; the highest bit says that more follow."""
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _varint(value: bytes, offset: int) -> tuple[int, int]:
    """The number at `offset` and where the next thing begins. Raises StateError if it does not end or is no u64."""
    number = shift = 0
    for place in range(offset, min(offset + 10, len(value))):
        octet = value[place]
        number |= (octet & 0x7F) << shift
        if octet < 0x80:
            if number >= _U64_END or (not octet and shift):
                break
            return number, place + 1
        shift += 7
    raise StateError(f"cursor: the number at byte {offset} does not end, is too large, or has bytes that say nothing")


# ---------------------------------------------------------------------- durable subscriptions


def encode_durable(record: DurableRecord) -> bytes:
    """The record of a durable subscription. Raises StateError for a time or a string that can't be written."""
    try:
        out = bytearray(_PLACED.pack(DURABLE_LAYOUT, record.created_ms, record.last_seen_ms))
        for text in (record.client_id, record.name, record.destination, record.selector):
            data = text.encode()
            out += _U32.pack(len(data))
            out += data
    except (StructError, UnicodeEncodeError) as error:
        raise StateError(f"durable subscription {record.name!r} can't be written: {error}") from error
    return bytes(out)


def decode_durable(value: bytes) -> DurableRecord:
    """Decode the description of a durable subscription. Bytes behind the known ones are of a later version and ignored.

    Raises StateError for anything malformed.
    """
    if len(value) < _PLACED.size:
        raise StateError(f"durable subscription: it has {len(value)} bytes, at least {_PLACED.size} are needed")
    layout, created_ms, last_seen_ms = _PLACED.unpack_from(value)
    if layout != DURABLE_LAYOUT:
        raise StateError(f"durable subscription: unknown layout {layout}: it is damaged, or of a later version")
    offset = _PLACED.size
    texts: list[str] = []
    for name in ("client id", "name", "destination", "selector"):
        start = offset + _U32.size
        if start > len(value):
            raise StateError(f"durable subscription: it ends before its {name}")
        offset = start + int(_U32.unpack_from(value, offset)[0])
        if offset > len(value):
            raise StateError(f"durable subscription: it ends within its {name}")
        texts.append(_text(value[start:offset], f"durable subscription: its {name}"))
    client_id, subscription_name, destination, selector = texts
    return DurableRecord(client_id, subscription_name, destination, selector, created_ms, last_seen_ms)


# ---------------------------------------------------------------------- queues


def encode_queue(kind: int, priority: int, name: str) -> bytes:
    """Encode the description of a queue: `kind` is KIND_QUEUE or KIND_TOPIC, `priority` 0 to 9. Raises StateError."""
    _check_queue(kind, priority)
    try:
        return _QUEUE.pack(kind, priority) + name.encode()
    except UnicodeEncodeError as error:
        raise StateError(f"queue record: the name {name!r} can't be written: {error}") from error


def decode_queue(value: bytes) -> tuple[int, int, str]:
    """Kind, priority and name, as `encode_queue` was given them. Raises StateError for anything malformed."""
    if len(value) < _QUEUE.size:
        raise StateError(f"queue record: it has {len(value)} bytes, at least {_QUEUE.size} are needed")
    kind, priority = value[0], value[1]
    _check_queue(kind, priority)
    return kind, priority, _text(value[_QUEUE.size :], "queue record: its name")


def encode_head(next_sequence: int, handed_to: int) -> bytes:
    """Encode the place of a queue: the sequence of the next element, and the end of what may have been handed to a
    consumer. Raises StateError for numbers that are no u64.

    Raises StateError for numbers that are no u64.
    """
    try:
        return _TWO_U64.pack(next_sequence, handed_to)
    except StructError as error:
        raise StateError(f"queue head: {next_sequence}, handed to {handed_to}: {error}") from error


def decode_head(value: bytes) -> tuple[int, int]:
    """next_sequence and handed_to, as `encode_head` was given them. Raises StateError for anything malformed."""
    _check_size(value, _TWO_U64, "queue head")
    next_sequence, handed_to = _TWO_U64.unpack(value)
    return next_sequence, handed_to


def _check_queue(kind: int, priority: int) -> None:
    if kind not in (KIND_QUEUE, KIND_TOPIC) or not 0 <= priority <= 9:
        raise StateError(f"queue record: there is no kind {kind} with priority {priority}")


# ---------------------------------------------------------------------- producers


def encode_producer(sequence: int, used_ms: int) -> bytes:
    """Encode what a queue remembers of a producer: its last sequence (-1: the name is the id of one message), and when
    that was sent, in milliseconds since the epoch. Raises StateError for numbers that do not fit.
    """
    try:
        return _PLACED.pack(PRODUCER_LAYOUT, sequence + 1, used_ms)
    except StructError as error:
        raise StateError(f"producer: sequence {sequence} at {used_ms}: {error}") from error


def decode_producer(value: bytes) -> tuple[int, int]:
    """Sequence and time, as `encode_producer` was given them. Raises StateError for anything malformed."""
    _check_size(value, _PLACED, "producer")
    layout, end, used_ms = _PLACED.unpack(value)
    if layout != PRODUCER_LAYOUT:
        raise StateError(f"producer: unknown layout {layout}: it is damaged, or of a later version")
    return end - 1, used_ms


# ---------------------------------------------------------------------- the store itself


def encode_format(version: int) -> bytes:
    """Encode the version for META_FORMAT_KEY. Raises StateError unless `version` is a u32."""
    return _packed(_U32, version, "format version")


def decode_format(value: bytes) -> int:
    """The format version of this store. Raises StateError if it is none."""
    _check_size(value, _U32, "format version")
    return int(_U32.unpack(value)[0])


def encode_numbers(end: int) -> bytes:
    """Encode the value for META_NUMBERS_KEY: message numbers below `end` (u64) may be in use. Raises StateError."""
    return _packed(_U64, end, "message numbers")


def decode_numbers(value: bytes) -> int:
    """Message numbers below this may be in use. Raises StateError if it is none."""
    _check_size(value, _U64, "message numbers")
    return int(_U64.unpack(value)[0])


def encode_clean(clean: bool) -> bytes:
    """Encode the value for META_CLEAN_KEY: whether the store was closed in order."""
    return b"\x01" if clean else b"\x00"


def decode_clean(value: bytes) -> bool:
    """Whether the store was closed in order. Raises StateError for anything but a byte of 0 or 1."""
    if value not in (b"\x00", b"\x01"):
        raise StateError(f"clean mark: {value[:8].hex(' ')!r} is neither 00 nor 01")
    return value == b"\x01"


def _packed(layout: Struct, number: int, what: str) -> bytes:
    try:
        return layout.pack(number)
    except StructError as error:
        raise StateError(f"{what}: {number} does not fit: {error}") from error


def _check_size(value: bytes, layout: Struct, what: str) -> None:
    if len(value) != layout.size:
        raise StateError(f"{what}: it has {len(value)} bytes, not {layout.size}")


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise StateError(f"{what} is no UTF-8: {error}") from error
