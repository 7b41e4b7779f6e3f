"""The trio task: virtual time, wake-ups per batch, threads, cancellation, and that trio is never starved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from sluiceway.dispatcher import (
    DONE,
    MORE,
    DispatchContext,
    Dispatcher,
    DispatcherClosedError,
    DispatcherConfig,
    DispatcherStateError,
)


def recording(log: list[Any], what: object = 1) -> Callable[[int], bool]:
    """A dispatch that notes that it ran, and is done."""

    def dispatch(_budget: int) -> bool:
        log.append(what)
        return DONE

    return dispatch


async def run_in_thread(work: Callable[[], None]) -> None:
    """Run `work` on a plain thread while this task (not the loop) holds trio: the loop sees all of it at once."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)  # no await: trio stands still meanwhile, on purpose
    assert not thread.is_alive()


# Sleeping and waking


async def test_request_from_another_task_wakes_the_loop(nursery: trio.Nursery) -> None:
    dispatcher = Dispatcher()
    calls: list[object] = []
    context = dispatcher.register(recording(calls), "queue")
    await nursery.start(dispatcher.run)
    await wait_all_tasks_blocked()
    context.request_dispatch()
    await wait_all_tasks_blocked()
    assert calls == [1]
    nursery.cancel_scope.cancel()


async def test_requests_of_one_batch_wake_the_loop_once(nursery: trio.Nursery) -> None:
    dispatcher = Dispatcher()
    contexts = [dispatcher.register(lambda _budget: DONE, str(number)) for number in range(1000)]
    await nursery.start(dispatcher.run)
    await wait_all_tasks_blocked()
    before = dispatcher.statistics()
    for context in contexts:
        context.request_dispatch()
    await wait_all_tasks_blocked()
    after = dispatcher.statistics()
    assert after.wakeups_count - before.wakeups_count == 1
    assert after.dispatches_count - before.dispatches_count == 1000
    nursery.cancel_scope.cancel()


async def test_what_was_requested_before_run_is_served(nursery: trio.Nursery) -> None:
    dispatcher = Dispatcher(config=DispatcherConfig(turn_seconds=1000.0))  # no turn ends early on a busy machine
    ran: list[object] = []
    dispatcher.register(recording(ran, "context"), "queue").request_dispatch()
    dispatcher.submit(lambda: ran.append("submitted"))
    dispatcher.at_turn_end(lambda: ran.append("turn end"))
    nursery.start_soon(dispatcher.run)
    await wait_all_tasks_blocked()
    assert ran == ["submitted", "context", "turn end"]
    nursery.cancel_scope.cancel()


async def test_at_turn_end_wakes_an_idle_loop_for_a_turn_without_dispatches(nursery: trio.Nursery) -> None:
    dispatcher, ran = Dispatcher(), []
    await nursery.start(dispatcher.run)
    await wait_all_tasks_blocked()
    dispatcher.at_turn_end(lambda: ran.append(1))
    await wait_all_tasks_blocked()
    assert ran == [1]
    assert dispatcher.statistics().dispatches_count == 0
    nursery.cancel_scope.cancel()


async def test_tasks_progress_while_dispatch_work_is_endless(nursery: trio.Nursery) -> None:
    """Between two turns every other task gets its step; so do sockets, which trio polls in between."""
    config = DispatcherConfig(dispatches_per_turn_count=10, turn_seconds=1000.0)
    dispatcher = Dispatcher(config=config)
    dispatcher.register(lambda _budget: MORE, "endless").request_dispatch()
    await nursery.start(dispatcher.run)
    for _ in range(100):
        await trio.lowlevel.checkpoint()
    statistics = dispatcher.statistics()
    assert 50 <= statistics.turns_count <= 101
    assert statistics.dispatches_count == 10 * statistics.turns_count
    nursery.cancel_scope.cancel()


async def test_sockets_are_served_while_dispatch_work_is_endless(nursery: trio.Nursery) -> None:
    dispatcher = Dispatcher()
    dispatcher.register(lambda _budget: MORE, "endless").request_dispatch()
    await nursery.start(dispatcher.run)
    one, other = trio.socket.socketpair()
    with one, other, trio.fail_after(30):
        for number in range(20):
            await one.send(bytes([number]))
            assert await other.recv(10) == bytes([number])
    nursery.cancel_scope.cancel()


# Timers in virtual time


async def test_timers_run_at_their_virtual_time(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    dispatcher, ran = Dispatcher(), []
    await nursery.start(dispatcher.run)
    start = trio.current_time()
    for delay in (3600.0, 0.5, 7200.0, 0.5):
        dispatcher.call_later(delay, lambda delay=delay: ran.append((delay, dispatcher.now() - start)))  # type: ignore[misc]
    await trio.sleep(10_000)
    assert [delay for delay, _elapsed in ran] == [0.5, 0.5, 3600.0, 7200.0]
    for delay, elapsed in ran:
        assert delay <= elapsed < delay + 0.001
    nursery.cancel_scope.cancel()


async def test_timer_earlier_than_the_one_slept_for_comes_first(mock_clock: MockClock, nursery: trio.Nursery) -> None:
    dispatcher, ran = Dispatcher(), []
    dispatcher.call_later(100.0, lambda: ran.append("late"))
    await nursery.start(dispatcher.run)
    await wait_all_tasks_blocked()
    wakeups_count = dispatcher.statistics().wakeups_count
    dispatcher.call_later(1.0, lambda: ran.append("early"))
    await wait_all_tasks_blocked()
    assert dispatcher.statistics().wakeups_count == wakeups_count  # the alarm is moved without waking anybody
    mock_clock.jump(1.0)
    await wait_all_tasks_blocked()
    assert ran == ["early"]
    mock_clock.jump(99.0)
    await wait_all_tasks_blocked()
    assert ran == ["early", "late"]
    nursery.cancel_scope.cancel()


async def test_timer_does_not_run_early(mock_clock: MockClock, nursery: trio.Nursery) -> None:
    dispatcher, ran = Dispatcher(), []
    await nursery.start(dispatcher.run)
    dispatcher.call_later(1.0, lambda: ran.append(1))
    context = dispatcher.register(lambda _budget: DONE, "queue")
    mock_clock.jump(0.999)
    context.request_dispatch()
    await wait_all_tasks_blocked()
    assert ran == []
    mock_clock.jump(0.001)
    await wait_all_tasks_blocked()
    assert ran == [1]
    nursery.cancel_scope.cancel()


async def test_cancelled_timer_wakes_nobody_but_its_alarm(mock_clock: MockClock, nursery: trio.Nursery) -> None:
    """A cancelled timer never runs; the alarm that was set for it may wake the loop once in vain."""
    dispatcher, ran = Dispatcher(), []
    await nursery.start(dispatcher.run)
    timer = dispatcher.call_later(1.0, lambda: ran.append(1))
    await wait_all_tasks_blocked()
    before_count = dispatcher.statistics().wakeups_count
    timer.cancel()
    mock_clock.jump(10.0)
    await wait_all_tasks_blocked()
    assert ran == []
    assert dispatcher.statistics().wakeups_count <= before_count + 1
    assert dispatcher.statistics().timers_count == 0
    nursery.cancel_scope.cancel()


async def test_renewed_timer_ticks_evenly(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    """A heart-beat: each tick sets the next; the alarm is opened anew every time."""
    dispatcher, ticks = Dispatcher(), []
    await nursery.start(dispatcher.run)
    start = trio.current_time()

    def tick() -> None:
        ticks.append(round(dispatcher.now() - start, 6))
        if len(ticks) < 100:
            dispatcher.call_at(start + 10.0 * (len(ticks) + 1), tick)

    dispatcher.call_at(start + 10.0, tick)
    await trio.sleep(2000)
    assert ticks == [10.0 * number for number in range(1, 101)]
    assert dispatcher.statistics().wakeups_count <= 110
    nursery.cancel_scope.cancel()


async def test_timer_that_falls_due_while_the_loop_is_busy_is_run(mock_clock: MockClock, nursery: trio.Nursery) -> None:
    """The alarm then goes off at a checkpoint instead of in a sleep."""
    dispatcher, ran = Dispatcher(), []
    endless = dispatcher.register(lambda _budget: MORE, "endless")
    await nursery.start(dispatcher.run)
    dispatcher.call_later(5.0, lambda: ran.append(1))
    await wait_all_tasks_blocked()
    endless.request_dispatch()
    for _ in range(5):
        await trio.lowlevel.checkpoint()
    assert ran == []
    mock_clock.jump(5.0)
    for _ in range(5):
        await trio.lowlevel.checkpoint()
    assert ran == [1]
    turns_count = dispatcher.statistics().turns_count
    for _ in range(10):
        await trio.lowlevel.checkpoint()
    assert dispatcher.statistics().turns_count > turns_count
    nursery.cancel_scope.cancel()


async def test_timers_follow_a_clock_of_the_caller(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    """A clock with another origin: the alarm is set by difference."""
    dispatcher, ran = Dispatcher(lambda: trio.current_time() + 1_000_000.0), []
    await nursery.start(dispatcher.run)
    start = trio.current_time()
    dispatcher.call_at(start + 1_000_000.0 + 60.0, lambda: ran.append(trio.current_time() - start))
    await trio.sleep(100)
    assert ran == [pytest.approx(60.0, abs=0.001)]
    nursery.cancel_scope.cancel()


# Other threads


async def test_thousand_submits_from_a_thread_cost_one_wakeup(nursery: trio.Nursery) -> None:
    dispatcher, ran = Dispatcher(), []
    await nursery.start(dispatcher.run)
    await wait_all_tasks_blocked()
    before = dispatcher.statistics()

    def submit_all() -> None:
        for number in range(1000):
            dispatcher.submit(lambda number=number: ran.append(number))  # type: ignore[misc]

    await run_in_thread(submit_all)
    with trio.fail_after(30):
        while len(ran) < 1000:
            await trio.lowlevel.checkpoint()
    await wait_all_tasks_blocked()
    after = dispatcher.statistics()
    assert ran == list(range(1000))
    assert after.wakeups_count - before.wakeups_count == 1
    assert after.submitted_count == 1000
    assert after.submitted_waiting_count == 0
    nursery.cancel_scope.cancel()


async def test_submits_of_each_thread_run_in_its_order(nursery: trio.Nursery) -> None:
    """Four threads against a running loop; callbacks run on the thread of trio."""
    dispatcher = Dispatcher(config=DispatcherConfig(budget_count=16))
    ran: list[tuple[int, int]] = []
    here = threading.get_ident()
    strangers: list[int] = []

    def submit_all(name: int) -> None:
        for number in range(500):

            def callback(number: int = number) -> None:
                ran.append((name, number))
                if threading.get_ident() != here:
                    strangers.append(number)

            dispatcher.submit(callback)

    await nursery.start(dispatcher.run)
    with trio.fail_after(30):
        async with trio.open_nursery() as threads:
            for name in range(4):
                threads.start_soon(trio.to_thread.run_sync, submit_all, name)
        while len(ran) < 2000:
            await trio.lowlevel.checkpoint()
    for name in range(4):
        assert [number for each, number in ran if each == name] == list(range(500))
    assert strangers == []
    nursery.cancel_scope.cancel()


async def test_request_from_a_foreign_thread_is_refused(nursery: trio.Nursery) -> None:
    dispatcher, refused = Dispatcher(), []
    context = dispatcher.register(lambda _budget: DONE, "queue")
    await nursery.start(dispatcher.run)
    await wait_all_tasks_blocked()

    def request() -> None:
        with pytest.raises(DispatcherStateError, match=r"foreign thread; submit\(\) a callback"):
            context.request_dispatch()
        refused.append(1)

    await run_in_thread(request)
    assert refused == [1]
    assert not context.queued
    nursery.cancel_scope.cancel()


# Ending


async def test_close_ends_run_after_a_last_turn() -> None:
    dispatcher, order = Dispatcher(), []
    async with trio.open_nursery() as nursery:
        await nursery.start(dispatcher.run)
        await wait_all_tasks_blocked()
        dispatcher.submit(lambda: order.append("submitted"))
        dispatcher.at_turn_end(lambda: order.append("flush"))
        dispatcher.close()
    assert order == ["submitted", "flush"]
    assert dispatcher.statistics().dropped_count == 0


async def test_close_wakes_a_sleeping_loop_and_works_inside_a_dispatch() -> None:
    for inside in (False, True):
        dispatcher = Dispatcher()

        def closing(_budget: int, dispatcher: Dispatcher = dispatcher) -> bool:
            dispatcher.close()
            return MORE

        context = dispatcher.register(closing, "closing")
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                await nursery.start(dispatcher.run)
                await wait_all_tasks_blocked()
                if inside:
                    context.request_dispatch()
                else:
                    dispatcher.close()
        with pytest.raises(DispatcherClosedError):
            dispatcher.submit(lambda: None)


async def test_close_before_run_makes_run_return() -> None:
    dispatcher, ran = Dispatcher(), []
    dispatcher.submit(lambda: ran.append(1))
    dispatcher.close()
    with trio.fail_after(30):
        await dispatcher.run()
    assert ran == [1]


async def test_second_run_is_refused() -> None:
    dispatcher = Dispatcher()
    dispatcher.close()
    await dispatcher.run()
    with pytest.raises(DispatcherStateError, match="a dispatcher runs once"):
        await dispatcher.run()


@pytest.mark.parametrize("busy", [False, True], ids=["asleep", "busy"])
async def test_cancellation_leaves_a_closed_dispatcher(busy: bool) -> None:
    """In its sleep or between two turns: later calls come to nothing, submit says so, what was dropped is counted."""
    dispatcher, ran = Dispatcher(), []
    context = dispatcher.register(lambda _budget: MORE if busy else DONE, "queue")
    async with trio.open_nursery() as nursery:
        await nursery.start(dispatcher.run)
        await wait_all_tasks_blocked()
        timer = dispatcher.call_later(1000.0, lambda: ran.append("timer"))
        if busy:
            context.request_dispatch()
            for _ in range(3):
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
        dispatcher.at_turn_end(lambda: ran.append("flush"))
        dispatcher.submit(lambda: ran.append("submitted"))
    statistics = dispatcher.statistics()
    assert dispatcher.closed
    assert not timer.pending
    assert len(ran) + statistics.dropped_count == 2
    assert statistics.submitted_waiting_count == 0
    with pytest.raises(DispatcherClosedError):
        dispatcher.submit(lambda: None)
    context.request_dispatch()
    dispatcher.at_turn_end(lambda: ran.append("late"))
    await wait_all_tasks_blocked()
    assert "late" not in ran


async def test_cancellation_after_the_wake_is_delivered_once() -> None:
    """Woken and cancelled in the same step: the turn still runs, then the cancellation arrives."""
    dispatcher = Dispatcher()
    calls: list[object] = []
    context = dispatcher.register(recording(calls), "queue")
    async with trio.open_nursery() as nursery:
        await nursery.start(dispatcher.run)
        await wait_all_tasks_blocked()
        context.request_dispatch()
        nursery.cancel_scope.cancel()
    assert calls == [1]


async def test_request_after_the_cancellation_of_the_sleep_wakes_nobody() -> None:
    """Cancelled and requested in the same step, the other way round: trio must not see a second reschedule."""
    dispatcher = Dispatcher()
    context = dispatcher.register(lambda _budget: DONE, "queue")
    async with trio.open_nursery() as nursery:
        await nursery.start(dispatcher.run)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        context.request_dispatch()
    assert dispatcher.closed


async def test_error_in_a_dispatch_ends_run_with_that_error() -> None:
    dispatcher = Dispatcher()
    dispatcher.register(lambda _budget: bool(1 / 0), "orders").request_dispatch()
    with pytest.raises(ZeroDivisionError) as caught:
        await dispatcher.run()
    assert caught.value.__notes__ == ["raised in a dispatch of 'orders' (priority 4)"]
    with pytest.raises(DispatcherClosedError):
        dispatcher.submit(lambda: None)


async def test_error_hook_that_returns_keeps_run_going(nursery: trio.Nursery) -> None:
    seen: list[str] = []

    def remember(context: DispatchContext, error: Exception) -> None:
        seen.append(f"{context.label}: {error}")

    dispatcher = Dispatcher(on_error=remember)
    broken = dispatcher.register(lambda _budget: bool(1 / 0), "orders")
    healthy = dispatcher.register(recording(seen, "healthy"), "healthy")
    broken.request_dispatch()
    await nursery.start(dispatcher.run)
    await wait_all_tasks_blocked()
    healthy.request_dispatch()
    await wait_all_tasks_blocked()
    assert seen == ["orders: division by zero", "healthy"]
    nursery.cancel_scope.cancel()


def test_ctrl_c_never_cuts_a_dispatch_in_two() -> None:
    """It arrives at the next checkpoint of the loop, and the dispatcher is closed then."""
    steps: list[str] = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it

    def interrupted(_budget: int) -> bool:
        signal.raise_signal(signal.SIGINT)
        steps.append("finished")
        return DONE

    dispatcher = Dispatcher()
    dispatcher.register(interrupted, "interrupted").request_dispatch()
    dispatcher.at_turn_end(lambda: steps.append("flushed"))
    try:
        with pytest.raises(KeyboardInterrupt):
            trio.run(dispatcher.run)
    finally:
        signal.signal(signal.SIGINT, before)
    assert steps == ["finished", "flushed"]
    assert dispatcher.closed
