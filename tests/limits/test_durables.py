"""Ten thousand durable subscriptions of one topic, with what they are sent, acknowledge and leave behind."""

from __future__ import annotations

import pytest
import trio

from sluiceway.queues.topic import Topic
from sluiceway.store.memory import MemoryEngine
from tests.how_often import crowd_of
from tests.limits.law import CROWD_COUNT, LawStage, frame
from tests.limits.test_crowds import crowd
from tests.scenarios.client import Client

T = "/topic/t"


async def durables(stage: LawStage, count: int = CROWD_COUNT, /, **headers: object) -> list[Client]:
    """So many durable subscriptions of one topic, a thousand on each connection, all attached."""
    return [await reattached(stage, part, **headers) for part in range(count // 1000)]


async def reattached(stage: LawStage, part: int, /, **headers: object) -> Client:
    """A connection with its thousand."""
    reader = await stage.client(client_id=f"c{part}")
    subscribe = {"destination": T, "durable": "true", **headers}
    await reader.send_raw(b"".join(frame("SUBSCRIBE", id=n, **subscribe) for n in range(1000)))
    await reader.sync()
    return reader


async def sharing(stage: LawStage, count: int, /, **headers: str) -> list[Client]:
    """So many consumers that share one durable subscription, a thousand on each connection."""
    readers = [await stage.client() for _part in range(count // 1000)]
    subscribe = {"destination": T, "durable": "true", "ack": "client-individual", **headers}
    for reader in readers:
        data = b"".join(frame("SUBSCRIBE", id=n, activemq_name="d", **subscribe) for n in range(1000))
        await reader.send_raw(data.replace(b"activemq-name", b"activemq.subscriptionName"))
        await reader.sync()
    return readers


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("kind", "count"), [("in memory", crowd_of(10_000, 5_000)), ("stored", crowd_of(4_000, 2_000))]
)
async def test_a_life_of_a_crowd_of_durables(kind: str, count: int) -> None:
    """They read, acknowledge, get a new priority, leave all at once, and get another priority."""
    async with LawStage(engine=MemoryEngine() if kind == "stored" else None) as stage:
        others = f"{count:,} durable subscriptions of the topic"
        readers = await durables(stage, count, ack="client")
        assert len(stage.broker.registry.durables) == count
        sender = await stage.client()
        with stage.law(f"SEND to durables, {kind}", limit="one message", crowd=others):
            await sender.sent(T, b"x", persistent="true")
            await trio.sleep(1)
        with stage.law(f"SEND of a new priority to durables, {kind}", limit="one frame", crowd=others):
            await sender.sent(T, b"x", persistent="true", priority="9")
            await trio.sleep(1)
        for reader in readers:
            await reader.sync()
        acks = [b"".join(frame("ACK", id=each.headers["ack"]) for each in reader.messages) for reader in readers]
        with stage.law(f"ACKs of durables, {kind}", limit="a read of each of ten connections", crowd=others):
            for reader, data in zip(readers, acks, strict=True):
                await reader.send_raw(data)
            await trio.sleep(3)
        with stage.law(f"abrupt with durables, {kind}", limit="subscriptions_max of ten connections", crowd=others):
            for reader in readers:
                reader.vanish()
            await trio.sleep(3)
        with stage.law(f"SEND of a new priority to durables away, {kind}", limit="one frame", crowd=others):
            await sender.sent(T, b"x", persistent="true", priority="8")
            await trio.sleep(1)
        assert {len(queue.reader_states()) for queue in stage.broker.registry.destinations[T].queues} == {count}


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_the_removal_of_durables_of_several_connections() -> None:
    async with LawStage() as stage:
        readers = await durables(stage, 3_000)
        removed = b"".join(frame("UNSUBSCRIBE", id=n, durable="true") for n in range(1000))
        with stage.law("removal of durables", limit="bytes of a read of three connections", crowd="3,000 of the topic"):
            for reader in readers:
                await reader.send_raw(removed)
            await trio.sleep(3)
        assert not len(stage.broker.registry.durables)
        assert not stage.broker.registry.destinations[T].queue.partition(4).reader_states()


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_durables_of_ten_priorities() -> None:
    async with LawStage(engine=MemoryEngine()) as stage:
        sender, limit = await stage.client(), "subscriptions_max"
        await sender.send_raw(b"".join(frame("SEND", b"x", destination=T, priority=n) for n in range(10)))
        await sender.sync()
        with stage.law("SUBSCRIBE durable to ten priorities", limit=limit):
            reader = await reattached(stage, 0)
        with stage.law("abrupt with durables of ten priorities", limit=limit):
            reader.vanish()
            await trio.sleep(3)
        reader = await reattached(stage, 0)
        with stage.law("UNSUBSCRIBE of durables of ten priorities", limit=limit):
            await reader.send_raw(b"".join(frame("UNSUBSCRIBE", id=n) for n in range(1000)))
            await trio.sleep(3)
        assert not any(durable.attached for durable in stage.broker.registry.durables)
        with stage.law("removal of durables of ten priorities", limit=limit):
            await reader.send_raw(b"".join(frame("UNSUBSCRIBE", id=n, durable="true") for n in range(1000)))
            await trio.sleep(3)
        assert not len(stage.broker.registry.durables)


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_crowd_that_shares_one_durable() -> None:
    """Each message that comes back may be for any of them, and finds somebody."""
    count, sent_count = CROWD_COUNT, 1_000
    async with LawStage({T: {"redeliveries_max": 3}}) as stage:
        readers = await sharing(stage, count, credit="2")
        [topic] = stage.broker.registry.destinations[T].queues
        assert isinstance(topic, Topic)
        [durable] = topic.reader_states().values()
        assert len(durable.subscriptions) == count
        others, limit = f"{count:,} consumers of the durable subscription", "a read of each of ten connections"
        sender = await stage.client()
        with stage.law("SENDs to a crowd that shares a durable", limit="bytes of one read", crowd=others):
            await sender.send_raw(frame("SEND", b"x", destination=T) * sent_count)
            await trio.sleep(3)
        assert topic.unsettled_count == sent_count
        for reader in readers:
            reader.receive_now()
        with stage.law("NACKs of a crowd that shares a durable", limit=limit, crowd=others):
            for reader in readers:
                await reader.send_raw(b"".join(frame("NACK", id=each.headers["ack"]) for each in reader.messages))
            await trio.sleep(3)
        assert (topic.unsettled_count, topic.returned_count, topic.delivered_count) == (
            sent_count,
            sent_count,
            2 * sent_count,
        )
        with stage.law("abrupt out of a crowd that shares a durable", limit="ten connections", crowd=others):
            for reader in readers:
                reader.vanish()
            await trio.sleep(3)
        assert not durable.subscriptions


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_crowd_that_shares_one_durable_and_loses_the_oldest() -> None:
    """What they share is moved on and given back to at once; each of them is woken for that."""
    count = crowd_of(CROWD_COUNT, 4_000)
    async with LawStage({T: {"memory_bytes": 1 << 20, "paging": "throttle", "full": "drop_oldest"}}) as stage:
        readers = await sharing(stage, count, credit="1")
        await crowd(stage, 1_000, destination=T, ack="client", credit=1)
        keeps_up = await stage.client()
        await keeps_up.subscribe(T)
        [topic] = stage.broker.registry.destinations[T].queues
        assert isinstance(topic, Topic)
        [durable] = topic.reader_states().values()
        assert len(durable.subscriptions) == count
        others = f"{count:,} consumers of the durable subscription"
        sender = await stage.client()
        await sender.send_raw(frame("SEND", b"x" * 100, destination=T) * 1_000)
        await trio.sleep(1)
        for reader in readers:
            reader.receive_now()
        nacks = [b"".join(frame("NACK", id=each.headers["ack"]) for each in reader.messages) for reader in readers]
        while not topic.dropped_count:
            await sender.sent(T, b"x" * 8_000)
        with stage.law("NACKs while a shared durable loses the oldest", limit="the topic's memory", crowd=others):
            for reader, data in zip(readers, nacks, strict=True):
                await reader.send_raw(data)
                for _ in range(30):
                    await sender.sent(T, b"x" * 100)
            await trio.sleep(3)
        assert topic.returned_count == 1_000
        with stage.law("abrupt while a shared durable loses the oldest", limit="ten connections", crowd=others):
            for reader in readers:
                reader.vanish()
                for _ in range(30):
                    await sender.sent(T, b"x" * 100)
            await trio.sleep(3)
        assert not durable.subscriptions
