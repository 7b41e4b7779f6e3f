"""Keys of records as compaction knows them, and the bounded index of the last record of each key.

The key of a record is its own in its batch, else the header `key` or `key-base64` of its SEND. `group` is no key here:
who orders messages by it did not ask for the older ones to be removed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable
from typing import Any, Final

import attrs

from .marked import COMMIT_HEADER

TOMBSTONE: Final = b"tombstone:true"
"""Header line of records that, if they are empty, say that their key is gone."""
MARKS: Final = frozenset({COMMIT_HEADER, b"sluiceway-producer"})
"""Headers by which a start after a crash knows what was appended: for transactions, and for producers."""
ENTRY_BYTES: Final = 224
"""Memory of one key: an entry of a dict with its bytes and its number."""
_DIGEST_BYTES: Final = 16
_ESCAPES: Final = {b"\\n": b"\n", b"\\r": b"\r", b"\\c": b":", b"\\\\": b"\\"}


@attrs.frozen
class HeadFacts:
    """Facts in the header lines of a batch, for compaction."""

    key: bytes = b""
    """Key of the records without one of their own; empty: none."""
    is_tombstone: bool = False
    """Whether empty records remove their keys."""
    is_marked: bool = False
    """Whether a start after a crash may look for this batch, to know what was appended."""


def head_facts(lines: bytes) -> HeadFacts:
    """Read the header lines of a batch. A key in base 64 that can't be read is none."""
    key: bytes | None = None
    is_tombstone = is_marked = False
    for line in lines.split(b"\n"):
        name, _colon, value = line.partition(b":")
        if name == b"key" and key is None:
            key = _unescaped(value)
        elif name == b"key-base64" and key is None:
            try:
                key = base64.b64decode(value, validate=True)
            except binascii.Error:
                key = b""
        elif name in MARKS:
            is_marked = True
        elif line == TOMBSTONE:
            is_tombstone = True
    return HeadFacts(key or b"", is_tombstone, is_marked)


def _unescaped(value: bytes) -> bytes:
    if b"\\" not in value:
        return value
    parts = []
    place = 0
    while place < len(value):
        pair = value[place : place + 2]
        parts.append(_ESCAPES.get(pair, value[place : place + 1]))
        place += 2 if pair in _ESCAPES else 1
    return b"".join(parts)


class LastIndexes:
    """Index of the last record of each key, for as many keys as have room. One thread at a time."""

    __slots__ = ("_indexes", "keys_max")

    def __init__(self, keys_max: int) -> None:
        self.keys_max = keys_max
        self._indexes: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._indexes)

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another key."""
        return len(self._indexes) >= self.keys_max

    def note(self, key: bytes, index: int) -> bool:
        """Note a record, in the order of the indexes; False: there is no room for its key."""
        short = _short(key)
        if len(self._indexes) >= self.keys_max and short not in self._indexes:
            return False
        self._indexes[short] = index
        return True

    def last_of(self, key: bytes) -> int:
        """Return the index of the last record noted for a key; -1: none."""
        return self._indexes.get(_short(key), -1)

    def clear(self) -> None:
        """Forget all keys."""
        self._indexes = {}


@attrs.frozen
class CompactionOrder:
    """Means and bounds of one round."""

    last: LastIndexes
    """Index of keys, empty."""
    expanded_bytes_max: int
    """Batches that expand to more stay as they are."""
    tombstones_before_ms: int
    """Tombstones that were appended before this time may go."""
    marks_before_ms: int
    """Batches that a start after a crash may look for stay until they are older than this time."""
    room: Callable[[int], Any] = bytearray
    """Returns a buffer to expand a batch into."""


def _short(key: bytes) -> bytes:
    """Return the key, or of a long one a digest, which is longer than any key that is kept as it is."""
    return key if len(key) < _DIGEST_BYTES else hashlib.blake2b(key, digest_size=_DIGEST_BYTES).digest()
