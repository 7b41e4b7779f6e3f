"""Ages of messages, derived from their numbers: no message carries a time of its own.

Numbers are given in order, broker-wide. A mark says which number was next at some moment; at the last mark that is not
above a message's number the message had not come yet, so an age is exact to the interval between marks, and never too
small. Marks are made by `sluiceway.loop_monitor`, once a second, and only where numbers were given meanwhile.

Messages of an earlier run count from the start of this one.

Bound: MARKS_MAX marks of 16 bytes. When they are used up, every second one of the older half goes: an age of hours is
known to the minute then.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final

MARKS_MAX: Final = 4096


class Ages:
    """Numbers to times."""

    __slots__ = ("_numbers", "_seconds")

    def __init__(self, now_seconds: float, next_number: int) -> None:
        """The run begins now; `next_number` is the first that it gives."""
        # Two marks: the first one stays, for what came before, while the second one moves as long as all is quiet.
        self._numbers = array("Q", [0, next_number])
        self._seconds = array("d", [now_seconds, now_seconds])

    def mark(self, now_seconds: float, next_number: int) -> None:
        """Note that no number from `next_number` on was given until now. O(1), now and then O(MARKS_MAX)."""
        if next_number == self._numbers[-1]:
            self._seconds[-1] = now_seconds  # quiet meanwhile: what comes next is no older than this
            return
        if len(self._numbers) >= MARKS_MAX:
            self._thin_out()
        self._numbers.append(next_number)
        self._seconds.append(now_seconds)

    def came_at(self, number: int) -> float:
        """Clock reading: the message of this number came no earlier. O(log MARKS_MAX)."""
        return self._seconds[max(0, bisect_right(self._numbers, number) - 1)]

    def _thin_out(self) -> None:
        half = len(self._numbers) // 2
        # The earlier one of two stays, so that no age becomes smaller.
        self._numbers = self._numbers[:half:2] + self._numbers[half:]
        self._seconds = self._seconds[:half:2] + self._seconds[half:]
