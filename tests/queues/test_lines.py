"""What destinations do in steps: none waits for another, and what raises about one consumer costs no other."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable

import attrs
import pytest

from sluiceway.queues.names import parse
from sluiceway.queues.partitioned import ATTACH_AT_ONCE
from sluiceway.queues.policy import QueuePolicy
from sluiceway.queues.registry import DestinationRegistry
from sluiceway.queues.steps import AT_ONCE_COUNT
from sluiceway.queues.subscription import Subscription
from tests.queues.rig import FakeConsumer, Producer, World

CROWD_COUNT = ATTACH_AT_ONCE + 3 * AT_ONCE_COUNT
TOPICS_COUNT = 40
DISPATCHES_MAX = TOPICS_COUNT + 8
"""Of whatever context: each topic has one when it is new. Of steps there are hundreds."""


class Estate:
    """A registry whose dispatches can be counted."""

    def __init__(self, **policy: object) -> None:
        self.world = World()
        self.world.core._config = attrs.evolve(self.world.core._config, dispatches_per_turn_count=1)
        self.errors: list[Exception] = []
        made = attrs.evolve(QueuePolicy(), **policy)
        environment = attrs.evolve(self.world.environment, contain=self.errors.append)
        self.registry = DestinationRegistry(environment, lambda _address: made)

    def crowd(self, count: int = CROWD_COUNT) -> list[FakeConsumer]:
        """So many who take from all topics."""
        consumers = [self.world.consumer(auto=True) for _ in range(count)]
        for consumer in consumers:
            self.registry.attach(parse("/topic/>"), consumer)
        self.world.run()
        return consumers

    def keep_busy(self) -> None:
        """Somebody makes many topics that the crowd is to be attached to."""
        for number in range(TOPICS_COUNT):
            self.registry.get(parse(f"/topic/{number}"))

    def is_welcoming(self) -> bool:
        return not all(
            len(destination.queue.attachments) >= CROWD_COUNT
            for name, destination in self.registry.destinations.items()
            if name.startswith("/topic/")
        )

    def dispatches_until(self, is_so: Callable[[], bool]) -> int:
        count = 0
        while not is_so():
            assert self.world.core.run_turn() or self.is_welcoming(), "it would never be so"
            count += 1
        return count


def test_who_shared_with_an_exclusive_consumer_goes_on_while_others_are_welcomed() -> None:
    estate = Estate()
    first, other = estate.world.consumer(1), estate.world.consumer(auto=True)
    alone = estate.registry.attach(parse("/queue/one"), first, exclusive=True)
    estate.registry.attach(parse("/queue/one"), other)
    estate.crowd()
    estate.world.send(estate.registry.get(parse("/queue/one")).queue.partition(4), 5)
    estate.world.run()
    estate.keep_busy()
    alone.close()
    first.requeue()
    assert estate.dispatches_until(lambda: len(other.deliveries) == 5) <= DISPATCHES_MAX
    assert estate.is_welcoming()


def test_the_first_message_of_a_priority_comes_while_others_are_welcomed() -> None:
    estate = Estate()
    consumers = [estate.world.consumer(auto=True) for _ in range(ATTACH_AT_ONCE + 8)]
    for consumer in consumers:
        estate.registry.attach(parse("/queue/one"), consumer)
    estate.crowd()
    estate.keep_busy()
    estate.world.send(estate.registry.get(parse("/queue/one")).queue.partition(9))
    assert estate.dispatches_until(lambda: any(each.deliveries for each in consumers)) <= DISPATCHES_MAX
    assert estate.is_welcoming()


def test_consumers_of_a_deleted_queue_are_told_while_others_are_welcomed() -> None:
    estate = Estate()
    consumers = [estate.world.consumer(auto=True) for _ in range(20)]
    for consumer in consumers:
        estate.registry.attach(parse("/queue/one"), consumer)
    estate.crowd()
    estate.keep_busy()
    estate.registry.delete(estate.registry.destinations["/queue/one"], "a test")
    assert estate.dispatches_until(lambda: all(each.cancelled_for for each in consumers)) <= DISPATCHES_MAX
    assert estate.is_welcoming()


def test_destinations_that_wait_to_be_welcomed_hold_no_walk_and_go_when_they_are_deleted() -> None:
    estate = Estate()
    estate.crowd()
    estate.keep_busy()
    assert estate.registry.steps.lines_count == 1, "one walk at a time"
    last = estate.registry.destinations[f"/topic/{TOPICS_COUNT - 1}"]
    assert len(last.queue.attachments) <= ATTACH_AT_ONCE
    gone = weakref.ref(last.queue.partition(4))
    estate.registry.delete(last, "a test")
    del last
    for _ in range(DISPATCHES_MAX):
        estate.world.core.run_turn()
    gc.collect()
    assert gone() is None
    assert estate.is_welcoming()
    estate.world.run()
    assert not estate.is_welcoming()


def test_what_raises_about_one_of_a_crowd_that_is_welcomed_costs_no_other() -> None:
    estate = Estate(memory_bytes=50_000, full="block")
    consumers = [estate.world.consumer(auto=True) for _ in range(100)]

    def broken(_name: str) -> bool:
        raise RuntimeError("a mistake")

    for number, consumer in enumerate(consumers):
        estate.registry.attach(parse("/topic/>"), consumer, admits=broken if number in (3, 70) else None)
    queue = estate.registry.get(parse("/topic/new")).queue.partition(4)
    producer = Producer(estate.world, queue)
    producer.send(*[estate.world.messages(1, wire_bytes=1000) for _ in range(200)])
    estate.world.run()
    assert len(estate.errors) == 3, "the first is asked again with the rest"
    assert len(queue.subscriptions) == 98
    assert (queue.elements.live_count, producer.is_blocked(), len(producer.outbox)) == (0, False, 0)
    assert {len(each.deliveries) for each in consumers} == {0, 200}


@pytest.mark.parametrize("at", [3, 70])
def test_what_raises_about_one_of_a_crowd_that_gets_a_new_priority_costs_no_other(at: int) -> None:
    estate = Estate()
    consumers = [estate.world.consumer(auto=True) for _ in range(ATTACH_AT_ONCE if at < ATTACH_AT_ONCE else 100)]
    for consumer in consumers:
        estate.registry.attach(parse("/topic/one"), consumer)
    consumers[at].name = None  # type: ignore[assignment]  # so it has no label for a subscription
    queue = estate.registry.get(parse("/topic/one")).queue.partition(9)
    estate.world.send(queue)
    estate.world.run()
    others = [consumer for number, consumer in enumerate(consumers) if number != at]
    assert [len(each.deliveries) for each in others] == [1] * len(others)
    assert estate.errors


@attrs.define
class Broken:
    """In place of a consumer's answer."""

    raises_at_once: bool

    def __call__(self, _subscription: Subscription, _reason: str) -> Iterable[None]:
        if self.raises_at_once:
            raise RuntimeError("a mistake")
        return self._steps()

    def _steps(self) -> Iterable[None]:
        yield
        raise RuntimeError("a mistake")


@pytest.mark.parametrize("at_once", [True, False])
def test_what_raises_about_one_consumer_of_a_deleted_queue_costs_no_other(at_once: bool) -> None:
    estate = Estate()
    consumers = [estate.world.consumer(auto=True) for _ in range(5)]
    for consumer in consumers:
        estate.registry.attach(parse("/queue/one"), consumer)
    consumers[1].cancelled = Broken(at_once)  # type: ignore[method-assign]
    estate.registry.delete(estate.registry.destinations["/queue/one"], "a test")
    estate.world.run()
    assert len(estate.errors) == 1
    assert [len(each.cancelled_for) for each in consumers] == [1, 0, 1, 1, 1]
    assert not [it for it in estate.world.manager.resources if it.name == "/queue/one"]


def test_a_sender_that_fails_when_it_is_let_go_costs_nobody_else_the_end_of_a_destination() -> None:
    estate = Estate(memory_bytes=1_000, full="block")
    queue = estate.registry.get(parse("/queue/one")).queue
    consumers = [estate.world.consumer(1) for _ in range(3)]
    for consumer in consumers:
        estate.registry.attach(parse("/queue/one"), consumer)
    producers = [Producer(estate.world, queue.partition(priority)) for priority in (4, 9)]
    for producer in producers:
        producer.send(*[estate.world.messages(1, wire_bytes=1000) for _ in range(5)])
        assert producer.is_blocked()

    def broken() -> None:
        raise RuntimeError("a mistake")

    producers[0]._resumed = broken  # type: ignore[method-assign]
    estate.registry.delete(estate.registry.destinations["/queue/one"], "a test")
    estate.world.run()
    assert len(estate.errors) == 1
    assert not any(producer.is_blocked() for producer in producers)
    assert [len(each.cancelled_for) for each in consumers] == [2, 2, 2]
    assert not [it for it in estate.world.manager.resources if it.name.startswith("/queue/one")]
