"""Work of the store that is done in steps, with others in between, and then what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from ..queues.environment import DispatchHandle, Scheduling

STEP_COUNT: Final = 32
"""Items per dispatch: about a millisecond."""


class Gradual:
    """The one piece of work that is under way."""

    def __init__(self, scheduling: Scheduling, label: str) -> None:
        self._context: DispatchHandle = scheduling.register(self._dispatch, label)
        self._work: Iterator[None] | None = None
        self._then: Callable[[], None] | None = None

    def begin(self, work: Iterator[None], then: Callable[[], None]) -> None:
        """Do this in steps, and then that. Nothing else is under way."""
        assert self._work is None, "one after the other"
        self._work, self._then = work, then
        self._context.request_dispatch()

    def finish(self) -> None:
        """Do the remaining work now, if any is under way."""
        work, then = self._work, self._then
        if work is not None and then is not None:
            for _step in work:
                pass
            self._work = self._then = None
            then()

    def _dispatch(self, _budget: int) -> bool:
        work = self._work
        if work is not None and sum(1 for _step in islice(work, STEP_COUNT)) == STEP_COUNT:
            return True
        self.finish()
        return False
