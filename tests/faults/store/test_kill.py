"""`kill -9` of a real broker on LevelDB, at random moments under load: all promises are kept (see claims.py).

`SLUICEWAY_TEST_TIMES=50 scripts/test tests/faults/store/test_kill.py` kills fifty times as often.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from sluiceway.queues.shard_hash import shard_of
from tests.faults.store.kill import QUEUES, run_round
from tests.how_often import rounds

KILLS_COUNT: Final = rounds(2)
KILLS_AT_ONCE: Final = 2

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.timeout(180)]


@pytest.mark.parametrize("seed", range(-(-KILLS_COUNT // KILLS_AT_ONCE)))
def test_promises_are_kept_through_kill_9(tmp_path: Path, seed: int) -> None:
    claims = run_round(tmp_path, seed, kills_count=KILLS_AT_ONCE).claims
    assert claims.delivered_count, "it was under load"


def test_promises_are_kept_through_kill_9_with_several_shards(tmp_path: Path) -> None:
    """The queues of a round are in more than one of them."""
    assert len({shard_of(name, 4) for name in QUEUES}) > 1
    claims = run_round(tmp_path, 0, kills_count=1, shards_count=4).claims
    assert claims.delivered_count, "it was under load"
