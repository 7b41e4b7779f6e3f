"""Long work cut in steps, so that nobody waits for all of it: subscribing to thousands of destinations, and the end.

The work of one owner is a `Line` of generators, each of which yields after a step of 10 to 50 µs; they are done in
order. A line does AT_ONCE_COUNT steps as soon as it is given something, which is all of it as a rule (all lines
together AT_ONCE_SUM, until the dispatcher comes by). What is left is done by the dispatcher, STEP_COUNT steps at a
time; lines take turns. No more than ACTIVE_COUNT of them are in the midst of something, for a walk over many
destinations keeps a list of them; the others wait until one of these is through.

Work that yields a `Waiting` goes on when that says so.

Bound: whoever has a line gives it little while `busy`: a connection is not read then.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Final

from queues.environment import Scheduling

AT_ONCE_COUNT: Final = 64
"""Two milliseconds."""

AT_ONCE_SUM: Final = 2 * AT_ONCE_COUNT
"""Of many connections that ask for much in the same moment only the first are served at once."""

STEP_COUNT: Final = 32
"""Steps in one dispatch: about a millisecond."""

ACTIVE_COUNT: Final = 16
"""A walk over 100,000 destinations keeps 800 KB."""


class Waiting:
    """In place of a step: nothing can be done before something else has happened, elsewhere."""

    __slots__ = ("begin",)

    def __init__(self, begin: Callable[[Callable[[], None]], None]) -> None:
        """`begin` is given the function to call then. Work that is to be finished now goes on without that."""
        self.begin = begin


class Steps:
    """All lines of a broker."""

    def __init__(self, scheduling: Scheduling) -> None:
        self._context = scheduling.register(self._dispatch, "long work in steps")
        self._active: OrderedDict[Line, None] = OrderedDict()
        self._waiting: OrderedDict[Line, None] = OrderedDict()
        self._at_once_left = AT_ONCE_SUM

    def line(self, idle: Callable[[], None]) -> Line:
        """One for a new owner. `idle` is called whenever the dispatcher has done all of what it was given."""
        return Line(self, idle)

    @property
    def lines_count(self) -> int:
        """Lines with work."""
        return len(self._active) + len(self._waiting)

    def _has_more(self, line: Line) -> None:
        if line not in self._active:
            (self._active if len(self._active) < ACTIVE_COUNT else self._waiting)[line] = None
        self._context.request_dispatch()

    def _is_done(self, line: Line) -> None:
        self._waiting.pop(line, None)
        if line in self._active:
            del self._active[line]
            if self._waiting:
                self._active[self._waiting.popitem(last=False)[0]] = None

    def _dispatch(self, _budget: int) -> bool:
        self._at_once_left = AT_ONCE_SUM
        if self._active:
            line = next(iter(self._active))
            self._active.move_to_end(line)
            line.advance(STEP_COUNT)
            if not line.busy:
                self._is_done(line)
                line.idle()
            elif line.waits:
                self._is_done(line)  # for now
        return bool(self._active)

    def _take_at_once(self, line: Line) -> int:
        """Let it do what it may do at once; returns how many steps that were."""
        done_count = line.advance(min(AT_ONCE_COUNT, self._at_once_left))
        self._at_once_left -= done_count
        return done_count


class Line:
    """The work of one owner, in order."""

    __slots__ = ("_is_last", "_runs", "_steps", "_work", "idle", "spent_count", "waits")

    def __init__(self, steps: Steps, idle: Callable[[], None]) -> None:
        self._steps = steps
        self._work: deque[Iterator[object]] = deque()
        self._runs = False
        self._is_last = False
        """What is left is to be done now: nothing is waited for."""
        self.waits = False
        """What comes next has to wait for something else."""
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
            self.spent_count += self._steps._take_at_once(self)
            if self._work and not self.waits:
                self._steps._has_more(self)

    def advance(self, count: int) -> int:
        """Do so many steps, if there are. Returns how many were done."""
        if self._runs or self.waits:
            return 0
        self._runs = True
        done_count = 0
        work = self._work
        try:
            while work and done_count < count:
                try:
                    step = next(work[0])
                except StopIteration:
                    work.popleft()
                else:
                    if isinstance(step, Waiting) and not self._is_last:
                        self.waits = True
                        step.begin(self._go_on)
                        break
                done_count += 1
        except BaseException:
            work.popleft()  # what it was about is up to whoever is told
            raise
        finally:
            self._runs = False
        return done_count

    def finish(self) -> None:
        """Do all that is left now: there is no dispatcher any more, or nobody to wait for."""
        self.waits, self._is_last = False, True
        while self._work and not self._runs:
            self.advance(AT_ONCE_COUNT)
        self._steps._is_done(self)

    def _go_on(self) -> None:
        """What it waited for has happened."""
        if self.waits:
            self.waits = False
            self._steps._has_more(self)
