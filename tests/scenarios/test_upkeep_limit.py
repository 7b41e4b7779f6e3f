"""Connections, subscriptions and destinations have a limit together: what is new is refused, what is there works on."""

from __future__ import annotations

from collections.abc import AsyncIterator

import attrs
import pytest
import trio

from sluiceway.memory import UPKEEP_MIN_BYTES, upkeep_bytes_max
from sluiceway.protocols.stomp.lanes import LANES_FEW
from tests.scenarios.log_stage import LogStage

REMEDY = "upkeep_bytes_max of [broker]"


@pytest.fixture
async def stage() -> AsyncIterator[LogStage]:
    async with LogStage() as stage:
        yield stage


def fill(stage: LogStage) -> None:
    """No more than there is now."""
    stage.broker.memory.upkeep.limit(stage.broker.memory.upkeep.things.charged_bytes)


def let_go(stage: LogStage) -> None:
    """As much as you like."""
    stage.broker.memory.upkeep.limit(1 << 40)


@pytest.mark.parametrize(
    ("command", "headers"),
    [
        ("SUBSCRIBE", {"destination": "/queue/q"}),
        ("SUBSCRIBE", {"destination": "/queue/*"}),
        ("SUBSCRIBE", {"destination": "/topic/t", "durable": "true"}),
        ("SUBSCRIBE", {"destination": "/queue/q", "browser": "true"}),
        ("SUBSCRIBE", {"destination": "/queue/q", "selector": "a = 1"}),
        ("SUBSCRIBE", {"destination": "/temp-queue/q"}),
        ("SUBSCRIBE", {"destination": "/log/there"}),
        ("SUBSCRIBE", {"destination": "/log/there", "group": "g"}),
        ("SEND", {"destination": "/queue/new"}),
        ("SEND", {"destination": "/queue/q,/topic/new"}),
        ("SEND", {"destination": "/topic/new", "delay": "1000"}),
        ("SEND", {"destination": "/queue/q", "priority": "7"}),
        ("SEND", {"destination": "/queue/q", "reply-to": "/temp-queue/new"}),
        ("SEND", {"destination": "/sluiceway/stat", "reply-to": "/queue/new"}),
        ("SEND", {"destination": "/log/new"}),
    ],
)
async def test_what_is_new_is_refused(stage: LogStage, command: str, headers: dict[str, str]) -> None:
    client = await stage.connect(client_id="me")
    await client.sent("/queue/q", "before")
    await client.sent("/log/there", "before")
    await client.sync()
    fill(stage)
    destinations = set(stage.broker.registry.destinations)
    await client.frame(command, {**headers, "id": "n", "receipt": "r"})
    error = await client.expect_error("can't be made")
    assert error.headers["code"] == "upkeep-full", error
    assert error.headers["receipt-id"] == "r"
    assert REMEDY in error.headers["message"]
    assert set(stage.broker.registry.destinations) == destinations
    assert not [group for groups in stage.broker.logs.groups.values() for group in groups]
    assert stage.broker.memory.report()["upkeep_refused_count"] == 1
    let_go(stage)


async def test_what_is_there_works_on(stage: LogStage) -> None:
    sender, reader = await stage.connect(), await stage.connect()
    await reader.subscribe("/queue/q", ack="client-individual")
    await sender.sent("/queue/q", "1")
    fill(stage)
    await sender.sent("/queue/q", "2", other="header")
    await sender.frame("BEGIN", {"transaction": "t"})
    await sender.send("/queue/q", "3", transaction="t")
    await sender.request("COMMIT", {"transaction": "t"})
    for text in "123":
        delivery = await reader.next_message()
        assert delivery.text == text
        await reader.ack(delivery)
    await reader.unsubscribe()
    await reader.subscribe("/queue/q")  # what went made room
    assert reader.error is None
    let_go(stage)


async def test_dead_letters_have_their_queue() -> None:
    """What was given up must be kept, also where nothing new is made for clients."""
    async with LogStage({"/queue/q": {"redeliveries_max": 0}}) as stage:
        client = await stage.connect()
        await client.subscribe("/queue/q", ack="client-individual")
        await client.sent("/queue/q", "refused")
        fill(stage)
        await client.nack(await client.next_message())
        await trio.sleep(1)
        assert stage.depth_count("/queue/dead-letters") == 1
        let_go(stage)


async def test_a_connection_keeps_few_lanes_while_it_is_full(stage: LogStage) -> None:
    """A connection may send to all that is there, one after the other, and does not take more and more by that."""
    maker = await stage.connect()
    for number in range(100):
        await maker.send(f"/queue/q{number}", "x")
    await maker.sync()
    fill(stage)
    sender = stage.stranger()  # its stream is there already
    await sender.connect("1.2")
    for number in range(100):
        await sender.sent(f"/queue/q{number}", "y")
    (connection,) = [c for c in stage.broker.connections if c.session.peer == sender.name]
    assert len(connection.session.lanes.lanes) <= LANES_FEW + 1
    assert sum(stage.depth_count(f"/queue/q{number}") for number in range(100)) == 200
    let_go(stage)


async def test_a_limit_that_is_raised_holds_at_once(stage: LogStage) -> None:
    client = await stage.connect()
    fill(stage)
    config = stage.broker.config
    stage.broker.reload(attrs.evolve(config, broker=attrs.evolve(config.broker, upkeep_bytes_max=1 << 30)))
    await client.subscribe("/queue/q")
    await client.sync()
    assert stage.broker.memory.report()["upkeep_bytes_max"] == 1 << 30


def test_half_of_the_memory_unless_configured() -> None:
    assert upkeep_bytes_max(None, 1 << 30) == 1 << 29
    assert upkeep_bytes_max(None, 1 << 20) == UPKEEP_MIN_BYTES
    assert upkeep_bytes_max(5, 1 << 30) == 5
