"""Each reason for which a connection is not read ends, and then the connection is read on: nothing else has to happen.

Every reason of a `ReadGate` is walked: fill what the reason counts, see that the connection is not read, drain it, and
see that what came meanwhile is answered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Any, Final

import attrs
import pytest
import trio

from sluiceway.protocols.reading import ReadGate, Reason
from sluiceway.protocols.stomp.session import Session
from sluiceway.security.config import UserRates
from tests.scenarios.client import Client
from tests.scenarios.guarded import GuardedStage, allow
from tests.scenarios.log_stage import LOG, LogStage
from tests.scenarios.stage import Stage
from tests.scenarios.test_ack_bypass import BLOCK, FULL
from tests.store.faulty import Failure, FaultyEngine

ELSEWHERE: Final = {Reason.LARGE_MESSAGE, Reason.LOGIN}
"""Walked in tests/protocols/session/test_staging.py and tests/scenarios/test_logins.py."""

Frames = Callable[[Client], Iterable[bytes]]
Drain = Callable[[Stage, FaultyEngine, Client], Awaitable[None]]


@attrs.frozen
class Walk:
    """One way to keep a connection from being read, and what ends it."""

    reason: Reason
    stage: Callable[[FaultyEngine], Stage]
    fill: Frames
    drain: Drain
    disk_works: bool = True
    lasts: bool = True
    """Until `drain`; else the reason ends by itself, at once."""
    words: str = ""
    """What people are told; empty: those of the reason."""
    after: Frames = lambda _client: []
    """What it takes to leave nothing behind."""


def plain(policies: dict[str, dict[str, Any]] | None = None, **limits: Any) -> Callable[[FaultyEngine], Stage]:
    return lambda engine: Stage(policies, engine=engine, **{"outbound_bytes_max": 4096, **limits})


def rated(engine: FaultyEngine) -> Stage:
    rates = UserRates(users=("root",), messages_per_second=5.0)
    return GuardedStage(allow("*", "send"), settings={"rates": (rates,)}, engine=engine)


def frames(count: int, command: str, body: str = "", **headers: str) -> Frames:
    """So many frames; `{n}` in a header is which of them."""

    def made(client: Client) -> Iterable[bytes]:
        for n in range(count):
            yield client.encode(command, {name.replace("_", "-"): v.format(n=n) for name, v in headers.items()}, body)

    return made


def transaction(client: Client) -> Iterable[bytes]:
    yield client.encode("BEGIN", {"transaction": "t"})
    yield from frames(2000, "SEND", "x" * 1000, destination="/queue/q", transaction="t", persistent="true")(client)


async def the_disk_is_back(_stage: Stage, engine: FaultyEngine, _client: Client) -> None:
    engine.fail_at_rate(Failure.WRITE, 0.0)
    await trio.sleep(60)


async def time_passes(_stage: Stage, _engine: FaultyEngine, _client: Client) -> None:
    await trio.sleep(300)


async def nothing(_stage: Stage, _engine: FaultyEngine, _client: Client) -> None:
    pass


async def it_reads(_stage: Stage, _engine: FaultyEngine, client: Client) -> None:
    await client.drain()


async def somebody_consumes(stage: Stage, _engine: FaultyEngine, _client: Client) -> None:
    consumer = await stage.connect(name="consumer")
    await consumer.subscribe(FULL)
    await consumer.next_messages(100)


WALKS: Final = {
    "new attachments": Walk(
        Reason.SUBSCRIPTIONS,
        plain(),
        frames(400, "SUBSCRIBE", destination="/queue/q{n}", id="s{n}"),
        nothing,
        lasts=False,
    ),
    "a wide wildcard": Walk(
        Reason.SUBSCRIPTIONS,
        plain(),
        lambda client: [
            *frames(500, "SEND", destination="/queue/q{n}")(client),
            *frames(8, "SUBSCRIBE", destination="/queue/>", id="s{n}")(client),
            *frames(8, "UNSUBSCRIBE", id="s{n}")(client),
            *frames(1000, "SEND", "x" * 1000, destination="/topic/nobody")(client),
        ],
        nothing,
        lasts=False,
    ),
    "durable subscriptions": Walk(
        Reason.RECEIPTS_STORED,
        plain(),
        frames(400, "SUBSCRIBE", destination="/topic/news", id="d{n}", durable="true"),
        nothing,
        lasts=False,
        after=frames(400, "UNSUBSCRIBE", id="d{n}", durable="true"),
    ),
    "log groups": Walk(
        Reason.RECEIPTS_STORED,
        lambda engine: LogStage(engine=engine, outbound_bytes_max=4096),
        frames(400, "SUBSCRIBE", destination=LOG, id="s{n}", group="g{n}", ack="client"),
        nothing,
        lasts=False,
    ),
    "sends": Walk(
        Reason.RECEIPTS_STORED,
        plain(),
        frames(100, "SEND", destination="/queue/q", persistent="true", receipt="r{n}" + "-" * 1000),
        the_disk_is_back,
        disk_works=False,
    ),
    "transactions": Walk(
        Reason.TRANSACTIONS,
        plain(transaction_bytes_max=10_000),
        transaction,
        the_disk_is_back,
        disk_works=False,
    ),
    "stash": Walk(
        Reason.DESTINATIONS,
        plain(BLOCK, stash_bytes_max=10_000),
        frames(100, "SEND", "x" * 1000, destination=FULL),
        somebody_consumes,
    ),
    "rate": Walk(
        Reason.RATE,
        rated,
        frames(1000, "SEND", "x" * 100, destination="/topic/nobody"),
        time_passes,
        words="rate limit of user root",
    ),
    "unread receipts": Walk(
        Reason.RECEIPTS_READ,
        plain(receipts_pending_max=10),
        frames(2000, "SEND", destination="/topic/nobody", receipt="r{n}" + "-" * 1000),
        it_reads,
    ),
}


def note_reasons(gate: ReadGate, seen: set[Reason], monkeypatch: pytest.MonkeyPatch) -> None:
    """For what ends by itself, perhaps before any other task has its turn."""
    took = ReadGate._took

    def noted(other: ReadGate) -> None:
        took(other)
        if other is gate:
            hold = gate.blocking()
            assert hold is not None
            seen.add(hold.reason)

    monkeypatch.setattr(ReadGate, "_took", noted)


async def not_read(session: Session) -> None:
    """Until the connection is not read."""
    for _ in range(600):
        if session.reading_blocked_by is not None:
            return
        await trio.sleep(0.1)
    raise AssertionError("it is still read")


@pytest.mark.parametrize("name", WALKS)
async def test_it_is_read_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    walk = WALKS[name]
    engine = FaultyEngine(Random(0))
    async with walk.stage(engine) as stage:
        client = await stage.connect(**{"client-id": "box"})
        (connection,) = stage.broker.connections
        session = connection.session
        if not walk.disk_works:
            engine.fail_at_rate(Failure.WRITE, 1.0)
        seen: set[Reason] = set()
        note_reasons(session.reading, seen, monkeypatch)
        async with trio.open_nursery() as nursery:
            probe = client.encode("BEGIN", {"transaction": "probe", "receipt": "probe"})
            nursery.start_soon(client.stream.send_all, b"".join(walk.fill(client)) + probe)
            if walk.lasts:
                await not_read(session)
                assert session.reading_blocked_by is walk.reason
                assert session.lanes.waiting_for == (walk.words or walk.reason.value)
                await trio.sleep(10)
                assert session.reading_blocked_by is walk.reason, "nothing has ended yet"
            await walk.drain(stage, engine, client)
            await client.expect_receipt("probe")
        assert walk.lasts or walk.reason in seen
        walked = {each.reason for each in WALKS.values()} | ELSEWHERE
        assert set(Reason) == walked, "a reason that nobody walks"
        await client.stream.send_all(b"".join(walk.after(client)))
        await trio.sleep(10)
