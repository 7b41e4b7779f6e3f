"""Periodic work comes again whatever became of it the last time."""

from __future__ import annotations

import pytest

from sluiceway.dispatcher import DispatcherCore, Periodic


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_work_that_raises_comes_again() -> None:
    clock = Clock()
    met: list[Exception] = []
    core = DispatcherCore(clock, on_error=lambda _context, error: met.append(error))
    done: list[float] = []

    def work() -> None:
        done.append(clock.now)
        raise ValueError

    periodic = Periodic(core.call_later, 5.0, work)
    periodic.start(1.0)
    for clock.now in (0.5, 1.0, 3.0, 6.0, 11.0):
        core.run_until_idle()
    assert done == [1.0, 6.0, 11.0]
    assert len(met) == 3


@pytest.mark.parametrize("again_seconds", [None, 0.0, 2.0])
def test_the_work_itself_may_end_it_or_come_sooner(again_seconds: float | None) -> None:
    clock = Clock()
    core = DispatcherCore(clock)
    done: list[float] = []

    def work() -> None:
        done.append(clock.now)
        if again_seconds is None:
            periodic.stop()
        elif len(done) < 3:
            periodic.start(again_seconds)

    periodic = Periodic(core.call_later, 5.0, work)
    periodic.start()
    for clock.now in range(12):
        core.run_until_idle()
    assert done == {None: [5], 0.0: [5, 5, 5, 10], 2.0: [5, 7, 9]}[again_seconds]
    assert core.statistics().timers_count == (0 if again_seconds is None else 1)
    periodic.stop()
    periodic.stop()
    assert core.statistics().timers_count == 0
