"""Bytes that arrive in pieces and are joined once: the time for a body is linear, however small its pieces.

Pieces are joined once, when all are there. The rest of a large frame whose size is known is not collected: room is made
for the whole, the rest is written there (by the kernel, where possible), and no copy is needed.

Room is made for sent bytes, not for announced ones: a quarter of the frame must be here, or the connection has sent as
much before. So an announcement alone holds no memory; `held_bytes` includes the room.

Invariant: every byte is copied at most twice before `take` (once into a group, once into the whole), and held bytes
cost little more than their number once a group is full.
"""

from __future__ import annotations

import enum
from io import BytesIO


class AwaitedPart(enum.Enum):
    """Part of a frame that the parser waits for.

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
    """Minimum of missing bytes to make room for: one read brings more than that, with the frames behind."""
    _ROOM_BYTES_MAX = 1_114_112
    """Maximum of room: a body of 1 MiB with its headers; larger ones are no messages in memory by default. Making this
    room, which means to fill it with zeros, takes a tenth of a millisecond.
    """
    _SHARE = 4

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._small: list[bytes] = []
        self._small_bytes = 0
        self._made: BytesIO | None = None
        self.buffer: memoryview | None = None
        """View of all of `_made`; None: there is no `room`."""
        self._taken_bytes = 0
        """Size of the last frame."""
        self.size_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that are taken."""
        return self.size_bytes if self.buffer is None else len(self.buffer)

    def add(self, piece: bytes) -> None:
        """Append `piece`; amortised O(its length)."""
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
        """Make room for a frame of `whole_bytes`, if that is worth it and earned by earlier frames."""
        if (
            self.buffer is None
            and whole_bytes - self.size_bytes >= self._MISSING_BYTES_MIN
            and whole_bytes <= min(self._ROOM_BYTES_MAX, max(self._taken_bytes, self._SHARE * self.size_bytes))
        ):
            begun = [*self._pieces, *self._small]
            taken_bytes = self._taken_bytes
            self.clear()
            # Bytes without another owner: written to through the buffer, and given out as they are (`getvalue`).
            self._made = BytesIO(bytes(whole_bytes))
            self.buffer = self._made.getbuffer()
            self._taken_bytes = taken_bytes
            for piece in begun:
                self.add(piece)

    @property
    def room(self) -> memoryview | None:
        """Space for the next bytes, up to the end of the frame; None: there is none. Release it before `fill`."""
        buffer = self.buffer
        return None if buffer is None or self.size_bytes == len(buffer) else buffer[self.size_bytes :]

    def fill(self, size_bytes: int) -> None:
        """Note that `size_bytes` were written into `room`."""
        self.size_bytes += size_bytes

    def take(self, last: bytes | memoryview) -> bytes:
        """Return all bytes, with `last` behind them; the receive buffer is empty afterwards."""
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
