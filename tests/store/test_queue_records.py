"""One queue and its stored side: what is written of it and what never needs to be, when, and what a restart finds."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.queues.message import Message
from sluiceway.queues.shared import shared_queue
from sluiceway.store import keys
from sluiceway.store.chunks import decode_summary
from sluiceway.store.memory import MemoryEngine
from sluiceway.store.states import decode_state
from tests.queues.rig import FakeConsumer, numbers
from tests.store.faulty import Failure, FaultyEngine
from tests.store.rig import StoreWorld, shelf_of, tight

LEAST_SECONDS = 0.005
MOST_SECONDS = 0.2
"""Bounds of the delay, by default."""


@pytest.fixture
def world() -> StoreWorld:
    return StoreWorld(MemoryEngine())


@pytest.fixture
def small_blocks() -> Iterator[None]:
    with tight(block_bits=3, lease_count=16, seal_count=2):
        yield


def attached(world: StoreWorld, queue: ConsumedQueue, window: int | None = None, *, auto: bool = False) -> FakeConsumer:
    consumer = world.consumer(window, auto=auto)
    queue.subscribe(consumer)
    return consumer


def crashed(world: StoreWorld) -> StoreWorld:
    """A new broker on what the old one wrote."""
    return StoreWorld(world.engine, now_seconds=world.now_seconds)


def marks(consumer: FakeConsumer) -> dict[int, int]:
    """Of all it was handed: those that were marked as seen before, with their attempts, by number."""
    marked: dict[int, int] = {}
    for part in consumer.slices:
        for sequence, message in zip(part.sequences, part.messages, strict=True):
            if part.attempts is not None and sequence in part.attempts:
                marked[message.number] = part.attempts[sequence]
    return marked


class Asked:
    """Remembers what a receipt said."""

    def __init__(self) -> None:
        self.answers: list[str] = []

    def __call__(self, how: str = "settled") -> None:
        self.answers.append(how)


# ---------------------------------------------------------------------- cancelled


def test_what_is_settled_before_it_is_due_never_touches_the_disk(world: StoreWorld) -> None:
    queue = world.queue()
    attached(world, queue, auto=True)
    for _ in range(20):
        world.put(queue, 10)
        world.run()
    world.flush()
    assert world.store.counters.written_count == 0
    assert world.worker.batches == []
    assert shelf_of(queue).cancelled_count == 200


def test_only_what_is_still_there_is_written_and_its_gaps_are_noted(world: StoreWorld) -> None:
    queue = world.queue()
    consumer = attached(world, queue)
    world.put(queue, 6)
    world.run()
    consumer.settle([consumer.held[place] for place in (1, 4)])
    world.flush()
    assert world.store.counters.written_count == 4
    (state_key,) = world.records(keys.STATE)
    mask, _attempts = decode_state(world.engine.get(state_key) or b"")
    assert mask == 0b010010
    later = crashed(world)
    again = attached(later, later.restored())
    later.flush()
    assert again.numbers == [0, 2, 3, 5]


def test_messages_that_are_not_persistent_are_not_written(world: StoreWorld) -> None:
    queue = world.queue()
    world.put(queue, 5, persistent=False)
    world.put(queue, 2)
    world.put(queue, 5, persistent=False)
    world.flush()
    assert world.store.counters.written_count == 2
    (key,) = world.records(keys.SUMMARY)
    assert decode_summary(world.engine.get(key) or b"").count == 2


def test_a_queue_that_goes_with_its_connection_leaves_nothing(world: StoreWorld) -> None:
    """Not even if it was paged out: persistent messages in it are no concern of the next run."""
    with tight(block_bits=2, blocks_min=1):
        queue = shared_queue("/temp-queue/a", world.queue().policy, world.environment, lasting=False)
        world.put(queue, 8)
        arrived: list[int] = []
        queue.open_stored()
        shelf_of(queue).page_out(0, arrived.append)
        world.flush()
        assert arrived == [0]
        attached(world, queue, 1)
        world.flush()
        assert world.leftovers() == {"paged": 1}
        later = crashed(world)
        assert later.recovered.queues == {}
        assert later.leftovers() == {}


def test_no_record_is_left_of_a_block_when_the_last_of_it_is_settled(world: StoreWorld) -> None:
    queue = world.queue()
    consumer = attached(world, queue)
    world.put(queue, 4)
    world.run()
    world.flush()
    assert world.leftovers() == {"chunk": 1, "summary": 1}
    consumer.settle(consumer.held[:3])
    world.flush()
    assert world.leftovers() == {"chunk": 1, "summary": 1, "state": 1}
    consumer.settle()
    world.flush()
    assert world.leftovers() == {}


# ---------------------------------------------------------------------- when


def test_what_comes_in_waits_for_its_consumers_no_longer_than_they_usually_take(world: StoreWorld) -> None:
    """Twice the time from a message's arrival to its ACK, within the bounds."""
    queue = world.queue()
    consumer = attached(world, queue)
    for _ in range(30):
        world.put(queue)
        world.run()
        world.advance(0.03)
        consumer.settle()
    shelf = shelf_of(queue)
    assert shelf.time_to_ack_seconds == pytest.approx(0.03, rel=0.01)
    assert shelf.next_delay_seconds(LEAST_SECONDS, MOST_SECONDS) == pytest.approx(0.06, rel=0.01)
    assert world.store.counters.written_count == 0


@pytest.mark.parametrize(("ack_seconds", "delay_seconds"), [(0.0, LEAST_SECONDS), (0.15, MOST_SECONDS)])
def test_the_delay_has_bounds(world: StoreWorld, ack_seconds: float, delay_seconds: float) -> None:
    queue = world.queue()
    consumer = attached(world, queue)
    for _ in range(30):
        world.put(queue)
        world.run()
        world.advance(ack_seconds)
        consumer.settle()
    assert shelf_of(queue).next_delay_seconds(LEAST_SECONDS, MOST_SECONDS) == pytest.approx(delay_seconds)


def test_nobody_takes_from_it_so_there_is_nothing_to_wait_for(world: StoreWorld) -> None:
    queue = world.queue()
    world.put(queue)
    world.run()
    assert not world.worker.has_work
    world.advance(LEAST_SECONDS)
    assert world.worker.has_work


def test_a_consumer_that_does_not_keep_up_is_not_waited_for(world: StoreWorld) -> None:
    queue = world.queue()
    attached(world, queue, 1)
    world.put(queue, 2)
    world.run()
    world.advance(MOST_SECONDS + 0.01)
    assert shelf_of(queue).next_delay_seconds(LEAST_SECONDS, MOST_SECONDS) == LEAST_SECONDS


def test_what_came_in_since_the_last_look_may_wait_until_the_next(world: StoreWorld) -> None:
    """Of a queue that is consumed only what has waited its time is written."""
    queue = world.queue()
    attached(world, queue, 1)
    world.put(queue, 3)
    world.advance(MOST_SECONDS)
    world.put(queue, 2)
    world.flush(seconds=MOST_SECONDS, steps=40)
    assert world.store.counters.written_count == 5
    assert [decode_summary(world.engine.get(key) or b"").count for key in world.records(keys.SUMMARY)] == [3, 2]


# ---------------------------------------------------------------------- receipts


def test_a_receipt_is_given_only_when_the_disk_has_it(world: StoreWorld) -> None:
    queue = world.queue()
    asked = Asked()
    world.put(queue, 3)
    queue.when_saved(0, asked)
    world.run()
    assert asked.answers == []
    world.write()
    assert asked.answers == ["disk"]
    ((_changes, synced),) = world.worker.batches
    assert synced


def test_a_receipt_for_what_was_settled_at_once_needs_no_disk(world: StoreWorld) -> None:
    queue = world.queue()
    attached(world, queue, auto=True)
    asked = Asked()
    world.put(queue, 3)
    queue.when_saved(0, asked)
    world.run()
    assert asked.answers == ["consumed"]
    assert world.worker.batches == []


def test_a_receipt_for_what_was_settled_in_part_waits_for_the_rest(world: StoreWorld) -> None:
    queue = world.queue()
    consumer = attached(world, queue)
    asked = Asked()
    world.put(queue, 3)
    world.core.run_turn()
    consumer.settle(consumer.held[:2])
    queue.when_saved(0, asked)
    world.settle_down()
    assert asked.answers == ["disk"]
    assert world.store.counters.written_count == 1


def test_a_receipt_for_a_settlement_waits_for_the_disk_to_know(world: StoreWorld) -> None:
    queue = world.queue()
    consumer = attached(world, queue)
    world.put(queue, 3)
    world.flush()
    consumer.settle(consumer.held[:1])
    asked = Asked()
    shelf_of(queue).when_settled(asked)
    world.run()
    assert asked.answers == []
    world.write()
    assert asked.answers == ["settled"]
    later = crashed(world)
    again = attached(later, later.restored())
    later.flush()
    assert again.numbers == [1, 2]


def test_receipts_of_one_queue_come_in_order(world: StoreWorld) -> None:
    queue = world.queue()
    told: list[int] = []
    for place in range(5):
        first = queue.elements.next_sequence
        world.put(queue, 2)
        queue.when_saved(first, lambda _how, place=place: told.append(place))  # type: ignore[misc]
    world.settle_down()
    assert told == [0, 1, 2, 3, 4]
    assert world.store.counters.syncs_count == 1


# ---------------------------------------------------------------------- blocks that leave memory


@pytest.mark.usefixtures("small_blocks")
def test_a_block_leaves_only_when_the_disk_has_all_of_it(world: StoreWorld) -> None:
    queue = world.queue()
    run = [*world.put(queue, 3), *world.put(queue, 3, persistent=False), *world.put(queue, 2)]
    gone: list[int] = []
    shelf_of(queue).page_out(0, gone.append)
    world.run()
    assert gone == []
    world.write()
    assert gone == [0]
    assert loaded(world, queue, 0) == [message.wire for message in run]


@pytest.mark.usefixtures("small_blocks")
def test_a_block_of_many_chunks_is_written_anew_as_one_when_it_leaves(world: StoreWorld) -> None:
    queue = world.queue()
    run: list[Message] = []
    for _ in range(8):
        run += world.put(queue)
        world.flush(seconds=0.1)
    assert world.leftovers() == {"chunk": 8, "summary": 8}
    shelf_of(queue).page_out(0, lambda _index: None)
    world.flush()
    assert world.leftovers() == {"chunk": 1, "summary": 1, "state": 1}
    assert loaded(world, queue, 0) == [message.wire for message in run]
    later = crashed(world)
    again = attached(later, later.restored())
    later.flush()
    assert again.numbers == list(range(8))


@pytest.mark.usefixtures("small_blocks")
def test_a_sealed_block_leaves_out_what_was_settled(world: StoreWorld) -> None:
    queue = world.queue()
    consumer = attached(world, queue)
    for _ in range(8):
        world.put(queue)
        world.flush(seconds=0.5)
    consumer.settle([consumer.held[place] for place in (0, 3, 7)])
    shelf_of(queue).page_out(0, lambda _index: None)
    world.flush()
    (key,) = world.records(keys.SUMMARY)
    assert decode_summary(world.engine.get(key) or b"").count == 5
    later = crashed(world)
    again = attached(later, later.restored())
    later.flush()
    assert again.numbers == [1, 2, 4, 5, 6]


@pytest.mark.usefixtures("small_blocks")
def test_what_was_only_paged_out_is_deleted_with_the_last_of_its_block(world: StoreWorld) -> None:
    queue = world.queue()
    consumer = attached(world, queue)
    world.put(queue, 5)
    world.put(queue, 3, persistent=False)
    world.run()
    shelf_of(queue).page_out(0, lambda _index: None)
    world.flush()
    consumer.settle(consumer.held[:5])
    world.flush()
    assert world.leftovers() == {"chunk": 1, "summary": 1, "state": 1, "paged": 1}, "some are left in the block"
    consumer.settle()
    world.flush()
    assert world.leftovers() == {}


@pytest.mark.usefixtures("small_blocks")
def test_a_restart_clears_up_what_shared_a_block_with_what_was_paged_out(world: StoreWorld) -> None:
    queue = world.queue()
    consumer = attached(world, queue)
    world.put(queue, 5)
    world.put(queue, 3, persistent=False)
    world.run()
    shelf_of(queue).page_out(0, lambda _index: None)
    world.flush()
    consumer.settle(consumer.held[:5])
    world.flush()
    later = crashed(world)
    assert later.restored().elements.live_count == 0
    later.flush()
    assert later.leftovers() == {}


def loaded(world: StoreWorld, queue: ConsumedQueue, index: int) -> list[bytes]:
    """What the disk has of a block."""
    found: dict[int, Message] = {}
    shelf_of(queue).load(index, lambda _index, by_sequence: found.update(by_sequence))
    world.settle_down()
    return [found[sequence].wire for sequence in sorted(found)]


def test_a_read_that_fails_is_tried_again(world: StoreWorld) -> None:
    engine = FaultyEngine(Random(1))
    world = StoreWorld(engine)
    queue = world.queue()
    run = world.put(queue, 3)
    world.flush()
    later = StoreWorld(engine.crash(), now_seconds=world.now_seconds)
    assert isinstance(later.engine, FaultyEngine)
    later.engine.fail_next(Failure.READ, 2)
    consumer = attached(later, later.restored())
    later.flush(seconds=4.0)
    assert consumer.numbers == []
    later.flush(seconds=8.0)
    assert consumer.numbers == numbers(run)
    assert later.log.names("error") == ["store cannot read", "store cannot read"]


# ---------------------------------------------------------------------- damage


@pytest.mark.usefixtures("small_blocks")
def test_a_damaged_chunk_is_moved_aside_and_said_and_the_others_come_in_order() -> None:
    engine = FaultyEngine(Random(1))
    world = StoreWorld(engine)
    queue = world.queue()
    for _ in range(3):
        world.put(queue, 8)
        world.flush(seconds=0.1)
    engine.corrupt(world.records(keys.CHUNK)[1])
    later = StoreWorld(engine.crash(), now_seconds=world.now_seconds)
    consumer = attached(later, later.restored())
    later.flush()
    assert consumer.numbers == [*range(8), *range(16, 24)]
    assert (later.store.counters.corrupt_count, later.store.counters.lost_count) == (1, 8)
    assert later.log.names("error") == ["corrupt record can't be kept", "messages lost"]
    consumer.settle()
    later.flush()
    assert later.leftovers() == {}


# ---------------------------------------------------------------------- marks


def test_what_was_handed_out_is_marked_after_a_crash(world: StoreWorld) -> None:
    """More may be marked: what lies near it. What came in since is not."""
    queue = world.queue()
    attached(world, queue, 2)
    world.put(queue, 3)
    world.flush()
    later = crashed(world)
    after = later.restored()
    consumer = attached(later, after)
    fresh = later.put(after, 2)
    later.flush()
    assert consumer.numbers[:3] == [0, 1, 2]
    assert {0: 0, 1: 0}.items() <= marks(consumer).items()
    assert not marks(consumer).keys() & {message.number + 3 for message in fresh}


@pytest.mark.usefixtures("small_blocks")
def test_nothing_is_handed_out_that_a_power_cut_would_leave_unmarked() -> None:
    """The lease is synced first, whether anybody asked for it or not."""
    for seed in range(20):
        engine = FaultyEngine(Random(seed))
        world = StoreWorld(engine)
        world.put(world.queue(), 40)
        world.flush()
        world = StoreWorld(engine.crash(), now_seconds=world.now_seconds)
        queue = world.restored()
        consumer = attached(world, queue, 30)
        world.flush(seconds=0.5)
        assert len(consumer.held) == 30
        assert isinstance(world.engine, FaultyEngine)
        later = StoreWorld(world.engine.power_cut(), now_seconds=world.now_seconds)
        again = attached(later, later.restored())
        later.flush()
        assert again.numbers == list(range(40))
        assert set(range(30)) <= marks(again).keys()


@pytest.mark.usefixtures("small_blocks")
def test_the_lease_bounds_how_many_are_marked_for_nothing(world: StoreWorld) -> None:
    queue = world.queue()
    world.put(queue, 60)
    world.flush()
    consumer = attached(world, queue, 5)
    world.flush()
    assert len(consumer.held) == 5
    later = crashed(world)
    again = attached(later, later.restored())
    later.flush()
    assert set(range(5)) <= marks(again).keys()
    assert len(marks(again)) <= 5 + 8 + 16, "what was handed out, the block it reads in, and the lease"


@pytest.mark.usefixtures("small_blocks")
def test_a_reader_that_jumps_over_what_has_left_is_still_within_its_lease(world: StoreWorld) -> None:
    """A gap longer than the lease lies between the cursor and the next element."""
    queue = world.queue()
    world.put(queue, 64, ttl_ms=1000)
    world.put(queue, 8)
    world.flush(seconds=0.5)
    world.advance(1.0)
    assert queue.elements.live_count == 8
    consumer = attached(world, queue, 8)
    world.settle_down()
    assert len(consumer.held) == 8
    later = crashed(world)
    again = attached(later, later.restored())
    later.flush()
    assert marks(again).keys() == set(range(64, 72))


def test_an_end_in_good_order_leaves_exact_marks(world: StoreWorld) -> None:
    queue = world.queue()
    consumer = attached(world, queue, 4)
    world.put(queue, 8)
    world.run()
    consumer.requeue([consumer.held[1]])
    world.run()
    consumer.requeue([held for held in consumer.held if held.number == 1])
    for subscription in list(queue.subscriptions.values()):
        subscription.close()
    consumer.requeue([held for held in consumer.held if held.number == 3])
    consumer.requeue(attempted=False)
    later = StoreWorld(world.close_in_order(), now_seconds=world.now_seconds)
    again = attached(later, later.restored())
    later.flush()
    assert again.numbers == list(range(8))
    assert marks(again) == {1: 2, 3: 1}


def test_attempts_survive_a_crash_also_those_that_were_charged_before_the_message_was_saved(world: StoreWorld) -> None:
    queue = world.queue()
    consumer = attached(world, queue)
    world.put(queue, 2)
    world.run()
    consumer.requeue([consumer.held[0]])
    world.run()
    world.flush()
    assert world.store.counters.written_count == 2
    consumer.requeue([held for held in consumer.held if held.number == 1])
    world.flush()
    later = crashed(world)
    again = attached(later, later.restored())
    later.flush()
    assert marks(again) == {0: 1, 1: 1}


def test_attempts_of_a_run_that_ended_well_outlive_a_crash_of_the_next(world: StoreWorld) -> None:
    """They may lie far beyond what that one handed out."""
    with tight(block_bits=2, lease_count=4):
        queue = world.queue()
        consumer = attached(world, queue)
        world.put(queue, 40)
        world.flush()
        for subscription in list(queue.subscriptions.values()):
            subscription.close()
        consumer.requeue([consumer.held[-1]])
        consumer.requeue(attempted=False)
        second = StoreWorld(world.close_in_order(), now_seconds=world.now_seconds)
        attached(second, second.restored(), 1)
        second.flush()
        third = crashed(second)
        again = attached(third, third.restored())
        third.flush()
        assert marks(again)[39] == 1


# ---------------------------------------------------------------------- the end of a queue


def test_a_deleted_queue_leaves_no_record_and_owes_no_receipt(world: StoreWorld) -> None:
    queue = world.queue()
    consumer = attached(world, queue, 2)
    world.put(queue, 5)
    world.flush()
    saved, settled = Asked(), Asked()
    first = queue.elements.next_sequence
    world.put(queue, 2)
    queue.when_saved(first, saved)
    consumer.settle()
    shelf_of(queue).when_settled(settled)
    queue.close_queue("the test says so")
    assert saved.answers == ["consumed"]
    assert settled.answers == [], "the disk does not know yet"
    world.flush()
    assert settled.answers == ["settled"]
    assert world.leftovers() == {}
    assert world.records(keys.QUEUE) == world.records(keys.HEAD) == []


def test_a_queue_of_the_same_name_begins_anew(world: StoreWorld) -> None:
    queue = world.queue()
    world.put(queue, 5)
    world.flush()
    queue.close_queue("the test says so")
    second = world.queue()
    kept = world.put(second, 2)
    world.flush()
    later = crashed(world)
    consumer = attached(later, later.restored())
    later.flush()
    assert consumer.numbers == numbers(kept)
