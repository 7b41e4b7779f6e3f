"""Keys of the value log (values.py): the place of a chunk has the chunk's key, but for the family."""

from __future__ import annotations

from typing import Final

from . import keys

CHUNKS: Final = keys.family_range(keys.CHUNK)


def name_of(key: bytes) -> bytes:
    """The key of the place of this chunk."""
    return keys.VALUE + key[1:]


def queue_of(key: bytes) -> bytes:
    """Return the prefix that all keys of chunks and places of a queue share."""
    return key[1:5]


def names_within(start: bytes, stop: bytes) -> tuple[bytes, bytes] | None:
    """The places of the chunks of this range."""
    first, end = max(start, CHUNKS[0]), min(stop, CHUNKS[1])
    if first >= end:
        return None
    return name_of(first), name_of(end) if end < CHUNKS[1] else keys.family_range(keys.VALUE)[1]


def parts_around(start: bytes, stop: bytes) -> list[tuple[bytes, bytes]]:
    """Return the parts of a range outside of the places, which belong to the value log alone."""
    first, end = keys.family_range(keys.VALUE)
    return [(low, high) for low, high in ((start, min(stop, first)), (max(start, end), stop)) if low < high]
