"""One end of one flow of a link: what waits to be written, what the peer has read, what was read here.

A flow holds back nothing: its user looks at `unread_bytes`, charges what it sends, and stops. So the memory of a
flow is bounded by the limiter of its user, at either end, and the link itself never stops for one flow.

Pure. Not here: whose turn it is (`machine`), the meaning of the bytes (`protocols.stomp.relaying`, `stream`).
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from .records import Kind, cut, encode, encode_size, encode_taken

REASON_BYTES_MAX: Final = 4096
REFUSED: Final = "refused: "
"""Beginning of the reason of an END that refuses the opening record: another flow for this client would end so, too."""


class FlowUser(Protocol):
    """User of one end of a flow."""

    def arrived(self, kind: Kind, data: bytes) -> None:
        """Take data, or the size of a large frame (LARGE), in order."""

    def settle(self) -> None:
        """Act on what has arrived: all records of one read of the link were given out."""

    def confirmed(self, read_bytes: int, done_bytes: int) -> None:
        """Note how much of all that was sent the peer has read, and how much has had its effect."""

    def ended(self, reason: str, *, lost: bool) -> None:
        """Note that the peer sends nothing more. `lost`: the link is gone; else the peer has ended the flow."""


class Outlet(Protocol):
    """Part of the link that writes what flows have."""

    def ready(self, flow: Flow) -> None:
        """Write for the flow at the end of the turn."""

    def closed(self, flow: Flow) -> None:
        """Forget the flow, which has ended in both directions."""

    def may_deliver(self) -> bool:
        """Return whether the peer has not given the link up, so that its deliveries are not with other clients. Asked
        at the moment of delivery.
        """


class Flow:
    """One end of a flow."""

    __slots__ = (
        "_outlet",
        "_records",
        "done_bytes",
        "ended_here",
        "ended_there",
        "is_waiting",
        "number",
        "peer_done_bytes",
        "peer_read_bytes",
        "read_bytes",
        "sent_bytes",
        "told",
        "user",
        "waiting_bytes",
    )

    def __init__(self, number: int, outlet: Outlet) -> None:
        """`FlowTable.open` and the machine make it. `user` is set before anything arrives."""
        self.number = number
        self.user: FlowUser
        self._outlet = outlet
        self._records: deque[tuple[bytes, bytes | memoryview]] = deque()
        self.is_waiting = False
        """Whether the flow stands in the line of those that have something to write."""
        self.waiting_bytes = 0
        """Bytes that the link has not written yet."""
        self.sent_bytes = 0
        """All bytes of data ever sent."""
        self.peer_read_bytes = 0
        self.peer_done_bytes = 0
        self.read_bytes = 0
        """All bytes of data that the user has read."""
        self.done_bytes = 0
        """All bytes of data that have had their effect, and need not be sent again."""
        self.told = (0, 0)
        self.ended_here = False
        self.ended_there = False

    @property
    def unread_bytes(self) -> int:
        """Bytes that were sent and that the peer has not read."""
        return self.sent_bytes - self.peer_read_bytes

    def may_deliver(self) -> bool:
        """Do `Outlet.may_deliver`."""
        return self._outlet.may_deliver()

    def send(self, kind: Kind, data: bytes | memoryview) -> None:
        """Send bytes of frames; nothing after `end`."""
        if self.ended_here or not data:
            return
        self.sent_bytes += len(data)
        for head, piece in cut(kind, self.number, data):
            self._records.append((head, piece))
            self.waiting_bytes += len(piece)
        self._wants()

    def send_frames(self, data: bytes) -> None:
        """Send bytes of STOMP frames, cut anywhere: the peer parses them."""
        self.send(Kind.PART, data)

    def announce(self, size_bytes: int) -> None:
        """Tell the size of one large frame, which follows."""
        if not self.ended_here:
            self._records.append((encode_size(Kind.LARGE, self.number, size_bytes), b""))
            self._wants()

    def say(self, kind: Kind, payload: bytes) -> None:
        """Send a record that is no data."""
        if not self.ended_here:
            self._records.append((encode(kind, self.number, payload), b""))
            self._wants()

    def took(self, read_bytes: int, done_bytes: int) -> None:
        """Tell the peer, with the next write, how much was read in all, and how much has had its effect; nothing after
        `end`.
        """
        if self.ended_here:
            return
        self.read_bytes, self.done_bytes = read_bytes, done_bytes
        if not self.is_waiting and (read_bytes, done_bytes) != self.told:
            self._wants()

    def end(self, reason: str) -> None:
        """Send nothing more, behind all that waits."""
        if not self.ended_here:
            self.ended_here = True
            reason_bytes = reason.encode("utf-8", "replace")[:REASON_BYTES_MAX]
            self._records.append((encode(Kind.END, self.number, reason_bytes), b""))
            self._wants()

    def _wants(self) -> None:
        if not self.is_waiting:
            self.is_waiting = True
            self._outlet.ready(self)

    def take(self, size_bytes: int, pieces: list[bytes | memoryview]) -> int:
        """Move about that many bytes to `pieces`; returns the number of bytes. Nothing left: `is_waiting` is False."""
        taken = 0
        if (now := (self.read_bytes, self.done_bytes)) != self.told:
            self.told = now
            record = encode_taken(self.number, *now)
            pieces.append(record)
            taken = len(record)
        records = self._records
        while records and taken < size_bytes:
            head, piece = records.popleft()
            pieces.append(head)
            taken += len(head)
            if piece:
                pieces.append(piece)
                taken += len(piece)
                self.waiting_bytes -= len(piece)
        if not records:
            self.is_waiting = False
            if self.ended_here and self.ended_there:
                self._outlet.closed(self)
        return taken

    def drop(self) -> None:
        """Drop what waits: the link is gone."""
        self._records.clear()
        self.waiting_bytes = 0
        self.ended_here = self.ended_there = True
