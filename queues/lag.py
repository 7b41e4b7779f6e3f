"""How much of what only lagging subscribers still need may go to the disk.

A subscriber that stands still must not cost the others their speed. Of a topic that takes in little, all that it lacks
goes to the disk; of one that takes in more than the disk is meant to take for it, it keeps what memory holds, and loses
the oldest.
"""

from __future__ import annotations

from collections.abc import Callable


class LagBudget:
    """Bytes that may go out, refilled as time goes by. Used up it stays so until half of it is there again."""

    __slots__ = ("_burst_bytes", "_clock", "_exhausted", "_left_bytes", "_per_second", "_seen_seconds")

    def __init__(self, per_second: float, burst_bytes: int, clock: Callable[[], float]) -> None:
        """`per_second`: bytes; `burst_bytes`: the most that gathers."""
        self._per_second = per_second
        self._burst_bytes = burst_bytes
        self._left_bytes = float(burst_bytes)
        self._clock = clock
        self._seen_seconds = clock()
        self._exhausted = False

    def spend(self, size_bytes: int) -> None:
        """So much goes out."""
        self._refill()
        self._left_bytes -= size_bytes
        if self._left_bytes <= 0:
            self._exhausted = True

    @property
    def exhausted(self) -> bool:
        """Nothing should go out now."""
        if self._exhausted:
            self._refill()
            if self._left_bytes * 2 >= self._burst_bytes:
                self._exhausted = False
        return self._exhausted

    def _refill(self) -> None:
        now_seconds = self._clock()
        gained_bytes = (now_seconds - self._seen_seconds) * self._per_second
        self._left_bytes = min(float(self._burst_bytes), self._left_bytes + gained_bytes)
        self._seen_seconds = now_seconds
