"""How much of the time may go into answers that take long to make, however many ask.

After one that took a millisecond the next one is made nine milliseconds later at the earliest: a tenth of the time goes
into such answers at most.
"""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.1
"""Of the time, at most, that goes into making answers."""


def rest_seconds(worked_seconds: float) -> float:
    """For how long the next answer is not made after one that took `worked_seconds`."""
    return worked_seconds * (1 - SHARE) / SHARE
