"""Sets of whole numbers as few ranges, such as the settled elements of a topic or a log beyond the front of a reader.

Their size grows with the holes, not with the numbers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

MERGED_MIN: Final = 8
MERGED_SHARE: Final = 16
"""Divisor of the ranges in the set: if more than MERGED_MIN runs, and at least this part of the set, are added
together, they are merged in one pass: adding each would take a bisection and a copy, ten times as much.
"""


def stretches(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return numbers, in any order, as runs of consecutive numbers, ascending, each from its first to behind its last.
    O(n log n); O(n) if they are one run, and O(1) if they are a range.
    """
    if not numbers:
        return []
    first, end = numbers[0], numbers[-1] + 1
    if end - first == len(numbers) and (isinstance(numbers, range) or list(numbers) == list(range(first, end))):
        return [(first, end)]
    found: list[tuple[int, int]] = []
    numbers = sorted(numbers)
    start = end = numbers[0]
    for number in numbers:
        if number > end:
            found.append((start, end))
            start = number
        end = number + 1
    found.append((start, end))
    return found


def _merged(ranges: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Return starts and ends of ranges in any order, joining those that touch or overlap. O(n log n)."""
    starts: list[int] = []
    ends: list[int] = []
    last = -1
    for start, end in sorted(ranges):
        if start >= end:
            continue
        if start > last or not ends:
            starts.append(start)
            ends.append(end)
            last = end
        elif end > last:
            ends[-1] = last = end
    return starts, ends


class RangeSet:
    """Disjoint ranges that do not touch, ascending. Adding costs O(log n), and O(n) of a fast copy where it is in the
    middle; n is the number of holes.
    """

    __slots__ = ("_ends", "_starts")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """`ranges`: each from its first to behind its last."""
        self._starts, self._ends = _merged(ranges)

    def add(self, start: int, end: int) -> None:
        """Add the numbers from `start` to `end - 1`."""
        if start >= end:
            return
        starts, ends = self._starts, self._ends
        if not ends or start > ends[-1]:  # most come behind all others
            starts.append(start)
            ends.append(end)
            return
        low = bisect_left(ends, start)  # the first that touches or comes later
        high = bisect_right(starts, end)  # behind the last that touches
        if low < high:
            start, end = min(start, starts[low]), max(end, ends[high - 1])
        starts[low:high] = [start]
        ends[low:high] = [end]

    def add_all(self, numbers: Sequence[int], *, floor: int = 0) -> None:
        """Add numbers, in any order, except those below `floor`."""
        found = stretches(numbers)
        if len(found) > MERGED_MIN and len(found) * MERGED_SHARE >= len(self._starts):
            self._starts, self._ends = _merged([*self, *((max(floor, start), end) for start, end in found)])
            return
        for start, end in found:
            self.add(max(floor, start), end)

    def remove(self, start: int, end: int) -> None:
        """None from `start` to `end - 1` is in it any more."""
        starts, ends = self._starts, self._ends
        low = bisect_right(ends, start)  # the first that ends behind `start`
        high = bisect_left(starts, end)  # behind the last that begins before `end`
        if start >= end or low >= high:
            return
        kept = [(starts[low], start), (end, ends[high - 1])]
        kept = [(first, stop) for first, stop in kept if first < stop]
        starts[low:high] = [first for first, _stop in kept]
        ends[low:high] = [stop for _first, stop in kept]

    def first_gap(self, start: int) -> int:
        """Return the lowest number from `start` on that is not in the set."""
        place = bisect_right(self._starts, start) - 1
        return max(start, self._ends[place]) if place >= 0 else start

    def drop_below(self, floor: int) -> None:
        """Drop the numbers below `floor`."""
        place = bisect_right(self._ends, floor)
        del self._starts[:place], self._ends[:place]
        if self._starts and self._starts[0] < floor:
            self._starts[0] = floor

    def holes(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of the range that are not in the set."""
        place = bisect_right(self._ends, start)
        if start < end and (place == len(self._starts) or self._starts[place] >= end):
            return iter(((start, end),))  # the usual case
        return self._holes(start, end, place)

    def _holes(self, start: int, end: int, place: int) -> Iterator[tuple[int, int]]:
        while start < end:
            if place >= len(self._starts) or self._starts[place] >= end:
                yield start, end
                return
            if self._starts[place] > start:
                yield start, self._starts[place]
            start = self._ends[place]
            place += 1

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self._starts, number) - 1
        return place >= 0 and number < self._ends[place]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._starts, self._ends, strict=True))

    def __len__(self) -> int:
        """Ranges, not numbers."""
        return len(self._starts)

    @property
    def number_count(self) -> int:
        """Count of numbers in the set. O(ranges)."""
        return sum(self._ends) - sum(self._starts)

    def __repr__(self) -> str:
        return f"<RangeSet {list(self)}>"
