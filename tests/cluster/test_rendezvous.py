"""Bounded rendezvous: loads are even, what must move moves, and nothing else."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from sluiceway.cluster.coordination.port import Hub
from sluiceway.cluster.rendezvous import placed

WEIGHTS = st.sampled_from([0.5, 1.0, 1.0, 1.0, 3.0])
HUBS = st.lists(
    st.builds(Hub, st.integers(1, 40).map(lambda number: f"hub-{number}"), weight=WEIGHTS),
    min_size=1,
    max_size=7,
    unique_by=lambda hub: hub.name,
)
SHARDS_COUNTS = st.sampled_from([1, 4, 32, 64])
NEW = Hub("new", weight=2.0)


def chosen(hubs: list[Hub], owners: list[str], pinned: list[str] | None = None) -> list[str]:
    return list(placed(hubs, owners, pinned or [""] * len(owners)))


def share(hub: Hub, hubs: list[Hub], shards_count: int) -> Fraction:
    return shards_count * Fraction(hub.weight) / sum(Fraction(one.weight) for one in hubs)


@given(HUBS, SHARDS_COUNTS, st.data())
def test_each_hub_has_its_share_rounded_down_or_up(hubs: list[Hub], shards_count: int, data: st.DataObject) -> None:
    """Whoever had the shards before: these hubs, hubs that are gone, or nobody."""
    names = ["", "gone", *(hub.name for hub in hubs)]
    owners = data.draw(st.lists(st.sampled_from(names), min_size=shards_count, max_size=shards_count))
    counts = Counter(chosen(hubs, owners))
    for hub in hubs:
        exact = share(hub, hubs, shards_count)
        assert math.floor(exact) <= counts[hub.name] <= math.ceil(exact)
    assert counts.total() == shards_count and set(counts) <= {hub.name for hub in hubs}


@given(HUBS, SHARDS_COUNTS)
def test_what_is_chosen_stays(hubs: list[Hub], shards_count: int) -> None:
    first = chosen(hubs, [""] * shards_count)
    assert chosen(hubs, first) == first
    assert chosen(hubs[::-1], first) == first, "the order of hubs does not matter"


@given(HUBS, SHARDS_COUNTS)
def test_a_hub_that_joins_takes_its_share_and_moves_nothing_else(hubs: list[Hub], shards_count: int) -> None:
    before = chosen(hubs, [""] * shards_count)
    after = chosen([*hubs, NEW], before)
    moved = [shard for shard in range(shards_count) if before[shard] != after[shard]]
    assert {after[shard] for shard in moved} <= {"new"}
    assert len(moved) <= math.ceil(share(NEW, [*hubs, NEW], shards_count))


@given(HUBS, SHARDS_COUNTS)
def test_the_shards_of_a_hub_that_goes_are_all_that_move(hubs: list[Hub], shards_count: int) -> None:
    before = chosen([*hubs, NEW], [""] * shards_count)
    after = chosen(hubs, before)
    assert all(then in (now, "new") for then, now in zip(before, after, strict=True))


@given(HUBS, SHARDS_COUNTS, st.randoms(use_true_random=False), st.data())
def test_the_choice_stays_while_its_moves_are_under_way(
    hubs: list[Hub], shards_count: int, random: st.DataObject, data: st.DataObject
) -> None:
    """Hubs that see different moments of a change choose the same."""
    names = ["", "gone", *(hub.name for hub in hubs)]
    owners = data.draw(st.lists(st.sampled_from(names), min_size=shards_count, max_size=shards_count))
    goal = chosen(hubs, owners)
    for shard in data.draw(st.permutations(range(shards_count))):
        owners[shard] = goal[shard]
        assert chosen(hubs, owners) == goal


@given(HUBS, SHARDS_COUNTS, st.data())
def test_what_is_pinned_is_where_it_is_pinned_and_counts(
    hubs: list[Hub], shards_count: int, data: st.DataObject
) -> None:
    names = ["", "", "gone", *(hub.name for hub in hubs)]
    pinned = data.draw(st.lists(st.sampled_from(names), min_size=shards_count, max_size=shards_count))
    live = {hub.name for hub in hubs}
    places = chosen(hubs, [""] * shards_count, pinned)
    assert all(place == pin for place, pin in zip(places, pinned, strict=True) if pin in live)
    counts, pins = Counter(places), Counter(pin for pin in pinned if pin in live)
    for hub in hubs:
        assert counts[hub.name] <= max(pins[hub.name], math.ceil(share(hub, hubs, shards_count)))
    assert chosen(hubs, places, pinned) == places


def test_32_shards_are_divided_evenly_whatever_the_names() -> None:
    for number in range(50):
        counts = [
            sorted(Counter(chosen([Hub(f"{number}-{hub}") for hub in range(hubs)], [""] * 32)).values())
            for hubs in (2, 3, 5)
        ]
        assert counts == [[16, 16], [10, 11, 11], [6, 6, 6, 7, 7]]


def test_a_hub_without_weight_takes_nothing() -> None:
    assert chosen([Hub("a", weight=0.0), Hub("b")], ["a"] * 4) == ["b"] * 4
    assert chosen([Hub("a", weight=0.0)], ["a"] * 4) == [""] * 4
    assert chosen([], ["a", ""]) == ["", ""]


def test_the_choice_is_the_same_in_every_version() -> None:
    """A change of the hash would move shards between hubs of two versions to and fro."""
    hubs = [Hub("hub-1"), Hub("hub-2"), Hub("hub-3", weight=2.0)]
    assert [hub[-1] for hub in chosen(hubs, [""] * 16)] == list("3133333332111222")
