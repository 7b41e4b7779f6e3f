"""Moves bytes between a stream and a STOMP session: the thin shell with all the waiting in it.

One task per connection reads; a second one exists only while the kernel's send buffer is full. Reads are large and
adapt: a connection that fills its read asks for more the next time, an idle one holds no buffer. The task of a plain
socket sleeps during ordinary reads, which a callback takes (arrivals.py).

The end: the output is flushed, then the broker's side is shut down, and the peer gets `linger_seconds` to read it and
close first (b55): closing with unread input in the kernel would reset the connection and destroy the ERROR under way.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio

from .arrivals import Watched
from .link.stream import FlowStream, FlowWatch
from .log import get_logger
from .stomp.encoder import HEART_BEAT
from .stomp.errors import ProtocolError
from .stomp.hub import Hub
from .stomp.limits import StompLimits
from .stomp.session import Session
from .streams import ByteStream, SocketStream

READ_BYTES_MIN: Final = 16 * 1024
READ_BYTES_MAX: Final = 512 * 1024
LITTLE_BYTES: Final = 4 * 1024
"""A read so small leads to its deliveries at once, within the task that read it; more is worth a turn for everybody."""
SLOW_READ_BYTES: Final = 16 * 1024
SLOW_READ_SECONDS: Final = 0.005
"""Pause between reads while a full stash is read on for ACKs: 3 MB/s, so that memory grows slower than a client can
acknowledge.
"""

log = get_logger("sluiceway.connection")


class Connection:
    """One connection of one peer."""

    def __init__(
        self,
        hub: Hub,
        limits: StompLimits,
        stream: ByteStream,
        *,
        listener: str,
        spawn: Callable[[Callable[[], Awaitable[object]]], None],
    ) -> None:
        """`spawn` starts an async function of no arguments as a task that lives no longer than the broker."""
        self._hub = hub
        self._limits = limits
        self._stream = stream
        self._listener = listener
        self._spawn = spawn
        self._read_bytes_min = READ_BYTES_MAX if isinstance(stream, FlowStream) else READ_BYTES_MIN
        """Fewest bytes to ask for. What came over a link lies in memory already: a read of all of it makes no room."""
        self._read_bytes = self._read_bytes_min
        """Number of bytes that the next read asks for."""
        self._watched: Watched | FlowWatch | None = None
        """Waits for input together with others, if it can."""
        if isinstance(stream, FlowStream):
            self._watched = stream.watch(self._take_arrived)
        elif hub.arrivals is not None and isinstance(stream, SocketStream):
            self._watched = hub.arrivals.watch(stream.fileno(), self._take_arrived)
        self._draining_writes = False
        """Whether a task waits for the kernel to take more, and will write the waiting bytes then."""
        self._reading = trio.CancelScope()
        """Ends the waiting for input. One for all of it: entering one costs as much as parsing ten frames."""
        self._lingering = trio.CancelScope(shield=True)
        """Scope of the wait until the peer has read what is written, or `linger_seconds` are over."""
        self._changed = trio.lowlevel.ParkingLot()
        self._began_seconds = hub.clock()
        self.session = Session(
            hub,
            limits,
            peer=stream.peer,
            write=stream.write,
            wake_writer=self._wake_writer,
            changed=self._session_changed,
            certificate=lambda: stream.peer_certificate,
            listener=listener,
            framing=stream.framing,
            confirmed_later=isinstance(stream, FlowStream),
        )
        if isinstance(stream, FlowStream):
            stream.attach(self.session, cut=self.cut, changed=self._session_changed)

    async def run(self) -> None:
        """Serve the connection to its end. Never raises for a mistake of the peer."""
        session = self.session
        try:
            with self._reading:
                await self._read_loop()
        except Exception as error:  # noqa: BLE001 - an outermost shell
            self._reading_failed(error)
        finally:
            lingering = self._lingering
            lingering.deadline = min(lingering.deadline, trio.current_time() + self._limits.linger_seconds)
            with lingering:
                await self._finish()
            session.close()
            if self._watched is not None:
                self._watched.close()
            self._stream.close()
            try:
                while session.is_closing:
                    await self._changed.park()
            finally:
                session.subscriptions.work.finish()
                self._log_end()

    def cut(self) -> None:
        """End at once, whatever the peer has not read yet. What it holds is given back before this returns."""
        self.session.close()
        self._lingering.deadline = -math.inf
        self._reading.cancel()

    def abandon(self) -> None:
        """Close the stream when trio has ended already: nothing can be served any more."""
        self._stream.abandon()

    def _reading_failed(self, error: Exception) -> None:
        """Fail the connection, which is broken, or which a bug of the broker costs, along with the objects whose work
        was interrupted.
        """
        if isinstance(error, OSError | trio.ClosedResourceError):
            self.session.end(f"connection lost: {error}")
            return
        self._hub.contain(error)
        self.session.fail(
            ProtocolError(
                "internal-error",
                "the broker made a mistake with this connection",
                "This is a bug of the broker; its log has the details. Please report it.",
            )
        )

    async def _read_loop(self) -> None:
        session, stream = self.session, self._stream
        while session.ending is None:
            data: bytes | None = None  # the last read is not kept without more input
            session.resume()
            if session.takes_turns:
                await trio.lowlevel.checkpoint()
                continue
            if session.update_reading() is not None:
                await self._changed.park()
                continue
            if session.reads_slowly:
                await trio.sleep(SLOW_READ_SECONDS)
                data = stream.read(SLOW_READ_BYTES)
            elif self._read_into_room():
                await trio.lowlevel.checkpoint()
                continue
            else:
                data = stream.read(min(self._read_bytes, session.read_bytes_max))
            if data is None:
                await self._wait_readable()
                continue
            if not data:
                self._peer_closed()
                return
            if data == HEART_BEAT and session.took_beat():
                await self._wait_readable()
                continue
            if len(data) < LITTLE_BYTES:
                self._hub.turn_with(partial(session.receive, data))
            else:
                session.receive(data)
            if self._filled(len(data)):
                await trio.lowlevel.checkpoint()
                continue
            data = None
            if not session.holds_back:  # the disk, not the peer, releases the held back frames
                await self._wait_readable()

    async def _wait_readable(self) -> None:
        """Wait until the connection has work to do here; ordinary reads are taken meanwhile."""
        if self._watched is not None:
            await self._watched.wait()
        else:
            await self._stream.wait_readable()

    def _take_arrived(self) -> bool:
        """Read once, and let that take effect. False: the task is to look, here nothing was done."""
        session = self.session
        try:
            if not self._reads():
                return False
            if session.receive_buffer.buffer is not None and self._read_into_room():
                return not session.holds_back
            data = self._stream.read(min(self._read_bytes, session.read_bytes_max))
            if data is None:
                return True
            if not data:
                return False  # the bytes are read again, and found there
            if data != HEART_BEAT or not session.took_beat():
                session.receive(data)
                if self._filled(len(data)) and self._reads():
                    self._read_into_room()
        except Exception as error:  # noqa: BLE001 - an outermost shell
            self._reading_failed(error)
            return False
        return not session.holds_back

    def _reads(self) -> bool:
        """Whether all is as usual."""
        session = self.session
        return session.is_read_as_usual or (
            session.ending is None
            and not session.holds_back
            and session.update_reading() is None
            and not session.reads_slowly
        )

    def _read_into_room(self) -> bool:
        """Read the rest of a large frame into its final place. False: there is no such frame, or no input, or the end
        of the stream, which a read reports.
        """
        session = self.session
        room = session.receive_buffer.room
        if room is None:
            return False
        with room, room[: session.read_bytes_max] as part:
            size_bytes = self._stream.read_into(part)
        if not size_bytes:
            return False
        self._read_bytes = self._read_bytes_min  # for the next head: what comes behind it may have room of its own
        session.receive_filled(size_bytes)
        return True

    def _filled(self, size_bytes: int) -> bool:
        """Learn from a read how much the next one should ask for. True: there is probably more."""
        asked_bytes = self._read_bytes
        if size_bytes == asked_bytes:
            self._read_bytes = min(asked_bytes * 2, READ_BYTES_MAX)
            return True
        if size_bytes * 4 < asked_bytes:
            self._read_bytes = max(asked_bytes // 2, self._read_bytes_min)
        return False

    def _peer_closed(self) -> None:
        """End of stream. Messages that wait to be written must not go into the void as if they had been delivered."""
        session = self.session
        session.end("closed by the client" if session.connected else "closed by the client before CONNECT")
        if session.outbound.waiting_bytes > session.outbound.control_bytes:
            session.close()

    def _session_changed(self) -> None:
        self._changed.unpark_all()
        if self.session.ending is not None:
            self._reading.cancel()

    # ------------------------------------------------------------------ writing

    def _wake_writer(self) -> None:
        if not self._draining_writes:
            self._draining_writes = True
            self._spawn(self._drain_writes)

    async def _drain_writes(self) -> None:
        """Write on as the kernel takes it, until nothing waits."""
        session = self.session
        try:
            while not session.closed and session.outbound.waiting_bytes:
                await self._stream.wait_writable()
                if session.closed or session.outbound.flush():
                    # May be an instant's emptiness: what is appended from now on asks for its own flush.
                    break
                self._session_changed()
        except (OSError, trio.ClosedResourceError) as error:
            session.end(f"connection lost: {error}")
        finally:
            self._draining_writes = False
            self._session_changed()

    async def _finish(self) -> None:
        """Flush, shut down, and let the peer read it."""
        try:
            await self._flush_all()
        except (OSError, trio.ClosedResourceError):
            # The rest can't be written. A WebSocket or TLS that refuses it may still have a last word of its own.
            pass
        self.session.close()
        await self._part()

    async def _flush_all(self) -> None:
        session, stream = self.session, self._stream
        while self._draining_writes:
            await self._changed.park()
        # From here on this task is the writer: trio lets one task at a time wait for a socket to take more.
        self._draining_writes = True
        while not session.closed and session.outbound.waiting_bytes:
            if not session.outbound.flush():
                await stream.wait_writable()
            elif session.outbound.waiting_bytes:
                await self._changed.park()  # until there is more of a body that comes from elsewhere

    async def _part(self) -> None:
        stream = self._stream
        try:
            stream.shutdown_write()
            while True:
                data = stream.read(READ_BYTES_MIN)
                if data == b"":
                    return
                if data is None:
                    await stream.wait_readable()
                else:
                    await trio.lowlevel.checkpoint()
        except (OSError, trio.ClosedResourceError):
            # The connection is broken: no peer is left to be polite to. The reason is in the log line already.
            return

    def _log_end(self) -> None:
        session = self.session
        totals = session.totals
        unread_count = session.unread_replies_count
        write = log.warning if session.failed or session.lost_count or unread_count else log.info
        if session.entering.quiet:
            write = log.debug
        lost: dict[str, object] = {}
        if unread_count:
            lost = {
                "replies_unread": unread_count,
                "remedy": "SUBSCRIBE to the temporary queue of the reply-to, and stay until the replies have come",
            }
        if session.lost_count:
            lost |= {
                "parked_dropped": session.lost_count,
                "remedy": "end with DISCONNECT and wait for its receipt, or raise left_behind_bytes_max",
            }
        write(
            "connection ended",
            reason=session.ending,
            peer=session.peer,
            listener=self._listener,
            user=session.user,
            session=session.session_id,
            version=session.version if session.connected else None,
            seconds=round(self._hub.clock() - self._began_seconds, 3),
            bytes_in=totals.bytes_in,
            bytes_out=session.outbound.taken_bytes,
            messages_in=totals.messages_in_count,
            messages_out=totals.messages_out_count,
            **lost,
        )
