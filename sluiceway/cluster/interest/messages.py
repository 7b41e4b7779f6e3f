"""Messages of hubs about interest, and their form as bytes. Numbers are in the compact code.

A message has at most BYTES_MAX bytes but for a single long name: the sender cuts deltas and tables into several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from hashlib import blake2b
from typing import Final

import attrs

from .compact import CompactFault, decode_pair, decode_pairs, encode_pair, encode_pairs

BYTES_MAX: Final = 32 * 1024
HASH_BYTES: Final = 8
_MODULUS: Final = 1 << 8 * HASH_BYTES


class InterestFault(Exception):
    """A hub told what can't be. The message says what, in words."""


@attrs.frozen
class Delta:
    """Changes of the sender's own interest since version `base`: what has changed, as it is in `version`. So it leads
    there from any version between the two.
    """

    run: int
    base: int
    version: int
    added: tuple[str, ...]
    removed: tuple[str, ...]


@attrs.frozen
class Table:
    """A part of all that a hub is interested in, at one version."""

    hub: str
    run: int
    version: int
    covers_all: bool
    """Whether the hub counts as interested in everything: it has too many names to tell."""
    part: int
    """Number of this part, from 0 on."""
    parts_count: int
    names: tuple[str, ...]


@attrs.frozen
class Digest:
    """Version and hash of the sender's own interest, and what it knows of the others."""

    run: int
    version: int
    hash: int
    view: int
    """Hash of the hubs and their runs, as the sender knows them."""
    seen: tuple[tuple[int, int], ...]
    """Pairs for the hubs of that view, in the order of names: the version that the sender has, and the highest that it
    has heard of.
    """


@attrs.frozen
class Seen:
    """Version of the receiver's interest that the sender has, and the highest that it has heard of."""

    run: int
    applied: int
    received: int


@attrs.frozen
class Ask:
    """Request for what is missing of the receiver's own interest."""

    run: int
    """Run of the receiver."""
    version: int
    """Version that the sender has; changes since then are enough."""
    whole: bool
    """Whether the whole table is wanted."""


@attrs.frozen
class Join:
    """The sender knows nothing of anybody: one member sends it all tables, the others their digests."""

    run: int


Message = Delta | Table | Digest | Seen | Ask | Join


class _Kind(IntEnum):
    DELTA = 1
    TABLE = 2
    DIGEST = 3
    SEEN = 4
    ASK = 5
    JOIN = 6


def hash_of(name: str) -> int:
    """Return the number that a name adds to the hash of a table (a sum, so order plays no part)."""
    return int.from_bytes(blake2b(name.encode(), digest_size=HASH_BYTES).digest(), "big")


def added_up(total: int, more: int) -> int:
    """Return the hash of a table with another name; `more` may be negative: without it."""
    return (total + more) % _MODULUS


def view_hash(view: Sequence[tuple[str, int]]) -> int:
    """Return the hash of hubs and their runs, in the order of names."""
    text = "\n".join(f"{hub} {run}" for hub, run in view)
    return hash_of(text)


def in_pieces(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield names in pieces that fit into a message; at least one piece."""
    piece: list[str] = []
    size_bytes = 0
    for name in names:
        name_bytes = 4 * len(name) + 3
        if piece and size_bytes + name_bytes > BYTES_MAX:
            yield tuple(piece)
            piece, size_bytes = [], 0
        piece.append(name)
        size_bytes += name_bytes
    yield tuple(piece)


def encode(message: Message) -> bytes:
    """Return a message as bytes."""
    match message:
        case Delta():
            numbers: Sequence[tuple[int, int]] = ((message.run, message.run), (message.base, message.version))
            return _head(_Kind.DELTA, numbers) + _names(message.added) + _names(message.removed)
        case Table():
            numbers = (
                (message.run, message.run),
                (message.version, message.version + message.covers_all),
                (message.part, message.parts_count),
            )
            return _head(_Kind.TABLE, numbers) + _names((message.hub,)) + _names(message.names)
        case Digest():
            head = _head(
                _Kind.DIGEST, ((message.run, message.run), (message.version, message.version + len(message.seen)))
            )
            hashes = message.hash.to_bytes(HASH_BYTES, "big") + message.view.to_bytes(HASH_BYTES, "big")
            return head + hashes + encode_pairs(message.seen)
        case Seen():
            return _head(_Kind.SEEN, ((message.run, message.run), (message.applied, message.received)))
        case Ask():
            return _head(_Kind.ASK, ((message.run, message.run), (message.version, message.version + message.whole)))
        case Join():
            return _head(_Kind.JOIN, ((message.run, message.run),))


def decode(data: bytes) -> Message:
    """Return the message of these bytes. Raises InterestFault."""
    try:
        message, end = _decode(data)
    except (CompactFault, UnicodeDecodeError, IndexError) as error:
        raise InterestFault(f"a message about interest can't be read: {error}") from None
    if end != len(data):
        raise InterestFault(f"a message about interest has {len(data) - end} bytes too many")
    return message


def _decode(data: bytes) -> tuple[Message, int]:
    kind = data[0]
    (run, same), at = _one(data, 1)
    if run != same:
        raise InterestFault("a message about interest has no run")
    if kind == _Kind.JOIN:
        return Join(run), at
    (low, high), at = _one(data, at)
    match kind:
        case _Kind.DELTA:
            added, at = _read_names(data, at)
            removed, at = _read_names(data, at)
            return Delta(run, low, high, added, removed), at
        case _Kind.TABLE:
            (part, parts_count), at = _one(data, at)
            hub, at = _read_names(data, at)
            names, at = _read_names(data, at)
            if len(hub) != 1 or part >= parts_count or high - low > 1:
                raise InterestFault("a table of interest is of no hub, or its parts don't add up")
            return Table(hub[0], run, low, high != low, part, parts_count, names), at
        case _Kind.DIGEST:
            hashes = data[at : at + 2 * HASH_BYTES]
            if len(hashes) != 2 * HASH_BYTES or high - low > len(data):
                raise InterestFault("a digest of interest is cut off")
            seen, at = decode_pairs(data, at + 2 * HASH_BYTES, high - low)
            own, view = int.from_bytes(hashes[:HASH_BYTES], "big"), int.from_bytes(hashes[HASH_BYTES:], "big")
            return Digest(run, low, own, view, tuple(seen)), at
        case _Kind.SEEN:
            return Seen(run, low, high), at
        case _Kind.ASK:
            return Ask(run, low, high != low), at
    raise InterestFault(f"a message about interest is of kind {kind}, which does not exist")


def _head(kind: _Kind, numbers: Sequence[tuple[int, int]]) -> bytes:
    return bytes((kind,)) + encode_pairs(numbers)


def _one(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    low, high, at = decode_pair(data, at)
    return (low, high), at


def _names(names: Sequence[str]) -> bytes:
    parts = [encode_pair(len(names), len(names))]
    for name in names:
        raw = name.encode()
        parts += (encode_pair(len(raw), len(raw)), raw)
    return b"".join(parts)


def _read_names(data: bytes, at: int) -> tuple[tuple[str, ...], int]:
    count, same, at = decode_pair(data, at)
    if count != same or count > len(data):
        raise InterestFault("a list of names has no length")
    names: list[str] = []
    for _ in range(count):
        size_bytes, same, at = decode_pair(data, at)
        if size_bytes != same or at + size_bytes > len(data):
            raise InterestFault("a name is cut off")
        names.append(data[at : at + size_bytes].decode())
        at += size_bytes
    return tuple(names), at
