"""A SUBSCRIBE that covers thousands of destinations takes effect in steps, and so does its end."""

from __future__ import annotations

from itertools import pairwise

import pytest
import trio
from attrs import evolve

from sluiceway.protocols.stomp.attaching import TURN_STEPS
from sluiceway.queues.names import parse
from sluiceway.queues.steps import AT_ONCE_COUNT
from tests.scenarios.stage import Stage

MANY = 5 * AT_ONCE_COUNT


def make_topics(stage: Stage, count: int = MANY, kind: str = "topic") -> None:
    for number in range(count):
        stage.broker.registry.get(parse(f"/{kind}/t{number}"))


async def test_a_receipt_says_that_all_that_were_there_are_attached(stage: Stage) -> None:
    make_topics(stage)
    reader, writer = await stage.connect(), await stage.connect()
    await reader.frame("SUBSCRIBE", {"id": "s", "destination": "/topic/>", "receipt": "attached"})
    await reader.expect_receipt("attached")
    for number in range(MANY):
        await writer.send(f"/topic/t{number}", str(number))
    assert sorted(map(int, await reader.next_texts(MANY))) == list(range(MANY))


async def test_what_comes_behind_it_on_the_connection_waits_for_it(stage: Stage) -> None:
    """So a client gets what it sends itself behind its SUBSCRIBE, wherever it goes."""
    make_topics(stage)
    client = await stage.connect()
    await client.send_raw(
        client.encode("SUBSCRIBE", {"id": "s", "destination": "/topic/>"})
        + client.encode("SEND", {"destination": f"/topic/t{MANY - 1}"}, b"last")
        + client.encode("SEND", {"destination": "/topic/t0"}, b"first")
    )
    assert sorted(await client.next_texts(2)) == ["first", "last"]


async def test_others_are_served_while_it_is_attached(stage: Stage) -> None:
    make_topics(stage)
    reader, other = await stage.connect(), await stage.connect()
    for number in range(5):
        await reader.frame("SUBSCRIBE", {"id": str(number), "destination": "/topic/>", "receipt": str(number)})
    lines_counts = []
    while stage.broker.registry.attachments.used_count < 5 * MANY:
        await trio.lowlevel.checkpoint()
        lines_counts.append(stage.broker.registry.steps.lines_count)
    assert len(lines_counts) > 10
    assert max(lines_counts) == 1, "of one connection one at a time"
    await other.sync()
    for number in range(5):
        await reader.expect_receipt(str(number))


async def test_a_topic_that_is_made_meanwhile_is_attached_at_once(stage: Stage) -> None:
    make_topics(stage)
    reader, writer = await stage.connect(), await stage.connect()
    await reader.frame("SUBSCRIBE", {"id": "s", "destination": "/topic/>", "receipt": "attached"})
    while not stage.broker.registry.steps.lines_count:
        await trio.lowlevel.checkpoint()
    await writer.send("/topic/new", "heard")
    assert await reader.next_texts(1) == ["heard"]
    await reader.expect_receipt("attached")


@pytest.mark.parametrize("ending", ["vanish", "disconnect", "unsubscribe", "error"])
@pytest.mark.parametrize("ack", ["auto", "client"])
async def test_a_connection_that_ends_in_the_middle_leaves_nothing(stage: Stage, ending: str, ack: str) -> None:
    """The stage counts what is left."""
    make_topics(stage)
    make_topics(stage, 50, "queue")
    other = await stage.connect()
    for number in range(50):
        await other.sent(f"/queue/t{number}", "waits")
    await other.disconnect()
    reader = await stage.connect()
    await reader.subscribe("/queue/>", id="q", ack=ack)
    await reader.subscribe("/topic/>", id="t", ack=ack)
    if ending == "vanish":
        reader.vanish()
    elif ending == "disconnect":
        await reader.disconnect()
    elif ending == "unsubscribe":
        await reader.unsubscribe("t")
        await reader.sync()
    else:
        await reader.send_raw(b"NONSENSE\n\n\0")
        await reader.expect_error()
    await stage.settled_down()
    assert stage.broker.registry.attachments.used_count == (50 if ending == "unsubscribe" else 0)
    assert stage.broker.registry.steps.lines_count == 0


async def test_messages_of_a_connection_that_is_closed_in_steps_come_again(stage: Stage) -> None:
    make_topics(stage, MANY, "queue")
    reader, other = await stage.connect(), await stage.connect()
    await reader.subscribe("/queue/>", ack="client-individual")
    await reader.sync()
    for number in range(MANY):
        await other.send(f"/queue/t{number}", str(number))
    await reader.next_messages(MANY)
    reader.vanish()
    await other.subscribe("/queue/>", ack="auto")
    again = await other.next_messages(MANY)
    assert sorted(int(each.text) for each in again) == list(range(MANY))
    assert all(each.redelivered for each in again)


async def test_nothing_is_delivered_to_a_subscription_that_ends_in_steps(stage: Stage) -> None:
    make_topics(stage, MANY, "queue")
    reader, other = await stage.connect(), await stage.connect()
    await reader.subscribe("/queue/>", ack="auto")
    await reader.sync()
    await reader.send_raw(reader.encode("UNSUBSCRIBE", {"id": "s"}))
    for number in range(MANY):
        await other.send(f"/queue/t{number}", str(number))
    await reader.sync()
    await reader.silence()
    assert sum(stage.depth_count(f"/queue/t{number}") for number in range(MANY)) == MANY


async def test_too_many_attachments_of_a_connection_end_it() -> None:
    async with Stage(attachments_max=MANY - 1) as stage:
        make_topics(stage)
        client = await stage.connect()
        await client.frame("SUBSCRIBE", {"id": "s", "destination": "/topic/>", "receipt": "r"})
        error = await client.expect_error("attachments_max of the listener")
        assert error.headers["code"] == "too-many-attachments"
        assert error.headers["receipt-id"] == "r"
        await client.expect_closed()
        assert stage.broker.registry.attachments.used_count == 0


async def test_new_destinations_that_lead_beyond_the_limit_end_the_connection_of_the_wildcard() -> None:
    async with Stage(attachments_max=10) as stage:
        make_topics(stage, 10)
        reader, writer = await stage.connect(), await stage.connect()
        await reader.subscribe("/topic/>")
        await reader.sync()
        await writer.sent("/topic/one.more", "x")
        error = await reader.expect_error("attachments_max of the listener")
        assert error.headers["code"] == "too-many-attachments"
        await writer.sync()


async def test_too_many_attachments_of_the_broker_are_refused() -> None:
    async with Stage() as stage:
        make_topics(stage, 10)
        stage.broker.registry.attachments.resize(15)
        one, other = await stage.connect(), await stage.connect()
        await one.subscribe("/topic/>")
        await one.sync()
        await other.frame("SUBSCRIBE", {"id": "s", "destination": "/topic/>"})
        error = await other.expect_error("attachments_max of [broker]")
        assert error.headers["code"] == "too-many-attachments"
        await one.sync()


async def test_attachments_are_memory_in_use_and_on_the_flow_map(stage: Stage) -> None:
    make_topics(stage, 10)
    client = await stage.connect()
    before_bytes = stage.used_bytes
    await client.subscribe("/topic/>")
    await client.sync()
    attachments = stage.broker.registry.attachments
    assert attachments.used_count == 10
    assert stage.used_bytes - before_bytes == attachments.used_bytes > 0
    names = [resource.name for resource in stage.broker.manager.snapshot().resources]
    assert "attachments" in names


async def test_the_limit_of_the_broker_may_change_while_it_runs(stage: Stage) -> None:
    make_topics(stage, 10)
    config = stage.broker.config
    stage.broker.reloading.reload(evolve(config, broker=evolve(config.broker, attachments_max=5)))
    client = await stage.connect()
    await client.frame("SUBSCRIBE", {"id": "s", "destination": "/topic/>"})
    await client.expect_error("no more than 5")


async def test_many_subscribes_in_one_read_let_others_have_their_turn(stage: Stage) -> None:
    """A counted clock: what is made between two turns of another task."""
    client = await stage.connect()
    await client.sync()
    frames = [client.encode("SUBSCRIBE", {"id": str(n), "destination": f"/queue/new{n}"}) for n in range(400)]
    await client.send_raw(b"".join(frames))
    counts = [stage.broker.registry.made_count]
    while counts[-1] < 400:
        await trio.lowlevel.checkpoint()
        counts.append(stage.broker.registry.made_count)
    assert max(later - earlier for earlier, later in pairwise(counts)) <= 2 * TURN_STEPS
