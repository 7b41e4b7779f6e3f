"""Slope of a number that is read at arbitrary moments, and the time until it reaches a goal.

The slope is an exponential average: a change counts half after TREND_SECONDS * 0.7, whether the number was read every
second or every minute. So several readers, each at its own pace, do not disturb each other.
"""

from __future__ import annotations

import math
from typing import Final

TREND_SECONDS: Final = 30.0
"""Long enough that batches do not show, short enough that a consumer that stalled does within a minute."""

APART_SECONDS: Final = 0.2
"""Looks that follow each other faster count as one: the slope between them would be noise."""


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
        if self.per_second is None:
            self.per_second = slope
        else:
            self.per_second += (slope - self.per_second) * -math.expm1(-passed_seconds / TREND_SECONDS)
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
