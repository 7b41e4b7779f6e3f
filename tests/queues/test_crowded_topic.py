"""Thousands of subscribers of one topic: what one of them does costs no look at all others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType

import attrs
import pytest

from sluiceway.queues.message import MESSAGE_OVERHEAD_BYTES
from sluiceway.queues.selectors import compile_selector
from sluiceway.queues.selectors.selector import Selection
from tests.queues.rig import Head, Producer, World

MANY = 400
FEW = 100


def lines_of(work: Callable[[], object]) -> int:
    """Lines of Python that this takes, also those of generators and comprehensions: a clock that only work moves."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("kind", ["idle", "behind", "overdue", "each at a place of its own"])
def test_leaving_together_costs_as_much_for_each_of_many_as_of_few(kind: str) -> None:
    def cost(count: int) -> float:
        world = World()
        topic = world.topic()
        subscriptions = []
        for number in range(count):
            window = number + 1 if kind == "each at a place of its own" else None if kind == "idle" else 1
            subscriptions.append(topic.subscribe(world.consumer(window)))
        topic.subscribe(world.consumer())
        if kind == "overdue":
            world.send(topic, 20, ttl_ms=1000)
        else:
            world.send(topic, count + 1)
        world.run()
        world.advance(2)

        def leave() -> None:
            for subscription in subscriptions:
                subscription.close()

        lines = lines_of(leave)
        world.run()
        return lines / count

    assert cost(MANY) < 1.3 * cost(FEW)


def test_senders_go_on_when_all_who_were_foremost_have_left_together() -> None:
    """The lead is over those who are still there, one of whom is behind."""
    world = World()
    topic = world.topic(lead_bytes=1000, memory_bytes=100_000)
    behind = world.consumer(1)
    topic.subscribe(behind)
    foremost = [topic.subscribe(world.consumer(5)) for _ in range(20)]
    world.send(topic, 5)
    world.run()
    world.send(topic, 40)
    world.run()
    assert topic.lead.controller.limiter.throttled
    for subscription in foremost:
        subscription.close()
    world.run()
    assert not topic.lead.controller.limiter.used_count
    assert not topic.lead.controller.limiter.throttled


def test_the_last_who_leaves_frees_senders_at_once() -> None:
    world = World()
    topic = world.topic(lead_bytes=1000, memory_bytes=100_000)
    subscription = topic.subscribe(world.consumer(1))
    world.send(topic, 40)
    subscription.close()
    assert not topic.lead.controller.limiter.used_count


def test_a_portion_of_what_is_past_its_date_is_smaller_the_more_look_at_it() -> None:
    """A step asks so many readers at most, however many elements are due together."""
    world = World()
    topic = world.topic()
    for _ in range(MANY):
        topic.subscribe(world.consumer(1))
    world.send(topic, 300, ttl_ms=1000)
    world.run()
    asked: list[int] = []
    expire = topic.expire
    topic.expire = lambda sequences: (asked.append(len(sequences)), expire(sequences))[1]  # type: ignore[method-assign]
    world.advance(2)
    assert sum(asked) >= 299
    assert max(asked) * MANY < 20_000
    assert topic.elements.live_count == 1, "only what they hold is left"


def test_fronts_are_kept_in_order_however_they_come_and_go() -> None:
    world = World()
    topic = world.topic()
    consumers = [world.consumer() for _ in range(200)]
    subscriptions = []
    for consumer in consumers:
        subscriptions.append(topic.subscribe(consumer))
        world.send(topic, 1)
    world.run()
    for place in [*range(100, 200), *range(99, -1, -1)]:
        subscriptions[place].close()
        fronts = [s.cursor.front for s in topic.subscriptions.values() if s.cursor is not None]
        assert topic.elements._lowest_front == min(fronts, default=topic.elements.next_sequence)
    assert topic.elements.live_count == 0


@pytest.mark.parametrize("window", [0, 1])
def test_room_is_made_by_some_of_many_at_a_time_and_in_time(window: int) -> None:
    """Nobody is moved on with all others, and the topic never holds much more than it may."""
    world = World()
    topic = world.topic(memory_bytes=1000 * (10_000 + MESSAGE_OVERHEAD_BYTES))
    topic.subscribe(world.consumer(auto=True))
    slow = [world.consumer(1) for _ in range(MANY)]
    for each in slow:
        topic.subscribe(each)
    if window:
        world.run()
    for _ in range(1000):
        world.send(topic, wire_bytes=10_000)
        world.run()
    most_count = passes = 0
    lines: list[int] = []
    for _ in range(200):
        was_dropping = topic.laggards.busy
        lines.append(lines_of(partial(world.send, topic, wire_bytes=10_000)))
        passes += topic.laggards.busy and not was_dropping
        most_count = max(most_count, topic.controller.limiter.used_count)
        lines.append(lines_of(partial(topic.dispatch, 1)))
        world.core.run_turn()
    assert passes > 1
    assert most_count <= 1000 + 1000 // 32 + 1
    assert max(lines) < 20 * MANY, "a look at each of them takes more"
    world.run()
    for each in slow:
        each.settle()
    world.run()
    assert {sum(each.dropped_counts) for each in slow} == {topic.dropped_count // MANY}


def test_what_is_dropped_as_it_comes_costs_no_look_at_any_subscriber() -> None:
    """All who were there are told, with their next message."""
    world = World()
    topic = world.topic(full="drop_newest", count_max=2)
    slow = [world.consumer(1, auto=False) for _ in range(MANY)]
    for each in slow:
        topic.subscribe(each)
    world.send(topic, 2)
    world.run()
    lines = lines_of(lambda: world.send(topic, 5))
    late = world.consumer(1)
    topic.subscribe(late)
    for each in slow:
        each.settle()
        world.run()
    assert {tuple(each.dropped_counts) for each in slow} == {(0, 5)}
    world.send(topic, 1)
    world.run()
    assert late.dropped_counts == [0], "what was dropped before it came"
    assert lines < MANY


CROWD = 5_000


def longest_step(world: World, work: Callable[[], object], *, steps_max: int = 300) -> int:
    """Lines of the longest step: of this, and of the first dispatches that come of it."""
    config = world.core._config
    world.core._config = attrs.evolve(config, dispatches_per_turn_count=1)
    longest = lines_of(work)
    while world.core.has_work() and steps_max:
        steps_max -= 1
        longest = max(longest, lines_of(world.core.run_turn))
    world.core._config = config
    world.run()
    return longest


def red() -> Selection:
    selector = compile_selector("color = 'red'")
    assert selector is not None
    return Selection(selector)


@pytest.mark.parametrize("full", ["block", "drop_oldest"])
def test_what_a_crowd_has_passed_over_goes_in_steps(full: str) -> None:
    """Each holds one message, and takes none of the others."""
    world = World(budget_count=128)
    topic = world.topic(full=full, memory_bytes=200_000)
    selection = red()
    for _ in range(CROWD):
        topic.subscribe(world.consumer(1), selection=selection)
    world.send(topic, 1, color="red")
    world.run()
    producer = Producer(world, topic)
    blue = Head(color="blue")
    for _ in range(3):
        producer.send(world.messages(1, wire_bytes=60_000, head=blue))
    assert longest_step(world, lambda: producer.send(world.messages(1, wire_bytes=60_000, head=blue))) < CROWD
    assert not producer.outbox and not topic.dropped_count
    assert topic.elements.live_count <= 1 + 2


@pytest.mark.parametrize("turns_count", range(6))
def test_room_that_nobody_needs_is_used_also_while_it_is_looked_for(turns_count: int) -> None:
    """Nobody loses anything, whenever more comes."""
    world = World(budget_count=128)
    topic = world.topic(memory_bytes=200_000)
    selection = red()
    consumers = [world.consumer(1) for _ in range(400)]
    for consumer in consumers:
        topic.subscribe(consumer, selection=selection)
    world.send(topic, 1, color="red")
    world.run()
    topic.pinned._look_count = 1 << 30
    world.send(topic, 1, wire_bytes=90_000, color="blue")
    world.run()
    assert topic.elements.live_count == 2, "all have passed it"
    topic.pinned.begin()
    world.core._config = attrs.evolve(world.core._config, dispatches_per_turn_count=1)
    for _ in range(turns_count):
        world.core.run_turn()
    world.send(topic, 1, wire_bytes=120_000, color="blue")
    world.run()
    for consumer in consumers:
        consumer.requeue()
    world.run()
    assert not topic.dropped_count
    assert {tuple(consumer.numbers) for consumer in consumers} == {(0, 0)}, "what they held was still theirs"


def test_a_look_for_one_who_leads_a_crowd_goes_in_steps() -> None:
    world = World(budget_count=128)
    topic = world.topic(memory_bytes=1 << 20, lead_bytes=10_000)
    for _ in range(CROWD):
        topic.subscribe(world.consumer(1))
    leader = topic.subscribe(world.consumer(auto=True))
    producer = Producer(world, topic)
    producer.send(*[world.messages(1, wire_bytes=1000) for _ in range(20)])
    world.run()
    assert not producer.outbox
    producer.send(*[world.messages(1, wire_bytes=1000) for _ in range(12)])
    assert producer.outbox, "the lead is full"
    assert longest_step(world, leader.close) < CROWD
    assert not producer.outbox, "nobody leads"


def test_one_who_takes_over_while_it_is_looked_for_leads() -> None:
    """It was looked at before it had caught up."""
    world = World(budget_count=128)
    topic = world.topic(memory_bytes=1 << 20, lead_bytes=10_000)
    heir = world.consumer(1)
    topic.subscribe(heir)
    for _ in range(CROWD):
        topic.subscribe(world.consumer(1))
    leader = topic.subscribe(world.consumer(5))
    world.send(topic, 5)
    world.run()
    leader.close()
    world.core._config = attrs.evolve(world.core._config, dispatches_per_turn_count=1)
    world.core.run_turn()
    assert topic.lead.is_sought, "it goes on"
    for _ in range(5):
        heir.settle()
        world.core.run_turn()
    assert len(heir.deliveries) == 5 and not topic.lead.is_sought
    world.run()
    assert topic.lead.is_led
