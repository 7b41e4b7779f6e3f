"""Records of spooled transactions: pieces of SENDs that no queue has yet, and commit records.

A *piece* is a chunk (chunks.py) of messages for one queue or log, with its kind, priority and name in front; that for a
log says where its records may be. It is written while its transaction is open. The *commit record* promises that the
transaction is carried out: a transaction with pieces and no commit record never took place.

Invariants: every `decode_*` gives back what its `encode_*` was given, or raises PieceError.

Deliberately not here: when they are written and read (spool.py), and what a restart makes of them (recovery.py).

Source: seed 002 "Transactions"; DESIGN section 7. Normative: FORMAT.md.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Final

from attrs import frozen
from zlib_ng.zlib_ng import crc32

from ..queues.spools import BegunAt, SpoolTarget
from . import chunks
from .keys import StoreFormatError
from .states import KIND_QUEUE, KIND_TOPIC

PIECE_LAYOUT: Final = 1
LOG_LAYOUT: Final = 2
"""Layout of a piece for a log."""
COMMIT_LAYOUT: Final = 1
DROPPED_LAYOUT: Final = 2
"""Layout of a commit record that names queues which were deleted since."""

_U32: Final = Struct("<I")
_TARGET: Final = Struct("<BBBH")
_COMMIT: Final = Struct("<BQI")
_BEGUN_AT: Final = Struct("<QB")

_FLAGS_AT: Final = 1
"""Offset of the flags in a chunk."""


class PieceError(StoreFormatError):
    """A piece or a commit record that can't be read, or values that do not fit into one."""


@frozen
class Piece:
    """A piece: the target of its messages, and the chunk with them."""

    target: SpoolTarget
    chunk: bytes
    """Chunk for `decode_chunk`, from sequence 0."""
    begun_at: BegunAt | None = None
    """Place from which on the records may be in the log; None: the piece is for a queue."""

    @property
    def some_large(self) -> bool:
        """The bodies of some messages lie in files."""
        return len(self.chunk) > _FLAGS_AT and bool(self.chunk[_FLAGS_AT] & chunks.LARGE)


@frozen
class CommitRecord:
    """A spooled transaction is committed."""

    commit_number: int
    """Transactions were committed in this order."""
    pieces_count: int
    """Number of its pieces when it was committed."""
    dropped: tuple[SpoolTarget, ...] = ()
    """Queues that were deleted since: what pieces it has left for these is to be deleted, too."""


def encode_piece(target: SpoolTarget, chunk: bytes, begun_at: BegunAt | None = None) -> bytes:
    """The value of a piece. Raises PieceError for a name or a priority that does not fit."""
    if begun_at is None:
        start = _encode_target(PIECE_LAYOUT, target)
    else:
        log_id, from_index = begun_at
        start = _encode_target(LOG_LAYOUT, target) + _BEGUN_AT.pack(from_index, len(log_id)) + log_id.encode("ascii")
    return start + _U32.pack(crc32(start)) + chunk


def _encode_target(layout: int, target: SpoolTarget) -> bytes:
    name, priority, topic = target
    if not 0 <= priority <= 9:
        raise PieceError(f"a piece for {name}: there is no priority {priority}")
    try:
        data = name.encode()
        return _TARGET.pack(layout, KIND_TOPIC if topic else KIND_QUEUE, priority, len(data)) + data
    except (StructError, UnicodeEncodeError) as error:
        raise PieceError(f"a piece for the destination {name[:80]!r} can't be written: {error}") from error


def _decode_target(kind: int, priority: int, data: bytes) -> SpoolTarget:
    if kind not in (KIND_QUEUE, KIND_TOPIC) or priority > 9:
        raise PieceError(f"a piece for a destination of kind {kind} with priority {priority}, which there is not")
    try:
        return data.decode(), priority, kind == KIND_TOPIC
    except UnicodeDecodeError as error:
        raise PieceError(f"the destination of a piece is no UTF-8: {error}") from error


def decode_piece(value: bytes) -> Piece:
    """Decode a piece; `decode_chunk` tells whether its chunk is whole. Raises PieceError."""
    if len(value) < _TARGET.size:
        raise PieceError(f"a piece of {len(value)} bytes: its destination alone has more")
    layout, kind, priority, name_bytes = _TARGET.unpack_from(value)
    if layout not in (PIECE_LAYOUT, LOG_LAYOUT):
        raise PieceError(f"a piece of unknown layout {layout}: it is damaged, or of a later version")
    end = name_end = _TARGET.size + name_bytes
    from_index = 0
    if layout == LOG_LAYOUT and len(value) >= end + _BEGUN_AT.size:
        from_index, id_bytes = _BEGUN_AT.unpack_from(value, end)
        end += _BEGUN_AT.size + id_bytes
    start = value[:end]
    if len(value) < end + _U32.size or _U32.unpack_from(value, end)[0] != crc32(start):
        raise PieceError("a piece whose destination does not match its checksum: it is damaged")
    target = _decode_target(kind, priority, start[_TARGET.size : name_end])
    if layout == PIECE_LAYOUT:
        return Piece(target, value[end + _U32.size :])
    try:
        log_id = start[name_end + _BEGUN_AT.size :].decode("ascii")
    except UnicodeDecodeError as error:
        raise PieceError(f"the id of the log of a piece is no ASCII: {error}") from error
    return Piece(target, value[end + _U32.size :], (log_id, from_index))


def encode_commit(record: CommitRecord) -> bytes:
    """The value of a commit record. Raises PieceError for numbers that do not fit."""
    layout = DROPPED_LAYOUT if record.dropped else COMMIT_LAYOUT
    try:
        start = _COMMIT.pack(layout, record.commit_number, record.pieces_count)
    except StructError as error:
        raise PieceError(f"{record} does not fit into a record: {error}") from error
    if not record.dropped:
        return start
    value = start + b"".join([_encode_target(DROPPED_LAYOUT, target) for target in record.dropped])
    return value + _U32.pack(crc32(value))


def decode_commit(value: bytes) -> CommitRecord:
    """Decode a commit record. Raises PieceError for anything that `encode_commit` does not write."""
    if len(value) < _COMMIT.size:
        raise PieceError(f"a commit record of {len(value)} bytes: it has {_COMMIT.size}")
    layout, commit_number, pieces_count = _COMMIT.unpack_from(value)
    if layout == DROPPED_LAYOUT:
        return CommitRecord(commit_number, pieces_count, _decode_dropped(value))
    if layout != COMMIT_LAYOUT:
        raise PieceError(f"a commit record of unknown layout {layout}: it is damaged, or of a later version")
    if len(value) != _COMMIT.size:
        raise PieceError(f"a commit record of {len(value)} bytes: it has {_COMMIT.size}")
    return CommitRecord(commit_number, pieces_count)


def _decode_dropped(value: bytes) -> tuple[SpoolTarget, ...]:
    end = len(value) - _U32.size
    if end < _COMMIT.size + _TARGET.size or _U32.unpack_from(value, end)[0] != crc32(value[:end]):
        raise PieceError("a commit record that does not match its checksum: it is damaged")
    targets: list[SpoolTarget] = []
    at = _COMMIT.size
    while at < end:
        if end - at < _TARGET.size:
            raise PieceError("a commit record that ends in the midst of a destination")
        _layout, kind, priority, name_bytes = _TARGET.unpack_from(value, at)
        at += _TARGET.size
        if at + name_bytes > end:
            raise PieceError("a commit record that ends in the midst of a destination")
        targets.append(_decode_target(kind, priority, value[at : at + name_bytes]))
        at += name_bytes
    return tuple(targets)
