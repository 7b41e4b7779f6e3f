"""Message groups: one consumer per key at a time, drained before hand-over; the key waits, not the queue."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from queues import GroupTable, SharedQueue
from queues.aside import DEAD_COUNT_MIN, AsideLines
from tests.queues.rig import World, assert_exact, make_policy, numbers


def test_a_key_stays_with_its_consumer_until_all_of_it_is_settled() -> None:
    world = World()
    queue = world.shared()
    one, two = world.consumer(1), world.consumer(1)
    queue.subscribe(one)
    world.send(queue, 3, group="k")
    world.run()
    queue.subscribe(two)
    world.run()
    assert (one.held_numbers, two.held_numbers) == ([0], []), "the second is idle, but the key is held"
    one.settle()
    world.run()
    assert sorted(one.held_numbers + two.held_numbers) == [1], "free: it went to one of them"


def test_a_consumer_that_leaves_is_drained_before_its_key_goes_on() -> None:
    world = World()
    queue = world.shared()
    old, new = world.consumer(2), world.consumer()
    subscription = queue.subscribe(old)
    world.send(queue, 4, group="k")
    world.run()
    subscription.close()
    queue.subscribe(new)
    world.run()
    assert (old.held_numbers, new.held_numbers) == ([0, 1], [])
    old.settle(old.held[:1])
    world.run()
    assert new.held_numbers == []
    old.give_back()
    world.run()
    assert new.held_numbers == [1, 2, 3]


def test_a_held_key_does_not_stop_the_messages_behind_it() -> None:
    world = World()
    queue = world.shared()
    stuck, free = world.consumer(1), world.consumer()
    queue.subscribe(stuck)
    world.send(queue, 1, group="slow")
    world.run()
    queue.subscribe(free)
    world.send(queue, 50, group="slow")
    behind = world.send(queue, 5, group="other") + world.send(queue, 5)
    world.run()
    assert free.held_numbers == numbers(behind)
    assert queue.waiting_count == 50


def test_order_within_a_key_holds_over_all_hand_overs() -> None:
    """Twenty keys, five consumers with a window of two, half of the messages returned once."""
    world = World(later=True, budget_count=7)
    queue = world.shared()
    consumers = [world.consumer(2) for _ in range(5)]
    for consumer in consumers:
        queue.subscribe(consumer)
    for n in range(200):
        world.send(queue, 1, group=f"k{n * 7 % 20}")
    done: dict[str, list[int]] = {}
    for step in range(2000):
        world.run()
        consumer = consumers[step % 5]
        if consumer.held:
            first = consumer.held[0]
            if first.number % 2 and first.attempts_count == 0:
                consumer.give_back()
            else:
                done.setdefault(first.message.head.group or "", []).append(first.number)
                consumer.settle([first])
    assert sum(len(part) for part in done.values()) == 200
    assert all(part == sorted(part) for part in done.values())
    assert queue.is_empty and len(queue._groups) == 0


def test_keys_spread_over_consumers() -> None:
    world = World()
    queue = world.shared()
    consumers = [world.consumer(5) for _ in range(4)]
    for consumer in consumers:
        queue.subscribe(consumer)
    for n in range(20):
        world.send(queue, 1, group=f"k{n}")
    world.run()
    assert [len(consumer.held) for consumer in consumers] == [5, 5, 5, 5]


def test_ten_thousand_set_aside_cost_a_few_steps_each_with_prefetch_one() -> None:
    """Counts operations, not time: each element is looked at a fixed number of times, settled or given back."""
    world = World()
    queue = world.shared()
    consumer = world.consumer(1)
    queue.subscribe(consumer)
    world.send(queue, 10_000, group="k")
    get = queue.elements.get
    with (
        patch.object(AsideLines, "put", autospec=True, side_effect=AsideLines.put) as put,
        patch.object(type(queue.elements), "get", autospec=True, side_effect=lambda _self, s: get(s)) as looked,
    ):
        world.run()
        for _ in range(1000):
            consumer.give_back()
            world.run()
            consumer.settle()
            world.run()
    assert put.call_count <= 10_000 + 1000, "each once, and what came back once more"
    assert looked.call_count <= 8 * 1000
    assert queue.settled_count == 1000
    assert consumer.numbers[:4] == [0, 0, 1, 1]


def test_ungrouped_messages_flow_beside_keys_in_order() -> None:
    world = World()
    queue = world.shared()
    consumer = world.consumer(auto=True)
    queue.subscribe(consumer)
    sent = world.send(queue, 3) + world.send(queue, 2, group="k") + world.send(queue, 3)
    world.run()
    assert consumer.numbers == numbers(sent)


def test_one_consumer_per_key_holds_across_priorities() -> None:
    """Partitions of a destination share one table; an empty table is a table."""
    world = World()
    groups = GroupTable()
    low, high = (
        SharedQueue(f"p{priority}", make_policy(), world.environment, priority=priority, groups=groups)
        for priority in (4, 9)
    )
    one, two = world.consumer(1), world.consumer(1)
    low.subscribe(one)
    high.subscribe(two)
    world.send(low, 1, group="k")
    world.run()
    world.send(high, 1, group="k", priority=9)
    world.run()
    assert (one.held_numbers, two.held_numbers) == ([0], [])
    one.settle()
    world.run()
    assert two.held_numbers == [1]


def test_nothing_is_remembered_of_a_key_at_rest() -> None:
    world = World()
    queue = world.shared()
    consumers = [world.consumer(1) for _ in range(3)]
    for consumer in consumers:
        queue.subscribe(consumer)
    for n in range(300):
        world.send(queue, 2, group=f"k{n}")
    while queue.elements.live_count:
        world.run()
        for consumer in consumers:
            consumer.settle()
    world.run()
    assert len(queue._groups) == 0
    assert len(queue._aside) == 0
    assert not queue._awake
    assert not any(queue._asleep.values())


def test_groups_that_arrive_while_plain_ones_are_handed_out_are_claimed() -> None:
    """Regression: a settlement within the dispatch let a sender in, whose grouped messages went out unclaimed."""
    world = World()
    queue = world.shared(count_max=2)
    consumer = world.consumer(auto=True)
    queue.subscribe(consumer)
    world.send(queue, 2)
    world.send(queue, 2, group="k")
    world.run()
    assert consumer.numbers == [0, 1, 2, 3]
    assert queue.is_empty


def test_what_is_set_aside_expires_and_is_dropped_like_the_rest() -> None:
    world = World()
    queue = world.shared(full="drop_oldest", count_max=10)
    consumer = world.consumer(1)
    queue.subscribe(consumer)
    world.send(queue, 4, group="k")
    world.run()
    world.send(queue, 4, group="k", ttl_ms=1000)
    world.run()
    assert len(queue._aside) == 7
    world.advance(1.5)
    assert queue.expired_count == 4
    assert_exact(queue)
    world.send(queue, 8, group="k")
    world.run()
    assert queue.dropped_count == 2, "the two oldest that nobody holds"
    seen = []
    while consumer.held:
        seen.append(consumer.held_numbers[0])
        consumer.settle()
        world.run()
    assert seen == [0, 3, *range(8, 16)]
    assert_exact(queue)


def test_drop_oldest_prefers_what_was_given_back_if_that_is_older() -> None:
    world = World()
    queue = world.shared(full="drop_oldest", count_max=6)
    plain, grouped = world.consumer(1), world.consumer(1)
    subscription = queue.subscribe(plain)
    world.send(queue, 1)
    world.run()
    queue.subscribe(grouped)
    world.send(queue, 4, group="k")
    world.run()
    subscription.close()
    plain.give_back()
    world.run()
    assert grouped.held_numbers == [1]
    world.send(queue, 3)
    assert queue.dropped_count == 2
    world.run()
    seen = list(grouped.held_numbers)
    while grouped.held:
        grouped.settle()
        world.run()
        seen += grouped.held_numbers
    assert sorted(seen) == [1, 3, 4, 5, 6, 7]


def test_a_table_refuses_a_second_holder_of_a_key() -> None:
    world = World()
    table = GroupTable()
    one, two = world.consumer(), world.consumer()
    table.handed_over("k", one)
    table.handed_over("k", one)
    with pytest.raises(AssertionError, match="group 'k' is held by"):
        table.handed_over("k", two)
    freed: list[str] = []
    table.on_free(freed.append)
    table.done("k")
    assert (table.owner("k"), freed) == (one, [])
    table.done("k")
    assert (table.owner("k"), freed) == (None, ["k"])


def test_lines_keep_no_more_dead_than_alive() -> None:
    """A key that is stuck forever while what waits behind its first element expires: memory stays bounded."""
    lines = AsideLines(ranked=True)
    lines.put("k", 0)
    for sequence in range(1, 10_000):
        lines.put("k", sequence)
        if sequence > 5:
            lines.discard(sequence - 5)
    assert len(lines) == 6
    (line,) = lines._lines.values()
    assert len(line.sequences) <= 2 * len(lines) + DEAD_COUNT_MIN + 1
    assert lines._ranking is not None and len(lines._ranking) <= 2 * len(lines) + DEAD_COUNT_MIN + 1
    assert (lines.first("k"), lines.oldest()) == (0, 0)


def test_a_line_takes_back_in_order_what_came_out_of_it() -> None:
    lines = AsideLines(ranked=False)
    for sequence in (5, 6, 7, 8):
        lines.put("k", sequence)
    lines.discard(5)
    lines.discard(6)
    lines.put("k", 2)
    lines.put("k", 6)
    lines.put("k", 5)
    order = []
    while (first := lines.first("k")) is not None:
        order.append(first)
        lines.discard(first)
    assert order == [2, 5, 6, 7, 8]
    assert not lines.has_line("k")
    with pytest.raises(ValueError, match="not ranked"):
        lines.oldest()
