"""Message groups: one consumer per key at a time, drained before hand-over; the key waits, not the queue."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.queues.fair_share import FairShare
from sluiceway.queues.group_backlog import ANYBODY, DEAD_COUNT_MIN, GroupBacklog
from sluiceway.queues.groups import GroupTable
from sluiceway.queues.selectors import Selection, compile_selector
from sluiceway.queues.shared import shared_queue
from tests.queues.rig import FakeConsumer, World, assert_exact, make_policy, numbers


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
    old.requeue()
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
                consumer.requeue()
            else:
                done.setdefault(first.message.head.group or "", []).append(first.number)
                consumer.settle([first])
    assert sum(len(part) for part in done.values()) == 200
    assert all(part == sorted(part) for part in done.values())
    assert queue.is_empty and len(queue.distribution._groups) == 0


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
        patch.object(GroupBacklog, "put", autospec=True, side_effect=GroupBacklog.put) as put,
        patch.object(type(queue.elements), "get", autospec=True, side_effect=lambda _self, s: get(s)) as looked,
    ):
        world.run()
        for _ in range(1000):
            consumer.requeue()
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
        shared_queue(f"p{priority}", make_policy(), world.environment, priority=priority, groups=groups)
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
    assert len(queue.distribution._groups) == 0
    assert len(queue.distribution._aside) == 0
    assert not queue.distribution._placing.called
    assert not any(queue.distribution._aside._places.values())
    assert queue.distribution.grouped_count == 0


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
    idle = queue.subscribe(world.consumer())
    world.send(queue, 4, group="k", ttl_ms=1000)
    world.run()
    assert len(queue.distribution._aside) == 7
    world.advance(1.5)
    assert queue.expired_count == 4
    assert_exact(queue)
    world.send(queue, 8, group="k")
    world.run()
    assert queue.dropped_count == 2, "the two oldest that nobody holds"
    idle.close()
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
    plain.requeue()
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
    lines = GroupBacklog(ranked=True)
    lines.put("k", 0)
    for sequence in range(1, 10_000):
        lines.put("k", sequence)
        if sequence > 5:
            lines.discard(sequence - 5)
    assert len(lines) == 6
    (line,) = lines._lines.values()
    assert len(line) <= 2 * len(lines) + DEAD_COUNT_MIN + 1
    assert lines._ranking is not None and len(lines._ranking) <= 2 * len(lines) + DEAD_COUNT_MIN + 1
    assert (lines.first("k"), lines.oldest()) == (0, 0)


def test_a_line_takes_back_in_order_what_came_out_of_it() -> None:
    lines = GroupBacklog(ranked=False)
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


class _Counted(int):
    """A number that counts how often it is compared."""

    comparisons_count = 0

    def __lt__(self, other: int) -> bool:
        _Counted.comparisons_count += 1
        return int(self) < int(other)


def test_a_line_takes_any_order_of_returns_in_logarithmic_steps_each() -> None:
    """Regression: the death of a consumer that held a thousand of one key moved each of them a thousand times."""
    count = 1024
    lines = GroupBacklog(ranked=False)
    lines.put("k", count)
    _Counted.comparisons_count = 0
    for n in range(count):
        lines.put("k", _Counted(n))
    assert _Counted.comparisons_count <= 2 * 10 * count
    order = []
    while (first := lines.first("k")) is not None:
        order.append(first)
        lines.discard(first)
    assert order == list(range(count + 1))
    assert _Counted.comparisons_count <= 8 * 10 * count


def test_what_a_dead_consumer_held_of_a_key_comes_again_in_order() -> None:
    world = World()
    queue = world.shared()
    dead, heir = world.consumer(300), world.consumer()
    subscription = queue.subscribe(dead)
    sent = world.send(queue, 301, group="k")
    world.run()
    queue.subscribe(heir)
    world.run()
    subscription.close()
    dead.requeue(dead.held[1::2])
    world.run()
    assert heir.held == [], "not drained yet"
    dead.requeue()
    world.run()
    assert heir.held_numbers == numbers(sent)


def test_a_settlement_looks_at_no_more_lines_however_many_there_are() -> None:
    """Two thousand keys are set aside and free; a consumer takes them one at a time."""
    world = World()
    queue = world.shared()
    dead, heir = world.consumer(2000), world.consumer(1)
    subscription = queue.subscribe(dead)
    for _round in range(2):
        for n in range(2000):
            world.send(queue, 1, group=f"k{n}")
        world.run()
        if not _round:
            queue.subscribe(heir)
    assert len(queue.distribution._aside) == 2000
    subscription.close()
    dead.requeue()
    world.run()
    with (
        patch.object(GroupBacklog, "first", autospec=True, side_effect=GroupBacklog.first) as looked,
        patch.object(GroupBacklog, "line_up", autospec=True, side_effect=GroupBacklog.line_up) as moved,
    ):
        for _ in range(100):
            heir.settle()
            world.run()
    assert queue.settled_count == 100
    assert looked.call_count <= 3 * 100
    assert moved.call_count <= 3 * 100


def test_looks_at_lines_count_against_the_budget() -> None:
    """One dispatch looks at as many lines as its budget allows, whoever waits."""
    world = World()
    queue = world.shared()
    dead, heir = world.consumer(500), world.consumer()
    subscription = queue.subscribe(dead)
    for _round in range(2):
        for n in range(500):
            world.send(queue, 1, group=f"k{n}")
        world.run()
    queue.subscribe(heir)
    world.run()
    subscription.close()
    dead.requeue()
    with patch.object(GroupBacklog, "first", autospec=True, side_effect=GroupBacklog.first) as looked:
        assert queue.dispatch(10), "there is more"
    assert looked.call_count <= 10
    assert 0 < len(heir.held) <= 10
    world.run()
    assert len(heir.held) == 1000


def test_when_the_last_grouped_message_is_gone_slices_go_whole_again() -> None:
    world = World()
    queue = world.shared(full="drop_oldest", count_max=1000)
    consumer = world.consumer(auto=True)
    subscription = queue.subscribe(consumer)
    world.send(queue, 3, group="k")
    world.run()
    subscription.close()
    world.send(queue, 2, group="expires", ttl_ms=1000)
    world.send(queue, 2, group="dropped")
    world.advance(2.0)
    world.send(queue, 1000)
    assert (queue.settled_count, queue.expired_count, queue.dropped_count) == (3, 2, 2)
    queue.subscribe(consumer)
    with patch.object(GroupBacklog, "has_line") as looked, patch.object(FairShare, "fits") as asked:
        world.run()
    assert not looked.called and not asked.called
    assert queue.settled_count == 1003


def test_ungrouped_runs_go_in_slices_beside_a_key_that_is_held() -> None:
    world = World()
    queue = world.shared()
    stuck, one, two = world.consumer(1), world.consumer(), world.consumer()
    queue.subscribe(stuck)
    world.send(queue, 1, group="k")
    world.run()
    queue.subscribe(one)
    queue.subscribe(two)
    sent = world.send(queue, 1000)
    world.run()
    assert len(one.slices) + len(two.slices) < 20
    assert all(isinstance(part.sequences, range) for part in one.slices + two.slices)
    assert sorted(one.held_numbers + two.held_numbers) == numbers(sent)
    assert min(len(one.held), len(two.held)) >= 250


def test_what_is_mixed_is_read_few_times() -> None:
    """Grouped and ungrouped in turn: what can't go yet is not read over and over."""
    world = World()
    queue = world.shared()
    consumer = world.consumer(auto=True)
    queue.subscribe(consumer)
    for n in range(1000):
        world.send(queue, 1, group=None if n % 2 else f"k{n}")
    read = queue.elements.read
    with patch.object(
        type(queue.elements), "read", autospec=True, side_effect=lambda _self, *args, **kw: read(*args, **kw)
    ) as reads:
        world.run()
    assert sum(call.args[2] for call in reads.call_args_list) <= 10 * 1000
    assert consumer.numbers == list(range(1000))


@pytest.mark.parametrize("budget", [1, 3, 4])
def test_keys_of_a_consumer_with_credit_do_not_sleep_when_a_dispatch_ends(budget: int) -> None:
    """Regression: a consumer that asks for one at a time was not asked again when the budget ran out."""
    world = World(budget_count=budget)
    queue = world.shared()
    consumer = world.consumer(5, modest=True)
    queue.subscribe(consumer)
    world.send(queue, 8, group="k")
    world.run()
    assert consumer.held_numbers == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("group", ["k{}", "k", None])
def test_consumers_that_share_a_credit_are_not_given_it_twice(group: str | None) -> None:
    world = World()
    queue = world.shared()
    consumers = [world.consumer(None, 10_000) for _ in range(10)]
    for consumer in consumers:
        consumer.window = consumers[0].window
        queue.subscribe(consumer)
    for n in range(100):
        world.send(queue, 1, wire_bytes=1000, group=group and group.format(n))
    world.run()
    assert consumers[0].window.limiter.used_bytes == 10_000
    seen: list[int] = []
    while any(consumer.held for consumer in consumers):
        for consumer in consumers:
            seen += consumer.held_numbers
            consumer.settle()
        world.run()
        assert consumers[0].window.limiter.used_bytes <= 10_000
    assert sorted(seen) == list(range(100))
    assert group != "k" or seen == sorted(seen)


def test_nothing_goes_to_a_consumer_that_was_closed_by_a_delivery_of_the_same_dispatch() -> None:
    world = World()
    queue = world.shared()
    one, two = world.consumer(5), world.consumer(5)
    queue.subscribe(one)
    other = queue.subscribe(two)
    one.on_delivery = lambda _delivery: other.close()
    for key in ("k1", "k2", None):
        world.send(queue, 1, group=key)
    world.run()
    assert two.deliveries == []
    assert sorted(one.held_numbers) == [0, 1, 2]


def test_a_consumer_that_is_attached_twice_gets_no_more_than_its_credit() -> None:
    world = World()
    queue = world.shared()
    consumer = world.consumer(4)
    queue.subscribe(consumer)
    queue.subscribe(consumer)
    for n in range(12):
        world.send(queue, 1, group=f"k{n}")
    world.run()
    assert len(consumer.held) == 4


def test_people_are_told_which_group_fills_the_queue_and_who_holds_it() -> None:
    world = World()
    queue = world.shared(count_max=100)
    stuck, free = world.consumer(1), world.consumer(auto=True)
    queue.subscribe(stuck)
    world.send(queue, 1, group="stuck")
    world.run()
    queue.subscribe(free)
    for n in range(99):
        world.send(queue, 1, group="stuck" if n % 3 else f"k{n}")
    world.run()
    assert len(free.deliveries) == 33
    facts = queue.facts()
    assert facts["set_aside_count"] == 66
    assert facts["most_for_group"] == f"stuck (66), held by subscription {stuck.label}"
    stuck.requeue()
    world.run()
    assert "set_aside_count" not in queue.facts()


def test_the_longest_line_is_the_one_of_which_the_most_is_alive() -> None:
    lines = GroupBacklog(ranked=False)
    assert lines.longest() is None
    for sequence, key in enumerate("abbccc"):
        lines.put(key, sequence)
    assert lines.longest() == ("c", 3)
    lines.discard(4)
    lines.discard(5)
    assert lines.longest() == ("b", 2)


def test_a_line_stands_in_one_place_and_leaves_it_when_it_ends() -> None:
    lines = GroupBacklog(ranked=False)
    for sequence, key in enumerate(("a", "b", "a")):
        lines.put(key, sequence)
    lines.line_up("a", "first")
    lines.line_up("b", "first")
    assert lines.first_at("first") == "a"
    lines.line_up("a", ANYBODY)
    assert (lines.first_at("first"), lines.first_at(ANYBODY)) == ("b", "a")
    lines.clear_place("first")
    assert lines.first_at("first") is None
    lines.line_up("b", "second")
    lines.discard(1)
    assert lines.first_at("second") is None
    lines.discard(0)
    assert lines.first_at(ANYBODY) == "a"
    lines.unplace("a")
    assert lines.first_at(ANYBODY) is None
    lines.discard(2)
    assert not lines.has_line("a")


class TestBackOff:
    """A message that failed and waits for its next attempt holds back the later ones of its group."""

    @staticmethod
    def world(**policy: object) -> tuple[World, ConsumedQueue, FakeConsumer]:
        world = World()
        options = {"redelivery_delay_ms": 1000, "redelivery_backoff": 2.0, "redelivery_delay_max_ms": 60_000}
        queue = world.shared(**(options | policy))
        consumer = world.consumer(1)
        queue.subscribe(consumer)
        return world, queue, consumer

    def test_later_messages_of_the_group_wait_and_those_of_others_pass(self) -> None:
        world, queue, consumer = self.world()
        world.send(queue, 3, group="k")
        others = world.send(queue, 2, group="l")
        world.run()
        consumer.requeue()
        world.run()
        assert consumer.held_numbers == numbers(others)[:1]
        consumer.settle()
        world.run()
        consumer.settle()
        world.run()
        assert consumer.held_numbers == []
        world.advance(1.0)
        for number in (0, 1, 2):
            assert consumer.held_numbers == [number]
            consumer.settle()
            world.run()
        assert queue.is_empty

    def test_it_holds_for_each_attempt_and_for_messages_that_come_later(self) -> None:
        world, queue, consumer = self.world()
        world.send(queue, 1, group="k")
        world.run()
        for wait_seconds in (1.0, 2.0, 4.0):
            consumer.requeue()
            world.send(queue, 1, group="k")
            world.advance(wait_seconds - 0.01)
            assert consumer.held_numbers == []
            world.advance(0.02)
            assert consumer.held_numbers == [0]

    def test_the_group_waits_for_all_of_its_failed_messages(self) -> None:
        """One of two that a consumer held failed before: the other one, due sooner, waits for it."""
        world, queue, _consumer = self.world()
        other = world.consumer(2)
        queue.subscribe(other)
        _consumer.window.charge(1, 1, None)  # has no credit
        world.send(queue, 1, group="k")
        world.run()
        other.requeue()
        world.send(queue, 2, group="k")
        world.advance(1.0)
        assert other.held_numbers == [0, 1]
        other.requeue()  # 0 for two seconds, 1 for one
        world.advance(1.0)
        assert other.held_numbers == []
        world.advance(1.0)
        assert other.held_numbers == [0, 1]

    def test_a_message_given_up_lets_its_group_continue(self) -> None:
        world, queue, consumer = self.world(redeliveries_max=1, dead_letter=None)
        world.send(queue, 2, group="k")
        world.run()
        consumer.requeue()
        world.advance(1.0)
        assert consumer.held_numbers == [0]
        consumer.requeue()
        world.run()
        assert consumer.held_numbers == [1]

    def test_a_message_that_is_purged_while_it_waits_lets_its_group_continue(self) -> None:
        world, queue, consumer = self.world()
        world.send(queue, 2, group="k")
        world.run()
        consumer.requeue()
        world.run()
        queue.removal.purge(0, 1)
        world.run()
        assert consumer.held_numbers == [1]

    def test_a_message_that_expires_while_it_waits_lets_its_group_continue(self) -> None:
        world, queue, consumer = self.world()
        world.send(queue, 1, group="k", expires_at_ms=world.now_ms + 500)
        world.send(queue, 1, group="k")
        world.run()
        consumer.requeue()
        world.advance(0.6)
        queue.expire([0])
        world.run()
        assert consumer.held_numbers == [1]

    def test_it_holds_for_consumers_with_a_selector(self) -> None:
        world, queue, consumer = self.world()
        consumer.window.charge(1, 1, None)
        red = world.consumer(1)
        red_only = compile_selector("color = 'red'")
        assert red_only is not None
        queue.subscribe(red, selection=Selection(red_only))
        world.send(queue, 3, group="k", color="red")
        world.send(queue, 1, group="l", color="red")
        world.run()
        red.requeue()
        world.run()
        assert red.held_numbers == [3]
        red.settle()
        world.advance(1.0)
        assert red.held_numbers == [0]
        red.settle()
        world.run()
        assert red.held_numbers == [1]
