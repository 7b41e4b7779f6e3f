"""Dispatch contexts, by which components (queues, sessions, store readers) request to be run by the dispatcher, and the
ready lists that select the next one.

The contract of a context, from the seed ("Components in the core create DispatchContexts which they use to request
dispatch"):
- at most one dispatch of a context at a time, and never re-entrant: `request_dispatch()` only queues, the loop calls
  later;
- however often dispatch is requested while the context is queued, it is dispatched once;
- a request made during its own dispatch leads to one more dispatch after it.

Ready lists: ten, first in, first out; the highest one that is not empty is served first, and the others get a share,
exactly this. A *pass-over* is a dispatch of the highest waiting priority while some lower priority waits. After
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

Source: seed 002, "Dispatcher / Threading Model" ("priority based"); PriorityDispatcher of the prototype (per-priority
lists, 20 per loop); DESIGN 5.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

MORE: Final = True
"""Result of a dispatch that used up its budget and has more to do: it goes to the tail of its priority's list."""
DONE: Final = False
"""Result of a dispatch that has nothing left to do until the next request."""

PRIORITY_COUNT: Final = 10
PRIORITY_HIGHEST: Final = PRIORITY_COUNT - 1
PRIORITY_DEFAULT: Final = 4
_BITS: Final = tuple(1 << priority for priority in range(PRIORITY_COUNT))


def checked_priority(priority: int) -> int:
    """Return `priority`; raise ValueError unless it is one of 0 to 9 (9 is the highest)."""
    if not 0 <= priority < PRIORITY_COUNT:
        raise ValueError(
            f"priority must be 0 to {PRIORITY_HIGHEST} ({PRIORITY_HIGHEST} is the highest), got {priority}"
        )
    return priority


class DispatchContext:
    """Handle of a component, made by `register()` of a dispatcher. To be used on the dispatcher's own (trio) thread
    only.

    A plain class with slots and public fields: `request_dispatch` and the loop that serves it are the hottest code of
    the broker.
    """

    __slots__ = ("_ready", "closed", "dispatch", "label", "outlives_errors", "priority", "queued")

    def __init__(
        self,
        ready: ReadyLists,
        dispatch: Callable[[int], bool],
        label: str,
        priority: int,
        *,
        outlives_errors: bool = False,
    ) -> None:
        self._ready = ready
        self.dispatch = dispatch
        self.label = label
        self.priority = checked_priority(priority)
        self.queued = False
        """Whether the context is in a ready list. Written by the ready lists and by `request_dispatch` only."""
        self.closed = False
        self.outlives_errors = outlives_errors
        """Whether the context carries callbacks of others: one that raises is removed, the others stay."""

    def __repr__(self) -> str:
        state = "closed" if self.closed else "queued" if self.queued else "idle"
        return f"<DispatchContext {self.label!r} priority {self.priority} {state}>"

    def request_dispatch(self) -> None:
        """Request a dispatch. O(1); does nothing while already queued or when closed; wakes the loop if it sleeps."""
        if self.queued or self.closed:
            return
        ready = self._ready
        if ready.asleep:
            ready.wake()  # first, as it refuses foreign threads before anything is changed
        self.queued = True
        priority = self.priority
        ready.levels[priority].append(self)
        ready.mask |= 1 << priority

    def close(self) -> None:
        """Never be dispatched again. Idempotent, O(1), safe during its own dispatch (which runs to its end)."""
        # A queued context stays in the list until its turn; the ready lists then drop it. Its removal here would cost
        # O(ready contexts), and thousands may close together.
        self.closed = True


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
