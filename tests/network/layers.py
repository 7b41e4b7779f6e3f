"""TLS and WebSocket over memory streams, cut at random places: for whole scenarios in virtual time."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import trio
import wsproto
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Ping, Request, TextMessage

from sluiceway.broker import Broker
from sluiceway.protocols.framing import PLAIN
from sluiceway.protocols.settings import WebSocketConfig
from sluiceway.protocols.streams import ByteStream, MemoryStream, memory_pair
from sluiceway.protocols.tls import TlsStream
from sluiceway.protocols.websocket import accept_websocket
from tests.network import authority
from tests.network.web import Messages


class CrumblingStream:
    """Another stream, of which reads and writes take a random part of what they could."""

    peer_certificate = None
    framing = PLAIN

    def __init__(self, under: ByteStream, seed: int) -> None:
        self._under = under
        self._random = random.Random(seed)
        self.peer = under.peer
        self.wait_readable = under.wait_readable
        self.wait_writable = under.wait_writable
        self.shutdown_write = under.shutdown_write
        self.close = under.close
        self.abandon = under.abandon

    def read(self, size_max: int) -> bytes | None:
        return self._under.read(min(size_max, self._random.choice((1, 3, 100, 5000, 100_000))))

    def read_into(self, room: memoryview) -> int | None:
        return self._under.read_into(room[: self._random.choice((1, 3, 100, 5000, 100_000))])

    def write(self, pieces: Sequence[bytes | memoryview]) -> int:
        most = self._random.choice((1, 10, 2000, 70_000, 1_000_000))
        return self._under.write([memoryview(pieces[0])[:most]])


class ClientEnd:
    """The client's end: whatever is to be agreed on is agreed on when something is first sent or awaited."""

    def __init__(self, stream: MemoryStream) -> None:
        self._bare = stream
        self._stream: Any = stream
        self._opened = False
        self._opening = trio.Lock()
        self.peer = stream.peer

    async def _open(self) -> None:
        async with self._opening:
            if not self._opened:
                await self.open()
                self._opened = True

    async def open(self) -> None:
        raise NotImplementedError

    async def send_all(self, data: bytes) -> None:
        await self._open()
        await self._send(data)

    async def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._stream.write([view]) :]
            if view:
                await self._stream.wait_writable()

    async def receive_some(self, size_max: int = 65536) -> bytes:
        await self._open()
        while (data := self._stream.read(size_max)) is None:
            await self._stream.wait_readable()
        return bytes(data)

    def close(self) -> None:
        self._bare.close()


class SecureEnd(ClientEnd):
    """With TLS."""

    async def open(self) -> None:
        self._stream = TlsStream(self._bare, authority.client_context(), server_hostname=authority.HOST)
        await self._stream.handshake()


class WebEnd(ClientEnd):
    """With WebSocket, by wsproto."""

    def __init__(self, stream: MemoryStream) -> None:
        super().__init__(stream)
        self._ws = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        self._messages = Messages()

    async def open(self) -> None:
        await self._bare.send_all(self._ws.send(Request(host="localhost", target="/stomp")))
        while True:
            self._ws.receive_data(await self._bare.receive_some())
            if any(isinstance(event, AcceptConnection) for event in self._ws.events()):
                return

    async def _send(self, data: bytes) -> None:
        for start in range(0, max(1, len(data)), 50_000):
            await self._bare.send_all(self._ws.send(BytesMessage(data[start : start + 50_000])))

    async def receive_some(self, size_max: int = 65536) -> bytes:
        await self._open()
        while True:
            got = b""
            for event in self._ws.events():
                if isinstance(event, TextMessage | BytesMessage):
                    got += self._messages.take(event)
                elif isinstance(event, Ping):
                    await self._bare.send_all(self._ws.send(event.response()))
                elif isinstance(event, CloseConnection):
                    with contextlib.suppress(BrokenPipeError):  # it need not wait for our answer for ever
                        if self._ws.state is not wsproto.connection.ConnectionState.CLOSED:
                            await self._bare.send_all(self._ws.send(event.response()))
                    return got
            if got:
                return got
            data = await self._bare.receive_some(size_max)
            if not data:
                return b""
            self._ws.receive_data(data)


async def _secured(stream: ByteStream) -> ByteStream:
    secured = TlsStream(stream, authority.server_context())
    await secured.handshake()
    return secured


async def _webbed(stream: ByteStream) -> ByteStream:
    return await accept_websocket(stream, WebSocketConfig(), message_bytes_max=1 << 30, is_loopback=True)


LAYERS: dict[str, tuple[type[ClientEnd], Callable[[ByteStream], Any]]] = {
    "tls": (SecureEnd, _secured),
    "websocket": (WebEnd, _webbed),
}


def connect_through(layer: str, broker: Broker, *, name: str = "memory client") -> ClientEnd:
    """In place of `Broker.connect_memory`."""
    end, accept = LAYERS[layer]
    ours, theirs = memory_pair(names=(name, "memory broker"))
    seed = len(broker.connections)

    async def serve() -> None:
        try:
            opened = await accept(CrumblingStream(theirs, seed))
        except (OSError, trio.ClosedResourceError):
            theirs.close()  # the client never wanted to say anything
            return
        broker._begin(opened, broker.config.listeners[0].limits, "memory")

    broker._spawn(partial(serve))
    return end(ours)
