"""What each frame and request makes the broker hold is counted by its limiters, or not held: the law about memory."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Self

import pytest
import trio
import trio.testing

from sluiceway.admin.app import make_app
from sluiceway.admin.http import HttpServer
from sluiceway.admin.server import make_services
from sluiceway.config.admin import AdminConfig
from sluiceway.protocols import wsframes
from sluiceway.protocols.streams import memory_pair
from sluiceway.protocols.websocket import WebSocketStream
from sluiceway.queues.steps import Line
from sluiceway.store.memory import MemoryEngine
from tests.limits.apart import Scales
from tests.limits.law import PIPE_BYTES, frame
from tests.limits.weighing import Balance, Plain, judge
from tests.scenarios.log_stage import LogStage
from tests.scenarios.stage import Stage, wall_clock_ms

COUNT = 200
"""Acts of one round."""

HTTP_COUNT = 30
"""Connections, bodies and logins of a round."""

DEAD_QUEUES_COUNT = 80
"""Queues with a dead-letter queue of their own."""

Play = Callable[[range], Awaitable[Any]]
Made = Callable[[Stage], Awaitable[Play]]

CASES: dict[str, tuple[Made, int]] = {}
"""By name: what makes a case ready and returns how it is played, and how many acts are a round."""

UNCOUNTED_ON_PURPOSE = "what nobody counts"
"""A case that is none: whatever it keeps must be found."""
DEADLY = "what ends its process"
"""Another one."""


def case(name: str, count: int = COUNT) -> Callable[[Made], Made]:
    """Enters a case into the table."""

    def enter(made: Made) -> Made:
        assert name not in CASES, name
        CASES[name] = (made, count)
        return made

    return enter


def frames(name: str, make: Callable[[int], bytes], *, first: bytes = b"", count: int = COUNT) -> None:
    """A case of one client: a frame (or some) for each act, behind `first`."""

    async def made(stage: Stage) -> Play:
        client = await Plain(stage).connected(client_id="me")
        await client.do(first)

        async def play(numbers: range) -> None:
            await client.do(b"".join(map(make, numbers)))

        return play

    CASES[name] = (made, count)


def long(number: int, length: int = 900) -> str:
    """A name that nothing else has, as long as names of destinations may be."""
    return f"{number:0{length}d}"


def _acks_of(read: bytes) -> list[str]:
    return [line[4:].decode() for line in read.split(b"\n") if line.startswith(b"ack:")]


Q, T = "/queue/q", "/topic/t"

# ---------------------------------------------------------------------- SEND

for kind, headers in {
    "plain": lambda n: {},
    "of own headers": lambda n: {"k": n},
    "of long headers": lambda n: {"k": long(n, 8_000)},
    "of many headers": lambda n: {f"h{k}": f"{n}-{k}" for k in range(200)},
    "of priorities": lambda n: {"priority": n % 10},
    "delayed": lambda n: {"delay": 60_000 + n},
    "grouped": lambda n: {"group": n},
    "of long groups": lambda n: {"group": long(n, 8_000)},
    "expiring": lambda n: {"expires": wall_clock_ms() + 60_000 + n},
    "persistent": lambda n: {"persistent": "true", "k": n},
    "correlated": lambda n: {"correlation-id": n},
    "of long correlations": lambda n: {"correlation-id": long(n, 8_000)},
    "traced": lambda n: {"traceparent": f"00-{n:032x}-{n + 1:016x}-01"},
    "with receipts": lambda n: {"receipt": n},
    "with long receipts": lambda n: {"receipt": long(n, 8_000)},
    "with reply-to": lambda n: {"reply-to": f"/queue/{n}"},
    "with long reply-to": lambda n: {"reply-to": f"/queue/{long(n)}"},
}.items():
    frames(f"SEND {kind}", lambda n, headers=headers: frame("SEND", b"x", destination=Q, **headers(n)), count=200)
frames("SEND to a topic nobody reads", lambda n: frame("SEND", b"x", destination=T, k=n))
frames("SEND to topics nobody reads", lambda n: frame("SEND", b"x", destination=f"/topic/{n}"))
frames("SEND to queues", lambda n: frame("SEND", b"x", destination=f"/queue/{n}"))
frames("SEND to queues of deep names", lambda n: frame("SEND", b"x", destination="/queue/" + f"{n}." * 40), count=50)
frames("SEND to queues of long names", lambda n: frame("SEND", b"x", destination=f"/queue/{long(n)}"))
frames("SEND composite", lambda n: frame("SEND", b"x" * 100, destination="/queue/a,/queue/b,/topic/c", k=n))
frames("SEND delayed to a topic", lambda n: frame("SEND", b"x", destination=T, delay=60_000 + n))


@case("SEND taken at once", 1_000)
async def _(stage: Stage) -> Play:
    """Nothing may be left of what was delivered and acknowledged."""
    reader, sender = await Plain(stage).connected(), await Plain(stage).connected()
    await reader.do(frame("SUBSCRIBE", id="s", destination=Q))

    async def play(numbers: range) -> None:
        await sender.do(b"".join(frame("SEND", b"x", destination=Q, k=long(n, 300)) for n in numbers))
        await trio.sleep(1)
        reader.take()

    return play


# ---------------------------------------------------------------------- work in steps that waits


class _Unserved(OrderedDict[Line, None]):
    """Whose turn does not come."""

    def __bool__(self) -> bool:
        return False


def _keep_busy(stage: Stage) -> None:
    """From now on what destinations do in steps waits for its turn, as it does while very much is done so."""
    steps = stage.broker.registry.steps
    at_once = steps._take_at_once
    steps._take_at_once = lambda line: at_once(line) if line.walks else 0  # type: ignore[method-assign]
    steps._keepers = _Unserved()


@case("SEND to new topics under many wildcards", 20)
async def _(stage: Stage) -> Play:
    """Which these are to be attached to."""
    sender = await Plain(stage).connected()
    for _part in range(8):
        reader = await Plain(stage).connected()
        await reader.do(b"".join(frame("SUBSCRIBE", id=n, destination="/topic/>") for n in range(1_000)))
    _keep_busy(stage)

    async def play(numbers: range) -> None:
        await sender.do(b"".join(frame("SEND", b"x", destination=f"/topic/{n}") for n in numbers))

    return play


@case("deletion of long queues", 4)
async def _(stage: Stage) -> Play:
    """What is in them stays in memory until it is let go of, in steps."""
    sender = await Plain(stage).connected()
    _keep_busy(stage)

    async def play(numbers: range) -> None:
        for n in numbers:
            await sender.do(frame("SEND", b"x" * 100, destination=f"/queue/{n}") * 6_000)
            stage.broker.registry.delete(stage.broker.registry.destinations[f"/queue/{n}"], "a test")

    return play


# ---------------------------------------------------------------------- SUBSCRIBE

for kind, headers in {
    "to queues": lambda n: {"destination": f"/queue/{n}"},
    "to queues of long names": lambda n: {"destination": f"/queue/{long(n)}"},
    "to one queue": lambda n: {"destination": Q},
    "to one topic": lambda n: {"destination": T},
    "to topics": lambda n: {"destination": f"/topic/{n}"},
    "of long ids": lambda n: {"destination": Q, "id": long(n, 8_000)},
    "exclusive": lambda n: {"destination": Q, "exclusive": "true"},
    "with one selector": lambda n: {"destination": Q, "selector": "k = 1"},
    "with selectors": lambda n: {"destination": Q, "selector": f"k = {n}"},
    "with long selectors": lambda n: {"destination": Q, "selector": " OR ".join(f"k = {n}" for _ in range(20))},
    "of wildcards": lambda n: {"destination": f"/queue/*.{n}"},
    "of long wildcards": lambda n: {"destination": f"/queue/*.{long(n)}"},
    "of deep wildcards": lambda n: {"destination": "/topic/" + ".".join(f"*.{n}x{k}" for k in range(60))},
    "to temporary queues": lambda n: {"destination": f"/temp-queue/{n}"},
    "of browsers": lambda n: {"destination": Q, "browser": "true"},
}.items():
    frames(f"SUBSCRIBE {kind}", lambda n, headers=headers: frame("SUBSCRIBE", **{"id": n, **headers(n)}), count=100)
frames("SUBSCRIBE durable", lambda n: frame("SUBSCRIBE", id=n, destination=T, durable="true"))
frames(
    "SUBSCRIBE durable of long ids", lambda n: frame("SUBSCRIBE", id=long(n), destination=T, durable="true"), count=200
)
frames(
    "durable subscriptions left",
    lambda n: frame("SUBSCRIBE", id=n, destination=T, durable="true") + frame("UNSUBSCRIBE", id=n),
)
frames(
    "SUBSCRIBE and UNSUBSCRIBE",
    lambda n: frame("SUBSCRIBE", id=n, destination=Q, selector=f"k = {n}") + frame("UNSUBSCRIBE", id=n),
)
frames(
    "SUBSCRIBE to queues and UNSUBSCRIBE",
    lambda n: frame("SUBSCRIBE", id=n, destination=f"/queue/{n}") + frame("UNSUBSCRIBE", id=n),
)
frames(
    "SUBSCRIBE of wildcards and UNSUBSCRIBE",
    lambda n: frame("SUBSCRIBE", id=n, destination=f"/queue/{n}.>") + frame("UNSUBSCRIBE", id=n),
)

# ---------------------------------------------------------------------- transactions

frames("BEGIN", lambda n: frame("BEGIN", transaction=n), count=45)
frames("BEGIN of long names", lambda n: frame("BEGIN", transaction=long(n, 8_000)), count=45)
frames("BEGIN and ABORT", lambda n: frame("BEGIN", transaction=n) + frame("ABORT", transaction=n))
frames(
    "SEND in a transaction",
    lambda n: frame("SEND", b"x", destination=Q, transaction="t", k=n),
    first=frame("BEGIN", transaction="t"),
)
frames(
    "SEND to queues in a transaction",
    lambda n: frame("SEND", b"x", destination=f"/queue/{long(n)}", transaction="t"),
    first=frame("BEGIN", transaction="t"),
)


@case("ACK in a transaction")
async def _(stage: Stage) -> Play:
    client = await Plain(stage).connected()
    seen = await client.do(
        frame("SUBSCRIBE", id="s", destination=Q, ack="client-individual", credit="100000,67108864")
        + frame("BEGIN", transaction="t")
        + frame("SEND", b"x", destination=Q) * 4 * COUNT
    )
    await trio.sleep(1)
    ids = _acks_of(seen + client.take())

    async def play(numbers: range) -> None:
        await client.do(b"".join(frame("ACK", id=ids[2 * n], transaction="t") for n in numbers))

    return play


# ---------------------------------------------------------------------- what is held


@case("deliveries unacknowledged", 1_000)
async def _(stage: Stage) -> Play:
    """What lies in a consumer's hands stays charged to the queue."""
    client = await Plain(stage).connected()
    await client.do(frame("SUBSCRIBE", id="s", destination=Q, ack="client-individual", credit="100000,67108864"))

    async def play(numbers: range) -> None:
        await client.do(b"".join(frame("SEND", b"x", destination=Q, k=n) for n in numbers))
        await trio.sleep(1)
        client.take()

    return play


@case("every other delivery acknowledged", 1_000)
async def _(stage: Stage) -> Play:
    client = await Plain(stage).connected()
    await client.do(frame("SUBSCRIBE", id="s", destination=Q, ack="client-individual", credit="100000,67108864"))

    async def play(numbers: range) -> None:
        seen = await client.do(frame("SEND", b"x", destination=Q) * len(numbers))
        await trio.sleep(1)
        ids = _acks_of(seen + client.take())
        await client.do(b"".join(frame("ACK", id=each) for each in ids[::2]))

    return play


@case("deliveries refused")
async def _(stage: Stage) -> Play:
    """NACKs that wait for their time, and dead letters."""
    client = await Plain(stage).connected()
    await client.do(frame("SUBSCRIBE", id="s", destination=Q, ack="client-individual", credit="100000,67108864"))

    async def play(numbers: range) -> None:
        seen = await client.do(b"".join(frame("SEND", b"x", destination=Q, k=n) for n in numbers))
        await trio.sleep(0.01)
        ids = _acks_of(seen + client.take())
        await client.do(b"".join(frame("NACK", id=each) for each in ids))

    return play


@case("deliveries refused into dead-letter queues of their own", DEAD_QUEUES_COUNT // 2)
async def _(stage: Stage) -> Play:
    """A queue for the dead letters of each queue."""
    client = await Plain(stage).connected()
    await client.do(
        frame("SUBSCRIBE", id="s", destination="/queue/dead.*", ack="client-individual", credit="100000,67108864")
    )

    async def play(numbers: range) -> None:
        seen = await client.do(b"".join(frame("SEND", b"x", destination=f"/queue/dead.{n}", k=n) for n in numbers))
        await trio.sleep(0.01)
        await client.do(b"".join(frame("NACK", id=each) for each in _acks_of(seen + client.take())))
        await trio.sleep(1)

    return play


for count, title in ((1, "one message group"), (50, "message groups")):

    @case(f"{title} set aside behind its consumer", 1_000)
    async def _(stage: Stage, count: int = count) -> Play:
        """What may not pass its consumer, who has no credit left, while others would take it."""
        busy, free = await Plain(stage).connected(), await Plain(stage).connected()
        await busy.do(frame("SUBSCRIBE", id="s", destination=Q, ack="client-individual", credit=f"{count},67108864"))
        await busy.do(b"".join(frame("SEND", b"x", destination=Q, group=k) for k in range(count)))
        await trio.sleep(1)
        busy.take()
        await free.do(frame("SUBSCRIBE", id="s", destination=Q))

        async def play(numbers: range) -> None:
            await busy.do(b"".join(frame("SEND", b"x", destination=Q, group=n % count) for n in numbers))
            await trio.sleep(1)
            assert not free.take()

        return play


for settled, title in ((b"", "held"), (b"ACK", "acknowledged"), (b"NACK", "refused")):

    @case(f"records of a log {title}", 400)
    async def _(stage: Stage, settled: bytes = settled) -> Play:
        """By a consumer of a group and by a reader of its own; what is refused waits for its time."""
        client = await Plain(stage).connected()
        for n, headers in enumerate(({"group": "g"}, {})):
            subscribe = {"id": n, "destination": "/log/slow", "ack": "client-individual", "credit": "9999,9999999"}
            await client.do(frame("SUBSCRIBE", **subscribe, **headers))

        async def play(numbers: range) -> None:
            seen = await client.do(b"".join(frame("SEND", b"x", destination="/log/slow", k=n) for n in numbers))
            await trio.sleep(0.01)
            ids = _acks_of(seen + client.take())
            assert len(ids) == 2 * len(numbers)
            if settled:
                await client.do(b"".join(frame(settled.decode(), id=each) for each in ids))
                await stage.settled_down()
                client.take()

        return play


@case("a topic's laggard")
async def _(stage: Stage) -> Play:
    reader, sender = await Plain(stage).connected(), await Plain(stage).connected()
    await reader.do(frame("SUBSCRIBE", id="s", destination=T, ack="client"))
    quick = await Plain(stage).connected()
    await quick.do(frame("SUBSCRIBE", id="s", destination=T))

    async def play(numbers: range) -> None:
        await sender.do(b"".join(frame("SEND", b"x", destination=T, k=n) for n in numbers))
        await trio.sleep(1)
        quick.take()
        reader.take()

    return play


# ---------------------------------------------------------------------- connections


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
        stage.broker._accepted(under, "memory", limits, None)
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


# ---------------------------------------------------------------------- HTTP


class _HttpStage(Stage):
    """A stage with an admin port that has no port."""

    def __init__(self) -> None:
        super().__init__(POLICIES, users={f"user{n}": "p" for n in range(2 * HTTP_COUNT)}, engine=MemoryEngine())

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        config = AdminConfig(connections_max=1_000, metrics_open=True)
        self.services = make_services(self.broker, config)
        self.services.reader.open()
        self.http = HttpServer(
            make_app(self.services, config),
            [],
            connections_max=1_000,
            client_seconds=config.client_seconds,
            contain=self.broker.faults.contain,
            keep=self.broker.manager.keep,
        )
        return self

    async def asking(self, data: bytes) -> trio.StapledStream[Any, Any]:
        """A connection that has sent this."""
        ours, theirs = trio.testing.lockstep_stream_pair()
        theirs.socket = _Socket()  # type: ignore[attr-defined]
        self.http.connections_count += 1
        assert self.broker._nursery is not None
        self.broker._nursery.start_soon(self.http._serve, theirs)
        await ours.send_all(data)
        await self.settled_down()
        return ours

    async def asked(self, data: bytes) -> bytes:
        """The answer, and everything of the connection is gone."""
        stream = await self.asking(data)
        answer = bytes(await stream.receive_some(1 << 16))
        await stream.aclose()
        await self.settled_down()
        return answer

    async def __aexit__(self, *error: Any) -> None:
        self.services.reader.close()
        await super().__aexit__(*error)


class _Socket:
    """As much of a socket as Hypercorn asks for."""

    family = socket.AF_INET

    def getpeername(self) -> tuple[str, int]:
        return "127.0.0.1", 1

    getsockname = getpeername


def _request(method: str, path: str, *headers: str, body: bytes = b"", length: int | None = None) -> bytes:
    lines = [
        f"{method} /{path} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Content-Length: {len(body) if length is None else length}",
        "Content-Type: application/json",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def http(name: str, data: Callable[[int], bytes], *, status: int | None = None, count: int = HTTP_COUNT) -> None:
    """A case of HTTP. `status`: each is answered so, and closed; None: the connection stays."""

    async def made(stage: Stage) -> Play:
        assert isinstance(stage, _HttpStage)
        kept: list[Any] = []

        async def play(numbers: range) -> None:
            for n in numbers:
                if status is None:
                    kept.append(await stage.asking(data(n)))
                else:
                    answer = await stage.asked(data(n))
                    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
            if status is not None:
                await trio.sleep(60)  # trio keeps deadlines that were called off

        return play

    CASES[f"HTTP {name}"] = (made, count)


def _basic(n: int) -> str:
    return "Authorization: Basic " + base64.b64encode(f"user{n}:p".encode()).decode()


http("connections that say nothing", lambda n: b"")
http("heads that do not end", lambda n: _request("GET", long(n, 8_000))[:-2])
http("bodies under way", lambda n: _request("POST", "api/v1/login", body=b"%d" % n * 30_000, length=200_000))
http("bodies of actions under way", lambda n: _request("POST", "api/v1/actions/purge", _basic(n), length=100_000))
http("bodies that nobody wants", lambda n: _request("GET", "nothing", body=b"x" * 60_000, length=200_000), status=404)
http(
    "logins",
    lambda n: _request("POST", "api/v1/login", body=json.dumps({"login": f"user{n}", "passcode": "p"}).encode()),
    status=200,
)
http(
    "logins that fail",
    lambda n: _request("POST", "api/v1/login", body=json.dumps({"login": long(n), "passcode": "p"}).encode()),
    status=401,
    count=10,
)
http("logins by Basic", lambda n: _request("GET", "api/v1/session", _basic(n)), status=200)
http("answers that nobody takes", lambda n: _request("GET", "api/v1/openapi.json", _basic(n)))


@case("HTTP metrics", 40)
async def _(stage: Stage) -> Play:
    """Of destinations beyond those with series of their own, which come and go and are sent to between two pages."""
    assert isinstance(stage, _HttpStage)
    client = await Plain(stage).connected(login="user0", passcode="p")
    page = _request("GET", "metrics")

    async def play(numbers: range) -> None:
        for n in numbers:
            await client.do(frame("SEND", b"x", destination=f"/topic/{long(n)}"))
            if n % 20 == 19:
                await stage.broker.metrics_page()
                answer = await stage.asked(page)
                assert answer.startswith(b"HTTP/1.1 200 "), answer
        await trio.sleep(60)

    return play


# ---------------------------------------------------------------------- requests


def requests(request: str, make: Callable[[int], dict[str, Any]], *, of: str = "", count: int = 200) -> None:
    """A case of requests with answers. `of`: what they are about, for the name of the case."""

    async def made(stage: Stage) -> Play:
        client = await Plain(stage).connected()
        await client.do(frame("SUBSCRIBE", id="r", destination="/temp-queue/r"))

        async def play(numbers: range) -> None:
            for n in numbers:
                body = json.dumps(make(n)).encode()
                await client.do(frame("SEND", body, destination=f"/sluiceway/{request}", reply_to="/temp-queue/r"))
                if n % 50 == 0:
                    await trio.sleep(1)
            await trio.sleep(5)
            client.take()

        return play

    CASES[f"{request} of {of}" if of else request] = (made, count)


requests("stat", lambda n: {}, count=50)


@case("stat that waits", 40)
async def _(stage: Stage) -> Play:
    """For an answer that takes long: what was asked with is not kept meanwhile."""
    client = await Plain(stage).connected()
    await client.do(frame("SUBSCRIBE", id="r", destination="/temp-queue/r"))
    stage.broker.answers._is_making = True
    stage.broker.answers._wanted[DEADLY] = None  # type: ignore[assignment]

    async def play(numbers: range) -> None:
        for n in numbers:
            body = b"{}" + b" " * (50_000 + n)
            await client.do(frame("SEND", body, destination="/sluiceway/stat", reply_to="/temp-queue/r"))

    return play


requests("sessions", lambda n: {"sessions": [str(n)]}, count=100)
requests("trail", lambda n: {"correlation_id": str(n)}, count=100)
requests("log/describe", lambda n: {"log": f"/log/{n}"}, of="nothing", count=100)
requests("log/cursor", lambda n: {"log": "/log/a", "group": str(n)})
requests("log/cursor", lambda n: {"log": f"/log/{n}", "group": "g"}, of="new logs", count=40)
requests("claim/open", lambda n: {"queue": Q, "group": str(n), "planner": "p"}, count=40)
requests("claim/open", lambda n: {"queue": f"/queue/{n}", "group": "g", "planner": "p"}, of="new queues", count=40)
requests("claim/state", lambda n: {"queue": f"/queue/{n}", "group": "g"}, count=40)
requests("claim/touch", lambda n: {"queue": f"/queue/{n}", "group": "g"}, count=40)
frames("SEND to a log", lambda n: frame("SEND", b"x", destination="/log/a", k=n))
frames("SEND to logs", lambda n: frame("SEND", b"x", destination=f"/log/{n}"), count=40)
frames("SUBSCRIBE to a log", lambda n: frame("SUBSCRIBE", id=n, destination="/log/a"))
frames("SUBSCRIBE groups of a log", lambda n: frame("SUBSCRIBE", id=n, destination="/log/a", group=n), count=200)

POLICIES: dict[str, dict[str, Any]] = {
    "/queue/full": {"memory_bytes": 1_000, "paging": "throttle"},
    "/log/slow": {"redelivery_delay_ms": 3_600_000},
    **{
        f"/queue/dead.{n}": {"redeliveries_max": 0, "dead_letter": f"/queue/letters.{n}"}
        for n in range(DEAD_QUEUES_COUNT)
    },
}


async def weigh(name: str) -> None:
    """Play a case; AssertionError unless what it holds is counted."""
    if name == DEADLY:
        os._exit(7)
    made, count = (_keeping, COUNT) if name == UNCOUNTED_ON_PURPOSE else CASES[name]
    stage: Stage = (
        _HttpStage()
        if name.startswith("HTTP ")
        else LogStage(POLICIES)
        if {"log", "logs", "claim"} & set(re.split(r"[ /]", name))
        else Stage(POLICIES, engine=MemoryEngine())
    )
    async with stage:
        with Balance(stage) as balance:
            play = await made(stage)
            judge(name, await balance.weigh(play, count), balance)
            stage.check_all_accounted_for = _nothing  # what tests/scenarios are for


async def _keeping(stage: Stage) -> Play:
    kept: list[bytes] = []

    async def play(numbers: range) -> None:
        kept.extend(bytes(1_000) for _ in numbers)

    return play


async def _nothing() -> None:
    """Leave it as it is."""


@pytest.fixture(scope="module")
def scales() -> Iterator[Scales]:
    """A process that weighs."""
    with Scales() as scales:
        yield scales


@pytest.mark.parametrize("name", CASES)
def test_what_is_held_is_counted(scales: Scales, name: str) -> None:
    """In a second round, by each act."""
    scales.weigh(name)


def test_what_other_threads_allocate_is_not_weighed(scales: Scales) -> None:
    """Such as those of clients that a fixture keeps for longer than a test."""
    over, kept = threading.Event(), []

    def run() -> None:
        while not over.is_set():
            kept.append(bytes(100_000))
            over.wait(0.001)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        scales.weigh("SEND of priorities")
    finally:
        over.set()
        thread.join()
    assert kept


def test_what_is_not_counted_is_found(scales: Scales) -> None:
    """Of a case that makes the broker keep something aside."""
    with pytest.raises(AssertionError, match=r"bytes more of which .* uncounted by each of 200"):
        scales.weigh(UNCOUNTED_ON_PURPOSE)


def test_a_case_that_ends_the_process_costs_no_other_case(scales: Scales) -> None:
    """The next one is weighed by another process."""
    with pytest.raises(AssertionError, match="ended with code 7"):
        scales.weigh(DEADLY)
    scales.weigh("SEND of priorities")
