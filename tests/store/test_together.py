"""What transactions bind together: taken in steps, gathered in steps, deleted meanwhile, while the disk fails."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from queues import SharedQueue
from store import keys
from store.engine import put
from store.faulty import Failure, FaultyEngine
from tests.queues.rig import make_policy
from tests.scenarios.tiny_steps import tiny_steps
from tests.store.rig import StoreWorld, shelf_of


@pytest.fixture
def world() -> StoreWorld:
    return StoreWorld(FaultyEngine(Random(1)))


@pytest.fixture
def stepping() -> Iterator[None]:
    with tiny_steps():
        yield


def queues(world: StoreWorld, *names: str) -> list[SharedQueue]:
    return [SharedQueue(f"/queue/{name}", make_policy(), world.environment) for name in names]


def engine_of(world: StoreWorld) -> FaultyEngine:
    assert isinstance(world.engine, FaultyEngine)
    return world.engine


def test_who_waits_for_a_turn_goes_on_when_the_disk_begins_to_fail(world: StoreWorld) -> None:
    """Or a COMMIT would wait for the disk, and the ACKs behind it, too."""
    (queue,) = queues(world, "a")
    world.put(queue)
    first = world.store.join()
    first.add(shelf_of(queue))
    world.store.change([put(keys.META_NUMBERS_KEY, b"")])
    shelf_of(queue).when_settled(lambda: None)
    world.run()
    second = world.store.join()
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
    for queue in both:
        queue.close_queue("deleted")
    world.flush()
    assert not world.store._together._bound


@pytest.mark.usefixtures("stepping")
@pytest.mark.parametrize("steps", range(30))
def test_a_queue_that_is_deleted_while_it_is_gathered_stays_deleted(world: StoreWorld, steps: int) -> None:
    both = queues(world, "a", "b")
    for queue in both:
        world.put(queue, 300)
    joint = world.store.join()
    for queue in both:
        joint.add(shelf_of(queue))
    shelf_of(both[0]).when_settled(lambda: None)
    joint.end()
    for _ in range(steps):
        world.core.run_turn()
    both[0].close_queue("deleted")
    world.flush()
    assert len(StoreWorld(world.engine).recovered.queues) == 1
