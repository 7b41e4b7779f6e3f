"""Backlog of message groups: elements of a queue that wait for their group, set aside under its key, in order.

A line per key. Elements that come back to a line go into a heap at its front, so any order of returns costs O(log n)
each. Elements that leave while they wait (expired, dropped) stay in their line as dead entries until the line comes to
them or half of the line is dead, so memory is bounded by the elements alive. With `ranked` the oldest over all lines
can be asked for, which policy `drop_oldest` needs.

A line has at most one *place*: it waits for the subscription that holds its key, for any subscription, or has no place.
Within a place the line that came first goes first. A line that ends leaves its place, so every line found in a place
can continue.

Pure bookkeeping of sequences: the elements themselves stay in the CursoredQueue. Not here: who holds a key (groups.py),
which place a line has (shared.py).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable
from itertools import islice
from typing import Final

DEAD_COUNT_MIN: Final = 16
"""Dead entries that a line may always have; below that compaction costs more than it frees."""

LONGEST_COUNT: Final = 1000
"""Lines that are compared to find the longest: a report must not cost more than it tells."""

ANYBODY: Final = "anybody"
"""Place of the keys that may go to any subscription with credit."""


class _Line:
    __slots__ = ("dead_count", "place", "returned", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[int] = deque()
        """Ascending."""
        self.returned: list[int] = []
        """Heap of elements that came back while later ones were waiting."""
        self.dead_count = 0
        self.place: OrderedDict[str, None] | None = None

    def __len__(self) -> int:
        return len(self.waiting) + len(self.returned)

    def first(self) -> int:
        """The lowest entry, dead or alive."""
        if self.returned and not (self.waiting and self.waiting[0] < self.returned[0]):
            return self.returned[0]
        return self.waiting[0]

    def pop_first(self) -> None:
        if self.returned and not (self.waiting and self.waiting[0] < self.returned[0]):
            heapq.heappop(self.returned)
        else:
            self.waiting.popleft()


class GroupBacklog:
    """Sequences by key. Truth value and length: by how many are alive."""

    __slots__ = ("_alive", "_lines", "_places", "_ranking")

    def __init__(self, *, ranked: bool) -> None:
        self._lines: dict[str, _Line] = {}
        self._alive: dict[int, str] = {}
        self._places: dict[Hashable, OrderedDict[str, None]] = {}
        self._ranking: list[int] | None = [] if ranked else None

    def __len__(self) -> int:
        return len(self._alive)

    @property
    def line_count(self) -> int:
        """Number of keys of which anything waits here."""
        return len(self._lines)

    def has_line(self, key: str) -> bool:
        """Whether anything of this key waits here. O(1)."""
        return key in self._lines

    def key_of(self, sequence: int) -> str | None:
        """The key under which this element waits, None if it doesn't. O(1)."""
        return self._alive.get(sequence)

    def put(self, key: str, sequence: int) -> None:
        """Let this element wait. A new line stands nowhere. O(1) at the end of a line, else O(log n)."""
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line()
        waiting = line.waiting
        if waiting and sequence < waiting[-1]:
            heapq.heappush(line.returned, sequence)
        else:
            waiting.append(sequence)
        self._alive[sequence] = key
        if self._ranking is not None:
            heapq.heappush(self._ranking, sequence)

    def first(self, key: str) -> int | None:
        """The next element of this key; it stays in its line. O(1)."""
        line = self._lines.get(key)
        return line.first() if line is not None else None

    def discard(self, sequence: int) -> None:
        """Discard an element that is handed out, or has left the queue. O(log n) amortised."""
        alive = self._alive
        key = alive.pop(sequence)
        line = self._lines[key]
        line.dead_count += 1
        while line and line.first() not in alive:
            line.pop_first()
            line.dead_count -= 1
        if not line:
            self._leave_place(key, line)
            del self._lines[key]
        elif line.dead_count > DEAD_COUNT_MIN and line.dead_count * 2 > len(line):
            line.waiting = deque(other for other in line.waiting if other in alive)
            line.returned = sorted(other for other in line.returned if other in alive)
            line.dead_count = 0
        if self._ranking is not None and len(self._ranking) > 2 * len(alive) + DEAD_COUNT_MIN:
            self._ranking = sorted(alive)

    # ------------------------------------------------------------------ places

    def line_up(self, key: str, place: Hashable) -> None:
        """Put the line of a key, which must exist, into a place, as the last one. O(1)."""
        line = self._lines[key]
        self._leave_place(key, line)
        keys = self._places.get(place)
        if keys is None:
            keys = self._places[place] = OrderedDict()
        keys[key] = None
        line.place = keys

    def unplace(self, key: str) -> None:
        """Take the line of a key, which must exist, out of its place. O(1)."""
        self._leave_place(key, self._lines[key])

    def first_at(self, place: Hashable) -> str | None:
        """The key whose line stands first in this place. O(1)."""
        keys = self._places.get(place)
        if keys is None:
            return None
        if not keys:
            del self._places[place]
            return None
        return next(iter(keys))

    def clear_place(self, place: Hashable) -> None:
        """Remove a place: its lines have no place then. O(1)."""
        self._places.pop(place, None)

    @staticmethod
    def _leave_place(key: str, line: _Line) -> None:
        if line.place is not None:
            del line.place[key]
            line.place = None

    # ------------------------------------------------------------------ over all lines

    def sequences(self) -> Iterable[int]:
        """Return all elements that wait here, in any order."""
        return self._alive

    def oldest(self) -> int | None:
        """Return the lowest sequence that waits, whatever its key, or None. Only if `ranked`. O(log n) amortised."""
        ranking = self._ranking
        if ranking is None:
            raise ValueError("these lines are not ranked: ask for it when they are made")
        while ranking and ranking[0] not in self._alive:
            heapq.heappop(ranking)
        return ranking[0] if ranking else None

    def longest(self) -> tuple[str, int] | None:
        """The key of which the most waits, and how much; of the oldest LONGEST_COUNT lines. None: nothing waits."""
        candidates = islice(self._lines.items(), LONGEST_COUNT)
        return max(
            ((key, len(line) - line.dead_count) for key, line in candidates), key=lambda pair: pair[1], default=None
        )
