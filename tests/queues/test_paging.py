"""Paging of one queue, case by case: what leaves memory, what comes back, and who must not wait for it.

The whole against a plain list: test_paging_model.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sluiceway.flow import ResidencyLimiter
from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.queues.message import MESSAGE_OVERHEAD_BYTES
from sluiceway.queues.paging import Pager
from sluiceway.queues.queue import MessageQueue
from sluiceway.store.memory import MemoryEngine
from tests.queues.rig import FakeConsumer, Head
from tests.store.faulty import Failure, FaultyEngine
from tests.store.rig import WIRE_BYTES, OfferingProducer, StoreWorld, tight

CHARGE_BYTES = WIRE_BYTES + MESSAGE_OVERHEAD_BYTES


@pytest.fixture(autouse=True)
def small_blocks() -> Iterator[None]:
    """Of four messages."""
    with tight(block_bits=2, lease_count=64, blocks_min=1):
        yield


@pytest.fixture(params=["engine", "files"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> StoreWorld:
    """What is not persistent goes to the engine, or to files."""
    return StoreWorld(MemoryEngine(), pages=tmp_path if request.param == "files" else None)


def room_for(count: int) -> int:
    """Memory for so many messages; from half of it on a queue pages."""
    return count * CHARGE_BYTES


def attached(world: StoreWorld, queue: MessageQueue, window: int | None = None, *, auto: bool = False) -> FakeConsumer:
    consumer = world.consumer(window, auto=auto)
    queue.subscribe(consumer)
    return consumer


def outside(queue: MessageQueue) -> list[int]:
    """The blocks that are outside."""
    return [index for index, block in queue.elements.blocks() if block.outside is not None]


def limiter_of(queue: MessageQueue) -> ResidencyLimiter:
    limiter = queue.controller.limiter
    assert isinstance(limiter, ResidencyLimiter)
    return limiter


def pager_of(queue: MessageQueue) -> Pager:
    assert queue.pager is not None
    return queue.pager


def put_paged(world: StoreWorld, queue: MessageQueue, count: int, **head: Any) -> None:
    """Add so many, one by one, with time for the disk."""
    for _ in range(count):
        world.put(queue, 1, **{"persistent": False, **head})
        world.settle_down()


# ---------------------------------------------------------------------- out


def test_the_newest_full_blocks_leave_first_and_the_one_that_fills_stays(world: StoreWorld) -> None:
    queue = world.queue(memory_bytes=room_for(24))
    put_paged(world, queue, 13)
    assert outside(queue) == [2], "blocks 0 and 1 are read next, block 3 is being filled"
    put_paged(world, queue, 13)
    assert outside(queue) == [2, 3, 4, 5]
    assert limiter_of(queue).used_count == 10 and limiter_of(queue).total_count == 26


def test_memory_stays_within_its_share_however_much_comes_in(world: StoreWorld) -> None:
    queue = world.queue(memory_bytes=room_for(40))
    for _ in range(50):
        world.put(queue, 4, persistent=False)
        world.settle_down()
        assert limiter_of(queue).used_bytes <= room_for(20 + 4)
    assert queue.elements.live_count == 200


def test_what_a_consumer_holds_leaves_memory_too(world: StoreWorld) -> None:
    """A prefetch of ten thousand is not kept in memory twice."""
    queue = world.queue(memory_bytes=room_for(24))
    consumer = attached(world, queue)
    put_paged(world, queue, 40)
    world.wait_in_vain()
    assert len(consumer.held) == 40
    assert limiter_of(queue).used_count <= 12
    consumer.settle()
    assert (limiter_of(queue).used_count, limiter_of(queue).used_bytes) == (0, 0)
    assert (limiter_of(queue).total_count, limiter_of(queue).total_bytes) == (0, 0)
    world.flush()
    assert not world.leftovers()


def test_near_blocks_leave_when_they_alone_keep_senders_waiting(world: StoreWorld) -> None:
    """What is read next is worth keeping, but not at the price of a queue that takes nothing any more."""
    queue = world.queue(memory_bytes=room_for(12))
    producer = OfferingProducer(world, queue)
    producer.send(world.messages(12, head=Head()))
    producer.send(world.messages(1, head=Head()))
    assert producer.is_blocked, "until the disk has some of it"
    world.settle_down()
    assert not producer.is_blocked
    consumer = attached(world, queue)
    world.settle_down()
    assert [delivery.number for delivery in consumer.held] == list(range(13))


def test_the_block_that_is_filled_is_closed_when_it_leaves(world: StoreWorld) -> None:
    """What is not persistent is written once for each block: what came in later would be missing."""
    queue = world.queue(memory_bytes=2 * CHARGE_BYTES)
    put_paged(world, queue, 6, persistent=False)
    assert limiter_of(queue).used_bytes <= CHARGE_BYTES
    consumer = attached(world, queue, 1, auto=True)
    world.settle_down()
    put_paged(world, queue, 6, persistent=False)
    assert [delivery.number for delivery in consumer.deliveries] == list(range(12))


def test_what_comes_after_a_closed_block_that_expired_does_not_take_its_place(world: StoreWorld) -> None:
    """The disk may still have the record of what expired."""
    queue = world.queue(memory_bytes=2 * CHARGE_BYTES)
    put_paged(world, queue, 2, persistent=False, ttl_ms=1000)
    world.now_seconds += 2
    world.settle_down()
    assert queue.is_empty
    put_paged(world, queue, 3, persistent=False)
    consumer = attached(world, queue)
    world.settle_down()
    assert [delivery.number for delivery in consumer.held] == [2, 3, 4]


def test_a_block_that_a_reader_is_at_stays_and_is_excused(world: StoreWorld) -> None:
    """One message may be larger than the memory of its queue; others come in all the same, and memory stays bounded."""
    queue = world.queue(memory_bytes=1000)
    consumer = attached(world, queue, 1)
    world.put(queue, 2, wire_bytes=3000)
    world.settle_down()
    world.wait_in_vain()
    producer = OfferingProducer(world, queue)
    for _ in range(30):
        producer.send(world.messages(1, wire_bytes=400, head=Head()))
        world.settle_down()
        assert not producer.is_blocked
        assert limiter_of(queue).used_bytes <= 1000 + 2 * 3200 + 592
    while consumer.held:
        consumer.settle()
        world.settle_down()
    assert len(consumer.deliveries) == 32 and limiter_of(queue).total_count == 0


def test_what_is_set_aside_for_its_group_stays_even_if_it_was_on_its_way_out(world: StoreWorld) -> None:
    queue = world.queue(memory_bytes=room_for(24))
    busy = attached(world, queue, 1)
    put_paged(world, queue, 1, group="k")
    world.put(queue, 14, persistent=False, group="k")
    world.run()
    other = attached(world, queue)  # the lines of k stand before the one that is busy
    world.settle_down()
    assert (len(busy.held), other.numbers) == (1, [])
    while busy.held:
        busy.settle()
        world.settle_down()
    assert sorted(busy.numbers + other.numbers) == list(range(15))


def test_with_throttle_nothing_leaves_memory(world: StoreWorld) -> None:
    queue = world.queue(memory_bytes=room_for(12), paging="throttle")
    producer = OfferingProducer(world, queue)
    for _ in range(20):
        producer.send(world.messages(1, head=Head()))
        world.settle_down()
    assert producer.is_blocked
    assert (outside(queue), queue.elements.live_count) == ([], 12)


# ---------------------------------------------------------------------- in


def test_what_comes_back_is_handed_out_in_order_and_read_ahead(world: StoreWorld) -> None:
    queue = world.queue(memory_bytes=room_for(60))
    put_paged(world, queue, 100)
    assert len(outside(queue)) > 10
    consumer = attached(world, queue, auto=True)
    world.run()
    world.write()  # the lease
    assert world.worker.reads_count > 1, "the next ones are asked for at the same time"
    world.flush(seconds=0.2)
    assert consumer.numbers == list(range(100))
    assert pager_of(queue).lost_count == 0


def test_at_worst_one_block_is_held_beyond_the_limit(world: StoreWorld) -> None:
    """The one that somebody waits for always comes in."""
    queue = world.queue(memory_bytes=room_for(8))
    put_paged(world, queue, 6)
    producer = OfferingProducer(world, queue)
    producer.send(*(world.messages(1, head=Head()) for _ in range(60)))
    consumer = attached(world, queue, 1)
    for _ in range(66):
        world.settle_down()
        assert limiter_of(queue).used_bytes <= room_for(8 + 4)
        consumer.settle()
    world.settle_down()
    assert consumer.numbers == list(range(66))


def test_a_queue_says_that_its_reader_waits_for_the_disk(world: StoreWorld) -> None:
    """First for the note that something is handed over, then for each block. Who takes in portions goes by it."""
    queue = world.queue(memory_bytes=room_for(60))
    put_paged(world, queue, 100)
    assert not queue.awaits_disk
    consumer = attached(world, queue, auto=True)
    world.run()
    assert queue.awaits_disk
    world.write()  # the lease
    assert queue.awaits_disk
    world.flush(seconds=0.2)
    assert consumer.numbers == list(range(100))
    assert not queue.awaits_disk


def test_what_was_given_back_does_not_wait_for_a_block_ahead(world: StoreWorld) -> None:
    queue = world.queue(memory_bytes=room_for(24))
    put_paged(world, queue, 30)
    consumer = attached(world, queue)
    world.run()
    world.write()  # the lease
    held = len(consumer.held)
    assert held < 30 and world.worker.reads_count, "it waits for the disk"
    consumer.requeue(consumer.held[-1:])
    world.run()
    assert [delivery.number for delivery in consumer.deliveries[held:]] == [held - 1]


def test_a_reader_goes_on_when_nothing_is_left_of_the_block_it_waits_for() -> None:
    """That the disk could not read it does not matter any more."""
    engine = FaultyEngine(Random(1))
    world = StoreWorld(engine)
    queue = world.queue(memory_bytes=room_for(24))
    put_paged(world, queue, 8)
    put_paged(world, queue, 4, ttl_ms=1000)
    put_paged(world, queue, 5)
    assert 2 in outside(queue)
    engine.fail_next(Failure.READ)
    consumer = attached(world, queue)
    world.flush(seconds=0.5)
    assert consumer.numbers == list(range(8))
    world.flush(seconds=1.0)
    assert consumer.numbers == [*range(8), *range(12, 17)]


# ---------------------------------------------------------------------- expiry


def test_a_block_past_its_date_leaves_without_being_read(world: StoreWorld) -> None:
    queue = world.queue(memory_bytes=room_for(24))
    put_paged(world, queue, 24, ttl_ms=1000)
    assert outside(queue)
    world.now_seconds += 1.1
    world.run()
    assert queue.elements.live_count == 0 and queue.expired_count == 24
    assert pager_of(queue).paged_in_count == 0


def test_in_a_block_of_many_dates_only_what_is_past_its_own_goes(world: StoreWorld) -> None:
    """One date stands for all of a block that is outside; it must not count for the others when that is in again."""
    queue = world.queue(memory_bytes=room_for(24))
    put_paged(world, queue, 8)
    for ttl_ms in (1000, 5000, 0, 1000):
        put_paged(world, queue, 1, ttl_ms=ttl_ms)
    put_paged(world, queue, 4)
    assert outside(queue) == [2]
    world.flush(seconds=2.0)
    assert (queue.expired_count, queue.elements.live_count) == (2, 14)
    consumer = attached(world, queue)
    world.flush(seconds=0.1)
    assert consumer.numbers == [*range(8), 9, 10, *range(12, 16)]


def test_a_block_is_not_read_again_and_again_for_what_a_consumer_holds_past_its_date(world: StoreWorld) -> None:
    queue = world.queue(memory_bytes=room_for(24))
    consumer = attached(world, queue, 6)
    put_paged(world, queue, 5)
    put_paged(world, queue, 1, ttl_ms=1000)
    put_paged(world, queue, 20)
    world.flush(seconds=20.0, steps=40)
    assert 5 in consumer.held_numbers
    assert pager_of(queue).paged_in_count <= 2


def test_what_comes_back_past_its_date_to_a_block_outside_goes_without_a_consumer(world: StoreWorld) -> None:
    queue = world.queue(memory_bytes=room_for(24))
    consumer = attached(world, queue, 4)
    put_paged(world, queue, 2, ttl_ms=10_000)
    put_paged(world, queue, 2)
    put_paged(world, queue, 20)
    world.wait_in_vain()
    assert 0 in outside(queue)
    for subscription in list(queue.subscriptions.values()):
        subscription.close()
    consumer.requeue()
    world.flush(seconds=10.0)
    assert (queue.expired_count, queue.elements.live_count) == (2, 22)


# ---------------------------------------------------------------------- full


def test_drop_oldest_takes_what_is_outside_when_that_is_the_oldest(world: StoreWorld) -> None:
    queue = world.queue(memory_bytes=room_for(24), full="drop_oldest", count_max=40)
    put_paged(world, queue, 40)
    consumer = attached(world, queue, 9)
    world.settle_down()
    put_paged(world, queue, 12)
    assert queue.elements.live_count <= 40
    consumer.settle()
    everything = attached(world, queue, auto=True)
    world.flush()
    got = sorted(consumer.numbers[9:] + everything.numbers)
    assert consumer.numbers[:9] == list(range(9)), "never what a consumer holds"
    assert got == list(range(52 - len(got), 52)), "the newest are left, without a gap"
    assert queue.dropped_count == 52 - 9 - len(got)


def test_drop_newest_keeps_what_there_is_room_for(world: StoreWorld) -> None:
    """A quota in messages alone says nothing about bytes."""
    queue = world.queue(memory_bytes=room_for(24), full="drop_newest", count_max=10)
    world.put(queue, 8, persistent=False)
    world.put(queue, 5, persistent=False)
    assert (queue.elements.live_count, queue.dropped_count) == (10, 3)


def test_with_a_disk_a_message_larger_than_memory_is_not_dropped_for_it(world: StoreWorld) -> None:
    queue = world.queue(memory_bytes=room_for(10), full="drop_oldest", bytes_max=room_for(100))
    world.put(queue, 1, wire_bytes=room_for(20), persistent=False)
    assert (queue.elements.live_count, queue.dropped_count) == (1, 0)
    world.put(queue, 1, wire_bytes=room_for(101), persistent=False)
    assert (queue.elements.live_count, queue.dropped_count) == (1, 1)


@pytest.mark.parametrize("limits", [{"count_max": 40}, {"bytes_max": 40 * CHARGE_BYTES}])
def test_senders_wait_at_the_quota_and_go_on_as_it_drains(world: StoreWorld, limits: dict[str, int]) -> None:
    queue = world.queue(memory_bytes=room_for(24), **limits)
    producer = OfferingProducer(world, queue)
    for _ in range(100):
        producer.send(world.messages(1, head=Head()))
        world.settle_down()
    assert (queue.elements.live_count, producer.is_blocked) == (40, True)
    consumer = attached(world, queue, auto=True)
    world.flush()
    assert consumer.numbers == list(range(100))
    assert not producer.is_blocked


# ---------------------------------------------------------------------- placeholders


@pytest.mark.parametrize("paging", ["page", "offload"])
def test_what_leaves_while_it_is_outside_leaves_the_limiter_exact_in_the_end(world: StoreWorld, paging: str) -> None:
    queue = world.queue(memory_bytes=room_for(24), paging=paging)
    consumer = attached(world, queue)
    for place in range(40):
        world.put(queue, 1, wire_bytes=10 + 7 * (place % 9), persistent=False)
        world.settle_down()
    world.wait_in_vain()
    assert outside(queue)
    wires = sum(len(delivery.message.wire) for delivery in consumer.held)
    for place in (30, 3, 17, 0, 1, 2):
        delivery = next(d for d in consumer.held if d.number == place)
        wires -= len(delivery.message.wire)
        consumer.settle([delivery])
        if paging == "offload":
            assert limiter_of(queue).total_bytes == wires + len(consumer.held) * MESSAGE_OVERHEAD_BYTES
    consumer.settle()
    assert (limiter_of(queue).total_count, limiter_of(queue).total_bytes, limiter_of(queue).used_bytes) == (0, 0, 0)


def test_a_closed_queue_gives_all_back_whatever_is_under_way(world: StoreWorld) -> None:
    queue: ConsumedQueue = world.queue(memory_bytes=room_for(24))
    put_paged(world, queue, 30)
    world.put(queue, 8, persistent=False)
    attached(world, queue, 10)
    world.run()
    assert world.worker.has_work
    assert queue.close_queue("the test says so") == 38
    assert (limiter_of(queue).used_bytes, limiter_of(queue).total_bytes) == (0, 0)
    world.flush()
    assert not world.leftovers()
    assert world.is_flushed
