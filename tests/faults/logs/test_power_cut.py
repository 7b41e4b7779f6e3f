"""Whatever the moment at which the power fails or the process dies: all promises of logs are kept (see claims.py).

`SLUICEWAY_TEST_TIMES=50 scripts/test tests/faults/logs/test_power_cut.py` plays fifty times as many rounds; one that
fails says the command that plays it again.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.faults.logs.power_cut import run_round
from tests.how_often import rounds

ROUNDS_COUNT: Final = rounds(15)
ROUNDS_AT_ONCE: Final = 5
KNOWN: Final = (0, 8, 9, 104)
"""Rounds that found a fault once, at the time."""

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("first", range(10_000, 10_000 + ROUNDS_COUNT, ROUNDS_AT_ONCE))
def test_promises_are_kept_through_crashes_and_power_cuts(first: int) -> None:
    for seed in range(first, min(first + ROUNDS_AT_ONCE, 10_000 + ROUNDS_COUNT)):
        run_round(seed)


@pytest.mark.parametrize("first", range(1_000_000, 1_000_000 + rounds(ROUNDS_AT_ONCE), ROUNDS_AT_ONCE))
def test_promises_are_kept_with_logs_in_the_engine(first: int) -> None:
    """As in a database: no power cut costs a record that was seen."""
    for seed in range(first, first + ROUNDS_AT_ONCE):
        run_round(seed)


@pytest.mark.parametrize("seed", KNOWN)
def test_what_went_wrong_once_goes_right(seed: int) -> None:
    run_round(seed)


def test_a_round_can_be_played_again() -> None:
    """The seed decides all: the same records at the same indexes, and the same ends of lives."""
    first, second = run_round(10_003), run_round(10_003)
    assert first.story == second.story
    for log, claims in first.claims.items():
        assert (claims.at, claims.dates, claims.receipted) == (
            second.claims[log].at, second.claims[log].dates, second.claims[log].receipted,
        )  # fmt: skip
