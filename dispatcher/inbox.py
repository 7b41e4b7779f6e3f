"""Callbacks from other threads into the dispatch loop, with at most one wake-up per batch.

Two lists: threads append to one under a lock, the loop swaps them under the lock and runs the other one outside of it.
A thread signals only if it finds the loop asleep, and clears that mark, so a burst of a thousand calls costs one
wake-up; while the loop is busy it costs none, because the loop checks the inbox at the start of every turn.

Order: callbacks of one thread run in order.
Time: a callback may have a block of messages to decode, and ten queues read at once when their shards have moved. So a
dispatch ends after a slice of time, and others have their turns in between.
Bound: each submitter limits its outstanding callbacks (the store by its operation queue); `waiting_count` is their
number.

Not for signal handlers: the lock is not reentrant.

Source: the prototype's double-buffered foreign queue and single wake-up permit.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from .context import DONE, MORE
from .errors import DispatcherClosedError


class CallbackInbox:
    """Callbacks from other threads: `submit` from any thread; all other methods on the thread of the loop."""

    __slots__ = (
        "_closed",
        "_draining",
        "_incoming",
        "_lock",
        "_loop_asleep",
        "_signal",
        "_slice_seconds",
        "clock",
        "submitted_count",
    )

    def __init__(self, clock: Callable[[], float], *, slice_seconds: float) -> None:
        """`slice_seconds`: time after which `dispatch` leaves the rest to the next turn."""
        self.clock = clock
        """Monotonic seconds."""
        self._slice_seconds = slice_seconds
        self._lock = threading.Lock()
        self._incoming: deque[Callable[[], None]] = deque()
        self._draining: deque[Callable[[], None]] = deque()
        self._signal: Callable[[], None] | None = None
        self._loop_asleep = False
        self._closed = False
        self.submitted_count = 0
        """Callbacks accepted since the start."""

    def submit(self, callback: Callable[[], None]) -> None:
        """Run `callback` on the loop soon. Raises DispatcherClosedError once closed, without accepting it. O(1), never
        waits for the loop.
        """
        with self._lock:
            if self._closed:
                raise DispatcherClosedError(
                    "the dispatcher is closed and runs no callbacks any more; stop submitting threads before it"
                )
            self._incoming.append(callback)
            self.submitted_count += 1
            if self._loop_asleep and self._signal is not None:
                self._loop_asleep = False
                # Inside the lock, so that the loop can't end between the decision and the signal.
                self._signal()

    @property
    def arrived(self) -> bool:
        """Whether a callback was added since the last swap. Without the lock: the loop checks again every turn and,
        locked, before it sleeps.
        """
        return bool(self._incoming)

    @property
    def waiting_count(self) -> int:
        """Callbacks accepted and not run yet."""
        return len(self._incoming) + len(self._draining)

    def connect(self, signal: Callable[[], None]) -> None:
        """Set `signal`, which is called on a foreign thread and under the lock to wake the sleeping loop."""
        self._signal = signal

    def fall_asleep(self) -> bool:
        """Note that the loop goes to sleep, so that the next submit signals. Returns False if a callback has arrived:
        stay awake.
        """
        with self._lock:
            if self._incoming:
                return False
            self._loop_asleep = True
            return True

    def awake(self) -> None:
        """Note that the loop runs again; submits need no signal."""
        with self._lock:
            self._loop_asleep = False

    def dispatch(self, budget: int) -> bool:
        """Run at most `budget` callbacks of one batch, and for one slice of time; later ones are the next batch. A
        callback that raises is already removed.
        """
        draining = self._draining
        if not draining:
            with self._lock:
                self._incoming, self._draining = draining, self._incoming
            draining = self._draining
        clock = self.clock
        ends_seconds = clock() + self._slice_seconds
        for _ in range(min(budget, len(draining))):
            draining.popleft()()
            if clock() >= ends_seconds:
                break
        return MORE if draining else DONE

    def close(self) -> None:
        """Accept nothing more. `dispatch` can still run the accepted callbacks."""
        with self._lock:
            self._closed = True
            self._loop_asleep = False
            self._signal = None

    def clear(self) -> int:
        """Drop callbacks that have not run; return their number."""
        with self._lock:
            dropped_count = len(self._incoming) + len(self._draining)
            self._incoming.clear()
            self._draining.clear()
        return dropped_count
