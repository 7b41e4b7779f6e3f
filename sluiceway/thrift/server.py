"""The Thrift port of one broker: frames of calls in, frames of answers out.

Bounds: `connections_max`; a frame of `frame_bytes_max`; calls and answers of all connections together take
`buffers_bytes_max`, and those for which there is no room wait. A client that stops in the middle of a call, or of its
answer, is cut after `client_seconds`.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from sluiceway.cluster.inherited import THRIFT
from sluiceway.config.fields import is_loopback
from sluiceway.config.thrift import ThriftConfig
from sluiceway.protocols.listener import bind, name_of, start_listening
from sluiceway.protocols.log import get_logger
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.protocols.streams import MemoryStream
from sluiceway.protocols.thrift.binary import (
    HEADER_BYTES,
    FormatError,
    Head,
    MessageType,
    Trouble,
    frame_bytes,
    framed,
    read_head,
    read_struct,
    reply,
    trouble,
)
from sluiceway.protocols.thrift.queue_service import CALLS, Call
from sluiceway.protocols.tls import TlsServer
from sluiceway.task_server import TaskServer
from sluiceway.thrift.desk import Desk, DeskClosed, DeskError
from sluiceway.thrift.service import FETCH_BYTES_MAX, IN_A_THREAD_BYTES, Answer, answer, failed

if TYPE_CHECKING:
    from sluiceway.cluster.inherited import InheritedSockets

CONNECTION_BYTES: Final = 24 * 1024
"""Memory of an idle connection: its tasks, and its session with the broker."""
READ_BYTES: Final = 64 * 1024
SLOW_BYTES: Final = 4 * 1024 * 1024
"""Bytes for which a client has `client_seconds` once more."""
ITEM_BYTES: Final = 100
"""Bytes whose encoding takes as long as that of one more item."""

log = get_logger("sluiceway.thrift")


@attrs.frozen
class Surroundings:
    """Parts of the broker around the port."""

    connect: Callable[[str], MemoryStream]
    """Function that begins a session for the client of this name, and returns the client's end."""
    limits: Callable[[], StompLimits]
    """Limits of such sessions."""
    keep: Callable[[int], None]
    """Counter of memory beside messages."""
    contain: Callable[[Exception], None]
    """Handler of exceptions of accepting."""


class Room:
    """Memory for calls and answers of all connections. First come, first served."""

    def __init__(self, bytes_max: int, keep: Callable[[int], None]) -> None:
        """`keep` is told of each change in bytes."""
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self._keep = keep
        self._line = trio.Lock()
        self._freed = trio.Event()

    async def take(self, size_bytes: int) -> None:
        """Wait until so much is free, or everything is."""
        async with self._line:
            while self.held_bytes and self.held_bytes + size_bytes > self.bytes_max:
                self._freed = trio.Event()
                await self._freed.wait()
            self.change(size_bytes)

    def change(self, size_bytes: int) -> None:
        """Take so much without waiting, as it is there already; or free it, if negative."""
        self.held_bytes += size_bytes
        self._keep(size_bytes)
        if size_bytes < 0:
            self._freed.set()


class _Gone(Exception):
    """The client has closed the connection, or is to be cut."""


class ThriftServer:
    """Serves the logs of one broker over Thrift. Made by it when it has a Thrift port."""

    def __init__(self, around: Surroundings, config: ThriftConfig, sockets: list[socket.socket]) -> None:
        """`sockets`: that are bound; see `bind`."""
        self._around = around
        self._config = config
        self._sockets = sockets
        self._tls: TlsServer | None = None
        self._room = Room(config.buffers_bytes_max, around.keep)
        self._ended = trio.Event()
        self._tasks: TaskServer | None = None
        self.urls: list[str] = []
        """thrift://HOST:PORT, or thrift+ssl://HOST:PORT, of each address."""

    @classmethod
    async def bind(cls, around: Surroundings, config: ThriftConfig, inherited: InheritedSockets) -> ThriftServer:
        """Bind the address if it is not inherited, and read the certificate. Raises ListenError, CertificateError."""
        server = cls(around, config, inherited.take(THRIFT) or await bind(config.listen))
        try:
            if config.tls.is_on:
                server._tls = await trio.to_thread.run_sync(TlsServer, config.tls)
        except BaseException:
            server.abandon()
            raise
        return server

    def start(self, nursery: trio.Nursery) -> None:
        """Serve clients from now on. Raises ListenError."""
        config = self._config
        start_listening(config.listen, self._sockets)
        self._tasks = TaskServer(
            self._serve,
            self._sockets,
            kind="Thrift",
            section="thrift",
            connections_max=config.connections_max,
            connection_bytes=CONNECTION_BYTES,
            client_seconds=config.client_seconds,
            contain=self._around.contain,
            keep=self._around.keep,
        )
        scheme = "thrift" if self._tls is None else "thrift+ssl"
        self.urls = [f"{scheme}://{name_of(listening.getsockname())}" for listening in self._sockets]
        nursery.start_soon(self._run, self._tasks)
        log.info("Thrift port ready", urls=self.urls)
        is_open = not all(is_loopback(listening.getsockname()[0]) for listening in self._sockets)
        if is_open and not config.tls.client_ca:
            log.warning(
                "the Thrift port is open beyond this machine, and asks for no login",
                urls=self.urls,
                acting_as=config.login or "a client without a login",
                remedy="listen on 127.0.0.1, or configure client_ca in [thrift.tls]",
            )

    async def _run(self, tasks: TaskServer) -> None:
        try:
            await tasks.run()
        finally:
            self._ended.set()

    async def close(self) -> None:
        """Answer present calls for a moment, then no more. A second call waits for the first."""
        if self._tasks is not None:
            self._tasks.close()
            await self._ended.wait()

    def abandon(self) -> None:
        """Give the port back."""
        for listening in self._sockets:
            listening.close()

    async def _serve(self, stream: trio.SocketStream) -> None:
        peer = name_of(stream.socket.getpeername())
        channel: trio.abc.Stream = stream
        if self._tls is not None:
            secured = trio.SSLStream(stream, self._tls.context, server_side=True)
            try:
                with trio.fail_after(self._config.client_seconds):
                    await secured.do_handshake()
            except (trio.TooSlowError, trio.BrokenResourceError, ssl.SSLError):
                return  # a scan of the port, or a client without TLS
            channel = secured
        connection = _Connection(self._around, self._config, self._room, channel, stream.socket, peer)
        try:
            await connection.run()
        except (_Gone, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            pass  # the end of this client
        finally:
            connection.close()


class _Connection:
    """One client: one call after the other."""

    def __init__(
        self,
        around: Surroundings,
        config: ThriftConfig,
        room: Room,
        stream: trio.abc.Stream,
        connected: trio.socket.SocketType,
        peer: str,
    ) -> None:
        self._around = around
        self._config = config
        self._room = room
        self._stream = stream
        self._socket = connected
        self._peer = peer
        self._desk: Desk | None = None

    async def run(self) -> None:
        """Serve until the client goes. Raises _Gone, and errors of the stream."""
        while True:
            with trio.move_on_after(self._config.idle_seconds) as idle:
                header = await self._read(HEADER_BYTES)
            if idle.cancelled_caught:
                return
            size_bytes = frame_bytes(header)
            if not 0 < size_bytes <= self._config.frame_bytes_max:
                await self._refuse_frame(size_bytes)
                return
            await self._room.take(size_bytes)
            held_bytes = size_bytes
            try:
                with trio.fail_after(self._seconds_for(size_bytes)):
                    message = await self._read(size_bytes)
                head, call, request = await self._understand(message)
                if call is None:
                    continue
                extra_bytes = _extra_bytes(head.name, request)
                await self._room.take(extra_bytes)
                held_bytes += extra_bytes
                answered = await self._answer(head, call, request)
                encoded = await _encoded(head, call, answered)
                more_bytes = len(encoded) - held_bytes
                if more_bytes > 0:
                    self._room.change(more_bytes)
                    held_bytes += more_bytes
                await self._send(encoded)
                if answered.then is not None:
                    await self._finish(answered)
            finally:
                self._room.change(-held_bytes)

    def close(self) -> None:
        """End its session with the broker."""
        if self._desk is not None:
            self._desk.close()

    def _seconds_for(self, size_bytes: int) -> float:
        return self._config.client_seconds * (1 + size_bytes / SLOW_BYTES)

    async def _read(self, size_bytes: int) -> bytes:
        pieces: list[bytes] = []
        missing_bytes = size_bytes
        while missing_bytes:
            piece = await self._stream.receive_some(min(missing_bytes, READ_BYTES))
            if not piece:
                raise _Gone
            pieces.append(bytes(piece))
            missing_bytes -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _send(self, message: bytes) -> None:
        with trio.fail_after(self._seconds_for(len(message))):
            await self._stream.send_all(framed(message))

    async def _refuse_frame(self, size_bytes: int) -> None:
        """Say that a frame is too large, if it is one of Thrift's. It is read, so that the client reads that."""
        log.warning(
            "a Thrift client was refused: its frame is too large, or it speaks something else",
            client=self._peer,
            frame_bytes=size_bytes,
            frame_bytes_max=self._config.frame_bytes_max,
        )
        if size_bytes <= 0:
            return
        with trio.move_on_after(self._config.client_seconds):
            began = bytes(await self._stream.receive_some(READ_BYTES))
            try:
                head = read_head(began)
            except FormatError:
                return
            words = f"the call has {size_bytes:,} bytes: {self._config.frame_bytes_max:,} at most (frame_bytes_max)"
            await self._stream.send_all(framed(trouble(head.name, head.sequence_id, Trouble.PROTOCOL_ERROR, words)))
            missing_bytes = size_bytes - len(began)
            while missing_bytes > 0:
                piece = await self._stream.receive_some(READ_BYTES)
                if not piece:
                    return
                missing_bytes -= len(piece)

    async def _understand(self, message: bytes) -> tuple[Head, Call | None, dict[str, Any]]:
        """Return the head, the call and what it takes; None for a call that is answered already. Raises _Gone for what
        is no call.
        """
        try:
            head = read_head(message)
        except FormatError as error:
            log.warning("a Thrift client was cut: its bytes are no call", client=self._peer, reason=str(error))
            raise _Gone from None
        call = CALLS.get(head.name)
        if head.kind != MessageType.CALL:
            words, kind = f"a message of the type {head.kind} is no call", Trouble.INVALID_MESSAGE_TYPE
        elif call is None:
            words = f"there is no call {head.name!r}: there are {', '.join(CALLS)}"
            kind = Trouble.UNKNOWN_METHOD
        else:
            try:
                return head, call, read_struct(message, head.place, call.arguments)[call.argument]
            except FormatError as error:
                words, kind = f"{head.name} can't be read: {error}", Trouble.PROTOCOL_ERROR
        await self._send(trouble(head.name, head.sequence_id, kind, words))
        return head, None, {}

    async def _answer(self, head: Head, call: Call, request: dict[str, Any]) -> Answer:
        """Have a call answered, unless the client goes meanwhile. Raises _Gone."""
        found: list[Answer] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, nursery.cancel_scope)
            found.append(await self._made(head, request))
            nursery.cancel_scope.cancel()
        if not found:
            self.close()
            raise _Gone
        return found[0]

    async def _made(self, head: Head, request: dict[str, Any]) -> Answer:
        try:
            return await answer(await self._session(), head.name, request)
        except DeskError as error:
            return Answer(failed(error))
        except DeskClosed:
            return Answer(failed(DeskError("TRY_LATER", "the broker has ended the session: it stops, or has a fault")))

    async def _session(self) -> Desk:
        desk = self._desk
        if desk is None or desk.has_ended:
            passcode = None
            if self._config.passcode_file is not None:
                text = await trio.Path(self._config.passcode_file).read_text()
                passcode = text.partition("\n")[0].strip()
            stream = self._around.connect(f"Thrift client {self._peer}")
            desk = self._desk = Desk(stream, self._around.limits())
            await desk.open(self._config.login or None, passcode)
        return desk

    async def _finish(self, answered: Answer) -> None:
        """Do what is left when the client has the answer. What fails is met by the next call."""
        assert answered.then is not None, "there is something"
        try:
            await answered.then()
        except (DeskError, DeskClosed):
            self.close()

    async def _watch(self, scope: trio.CancelScope) -> None:
        """Cancel the call when the client closes the connection; a call may wait for long where a log is full."""
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                if not await self._socket.recv(1, socket.MSG_PEEK):
                    break
            except OSError:
                break
            return  # another call is there already
        scope.cancel()


def _extra_bytes(name: str, request: dict[str, Any]) -> int:
    """Return the memory that the answer to a call may take: what is read, and what is written."""
    if name != "consume":
        return 0
    wanted_bytes: int = request.get("maxFetchSize", 0)
    return 2 * max(READ_BYTES, min(wanted_bytes, FETCH_BYTES_MAX))


async def _encoded(head: Head, call: Call, answered: Answer) -> bytes:
    def encode() -> bytes:
        return reply(head.name, head.sequence_id, call.gives, answered.values)

    items = answered.values.get("itemList", ())
    if len(items) * ITEM_BYTES + sum(map(len, items)) < IN_A_THREAD_BYTES:
        return encode()
    return await trio.to_thread.run_sync(encode)
