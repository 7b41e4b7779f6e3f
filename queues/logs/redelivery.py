"""Ranges of a log to be redelivered, in order.

A connection that ends requeues in portions, and may have held a million records of which every other one was settled.
So no operation walks over the existing ranges: the list is in descending order, the next range is popped from its end,
and a portion is merged only into the part of the list it overlaps. Each operation costs O(portion · log n) and a fast
copy.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final

import attrs

FOR_GOOD: Final = 1 << 40
"""Flag added to the number of failures, also on disk: the last failure was final, and there is no redelivery."""


@attrs.define
class Again:
    """Requeued indexes from `start` to before `end`."""

    start: int
    end: int
    failures: int
    """Number of rejections and failed deliveries; UNSEEN if never delivered."""

    def goes_on_as(self, other: Again) -> bool:
        """Return whether `other` begins where this range ends and has as many failures."""
        return self.end == other.start and self.failures == other.failures


def _place_of(again: Again) -> int:
    return -again.start


def _merged(back: list[Again], there: list[Again]) -> list[Again]:
    """Return both lists as one, in descending order."""
    merged: list[Again] = []
    place = 0
    for again in back:
        behind = bisect_left(there, -again.start, place, key=_place_of)
        merged += there[place:behind]
        place = behind
        if merged and again.goes_on_as(merged[-1]):
            merged[-1].start = again.start
        else:
            merged.append(again)
        if place < len(there) and there[place].goes_on_as(merged[-1]):
            merged[-1].start = there[place].start
            place += 1
    return merged + there[place:]


class Redelivery:
    """All ranges of one log reader. Adjacent ranges with equal failures are joined; none overlap."""

    __slots__ = ("_highest_first",)

    def __init__(self, ranges: Iterable[tuple[int, int, int]] = ()) -> None:
        """Take `ranges` in any order: each the first index, the index behind the last, and the number of failures."""
        self._highest_first: list[Again] = []
        self.add(ranges)

    @property
    def first(self) -> Again | None:
        """Next range."""
        return self._highest_first[-1] if self._highest_first else None

    def add(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Add requeued ranges."""
        back: list[Again] = []
        last = None
        for start, end, failures in sorted(ranges, reverse=True):
            if last is not None and end == last.start and failures == last.failures:
                last.start = start
            else:
                back.append(last := Again(start, end, failures))
        if last is None:
            return
        there = self._highest_first
        low = bisect_left(there, -back[0].start, key=_place_of)
        high = bisect_left(there, -back[-1].start, low, key=_place_of)
        merged = _merged(back, there[low:high]) if low < high else back
        if low and merged[0].goes_on_as(there[low - 1]):
            merged[0].end = there[low - 1].end
            low -= 1
        if high < len(there) and there[high].goes_on_as(merged[-1]):
            merged[-1].start = there[high].start
            high += 1
        there[low:high] = merged

    def pass_first(self, end: int) -> None:
        """Remove the delivered part of the next range, before `end`."""
        first = self._highest_first[-1]
        if end >= first.end:
            self._highest_first.pop()
        else:
            first.start = end

    def drop_below(self, end: int) -> None:
        """Drop all indexes before `end`."""
        there = self._highest_first
        place = bisect_left(there, 1 - end, key=_place_of)  # the first that begins before `end`
        if place < len(there) and there[place].end > end:
            there[place].start = end
            place += 1
        del there[place:]

    def drop_between(self, start: int, end: int) -> None:
        """Drop all indexes from `start` to before `end`."""
        there = self._highest_first
        low = bisect_left(there, 1 - end, key=_place_of)  # the highest that begins before `end`
        high = bisect_left(there, -start, low, key=_place_of)  # the highest that does not begin behind `start`
        kept: list[Again] = []
        if low < len(there) and there[low].end > end:
            first = there[low]
            kept.append(Again(end, first.end, first.failures))
        if high < len(there) and there[high].start < start < there[high].end:
            last = there[high]
            kept.append(Again(last.start, start, last.failures))
            high += 1
        elif high < len(there) and there[high].start == start:
            high += 1
        there[low:high] = kept

    def __len__(self) -> int:
        return len(self._highest_first)

    def __iter__(self) -> Iterator[Again]:
        """Iterate in ascending order."""
        return reversed(self._highest_first)
