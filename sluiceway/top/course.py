"""Rates, ages and forecasts from counters that were seen at several moments.

The broker counts; the rate of a counter is its change between two answers. The moments are the broker's own clock
(`taken_at`), so a slow network changes nothing, and an answer that comes twice (they are rationed) changes nothing
either. A counter that is smaller than before belongs to something that was made anew: it counts from 0.

How old the oldest message is follows from the same counters if the broker does not say: messages leave in the order in
which they came, mostly, so the oldest of `depth` is the one that came when `depth` fewer had come. That is exact to the
time between two answers for a queue that is first-in-first-out, and a good guess for others; an element older than the
first look is "at least" that old.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import attrs

RATES_MAX: Final = 30
"""Rates that are kept of each destination: the small picture of how it went."""
FORECAST_RATES: Final = 10
"""Number of last rates that a forecast averages: one batch more or less must not turn it around."""
MARKS_MAX: Final = 64
"""Moments that are kept of each destination to tell ages; when there are more, every second one is forgotten."""


@attrs.frozen(slots=True, order=True)
class Age:
    """Age of something."""

    seconds: float
    at_least: bool = False
    """Whether the age is a lower bound, since the beginning was before the first look."""


class Course:
    """One thing that takes in and gives out: a destination, a connection, a group. At most some kilobytes."""

    __slots__ = ("_from_zero", "_marks", "_seen", "in_per_second", "in_rates", "out_per_second", "out_rates")

    def __init__(self, *, from_zero: bool = True) -> None:
        """Begin without history. `from_zero`: counters that are smaller than before count anew from 0; False: they are
        places that were moved, which is no rate.
        """
        self._from_zero = from_zero
        self._seen: tuple[float, float, float] | None = None
        """Moment in seconds, and both counters."""
        self._marks: list[tuple[float, float]] = []
        """Moments, and the input counted by then."""
        self.in_per_second: float | None = None
        """None: not known yet."""
        self.out_per_second: float | None = None
        self.in_rates: deque[float] = deque(maxlen=RATES_MAX)
        self.out_rates: deque[float] = deque(maxlen=RATES_MAX)

    def see(self, at_seconds: float, in_count: float, out_count: float, *, born_seconds: float | None = None) -> None:
        """Note both counters.

        `at_seconds`: the moment, by the broker's clock; the same moment again changes nothing.
        `born_seconds`: on the first call: when both counters were certainly still 0, if that is known.
        """
        seen = self._seen
        if seen is not None and (in_count < seen[1] or out_count < seen[2]):
            self._marks.clear()
            seen = (seen[0], 0.0, 0.0) if self._from_zero else None
            self.in_per_second = self.out_per_second = None
        elif seen is None and born_seconds is not None:
            seen = (born_seconds, 0.0, 0.0)
            self._marks.append((born_seconds, 0.0))
        if seen is not None:
            passed_seconds = at_seconds - seen[0]
            if passed_seconds <= 0:
                return
            self.in_per_second = (in_count - seen[1]) / passed_seconds
            self.out_per_second = (out_count - seen[2]) / passed_seconds
            self.in_rates.append(self.in_per_second)
            self.out_rates.append(self.out_per_second)
        self._seen = (at_seconds, in_count, out_count)
        self._marks.append((at_seconds, in_count))
        if len(self._marks) > MARKS_MAX:
            del self._marks[1:-1:2]

    def oldest(self, depth_count: float) -> Age | None:
        """Return the age of the oldest of `depth_count`. None: there is none, or nothing was seen yet."""
        if depth_count <= 0 or self._seen is None:
            return None
        now_seconds, in_count, _out_count = self._seen
        came_before_count = in_count - depth_count
        first_seconds, first_count = self._marks[0]
        if came_before_count < first_count:
            watched_seconds = now_seconds - first_seconds
            return Age(watched_seconds, at_least=True) if watched_seconds > 0 else None
        # It had come at the first moment that counted more than what came before it.
        had_come = next(at for at, count in self._marks if count > came_before_count)
        return Age(now_seconds - had_come)

    def drain_seconds(self, depth_count: float) -> float | None:
        """Return the time until `depth_count` are gone at the present rates; None: never, or that is not known."""
        net_per_second = _mean(self.out_rates) - _mean(self.in_rates)
        return depth_count / net_per_second if depth_count > 0 and net_per_second > 0 else None

    def grows(self) -> bool:
        """Whether more came in lately than went out."""
        return _mean(self.in_rates) > _mean(self.out_rates)


def _mean(rates: deque[float]) -> float:
    """Return the mean of the last rates."""
    last = list(rates)[-FORECAST_RATES:]
    return sum(last) / len(last) if last else 0.0


class Courses:
    """Courses of one kind by name, no more than `count_max`: others have no history. Give the busiest first."""

    def __init__(self, count_max: int, *, from_zero: bool = True) -> None:
        """Begin without history. `from_zero`: see `Course`; a thing that appears later begins at 0, too."""
        self._count_max = count_max
        self._from_zero = from_zero
        self._known: dict[str, Course] = {}
        self._seen: dict[str, Course] = {}
        self._at_seconds: float | None = None
        self._born_seconds: float | None = None
        """Time at which new things did not exist yet."""

    def begin(self, at_seconds: float) -> None:
        """Begin an answer of this moment. Things that are missing in it are forgotten."""
        complete = len(self._seen) < self._count_max
        self._born_seconds = self._at_seconds if self._from_zero and complete else None
        self._at_seconds = at_seconds
        self._known, self._seen = self._seen, {}

    def see(self, name: str, in_count: float, out_count: float) -> Course:
        """Note the counters of that one."""
        assert self._at_seconds is not None, "begin() comes first"
        course = self._known.get(name) or Course(from_zero=self._from_zero)
        if len(self._seen) < self._count_max:
            self._seen[name] = course
        course.see(self._at_seconds, in_count, out_count, born_seconds=self._born_seconds)
        return course

    def __len__(self) -> int:
        return len(self._seen)
