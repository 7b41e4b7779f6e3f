"""Rates of numbers, smoothed, and forecasts: when a number reaches a goal.

Numbers are noted at moments that the caller chooses. A smoothed rate is an exponential average: a change counts half
after 0.7 times the smoothing time, whether the number was noted every second or every minute. So callers with
different intervals do not disturb each other.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

TREND_SECONDS: Final = 30.0
"""Long enough that batches do not show, short enough that a consumer that stalled does within a minute."""

APART_SECONDS: Final = 0.2
"""Looks that follow each other faster count as one: the slope between them would be noise."""

SMOOTHING_SECONDS: Final = 2.0
"""A rate that jumps is told by two thirds after so long."""

LEAST_PER_SECOND: Final = 0.001
"""Less is nothing."""

K = TypeVar("K", bound=Hashable)


def smoothed(old: float, rate: float, passed_seconds: float, smoothing_seconds: float) -> float:
    """Return a smoothed rate that was `old`, after `passed_seconds` (infinite: `rate`) with this rate."""
    return old + (rate - old) * -math.expm1(-passed_seconds / smoothing_seconds)


class Trend:
    """The slope of one number."""

    __slots__ = ("_seconds", "_value", "per_second")

    def __init__(self, now_seconds: float, value: float) -> None:
        """Begin with `value`."""
        self._seconds = now_seconds
        self._value = value
        self.per_second: float | None = None
        """None: it was seen once only."""

    def note(self, now_seconds: float, value: float) -> None:
        """Note the present `value`. O(1)."""
        passed_seconds = now_seconds - self._seconds
        if passed_seconds < APART_SECONDS:
            return
        slope = (value - self._value) / passed_seconds
        old = slope if self.per_second is None else self.per_second
        self.per_second = smoothed(old, slope, passed_seconds, TREND_SECONDS)
        self._seconds, self._value = now_seconds, value

    def seconds_to(self, goal: float) -> float | None:
        """Return the time until the number is at `goal`, at the present slope. 0: it is there, or beyond it in the
        direction of its approach; infinite: it stands still or moves away; None: it was read once only.
        """
        distance = goal - self._value
        if distance == 0:
            return 0.0
        if self.per_second is None:
            return None
        if distance * self.per_second <= 0:
            return math.inf
        return distance / self.per_second


class Meter(Generic[K]):
    """The rates of many counts, by key."""

    __slots__ = ("_counts", "_now_counts", "_seconds", "rates")

    def __init__(self, seconds: float = SMOOTHING_SECONDS) -> None:
        """Make a meter; rates are smoothed over `seconds`."""
        self._seconds = seconds
        self._counts: dict[K, float] = {}
        self._now_counts: dict[K, float] = {}
        self.rates: dict[K, float] = {}
        """Per second; what is not here stands still."""

    @property
    def count(self) -> int:
        """Number of keys."""
        return len(self._counts)

    def note(self, key: K, count: float) -> None:
        """Note what a count is now."""
        self._now_counts[key] = count

    def finish_in_steps(self, passed_seconds: float, *, falls: bool = False) -> Iterator[None]:
        """Make the rates, now that all counts are noted; the last time was so long ago (infinite: never). `falls`:
        counts may fall; else one that does has begun anew.
        """
        rates: dict[K, float] = {}
        for key, count in self._now_counts.items():
            yield
            before = self._counts.get(key)
            if before is None or (before == count and key not in self.rates):
                continue  # most things do nothing most of the time
            rate = (count - before) / passed_seconds
            if rate < 0 and not falls:
                rate = count / passed_seconds
            rate = smoothed(self.rates.get(key, rate), rate, passed_seconds, self._seconds)
            if abs(rate) > LEAST_PER_SECOND:
                rates[key] = rate
        self._counts, self._now_counts, self.rates = self._now_counts, {}, rates
