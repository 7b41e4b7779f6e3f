"""Delayed messages: not before their time, in order when it has come, and in nobody's way until then."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.queues.consumed import PASS_COUNT, ConsumedQueue
from sluiceway.queues.delay_timer import DUE_COUNT
from sluiceway.queues.delayed import DEAD_MIN, DelayedElements
from sluiceway.queues.exclusive import SingleDistribution
from sluiceway.queues.names import parse
from sluiceway.queues.policy import QueuePolicy
from sluiceway.queues.registry import DestinationRegistry
from sluiceway.queues.shared import shared_queue
from tests.queues.rig import Head, World, assert_exact, make_policy, numbers

# ---------------------------------------------------------------------- the heap


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 2**63 - 1)), unique_by=lambda pair: pair[0]), st.data())
def test_later_is_a_sorted_list(pairs: list[tuple[int, int]], data: st.DataObject) -> None:
    """Against a plain list, through put, discard, take_due."""
    later = DelayedElements(10_000)
    model: dict[int, int] = {}
    for sequence, due_ms in pairs:
        later.put([sequence], due_ms)
        model[sequence] = due_ms
    gone = data.draw(st.sets(st.sampled_from([s for s, _ in pairs]))) if pairs else set()
    later.discard(sorted(gone))
    later.discard(sorted(gone))
    for sequence in gone:
        del model[sequence]
    assert len(later) == len(model)
    assert later.lowest() == min(model, default=None)
    assert later.next_ms == min(model.values(), default=None)
    assert all(later.holds(sequence) is (sequence in model) for sequence, _ in pairs)
    now_ms = data.draw(st.integers(0, 2**63 - 1))
    due = sorted((due_ms, sequence) for sequence, due_ms in model.items() if due_ms <= now_ms)
    count_max = data.draw(st.integers(1, 20))
    assert later.take_due(now_ms, count_max) == [sequence for _due_ms, sequence in due[:count_max]]
    assert len(later) == len(model) - len(due[:count_max])


def test_later_forgets_what_left_before_its_time() -> None:
    """Memory is bounded by what waits, not by what ever did."""
    later = DelayedElements(10**6)
    for start in range(0, 50_000, 1000):
        later.put(range(start, start + 1000), 10**9)
        later.discard(range(start, start + 999))
    assert len(later) == 50
    assert len(later._heap) <= 2 * 50 + DEAD_MIN + 1000
    assert len(later._bits) <= 50


def test_bits_say_which_of_a_block_wait() -> None:
    later = DelayedElements(100)
    later.put([1024, 1026, 2048], 5)
    assert later.bits_from(1024) == 0b101
    assert later.bits_from(1026) == 1
    assert later.bits_from(0) == 0


# ---------------------------------------------------------------------- sent with a delay


@pytest.mark.parametrize("kind", [shared_queue, partial(ConsumedQueue, distribution=SingleDistribution)])
def test_delayed_message_comes_to_the_millisecond(kind: Callable[..., ConsumedQueue]) -> None:
    world = World()
    queue = kind("/queue/a", make_policy(), world.environment)
    consumer = world.consumer()
    queue.subscribe(consumer)
    (delayed,) = numbers(world.send(queue, 1, delay_ms=1500))
    (plain,) = numbers(world.send(queue, 1))
    world.run()
    assert consumer.numbers == [plain]
    assert (queue.delayed_count, queue.statistics().delayed_count, queue.facts()["delayed"]) == (1, 1, 1)
    assert not queue.is_empty
    world.advance(1.499)
    assert consumer.numbers == [plain]
    world.advance(0.001)
    assert consumer.numbers == [plain, delayed]
    assert consumer.slices[-1].attempts is None
    assert queue.delayed_count == 0
    consumer.settle()
    assert_exact(queue)


def test_delay_counts_from_arrival_whether_or_not_anybody_consumes() -> None:
    world = World()
    queue = world.shared()
    world.send(queue, 3, delay_ms=1000)
    world.advance(0.6)
    consumer = world.consumer()
    queue.subscribe(consumer)
    world.run()
    assert consumer.numbers == []
    world.advance(0.4)
    assert consumer.numbers == [0, 1, 2]


def test_due_before_anybody_looked_they_keep_their_place() -> None:
    """Without a consumer the time passes unnoticed: then they are where they were sent."""
    world = World()
    queue = world.shared()
    sent = [world.send(queue, 1, delay_ms=delay)[0].number for delay in (500, 0, 100, 0)]
    world.advance(1)
    assert queue.delayed_count == 0
    consumer = world.consumer()
    queue.subscribe(consumer)
    world.run()
    assert consumer.numbers == sent


def test_what_is_due_goes_before_what_lies_ahead() -> None:
    world = World()
    queue = world.shared()
    consumer = world.consumer(2)
    queue.subscribe(consumer)
    (delayed,) = numbers(world.send(queue, 1, delay_ms=1000))
    plain = numbers(world.send(queue, 6))
    world.run()
    world.advance(1)
    consumer.settle()
    world.run()
    assert consumer.numbers == [*plain[:2], delayed, plain[2]]


def test_several_that_are_due_come_in_order_of_their_time() -> None:
    world = World()
    queue = world.shared()
    consumer = world.consumer()
    queue.subscribe(consumer)
    delays = [700, 100, 400, 100]
    sent = [world.send(queue, 1, delay_ms=delay)[0].number for delay in delays]
    world.run()
    for _ in range(10):
        world.advance(0.1)
    assert consumer.numbers == [sent[1], sent[3], sent[2], sent[0]]


@pytest.mark.parametrize("blocks", [3])
def test_many_that_wait_stop_nobody(blocks: int) -> None:
    """A consumer gets what lies behind thousands of delayed ones, and those in bounded steps when they are due."""
    world = World()
    queue = world.shared()
    count = blocks * PASS_COUNT
    for start in range(0, count, 512):
        world.send(queue, 512, delay_ms=5000 + start)
    (plain,) = numbers(world.send(queue, 1))
    consumer = world.consumer()
    queue.subscribe(consumer)
    world.run()
    assert consumer.numbers == [plain]
    assert queue.delayed_count == count
    world.advance(60)
    assert sorted(consumer.numbers) == list(range(count + 1))
    assert queue.delayed_count == 0


def test_all_due_at_once_are_let_go_in_portions() -> None:
    world = World()
    queue = world.shared()
    world.send(queue, 3 * DUE_COUNT, delay_ms=1000)
    consumer = world.consumer()
    queue.subscribe(consumer)
    world.run()
    world.advance(1)
    assert consumer.numbers == list(range(3 * DUE_COUNT))


def test_expired_before_it_is_due_it_never_comes() -> None:
    """`expiration` counts from arrival too."""
    world = World()
    queue = world.shared()
    consumer = world.consumer()
    queue.subscribe(consumer)
    world.send(queue, 2, delay_ms=2000, ttl_ms=1000)
    world.send(queue, 1, delay_ms=2000, ttl_ms=3000)
    world.run()
    world.advance(1)
    assert (queue.expired_count, queue.delayed_count) == (2, 1)
    world.advance(1)
    assert consumer.numbers == [2]
    consumer.settle()
    assert_exact(queue)


def test_drop_oldest_drops_delayed_ones_in_their_turn() -> None:
    """The oldest is the oldest, whether it waits for its time or not, wherever the cursor is."""
    world = World()
    queue = world.shared(full="drop_oldest", count_max=4)
    consumer = world.consumer(1)
    queue.subscribe(consumer)
    world.send(queue, 2, delay_ms=1000)
    world.send(queue, 2)
    world.run()
    world.send(queue, 1)
    world.run()
    assert queue.delayed_count == 1
    world.send(queue, 2)
    assert (queue.dropped_count, queue.delayed_count) == (3, 0)
    assert consumer.held_numbers == [2]
    consumer.settle()
    world.advance(5)
    consumer.settle()
    world.run()
    assert consumer.numbers == [2, 4, 5]
    assert_exact(queue)


def test_delayed_message_of_a_group_does_not_hold_its_key() -> None:
    world = World()
    queue = world.shared()
    consumer = world.consumer()
    queue.subscribe(consumer)
    world.send(queue, 1, group="g", delay_ms=1000)
    world.send(queue, 2, group="g")
    world.run()
    assert consumer.numbers == [1, 2]
    world.advance(1)
    assert consumer.numbers == [1, 2, 0]
    consumer.settle()
    world.run()
    assert_exact(queue)


def test_due_message_of_a_group_waits_for_its_key() -> None:
    """Two consumers: what is due joins the front of the line of its key."""
    world = World()
    queue = world.shared()
    one, two = world.consumer(1), world.consumer(1)
    queue.subscribe(one)
    queue.subscribe(two)
    world.send(queue, 1, group="g", delay_ms=1000)
    world.send(queue, 3, group="g")
    world.run()
    holder, other = (one, two) if one.held else (two, one)
    world.advance(1)
    assert other.held == []
    holder.settle()
    world.run()
    assert [*holder.held_numbers, *other.held_numbers] == [0]


# ---------------------------------------------------------------------- the bound


def test_cursor_stops_at_the_bound_and_goes_on_when_some_are_due() -> None:
    world = World()
    queue = world.shared(delayed_count_max=3)
    consumer = world.consumer()
    queue.subscribe(consumer)
    for n in range(5):
        world.send(queue, 1, delay_ms=1000 * (n + 1))
    (plain,) = numbers(world.send(queue, 1))
    world.run()
    assert consumer.numbers == []
    assert queue.delayed_count == 3
    assert "delayed_count_max" in str(queue.facts()["too many are delayed"])
    world.advance(1)
    assert consumer.numbers == [0]
    world.advance(1)
    assert consumer.numbers == [0, 1, plain]
    for _ in range(4):
        world.advance(1)
    assert consumer.numbers == [0, 1, plain, 2, 3, 4]


def test_what_is_dropped_makes_way_at_the_bound() -> None:
    world = World()
    queue = world.shared(delayed_count_max=1)
    consumer = world.consumer()
    queue.subscribe(consumer)
    world.send(queue, 1, delay_ms=60_000, ttl_ms=1000)
    world.send(queue, 1, delay_ms=60_000)
    world.send(queue, 1)
    world.run()
    assert consumer.numbers == []
    world.advance(1)
    assert consumer.numbers == [2]


def test_clock_that_is_set_back_and_forth_delays_nothing_twice() -> None:
    """The wall clock jumps ahead by an hour: what is due by it comes within a minute."""
    world = World()
    jump_ms = 0
    world.environment = attrs.evolve(world.environment, now_ms=lambda: world.now_ms + jump_ms)
    queue = world.shared()
    consumer = world.consumer()
    queue.subscribe(consumer)
    world.send(queue, 1, delay_ms=3_600_000)
    world.run()
    jump_ms = 3_600_000
    world.advance(60)
    assert consumer.numbers == [0]


# ---------------------------------------------------------------------- topics


class Stand:
    """A topic in a registry: delayed messages wait in front of it."""

    def __init__(self, **policy: object) -> None:
        self.world = World()
        self.registry = DestinationRegistry(
            self.world.environment,
            lambda _address: QueuePolicy(**policy),  # type: ignore[arg-type]
        )
        self.destination = self.registry.get(parse("/topic/t"))

    def send(self, count: int = 1, **head: object) -> None:
        queue = self.destination.queue_for(Head(**head))  # type: ignore[arg-type]
        self.world.send(queue, count, **head)
        self.world.run()


def test_delayed_message_to_a_topic_is_published_when_it_is_due() -> None:
    """To who is subscribed then."""
    stand = Stand()
    early = stand.world.consumer()
    leaving = stand.destination.queue.attach(early)
    stand.send(2, delay_ms=1000)
    stand.send(1)
    assert early.numbers == [2]
    leaving.close()
    late = stand.world.consumer()
    stand.destination.queue.attach(late)
    stand.world.advance(1)
    assert (early.numbers, late.numbers) == ([2], [0, 1])
    late.settle()
    assert all(queue.is_empty for queue in stand.destination.queues)


def test_full_topic_holds_delayed_messages_back() -> None:
    stand = Stand(full="block", count_max=6)
    consumer = stand.world.consumer(1)
    stand.destination.queue.attach(consumer)
    for _ in range(5):
        stand.send(1, delay_ms=1000)
    stand.send(5)
    stand.world.advance(1)
    topic, delays = stand.destination.queues
    assert topic.elements.live_count == 6
    assert delays.elements.live_count == 4
    for _ in range(10):
        consumer.settle()
        stand.world.run()
    assert consumer.numbers == [5, 6, 7, 8, 9, 0, 1, 2, 3, 4]
    assert all(queue.is_empty for queue in stand.destination.queues)


def test_time_to_live_of_a_delayed_message_to_a_topic_counts_from_its_arrival() -> None:
    stand = Stand()
    consumer = stand.world.consumer(1)
    stand.destination.queue.attach(consumer)
    stand.send(1)
    stand.send(1, delay_ms=1000, ttl_ms=3000)
    stand.world.advance(1)
    stand.world.advance(1.9)
    assert stand.destination.queue.partition(4).elements.live_count == 2
    stand.world.advance(0.2)
    assert stand.destination.queue.partition(4).expired_count == 1


def test_destination_with_delayed_messages_is_not_swept_away() -> None:
    stand = Stand(auto_delete_seconds=1.0)
    stand.registry.start()
    stand.send(1, delay_ms=60_000)
    for _ in range(50):
        stand.world.advance(1)
    assert "/topic/t" in stand.registry.destinations
    for _ in range(30):
        stand.world.advance(1)
    assert "/topic/t" not in stand.registry.destinations


def test_deleted_topic_takes_its_delayed_messages_along() -> None:
    stand = Stand()
    stand.send(3, delay_ms=1000)
    (_topic, delays) = stand.destination.queues
    stand.registry.delete(stand.destination, "a test")
    assert delays.closed
    assert delays.elements.live_count == 0
    stand.world.advance(5)
    assert stand.world.manager.used_bytes == 0
