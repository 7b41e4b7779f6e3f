"""Estimate of what of a log is in the system's page cache, so that the dispatch loop does not wait for disk reads.

Recently appended bytes are cached, and so are stretches that a reader thread has read recently (read-ahead: half way
through a stretch its reader requests the next). Readers at one position share a stretch.

Source: seed 000 ("ReadAhead Cache").
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, Generic, TypeVar

from .ports import Records

R = TypeVar("R")

TAIL_BYTES: Final = 64 * 1024 * 1024
STRETCH_BYTES: Final = 4 * 1024 * 1024
STRETCHES_MAX: Final = 64


class PageCache(Generic[R]):
    """Cached stretches of one log, whose readers are of class R."""

    __slots__ = ("_recent", "_recent_bytes", "_records", "_stretches", "_waiting", "asked")

    def __init__(self, records: Records) -> None:
        self._records = records
        self._recent: deque[tuple[int, int]] = deque()
        self._recent_bytes = 0
        self._stretches: deque[tuple[int, int]] = deque(maxlen=STRETCHES_MAX)
        self.asked: dict[int, int] = {}
        """Stretches being read: first index to end."""
        self._waiting: dict[int, dict[R, None]] = {}
        """Readers that wait for each of these stretches."""

    def written(self, index: int, size_bytes: int) -> None:
        """Note that `size_bytes` were appended from `index` on."""
        self._recent.append((index, size_bytes))
        self._recent_bytes += size_bytes
        while self._recent_bytes > TAIL_BYTES and len(self._recent) > 1:
            self._recent_bytes -= self._recent.popleft()[1]

    def awaits(self, index: int, outlet: R) -> bool:
        """Return whether `index` is being read; if so, note that the reader waits for it."""
        for start, stop in self.asked.items():
            if start <= index < stop:
                self._waiting.setdefault(start, {})[outlet] = None
                return True
        return False

    def warmed(self, start: int, stop: int) -> Iterable[R]:
        """Note that the reader thread has read the stretch; return the readers that waited for it."""
        self.asked.pop(start, None)
        self._stretches.append((start, stop))
        return self._waiting.pop(start, ())

    def covers(self, index: int) -> bool:
        """Return whether reading at `index` does not wait for the disk."""
        if self._recent and index >= self._recent[0][0]:
            return True
        return any(start <= index < stop for start, stop in self._stretches)

    def stretch(self, index: int) -> tuple[int, int] | None:
        """Return the stretch to read ahead for a reader at `index`; None: nothing now. O(STRETCHES_MAX)."""
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
