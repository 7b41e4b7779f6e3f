"""Search for the ends of frames in the input of a socket, however it is cut: counting them, or cutting whole frames
off.

Both rest on the load's bodies holding no NUL (`perf.load.frames`), so that every NUL ends a frame. No sockets here.
"""

from __future__ import annotations

_SKIP_FROM_BYTES = 400


class FrameCounter:
    """Counts frames without keeping a byte of them.

    Bodies from 400 bytes on are skipped: no frame can end within a body's length of its start. Below that, looking at
    every byte is faster than a step of the interpreter per frame (CPython 3.11).
    """

    __slots__ = ("_body_bytes", "_skip_bytes")

    def __init__(self, body_bytes: int) -> None:
        self._body_bytes = body_bytes
        self._skip_bytes = 0

    def count(self, buffer: bytearray, length: int) -> int:
        """Return how many frames end in the first `length` bytes of `buffer`, which follow those of the last call."""
        if self._body_bytes < _SKIP_FROM_BYTES:
            return buffer.count(0, 0, length)
        position, count, find = self._skip_bytes, 0, buffer.find
        while (end := find(0, position, length)) >= 0:
            count += 1
            position = end + 1 + self._body_bytes
        self._skip_bytes = max(0, position - length)
        return count


class FrameCutter:
    """Holds a read buffer and returns whole frames; the rest of the last one is carried over to the next read.

    Read into `room()`, then call `cut` with the number of bytes read.
    """

    __slots__ = ("_buffer", "_carried", "_view")

    def __init__(self, buffer_bytes: int) -> None:
        self._buffer = bytearray(buffer_bytes)
        self._view = memoryview(self._buffer)
        self._carried = 0

    def room(self) -> memoryview:
        """The free part of the buffer.

        Raises ValueError: there is none: a frame is larger than the buffer, or no frames are coming at all.
        """
        if self._carried == len(self._buffer):
            raise ValueError(f"no frame ended within {self._carried} bytes")
        return self._view[self._carried :]

    def cut(self, length: int) -> bytes:
        """Return the frames that are whole after `length` more bytes, possibly none, from the first to the last NUL."""
        length += self._carried
        end = self._buffer.rfind(0, self._carried, length) + 1
        self._carried = length - end
        if not end:
            return b""
        whole = bytes(self._view[:end])
        self._buffer[: length - end] = self._buffer[end:length]
        return whole

    def carried(self) -> bytes:
        """Return the begun part of a frame that is not whole."""
        return bytes(self._view[: self._carried])
