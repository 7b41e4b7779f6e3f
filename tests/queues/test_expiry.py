"""Messages past their date: by timer, at hand-out, when they come back; and what the policy adds."""

from __future__ import annotations

from random import Random

import pytest

from sluiceway.queues.cursored import CursoredQueue
from sluiceway.queues.expiry import EXPIRE_COUNT, EXPIRIES_MIN, SWEEP_COUNT, ExpiryDates
from sluiceway.queues.message import Message
from sluiceway.queues.slices import FAN_OUT_COUNT
from tests.queues.rig import Delivery, Head, Producer, World, assert_exact, numbers


def test_what_nobody_takes_leaves_at_its_date() -> None:
    world = World()
    queue = world.shared()
    world.send(queue, 2, ttl_ms=2000)
    world.send(queue, 2)
    world.send(queue, 2, ttl_ms=1000)
    world.send(queue, 2, expires_at_ms=world.now_ms + 1500)
    for seconds, left in ((0.999, 8), (0.001, 6), (0.5, 4), (0.5, 2), (1000.0, 2)):
        world.advance(seconds)
        assert queue.elements.live_count == left
        assert_exact(queue)
    assert queue.expired_count == 6


def test_nothing_past_its_date_is_handed_out_even_before_the_timer_ran() -> None:
    world = World()
    queue = world.shared()
    consumer = world.consumer()
    for ttl_ms in (1000, 0, 1000, 5000):
        world.send(queue, 2, ttl_ms=ttl_ms)
    queue.subscribe(consumer)
    world.now_seconds += 2
    queue.dispatch(100)
    assert consumer.held_numbers == [2, 3, 6, 7]
    assert queue.expired_count == 4
    world.run()
    assert queue.expired_count == 4
    assert_exact(queue)


def test_what_a_consumer_holds_at_its_date_can_be_settled() -> None:
    world = World()
    queue = world.shared()
    consumer = world.consumer()
    queue.subscribe(consumer)
    world.send(queue, 2, ttl_ms=1000)
    world.run()
    world.advance(5)
    assert queue.expired_count == 0
    consumer.settle()
    assert (queue.settled_count, queue.expired_count) == (2, 0)


@pytest.mark.parametrize("leaves", [False, True])
def test_what_comes_back_past_its_date_leaves_at_once(leaves: bool) -> None:
    """Also when no consumer is there to look at it."""
    world = World()
    queue = world.shared()
    consumer = world.consumer()
    subscription = queue.subscribe(consumer)
    world.send(queue, 2, ttl_ms=1000)
    world.send(queue, 1)
    world.run()
    world.advance(5)
    if leaves:
        subscription.close()
    consumer.requeue()
    assert (queue.expired_count, queue.elements.live_count) == (2, 1)
    assert_exact(queue)


def test_what_came_back_in_time_leaves_at_its_date() -> None:
    world = World()
    queue = world.shared()
    consumer = world.consumer()
    subscription = queue.subscribe(consumer)
    world.send(queue, 2, ttl_ms=1000)
    world.run()
    subscription.close()
    consumer.requeue()
    world.advance(1)
    assert (queue.expired_count, queue.elements.live_count) == (2, 0)


@pytest.mark.parametrize(
    ("expires_at_seconds", "ttl_ms", "max_ms", "lives_ms"),
    [
        (0, 0, 3000, 3000),
        (0, 1000, 3000, 1000),
        (0, 9000, 3000, 3000),
        (101, 0, 3000, 1000),
        (109, 0, 3000, 3000),
        (109, 2000, None, 2000),
        (101, 2000, None, 1000),
    ],
)
def test_the_earliest_of_all_dates_counts(
    expires_at_seconds: int, ttl_ms: int, max_ms: int | None, lives_ms: int
) -> None:
    """The clock stands at 100 s."""
    world = World()
    queue = world.shared(expires_max_ms=max_ms)
    world.send(queue, 1, expires_at_ms=expires_at_seconds * 1000, ttl_ms=ttl_ms)
    world.advance((lives_ms - 1) / 1000)
    assert queue.elements.live_count == 1
    world.advance(0.001)
    assert queue.elements.live_count == 0


def test_expiry_makes_room_for_those_that_wait() -> None:
    world = World()
    queue = world.shared(full="block", count_max=4)
    world.send(queue, 4, ttl_ms=1000)
    waiting = world.send(queue, 2)
    consumer = world.consumer()
    world.advance(1)
    queue.subscribe(consumer)
    world.run()
    assert consumer.held_numbers == numbers(waiting)


def test_two_queues_that_share_messages_each_keep_their_own_date() -> None:
    """A composite destination hands the same objects to several queues."""
    world = World()
    short, long, forever = world.shared(expires_max_ms=1000), world.shared(expires_max_ms=5000), world.shared()
    messages = world.messages(2)
    for queue in (short, long, forever):
        queue.add(messages, 16, None)
        world.send(queue, 1, ttl_ms=9000)
    world.advance(1)
    assert [queue.elements.live_count for queue in (short, long, forever)] == [0, 3, 3]
    world.advance(4)
    assert [queue.elements.live_count for queue in (short, long, forever)] == [0, 0, 3]
    consumer = world.consumer()
    forever.subscribe(consumer)
    world.run()
    assert len(consumer.held) == 3


def test_dates_of_what_was_consumed_in_time_are_not_kept() -> None:
    """An hour to live and a thousand runs a second must not receive buffer up a list of dates."""
    world = World()
    queue = world.shared()
    consumer = world.consumer(auto=True)
    stuck = world.consumer(1)
    queue.subscribe(stuck)
    world.send(queue, 1, ttl_ms=3_600_000)
    world.run()
    queue.subscribe(consumer)
    for _ in range(20 * EXPIRIES_MIN):
        world.send(queue, 1, ttl_ms=3_600_000)
        world.run()
    assert len(queue.expiry) <= EXPIRIES_MIN + 1
    stuck.requeue()
    world.run()
    assert len(consumer.deliveries) + len(stuck.deliveries) == 20 * EXPIRIES_MIN + 2


def test_dates_are_cleared_out_a_few_at_a_time() -> None:
    """Whatever leaves meanwhile, and however many there are: nothing is passed by, and what is dead goes."""
    elements = CursoredQueue()
    dates = ExpiryDates(elements)
    looked_count = most_count = 0
    holds_any = elements.holds_any

    class Counted(CursoredQueue):
        def holds_any(self, first: int, end: int) -> bool:
            nonlocal looked_count
            looked_count += 1
            return holds_any(first, end)

    dates._elements = Counted()
    dates._elements._blocks = elements._blocks
    random = Random(7)
    alive: dict[int, int] = {}
    for now_ms in range(20_000):
        looked_count = 0
        at_ms = now_ms + random.randrange(1, 3000)
        first = elements.extend([Message(Head(), b"x", now_ms, at_ms)])
        alive[first] = at_ms
        earliest = dates.next_ms
        assert dates.add(at_ms, first, first + 1) == (earliest is None or at_ms < earliest)
        most_count = max(most_count, looked_count)
        if random.random() < 0.5:
            gone = random.choice(list(alive)[-50:])
            elements.remove([gone])
            del alive[gone]
        due = dates.take_due(now_ms, 64)
        assert due == sorted(s for s, at in alive.items() if at <= now_ms)
        if due:
            elements.remove(due)
            for sequence in due:
                del alive[sequence]
        next_ms = dates.next_ms
        assert not alive or (next_ms is not None and next_ms <= min(alive.values()))
        assert len(dates) <= 3 * len(alive) + 2 * EXPIRIES_MIN
    assert most_count == SWEEP_COUNT


def test_each_topic_subscriber_skips_what_is_past_its_date() -> None:
    world = World()
    topic = world.topic()
    quick, slow = world.consumer(auto=True), world.consumer(1)
    topic.subscribe(quick)
    topic.subscribe(slow)
    world.send(topic, 3, ttl_ms=1000)
    world.send(topic, 2)
    world.run()
    world.advance(2)
    slow.settle()
    world.run()
    slow.settle()
    world.run()
    slow.settle()
    assert quick.numbers == [0, 1, 2, 3, 4]
    assert slow.numbers == [0, 3, 4]
    assert topic.expired_count == 2
    assert topic.is_empty
    assert_exact(topic)


def test_a_topic_where_all_that_waits_expires_lets_its_sender_go() -> None:
    world = World()
    topic = world.topic(count_max=4)
    consumer = world.consumer(1)
    topic.subscribe(consumer)
    world.send(topic, 1)
    world.run()
    world.send(topic, 4, ttl_ms=1000)
    world.send(topic, 2)
    world.now_seconds += 2
    consumer.settle()
    world.run()
    consumer.settle()
    world.run()
    assert consumer.numbers == [0, 5, 6]
    assert topic.lead.controller.limiter.used_bytes == 0


@pytest.mark.parametrize("runs", [1, 4 * EXPIRE_COUNT])
def test_a_backlog_that_expires_together_goes_in_portions(runs: int) -> None:
    """Whether it has one date or thousands: no timer looks at more than one portion, and each frees its room once."""
    world = World()
    queue = world.shared()
    for n in range(runs):
        world.send(queue, 4 * EXPIRE_COUNT // runs, ttl_ms=1000 + n % 7)
    world.now_seconds += 2
    lefts = []
    while queue.elements.live_count:
        queue.expiry.run_due()
        lefts.append(queue.elements.live_count)
        assert_exact(queue)
    assert lefts == [3 * EXPIRE_COUNT, 2 * EXPIRE_COUNT, EXPIRE_COUNT, 0]
    assert queue.expired_count == 4 * EXPIRE_COUNT
    world.run()


def test_a_date_is_never_written_into_a_message_that_another_queue_may_hold() -> None:
    world = World()
    plain, short = world.shared(), world.shared(expires_max_ms=1000)
    world.send(plain, 1, ttl_ms=1)
    messages = world.messages(3)
    plain.add(messages, 24, None)
    short.add(messages, 24, None)
    world.advance(5)
    consumer = world.consumer()
    plain.subscribe(consumer)
    world.run()
    assert consumer.numbers == numbers(messages)


@pytest.mark.parametrize("full", ["block", "drop_oldest", "drop_newest", "reject"])
def test_the_dead_behind_a_stalled_subscriber_take_no_room(full: str) -> None:
    world = World()
    topic = world.topic(full=full, count_max=100)
    stalled, quick = world.consumer(1), world.consumer(auto=True)
    topic.subscribe(stalled)
    topic.subscribe(quick)
    producer = Producer(world, topic)
    producer.send(*[world.messages(1, head=Head(ttl_ms=1000)) for _ in range(100)])
    world.run()
    world.advance(3600)
    assert (topic.elements.live_count, topic.expired_count) == (1, 99), "all but the one in its hands"
    producer.send(*[world.messages(1) for _ in range(10)])
    world.run()
    assert not producer.is_blocked() and not producer.outbox
    assert (topic.added_count, topic.dropped_count, topic.rejected_count) == (110, 0, 0)
    while stalled.held:
        stalled.settle()
        world.run()
    assert stalled.numbers == [0, *range(100, 110)]
    assert set(stalled.dropped_counts) == {0}
    assert topic.is_empty
    assert_exact(topic)


@pytest.mark.parametrize("ends", ["settle", "requeue", "close"])
def test_what_a_holder_keeps_at_its_date_leaves_when_it_lets_go(ends: str) -> None:
    """Though a stalled subscriber never came to it."""
    world = World()
    topic = world.topic()
    stalled, holder = world.consumer(1), world.consumer(5)
    topic.subscribe(stalled)
    subscription = topic.subscribe(holder)
    world.send(topic, 1)
    world.send(topic, 4, ttl_ms=1000)
    world.run()
    world.advance(2)
    assert topic.elements.live_count == 5, "the holder may still settle what it has"
    if ends == "settle":
        holder.settle()
    elif ends == "requeue":
        holder.requeue()
    else:
        subscription.close()
    world.run()
    assert (topic.elements.live_count, topic.expired_count) == (1, 4)
    assert not topic.overdue.sequences
    assert_exact(topic)


def test_a_subscriber_that_comes_to_an_expired_backlog_first_is_stopped_by_its_budget() -> None:
    world = World()
    topic = world.topic()
    consumer = world.consumer(1)
    topic.subscribe(consumer)
    world.send(topic, 1)
    world.run()
    for _ in range(10):
        world.send(topic, FAN_OUT_COUNT, ttl_ms=1000)
    world.now_seconds += 2
    consumer.on_delivery = _never
    consumer.settle()
    assert topic.dispatch(1)
    assert topic.expired_count <= FAN_OUT_COUNT
    world.run()
    assert topic.is_empty
    assert topic.expired_count == 10 * FAN_OUT_COUNT


def _never(_delivery: Delivery) -> None:
    raise AssertionError("nothing past its date is handed out")
