"""Clusters from many seeds keep their laws; and the simulation would notice if they did not."""

from __future__ import annotations

from collections import Counter

import attrs
import pytest

from sluiceway.cluster.coordination import session
from sluiceway.cluster.ownership import Ownership
from tests.cluster.simulation import KINDS, Cluster, Plan, failure_of, smallest
from tests.how_often import rounds

GROUPS = rounds(1)
SEEDS_IN_GROUP = 30


@pytest.mark.parametrize("group", range(GROUPS))
def test_laws_hold_whatever_happens(group: int) -> None:
    """More seeds: python -m tests.cluster.play --seeds 10000."""
    injected: Counter[str] = Counter()
    for seed in range(group * SEEDS_IN_GROUP, (group + 1) * SEEDS_IN_GROUP):
        cluster = Cluster(Plan.of(seed))
        try:
            cluster.play()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}; python -m tests.cluster.play --first {seed}") from error
        injected.update(cluster.injected)
    assert set(injected) == set(KINDS), "every kind of fault comes up"


def test_the_same_seed_plays_the_same_history() -> None:
    plans = [Plan.of(11), Plan.of(11)]
    assert plans[0] == plans[1]
    played = [Cluster(plan) for plan in plans]
    for cluster in played:
        cluster.play()
    assert played[0].engine.writes == played[1].engine.writes
    assert [played[0].record(shard) for shard in range(played[0].shards_count)] == [
        played[1].record(shard) for shard in range(played[1].shards_count)
    ]


def test_hubs_that_confirm_without_certainty_break_a_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that believes in its session for too long confirms what another one owns. The history becomes small."""
    monkeypatch.setattr(session, "CERTAIN_SHARE", 30.0)
    monkeypatch.setattr(session, "ENDED_SHARE", 40.0)
    broken = next(plan for plan in map(Plan.of, range(100)) if failure_of(plan))
    least = smallest(broken)
    assert "may confirm" in failure_of(least)
    assert len(least.steps) < len(broken.steps)


def test_hubs_that_never_look_again_break_a_law(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ownership, "_sweep", lambda _self: None)
    plans = (
        attrs.evolve(Plan.of(seed), faults=attrs.evolve(Plan.of(seed).faults, watch_lost_chance=0.9))
        for seed in range(50)
    )
    assert any("is to be open at" in failure_of(plan) for plan in plans)
