"""Transactions that are larger than memory: with a store they are spooled, are carried out as a whole or not at all,
and never lock anybody up.

«Larger than memory» is more than a few thousand bytes here, and pieces are small, so that there are many of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from protocols.stomp import spooling
from store import keys
from store.engine import DELETE, Change, EngineFailedError
from store.faulty import Failure, FaultyEngine
from store.memory import MemoryEngine
from tests.scenarios.client import Client, Delivery
from tests.scenarios.lives import Lives
from tests.scenarios.stage import Stage

IN = "/queue/in"
OUT = "/queue/out"
OTHER = "/queue/other"
ENDS = ("in order", "crash", "power cut")
SMALL: dict[str, Any] = {"transaction_bytes_max": 10_000}
BODY_BYTES = 1_000


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five messages or so in each."""
    monkeypatch.setattr(spooling, "PIECE_BYTES", 6_000)


def body(number: int) -> str:
    return str(number).ljust(BODY_BYTES)


def spooled_keys(engine: FaultyEngine | MemoryEngine) -> list[bytes]:
    """Records of spooled transactions."""
    families = (keys.TRANSACTION, keys.SPOOL)
    return [key for family in families for key in engine.iterate_keys(*keys.family_range(family))]


async def send_transaction(
    client: Client, count: int, *destinations: str, name: str = "t", persistent: bool = True, start: int = 0
) -> None:
    """BEGIN, and so many SENDs in turn."""
    await client.frame("BEGIN", {"transaction": name})
    for number in range(start, start + count):
        headers = {"destination": destinations[number % len(destinations)], "transaction": name}
        if persistent:
            headers["persistent"] = "true"
        await client.frame("SEND", headers, body(number))


async def commit(client: Client, name: str = "t") -> None:
    await client.request("COMMIT", {"transaction": name})


def numbers_of(deliveries: list[Delivery]) -> list[int]:
    return [int(delivery.text) for delivery in deliveries]


async def all_numbers(stage: Stage) -> list[int]:
    """What is in all queues."""
    return [int(text) for text in await stage.drain_queues()]


# ---------------------------------------------------------------------- what they do


@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "volatile"])
async def test_a_transaction_larger_than_memory_arrives_with_commit_in_order(persistent: bool) -> None:
    engine = FaultyEngine(Random(0))
    async with Stage(engine=engine, **SMALL) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await consumer.subscribe(f"{OUT},{OTHER}")
        await send_transaction(producer, 100, OUT, OTHER, persistent=persistent)
        await producer.sync()
        assert len(spooled_keys(engine)) > 10
        await consumer.silence()
        await commit(producer)
        deliveries = await consumer.next_messages(100)
        for destination, rest in ((OUT, 0), (OTHER, 1)):
            numbers = [int(d.text) for d in deliveries if d.headers["destination"] == destination]
            assert numbers == list(range(rest, 100, 2))
        await stage.settled_down()
        assert not spooled_keys(engine)


async def test_memory_stays_within_its_limit_while_a_transaction_grows() -> None:
    async with Stage(engine=FaultyEngine(Random(0)), **SMALL) as stage:
        producer = await stage.connect()
        await send_transaction(producer, 10, OUT)
        for number in range(200):
            await producer.send(OUT, body(number), transaction="t", persistent="true")
            await stage.settled_down()
            assert stage.broker.manager.used_bytes <= 10_000 + 2 * BODY_BYTES
        await producer.request("ABORT", {"transaction": "t"})


async def test_an_aborted_one_leaves_nothing() -> None:
    engine = FaultyEngine(Random(0))
    async with Stage(engine=engine, **SMALL) as stage:
        client = await stage.connect()
        await client.subscribe(OUT)
        await send_transaction(client, 50, OUT)
        await client.request("ABORT", {"transaction": "t"})
        await client.silence()
        assert not spooled_keys(engine)


@pytest.mark.parametrize("ending", ["vanish", "disconnect", "error"])
async def test_the_end_of_its_connection_aborts_it(ending: str) -> None:
    engine = FaultyEngine(Random(0))
    async with Stage(engine=engine, **SMALL) as stage:
        client = await stage.connect()
        await send_transaction(client, 50, OUT)
        await client.sync()
        if ending == "vanish":
            client.vanish()
        elif ending == "disconnect":
            await client.disconnect()
        else:
            await client.frame("BEGIN", {"transaction": "t"})
            await client.expect_error("open already")
        await trio.sleep(5)
        assert not spooled_keys(engine)
        assert stage.depth_count(OUT) == 0


async def test_several_of_one_connection_are_spooled_apart() -> None:
    """Those that hold most leave memory first; each arrives with its own COMMIT."""
    async with Stage(engine=FaultyEngine(Random(0)), **SMALL) as stage:
        client, consumer = await stage.connect(), await stage.connect()
        await consumer.subscribe(OUT)
        for name in ("a", "b", "c"):
            await client.frame("BEGIN", {"transaction": name})
        for number in range(90):
            await client.send(OUT, body(number), transaction="abc"[number % 3])
        await commit(client, "b")
        await client.request("ABORT", {"transaction": "a"})
        await commit(client, "c")
        texts = await consumer.next_texts(60)
        assert [int(text) for text in texts] == [*range(1, 90, 3), *range(2, 90, 3)]
        await consumer.silence()


async def test_acks_of_a_spooled_transaction_take_effect_with_it() -> None:
    async with Stage(engine=FaultyEngine(Random(0)), **SMALL) as stage:
        client = await stage.connect()
        await client.sent(IN, "order", persistent="true")
        await client.subscribe(IN, ack="client-individual")
        order = await client.next_message()
        await send_transaction(client, 30, OUT)
        await client.frame("ACK", {**client.naming(order), "transaction": "t"})
        await client.sync()
        assert stage.depth_count(IN) == 1
        await commit(client)
        assert stage.depth_count(IN) == 0
        await stage.settled_down()
        assert stage.depth_count(OUT) == 30


async def test_requests_to_the_broker_are_answered_with_commit() -> None:
    """They can't be spooled: the answer is the broker's state at COMMIT."""
    async with Stage(engine=FaultyEngine(Random(0)), **SMALL) as stage:
        client = await stage.connect()
        await client.subscribe("/temp-queue/stat", id="stat")
        await client.frame("BEGIN", {"transaction": "t"})
        head = {"destination": "/sluiceway/stat", "reply-to": "/temp-queue/stat", "transaction": "t"}
        await client.frame("SEND", head)
        for number in range(30):
            await client.send(OUT, body(number), transaction="t")
        await client.silence()
        await commit(client)
        await client.next_message()


async def test_a_temporary_destination_and_composites_get_theirs() -> None:
    async with Stage(engine=FaultyEngine(Random(0)), **SMALL) as stage:
        client = await stage.connect()
        await client.subscribe("/temp-queue/mine", id="mine")
        await client.subscribe("/topic/news", id="news")
        await send_transaction(client, 20, f"/temp-queue/mine,/topic/news,{OUT}")
        await commit(client)
        deliveries = await client.next_messages(40)
        for subscription in ("mine", "news"):
            texts = [d.text for d in deliveries if d.headers["subscription"] == subscription]
            assert [int(text) for text in texts] == list(range(20))
        await stage.settled_down()
        assert stage.depth_count(OUT) == 20


async def test_a_temporary_destination_that_is_gone_swallows_its_part() -> None:
    engine = FaultyEngine(Random(0))
    async with Stage(engine=engine, **SMALL) as stage:
        owner, producer = await stage.connect(), await stage.connect()
        await owner.subscribe("/temp-queue/mine")
        await owner.send("/queue/address", "x", reply_to="/temp-queue/mine")
        await producer.subscribe("/queue/address")
        address = (await producer.next_message()).headers["reply-to"]
        await send_transaction(producer, 30, address, OUT)
        await producer.sync()
        owner.vanish()
        await trio.sleep(3)
        await commit(producer)
        await stage.settled_down()
        assert stage.depth_count(OUT) == 15
        assert not spooled_keys(engine)


async def test_a_bad_destination_in_a_spooled_transaction_undoes_all_of_it() -> None:
    engine = FaultyEngine(Random(0))
    async with Stage(engine=engine, **SMALL) as stage:
        client = await stage.connect()
        await send_transaction(client, 30, OUT)
        await client.send("/queue/*", "wrong", transaction="t")
        await client.frame("COMMIT", {"transaction": "t", "receipt": "r"})
        error = await client.expect_error("wildcard")
        assert error.headers["receipt-id"] == "r"
        await trio.sleep(3)
        assert stage.depth_count(OUT) == 0
        assert not spooled_keys(engine)


# ---------------------------------------------------------------------- limits


async def test_without_a_store_the_memory_limit_is_the_limit() -> None:
    async with Stage(**SMALL) as stage:
        client = await stage.connect()
        await send_transaction(client, 30, OUT)
        error = await client.expect_error("more than 10000 bytes")
        assert "have a store" in error.body.decode()


async def test_a_limit_of_zero_never_spools() -> None:
    async with Stage(engine=FaultyEngine(Random(0)), transaction_spool_bytes_max=0, **SMALL) as stage:
        client = await stage.connect()
        await send_transaction(client, 30, OUT)
        await client.expect_error("more than 10000 bytes")


async def test_more_than_the_disk_may_take_is_an_error() -> None:
    """All transactions of the connection together, committed ones that wait for room included."""
    engine = FaultyEngine(Random(0))
    policies: dict[str, dict[str, Any]] = {OUT: {"full": "block", "count_max": 1}}
    async with Stage(policies, engine=engine, transaction_spool_bytes_max=60_000, **SMALL) as stage:
        client = await stage.connect()
        for ending in ("COMMIT", "ABORT", "COMMIT"):
            await send_transaction(client, 40, OTHER)
            await client.request(ending, {"transaction": "t"})
            await stage.settled_down()
        await send_transaction(client, 40, OUT)
        await commit(client)
        await send_transaction(client, 40, OTHER)
        await client.expect_error("more than 60000 bytes of the disk")
        await trio.sleep(3)
        assert sorted(await all_numbers(stage)) == sorted([*range(40)] * 3)


async def test_a_queue_that_rejects_refuses_a_spooled_transaction_as_a_whole() -> None:
    policies: dict[str, dict[str, Any]] = {OUT: {"full": "reject", "count_max": 20}}
    async with Stage(policies, engine=FaultyEngine(Random(0)), **SMALL) as stage:
        client, other = await stage.connect(), await stage.connect()
        await send_transaction(client, 21, OUT, OTHER, OUT)
        await client.frame("COMMIT", {"transaction": "t", "receipt": "r"})
        await other.sent(OUT, "0")
        await client.expect_receipt("r")
        again = await stage.connect()
        await send_transaction(again, 12, OUT)
        await again.frame("COMMIT", {"transaction": "t", "receipt": "r"})
        await again.expect_error("has no room for the SENDs of transaction 't'")
        await trio.sleep(1)
        assert stage.depth_count(OUT) == 15


# ---------------------------------------------------------------------- they never lock anybody up

TIGHT: dict[str, dict[str, Any]] = {OUT: {"full": "block", "count_max": 10}}


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


# ---------------------------------------------------------------------- restarts


class Journal(MemoryEngine):
    """Remembers its batches, so that a crash after each of them can be played."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[Change]] = []

    def write(self, changes: Sequence[Change], *, sync: bool) -> None:
        super().write(changes, sync=sync)
        self.batches.append(list(changes))

    def after(self, count: int) -> MemoryEngine:
        """As it was after so many batches."""
        engine = MemoryEngine()
        for batch in self.batches[:count]:
            engine.write(batch, sync=False)
        return engine


async def left_after(journal: Journal, count: int, policies: dict[str, dict[str, Any]]) -> dict[str, list[Delivery]]:
    """What a broker that starts on this delivers, by destination. Nothing of spooled transactions may be left then."""
    engine = journal.after(count)
    left: dict[str, list[Delivery]] = {}
    stage = Stage(policies, engine=engine, **SMALL)
    async with stage.broker:
        client = await stage.connect()
        for destination in (IN, OUT, OTHER):
            await client.subscribe(destination, id=destination)
        deliveries = await client.drain()
        for destination in (IN, OUT, OTHER):
            left[destination] = [d for d in deliveries if d.headers["subscription"] == destination]
        await trio.sleep(5)
        assert not spooled_keys(engine), f"after batch {count}"
        client.stream.close()
    return left


@pytest.mark.parametrize("batches", ["usual", "tiny"])
@pytest.mark.parametrize("count_max", [10, None], ids=["tight", "wide"])
async def test_a_crash_after_any_batch_leaves_all_or_nothing(
    count_max: int | None, batches: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is acknowledged, and all that is sent. What a consumer has acknowledged, with a receipt, does not come
    again; all the rest does, once and in order; what was in its hands, with a mark.
    """
    policies: dict[str, dict[str, Any]] = {OUT: {} if count_max is None else {"count_max": count_max}}
    journal = Journal()
    acked: dict[int, int] = {}
    seen: dict[int, int] = {}
    if batches == "tiny":
        monkeypatch.setattr("store.batch.BATCH_BYTES", 1)
    async with Stage(policies, engine=journal, **SMALL) as stage:
        client, consumer = await stage.connect(), await stage.connect()
        await consumer.subscribe(OUT)
        for _ in range(102):  # so that a piece goes over the border of a block
            await client.send_all(OUT, range(10))
            await consumer.next_messages(10)
        await client.send(OUT, "x")
        await consumer.next_message()
        await consumer.unsubscribe()
        await client.sent(IN, "-1", persistent="true")
        await client.subscribe(IN, ack="client-individual")
        order = await client.next_message()
        await send_transaction(client, 60, OUT, OTHER)
        await client.frame("ACK", {**client.naming(order), "transaction": "t"})
        await client.sync()
        begun = len(journal.batches)
        await commit(client)
        committed = len(journal.batches)
        await consumer.subscribe(OUT, ack="client-individual", prefetch_count="3")
        for _ in range(20):
            delivery = await consumer.next_message()
            for one in (delivery, *consumer.messages):
                seen.setdefault(int(one.text), len(journal.batches))
            await consumer.ack(delivery)
            acked[int(delivery.text)] = len(journal.batches)
        ended = len(journal.batches)
        client.vanish()
        consumer.vanish()
    assert ended - committed > 10
    monkeypatch.undo()
    outcomes = set()
    for count in range(begun, ended + 1):
        left = await left_after(journal, count, policies)
        numbers = {destination: numbers_of(deliveries) for destination, deliveries in left.items()}
        if left[IN]:
            outcomes.add("nothing")
            assert numbers == {IN: [-1], OUT: [], OTHER: []}, f"after batch {count}"
            assert count < committed, "its RECEIPT had gone out"
            continue
        outcomes.add("all")
        assert numbers[OTHER] == list(range(1, 60, 2)), f"after batch {count}"
        assert numbers[OUT] == sorted(set(numbers[OUT])), f"after batch {count}"
        done = set(range(0, 60, 2)) - set(numbers[OUT])
        assert done <= acked.keys(), f"after batch {count}"
        assert done >= {number for number, at in acked.items() if at <= count}, f"after batch {count}"
        for delivery in left[OUT]:
            if seen.get(int(delivery.text), ended + 1) <= count:
                assert delivery.redelivered, f"after batch {count}: {delivery.text} was in a consumer's hands"
    assert outcomes == {"nothing", "all"}


@pytest.mark.parametrize("destination", [IN, OUT], ids=["same queue", "another queue"])
@pytest.mark.parametrize("consumed", [True, False], ids=["consumed", "unconsumed"])
async def test_a_crash_after_any_batch_leaves_all_or_nothing_of_one_in_memory(destination: str, consumed: bool) -> None:
    """Without any receipt that would make the disk busy: written is what is due."""
    journal = Journal()
    policies: dict[str, dict[str, Any]] = {destination: {"count_max": 20}}
    async with Stage(policies, engine=journal) as stage:
        client, other = await stage.connect(), await stage.connect()
        await client.sent(IN, "-1", persistent="true")
        await client.subscribe(IN, ack="client-individual", prefetch_count="1")
        order = await client.next_message()
        if consumed:
            await other.subscribe(destination, ack="client-individual", prefetch_count="1")
        begun = len(journal.batches)
        await send_transaction(client, 40, destination)
        await client.frame("ACK", {**client.naming(order), "transaction": "t"})
        await client.frame("COMMIT", {"transaction": "t"})
        await other.sent("/queue/else", "x", persistent="true")
        await trio.sleep(30)
        await other.sent("/queue/else", "x", persistent="true")
        ended = len(journal.batches)
        client.vanish()
        other.vanish()
        await trio.sleep(1)
    outcomes = set()
    for count in range(begun, ended + 1):
        left = await left_after(journal, count, policies)
        numbers = numbers_of(left[IN] if destination == IN else left[IN] + left[OUT])
        outcomes.add(tuple(numbers))
    assert outcomes == {(-1,), tuple(range(40))}


@pytest.mark.parametrize("end", ENDS)
async def test_a_committed_transaction_that_waits_for_room_outlives_the_broker(end: str) -> None:
    lives = Lives(TIGHT, **SMALL)
    async with lives.life(end=end) as stage:
        producer = await stage.connect()
        await send_transaction(producer, 100, OUT)
        await commit(producer)
        await send_transaction(producer, 20, OTHER, name="open")
        await producer.sync()
    async with lives.life() as stage:
        consumer = await stage.connect()
        await consumer.subscribe(OUT)
        deliveries = await consumer.next_messages(100)
        assert [int(delivery.text) for delivery in deliveries] == list(range(100))
        assert stage.depth_count(OTHER) == 0
        await stage.settled_down()
        assert not spooled_keys(lives.engine)


async def test_a_restart_puts_all_into_queues_that_page_before_anybody_connects() -> None:
    """More than their memory has room for."""
    policies: dict[str, dict[str, Any]] = {OUT: {"memory_bytes": 20_000}}
    lives = Lives({OUT: {"count_max": 1}}, **SMALL)
    async with lives.life(end="crash") as stage:
        producer = await stage.connect()
        await send_transaction(producer, 300, OUT)
        await commit(producer)
    lives._policies = policies
    async with lives.life() as stage:
        assert stage.depth_count(OUT) == 300
        producer, consumer = await stage.connect(), await stage.connect()
        await producer.send(OUT, "300")
        await consumer.subscribe(OUT)
        assert [int(text) for text in await consumer.next_texts(301)] == list(range(301))


async def test_what_was_not_persistent_ends_with_the_broker() -> None:
    lives = Lives(TIGHT, **SMALL)
    async with lives.life(end="crash") as stage:
        producer = await stage.connect()
        await send_transaction(producer, 50, OUT)
        for number in range(50, 100):
            await producer.send(OUT, body(number), transaction="t")
        await commit(producer)
    async with lives.life() as stage:
        consumer = await stage.connect()
        await consumer.subscribe(OUT)
        assert [int(text) for text in await consumer.next_texts(50)] == list(range(50))
        await consumer.silence()


async def test_transactions_go_on_in_order_of_their_commits() -> None:
    lives = Lives(TIGHT, **SMALL)
    async with lives.life(end="crash") as stage:
        producer = await stage.connect()
        await send_transaction(producer, 30, OUT, name="second")
        await send_transaction(producer, 30, OUT, name="first", start=30)
        await commit(producer, "first")
        await commit(producer, "second")
    async with lives.life() as stage:
        consumer = await stage.connect()
        await consumer.subscribe(OUT)
        assert [int(text) for text in await consumer.next_texts(60)] == [*range(30, 60), *range(30)]


@pytest.mark.parametrize("end", ENDS)
async def test_a_durable_subscription_gets_each_message_once(end: str) -> None:
    topic = "/topic/news"
    lives = Lives({topic: {"full": "block", "count_max": 10}}, **SMALL)
    seen: list[int] = []
    async with lives.life(end=end) as stage:
        producer, reader = await stage.connect(), await stage.connect(client_id="c")
        await reader.subscribe(topic, ack="client-individual", prefetch_count="2", durable="true")
        await send_transaction(producer, 60, topic)
        await commit(producer)
        for _ in range(25):
            delivery = await reader.next_message()
            await reader.ack(delivery)
            seen.append(int(delivery.text))
    async with lives.life() as stage:
        reader = await stage.connect(client_id="c")
        await reader.subscribe(topic, ack="client-individual", durable="true")
        while len(seen) < 60:
            delivery = await reader.next_message()
            await reader.ack(delivery)
            seen.append(int(delivery.text))
        await reader.silence()
    assert seen == list(range(60))


# ---------------------------------------------------------------------- a disk that fails


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
            assert stage.broker.manager.used_bytes < 200_000
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


# ---------------------------------------------------------------------- large bodies

LARGE = bytes(range(256)) * 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "large"
    folder.mkdir()
    return folder


def files_in(folder: Path) -> int:
    return len(list(folder.iterdir()))


async def send_with_large(client: Client, count: int) -> None:
    """A transaction in which every tenth SEND has a large body."""
    await client.frame("BEGIN", {"transaction": "t"})
    for number in range(count):
        headers = {"destination": OUT, "transaction": "t", "persistent": "true", "n": str(number)}
        if number % 10:
            await client.frame("SEND", headers, body(number))
        else:
            await client.frame("SEND", {**headers, "content-length": str(len(LARGE))}, LARGE)
    await client.sync()


@pytest.mark.parametrize("ending", ["COMMIT", "ABORT"])
async def test_large_bodies_go_with_their_transaction(folder: Path, ending: str) -> None:
    """Files are kept as long as a piece names them."""
    limits = {**SMALL, "large_body_bytes": 5_000}
    async with Stage(engine=FaultyEngine(Random(0)), large_folder=folder, **limits) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await send_with_large(producer, 50)
        assert files_in(folder) == 5
        await producer.request(ending, {"transaction": "t"})
        await consumer.subscribe(OUT)
        deliveries = await consumer.drain()
        if ending == "COMMIT":
            assert [int(d.headers["n"]) for d in deliveries] == list(range(50))
            assert [d.body for d in deliveries[::10]] == [LARGE] * 5
        else:
            assert not deliveries
        await trio.sleep(10)
        assert not files_in(folder)


@pytest.mark.parametrize("end", ENDS)
async def test_large_bodies_of_a_committed_transaction_outlive_the_broker(folder: Path, end: str) -> None:
    limits = {**SMALL, "large_body_bytes": 5_000}
    lives = Lives(TIGHT, large_folder=folder, **limits)
    async with lives.life(end=end) as stage:
        producer, other = await stage.connect(), await stage.connect()
        await send_with_large(producer, 50)
        await commit(producer)
        await send_with_large(other, 50)
    async with lives.life() as stage:
        assert files_in(folder) == 5, "of the one that was open they are gone"
        consumer = await stage.connect()
        await consumer.subscribe(OUT)
        deliveries = await consumer.next_messages(50)
        assert [int(d.headers["n"]) for d in deliveries] == list(range(50))
        assert [d.body for d in deliveries[::10]] == [LARGE] * 5
        await trio.sleep(10)
        assert not files_in(folder)


async def test_what_waits_on_the_disk_takes_no_room_of_what_ended_connections_leave() -> None:
    """That room is memory: it is free again when the parked SENDs are gone, however long the transaction waits."""
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
        assert left_behind.connections_count == 0
        assert stage.depth_count(OUT) < 30
        await consumer.subscribe(OUT, id="out")
        assert len(await consumer.next_texts(31)) == 31


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
        store._disk_is_low = True
        store._set_gate()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_transaction, other, 1000, OUT)
            await send_transaction(client, 1000, OUT)
            error = await client.expect_error("transactions wait for the disk")
            assert error.headers["transaction"] == "t"
            assert stage.broker.manager.used_bytes < 500_000
            store._disk_is_low = False
            store._set_gate()
        await other.request("COMMIT", {"transaction": "t"})
        consumer = await stage.connect()
        await consumer.subscribe(OUT)
        assert len(await consumer.next_texts(1000)) == 1000
