"""Exclusive consumers of a group: one at a time gets all records in order, the others stand by and take over."""

from __future__ import annotations

from sluiceway.queues.logs.group import Group
from tests.queues.logs.rig import LogReader, LogWorld


def joined(world: LogWorld, group: Group, *windows: int | None) -> list[LogReader]:
    return [world.join(group, window, order="exclusive") for window in windows]


def leave(group: Group, reader: LogReader) -> None:
    for subscription in list(group.subscriptions):
        if subscription.consumer is reader:
            subscription.close()


def test_only_the_first_one_gets_records() -> None:
    world = LogWorld()
    group = world.group()
    first, second, third = joined(world, group, 3, 3, None)
    world.fill(10)
    for _ in range(4):
        assert second.numbers == third.numbers == []
        first.settle()
        world.run()
    assert first.numbers == list(range(10))
    assert group.front == 10


def test_the_next_one_takes_over_when_nothing_is_in_the_hands_of_the_one_before() -> None:
    world = LogWorld()
    group = world.group()
    first, second, third = joined(world, group, 4, 2, None)
    world.fill(8)
    first.settle(first.held[:1])
    leave(group, first)
    world.run()
    first.settle(first.held[1:2])
    world.run()
    assert second.numbers == []
    first.requeue()
    world.run()
    assert (second.held_numbers, third.numbers) == ([1, 3], [])
    assert [delivery.attempts_count for delivery in second.held] == [1, 1]
    second.settle()
    world.run()
    assert second.held_numbers == [4, 5]


def test_one_that_stands_by_may_leave() -> None:
    world = LogWorld()
    group = world.group()
    first, second, third = joined(world, group, 1, 1, 1)
    leave(group, second)
    world.fill(2)
    leave(group, first)
    first.settle()
    world.run()
    assert (first.numbers, second.numbers, third.numbers) == ([0], [], [1])


def test_credit_of_one_that_stands_by_is_there_when_it_takes_over() -> None:
    world = LogWorld()
    group = world.group()
    first, second = joined(world, group, 1, 1)
    world.fill(3)
    second.window.charge(1, 1, None)
    leave(group, first)
    first.settle()
    world.run()
    assert second.numbers == []
    second.window.release(1, 1)
    world.run()
    assert second.numbers == [1]


def test_a_record_that_waits_for_its_next_attempt_holds_back_all_later_ones() -> None:
    world = LogWorld(redelivery_delay_ms=1000)
    group = world.group()
    (reader,) = joined(world, group, 1)
    world.fill(3)
    reader.requeue()
    world.advance(0.9)
    assert reader.held_numbers == []
    assert group.facts()["held back"]
    world.advance(0.2)
    assert reader.held_numbers == [0]
    reader.settle()
    world.run()
    assert reader.held_numbers == [1]


def test_a_record_that_fails_too_often_leaves_and_the_rest_continues() -> None:
    world = LogWorld(redelivery_delay_ms=1000, redeliveries_max=1, dead_letter=None)
    group = world.group()
    (reader,) = joined(world, group, 1)
    world.fill(3)
    reader.requeue()
    world.advance(1.1)
    reader.requeue()
    world.run()
    assert reader.held_numbers == [1]
    assert group.front == 1


def test_the_next_one_takes_over_when_the_group_is_moved() -> None:
    """What the one before holds counts for nothing then."""
    world = LogWorld()
    group = world.group()
    first, second = joined(world, group, 4, 4)
    world.fill(4)
    leave(group, first)
    world.run()
    assert second.numbers == []
    group.seek(1)
    world.run()
    assert second.numbers == [1, 2, 3]
    first.settle()
    assert group.front == 1


def test_runs_of_batches_are_exclusive_too() -> None:
    world = LogWorld()
    group = world.group()
    first, second = [world.join(group, 1, batch_bytes=100, order="exclusive") for _ in range(2)]
    world.fill(2, 2)
    leave(group, first)
    first.return_run(first.held_runs[0])
    world.run()
    assert [delivery.indexes for delivery in second.held_runs] == [range(2)]


def test_all_of_a_group_ask_for_the_same_while_it_is_in_use() -> None:
    world = LogWorld()
    group = world.group()
    (first,) = joined(world, group, 1)
    world.fill(1)
    assert "exclusive:true, this one asks for no order" in group.why_not("")
    leave(group, first)
    assert "1 unacknowledged records" in group.why_not("")
    first.settle()
    assert group.why_not("") == ""
    other = world.join(group)
    assert group.order is None
    world.fill(1)
    assert other.numbers == [1]
