"""What a full destination is full of, and who is a bottleneck: as people and programs are told."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from tests.scenarios.stage import Stage

Q = "/queue/full"


def told(stage: Stage) -> dict[str, Any]:
    return stage.broker.report(with_idle=False)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"count_max": 10}, "quota full, 10 of 10 messages"),
        ({"memory_bytes": 1000}, "memory full, "),
    ],
)
async def test_a_full_queue_says_what_is_used_up(policy: dict[str, Any], words: str) -> None:
    async with Stage({Q: {"full": "block", **policy}}) as stage:
        producer = await stage.connect(name="producer")
        await producer.send_all(Q, range(20))
        await stage.settled_down()
        report = told(stage)
        assert f"waits on queue {Q} ({words}" in report["chains"][0]["words"]
        other = "memory" if words.startswith("quota") else "quota"
        assert f"{other} full" not in json.dumps(report) and f"{other} draining" not in json.dumps(report)


async def test_a_consumer_at_its_prefetch_holds_nobody_up_while_nothing_waits() -> None:
    async with Stage({Q: {"full": "block", "count_max": 10}}) as stage:
        consumer, producer = await stage.connect(name="consumer"), await stage.connect(name="producer")
        await consumer.subscribe(Q, ack="client-individual", prefetch_count="5")
        await producer.send_all(Q, range(5))
        deliveries = await consumer.next_messages(5)
        report = told(stage)
        assert (report["bottlenecks"], report["chains"]) == ([], [])
        await producer.send(Q, "6")
        await producer.sync()
        await trio.sleep(60)
        report = told(stage)
        assert report["chains"] and not report["bottlenecks"], "a message waits, and no sender"
        assert [row["words"].partition(":")[2] for row in report["stalled"]] == [
            " 5 unacknowledged messages, none acknowledged for 60 s"
        ]
        await producer.send_all(Q, range(20))
        await stage.settled_down()
        assert not told(stage)["bottlenecks"], "for a moment only"
        await trio.sleep(2)
        row = told(stage)["bottlenecks"][0]
        assert row["sink"].startswith("subscription") and row["senders_count"] == 1
        assert " blocks 1 sender, for 2 s: " in row["words"] and not row["waits_itself"]
        page = (await stage.broker.metrics_page()).decode()
        assert 'sluiceway_blocked_senders{kind="queue"} 1.0\n' in page and "sluiceway_stalled_consumers 1.0\n" in page
        for delivery in deliveries:
            await consumer.ack(delivery)
        for _ in range(21):
            await consumer.ack(await consumer.next_message())
        await consumer.sync()
        report = told(stage)
        assert (report["bottlenecks"], report["chains"], report["stalled"]) == ([], [], [])


async def test_so_does_one_of_a_topic() -> None:
    async with Stage() as stage:
        consumer, producer = await stage.connect(name="consumer"), await stage.connect(name="producer")
        await consumer.subscribe("/topic/news", ack="client-individual", prefetch_count="5")
        await producer.send_all("/topic/news", range(5))
        deliveries = await consumer.next_messages(5)
        assert not told(stage)["bottlenecks"]
        await producer.send("/topic/news", "6")
        await producer.sync()
        report = told(stage)
        assert report["chains"] and not report["bottlenecks"]
        for delivery in deliveries:
            await consumer.ack(delivery)
        await consumer.ack(await consumer.next_message())
