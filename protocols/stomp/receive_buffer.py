"""Bytes that arrived in pieces and become one: what keeps a body linear, however small its pieces.

Pieces are joined once, when all are there. Of a large frame whose size is known the rest is not collected: room is made
for the whole, what follows is written there (by the kernel, where it can be), and it is the whole without a copy.

Room is made for what was sent, not for what was announced: a quarter of the frame must be here, or the connection has
sent as much before. So an announcement alone holds no memory; what is held, room included, is told as `held_bytes`.

Invariant: every byte is copied at most twice before `take` (once into a group, once into the whole), and what is held
costs at most a few bytes more than the bytes themselves once a group is full.
"""

from __future__ import annotations

import enum
from io import BytesIO


class Wait(enum.Enum):
    """What the parser waits for.

    BODY: a body, which alone is collected, and the NUL behind it; LARGE: the rest of a body that is passed on.
    """

    NOTHING = enum.auto()
    HEAD = enum.auto()
    COUNT = enum.auto()
    BODY = enum.auto()
    NUL = enum.auto()
    LARGE = enum.auto()


class ReceiveBuffer:
    """An unfinished frame. Small pieces are joined in groups, so a body that comes two bytes at a time is not an
    object per piece."""

    __slots__ = ("_made", "_pieces", "_small", "_small_bytes", "_taken_bytes", "buffer", "size_bytes")
    _GROUP_COUNT = 256
    _GROUP_BYTES = 262_144
    _MISSING_BYTES_MIN = 262_144
    """Less is collected: one read brings more than that, with what comes behind it."""
    _ROOM_BYTES_MAX = 1_114_112
    """A body of 1 MiB, from which on it is no message in memory by default, with its headers. To make this much room,
    which means to fill it with zeros, takes a tenth of a millisecond."""
    _SHARE = 4

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._small: list[bytes] = []
        self._small_bytes = 0
        self._made: BytesIO | None = None
        self.buffer: memoryview | None = None
        """All of what `_made` holds; None: there is no `room`."""
        self._taken_bytes = 0
        """What the last frame had."""
        self.size_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that are taken."""
        return self.size_bytes if self.buffer is None else len(self.buffer)

    def add(self, piece: bytes) -> None:
        """Put `piece` behind what is here; amortised O(its length)."""
        end = self.size_bytes + len(piece)
        if self.buffer is not None:
            self.buffer[self.size_bytes : end] = piece
            self.size_bytes = end
            return
        self._small.append(piece)
        self._small_bytes += len(piece)
        self.size_bytes = end
        if len(self._small) >= self._GROUP_COUNT:
            if self._small_bytes <= self._GROUP_BYTES:
                self._pieces.append(b"".join(self._small))
            else:
                self._pieces.extend(self._small)
            self._small.clear()
            self._small_bytes = 0

    def reserve(self, whole_bytes: int) -> None:
        """What is here is going to be so many bytes: make room for them, if that is worth it and earned."""
        if (
            self.buffer is None
            and whole_bytes - self.size_bytes >= self._MISSING_BYTES_MIN
            and whole_bytes <= min(self._ROOM_BYTES_MAX, max(self._taken_bytes, self._SHARE * self.size_bytes))
        ):
            begun = [*self._pieces, *self._small]
            taken_bytes = self._taken_bytes
            self.clear()
            # Bytes that nobody else holds: written to through the buffer, and given out as they are (`getvalue`).
            self._made = BytesIO(bytes(whole_bytes))
            self.buffer = self._made.getbuffer()
            self._taken_bytes = taken_bytes
            for piece in begun:
                self.add(piece)

    @property
    def room(self) -> memoryview | None:
        """Where the next bytes go, up to the end of what is waited for; None: nowhere. To be released before `fill`."""
        buffer = self.buffer
        return None if buffer is None or self.size_bytes == len(buffer) else buffer[self.size_bytes :]

    def fill(self, size_bytes: int) -> None:
        """So many bytes were written into `room`."""
        self.size_bytes += size_bytes

    def take(self, last: bytes | memoryview) -> bytes:
        """Everything, with `last` behind it; the receive buffer is empty afterwards."""
        if self._made is not None and self.buffer is not None:
            self.buffer[self.size_bytes :] = last
            self.buffer.release()
            whole = self._made.getvalue()
        else:
            whole = b"".join([*self._pieces, *self._small, last])
        self.clear()
        self._taken_bytes = len(whole)
        return whole

    def clear(self) -> None:
        """Drop everything."""
        self._pieces.clear()
        self._small.clear()
        self._small_bytes = 0
        self._made = self.buffer = None
        self._taken_bytes = 0
        self.size_bytes = 0
