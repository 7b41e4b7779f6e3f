"""Transactions that are larger than memory, and a broker that stops: after a crash behind any batch of the store all
of one is there, or nothing.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

from sluiceway.queues import spools
from sluiceway.store import keys
from tests.scenarios.client import Delivery
from tests.scenarios.lives import Lives
from tests.scenarios.spooled import (
    ENDS,
    IN,
    OTHER,
    OUT,
    SMALL,
    TIGHT,
    body,
    commit,
    numbers_of,
    send_transaction,
    spooled_keys,
)
from tests.scenarios.stage import Stage
from tests.store.journal_engine import JournalEngine

pytestmark = pytest.mark.usefixtures("small_pieces")


async def left_after(
    journal: JournalEngine, count: int, policies: dict[str, dict[str, Any]]
) -> dict[str, list[Delivery]]:
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
    journal = JournalEngine()
    acked: dict[int, int] = {}
    seen: dict[int, int] = {}
    if batches == "tiny":
        monkeypatch.setattr("sluiceway.store.batch.BATCH_BYTES", 1)
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
    for count in sorted({begun, ended, *range(begun + (batches == "tiny"), ended + 1, 2)}):
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
    journal = JournalEngine()
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


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "and made again"])
@pytest.mark.parametrize("moved", [True, False], ids=["in part in the queue", "all in pieces"])
async def test_a_queue_that_is_deleted_in_front_of_a_commit_stays_deleted(
    moved: bool, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash behind any batch all of the COMMIT is there for it, or nothing."""
    monkeypatch.setattr(spools, "DROP_COUNT", 2)
    journal = JournalEngine()
    policies = TIGHT
    async with Stage(policies, engine=journal, **SMALL) as stage:
        client, filler = await stage.connect(), await stage.connect()
        if not moved:
            await filler.send_all(OUT, ["not persistent"] * 10)
            await filler.sync()
        await send_transaction(client, 120, OUT, OTHER)
        await commit(client)
        committed = len(journal.batches)
        await trio.sleep(1)
        deleted = len(journal.batches)
        stage.broker.registry.delete(stage.destination(OUT), "a test")
        if again:
            await filler.sent(OUT, "-1", persistent="true")
        await trio.sleep(5)
        ended = len(journal.batches)
        assert not [key for key in spooled_keys(journal) if key[:1] == keys.TRANSACTION]
        client.vanish()
        filler.vanish()
    assert ended - deleted > 5
    monkeypatch.undo()
    outcomes = set()
    for count in sorted({committed, ended, *range(committed + again, ended + 1, 2)}):
        left = await left_after(journal, count, policies)
        numbers = [int(delivery.text) for delivery in left[OUT] if delivery.text != "not persistent"]
        assert numbers_of(left[OTHER]) == list(range(1, 120, 2)), f"after batch {count}"
        if count <= deleted:
            assert numbers == list(range(0, 120, 2)), f"after batch {count}"
        assert numbers in (list(range(0, 120, 2)), [], [-1]), f"after batch {count}"
        outcomes.add(len(numbers))
    assert outcomes >= {60, int(again)}
