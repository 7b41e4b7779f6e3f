"""A dispatch context: the handle by which one component (queue, session, store reader) requests to be run by the
dispatcher.

The contract, from the seed ("Components in the core create DispatchContexts which they use to request dispatch"):
- at most one dispatch of a context at a time, and never re-entrant: `request_dispatch()` only queues, the loop calls
  later;
- however often dispatch is requested while the context is queued, it is dispatched once;
- a request made during its own dispatch leads to one more dispatch after it.

Source: seed 002, "Dispatcher / Threading Model"; DESIGN 5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .ready import ReadyLists

MORE: Final = True
"""Result of a dispatch that used up its budget and has more to do: it goes to the tail of its priority's list."""
DONE: Final = False
"""Result of a dispatch that has nothing left to do until the next request."""

PRIORITY_COUNT: Final = 10
PRIORITY_HIGHEST: Final = PRIORITY_COUNT - 1
PRIORITY_DEFAULT: Final = 4


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
