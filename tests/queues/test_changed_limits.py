"""Limits that change while a destination exists: who waits goes on, what is in it stays."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from sluiceway.queues.names import DestinationName, parse
from sluiceway.queues.policy import QueuePolicy
from sluiceway.queues.registry import DestinationRegistry
from tests.queues.rig import CHARGE_BYTES, Producer, World, assert_exact, make_policy

RAISED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"count_max": 10}, {"count_max": 14}),
    ({"count_max": 10}, {"count_max": None}),
    ({"memory_bytes": 10 * CHARGE_BYTES}, {"memory_bytes": 14 * CHARGE_BYTES}),
    ({"bytes_max": 10 * CHARGE_BYTES}, {"bytes_max": 14 * CHARGE_BYTES}),
]


class Estate:
    """A registry whose configuration can be replaced."""

    def __init__(self, **settings: Any) -> None:
        self.world = World()
        self.settings = settings
        self.registry = DestinationRegistry(self.world.environment, self._policy_for)

    def _policy_for(self, _address: DestinationName) -> QueuePolicy:
        return make_policy(**self.settings)

    def reload(self, **settings: Any) -> None:
        self.settings = settings
        self.registry.replace_policies(self._policy_for, dead_letter_queues=(), destinations_max=100)
        self.registry.sweep()


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(("before", "after"), RAISED)
def test_blocked_senders_go_on_when_a_limit_is_raised(
    before: dict[str, Any], after: dict[str, Any], later: bool
) -> None:
    """Above the resume threshold too, which is half of the limit."""
    world = World(later=later)
    queue = world.shared(full="block", **before)
    first, second = Producer(world, queue), Producer(world, queue)
    for _ in range(20):
        first.send(world.messages(1))
        second.send(world.messages(1))
    assert first.is_blocked() and second.is_blocked()
    held_count = queue.elements.live_count
    queue.follow(attrs.evolve(queue.policy, **after))
    world.run()
    assert queue.elements.live_count > held_count
    if after == {"count_max": None}:
        assert not first.outbox and not second.outbox and not first.is_blocked()
    else:
        assert queue.elements.live_count == 14 and first.is_blocked() and second.is_blocked()
        assert first.resumed_count + second.resumed_count > 0
    assert_exact(queue)


def test_a_lowered_limit_loses_nothing_and_senders_wait() -> None:
    world = World()
    queue = world.shared(full="block", count_max=10)
    producer, consumer = Producer(world, queue), world.consumer()
    producer.send(world.messages(8))
    queue.follow(attrs.evolve(queue.policy, count_max=4))
    producer.send(world.messages(1), world.messages(1))
    assert queue.elements.live_count == 8 and producer.is_blocked()
    queue.subscribe(consumer)
    world.run()
    consumer.settle(consumer.held[:5])
    assert producer.is_blocked()
    while consumer.held:
        consumer.settle()
        world.run()
    assert not producer.is_blocked() and consumer.numbers == list(range(10))
    assert_exact(queue)


def test_a_queue_that_rejects_takes_more_and_less() -> None:
    world = World()
    queue = world.shared(full="reject", count_max=2)
    rejected: list[int] = []
    producer = Producer(world, queue, on_rejected=rejected.append)
    producer.send(*(world.messages(1) for _ in range(3)))
    assert rejected == [1]
    queue.follow(attrs.evolve(queue.policy, count_max=3))
    producer.send(world.messages(1))
    queue.follow(attrs.evolve(queue.policy, count_max=1))
    producer.send(world.messages(1))
    assert rejected == [1, 1] and queue.elements.live_count == 3


def test_a_queue_that_drops_the_oldest_keeps_more() -> None:
    world = World()
    queue = world.shared(full="drop_oldest", count_max=2)
    world.send(queue, 2)
    queue.follow(attrs.evolve(queue.policy, count_max=4))
    world.send(queue, 2)
    assert (queue.elements.live_count, queue.dropped_count) == (4, 0)
    assert queue.intake.overhang_with(attrs.evolve(queue.policy, count_max=1))[0] == 3
    assert queue.intake.overhang(0, 0)[0] == 0
    world.send(queue, 1)
    assert (queue.elements.live_count, queue.dropped_count) == (4, 1)


@pytest.mark.parametrize("limit", ["count_max", "lead_bytes", "memory_bytes"])
def test_senders_of_a_topic_may_be_farther_ahead(limit: str) -> None:
    """Of its fastest subscriber, which takes nothing."""
    world = World()
    size = 1 if limit == "count_max" else CHARGE_BYTES
    topic = world.topic(**{limit: 10 * size})
    topic.subscribe(world.consumer(0))
    producer = Producer(world, topic)
    for _ in range(30):
        producer.send(world.messages(1))
    assert topic.elements.live_count == 10 and producer.is_blocked()
    topic.follow(attrs.evolve(topic.policy, **{limit: 20 * size}))
    world.run()
    assert topic.elements.live_count == 20 and producer.is_blocked()
    assert_exact(topic)


def test_partitions_made_later_have_the_changed_limit() -> None:
    estate = Estate(count_max=10)
    destination = estate.registry.get(parse("/queue/a"))
    destination.queue.partition(4)
    estate.registry.change_limits(destination, {"count_max": 20})
    assert [queue.policy.count_max for queue in (destination.queue.partition(4), destination.queue.partition(9))] == [
        20,
        20,
    ]
    assert estate.registry.get(parse("/queue/b")).policy.count_max == 10


def test_a_reload_ends_a_change_of_the_limit_that_it_changes_and_of_no_other() -> None:
    estate = Estate(count_max=10)
    destination = estate.registry.get(parse("/queue/a"))
    estate.registry.change_limits(destination, {"count_max": 20, "bytes_max": 4096})
    estate.reload(count_max=10, redeliveries_max=3)
    assert (destination.policy.count_max, destination.policy.redeliveries_max) == (20, 3)
    estate.reload(count_max=15)
    assert (destination.policy.count_max, destination.policy.bytes_max) == (15, 4096)
    assert set(destination.changed_limits) == {"bytes_max"}
    assert destination.queues[0].controller.limiter.describe().dimensions[0].capacity == 15


def test_a_reload_changes_the_limits_of_destinations_that_exist() -> None:
    estate = Estate(count_max=1)
    destination = estate.registry.get(parse("/queue/a"))
    queue = destination.queue.partition(4)
    producer = Producer(estate.world, queue)
    producer.send(estate.world.messages(1), estate.world.messages(1))
    assert producer.is_blocked() and len(producer.outbox) == 1
    estate.reload(count_max=5)
    assert not producer.is_blocked() and queue.elements.live_count == 2


def test_a_change_to_the_configured_value_is_none_and_a_changed_destination_is_kept() -> None:
    """An empty idle one would come back with its configured limits."""
    estate = Estate(count_max=10, auto_delete_seconds=1)
    destination = estate.registry.get(parse("/queue/a"))
    estate.registry.change_limits(destination, {"count_max": 20})
    for _ in range(3):
        estate.world.advance(60)
        estate.registry.sweep()
    assert destination.name in estate.registry.destinations
    estate.registry.change_limits(destination, {"count_max": 10})
    assert not destination.changed_limits
    for _ in range(3):
        estate.world.advance(60)
        estate.registry.sweep()
    assert destination.name not in estate.registry.destinations


def test_a_value_that_no_configuration_may_have_changes_nothing() -> None:
    estate = Estate(count_max=10)
    destination = estate.registry.get(parse("/queue/a"))
    with pytest.raises(ValueError, match="count_max must be above 0"):
        estate.registry.change_limits(destination, {"count_max": 0})
    assert destination.policy.count_max == 10 and not destination.changed_limits
