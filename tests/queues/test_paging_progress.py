"""Progress of what pages, over all sizes of messages: nobody waits for ever while something can give way.

Messages of one byte to more than the memory of their queue, in every mixture: persistent and not, delayed, in groups,
of several priorities, to queues and to topics with durable subscriptions, with no consumer, one that stands still, one
without credit, a pause. What may page takes all of it, whatever stays in memory is bounded, and at the end a willing
consumer gets everything in order. What does not page waits for consumers, and for nobody else.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.flow import ResidencyLimiter
from sluiceway.queues.delays import delay_queue
from sluiceway.queues.message import MESSAGE_OVERHEAD_BYTES
from sluiceway.queues.partitioned import by_priority
from sluiceway.queues.policy import QueuePolicy
from sluiceway.queues.queue import MessageQueue
from sluiceway.queues.shared import shared_queue
from sluiceway.queues.topic import Topic
from sluiceway.store.memory import MemoryEngine
from tests.queues.rig import FakeConsumer, Head
from tests.store.rig import OfferingProducer, StoreWorld, tight

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMORY_BYTES = 8192
LARGEST_BYTES = MEMORY_BYTES + 2000

SIZES = st.lists(
    st.one_of(
        st.sampled_from([1, 300, MEMORY_BYTES // 6, MEMORY_BYTES // 5, MEMORY_BYTES // 2, MEMORY_BYTES, LARGEST_BYTES]),
        st.integers(1, LARGEST_BYTES),
    ),
    min_size=1,
    max_size=30,
)
KINDS = st.lists(st.sampled_from(["volatile", "persistent", "delayed"]), min_size=1, max_size=7)
PAGING = st.sampled_from(["page", "offload"])
BITS = st.sampled_from([1, 2, 10])


@contextmanager
def world_of(bits: int) -> Iterator[StoreWorld]:
    with tight(block_bits=bits, lease_count=64, blocks_min=8):
        yield StoreWorld(MemoryEngine())


def head_of(kind: str, **more: Any) -> Head:
    return Head(persistent=kind == "persistent", delay_ms=5000 if kind == "delayed" else 0, **more)


def limiter_of(queue: MessageQueue) -> ResidencyLimiter:
    limiter = queue.controller.limiter
    assert isinstance(limiter, ResidencyLimiter)
    return limiter


def send_all(world: StoreWorld, queue: MessageQueue, sizes: list[int], heads: list[Head], readers_count: int) -> None:
    """One after the other, each with time for the disk: none may wait for long."""
    producer = OfferingProducer(world, queue)
    for place, size in enumerate(sizes):
        producer.send(world.messages(1, wire_bytes=size, head=heads[place % len(heads)]))
        world.settle_down()
        if producer.is_blocked:
            world.wait_in_vain()
        assert not producer.is_blocked, f"message {place} of {sizes} waits: {limiter_of(queue).describe()}"
        bound_bytes = MEMORY_BYTES + (1 + 2 * readers_count) * (LARGEST_BYTES + MESSAGE_OVERHEAD_BYTES)
        assert limiter_of(queue).used_bytes <= bound_bytes
    producer.close()


def numbers_of(consumer: FakeConsumer) -> list[int]:
    return [delivery.number for delivery in consumer.deliveries]


def take_all(world: StoreWorld, consumer: FakeConsumer) -> None:
    """It settles what it gets until nothing more comes."""
    world.advance(10)
    world.settle_down()
    while consumer.held:
        consumer.settle()
        world.settle_down()


def parties(world: StoreWorld, queue: MessageQueue, who: str) -> list[FakeConsumer]:
    """Those who are there while messages come in, and settle nothing."""
    consumers = {"nobody": [], "still": [world.consumer(3)], "greedy": [world.consumer()], "spent": [world.consumer(1)]}
    if who == "paused":
        consumers["paused"] = [world.consumer()]
        queue.pause()
    for consumer in consumers[who]:
        queue.subscribe(consumer)
    return consumers[who]


@given(
    sizes=SIZES,
    kinds=KINDS,
    paging=PAGING,
    bits=BITS,
    who=st.sampled_from(["nobody", "still", "greedy", "spent", "paused"]),
)
def test_a_queue_that_may_page_takes_messages_of_all_sizes(
    sizes: list[int], kinds: list[str], paging: str, bits: int, who: str
) -> None:
    with world_of(bits) as world:
        queue = world.queue(memory_bytes=MEMORY_BYTES, paging=paging)
        there = parties(world, queue, who)
        send_all(world, queue, sizes, [head_of(kind) for kind in kinds], len(there))
        queue.unpause()
        world.settle_down()
        consumer = there[0] if there else world.consumer(2)
        if not there:
            queue.subscribe(consumer)
        take_all(world, consumer)
        assert sorted(numbers_of(consumer)) == list(range(len(sizes)))
        prompt = [n for n in numbers_of(consumer) if kinds[n % len(kinds)] != "delayed"]
        assert prompt == sorted(prompt)
        assert (limiter_of(queue).used_bytes, limiter_of(queue).total_bytes) == (0, 0)


@pytest.mark.parametrize(
    "size", [1, 100, 1000, 1300, 1500, 1600, 2000, 2700, 4000, 4096, 5000, 8000, 8192, 9000, 20000]
)
@pytest.mark.parametrize("persistent", [True, False])
def test_messages_of_one_size_never_stop_a_queue_without_consumers(size: int, persistent: bool) -> None:
    with world_of(10) as world:
        queue = world.queue(memory_bytes=MEMORY_BYTES)
        producer = OfferingProducer(world, queue)
        for _ in range(60):
            producer.send(world.messages(1, wire_bytes=size, head=Head(persistent=persistent)))
            world.settle_down()
            assert not producer.is_blocked
            assert limiter_of(queue).used_bytes <= MEMORY_BYTES
        assert queue.elements.live_count == 60


@given(sizes=SIZES, kinds=KINDS, paging=PAGING, bits=BITS, spent=st.booleans())
def test_a_topic_with_a_durable_subscription_takes_messages_of_all_sizes(
    sizes: list[int], kinds: list[str], paging: str, bits: int, spent: bool
) -> None:
    """One durable subscription is away, one is there and stands still; the fastest takes all."""
    with world_of(bits) as world:
        policy = QueuePolicy(memory_bytes=MEMORY_BYTES, paging=paging, lag_bytes_per_second=None)
        topic = Topic("/topic/a", policy, world.environment)
        topic.readers.add(1)
        topic.readers.add(2)
        still = world.consumer(1 if spent else None)
        topic.subscribe(still, durable_id=2)
        fast = world.consumer(auto=True)
        topic.subscribe(fast)
        send_all(world, topic, sizes, [head_of(kind.replace("delayed", "volatile")) for kind in kinds], 2)
        assert numbers_of(fast) == list(range(len(sizes)))
        away = world.consumer(1)
        topic.subscribe(away, durable_id=1)
        take_all(world, away)
        take_all(world, still)
        assert numbers_of(away) == numbers_of(still) == list(range(len(sizes)))
        assert limiter_of(topic).total_bytes == 0


@given(sizes=SIZES, kinds=KINDS, paging=PAGING, priorities=st.lists(st.integers(0, 9), min_size=1, max_size=4))
def test_each_priority_takes_messages_of_all_sizes(
    sizes: list[int], kinds: list[str], paging: str, priorities: list[int]
) -> None:
    with world_of(2) as world:
        policy = QueuePolicy(memory_bytes=MEMORY_BYTES, paging=paging)
        queue = by_priority(
            "/queue/a",
            lambda priority: shared_queue(
                f"/queue/a {priority}", policy, world.environment, priority=priority, destination="/queue/a"
            ),
        )
        for priority in set(priorities):
            heads = [head_of(kind, priority=priority) for kind in kinds]
            send_all(world, queue.partition(priority), sizes, heads, 0)
        consumer = world.consumer(2)
        queue.attach(consumer)
        take_all(world, consumer)
        assert len(consumer.deliveries) == len(set(priorities)) * len(sizes)


@given(sizes=SIZES, paging=PAGING, bits=BITS)
def test_what_is_to_be_published_later_takes_messages_of_all_sizes(sizes: list[int], paging: str, bits: int) -> None:
    with world_of(bits) as world:
        policy = QueuePolicy(memory_bytes=MEMORY_BYTES, paging=paging)
        topic = Topic("/topic/a", policy, world.environment)
        consumer = world.consumer(auto=True)
        topic.subscribe(consumer)
        waiting = delay_queue(
            "/topic/a", policy, world.environment, priority=4, destination="/topic/a", lasting=True, topic=lambda: topic
        )
        send_all(world, waiting, sizes, [head_of("delayed")], 1)
        take_all(world, consumer)
        assert sorted(numbers_of(consumer)) == list(range(len(sizes)))


@given(sizes=SIZES, groups=st.lists(st.sampled_from([None, "a", "b"]), min_size=1, max_size=5), bits=BITS)
def test_what_is_held_for_groups_stays_and_the_rest_gives_way(
    sizes: list[int], groups: list[str | None], bits: int
) -> None:
    """A group that stands still fills the queue; when it goes on, so does everybody."""
    with world_of(bits) as world:
        queue = world.queue(memory_bytes=MEMORY_BYTES)
        consumers = [world.consumer(2), world.consumer(1)]
        for consumer in consumers:
            queue.subscribe(consumer)
        producer = OfferingProducer(world, queue)
        for place, size in enumerate(sizes):
            producer.send(world.messages(1, wire_bytes=size, head=Head(group=groups[place % len(groups)])))
            world.settle_down()
        world.settle_down()
        world.wait_in_vain()
        if producer.is_blocked:
            assert queue.pinned_below() > 0, "only groups hold anybody back"
        while any(consumer.held for consumer in consumers):
            for consumer in consumers:
                if consumer.held:
                    consumer.settle()
            world.settle_down()
        assert not producer.is_blocked and not producer.outbox
        assert sorted(n for consumer in consumers for n in numbers_of(consumer)) == list(range(len(sizes)))


@given(sizes=SIZES, kinds=KINDS, bits=BITS)
def test_without_paging_senders_wait_for_consumers_and_for_nobody_else(
    sizes: list[int], kinds: list[str], bits: int
) -> None:
    with world_of(bits) as world:
        queue = world.queue(memory_bytes=MEMORY_BYTES, paging="throttle")
        producer = OfferingProducer(world, queue)
        producer.send(
            *[world.messages(1, wire_bytes=size, head=head_of(kinds[n % len(kinds)])) for n, size in enumerate(sizes)]
        )
        world.settle_down()
        assert limiter_of(queue).used_bytes <= MEMORY_BYTES + LARGEST_BYTES + MESSAGE_OVERHEAD_BYTES
        assert producer.is_blocked == (limiter_of(queue).used_bytes >= MEMORY_BYTES)
        consumer = world.consumer(1)
        queue.subscribe(consumer)
        for _ in range(len(sizes) + 1):
            take_all(world, consumer)
        assert sorted(numbers_of(consumer)) == list(range(len(sizes)))
        assert not producer.is_blocked
