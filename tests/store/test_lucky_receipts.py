"""Receipts that wait for consumers before they wait for the disk, where consumers are usually quicker."""

from __future__ import annotations

import pytest

from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.store.memory import MemoryEngine
from sluiceway.store.storequeue import HOPE_SECONDS_MAX
from tests.queues.rig import FakeConsumer
from tests.store.rig import StoreWorld

SYNC_SECONDS = 0.01


@pytest.fixture
def world() -> StoreWorld:
    return StoreWorld(MemoryEngine())


def put_with_receipt(world: StoreWorld, queue: ConsumedQueue, answers: list[str], count: int = 1) -> None:
    first = queue.elements.next_sequence
    world.put(queue, count)
    queue.when_saved(first, answers.append)
    world.run()


def after_a_sync(world: StoreWorld, *, took_seconds: float = SYNC_SECONDS) -> tuple[ConsumedQueue, FakeConsumer]:
    """A queue whose consumer settles at once, of a store that knows how long a sync takes."""
    queue = world.queue()
    answers: list[str] = []
    put_with_receipt(world, queue, answers)
    world.now_seconds += took_seconds
    world.write()
    assert answers == ["disk"]
    consumer = world.consumer(100)
    queue.subscribe(consumer)
    world.run()
    if world.worker.has_work:
        world.settle_down()  # the lease of what was stored
    consumer.settle()
    world.flush()
    world.worker.batches.clear()
    return queue, consumer


def test_what_consumers_settle_sooner_than_a_sync_takes_is_never_written(world: StoreWorld) -> None:
    queue, consumer = after_a_sync(world)
    answers: list[str] = []
    for _ in range(3):
        put_with_receipt(world, queue, answers)
    assert not answers and not world.worker.has_work
    consumer.settle()
    world.run()
    assert answers == ["consumed"] * 3
    world.flush()
    assert not world.worker.batches


def test_those_who_were_settled_are_told_while_others_go_on_waiting(world: StoreWorld) -> None:
    queue, consumer = after_a_sync(world)
    first: list[str] = []
    second: list[str] = []
    put_with_receipt(world, queue, first)
    put_with_receipt(world, queue, second)
    consumer.settle(consumer.held[:1])
    world.run()
    assert (first, second) == (["consumed"], [])
    world.advance(SYNC_SECONDS)
    world.settle_down()
    assert second == ["disk"]


def test_a_receipt_waits_for_consumers_no_longer_than_a_sync_takes(world: StoreWorld) -> None:
    queue, _consumer = after_a_sync(world)
    answers: list[str] = []
    put_with_receipt(world, queue, answers)
    world.advance(SYNC_SECONDS * 0.4)
    world.run()
    assert not world.worker.batches
    world.advance(SYNC_SECONDS)
    world.run()
    assert len(world.worker.batches) == 1
    world.settle_down()
    assert answers == ["disk"]


def test_however_slow_the_disk_a_receipt_waits_for_consumers_only_so_long(world: StoreWorld) -> None:
    queue, _consumer = after_a_sync(world, took_seconds=5.0)
    answers: list[str] = []
    put_with_receipt(world, queue, answers)
    world.advance(HOPE_SECONDS_MAX * 1.1)
    world.run()
    assert world.worker.has_work


def test_nobody_waits_for_consumers_that_stand_still(world: StoreWorld) -> None:
    queue, _consumer = after_a_sync(world)
    answers: list[str] = []
    put_with_receipt(world, queue, answers)
    world.advance(SYNC_SECONDS * 2)
    world.settle_down()
    put_with_receipt(world, queue, answers)
    assert world.worker.has_work, "at once: the first one is still with its consumer"


def test_nobody_waits_for_consumers_that_are_slower_than_the_disk(world: StoreWorld) -> None:
    queue, consumer = after_a_sync(world)
    answers: list[str] = []
    for _ in range(10):
        put_with_receipt(world, queue, answers)
        world.settle_down()
        world.advance(SYNC_SECONDS * 3)
        world.settle_down()
        consumer.settle()
        world.settle_down()
    put_with_receipt(world, queue, answers)
    assert world.worker.has_work


def test_nobody_waits_where_nobody_consumes(world: StoreWorld) -> None:
    queue, consumer = after_a_sync(world)
    for subscription in list(queue.subscriptions.values()):
        subscription.close()
    world.flush()
    put_with_receipt(world, queue, [])
    assert world.worker.has_work
    assert not consumer.held


def test_all_is_saved_without_waiting_for_consumers(world: StoreWorld) -> None:
    queue, _consumer = after_a_sync(world)
    answers: list[str] = []
    put_with_receipt(world, queue, answers)
    assert not world.worker.has_work
    world.store.when_all_saved(lambda: answers.append("all"))
    world.settle_down()
    assert sorted(answers) == ["all", "disk"]
