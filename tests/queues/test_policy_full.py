"""What happens at the limit: block, drop_oldest, drop_newest, reject; in count and in bytes."""

from __future__ import annotations

from typing import Any

import pytest

from sluiceway.flow import FlowClosedError
from sluiceway.queues.full_actions import QueueFullError
from sluiceway.queues.policy import QueuePolicy
from tests.queues.rig import CHARGE_BYTES, WIRE_BYTES, Producer, World, assert_exact, make_policy

LIMITS: list[dict[str, Any]] = [
    {"count_max": 10},
    {"memory_bytes": 10 * CHARGE_BYTES},
    {"bytes_max": 10 * CHARGE_BYTES},
]


@pytest.fixture(params=LIMITS, ids=lambda limit: next(iter(limit)))
def limit(request: pytest.FixtureRequest) -> dict[str, Any]:
    chosen: dict[str, Any] = request.param
    return chosen


def test_block_stops_the_source_at_the_limit_and_lets_it_go_at_half(limit: dict[str, Any]) -> None:
    world = World()
    queue = world.shared(full="block", **limit)
    producer = Producer(world, queue)
    consumer = world.consumer()
    queue.subscribe(consumer)
    for _ in range(10):
        assert not producer.is_blocked()
        producer.send(world.messages(1))
    assert producer.is_blocked()
    world.run()
    consumer.settle(consumer.held[:4])
    assert producer.is_blocked()
    consumer.settle(consumer.held[:1])
    assert not producer.is_blocked()
    assert_exact(queue)


def test_a_run_that_overfills_is_taken_whole_and_the_next_waits_in_front() -> None:
    """The bound: the limit plus one run per source."""
    world = World()
    queue = world.shared(full="block", count_max=10)
    first, second = Producer(world, queue), Producer(world, queue)
    first.send(world.messages(15))
    second.send(world.messages(7))
    assert (queue.elements.live_count, queue.controller.overflow_count) == (15, 7)
    assert first.is_blocked() and second.is_blocked()
    assert queue.statistics().overflow_count == 7
    assert not queue.is_empty


@pytest.mark.parametrize("later", [False, True])
def test_blocked_producers_take_turns_and_nothing_is_lost_or_reordered(later: bool) -> None:
    """Five producers with ten times what fits: all finish, each in its own order, none far behind the others."""
    world = World(later=later)
    queue = world.shared(full="block", count_max=10)
    producers = [Producer(world, queue) for _ in range(5)]
    for _ in range(40):
        for producer in producers:
            producer.send(world.messages(2))
    sent = {
        message.number: n for n, producer in enumerate(producers) for run in producer.outbox for message in run
    }  # what went in at once is not among them
    consumer = world.consumer(1)
    queue.subscribe(consumer)
    progress: list[tuple[int, ...]] = []
    while not queue.is_empty or consumer.held:
        world.run()
        consumer.settle()
        progress.append(tuple(len(producer.outbox) for producer in producers))
    assert len(consumer.numbers) == 400
    assert sorted(consumer.numbers) == list(range(400))
    for n in range(5):
        own = [number for number in consumer.numbers if sent.get(number) == n]
        assert own == sorted(own)
    assert not any(producer.is_blocked() for producer in producers)
    # Inline resumption lets one source go on until the queue is full again: then it is the last in line.
    assert max(max(step) - min(step) for step in progress) <= 10


def test_offer_refuses_instead_of_waiting() -> None:
    world = World()
    queue = world.shared(full="block", count_max=2)
    producer = Producer(world, queue)
    run = world.messages(2)
    assert queue.offer(run, 16, producer.source)
    assert not queue.offer(world.messages(1), 8, producer.source)
    assert (producer.is_blocked(), queue.elements.live_count, queue.controller.overflow_count) == (True, 2, 0)


def test_offer_to_a_dropping_queue_is_taken_and_drops() -> None:
    world = World()
    queue = world.shared(full="drop_oldest", count_max=2)
    producer = Producer(world, queue)
    assert queue.offer(world.messages(3), 24, producer.source)
    assert not producer.is_blocked()
    assert (queue.elements.live_count, queue.dropped_count) == (2, 1)


def test_drop_oldest_keeps_the_newest_that_fit(limit: dict[str, Any]) -> None:
    world = World()
    queue = world.shared(full="drop_oldest", **limit)
    world.send(queue, 8)
    world.send(queue, 5)
    assert queue.dropped_count == 3
    assert_exact(queue)
    world.send(queue, 25)
    assert queue.dropped_count == 28
    consumer = world.consumer()
    queue.subscribe(consumer)
    world.run()
    assert consumer.held_numbers == list(range(28, 38))


def test_drop_oldest_never_takes_what_a_consumer_holds(limit: dict[str, Any]) -> None:
    world = World()
    queue = world.shared(full="drop_oldest", **limit)
    consumer = world.consumer(4)
    queue.subscribe(consumer)
    world.send(queue, 10)
    world.run()
    world.send(queue, 8)
    assert consumer.held_numbers == [0, 1, 2, 3]
    assert queue.dropped_count == 8
    consumer.settle()
    world.run()
    assert consumer.held_numbers == [12, 13, 14, 15]
    assert_exact(queue)


def test_drop_oldest_takes_what_came_back_first() -> None:
    world = World()
    queue = world.shared(full="drop_oldest", count_max=5)
    consumer = world.consumer(3)
    subscription = queue.subscribe(consumer)
    world.send(queue, 5)
    world.run()
    subscription.close()
    consumer.requeue()
    world.send(queue, 2)
    other = world.consumer()
    queue.subscribe(other)
    world.run()
    assert other.held_numbers == [2, 3, 4, 5, 6]
    assert other.deliveries[0].attempts_count == 1


def test_drop_newest_keeps_what_is_there(limit: dict[str, Any]) -> None:
    world = World()
    queue = world.shared(full="drop_newest", **limit)
    world.send(queue, 8)
    world.send(queue, 5)
    world.send(queue, 1)
    assert queue.dropped_count == 4
    consumer = world.consumer()
    queue.subscribe(consumer)
    world.run()
    assert consumer.held_numbers == list(range(10))
    assert_exact(queue)


def test_reject_leaves_the_queue_unchanged_and_says_what_to_do(limit: dict[str, Any]) -> None:
    world = World()
    queue = world.shared(full="reject", **limit)
    world.send(queue, 8)
    with pytest.raises(QueueFullError, match=r"/queue/a is full \(8 messages, 1600 bytes\).*raise memory_bytes"):
        world.send(queue, 3)
    assert (queue.elements.live_count, queue.rejected_count, queue.added_count) == (8, 3, 8)
    world.send(queue, 2)
    assert_exact(queue)


def test_a_message_that_fits_no_empty_queue_goes_itself_and_nothing_for_it() -> None:
    world = World()
    queue = world.shared(full="drop_oldest", memory_bytes=10 * CHARGE_BYTES)
    world.send(queue, 10)
    world.send(queue, 1, wire_bytes=10 * CHARGE_BYTES)
    assert (queue.elements.live_count, queue.dropped_count, queue.added_count) == (10, 1, 10)
    run = world.messages(2) + world.messages(1, wire_bytes=10 * CHARGE_BYTES) + world.messages(2)
    queue.add(run, sum(len(message.wire) for message in run), None)
    assert (queue.elements.live_count, queue.dropped_count, queue.added_count) == (10, 6, 14)
    assert_exact(queue)


@pytest.mark.parametrize("full", ["block", "drop_oldest", "drop_newest", "reject"])
def test_fits_says_whether_a_run_would_be_taken_whole(full: str) -> None:
    """So that a sender may divide a run instead of having it refused, and counted, as a whole."""
    world = World()
    queue = world.shared(full=full, count_max=5)
    assert queue.fits(5, 5 * WIRE_BYTES)
    world.send(queue, 3)
    assert queue.fits(2, 2 * WIRE_BYTES)
    assert queue.fits(3, 3 * WIRE_BYTES) is (full == "block"), "a run may overfill where its sender waits afterwards"
    world.send(queue, 2)
    assert not queue.fits(1, WIRE_BYTES)
    assert queue.rejected_count == queue.dropped_count == 0


def test_the_dropping_policies_never_block_the_sender() -> None:
    world = World()
    for full in ("drop_oldest", "drop_newest"):
        queue = world.shared(full=full, count_max=3)
        producer = Producer(world, queue)
        for _ in range(10):
            producer.send(world.messages(2))
        assert not producer.is_blocked()
        assert queue.dropped_count == 17


def test_a_deleted_queue_lets_everybody_go_and_says_how_many_were_in_it() -> None:
    world = World()
    queue = world.shared(full="block", count_max=4)
    producer = Producer(world, queue)
    consumer, idle = world.consumer(2), world.consumer()
    queue.subscribe(consumer)
    sent = [world.messages(4), world.messages(3)]
    producer.send(sent[0])
    queue.add(sent[1], 24, None)
    world.run()
    queue.subscribe(idle)
    gone = queue.close_queue("the test says so")
    assert gone == 7
    assert not producer.is_blocked()
    assert consumer.cancelled_for == idle.cancelled_for == ["the test says so"]
    consumer.settle()
    assert queue.controller.limiter.used_bytes == 0
    assert not queue.is_open
    assert queue.close_queue("again") == 0
    with pytest.raises(FlowClosedError):
        world.send(queue, 1)
    with pytest.raises(FlowClosedError, match="/queue/a was deleted: look it up again"):
        queue.subscribe(consumer)
    world.run()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"memory_bytes": 0}, "memory_bytes must be above 0, got 0"),
        ({"count_max": -1}, "count_max must be above 0"),
        ({"bytes_max": 0}, "bytes_max must be above 0"),
        ({"full": "explode"}, "full must be one of block, drop_oldest, .*, reject, dead_letter, got 'explode'"),
        ({"auto_delete_seconds": -1.0}, "auto_delete_seconds must not be negative"),
        ({"expires_max_ms": 0}, "expires_max_ms must be above 0"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_policy(**fields)


def test_the_tighter_byte_limit_counts() -> None:
    assert QueuePolicy(memory_bytes=100).limit_bytes == 100
    assert QueuePolicy(memory_bytes=100, bytes_max=50).limit_bytes == 50
    assert QueuePolicy(memory_bytes=100, bytes_max=500).limit_bytes == 100
