"""An answer that is dear to make, for many who ask: made seldom enough not to hold the others up.

One that took a millisecond is given to everybody for the next nine milliseconds. So whoever asks, and however often, a
tenth of the time goes into it at most; and an answer is never older than nine times what it takes to make one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

SHARE: Final = 0.1
"""Of the time, at most, that goes into making answers."""


class RationedAnswers:
    """The latest answer, made anew when it is due."""

    def __init__(self, make: Callable[[], bytes], clock: Callable[[], float] = time.perf_counter) -> None:
        """`clock` in seconds: of this machine, not of a simulation, because it measures work."""
        self._make = make
        self._clock = clock
        self._answer = b""
        self._due_seconds = -float("inf")

    def get(self) -> bytes:
        """An answer, perhaps the one that others got."""
        began = self._clock()
        if began >= self._due_seconds:
            self._answer = self._make()
            ended = self._clock()
            self._due_seconds = ended + (ended - began) * (1 - SHARE) / SHARE
        return self._answer
