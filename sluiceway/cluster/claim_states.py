"""States of one hub's claim on one shard, and the legal moves between them.

    ELSEWHERE ──▶ WANTED ──▶ CLAIMING ──▶ OPENING ──▶ OPEN ──▶ CLOSING ──▶ ELSEWHERE
                                │            │          │         │
    session ended:              └────────────┴──────────┴─────────┴──▶ ABANDONED ──▶ ELSEWHERE, with the next session

From CLAIMING on the record may carry the name of this hub. The hub answers for the shard in OPEN alone, and confirms
only while its session is certain.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class ClaimState(Enum):
    """State of a claim."""

    ELSEWHERE = "elsewhere"
    """Another hub has the shard or is to have it, or none can."""
    WANTED = "wanted"
    """Claim to be made: this hub reads the record, and whether the owner lives."""
    CLAIMING = "claiming"
    """The record is being written."""
    OPENING = "opening"
    """The record is this hub's; the shard is being opened, or will be once more after a failure."""
    OPEN = "open"
    CLOSING = "closing"
    """The shard is being closed in order; then the record is released."""
    ABANDONED = "abandoned"
    """The session ended: the shard was dropped as it stood."""


MOVES: Final[Mapping[ClaimState, frozenset[ClaimState]]] = {
    ClaimState.ELSEWHERE: frozenset({ClaimState.WANTED}),
    ClaimState.WANTED: frozenset({ClaimState.CLAIMING, ClaimState.ELSEWHERE}),
    ClaimState.CLAIMING: frozenset({ClaimState.OPENING, ClaimState.ELSEWHERE, ClaimState.ABANDONED}),
    ClaimState.OPENING: frozenset({ClaimState.OPEN, ClaimState.CLOSING, ClaimState.ABANDONED}),
    ClaimState.OPEN: frozenset({ClaimState.CLOSING, ClaimState.ABANDONED}),
    ClaimState.CLOSING: frozenset({ClaimState.ELSEWHERE, ClaimState.ABANDONED}),
    ClaimState.ABANDONED: frozenset({ClaimState.ELSEWHERE}),
}
"""Legal moves."""


class ClaimMoveError(AssertionError):
    """A claim was to make a move that the table does not have: a mistake of the program."""


def moved(before: ClaimState, after: ClaimState) -> ClaimState:
    """Return `after`. Raises ClaimMoveError if the move is not legal."""
    if after not in MOVES[before]:
        raise ClaimMoveError(f"a claim can't go from {before.value} to {after.value}")
    return after
