"""Queues larger than memory: everything comes, in order, and what is held in memory stays within its limit."""

from __future__ import annotations

import pytest
import trio
import trio.lowlevel

from tests.scenarios.lives import Lives
from tests.scenarios.stage import Stage

Q = "/queue/backlog"
T = "/topic/flood"
KIB = 1024
BODY = "x" * 1000


async def _fill(stage: Stage, destination: str, count: int, **headers: str) -> None:
    producer = await stage.connect(name="producer")
    for first in range(0, count, 100):
        bodies = [f"{number} {BODY}" for number in range(first, min(first + 100, count))]
        await producer.send_all(destination, bodies, **headers)
        await producer.sync()
    await producer.disconnect()


def _memory_bytes(stage: Stage, name: str) -> int:
    return sum(queue.statistics().memory_bytes for queue in stage.partitions(name))


@pytest.mark.parametrize("mode", ["page", "offload"])
@pytest.mark.parametrize("persistent", ["true", "false"])
async def test_a_backlog_of_many_times_the_memory_comes_in_order(mode: str, persistent: str) -> None:
    lives = Lives({Q: {"memory_bytes": 256 * KIB, "paging": mode}})
    async with lives.life() as stage:
        await _fill(stage, Q, 5000, persistent=persistent)
        assert stage.depth_count(Q) == 5000
        assert _memory_bytes(stage, Q) < 256 * KIB
        consumer = await stage.connect()
        await consumer.subscribe(Q, ack="client", prefetch_count="50")
        for start in range(0, 5000, 50):
            deliveries = await consumer.next_messages(50)
            assert [d.text.split()[0] for d in deliveries] == [str(n) for n in range(start, start + 50)]
            assert _memory_bytes(stage, Q) < 320 * KIB
            await consumer.ack(deliveries[-1])
        assert stage.depth_count(Q) == 0
        await trio.sleep(2)
        left = list(lives.engine.iterate_keys(b"h", b"z"))
        assert [key[:1] for key in left if key[:1] != b"q"] in ([], [b"h"]), "nothing is left of what is settled"


async def test_throttle_keeps_everything_in_memory_and_lets_senders_wait() -> None:
    lives = Lives({Q: {"memory_bytes": 64 * KIB, "paging": "throttle"}})
    async with lives.life() as stage:
        producer = await stage.connect()
        await producer.send_all(Q, [BODY] * 200, persistent="true")
        await stage.settled_down()
        assert any("waits on queue" in chain for chain in stage.chains())
        assert [q.statistics().outside_count for q in stage.partitions(Q)] == [0]
        consumer = await stage.connect()
        await consumer.subscribe(Q)
        await consumer.next_messages(200)


async def test_at_the_quota_senders_wait() -> None:
    lives = Lives({Q: {"memory_bytes": 64 * KIB, "bytes_max": 400 * KIB}})
    async with lives.life() as stage:
        producer = await stage.connect()
        await producer.send_all(Q, [BODY] * 1000)
        await trio.sleep(1)
        held = stage.reported(Q)
        assert 300 * KIB < held["depth_bytes"] < 480 * KIB
        consumer = await stage.connect()
        await consumer.subscribe(Q)
        await consumer.next_messages(1000)


async def test_two_consumers_share_a_backlog_on_disk_each_message_once() -> None:
    lives = Lives({Q: {"memory_bytes": 128 * KIB}})
    async with lives.life() as stage:
        await _fill(stage, Q, 3000)
        consumers = [await stage.connect() for _ in range(2)]
        for consumer in consumers:
            await consumer.subscribe(Q)
        got = [int(d.text.split()[0]) for consumer in consumers for d in await consumer.drain()]
        assert sorted(got) == list(range(3000))


async def test_what_a_lost_consumer_held_of_a_backlog_on_disk_comes_first_again() -> None:
    lives = Lives({Q: {"memory_bytes": 128 * KIB}})
    async with lives.life() as stage:
        await _fill(stage, Q, 2000)
        first = await stage.connect()
        await first.subscribe(Q, ack="client-individual", prefetch_count="700")
        await first.next_messages(700)
        first.vanish()
        await stage.settled_down()
        second = await stage.connect()
        await second.subscribe(Q)
        got = [int(d.text.split()[0]) for d in await second.drain()]
        assert got == list(range(2000))


@pytest.mark.parametrize("mode", ["page", "offload"])
async def test_messages_on_disk_expire(mode: str) -> None:
    lives = Lives({Q: {"memory_bytes": 128 * KIB, "paging": mode}})
    async with lives.life() as stage:
        await _fill(stage, Q, 1000, expiration="5000")
        await _fill(stage, Q, 1000)
        await _fill(stage, Q, 1000, expiration="5000")
        await trio.sleep(10)
        assert stage.depth_count(Q) == 1000
        consumer = await stage.connect()
        await consumer.subscribe(Q)
        assert len(await consumer.drain()) == 1000


async def test_groups_keep_their_order_through_paging() -> None:
    lives = Lives({Q: {"memory_bytes": 128 * KIB}})
    async with lives.life() as stage:
        producer = await stage.connect()
        for number in range(700):
            await producer.send(Q, f"{number} {BODY}", group=str(number % 7))
        await producer.sync()
        consumers = [await stage.connect() for _ in range(3)]
        for consumer in consumers:
            await consumer.subscribe(Q, ack="client-individual", prefetch_count="10")
        seen: dict[int, list[int]] = {}
        for _ in range(2000):
            await stage.settled_down()
            progress = False
            for consumer in consumers:
                await trio.lowlevel.checkpoint()
                while True:
                    deliveries = await consumer.drain(0.01)
                    if not deliveries:
                        break
                    progress = True
                    for delivery in deliveries:
                        number = int(delivery.text.split()[0])
                        seen.setdefault(number % 7, []).append(number)
                        await consumer.ack(delivery)
            if not progress:
                break
        assert sum(map(len, seen.values())) == 700
        for numbers in seen.values():
            assert numbers == sorted(numbers)


async def test_a_stalled_topic_subscriber_is_served_from_disk_and_hurts_nobody() -> None:
    lives = Lives({T: {"memory_bytes": 256 * KIB, "lag_bytes_per_second": None}})
    async with lives.life() as stage:
        fast, stalled = await stage.connect(name="fast"), await stage.connect(name="stalled")
        await fast.subscribe(T)
        await stalled.subscribe(T, ack="client", prefetch_count="10")
        producer = await stage.connect(name="producer")
        for number in range(2000):
            await producer.send(T, f"{number} {BODY}")
            if number % 50 == 49:
                got = await fast.next_messages(50)
                assert got[-1].text.split()[0] == str(number)
                assert _memory_bytes(stage, T) < 320 * KIB
        late: list[int] = []
        while len(late) < 2000:
            deliveries = await stalled.next_messages(10)
            late += [int(d.text.split()[0]) for d in deliveries]
            await stalled.ack(deliveries[-1])
        assert late == list(range(2000)), "it missed nothing"


async def test_a_laggard_loses_the_oldest_beyond_the_quota_and_is_told() -> None:
    lives = Lives({T: {"memory_bytes": 64 * KIB, "bytes_max": 512 * KIB, "lag_bytes_per_second": None}})
    async with lives.life() as stage:
        fast, stalled = await stage.connect(name="fast"), await stage.connect(name="stalled")
        await fast.subscribe(T)
        await stalled.subscribe(T, ack="client", prefetch_count="10")
        producer = await stage.connect(name="producer")
        for number in range(2000):
            await producer.send(T, f"{number} {BODY}")
            if number % 20 == 19:
                await fast.next_messages(20)
        told = 0
        got = 0
        while True:
            deliveries = await stalled.drain()
            if not deliveries:
                break
            got += len(deliveries)
            told += sum(int(d.headers.get("dropped-count", "0")) for d in deliveries)
            await stalled.ack(deliveries[-1])
        assert got + told == 2000
        assert 300 < got < 700


async def test_a_topic_that_takes_in_much_spares_the_disk_and_its_laggard_loses_the_oldest() -> None:
    """With hardly any budget what goes to the disk is little; the fast subscriber gets everything all the same."""
    lives = Lives({T: {"memory_bytes": 256 * KIB, "lag_bytes_per_second": 1}})
    async with lives.life() as stage:
        fast, slow = await stage.connect(name="fast"), await stage.connect(name="slow")
        await fast.subscribe(T)
        await slow.subscribe(T, ack="client", prefetch_count="1")
        producer = await stage.connect(name="producer")
        for first in range(0, 5000, 100):
            await producer.send_all(T, [f"{number} {BODY}" for number in range(first, first + 100)])
            deliveries = await fast.next_messages(100)
            assert [d.text.split()[0] for d in deliveries] == [str(n) for n in range(first, first + 100)]
        (topic,) = stage.partitions(T)
        assert topic.pager is not None
        # The budget of one burst, which is the memory of the topic, and one block more.
        assert topic.pager.paged_out_count * topic.elements.block_bytes_max <= 2 * 256 * KIB
        assert _memory_bytes(stage, T) < 256 * KIB
        seen = []
        while True:
            (delivery,) = await slow.next_messages(1)
            seen.append(int(delivery.text.split()[0]))
            await slow.ack(delivery)
            if seen[-1] == 4999:
                break
        assert seen == sorted(seen)
        assert 50 < len(seen) < 1000, "what memory holds, and no more"


async def test_nobody_consumes_so_senders_are_slowed_down() -> None:
    async with Stage({Q: {"disconnected_per_second": 100.0}}) as stage:
        producer = await stage.connect()
        await producer.send_all(Q, range(1000))
        await trio.sleep(2)
        assert 150 < stage.depth_count(Q) < 350
        consumer = await stage.connect()
        await consumer.subscribe(Q)
        began = trio.current_time()
        await consumer.next_messages(1000)
        assert trio.current_time() - began < 1, "with a consumer there is no limit"


async def test_while_catching_up_senders_get_a_share_of_the_drain_rate() -> None:
    lives = Lives({Q: {"memory_bytes": 128 * KIB, "catch_up_share": 0.5}})
    async with lives.life() as stage:
        await _fill(stage, Q, 1500)
        consumer, producer = await stage.connect(), await stage.connect()
        await producer.send_all(Q, [BODY] * 1500)
        await consumer.subscribe(Q, ack="client", prefetch_count="10")
        taken = 0
        while any(queue.elements.outside_count for queue in stage.partitions(Q)) and taken < 3000:
            deliveries = await consumer.next_messages(10)
            taken += 10
            await trio.sleep(0.05)  # 200 a second
            await consumer.ack(deliveries[-1])
        added = stage.reported(Q)["added_count"] - 1500
        assert taken >= 1500, "what was there when it began"
        assert 0.3 * taken < added < 0.75 * taken
