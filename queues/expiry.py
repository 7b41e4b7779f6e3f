"""Expiry dates of the elements of a queue, and one timer for the earliest date.

Elements that are due expire in portions (EXPIRE_COUNT), so that a backlog that expires together does not stall the
broker.

A run has one date, so there is one entry per run, in a heap. Entries of runs that were consumed in time are cleared out
when they may be half of all, so there are about two and a half times as many as there are runs with a date in the
queue, at most.

A block that is outside has one entry, for the next of its dates. Those that its elements had are cleared out when they,
too, may be half of all. Until then they are passed over.

Clearing out is done a few entries at a time, with each date that is added (SWEEP_COUNT) and each block that goes out
(BLOCK_SWEEP_COUNT): the heap becomes the old one, from whose end entries that are still valid are moved to the new one.
A heap without its last entry is a heap.

Not here: the effect of expiry (removal.py, topic.py).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from itertools import groupby
from typing import Final, Protocol

from .blocks import Block
from .cursored import BLOCK_BITS, CursoredQueue
from .environment import QueueEnvironment, TimerHandle

EXPIRE_COUNT: Final = 512
"""Expired elements that are checked at once: about a millisecond of work."""

EXPIRIES_MIN: Final = 256
"""Dates that may always be kept; only beyond that is it worth looking for dead ones."""

SWEEP_COUNT: Final = 2
"""Entries that are checked with each date that is added, while the old ones are cleared out."""

BLOCK_SWEEP_COUNT: Final = 256
"""Entries that are checked with each block that goes out."""


class ExpiryDates:
    """The dates of the elements of one queue."""

    __slots__ = ("_elements", "_heap", "_max_count", "_old", "_stale_count")

    def __init__(self, elements: CursoredQueue) -> None:
        self._elements = elements
        self._heap: list[tuple[int, int, int]] = []
        self._old: list[tuple[int, int, int]] = []
        """Heap of old entries that are still to be checked. Empty: nothing is being cleared out."""
        self._max_count = EXPIRIES_MIN
        self._stale_count = 0
        """Largest number of entries of elements that went out since they were added."""

    def __len__(self) -> int:
        return len(self._heap) + len(self._old)

    @property
    def next_ms(self) -> int | None:
        """Earliest date, None if there is none."""
        heap, old = self._heap, self._old
        if not old:
            return heap[0][0] if heap else None
        return min(heap[0][0], old[0][0]) if heap else old[0][0]

    def add(self, at_ms: int, first: int, end: int) -> bool:
        """The elements `first` .. `end - 1` expire then. True if that is the earliest date of all. O(log n)."""
        if self._old:
            self._sweep(SWEEP_COUNT)
        elif len(self._heap) >= self._max_count:
            self._begin_sweep()
        next_ms = self.next_ms
        heapq.heappush(self._heap, (at_ms, first, end))
        return next_ms is None or at_ms < next_ms

    def move_out(self, indices: Iterable[int]) -> None:
        """Forget the dates of blocks that are outside, but for the next date of each. O(log n) for each block."""
        for index in indices:
            block = self._elements.block(index)
            if block is None or block.outside is None:
                continue
            self._stale_count += block.live_count
            if block.outside.dates.next_ms:
                self.add(block.outside.dates.next_ms, block.base, block.base + block.length)
            self._sweep(BLOCK_SWEEP_COUNT)
        if not self._old and self._stale_count > max(EXPIRIES_MIN, len(self._heap) // 2):
            self._begin_sweep()

    def _begin_sweep(self) -> None:
        self._old, self._heap = self._heap, []
        self._stale_count = 0

    def _sweep(self, count_max: int) -> None:
        """Check up to `count_max` of the old entries, and keep those that are valid."""
        old = self._old
        if not old:
            return
        for _ in range(min(count_max, len(old))):
            entry = old.pop()
            if self._counts(entry):
                heapq.heappush(self._heap, entry)
        if not old:
            self._max_count = max(EXPIRIES_MIN, 2 * len(self._heap))

    def _counts(self, entry: tuple[int, int, int]) -> bool:
        """Return whether an element of the entry is still there, and no entry of a block outside covers all of it."""
        _at_ms, first, end = entry
        elements = self._elements
        if not elements.holds_any(first, end):
            return False
        for index in range(first >> BLOCK_BITS, ((end - 1) >> BLOCK_BITS) + 1):
            block = elements.block(index)
            if block is not None and (
                block.outside is None or (block.base <= first and end == block.base + block.length)
            ):
                return True
        return False

    def take_due(self, now_ms: int, count_max: int) -> list[int]:
        """Return expired elements that are still there, in order of their sequence, and forget their dates.

        Elements in memory are checked for their own date: an entry may stand for a whole block that was outside, and is
        in again. Checks at most `count_max` elements: the rest is due at once.
        """
        elements = self._elements
        due: set[int] = set()
        while count_max > 0:
            heap = self._heap
            if self._old and (not heap or self._old[0] < heap[0]):
                heap = self._old
            if not heap or heap[0][0] > now_ms:
                break
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


class ExpiryOwner(Protocol):
    """Part of a queue that `Expiry` uses."""

    elements: CursoredQueue
    closed: bool

    @property
    def expire_count(self) -> int:
        """Number of expired elements that are checked at once."""

    def expire(self, sequences: SequenceOf[int]) -> None:
        """Remove the expired elements that no consumer holds, count them, and release their space (once: a source that
        resumes then may add or close). `sequences` ascend.
        """


class Expiry:
    """The dates of one queue's elements, and one timer for the earliest.

    Attributes:
        is_needed: some element has had a date. Plain, because the hot path reads it.
    """

    __slots__ = ("_dates", "_environment", "_queue", "_timer", "is_needed")

    def __init__(self, queue: ExpiryOwner, environment: QueueEnvironment) -> None:
        self._queue = queue
        self._environment = environment
        self._dates: ExpiryDates | None = None
        self._timer: TimerHandle | None = None
        self.is_needed = False

    def note(self, at_ms: int, first: int, end: int) -> None:
        """The elements `first` .. `end - 1` expire then. O(log dates)."""
        if self._dates is None:
            self._dates = ExpiryDates(self._queue.elements)
            self.is_needed = True
        if self._dates.add(at_ms, first, end):
            self._arm()

    def note_block(self, block: Block) -> None:
        """Note the dates of a block that is in memory again."""
        for at_ms, first, end in dates_in(block):
            self.note(at_ms, first, end)

    def move_out(self, indices: list[int]) -> None:
        """Keep one date for each of the blocks, which are outside."""
        if self._dates is not None:
            self._dates.move_out(indices)
            self._arm()

    def run_due(self) -> None:
        """Expire a portion of the due elements, and schedule the next one at once."""
        self._timer = None
        assert self._dates is not None, "a timer runs only for dates"
        due = self._dates.take_due(self._environment.now_ms(), self._queue.expire_count)
        if due:
            self._queue.expire(due)
        self._arm()

    def close(self) -> None:
        """Let nothing expire any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __len__(self) -> int:
        """Return the number of entries that the dates take."""
        return 0 if self._dates is None else len(self._dates)

    def _arm(self) -> None:
        self.close()
        next_ms = None if self._dates is None else self._dates.next_ms
        if next_ms is not None and not self._queue.closed:
            delay_ms = max(0, next_ms - self._environment.now_ms())
            self._timer = self._environment.scheduling.call_later(delay_ms / 1000, self.run_due)


def dates_in(block: Block) -> Iterator[tuple[int, int, int]]:
    """Yield the dates of the elements of a block in memory, each with the first element that has it and the end of the
    elements.
    """
    if not sum([message.expires_at_ms for message in block.elements if message is not None]):
        return  # the usual case
    alive = ((block.base + place, message) for place, message in enumerate(block.elements) if message is not None)
    for at_ms, group in groupby(alive, key=lambda pair: pair[1].expires_at_ms):
        if at_ms:
            sequences = [sequence for sequence, _message in group]
            yield at_ms, sequences[0], sequences[-1] + 1
