"""What frames make the broker hold: messages, subscriptions, transactions, deliveries."""

from __future__ import annotations

from collections import OrderedDict

import trio

from sluiceway.queues.steps import Line
from tests.limits.cases import COUNT, DEAD_QUEUES_COUNT, Play, Q, T, acks_of, case, frames, long
from tests.limits.law import frame
from tests.limits.weighing import Plain
from tests.scenarios.stage import Stage, wall_clock_ms

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


@case("SUBSCRIBE of wildcards whose walks wait", 20)
async def _(stage: Stage) -> Play:
    """For those of others: each has begun, and keeps a list of the destinations that it has yet to look at."""
    sender = await Plain(stage).connected()
    await sender.do(b"".join(frame("SEND", b"x", destination=f"/topic/{n}") for n in range(5_000)))
    _keep_busy(stage)
    steps = stage.broker.registry.steps
    steps._active = _Unserved()
    kept: list[Plain] = []

    async def play(numbers: range) -> None:
        for n in numbers:
            kept.append(await Plain(stage).connected())
            await kept[-1].stream.send_all(frame("SUBSCRIBE", id=n, destination="/topic/*.none"))
            await stage.settled_down()

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
    ids = acks_of(seen + client.take())

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
        ids = acks_of(seen + client.take())
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
        ids = acks_of(seen + client.take())
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
        await client.do(b"".join(frame("NACK", id=each) for each in acks_of(seen + client.take())))
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
            ids = acks_of(seen + client.take())
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
