"""A read whose frames are dear takes effect in turns with others: here each event has a turn of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock

from sluiceway.protocols.stomp.session import Session
from sluiceway.security.config import UserRates
from tests.scenarios.client import Client
from tests.scenarios.guarded import GuardedStage, allow
from tests.scenarios.stage import Stage

COUNT = 100


@pytest.fixture(autouse=True)
def each_event_takes_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """In virtual time no event lasts."""
    monkeypatch.setattr("sluiceway.protocols.stomp.session.TURN_SECONDS", -1.0)


def dear(client: Client, count: int = COUNT) -> bytes:
    """SENDs with a head of their own each, and behind them what is answered."""
    sends = [client.encode("SEND", {"destination": "/topic/t", "number": str(n)}, str(n)) for n in range(count)]
    return b"".join([*sends, client.encode("BEGIN", {"transaction": "probe", "receipt": "probe"})])


async def amid(stage: Stage, client: Client) -> Session:
    """Until a part of what it has sent has taken effect, and the rest waits for its turns."""
    (session,) = [c.session for c in stage.broker.connections if c.session.peer == client.name]
    while not (session.takes_turns and session.totals.messages_in_count):
        await trio.lowlevel.checkpoint()
    return session


async def test_all_takes_effect_in_order(stage: Stage) -> None:
    client = await stage.connect()
    await client.subscribe("/topic/t")
    await client.send_raw(dear(client))
    assert await client.next_texts(COUNT) == [str(n) for n in range(COUNT)]
    await client.expect_receipt("probe")


async def test_what_others_begin_for_it_in_the_middle_is_waited_for(stage: Stage) -> None:
    """As when permissions change, and its wildcards are reviewed in steps."""
    client = await stage.connect()
    await client.send_raw(dear(client))
    session = await amid(stage, client)
    left_count = 1000

    def steps() -> Iterator[None]:
        nonlocal left_count
        while left_count:
            left_count -= 1
            yield

    session.subscriptions.work.do(steps())
    assert session.subscriptions.work.is_busy
    await client.send_raw(client.encode("SEND", {"destination": "/topic/t"}, "behind"))
    await client.expect_receipt("probe")
    assert not left_count
    await client.sync()
    assert session.totals.messages_in_count == COUNT + 1


async def test_who_has_its_turns_is_not_dead(stage: Stage) -> None:
    """Its beats lie unread meanwhile, however long that takes."""
    client = await stage.connect(heart_beat=(1_000, 0))
    await client.send_raw(dear(client))
    session = await amid(stage, client)
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    while session.holds_back:
        clock.jump(0.1)
        await trio.lowlevel.checkpoint()
    await client.expect_receipt("probe")
    assert clock.current_time() > COUNT / 10 - 1


async def test_all_of_it_counts_against_a_rate() -> None:
    rates = UserRates(users=("root",), messages_per_second=10.0)
    async with GuardedStage(allow("*", "send"), settings={"rates": (rates,)}) as stage:
        client = await stage.connect()
        began_seconds = trio.current_time()
        await client.send_raw(dear(client))
        await client.expect_receipt("probe")
        await client.sync()
        assert trio.current_time() - began_seconds > COUNT / 10 - 2


@pytest.mark.parametrize("ending", ["vanish", "close", "disconnect", "error"])
async def test_a_connection_that_ends_in_the_middle_leaves_nothing(stage: Stage, ending: str) -> None:
    """The stage counts what is left."""
    client = await stage.connect()
    behind = {"disconnect": b"DISCONNECT\nreceipt:bye\n\n\0", "error": b"NONSENSE\n\n\0"}
    await client.send_raw(dear(client) + behind.get(ending, b""))
    session = await amid(stage, client)
    if ending == "vanish":
        client.vanish()
    elif ending == "close":
        session.end("a test")
        await client.expect_closed()
    elif ending == "disconnect":
        await client.expect_receipt("bye")
        assert session.totals.messages_in_count == COUNT
    else:
        await client.expect_error()
        assert session.totals.messages_in_count == COUNT
