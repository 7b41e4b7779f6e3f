"""Exclusive consumers of a shared queue, and the queue that has only one."""

from __future__ import annotations

import pytest

from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.queues.exclusive import SingleDistribution
from sluiceway.queues.exclusivity import Exclusivity
from sluiceway.queues.names import parse
from sluiceway.queues.registry import DestinationRegistry
from sluiceway.queues.shared import shared_queue
from tests.queues.rig import World, make_policy


def test_the_oldest_exclusive_consumer_gets_everything() -> None:
    world = World()
    queue = world.shared()
    shared, active, standby = world.consumer(), world.consumer(2), world.consumer()
    queue.subscribe(shared)
    queue.subscribe(active, exclusive=True)
    queue.subscribe(standby, exclusive=True)
    world.send(queue, 5)
    world.run()
    assert (active.held_numbers, shared.held_numbers, standby.held_numbers) == ([0, 1], [], [])


@pytest.mark.parametrize("returned", [False, True])
def test_the_next_one_takes_over_only_when_the_old_one_holds_nothing(returned: bool) -> None:
    world = World()
    queue = world.shared()
    old, new, other = world.consumer(2), world.consumer(), world.consumer()
    subscription = queue.subscribe(old, exclusive=True)
    queue.subscribe(other)
    queue.subscribe(new, exclusive=True)
    world.send(queue, 5)
    world.run()
    subscription.close()
    world.run()
    assert new.held == []
    old.settle(old.held[:1])
    world.run()
    assert new.held == []
    if returned:
        old.requeue()
    else:
        old.settle()
    world.run()
    assert new.held_numbers == ([1] if returned else []) + [2, 3, 4]
    assert other.held == []


def test_when_the_last_exclusive_consumer_leaves_all_share_again() -> None:
    world = World()
    queue = world.shared()
    one, two, exclusive = world.consumer(), world.consumer(), world.consumer(1)
    queue.subscribe(one)
    queue.subscribe(two)
    subscription = queue.subscribe(exclusive, exclusive=True)
    world.send(queue, 5)
    world.run()
    subscription.close()
    exclusive.settle()
    world.run()
    assert (len(one.held), len(two.held)) == (2, 2)


def test_groups_and_an_exclusive_consumer_go_together() -> None:
    """A key whose holder stands by waits until that one is drained, then goes to the active one."""
    world = World()
    queue = world.shared()
    shared, exclusive = world.consumer(1), world.consumer()
    queue.subscribe(shared)
    world.send(queue, 2, group="k")
    world.run()
    queue.subscribe(exclusive, exclusive=True)
    world.send(queue, 1, group="other")
    world.run()
    assert (shared.held_numbers, exclusive.held_numbers) == ([0], [2])
    shared.settle()
    world.run()
    assert exclusive.held_numbers == [2, 1]


def test_a_turn_is_handed_on_only_when_it_is_drained_in_all_priorities() -> None:
    """Through the registry, which gives all partitions of a destination one turn."""
    world = World()
    registry = DestinationRegistry(world.environment, lambda _address: make_policy())
    destination = registry.get(parse("/queue/a")).queue
    old, new = world.consumer(9), world.consumer(9)
    leaving = destination.attach(old, exclusive=True)
    destination.attach(new, exclusive=True)
    world.send(destination, 3)
    world.send(destination, 1, priority=9)
    world.run()
    old.settle([delivery for delivery in old.held if delivery.message.head.priority == 9])
    leaving.close()
    world.send(destination, 2, priority=9)
    world.send(destination, 2, priority=0)
    world.run()
    assert (old.held_numbers, new.held_numbers) == ([0, 1, 2], [])
    old.requeue(old.held[1:])
    world.run()
    assert (old.held_numbers, new.held_numbers) == ([0], [])
    old.settle()
    world.run()
    assert sorted(new.held_numbers) == [1, 2, 4, 5, 6, 7]


def test_a_turn_lasts_while_its_consumer_is_attached_to_any_partition() -> None:
    world = World()
    turn = Exclusivity()
    low, high = (
        shared_queue(f"p{priority}", make_policy(), world.environment, priority=priority, exclusivity=turn)
        for priority in (4, 9)
    )
    one, two = world.consumer(), world.consumer()
    at_low, at_high = low.subscribe(one, exclusive=True), high.subscribe(one, exclusive=True)
    low.subscribe(two, exclusive=True)
    assert turn.active is one
    at_low.close()
    assert turn.active is one
    at_high.close()
    assert turn.active is two


def test_one_that_left_while_standing_by_is_not_chosen() -> None:
    world = World()
    queue = world.shared()
    active, standby, last = world.consumer(), world.consumer(), world.consumer()
    first = queue.subscribe(active, exclusive=True)
    second = queue.subscribe(standby, exclusive=True)
    queue.subscribe(last)
    second.close()
    first.close()
    world.send(queue, 2)
    world.run()
    assert (standby.held, last.held_numbers) == ([], [0, 1])


def test_an_exclusive_queue_has_one_subscription_at_a_time() -> None:
    world = World()
    queue = ConsumedQueue("q", make_policy(), world.environment, SingleDistribution)
    one, two = world.consumer(2), world.consumer()
    subscription = queue.subscribe(one)
    with pytest.raises(ValueError, match="q has its one consumer already: consumer"):
        queue.subscribe(two)
    world.send(queue, 4)
    world.run()
    subscription.close()
    one.requeue()
    queue.subscribe(two)
    world.run()
    assert two.held_numbers == [0, 1, 2, 3]


def test_an_exclusive_queue_keeps_its_budget() -> None:
    world = World(budget_count=10)
    queue = ConsumedQueue("q", make_policy(), world.environment, SingleDistribution)
    consumer = world.consumer(auto=True)
    queue.subscribe(consumer)
    world.send(queue, 95)
    before = world.core.statistics().dispatches_count
    world.run()
    assert world.core.statistics().dispatches_count - before == 10
    assert consumer.numbers == list(range(95))
