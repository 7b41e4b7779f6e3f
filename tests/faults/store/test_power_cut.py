"""Whatever the moment at which the power fails or the process dies: all promises to clients are kept (see claims.py).

`SLUICEWAY_TEST_TIMES=50 scripts/test tests/faults/store/test_power_cut.py` plays fifty times as many rounds; one that
fails says the command that plays it again.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.faults.store.power_cut import LARGE_COUNT, LARGE_SEEDS, RELAY_SEEDS, run_round
from tests.how_often import rounds

ROUNDS_COUNT: Final = rounds(30)
ROUNDS_AT_ONCE: Final = 10
LARGE_AT_ONCE: Final = 4
KNOWN: Final = (7, 18, 39, 59, 111, 240, 360, 385, 643, 1060, 1111, 10_016, 20_167, 20_200, 30_009)
"""Rounds that found a fault once, at the time."""


@pytest.mark.parametrize("first", range(10_000, 10_000 + ROUNDS_COUNT, ROUNDS_AT_ONCE))
def test_promises_are_kept_through_crashes_and_power_cuts(first: int) -> None:
    for seed in range(first, min(first + ROUNDS_AT_ONCE, 10_000 + ROUNDS_COUNT)):
        run_round(seed)


@pytest.mark.timeout(300)
def test_promises_are_kept_through_ends_in_the_midst_of_large_transactions() -> None:
    """And rounds do end there."""
    first = LARGE_SEEDS + 5
    played = [run_round(seed) for seed in range(first, first + rounds(2))]
    commitments = [commitment for each in played for commitment in each.claims.commitments]
    large = [commitment for commitment in commitments if len(commitment.sends) > LARGE_COUNT]
    assert any(commitment.confirmed for commitment in large)
    assert any(commitment.committed_in is not None and not commitment.confirmed for commitment in large)


@pytest.mark.parametrize("first", range(RELAY_SEEDS, RELAY_SEEDS + rounds(LARGE_AT_ONCE), LARGE_AT_ONCE))
def test_promises_are_kept_beside_a_relay(first: int) -> None:
    """What it hands on comes once, or marked, also of transactions that waited for it on the disk."""
    for seed in range(first, first + LARGE_AT_ONCE):
        run_round(seed)


@pytest.mark.parametrize("seed", KNOWN)
def test_what_went_wrong_once_goes_right(seed: int) -> None:
    run_round(seed)


def test_a_round_can_be_played_again() -> None:
    """The seed decides all: the same messages, deliveries and ends of lives."""
    first, second = run_round(10_003), run_round(10_003)
    assert first.story == second.story
    assert [sent.history for sent in first.claims.messages.values()] == [
        sent.history for sent in second.claims.messages.values()
    ]
