"""Limit of the time for expensive answers, however many clients ask.

After an answer that took a millisecond the next one is made nine milliseconds later at the earliest: such answers take
a tenth of the time at most.
"""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.1
"""Maximum share of the time for making answers."""


def rest_seconds(worked_seconds: float) -> float:
    """Return the pause before the next answer after one that took `worked_seconds`."""
    return worked_seconds * (1 - SHARE) / SHARE
