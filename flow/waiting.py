"""Line in which blocked sources wait for one sink: by priority, first come first served within one priority.

The share. A turn that goes to the highest waiting priority while a lower one waits passes that one over. After
`SHARE_INTERVAL_COUNT - 1` of these in a row the next turn goes to a lower priority: the next waiting one below the one
that was served so last (downwards, then around again from the top). So with k lower priorities waiting all the time,
each gets one of every `SHARE_INTERVAL_COUNT * k` turns, and the highest keeps the rest. When only one priority waits,
the count starts anew. The dispatcher shares its dispatches by the same rule, but cannot replace this one: a source
without credit is not dispatched at all.

Cost: all O(1) in the number of waiting sources.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, Generic, Protocol, TypeVar


class Waits(Protocol):
    """Source that can wait in a line."""

    @property
    def priority(self) -> int: ...


W = TypeVar("W", bound=Waits)

SHARE_INTERVAL_COUNT: Final = 20
"""Interval at which a turn goes to a lower priority, if one waits. As in the dispatcher: priority keeps its meaning (95
%), and no source waits for ever.
"""

NOBODY: Final = -1
"""The highest priority of an empty line."""


class WaitingLine(Generic[W]):
    """Sources in the order in which they get their turns. A source is in it once at most."""

    __slots__ = ("_levels", "_passed_over_count", "_shared_last", "highest", "took_share")

    def __init__(self) -> None:
        # Only priorities at which a source waits. OrderedDict: taking the first of a dict costs a walk over all that
        # were taken before.
        self._levels: dict[int, OrderedDict[W, None]] = {}
        self._passed_over_count = 0
        self._shared_last = 0
        self.highest = NOBODY
        """Highest priority at which a source waits. Read only."""
        self.took_share = False
        """The last `take` passed a higher priority over. Read only."""

    def add(self, source: W) -> None:
        """`source`, which is not in it, waits behind all of its priority."""
        priority = source.priority
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = OrderedDict()
            self.highest = max(self.highest, priority)
        level[source] = None

    def discard(self, source: W) -> None:
        """`source` waits no longer, without having had a turn. Raises KeyError if it is not here."""
        level = self._levels[source.priority]
        del level[source]
        if not level:
            self._drop_level(source.priority)

    def take(self) -> W:
        """Remove and return the source whose turn it is. Raises ValueError if no source waits."""
        priority = self.highest
        passed_over_count = 0
        self.took_share = False
        if len(self._levels) > 1:
            passed_over_count = self._passed_over_count + 1
            if passed_over_count >= SHARE_INTERVAL_COUNT:
                priority = self._next_shared()
                passed_over_count = 0
                self.took_share = True
        elif not self._levels:
            raise ValueError("no source waits: check that the line is not empty before giving a turn")
        self._passed_over_count = passed_over_count
        level = self._levels[priority]
        source, _ = level.popitem(last=False)
        if not level:
            self._drop_level(priority)
        return source

    def __bool__(self) -> bool:
        return bool(self._levels)

    def __len__(self) -> int:
        return sum(len(level) for level in self._levels.values())

    def __contains__(self, source: W) -> bool:
        level = self._levels.get(source.priority)
        return level is not None and source in level

    def __iter__(self) -> Iterator[W]:
        """The highest priority first, the longest-waiting first within one."""
        for priority in sorted(self._levels, reverse=True):
            yield from self._levels[priority]

    def _next_shared(self) -> int:
        """Return the priority below the highest that has the next share."""
        lower = [priority for priority in self._levels if priority != self.highest]
        self._shared_last = max([p for p in lower if p < self._shared_last] or lower)
        return self._shared_last

    def _drop_level(self, priority: int) -> None:
        del self._levels[priority]
        if priority == self.highest:
            self.highest = max(self._levels, default=NOBODY)
