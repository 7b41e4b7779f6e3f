"""A hub's connection to the coordination service of its host: trio around client.py.

channel = SupervisedChannel(path)
coordination = ServiceClient(channel, scheduling, clock)
nursery.start_soon(channel.run, coordination)
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import trio

from .client import ServiceClient
from .messages import Message, MessageError, MessageReader, framed

READ_BYTES: Final = 64 << 10


class SupervisedChannel:
    """Channel over a Unix socket."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._wanted = trio.Event()
        self._unsent = bytearray()
        self._ready = trio.Event()
        self._scope: trio.CancelScope | None = None

    def connect(self) -> None:
        """See Channel."""
        self._wanted.set()

    def send(self, message: Message) -> None:
        """See Channel."""
        self._unsent += framed(message)
        self._ready.set()

    def hang_up(self) -> None:
        """See Channel."""
        if self._scope is not None:
            self._scope.cancel()

    async def run(self, client: ServiceClient) -> None:
        """Connect as often as the client asks for it, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            words = await self._connected(client)
            client.disconnected(words)

    async def _connected(self, client: ServiceClient) -> str:
        """Hold one connection. Returns why it ended."""
        try:
            stream = await trio.open_unix_socket(str(self._path))
        except OSError as error:
            return f"the supervisor can't be reached at {self._path}: {error.strerror or error}"
        self._unsent.clear()
        words = "the connection to the supervisor was closed"
        async with stream:
            with trio.CancelScope() as self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, stream, nursery.cancel_scope)
                    client.connected()
                    words = await self._read(stream, client)
                    nursery.cancel_scope.cancel()
        self._scope = None
        return words

    async def _read(self, stream: trio.SocketStream, client: ServiceClient) -> str:
        reader = MessageReader()
        while True:
            try:
                data = await stream.receive_some(READ_BYTES)
            except trio.BrokenResourceError:
                data = b""
            if not data:
                return "the supervisor closed the connection"
            try:
                for message in reader.feed(bytes(data)):
                    client.received(message)
            except MessageError as error:
                return f"what answers at {self._path} is no supervisor of hubs: {error}"

    async def _write(self, stream: trio.SocketStream, whole: trio.CancelScope) -> None:
        while True:
            await self._ready.wait()
            self._ready = trio.Event()
            data = bytes(self._unsent)
            self._unsent.clear()
            try:
                await stream.send_all(data)
            except trio.BrokenResourceError:
                whole.cancel()
                return
