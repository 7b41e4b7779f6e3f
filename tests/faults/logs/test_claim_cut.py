"""Whatever the moment of death: a claim reads the same or nothing, no message is lost, a batch is published once (see
claim_cut.py).

`SLUICEWAY_TEST_TIMES=50 scripts/test tests/faults/logs/test_claim_cut.py` plays fifty times as many rounds; one that
fails says the command that plays it again.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.faults.logs.claim_cut import run_round
from tests.how_often import rounds

ROUNDS_COUNT: Final = rounds(3)
ROUNDS_AT_ONCE: Final = 3
KNOWN: Final = (2, 19)
"""Rounds that found a fault once, at the time."""

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("first", range(20_000, 20_000 + ROUNDS_COUNT, ROUNDS_AT_ONCE))
def test_claims_and_commits_survive_crashes_and_power_cuts(first: int) -> None:
    rounds = [run_round(seed) for seed in range(first, min(first + ROUNDS_AT_ONCE, 20_000 + ROUNDS_COUNT))]
    assert sum(len(played.safe) for played in rounds) > 10


@pytest.mark.parametrize("seed", KNOWN)
def test_what_went_wrong_once_goes_right(seed: int) -> None:
    run_round(seed)
