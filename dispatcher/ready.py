"""Selection of the next context: ten first-in-first-out lists, the highest non-empty one first, and a share for the
others.

The share, exactly. A *pass-over* is a dispatch of the highest waiting priority while some lower priority waits. After
`interval - 1` pass-overs in a row the next selection with a lower priority waiting goes to a lower priority: the next
waiting one below the one served so last (downwards, then around again from the top). Hence:
- with k lower priorities waiting all the time, each gets at least one of every `interval * k` dispatches; a waiting
  priority is never left out for more than `interval * 9` = 180 dispatches with the default interval of 20;
- the highest waiting priority keeps at least `interval - 1` of every `interval` dispatches;
- a higher priority that arrives while only one priority was waiting is always served next (the count of pass-overs
  starts anew).

Within one priority the order is first in, first out; a context that returns MORE goes to the tail, so one priority is
round-robin.

Bound: one entry per context, by the `queued` flag. A context that was closed while queued keeps its entry until it
reaches the head.

Not here: the budget of a dispatch, time, errors (core.py).
Source: seed 002 ("priority based"); PriorityDispatcher of the prototype (per-priority lists, 20 per loop).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from .context import PRIORITY_COUNT, DispatchContext

_BITS: Final = tuple(1 << priority for priority in range(PRIORITY_COUNT))


def _nobody_to_wake() -> None:
    """Do nothing: lists without a shell (simulation) have no sleeping loop."""


class ReadyLists:
    """Ready contexts of one dispatcher. Not thread-safe.

    `levels` and `mask` are public because `DispatchContext.request_dispatch` writes them itself: one call less on the
    hottest path. Invariant: bit p of `mask` is set exactly if `levels[p]` is not empty.
    """

    __slots__ = ("_interval_count", "_passed_over_count", "_shared_last", "asleep", "ended", "levels", "mask", "wake")

    def __init__(self, interval_count: int = 20, wake: Callable[[], None] = _nobody_to_wake) -> None:
        """Take `interval_count`: one of this many dispatches goes to a lower priority. `wake` is called before an entry
        is added while `asleep`.
        """
        self.levels: tuple[deque[DispatchContext], ...] = tuple(deque() for _ in range(PRIORITY_COUNT))
        self.mask = 0
        self.asleep = False
        """Whether the shell's task sleeps; set by the shell."""
        self.ended = False
        """Whether no context will be taken any more."""
        self.wake = wake
        self._interval_count = interval_count
        self._passed_over_count = 0
        self._shared_last = 0

    def take(self) -> DispatchContext | None:
        """Remove and return the context to dispatch next, no longer `queued`; None if none is ready. O(1)."""
        while mask := self.mask:
            level = mask.bit_length() - 1
            passed_over_count = 0
            if lower := mask ^ _BITS[level]:
                passed_over_count = self._passed_over_count + 1
                if passed_over_count >= self._interval_count:
                    level = self._next_shared(lower)
                    passed_over_count = 0
            contexts = self.levels[level]
            context = contexts.popleft()
            context.queued = False
            while context.closed and contexts:
                context = contexts.popleft()
                context.queued = False
            if not contexts:
                self.mask = mask ^ _BITS[level]
            if not context.closed:
                self._passed_over_count = passed_over_count
                return context
            # All entries were closed: no dispatch was given, so the count stays, and this selection is repeated.
        return None

    def _next_shared(self, lower: int) -> int:
        """Return the level among the bits of `lower` whose turn it is."""
        below_last = lower & (_BITS[self._shared_last] - 1)
        level = (below_last or lower).bit_length() - 1
        self._shared_last = level
        return level

    def counts(self) -> tuple[int, ...]:
        """Entries per priority, 0 to 9; contexts that were closed while queued count until their place comes up."""
        return tuple(len(contexts) for contexts in self.levels)
