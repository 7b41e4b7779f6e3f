"""Shared queues: who gets what, in which order, and what comes back."""

from __future__ import annotations

from unittest.mock import patch

import attrs
import pytest

from sluiceway.queues.blocks import QueueInvariantError
from tests.queues.rig import World, assert_exact, numbers


def test_one_consumer_gets_all_in_order() -> None:
    world = World()
    queue = world.shared()
    consumer = world.consumer(auto=True)
    queue.subscribe(consumer)
    sent = world.send(queue, 3000)
    world.run()
    assert consumer.numbers == numbers(sent)
    assert queue.is_empty
    assert (queue.added_count, queue.settled_count) == (3000, 3000)


def test_nothing_is_delivered_while_it_may_not_be_and_all_of_it_behind_that() -> None:
    """A hub that is not certain of its session asks at the moment of each dispatch."""
    world = World()
    certain = [False]
    world.environment = attrs.evolve(world.environment, may_deliver=lambda: certain[0])
    queue = world.shared()
    consumer = world.consumer(2)
    queue.subscribe(consumer)
    world.send(queue, 3)
    world.run()
    assert (consumer.numbers, queue.waiting_count) == ([], 3)
    certain[0] = True
    queue.context.request_dispatch()
    world.run()
    assert consumer.held_numbers == [0, 1]
    certain[0] = False
    consumer.settle()
    world.run()
    assert consumer.numbers == [0, 1], "settling goes on"
    assert queue.settled_count == 2


def test_messages_wait_for_a_consumer() -> None:
    world = World()
    queue = world.shared()
    world.send(queue, 5)
    world.run()
    assert queue.waiting_count == 5
    consumer = world.consumer()
    queue.subscribe(consumer)
    world.run()
    assert consumer.numbers == [0, 1, 2, 3, 4]
    assert (queue.waiting_count, queue.unsettled_count) == (0, 5)


def test_a_window_is_never_exceeded_and_opens_with_each_settlement() -> None:
    world = World()
    queue = world.shared()
    consumer = world.consumer(2)
    queue.subscribe(consumer)
    world.send(queue, 5)
    for expected in ([0, 1], [1, 2], [2, 3], [3, 4], [4], []):
        world.run()
        assert consumer.held_numbers == expected
        consumer.settle(consumer.held[:1])


def test_byte_credit_limits_but_one_message_always_fits() -> None:
    world = World()
    queue = world.shared()
    consumer = world.consumer(None, 25)
    queue.subscribe(consumer)
    world.send(queue, 4, wire_bytes=10)
    world.send(queue, 1, wire_bytes=99)
    world.run()
    assert consumer.held_numbers == [0, 1, 2], "the last one overdraws"
    consumer.settle()
    world.run()
    assert consumer.held_numbers == [3, 4]


@pytest.mark.parametrize("run_count", [1, 7, 100])
def test_ten_consumers_share_evenly(run_count: int) -> None:
    """Whatever the size of the runs: after 1,000 messages nobody has more than a run's share above anybody else."""
    world = World()
    queue = world.shared()
    consumers = [world.consumer(auto=True) for _ in range(10)]
    for consumer in consumers:
        queue.subscribe(consumer)
    for _ in range(1000 // run_count):
        world.send(queue, run_count)
        world.run()
    counts = [len(consumer.deliveries) for consumer in consumers]
    assert sum(counts) == 1000 // run_count * run_count
    assert max(counts) - min(counts) <= 1 + run_count // 10


def test_a_backlog_is_shared_by_credit() -> None:
    world = World()
    queue = world.shared()
    slow, quick = world.consumer(2), world.consumer(20)
    queue.subscribe(slow)
    queue.subscribe(quick)
    world.send(queue, 100)
    world.run()
    assert (len(slow.held), len(quick.held)) == (2, 20)


def test_a_stalled_consumer_does_not_stop_the_other() -> None:
    world = World()
    queue = world.shared()
    stalled, working = world.consumer(3), world.consumer(3, auto=True)
    queue.subscribe(stalled)
    queue.subscribe(working)
    sent = world.send(queue, 500)
    world.run()
    assert len(stalled.held) == 3
    assert sorted(stalled.numbers + working.numbers) == numbers(sent)


def test_what_is_given_back_goes_to_the_next_before_anything_later_with_its_attempts() -> None:
    world = World()
    queue = world.shared()
    first = world.consumer(4)
    subscription = queue.subscribe(first)
    world.send(queue, 8)
    world.run()
    subscription.close()
    first.requeue(list(reversed(first.held)))
    second = world.consumer()
    queue.subscribe(second)
    world.run()
    assert second.numbers == [0, 1, 2, 3, 4, 5, 6, 7]
    assert [delivery.attempts_count for delivery in second.deliveries] == [1, 1, 1, 1, 0, 0, 0, 0]


def test_attempts_add_up_and_those_that_were_none_are_not_counted() -> None:
    world = World()
    queue = world.shared()
    consumer = world.consumer(1)
    queue.subscribe(consumer)
    world.send(queue, 1)
    for attempted, expected in ((True, 0), (True, 1), (False, 2), (True, 2), (False, 3)):
        world.run()
        assert consumer.held[0].attempts_count == expected
        consumer.requeue(attempted=attempted)
    assert queue.returned_count == 5
    assert_exact(queue)


def test_a_consumer_that_left_can_still_settle() -> None:
    world = World()
    queue = world.shared()
    consumer = world.consumer(3)
    subscription = queue.subscribe(consumer)
    world.send(queue, 3)
    world.run()
    subscription.close()
    assert queue.statistics().subscriptions_count == 0
    consumer.settle()
    assert queue.is_empty
    assert_exact(queue)


def test_settling_twice_stops_loudly() -> None:
    world = World()
    queue = world.shared()
    consumer = world.consumer()
    subscription = queue.subscribe(consumer)
    world.send(queue, 3)
    world.run()
    subscription.settle([1], 8)
    with pytest.raises(QueueInvariantError, match="left the queue before"):
        subscription.settle([1], 8)


def test_a_consumer_with_two_queues_shares_one_window_between_them() -> None:
    """Prefetch 1 means one, whichever queue it comes from; and neither queue forgets to go on."""
    world = World()
    queues = [world.shared(), world.shared()]
    consumer = world.consumer(1)
    for queue in queues:
        queue.subscribe(consumer)
        world.send(queue, 3)
    for _ in range(6):
        world.run()
        assert len(consumer.held) == 1
        consumer.settle()
    world.run()
    assert sorted(consumer.numbers) == [0, 1, 2, 3, 4, 5]
    assert all(queue.is_empty for queue in queues)


def test_a_consumer_without_credit_that_does_not_block_is_a_loud_mistake() -> None:
    """It would wait forever, and nobody would know why."""
    world = World()
    queue = world.shared()
    consumer = world.consumer(1)
    consumer.window.charge(1, 1, None)
    queue.subscribe(consumer)
    world.send(queue, 1)
    with (
        patch.object(consumer, "wait"),
        pytest.raises(QueueInvariantError, match="has no credit for /queue/a and does not block it"),
    ):
        world.run()


def test_subscribers_that_come_and_go_leave_nothing_behind() -> None:
    """Also while another one stays that has credit and nothing to do."""
    world = World()
    queue = world.shared()
    queue.subscribe(world.consumer())
    world.run()
    for _ in range(50):
        queue.subscribe(world.consumer()).close()
        world.run()
    assert len(queue.subscriptions) == 1
    assert len(queue.ring) <= 1
    assert len(queue.controllers) == 2, "its gate and the subscription that stayed"


def test_the_budget_of_a_dispatch_is_kept() -> None:
    """A queue with much to do lets others in."""
    world = World(budget_count=10)
    queue = world.shared()
    consumer = world.consumer(auto=True)
    queue.subscribe(consumer)
    world.send(queue, 95)
    before = world.core.statistics().dispatches_count
    world.run()
    assert world.core.statistics().dispatches_count - before == 10
    assert len(consumer.deliveries) == 95


def test_statistics_say_where_everything_is() -> None:
    world = World()
    queue = world.shared()
    consumer = world.consumer(4)
    queue.subscribe(consumer)
    world.send(queue, 10)
    world.run()
    consumer.settle(consumer.held[:1])
    consumer.requeue(consumer.held[:1])
    world.now_seconds += 7
    statistics = queue.statistics()
    assert statistics.depth_count == 9
    assert statistics.depth_bytes == 9 * 200
    assert statistics.waiting_count == 7
    assert statistics.unsettled_count == 2
    assert (statistics.added_count, statistics.settled_count, statistics.returned_count) == (10, 1, 1)
    assert statistics.idle_seconds == 7
    assert queue.facts() == {"messages": 9, "unacked": 2, "consumers": 1}


def test_the_flow_map_shows_which_consumer_a_queue_waits_on() -> None:
    world = World()
    queue = world.shared()
    consumer = world.consumer(1)
    queue.subscribe(consumer)
    world.send(queue, 2)
    world.run()
    edges = world.manager.snapshot().edges
    assert [(edge.source.name, edge.sink.name) for edge in edges] == [(queue.name, consumer.name)]
