"""Ages from message numbers, and what the pulse notes."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from sluiceway.ages import MARKS_MAX, Ages
from sluiceway.loop_monitor import INTERVAL_SECONDS, Histogram, LoopMonitor


def test_a_message_is_as_old_as_the_mark_before_it() -> None:
    ages = Ages(100.0, 1)
    ages.mark(101.0, 11)
    ages.mark(102.0, 21)
    assert [ages.came_at(number) for number in (1, 10, 11, 20, 21, 99)] == [100, 100, 101, 101, 102, 102]


def test_what_comes_after_a_quiet_hour_is_new() -> None:
    ages = Ages(0.0, 1)
    ages.mark(1.0, 5)
    for second in range(2, 3600):
        ages.mark(float(second), 5)
    assert ages.came_at(5) == 3599
    assert {ages.came_at(number) for number in range(9)} == {0.0, 3599.0}


def test_messages_of_an_earlier_run_count_from_the_start() -> None:
    ages = Ages(50.0, 1_000_000)
    ages.mark(55.0, 1_000_000)
    ages.mark(60.0, 1_000_500)
    assert ages.came_at(0) == ages.came_at(999_999) == 50.0


@given(st.lists(st.integers(0, 3), min_size=1, max_size=200), st.integers(0, 600))
def test_an_age_is_never_too_small_and_exact_to_the_interval(taken: list[int], wanted: int) -> None:
    """Whatever numbers are given between the marks: the message came within the second behind what is said."""
    ages = Ages(0.0, 1)
    came: dict[int, int] = {}
    number = 1
    for second, count in enumerate(taken):
        for _ in range(count):
            came[number] = second  # some time in this second
            number += 1
        ages.mark(second + 1.0, number)
    for given_number, second in came.items():
        assert second <= ages.came_at(given_number) < second + 1, wanted


def test_marks_are_bounded_and_old_ones_only_become_older() -> None:
    ages = Ages(0.0, 0)
    for second in range(1, 5 * MARKS_MAX):
        ages.mark(float(second), second)
    said = [ages.came_at(second) for second in range(5 * MARKS_MAX)]
    assert all(at <= second for second, at in enumerate(said))
    assert said == sorted(said)
    assert len(set(said)) <= MARKS_MAX
    assert all(second - said[second] <= 1 for second in range(5 * MARKS_MAX - MARKS_MAX // 2, 5 * MARKS_MAX))


class Timers:
    """One timer, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timers:
        self.due.append((self.now + delay, callback))
        return self

    def cancel(self) -> None:
        self.due.clear()

    def fire(self, late: float) -> None:
        deadline, callback = self.due.pop()
        self.now = deadline + late
        callback()


def test_the_pulse_counts_how_late_it_comes_and_goes_on() -> None:
    timers = Timers()
    pulse = LoopMonitor(
        clock=lambda: timers.now, call_later=timers.call_later, next_number=lambda: int(timers.now * 10)
    )
    pulse.start()
    for late in (0.0, 0.0004, 0.02, 7.0):
        timers.fire(late)
    assert sum(pulse.lag.counts) == 4
    assert pulse.lag.counts[0] == 2
    assert pulse.lag.counts[-1] == 1
    assert timers.due[0][0] == timers.now + INTERVAL_SECONDS
    pulse.stop()
    pulse.stop()
    assert not timers.due


def test_a_value_on_a_bound_is_in_its_bucket() -> None:
    """As Prometheus has it: up to and including."""
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.sum == 7.5
