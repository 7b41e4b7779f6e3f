"""A COMMIT of spooled SENDs is on disk with all that it settles and behind all of its pieces, or not at all, whatever
the store does meanwhile: a large batch is gathered in steps, queues and groups are deleted, the disk is slow.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.queues.logs.ports import GroupState
from sluiceway.queues.message import Message
from sluiceway.queues.policy import QueuePolicy
from sluiceway.queues.shared import shared_queue
from sluiceway.store import keys
from sluiceway.store.batch import StoreBatch
from sluiceway.store.engine import Engine
from sluiceway.store.places import StoredPlaces
from sluiceway.store.spool import StoreSpools
from sluiceway.store.together import Together
from tests.scenarios.tiny_steps import tiny_steps
from tests.store.journal_engine import JournalEngine
from tests.store.rig import StoreWorld, shelf_of

TARGET = ("/queue/target", 4, False)


@pytest.fixture
def engine() -> JournalEngine:
    return JournalEngine()


@pytest.fixture
def world(engine: JournalEngine) -> StoreWorld:
    return StoreWorld(engine)


def queue_of(world: StoreWorld, name: str) -> ConsumedQueue:
    return shared_queue(f"/queue/{name}", QueuePolicy(memory_bytes=1 << 30), world.environment)


def committed_pieces(engine: Engine) -> list[int]:
    """How many pieces a broker that starts on this finds, for each transaction that is committed there."""
    return [len(each.pieces) for each in StoreWorld(engine).recovered.transactions]


def is_settled(engine: Engine, queue: ConsumedQueue) -> bool:
    """The ACK of its first message is on disk."""
    return engine.get(keys.state_key(shelf_of(queue).queue_id, 0)) is not None


@pytest.mark.parametrize("step", range(0, 20, 2))
def test_no_batch_has_a_commit_before_its_last_piece(
    world: StoreWorld, engine: JournalEngine, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """The last piece and COMMIT come while a large transaction of somebody else is gathered in steps."""
    queues = [queue_of(world, str(number)) for number in range(10)]
    for queue in queues:
        world.put(queue, 2)
    reader = world.consumer()
    subscription = queues[-1].subscribe(reader)
    world.flush()
    spools = StoreSpools(world.store)
    spool = spools.begin()
    spool.write(TARGET, world.messages(3), None)
    world.flush()
    begun_count = len(engine.batches)
    got: list[list[Message]] = []
    told: list[int] = []

    def commit() -> None:
        spool.write(TARGET, world.messages(3), None)
        subscription.settle([0], 20)
        spool.commit([shelf_of(queues[-1])], lambda: told.append(len(engine.batches)), pytest.fail)
        for place in range(2):
            spool.read(place, got.append, lambda: None)

    gathering = Together.gathering

    def cut(self: Together, batch: StoreBatch) -> Iterator[None]:
        monkeypatch.setattr(Together, "gathering", gathering)
        for place, _ in enumerate(gathering(self, batch)):
            if place == step:
                commit()
            yield

    monkeypatch.setattr(Together, "gathering", cut)
    for queue in queues:
        world.put(queue)
    with tiny_steps():
        world.store.bind([shelf_of(queue) for queue in queues])
        shelf_of(queues[0]).when_settled(lambda: None)
        while not told and not (world.is_idle and world.is_flushed):
            world.run()
            world.worker.step(read=True)  # this thread is faster than the one that writes
            world.run()
            world.worker.step(read=False)
        world.flush()
    for count in range(begun_count, len(engine.batches) + 1):
        left = engine.after(count)
        settled = is_settled(left, queues[-1])
        assert committed_pieces(left) == ([2] if settled else []), f"after {count} batches"
        assert settled or not told or told[0] > count
    assert told
    assert [len(messages) for messages in got] == [3, 3], "a piece that is not written yet is no damage"
    assert not world.log.names("error")


def test_what_a_deleted_queue_leaves_to_a_long_one_is_written_where_its_transaction_ends(
    world: StoreWorld, engine: JournalEngine
) -> None:
    """And not batches later, at the end of what came there behind the transaction."""
    gone, long = queue_of(world, "a"), queue_of(world, "b")
    world.put(gone, 2)
    world.put(long, 2)
    subscription = long.subscribe(world.consumer())
    world.flush()
    spool = StoreSpools(world.store).begin()
    spool.write(TARGET, world.messages(3), None)
    world.flush()
    begun_count = len(engine.batches)
    world.store.when_flushed([lambda: None])
    world.run()
    told: list[int] = []
    subscription.settle([0], 20)
    spool.commit([shelf_of(gone), shelf_of(long)], lambda: told.append(len(engine.batches)), pytest.fail)
    world.put(long, 9_000)
    gone.close_queue("deleted")
    world.flush()
    assert len(engine.batches) > begun_count + 3, "the long queue takes several"
    for count in range(begun_count, len(engine.batches) + 1):
        left = engine.after(count)
        assert committed_pieces(left) == ([1] if is_settled(left, long) else []), f"after {count} batches"
    assert committed_pieces(engine.after(told[0])) == [1]


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_group_of_a_log_is_deleted_around_a_commit(
    world: StoreWorld, engine: JournalEngine, when: str, others: int
) -> None:
    """COMMIT acknowledges a record of a log, and nobody is told before it is on disk."""
    places = StoredPlaces(world.store, lambda: 0, {})
    place = places.place("/log/a", "g", lambda: GroupState(1))
    places.create("/log/a", "g", place, lambda _error: None)
    queues = [queue_of(world, "b") for _ in range(others)]
    subscriptions = [queue.subscribe(world.consumer()) for queue in queues]
    for queue in queues:
        world.put(queue, 2)
    spool = StoreSpools(world.store).begin()
    spool.write(TARGET, world.messages(3), None)
    world.flush()
    begun_count = len(engine.batches)
    told: list[int] = []
    place.changed()
    for subscription in subscriptions:
        subscription.settle([0], 20)
    if when == "before":
        place.forget()
    spool.commit([place, *map(shelf_of, queues)], lambda: told.append(len(engine.batches)), pytest.fail)
    if when == "after":
        place.forget()
    assert not told
    world.flush()
    assert committed_pieces(engine.after(told[0])) == [1]
    for count in range(begun_count, len(engine.batches) + 1):
        left = engine.after(count)
        for queue in queues:
            assert bool(committed_pieces(left)) == is_settled(left, queue), f"after {count} batches"


def test_nothing_is_paged_out_of_an_abandoned_queue(world: StoreWorld, engine: JournalEngine) -> None:
    queue = queue_of(world, "a")
    world.put(queue, 3_000)
    shelf = shelf_of(queue)
    world.store.abandon(shelf)
    shelf.page_out(0, lambda _index: None)
    world.put(queue)
    assert world.is_flushed
    world.flush()
    assert not world.leftovers()
    assert len(engine.batches) == 1, "what opened the store"


@pytest.mark.parametrize("is_written", [True, False], ids=["committed on disk", "committed since"])
def test_a_deleted_queue_takes_what_is_left_for_it_along(
    world: StoreWorld, engine: JournalEngine, is_written: bool
) -> None:
    """Behind any batch the pieces of a transaction are all there for the queue, or none is found."""
    target, settled = queue_of(world, "target"), queue_of(world, "settled")
    world.put(target, 2)
    world.put(settled, 2)
    subscription = settled.subscribe(world.consumer())
    world.flush()
    spool = StoreSpools(world.store).begin()
    for _ in range(3):
        spool.write(TARGET, world.messages(2), None)
        spool.write(("/queue/other", 4, False), world.messages(2), None)
    world.flush()
    begun_count = len(engine.batches)
    subscription.settle([0], 20)
    spool.commit([shelf_of(settled)], lambda: None, pytest.fail)
    if is_written:
        world.flush()
    target.close_queue("deleted")
    world.flush()
    for count in range(begun_count, len(engine.batches) + 1):
        after = engine.after(count)
        is_deleted = after.get(keys.queue_key(shelf_of(target).queue_id)) is None
        is_committed = after.get(keys.spool_key(spool.transaction_id)) is not None
        assert is_committed == is_settled(after, settled)
        assert committed_pieces(after) == ([3 if is_deleted else 6] if is_committed else [])
    assert is_deleted and is_committed
