"""The broker's memory among its destinations: all of them together stay within it, and nobody waits without need.

Queues and topics of all policies over one MemoryBudget, with and without a store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sluiceway.flow import MemoryBudget, size_in_words
from sluiceway.queues.policy import QueuePolicy
from sluiceway.queues.queue import MessageQueue
from sluiceway.queues.shared import shared_queue
from sluiceway.queues.topic import Topic
from sluiceway.store.memory import MemoryEngine
from tests.queues.rig import FakeConsumer, Head, World
from tests.store.rig import OfferingProducer, StoreWorld

MIB = 1 << 20
BODY_BYTES = 100_000


class Memory:
    """A world whose broker has little memory, and someone who looks after it as a broker does."""

    def __init__(self, world: World, capacity_bytes: int = 16 * MIB) -> None:
        self.world = world
        self.budget = world.manager.budget = MemoryBudget(capacity_bytes, manager=world.manager)
        self.budget.open()
        self.queues: list[MessageQueue] = []
        self.producers: list[OfferingProducer] = []

    def queue(
        self, kind: Callable[..., MessageQueue] = shared_queue, *, priority: int = 4, **policy: Any
    ) -> MessageQueue:
        name = f"/queue/{len(self.queues)}"
        queue = kind(name, QueuePolicy(**policy), self.world.environment, priority=priority)
        self.queues.append(queue)
        return queue

    def send(
        self, queue: MessageQueue, count: int = 1, *, wire_bytes: int = BODY_BYTES, **head: Any
    ) -> OfferingProducer:
        producer = OfferingProducer(self.world, queue)
        self.producers.append(producer)
        for _ in range(count):
            producer.send(self.world.messages(1, wire_bytes=wire_bytes, head=Head(**head)))
        return producer

    def settle(self, steps: int = 100) -> None:
        """Let the disk and the budget do what they can."""
        for _ in range(steps):
            if isinstance(self.world, StoreWorld):
                self.world.settle_down()
            else:
                self.world.run()
            if self.budget.short:
                self.budget.step()
        assert self.budget.used_bytes >= self.held_bytes

    @property
    def held_bytes(self) -> int:
        return sum(queue.controller.limiter.used_bytes for queue in self.queues)

    def consume(self, queue: MessageQueue) -> FakeConsumer:
        consumer = self.world.consumer(auto=True)
        queue.subscribe(consumer)
        return consumer


@pytest.fixture
def stored() -> Memory:
    return Memory(StoreWorld(MemoryEngine()))


@pytest.fixture
def unstored() -> Memory:
    return Memory(World())


def test_a_hundred_queues_without_paging_stay_within_the_memory(unstored: Memory) -> None:
    """What one connection sends to all of them is charged for each."""
    queues = [unstored.queue() for _ in range(100)]
    for _ in range(30):
        for queue in queues:
            unstored.send(queue)
        assert unstored.held_bytes <= unstored.budget.capacity_bytes + BODY_BYTES
    unstored.settle()
    assert unstored.held_bytes >= unstored.budget.capacity_bytes // 2
    assert sum(producer.is_blocked for producer in unstored.producers) > 0
    consumers = [unstored.consume(queue) for queue in queues]
    unstored.settle(300)
    assert all(len(consumer.deliveries) == 30 for consumer in consumers)
    assert not any(producer.outbox for producer in unstored.producers)
    assert not unstored.budget.short and unstored.held_bytes == 0


def test_a_hundred_queues_that_page_take_everything(stored: Memory) -> None:
    queues = [stored.queue() for _ in range(100)]
    for _ in range(30):
        for queue in queues:
            stored.send(queue)
        stored.settle(5)
        assert stored.held_bytes <= stored.budget.capacity_bytes + BODY_BYTES
    stored.settle(300)
    assert all(queue.elements.live_count == 30 for queue in queues), "disk is what they are as long as"
    consumer = stored.consume(queues[17])
    stored.settle()
    assert len(consumer.deliveries) == 30


def test_a_queue_is_as_long_as_the_disk_when_others_hold_memory_and_cannot_give_way(stored: Memory) -> None:
    """The others wait for consumers; one that pages goes on with what it may hold."""
    for _ in range(4):
        stored.send(stored.queue(paging="throttle"), 100)
    stored.settle()
    paging = stored.queue()
    producer = stored.send(paging, 100)
    stored.settle(500)
    assert not producer.outbox and paging.elements.live_count == 100


def test_a_small_queue_passes_when_large_ones_stand_still(stored: Memory) -> None:
    large = [stored.send(stored.queue(paging="throttle"), 200) for _ in range(5)]
    stored.settle()
    assert all(producer.is_blocked for producer in large)
    small = stored.queue(paging="throttle")
    consumer = stored.consume(small)
    for count in range(1, 50):
        producer = stored.send(small, 1, wire_bytes=1000)
        stored.settle(1)
        assert not producer.outbox and len(consumer.deliveries) == count


def test_a_priority_of_its_own_passes_when_the_backlog_of_others_fills_the_memory(unstored: Memory) -> None:
    for _ in range(5):
        unstored.send(unstored.queue(), 200)
    unstored.settle()
    urgent = unstored.queue(priority=9)
    producer = unstored.send(urgent, 3, priority=9)
    unstored.settle(1)
    assert not producer.outbox


@pytest.mark.parametrize("kind", [shared_queue, Topic])
def test_what_drops_the_oldest_does_so_at_its_part_of_the_memory(
    unstored: Memory, kind: Callable[..., MessageQueue]
) -> None:
    """No sender waits; each holds about its part."""
    queues = [unstored.queue(kind, full="drop_oldest") for _ in range(8)]
    consumers = [unstored.world.consumer(1) for _ in queues]
    fast = [unstored.world.consumer(auto=True) for _ in queues]
    for queue, consumer, other in zip(queues, consumers, fast, strict=True):
        if kind is Topic:
            queue.subscribe(consumer)
            queue.subscribe(other)
    for _ in range(60):
        for queue in queues:
            producer = unstored.send(queue)
            unstored.settle(1)
            assert not producer.outbox
    assert unstored.held_bytes <= unstored.budget.capacity_bytes
    assert min(queue.controller.limiter.used_bytes for queue in queues) >= 0.4 * unstored.budget.capacity_bytes / 8


def test_what_drops_the_newest_or_rejects_does_so_at_its_part(unstored: Memory) -> None:
    for full in ("drop_newest", "reject"):
        unstored.queue(full=full)
    for _ in range(200):
        for queue in unstored.queues:
            unstored.send(queue)
        unstored.settle(1)
    dropping, rejecting = unstored.queues
    assert dropping.dropped_count > 0 and rejecting.rejected_count > 0
    assert unstored.held_bytes <= unstored.budget.capacity_bytes


def test_idle_queues_page_out_for_others(stored: Memory) -> None:
    """Nothing comes into them any more; what they hold is in the way all the same."""
    for _ in range(8):
        stored.send(stored.queue(), 18)
        stored.settle(2)
    stored.settle()
    assert stored.held_bytes <= 0.8 * stored.budget.capacity_bytes
    assert any(queue.elements.outside_count for queue in stored.queues)


def test_a_full_disk_and_full_memory_hold_senders_and_let_consumers_go_on(stored: Memory) -> None:
    assert isinstance(stored.world, StoreWorld)
    stored.world.store._gate.limiter.add(1, 0)  # the disk takes nothing
    for _ in range(4):
        stored.send(stored.queue(), 200)
    stored.settle()
    assert stored.held_bytes <= stored.budget.capacity_bytes
    assert all(producer.is_blocked for producer in stored.producers)
    consumer = stored.consume(stored.queues[0])
    stored.settle()
    assert len(consumer.deliveries) == 200, "the disk is not needed for what is consumed"


def test_the_map_says_who_waits_for_the_memory(unstored: Memory) -> None:
    producer = unstored.send(unstored.queue(), 200)
    unstored.settle(1)
    assert producer.is_blocked
    chain = str(unstored.world.manager.snapshot().to_dict()["chains"][0])
    assert "waits on memory of the broker" in chain
    assert size_in_words(unstored.budget.capacity_bytes) in chain
    assert "/queue/0 (" in chain, "the largest holder"
    chains = str(unstored.world.manager.snapshot().to_dict()["chains"])
    assert "waits on queue /queue/0 (memory held back, " in chains


def test_what_an_earlier_run_left_is_not_loaded_at_once() -> None:
    world = StoreWorld(MemoryEngine())
    queue = world.queue()
    for _ in range(300):
        world.put(queue, wire_bytes=BODY_BYTES)
    world.flush()
    engine = world.close_in_order()
    memory = Memory(StoreWorld(engine), capacity_bytes=2 * MIB)
    restored = shared_queue("/queue/a", QueuePolicy(), memory.world.environment)
    memory.queues.append(restored)
    restored.open_stored()
    assert memory.held_bytes == 0
    consumer = memory.world.consumer(2)
    restored.subscribe(consumer)
    for _ in range(400):
        memory.settle(2)
        assert memory.held_bytes <= memory.budget.capacity_bytes + 2 * (1 << 20)
        if not consumer.held:
            break
        consumer.settle()
    assert len(consumer.deliveries) == 300


def test_what_nobody_hears_drains_and_what_nobody_consumes_does_not(unstored: Memory) -> None:
    """Who drains gets a waiver when others hold the memory: a sender to a topic without readers must not wait."""
    drains = [unstored.queue(kind, full="block").controller.limiter.share for kind in (Topic, shared_queue)]
    assert [share.drains() for share in drains if share is not None and share.drains is not None] == [True, False]
    for queue in unstored.queues:
        unstored.consume(queue)
    assert all(share.drains() for share in drains if share is not None and share.drains is not None)
