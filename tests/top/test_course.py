"""Rates, ages and forecasts from counters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.top.course import MARKS_MAX, RATES_MAX, Age, Course, Courses


def rates(course: Course) -> tuple[float | None, float | None]:
    return course.in_per_second, course.out_per_second


def test_a_rate_is_the_difference_of_two_answers() -> None:
    course = Course()
    course.see(10.0, 100, 50)
    assert rates(course) == (None, None), "one answer is no rate"
    course.see(12.0, 300, 150)
    assert rates(course) == (100.0, 50.0)


def test_the_same_answer_again_changes_nothing() -> None:
    """The broker rations its answers: two who ask quickly get the same one."""
    course = Course()
    course.see(10.0, 100, 50)
    course.see(12.0, 300, 150)
    course.see(12.0, 300, 150)
    assert course.in_per_second == 100.0
    assert list(course.in_rates) == [100.0]


def test_a_counter_that_is_smaller_counts_anew_from_zero() -> None:
    """The destination was deleted and made again."""
    course = Course()
    course.see(10.0, 1000, 1000)
    course.see(11.0, 20, 10)
    assert (course.in_per_second, course.out_per_second) == (20.0, 10.0)


def test_a_place_that_was_moved_back_is_no_rate() -> None:
    """A group that was set to an earlier record."""
    course = Course(from_zero=False)
    course.see(10.0, 1000, 1000)
    course.see(11.0, 1000, 5)
    assert rates(course) == (None, None)
    course.see(12.0, 1000, 15)
    assert rates(course) == (0.0, 10.0)


def test_the_oldest_is_as_old_as_the_answer_that_first_counted_it() -> None:
    course = Course()
    for second in range(10):
        course.see(float(second), second * 10, 0)
    assert course.oldest(25) == Age(2.0), "25 are left of 90: number 65 came between second 6 and 7"


def test_what_was_there_before_we_looked_is_at_least_so_old() -> None:
    course = Course()
    course.see(100.0, 50, 0)
    assert course.oldest(10) is None, "nothing is known of a single answer"
    course.see(141.0, 50, 0)
    assert course.oldest(10) == Age(41.0, at_least=True)


def test_what_came_back_after_a_restart_is_at_least_so_old() -> None:
    """More is there than was counted: it was stored by an earlier run."""
    course = Course()
    course.see(0.0, 0, 0)
    course.see(5.0, 1, 0)
    assert course.oldest(100) == Age(5.0, at_least=True)


def test_an_empty_queue_has_no_oldest() -> None:
    course = Course()
    course.see(0.0, 10, 10)
    assert course.oldest(0) is None


def test_a_forecast_takes_what_goes_out_beyond_what_comes_in() -> None:
    course = Course()
    for second in range(5):
        course.see(float(second), second * 10, second * 30)
    assert course.drain_seconds(400) == 20.0
    assert not course.grows()


@pytest.mark.parametrize("out_step", [0, 5, 10])
def test_what_does_not_shrink_is_never_drained(out_step: int) -> None:
    course = Course()
    for second in range(5):
        course.see(float(second), second * 10, second * out_step)
    assert course.drain_seconds(400) is None


def test_memory_is_bounded_however_long_it_is_watched() -> None:
    course = Course()
    for second in range(10_000):
        course.see(float(second), second, 0)
        assert len(course._marks) <= MARKS_MAX
    assert len(course.in_rates) == RATES_MAX


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=300))
def test_ages_never_go_beyond_the_truth_by_more_than_a_gap_of_marks(steps: list[tuple[int, int]]) -> None:
    """For any history of a queue that is first-in-first-out, the true age lies within the marks around the answer."""
    course, added, settled, came = Course(), 0, 0, []
    for second, (more, less) in enumerate(steps):
        came += [second] * more
        added += more
        settled = min(added, settled + less)
        course.see(float(second), added, settled)
    now = len(steps) - 1
    age = course.oldest(added - settled)
    if added == settled:
        assert age is None
    elif age is not None:
        true_seconds = now - came[settled]
        assert age.seconds <= true_seconds
        if not age.at_least:
            marks = [at for at, _count in course._marks]
            before = max((at for at in marks if at < now - age.seconds), default=-1.0)
            assert now - before > true_seconds


def test_only_so_many_courses_are_kept() -> None:
    courses = Courses(10)
    for second in range(3):
        courses.begin(float(second))
        for number in range(100):
            courses.see(str(number), second * 10, 0)
        assert len(courses) == 10


def test_what_is_new_began_at_zero_after_the_answer_before() -> None:
    courses = Courses(10)
    courses.begin(0.0)
    courses.begin(2.0)
    assert courses.see("new", 100, 0).in_per_second == 50.0


def test_nothing_is_new_to_who_did_not_see_all_before() -> None:
    """With more than are kept, an unknown name may have been there for long."""
    courses = Courses(1)
    courses.begin(0.0)
    courses.see("a", 1, 0)
    courses.begin(1.0)
    assert courses.see("b", 1_000_000, 0).in_per_second is None
