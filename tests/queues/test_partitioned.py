"""Partitions: by priority, by any function; each with its own limit, consumers on all of them."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from sluiceway.flow import FlowClosedError
from sluiceway.queues.message import Message
from sluiceway.queues.partitioned import PartitionedQueue, PartitionLimitError, by_priority
from sluiceway.queues.queue import MessageQueue
from sluiceway.queues.shared import shared_queue
from tests.queues.rig import Head, Producer, World, make_policy, numbers


def maker(world: World, **policy: object) -> type[_Maker]:
    _Maker.world = world
    _Maker.policy = policy
    return _Maker


class _Maker:
    world: World
    policy: dict[str, object]

    @classmethod
    def by_priority(cls, priority: int) -> MessageQueue:
        return shared_queue(f"p{priority}", make_policy(**cls.policy), cls.world.environment, priority=priority)

    @classmethod
    def plain(cls, key: Hashable) -> MessageQueue:
        return shared_queue(f"part {key}", make_policy(**cls.policy), cls.world.environment)


def content(queue: MessageQueue) -> list[Message]:
    return [message for s in range(queue.elements.next_sequence) if (message := queue.elements.get(s)) is not None]


def test_raised_priority_passes_a_backlog() -> None:
    world = World()
    queue = by_priority("q", maker(world).by_priority)
    consumer = world.consumer(1)
    queue.attach(consumer)
    low = world.send(queue, 5)
    world.run()
    high = world.send(queue, 2, priority=9)
    order = []
    while consumer.held:
        order += consumer.held_numbers
        consumer.settle()
        world.run()
    assert order[0] == low[0].number
    assert sorted(order) == list(range(7))
    assert set(numbers(high)) <= set(order[:4]), "prefetch 1: the credit goes to them in turn with the backlog"


def test_raised_priority_is_dispatched_first_when_both_wait() -> None:
    world = World()
    queue = by_priority("q", maker(world).by_priority)
    world.send(queue, 3)
    world.send(queue, 3, priority=9)
    world.send(queue, 3, priority=0)
    consumer = world.consumer()
    queue.attach(consumer)
    world.run()
    assert consumer.numbers == [3, 4, 5, 0, 1, 2, 6, 7, 8]


def test_partitions_are_made_when_needed_and_consumers_are_on_all_of_them() -> None:
    world = World()
    queue = by_priority("q", maker(world).by_priority)
    assert list(queue.partitions) == [4]
    consumer = world.consumer()
    attachment = queue.attach(consumer)
    world.send(queue, 1, priority=7)
    assert list(queue.partitions) == [4, 7]
    assert [len(partition.subscriptions) for partition in queue.partitions.values()] == [1, 1]
    assert queue.attachments == [attachment]
    attachment.close()
    attachment.close()
    assert queue.attachments == []
    world.send(queue, 1, priority=2)
    world.run()
    assert consumer.held == []


def test_a_full_partition_blocks_only_its_own_senders() -> None:
    world = World()
    queue = by_priority("q", maker(world, full="block", count_max=2).by_priority)
    low, high = Producer(world, queue), Producer(world, queue)
    low.send(world.messages(2))
    assert low.is_blocked()
    high.send(world.messages(1, head=Head(priority=9)))
    assert not high.is_blocked()
    assert not queue.is_empty


def test_a_run_is_divided_by_any_function_in_order() -> None:
    world = World()
    queue = PartitionedQueue("q", maker(world).plain, lambda message: message.number % 3, partitions_max=3)
    world.send(queue, 9)
    assert [numbers(content(part)) for part in queue.partitions.values()] == [
        [0, 3, 6],
        [1, 4, 7],
        [2, 5, 8],
    ]


def test_a_function_with_too_many_results_is_refused() -> None:
    world = World()
    queue = PartitionedQueue("q", maker(world).plain, lambda message: message.number, partitions_max=2)
    world.send(queue, 2)
    with pytest.raises(
        PartitionLimitError, match=r"q has 2 partitions already and none for 2: use a partition function"
    ):
        world.send(queue, 1)
    assert len(queue.partitions) == 2


def test_a_deleted_queue_makes_no_partitions_any_more() -> None:
    world = World()
    queue = by_priority("q", maker(world).by_priority)
    consumer = world.consumer()
    attachment = queue.attach(consumer)
    world.send(queue, 2)
    world.send(queue, 1, priority=8)
    assert queue.close_queue("over") == 3
    assert consumer.cancelled_for == ["over", "over"]
    attachment.close()
    with pytest.raises(FlowClosedError, match="q was deleted: look it up again before you send"):
        world.send(queue, 1, priority=1)
    with pytest.raises(FlowClosedError, match="before you subscribe"):
        queue.attach(consumer)
    assert queue.close_queue("again") == 0


def test_a_consumer_under_two_names_gets_nothing_twice_and_stays_until_the_last_goes() -> None:
    world = World()
    queue = by_priority("q", maker(world).by_priority)
    consumer = world.consumer()
    one, two = queue.attach(consumer), queue.attach(consumer)
    assert queue.attachments == [one, two]
    assert queue.attachments_count == 2
    world.send(queue, 1)
    world.send(queue, 1, priority=7)
    world.run()
    assert sorted(consumer.numbers) == [0, 1]
    assert [len(partition.subscriptions) for partition in queue.partitions.values()] == [1, 1]
    one.close()
    one.close()
    world.send(queue, 1)
    world.run()
    assert sorted(consumer.numbers) == [0, 1, 2]
    two.close()
    world.send(queue, 1)
    world.run()
    assert len(consumer.numbers) == 3
    assert queue.attachments_count == 0
