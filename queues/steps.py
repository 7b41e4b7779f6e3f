"""Long work cut in steps, so that nobody waits for all of it: subscribing to thousands of destinations, and the end.

The work of one owner is a `Line` of generators, each of which yields after a step of 10 to 50 µs; they are done in
order. A line does AT_ONCE_COUNT steps as soon as it is given something, which is all of it as a rule (all lines
together AT_ONCE_SUM, until the dispatcher comes by). What is left is done by the dispatcher, STEP_COUNT steps at a
time; lines take turns.

There are two kinds of lines, which take turns with each other:

- *Walkers* (`Steps.line`): the subscriptions of connections. No more than ACTIVE_COUNT of them go on with something
  long, for a walk over many destinations keeps a list of them; the others wait until one of these is through. They may
  have begun by then, with what they do at once: their lists count as kept (`NameTrie.matching`).
- *Keepers* (`Steps.do`): what a destination has to do about its own elements and consumers, of which it keeps a list
  at most. Any number of them are in the midst of something. A line is made when there is work, and goes with the last.

Work that yields a `Waiting` goes on when that says so.

Bound: whoever has a walker gives it little while `busy`: a connection is not read then. A destination is counted, with
all it holds, until its line is through with it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Final

from .environment import Scheduling

AT_ONCE_COUNT: Final = 64
"""Two milliseconds."""

AT_ONCE_SUM: Final = 2 * AT_ONCE_COUNT
"""Of many connections that ask for much in the same moment only the first are served at once."""

STEP_COUNT: Final = 32
"""Steps in one dispatch: about a millisecond."""

LABEL: Final = "long work in steps"

ACTIVE_COUNT: Final = 16
"""Of walkers. A walk over 100,000 destinations keeps 800 KB."""


class Waiting:
    """In place of a step: nothing can be done before something else has happened, elsewhere."""

    __slots__ = ("begin",)

    def __init__(self, begin: Callable[[Callable[[], None]], None]) -> None:
        """`begin` is given the function to call then. Work that is to be finished now goes on without that."""
        self.begin = begin


class Steps:
    """All lines of a broker."""

    def __init__(self, scheduling: Scheduling) -> None:
        self._scheduling = scheduling
        self._context = scheduling.register(self._dispatch, LABEL)
        self._active: OrderedDict[Line, None] = OrderedDict()
        self._waiting: OrderedDict[Line, None] = OrderedDict()
        self._keepers: OrderedDict[Line, None] = OrderedDict()
        """Of those the ones with work that need not wait."""
        self._by_owner: dict[Hashable, Line] = {}
        """All keepers."""
        self._keepers_next = False
        self._at_once_left = AT_ONCE_SUM

    def line(self, idle: Callable[[], None]) -> Line:
        """One for a new owner. `idle` is called whenever the dispatcher has done all of what it was given."""
        return Line(self, idle)

    def do(self, owner: Hashable, work: Iterator[object]) -> None:
        """Do this behind what was given for this owner before: at once, as far as that goes. It keeps little memory
        while it is under way. What it raises at once is raised here.
        """
        line = self._by_owner.get(owner)
        if line is None:
            line = self._by_owner[owner] = Line(self, _nothing, walks=False)
            line.idle = partial(self._forget, owner, line)
        try:
            line.add(work)
        finally:
            if not line.busy:
                self._forget(owner, line)

    def _forget(self, owner: Hashable, line: Line) -> None:
        if self._by_owner.get(owner) is line:
            del self._by_owner[owner]

    def finish(self) -> None:
        """Do now all that is left to do for destinations: see `Line.finish`."""
        while self._by_owner:
            _owner, line = self._by_owner.popitem()
            try:
                line.finish()
            except BaseException:
                self.finish()
                raise

    @property
    def lines_count(self) -> int:
        """Lines with work."""
        return len(self._active) + len(self._waiting) + len(self._keepers)

    def _has_more(self, line: Line) -> None:
        if not line.walks:
            self._keepers[line] = None
        elif line not in self._active:
            (self._active if len(self._active) < ACTIVE_COUNT else self._waiting)[line] = None
        self._context.request_dispatch()

    def _is_done(self, line: Line) -> None:
        self._waiting.pop(line, None)
        self._keepers.pop(line, None)
        if line in self._active:
            del self._active[line]
            if self._waiting:
                self._active[self._waiting.popitem(last=False)[0]] = None

    def _dispatch(self, _budget: int) -> bool:
        self._at_once_left = STEP_COUNT  # what this gives to other lines is a part of it
        try:
            line = self._next()
            if line is not None:
                line.advance(STEP_COUNT)
                if not line.busy:
                    self._is_done(line)
                    line.idle()
                elif line.waits:
                    self._is_done(line)  # for now
        except Exception:
            # A context that raised is closed. The others have nothing to do with it, and go on.
            self._context = self._scheduling.register(self._dispatch, LABEL)
            self._context.request_dispatch()
            raise
        finally:
            self._at_once_left = AT_ONCE_SUM
        return bool(self._active or self._keepers)

    def _next(self) -> Line | None:
        """Whose turn it is: of both kinds in turn."""
        both = (self._keepers, self._active) if self._keepers_next else (self._active, self._keepers)
        lines = both[0] or both[1]
        if not lines:
            return None
        self._keepers_next = lines is self._active
        line = next(iter(lines))
        lines.move_to_end(line)
        return line

    def _take_at_once(self, line: Line) -> int:
        """Let it do what it may do at once; returns how many steps that were."""
        done_count = line.advance(min(AT_ONCE_COUNT, self._at_once_left))
        self._at_once_left -= done_count
        return done_count


class Line:
    """The work of one owner, in order."""

    __slots__ = ("_is_last", "_runs", "_steps", "idle", "spent_count", "waits", "walks", "work")

    def __init__(self, steps: Steps, idle: Callable[[], None], *, walks: bool = True) -> None:
        self._steps = steps
        self.walks = walks
        """Of which kind it is."""
        self.work: deque[Iterator[object]] = deque()
        """What is left to do."""
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
        return bool(self.work)

    def add(self, work: Iterator[object]) -> None:
        """Do this behind what was given before: at once, as far as that goes."""
        self.work.append(work)
        if len(self.work) == 1:
            try:
                self.spent_count += self._steps._take_at_once(self)
            finally:  # what raised may have given more work before
                if self.work and not self.waits:
                    self._steps._has_more(self)

    def advance(self, count: int) -> int:
        """Do so many steps, if there are. Returns how many were done."""
        if self._runs or self.waits:
            return 0
        self._runs = True
        done_count = 0
        work = self.work
        try:
            while work and done_count < count:
                try:
                    step = next(work[0])
                except StopIteration:
                    work.popleft()
                else:
                    if isinstance(step, Waiting) and not self._is_last:
                        self.waits = True
                        step.begin(self.go_on)
                        break
                done_count += 1
        except BaseException:
            work.popleft()  # what it was about is up to whoever is told
            self.waits = False  # if it raised when it was told what to go on with
            raise
        finally:
            self._runs = False
        return done_count

    def finish(self) -> None:
        """Do all that is left now: there is no dispatcher any more, or nobody to wait for. What raises does so
        behind the rest.
        """
        self.waits, self._is_last = False, True
        try:
            while self.work and not self._runs:
                self.advance(AT_ONCE_COUNT)
        except BaseException:
            self.finish()
            raise
        self._steps._is_done(self)

    def go_on(self) -> None:
        """What it waited for has happened, or never will."""
        if self.waits:
            self.waits = False
            self._steps._has_more(self)


def _nothing() -> None:
    """Nobody is to be told."""
