"""Thousands of consumers are attached to a new destination in steps, and let go of it in steps: nobody misses anything.

Whoever was there when a message was sent gets it once, in order, also if it is attached later; whoever came later, or
left before, gets nothing of it. Played with steps of one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import attrs
import pytest

from sluiceway.queues.names import parse
from sluiceway.queues.policy import QueuePolicy
from sluiceway.queues.registry import DestinationRegistry, WildcardConsumer
from sluiceway.queues.topic import Topic
from sluiceway.queues.transfers import Outcome, Transfer
from tests.queues.rig import FakeConsumer, Producer, World
from tests.scenarios.tiny_steps import tiny_steps

NAMES = ["/topic/a", "/topic/b"]


@pytest.fixture(autouse=True)
def _tiny() -> Iterator[None]:
    with tiny_steps():
        yield


@attrs.define(eq=False)
class Listener:
    """A wildcard, and what it is to get of each destination and priority."""

    consumer: FakeConsumer
    wildcard: WildcardConsumer
    expected: dict[tuple[str, int], list[int]] = attrs.field(factory=dict)
    admitted: set[str] = attrs.field(factory=lambda: set(NAMES))
    unsteady: set[str] = attrs.field(factory=set)
    """Names that it was not always admitted to: what of them it gets depends on when that takes effect."""

    def check(self) -> None:
        """Nothing is missing, nothing comes twice, and all is in order."""
        got: dict[tuple[str, int], list[int]] = {}
        for delivery in self.consumer.deliveries:
            place = (delivery.subscription.queue.name_on_disk, delivery.subscription.queue.priority)
            got.setdefault(place, []).append(delivery.message.number)
        for place in got.keys() | self.expected.keys():
            numbers, expected = got.get(place, []), self.expected.get(place, [])
            if place[0] in self.unsteady:
                assert numbers == sorted(set(numbers)), "twice, or out of order"
                assert set(numbers) <= set(expected), "it was not there"
            else:
                assert numbers == expected


class Estate:
    """Topics that come and go, with listeners that come and go."""

    def __init__(self, *, seed: int = 0, **policy: object) -> None:
        self.random = random.Random(seed)
        self.world = World()
        self.world.core._config = attrs.evolve(self.world.core._config, dispatches_per_turn_count=1)
        made = attrs.evolve(QueuePolicy(), **policy)
        self.registry = DestinationRegistry(self.world.environment, lambda _address: made)
        self.listeners: list[Listener] = []
        self.stuck: dict[FakeConsumer, None] = {}
        self.reviews = self.registry.steps.line(lambda: None)

    def listen(self, *, stuck: bool = False) -> Listener:
        """`stuck`: without credit until `let_go`."""
        consumer = self.world.consumer(1 if stuck else None, auto=True)
        if stuck:
            consumer.window.charge(1, 0, None)
            self.stuck[consumer] = None
        wildcard = self.registry.attach(parse(self.random.choice(["/topic/>", "/topic/*"])), consumer)
        assert isinstance(wildcard, WildcardConsumer)
        listener = Listener(consumer, wildcard)
        self.listeners.append(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        self.listeners.remove(listener)
        listener.wildcard.close()

    def review(self, listener: Listener, admitted: set[str]) -> None:
        """Rules were replaced: it may have these, from when its connection comes to it."""
        listener.unsteady |= admitted ^ listener.admitted
        listener.admitted = admitted
        self.reviews.add(listener.wildcard.reviewing(admitted.__contains__))

    def send(self, name: str, priority: int = 4, count: int = 1) -> None:
        queue = self.registry.get(parse(name)).queue.partition(priority)
        for message in self.world.send(queue, count):
            for listener in self.listeners:
                listener.expected.setdefault((name, priority), []).append(message.number)

    def let_go(self) -> None:
        """All have credit."""
        for consumer in self.stuck:
            consumer.window.release(1, 0)
        self.stuck.clear()

    def turn(self) -> None:
        """One dispatch."""
        self.world.core.run_turn()
        self.check_leads()

    def check_leads(self) -> None:
        """What nobody was handed yet holds senders back."""
        for topic in self.topics():
            places = [s.cursor.position for s in topic.subscriptions.values() if s.cursor is not None]
            if topic.lead.is_led and places and not topic.lead.is_sought:
                assert topic.lead.position <= max(places)
                ahead_count = topic.elements.count_live(topic.lead.position, topic.elements.next_sequence)
                assert topic.lead.controller.limiter.used_count == ahead_count

    def topics(self) -> list[Topic]:
        found = [queue for it in self.registry.destinations.values() for queue in it.queues]
        return [queue for queue in found if isinstance(queue, Topic)]

    def check(self) -> None:
        self.let_go()
        self.world.run()
        for listener in self.listeners:
            listener.check()
        for destination in self.registry.destinations.values():
            for queue in destination.queues:
                assert not queue.elements.live_count, "somebody who is not there holds it"
                admitted_count = sum(queue.name_on_disk in listener.admitted for listener in self.listeners)
                assert len(queue.subscriptions) == admitted_count


def test_what_comes_in_before_all_are_attached_comes_to_all() -> None:
    estate = Estate()
    for _ in range(20):
        estate.listen()
    estate.send("/topic/a", count=3)
    estate.send("/topic/a", 9, count=2)
    attached = len(estate.registry.destinations["/topic/a"].queue.attachments)
    assert attached < 20, "not yet attached"
    estate.check()


def test_one_that_is_reviewed_before_it_is_attached_misses_nothing() -> None:
    estate = Estate()
    for _ in range(20):
        estate.listen()
    estate.send("/topic/a", count=3)
    last = estate.listeners[-1]
    assert not last.wildcard.attachments
    estate.review(last, set(NAMES))
    estate.check()


def test_one_whose_subscribe_is_under_way_misses_nothing_of_what_is_made_meanwhile() -> None:
    """It comes to the new topic by its own walk before that comes to it."""
    estate = Estate()
    for _ in range(20):
        estate.listen()
    estate.send("/topic/a")
    estate.world.run()
    consumer = estate.world.consumer(auto=True)
    wildcard = estate.registry.attach_wildcard(parse("/topic/>"), consumer)
    walk = wildcard.attaching()
    next(walk)
    estate.listeners.append(Listener(consumer, wildcard))
    estate.send("/topic/b", count=3)
    made = estate.registry.destinations["/topic/b"]
    assert made not in wildcard.attachments
    for _ in walk:
        pass
    assert made in wildcard.attachments
    estate.check()


def test_one_that_is_admitted_again_gets_the_beginning_once() -> None:
    estate = Estate()
    for _ in range(20):
        estate.listen()
    estate.send("/topic/a", count=3)
    last = estate.listeners[-1]
    for admitted in (set(NAMES), {"/topic/b"}, set(NAMES)):
        for _ in last.wildcard.reviewing(admitted.__contains__):
            pass
        estate.registry.destinations["/topic/a"].queue.partition(4).dispatch(1000)
    assert last.consumer.numbers == [0, 1, 2]
    estate.check()


def test_senders_wait_at_the_lead_while_those_who_are_attached_late_have_read_nothing() -> None:
    """Regression: each of them was taken for one at the tail, and let senders go on; what came was dropped then."""
    estate = Estate(memory_bytes=100_000, lead_bytes=10_000)
    for _ in range(20):
        estate.listen(stuck=True)
    queue = estate.registry.get(parse("/topic/a")).queue.partition(4)
    producer = Producer(estate.world, queue)
    producer.send(*[estate.world.messages(1, wire_bytes=1000) for _ in range(100)])
    taken_count = queue.added_count
    assert taken_count < 12
    estate.world.run()
    assert len(queue.subscriptions) == 20
    estate.check_leads()
    assert queue.added_count == taken_count, "nobody has read anything"
    estate.let_go()
    estate.world.run()
    assert [listener.consumer.numbers for listener in estate.listeners] == [list(range(100))] * 20


def test_an_operator_may_move_messages_to_a_topic_whose_listeners_are_not_attached_yet() -> None:
    estate = Estate()
    world = estate.world
    topic = world.topic()
    topic.hold_beginning()
    queue = world.shared()
    world.send(queue, 1)
    [message] = [message for message in map(queue.elements.get, range(1)) if message is not None]
    transfer = Transfer(
        queue,
        rewrite=lambda message, _changes: (message.head, message.wire),
        clock=world.environment.clock,
        now_ms=world.environment.now_ms,
        on_room=lambda: False,
    )
    assert transfer.move(0, message, topic, {}) is Outcome.MOVED
    late = world.consumer()
    topic.subscribe(late, from_beginning=True)
    topic.release_beginning()
    assert transfer.move(0, message, world.topic(), {}) is Outcome.UNHEARD, "nobody is to come there"
    transfer.close()
    world.run()
    assert late.numbers == [message.number]


def test_a_new_priority_comes_to_all_and_to_who_comes_meanwhile_from_then_on() -> None:
    estate = Estate()
    for _ in range(20):
        estate.listen()
    estate.send("/topic/a")
    estate.world.run()
    estate.send("/topic/a", 9, count=2)
    estate.listen()
    estate.send("/topic/a", 9, count=2)
    estate.check()


def test_who_is_attached_late_is_told_what_was_dropped_meanwhile() -> None:
    estate = Estate(memory_bytes=10_000, lead_bytes=10_000)
    for _ in range(20):
        estate.listen()
    estate.registry.get(parse("/topic/a"))
    queue = estate.registry.destinations["/topic/a"].queue.partition(4)
    sent_count = 0
    for turn in range(40):
        sent_count += len(estate.world.send(queue, 1, wire_bytes=1000))
        if turn % 4 == 0:
            estate.turn()
    estate.world.run()
    for listener in estate.listeners:
        assert len(listener.consumer.deliveries) + sum(listener.consumer.dropped_counts) == sent_count
    assert any(sum(listener.consumer.dropped_counts) for listener in estate.listeners)


@pytest.mark.parametrize("seed", range(60))
def test_who_was_there_gets_it_once_whatever_happens_meanwhile(seed: int) -> None:
    estate = Estate(seed=seed)
    chance = estate.random
    for _ in range(80):
        match chance.randrange(11):
            case 8 if estate.listeners:  # most reviews change nothing for most
                admitted = set(NAMES) if chance.randrange(4) else {chance.choice(NAMES)}
                estate.review(chance.choice(estate.listeners), admitted)
            case 9:
                estate.let_go()
            case 0 | 1:
                estate.listen(stuck=not chance.randrange(3))
            case 2 if estate.listeners:
                estate.leave(chance.choice(estate.listeners))
            case 3 | 4:
                estate.send(chance.choice(NAMES), chance.choice([4, 4, 4, 9, 0]), chance.randrange(1, 3))
            case 5 if not chance.randrange(4):
                estate.check()
                if estate.registry.destinations:
                    name = chance.choice(list(estate.registry.destinations))
                    estate.registry.delete(estate.registry.destinations[name], "a test")
            case _:
                estate.turn()
    estate.check()
    for name in list(estate.registry.destinations):
        estate.registry.delete(estate.registry.destinations[name], "a test")
    estate.world.run()
    assert not any(listener.wildcard.attachments for listener in estate.listeners)
    assert estate.registry.attachments.used_count == 0


@pytest.mark.parametrize("before", range(12))
def test_one_that_is_deleted_while_it_is_attached_leaves_nothing(before: int) -> None:
    estate = Estate()
    for _ in range(10):
        estate.listen()
    estate.send("/topic/a", count=2)
    for _ in range(before):
        estate.turn()
    estate.registry.delete(estate.registry.destinations["/topic/a"], "a test")
    estate.world.run()
    assert not any(listener.wildcard.attachments for listener in estate.listeners)
    assert estate.registry.attachments.used_count == 0
    assert not [it for it in estate.world.manager.resources if it.name == "/topic/a"]
