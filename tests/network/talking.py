"""STOMP over any trio stream, for tests with real sockets: a few frames, each wait with a deadline."""

from __future__ import annotations

import ssl
from collections import deque

import trio

from sluiceway.protocols.stomp.frames import Frame
from sluiceway.protocols.stomp.machine import ClientMachine

PATIENCE_SECONDS = 40.0


class Talker:
    """A STOMP client over a stream that has `send_all` and `receive_some`."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.machine = ClientMachine()
        self.frames: deque[Frame] = deque()
        self.received_bytes = 0

    async def connect(self, *, heart_beat: tuple[int, int] = (0, 0)) -> Frame:
        """CONNECT, and the frame that answers it."""
        await self.stream.send_all(self.machine.connect("test", heart_beat=heart_beat, versions=("1.2",)))
        return await self.expect("CONNECTED")

    async def send(self, command: str, headers: dict[str, str], body: bytes = b"") -> None:
        """Any frame."""
        await self.stream.send_all(self.machine.send(command, headers.items(), body))

    async def expect(self, command: str) -> Frame:
        """The next frame, which must be this."""
        with trio.fail_after(PATIENCE_SECONDS):
            while not self.frames:
                data = bytes(await self.stream.receive_some(65536))
                assert data, f"the broker closed instead of saying {command}"
                self.received_bytes += len(data)
                self.frames.extend(frame for frame in self.machine.receive_data(data) if isinstance(frame, Frame))
        frame = self.frames.popleft()
        assert frame.command == command, frame
        return frame

    async def round_trip(self, body: bytes, destination: str = "/queue/round") -> bytes:
        """Subscribe, send, and return the body that came back, acknowledged."""
        await self.send(
            "SUBSCRIBE", {"destination": destination, "id": "1", "ack": "client-individual", "receipt": "s"}
        )
        await self.expect("RECEIPT")
        await self.send("SEND", {"destination": destination}, body)
        message = await self.expect("MESSAGE")
        await self.send("ACK", {"id": message.headers["ack"], "receipt": "a"})
        await self.expect("RECEIPT")
        await self.send("UNSUBSCRIBE", {"id": "1", "receipt": "u"})
        await self.expect("RECEIPT")
        return bytes(message.body)


async def dial(address: str) -> trio.SocketStream:
    """A TCP connection to HOST:PORT."""
    host, _colon, port = address.rpartition(":")
    with trio.fail_after(PATIENCE_SECONDS):
        return await trio.open_tcp_stream(host.strip("[]"), int(port))


async def dial_tls(address: str, context: ssl.SSLContext, host: str = "localhost") -> trio.SSLStream[trio.SocketStream]:
    """A TLS connection, with Python's own client side; the handshake is done."""
    stream = trio.SSLStream(await dial(address), context, server_hostname=host, https_compatible=True)
    try:
        with trio.fail_after(PATIENCE_SECONDS):
            await stream.do_handshake()
    except trio.BrokenResourceError:
        await trio.aclose_forcefully(stream)
        raise
    return stream


async def read_to_end(stream: trio.abc.ReceiveStream) -> bytes:
    """All that comes until the other side closes. A reset counts as the end."""
    got = b""
    with trio.fail_after(PATIENCE_SECONDS):
        try:
            while data := await stream.receive_some(65536):
                got += data
        except trio.BrokenResourceError:
            pass
    return got
