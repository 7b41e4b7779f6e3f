"""What of a log is in the system's page cache, as far as one can know: so that the dispatch loop does not wait for the
disk when it reads.

What was appended of late is there, and so is what a reader thread has read a while ago (read-ahead: half way through
such a stretch its reader asks for the next). Many readers at one position share a stretch. Source: seed 000 ("ReadAhead
Cache").
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from .ports import Records

if TYPE_CHECKING:
    from .log_readers import LogReaders

TAIL_BYTES: Final = 64 * 1024 * 1024
STRETCH_BYTES: Final = 4 * 1024 * 1024
STRETCHES_MAX: Final = 64


class PageCache:
    """Of one log."""

    __slots__ = ("_recent", "_recent_bytes", "_records", "_stretches", "_waiting", "asked")

    def __init__(self, records: Records) -> None:
        self._records = records
        self._recent: deque[tuple[int, int]] = deque()
        self._recent_bytes = 0
        self._stretches: deque[tuple[int, int]] = deque(maxlen=STRETCHES_MAX)
        self.asked: dict[int, int] = {}
        """Stretches that are being read: from the key to the value."""
        self._waiting: dict[int, dict[LogReaders, None]] = {}
        """Who waits for each of these."""

    def written(self, index: int, size_bytes: int) -> None:
        """So much was appended from this index on."""
        self._recent.append((index, size_bytes))
        self._recent_bytes += size_bytes
        while self._recent_bytes > TAIL_BYTES and len(self._recent) > 1:
            self._recent_bytes -= self._recent.popleft()[1]

    def awaits(self, index: int, outlet: LogReaders) -> bool:
        """Whether this is being read; then the outlet waits for it."""
        for start, stop in self.asked.items():
            if start <= index < stop:
                self._waiting.setdefault(start, {})[outlet] = None
                return True
        return False

    def warmed(self, start: int, stop: int) -> Iterable[LogReaders]:
        """The reader thread has come through here. Returns who waited for that."""
        self.asked.pop(start, None)
        self._stretches.append((start, stop))
        return self._waiting.pop(start, ())

    def covers(self, index: int) -> bool:
        """Reading there does not wait."""
        if self._recent and index >= self._recent[0][0]:
            return True
        return any(start <= index < stop for start, stop in self._stretches)

    def stretch(self, index: int) -> tuple[int, int] | None:
        """What to read ahead for somebody who is at `index`; None: nothing (more) now. O(STRETCHES_MAX)."""
        end = self._records.next_index
        if self._recent:
            end = min(end, self._recent[0][0])
        start = index
        for first, stop in (*self._stretches, *self.asked.items()):
            if first <= index < stop:
                if (index - first) * 2 < stop - first or stop >= end:
                    return None
                start = max(start, stop)
        if start >= end or start in self.asked or any(a <= start < b for a, b in self._stretches):
            return None
        size = self._records.next_index - self._records.first_index
        count = max(1, STRETCH_BYTES * size // max(1, self._records.back_file_size_bytes))
        return start, min(end, start + count)
