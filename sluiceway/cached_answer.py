"""How much of the time may go into answers that are dear to make, for many who ask.

One that took a millisecond is given to everybody for the next nine milliseconds. So whoever asks, and however often, a
tenth of the time goes into it at most; and an answer is never older than nine times what it takes to make one.
"""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.1
"""Of the time, at most, that goes into making answers."""


def kept_seconds(worked_seconds: float) -> float:
    """For how long an answer is good that took so much work."""
    return worked_seconds * (1 - SHARE) / SHARE
