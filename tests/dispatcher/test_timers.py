"""Timers on the heap alone: order, never early, lazy cancellation and its bound."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluiceway.dispatcher.timers import COMPACT_MIN_COUNT, Timer, TimerHeap


def nothing() -> None:
    """A callback of no consequence."""


def test_due_timers_run_in_deadline_order_and_ties_in_order_of_creation() -> None:
    heap, ran = TimerHeap(), []
    for name, deadline in (("c", 3.0), ("a1", 1.0), ("b", 2.0), ("a2", 1.0), ("a3", 1.0)):
        heap.add(deadline, lambda name=name: ran.append(name))  # type: ignore[misc]
    assert not heap.run_due(3.0, 100)
    assert ran == ["a1", "a2", "a3", "b", "c"]
    assert heap.fired_count == 5


def test_timer_never_runs_before_its_deadline() -> None:
    heap, ran = TimerHeap(), []
    heap.add(1.0, lambda: ran.append(1))
    heap.run_due(math.nextafter(1.0, 0.0), 100)
    assert ran == []
    heap.run_due(1.0, 100)
    assert ran == [1]


def test_cancelled_timer_never_runs() -> None:
    heap, ran = TimerHeap(), []
    timer = heap.add(1.0, lambda: ran.append(1))
    assert len(heap) == 1
    timer.cancel()
    timer.cancel()
    assert not timer.pending
    assert len(heap) == 0
    heap.run_due(2.0, 100)
    assert ran == []
    assert heap.next_pending_seconds() == math.inf


def test_cancel_after_it_ran_does_nothing() -> None:
    heap = TimerHeap()
    timer = heap.add(1.0, nothing)
    keep = heap.add(9.0, nothing)
    heap.run_due(1.0, 100)
    timer.cancel()
    assert len(heap) == 1
    assert keep.pending


def test_timer_may_cancel_itself_and_others_while_running() -> None:
    heap, ran = TimerHeap(), []

    def first() -> None:
        ran.append("first")
        timers[0].cancel()
        timers[1].cancel()

    timers = [heap.add(1.0, first), heap.add(1.0, lambda: ran.append("second")), heap.add(1.0, lambda: ran.append("3"))]
    heap.run_due(1.0, 100)
    assert ran == ["first", "3"]
    assert len(heap) == 0


def test_timer_made_by_a_running_timer_waits_for_the_next_call() -> None:
    """A timer that renews itself without delay can't hold the loop."""
    heap, ran = TimerHeap(), []

    def renew() -> None:
        ran.append(1)
        heap.add(0.0, renew)

    heap.add(1.0, renew)
    heap.add(1.0, lambda: ran.append(2))
    assert heap.run_due(1.0, 100)
    assert ran == [1]  # the new one is due earliest of all and waits, so order by deadline holds
    assert heap.run_due(1.0, 100)
    assert ran == [1, 1]
    assert heap.run_due(1.0, 1)
    assert ran == [1, 1, 1]


def test_limit_leaves_the_rest_for_the_next_call() -> None:
    heap, ran = TimerHeap(), []
    for number in range(5):
        heap.add(1.0, lambda number=number: ran.append(number))  # type: ignore[misc]
    assert heap.run_due(1.0, 2)
    assert ran == [0, 1]
    assert heap.run_due(1.0, 2)
    assert not heap.run_due(1.0, 2)
    assert ran == [0, 1, 2, 3, 4]


def test_timer_that_raises_is_over_and_the_others_stay() -> None:
    heap, ran = TimerHeap(), []

    def fail() -> None:
        raise RuntimeError("on purpose")

    failing = heap.add(1.0, fail)
    heap.add(1.0, lambda: ran.append(1))
    with pytest.raises(RuntimeError, match="on purpose"):
        heap.run_due(1.0, 100)
    assert not failing.pending
    heap.run_due(1.0, 100)
    assert ran == [1]


def test_nan_is_refused_and_infinity_never_comes() -> None:
    heap = TimerHeap()
    with pytest.raises(ValueError, match="NaN"):
        heap.add(math.nan, nothing)
    assert len(heap) == 0
    never = heap.add(math.inf, nothing)
    assert not heap.run_due(1e300, 100)
    assert never.pending


def test_clear_cancels_all() -> None:
    heap = TimerHeap()
    timers = [heap.add(float(number), nothing) for number in range(5)]
    timers[0].cancel()
    assert heap.clear() == 4
    assert not any(timer.pending for timer in timers)
    assert len(heap) == 0
    timers[1].cancel()
    assert len(heap) == 0


@given(deadlines=st.lists(st.floats(0, 100), min_size=1, max_size=300), data=st.data())
def test_heap_never_holds_more_than_twice_the_live_timers(deadlines: list[float], data: st.DataObject) -> None:
    heap = TimerHeap()
    timers = [heap.add(deadline, nothing) for deadline in deadlines]
    for timer in data.draw(st.permutations(timers)):
        timer.cancel()
        assert len(heap._entries) <= max(2 * len(heap), COMPACT_MIN_COUNT)


def test_compaction_while_a_timer_runs_loses_nobody() -> None:
    """The first of many timers cancels most of the others, so the heap is rebuilt under the hands of run_due."""
    heap, ran = TimerHeap(), []
    timers: list[Timer] = []

    def cancel_most() -> None:
        for number, timer in enumerate(timers):
            if number % 10:
                timer.cancel()

    heap.add(0.0, cancel_most)
    timers.extend(heap.add(1.0, lambda number=number: ran.append(number)) for number in range(500))  # type: ignore[misc]
    heap.run_due(1.0, 1000)
    assert ran == list(range(0, 500, 10))


class TimerModel(RuleBasedStateMachine):
    """Random additions, cancellations and passing of time against a plain sorted list."""

    def __init__(self) -> None:
        super().__init__()
        self.heap = TimerHeap()
        self.now = 0.0
        self.number = 0
        self.model: dict[int, tuple[float, Timer]] = {}
        self.ran: list[int] = []

    @rule(delays=st.lists(st.integers(-2, 20), min_size=1, max_size=80))
    def add(self, delays: list[int]) -> None:
        for delay in delays:
            self.number += 1
            deadline = self.now + delay
            timer = self.heap.add(deadline, lambda number=self.number: self.ran.append(number))  # type: ignore[misc]
            self.model[self.number] = (deadline, timer)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        for number in data.draw(st.sets(st.sampled_from(sorted(self.model)))):
            self.model.pop(number)[1].cancel()

    @rule(seconds=st.integers(0, 10), limit=st.integers(1, 50))
    def pass_time(self, seconds: int, limit: int) -> None:
        self.now += seconds
        due = sorted((deadline, number) for number, (deadline, _timer) in self.model.items() if deadline <= self.now)
        self.ran.clear()
        left = self.heap.run_due(self.now, limit)
        assert self.ran == [number for _deadline, number in due[:limit]]
        assert left == (len(due) > limit)
        for number in self.ran:
            assert not self.model.pop(number)[1].pending

    @invariant()
    def counts_and_next_deadline_agree(self) -> None:
        earliest = min((deadline for deadline, _timer in self.model.values()), default=math.inf)
        assert len(self.heap) == len(self.model)
        assert self.heap.next_deadline_seconds <= earliest
        assert self.heap.next_pending_seconds() == earliest
        assert all(first[0] <= second[0] for first, second in pairwise(sorted(self.heap._entries)))


TimerModel.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestTimerModel = TimerModel.TestCase
