"""A relay lets in what its consumers have room for, and keeps nothing."""

from __future__ import annotations

import attrs
import pytest

from sluiceway.flow import SourceController
from sluiceway.flow.kinds import ResourceKind
from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.queues.message import Message
from sluiceway.queues.names import parse
from sluiceway.queues.registry import DestinationRegistry
from sluiceway.queues.relay import relay_queue
from tests.queues.rig import Head, Producer, World, assert_exact, make_policy
from tests.queues.test_redelivery_limits import GRAVE, rewrite
from tests.queues.test_seeking import seek


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
    first.requeue()
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


# ---------------------------------------------------------------------- what waits for something other than room


@pytest.mark.parametrize("later", [False, True])
def test_what_nobody_selects_keeps_nobody_out(later: bool) -> None:
    world = World(later=later)
    queue = relay(world)
    consumer = world.consumer(1)
    seek(queue, consumer)
    (sender,) = senders(world, queue)
    for first in range(0, 30, 3):
        blue, red = Head(color="blue"), Head(color="red")
        sender.send(world.messages(2, head=blue), world.messages(1, head=red))
        world.run()
        assert consumer.held_numbers == [first + 2] and not sender.is_blocked()
        consumer.settle()
        world.run()
    assert queue.waiting_count == 20


@pytest.mark.parametrize("leaves_by", ["purge", "date"])
@pytest.mark.parametrize("later", [False, True])
def test_senders_that_wait_for_its_memory_go_on_when_that_leaves_unread(later: bool, leaves_by: str) -> None:
    world = World(later=later)
    queue = relay(world, memory_bytes=10_000)
    consumer = world.consumer(2)
    seek(queue, consumer)
    (sender,) = senders(world, queue)
    blue = Head(color="blue", ttl_ms=500 if leaves_by == "date" else 0)
    sender.send(*[world.messages(1, wire_bytes=1000, head=blue) for _ in range(20)])
    world.run()
    assert sender.is_blocked() and queue.held_bytes < 12_000
    for _ in range(5):
        if leaves_by == "purge":
            queue.removal.purge(0, queue.elements.next_sequence)
            world.run()
        else:
            world.advance(1)
    assert queue.is_empty and not sender.is_blocked()
    sender.send(world.messages(1, head=Head(color="red")))
    world.run()
    assert consumer.numbers == [20]


class Estate:
    """A relay that gives messages up, and its dead-letter queue."""

    def __init__(self, *, grave_count_max: int = 1000, **policy: object) -> None:
        self.world = World()
        policies = {GRAVE: make_policy(count_max=grave_count_max)}
        usual = make_policy(kind="relay", **policy)
        self.registry = DestinationRegistry(
            self.world.environment,
            lambda address: policies.get(address.canonical, usual),
            rewrite=rewrite,
            dead_letter_queues={GRAVE},
        )
        self.queue = self._queue_of("/queue/r")

    def _queue_of(self, name: str) -> ConsumedQueue:
        queue = self.registry.get(parse(name)).queue.partition(4)
        assert isinstance(queue, ConsumedQueue)
        return queue

    @property
    def grave(self) -> ConsumedQueue:
        return self._queue_of(GRAVE)


@pytest.mark.parametrize("picky", [False, True])
def test_what_waits_for_a_full_dead_letter_queue_keeps_nobody_out(picky: bool) -> None:
    estate = Estate(grave_count_max=1, dead_letter_expired=True)
    world, queue = estate.world, estate.queue
    consumer = world.consumer(4)
    attached = seek(queue, consumer)
    (sender,) = senders(world, queue)
    sender.send(world.messages(4, head=Head(color="blue", ttl_ms=500)))
    world.advance(1)
    assert queue.states.dead_lettering is not None and len(queue.states.dead_lettering) == 3, "the grave is full"
    attached.close()
    consumer = world.consumer(1)
    if picky:
        seek(queue, consumer)
    else:
        queue.subscribe(consumer)
    for number in range(4, 8):
        sender.send(world.messages(1, head=Head(color="red")))
        world.run()
        assert consumer.held_numbers == [number] and not sender.is_blocked()
        consumer.settle()


@pytest.mark.parametrize("picky", [False, True])
def test_a_slow_holder_of_a_group_holds_only_its_group_back(picky: bool) -> None:
    world = World()
    queue = relay(world)
    slow, quick = world.consumer(1), world.consumer(1)
    for consumer in (slow, quick):
        if picky:
            seek(queue, consumer)
        else:
            queue.subscribe(consumer)
    (sender,) = senders(world, queue)
    grouped = Head(group="g", color="red")
    sender.send(world.messages(1, head=grouped))
    world.run()
    holder, other = (slow, quick) if slow.held else (quick, slow)
    sender.send(world.messages(2, head=grouped), world.messages(1, head=Head(color="red")))
    world.run()
    assert other.held_numbers == [3] and holder.held_numbers == [0]
    other.settle()
    sender.send(world.messages(1, head=Head(color="red")))
    world.run()
    assert other.held_numbers == [4] and not sender.is_blocked()
    other.settle()
    holder.settle()
    for _ in range(4):
        world.run()
        slow.settle()
        quick.settle()
    assert queue.is_empty and {*slow.numbers, *quick.numbers} == {0, 1, 2, 3, 4}


def test_one_with_a_selector_gets_what_it_takes_while_others_have_no_credit() -> None:
    world = World()
    queue = relay(world)
    anybody, red = world.consumer(1), world.consumer(2)
    queue.subscribe(anybody)
    seek(queue, red)
    (sender,) = senders(world, queue)
    sender.send(world.messages(1, head=Head(color="blue")))
    world.run()
    assert anybody.held_numbers == [0]
    for color in ("blue", "red", "blue", "red"):
        sender.send(world.messages(1, head=Head(color=color)))
        world.run()
    assert red.numbers == [2, 4] and queue.waiting_count == 2
    sender.send(*[world.messages(1, head=Head(color="red")) for _ in range(3)])
    world.run()
    assert sender.is_blocked() and queue.waiting_count == 2, "now nobody has room"
    anybody.settle()
    world.run()
    assert anybody.held_numbers == [1] and sender.is_blocked()
    red.settle()
    world.run()
    assert red.numbers == [2, 4, 5, 6]


def test_room_that_grows_by_way_of_another_queue_lets_senders_in() -> None:
    """A consumer that was never without credit is not blocked, and tells nobody when it has more."""
    world = World()
    queue, other = relay(world), world.shared()
    consumer = world.consumer(3)
    seek(queue, consumer)
    other.subscribe(consumer)
    (sender,) = senders(world, queue)
    sender.send(world.messages(1, head=Head(color="blue")))
    world.send(other, 2)
    world.run()
    sender.send(world.messages(1, head=Head(color="red")))
    world.run()
    assert consumer.held_numbers == [1, 2, 3] and not sender.is_blocked()


def test_what_waits_for_something_else_is_bounded_by_its_memory() -> None:
    world = World()
    queue = relay(world, memory_bytes=10_000)
    slow, quick = world.consumer(1), world.consumer(1)
    queue.subscribe(slow)
    (sender,) = senders(world, queue)
    sender.send(world.messages(1, head=Head(group="g")))
    world.run()
    queue.subscribe(quick)
    sender.send(*[world.messages(1, wire_bytes=1000, head=Head(group="g")) for _ in range(20)])
    world.run()
    assert sender.is_blocked() and queue.held_bytes < 12_000
    slow.settle()
    for _ in range(40):
        world.run()
        slow.settle()
        quick.settle()
    assert not sender.is_blocked() and queue.is_empty
    assert sorted(slow.numbers + quick.numbers) == list(range(21))
