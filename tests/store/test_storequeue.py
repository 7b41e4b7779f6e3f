"""The store as a whole: what goes into one write, when it is synced, what happens while the disk fails or is full."""

from __future__ import annotations

from random import Random
from unittest.mock import patch

import pytest

from sluiceway.flow.graph import at_once
from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.queues.message import MESSAGE_OVERHEAD_BYTES
from sluiceway.queues.shared import shared_queue
from sluiceway.store import keys
from sluiceway.store.config import StoreConfig
from sluiceway.store.engine import Change, FencedError, delete, put
from sluiceway.store.memory import MemoryEngine
from sluiceway.store.reporting import report_in_steps
from sluiceway.store.states import decode_numbers
from sluiceway.store.storequeue import NUMBERS_AHEAD, RETRY_MAX_SECONDS, RETRY_MIN_SECONDS
from tests.queues.rig import FakeConsumer, Head, make_policy, numbers
from tests.store.faulty import Failure, FaultyEngine
from tests.store.rig import FakeFolder, OfferingProducer, StoreWorld, shelf_of, tight

MIB = 1024 * 1024


@pytest.fixture
def world() -> StoreWorld:
    return StoreWorld(MemoryEngine())


@pytest.fixture
def faulty() -> StoreWorld:
    return StoreWorld(FaultyEngine(Random(1)))


def queue_named(world: StoreWorld, name: str) -> ConsumedQueue:
    return shared_queue(name, make_policy(), world.environment)


def engine_of(world: StoreWorld) -> FaultyEngine:
    assert isinstance(world.engine, FaultyEngine)
    return world.engine


def attached(world: StoreWorld, queue: ConsumedQueue, window: int | None = None, *, auto: bool = False) -> FakeConsumer:
    consumer = world.consumer(window, auto=auto)
    queue.subscribe(consumer)
    return consumer


def persistent(world: StoreWorld, count: int = 1) -> list[list[object]]:
    return [world.messages(1, head=Head(persistent=True)) for _ in range(count)]  # type: ignore[misc]


def put_with_receipt(world: StoreWorld, queue: ConsumedQueue, answers: list[str], count: int = 1) -> None:
    first = queue.elements.next_sequence
    world.put(queue, count)
    queue.when_saved(first, answers.append)


def families(changes: list[Change]) -> bytes:
    return b"".join(sorted(key[:1] for _kind, key, _value in changes))


# ---------------------------------------------------------------------- group commit


def test_all_that_came_in_one_turn_goes_in_one_write_and_one_sync(world: StoreWorld) -> None:
    answers: list[str] = []
    queues = [queue_named(world, f"/queue/{n}") for n in range(5)]
    for _ in range(4):
        for queue in queues:
            put_with_receipt(world, queue, answers)
    world.settle_down()
    assert answers == ["disk"] * 20
    assert (world.store.counters.batches_count, world.store.counters.syncs_count) == (1, 1)
    assert world.store.counters.largest_batch_count == 20


def test_what_comes_while_a_write_is_under_way_goes_in_the_next(world: StoreWorld) -> None:
    queue = world.queue()
    answers: list[str] = []
    put_with_receipt(world, queue, answers)
    world.run()
    for _ in range(9):
        put_with_receipt(world, queue, answers)
        world.run()
    assert len(world.worker.batches) == 1, "one write under way at a time"
    world.write()
    assert answers == ["disk"]
    world.settle_down()
    assert answers == ["disk"] * 10
    assert world.store.counters.syncs_count == 2


def test_a_batch_is_bounded_and_the_rest_goes_in_the_next_ones(world: StoreWorld) -> None:
    with tight(block_bits=2, lease_count=100, batch_bytes=400):
        queue = world.queue()
        answers: list[str] = []
        put_with_receipt(world, queue, answers, 40)
        world.settle_down()
        assert answers == ["disk"]
        assert world.store.counters.batches_count > 3
        assert world.store.counters.written_count == 40
        for changes, _synced in world.worker.batches:
            size_bytes = sum(len(key) + len(value) for _kind, key, value in changes)
            assert size_bytes < 400 + 4 * (20 + 100), "what is over is one block"


def test_all_is_saved_only_when_what_was_settled_is_written_too(world: StoreWorld) -> None:
    """Also of a queue that has nothing else to write, and comes behind several full batches."""
    small = queue_named(world, "/queue/small")
    consumer = attached(world, small, 1)
    world.put(small, 2)
    world.flush()
    assert not world.records(keys.STATE)
    for number in range(2):
        world.put(queue_named(world, f"/queue/{number}"), 2, wire_bytes=2 * MIB)
    consumer.settle()
    told: list[int] = []
    world.store.when_all_saved(lambda: told.append(len(world.records(keys.STATE))))
    world.settle_down()
    assert told == [1]
    assert world.store.counters.batches_count > 3


def test_receipts_of_many_queues_share_a_sync(world: StoreWorld) -> None:
    """However many steps it takes to gather them."""
    queues = [queue_named(world, f"/queue/{number}") for number in range(1_000)]
    told: list[str] = []
    for queue in queues:
        world.put(queue)
        shelf_of(queue).when_saved(0, 1, told.append)
    begun_count = len(world.worker.batches)
    world.core.run_turn()
    assert len(world.worker.batches) == begun_count, "it is gathered in steps"
    world.settle_down()
    assert told == ["disk"] * 1_000
    assert len(world.worker.batches) == begun_count + 1


@pytest.mark.parametrize("what", ["abandoned", "deleted"])
@pytest.mark.parametrize("when", ["before", "while the batch is written"])
def test_who_waits_for_all_does_not_wait_for_what_is_gone(world: StoreWorld, what: str, when: str) -> None:
    """A connection that leaves hears nothing else than its receipt, and has often not used that queue at all."""
    gone, other = queue_named(world, "/queue/gone"), queue_named(world, "/queue/other")
    world.put(gone, 3)
    world.put(other, 3)
    if when != "before":
        world.store.when_flushed([lambda: None])
        world.run()
    told: list[int] = []
    world.store.when_all_saved(lambda: told.append(len(world.records(keys.CHUNK))))
    if what == "abandoned":
        world.store.abandon(shelf_of(gone))
    else:
        gone.close_queue("deleted")
    world.flush()
    assert told == [1], "the others are on disk"


def test_who_asks_whether_all_is_saved_while_others_wait_for_that_is_answered_behind_them(world: StoreWorld) -> None:
    """What came in between is on disk, too, and a queue that fills every batch keeps none of them waiting for ever."""
    busy, other = queue_named(world, "/queue/busy"), queue_named(world, "/queue/other")
    told: list[tuple[int, int]] = []
    asked: list[int] = []
    shelf = shelf_of(busy) if world.put(busy, 3) else None
    assert shelf is not None

    def saved() -> None:
        told.append((asked.pop(0), shelf.saved_to))

    for _ in range(30):
        world.put(busy, 4_000)
        if not asked:
            world.put(other)
            for _each in range(2):
                asked.append(busy.elements.next_sequence)
                world.store.when_all_saved(saved)
        world.run()
        world.worker.step(read=False)
        world.run()
    assert len(told) > 5
    assert all(end <= saved_to for end, saved_to in told)


# ---------------------------------------------------------------------- syncs


def test_what_nobody_waits_for_is_written_without_a_sync_and_synced_after_a_while(faulty: StoreWorld) -> None:
    queue = faulty.queue()
    faulty.put(queue, 3)
    synced_before = engine_of(faulty).sync_count
    faulty.flush(seconds=0.9)
    assert [synced for _changes, synced in faulty.worker.batches] == [False]
    assert engine_of(faulty).unsynced_count == 1
    faulty.flush(seconds=0.3)
    assert [synced for _changes, synced in faulty.worker.batches] == [False, True]
    assert engine_of(faulty).sync_count == synced_before + 1
    assert engine_of(faulty).unsynced_count == 0


def test_the_next_receipt_syncs_what_was_written_before(faulty: StoreWorld) -> None:
    queue = faulty.queue()
    faulty.put(queue, 3)
    faulty.flush(seconds=0.1)
    answers: list[str] = []
    put_with_receipt(faulty, queue, answers)
    faulty.settle_down()
    later = StoreWorld(engine_of(faulty).power_cut())
    consumer = attached(later, later.restored())
    later.flush()
    assert consumer.numbers == [0, 1, 2, 3]
    faulty_batches = len(faulty.worker.batches)
    assert faulty_batches == 2, "no sync of its own"


def test_nothing_is_synced_when_there_is_nothing_new(world: StoreWorld) -> None:
    world.put(world.queue(), 3)
    world.flush()
    count = world.store.counters.batches_count
    world.flush(seconds=30.0)
    assert world.store.counters.batches_count == count


# ---------------------------------------------------------------------- transactions


@pytest.mark.parametrize("touched", [0, 1, 2])
def test_what_is_bound_is_one_batch_whichever_part_is_due_first(world: StoreWorld, touched: int) -> None:
    queues = [queue_named(world, f"/queue/{n}") for n in range(3)]
    for queue in queues:
        attached(world, queue, 1)  # each has a delay of its own
        world.put(queue)
    world.flush()
    before = len(world.worker.batches)
    for queue in queues:
        world.put(queue, 2)
    world.store.bind([shelf_of(queue) for queue in queues])
    answers: list[str] = []
    queues[touched].when_saved(1, answers.append)
    world.settle_down()
    assert answers == ["disk"]
    ((changes, _synced),) = world.worker.batches[before:]
    assert families(changes).count(keys.CHUNK) == 3


def test_a_power_cut_takes_all_of_a_transaction_or_nothing() -> None:
    """An ACK in one queue and SENDs to two others, cut at any moment."""
    outcomes: set[tuple[int, int, int]] = set()
    for seed in range(40):
        world = StoreWorld(FaultyEngine(Random(seed)))
        source, left, right = (queue_named(world, f"/queue/{name}") for name in ("source", "left", "right"))
        consumer = attached(world, source)
        answers: list[str] = []
        put_with_receipt(world, source, answers)
        world.settle_down()
        world.put(left, 2)
        world.put(right, 3)
        consumer.settle()
        world.store.bind([shelf_of(queue) for queue in (source, left, right)])
        for _ in range(seed % 12):
            world.now_seconds += 0.002
            world.run()
            world.worker.step(read=False)
        later = StoreWorld(engine_of(world).power_cut())
        depths = tuple(
            later.recovered.queues[name, 4, False].live_count if (name, 4, False) in later.recovered.queues else 0
            for name in ("/queue/source", "/queue/left", "/queue/right")
        )
        assert depths in {(1, 0, 0), (0, 2, 3)}
        outcomes.add(depths)
    assert len(outcomes) == 2, "both happen"


def test_transactions_that_share_a_queue_stay_whole(world: StoreWorld) -> None:
    first, second, third = (queue_named(world, f"/queue/{n}") for n in range(3))
    for queue in (first, second):
        world.put(queue)
    world.store.bind([shelf_of(first), shelf_of(second)])
    for queue in (second, third):
        world.put(queue)
    world.store.bind([shelf_of(second), shelf_of(third)])
    answers: list[str] = []
    third.when_saved(0, answers.append)
    world.settle_down()
    ((changes, _synced),) = world.worker.batches
    assert families(changes).count(keys.CHUNK) == 3
    assert world.store.counters.written_count == 4


def test_a_transaction_is_not_divided_by_the_size_of_a_batch(world: StoreWorld) -> None:
    with tight(block_bits=2, lease_count=100, batch_bytes=200):
        queues = [queue_named(world, f"/queue/{n}") for n in range(2)]
        for queue in queues:
            world.put(queue, 30)
        world.store.bind([shelf_of(queue) for queue in queues])
        world.flush()
        changes = world.worker.batches[0][0]
        assert families(changes).count(keys.CHUNK) == 2 * 8


def test_a_deleted_queue_holds_up_no_transaction(world: StoreWorld) -> None:
    first, second = (queue_named(world, f"/queue/{n}") for n in range(2))
    for queue in (first, second):
        world.put(queue, 2)
    world.store.bind([shelf_of(first), shelf_of(second)])
    first.close_queue("the test says so")
    world.flush()
    assert world.store.counters.written_count == 2
    assert world.is_flushed


# ---------------------------------------------------------------------- a disk that fails


def test_a_batch_that_failed_is_written_again_whole_and_before_anything_else(faulty: StoreWorld) -> None:
    queue = faulty.queue()
    answers: list[str] = []
    put_with_receipt(faulty, queue, answers, 3)
    engine_of(faulty).fail_next(Failure.WRITE, 3)
    faulty.settle_down()
    put_with_receipt(faulty, queue, answers, 2)
    faulty.flush(seconds=2.0)
    assert answers == ["disk", "disk"]
    batches = [changes for changes, _synced in faulty.worker.batches]
    assert batches[0] == batches[1] == batches[2] == batches[3]
    assert len(batches) == 5
    assert faulty.store.counters.failures_count == 3
    later = StoreWorld(engine_of(faulty).crash())
    consumer = attached(later, later.restored())
    later.flush()
    assert consumer.numbers == [0, 1, 2, 3, 4]


def test_the_pauses_between_tries_grow_to_a_bound(faulty: StoreWorld) -> None:
    faulty.put(faulty.queue())
    engine_of(faulty).fail_at_rate(Failure.DISK_FULL, 1.0)
    faulty.advance(0.01)
    pauses: list[float] = []
    for _ in range(9):
        faulty.worker.step(read=False)
        faulty.run()
        failed_seconds = faulty.now_seconds
        while not faulty.worker.has_work:
            faulty.advance(0.05)
        pauses.append(faulty.now_seconds - failed_seconds)
    expected = [min(RETRY_MIN_SECONDS * 2**n, RETRY_MAX_SECONDS) for n in range(9)]
    assert pauses == pytest.approx(expected, abs=0.051)


def test_after_a_failure_the_next_one_begins_with_a_short_pause_again(faulty: StoreWorld) -> None:
    queue = faulty.queue()
    for _ in range(2):
        engine_of(faulty).fail_next(Failure.WRITE, 4)
        faulty.put(queue)
        faulty.flush(seconds=2.5, steps=50)
        assert faulty.is_flushed, "0.1 + 0.2 + 0.4 + 0.8 seconds, each time"
    assert faulty.log.names("error") == ["store cannot write"] * 2, "said once per failure, not per try"
    assert faulty.log.names("info") == ["store writes again"] * 2


def test_no_receipt_is_given_for_what_was_written_but_not_synced(faulty: StoreWorld) -> None:
    queue = faulty.queue()
    answers: list[str] = []
    put_with_receipt(faulty, queue, answers)
    engine_of(faulty).fail_next(Failure.SYNC)
    faulty.settle_down()
    assert answers == []
    faulty.flush()
    assert answers == ["disk"]
    later = StoreWorld(engine_of(faulty).power_cut())
    assert later.recovered.live_count == 1


def test_while_the_disk_fails_persistent_messages_wait_with_their_senders_and_others_pass(faulty: StoreWorld) -> None:
    queue = faulty.queue()
    consumer = attached(faulty, queue)
    persisting, passing = (OfferingProducer(faulty, queue) for _ in range(2))
    faulty.put(queue, 2)
    engine_of(faulty).fail_at_rate(Failure.DISK_FULL, 1.0)
    faulty.flush(seconds=1.0)
    assert not faulty.store.accepting
    waiting = faulty.messages(1, head=Head(persistent=True))
    persisting.send(waiting)
    passed = faulty.messages(1, head=Head())
    passing.send(passed)
    faulty.settle_down()
    assert (persisting.is_blocked, passing.is_blocked) == (True, False)
    assert numbers(passed)[0] in consumer.numbers
    consumer.settle()
    assert queue.elements.live_count == 0, "consuming goes on"
    engine_of(faulty).fail_at_rate(Failure.DISK_FULL, 0.0)
    faulty.flush(seconds=10.0)
    assert not persisting.is_blocked
    assert consumer.numbers[-1] == numbers(waiting)[0]


def test_all_that_wait_at_the_gate_go_on_when_it_opens(faulty: StoreWorld) -> None:
    queue = faulty.queue()
    producers = [OfferingProducer(faulty, queue) for _ in range(20)]
    faulty.put(queue)
    engine_of(faulty).fail_next(Failure.WRITE)
    faulty.flush(seconds=0.05)
    for producer in producers:
        producer.send(*(faulty.messages(1, head=Head(persistent=True)) for _ in range(3)))
    assert all(producer.is_blocked for producer in producers)
    faulty.flush()
    assert not any(producer.is_blocked or producer.outbox for producer in producers)
    assert queue.elements.live_count == 61


def test_a_queue_that_filled_up_while_the_disk_failed_pages_out_when_it_works_again(faulty: StoreWorld) -> None:
    """Its senders wait for memory: none of them would make it look."""
    with tight(block_bits=2, blocks_min=1):
        queue = faulty.queue(memory_bytes=20 * (20 + MESSAGE_OVERHEAD_BYTES))
        producer = OfferingProducer(faulty, queue)
        faulty.put(queue)
        engine_of(faulty).fail_at_rate(Failure.WRITE, 1.0)
        faulty.flush(seconds=0.5)
        producer.send(*(faulty.messages(1, head=Head()) for _ in range(60)))
        faulty.flush(seconds=5.0)
        assert producer.is_blocked
        engine_of(faulty).fail_at_rate(Failure.WRITE, 0.0)
        faulty.flush(seconds=10.0)
        assert not producer.is_blocked
        assert queue.elements.live_count == 61


# ---------------------------------------------------------------------- a disk that is full


def test_with_too_little_free_space_the_gate_is_shut_and_opens_again() -> None:
    folder = FakeFolder()
    world = StoreWorld(MemoryEngine(), config=StoreConfig(disk_free_min_bytes=MIB), folder=folder)
    queue = world.queue()
    producer = OfferingProducer(world, queue)
    world.flush(seconds=2.0)
    assert world.store.accepting
    folder.room_bytes = MIB - 1
    world.flush(seconds=1.5)
    producer.send(world.messages(1, head=Head(persistent=True)))
    assert producer.is_blocked
    assert world.store.state == "disk low"
    folder.room_bytes = MIB
    world.flush(seconds=1.5)
    assert not producer.is_blocked
    assert queue.elements.live_count == 1
    assert world.log.names("warning") == ["disk is nearly full"]
    assert world.log.names("info") == ["disk has room again"]


def test_with_a_store_that_is_too_large_the_gate_is_shut_until_it_shrinks() -> None:
    world = StoreWorld(MemoryEngine(), config=StoreConfig(bytes_max=3000), folder=FakeFolder())
    queue = world.queue()
    world.put(queue, 4, wire_bytes=1000)
    world.flush(seconds=3.0)
    assert not world.store.accepting
    assert world.log.names("warning") == ["the store has reached its bytes_max"]
    assert "size" in world.store.facts() and "disk" not in world.store.facts()
    consumer = attached(world, queue)
    world.flush(seconds=0.5)
    consumer.settle()
    world.flush(seconds=4.0)
    assert world.store.accepting


def test_a_full_disk_keeps_nobody_from_settling() -> None:
    folder = FakeFolder()
    world = StoreWorld(MemoryEngine(), config=StoreConfig(disk_free_min_bytes=MIB), folder=folder)
    queue = world.queue()
    consumer = attached(world, queue)
    world.put(queue, 3)
    world.flush()
    folder.room_bytes = 0
    world.flush(seconds=1.5)
    consumer.settle()
    told: list[str] = []
    shelf_of(queue).when_settled(lambda: told.append("settled"))
    world.settle_down()
    assert told == ["settled"]
    assert world.leftovers() == {}


# ---------------------------------------------------------------------- other records


def test_changes_of_others_go_with_the_next_batch_and_are_told_when_synced(world: StoreWorld) -> None:
    told: list[str] = []
    key = keys.durable_key(7)
    world.store.change([put(key, b"value")], lambda: told.append("put"))
    world.run()
    assert told == []
    world.write()
    assert told == ["put"] and world.engine.get(key) == b"value"
    world.store.change([delete(key)], lambda: told.append("deleted"))
    world.settle_down()
    assert told == ["put", "deleted"] and world.engine.get(key) is None


def test_message_numbers_on_disk_stay_ahead_of_those_in_use(world: StoreWorld) -> None:
    for number in range(0, 4 * NUMBERS_AHEAD, NUMBERS_AHEAD // 8):
        world.store.reserve_numbers(number)
        world.settle_down()
        assert decode_numbers(world.engine.get(keys.META_NUMBERS_KEY) or b"") > number + NUMBERS_AHEAD // 4
    assert world.store.counters.batches_count <= 10, "not for each number"


# ---------------------------------------------------------------------- the end


@pytest.mark.parametrize("steps_count", [0, 1])
def test_the_last_batch_has_all_that_was_not_written_and_answers_all_who_wait(
    faulty: StoreWorld, steps_count: int
) -> None:
    """Also if a write is under way, or has just failed."""
    engine_of(faulty).fail_next(Failure.WRITE, steps_count)
    queue = faulty.queue()
    told: list[str] = []
    put_with_receipt(faulty, queue, told, 2)
    faulty.run()
    for _ in range(steps_count):
        faulty.worker.step(read=False)
        faulty.run()
    put_with_receipt(faulty, queue, told, 3)
    shelf_of(queue).when_settled(lambda: told.append("settled"))
    faulty.store.change([put(keys.durable_key(1), b"value")], lambda: told.append("changed"))
    engine_of(faulty).fail_next(Failure.WRITE, 0)
    later = StoreWorld(faulty.close_in_order())
    assert sorted(told) == ["changed", "disk", "disk", "settled"]
    assert later.recovered.clean
    assert later.recovered.live_count == 5
    assert later.engine.get(keys.durable_key(1)) == b"value"


def test_nothing_happens_after_the_end(faulty: StoreWorld) -> None:
    queue = faulty.queue()
    faulty.put(queue)
    faulty.close_in_order()
    written = len(faulty.worker.batches)
    queue.close_queue("the broker stops", keep=True)
    faulty.store.close()
    faulty.flush(seconds=60.0)
    assert len(faulty.worker.batches) == written
    assert not faulty.manager.resources


def test_the_report_counts_what_was_written_and_what_never_had_to_be(world: StoreWorld) -> None:
    queue, consumed = world.queue(), queue_named(world, "/queue/consumed")
    attached(world, consumed, auto=True)
    answers: list[str] = []
    put_with_receipt(world, queue, answers, 3)
    world.put(consumed, 10)
    world.flush()
    consumed.close_queue("the test says so")
    world.flush()
    report = at_once(report_in_steps(world.store))
    assert (report["state"], report["error"], report["queues_count"]) == ("ok", None, 1)
    assert (report["written_count"], report["cancelled_count"]) == (3, 10)
    assert report["largest_batch_count"] == 3
    assert report["failures_count"] == report["corrupt_count"] == report["lost_count"] == 0
    assert report["under_way_bytes"] == 0


def test_what_is_under_way_is_on_the_flow_map_until_it_is_written(world: StoreWorld) -> None:
    def used_bytes() -> int:
        return sum(limiter.used_bytes for c in world.store.controllers if (limiter := c.sink_limiter) is not None)

    put_with_receipt(world, world.queue(), [])
    world.run()
    assert used_bytes() > 0
    world.write()
    assert used_bytes() == 0


def test_a_store_that_has_lost_its_shard_tells_once_and_writes_and_confirms_nothing_more() -> None:
    """Whoever is told abandons the shard: its senders wait until then, and what is closed last is refused, too."""
    told: list[FencedError] = []
    world = StoreWorld(MemoryEngine(), folder=FakeFolder(), fenced=told.append)
    error = FencedError("the shard has another owner")
    confirmed: list[str] = []
    queue = queue_named(world, "/queue/a")
    put_with_receipt(world, queue, confirmed, 2)
    with patch.object(MemoryEngine, "write", side_effect=error):
        world.settle_down()
        put_with_receipt(world, queue, confirmed, 2)
        for _ in range(20):
            world.now_seconds += 10
            world.settle_down()
    assert (told, confirmed) == ([error], [])
    assert world.store.state == "failing" and world.store.trouble == str(error)
    assert not world.store.accepting
