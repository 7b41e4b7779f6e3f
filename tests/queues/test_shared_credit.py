"""Several queues, one consumer: its credit is shared out among them by priority, in turn, and nobody starves.

A wildcard subscription, a queue with priorities, and all ack:auto subscriptions of one connection are of this kind.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.flow.waiting import SHARE_INTERVAL_COUNT
from sluiceway.queues.queue import MessageQueue
from sluiceway.queues.shared import shared_queue
from sluiceway.queues.topic import Topic
from tests.how_often import rounds
from tests.queues.rig import FakeConsumer, World, make_policy


def queues_of(
    world: World, consumer: FakeConsumer, kind: Callable[..., MessageQueue], *priorities: int
) -> list[MessageQueue]:
    """One queue for each of these priorities, all with this consumer."""
    queues = [kind(f"/queue/{n}", make_policy(), world.environment, priority=p) for n, p in enumerate(priorities)]
    for queue in queues:
        queue.subscribe(consumer)
    return queues


@pytest.mark.parametrize("kind", [shared_queue, Topic])
@pytest.mark.parametrize("ack_count", [1, 3, 10])
def test_backlogs_of_one_priority_get_equal_shares(kind: Callable[..., MessageQueue], ack_count: int) -> None:
    """However many are acknowledged at once. Once the first of them got everything."""
    world = World(later=True)
    consumer = world.consumer(10)
    queues = queues_of(world, consumer, kind, 4, 4, 4)
    for queue in queues:
        world.send(queue, 400)
    world.run()
    for _ in range(600 // ack_count):
        consumer.settle(consumer.held[:ack_count])
        world.run()
    settled = [queue.settled_count for queue in queues]
    assert max(settled) - min(settled) <= 2 * 10, settled


def test_higher_priority_gets_the_credit_first_and_lower_ones_their_share() -> None:
    """One of twenty turns, in rotation among the lower ones."""
    world = World(later=True)
    consumer = world.consumer(1)
    queues = queues_of(world, consumer, shared_queue, 4, 0, 9)
    for queue in queues:
        world.send(queue, 1000)
    world.run()
    before = [queue.settled_count for queue in queues]
    for _ in range(10 * SHARE_INTERVAL_COUNT):
        consumer.settle()
        world.run()
    middle, low, high = (queue.settled_count - first for queue, first in zip(queues, before, strict=True))
    assert middle + low + high == 10 * SHARE_INTERVAL_COUNT
    assert 4 <= middle <= 6 and 4 <= low <= 6


def test_idle_queues_do_not_hold_up_the_one_that_has_messages() -> None:
    world = World(later=True)
    consumer = world.consumer(2)
    queues = queues_of(world, consumer, shared_queue, *[4] * 20)
    for queue in queues:
        world.send(queue)
    world.run()
    world.send(queues[0], 100)
    for _ in range(120):
        consumer.settle(consumer.held[:1])
        world.run()
    assert [queue.settled_count for queue in queues] == [101] + [1] * 19


def test_queue_deleted_in_its_turn_does_not_hold_up_the_others() -> None:
    world = World(later=True)
    consumer = world.consumer(1)
    queues = queues_of(world, consumer, shared_queue, 4, 4, 4)
    for queue in queues:
        world.send(queue, 3)
    world.run()
    consumer.settle()  # one of them has its turn now, and was not dispatched yet
    for queue in queues:
        if not next(iter(queue.subscriptions.values())).source.blocked:
            queue.close_queue("deleted")
            break
    for _ in range(10):
        world.run()
        consumer.settle()
    left = [queue for queue in queues if not queue.closed]
    assert len(left) == 2 and all(queue.settled_count == 3 for queue in left)


@pytest.mark.parametrize("queues_count", [2, 100])
def test_acknowledgement_wakes_one_queue_however_many_wait(queues_count: int) -> None:
    """No thundering herd: the dispatches for one ACK do not grow with the queues."""
    world = World(later=True)
    consumer = world.consumer(1)
    for queue in queues_of(world, consumer, shared_queue, *[4] * queues_count):
        world.send(queue, 10)
    world.run()
    before_count = world.core.statistics().dispatches_count
    for _ in range(50):
        consumer.settle()
        world.run()
    assert world.core.statistics().dispatches_count - before_count <= 2 * 50


def test_busy_queue_neither_loses_its_turn_nor_keeps_it() -> None:
    """One that serves other consumers in endless dispatches: it has its turn when it comes by, and then it is over."""
    world = World(later=True, budget_count=10)
    consumer = world.consumer(1, auto=True)
    busy, calm = queues_of(world, consumer, shared_queue, 4, 4)
    others = [world.consumer(None, auto=True) for _ in range(5)]
    for other in others:
        busy.subscribe(other)
    seen: list[str] = []
    consumer.on_delivery = lambda delivery: seen.append(delivery.subscription.queue.name)
    world.send(calm, 100)
    world.send(busy, 2000)
    others[0].on_delivery = lambda _delivery: seen.append("other")
    world.run()
    while_busy = seen[: len(seen) - seen[::-1].index("other")]
    assert while_busy.count(busy.name) > 20 and while_busy.count(calm.name) > 20


@settings(max_examples=rounds(20), deadline=None)
@given(
    priorities=st.lists(st.sampled_from([0, 4, 9]), min_size=2, max_size=5),
    window=st.integers(1, 12),
    steps=st.lists(
        st.tuples(st.sampled_from(["ack", "nack", "send", "run"]), st.integers(0, 4), st.integers(1, 6)),
        min_size=10,
        max_size=60,
    ),
)
def test_nobody_starves_whatever_happens(priorities: list[int], window: int, steps: list[tuple[str, int, int]]) -> None:
    """After any history: with a backlog everywhere and one ACK at a time, each queue gets on within its bound."""
    world = World(later=True)
    consumer = world.consumer(window)
    queues = queues_of(world, consumer, shared_queue, *priorities)
    for step, place, count in steps:
        if step == "ack":
            consumer.settle(consumer.held[:count])
        elif step == "nack":
            consumer.requeue(consumer.held[:count])
        elif step == "send":
            world.send(queues[place % len(queues)], count)
        else:
            world.run()
        assert consumer.window.limiter.used_count <= window
    world.run()
    # A turn takes one message here. Each lower priority gets one of `interval * lower priorities` turns, and shares it
    # among its queues; what is out at the start is acknowledged first.
    lower_count = len(set(priorities)) - 1
    bound = SHARE_INTERVAL_COUNT * max(1, lower_count) * len(queues) + 2 * window
    for queue in queues:
        world.send(queue, 2 * bound)
    world.run()
    delivered = [queue.settled_count + queue.unsettled_count for queue in queues]
    for _ in range(bound):
        consumer.settle(consumer.held[:1])
        world.run()
        assert len(consumer.held) == window, "no credit lies idle"
    assert all(q.settled_count + q.unsettled_count > d for q, d in zip(queues, delivered, strict=True))
    top = [
        q.settled_count + q.unsettled_count - d
        for q, d, p in zip(queues, delivered, priorities, strict=True)
        if p == max(priorities)
    ]
    assert max(top) - min(top) <= 2 * window, "equal shares within one priority"
