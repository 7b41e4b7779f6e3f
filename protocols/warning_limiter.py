"""Says a thing once when it begins, and how often when it happens again later: for what any stranger can cause.

Pure: the clock is passed in. Bound: `KEYS_MAX` kinds of things; when there are more, the oldest is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

QUIET_SECONDS: Final = 60.0
KEYS_MAX: Final = 64


class WarningLimiter:
    """Counts what happens, by kind."""

    __slots__ = ("_clock", "_quiet_seconds", "_seen")

    def __init__(self, clock: Callable[[], float], quiet_seconds: float = QUIET_SECONDS) -> None:
        self._clock = clock
        self._quiet_seconds = quiet_seconds
        self._seen: dict[str, tuple[float, int]] = {}
        """Time of the last log line of each kind, and the number of events since."""

    def say(self, kind: str) -> int | None:
        """Count an event. Returns None if its kind was logged within the last `quiet_seconds`; else it is to be logged
        now, and the result is the number of events since the last log line (this one not counted).
        """
        now = self._clock()
        last = self._seen.get(kind)
        if last is not None and now - last[0] < self._quiet_seconds:
            self._seen[kind] = (last[0], last[1] + 1)
            return None
        if last is None and len(self._seen) >= KEYS_MAX:
            del self._seen[next(iter(self._seen))]
        self._seen.pop(kind, None)  # so that the first is the one that was logged the longest ago
        self._seen[kind] = (now, 0)
        return 0 if last is None else last[1]
