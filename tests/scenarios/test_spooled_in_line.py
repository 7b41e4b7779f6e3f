"""Transactions that are larger than memory never lock anybody up: they wait in line as any other sender, and whoever
is not behind them waits for nothing.
"""

from __future__ import annotations

from random import Random

import pytest
import trio

from sluiceway.protocols.stomp.left_behind import SESSION_BYTES
from sluiceway.store.memory import MemoryEngine
from tests.scenarios.spooled import (
    IN,
    OTHER,
    OUT,
    SMALL,
    TIGHT,
    commit,
    send_transaction,
    spooled_keys,
)
from tests.scenarios.stage import Stage
from tests.store.faulty import FaultyEngine

pytestmark = pytest.mark.usefixtures("small_pieces")


@pytest.mark.parametrize("in_transactions", [False, True], ids=["plain", "in transactions"])
async def test_a_transaction_of_ten_times_its_queue_passes_its_own_consumer(in_transactions: bool) -> None:
    """The queue's only consumer is on the same connection, and acknowledges each message."""
    async with Stage(TIGHT, engine=FaultyEngine(Random(0)), **SMALL) as stage:
        client = await stage.connect()
        await client.subscribe(OUT, ack="client-individual", prefetch_count="2")
        await send_transaction(client, 100, OUT)
        await commit(client)
        for number in range(100):
            delivery = await client.next_message()
            assert int(delivery.text) == number
            if in_transactions:
                await client.frame("BEGIN", {"transaction": "a"})
                await client.frame("ACK", {**client.naming(delivery), "transaction": "a"})
                await client.send(OTHER, "done", transaction="a")
                await commit(client, "a")
            else:
                await client.ack(delivery)
        assert stage.depth_count(OUT) == 0


async def test_a_commit_that_makes_room_goes_behind_one_that_still_moves() -> None:
    """The consumer of a full queue puts each message back at its end, in one transaction, while a large one of its own
    still waits for room there: neither may wait for the other, and the order stays."""
    async with Stage(TIGHT, engine=FaultyEngine(Random(0)), **SMALL) as stage:
        client = await stage.connect()
        await client.subscribe(OUT, ack="client-individual", prefetch_count="2")
        await send_transaction(client, 40, OUT)
        await commit(client)
        for number in range(40):
            delivery = await client.next_message()
            assert int(delivery.text) == number
            await client.frame("BEGIN", {"transaction": "a"})
            await client.send(OUT, str(number + 40), transaction="a", persistent="true")
            await client.frame("ACK", {**client.naming(delivery), "transaction": "a"})
            await commit(client, "a")
        for number in range(40, 80):
            delivery = await client.next_message()
            assert int(delivery.text) == number
            await client.ack(delivery)


async def test_what_is_sent_behind_a_moving_transaction_does_not_overtake_it() -> None:
    """To its own queue; other queues and their part of it wait for nothing."""
    async with Stage(TIGHT, engine=FaultyEngine(Random(0)), **SMALL) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await send_transaction(producer, 80, OUT, OTHER)
        await commit(producer)
        await producer.send(OUT, "80")
        await producer.frame("BEGIN", {"transaction": "a"})
        await producer.send(OUT, "82", transaction="a", persistent="true")
        await producer.frame("COMMIT", {"transaction": "a", "receipt": "a"})
        await producer.send(OUT, "84")
        await producer.sent(OTHER, "81")
        await consumer.subscribe(OTHER, id="other")
        assert [int(text) for text in await consumer.next_texts(41)] == list(range(1, 82, 2))
        assert "a" not in producer.receipts
        await consumer.subscribe(OUT)
        assert [int(text) for text in await consumer.next_texts(43)] == list(range(0, 86, 2))
        await producer.expect_receipt("a")


async def test_senders_take_turns_with_a_moving_transaction() -> None:
    """It waits in line like any other."""
    async with Stage(TIGHT, engine=FaultyEngine(Random(0)), **SMALL) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        others = [await stage.connect() for _ in range(3)]
        await send_transaction(producer, 100, OUT)
        await commit(producer)
        for number in range(100):
            for other in others:
                await other.send(OUT, str(number + 1_000))
                await other.sync()
        await consumer.subscribe(OUT, ack="client-individual", prefetch_count="1")
        numbers = []
        for _ in range(400):
            delivery = await consumer.next_message()
            numbers.append(int(delivery.text))
            await consumer.ack(delivery)
        assert [number for number in numbers if number < 1_000] == list(range(100))
        assert sorted(number for number in numbers if number >= 1_000) == sorted([*range(1_000, 1_100)] * 3)
        assert 60 < numbers.index(90) < 200, "neither all of it first, nor all of it last"


async def test_a_committed_transaction_goes_on_when_its_connection_is_gone() -> None:
    engine = FaultyEngine(Random(0))
    async with Stage(TIGHT, engine=engine, **SMALL) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await send_transaction(producer, 100, OUT)
        await commit(producer)
        producer.vanish()
        await trio.sleep(3)
        await consumer.subscribe(OUT)
        assert [int(text) for text in await consumer.next_texts(100)] == list(range(100))
        await stage.settled_down()
        assert not spooled_keys(engine)


async def test_disconnect_does_not_wait_for_what_is_safe() -> None:
    async with Stage(TIGHT, engine=FaultyEngine(Random(0)), **SMALL) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await send_transaction(producer, 100, OUT)
        await commit(producer)
        await producer.disconnect()
        await consumer.subscribe(OUT)
        await consumer.next_texts(100)


async def test_a_queue_deleted_meanwhile_swallows_its_part() -> None:
    engine = FaultyEngine(Random(0))
    async with Stage(TIGHT, engine=engine, **SMALL) as stage:
        producer = await stage.connect()
        await send_transaction(producer, 100, OUT, OTHER)
        await commit(producer)
        await stage.settled_down()
        stage.broker.registry.delete(stage.destination(OUT), "the test says so")
        await trio.sleep(3)
        assert not spooled_keys(engine)
        assert stage.depth_count(OTHER) == 50


# ---------------------------------------------------------------------- in memory, and all at once


async def test_a_commit_into_a_queue_that_becomes_full_does_not_come_apart() -> None:
    """Its last SENDs go over the limit; the next sender waits."""
    async with Stage(TIGHT, engine=FaultyEngine(Random(0))) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await send_transaction(producer, 40, OUT, OTHER)
        await commit(producer)
        assert stage.depth_count(OUT) == stage.depth_count(OTHER) == 20
        await producer.frame("SEND", {"destination": OUT, "receipt": "r"}, "40")
        await producer.silence()
        await consumer.subscribe(OUT)
        assert [int(text) for text in await consumer.next_texts(21)] == list(range(0, 42, 2))
        await producer.expect_receipt("r")


async def test_a_waiting_commit_is_carried_out_as_a_whole_though_its_connection_ends() -> None:
    """b50. It goes by way of the disk, where it is safe."""
    engine = FaultyEngine(Random(0))
    async with Stage(TIGHT, engine=engine) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await producer.send_all(OUT, range(10))
        await producer.sent(IN, "order", persistent="true")
        await producer.subscribe(IN, ack="client-individual")
        order = await producer.next_message()
        await send_transaction(producer, 30, OUT, start=10)
        await producer.frame("ACK", {**producer.naming(order), "transaction": "t"})
        await producer.frame("COMMIT", {"transaction": "t"})
        await producer.send(OUT, "40")
        await stage.settled_down()
        assert stage.depth_count(IN) == 1
        producer.vanish()
        await trio.sleep(3)
        assert stage.depth_count(IN) == 0
        assert spooled_keys(engine)
        await consumer.subscribe(OUT)
        assert [int(text) for text in await consumer.next_texts(41)] == list(range(41))


async def test_a_commit_that_must_not_come_apart_gets_in_line_all_the_same() -> None:
    """Behind those who wait already; nobody may fill a full queue by way of transactions."""
    async with Stage(TIGHT, engine=FaultyEngine(Random(0))) as stage:
        producer, other, consumer = await stage.connect(), await stage.connect(), await stage.connect()
        await other.send_all(OUT, range(10))
        await other.send(OUT, "10")
        await stage.settled_down()
        await send_transaction(producer, 20, OUT, start=11)
        await producer.frame("COMMIT", {"transaction": "t", "receipt": "r"})
        await producer.silence()
        assert stage.depth_count(OUT) == 10
        await consumer.subscribe(OUT)
        assert [int(text) for text in await consumer.next_texts(31)] == list(range(31))
        await producer.expect_receipt("r")


async def test_what_waits_on_the_disk_takes_no_room_of_what_ended_connections_leave() -> None:
    """That room is memory: but for the session it is free again when the parked SENDs are gone, however long the
    transaction waits.
    """
    block = {"full": "block", "count_max": 1}
    async with Stage({OUT: block, OTHER: block}, engine=MemoryEngine(), **SMALL) as stage:
        client = await stage.connect()
        for name in (OUT, OTHER):
            await client.sent(name, "first")
        await send_transaction(client, 30, OUT)
        await client.request("COMMIT", {"transaction": "t"})
        await client.send(OTHER, "parked")
        await client.sync()
        client.vanish()
        await trio.sleep(1)
        left_behind = stage.broker.left_behind
        assert left_behind.connections_count == 1
        consumer = await stage.connect()
        await consumer.subscribe(OTHER)
        assert await consumer.next_texts(2) == ["first", "parked"]
        await trio.sleep(1)
        assert left_behind.used_bytes == SESSION_BYTES
        assert stage.depth_count(OUT) < 30
        await consumer.subscribe(OUT, id="out")
        assert len(await consumer.next_texts(31)) == 31
        await trio.sleep(1)
        assert left_behind.connections_count == 0


async def test_one_commit_behind_another_in_its_lane_does_not_cost_it_its_turns() -> None:
    """Somebody else sends to the same full queue all the time, one by one, and takes each turn that is given back."""
    async with Stage(TIGHT, engine=FaultyEngine(Random(0)), **SMALL) as stage, trio.open_nursery() as nursery:
        rival, producer, consumer = await stage.connect(), await stage.connect(), await stage.connect()

        async def send_on() -> None:
            while True:
                await rival.send(OUT, "rival", persistent="true")

        nursery.start_soon(send_on)
        await trio.sleep(1)
        for name in ("first", "second"):
            await send_transaction(producer, 20, OUT, name=name)
            await producer.frame("COMMIT", {"transaction": name})
        await trio.sleep(1)
        await consumer.subscribe(OUT, ack="client-individual", prefetch_count="1")
        texts: list[str] = []
        for _ in range(600):
            delivery = await consumer.next_message()
            await consumer.ack(delivery)
            texts.append(delivery.text.strip())
        nursery.cancel_scope.cancel()
    came = [text for text in texts if text != "rival"]
    assert came == [str(number) for number in range(20)] * 2
