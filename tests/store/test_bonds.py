"""Bonds against plain sets: what is bound together, whatever is bound, taken and deleted in between."""

from __future__ import annotations

from random import Random

import pytest

from sluiceway.queues.shared import shared_queue
from sluiceway.store.bonds import Bond, bond_of
from sluiceway.store.memory import MemoryEngine
from sluiceway.store.queue_records import QueueRecords
from tests.queues.rig import make_policy
from tests.store.rig import StoreWorld, shelf_of


@pytest.fixture
def world() -> StoreWorld:
    return StoreWorld(MemoryEngine())


def shelves(world: StoreWorld, count: int) -> list[QueueRecords]:
    found = [shared_queue(f"/queue/{n}", make_policy(), world.environment) for n in range(count)]
    for queue in found:
        world.put(queue)
    return [shelf_of(queue) for queue in found]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_bound_together_is_the_same_as_with_sets(world: StoreWorld, seed: int) -> None:
    random = Random(seed)
    left = shelves(world, 60)
    together = world.store._together
    expected: list[set[QueueRecords]] = []
    for _ in range(200):
        some = random.sample(left, random.randint(1, 4)) if len(left) > 4 else []
        match random.choice(["bind", "bind", "bind", "gone", "take"]):
            case "bind" if len(some) > 1:
                together.bind(some)
                found = [each for each in expected if not each.isdisjoint(some)]
                expected = [each for each in expected if each not in found] + [set(some).union(*found)]
            case "gone" if some:
                together.gone(some[0])
                expected = [rest for each in expected if (rest := each - {some[0]})]
            case "take" if some:
                found = [each for each in expected if some[0] in each] or [{some[0]}]
                bond = bond_of(some[0])
                together._skipped.clear()
                if bond is None or bond.count <= 24:
                    assert set(together.gathered_with(some[0])) == found[0]
                    expected = [each for each in expected if each not in found]
        for each in expected:
            bonds = {id(bond_of(shelf)) for shelf in each}
            assert len(bonds) == 1
            bond = bond_of(next(iter(each)))
            assert bond is not None
            assert set(bond) == each
            assert bond.count == len(list(bond)) == len(each)
        bound = set().union(*expected)
        assert all(bond_of(shelf) is None for shelf in left if shelf not in bound)


def test_large_bonds_become_one_without_a_look_at_their_shelves(world: StoreWorld) -> None:
    """However many are united, each finds the whole in a few steps."""
    found = shelves(world, 512)
    bonds = []
    for shelf in found:
        bonds.append(Bond())
        bonds[-1].add(shelf)
    while len(bonds) > 1:  # the worst order for the way to the whole
        bonds = [bonds[n].unite(bonds[n + 1]) for n in range(0, len(bonds), 2)]
    (whole,) = bonds
    ways = []
    for shelf in found:
        way, bond = 0, shelf.bond
        while bond is not None and bond._part_of is not None:
            way, bond = way + 1, bond._part_of
        assert bond is whole
        ways.append(way)
    assert max(ways) == 9
    assert list(whole) == list(whole)
    assert set(whole) == set(found)
    assert all(bond_of(shelf) is whole for shelf in found)
