"""What transactions bind together: taken in steps, gathered in steps, deleted meanwhile, while the disk fails."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.queues.shared import shared_queue
from sluiceway.store import keys
from sluiceway.store.batch import StoreBatch
from sluiceway.store.bonds import bond_of
from sluiceway.store.engine import put
from sluiceway.store.memory import MemoryEngine
from sluiceway.store.together import Together
from tests.queues.rig import make_policy
from tests.scenarios.tiny_steps import tiny_steps
from tests.store.faulty import Failure, FaultyEngine
from tests.store.journal_engine import JournalEngine
from tests.store.rig import StoreWorld, shelf_of


@pytest.fixture
def world() -> StoreWorld:
    return StoreWorld(FaultyEngine(Random(1)))


@pytest.fixture
def stepping() -> Iterator[None]:
    with tiny_steps():
        yield


def queues(world: StoreWorld, *names: str) -> list[ConsumedQueue]:
    return [shared_queue(f"/queue/{name}", make_policy(), world.environment) for name in names]


def engine_of(world: StoreWorld) -> FaultyEngine:
    assert isinstance(world.engine, FaultyEngine)
    return world.engine


def test_who_waits_for_a_turn_goes_on_when_the_disk_begins_to_fail(world: StoreWorld) -> None:
    """Or a COMMIT would wait for the disk, and the ACKs behind it, too."""
    (queue,) = queues(world, "a")
    world.put(queue)
    first = world.store.join(world.store)
    first.add(shelf_of(queue))
    world.store.change([put(keys.META_NUMBERS_KEY, b"")])
    shelf_of(queue).when_settled(lambda: None)
    world.run()
    second = world.store.join(world.store)
    assert second.waits
    went_on: list[str] = []
    second.begin(lambda: went_on.append("second"))
    first.end()
    assert not went_on, "first what was kept back is written"
    engine_of(world).fail_at_rate(Failure.DISK_FULL, 1.0)
    world.flush()
    assert went_on


def test_nothing_is_kept_of_what_bound_queues_that_were_deleted(world: StoreWorld) -> None:
    both = queues(world, "a", "b")
    for queue in both:
        world.put(queue)
    world.store.bind([shelf_of(queue) for queue in both])
    bond = bond_of(shelf_of(both[0]))
    assert bond is not None
    assert bond.count == len(list(bond)) == 2
    for queue in both:
        queue.close_queue("deleted")
    assert bond.count == len(list(bond)) == 0
    assert all(shelf_of(queue).bond is None for queue in both)


@pytest.mark.usefixtures("stepping")
@pytest.mark.parametrize("steps", range(30))
def test_a_queue_that_is_deleted_while_it_is_gathered_stays_deleted(world: StoreWorld, steps: int) -> None:
    both = queues(world, "a", "b")
    for queue in both:
        world.put(queue, 300)
    joint = world.store.join(world.store)
    for queue in both:
        joint.add(shelf_of(queue))
    shelf_of(both[0]).when_settled(lambda: None)
    joint.end()
    for _ in range(steps):
        world.core.run_turn()
    both[0].close_queue("deleted")
    world.flush()
    assert len(StoreWorld(world.engine).recovered.queues) == 1


def left_of(engine: MemoryEngine, *names: str) -> list[int]:
    """How many messages a broker that starts on this finds, by queue."""
    world = StoreWorld(engine)
    restored = queues(world, *names)
    for queue in restored:
        queue.open_stored()
    return [queue.elements.live_count for queue in restored]


@pytest.mark.usefixtures("stepping")
@pytest.mark.parametrize("known", [True, False], ids=["on disk before", "new"])
@pytest.mark.parametrize("deleted", ["first", "last"])
@pytest.mark.parametrize("step", range(0, 102, 3))
def test_a_queue_that_is_deleted_while_it_is_gathered_is_in_no_batch(
    monkeypatch: pytest.MonkeyPatch, deleted: str, known: bool, step: int
) -> None:
    """A crash behind any batch finds it as it was before the transaction, or not at all."""
    engine = JournalEngine()
    world = StoreWorld(engine)
    both = queues(world, "a", "b")
    gone = both[0 if deleted == "first" else 1]
    before_count = 10 if known else 0
    if known:
        for queue in both:
            world.put(queue, 10)
        world.flush()
    begun_count = len(engine.batches)
    for queue in both:
        world.put(queue, 3_000)
    joint = world.store.join(world.store)
    for queue in both:
        joint.add(shelf_of(queue))
    shelf_of(both[0]).when_settled(lambda: None)
    gathering = Together.gathering

    def cut(self: Together, batch: StoreBatch) -> Iterator[None]:
        for place, _ in enumerate(gathering(self, batch)):
            if place == step:
                gone.close_queue("deleted")
            yield

    monkeypatch.setattr(Together, "gathering", cut)
    joint.end()
    world.flush()
    assert gone.closed
    all_count = before_count + 3_000
    outcomes = set()
    for count in range(begun_count, len(engine.batches) + 1):
        a, b = left_of(engine.after(count), "a", "b")
        outcomes.add((a, b) if deleted == "first" else (b, a))
    assert outcomes == {(before_count, before_count), (0, all_count)}


@pytest.mark.parametrize("steps", [True, False])
def test_what_a_deleted_queue_was_to_write_goes_with_those_that_it_was_bound_to(steps: bool) -> None:
    """That a transaction is committed, and who waits for that."""
    engine = JournalEngine()
    world = StoreWorld(engine)
    both = queues(world, "a", "b")
    for queue in both:
        world.put(queue, 10)
    shelves = [shelf_of(queue) for queue in both]
    joint = world.store.join(world.store)
    if steps:
        joint.add(shelves[1])
    else:
        joint.end()
    world.store.bind(shelves)
    record = put(keys.META_NUMBERS_KEY, b"the record")
    shelves[0].attach(shelves[0].elements_end, shelves[0].elements_end, [record])
    told: list[int] = []
    shelves[0].when_settled(lambda: told.append(len(engine.batches)))
    both[0].close_queue("deleted")
    world.flush()
    assert steps != bool(told), "the other one is kept back: it can't be on disk"
    assert all(record not in batch for batch in engine.batches) == steps
    joint.end()
    world.flush()
    (place,) = [place for place, batch in enumerate(engine.batches) if record in batch]
    assert left_of(engine.after(place), "b") == [0]
    assert left_of(engine.after(place + 1), "b") == [10]
    assert told
    assert told[0] > place
