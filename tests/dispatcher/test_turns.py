"""One turn after the other, without trio: re-entrancy, budgets, limits, the end of a turn, errors, closing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sluiceway.dispatcher import (
    DONE,
    MORE,
    DispatchContext,
    DispatcherClosedError,
    DispatcherConfig,
    DispatcherCore,
    DispatcherStateError,
)


class HandClock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Errors:
    """An error hook that remembers and goes on."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def __call__(self, context: DispatchContext, error: Exception) -> None:
        self.seen.append((context.label, str(error)))


def recording(log: list[Any], what: object = 1) -> Callable[[int], bool]:
    """A dispatch that notes that it ran, and is done."""

    def dispatch(_budget: int) -> bool:
        log.append(what)
        return DONE

    return dispatch


def core(clock: HandClock | None = None, on_error: Errors | None = None, **knobs: float) -> DispatcherCore:
    """A dispatcher cranked by hand; `knobs` are fields of its configuration."""
    config = DispatcherConfig(**knobs)  # type: ignore[arg-type]
    clock = HandClock() if clock is None else clock
    if on_error is None:
        return DispatcherCore(clock, config=config)
    return DispatcherCore(clock, config=config, on_error=on_error)


def fail() -> None:
    """A callback that raises."""
    raise RuntimeError("on purpose")


# Dispatching


def test_dispatch_gets_the_configured_budget() -> None:
    dispatcher, budgets = core(budget_count=77), []

    def dispatch(budget: int) -> bool:
        budgets.append(budget)
        return DONE

    dispatcher.register(dispatch, "queue").request_dispatch()
    dispatcher.run_turn()
    assert budgets == [77]


def test_requests_before_the_dispatch_lead_to_one_dispatch() -> None:
    dispatcher = core()
    calls: list[object] = []
    context = dispatcher.register(recording(calls), "queue")
    for _ in range(10):
        context.request_dispatch()
    assert dispatcher.run_until_idle() == 1
    assert len(calls) == 1


def test_request_inside_a_dispatch_never_reenters_it() -> None:
    """Requests by the context itself, and by others that it calls, are served after it has returned."""
    dispatcher, depth, depths = core(), 0, []

    def dispatch(_budget: int) -> bool:
        nonlocal depth
        depth += 1
        depths.append(depth)
        if len(depths) < 5:
            context.request_dispatch()
            context.request_dispatch()
        depth -= 1
        return DONE

    context = dispatcher.register(dispatch, "queue")
    context.request_dispatch()
    dispatcher.run_until_idle()
    assert depths == [1] * 5


@pytest.mark.parametrize("answer", [MORE, DONE])
def test_request_during_own_dispatch_leads_to_exactly_one_more(answer: bool) -> None:
    """Also if the dispatch returns MORE as well."""
    dispatcher, calls = core(), 0

    def dispatch(_budget: int) -> bool:
        nonlocal calls
        calls += 1
        if calls > 1:
            return DONE
        context.request_dispatch()
        context.request_dispatch()
        return answer

    context = dispatcher.register(dispatch, "queue")
    context.request_dispatch()
    dispatcher.run_until_idle()
    assert calls == 2


def test_turn_inside_a_dispatch_is_refused() -> None:
    dispatcher = core()

    def dispatch(_budget: int) -> bool:
        with pytest.raises(DispatcherStateError, match="inside a dispatch"):
            dispatcher.run_turn()
        with pytest.raises(DispatcherStateError, match="inside a dispatch"):
            dispatcher.run_last_turn()
        return DONE

    dispatcher.register(dispatch, "queue").request_dispatch()
    dispatcher.run_turn()
    assert dispatcher.statistics().dispatches_count == 1


def test_contexts_that_feed_each_other_run_in_the_same_turn() -> None:
    """producer -> queue -> consumer: one turn, one flush."""
    dispatcher, order = core(), []

    def stage(name: str, following: list[DispatchContext]) -> DispatchContext:
        def dispatch(_budget: int) -> bool:
            order.append(name)
            for each in following:
                each.request_dispatch()
            return DONE

        return dispatcher.register(dispatch, name)

    consumer = stage("consumer", [])
    queue = stage("queue", [consumer])
    producer = stage("producer", [queue])
    dispatcher.at_turn_end(lambda: order.append("flush"))
    producer.request_dispatch()
    assert dispatcher.run_until_idle() == 1
    assert order == ["producer", "queue", "consumer", "flush"]


def test_higher_priority_made_ready_in_a_turn_is_served_next() -> None:
    dispatcher, order = core(), []

    def low(_budget: int) -> bool:
        order.append("low")
        urgent.request_dispatch()
        return len(order) < 6

    urgent = dispatcher.register(recording(order, "urgent"), "urgent", 8)
    dispatcher.register(low, "low", 2).request_dispatch()
    dispatcher.run_turn()
    assert order == ["low", "urgent"] * (len(order) // 2)


def test_close_during_own_dispatch_is_the_end_of_it() -> None:
    dispatcher, calls = core(), 0

    def dispatch(_budget: int) -> bool:
        nonlocal calls
        calls += 1
        context.request_dispatch()
        context.close()
        context.request_dispatch()
        return MORE

    context = dispatcher.register(dispatch, "queue")
    context.request_dispatch()
    dispatcher.run_until_idle()
    assert calls == 1
    assert context.closed


def test_turn_ends_after_the_configured_dispatches() -> None:
    dispatcher = core(dispatches_per_turn_count=7)
    dispatcher.register(lambda _budget: MORE, "endless").request_dispatch()
    dispatcher.run_turn()
    assert dispatcher.statistics().dispatches_count == 7
    assert dispatcher.has_work()


def test_turn_ends_after_its_time_slice() -> None:
    clock = HandClock()
    dispatcher = core(clock, turn_seconds=0.01)

    def dispatch(_budget: int) -> bool:
        clock.seconds += 0.004
        return MORE

    dispatcher.register(dispatch, "slow").request_dispatch()
    dispatcher.run_turn()
    assert dispatcher.statistics().dispatches_count == 3


def test_run_until_idle_gives_up_on_endless_work() -> None:
    dispatcher = core()
    dispatcher.register(lambda _budget: MORE, "endless").request_dispatch()
    with pytest.raises(DispatcherStateError, match="still busy after 5 turns"):
        dispatcher.run_until_idle(5)


# The end of a turn


def test_turn_end_callbacks_run_once_after_the_contexts() -> None:
    dispatcher, order = core(), []

    def flush() -> None:
        order.append("flush")

    def dispatch(_budget: int) -> bool:
        order.append("dispatch")
        dispatcher.at_turn_end(flush)
        return len(order) < 3

    dispatcher.register(dispatch, "queue").request_dispatch()
    dispatcher.run_until_idle()
    assert order == ["dispatch", "dispatch", "dispatch", "flush"]
    dispatcher.run_turn()
    assert order[3:] == ["flush"]


def test_same_method_of_the_same_object_is_one_callback() -> None:
    class Connection:
        flushes = 0

        def flush(self) -> None:
            self.flushes += 1

    dispatcher, one, other = core(), Connection(), Connection()
    for _ in range(3):
        dispatcher.at_turn_end(one.flush)
        dispatcher.at_turn_end(other.flush)
    dispatcher.run_turn()
    assert (one.flushes, other.flushes) == (1, 1)


def test_turn_end_alone_is_work() -> None:
    dispatcher = core()
    dispatcher.at_turn_end(lambda: None)
    assert dispatcher.has_work()
    dispatcher.run_turn()
    assert not dispatcher.has_work()


def test_callbacks_added_by_turn_end_callbacks_run_in_the_same_phase_for_bounded_rounds() -> None:
    dispatcher, runs = core(turn_end_rounds_count=3), []

    def again() -> None:
        runs.append(1)
        dispatcher.at_turn_end(again)

    dispatcher.at_turn_end(again)
    dispatcher.run_turn()
    assert len(runs) == 3
    assert dispatcher.has_work()
    dispatcher.run_turn()
    assert len(runs) == 6


def test_dispatch_requested_by_a_turn_end_callback_runs_in_the_next_turn() -> None:
    dispatcher = core()
    calls: list[object] = []
    context = dispatcher.register(recording(calls), "queue")
    dispatcher.at_turn_end(context.request_dispatch)
    dispatcher.run_turn()
    assert calls == []
    dispatcher.run_turn()
    assert calls == [1]


# Executors


def test_executor_is_first_in_first_out() -> None:
    dispatcher, ran = core(), []
    execute = dispatcher.executor()
    for number in range(2500):
        execute(lambda number=number: ran.append(number))  # type: ignore[misc]
    assert len(execute) == 2500
    dispatcher.run_until_idle()
    assert ran == list(range(2500))


def test_callback_added_by_an_executor_callback_lets_others_in_first() -> None:
    dispatcher = core()
    order: list[object] = []
    execute = dispatcher.executor()
    queue = dispatcher.register(recording(order, "queue"), "queue")

    def again() -> None:
        order.append("callback")
        if order.count("callback") < 3:
            queue.request_dispatch()
            execute(again)

    execute(again)
    dispatcher.run_until_idle()
    assert order == ["callback", "queue", "callback", "queue", "callback"]


def test_executors_obey_priority() -> None:
    dispatcher, order = core(), []
    low, high = dispatcher.executor(1, "low"), dispatcher.executor(7, "high")
    low(lambda: order.append("low"))
    high(lambda: order.append("high"))
    dispatcher.run_turn()
    assert order == ["high", "low"]


# Timers


def test_timers_run_in_a_turn_once_due() -> None:
    clock = HandClock()
    dispatcher, ran = core(clock), []
    dispatcher.call_later(2.0, lambda: ran.append("b"))
    dispatcher.call_at(1.0, lambda: ran.append("a"))
    cancelled = dispatcher.call_later(1.5, lambda: ran.append("never"))
    assert not dispatcher.has_work()
    cancelled.cancel()
    clock.seconds = 1.0
    assert dispatcher.has_work()
    dispatcher.run_turn()
    assert ran == ["a"]
    clock.seconds = 5.0
    assert dispatcher.now() == 5.0
    dispatcher.run_turn()
    assert ran == ["a", "b"]
    assert dispatcher.statistics().timers_fired_count == 2
    assert not dispatcher.has_work()


def test_timer_that_becomes_due_during_a_turn_is_not_kept_waiting_by_busy_contexts() -> None:
    clock = HandClock()
    dispatcher, order = core(clock, turn_seconds=100.0), []

    def busy(_budget: int) -> bool:
        order.append("busy")
        clock.seconds += 1.0
        return len(order) < 6

    dispatcher.register(busy, "busy").request_dispatch()
    dispatcher.call_at(2.0, lambda: order.append("timer"))
    dispatcher.run_turn()
    assert order[:3] == ["busy", "busy", "timer"]


def test_negative_delay_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must not be negative, got -1 s"):
        core().call_later(-1, lambda: None)


# Errors


def test_error_in_a_dispatch_comes_out_by_default_and_closes_the_context() -> None:
    dispatcher = core()
    calls: list[object] = []
    broken = dispatcher.register(lambda _budget: bool(1 / 0), "orders")
    healthy = dispatcher.register(recording(calls), "healthy")
    broken.request_dispatch()
    healthy.request_dispatch()
    with pytest.raises(ZeroDivisionError) as caught:
        dispatcher.run_turn()
    assert caught.value.__notes__ == ["raised in a dispatch of 'orders' (priority 4)"]
    assert broken.closed
    dispatcher.run_turn()  # and all else is as it was
    assert calls == [1]
    statistics = dispatcher.statistics()
    assert (statistics.errors_count, statistics.dispatches_count, statistics.turns_count) == (1, 2, 2)


def test_error_hook_that_returns_keeps_the_loop_going_without_the_context() -> None:
    errors = Errors()
    dispatcher = core(on_error=errors)
    calls: list[object] = []
    broken = dispatcher.register(lambda _budget: bool(1 / 0), "orders")
    healthy = dispatcher.register(recording(calls), "healthy")
    broken.request_dispatch()
    healthy.request_dispatch()
    dispatcher.run_until_idle()
    broken.request_dispatch()
    assert dispatcher.run_until_idle() == 0
    assert errors.seen == [("orders", "division by zero")]
    assert calls == [1]


CARRIERS: dict[str, Callable[[DispatcherCore], Callable[[Callable[[], None]], object]]] = {
    "timers": lambda dispatcher: lambda callback: dispatcher.call_later(0.0, callback),
    "submitted": lambda dispatcher: dispatcher.submit,
    "turn end": lambda dispatcher: dispatcher.at_turn_end,
    "executor": lambda dispatcher: dispatcher.executor(),
}


@pytest.mark.parametrize("label", CARRIERS)
def test_callback_that_raises_takes_out_only_itself(label: str) -> None:
    """Timers, submitted callbacks, executors and the end of the turn survive one bad callback, in order."""
    errors = Errors()
    dispatcher, ran = core(on_error=errors), []
    add = CARRIERS[label](dispatcher)
    add(lambda: ran.append(1))
    add(fail)
    add(lambda: ran.append(2))
    dispatcher.run_until_idle()
    assert ran == [1, 2]
    assert errors.seen == [(label, "on purpose")]
    add(lambda: ran.append(3))
    dispatcher.run_until_idle()
    assert ran == [1, 2, 3]


@pytest.mark.parametrize("label", CARRIERS)
def test_callbacks_behind_one_that_ended_the_turn_by_its_error_are_kept(label: str) -> None:
    dispatcher, ran = core(), []
    add = CARRIERS[label](dispatcher)
    add(fail)
    add(lambda: ran.append(1))
    with pytest.raises(RuntimeError, match="on purpose"):
        dispatcher.run_turn()
    assert ran == []
    dispatcher.run_until_idle()
    assert ran == [1]


def test_exceptions_that_are_no_errors_pass_the_hook() -> None:
    """Ctrl-C in a dispatch is nobody's broken invariant."""
    errors = Errors()
    dispatcher = core(on_error=errors)

    def interrupted(_budget: int) -> bool:
        raise KeyboardInterrupt

    dispatcher.register(interrupted, "queue").request_dispatch()
    with pytest.raises(KeyboardInterrupt):
        dispatcher.run_turn()
    assert errors.seen == []


# Closing and statistics


def test_closed_dispatcher_refuses_new_work_by_name() -> None:
    dispatcher = core()
    dispatcher.close()
    dispatcher.close()
    assert dispatcher.closed
    with pytest.raises(DispatcherClosedError, match="'orders' can't be registered"):
        dispatcher.register(lambda _budget: DONE, "orders")
    with pytest.raises(DispatcherClosedError, match="'resume' can't be registered"):
        dispatcher.executor(label="resume")
    with pytest.raises(DispatcherClosedError, match="stop submitting threads before it"):
        dispatcher.submit(lambda: None)


def test_last_turn_runs_what_was_submitted_and_flushes() -> None:
    dispatcher, order = core(budget_count=2), []
    for number in range(5):
        dispatcher.submit(lambda number=number: order.append(number))  # type: ignore[misc]
    dispatcher.submit(lambda: dispatcher.at_turn_end(lambda: order.append("flush")))
    dispatcher.register(recording(order, "context"), "queue").request_dispatch()
    dispatcher.run_last_turn()
    assert order == [0, 1, 2, 3, 4, "flush"]
    assert dispatcher.statistics().dropped_count == 0


def test_after_the_end_calls_of_the_own_thread_come_to_nothing() -> None:
    """So components can be torn down in any order."""
    dispatcher = core()
    ran: list[object] = []
    context = dispatcher.register(recording(ran), "queue")
    execute = dispatcher.executor()
    pending = dispatcher.call_later(0.0, lambda: ran.append(2))
    dispatcher.run_last_turn()
    assert not pending.pending
    context.request_dispatch()
    execute(lambda: ran.append(3))
    dispatcher.at_turn_end(lambda: ran.append(4))
    late = dispatcher.call_later(0.0, lambda: ran.append(5))
    assert not late.pending
    late.cancel()
    assert ran == []
    assert len(execute) == 0


def test_what_a_last_turn_can_not_finish_is_counted() -> None:
    dispatcher = core(turn_end_rounds_count=2)

    def again() -> None:
        dispatcher.at_turn_end(again)

    dispatcher.at_turn_end(again)
    dispatcher.run_last_turn()
    assert dispatcher.statistics().dropped_count == 1


def test_statistics_show_depths_and_the_longest_dispatch() -> None:
    clock = HandClock()
    dispatcher = core(clock, dispatches_per_turn_count=2)

    def taking(seconds: float) -> Callable[[int], bool]:
        def dispatch(_budget: int) -> bool:
            clock.seconds += seconds
            return DONE

        return dispatch

    for label, seconds, priority in (("quick", 0.001, 9), ("slow", 0.003, 8), ("waiting", 0.9, 2)):
        dispatcher.register(taking(seconds), label, priority).request_dispatch()
    dispatcher.call_later(10.0, lambda: None)
    dispatcher.run_turn()
    dispatcher.submit(lambda: None)
    statistics = dispatcher.statistics()
    assert statistics.longest_dispatch_label == "slow"
    assert statistics.longest_dispatch_seconds == pytest.approx(0.003)
    assert statistics.busy_seconds == pytest.approx(0.004)
    assert statistics.ready_count == (0, 0, 1, 0, 0, 0, 0, 0, 0, 0)
    assert (statistics.timers_count, statistics.submitted_count, statistics.submitted_waiting_count) == (1, 1, 1)


@pytest.mark.parametrize("knob", ["budget_count", "turn_seconds", "turn_end_rounds_count"])
def test_knobs_must_be_above_zero(knob: str) -> None:
    with pytest.raises(ValueError, match=f"{knob} must be above 0, got 0"):
        DispatcherConfig(**{knob: 0})
