"""How a large value lies in a segment, and the record that says where. Who needs which of them: values.py.

Normative: FORMAT.md.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import attrs
from zlib_ng.zlib_ng import adler32

from .keys import StoreFormatError

LAYOUT: Final = 1

_PLACE: Final = Struct("<BQQII")
_START: Final = Struct("<BHI")
START_BYTES: Final = _START.size
"""Length of the start of a value in a segment: layout, length of its key, length of itself. Then the key, then the
value.
"""


class PlaceError(StoreFormatError):
    """A place that can't be read."""


@attrs.frozen
class Place:
    """Place of a value."""

    segment: int
    offset: int
    size_bytes: int
    checksum: int
    """Adler-32. (A CRC-32 would be the same for all chunks, since each of them ends with its own.)"""


def encode_place(place: Place) -> bytes:
    """The record of a value that lies in a segment."""
    return _PLACE.pack(LAYOUT, place.segment, place.offset, place.size_bytes, place.checksum)


def decode_place(value: bytes) -> Place:
    """Decode a place. Raises PlaceError for anything that `encode_place` does not write."""
    if len(value) != _PLACE.size:
        raise PlaceError(f"a place of {len(value)} bytes: it has {_PLACE.size}")
    layout, segment, offset, size_bytes, checksum = _PLACE.unpack(value)
    if layout != LAYOUT:
        raise PlaceError(f"the layout of a place is {layout}, known is {LAYOUT}: it is damaged, or of a later version")
    return Place(segment, offset, size_bytes, checksum)


def place_or_none(value: bytes) -> Place | None:
    """The same; None: it can't be read."""
    try:
        return decode_place(value)
    except PlaceError:
        return None


def is_right(place: Place, value: bytes) -> bool:
    """Whether this is what was written there."""
    return len(value) == place.size_bytes and adler32(value) == place.checksum


def encode_start(key: bytes, size_bytes: int) -> bytes:
    """Encode the bytes before a value in a segment."""
    return _START.pack(LAYOUT, len(key), size_bytes) + key


def decode_start(data: bytes) -> tuple[int, int] | None:
    """Length of the key, which comes next, and of the value behind it; None: no value begins like this."""
    if len(data) < _START.size:
        return None
    layout, key_length, size_bytes = _START.unpack_from(data)
    return (key_length, size_bytes) if layout == LAYOUT else None
