"""Handing over what a log holds: order, credit, what comes back, fronts, gaps, ends."""

from __future__ import annotations

import pytest

from sluiceway.queues.logs.batches import split
from sluiceway.queues.logs.codecs import Codec
from sluiceway.queues.logs.log_readers import SHARE_COUNT
from tests.queues.logs.rig import LogReader, LogWorld


def values(reader: LogReader) -> list[int]:
    return [int(value) for delivery in reader.runs for batch in split(delivery.run.data) for value in batch.values()]


def test_a_reader_gets_all_in_order_and_then_what_comes() -> None:
    world = LogWorld()
    world.fill(700, 1, 2000)
    reader = world.join(world.outlet(5), auto=True)
    world.fill(10)
    assert reader.numbers == list(range(5, 2711))


def test_nothing_comes_without_credit_and_all_of_it_with() -> None:
    world = LogWorld()
    world.fill(100)
    reader = world.join(world.outlet(), window=10)
    for step in range(10):
        assert reader.held_numbers == list(range(step * 10, step * 10 + 10))
        assert not reader.has_credit
        reader.settle()
        world.run()
    assert reader.numbers == list(range(100))


def test_a_dispatch_stays_within_its_budget() -> None:
    world = LogWorld(budget_count=50)
    world.fill(1000)
    reader = world.reader(auto=True)
    outlet = world.outlet()
    outlet.subscribe(reader)
    assert outlet._dispatch(50), "there is more"
    assert len(reader.numbers) == 50
    world.run()
    assert reader.numbers == list(range(1000))


def test_what_was_given_back_comes_before_anything_later() -> None:
    world = LogWorld()
    world.fill(100)
    group = world.group()
    first = world.join(group, window=10)
    second = world.join(group, window=5)
    assert second.held_numbers == [10, 11, 12, 13, 14]
    first.requeue([first.held[number] for number in (7, 2, 3)])
    second.settle()
    world.run()
    taken = sorted(first.held_numbers + second.held_numbers)
    assert {2, 3, 7} <= set(taken)
    assert max(taken) < 30
    again = [d for d in first.deliveries[10:] + second.deliveries if d.number in (2, 3, 7)]
    assert sorted(d.number for d in again) == [2, 3, 7]
    assert all(d.attempts_count == 1 for d in again)
    order = [d.number for d in first.deliveries[10:]] or [d.number for d in second.deliveries[5:]]
    assert order[0] == 2


def test_what_was_not_handed_over_comes_again_unmarked() -> None:
    world = LogWorld()
    world.fill(3)
    reader = world.join(world.group(), window=3)
    reader.requeue(attempted=False)
    world.run()
    assert [delivery.attempts_count for delivery in reader.held] == [0, 0, 0]
    reader.requeue()
    world.run()
    reader.requeue()
    world.run()
    assert [delivery.attempts_count for delivery in reader.held] == [2, 2, 2]


def test_the_front_is_the_lowest_unsettled_index() -> None:
    world = LogWorld()
    world.fill(20)
    group = world.group()
    reader = world.join(group, window=20)
    settled: set[int] = set()
    for number in (3, 5, 4, 0, 19, 1, 2, 10, 6):
        (delivery,) = [each for each in reader.held if each.number == number]
        reader.settle([delivery])
        settled.add(number)
        assert group.front == min(set(range(21)) - settled)
        assert group.lag_count == 20 - len(settled)
    assert list(group._settled) == [(10, 11), (19, 20)]


def test_consumers_of_a_group_take_turns() -> None:
    world = LogWorld(budget_count=100_000)
    group = world.group()
    readers = [world.reader(window=100_000) for _ in range(4)]
    for reader in readers:
        group.subscribe(reader)
    world.fill(10 * SHARE_COUNT)
    counts = [len(reader.held) for reader in readers]
    assert sum(counts) == 10 * SHARE_COUNT
    assert min(counts) >= SHARE_COUNT


def test_a_group_goes_on_after_a_restart_where_it_was() -> None:
    """With holes; what may have been seen comes marked, what is new does not."""
    world = LogWorld()
    world.fill(20)
    group = world.group()
    reader = world.join(group, window=10)
    reader.settle([reader.held[number] for number in (0, 1, 4, 5, 8)])
    world.run()
    world.keeper.save()
    state = world.keeper.states["/log/a", "g"]
    assert (state.front, state.settled) == (2, ((4, 6), (8, 9)))
    group.close()
    other = world.join(world.group(state), window=100)
    left = [number for number in range(20) if number not in (0, 1, 4, 5, 8)]
    assert other.numbers == left
    marked = [sequence for part in other.slices for sequence in part.attempts or ()]
    assert marked == [number for number in left if number < state.handed_to]
    other.settle()
    world.keeper.save()
    assert world.keeper.states["/log/a", "g"].front == 20


@pytest.mark.parametrize("to", [0, 3, 12, 20])
def test_a_group_that_was_moved_goes_on_there(to: int) -> None:
    world = LogWorld()
    world.fill(20)
    group = world.group()
    reader = world.join(group, window=8)
    held = list(reader.held)
    group.seek(to)
    world.run()
    other = world.join(group, window=100)
    assert other.numbers == list(range(to, 20))
    reader.requeue(held[:4])
    reader.settle(held[4:])
    world.run()
    other.settle()
    reader.settle()
    world.run()
    assert group.front == 20
    assert group.lag_count == 0


def test_a_gap_is_told_once_and_settled() -> None:
    world = LogWorld()
    world.fill(3)
    world.records.lose(5)
    world.fill(3)
    group = world.group()
    first, second = world.join(group, window=2), world.join(group, window=10)
    assert first.gaps + second.gaps == [(3, 8, "lost")]
    assert sorted(first.held_numbers + second.held_numbers) == [0, 1, 2, 8, 9, 10]
    first.settle()
    second.settle()
    world.run()
    assert group.front == 11


def test_what_retention_took_is_a_gap_also_of_what_came_back() -> None:
    world = LogWorld()
    world.fill(*[10] * 10)
    group = world.group()
    reader = world.join(group, window=20)
    world.records.remove_to(50)
    reader.requeue()
    world.run()
    assert reader.gaps == [(0, 50, "retention")]
    assert reader.held_numbers == list(range(50, 70))
    assert group.front == 50


@pytest.mark.parametrize("batch_bytes", [None, 200])
def test_a_bounded_range_ends_and_says_so_once(batch_bytes: int | None) -> None:
    world = LogWorld()
    world.fill(10)
    reader = world.join(world.outlet(3, stop=17), auto=batch_bytes is None, batch_bytes=batch_bytes)
    assert reader.ends == []
    world.fill(10)
    world.fill(10)
    assert reader.ends == [17]
    assert (values(reader) if batch_bytes else reader.numbers) == list(range(3, 17))


def test_an_empty_range_ends_at_once() -> None:
    world = LogWorld()
    world.fill(10)
    assert world.join(world.outlet(4, stop=4)).ends == [4]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("takes", [(Codec.NONE,), tuple(Codec), (Codec.NONE, Codec.GZIP)])
def test_runs_hold_what_they_say_in_codecs_that_are_taken(codec: Codec, takes: tuple[Codec, ...]) -> None:
    world = LogWorld()
    for number in range(8):
        world.fill(5, codec=codec if number % 3 else Codec.NONE)
    reader = world.join(world.outlet(7, stop=33), batch_bytes=400, codecs=takes)
    assert values(reader) == list(range(7, 33))
    index = 7
    for delivery in reader.runs:
        assert delivery.run.first_index == index
        for batch in split(delivery.run.data):
            batch.verify()
            assert batch.is_stamped_right()
            assert batch.first_index == index
            assert batch.codec in takes
            index = batch.end_index
        assert delivery.run.end_index == index
    assert reader.ends == [33]


def test_a_run_does_not_reach_over_a_gap() -> None:
    world = LogWorld()
    world.fill(4, 4)
    world.records.lose(8)
    world.fill(4)
    reader = world.join(world.outlet(), batch_bytes=1 << 20)
    assert [list(delivery.indexes) for delivery in reader.runs] == [list(range(8)), list(range(16, 20))]
    assert reader.gaps == [(8, 16, "lost")]


def test_a_reader_that_leaves_takes_its_outlet_along_and_a_group_stays() -> None:
    world = LogWorld()
    world.fill(10)
    group, single = world.group(), world.outlet()
    readers = [world.reader(window=5), world.reader(window=5)]
    subscriptions = [group.subscribe(readers[0]), single.subscribe(readers[1])]
    world.run()
    for subscription in subscriptions:
        subscription.close()
    assert single.closed
    assert not group.closed
    readers[0].requeue()
    readers[1].requeue()
    world.fill(1)
    assert world.join(group, window=100).numbers == list(range(11))


def test_a_cold_reader_waits_for_the_reader_thread_and_others_do_not() -> None:
    world = LogWorld()
    world.disk.held = True
    for _ in range(3):
        world.records.append_batches([])
    world.fill(10)
    world.log.page_cache._recent.clear()
    world.log.page_cache.written(5, 1)
    cold = world.join(world.outlet(0), auto=True)
    warm = world.join(world.outlet(5), auto=True)
    assert cold.numbers == []
    assert warm.numbers == [5, 6, 7, 8, 9]
    second = world.join(world.outlet(1), auto=True)
    world.disk.work()
    world.run()
    assert cold.numbers == list(range(10))
    assert second.numbers == list(range(1, 10))
    assert world.records.warmed == [(0, 5)], "read ahead once for both"


@pytest.mark.parametrize("settles", [True, False])
@pytest.mark.parametrize("batch_bytes", [None, 1 << 20])
def test_what_is_out_when_a_group_is_moved_counts_for_nothing(batch_bytes: int | None, settles: bool) -> None:
    """Neither its ACK, nor its NACK, nor its return; before and after the same records are out once more."""
    world = LogWorld(redeliveries_max=0, dead_letter=None)
    world.fill(10)
    group = world.group()
    reader = world.join(group, batch_bytes=batch_bytes)
    world.fill(10)
    held, held_runs = list(reader.held), list(reader.held_runs)
    group.seek(0)
    assert group.unsettled_count == 0

    def answer(share: slice) -> None:
        for run in held_runs[share]:
            (reader.settle_run if settles else reader.return_run)(run)
        if part := held[share]:
            (reader.settle if settles else reader.requeue)(part)
        world.run()

    answer(slice(0, None, 2))
    assert (group.front, group.lag_count) == (0, 20)
    world.run()
    fresh = [each for each in reader.held if each not in held]
    fresh_runs = [each for each in reader.held_runs if each not in held_runs]
    again = [delivery.number for delivery in fresh] + [n for run in fresh_runs for n in run.indexes]
    assert again == list(range(20))
    unsettled_count = group.unsettled_count
    answer(slice(1, None, 2))
    assert (group.front, group.lag_count, group.unsettled_count) == (0, 20, unsettled_count)
    assert group.state().failures == ()
    for run in fresh_runs:
        reader.settle_run(run)
    if fresh:
        reader.settle(fresh)
    world.run()
    assert (group.front, group.unsettled_count) == (20, 0)
    assert len(reader.held) == len(reader.held_runs) == 0


def test_a_consumer_that_leaves_is_gone_also_after_a_move() -> None:
    world = LogWorld()
    world.fill(4)
    group = world.group()
    reader = world.join(group)
    (attachment,) = group.subscriptions
    group.seek(0)
    world.run()
    assert len(reader.held) == 8
    attachment.close()
    assert not group.subscriptions
    reader.requeue()
    assert world.join(group).numbers == [0, 1, 2, 3]
