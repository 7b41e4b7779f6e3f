"""Batches: records that are appended, stored, sent and read as one. The bytes are the same in a SEND, on disk and in a
MESSAGE, except for twenty bytes that the broker stamps.

    offset  bytes  field (little-endian)
         0      4  magic `SLB1`
         4      4  total_bytes     of the batch, this header and the padding included; a multiple of 8
         8      8  first_index     of its first record          } stamped by the broker,
        16      8  timestamp_ms    since 1970, when appended    } 0 from a producer
        24      4  stamp           CRC-32 of bytes 0 .. 24 and 28 .. 32, 0 from a producer
        28      4  checksum        CRC-32 of bytes 32 .. total_bytes
        32      4  count           of records; each has an index of its own, compressed or not
        36      4  plain_bytes     of the body, expanded
        40      1  codec           0 none, 1 gzip, 2 snappy (raw block), 3 zstd
        41      1  flags           1: the body has keys
        42      2  head_bytes      of the headers, without their padding
        44      4  body_bytes      of the body as stored
        48         head            lines `name:value` that all records share, escaped as in STOMP 1.2, `\n` between two;
                                   zeros to 8
                   body            compressed by the codec; zeros to 8

    the body, expanded: offsets of the values (count + 1 numbers of 4 bytes, the first 0), the values; with keys the
    offsets of the keys and the keys likewise. An absent key is empty.

Offsets and values have the layout of an Apache Arrow binary column, so column readers need not touch the records.

A compressed batch counts as many indexes as it has records: record `i` is `first_index + i`. A reader that starts in
the middle of a batch skips the records before.

Source: seed 001 ("Batch & Asynchronous Producing", "Compression"), DESIGN section 8.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Generator, Iterator
from collections.abc import Sequence as SequenceOf
from itertools import accumulate
from typing import Final, cast

from zlib_ng import zlib_ng

from .codecs import Codec, CodecError, Room, compress, expand

MAGIC: Final = b"SLB1"
HEADER: Final = struct.Struct("<4sIQQIIIIBBHI")
HEADER_BYTES: Final = HEADER.size
STAMP_OFFSET: Final = 8
CHECKED_OFFSET: Final = 32
FLAG_KEYS: Final = 1
ALIGN_BYTES: Final = 8
COUNT_MAX: Final = 1 << 20
"""Maximum number of records of one batch."""
HEAD_BYTES_MAX: Final = (1 << 16) - 1
BATCH_BYTES_MAX: Final = (1 << 31) - 1
"""Maximum size of a batch in this format; brokers and arrays allow less."""
CONTENT_TYPE: Final = "application/vnd.sluiceway.batch"
"""Content type of a SEND or MESSAGE whose body is a run of batches."""

_Fields = tuple[bytes, int, int, int, int, int, int, int, int, int, int, int]
_TWO_OFFSETS: Final = struct.Struct("<II")
_PADDING: Final = bytes(ALIGN_BYTES)
OFFSETS_PER_STEP: Final = 512
BYTES_PER_STEP: Final = 512 * 1024
"""Bytes per step of a checksum: 30 to 60 µs, as long as a step of `OFFSETS_PER_STEP` offsets."""
_NATIVE: Final = sys.byteorder == "little" and array("I").itemsize == 4


class BatchError(ValueError):
    """Invalid or incomplete batch. The message names the fault and its position."""


class BatchTooLargeError(BatchError):
    """Batch larger than the receiver accepts."""


def padded(length_bytes: int) -> int:
    """Return the length rounded up to a multiple of eight."""
    return -(-length_bytes // ALIGN_BYTES) * ALIGN_BYTES


def _column(values: SequenceOf[bytes | memoryview]) -> list[bytes | memoryview]:
    """Return offsets and values as parts to be joined."""
    offsets = list(accumulate(map(len, values), initial=0))
    if offsets[-1] >= 1 << 32:
        raise BatchError(f"{offsets[-1]} bytes of records in one batch: it can hold {BATCH_BYTES_MAX}")
    return [struct.pack(f"<{len(offsets)}I", *offsets), *values]


def encode(
    values: SequenceOf[bytes | memoryview],
    *,
    head: bytes = b"",
    keys: SequenceOf[bytes | memoryview] | None = None,
    codec: Codec = Codec.NONE,
) -> bytes:
    """Return a batch of at least one record, not stamped yet. `keys`: one for each record, empty where there is none.

    Raises BatchError for more than a batch can hold.
    """
    count = len(values)
    if not 0 < count <= COUNT_MAX:
        raise BatchError(f"{count} records in one batch: between 1 and {COUNT_MAX} are possible")
    if len(head) > HEAD_BYTES_MAX:
        raise BatchError(f"{len(head)} bytes of headers in one batch: {HEAD_BYTES_MAX} are possible")
    if keys is not None and len(keys) != count:
        raise BatchError(f"{len(keys)} keys for {count} records")
    parts = _column(values)
    if keys is not None:
        parts += _column(keys)
    plain = b"".join(parts)
    body = compress(codec, plain)
    return _assembled(head, body, count, len(plain), codec, FLAG_KEYS if keys is not None else 0)


def encoded_bytes(values: SequenceOf[bytes | memoryview], head: bytes) -> int:
    """Return the length of the batch that `encode` makes of the values, without keys and codec."""
    return HEADER_BYTES + padded(len(head)) + padded(4 * (len(values) + 1) + sum(map(len, values)))


def encode_column(
    body: bytes, count: int, *, head: bytes = b"", keys: bool = False, codec: Codec = Codec.NONE
) -> bytes:
    """Encode a body that is already laid out: offsets and values, followed with `keys` by those of the keys. The layout
    is not checked here; the broker checks it. Raises BatchError.
    """
    if not 0 < count <= COUNT_MAX:
        raise BatchError(f"{count} records in one batch: between 1 and {COUNT_MAX} are possible")
    return _assembled(head, compress(codec, body), count, len(body), codec, FLAG_KEYS if keys else 0)


def _assembled(
    head: bytes, body: bytes | memoryview, count: int, plain_bytes: int, codec_number: int, flags: int
) -> bytes:
    head_end, body_end = padded(len(head)), padded(len(body))
    total_bytes = HEADER_BYTES + head_end + body_end
    if total_bytes > BATCH_BYTES_MAX:
        raise BatchError(f"a batch of {total_bytes} bytes: {BATCH_BYTES_MAX} are possible")
    if len(head) > HEAD_BYTES_MAX:
        raise BatchError(f"{len(head)} bytes of headers in one batch: {HEAD_BYTES_MAX} are possible")
    tail = HEADER.pack(MAGIC, total_bytes, 0, 0, 0, 0, count, plain_bytes, codec_number, flags, len(head), len(body))[
        CHECKED_OFFSET:
    ]
    rest = b"".join((tail, head, _PADDING[: head_end - len(head)], body, _PADDING[: body_end - len(body)]))
    start = HEADER.pack(MAGIC, total_bytes, 0, 0, 0, zlib_ng.crc32(rest), 0, 0, 0, 0, 0, 0)[:CHECKED_OFFSET]
    return start + rest


def reheaded(batch: Batch, head: bytes) -> bytes:
    """Return the same records under other header lines, not stamped yet, without expanding them. Raises BatchError."""
    return _assembled(head, batch.body, batch.count, batch.plain_bytes, batch.codec_number, batch.flags)


def stamped(start: bytes | memoryview, first_index: int, timestamp_ms: int) -> bytes:
    """Return the first 32 bytes of a batch with index and time stamped in; `start`: the bytes before."""
    lead = bytes(start[:STAMP_OFFSET]) + struct.pack("<QQ", first_index, timestamp_ms)
    checksum = bytes(start[28:32])
    return lead + struct.pack("<I", zlib_ng.crc32(checksum, zlib_ng.crc32(lead))) + checksum


class Batch:
    """A parsed batch: views of the given bytes. Nothing is copied or expanded before it is requested."""

    __slots__ = (
        "_body_bytes",
        "_checksum",
        "_head_bytes",
        "_keys",
        "_offsets",
        "_plain",
        "_stamp",
        "codec_number",
        "count",
        "data",
        "first_index",
        "flags",
        "plain_bytes",
        "timestamp_ms",
        "total_bytes",
    )

    def __init__(self, data: bytes | memoryview, offset: int = 0) -> None:
        """Parse the batch that begins at `offset`. Checks that the header is consistent and all bytes are there, but
        not the checksum (see `verify`). Raises BatchError.
        """
        view = memoryview(data)
        if len(view) - offset < HEADER_BYTES:
            raise BatchError(f"{len(view) - offset} bytes at offset {offset}: a batch has at least {HEADER_BYTES}")
        (
            magic,
            self.total_bytes,
            self.first_index,
            self.timestamp_ms,
            self._stamp,
            self._checksum,
            self.count,
            self.plain_bytes,
            self.codec_number,
            self.flags,
            self._head_bytes,
            self._body_bytes,
        ) = cast(_Fields, HEADER.unpack_from(view, offset))
        if magic != MAGIC:
            raise BatchError(f"no batch begins at offset {offset}: it would with {MAGIC!r}, here is {magic!r}")
        whole_bytes = HEADER_BYTES + padded(self._head_bytes) + padded(self._body_bytes)
        if self.total_bytes != whole_bytes:
            raise BatchError(
                f"the batch at offset {offset} says it has {self.total_bytes} bytes, its parts have {whole_bytes}"
            )
        if len(view) - offset < self.total_bytes:
            raise BatchError(
                f"the batch at offset {offset} has {self.total_bytes} bytes, only {len(view) - offset} are there"
            )
        if not self.count:
            raise BatchError(f"the batch at offset {offset} has no records")
        self.data = view[offset : offset + self.total_bytes]
        self._plain: bytes | memoryview | None = None
        self._offsets: SequenceOf[int] | None = None
        self._keys: tuple[SequenceOf[int], int] | None = None

    @property
    def codec(self) -> Codec:
        """Codec of the body. Raises BatchError for one that this version does not know."""
        try:
            return Codec(self.codec_number)
        except ValueError:
            raise BatchError(f"codec {self.codec_number} is not known") from None

    @property
    def has_keys(self) -> bool:
        return bool(self.flags & FLAG_KEYS)

    @property
    def end_index(self) -> int:
        """Index behind the last record."""
        return self.first_index + self.count

    @property
    def head(self) -> bytes:
        """Header lines that all records share, in the form of STOMP 1.2."""
        return bytes(self.data[HEADER_BYTES : HEADER_BYTES + self._head_bytes])

    @property
    def body(self) -> memoryview:
        """Body as stored."""
        start = HEADER_BYTES + padded(self._head_bytes)
        return self.data[start : start + self._body_bytes]

    def verify(self) -> None:
        """Check the bytes of the producer against the checksum. O(bytes). Raises BatchError."""
        for _ in self._verifying():
            pass

    def _verifying(self) -> Iterator[None]:
        """Do `verify` in steps, at least one."""
        checksum = 0
        for start in range(CHECKED_OFFSET, self.total_bytes, BYTES_PER_STEP):
            checksum = zlib_ng.crc32(self.data[start : start + BYTES_PER_STEP], checksum)
            yield
        if checksum != self._checksum:
            raise BatchError(f"the checksum of a batch of {self.count} records is wrong: it was damaged on its way")

    def is_stamped_right(self) -> bool:
        """Return whether index and time are those that the broker stamped."""
        return zlib_ng.crc32(self.data[28:32], zlib_ng.crc32(self.data[:24])) == self._stamp

    def plain(self, room: Room = bytearray) -> bytes | memoryview:
        """Return the body, expanded into `room` and kept. Check `plain_bytes` first. Raises BatchError."""
        if self._plain is None:
            try:
                self._plain = expand(self.codec, self.body, self.plain_bytes, room)
            except CodecError as error:
                raise BatchError(str(error)) from None
        return self._plain

    def forget(self) -> None:
        """Drop the expanded body; the next access expands it again."""
        self._plain = self._offsets = self._keys = None

    def offsets(self) -> SequenceOf[int]:
        """Return the count + 1 offsets of values in the expanded body, counted from the end of the offset table: the
        start of each value and the end of the last. Raises BatchError unless they ascend and stay inside the body.
        """
        if self._offsets is None:
            for _step in self._finding_offsets():
                pass
        assert self._offsets is not None
        return self._offsets

    def _finding_offsets(self) -> Generator[None, None, SequenceOf[int]]:
        """Do `offsets` in steps."""
        offsets, end = yield from self._table(0)
        if not self.has_keys and end != self.plain_bytes:
            raise BatchError(f"{self.count} records fill {end} bytes of a body of {self.plain_bytes}")
        self._offsets = offsets
        return offsets

    def _finding_keys(self) -> Generator[None, None, tuple[SequenceOf[int], int]]:
        """Return the offsets of the keys, and the byte of the body they count from."""
        values = self._offsets or (yield from self._finding_offsets())
        begin = 4 * (self.count + 1) + values[-1]
        offsets, end = yield from self._table(begin)
        if end != self.plain_bytes:
            raise BatchError(f"values and keys fill {end} bytes of a body of {self.plain_bytes}")
        self._keys = offsets, begin + 4 * (self.count + 1)
        return self._keys

    def _table(self, start: int) -> Generator[None, None, tuple[SequenceOf[int], int]]:
        """Return, in steps, the offsets that begin at byte `start` of the body, and the byte behind that column."""
        plain = self.plain()
        length_bytes = 4 * (self.count + 1)
        if start + length_bytes > len(plain):
            raise BatchError(f"a body of {len(plain)} bytes has no room for {self.count} records")
        view = memoryview(plain)[start : start + length_bytes]
        offsets = array("I")
        if _NATIVE:
            offsets.frombytes(view)
        else:
            offsets = array("I", struct.unpack(f"<{self.count + 1}I", view))
        for first in range(0, self.count, OFFSETS_PER_STEP):
            if first:
                yield
            ordered = offsets[first : first + OFFSETS_PER_STEP + 1].tolist()
            if (not first and ordered[0] != 0) or ordered != sorted(ordered):
                raise BatchError("the offsets of a batch do not ascend from 0")
        end = start + length_bytes + offsets[-1]
        if end > len(plain):
            raise BatchError(f"the records of a batch end at byte {end} of a body of {len(plain)}")
        return offsets, end

    def values(self, start: int = 0, stop: int | None = None) -> list[memoryview]:
        """Return records `start` .. `stop - 1` of this batch as views. Raises BatchError."""
        offsets = self.offsets()
        return self._cut(memoryview(self.plain())[4 * (self.count + 1) :], offsets, start, stop)

    def value(self, place: int) -> memoryview:
        """Return one record. O(1) if the batch is not compressed. Raises BatchError, IndexError."""
        if not 0 <= place < self.count:
            raise IndexError(place)
        if self._offsets is not None:
            return self.values(place, place + 1)[0]
        plain = memoryview(self.plain())
        base = 4 * (self.count + 1)
        if base > len(plain):
            raise BatchError(f"a body of {len(plain)} bytes has no room for {self.count} records")
        start, stop = _TWO_OFFSETS.unpack_from(plain, 4 * place)
        if not start <= stop <= len(plain) - base:
            raise BatchError(f"record {place} of a batch lies from {start} to {stop} of {len(plain) - base} bytes")
        return plain[base + start : base + stop]

    def keys(self, start: int = 0, stop: int | None = None) -> list[memoryview] | None:
        """Return the keys of records `start` .. `stop - 1`, empty where there is none; None if the batch has no keys.
        Raises BatchError.
        """
        if not self.has_keys:
            return None
        offsets, begin = self.key_offsets()
        return self._cut(memoryview(self.plain())[begin:], offsets, start, stop)

    def key_offsets(self) -> tuple[SequenceOf[int], int]:
        """Return the count + 1 offsets of the keys, and the byte of the expanded body that they count from. For batches
        with keys. Raises BatchError.
        """
        if self._keys is None:
            for _step in self._finding_keys():
                pass
        assert self._keys is not None
        return self._keys

    def check(self, *, plain_bytes_max: int, room: Room = bytearray) -> None:
        """Check a batch of a producer completely before it is appended: checksum, codec, expanded size, record table.
        Expands a compressed body into `room`. Raises BatchError.
        """
        for _ in self.checking(plain_bytes_max=plain_bytes_max, room=room):
            pass

    def checking(self, *, plain_bytes_max: int, room: Room = bytearray) -> Iterator[None]:
        """Do `check` in steps, except that expanding is one step."""
        if self.flags & ~FLAG_KEYS:
            raise BatchError(f"the flags {self.flags:#x} of a batch are not known")
        if self.count > COUNT_MAX:
            raise BatchError(f"{self.count} records in one batch: {COUNT_MAX} are possible")
        if self.plain_bytes > plain_bytes_max:
            raise BatchTooLargeError(
                f"a batch expands to {self.plain_bytes} bytes, more than {plain_bytes_max}: send smaller ones"
            )
        yield from self._verifying()
        self.plain(room)
        yield from self._finding_keys() if self.has_keys else self._finding_offsets()

    def _cut(self, base: memoryview, offsets: SequenceOf[int], start: int, stop: int | None) -> list[memoryview]:
        stop = self.count if stop is None else stop
        return [base[a:b] for a, b in zip(offsets[start:stop], offsets[start + 1 : stop + 1], strict=True)]

    def __repr__(self) -> str:
        return f"<Batch of {self.count} records from {self.first_index}, {self.total_bytes} bytes>"


def split(data: bytes | memoryview) -> Iterator[Batch]:
    """Yield the batches of a run, in order, with nothing between or behind them. Raises BatchError."""
    offset = 0
    view = memoryview(data)
    while offset < len(view):
        batch = Batch(view, offset)
        offset += batch.total_bytes
        yield batch


class Damage:
    """Unreadable records of a run: from `first_index` to before `end_index`."""

    __slots__ = ("end_index", "first_index", "why")

    def __init__(self, first_index: int, end_index: int, why: str) -> None:
        self.first_index = first_index
        self.end_index = end_index
        self.why = why


def sound(data: bytes | memoryview, first_index: int, end_index: int) -> Iterator[Batch | Damage]:
    """Yield the batches of a run of the given records, verified, and a Damage for each damaged stretch. Readers need
    this check because the broker passes batches on from its files unread. Records missing without damage are not
    reported.
    """
    place = first_index
    why = ""
    batches = split(data)
    while True:
        try:
            batch = next(batches, None)  # behind a batch with a wrong size none is found
            if batch is None:
                break
            batch.verify()
            if not batch.is_stamped_right():
                raise BatchError("the stamp of a batch is wrong: it was damaged on its way")
        except BatchError as error:
            why = why or str(error)
            continue
        if why and batch.first_index > place:
            yield Damage(place, batch.first_index, why)
            why = ""
        yield batch
        place = batch.end_index
    if why and place < end_index:
        yield Damage(place, end_index, why)
