"""A WebSocket client for tests: wsproto's, over any trio stream."""

from __future__ import annotations

import re

import trio
import wsproto
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    Pong,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)

from tests.network.talking import PATIENCE_SECONDS

__all__ = ["Refusal", "WebClient"]


class Refusal(Exception):
    """The upgrade was refused."""

    def __init__(self, status: int, headers: dict[str, str], body: str) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.headers = headers
        self.body = body


class Messages:
    """What comes over a WebSocket, message by message: each must be one whole STOMP frame, or one heart-beat."""

    def __init__(self) -> None:
        self.begun = bytearray()
        """Of the message that is coming."""
        self.heart_beats_count = 0
        self.frames: list[bytes] = []

    def take(self, event: TextMessage | BytesMessage) -> bytes:
        """The payload of this event."""
        data = event.data.encode() if isinstance(event, TextMessage) else bytes(event.data)
        self.begun += data
        if event.message_finished:
            whole, self.begun = bytes(self.begun), bytearray()
            if whole == b"\n":
                self.heart_beats_count += 1
            else:
                head, blank, body = whole.partition(b"\n\n")
                assert blank, f"no whole frame: {whole[:200]!r}"
                length = re.search(rb"^content-length:(\d+)$", head, re.MULTILINE)
                end = int(length[1]) if length is not None else body.index(b"\0")
                assert body[end:] == b"\0\n", f"more or less than a frame: {whole[:200]!r} … {whole[-20:]!r}"
                self.frames.append(whole)
        return data


class WebClient(trio.abc.Stream):
    """A WebSocket as a byte stream; what was said in it besides is kept."""

    def __init__(self, stream: trio.abc.Stream, *, as_text: bool = False) -> None:
        self.stream = stream
        self.as_text = as_text
        self.ws = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        self.subprotocol: str | None = None
        self.kinds: list[str] = []
        """Of the messages that came: text or binary."""
        self.messages = Messages()
        self.pongs: list[bytes] = []
        self.closed_with: tuple[int, str | None] | None = None

    async def open(
        self,
        target: str = "/stomp",
        *,
        host: str = "localhost",
        subprotocols: tuple[str, ...] = (),
        headers: tuple[tuple[str, str], ...] = (),
    ) -> WebClient:
        """Ask for the WebSocket. Raises Refusal."""
        extra = [(name.encode(), value.encode()) for name, value in headers]
        request = Request(host=host, target=target, subprotocols=list(subprotocols), extra_headers=extra)
        await self.stream.send_all(self.ws.send(request))
        status, refused_headers, body = 0, {}, b""
        with trio.fail_after(PATIENCE_SECONDS):
            while True:
                data = bytes(await self.stream.receive_some(65536))
                self.ws.receive_data(data or None)
                for event in self.ws.events():
                    if isinstance(event, AcceptConnection):
                        self.subprotocol = event.subprotocol
                        return self
                    if isinstance(event, RejectConnection):
                        status = event.status_code
                        refused_headers = {name.decode().lower(): value.decode() for name, value in event.headers}
                    elif isinstance(event, RejectData):
                        body += event.data
                        if event.body_finished:
                            raise Refusal(status, refused_headers, body.decode())
                assert data, "closed without an answer"

    async def say(self, event: Event) -> None:
        """Any WebSocket event."""
        await self.stream.send_all(self.ws.send(event))

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        text = bytes(data).decode() if self.as_text else ""
        await self.say(TextMessage(text) if self.as_text else BytesMessage(bytes(data)))

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Payload; b"" when it is closed."""
        while True:
            got = b""
            data = bytes(await self.stream.receive_some(max_bytes))
            if data:
                self.ws.receive_data(data)
            for event in self.ws.events():
                if isinstance(event, TextMessage | BytesMessage):
                    got += self.messages.take(event)
                    if event.message_finished:
                        self.kinds.append("text" if isinstance(event, TextMessage) else "binary")
                elif isinstance(event, Pong):
                    self.pongs.append(bytes(event.payload))
                    return got or b"\n"
                elif isinstance(event, Ping):
                    await self.say(event.response())
                elif isinstance(event, CloseConnection):
                    self.closed_with = (event.code, event.reason)
                    return got
            if got or not data:
                return got

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self.stream)
