"""Timed callbacks: a heap in deadline order, ties in order of creation, with lazy cancellation.

Pure: the time is passed in. A timer runs at the first `run_due` whose `now_seconds` has reached its deadline, never
before. A timer made by a running timer waits for the next `run_due`, however soon it is due, so that a timer which
renews itself without delay can't hold the loop.

Bound: live timers are bounded by their owners (a fixed few per connection, queue and store). Cancelled ones stay in the
heap until they are due or more than half of it; then the heap is rebuilt. So it never holds more than twice the live
ones plus `COMPACT_MIN_COUNT`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

COMPACT_MIN_COUNT: Final = 64
"""Size below which a rebuild is not worth its cost."""


def _never() -> bool:
    return False


class Timer:
    """A callback that is due at `deadline_seconds` on the dispatcher's clock. Made by `call_at` and `call_later`."""

    __slots__ = ("_heap", "callback", "deadline_seconds")

    def __init__(self, heap: TimerHeap | None, deadline_seconds: float, callback: Callable[[], None] | None) -> None:
        self._heap = heap
        self.deadline_seconds = deadline_seconds
        self.callback = callback
        """Callback; None once it has run or was cancelled."""

    def __repr__(self) -> str:
        return f"<Timer at {self.deadline_seconds:.6f} s {'pending' if self.pending else 'over'}>"

    @property
    def pending(self) -> bool:
        """Whether the timer has neither run nor been cancelled."""
        return self.callback is not None

    def cancel(self) -> None:
        """Never run the callback. Idempotent; does nothing if it has already run. O(1) amortized."""
        if self.callback is None:
            return
        self.callback = None
        if self._heap is not None:
            self._heap._forget_one()


class TimerHeap:
    """The timers of one dispatcher. Not thread-safe."""

    __slots__ = ("_cancelled_count", "_created_count", "_entries", "fired_count", "next_deadline_seconds")

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Timer]] = []
        self._created_count = 0
        self._cancelled_count = 0
        self.fired_count = 0
        """Callbacks run since the start."""
        self.next_deadline_seconds = math.inf
        """Time before which nothing is due. A plain attribute, compared once per dispatch; too early if the first timer
        was cancelled.
        """

    def __len__(self) -> int:
        """Return the number of pending timers."""
        return len(self._entries) - self._cancelled_count

    def add(self, deadline_seconds: float, callback: Callable[[], None]) -> Timer:
        """Return a pending timer; infinity is allowed and never due. Raises ValueError for NaN. O(log n)."""
        if math.isnan(deadline_seconds):
            raise ValueError("the deadline of a timer must be a number of seconds, got NaN")
        timer = Timer(self, deadline_seconds, callback)
        self._created_count += 1
        heappush(self._entries, (deadline_seconds, self._created_count, timer))
        if deadline_seconds < self.next_deadline_seconds:
            self.next_deadline_seconds = deadline_seconds
        return timer

    def next_pending_seconds(self) -> float:
        """Return the deadline of the first pending timer, infinity if there is none. Drops cancelled timers before
        it.
        """
        entries = self._entries
        while entries and entries[0][2].callback is None:
            heappop(entries)
            self._cancelled_count -= 1
        self.next_deadline_seconds = entries[0][0] if entries else math.inf
        return self.next_deadline_seconds

    def run_due(self, now_seconds: float, limit_count: int, is_over: Callable[[], bool] = _never) -> bool:
        """Run due timers, at most `limit_count`, and none after `is_over`; return whether due ones are left.

        A callback that raises is not run again; the exception propagates, the other timers stay and run at the next
        call.
        """
        newest = self._created_count
        for _ in range(limit_count):
            if self.next_pending_seconds() > now_seconds:
                return False
            _deadline, number, timer = self._entries[0]
            if number > newest:
                return True
            heappop(self._entries)
            callback = timer.callback
            timer.callback = None
            self.fired_count += 1
            if callback is not None:
                callback()
            if is_over():
                break
        return self.next_pending_seconds() <= now_seconds

    def clear(self) -> int:
        """Cancel all timers; return how many were pending."""
        pending_count = len(self)
        for _deadline, _number, timer in self._entries:
            timer.callback = None
        self._entries.clear()
        self._cancelled_count = 0
        self.next_deadline_seconds = math.inf
        return pending_count

    def _forget_one(self) -> None:
        self._cancelled_count += 1
        entries = self._entries
        if len(entries) >= COMPACT_MIN_COUNT and self._cancelled_count * 2 > len(entries):
            entries[:] = [entry for entry in entries if entry[2].callback is not None]
            heapify(entries)
            self._cancelled_count = 0
            self.next_deadline_seconds = entries[0][0] if entries else math.inf
