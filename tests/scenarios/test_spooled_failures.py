"""Transactions that are larger than memory, and a disk that fails, is full, or has lost something."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest
import trio

from sluiceway.protocols.reading import Reason
from sluiceway.protocols.stomp.spooling import SpooledCommits
from sluiceway.store import keys
from sluiceway.store.engine import DELETE, Change, EngineFailedError
from sluiceway.store.memory import MemoryEngine
from sluiceway.store.spool import READS_MAX
from tests.scenarios.spooled import (
    IN,
    OTHER,
    OUT,
    SMALL,
    commit,
    send_transaction,
    spooled_keys,
)
from tests.scenarios.stage import Stage
from tests.scenarios.tiny_steps import tiny_steps
from tests.store.faulty import Failure, FaultyEngine

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
            assert connection.session.reading_blocked_by is Reason.TRANSACTIONS
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


class Tight(MemoryEngine):
    """Has no memory to read pieces with, so many times; then it does what it is told to."""

    def __init__(self, error: Exception, times: int) -> None:
        super().__init__()
        self.error = error
        self.times = times

    def get(self, key: bytes) -> bytes | None:
        if self.times and key.startswith(keys.TRANSACTION):
            self.times -= 1
            raise self.error
        return super().get(key)


async def test_pieces_that_memory_is_too_short_to_read_are_read_later() -> None:
    """More of them than are read at a time."""
    engine = Tight(MemoryError(), 2 * READS_MAX)
    outs = [f"{OUT}{number}" for number in range(READS_MAX + 2)]
    async with Stage(engine=engine, **SMALL) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        for out in outs:
            await consumer.subscribe(out, id=out)
        await send_transaction(producer, 100, *outs)
        await commit(producer)
        await trio.sleep(60)
        assert not engine.times
        assert sorted(int(text) for text in await consumer.next_texts(100)) == list(range(100))
        assert stage.broker.faults.count == 0


async def test_a_piece_whose_reading_breaks_ends_the_broker() -> None:
    """No spooled transaction would ever move again, and nobody would be told."""
    with pytest.raises(BaseException) as caught:
        async with Stage(engine=Tight(ZeroDivisionError(), 1), **SMALL) as stage:
            producer = await stage.connect()
            await send_transaction(producer, 100, OUT)
            await commit(producer)
            await trio.sleep(5)
    assert caught.group_contains(ZeroDivisionError)


@pytest.mark.parametrize("when", ["between two steps", "behind the last step"])
async def test_a_commit_whose_queue_is_given_up_meanwhile_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """It acknowledges what came from there: nothing of it happens, and what waits in its lanes goes on."""
    engine = MemoryEngine()
    taking_effect = SpooledCommits._taking_effect
    with tiny_steps():
        async with Stage({OUT: {"full": "block", "count_max": 1}}, engine=engine, **SMALL) as stage:
            client, filler = await stage.connect(), await stage.connect()
            await filler.sent(OUT, "before")
            await filler.send(IN, "to be acknowledged", persistent="true")
            await client.subscribe(IN, ack="client-individual")
            delivery = await client.next_message()
            await send_transaction(client, 30, OUT, OTHER)
            await client.ack(delivery, transaction="t")
            await client.send(OUT, "parked")
            await client.sync()
            assert spooled_keys(engine)
            [session] = [each.session for each in stage.broker.connections if each.session.unsettled_count]
            given_up = stage.destination(IN)

            def effect(self: SpooledCommits, *arguments: Any) -> Iterator[None]:
                steps = taking_effect(self, *arguments)
                for _step in steps:
                    if self._drains and when == "between two steps" and not given_up.queue.closed:
                        stage.broker.faults._abandon_all([given_up])
                    yield
                if not given_up.queue.closed:
                    stage.broker.faults._abandon_all([given_up])

            monkeypatch.setattr(SpooledCommits, "_taking_effect", effect)
            await client.frame("COMMIT", {"transaction": "t", "receipt": "committed"})
            await trio.sleep(5)
            client.receive_now()
            assert "committed" not in client.receipts
            assert not spooled_keys(engine)
            assert not session.lanes.spooled.limiter.used_bytes
            assert await stage.drain_queues() == [b"before", b"parked"]
            await trio.sleep(5)
            assert session.is_drained
