"""Which elements of a queue pass their date next.

A run has one date, so there is one entry per run, in a heap. Entries of runs that were consumed in time are cleared out
when they may be half of all, so there are at most about twice as many as there are runs with a date in the queue.

A block that is outside has one entry, for the next of its dates. Those that its elements had are cleared out when they,
too, may be half of all: to do that for each block would cost as much as there are dates in memory. Until then they are
passed over.

Not here: timers and what expiring means (queue.py, consumed.py, topic.py).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final

from queues.blocks import Block
from queues.cursored import BLOCK_BITS, CursoredQueue

EXPIRIES_MIN: Final = 256
"""Dates that may always be kept; only beyond that is it worth looking for dead ones."""


class ExpiryDates:
    """The dates of the elements of one queue."""

    __slots__ = ("_elements", "_heap", "_max_count", "_out", "_stale_count")

    def __init__(self, elements: CursoredQueue) -> None:
        self._elements = elements
        self._heap: list[tuple[int, int, int]] = []
        self._max_count = EXPIRIES_MIN
        self._out: set[int] = set()
        """Blocks that went out, whose elements may have entries yet."""
        self._stale_count = 0
        """How many these may be."""

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_ms(self) -> int | None:
        """The earliest date, None if there is none."""
        return self._heap[0][0] if self._heap else None

    def add(self, at_ms: int, first: int, end: int) -> bool:
        """The elements `first` .. `end - 1` expire then. True if that is the earliest date of all. O(log n) amortised,
        O(n) for the call that clears out.
        """
        if len(self._heap) >= self._max_count:
            self._heap = [entry for entry in self._heap if self._elements.holds_any(entry[1], entry[2])]
            heapq.heapify(self._heap)
            self._max_count = max(EXPIRIES_MIN, 2 * len(self._heap))
        entry = (at_ms, first, end)
        heapq.heappush(self._heap, entry)
        return self._heap[0] is entry

    def move_out(self, indices: Iterable[int]) -> None:
        """These blocks are outside: their dates are forgotten, but for the next of each. O(log n) amortised for each
        date, O(n) for the call that clears out.
        """
        for index in indices:
            block = self._elements.block(index)
            if block is None or block.outside is None:
                continue
            self._out.add(index)
            self._stale_count += block.live_count
            if block.outside.dates.next_ms:
                self.add(block.outside.dates.next_ms, block.base, block.base + block.length)
        if self._stale_count > max(EXPIRIES_MIN, len(self._heap) // 2):
            self._forget_stale()

    def _forget_stale(self) -> None:
        out, self._out, self._stale_count = self._out, set(), 0
        self._heap = [
            entry
            for entry in self._heap
            if entry[1] >> BLOCK_BITS not in out or (entry[2] - 1) >> BLOCK_BITS not in out
        ]
        heapq.heapify(self._heap)
        for index in out:
            block = self._elements.block(index)
            if block is None:
                continue
            if block.outside is None:  # it is in again
                for at_ms, first, end in dates_in(block):
                    self.add(at_ms, first, end)
            elif block.outside.dates.next_ms:
                self.add(block.outside.dates.next_ms, block.base, block.base + block.length)

    def take_due(self, now_ms: int, count_max: int) -> list[int]:
        """Elements past their date that are still there, in order of their sequence, and forget their dates.

        Those that are in memory are asked for their own date: an entry may stand for a whole block that was outside,
        and is in again. Looks at no more than `count_max` of them: the rest is due at once.
        """
        heap = self._heap
        elements = self._elements
        due: set[int] = set()
        while count_max > 0 and heap and heap[0][0] <= now_ms:
            at_ms, first, end = heap[0]
            stop = min(end, first + count_max)
            if stop < end:
                heapq.heapreplace(heap, (at_ms, stop, end))
            else:
                heapq.heappop(heap)
            count_max -= stop - first
            for sequence in elements.live_sequences(first, stop):
                message = elements.get(sequence)
                if message is not None:
                    if 0 < message.expires_at_ms <= now_ms:
                        due.add(sequence)
                elif self._is_due_outside(sequence >> BLOCK_BITS, now_ms):
                    due.add(sequence)
        return sorted(due)

    def _is_due_outside(self, index: int, now_ms: int) -> bool:
        block = self._elements.block(index)
        return block is not None and block.outside is not None and 0 < block.outside.dates.next_ms <= now_ms


def dates_in(block: Block) -> Iterator[tuple[int, int, int]]:
    """Of a block in memory: the dates of its elements, each with the first of those that have it, and their end."""
    if not sum([message.expires_at_ms for message in block.elements if message is not None]):
        return  # as nearly always
    alive = ((block.base + place, message) for place, message in enumerate(block.elements) if message is not None)
    for at_ms, group in groupby(alive, key=lambda pair: pair[1].expires_at_ms):
        if at_ms:
            sequences = [sequence for sequence, _message in group]
            yield at_ms, sequences[0], sequences[-1] + 1
