"""What each frame and request makes the broker hold is counted by its limiters, or not held: the law about memory."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from store.memory import MemoryEngine
from tests.limits.law import frame
from tests.limits.weighing import Balance, Plain, judge
from tests.scenarios.log_stage import LogStage
from tests.scenarios.stage import Stage, wall_clock_ms

COUNT = 200
"""Acts of one round."""

Play = Callable[[range], Awaitable[Any]]
Made = Callable[[Stage], Awaitable[Play]]

CASES: dict[str, tuple[Made, int]] = {}
"""By name: what makes a case ready and returns how it is played, and how many acts are a round."""


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

POLICIES: dict[str, dict[str, Any]] = {"/queue/full": {"memory_bytes": 1_000, "paging": "throttle"}}


@pytest.mark.parametrize("name", CASES)
async def test_what_is_held_is_counted(name: str) -> None:
    """In a second round, by each act."""
    made, count = CASES[name]
    stage: Stage = (
        LogStage(POLICIES)
        if {"log", "logs", "claim"} & set(re.split(r"[ /]", name))
        else Stage(POLICIES, engine=MemoryEngine())
    )
    async with stage:
        with Balance(stage) as balance:
            play = await made(stage)
            judge(name, await balance.weigh(play, count), balance)
            stage.check_all_accounted_for = _nothing  # what tests/scenarios are for


async def _nothing() -> None:
    """Leave it as it is."""
