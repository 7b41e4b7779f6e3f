"""Chunks: many consecutive elements of one queue as one record.

How it works: a chunk is columns, not rows. A value that all elements have in common (contiguous sequences and numbers,
one header block, one length, no expiry) is written once or not at all, so 1,000 alike messages cost some 30 bytes
beside their wires. Columns are arrays in the byte order of the usual machines: they are read and written at the speed
of C, and what remains per message is its wire and its object. Header blocks are not stored apart: the first wire with a
header block begins with it.

Invariants: `decode_chunk` returns the arguments of `encode_chunk`, or raises ChunkError, whatever the bytes are. The
size of its result is bounded by the length of the value: no element has an empty wire.

Deliberately not here: what a header block means (`HeadCodec`, given by the protocol), where a chunk is kept and where
the next one begins (keys.py: a chunk lies within a block, but nothing here depends on it), which of its elements are
settled (states.py), and the bodies that lie in files of their own.

Source: DESIGN section 7. Normative: FORMAT.md.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from itertools import accumulate, islice, pairwise, repeat
from operator import lt
from struct import Struct
from struct import error as StructError
from typing import Final, Protocol, TypeAlias

from attrs import frozen
from zlib_ng.zlib_ng import crc32

from ..queues.message import DelayedMessage, Envelope, Message
from .keys import StoreFormatError

LAYOUT: Final = 1

SEQUENCES: Final = 0x01
NUMBERS: Final = 0x02
LENGTHS: Final = 0x04
EXPIRES_SHIFT: Final = 3
DUE_SHIFT: Final = 5
LARGE: Final = 0x80

ABSENT: Final = 0
SAME: Final = 1
EACH: Final = 2

SOME_DUE: Final = 0x01
SOME_GROUPED: Final = 0x02
SOME_LARGE: Final = 0x04

MakeLarge = Callable[[Envelope, bytes, int, int, int, int, int], Message]
"""Makes a message whose body lies in a file: head, wire (without the body), number, expires_at_ms, due_at_ms, file id,
length of the body in bytes.
"""

_START: Final = Struct("<BBI")
_U32: Final = Struct("<I")
_U64: Final = Struct("<Q")
_SUMMARY: Final = Struct("<QIQQQIB")

_BIG_ENDIAN: Final = sys.byteorder == "big"
_U64_END: Final = 2**64
_SEQUENCE_END: Final = 2**64 - 1
"""The end of a chunk must fit into its summary, so the last number of eight bytes is no sequence."""
_PARTS_FEW: Final = 64
"""Parts that are passed over one by one for their checksum: some ten columns, and messages of 20 KiB and more."""

Part: TypeAlias = "bytes | array[int]"  # quoted: array has no type argument at run time before 3.12


class ChunkError(StoreFormatError):
    """A chunk that can't be read, or messages that can't be made into one. The message names chunk and column."""


class HeadCodec(Protocol):
    """Port to the protocol, for header blocks. Heads that compare equal have equal blocks."""

    def describe(self, head: Envelope) -> tuple[int, int]:
        """Code of the dialect (0 to 255), and length in bytes of the header block. Every wire of this head begins with
        that block.
        """
        ...

    def restore(self, dialect: int, block: bytes) -> Envelope:
        """The head of such a block. Called once per chunk and block: may keep a cache.

        Raises ValueError, and nothing else, for a dialect or a block that it can't read.
        """
        ...


@frozen
class Summary:
    """Facts about a chunk that are known without reading the chunk."""

    end_sequence: int
    """Last sequence + 1."""
    count: int
    """Elements."""
    wire_bytes: int
    """Sum of their wires, without bodies in files."""
    expires_min_ms: int
    """Earliest expiry date of its messages, milliseconds since the epoch; 0: none has a date."""
    expires_max_ms: int
    """Latest date; 0: none has."""
    undated_count: int
    """Elements that never expire."""
    some_due: bool
    """Some must not be delivered before a time."""
    some_grouped: bool
    """Some belong to a message group."""
    some_large: bool = False
    """The bodies of some lie in files: the chunk says which."""


class _Columns:
    """The messages of a chunk, attribute by attribute. `dues` and `larges` are empty where no message has any."""

    __slots__ = ("dues", "expires", "heads", "larges", "lengths", "messages", "wires")

    def __init__(self, messages: SequenceOf[Message]) -> None:
        self.messages = messages
        self.heads = [message.head for message in messages]
        self.wires = [message.wire for message in messages]
        self.expires = [message.expires_at_ms for message in messages]
        self.lengths = list(map(len, self.wires))
        self.dues: list[int] = []
        self.larges: list[tuple[int, int, int]] = []
        # Only subclasses have these; asking for the types costs less than asking each message for its attributes.
        if list(map(type, messages)).count(Message) != len(messages):
            self.dues = [message.due_at_ms for message in messages]
            self.larges = [(place, *message.large) for place, message in enumerate(messages) if message.large]


def encode_chunk(first: int, sequences: SequenceOf[int], messages: SequenceOf[Message], heads: HeadCodec) -> bytes:
    """The value of a chunk. `sequences` ascend strictly, from `first` on; where none is missing a range is faster.

    Raises ChunkError for messages that do not fit: none at all, an empty wire, one of 4 GiB or more, a number that is
    no u64. Leaves its arguments as they are. O(n + bytes).
    """
    return _joined(_encode(first, sequences, _Columns(messages), heads))


def encode_parts(
    first: int, sequences: SequenceOf[int], messages: SequenceOf[Message], heads: HeadCodec
) -> tuple[list[Part], int]:
    """Encode a chunk without its checksum, as parts that are not copied yet. Return them with the size of the whole
    chunk, checksum included.
    """
    columns = _Columns(messages)
    parts = _encode(first, sequences, columns, heads)
    size_bytes = sum([memoryview(part).nbytes for part in parts[: -len(messages)]]) + sum(columns.lengths)
    return parts, size_bytes + _U32.size


def summary_of(sequences: SequenceOf[int], messages: SequenceOf[Message]) -> Summary:
    """Return the summary of the chunk of these messages (at least one). O(n)."""
    return _summary(sequences, _Columns(messages))


def encode_chunk_and_summary(
    first: int, sequences: SequenceOf[int], messages: SequenceOf[Message], heads: HeadCodec
) -> tuple[bytes, bytes]:
    """`encode_chunk` and `encode_summary` in one pass over the messages. Raises as they do."""
    columns = _Columns(messages)
    return _joined(_encode(first, sequences, columns, heads)), encode_summary(_summary(sequences, columns))


def encode_summary(summary: Summary) -> bytes:
    """The value of a summary. Raises ChunkError for a number that does not fit."""
    flags = (SOME_DUE if summary.some_due else 0) | (SOME_GROUPED if summary.some_grouped else 0)
    flags |= SOME_LARGE if summary.some_large else 0
    try:
        return _SUMMARY.pack(
            summary.end_sequence,
            summary.count,
            summary.wire_bytes,
            summary.expires_min_ms,
            summary.expires_max_ms,
            summary.undated_count,
            flags,
        )
    except StructError as error:
        raise ChunkError(f"{summary} does not fit into a record: {error}") from error


def decode_summary(value: bytes) -> Summary:
    """Decode a summary. Raises ChunkError for anything that `encode_summary` does not write."""
    if len(value) != _SUMMARY.size:
        raise ChunkError(f"a summary of {len(value)} bytes: it has {_SUMMARY.size}")
    end_sequence, count, wire_bytes, expires_min_ms, expires_max_ms, undated_count, flags = _SUMMARY.unpack(value)
    if flags & ~(SOME_DUE | SOME_GROUPED | SOME_LARGE):
        raise ChunkError(f"a summary with unknown flags {flags:#04x}: it is damaged, or of a later version")
    summary = Summary(
        end_sequence,
        count,
        wire_bytes,
        expires_min_ms,
        expires_max_ms,
        undated_count,
        some_due=bool(flags & SOME_DUE),
        some_grouped=bool(flags & SOME_GROUPED),
        some_large=bool(flags & SOME_LARGE),
    )
    if not summary.undated_count <= summary.count <= summary.end_sequence or summary.count == 0:
        raise ChunkError(f"a summary that contradicts itself: {summary}")
    return summary


def decode_chunk(
    first: int, value: bytes, heads: HeadCodec, make_large: MakeLarge | None = None, *, is_checked: bool = False
) -> tuple[SequenceOf[int], list[Message]]:
    """Decode a chunk whose key says `first`: return sequences (a range where nothing is missing, else a list) and
    messages.

    `make_large` makes the messages whose body lies in a file; its exceptions pass through. `is_checked`: the checksum
    was compared before. Raises ChunkError for anything malformed, and for a chunk with such bodies if `make_large` is
    None. O(n + bytes).
    """
    reader = _Reader(first, value, is_checked=is_checked)
    count, flags = reader.count, reader.flags
    sequences: SequenceOf[int]
    if flags & SEQUENCES:
        offsets = reader.column("sequences", "I", count)
        if not _ascends(offsets):
            raise reader.error("its sequences do not ascend")
        sequences = [first + offset for offset in offsets]
    else:
        sequences = range(first, first + count)
    numbers: SequenceOf[int]
    if flags & NUMBERS:
        numbers = reader.column("numbers", "Q", count)
    else:
        base = reader.number("numbers", _U64)
        numbers = range(base, base + count)
    if sequences[-1] >= _SEQUENCE_END or numbers[-1] >= _U64_END:
        raise reader.error("its sequences or numbers go beyond eight bytes")

    head_count = reader.number("heads", _U32)
    if not 0 < head_count <= count:
        raise reader.error(f"{head_count} header blocks for {count} messages")
    dialects = reader.column("dialects", "B", head_count)
    block_lengths = reader.column("header block lengths", "I", head_count)
    head_index: SequenceOf[int] | None = None
    first_places: SequenceOf[int] = range(head_count)
    if 1 < head_count < count:
        head_index = reader.column("head index", _index_type(head_count), count)
        places = dict(zip(reversed(head_index), range(count - 1, -1, -1), strict=True))
        try:
            first_places = [places.pop(index) for index in range(head_count)]
        except KeyError as missing:
            raise reader.error(f"no message has its header block {missing}") from missing
        if places:
            raise reader.error(f"a message has header block {max(places)}, of {head_count}")

    lengths = reader.column("lengths", "I", count) if flags & LENGTHS else None
    length = reader.number("lengths", _U32) if lengths is None else 0
    expires = reader.times("expires", flags >> EXPIRES_SHIFT & 3) or repeat(0)
    dues = reader.times("due", flags >> DUE_SHIFT & 3)
    larges = reader.larges() if flags & LARGE else None

    start, end = reader.offset, reader.end
    wires_bytes = length * count if lengths is None else sum(lengths)
    if wires_bytes != end - start:
        raise reader.error(f"its wires should have {wires_bytes} bytes, there are {end - start}")
    if (length == 0) if lengths is None else (0 in lengths):
        raise reader.error("one of its wires is empty")
    if lengths is None:
        wires = [value[place : place + length] for place in range(start, end, length)]
    else:
        wires = [value[place:stop] for place, stop in pairwise(accumulate(lengths, initial=start))]

    restored = [
        reader.restore(heads, dialect, wires[place], block_length)
        for dialect, place, block_length in zip(dialects, first_places, block_lengths, strict=True)
    ]
    of_each: Iterable[Envelope]
    if head_index is not None:
        of_each = map(restored.__getitem__, head_index)
    else:
        of_each = restored if head_count == count else repeat(restored[0])
    if dues is None:
        messages = list(map(Message, of_each, wires, numbers, expires))
    else:
        # Not strict: what is the same for all repeats without end.
        rows = zip(of_each, wires, numbers, expires, dues, strict=False)
        messages = [DelayedMessage(*row) if row[4] else Message(*row[:4]) for row in rows]
    if larges is not None:
        if make_large is None:
            raise reader.error("its bodies are in files, which can't be read here: configure a folder for large bodies")
        for place, file_id, body_bytes in larges:
            plain = messages[place]
            messages[place] = make_large(
                plain.head, plain.wire, plain.number, plain.expires_at_ms, plain.due_at_ms, file_id, body_bytes
            )
    return sequences, messages


def _joined(parts: list[Part]) -> bytes:
    """Join parts and their checksum. Few parts are large: one more pass over them costs less than a second copy."""
    if len(parts) > _PARTS_FEW:
        body = b"".join(parts)
        return body + _U32.pack(crc32(body))
    checksum = 0
    for part in parts:
        checksum = crc32(part, checksum)
    return b"".join([*parts, _U32.pack(checksum)])


def _encode(first: int, sequences: SequenceOf[int], columns: _Columns, heads: HeadCodec) -> list[Part]:
    count = len(columns.wires)
    if count == 0 or len(sequences) != count:
        raise ChunkError(f"chunk from {first}: {len(sequences)} sequences and {count} messages are no chunk")
    flags = 0
    parts: list[Part] = [b""]  # the start, as soon as the flags are known

    if not _is_run(sequences, first, count):
        offsets = [sequence - first for sequence in sequences]
        if not _ascends(offsets):
            raise ChunkError(f"chunk from {first}: its sequences do not ascend")
        flags |= SEQUENCES
        parts.append(_column(first, "sequences", "I", offsets))

    if sequences[-1] >= _SEQUENCE_END:
        raise ChunkError(f"chunk from {first}: there is no sequence {sequences[-1]}, the last is {_SEQUENCE_END - 1}")

    numbers = [message.number for message in columns.messages]
    base = numbers[0]
    if numbers[-1] - base == count - 1 and numbers[-1] < _U64_END and numbers == list(range(base, base + count)):
        numbers = [base]
    else:
        flags |= NUMBERS
    parts.append(_column(first, "numbers", "Q", numbers))
    parts += _head_table(first, columns, heads)

    lengths = columns.lengths
    if lengths.count(lengths[0]) == count:
        lengths = lengths[:1]
    else:
        flags |= LENGTHS
    if not all(lengths):
        raise ChunkError(f"chunk from {first}: the wire of message {lengths.index(0)} is empty")
    parts.append(_column(first, "lengths", "I", lengths))

    for name, shift, times in (("expires", EXPIRES_SHIFT, columns.expires), ("due", DUE_SHIFT, columns.dues)):
        if any(times):
            same = times.count(times[0]) == count
            flags |= (SAME if same else EACH) << shift
            parts.append(_column(first, name, "Q", times[:1] if same else times))
    if columns.larges:
        flags |= LARGE
        places, file_ids, body_lengths = zip(*columns.larges, strict=True)
        parts.append(_column(first, "large", "I", (len(places), *places)))
        parts.append(_column(first, "large", "Q", file_ids + body_lengths))

    parts[0] = _START.pack(LAYOUT, flags, count)
    parts += columns.wires
    return parts


def _head_table(first: int, columns: _Columns, heads: HeadCodec) -> list[Part]:
    """Number of heads, dialects, block lengths, and which message has which head, where that is not clear anyway."""
    of_each, lengths = columns.heads, columns.lengths
    count = len(of_each)
    index: list[int] | None = None
    if of_each.count(of_each[0]) == count:
        distinct = of_each[:1]
    else:
        distinct = list(dict.fromkeys(of_each))
        if len(distinct) < count:
            places = dict(zip(distinct, range(len(distinct)), strict=True))
            index = [places[head] for head in of_each]
    described = [heads.describe(head) for head in distinct]
    if max(length for _dialect, length in described) > min(lengths):
        block_lengths = {head: length for head, (_dialect, length) in zip(distinct, described, strict=True)}
        for place, (head, length) in enumerate(zip(of_each, lengths, strict=True)):
            if length < block_lengths[head]:
                raise ChunkError(
                    f"chunk from {first}: the wire of message {place} has {length} bytes, its header block alone has"
                    f" {block_lengths[head]}"
                )
    table = [
        _column(first, "heads", "I", (len(distinct),)),
        _column(first, "dialects", "B", [dialect for dialect, _length in described]),
        _column(first, "header block lengths", "I", [length for _dialect, length in described]),
    ]
    if index is not None:
        table.append(_column(first, "head index", _index_type(len(distinct)), index))
    return table


def _summary(sequences: SequenceOf[int], columns: _Columns) -> Summary:
    count = len(columns.wires)
    if count == 0 or len(sequences) != count:
        raise ChunkError(f"{len(sequences)} sequences and {count} messages have no summary")
    dated = [expires for expires in columns.expires if expires] if any(columns.expires) else ()
    of_each = columns.heads
    distinct = of_each[:1] if of_each.count(of_each[0]) == count else dict.fromkeys(of_each)
    return Summary(
        end_sequence=sequences[-1] + 1,
        count=count,
        wire_bytes=sum(columns.lengths),
        expires_min_ms=min(dated, default=0),
        expires_max_ms=max(dated, default=0),
        undated_count=count - len(dated),
        some_due=any(columns.dues),
        some_grouped=any(head.group is not None for head in distinct),
        some_large=bool(columns.larges),
    )


class _Reader:
    """Takes a value apart from the front. Every failure is a ChunkError that names the chunk and the column."""

    __slots__ = ("count", "end", "first", "flags", "offset", "value")

    def __init__(self, first: int, value: bytes, *, is_checked: bool) -> None:
        self.first = first
        self.value = value
        self.offset = _START.size
        self.end = len(value) - _U32.size
        self.count = 0
        if self.end < _START.size:
            raise self.error(f"it has {len(value)} bytes, too few for any")
        # The layout first: another one need not have its checksum here.
        layout, self.flags, self.count = _START.unpack_from(value)
        if layout != LAYOUT:
            raise self.error(f"its layout is {layout}, known is {LAYOUT}: it is damaged, or of a later version")
        (stored,) = _U32.unpack_from(value, self.end)
        computed = stored if is_checked else crc32(memoryview(value)[: self.end])
        if stored != computed:
            raise self.error(f"its checksum is {computed:#010x}, not {stored:#010x}: it was damaged")
        if self.count == 0:
            raise self.error("it holds no messages")

    def error(self, fault: str) -> ChunkError:
        return ChunkError(f"chunk from {self.first}: {fault}")

    def number(self, name: str, layout: Struct) -> int:
        start = self.offset
        self.offset = stop = start + layout.size
        if stop > self.end:
            raise self.error(f"it ends within its {name}")
        return int(layout.unpack_from(self.value, start)[0])

    def column(self, name: str, typecode: str, count: int) -> array[int]:
        column: array[int] = array(typecode)
        start = self.offset
        self.offset = stop = start + count * column.itemsize
        if stop > self.end:
            raise self.error(f"it ends within its {name}: {count} of them")
        column.frombytes(memoryview(self.value)[start:stop])
        if _BIG_ENDIAN:
            column.byteswap()
        return column

    def times(self, name: str, kind: int) -> Iterable[int] | None:
        if kind == EACH:
            return self.column(name, "Q", self.count)
        if kind == SAME:
            return repeat(self.number(name, _U64))
        if kind == ABSENT:
            return None
        raise self.error(f"its column {name} is of unknown kind {kind}")

    def larges(self) -> list[tuple[int, int, int]]:
        """Return (place, file id, length of the body in bytes) of each body that is in a file."""
        large_count = self.number("large bodies", _U32)
        places = self.column("large bodies", "I", large_count)
        file_ids = self.column("large bodies", "Q", large_count)
        body_lengths = self.column("large bodies", "Q", large_count)
        if not large_count or not _ascends(places) or places[-1] >= self.count:
            raise self.error("its large bodies are not in order")
        return list(zip(places, file_ids, body_lengths, strict=True))

    def restore(self, heads: HeadCodec, dialect: int, wire: bytes, block_length: int) -> Envelope:
        if block_length > len(wire):
            raise self.error(f"a wire of {len(wire)} bytes should begin with {block_length} bytes of header")
        try:
            return heads.restore(dialect, wire[:block_length])
        except ValueError as error:
            raise self.error(f"the header block {wire[:block_length][:80]!r} can't be read: {error}") from error


def _column(first: int, name: str, typecode: str, values: SequenceOf[int]) -> Part:
    try:
        column = array(typecode, values)
    except OverflowError as error:
        raise ChunkError(
            f"chunk from {first}: {name} from {min(values)} to {max(values)} do not fit its {name} column"
        ) from error
    if _BIG_ENDIAN:
        column.byteswap()
    return column


def _index_type(head_count: int) -> str:
    if head_count <= 1 << 8:
        return "B"
    return "H" if head_count <= 1 << 16 else "I"


def _is_run(sequences: SequenceOf[int], first: int, count: int) -> bool:
    if isinstance(sequences, range):
        return sequences == range(first, first + count)
    return sequences[0] == first and sequences[-1] == first + count - 1 and _ascends(sequences)


def _ascends(numbers: SequenceOf[int]) -> bool:
    return all(map(lt, numbers, islice(numbers, 1, None)))
