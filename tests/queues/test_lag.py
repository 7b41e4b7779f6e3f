"""What lagging subscribers may cost: the budget for the disk, and what a topic does without it."""

from __future__ import annotations

from sluiceway.queues.lag import LagBudget


class _Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_a_budget_that_is_used_up_stays_so_until_half_of_it_is_there_again() -> None:
    clock = _Clock()
    budget = LagBudget(10.0, 100, clock)
    budget.spend(60)
    assert not budget.is_exhausted()
    budget.spend(40)
    assert budget.is_exhausted()
    clock.seconds = 4.9
    assert budget.is_exhausted()
    clock.seconds = 5.0
    assert not budget.is_exhausted()


def test_no_more_than_a_burst_gathers() -> None:
    clock = _Clock()
    budget = LagBudget(10.0, 100, clock)
    clock.seconds = 1_000.0
    budget.spend(100)
    assert budget.is_exhausted()
