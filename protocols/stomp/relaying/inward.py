"""One large MESSAGE from another hub, whose bytes come as the link brings them and go out piece by piece.

The frame is not held: a piece waits until it is complete, and credit goes back for each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ...framing import Framing, Piece
from ...outbound import Outbound
from ...streamed import PieceDone


class _AsItLies:
    """Framing of bytes that have their form already."""

    __slots__ = ()
    heart_beat: bytes = b""

    def control(self, data: bytes, count: int) -> bytes:
        return data

    def messages(self, prefix: bytes, frames: list[bytes]) -> bytes:
        return b"".join((prefix, *frames))

    def frame(self, pieces: Sequence[Piece]) -> list[Piece]:
        return list(pieces)

    def part(self, pieces: Sequence[Piece], *, first: bool, last: bool) -> list[Piece]:
        return list(pieces)

    def frame_bytes(self, size_bytes: int) -> int:
        return size_bytes

    def part_bytes(self, size_bytes: int, *, last: bool) -> int:
        return size_bytes


_AS_IT_LIES: Final[Framing] = _AsItLies()


class LargeInward:
    """One large MESSAGE from another hub: its bytes come as the link brings them, and go out piece by piece."""

    __slots__ = (
        "_asked_bytes",
        "_broken",
        "_chunks",
        "_done",
        "_handed_bytes",
        "_held_bytes",
        "_later",
        "_size",
        "_took",
    )

    def __init__(
        self, size_bytes: int, took: Callable[[int], None], later: Callable[[Callable[[], None]], None]
    ) -> None:
        """`took`: credit for so many bytes; `later`: call at the end of the turn."""
        self._size = size_bytes
        self._took = took
        self._later = later
        self._chunks: deque[bytes] = deque()
        self._held_bytes = self._handed_bytes = self._asked_bytes = 0
        self._done: PieceDone | None = None
        self._broken: str | None = None

    def begin(self, outbound: Outbound) -> None:
        """Append the frame to the output of the client."""
        outbound.send_streamed([], self._pull, self._size, b"", None, self._written, framing=_AS_IT_LIES)

    def arrived(self, data: bytes) -> None:
        """Take the next bytes."""
        self._chunks.append(data)
        self._held_bytes += len(data)
        if self._done is not None and self._held_bytes >= self._asked_bytes:
            self._later(self._hand_out)

    def break_off(self, reason: str) -> None:
        """Note that no more bytes come."""
        self._broken = reason
        self._later(self._hand_out)

    def _pull(self, _offset: int, size_bytes: int, done: PieceDone) -> None:
        self._asked_bytes, self._done = size_bytes, done
        if self._held_bytes >= size_bytes or self._broken is not None:
            self._later(self._hand_out)

    def _hand_out(self) -> None:
        done, size_bytes = self._done, self._asked_bytes
        if done is None:
            return
        if self._held_bytes < size_bytes:
            if self._broken is not None:
                self._done = None
                done(ConnectionResetError(self._broken))
            return
        self._done = None
        whole = b"".join(self._chunks)
        self._chunks.clear()
        if len(whole) > size_bytes:
            self._chunks.append(whole[size_bytes:])
        self._held_bytes -= size_bytes
        self._handed_bytes += size_bytes
        if self._handed_bytes < self._size:
            self._took(size_bytes)
        else:
            self._asked_bytes = size_bytes  # credit for the last piece when the client has it
        done(whole[:size_bytes])

    def _written(self, taken: bool) -> None:
        if taken:
            self._took(self._asked_bytes)
