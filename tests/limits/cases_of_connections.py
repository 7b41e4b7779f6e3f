"""What connections hold by themselves, also over WebSocket, and when they have ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from sluiceway.protocols import wsframes
from sluiceway.protocols.streams import memory_pair
from sluiceway.protocols.websocket import WebSocketStream
from tests.limits.cases import CASES, Play, Q, T, case, long
from tests.limits.law import PIPE_BYTES, frame
from tests.limits.weighing import Plain
from tests.scenarios.stage import Stage


def connecting(name: str, begin: Callable[[Stage, int], Awaitable[Any]], count: int = 50) -> None:
    """A case with a connection for each act, that stays."""

    async def made(stage: Stage) -> Play:
        kept: list[Any] = []

        async def play(numbers: range) -> None:
            for n in numbers:
                kept.append(await begin(stage, n))

        return play

    CASES[name] = (made, count)


async def _silent(stage: Stage, n: int) -> Plain:
    return Plain(stage)


async def _half(stage: Stage, n: int) -> Plain:
    client = await Plain(stage).connected()
    await client.stream.send_all(b"SEND\ndestination:/queue/q\ncontent-length:20000\n\n" + b"%d" % n * 2_000)
    return client


async def _half_head(stage: Stage, n: int) -> Plain:
    client = await Plain(stage).connected()
    await client.stream.send_all(b"SEND\ndestination:/queue/q\n" + b"k:%d\n" % n * 100)
    return client


async def _half_connect(stage: Stage, n: int) -> Plain:
    client = Plain(stage)
    await client.stream.send_all(b"CONNECT\nhost:x\n" + b"k:%d\n" % n * 100)
    return client


def _having(data: Callable[[int], bytes], **headers: Callable[[int], object]) -> Callable[[Stage, int], Awaitable[Any]]:
    async def begin(stage: Stage, n: int) -> Plain:
        client = await Plain(stage).connected(**{name: value(n) for name, value in headers.items()})
        await client.do(data(n))
        return client

    return begin


connecting("connections that say nothing", _silent)
connecting("connections", _having(lambda n: b""))
connecting("connections with long client ids", _having(lambda n: b"", client_id=lambda n: long(n, 8_000)))
connecting("connections with heart-beats", _having(lambda n: b"", heart_beat=lambda n: "10000,10000"))
connecting("half frames", _half)
connecting("half heads", _half_head)
connecting("half CONNECTs", _half_connect)
connecting("connections that sent", _having(lambda n: frame("SEND", b"x", destination=Q, k=n)))
connecting(
    "connections that sent long headers",
    _having(lambda n: b"".join(frame("SEND", destination=T, k=long(100_000 * n + k)) for k in range(127))),
    8,
)
connecting(
    "connections that sent to many",
    _having(lambda n: b"".join(frame("SEND", destination=f"/topic/{k}") for k in range(300))),
    8,
)
connecting("connections that subscribe", _having(lambda n: frame("SUBSCRIBE", id="s", destination=T)))


def ws(payload: bytes, *, opcode: int = wsframes.BINARY, fin: bool = True, announced: int | None = None) -> bytes:
    """A frame of a client. `announced`: its length, if not all of it is here."""
    size = len(payload) if announced is None else announced
    first, second, *length = wsframes.head(opcode, size, ends=fin)
    return bytes([first, second | wsframes.MASKED, *length, 0, 0, 0, 0]) + payload


class _OverWebSocket(Plain):
    """A client behind a WebSocket that stands already."""

    def __init__(self, stage: Stage) -> None:
        ours, theirs = memory_pair(capacity_bytes=PIPE_BYTES, names=("client", "memory broker"))
        self.stream = ours
        limits = stage.broker.config.listeners[0].limits
        under = WebSocketStream(theirs, message_bytes_max=limits.body_bytes_max)
        stage.broker._begin(under, limits, "memory")
        self._receipts_count = 0


def over_websocket(name: str, begin: Callable[[int], bytes]) -> None:
    """A case with a WebSocket for each act."""

    async def start(stage: Stage, n: int) -> Plain:
        client = _OverWebSocket(stage)
        await client.stream.send_all(ws(frame("CONNECT", accept_version="1.2", host="test")))
        await client._read_until(b"CONNECTED\n")
        await client.stream.send_all(begin(n))
        await stage.settled_down()
        return client

    connecting(name, start)


OPEN_BODY = b"SEND\ndestination:/queue/q\ncontent-length:100000\n\n"
BEGUN = ws(b"", opcode=wsframes.TEXT, fin=False)
over_websocket("WebSockets", lambda n: b"")
over_websocket("WebSocket frames that do not end", lambda n: ws(OPEN_BODY + b"%d" % n * 2_000, announced=90_000))
over_websocket("WebSocket heads that do not end", lambda n: ws(b"", announced=90_000)[: 2 + n % 12])
over_websocket("WebSocket pings that do not end", lambda n: ws(b"x" * 100, opcode=wsframes.PING, announced=125))
over_websocket("WebSocket pings", lambda n: b"".join(ws(b"%d" % k, opcode=wsframes.PING) for k in range(300)))
over_websocket("WebSocket fragments of nothing", lambda n: BEGUN + ws(b"", opcode=0, fin=False) * 5_000)
over_websocket(
    "WebSocket fragments of a byte",
    lambda n: ws(OPEN_BODY, fin=False) + b"".join(ws(b"%d" % (k % 10), opcode=0, fin=False) for k in range(5_000)),
)
over_websocket(
    "WebSocket fragments in the midst of characters",
    lambda n: (
        ws(OPEN_BODY, opcode=wsframes.TEXT, fin=False)
        + b"".join(ws(bytes([each]), opcode=0, fin=False) for each in "€".encode() * 1_000 + b"\xe2")
    ),
)


@case("connections that ended", 100)
async def _(stage: Stage) -> Play:
    """Nothing may be left of those that are gone."""

    async def play(numbers: range) -> None:
        for n in numbers:
            client = await Plain(stage).connected(client_id=n)
            await client.do(frame("SUBSCRIBE", id="s", destination=T) + frame("SEND", b"x", destination=T))
            client.stream.close()
        await trio.sleep(30)

    return play


@case("logins that failed", 100)
async def _(stage: Stage) -> Play:
    async def play(numbers: range) -> None:
        for n in numbers:
            client = Plain(stage)
            await client.stream.send_all(frame("CONNECT", login=long(n, 3_000), passcode="x"))
            await stage.settled_down()
            client.take()
            client.stream.close()
        await trio.sleep(30)

    return play


@case("ended connections with a SEND parked", 60)
async def _(stage: Stage) -> Play:
    sender = await Plain(stage).connected()
    await sender.do(frame("SEND", b"x" * 2_000, destination="/queue/full"))

    async def play(numbers: range) -> None:
        for n in numbers:
            client = await Plain(stage).connected()
            await client.do(frame("SEND", b"x" * 100, destination="/queue/full", k=n))
            client.stream.close()
        await trio.sleep(30)

    return play
