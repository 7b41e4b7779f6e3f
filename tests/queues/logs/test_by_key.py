"""Order by key in a group: records of one key go to one consumer at a time, in order; the key waits, not the group."""

from __future__ import annotations

from collections.abc import Iterable

from sluiceway.queues.logs.batches import encode
from sluiceway.queues.logs.group import Group
from sluiceway.queues.selectors import Selection, compile_selector
from tests.queues.logs.rig import LogReader, LogWorld


def keyed(world: LogWorld, keys: Iterable[str], *, head: bytes = b"") -> None:
    """Append a batch with a record for each of the keys; an empty one is none."""
    names = list(keys)
    values = [name.encode() for name in names]
    world.records.append_batches([encode(values, keys=[name.encode() for name in names], head=head)])
    woken(world)


def headed(world: LogWorld, *lines: str) -> None:
    """Append records without keys of their own, each with one header line."""
    world.records.append_batches([encode([b"x"], head=line.encode()) for line in lines])
    woken(world)


def woken(world: LogWorld) -> None:
    world.log.page_cache.written(world.records.first_index, 1)
    for outlet in tuple(world.log.outlets):
        outlet.context.request_dispatch()
    world.run()


def join(world: LogWorld, group: Group, window: int | None = None) -> LogReader:
    return world.join(group, window, order="by-key")


def leave(group: Group, reader: LogReader) -> None:
    for subscription in list(group.subscriptions):
        if subscription.consumer is reader:
            subscription.close()


def order_of(group: Group) -> dict[str, object]:
    assert group.order is not None
    return dict(group.order.facts())


def test_records_of_one_key_go_to_one_consumer_at_a_time() -> None:
    world = LogWorld()
    group = world.group()
    one, two = join(world, group, 1), join(world, group, 1)
    keyed(world, "aaabb")
    assert (one.held_numbers, two.held_numbers) == ([0], [3])
    one.settle()
    world.run()
    assert (one.held_numbers, two.held_numbers) == ([1], [3])
    two.settle()
    world.run()
    assert (one.held_numbers, two.held_numbers) == ([1], [4])
    assert group.front == 1
    assert group.state().settled == ((3, 4),)


def test_a_key_of_a_slow_consumer_does_not_stop_other_keys() -> None:
    world = LogWorld()
    group = world.group()
    slow, quick = join(world, group, 1), join(world, group, 1)
    keyed(world, "a" * 20 + "b" * 5)
    for _ in range(5):
        quick.settle()
        world.run()
    assert slow.numbers == [0]
    assert quick.numbers == [20, 21, 22, 23, 24]
    assert order_of(group)["records set aside"] == 19


def test_a_consumer_that_leaves_keeps_its_key_until_it_holds_nothing() -> None:
    world = LogWorld()
    group = world.group()
    old = join(world, group, 2)
    keyed(world, "aaaa")
    new = join(world, group)
    leave(group, old)
    world.run()
    old.settle(old.held[:1])
    world.run()
    assert new.numbers == []
    old.requeue()
    world.run()
    assert new.numbers == [1, 2, 3]
    assert [delivery.attempts_count for delivery in new.held] == [1, 0, 0]


def test_records_without_a_key_go_to_any_consumer() -> None:
    world = LogWorld()
    group = world.group()
    readers = [join(world, group, 2) for _ in range(3)]
    keyed(world, ["", "", "", "", "", ""])
    assert sorted(number for reader in readers for number in reader.numbers) == list(range(6))
    readers[0].requeue()
    world.run()
    assert len(readers[0].held) == 2


def test_the_key_is_that_of_the_batch_or_a_header() -> None:
    """The header `key` of a SEND means the same as a key in a batch, and `group` is the last resort."""
    world = LogWorld()
    group = world.group()
    reader, other = join(world, group, 1), join(world, group, 1)
    keyed(world, "a")
    headed(world, "key:a", "group:g", "JMSXGroupID:g", "group:a")
    assert (reader.held_numbers, other.held_numbers) == ([0], [2])
    assert order_of(group)["keys set aside"] == 2, "record 1 waits for 0, record 3 for 2"


def test_a_failed_record_holds_its_key_back_until_its_next_attempt() -> None:
    world = LogWorld(redelivery_delay_ms=1000)
    group = world.group()
    reader = join(world, group, 1)
    keyed(world, "aab")
    reader.requeue()
    world.run()
    assert reader.held_numbers == [2]
    assert order_of(group)["keys held back"] == 1
    reader.settle()
    world.advance(0.9)
    assert reader.held_numbers == []
    world.advance(0.2)
    assert reader.held_numbers == [0]
    reader.settle()
    world.run()
    assert reader.held_numbers == [1]


def test_a_record_that_fails_too_often_leaves_and_its_key_continues() -> None:
    world = LogWorld(redelivery_delay_ms=1000, redeliveries_max=1, dead_letter=None)
    group = world.group()
    reader = join(world, group, 1)
    keyed(world, "aab")
    reader.requeue()
    world.run()
    world.advance(1.1)
    reader.settle()
    world.run()
    assert reader.held_numbers == [0]
    reader.requeue()
    world.run()
    assert reader.held_numbers == [1]
    assert group.front == 1


def test_nothing_is_read_further_ahead_than_the_limit() -> None:
    world = LogWorld(log_ahead_count_max=4)
    group = world.group()
    slow, quick = join(world, group, 1), join(world, group, 1)
    keyed(world, "abbbbbbb")
    for _ in range(10):
        quick.settle()
        world.run()
    assert quick.numbers == [1, 2, 3]
    assert "until record 0 is done" in str(order_of(group)["too far ahead"])
    slow.settle()
    world.run()
    assert sorted(slow.held_numbers + quick.held_numbers) == [4]
    assert group.front == 4


def test_what_is_set_aside_is_counted_and_bounded() -> None:
    world = LogWorld(log_ahead_count_max=100)
    group = world.group()
    before_bytes = group.kept_bytes
    join(world, group, 30)
    keyed(world, ["long" * 100 + str(number % 30) for number in range(30)])
    join(world, group)
    keyed(world, ["long" * 100 + str(number % 30) for number in range(300)])
    assert order_of(group)["records set aside"] == 70
    assert 70 * 200 < group.kept_bytes - before_bytes < 100 * 1500


def test_a_crash_redelivers_by_key_and_marks_what_may_have_been_seen() -> None:
    world = LogWorld()
    group = world.group()
    one, two = join(world, group, 1), join(world, group, 1)
    keyed(world, "abab" + "c" * 4)
    two.settle()
    world.run()
    state = group.state()
    assert (state.front, state.settled) == (0, ((1, 2),))
    group.close()
    again = world.group(state)
    reader, other = join(world, again, 2), join(world, again, 2)
    attempts = {delivery.number: delivery.attempts_count for delivery in reader.held + other.held}
    marked = {n for part in reader.slices + other.slices for n in (part.attempts or {})}
    assert 1 not in attempts
    assert marked == {n for n in attempts if n < state.handed_to}
    assert one.held_numbers[0] in marked


def test_seeking_begins_anew() -> None:
    world = LogWorld()
    group = world.group()
    reader = join(world, group, 1)
    keyed(world, "aaa")
    group.seek(1)
    reader.settle()
    world.run()
    assert reader.held_numbers == [1]
    assert group.front == 1
    reader.settle()
    world.run()
    assert reader.held_numbers == [2]


def test_records_that_retention_removes_while_they_are_set_aside_are_told_as_a_gap() -> None:
    world = LogWorld()
    group = world.group()
    reader = join(world, group, 1)
    keyed(world, "aaaab")
    world.records.remove_to(3)
    reader.settle()
    world.run()
    assert reader.gaps == [(1, 3, "retention")]
    assert reader.held_numbers == [3]


def test_another_order_takes_over_what_was_set_aside() -> None:
    world = LogWorld()
    group = world.group()
    before_bytes = group.kept_bytes
    reader = join(world, group, 1)
    keyed(world, "aaaa")
    leave(group, reader)
    assert "unacknowledged" in group.why_not("exclusive")
    reader.requeue()
    world.run()
    assert group.why_not("exclusive") == ""
    other = world.join(group, order="exclusive")
    assert other.numbers == [0, 1, 2, 3]
    assert group.kept_bytes == before_bytes


def test_what_waits_for_its_next_attempt_comes_at_once_when_order_by_key_begins() -> None:
    """Its key is not known: later records of it must not pass."""
    world = LogWorld(redelivery_delay_ms=60_000)
    group = world.group()
    plain = world.join(group, 1)
    keyed(world, "aab")
    plain.requeue()
    leave(group, plain)
    plain.requeue(attempted=False)
    world.run()
    reader = join(world, group, 1)
    world.advance(0.0)
    assert reader.held_numbers == [0]


def test_selectors_work_and_what_they_skip_counts_as_done() -> None:
    world = LogWorld()
    group = world.group()
    reader = world.reader(None, order="by-key")
    selector = compile_selector("shade = 'dark'")
    assert selector is not None
    reader.selection = Selection(selector)
    group.subscribe(reader)
    keyed(world, "ab", head=b"shade:dark")
    keyed(world, "ab", head=b"shade:light")
    assert reader.numbers == [0, 1]
    reader.settle()
    world.run()
    assert group.front == 4
