"""Conversion of whole STOMP frames to bytes of a stream: the one place where every frame of the broker ends.

Behind the NUL comes an LF. An EOL may be there (b1), and there are clients that read on by two octets, as RabbitMQ and
ActiveMQ write them: PHP's would swallow the first letter of the next frame. It must come with its frame, not later: an
EOL by itself is a heart-beat, which some take for the end.

Over a WebSocket each frame is a message of its own, see `wsframes.WebSocketFraming`. What is made here is written as it
is; so all that a connection writes goes through its framing once, when it is appended, many MESSAGEs at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from .stomp.encoder import BEHIND_NUL, HEART_BEAT, error_frame

Piece = bytes | memoryview


class Framing(Protocol):
    """Form of frames on a stream. Frames are given with their NUL and nothing behind it."""

    heart_beat: bytes

    def control(self, data: bytes, count: int) -> bytes:
        """Return `count` frames without bodies, with one EOL between each two; or one frame of any kind."""

    def messages(self, prefix: bytes, frames: list[bytes]) -> bytes:
        """MESSAGEs (at least one) that all begin with `prefix`, which they lack. The list is used up."""

    def frame(self, pieces: Sequence[Piece]) -> list[Piece]:
        """One frame that is here as a whole, in pieces."""

    def part(self, pieces: Sequence[Piece], *, first: bool, last: bool) -> list[Piece]:
        """Return a part of a frame that is sent in parts."""

    def frame_bytes(self, size_bytes: int) -> int:
        """Return the number of bytes that `frame` makes of `size_bytes`."""

    def part_bytes(self, size_bytes: int, *, last: bool) -> int:
        """Return the number of bytes that `part` makes of `size_bytes`."""


class PlainFraming:
    """Frames behind each other."""

    __slots__ = ()

    heart_beat: bytes = HEART_BEAT

    def control(self, data: bytes, count: int) -> bytes:
        return data + BEHIND_NUL

    def messages(self, prefix: bytes, frames: list[bytes]) -> bytes:
        if len(frames) == 1:
            return b"".join((prefix, frames[0], BEHIND_NUL))  # one copy: the frame may be large
        # One copy of all bytes, a second one of the first and the last, and nothing for each frame.
        frames[0] = prefix + frames[0]
        frames[-1] += BEHIND_NUL
        return (BEHIND_NUL + prefix).join(frames)

    def frame(self, pieces: Sequence[Piece]) -> list[Piece]:
        return [*pieces, BEHIND_NUL]

    def part(self, pieces: Sequence[Piece], *, first: bool, last: bool) -> list[Piece]:
        return [*pieces, BEHIND_NUL] if last else list(pieces)

    def frame_bytes(self, size_bytes: int) -> int:
        return size_bytes + len(BEHIND_NUL)

    def part_bytes(self, size_bytes: int, *, last: bool) -> int:
        return size_bytes + len(BEHIND_NUL) if last else size_bytes


PLAIN: Final[Framing] = PlainFraming()


def refusal(message: str, *, code: str, body: str) -> bytes:
    """Return the ERROR, in wire form, for a peer that gets no connection at all."""
    return PLAIN.control(error_frame(message, headers=[("code", code)], body=body, version=None), 1)
