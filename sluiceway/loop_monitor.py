"""Work of each second: note the next message number (`sluiceway.ages`), and the delay of the timer.

A timer is dispatched before all else that is ready. So its delay is what anything that becomes due must wait for: the
dispatch under way, and the sockets and tasks that trio serves between two turns. One sample a second, at moments that
the load knows nothing of, gives the distribution, and the messages pay nothing for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Final

from sluiceway.ages import Ages
from sluiceway.dispatcher import Periodic

INTERVAL_SECONDS: Final = 1.0

LAG_BOUNDS_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper bounds of the buckets; the last bucket has none."""


class Histogram:
    """Counts by bucket, as Prometheus has them, but each bucket for itself."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """`bounds`: ascending."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Number of values up to each bound and above the one before; the last: above all bounds."""
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count this one. O(log bounds)."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class LoopMonitor:
    """Beats from `start` to `stop`."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Any],
        next_number: Callable[[], int],
        settle: Callable[[], None] | None = None,
    ) -> None:
        """`clock` in seconds, that `call_later` goes by; `next_number`: which the next message gets; `settle` is called
        with each beat.
        """
        self._settle = settle
        self._clock = clock
        self.next_number = next_number
        self._beats = Periodic(call_later, INTERVAL_SECONDS, self._beat)
        self._due_seconds = 0.0
        self.ages: Ages
        """Ages of messages. Set by `start`."""
        self.on_beat: Callable[[], None] | None = None
        """Called with each beat: the dispatcher is alive."""
        self.lag = Histogram(LAG_BOUNDS_SECONDS)
        """Delays of the timer, in seconds."""

    def start(self) -> None:
        """Beat from now on."""
        self.ages = Ages(self._clock(), self.next_number())
        self._due_seconds = self._clock() + INTERVAL_SECONDS
        self._beats.start()

    def stop(self) -> None:
        """Beat no more. A second call does nothing."""
        self._beats.stop()

    def _beat(self) -> None:
        now_seconds = self._clock()
        due_seconds, self._due_seconds = self._due_seconds, now_seconds + INTERVAL_SECONDS
        self.lag.observe(max(0.0, now_seconds - due_seconds))
        self.ages.mark(now_seconds, self.next_number())
        if self._settle is not None:
            self._settle()
        if self.on_beat is not None:
            self.on_beat()
