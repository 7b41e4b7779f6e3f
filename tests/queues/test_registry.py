"""The registry: destinations by name, wildcard consumers, deletion by hand and by time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sluiceway.flow import FlowClosedError
from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.queues.names import DestinationName, parse
from sluiceway.queues.policy import QueuePolicy
from sluiceway.queues.registry import (
    DELETED_COST,
    SWEEP_COUNT,
    DestinationLimitError,
    DestinationRegistry,
    WildcardConsumer,
)
from sluiceway.queues.topic import Topic
from tests.queues.rig import Producer, World, make_policy


def make_registry(world: World, *, destinations_max: int = 100, **policy: object) -> DestinationRegistry:
    return DestinationRegistry(
        world.environment, lambda _address: make_policy(**policy), destinations_max=destinations_max
    )


def test_a_name_gives_the_same_destination_however_it_is_written() -> None:
    registry = make_registry(World())
    destination = registry.get(parse("a"))
    assert registry.get(parse("/queue/a")) is destination
    assert destination.name == "/queue/a"
    assert isinstance(destination.queue.partitions[4], ConsumedQueue)
    assert isinstance(registry.get(parse("/topic/a")).queue.partitions[4], Topic)
    assert registry.statistics().destinations_count == registry.statistics().made_count == 2


def test_each_destination_has_the_policy_of_its_address() -> None:
    world = World()

    def policy_for(address: DestinationName) -> QueuePolicy:
        return make_policy(count_max=1 if address.canonical == "/queue/small" else None)

    registry = DestinationRegistry(world.environment, policy_for)
    assert registry.get(parse("small")).policy.count_max == 1
    assert registry.get(parse("large")).policy.count_max is None
    assert registry.policy_for(parse("small")).count_max == 1


def test_the_number_of_destinations_is_bounded() -> None:
    registry = make_registry(World(), destinations_max=2)
    registry.get(parse("a"))
    registry.get(parse("b"))
    registry.get(parse("a"))
    with pytest.raises(DestinationLimitError, match="cannot make /queue/c: the broker holds 2 destinations already"):
        registry.get(parse("c"))


def test_a_wildcard_consumer_gets_from_destinations_present_and_future() -> None:
    world = World()
    registry = make_registry(world)
    world.send(registry.get(parse("a.x")).queue, 1)
    consumer = world.consumer()
    attachment = registry.attach(parse("a.*"), consumer)
    world.send(registry.get(parse("a.y")).queue, 1)
    world.send(registry.get(parse("a.y")).queue, 1, priority=8)
    world.send(registry.get(parse("b.x")).queue, 1)
    world.send(registry.get(parse("/topic/a.z")).queue, 1)
    world.run()
    assert sorted(consumer.held_numbers) == [0, 1, 2]
    attachment.close()
    world.send(registry.get(parse("a.x")).queue, 1)
    world.send(registry.get(parse("a.new")).queue, 1)
    world.run()
    assert len(consumer.held) == 3
    assert registry.statistics().wildcards_count == 0


def test_a_plain_consumer_makes_its_destination() -> None:
    world = World()
    registry = make_registry(world)
    consumer = world.consumer()
    registry.attach(parse("/topic/news"), consumer)
    world.send(registry.get(parse("/topic/news")).queue, 1)
    world.run()
    assert len(consumer.held) == 1


def test_deleting_cancels_consumers_frees_senders_and_the_name() -> None:
    world = World()
    registry = make_registry(world, full="block", count_max=2)
    destination = registry.get(parse("a"))
    consumer = world.consumer(1)
    plain, wild = registry.attach(parse("a"), consumer), registry.attach(parse("*"), world.consumer(1))
    producer = Producer(world, destination.queue)
    producer.send(world.messages(3))
    world.run()
    registry.delete(destination, "purged")
    registry.delete(destination, "purged")
    assert consumer.cancelled_for == ["purged"]
    assert not producer.is_blocked()
    assert registry.statistics().deleted_count == 1
    consumer.settle()
    plain.close()
    with pytest.raises(FlowClosedError):
        world.send(destination.queue, 1)
    again = registry.get(parse("a"))
    assert again is not destination
    sent = world.send(again.queue, 1)
    world.run()
    wild.close()
    assert again.queue.close_queue("end") == len(sent)


def test_idle_empty_destinations_are_swept_in_time() -> None:
    """Those with messages, consumers or senders stay; a look-up begins the time anew; a wildcard does not count."""
    world = World()
    registry = make_registry(world, auto_delete_seconds=30.0)
    registry.start()
    registry.attach(parse("wild.*"), world.consumer())
    for name in ("idle", "used", "full", "consumed", "sent", "wild.a"):
        registry.get(parse(name))
    world.send(registry.get(parse("full")).queue, 1)
    registry.attach(parse("consumed"), world.consumer())
    registry.get(parse("sent")).producers_count += 1
    for _ in range(4):
        world.advance(5)
        assert len(registry.destinations) == 6
        registry.get(parse("used"))
    for _ in range(3):
        world.advance(5)
    assert sorted(registry.destinations) == ["/queue/consumed", "/queue/full", "/queue/sent", "/queue/used"]
    for _ in range(5):
        world.advance(5)
    assert "/queue/used" not in registry.destinations


def test_a_policy_without_auto_delete_keeps_a_destination() -> None:
    world = World()
    registry = make_registry(world, auto_delete_seconds=None)
    registry.get(parse("a"))
    registry.start()
    for _ in range(10):
        world.advance(1000)
    assert len(registry.destinations) == 1


def test_a_closed_registry_has_deleted_everything_and_sweeps_no_more() -> None:
    world = World()
    registry = make_registry(world)
    registry.start()
    consumer = world.consumer()
    registry.attach(parse("a"), consumer)
    world.send(registry.get(parse("a")).queue, 3)
    registry.close()
    assert registry.destinations == {}
    assert consumer.cancelled_for == ["the broker stops"]
    assert world.core.statistics().timers_count == 0
    assert [resource.kind for resource in world.manager.resources] == ["subscription"]


def test_a_consumer_under_overlapping_names_gets_each_message_once() -> None:
    world = World()
    registry = make_registry(world)
    consumer = world.consumer()
    wild, plain = (registry.attach(parse(name), consumer) for name in ("/topic/a.*", "/topic/a.b"))
    topic = registry.get(parse("/topic/a.b")).queue
    world.send(topic, 2)
    world.run()
    assert consumer.numbers == [0, 1]
    plain.close()
    world.send(topic, 1)
    world.run()
    assert consumer.numbers == [0, 1, 2]
    wild.close()
    world.send(topic, 1)
    world.run()
    assert len(consumer.numbers) == 3


def test_a_name_held_beside_a_wildcard_keeps_its_destination() -> None:
    world = World()
    registry = make_registry(world, auto_delete_seconds=1.0)
    consumer = world.consumer()
    wild = registry.attach(parse("a.*"), consumer)
    plain = registry.attach(parse("a.b"), consumer)
    registry.start()
    for _ in range(5):
        world.advance(5)
    assert list(registry.destinations) == ["/queue/a.b"]
    plain.close()
    for _ in range(5):
        world.advance(5)
    assert not registry.destinations
    world.run()
    assert isinstance(wild, WildcardConsumer) and not wild.attachments


def test_a_sweep_goes_in_slices_that_other_work_comes_between() -> None:
    world = World()
    registry = make_registry(world, destinations_max=10_000, auto_delete_seconds=1.0)
    wild = registry.attach(parse("d.>"), world.consumer())
    for n in range(3 * SWEEP_COUNT + 1):
        registry.get(parse(f"d.{n}"))
    assert [registry.sweep() for _ in range(4)] == [True, True, True, False]
    world.now_seconds += 2
    lefts = [3 * SWEEP_COUNT + 1]
    while registry.destinations:
        registry.sweep()
        lefts.append(len(registry.destinations))
    deleted_max = SWEEP_COUNT // (1 + DELETED_COST) + 1
    assert {before - after for before, after in pairwise(lefts[:-1])} == {deleted_max}
    world.run()
    assert isinstance(wild, WildcardConsumer) and not wild.attachments


def test_deleting_again_leaves_another_one_of_that_name_alone() -> None:
    """Whoever waited with the one that was deleted in his hands."""
    registry = make_registry(World())
    first = registry.get(parse("/queue/a"))
    registry.delete(first, "the test says so")
    second = registry.get(parse("/queue/a"))
    registry.delete(first, "the test says so")
    assert registry.get(parse("/queue/a")) is second and not second.queue.closed
    assert registry.statistics().deleted_count == 1
