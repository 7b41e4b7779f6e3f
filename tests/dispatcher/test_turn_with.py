"""A turn within the task that brought the work."""

from __future__ import annotations

import math

import pytest
import trio

from sluiceway.dispatcher import Dispatcher
from sluiceway.dispatcher.context import DONE, MORE


class BrokenError(Exception):
    """What a dispatch died of."""


async def asleep(dispatcher: Dispatcher) -> None:
    await trio.testing.wait_all_tasks_blocked()
    assert not dispatcher.has_work()


async def test_what_the_work_asks_for_is_done_before_it_returns(nursery: trio.Nursery) -> None:
    """And the loop's task is not woken for it."""
    dispatcher = Dispatcher()
    await nursery.start(dispatcher.run)
    await asleep(dispatcher)
    seen: list[str] = []
    context = dispatcher.register(lambda _budget: bool(seen.append("dispatched")), "test")

    def work() -> None:
        context.request_dispatch()
        dispatcher.at_turn_end(lambda: seen.append("turn end"))
        seen.append("work")

    wakeups_count = dispatcher.statistics().wakeups_count
    dispatcher.turn_with(work)
    assert seen == ["work", "dispatched", "turn end"]
    await asleep(dispatcher)
    assert dispatcher.statistics().wakeups_count == wakeups_count
    dispatcher.close()


async def test_each_work_for_all_has_a_turn_however_soon_it_comes_after_another_one(nursery: trio.Nursery) -> None:
    """`turn_with` leaves what comes so soon to the loop."""
    dispatcher = Dispatcher(clock=lambda: 1.0)
    await nursery.start(dispatcher.run)
    await asleep(dispatcher)
    seen: list[int] = []
    context = dispatcher.register(lambda _budget: bool(seen.append(1)), "test")
    wakeups_count = dispatcher.statistics().wakeups_count
    for count in range(1, 4):
        dispatcher.turn_for_all(context.request_dispatch)
        assert len(seen) == count
    dispatcher.turn_with(context.request_dispatch)
    assert len(seen) == 3
    await asleep(dispatcher)
    assert dispatcher.statistics().wakeups_count == wakeups_count + 1
    dispatcher.close()


async def test_what_the_turn_leaves_undone_is_done_by_the_loop(nursery: trio.Nursery) -> None:
    dispatcher = Dispatcher()
    await nursery.start(dispatcher.run)
    await asleep(dispatcher)
    left_count = 10_000

    def dispatch(_budget: int) -> bool:
        nonlocal left_count
        left_count -= 1
        return MORE if left_count else DONE

    dispatcher.turn_with(dispatcher.register(dispatch, "long").request_dispatch)
    assert left_count
    await trio.testing.wait_all_tasks_blocked()
    assert not left_count
    dispatcher.close()


async def test_a_timer_that_the_work_makes_wakes_the_loop_in_time(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    dispatcher = Dispatcher()
    await nursery.start(dispatcher.run)
    await asleep(dispatcher)
    fired_at = math.nan

    def fire() -> None:
        nonlocal fired_at
        fired_at = trio.current_time()

    began = trio.current_time()
    dispatcher.turn_with(lambda: bool(dispatcher.call_later(7.0, fire)))  # type: ignore[arg-type]
    await trio.sleep(100)
    assert fired_at - began == 7.0
    dispatcher.close()


async def test_submissions_of_other_threads_are_not_lost(nursery: trio.Nursery) -> None:
    dispatcher = Dispatcher()
    await nursery.start(dispatcher.run)
    await asleep(dispatcher)
    seen: list[int] = []
    for number in range(5):
        await trio.to_thread.run_sync(dispatcher.submit, lambda number=number: seen.append(number))
        dispatcher.turn_with(lambda: None)
        await trio.to_thread.run_sync(dispatcher.submit, lambda number=number: seen.append(-number))
    with trio.fail_after(20):
        while len(seen) < 10:
            await trio.lowlevel.checkpoint()
    assert sorted(seen) == sorted([*range(5), *(-n for n in range(5))])
    dispatcher.close()


async def test_an_error_of_the_turn_is_the_loops() -> None:
    """Not of the one who brought the work: it has nothing to do with it."""

    def dispatch(_budget: int) -> bool:
        raise BrokenError

    with pytest.RaisesGroup(BrokenError):
        async with trio.open_nursery() as nursery:
            dispatcher = Dispatcher()
            await nursery.start(dispatcher.run)
            await asleep(dispatcher)
            dispatcher.turn_with(dispatcher.register(dispatch, "broken").request_dispatch)


async def test_an_error_of_the_work_is_its_own(nursery: trio.Nursery) -> None:
    dispatcher = Dispatcher()
    await nursery.start(dispatcher.run)
    await asleep(dispatcher)

    def work() -> None:
        raise BrokenError

    with pytest.raises(BrokenError):
        dispatcher.turn_with(work)
    seen: list[int] = []
    dispatcher.turn_with(dispatcher.register(lambda _budget: bool(seen.append(1)), "goes on").request_dispatch)
    assert seen == [1]
    dispatcher.close()


async def test_while_the_loop_is_busy_the_work_is_just_done(nursery: trio.Nursery) -> None:
    dispatcher = Dispatcher()
    await nursery.start(dispatcher.run)
    await asleep(dispatcher)
    seen: list[str] = []
    context = dispatcher.register(lambda _budget: bool(seen.append("dispatched")), "test")
    context.request_dispatch()
    dispatcher.turn_with(lambda: seen.append("work"))
    assert seen == ["work"]
    await asleep(dispatcher)
    assert seen == ["work", "dispatched"]
    dispatcher.close()
