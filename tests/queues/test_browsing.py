"""Guarantees of a look at a queue: all that is there is shown, in order, and nobody else notices."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sluiceway.flow import Account, Flow, FlowResource, SizeLimiter, SourceController
from sluiceway.queues.browsing import BROWSE_PRIORITY, QueueBrowser
from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.queues.message import Message
from sluiceway.queues.names import DestinationName, parse
from sluiceway.queues.policy import QueuePolicy
from sluiceway.queues.registry import DestinationRegistry
from sluiceway.queues.slices import Slice
from tests.queues.memory_store import MemoryStore
from tests.queues.rig import Producer, World, assert_exact, make_policy, numbers

QUEUE = parse("/queue/a")


class FakeViewer(FlowResource):
    """Looks at what it has room for, and remembers it. Its buffer takes `room_bytes`, until `read`."""

    def __init__(self, world: World, room_bytes: int | None = None, *, at_once_max: int = 1000) -> None:
        super().__init__("viewer", "subscription", world.manager)
        clock = world.environment.clock
        self._capacity_bytes = 1 << 40 if room_bytes is None else room_bytes
        self.buffer = Account(self, Flow("buffer"), SizeLimiter(self._capacity_bytes, clock=clock), clock=clock)
        self.at_once_max = at_once_max
        self.shown: list[Message] = []
        self.sizes: list[int] = []
        self.is_done = False
        self.open()

    @property
    def label(self) -> str:
        return self.name

    def credit(self) -> tuple[int, int]:
        limiter = self.buffer.limiter
        return (0, 0) if limiter.throttled else (1 << 30, self._capacity_bytes - limiter.used_bytes)

    def await_credit(self, source: SourceController) -> None:
        self.buffer.wait_in_line(source)

    def show(self, part: Slice, source: SourceController) -> int:
        assert not self.is_done
        assert not source.blocked
        assert part.wire_bytes == sum(len(message.wire) for message in part.messages)
        messages = part.messages[: self.at_once_max]
        self.shown += messages
        self.sizes.append(len(messages))
        self.buffer.charge(0, sum(len(message.wire) for message in messages), source)
        return len(messages)

    def shown_all(self) -> None:
        assert not self.is_done
        self.is_done = True

    def read(self) -> None:
        """The peer has taken all that was shown."""
        self.buffer.release(0, self.buffer.limiter.used_bytes)

    @property
    def numbers(self) -> list[int]:
        return numbers(self.shown)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def store(world: World) -> MemoryStore:
    return MemoryStore(world)


def browse(world: World, queue: ConsumedQueue, viewer: FakeViewer | None = None) -> tuple[FakeViewer, QueueBrowser]:
    """A viewer and its browser, which has not begun."""
    viewer = viewer or FakeViewer(world)
    return viewer, QueueBrowser(queue.name, [queue], viewer, world.environment)


def browsed(world: World, queue: ConsumedQueue) -> list[int]:
    """What a viewer with much room sees."""
    viewer, browser = browse(world, queue)
    world.run()
    assert viewer.is_done
    assert browser.closed
    return viewer.numbers


def paging_queue(world: World, store: MemoryStore, *, memory_bytes: int = 200_000) -> ConsumedQueue:
    """A queue that is mostly outside: 20 blocks and more of 4,000 messages, a few of them in memory."""
    queue = world.shared(memory_bytes=memory_bytes)
    for _ in range(40):
        world.send(queue, 100)
        store.answer(world)
    assert queue.elements.outside_count > 5
    return queue


# ---------------------------------------------------------------------- what is shown


def test_all_that_is_there_is_shown_in_order_and_stays(world: World) -> None:
    """Across several blocks."""
    queue = world.shared()
    sent = world.send(queue, 3000)
    assert browsed(world, queue) == numbers(sent)
    assert browsed(world, queue) == numbers(sent)
    assert_exact(queue)
    consumer = world.consumer()
    queue.subscribe(consumer)
    world.run()
    assert consumer.numbers == numbers(sent)
    assert not any(delivery.attempts_count for delivery in consumer.deliveries)


def test_an_empty_queue_is_shown_at_once(world: World) -> None:
    assert browsed(world, world.shared()) == []


def test_what_consumers_hold_and_gave_back_is_shown_in_its_place(world: World) -> None:
    queue = world.shared()
    sent = world.send(queue, 10)
    consumer = world.consumer(6)
    queue.subscribe(consumer)
    world.run()
    consumer.settle(consumer.held[1:3])
    consumer.requeue(consumer.held[:1])
    assert browsed(world, queue) == numbers([sent[0], *sent[3:]])


def test_gaps_are_passed_over(world: World) -> None:
    """Settled in blocks that are not marked as having gaps, and whole blocks that are gone."""
    queue = world.shared()
    sent = world.send(queue, 5000)
    consumer = world.consumer()
    subscription = queue.subscribe(consumer)
    world.run()
    subscription.close()
    kept = {0, 5, 1023, 1024, 4999}
    consumer.settle([delivery for delivery in consumer.held if delivery.number not in kept])
    assert browsed(world, queue) == [message.number for message in sent if message.number in kept]


def test_what_comes_in_later_is_not_shown(world: World) -> None:
    queue = world.shared()
    sent = world.send(queue, 5)
    viewer, _browser = browse(world, queue)
    world.send(queue, 5)
    world.run()
    assert viewer.numbers == numbers(sent)


def test_what_leaves_before_it_is_read_is_passed_over(world: World) -> None:
    """With a viewer that has room for two at a time: consumers go on meanwhile, and get all of it."""
    queue = world.shared()
    world.send(queue, 10)
    viewer, _browser = browse(world, queue, FakeViewer(world, 16))
    world.run()
    assert viewer.numbers == [0, 1]
    consumer = world.consumer()
    queue.subscribe(consumer)
    world.run()
    assert consumer.numbers == list(range(10))
    consumer.settle(consumer.held[:7])
    while not viewer.is_done:
        viewer.read()
        world.run()
    assert viewer.numbers == [0, 1, 7, 8, 9]


def test_what_is_past_its_date_is_not_shown(world: World) -> None:
    """Also what a consumer holds at its date."""
    queue = world.shared()
    world.send(queue, 2, ttl_ms=1000)
    world.send(queue, 1)
    queue.subscribe(world.consumer(1))
    world.run()
    world.advance(2)
    assert browsed(world, queue) == [2]


def test_higher_priorities_are_shown_first(world: World) -> None:
    registry = DestinationRegistry(world.environment, lambda _address: make_policy())
    destination = registry.get(QUEUE)
    for priority in (4, 0, 9, 4, 9):
        world.send(destination.queue, 1, priority=priority)
    viewer = FakeViewer(world)
    registry.browse(QUEUE, viewer)
    world.run()
    assert [message.head.priority for message in viewer.shown] == [9, 9, 4, 4, 0]
    assert viewer.numbers == [2, 4, 0, 3, 1]
    assert viewer.is_done


def test_a_queue_that_is_not_there_is_empty_and_is_not_made(world: World) -> None:
    def policy_for(_address: DestinationName) -> QueuePolicy:
        return make_policy()

    registry = DestinationRegistry(world.environment, policy_for)
    viewer = FakeViewer(world)
    registry.browse(QUEUE, viewer)
    world.run()
    assert viewer.is_done
    assert not registry.destinations


def test_groups_that_are_set_aside_are_shown(world: World) -> None:
    queue = world.shared()
    sent = world.send(queue, 4, group="g")
    queue.subscribe(world.consumer(1))
    queue.subscribe(world.consumer(1))
    world.run()
    assert browsed(world, queue) == numbers(sent)


# ---------------------------------------------------------------------- flow


@pytest.mark.parametrize("room_bytes", [1, 8, 20, 100])
def test_a_viewer_gets_no_more_than_it_has_room_for(world: World, room_bytes: int) -> None:
    """But for the last message, which may go beyond it."""
    queue = world.shared()
    sent = world.send(queue, 50)
    viewer, _browser = browse(world, queue, FakeViewer(world, room_bytes))
    world.run()
    while not viewer.is_done:
        assert viewer.buffer.limiter.used_bytes < room_bytes + 8
        viewer.read()
        world.run()
    assert viewer.numbers == numbers(sent)


def test_a_viewer_may_take_less_than_it_is_offered(world: World) -> None:
    queue = world.shared()
    sent = world.send(queue, 20)
    viewer, _browser = browse(world, queue, FakeViewer(world, at_once_max=3))
    world.run()
    assert viewer.numbers == numbers(sent)
    assert max(viewer.sizes) == 3


def test_a_large_queue_is_shown_in_many_steps_with_others_in_between() -> None:
    """A dispatch shows no more than its budget, then it is the turn of the others at this priority."""
    world = World(budget_count=64)
    queue = world.shared()
    world.send(queue, 1000)
    viewer, _browser = browse(world, queue)
    turns: list[int] = []

    def look_in(_budget: int) -> bool:
        turns.append(len(viewer.shown))
        return not viewer.is_done

    world.core.register(look_in, "somebody else", BROWSE_PRIORITY).request_dispatch()
    world.run()
    assert max(later - before for before, later in pairwise(turns)) == 64


def test_consumers_come_first(world: World) -> None:
    """What is ready at the priority of ordinary queues is dispatched before the next step of a browser."""
    queue = world.shared()
    world.send(queue, 10)
    viewer, _browser = browse(world, queue)
    consumer = world.consumer(auto=True)
    queue.subscribe(consumer)
    world.run()
    assert len(consumer.numbers) == 10
    assert viewer.numbers == []
    assert viewer.is_done


def test_a_viewer_that_stands_still_holds_nobody_up(world: World) -> None:
    queue = world.shared(count_max=5, full="block")
    world.send(queue, 5)
    viewer, _browser = browse(world, queue, FakeViewer(world, 8))
    world.run()
    producer = Producer(world, queue)
    producer.send(*[world.messages(1) for _ in range(20)])
    consumer = world.consumer(auto=True)
    queue.subscribe(consumer)
    world.run()
    assert consumer.numbers == list(range(25))
    assert not viewer.is_done


def test_closing_ends_it_early_and_leaves_nothing(world: World) -> None:
    queue = world.shared()
    world.send(queue, 10)
    viewer, browser = browse(world, queue, FakeViewer(world, 8))
    world.run()
    assert browser.source.blocked
    browser.close()
    browser.close()
    viewer.read()
    world.run()
    assert viewer.numbers == [0]
    assert not viewer.is_done
    assert browser not in world.manager.resources


def test_a_queue_that_is_deleted_meanwhile_has_no_more_to_show(world: World) -> None:
    queue = world.shared()
    world.send(queue, 10)
    viewer, _browser = browse(world, queue, FakeViewer(world, 8))
    world.run()
    queue.close_queue("test")
    viewer.read()
    world.run()
    assert viewer.numbers == [0]
    assert viewer.is_done


# ---------------------------------------------------------------------- what is outside


def test_what_is_outside_is_shown_and_stays_outside(world: World, store: MemoryStore) -> None:
    queue = paging_queue(world, store)
    outside_count = queue.elements.outside_count
    viewer, browser = browse(world, queue)
    store.answer(world)
    assert viewer.is_done
    assert viewer.numbers == list(range(4000))
    assert queue.elements.outside_count == outside_count
    assert queue.pager is not None
    assert queue.pager.paged_in_count == 0
    assert browser not in world.manager.resources


def test_one_block_at_a_time_is_in_its_hands_and_charged(world: World, store: MemoryStore) -> None:
    queue = paging_queue(world, store)
    used_bytes = world.manager.used_bytes
    viewer, _browser = browse(world, queue, FakeViewer(world, 80))
    blocks = {index: block.live_count for index, block in queue.elements.blocks()}
    extra: set[int] = set()
    while not viewer.is_done:
        assert len(store.loads) <= 1
        store.answer(world)
        held_bytes = world.manager.used_bytes - used_bytes - viewer.buffer.limiter.used_bytes
        extra.add(held_bytes)
        assert held_bytes <= max(blocks.values()) * 200
        viewer.read()
        world.run()
    assert len(extra) > 1, "blocks were held while the viewer had no room"
    assert viewer.numbers == list(range(4000))
    assert world.manager.used_bytes == used_bytes


def test_nothing_is_read_for_a_viewer_without_room(world: World, store: MemoryStore) -> None:
    queue = paging_queue(world, store)
    viewer = FakeViewer(world, 8)
    viewer.buffer.charge(0, 8, None)
    browse(world, queue, viewer)
    world.run()
    assert not store.loads


def test_consumers_may_drain_the_queue_while_a_block_is_read(world: World, store: MemoryStore) -> None:
    """What has left when the block comes is not shown; the rest of it is, though it has come into memory since."""
    queue = paging_queue(world, store)
    viewer, _browser = browse(world, queue, FakeViewer(world, 80))
    world.run()
    while not store.loads:
        viewer.read()
        world.run()
    shown_count = len(viewer.shown)
    late = store.loads.popleft()
    store.loads.clear()
    consumer = world.consumer(2000)
    queue.subscribe(consumer)
    store.answer(world)
    assert len(consumer.held) == 2000
    settled = set(consumer.held_numbers[::2])
    consumer.settle(consumer.held[::2])
    late()
    while not viewer.is_done:
        viewer.read()
        store.answer(world)
    assert viewer.numbers == [n for n in range(4000) if n < shown_count or n not in settled]
    assert shown_count < max(settled)


def test_what_the_store_can_not_read_is_passed_over(world: World, store: MemoryStore) -> None:
    queue = paging_queue(world, store)
    [storage] = store.storages
    index = next(index for index, block in queue.elements.blocks() if block.outside is not None)
    block = queue.elements.block(index)
    assert block is not None
    lost = queue.elements.first_live(block.base)
    number = storage.block(index)[lost].number
    storage.lose(index, lost)
    viewer, _browser = browse(world, queue)
    store.answer(world)
    assert viewer.numbers == [n for n in range(4000) if n != number]


def test_an_answer_after_the_end_is_dropped(world: World, store: MemoryStore) -> None:
    queue = paging_queue(world, store)
    viewer, browser = browse(world, queue)
    world.run()
    assert store.loads
    browser.close()
    store.answer(world)
    assert not viewer.is_done
    assert all(number < 4000 for number in viewer.numbers)


def test_a_queue_deleted_while_a_block_is_read_ends_it(world: World, store: MemoryStore) -> None:
    queue = paging_queue(world, store)
    viewer, _browser = browse(world, queue)
    world.run()
    assert store.loads
    queue.close_queue("test")
    store.answer(world)
    assert viewer.is_done
    assert len(viewer.shown) < 4000
