"""Weighted rendezvous: what must move moves, and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluiceway.cluster.coordination.port import Hub
from sluiceway.cluster.rendezvous import chosen

SHARDS = range(256)
NAMES = st.lists(st.integers(1, 40).map(lambda number: f"hub-{number}"), min_size=1, max_size=8, unique=True)
WEIGHTS = st.sampled_from([0.5, 1.0, 3.0])


def placed(hubs: list[Hub]) -> list[str | None]:
    return [chosen(hubs, shard) for shard in SHARDS]


@given(NAMES, st.data())
def test_a_hub_that_joins_only_takes(names: list[str], data: st.DataObject) -> None:
    hubs = [Hub(name, weight=data.draw(WEIGHTS)) for name in names]
    for before, after in zip(placed(hubs), placed([*hubs, Hub("new", weight=2.0)]), strict=True):
        assert after in (before, "new")


@given(NAMES, st.data())
def test_more_weight_only_takes(names: list[str], data: st.DataObject) -> None:
    hubs = [Hub(name, weight=data.draw(WEIGHTS)) for name in names]
    heavier = [Hub(hubs[0].name, weight=hubs[0].weight * 2), *hubs[1:]]
    for before, after in zip(placed(hubs), placed(heavier), strict=True):
        assert after in (before, hubs[0].name)


@given(st.permutations([Hub("a"), Hub("b", weight=2.0), Hub("c")]))
def test_the_order_of_hubs_does_not_matter(hubs: list[Hub]) -> None:
    assert placed(hubs) == placed(sorted(hubs, key=lambda hub: hub.name))


def test_shares_follow_weights() -> None:
    where = [chosen([Hub("a", weight=1.0), Hub("b", weight=3.0)], shard) for shard in range(8_000)]
    assert 1_800 < where.count("a") < 2_200


def test_a_hub_without_weight_takes_nothing() -> None:
    assert set(placed([Hub("a", weight=0.0), Hub("b")])) == {"b"}
    assert set(placed([Hub("a", weight=0.0)])) == {None}
    assert set(placed([])) == {None}


def test_the_choice_is_the_same_in_every_version() -> None:
    """A change of the hash would move shards between hubs of two versions to and fro."""
    hubs = [Hub("hub-1"), Hub("hub-2"), Hub("hub-3", weight=2.0)]
    assert [str(chosen(hubs, shard))[-1] for shard in range(16)] == list("3133333332111322")
