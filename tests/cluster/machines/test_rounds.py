"""A few rounds of faults on three hubs with real services, under load. `python -m tests.cluster.rounds` plays more."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Final

import pytest
import trio

from scripts.scorecard import table
from tests.cluster.coordination.zookeeper_world import missing
from tests.cluster.machines.hubs import three_hubs
from tests.cluster.rounds import play
from tests.how_often import rounds

ROUNDS_COUNT: Final = rounds(1)
PAUSE_SECONDS: Final = 0.02
"""Between two SENDs of a producer: more of them only take processor time, for as long as a session lasts."""

pytestmark = [pytest.mark.slow, pytest.mark.zookeeper, pytest.mark.timeout(180)]


@pytest.mark.parametrize("fault", ["stop", "kill"][: rounds(1)])
def test_nothing_confirmed_is_lost_and_nothing_comes_twice_unmarked(fault: str) -> None:
    """A hub sleeps for longer than its session, and wakes up. That of `serve --hubs` has one that is killed."""
    if missing():
        pytest.skip(f"a ZooKeeper needs {missing()}: pip install 'sluiceway[spark]'")
    with three_hubs() as cluster:
        score = trio.run(partial(play, pause_seconds=PAUSE_SECONDS), cluster, fault, ROUNDS_COUNT, Random(fault))
    assert score.is_clean, "\n".join(table([score.record]))
    assert score.receipted_count > 100, "it was under load"
