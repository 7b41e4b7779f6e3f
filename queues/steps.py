"""Long work cut in steps, so that nobody waits for all of it: subscribing to thousands of destinations, and the end.

The work of one owner is a `Line` of generators, each of which yields after a step of 10 to 50 µs; they are done in
order. A line does AT_ONCE_COUNT steps as soon as it is given something, which is all of it as a rule. What is left is
done by the dispatcher, STEP_COUNT steps at a time; lines take turns. No more than ACTIVE_COUNT of them are in the midst
of something, for a walk over many destinations keeps a list of them; the others wait until one of these is through.

Bound: whoever has a line gives it little while `busy`: a connection is not read then.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Final

from queues.environment import Scheduling

AT_ONCE_COUNT: Final = 64
"""Two milliseconds."""

STEP_COUNT: Final = 32
"""Steps in one dispatch: about a millisecond."""

ACTIVE_COUNT: Final = 16
"""A walk over 100,000 destinations keeps 800 KB."""


class Steps:
    """All lines of a broker."""

    def __init__(self, scheduling: Scheduling) -> None:
        self._context = scheduling.register(self._dispatch, "long work in steps")
        self._active: OrderedDict[Line, None] = OrderedDict()
        self._waiting: OrderedDict[Line, None] = OrderedDict()

    def line(self, idle: Callable[[], None]) -> Line:
        """One for a new owner. `idle` is called whenever the dispatcher has done all of what it was given."""
        return Line(self, idle)

    @property
    def lines_count(self) -> int:
        """Lines with work."""
        return len(self._active) + len(self._waiting)

    def _has_more(self, line: Line) -> None:
        (self._active if len(self._active) < ACTIVE_COUNT else self._waiting)[line] = None
        self._context.request_dispatch()

    def _is_done(self, line: Line) -> None:
        self._waiting.pop(line, None)
        if line in self._active:
            del self._active[line]
            if self._waiting:
                self._active[self._waiting.popitem(last=False)[0]] = None

    def _dispatch(self, _budget: int) -> bool:
        if self._active:
            line = next(iter(self._active))
            self._active.move_to_end(line)
            line.advance(STEP_COUNT)
            if not line.busy:
                self._is_done(line)
                line.idle()
        return bool(self._active)


class Line:
    """The work of one owner, in order."""

    __slots__ = ("_runs", "_steps", "_work", "idle", "spent_count")

    def __init__(self, steps: Steps, idle: Callable[[], None]) -> None:
        self._steps = steps
        self._work: deque[Iterator[object]] = deque()
        self._runs = False
        self.idle = idle
        self.spent_count = 0
        """Steps that were done at once, ever."""

    @property
    def busy(self) -> bool:
        """Something is left to do."""
        return bool(self._work)

    def add(self, work: Iterator[object]) -> None:
        """Do this behind what was given before: at once, as far as that goes."""
        self._work.append(work)
        if len(self._work) == 1:
            self.spent_count += self.advance(AT_ONCE_COUNT)
            if self._work:
                self._steps._has_more(self)

    def advance(self, count: int) -> int:
        """Do so many steps, if there are. Returns how many were done."""
        if self._runs:
            return 0
        self._runs = True
        done_count = 0
        work = self._work
        try:
            while work and done_count < count:
                try:
                    next(work[0])
                except StopIteration:
                    work.popleft()
                done_count += 1
        except BaseException:
            work.popleft()  # what it was about is up to whoever is told
            raise
        finally:
            self._runs = False
        return done_count

    def finish(self) -> None:
        """Do all that is left now: there is no dispatcher any more, or nobody to wait for."""
        while self._work and not self._runs:
            self.advance(AT_ONCE_COUNT)
        self._steps._is_done(self)
