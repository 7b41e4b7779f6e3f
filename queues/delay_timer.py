"""Release of the delayed elements of a consumed queue (delayed.py) when they are due.

One timer stands for the earliest time. Elements that are due are released in portions of DUE_COUNT. Blocks of an
earlier run with delayed elements are read one after the other, so that their number is known and the cursor need not
look at each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from .delayed import DelayedElements
from .element_states import ElementStates
from .environment import QueueEnvironment, TimerHandle
from .queue import MessageQueue

DUE_COUNT: Final = 512
"""Due elements that are released at once: about a millisecond of work."""

WALL_CLOCK_SECONDS: Final = 60.0
"""A time is a date: so often, at least, it is held against the wall clock, which may have been set."""


class DelayTimer:
    """The delayed elements of one queue, and their timer."""

    __slots__ = ("_environment", "_is_due", "_queue", "_states", "_timer", "_unknown")

    def __init__(
        self,
        queue: MessageQueue,
        states: ElementStates,
        environment: QueueEnvironment,
        is_due: Callable[[list[int]], None],
    ) -> None:
        """`is_due`: makes elements available whose time has come."""
        self._queue = queue
        self._states = states
        self._environment = environment
        self._is_due = is_due
        self._timer: TimerHandle | None = None
        self._unknown: list[int] = []
        """Blocks of an earlier run with delayed elements, which ones is not known yet; the next one last."""

    def index(self) -> DelayedElements:
        """Return the index of delayed elements, made if need be."""
        states = self._states
        if states.delayed is None:
            states.delayed = DelayedElements(self._queue.policy.delayed_count_max)
        return states.delayed

    def put(self, sequences: Iterable[int], due_ms: int) -> None:
        """Let elements wait until then."""
        if self.index().put(sequences, due_ms):
            self._arm()

    def close(self) -> None:
        """Let nothing go any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_ms = None if self._states.delayed is None else self._states.delayed.next_ms
        if next_ms is not None and not self._queue.closed:
            delay_seconds = max(0, next_ms - self._environment.now_ms()) / 1000
            self._timer = self._environment.scheduling.call_later(
                min(delay_seconds, WALL_CLOCK_SECONDS), self._release_due
            )

    def _release_due(self) -> None:
        self._timer = None
        assert self._states.delayed is not None, "a timer runs only for what waits"
        due = self._states.delayed.take_due(self._environment.now_ms(), DUE_COUNT)
        if due:
            self._is_due(due)
        self._arm()

    # ------------------------------------------------------------------ elements of an earlier run

    def restored(self, blocks: Iterable[int]) -> None:
        """Note blocks of an earlier run with delayed elements."""
        self._unknown = sorted(blocks, reverse=True)
        if self._unknown:
            self.index()

    @property
    def has_unknown(self) -> bool:
        """Whether blocks of an earlier run are still to be looked up."""
        return bool(self._unknown)

    def look_up(self) -> None:
        """Read the next block of an earlier run, unless it is in memory."""
        pager = self._queue.pager
        assert pager is not None, "what has a storage can page"
        while self._unknown:
            index = self._unknown[-1]
            block = self._queue.elements.block(index)
            if block is None:
                self._unknown.pop()
            elif block.outside is None:
                self._learn(index)
                return
            else:
                pager.want(index)
                return

    def paged_in(self, index: int) -> None:
        """Note that a block is in memory, or gone."""
        if self._unknown and index == self._unknown[-1]:
            self._learn(index)

    def _learn(self, index: int) -> None:
        self._unknown.pop()
        block = self._queue.elements.block(index)
        if block is not None and block.outside is None:
            delayed, now_ms, letters = self.index(), self._environment.now_ms(), self._states.dead_lettering
            for sequence, message in enumerate(block.elements, block.base):
                if (
                    message is not None
                    and message.due_at_ms > now_ms
                    and not delayed.holds(sequence)
                    and not delayed.is_full
                    and (letters is None or sequence not in letters)
                ):
                    self.put([sequence], message.due_at_ms)
        if self._unknown:
            self._environment.scheduling.call_later(0.0, self.look_up)
