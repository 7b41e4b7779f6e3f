"""Body of one SEND that is too large to be collected: cut into pieces as they come, and checked for its end.

Used by the parser, which decides by the length of the body alone that it comes so. What the pieces say together does
not depend on how the stream was cut: also before a fault they are the bytes that are allowed, no more and no less.

Costs O(bytes), and no copy of a chunk that lies in the body as a whole. Holds nothing but numbers.

Deliberately not here: where the pieces go (the session, which has them written to a file).

Source: seed 002 "Large Message Support"; STOMP 1.2 "Body", "Size Limits"; checklist b5, b14.
"""

from __future__ import annotations

from .faults import missing_nul, send_too_large
from .frames import Event, LargeSendEnd, LargeSendPiece
from .head import SendHead


class LargeBody:
    """Missing rest of one body."""

    __slots__ = ("_bytes_max", "_left_bytes", "head", "receipt")

    def __init__(self, head: SendHead, receipt: str | None, bytes_max: int) -> None:
        """Expect a body of at most `bytes_max`; an announced length was checked against it before."""
        self.head = head
        self.receipt = receipt
        self._bytes_max = bytes_max
        self._left_bytes = head.content_length if head.content_length >= 0 else bytes_max

    def take(self, buf: bytes, pos: int, events: list[Event]) -> int:
        """Pass on the part of the body in `buf` from `pos` on. Returns where the next frame starts, -1 if the body is
        incomplete.

        Raises `ProtocolError` for a body without its NUL, or of more than is allowed; what came before is in `events`.
        """
        counted = self.head.content_length >= 0
        if counted:
            end = pos + self._left_bytes
            is_whole = end < len(buf)
        else:
            end = buf.find(b"\0", pos)
            is_whole = end >= 0
        stop = end if is_whole else len(buf)
        too_large = stop - pos > self._left_bytes
        if too_large:
            stop = pos + self._left_bytes
        if stop > pos:
            self._left_bytes -= stop - pos
            events.append(LargeSendPiece(buf[pos:stop]))
        if too_large:
            raise send_too_large(self._bytes_max, "large_body_bytes_max")
        if not is_whole:
            return -1
        if buf[end]:
            raise missing_nul("SEND", self.head.content_length)
        events.append(LargeSendEnd())
        return end + 1
