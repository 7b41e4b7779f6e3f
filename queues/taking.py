"""Whether consumers take what a queue holds, or are away or slow for long: who pages, and who waits.

While consumers take, senders wait for them: what would go to the disk now would have to come back in a moment, and the
disk is the slowest part of the way. Consumers that are away, or so slow that they have work for long, should hold
nobody up: then the queue goes to the disk.

*The rule.* It is asked for while messages take more than their share of memory (paging.py). Over PATIENCE_SECONDS it is
counted how many messages consumers have taken. At that rate they would take all that the queue holds within
DRAIN_SECONDS: they take. Otherwise they are slow, and stay so for the next PATIENCE_SECONDS at least. A queue that
nobody consumes, and has not for PATIENCE_SECONDS, need not be measured.

*What follows.* A consumer that stops is waited for no longer than PATIENCE_SECONDS, whatever it waits for; so no cycle
of queues and clients stands still. One that takes is waited for DRAIN_SECONDS at most: then it has taken all there was.
What a pause makes a queue page comes back at the disk's rate, so a pattern of pauses costs at most what the disk is
slower than the consumer, for as long as the pauses exceeded PATIENCE_SECONDS.

Pure: counts and a clock reading in, a verdict out. O(1).
"""

from __future__ import annotations

from typing import Final

PATIENCE_SECONDS: Final = 2.0
"""So long senders wait for consumers that take nothing. A pause for the garbage collector, a query, or a new start of a
worker is shorter; a client that waits for a receipt waits longer than this."""

DRAIN_SECONDS: Final = 30.0
"""Consumers that need longer for all that the queue holds are slow. With 64 MiB of 1 KiB: less than 1,800 a second."""

NEVER: Final = float("-inf")


class Taking:
    """What is known of the consumers of one queue."""

    __slots__ = ("_counted_seconds", "_is_slow", "_left_seconds", "_taken_count")

    def __init__(self) -> None:
        self._left_seconds = NEVER
        """When the last consumer went."""
        self._counted_seconds = NEVER
        """Since when it is counted."""
        self._taken_count = 0
        """How many had been taken then."""
        self._is_slow = False

    def left(self, now_seconds: float) -> None:
        """The last consumer has gone."""
        self._left_seconds = now_seconds

    def looks_again_at(self) -> float:
        """When the verdict may change."""
        return self._counted_seconds + PATIENCE_SECONDS

    def is_slow(self, now_seconds: float, *, is_consumed: bool, taken_count: int, held_count: int) -> bool:
        """Whether to page, now that memory is used up. `taken_count`: how many messages consumers have ever taken;
        `held_count`: how many the queue holds.
        """
        passed_seconds = now_seconds - self._counted_seconds
        if now_seconds >= self.looks_again_at():  # the same sum for whoever sets a timer by it
            if passed_seconds < 2 * PATIENCE_SECONDS:
                taken_per_second = (taken_count - self._taken_count) / passed_seconds
                self._is_slow = held_count > taken_per_second * DRAIN_SECONDS
            else:  # nobody asked for a while: there was room
                self._is_slow = not is_consumed and now_seconds - self._left_seconds >= PATIENCE_SECONDS
            self._counted_seconds = now_seconds
            self._taken_count = taken_count
        return self._is_slow
