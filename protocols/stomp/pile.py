"""Bytes that arrived in pieces and are joined once: what keeps a body linear, however small its pieces.

Invariant: every byte is copied at most twice before `take` (once into a group, once into the whole), and what is held
costs at most a few bytes more than the bytes themselves once a group is full.
"""

from __future__ import annotations

import enum


class Wait(enum.Enum):
    """What the parser waits for; LARGE: the rest of a body that it passes on."""

    NOTHING = enum.auto()
    HEAD = enum.auto()
    COUNT = enum.auto()
    NUL = enum.auto()
    LARGE = enum.auto()


class Pile:
    """An unfinished frame. Small pieces are joined in groups, so a body that comes two bytes at a time is not an
    object per piece."""

    __slots__ = ("_pieces", "_small", "_small_bytes", "size_bytes")
    _GROUP_COUNT = 256
    _GROUP_BYTES = 262_144

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._small: list[bytes] = []
        self._small_bytes = 0
        self.size_bytes = 0

    def add(self, piece: bytes) -> None:
        """Put `piece` behind what is here; amortised O(its length)."""
        self._small.append(piece)
        self._small_bytes += len(piece)
        self.size_bytes += len(piece)
        if len(self._small) >= self._GROUP_COUNT:
            if self._small_bytes <= self._GROUP_BYTES:
                self._pieces.append(b"".join(self._small))
            else:
                self._pieces.extend(self._small)
            self._small.clear()
            self._small_bytes = 0

    def take(self, last: bytes | memoryview) -> bytes:
        """Everything, with `last` behind it; the pile is empty afterwards."""
        whole = b"".join([*self._pieces, *self._small, last])
        self.clear()
        return whole

    def clear(self) -> None:
        """Drop everything."""
        self._pieces.clear()
        self._small.clear()
        self._small_bytes = 0
        self.size_bytes = 0
