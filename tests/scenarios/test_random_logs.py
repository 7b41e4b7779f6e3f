"""Random sessions with logs: whatever they do, no record is lost, doubled or moved. What is done and claimed is in
random_logs.py; thousands of rounds: `python -m tests.scenarios.random_logs --from 1000 --rounds 5000`.
"""

from __future__ import annotations

import pytest

from tests.how_often import rounds
from tests.scenarios.random_logs import run_round

ROUNDS_PER_PART = 8


@pytest.mark.parametrize("part", range(rounds(1)))
def test_random_sessions_with_logs_break_no_claim(part: int) -> None:
    """And they do meet what they are made for."""
    rounds = [run_round(seed) for seed in range(part * ROUNDS_PER_PART, (part + 1) * ROUNDS_PER_PART)]
    assert sum(played.receipted_count for played in rounds) > 500
    assert sum(played.read_count for played in rounds) > 200
    assert sum(played.settled_count for played in rounds) > 5
