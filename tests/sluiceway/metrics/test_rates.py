"""Slopes, and when something will be reached."""

from __future__ import annotations

import math

import pytest

from sluiceway.rates import APART_SECONDS, TREND_SECONDS, Trend


def test_a_steady_fall_says_when_it_is_over() -> None:
    trend = Trend(0.0, 1000)
    for second in range(1, 11):
        trend.note(float(second), 1000 - 10 * second)
    assert trend.per_second == pytest.approx(-10)
    assert trend.seconds_to(0) == pytest.approx(90)


@pytest.mark.parametrize("interval", [1.0, 15.0, 60.0])
def test_it_does_not_matter_how_often_somebody_looks(interval: float) -> None:
    """Who scrapes every second and who does every minute see the same forecast of a steady course."""
    trend = Trend(0.0, 0)
    for step in range(1, 20):
        trend.note(step * interval, 5 * step * interval)
    assert trend.per_second == pytest.approx(5)


def test_a_change_counts_by_two_thirds_after_its_time() -> None:
    trend = Trend(0.0, 0)
    trend.note(1.0, 0)
    trend.note(1.0 + TREND_SECONDS, 100 * TREND_SECONDS)
    assert trend.per_second == pytest.approx(100 * (1 - math.exp(-1)))


def test_looks_that_follow_too_fast_count_as_one() -> None:
    trend = Trend(0.0, 0)
    trend.note(APART_SECONDS / 2, 1_000_000)
    assert trend.per_second is None
    trend.note(1.0, 10)
    assert trend.per_second == 10


def test_what_stands_still_or_goes_away_never_comes() -> None:
    trend = Trend(0.0, 10)
    assert trend.seconds_to(0) is None
    trend.note(1.0, 10)
    assert trend.seconds_to(0) == math.inf
    trend.note(2.0, 20)
    assert trend.seconds_to(0) == math.inf
    assert trend.seconds_to(20) == 0
