"""Every stream can be read into a buffer: what comes is what `read` gives, however the two are mixed."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

import pytest
import trio

from sluiceway.protocols import wsframes
from sluiceway.protocols.streams import ByteStream, SocketStream, memory_pair
from sluiceway.protocols.tls import TlsStream
from sluiceway.protocols.websocket import WebSocketStream
from tests.how_often import rounds
from tests.network import authority

DATA = bytes(random.Random(7).randbytes(900_000))
MASKS = b"\1\2\3\4"


def masked() -> Iterator[bytes]:
    chance, place = random.Random(8), 0
    while place < len(DATA):
        part = DATA[place : place + chance.choice((0, 1, 125, 126, 5000, 65_535, 65_536, 300_000))]
        place += len(part)
        lead = wsframes.head(wsframes.BINARY, len(part))
        yield bytes((lead[0], lead[1] | wsframes.MASKED)) + lead[2:] + MASKS + wsframes.unmasked(part, MASKS)


async def given(kind: str) -> tuple[ByteStream, ByteStream]:
    """A stream to read from, and one to write DATA to (`b"".join(masked())` for a WebSocket)."""
    if kind == "socket":
        ours, theirs = socket.socketpair()
        return SocketStream(ours, "peer"), SocketStream(theirs, "peer")
    one, other = memory_pair(capacity_bytes=70_000)
    if kind == "tls":
        client = TlsStream(one, authority.client_context(), server_hostname=authority.HOST)
        server = TlsStream(other, authority.server_context())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.handshake)
            nursery.start_soon(server.handshake)
        return server, client
    return (WebSocketStream(one, message_bytes_max=1 << 20) if kind == "websocket" else one), other


@pytest.mark.parametrize("seed", range(rounds(1)))
@pytest.mark.parametrize("kind", ["memory", "socket", "tls", "websocket"])
async def test_what_is_read_into_a_buffer_is_what_was_sent(kind: str, seed: int) -> None:
    reads, writes = await given(kind)
    chance = random.Random(seed)
    rest = memoryview(b"".join(masked()) if kind == "websocket" else DATA)
    got = bytearray()
    assert reads.read_into(memoryview(bytearray(10))) is None
    while len(got) < len(DATA):
        rest = rest[writes.write([rest]) :]
        size = chance.choice((1, 100, 16_384, 70_000, 400_000))
        if chance.random() < 0.5:
            got += reads.read(size) or b""
            continue
        room = memoryview(bytearray(size))
        count = reads.read_into(room)
        got += room[: count or 0]
    assert got == DATA
    writes.shutdown_write()
    assert reads.read_into(memoryview(bytearray(10))) == 0
    reads.close()
    writes.close()
