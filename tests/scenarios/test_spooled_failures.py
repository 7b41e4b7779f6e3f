"""Transactions that are larger than memory, and a disk that fails, is full, or has lost something."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import trio

from store import keys
from store.engine import DELETE, Change, EngineFailedError
from store.faulty import Failure, FaultyEngine
from store.memory import MemoryEngine
from tests.scenarios.spooled import (
    OTHER,
    OUT,
    SMALL,
    commit,
    send_transaction,
    spooled_keys,
)
from tests.scenarios.stage import Stage

pytestmark = pytest.mark.usefixtures("small_pieces")


@pytest.mark.parametrize("failure", [Failure.WRITE, Failure.SYNC, Failure.DISK_FULL])
async def test_a_disk_that_fails_for_a_while_only_costs_time(failure: Failure) -> None:
    engine = FaultyEngine(Random(0))
    async with Stage(engine=engine, **SMALL) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await consumer.subscribe(OUT)
        engine.fail_at_rate(failure, 0.4)
        await send_transaction(producer, 100, OUT)
        await commit(producer)
        engine.fail_at_rate(failure, 0.0)
        await trio.sleep(10)
        assert [int(text) for text in await consumer.next_texts(100)] == list(range(100))


async def test_nothing_is_seen_before_the_commit_is_on_disk() -> None:
    """Though none of it is persistent, and other SENDs of the connection go on."""
    engine = FaultyEngine(Random(0))
    async with Stage({OTHER: {"full": "block", "count_max": 1}}, engine=engine, **SMALL) as stage:
        producer, consumer, other = await stage.connect(), await stage.connect(), await stage.connect()
        await consumer.subscribe(OUT)
        await send_transaction(producer, 30, OUT, persistent=False)
        await producer.sync()
        for number in range(5):
            await producer.send(OTHER, str(number))
            await producer.sync()
        engine.fail_at_rate(Failure.WRITE, 1.0)
        await producer.frame("COMMIT", {"transaction": "t", "receipt": "r"})
        await other.subscribe(OTHER)
        assert await other.next_texts(5) == ["0", "1", "2", "3", "4"]
        await consumer.silence()
        assert not producer.receipts
        engine.fail_at_rate(Failure.WRITE, 0.0)
        await producer.expect_receipt("r")
        assert [int(text) for text in await consumer.next_texts(30)] == list(range(30))


class Obstinate(MemoryEngine):
    """Takes everything but that a piece is gone, as long as it is told so."""

    refuses = True

    def write(self, changes: Sequence[Change], *, sync: bool) -> None:
        if self.refuses and any(kind == DELETE and key.startswith(keys.TRANSACTION) for kind, key, _value in changes):
            raise EngineFailedError("not yet")
        super().write(changes, sync=sync)


@pytest.mark.parametrize("destination", [OUT, "/topic/news"])
async def test_what_was_moved_is_handed_over_when_the_disk_has_it_there(destination: str) -> None:
    """A crash would bring it back without a mark. A subscriber that is not durable would not see it again anyway."""
    engine = Obstinate()
    async with Stage(engine=engine, **SMALL) as stage:
        producer, consumer = await stage.connect(), await stage.connect(client_id="c")
        if destination == OUT:
            await consumer.subscribe(destination, ack="client")
        else:
            await consumer.subscribe(destination, ack="client", durable="true")
        await producer.sent(destination, "-1", persistent="true")
        assert await consumer.next_texts(1) == ["-1"]
        await send_transaction(producer, 30, destination)
        await commit(producer)
        await consumer.silence()
        assert stage.depth_count(destination) > 1, "some of it is there"
        engine.refuses = False
        await trio.sleep(10)
        deliveries = await consumer.next_messages(30)
        assert [int(delivery.text) for delivery in deliveries] == list(range(30))
        await consumer.ack(deliveries[-1])
        if destination != OUT:
            await consumer.unsubscribe()
            await consumer.request("UNSUBSCRIBE", {"id": "s", "durable": "true"})


async def test_a_piece_that_can_not_be_read_for_a_while_is_read_later() -> None:
    engine = FaultyEngine(Random(0))
    async with Stage(engine=engine, **SMALL) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await consumer.subscribe(OUT)
        await send_transaction(producer, 30, OUT)
        await producer.sync()
        engine.fail_next(Failure.READ, 3)
        await commit(producer)
        await trio.sleep(30)
        assert [int(text) for text in await consumer.next_texts(30)] == list(range(30))


async def test_while_the_disk_takes_nothing_the_connection_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FaultyEngine(Random(0))
    async with Stage(engine=engine, **SMALL) as stage:
        producer = await stage.connect()
        engine.fail_at_rate(Failure.WRITE, 1.0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_transaction, producer, 1_000, OUT)
            await trio.sleep(5)
            (connection,) = stage.broker.connections
            assert not connection.session.may_read
            assert connection.session.lanes.waiting_for == "the disk, for its transactions"
            assert stage.used_bytes < 200_000
            engine.fail_at_rate(Failure.WRITE, 0.0)
            await trio.sleep(20)
        await producer.request("ABORT", {"transaction": "t"})


async def test_a_damaged_piece_costs_its_messages_only() -> None:
    engine = FaultyEngine(Random(0))
    async with Stage(engine=engine, **SMALL) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await send_transaction(producer, 50, OUT)
        await producer.sync()
        engine.corrupt(spooled_keys(engine)[2])
        await commit(producer)
        await consumer.subscribe(OUT)
        numbers = [int(delivery.text) for delivery in await consumer.drain()]
        assert numbers == sorted(numbers) and 40 <= len(numbers) < 50
        assert stage.broker.report()["store"]["corrupt_count"] == 1
        assert not spooled_keys(engine)


async def test_while_the_disk_is_full_a_transaction_does_not_grow_in_memory_without_bound() -> None:
    """Who holds deliveries is read on for its ACKs, but not for ever; who holds none is not read."""
    limits: dict[str, Any] = {**SMALL, "stash_overfull_bytes_max": 100_000}
    async with Stage({}, engine=MemoryEngine(), **limits) as stage:
        client, other = await stage.connect(), await stage.connect()
        await client.sent(OTHER, "m")
        await client.subscribe(OTHER, ack="client-individual")
        await client.next_message()
        store = stage.broker.store
        assert store is not None
        store.disk_is_low = True
        store._set_gate()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_transaction, other, 1000, OUT)
            await send_transaction(client, 1000, OUT)
            error = await client.expect_error("transactions wait for the disk")
            assert error.headers["transaction"] == "t"
            assert stage.used_bytes < 500_000
            store.disk_is_low = False
            store._set_gate()
        await other.request("COMMIT", {"transaction": "t"})
        consumer = await stage.connect()
        await consumer.subscribe(OUT)
        assert len(await consumer.next_texts(1000)) == 1000
