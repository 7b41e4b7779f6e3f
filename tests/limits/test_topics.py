"""Ten thousand subscribers of one topic, with what they hold, pass over, read from the disk and leave behind."""

from __future__ import annotations

import pytest
import trio

from sluiceway.queues.topic import Topic
from sluiceway.store.memory import MemoryEngine
from tests.limits.law import LawStage, frame
from tests.limits.test_crowds import crowd
from tests.scenarios.client import Client

T = "/topic/t"
OTHERS = "10,000 subscriptions of the topic"


def topic_of(stage: LawStage) -> Topic:
    topic = stage.broker.registry.destinations[T].queue.partition(4)
    assert isinstance(topic, Topic)
    return topic


async def send(sender: Client, count: int, size_bytes: int, /, **headers: str) -> None:
    for _ in range(count):
        await sender.sent(T, b"x" * size_bytes, **headers)


@pytest.mark.slow
async def test_the_leader_of_a_crowd_that_lags_leaves() -> None:
    async with LawStage({T: {"memory_bytes": 1 << 20, "lead_bytes": 100_000, "paging": "throttle"}}) as stage:
        await crowd(stage, destination=T, ack="client", credit=1)
        leader = await stage.client()
        await leader.subscribe(T)
        sender = await stage.client()
        await send(sender, 20, 1_000)
        topic = topic_of(stage)
        assert topic.lead.is_led
        with stage.law("UNSUBSCRIBE of the leader", limit="one frame", crowd=OTHERS):
            await leader.unsubscribe()
            await trio.sleep(1)
        assert not topic.lead.is_led


@pytest.mark.slow
async def test_a_crowd_that_lags_goes_to_the_disk_and_comes_back() -> None:
    async with LawStage({T: {"memory_bytes": 128 << 10}}, engine=MemoryEngine()) as stage:
        readers = await crowd(stage, destination=T, ack="client", credit=1)
        keeps_up = await stage.client()
        await keeps_up.subscribe(T)
        sender = await stage.client()
        await sender.sent(T, b"x")
        await send(sender, 1, 100)
        await trio.sleep(1)
        topic = topic_of(stage)
        assert topic.pager is not None
        with stage.law("SEND to a crowd that lags, with a store", limit="the topic's memory", crowd=OTHERS):
            await send(sender, 40, 8_000)
            await trio.sleep(1)
        assert topic.pager.paged_out_count
        for reader in readers:
            await reader.sync()
        acks = [b"".join(frame("ACK", id=each.headers["ack"]) for each in reader.messages) for reader in readers]
        delivered_count = topic.delivered_count
        with stage.law("ACKs of a crowd that goes on", limit="a read of each of ten connections", crowd=OTHERS):
            for reader, data in zip(readers, acks, strict=True):
                await reader.send_raw(data)
            await trio.sleep(3)
        assert topic.delivered_count >= delivered_count + 10_000
