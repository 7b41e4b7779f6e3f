"""Long work cut in steps, so that no connection waits for all of it: subscribing to thousands of destinations, and
unsubscribing.

The work of one owner is a `Line` of generators, each of which yields after a step of 10 to 50 µs; they are done in
order. A line does AT_ONCE_COUNT steps as soon as it is given work, which is usually all of it (all lines together
AT_ONCE_SUM, until the dispatcher runs). The dispatcher does the rest, STEP_COUNT steps at a time; lines take turns.

There are two kinds of lines, which take turns with each other:

- *Walkers* (`Steps.line`): the subscriptions of connections. At most ACTIVE_COUNT of them continue long work at a time,
  for a walk over many destinations keeps a list of them; the others wait until one has ended. They may have begun by
  then, with the steps done at once: their lists count as kept (`NameTrie.matching`).
- *Keepers* (`Steps.do`): the work of a destination on its own elements and consumers, of which it keeps a list at most.
  Any number of them may be active. A line is made when there is work, and ends with it.

Work that yields a `Waiting` continues when `Line.go_on` is called.

Bound: the owner of a walker adds little work while it is `busy`: its connection is not read then. A destination is
counted, with all it holds, until its line has ended.
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
"""Steps done at once for all lines together: of many connections that ask for much in the same moment only the first
are served at once.
"""

STEP_COUNT: Final = 32
"""Steps in one dispatch: about a millisecond."""

LABEL: Final = "long work in steps"

ACTIVE_COUNT: Final = 16
"""Number of walkers that are active at a time. A walk over 100,000 destinations keeps 800 KB."""


class Waiting:
    """Marker in place of a step: the work has to wait for an event elsewhere."""

    __slots__ = ("begin",)

    def __init__(self, begin: Callable[[Callable[[], None]], None]) -> None:
        """`begin` gets the function to call when the wait is over. Work that has to be finished now continues without
        it.
        """
        self.begin = begin


class Steps:
    """All lines of a broker."""

    def __init__(self, scheduling: Scheduling) -> None:
        self._scheduling = scheduling
        self._context = scheduling.register(self._dispatch, LABEL)
        self._active: OrderedDict[Line, None] = OrderedDict()
        self._waiting: OrderedDict[Line, None] = OrderedDict()
        self._keepers: OrderedDict[Line, None] = OrderedDict()
        """Keepers whose work need not wait."""
        self._by_owner: dict[Hashable, Line] = {}
        """All keepers."""
        self._keepers_next = False
        self._at_once_left = AT_ONCE_SUM

    def line(self, idle: Callable[[], None]) -> Line:
        """Return a walker for a new owner. `idle` is called whenever the dispatcher has done all of its work."""
        return Line(self, idle)

    def do(self, owner: Hashable, work: Iterator[object]) -> None:
        """Do `work` after earlier work of the same owner: its first steps at once, if there is none. It must keep
        little memory while it is under way. Errors of the steps done at once are raised here.
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
        """Do all remaining work for destinations now: see `Line.finish`."""
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
        self._at_once_left = STEP_COUNT  # steps that this work gives to other lines are a part of it
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
            # A context that raised is closed. The others are not affected, and continue.
            self._context = self._scheduling.register(self._dispatch, LABEL)
            self._context.request_dispatch()
            raise
        finally:
            self._at_once_left = AT_ONCE_SUM
        return bool(self._active or self._keepers)

    def _next(self) -> Line | None:
        """Return the line whose turn it is, of both kinds alternately."""
        both = (self._keepers, self._active) if self._keepers_next else (self._active, self._keepers)
        lines = both[0] or both[1]
        if not lines:
            return None
        self._keepers_next = lines is self._active
        line = next(iter(lines))
        lines.move_to_end(line)
        return line

    def _take_at_once(self, line: Line) -> int:
        """Let a line do the steps that it may do at once; returns their number."""
        done_count = line.advance(min(AT_ONCE_COUNT, self._at_once_left))
        self._at_once_left -= done_count
        return done_count


class Line:
    """The work of one owner, in order."""

    __slots__ = ("_is_last", "_runs", "_steps", "idle", "spent_count", "waits", "walks", "work")

    def __init__(self, steps: Steps, idle: Callable[[], None], *, walks: bool = True) -> None:
        self._steps = steps
        self.walks = walks
        """Whether the line is a walker."""
        self.work: deque[Iterator[object]] = deque()
        """Work that is left to do."""
        self._runs = False
        self._is_last = False
        """Whether the rest is to be done now, without waiting."""
        self.waits = False
        """Whether the next step has to wait for an event."""
        self.idle = idle
        self.spent_count = 0
        """Steps that were done at once, ever."""

    @property
    def busy(self) -> bool:
        """Whether work is left."""
        return bool(self.work)

    def add(self, work: Iterator[object]) -> None:
        """Do `work` after earlier work of the line: its first steps at once, if there is none."""
        self.work.append(work)
        if len(self.work) == 1:
            try:
                self.spent_count += self._steps._take_at_once(self)
            finally:  # work that raised may have added more work before
                if self.work and not self.waits:
                    self._steps._has_more(self)

    def advance(self, count: int) -> int:
        """Do up to `count` steps. Returns how many were done."""
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
            work.popleft()  # its owner handles the error
            self.waits = False  # if it raised when it was told what to go on with
            raise
        finally:
            self._runs = False
        return done_count

    def finish(self) -> None:
        """Do all remaining work now: there is no dispatcher any more, or nothing to wait for. An error is raised after
        the rest is done.
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
        """Continue the work: the event for which it waited has happened, or never will."""
        if self.waits:
            self.waits = False
            self._steps._has_more(self)


def _nothing() -> None:
    """Ignore the end of a line's work: it has no owner to tell."""
