"""`kill -9` of a real broker with logs, at random moments under load: all promises are kept (see claims.py).

`FAULT_KILLS=500 scripts/test tests/faults/logs/test_kill.py` kills so often.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from tests.faults.logs.kill import run_round

KILLS_COUNT: Final = int(os.environ.get("FAULT_KILLS", "6"))
KILLS_AT_ONCE: Final = 3

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.timeout(240)]


@pytest.mark.parametrize("seed", range(-(-KILLS_COUNT // KILLS_AT_ONCE)))
def test_promises_are_kept_through_kill_9(tmp_path: Path, seed: int) -> None:
    claims = run_round(tmp_path, seed, kills_count=KILLS_AT_ONCE).claims
    assert any(each.receipted for each in claims.values()), "it was under load"
