"""Waits between attempts to connect: twice as long each time, with a random share, so that many clients of a restarted
broker do not arrive at once.
"""

from __future__ import annotations

import random
from typing import Final

FIRST_SECONDS: Final = 0.1
MOST_SECONDS: Final = 10.0


class Backoff:
    """The waits of one connection."""

    def __init__(self, first_seconds: float = FIRST_SECONDS, most_seconds: float = MOST_SECONDS) -> None:
        self._first_seconds = first_seconds
        self._most_seconds = most_seconds
        self._next_seconds = first_seconds

    def succeeded(self) -> None:
        """Begin anew with the shortest wait."""
        self._next_seconds = self._first_seconds

    def next_seconds(self) -> float:
        """Return the next wait: between half and all of the current length."""
        seconds = self._next_seconds
        self._next_seconds = min(2 * seconds, self._most_seconds)
        return seconds * random.uniform(0.5, 1.0)
