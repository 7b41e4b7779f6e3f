"""An executor of callables on the dispatch loop: callbacks in order of arrival, at one priority.

Every dispatch runs the callbacks that existed when it began; callbacks added meanwhile wait for the next dispatch, so
two callbacks that call for each other for ever share the loop with all others.

Bound: by the callers. The flow controllers have at most one callback each in here (the next turn of a resumption).

Source: seed 002, "creation of simple Executors that operate on the dispatch loop".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from .context import DONE, MORE, DispatchContext, ReadyLists


class CallableExecutor:
    """Executor to be called with a callback, on the thread of the loop (from other threads: `submit`). Ignores calls
    once the dispatcher has ended.
    """

    __slots__ = ("_callbacks", "_ready", "context")

    def __init__(self, ready: ReadyLists, priority: int, label: str) -> None:
        self._ready = ready
        self._callbacks: deque[Callable[[], None]] = deque()
        self.context = DispatchContext(ready, self._dispatch, label, priority, outlives_errors=True)

    def __call__(self, callback: Callable[[], None]) -> None:
        """Run `callback` in a later dispatch. O(1)."""
        if self._ready.ended:
            return
        self.context.request_dispatch()
        self._callbacks.append(callback)

    def __len__(self) -> int:
        """Return the number of callbacks not run yet."""
        return len(self._callbacks)

    def _dispatch(self, budget: int) -> bool:
        callbacks = self._callbacks
        for _ in range(min(budget, len(callbacks))):
            callbacks.popleft()()
        return MORE if callbacks else DONE
