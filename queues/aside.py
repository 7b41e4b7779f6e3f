"""Elements of a queue that wait until their message group may go on: set aside under their key, in order.

A line per key, the next one first. What leaves while it waits (expired, dropped) stays in its line as a dead entry
until the line comes to it or half of the line is dead, so memory is bounded by what is alive. With `ranked` the oldest
over all lines can be asked for, which policy `drop_oldest` needs.

Pure bookkeeping of sequences: the elements themselves stay in the CursoredQueue. Not here: who holds a key (groups.py),
who is woken (shared.py).
"""

from __future__ import annotations

import heapq
from collections import deque

DEAD_COUNT_MIN = 16
"""Dead entries that a line may always have; below that compaction costs more than it frees."""


class _Line:
    __slots__ = ("dead_count", "sequences")

    def __init__(self) -> None:
        self.sequences: deque[int] = deque()
        self.dead_count = 0


class AsideLines:
    """Sequences by key. Truth value and length: by how many are alive."""

    __slots__ = ("_alive", "_lines", "_ranking")

    def __init__(self, *, ranked: bool) -> None:
        self._lines: dict[str, _Line] = {}
        self._alive: dict[int, str] = {}
        self._ranking: list[int] | None = [] if ranked else None

    def __len__(self) -> int:
        return len(self._alive)

    def has_line(self, key: str) -> bool:
        """Whether anything of this key waits here. O(1)."""
        return key in self._lines

    def key_of(self, sequence: int) -> str | None:
        """The key under which this element waits, None if it doesn't. O(1)."""
        return self._alive.get(sequence)

    def put(self, key: str, sequence: int) -> None:
        """Let this element wait. O(1) at the end of its line and at the front, else O(elements before it)."""
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line()
        waiting = line.sequences
        if waiting and sequence < waiting[-1]:
            before: list[int] = []
            while waiting[0] < sequence:
                before.append(waiting.popleft())
            waiting.appendleft(sequence)
            waiting.extendleft(reversed(before))
        else:
            waiting.append(sequence)
        self._alive[sequence] = key
        if self._ranking is not None:
            heapq.heappush(self._ranking, sequence)

    def first(self, key: str) -> int | None:
        """The next element of this key; it stays in its line. O(1) amortised."""
        line = self._lines.get(key)
        return line.sequences[0] if line is not None else None

    def discard(self, sequence: int) -> None:
        """This element goes on, or has left the queue. O(1) amortised."""
        key = self._alive.pop(sequence)
        line = self._lines[key]
        waiting = line.sequences
        line.dead_count += 1
        while waiting and waiting[0] not in self._alive:
            waiting.popleft()
            line.dead_count -= 1
        if not waiting:
            del self._lines[key]
        elif line.dead_count > DEAD_COUNT_MIN and line.dead_count * 2 > len(waiting):
            line.sequences = deque(other for other in waiting if other in self._alive)
            line.dead_count = 0
        if self._ranking is not None and len(self._ranking) > 2 * len(self._alive) + DEAD_COUNT_MIN:
            self._ranking = sorted(self._alive)

    def oldest(self) -> int | None:
        """The lowest sequence that waits, whatever its key. Only if `ranked`. O(log n) amortised."""
        ranking = self._ranking
        if ranking is None:
            raise ValueError("these lines are not ranked: ask for it when they are made")
        while ranking and ranking[0] not in self._alive:
            heapq.heappop(ranking)
        return ranking[0] if ranking else None
