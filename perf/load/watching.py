"""Letting time pass and waiting for things while a broker's memory is sampled. Every wait has a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import linear_regression

from perf.started import Started

_SAMPLE_SECONDS = 0.1
_UNSETTLED_SHARE = 0.25
"""The part of a recording before which memory is still finding its level (heaps grow in steps)."""


class Watch:
    """Samples the resident memory of a broker. `rss_peak_bytes` is the largest seen so far."""

    __slots__ = ("_broker", "_samples", "rss_peak_bytes")

    def __init__(self, broker: Started) -> None:
        self._broker = broker
        self._samples: list[tuple[float, int]] = []
        self.rss_peak_bytes = 0

    def sample(self) -> int:
        """Return the resident memory now, in bytes."""
        rss_bytes = self._broker.tree.rss_bytes()
        self.rss_peak_bytes = max(self.rss_peak_bytes, rss_bytes)
        return rss_bytes

    def let_pass(self, seconds: float) -> None:
        """Sample for some seconds."""
        end = time.monotonic() + seconds
        self._samples = []
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _SAMPLE_SECONDS))
            self._samples.append((time.monotonic(), self.sample()))

    def slope_bytes_per_second(self) -> float | None:
        """The growth of memory over the last three quarters of the last `let_pass`, as the slope of the line that fits
        it best; None where that was too short."""
        if len(self._samples) < 2:
            return None
        first, last = self._samples[0][0], self._samples[-1][0]
        settled = [one for one in self._samples if one[0] >= first + _UNSETTLED_SHARE * (last - first)]
        if len(settled) < 2:
            return None
        times, sizes = zip(*settled, strict=True)
        return linear_regression(times, sizes).slope

    def wait(
        self, condition: Callable[[], bool], limit_seconds: float, step_seconds: float = _SAMPLE_SECONDS / 10
    ) -> bool:
        """Wait for a condition, up to a time limit and while the broker lives; return whether it came true."""
        end = time.monotonic() + limit_seconds
        while not condition():
            if time.monotonic() > end or not self._broker.tree.alive():
                return False
            time.sleep(step_seconds)
            self.sample()
        return True

    def wait_for_count(self, count: Callable[[], int], wanted: int, silence_seconds: float) -> int:
        """Wait until a count has got so far, or has stood still for that long; return where it was then."""
        came = count()
        while came < wanted and self.wait(
            lambda known=came: count() > known,  # type: ignore[misc]
            silence_seconds,
            _SAMPLE_SECONDS / 20,
        ):
            came = count()
        return came
