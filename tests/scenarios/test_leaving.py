"""Connections that leave while SENDs of theirs still wait for a full queue: held back, or bounded. Checklist b50."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections import defaultdict
from random import Random
from typing import Any

import attrs
import pytest
import trio

from sluiceway.config import BrokerConfig
from sluiceway.protocols.stomp.left_behind import LANE_BYTES, REMAINS_BYTES, SESSION_BYTES
from sluiceway.store.memory import MemoryEngine
from tests.scenarios.client import Client
from tests.scenarios.stage import Stage

Q = "/queue/full"
BLOCK = {Q: {"full": "block", "count_max": 2}}


def traced_bytes() -> int:
    """What the broker has allocated. Deadlines that a test client has let go stay with trio for a while."""
    taken = tracemalloc.take_snapshot().filter_traces((tracemalloc.Filter(False, "*/trio/*"),))
    return sum(each.size for each in taken.statistics("filename"))


async def fill_and_park(producer: Client) -> None:
    """Two messages that the queue takes, and three that wait."""
    await producer.send_all(Q, range(2))
    await producer.sync()
    await producer.send_all(Q, range(2, 5))


async def test_disconnect_waits_until_what_was_sent_before_it_is_taken() -> None:
    """Whoever connects, sends and leaves, again and again, is held back like everybody else."""
    async with Stage(BLOCK) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await fill_and_park(producer)
        await producer.frame("DISCONNECT", {"receipt": "bye"})
        await trio.sleep(60)
        assert not producer.receipts
        assert stage.depth_count(Q) == 2
        await consumer.subscribe(Q)
        await producer.expect_receipt("bye")
        await producer.expect_closed()
        assert await consumer.next_texts(5) == ["0", "1", "2", "3", "4"]


async def test_disconnect_waits_for_a_commit() -> None:
    async with Stage(BLOCK) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await producer.send_all(Q, range(2))
        await producer.frame("BEGIN", {"transaction": "t"})
        await producer.send(Q, "committed", transaction="t")
        await producer.frame("COMMIT", {"transaction": "t"})
        await producer.frame("DISCONNECT", {"receipt": "bye"})
        await stage.settled_down()
        assert not producer.receipts
        await consumer.subscribe(Q)
        await producer.expect_receipt("bye")
        assert await consumer.next_texts(3) == ["0", "1", "committed"]


async def test_disconnect_with_unacknowledged_messages_waits_for_nothing() -> None:
    """What it holds must go to others at once: perhaps nothing else can make room."""
    async with Stage(BLOCK) as stage:
        client, other = await stage.connect(), await stage.connect()
        await client.subscribe(Q, ack="client")
        await client.send_all(Q, range(5))
        await client.next_messages(2)
        await client.disconnect()
        await other.subscribe(Q)
        assert await other.next_texts(5) == ["0", "1", "2", "3", "4"]


async def test_temporary_queues_of_one_who_leaves_hold_nobody_up() -> None:
    async with Stage({"/remote-temp-queue/>": {"full": "block", "count_max": 2}}) as stage:
        client = await stage.connect()
        await client.send_all("/temp-queue/own", range(5))
        await client.disconnect()


async def test_a_connection_is_not_over_while_what_it_sent_waits_for_room() -> None:
    """Or who sends again what seems lost would send it twice."""
    async with Stage(BLOCK) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        assert producer.connected is not None
        session = producer.connected.headers["session"]
        await consumer.subscribe("/temp-queue/replies", id="replies")

        async def is_alive() -> bool:
            body = json.dumps({"sessions": [session]})
            await consumer.send("/sluiceway/sessions", body, reply_to="/temp-queue/replies")
            return bool(json.loads((await consumer.next_message()).body)["sessions"])

        await fill_and_park(producer)
        await stage.settled_down()
        assert await is_alive()
        producer.vanish()
        await stage.settled_down()
        assert await is_alive()
        await consumer.subscribe(Q)
        assert await consumer.next_texts(5) == ["0", "1", "2", "3", "4"]
        await stage.settled_down()
        assert not await is_alive()


async def test_what_a_lost_connection_had_sent_goes_on() -> None:
    async with Stage(BLOCK) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await fill_and_park(producer)
        await stage.settled_down()
        producer.vanish()
        await stage.settled_down()
        assert stage.broker.left_behind.connections_count == 1
        await consumer.subscribe(Q)
        assert await consumer.next_texts(5) == ["0", "1", "2", "3", "4"]


async def test_what_lost_connections_leave_behind_is_bounded() -> None:
    """Beyond the limit it is dropped, and counted; what the queue had taken is safe."""
    stage = Stage(BLOCK)
    config = stage.broker.config
    stage.broker.config = attrs.evolve(config, broker=BrokerConfig(left_behind_bytes_max=40_000))
    async with stage:
        consumer = await stage.connect()
        for _ in range(10):
            producer = await stage.connect()
            await producer.send(Q, "x" * 5_000)
            await producer.send(Q, "x" * 5_000)
            await producer.send(Q, "x" * 5_000)
            await stage.settled_down()
            producer.vanish()
            await stage.settled_down()
        left = stage.broker.left_behind
        assert 0 < left.dropped_count < 28
        assert stage.used_bytes < 40_000 + 2 * 6_000
        await consumer.subscribe(Q)
        assert len(await consumer.next_texts(30 - left.dropped_count)) == 30 - left.dropped_count
        await consumer.silence()


async def test_many_producers_do_not_take_a_queue_over_its_limit() -> None:
    """Each has sent a batch when it is told to wait: the batches wait with their senders, not in the queue."""
    async with Stage({Q: {"full": "block", "memory_bytes": 64 * 1024}}) as stage:
        consumer = await stage.connect()
        producers = [await stage.connect() for _ in range(20)]
        for producer in producers:
            await producer.send_all(Q, ["x" * 1_000] * 40)
        await stage.settled_down()
        reported = stage.reported(Q)
        assert reported["overflow_count"] == 0
        assert reported["depth_bytes"] <= 64 * 1024 + 40 * 1_300
        await consumer.subscribe(Q)
        await consumer.next_messages(800)


async def test_receipts_of_a_composite_come_when_all_of_it_is_taken() -> None:
    """b48: not when the first of its queues has it."""
    policy = {"full": "block", "count_max": 2}
    async with Stage({"/queue/a": policy, "/queue/b": policy}) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        for name in ("/queue/a", "/queue/b"):
            await producer.send_all(name, range(2))
        await producer.send("/queue/a,/queue/b", "both", receipt="R")
        await consumer.subscribe("/queue/b", id="b")
        await consumer.next_messages(3)
        await producer.sync()
        assert "R" not in producer.receipts
        await consumer.subscribe("/queue/a", id="a")
        await producer.expect_receipt("R")


async def test_unfinished_frames_are_on_the_flow_map() -> None:
    async with Stage() as stage:
        client = await stage.connect()
        before_bytes = stage.broker.manager.used_bytes
        await client.send_raw(b"SEND\ndestination:/queue/q\ncontent-length:500000\n\n" + b"x" * 400_000)
        await stage.settled_down()
        assert stage.broker.manager.used_bytes - before_bytes >= 400_000
        await client.send_raw(b"x" * 100_000 + b"\0")
        await stage.settled_down()
        assert stage.depth_count("/queue/q") == 1


@pytest.mark.parametrize("sends", [1, 20])
@pytest.mark.parametrize("size", [1, 1_000])
async def test_an_ended_session_is_counted_with_what_it_takes(sends: int, size: int) -> None:
    """Measured: thousands of connections that leave a few SENDs each are bounded by what they really cost."""
    async with Stage({Q: {"full": "block", "count_max": 1}}) as stage:

        async def leave(count: int) -> None:
            for _ in range(count):
                client = await stage.connect()
                for n in range(sends):
                    await client.send(Q, "x" * size, n=str(n))  # each with a head of its own
                await client.sync()
                client.vanish()
                await stage.settled_down()
            stage.clients.clear()
            gc.collect()

        await leave(20)  # what is made once is there
        left = stage.broker.left_behind
        tracemalloc.start()
        try:
            before_bytes, counted_bytes = traced_bytes(), left.used_bytes
            await leave(60)
            taken_bytes = traced_bytes() - before_bytes
        finally:
            tracemalloc.stop()
        assert 0.6 < (left.used_bytes - counted_bytes) / taken_bytes < 1.6
        consumer = await stage.connect()
        await consumer.subscribe(Q)
        await consumer.next_messages(80 * sends)
        await stage.settled_down()
        assert (left.connections_count, left.used_bytes) == (0, 0)


async def test_lanes_of_ended_sessions_are_counted_with_what_they_take() -> None:
    """Each for a queue of its own."""
    async with Stage({"/queue/>": {"full": "block", "count_max": 1}}) as stage:
        keeper = await stage.connect()
        for n in range(120):
            await keeper.send(f"/queue/q{n}", "x")
        await keeper.sync()

        async def leave(numbers: range) -> None:
            for n in numbers:
                client = await stage.connect()
                await client.send(f"/queue/q{n}", "x")
                await client.sync()
                client.vanish()
                await stage.settled_down()
            stage.clients[1:] = []
            gc.collect()

        await leave(range(20))
        left = stage.broker.left_behind
        tracemalloc.start()
        try:
            before_bytes, counted_bytes = traced_bytes(), left.used_bytes
            await leave(range(20, 120))
            taken_bytes = traced_bytes() - before_bytes
        finally:
            tracemalloc.stop()
        assert 0.8 < (left.used_bytes - counted_bytes) / taken_bytes < 1.6
        assert left.used_bytes - counted_bytes > 100 * (LANE_BYTES + REMAINS_BYTES)


async def leave(stage: Stage, sends: list[tuple[str, str]], **headers: str) -> None:
    """A client sends these (destination and body), and its connection breaks."""
    client = await stage.connect()
    for destination, body in sends:
        await client.send(destination, body, **headers)
    await client.sync()
    client.vanish()
    await stage.settled_down()


@pytest.mark.parametrize("seed", range(5))
async def test_what_ended_sessions_left_keeps_its_order(seed: int) -> None:
    """Of one connection to one destination, whatever others leave, and however slowly it goes on."""
    random = Random(seed)
    names = ["/queue/a", "/queue/b", "/queue/c"]
    async with Stage({"/queue/>": {"full": "block", "count_max": 3}}) as stage:
        consumer = await stage.connect()
        sent: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        got: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for name in names:
            await consumer.subscribe(name, id=name, ack="client-individual", prefetch_count="1")

        async def take_some() -> bool:
            deliveries = await consumer.drain(0.01)
            for delivery in deliveries:
                got[delivery.headers["subscription"], delivery.text.split()[0]].append(delivery.text)
                await consumer.ack(delivery)
            return bool(deliveries)

        for turn in range(25):
            sends = []
            for n in range(random.randint(1, 12)):
                targets = random.sample(names, random.choice([1, 1, 1, 2]))
                sends.append((",".join(targets), f"{turn} {n}"))
                for name in targets:
                    sent[name, str(turn)].append(f"{turn} {n}")
            await leave(stage, sends)
            for _ in range(random.randint(0, 3)):
                await take_some()
        left = stage.broker.left_behind
        assert left.connections_count > 5
        while await take_some():
            pass
        assert got == sent
        assert (left.connections_count, left.used_bytes, left.dropped_count) == (0, 0, 0)


async def test_what_was_left_for_a_deleted_queue_goes_nowhere() -> None:
    """What else the same sessions have left goes on."""
    async with Stage({"/queue/>": {"full": "block", "count_max": 1}}) as stage:
        for n in range(3):
            await leave(stage, [("/queue/a", f"a{n}"), ("/queue/b,/queue/a", f"both{n}")])
        registry = stage.broker.registry
        registry.delete(registry.destinations["/queue/a"], "by the test")
        await stage.settled_down()
        consumer = await stage.connect()
        await consumer.subscribe("/queue/b", ack="client-individual")
        for n in range(3):
            delivery = await consumer.next_message()
            assert delivery.text == f"both{n}"
            await consumer.ack(delivery)
        await stage.settled_down()
        left = stage.broker.left_behind
        assert (left.connections_count, left.used_bytes) == (0, 0)


async def test_many_lanes_go_on_without_looking_at_each_other() -> None:
    """One queue has room again, among hundreds that wait: the others are not looked at."""
    async with Stage({"/queue/>": {"full": "block", "count_max": 1}}) as stage:
        for start in range(0, 400, 100):
            names = [f"/queue/q{n}" for n in range(start, start + 100)]
            await leave(stage, [(name, body) for name in names for body in "12"])
        consumer = await stage.connect()
        looked: list[object] = []
        left = stage.broker.left_behind
        send_next = left._send_next

        def counted(lane: Any) -> int:
            looked.append(lane)
            return send_next(lane)

        left._send_next = counted  # type: ignore[method-assign]
        await consumer.subscribe("/queue/q7")
        assert await consumer.next_texts(2) == ["1", "2"]
        assert len(looked) <= 2


async def test_a_session_that_waits_only_for_a_transaction_on_disk_is_counted() -> None:
    """It can't be dropped, so it takes from what others may leave."""
    block = {"full": "block", "count_max": 1}
    async with Stage({Q: block}, engine=MemoryEngine(), transaction_bytes_max=2_000) as stage:
        first = await stage.connect()
        await first.sent(Q, "first")
        left = stage.broker.left_behind
        for n in range(3):
            client = await stage.connect()
            await client.request("BEGIN", {"transaction": "t"})
            for _ in range(5):
                await client.send(Q, "x" * 1_000, transaction="t")
            await client.request("COMMIT", {"transaction": "t"})
            client.vanish()
            await trio.sleep(1)
            assert left.connections_count == n + 1
            assert left.used_bytes >= (n + 1) * SESSION_BYTES
        await first.subscribe(Q)
        assert len(await first.next_texts(16)) == 16
        await trio.sleep(1)
        assert (left.connections_count, left.used_bytes) == (0, 0)
