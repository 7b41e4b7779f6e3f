"""Verdict whether the consumers of a queue take its messages, or are away or slow for long; it decides between waiting
and paging.

While consumers take, senders wait for them: a message that goes to the disk would have to come back in a moment, and
the disk is the slowest part of the way. Consumers that are away, or so slow that they have work for long, should not
block senders: then the queue goes to the disk.

*The rule.* The verdict is asked for while messages take more than their share of memory (paging.py). The messages that
consumers take are counted over PATIENCE_SECONDS. If at that rate they would take all messages of the queue within
DRAIN_SECONDS, they take. Otherwise they are slow, and stay so for the next PATIENCE_SECONDS at least. A queue without
consumers for PATIENCE_SECONDS need not be measured.

*Consequences.* Senders wait for a consumer that stops at most PATIENCE_SECONDS, whatever it waits for; so no cycle of
queues and clients is stuck. They wait for one that takes at most DRAIN_SECONDS: then it has taken all messages.
Messages paged out because of a pause come back at the disk's rate, so a pattern of pauses costs at most the difference
between disk and consumer, for as long as the pauses exceeded PATIENCE_SECONDS.

Pure: counts and a clock reading in, a verdict out. O(1).
"""

from __future__ import annotations

from typing import Final

PATIENCE_SECONDS: Final = 2.0
"""Seconds that senders wait for consumers that take nothing. A pause for the garbage collector, a query, or a new start
of a worker is shorter; a client that waits for a receipt waits longer than this.
"""

DRAIN_SECONDS: Final = 30.0
"""Seconds within which consumers have to take all messages of the queue; those that need longer are slow. With 64 MiB
of 1 KiB: less than 1,800 a second.
"""

NEVER: Final = float("-inf")


class Taking:
    """Record of how the consumers of one queue take elements."""

    __slots__ = ("_counted_seconds", "_is_slow", "_left_seconds", "_taken_count")

    def __init__(self) -> None:
        self._left_seconds = NEVER
        """Clock reading when the last consumer detached."""
        self._counted_seconds = NEVER
        """Clock reading at which the count began."""
        self._taken_count = 0
        """Number of elements taken before the count began."""
        self._is_slow = False

    def left(self, now_seconds: float) -> None:
        """Note that the last consumer has detached."""
        self._left_seconds = now_seconds

    def next_check_at(self) -> float:
        """Return the clock reading at which the verdict may change."""
        return self._counted_seconds + PATIENCE_SECONDS

    def is_slow(self, now_seconds: float, *, is_consumed: bool, taken_count: int, held_count: int) -> bool:
        """Whether to page, now that memory is used up. `taken_count`: how many messages consumers have ever taken;
        `held_count`: how many the queue holds.
        """
        passed_seconds = now_seconds - self._counted_seconds
        if now_seconds >= self.next_check_at():  # the same sum as for a timer that is set by it
            if passed_seconds < 2 * PATIENCE_SECONDS:
                taken_per_second = (taken_count - self._taken_count) / passed_seconds
                self._is_slow = held_count > taken_per_second * DRAIN_SECONDS
            else:  # not asked for a while: there was room
                self._is_slow = not is_consumed and now_seconds - self._left_seconds >= PATIENCE_SECONDS
            self._counted_seconds = now_seconds
            self._taken_count = taken_count
        return self._is_slow
