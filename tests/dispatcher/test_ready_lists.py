"""Which context comes next: order, shares, and that nobody is lost, on the ready lists alone."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluiceway.dispatcher.context import DONE, PRIORITY_COUNT, DispatchContext, ReadyLists

INTERVAL = 20
LONGEST_WAIT = INTERVAL * (PRIORITY_COUNT - 1)


def context(ready: ReadyLists, priority: int, label: str = "") -> DispatchContext:
    """A context that nobody dispatches: these tests only ask for the order."""
    return DispatchContext(ready, lambda _budget: DONE, label or f"p{priority}", priority)


def take(ready: ReadyLists) -> DispatchContext:
    """The next context, which must exist."""
    taken = ready.take()
    assert taken is not None
    return taken


def served(ready: ReadyLists, count: int) -> list[int]:
    """The priorities of `count` dispatches when every context returns MORE."""
    priorities = []
    for _ in range(count):
        taken = take(ready)
        priorities.append(taken.priority)
        taken.request_dispatch()
    return priorities


def test_empty_lists_give_nobody() -> None:
    assert ReadyLists().take() is None


def test_higher_priority_goes_first() -> None:
    ready = ReadyLists()
    for priority in (3, 9, 0, 5):
        context(ready, priority).request_dispatch()
    assert [take(ready).priority for _ in range(4)] == [9, 5, 3, 0]
    assert ready.take() is None


def test_one_priority_is_first_in_first_out() -> None:
    ready = ReadyLists()
    contexts = [context(ready, 4, str(number)) for number in range(50)]
    for each in contexts:
        each.request_dispatch()
    assert [take(ready) for _ in contexts] == contexts


def test_contexts_with_more_to_do_take_turns() -> None:
    ready = ReadyLists()
    contexts = [context(ready, 4, str(number)) for number in range(3)]
    for each in contexts:
        each.request_dispatch()
    order = []
    for _ in range(9):
        taken = take(ready)
        order.append(taken.label)
        taken.request_dispatch()
    assert order == ["0", "1", "2"] * 3


def test_request_while_queued_changes_nothing() -> None:
    ready = ReadyLists()
    first, second = context(ready, 4), context(ready, 4)
    first.request_dispatch()
    second.request_dispatch()
    first.request_dispatch()
    assert [ready.take(), ready.take(), ready.take()] == [first, second, None]


def test_each_of_ten_busy_priorities_gets_exactly_its_share() -> None:
    """All ten always ready: in any 180 dispatches the nine lower ones get one each, the highest the other 171."""
    ready = ReadyLists(INTERVAL)
    for priority in range(PRIORITY_COUNT):
        context(ready, priority).request_dispatch()
    order = served(ready, 10 * LONGEST_WAIT)
    for start in range(0, 9 * LONGEST_WAIT, 7):
        shares = Counter(order[start : start + LONGEST_WAIT])
        assert shares == {9: LONGEST_WAIT - 9} | dict.fromkeys(range(9), 1)


@given(waiting=st.sets(st.integers(0, 9), min_size=2), interval=st.integers(1, 30))
def test_each_lower_priority_is_in_every_window_of_interval_times_lower_count(waiting: set[int], interval: int) -> None:
    ready = ReadyLists(interval)
    for priority in waiting:
        context(ready, priority).request_dispatch()
    lower = sorted(waiting)[:-1]
    window = interval * len(lower)
    order = served(ready, 4 * window)
    for start in range(3 * window + 1):
        shares = Counter(order[start : start + window])
        assert all(shares[priority] == 1 for priority in lower)


def test_two_busy_priorities_share_19_to_1() -> None:
    ready = ReadyLists(INTERVAL)
    context(ready, 4).request_dispatch()
    context(ready, 5).request_dispatch()
    assert Counter(served(ready, 2000)) == {5: 1900, 4: 100}


def test_higher_priority_arriving_over_a_single_one_is_served_next() -> None:
    """However long the lower one has run alone, it has not saved up a turn."""
    for alone_count in range(3 * INTERVAL):
        ready = ReadyLists(INTERVAL)
        context(ready, 2).request_dispatch()
        served(ready, alone_count)
        context(ready, 8).request_dispatch()
        assert take(ready).priority == 8


def test_closed_context_is_skipped_and_uses_up_no_share() -> None:
    """A thousand closed contexts in front of a live one cost it nothing."""
    ready = ReadyLists(INTERVAL)
    context(ready, 9).request_dispatch()
    for _ in range(1000):
        closed = context(ready, 3)
        closed.request_dispatch()
        closed.close()
    context(ready, 1).request_dispatch()
    context(ready, 3).request_dispatch()
    order = served(ready, 2 * INTERVAL)
    assert Counter(order) == {9: 2 * INTERVAL - 2, 3: 1, 1: 1}


def test_priority_of_only_closed_contexts_passes_its_share_on() -> None:
    ready = ReadyLists(INTERVAL)
    context(ready, 9).request_dispatch()
    closed = context(ready, 8)
    closed.request_dispatch()
    closed.close()
    context(ready, 1).request_dispatch()
    assert served(ready, INTERVAL) == [9] * (INTERVAL - 1) + [1]
    assert not closed.queued


def test_closed_context_is_never_queued_again() -> None:
    ready = ReadyLists()
    closed = context(ready, 4)
    closed.close()
    closed.close()
    closed.request_dispatch()
    assert ready.take() is None
    assert repr(closed) == "<DispatchContext 'p4' priority 4 closed>"


@pytest.mark.parametrize("priority", [-1, 10])
def test_priority_out_of_range_is_refused(priority: int) -> None:
    with pytest.raises(ValueError, match="priority must be 0 to 9"):
        context(ReadyLists(), priority)


def test_a_sleeper_is_woken_before_the_entry_is_made() -> None:
    """A wake that refuses (foreign thread) leaves everything as it was."""

    def refuse() -> None:
        raise RuntimeError("foreign")

    ready = ReadyLists(wake=refuse)
    ready.asleep = True
    sleeper = context(ready, 4)
    with pytest.raises(RuntimeError, match="foreign"):
        sleeper.request_dispatch()
    assert not sleeper.queued
    assert ready.counts() == (0,) * PRIORITY_COUNT


class ReadyListsModel(RuleBasedStateMachine):
    """Random arrivals and closings against ten plain lists: order in a priority, nobody lost, nobody starves."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = ReadyLists(INTERVAL)
        self.model: list[list[DispatchContext]] = [[] for _ in range(PRIORITY_COUNT)]
        self.waited = [0] * PRIORITY_COUNT
        self.idle: list[DispatchContext] = []

    @rule(priority=st.integers(0, 9), count=st.integers(1, 30))
    def arrive(self, priority: int, count: int) -> None:
        for _ in range(count):
            arrived = context(self.ready, priority)
            arrived.request_dispatch()
            arrived.request_dispatch()
            self.model[priority].append(arrived)

    @precondition(lambda self: any(self.model))
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        closed = data.draw(st.sampled_from([each for level in self.model for each in level]))
        self.model[closed.priority].remove(closed)
        if not self.model[closed.priority]:
            self.waited[closed.priority] = 0
        closed.close()

    @rule(count=st.integers(1, 60), more=st.booleans())
    def dispatch(self, count: int, more: bool) -> None:
        for _ in range(count):
            taken = self.ready.take()
            if taken is None:
                assert not any(self.model)
                return
            level = self.model[taken.priority]
            assert level.pop(0) is taken
            assert not taken.queued
            assert not taken.closed
            for priority in range(PRIORITY_COUNT):
                if self.model[priority] and priority != taken.priority:
                    self.waited[priority] += 1
                    assert self.waited[priority] < LONGEST_WAIT
                else:
                    self.waited[priority] = 0
            if more:
                taken.request_dispatch()
                level.append(taken)

    @invariant()
    def mask_says_which_lists_hold_entries(self) -> None:
        assert self.ready.mask == sum(1 << priority for priority in range(10) if self.ready.levels[priority])


ReadyListsModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestReadyListsModel = ReadyListsModel.TestCase
