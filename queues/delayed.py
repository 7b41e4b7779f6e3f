"""Elements that must not be delivered before a time: sent with a delay, or waiting to be tried again.

Two structures over the same sequences, numbers only. A heap of times, with time and sequence packed into one integer (a
million of them take 56 MB; as pairs it would be three times that); and a bit per element, in pieces of 1,024, which
says whether it is in. An element that leaves before its time (dropped or expired) just loses its bit: the heap passes
it over when its time comes, or when half of the heap is dead.

Bound: `count_max`, for callers that ask `is_full` first; 56 bytes each.

Source: DESIGN section 9 (`delay`); seed 002 leaves delays to the queues.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final

from .policy import QueuePolicy

PIECE_BITS: Final = 10
"""Elements whose bits are kept in one integer. At least as many as a block of a queue has."""
PIECE_MASK: Final = (1 << PIECE_BITS) - 1

SEQUENCE_BITS: Final = 48
"""Bits of the sequence in a packed entry: enough for 80 years at 100,000 messages a second. A time of this millennium
fits in three digits of the interpreter's integers beside it.
"""
SEQUENCE_MASK: Final = (1 << SEQUENCE_BITS) - 1

DEAD_MIN: Final = 1024
"""Dead entries that may always lie in the heap."""


class DelayedElements:
    """Sequences, each with the time from which on it may go. Its length: how many there are."""

    __slots__ = ("_bits", "_count", "_heap", "count_max")

    def __init__(self, count_max: int) -> None:
        self._heap: list[int] = []
        self._bits: dict[int, int] = {}
        self._count = 0
        self.count_max = count_max

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        """No more should be put in."""
        return self._count >= self.count_max

    def put(self, sequences: Iterable[int], due_ms: int) -> bool:
        """Add elements, none of which is in, that wait until `due_ms`. Returns whether that may be the earliest time of
        all. O(n log n).
        """
        heap, bits = self._heap, self._bits
        earliest = heap[0] if heap else None
        shifted = due_ms << SEQUENCE_BITS
        for sequence in sequences:
            piece = sequence >> PIECE_BITS
            bits[piece] = bits.get(piece, 0) | 1 << (sequence & PIECE_MASK)
            heapq.heappush(heap, shifted | sequence)
            self._count += 1
        return earliest is None or heap[0] < earliest

    def holds(self, sequence: int) -> bool:
        """Return whether the element waits. O(1)."""
        return bool(self._bits.get(sequence >> PIECE_BITS, 0) >> (sequence & PIECE_MASK) & 1)

    def bits_from(self, base: int) -> int:
        """Bit k: `base + k` waits; as far as the piece goes that `base` lies in. O(1)."""
        return self._bits.get(base >> PIECE_BITS, 0) >> (base & PIECE_MASK)

    def discard(self, sequences: Iterable[int]) -> None:
        """Remove elements before their time, if they are in. O(n), and O(all) when there have been many."""
        bits = self._bits
        for sequence in sequences:
            piece = sequence >> PIECE_BITS
            left = bits.get(piece, 0)
            bit = 1 << (sequence & PIECE_MASK)
            if left & bit:
                self._clear(piece, left ^ bit)
        self._tidy()

    def discard_between(self, start: int, end: int) -> None:
        """Remove the elements from `start` to before `end` before their time. O(pieces), and as above."""
        bits = self._bits
        low, high = start >> PIECE_BITS, (end - 1) >> PIECE_BITS
        for piece in [piece for piece in bits if low <= piece <= high]:
            base = piece << PIECE_BITS
            within = (1 << min(PIECE_MASK + 1, end - base)) - (1 << max(0, start - base))
            gone = bits[piece] & within
            if gone:
                self._count -= gone.bit_count()
                bits[piece] ^= gone
                if not bits[piece]:
                    del bits[piece]
        self._tidy()

    def _tidy(self) -> None:
        """Drop dead entries of the heap, if they are more than half of it."""
        if len(self._heap) > 2 * self._count + DEAD_MIN:
            self._heap = [entry for entry in self._heap if self.holds(entry & SEQUENCE_MASK)]
            heapq.heapify(self._heap)

    def _clear(self, piece: int, left: int) -> None:
        self._count -= 1
        if left:
            self._bits[piece] = left
        else:
            del self._bits[piece]

    @property
    def next_ms(self) -> int | None:
        """The earliest time, None if nothing waits. O(log n) amortised."""
        heap = self._heap
        while heap and not self.holds(heap[0] & SEQUENCE_MASK):
            heapq.heappop(heap)
        return heap[0] >> SEQUENCE_BITS if heap else None

    def take_due(self, now_ms: int, count_max: int) -> list[int]:
        """Take out at most `count_max` elements that are due, the earliest first. O(n log n)."""
        heap, bits = self._heap, self._bits
        due: list[int] = []
        end = (now_ms + 1) << SEQUENCE_BITS
        while heap and heap[0] < end and len(due) < count_max:
            sequence = heapq.heappop(heap) & SEQUENCE_MASK
            piece = sequence >> PIECE_BITS
            left = bits.get(piece, 0)
            bit = 1 << (sequence & PIECE_MASK)
            if left & bit:
                self._clear(piece, left ^ bit)
                due.append(sequence)
        return due

    def lowest(self) -> int | None:
        """Return the lowest sequence that waits, whatever its time, or None. O(pieces)."""
        if not self._bits:
            return None
        piece = min(self._bits)
        bits = self._bits[piece]
        return (piece << PIECE_BITS) + (bits & -bits).bit_length() - 1


def backoff_ms(policy: QueuePolicy, count: int) -> int:
    """Return the delay before the next attempt of a message that has failed `count` times."""
    most_ms = max(policy.redelivery_delay_ms, policy.redelivery_delay_max_ms)
    try:
        return int(min(policy.redelivery_delay_ms * policy.redelivery_backoff ** (count - 1), most_ms))
    except OverflowError:
        return most_ms
