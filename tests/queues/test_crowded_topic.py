"""Thousands of subscribers of one topic: what one of them does costs no look at all others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from tests.queues.rig import World

MANY = 600
FEW = 150


def lines_of(work: Callable[[], None]) -> int:
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
    assert topic.lead.limiter.throttled
    for subscription in foremost:
        subscription.close()
    world.run()
    assert not topic.lead.limiter.used_count
    assert not topic.lead.limiter.throttled


def test_the_last_who_leaves_frees_senders_at_once() -> None:
    world = World()
    topic = world.topic(lead_bytes=1000, memory_bytes=100_000)
    subscription = topic.subscribe(world.consumer(1))
    world.send(topic, 40)
    subscription.close()
    assert not topic.lead.limiter.used_count


def test_a_portion_of_what_is_past_its_date_is_smaller_the_more_look_at_it() -> None:
    """A step asks so many readers at most, however many elements are due together."""
    world = World()
    topic = world.topic()
    for _ in range(MANY):
        topic.subscribe(world.consumer(1))
    world.send(topic, 300, ttl_ms=1000)
    world.run()
    asked: list[int] = []
    expire = topic._expire
    topic._expire = lambda sequences: (asked.append(len(sequences)), expire(sequences))[1]  # type: ignore[method-assign]
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
