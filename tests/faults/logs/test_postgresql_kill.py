"""A real broker with logs and its real PostgreSQL, killed at random moments under load: all promises are kept.

`SLUICEWAY_TEST_TIMES=50 scripts/test tests/faults/logs/test_postgresql_kill.py` kills fifty times as often.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.faults.logs.postgresql_kill import run_round
from tests.how_often import rounds

KILLS_COUNT: Final = rounds(1)
KILLS_AT_ONCE: Final = 1

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.timeout(240)]


@pytest.mark.parametrize("seed", range(-(-KILLS_COUNT // KILLS_AT_ONCE)))
def test_promises_are_kept_through_kill_9_and_crashes_of_the_database(tmp_path: Path, seed: int) -> None:
    claims = run_round(tmp_path, seed, kills_count=KILLS_AT_ONCE).claims
    assert any(each.receipted for each in claims.values()), "it was under load"
