"""A relay lets in what its consumers have room for, and keeps nothing."""

from __future__ import annotations

import attrs
import pytest

from sluiceway.flow import SourceController
from sluiceway.flow.kinds import ResourceKind
from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.queues.message import Message
from sluiceway.queues.relay import relay_queue
from tests.queues.rig import Producer, World, assert_exact, make_policy


@attrs.define
class Lane:
    """Offers runs as a connection does: what is refused waits with its sender."""

    queue: ConsumedQueue
    parked: list[list[Message]] = attrs.field(factory=list)

    @property
    def closed(self) -> bool:
        return self.queue.closed

    def add(self, messages: list[Message], wire_bytes: int, source: SourceController | None) -> None:
        assert source is not None
        if not self.queue.offer(messages, wire_bytes, source):
            self.parked.append(messages)


class Sender(Producer):
    """A producer with a lane."""

    def __init__(self, world: World, queue: ConsumedQueue) -> None:
        self.lane = Lane(queue)
        super().__init__(world, self.lane)

    def _pump(self) -> None:
        while self.lane.parked and not self.source.blocked:
            self.outbox.appendleft(self.lane.parked.pop())
            super()._pump()
        super()._pump()


def relay(world: World, **policy: object) -> ConsumedQueue:
    return relay_queue("/queue/r", make_policy(**policy), world.environment)


def senders(world: World, queue: ConsumedQueue, count: int = 1) -> list[Sender]:
    return [Sender(world, queue) for _ in range(count)]


@pytest.mark.parametrize("later", [False, True])
def test_senders_wait_until_a_consumer_is_there(later: bool) -> None:
    world = World(later=later)
    queue = relay(world)
    (sender,) = senders(world, queue)
    sender.send(world.messages(3))
    world.run()
    assert sender.is_blocked() and queue.is_empty and queue.intake.blocks_somebody
    consumer = world.consumer(10)
    queue.subscribe(consumer)
    world.run()
    assert consumer.numbers == [0, 1, 2]
    assert not sender.is_blocked()
    consumer.settle()
    assert_exact(queue)


@pytest.mark.parametrize("later", [False, True])
def test_no_more_lies_in_it_than_a_run_beyond_the_credit(later: bool) -> None:
    world = World(later=later)
    queue = relay(world)
    consumer = world.consumer(4)
    queue.subscribe(consumer)
    (sender,) = senders(world, queue)
    sender.send(*[world.messages(3) for _ in range(10)])
    for _ in range(40):
        world.run()
        assert queue.waiting_count < 3
        assert len(consumer.held) <= 4
        consumer.settle(consumer.held[:1])
    world.run()
    assert consumer.numbers == list(range(30))
    assert not sender.is_blocked()


@pytest.mark.parametrize("later", [False, True])
def test_senders_go_on_in_turn(later: bool) -> None:
    world = World(later=later)
    queue = relay(world)
    consumer = world.consumer(1)
    queue.subscribe(consumer)
    crowd = senders(world, queue, 3)
    for sender in crowd:
        sender.send(*[world.messages(1) for _ in range(10)])
    for _ in range(30):
        world.run()
        consumer.settle()
    assert sorted(consumer.numbers) == list(range(30))
    for first in range(0, 30, 10):
        places = [consumer.numbers.index(number) for number in range(first, first + 10)]
        assert places == sorted(places), "each in its order"
    assert {number // 10 for number in consumer.numbers[1:10]} == {0, 1, 2}, "nobody is kept out"


def test_what_comes_back_is_handed_on_before_anything_new() -> None:
    world = World()
    queue = relay(world)
    first, second = world.consumer(2), world.consumer(2)
    attached = queue.subscribe(first)
    (sender,) = senders(world, queue)
    sender.send(world.messages(2), world.messages(2))
    world.run()
    assert first.held_numbers == [0, 1] and sender.is_blocked()
    attached.close()
    first.give_back()
    world.run()
    assert sender.is_blocked()
    queue.subscribe(second)
    world.run()
    assert second.held_numbers == [0, 1] and sender.is_blocked()
    second.settle()
    world.run()
    assert second.numbers == [0, 1, 2, 3]


def test_a_paused_relay_lets_nobody_in() -> None:
    world = World()
    queue = relay(world)
    consumer = world.consumer(10)
    queue.subscribe(consumer)
    world.run()
    queue.pause()
    (sender,) = senders(world, queue)
    sender.send(world.messages(1))
    world.run()
    assert sender.is_blocked() and queue.is_empty
    queue.unpause()
    world.run()
    assert consumer.numbers == [0]


def test_who_waits_is_let_go_when_it_is_deleted() -> None:
    world = World()
    queue = relay(world)
    (sender,) = senders(world, queue)
    sender.send(world.messages(1))
    assert queue.intake.waiting_since() == [world.now_seconds]
    queue.close_queue("test")
    world.run()
    assert not sender.is_blocked()


def test_it_says_what_it_waits_for() -> None:
    world = World()
    queue = relay(world)
    assert queue.kind is ResourceKind.RELAY
    assert "subscribe one" in str(queue.facts()["consumers"])
    queue.subscribe(world.consumer(1))
    assert queue.facts()["consumers"] == 1
