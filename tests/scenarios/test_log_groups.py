"""Groups: consumers that share one place in a log, which the broker keeps. Nothing is lost, each record goes to one of
them at a time, and what was settled does not come again.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from sluiceway.protocols.stomp.escaping import Version
from sluiceway.queues.logs.codecs import Codec
from tests.scenarios.client import Client, Delivery
from tests.scenarios.log_stage import LOG, LogLives, LogStage, fill, indexes, numbered, records_of, send_batch


async def join(client: Client, group: str = "g", ack: str = "client-individual", **headers: str) -> None:
    await client.subscribe(LOG, group=group, ack=ack, **{"from": "earliest", **headers})


async def test_consumers_of_a_group_share_its_records() -> None:
    """Each record goes to one of them, and each of them gets a fair part."""
    async with LogStage() as stage:
        producer = await stage.connect()
        consumers = [await stage.connect() for _ in range(4)]
        for consumer in consumers:
            await join(consumer, prefetch_count="50")
        await fill(producer, 1000)
        seen: list[int] = []
        counts = [0, 0, 0, 0]
        while len(seen) < 1000:
            for number, consumer in enumerate(consumers):
                for delivery in await consumer.drain(0.01):
                    seen += indexes([delivery])
                    counts[number] += 1
                    await consumer.ack(delivery)
        assert sorted(seen) == list(range(1000))
        assert min(counts) > 100, counts
        assert stage.group().front == 1000


async def test_groups_are_apart_from_each_other() -> None:
    async with LogStage() as stage:
        producer = await stage.connect()
        await fill(producer, 10)
        for name in ("a", "b"):
            consumer = await stage.connect()
            await join(consumer, name)
            deliveries = await consumer.next_messages(10)
            assert indexes(deliveries) == list(range(10))
            await consumer.ack(deliveries[0])
        assert (stage.group("a").front, stage.group("b").front) == (1, 1)


async def test_from_says_where_a_new_group_begins_and_is_nothing_to_an_old_one() -> None:
    async with LogStage() as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await fill(producer, 10)
        await join(consumer, **{"from": "7"})
        deliveries = await consumer.next_messages(3)
        assert indexes(deliveries) == [7, 8, 9]
        await consumer.ack(deliveries[0])
        await consumer.disconnect()
        other = await stage.connect()
        await join(other, **{"from": "earliest"})
        assert indexes(await other.next_messages(2)) == [8, 9]
        third = await stage.connect()
        await third.subscribe(LOG, group="fresh")
        await third.silence()
        await fill(producer, 1, first=10)
        assert indexes(await third.next_messages(1)) == [10]


@pytest.mark.parametrize("batch", [None, "2000"])
@pytest.mark.parametrize("leaving", ["vanishes", "disconnects", "unsubscribes and vanishes"])
async def test_what_a_consumer_had_goes_to_the_others_marked(leaving: str, batch: str | None) -> None:
    more = {} if batch is None else {"batch": batch}
    async with LogStage() as stage:
        producer, first, second = [await stage.connect() for _ in range(3)]
        for start in range(0, 60, 5):
            await send_batch(producer, numbered(range(start, start + 5)))
        await join(first, **more)
        got = await first.next_messages(1 if batch else 60)
        await first.ack(got[0])
        await join(second, **more)
        await second.silence()
        if leaving == "disconnects":
            await first.disconnect()
        else:
            if leaving.startswith("unsub"):
                await first.unsubscribe()
            first.vanish()
        settled = records_of(got[:1])
        again = await second.drain()
        assert records_of(again) == [(n, b"%d" % n) for n in range(60)][len(settled) :]
        assert all(delivery.redelivered for delivery in again)
        for delivery in again:
            await second.ack(delivery)
        assert stage.group().front == 60


async def test_unsubscribe_gives_back_what_was_not_acknowledged(version: Version) -> None:
    async with LogStage() as stage:
        producer, first, second = await stage.connect(), await stage.connect(version), await stage.connect()
        await fill(producer, 10)
        await join(first, ack="client")
        deliveries = await first.next_messages(10)
        await join(second)
        await first.ack(deliveries[3])
        assert stage.group().front == 4
        await second.silence()
        await first.unsubscribe()
        assert indexes(await second.next_messages(6)) == [4, 5, 6, 7, 8, 9]


async def test_settling_out_of_order_moves_the_front_to_the_lowest_unsettled() -> None:
    async with LogStage() as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await fill(producer, 10)
        await join(consumer)
        deliveries = await consumer.next_messages(10)
        for index, front in ((5, 0), (1, 0), (0, 2), (9, 2), (2, 3), (4, 3), (3, 6), (8, 6), (6, 7), (7, 10)):
            await consumer.ack(deliveries[index])
            assert stage.group().front == front
            assert stage.group().lag_count >= 0
        assert stage.group().lag_count == 0


@pytest.mark.parametrize("end", ["in order", "crash"])
@pytest.mark.parametrize("ack", ["client", "client-individual"])
async def test_what_was_settled_does_not_come_again_after_a_restart(tmp_path: Path, end: str, ack: str) -> None:
    """With holes, where it was acknowledged one by one."""
    lives = LogLives(tmp_path)
    async with lives.life(end=end) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await fill(producer, 20)
        await join(consumer, ack=ack)
        deliveries = await consumer.next_messages(20)
        for index in (1, 2, 5, 9):
            await consumer.ack(deliveries[index])
    settled = set(range(10)) if ack == "client" else {1, 2, 5, 9}
    async with lives.life() as stage:
        consumer = await stage.connect()
        await join(consumer, ack=ack)
        deliveries = await consumer.drain()
        assert indexes(deliveries) == [index for index in range(20) if index not in settled]
        assert stage.group().front == min(set(range(20)) - settled)


async def test_ack_auto_settles_what_the_kernel_has_taken(version: Version) -> None:
    async with LogStage() as stage:
        producer, consumer = await stage.connect(), await stage.connect(version)
        await fill(producer, 50)
        await join(consumer, ack="auto")
        deliveries = await consumer.next_messages(50)
        assert "ack" not in deliveries[0].headers
        assert stage.group().front == 50
        if version == "1.2":
            await consumer.request("ACK", {"id": "1-3"})  # needless, no harm


async def test_what_comes_back_goes_to_whoever_has_credit_before_anything_later() -> None:
    async with LogStage() as stage:
        producer, first, second = [await stage.connect() for _ in range(3)]
        await fill(producer, 30)
        await join(first, prefetch_count="5")
        deliveries = await first.next_messages(5)
        await join(second, prefetch_count="5")
        assert indexes(await second.next_messages(5)) == [5, 6, 7, 8, 9]
        for place in (0, 2, 4):
            await first.ack(deliveries[place])
        assert indexes(await first.next_messages(3)) == [10, 11, 12]
        await first.unsubscribe()
        await second.silence()
        third = await stage.connect()
        await join(third, prefetch_count="6")
        got = await third.next_messages(6)
        assert indexes(got) == [1, 3, 10, 11, 12, 13]
        assert [delivery.redelivered for delivery in got] == [True] * 5 + [False]


async def test_cumulative_ack_and_nack(later_version: Version) -> None:
    async with LogStage() as stage:
        producer, consumer = await stage.connect(), await stage.connect(later_version)
        await fill(producer, 10)
        await join(consumer, ack="client")
        deliveries = await consumer.next_messages(10)
        await consumer.ack(deliveries[2])
        assert stage.group().front == 3
        await consumer.nack(deliveries[5])
        again = await consumer.next_messages(3)
        assert indexes(again) == [3, 4, 5]
        await consumer.ack(again[-1])
        # 6 .. 9 were delivered before these, so they are covered.
        assert stage.group().front == 10


async def test_acknowledgements_in_a_transaction_count_with_commit() -> None:
    async with LogStage() as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await fill(producer, 10)
        await join(consumer)
        deliveries = await consumer.next_messages(10)
        await consumer.frame("BEGIN", {"transaction": "t"})
        for delivery in deliveries[:4]:
            await consumer.ack(delivery, transaction="t")
        assert stage.group().front == 0
        await consumer.request("COMMIT", {"transaction": "t"})
        assert stage.group().front == 4
        await consumer.frame("BEGIN", {"transaction": "u"})
        await consumer.ack(deliveries[4], transaction="u")
        await consumer.nack(deliveries[5], transaction="u")
        await consumer.request("ABORT", {"transaction": "u"})
        assert stage.group().front == 4
        await consumer.silence()
        await consumer.ack(deliveries[4])
        assert stage.group().front == 5


@pytest.mark.parametrize("end", ["in order", "crash"])
async def test_a_committed_acknowledgement_outlives_the_broker(tmp_path: Path, end: str) -> None:
    lives = LogLives(tmp_path)
    async with lives.life(end=end) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await fill(producer, 10)
        await join(consumer)
        deliveries = await consumer.next_messages(10)
        await consumer.frame("BEGIN", {"transaction": "t"})
        await consumer.ack(deliveries[0], transaction="t")
        await consumer.ack(deliveries[1], transaction="t")
        await consumer.send("/queue/done", "1", transaction="t", persistent="true")
        await consumer.request("COMMIT", {"transaction": "t"})
    async with lives.life() as stage:
        consumer = await stage.connect()
        await join(consumer)
        assert indexes(await consumer.next_messages(8)) == list(range(2, 10))
        await consumer.subscribe("/queue/done", id="q")
        assert await consumer.next_texts(1) == ["1"]


async def test_acks_without_receipts_are_on_disk_after_disconnect(tmp_path: Path) -> None:
    lives = LogLives(tmp_path)
    async with lives.life(end="crash") as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await fill(producer, 10)
        await join(consumer)
        deliveries = await consumer.next_messages(10)
        for delivery in deliveries[:6]:
            await consumer.frame("ACK", consumer.naming(delivery))
        await consumer.disconnect()
    async with lives.life() as stage:
        consumer = await stage.connect()
        await join(consumer)
        assert indexes(await consumer.next_messages(4)) == [6, 7, 8, 9]


async def test_a_group_is_there_when_subscribe_is_receipted(tmp_path: Path) -> None:
    lives = LogLives(tmp_path)
    async with lives.life(end="crash") as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await consumer.subscribe(LOG, group="g")
        await fill(producer, 5)
    async with lives.life() as stage:
        consumer = await stage.connect()
        await consumer.subscribe(LOG, group="g", ack="client")
        assert indexes(await consumer.next_messages(5)) == list(range(5)), "it began before them"


async def test_plain_and_batch_consumers_share_a_group() -> None:
    async with LogStage() as stage:
        producer, plain, batched = [await stage.connect() for _ in range(3)]
        for codec in Codec:
            for start in range(3):
                await send_batch(producer, numbered(range(start * 10, start * 10 + 10), codec=codec))
        await join(plain, prefetch_count="7")
        held = await plain.next_messages(7)
        await join(batched, batch="1024", ack="client")
        runs = await batched.drain()
        plain.vanish()
        runs += await batched.drain()
        seen = [index for index, _value in records_of(runs)]
        assert sorted(seen) == list(range(120))
        assert sorted(seen[-7:]) == indexes(held)
        await batched.ack(runs[-1])
        assert stage.group().front == 120


async def test_a_run_that_comes_back_is_served_to_plain_consumers() -> None:
    async with LogStage() as stage:
        producer, batched, plain = [await stage.connect() for _ in range(3)]
        await send_batch(producer, numbered(range(10), codec=Codec.ZSTD))
        await join(batched, batch="4096", compression="zstd")
        (run,) = await batched.next_messages(1)
        await join(plain, prefetch_count="3")
        assert run.headers["count"] == "10"
        await batched.unsubscribe()
        got: list[Delivery] = []
        while len(got) < 10:
            more = await plain.next_messages(min(3, 10 - len(got)))
            assert all(delivery.redelivered for delivery in more)
            for delivery in more:
                await plain.ack(delivery)
            got += more
        assert records_of(got) == [(n, b"%d" % n) for n in range(10)]


async def test_place_is_saved_soon_without_receipts(tmp_path: Path) -> None:
    lives = LogLives(tmp_path)
    async with lives.life(end="crash") as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await fill(producer, 10)
        await join(consumer, ack="auto")
        await consumer.next_messages(10)
        await trio.sleep(3)
    async with lives.life() as stage:
        assert stage.group().front == 10
