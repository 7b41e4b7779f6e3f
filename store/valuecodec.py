"""Encoding of a large value in a segment, and of the record that points to it. Their users: values.py.

Normative: FORMAT.md.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import attrs
from zlib_ng.zlib_ng import adler32

from .keys import StoreFormatError

LAYOUT: Final = 1

_POINTER: Final = Struct("<BQQII")
_START: Final = Struct("<BHI")
START_BYTES: Final = _START.size
"""Length of the start of a value in a segment: layout, length of its key, length of itself. Then the key, then the
value.
"""


class PointerError(StoreFormatError):
    """A pointer that can't be read."""


@attrs.frozen
class ValuePointer:
    """Pointer to a value in a segment of the value log."""

    segment: int
    offset: int
    size_bytes: int
    checksum: int
    """Adler-32. (A CRC-32 would be the same for all chunks, since each of them ends with its own.)"""


def encode_pointer(pointer: ValuePointer) -> bytes:
    """The record of a value that lies in a segment."""
    return _POINTER.pack(LAYOUT, pointer.segment, pointer.offset, pointer.size_bytes, pointer.checksum)


def decode_pointer(value: bytes) -> ValuePointer:
    """Decode a pointer. Raises PointerError for anything that `encode_pointer` does not write."""
    if len(value) != _POINTER.size:
        raise PointerError(f"a pointer of {len(value)} bytes: it has {_POINTER.size}")
    layout, segment, offset, size_bytes, checksum = _POINTER.unpack(value)
    if layout != LAYOUT:
        raise PointerError(f"a pointer has layout {layout}, known is {LAYOUT}: it is damaged, or of a later version")
    return ValuePointer(segment, offset, size_bytes, checksum)


def pointer_or_none(value: bytes) -> ValuePointer | None:
    """The same; None: it can't be read."""
    try:
        return decode_pointer(value)
    except PointerError:
        return None


def is_right(pointer: ValuePointer, value: bytes) -> bool:
    """Return whether `value` is what was written at the pointer."""
    return len(value) == pointer.size_bytes and adler32(value) == pointer.checksum


def encode_start(key: bytes, size_bytes: int) -> bytes:
    """Encode the bytes before a value in a segment."""
    return _START.pack(LAYOUT, len(key), size_bytes) + key


def decode_start(data: bytes) -> tuple[int, int] | None:
    """Length of the key, which comes next, and of the value behind it; None: no value begins like this."""
    if len(data) < _START.size:
        return None
    layout, key_length, size_bytes = _START.unpack_from(data)
    return (key_length, size_bytes) if layout == LAYOUT else None
