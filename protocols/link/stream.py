"""One flow of a link as the byte stream of a connection: the owner's end of a proxy session.

The connection above reads and writes as if a client were there. Bytes that were written count as taken when the hub
of the client says that the client has them: so a delivery with ack auto is settled by the client's socket, not by
the link.

Writes are never cut in the midst of a frame, or the frames of two flows would be mixed at the client: whatever the
output holds is written, which its own limiter bounds. A large frame that is pulled is announced with its size, and
waits where the client does not read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import trio

from ..arrivals import InputWait
from ..framing import PLAIN, Framing, Piece
from .flow import Flow
from .records import Kind, decode_missed

if TYPE_CHECKING:
    from ..stomp.session import Session

LARGE_WINDOW_BYTES: Final = 1 << 20
"""Bytes of a large frame under way that the client has not taken."""


class PassFraming:
    """Frames of a proxy session, as `sluiceway.protocols.framing`: MESSAGEs in the form that the client gets, all else
    plain, because the hub of the client looks at it.
    """

    __slots__ = ("_client", "heart_beat")

    def __init__(self, client: Framing) -> None:
        self._client = client
        self.heart_beat = b""

    def control(self, data: bytes, count: int) -> bytes:
        return PLAIN.control(data, count)

    def messages(self, prefix: bytes, frames: list[bytes]) -> bytes:
        return self._client.messages(prefix, frames)

    def frame(self, pieces: Sequence[Piece]) -> list[Piece]:
        return self._client.frame(pieces)

    def part(self, pieces: Sequence[Piece], *, first: bool, last: bool) -> list[Piece]:
        return self._client.part(pieces, first=first, last=last)

    def frame_bytes(self, size_bytes: int) -> int:
        return self._client.frame_bytes(size_bytes)

    def part_bytes(self, size_bytes: int, *, last: bool) -> int:
        return self._client.part_bytes(size_bytes, last=last)


class FlowStream:
    """The owner's end of a flow, as a `ByteStream` and a `FlowUser`."""

    peer_certificate: Final = None

    def __init__(
        self,
        flow: Flow,
        peer: str,
        framing: Framing,
        *,
        charge: Callable[[int], None],
        closed: Callable[[], None],
        contain: Callable[[Exception], None],
        missed: Callable[[Mapping[str, int]], None],
    ) -> None:
        """`charge` counts bytes that the session has not read, or fewer; `closed`: it counts no more; `missed`: called
        with the count of messages to each topic that this hub did not get.
        """
        self._flow = flow
        self.peer = peer
        self.framing = framing
        self._charge = charge
        self._on_closed = closed
        self._contain = contain
        self._missed = missed
        self._session: Session | None = None
        self._cut: Callable[[], None] = _nothing
        self._changed: Callable[[], None] = _nothing
        self._inbox: deque[bytes] = deque()
        self._inbox_bytes = 0
        self._at = 0
        """Offset in the first piece of the inbox."""
        self._read_bytes = 0
        self._is_over = False
        """Whether nothing more comes."""
        self._lost: str | None = None
        self._closed = False
        self._large_left_bytes = 0
        self._watch: FlowWatch | None = None
        self._readable = trio.lowlevel.ParkingLot()
        self._writable = trio.lowlevel.ParkingLot()

    def attach(self, session: Session, *, cut: Callable[[], None], changed: Callable[[], None]) -> None:
        """Serve this session. `cut`: end its connection at once; `changed`: it may go on."""
        self._session, self._cut, self._changed = session, cut, changed
        session.outbound.on_streamed = self._announce

    def watch(self, take: Callable[[], bool]) -> FlowWatch:
        """Make a watch on the input, in place of that on a socket."""
        self._watch = FlowWatch(self, take)
        return self._watch

    @property
    def has_input(self) -> bool:
        """Whether `read` returns something."""
        return bool(self._inbox) or self._is_over

    # ------------------------------------------------------------------ ByteStream

    @property
    def peer_has_ended(self) -> bool:
        return self._is_over

    def read(self, size_max: int) -> bytes | None:
        if self._lost is not None:
            raise ConnectionResetError(self._lost)
        if not self._inbox:
            return b"" if self._is_over else None
        inbox = self._inbox
        if self._inbox_bytes <= size_max and len(inbox) > 1:
            if self._at:
                inbox[0] = inbox[0][self._at :]
                self._at = 0
            data = b"".join(inbox)
            inbox.clear()
        else:
            # Copied once, whatever the sizes: the rest of a record stays where it is.
            first, at = inbox[0], self._at
            data = first[at : at + size_max] if at or len(first) > size_max else first
            self._at = at + len(data)
            if self._at == len(first):
                inbox.popleft()
                self._at = 0
        self._took(len(data))
        return data

    def read_into(self, room: memoryview) -> int | None:
        data = self.read(len(room))
        if data is None:
            return None
        room[: len(data)] = data
        return len(data)

    def _took(self, size_bytes: int) -> None:
        self._inbox_bytes -= size_bytes
        self._charge(-size_bytes)
        self._read_bytes += size_bytes

    def tell(self) -> None:
        """Tell the hub of the client how far the session has come."""
        session, flow = self._session, self._flow
        if session is None or flow.ended_here:
            return
        done_bytes = flow.done_bytes if session.holds_back else self._read_bytes - session.pending_bytes
        flow.took(self._read_bytes, max(done_bytes, flow.done_bytes))

    def write(self, pieces: Sequence[Piece]) -> int:
        if self._lost is not None or self._closed:
            raise BrokenPipeError(self._lost or "the flow is closed")
        flow = self._flow
        if self._large_left_bytes and flow.unread_bytes >= LARGE_WINDOW_BYTES:
            return 0
        size_bytes = sum(map(len, pieces))
        if self._large_left_bytes:
            self._large_left_bytes -= size_bytes
            assert self._large_left_bytes >= 0, "nothing else is written with a streamed frame"
            self._send(pieces, is_whole=not self._large_left_bytes)
            return size_bytes
        assert self._session is not None, "it writes"
        outbound = self._session.outbound
        start = outbound.written_bytes
        end = start + size_bytes
        # The next frame may be a large one; then all before it is complete, too.
        is_whole = end == outbound.appended_bytes or outbound.is_at_streamed
        if not outbound.control_bytes:
            self._send(pieces, is_whole=is_whole)
            return size_bytes
        at = start
        data = b"".join(pieces)
        view = memoryview(data)
        for begin, behind in outbound.control_spans():
            if behind <= at:
                continue
            if begin >= end:
                break
            if begin > at:
                flow.send(Kind.DATA, view[at - start : begin - start])
                at = begin
            stop = min(behind, end)
            flow.send(Kind.CONTROL, view[at - start : stop - start])
            at = stop
        if at < end:
            self._send([view[at - start :]], is_whole=is_whole)
        return size_bytes

    def _send(self, pieces: Sequence[Piece], *, is_whole: bool) -> None:
        """Send pieces of frames; `is_whole`: the last one ends with a frame."""
        send = self._flow.send
        for piece in pieces[:-1]:
            send(Kind.PART, piece)
        send(Kind.DATA if is_whole else Kind.PART, pieces[-1])

    def _announce(self, size_bytes: int) -> None:
        self._large_left_bytes = size_bytes
        self._flow.announce(size_bytes)

    async def wait_readable(self) -> None:
        if self.has_input:
            await trio.lowlevel.checkpoint()
            return
        await self._readable.park()

    async def wait_writable(self) -> None:
        if self._lost is not None or self._flow.unread_bytes < LARGE_WINDOW_BYTES:
            await trio.lowlevel.checkpoint()
            return
        await self._writable.park()

    def shutdown_write(self) -> None:
        self.tell()
        self._flow.end("the session has ended")

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._flow.end("the session has ended")
            self._charge(-self._inbox_bytes)
            self._inbox.clear()
            self._inbox_bytes = 0
            self._on_closed()
            self._readable.unpark_all()
            self._writable.unpark_all()

    def abandon(self) -> None:
        self._closed = True

    # ------------------------------------------------------------------ FlowUser

    def arrived(self, kind: Kind, data: bytes) -> None:
        """Do `FlowUser.arrived`."""
        if kind is Kind.MISSED:
            self._missed(decode_missed(data))
        elif kind is not Kind.LARGE and data and not self._closed:
            self._inbox.append(data)
            self._inbox_bytes += len(data)
            self._charge(len(data))

    def settle(self) -> None:
        """Do `FlowUser.settle`: let the connection take what has come."""
        if self._closed:
            return
        try:
            watch = self._watch
            while watch is not None and watch.is_waiting and self.has_input:
                watch.arrived()
            self._readable.unpark_all()
            self.tell()
        except Exception as error:  # noqa: BLE001 - one session is not to cost the link
            self._contain(error)

    def confirmed(self, read_bytes: int, done_bytes: int) -> None:
        """Do `FlowUser.confirmed`."""
        if self._session is not None and not self._closed:
            self._session.outbound.confirm(read_bytes)
            self._writable.unpark_all()
            self._changed()

    def ended(self, reason: str, *, lost: bool) -> None:
        """Do `FlowUser.ended`."""
        self._is_over = True
        if not lost:
            # The other hub ends first when its client has gone, and has said before what that client has got. If this
            # end was first, the client may get what is on its way.
            if self._session is not None and not self._flow.ended_here:
                self._session.outbound.all_is_confirmed()
        else:
            self._lost = reason
            if self._session is not None:
                self._session.sends_come_again = True
            self._writable.unpark_all()
            self._cut()


class FlowWatch(InputWait):
    """The wait of one connection for input, in place of `sluiceway.protocols.arrivals.Watched`."""

    __slots__ = ("_stream",)

    def __init__(self, stream: FlowStream, take: Callable[[], bool]) -> None:
        """`take` reads, and returns False to wake the waiting task."""
        super().__init__(take)
        self._stream = stream

    async def wait(self) -> None:
        """Do `InputWait.wait`."""
        self._stream.tell()
        if self._stream.has_input:
            await trio.lowlevel.checkpoint()
            return
        await super().wait()

    def close(self) -> None:
        """Watch no more."""


def _nothing() -> None:
    return
