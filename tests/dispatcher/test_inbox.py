"""Callbacks from other threads: one signal per sleep, batches, closing. (Real threads: test_run.)"""

from __future__ import annotations

import pytest

from sluiceway.dispatcher import DONE, MORE, DispatcherClosedError
from sluiceway.dispatcher.inbox import CallbackInbox


def new_inbox() -> CallbackInbox:
    return CallbackInbox(lambda: 0.0, slice_seconds=0.01)


def nothing() -> None:
    """A callback of no consequence."""


def test_one_signal_per_sleep_and_none_while_awake() -> None:
    inbox, signals = new_inbox(), 0

    def signal() -> None:
        nonlocal signals
        signals += 1

    inbox.connect(signal)
    inbox.submit(nothing)
    assert signals == 0
    inbox.dispatch(10)
    assert inbox.fall_asleep()
    for _ in range(1000):
        inbox.submit(nothing)
    assert signals == 1
    inbox.awake()
    inbox.dispatch(1000)
    assert inbox.fall_asleep()
    inbox.awake()
    inbox.submit(nothing)
    assert signals == 1


def test_loop_can_not_fall_asleep_over_a_callback() -> None:
    inbox = new_inbox()
    inbox.submit(nothing)
    assert not inbox.fall_asleep()
    inbox.dispatch(1)
    assert inbox.fall_asleep()


def test_batch_is_run_in_order_and_within_the_budget() -> None:
    inbox, ran = new_inbox(), []
    for number in range(5):
        inbox.submit(lambda number=number: ran.append(number))  # type: ignore[misc]
    assert inbox.dispatch(3) is MORE
    assert inbox.waiting_count == 2
    inbox.submit(lambda: ran.append(5))
    assert inbox.dispatch(3) is DONE  # the newcomer is the next batch
    assert ran == [0, 1, 2, 3, 4]
    assert inbox.arrived
    assert inbox.dispatch(3) is DONE
    assert ran == [0, 1, 2, 3, 4, 5]


def test_a_batch_that_takes_long_is_left_to_the_next_turn() -> None:
    """Each callback takes four milliseconds of a slice of ten."""
    now_seconds = 0.0

    def work() -> None:
        nonlocal now_seconds
        now_seconds += 0.004

    inbox = CallbackInbox(lambda: now_seconds, slice_seconds=0.01)
    for _ in range(7):
        inbox.submit(work)
    assert inbox.dispatch(1000) is MORE and inbox.waiting_count == 4
    assert inbox.dispatch(1000) is MORE and inbox.waiting_count == 1
    assert inbox.dispatch(1000) is DONE


def test_callback_submitted_by_a_callback_is_the_next_batch() -> None:
    inbox, ran = new_inbox(), []

    def again() -> None:
        ran.append(1)
        inbox.submit(again)

    inbox.submit(again)
    inbox.dispatch(100)
    assert ran == [1]
    assert inbox.arrived


def test_closed_inbox_refuses_but_still_runs_what_it_took() -> None:
    inbox, ran = new_inbox(), []
    inbox.submit(lambda: ran.append(1))
    inbox.close()
    with pytest.raises(DispatcherClosedError):
        inbox.submit(nothing)
    assert (inbox.waiting_count, inbox.submitted_count) == (1, 1)
    inbox.dispatch(10)
    assert ran == [1]
    assert inbox.clear() == 0


def test_clear_tells_how_many_were_dropped() -> None:
    inbox = new_inbox()
    for _ in range(3):
        inbox.submit(nothing)
    inbox.dispatch(1)
    inbox.submit(nothing)
    assert inbox.clear() == 3
    assert inbox.waiting_count == 0
