"""What every store promises to queues: the port `sluiceway.queues.storage`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluiceway.flow import Flow, FlowResource, SourceController
from sluiceway.flow.kinds import ResourceKind
from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.queues.message import Message
from sluiceway.queues.queue import MessageQueue
from sluiceway.queues.shared import shared_queue
from sluiceway.queues.storage import QueueStorage, Store
from sluiceway.queues.topic import Topic
from sluiceway.store.leveldb import LevelDbEngine
from tests.contract.engines import postgresql_engines
from tests.contract.storages import DURABLE_ID, EngineWorld, MemoryWorld, StorageWorld
from tests.queues.rig import FakeConsumer, Head, make_policy


@pytest.fixture(params=["memory", "leveldb", "postgresql"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StorageWorld]:
    if request.param == "memory":
        yield MemoryWorld()
    elif request.param == "leveldb":
        yield EngineWorld(lambda: LevelDbEngine(tmp_path / "db"))
    else:
        with postgresql_engines() as opener:
            yield EngineWorld(opener)


def put(world: StorageWorld, queue: MessageQueue, count: int = 1, **head: Any) -> list[Message]:
    """Add a run of persistent messages, unless the head says otherwise."""
    run = world.messages(count, head=Head(**{"persistent": True, **head}))
    queue.add(run, sum(len(message.wire) for message in run), None)
    return run


def attached(world: StorageWorld, queue: ConsumedQueue, window: int | None = None) -> FakeConsumer:
    consumer = world.consumer(window)
    queue.subscribe(consumer)
    world.run()
    return consumer


def durable(world: StorageWorld, topic: Topic) -> FakeConsumer:
    consumer = world.consumer()
    topic.subscribe(consumer, durable_id=DURABLE_ID)
    world.run()
    return consumer


def storage_of(queue: MessageQueue) -> QueueStorage:
    assert queue.storage is not None
    return queue.storage


def store_of(world: StorageWorld) -> Store:
    assert world.environment.store is not None
    return world.environment.store


def restored(world: StorageWorld) -> ConsumedQueue:
    queue = world.shared()
    queue.open_stored()
    return queue


def left_in(world: StorageWorld) -> list[int]:
    """Numbers of the messages that the queue of this world has from an earlier one."""
    consumer = attached(world, restored(world))
    world.flush()
    return consumer.numbers


def marked(consumer: FakeConsumer) -> dict[int, int]:
    """Deliveries that say that they may not be the first, with their attempts, by number."""
    return {
        message.number: part.attempts[sequence]
        for part in consumer.slices
        if part.attempts is not None
        for sequence, message in zip(part.sequences, part.messages, strict=True)
        if sequence in part.attempts
    }


# ---------------------------------------------------------------------- what is saved


def test_what_was_written_comes_back_in_order(world: StorageWorld) -> None:
    queue = world.shared()
    put(world, queue, 3)
    put(world, queue, 2, persistent=False)
    put(world, queue, 2)
    world.flush()
    assert left_in(world.crashed()) == [0, 1, 2, 5, 6]


def test_what_was_not_written_is_gone_after_a_crash_and_there_after_a_stop(world: StorageWorld) -> None:
    put(world, world.shared(), 2)
    world = world.crashed()
    assert left_in(world) == []
    put(world, restored(world), 2)
    assert len(left_in(world.stopped())) == 2


def test_a_receipt_says_disk_when_a_crash_would_find_the_message(world: StorageWorld) -> None:
    queue = world.shared()
    put(world, queue)
    told: list[str] = []
    queue.when_saved(0, told.append)
    world.run()
    assert told == []
    world.flush()
    assert told == ["disk"]
    assert left_in(world.crashed()) == [0]


def test_a_receipt_says_consumed_when_nothing_was_left_to_write(world: StorageWorld) -> None:
    queue = world.shared()
    consumer = attached(world, queue)
    put(world, queue, 3)
    world.run()
    told: list[str] = []
    queue.when_saved(0, told.append)
    consumer.settle()
    world.flush()
    assert told == ["consumed"]


def test_what_was_settled_does_not_come_back(world: StorageWorld) -> None:
    queue = world.shared()
    put(world, queue, 6)
    world.flush()
    consumer = attached(world, queue)
    world.flush()
    consumer.settle([consumer.held[place] for place in (0, 2, 3)])
    told: list[int] = []
    storage_of(queue).when_settled(lambda: told.append(1))
    assert not told
    world.flush()
    assert told
    assert left_in(world.crashed()) == [1, 4, 5]


def test_new_elements_do_not_mix_with_those_of_an_earlier_run(world: StorageWorld) -> None:
    put(world, world.shared(), 3)
    world.flush()
    world = world.crashed()
    queue = restored(world)
    put(world, queue, 3)
    world.flush()
    again = world.crashed()
    assert restored(again).elements.live_count == 6


def test_priorities_of_a_destination_are_apart(world: StorageWorld) -> None:
    put(world, shared_queue("/queue/a", make_policy(), world.environment, priority=7), 1)
    put(world, world.shared(), 2)
    world.flush()
    world = world.crashed()
    assert restored(world).elements.live_count == 2
    high = shared_queue("/queue/a", make_policy(), world.environment, priority=7)
    high.open_stored()
    assert high.elements.live_count == 1


def test_a_deleted_queue_leaves_nothing_and_keeps_nobody_waiting(world: StorageWorld) -> None:
    queue = world.shared()
    put(world, queue, 3)
    world.flush()
    put(world, queue, 3)
    told: list[object] = []
    queue.when_saved(0, told.append)
    storage = storage_of(queue)
    storage.when_settled(lambda: told.append("settled"))
    queue.close_queue("deleted")
    assert told == ["consumed"]
    storage.when_saved(0, 6, told.append)
    storage.when_settled(lambda: told.append("settled late"))
    world.flush()
    assert sorted(map(str, told)) == ["consumed", "consumed", "settled", "settled late"]
    assert left_in(world.crashed()) == []


def test_a_queue_that_is_made_anew_has_nothing_of_the_deleted_one(world: StorageWorld) -> None:
    first = world.shared()
    put(world, first, 3)
    world.flush()
    first.close_queue("deleted")
    put(world, world.shared(), 1)
    world.flush()
    assert left_in(world.crashed()) == [3]


def test_the_store_says_when_everything_is_on_disk(world: StorageWorld) -> None:
    queue = world.shared()
    put(world, queue)
    told: list[str] = []
    store_of(world).when_all_saved(lambda: told.append("saved"))
    store_of(world).when_flushed([lambda: told.append("flushed")])
    world.run()
    assert not told
    world.flush()
    assert sorted(told) == ["flushed", "saved"]
    assert left_in(world.crashed()) == [0]


# ---------------------------------------------------------------------- what consumers have seen


def test_stored_elements_are_delivered_when_the_disk_knows_and_marked_after_a_crash(world: StorageWorld) -> None:
    queue = world.shared()
    put(world, queue, 4)
    world.flush()
    consumer = attached(world, queue, 2)
    assert consumer.numbers == []
    world.flush()
    assert consumer.numbers == [0, 1]
    world = world.crashed()
    again = attached(world, restored(world))
    world.flush()
    assert again.numbers == [0, 1, 2, 3]
    assert marked(again).keys() >= {0, 1}


def test_after_a_stop_just_what_was_delivered_is_marked(world: StorageWorld) -> None:
    queue = world.shared()
    put(world, queue, 5)
    world.flush()
    consumer = attached(world, queue, 3)
    world.flush()
    consumer.requeue(consumer.held[:1])
    world.flush()
    consumer.held[0].subscription.close()
    consumer.requeue()
    world = world.stopped()
    again = attached(world, restored(world))
    world.flush()
    assert again.numbers == [0, 1, 2, 3, 4]
    assert marked(again).keys() == {0, 1, 2}
    assert marked(again)[0] == 2


def test_attempts_that_were_counted_are_known_after_a_crash(world: StorageWorld) -> None:
    queue = world.shared()
    put(world, queue, 2)
    world.flush()
    consumer = attached(world, queue, 1)
    world.flush()
    consumer.requeue()
    world.flush()
    world = world.crashed()
    again = attached(world, restored(world))
    world.flush()
    assert marked(again)[0] >= 1


# ---------------------------------------------------------------------- blocks outside of memory


def load(world: StorageWorld, storage: QueueStorage, index: int) -> dict[int, Message]:
    loaded: dict[int, dict[int, Message]] = {}
    storage.load(index, loaded.__setitem__)
    assert not loaded, "the disk answers later"
    world.flush()
    return loaded[index]


def test_a_block_that_was_put_out_is_read_again_with_all_that_is_alive(world: StorageWorld) -> None:
    queue = world.shared()
    sent = [*put(world, queue, 3), *put(world, queue, 3, persistent=False)]
    queue.open_stored()
    page_out: list[int] = []
    storage_of(queue).page_out(0, page_out.append)
    assert not page_out
    world.flush()
    assert page_out == [0]
    found = load(world, storage_of(queue), 0)
    assert [message.wire for _sequence, message in sorted(found.items())] == [message.wire for message in sent]
    assert [message.head.persistent for _sequence, message in sorted(found.items())] == [True] * 3 + [False] * 3
    assert left_in(world.crashed()) == [0, 1, 2]


def test_a_deleted_queue_has_nothing_to_read(world: StorageWorld) -> None:
    queue = world.shared()
    put(world, queue, 3)
    world.flush()
    storage = storage_of(queue)
    loaded: dict[int, dict[int, Message]] = {}
    storage.load(0, loaded.__setitem__)
    queue.close_queue("deleted")
    world.flush()
    assert loaded == {0: {}}


def test_what_was_lost_does_not_come_back(world: StorageWorld) -> None:
    queue = world.shared()
    put(world, queue, 4)
    world.flush()
    storage_of(queue).lost(0, [1, 2])
    world.flush()
    assert left_in(world.crashed()) == [0, 3]


def test_a_queue_pages_through_any_store(world: StorageWorld) -> None:
    """Blocks leave memory and come back, whatever of them is persistent."""
    queue = world.shared(memory_bytes=200_000)
    sent: list[int] = []
    for place in range(40):
        sent += [message.number for message in put(world, queue, 100, persistent=bool(place % 2))]
        world.flush()
    assert queue.elements.outside_count > 0
    consumer = world.consumer(auto=True)
    queue.subscribe(consumer)
    for _ in range(20):
        world.flush()
    assert consumer.numbers == sent
    assert queue.elements.live_count == 0


# ---------------------------------------------------------------------- durable subscriptions


def topic_of(world: StorageWorld) -> Topic:
    topic = world.topic()
    topic.open_stored()
    return topic


def test_a_durable_subscription_stands_where_it_stood(world: StorageWorld) -> None:
    topic = world.topic()
    consumer = durable(world, topic)
    put(world, topic, 5)
    world.flush()
    assert consumer.numbers == [0, 1, 2, 3, 4]
    consumer.settle([consumer.held[place] for place in (0, 1, 3)])
    world.flush()
    world = world.crashed()
    again = durable(world, topic_of(world))
    world.flush()
    assert again.numbers == [2, 4]
    assert marked(again).keys() == {2, 4}


def test_a_new_durable_subscription_is_on_disk_with_its_first_message(world: StorageWorld) -> None:
    topic = world.topic()
    topic.subscribe(world.consumer(0), durable_id=DURABLE_ID)
    put(world, topic, 2)
    told: list[str] = []
    topic.when_saved(0, told.append)
    world.flush()
    assert told == ["disk"]
    world = world.crashed()
    again = durable(world, topic_of(world))
    world.flush()
    assert again.numbers == [0, 1]


def test_a_removed_durable_subscription_holds_nothing(world: StorageWorld) -> None:
    topic = world.topic()
    consumer = durable(world, topic)
    put(world, topic, 3)
    world.flush()
    for subscription in {delivery.subscription for delivery in consumer.held}:
        subscription.close()
    topic.remove_reader(DURABLE_ID)
    world.flush()
    again = topic_of(world.crashed())
    assert not again.reader_states()
    assert again.elements.live_count == 0


def test_what_all_readers_passed_is_trimmed(world: StorageWorld) -> None:
    topic = world.topic()
    consumer = durable(world, topic)
    put(world, topic, 5)
    world.flush()
    consumer.settle(consumer.held[:3])
    world.flush()
    assert topic_of(world.crashed()).elements.live_count == 2


def test_elements_on_hold_are_delivered_when_the_disk_has_them(world: StorageWorld) -> None:
    topic = world.topic()
    consumer = durable(world, topic)
    put(world, topic, 2)
    storage_of(topic).hold(0, 2)
    world.run()
    assert consumer.numbers == []
    world.flush()
    assert consumer.numbers == [0, 1]


# ---------------------------------------------------------------------- transactions


def both_queues(world: StorageWorld) -> tuple[ConsumedQueue, ConsumedQueue]:
    first, second = (shared_queue(f"/queue/{name}", make_policy(), world.environment) for name in "ab")
    for queue in (first, second):
        queue.open_stored()
    return first, second


def test_what_is_bound_is_on_disk_together(world: StorageWorld) -> None:
    first, second = both_queues(world)
    put(world, first)
    put(world, second)
    store_of(world).bind([storage_of(first), storage_of(second)])
    told: list[str] = []
    first.when_saved(0, told.append)
    world.flush()
    assert told == ["disk"]
    assert [queue.elements.live_count for queue in both_queues(world.crashed())] == [1, 1]


def test_a_receipt_of_a_transaction_waits_for_what_else_is_in_it(world: StorageWorld) -> None:
    """Its own message may be consumed: the other queue is still to be written."""
    first, second = both_queues(world)
    put(world, first)
    put(world, second)
    consumer = attached(world, first)
    store_of(world).bind([storage_of(first), storage_of(second)])
    told: list[str] = []
    first.when_saved(0, told.append)
    consumer.settle()
    world.run()
    assert not told
    world.flush()
    assert told == ["disk"]


def test_a_transaction_in_steps_is_written_at_its_end(world: StorageWorld) -> None:
    first, second = both_queues(world)
    joint = store_of(world).join(FlowResource("owner", ResourceKind.CONNECTION, world.environment.manager))
    assert not joint.waits
    assert joint.some_storage is None
    for queue in (first, second):
        put(world, queue)
        joint.add(storage_of(queue))
        world.flush()
    assert joint.some_storage in (storage_of(first), storage_of(second))
    told: list[str] = []
    storage_of(first).when_settled(lambda: told.append("settled"))
    world.flush()
    assert not told
    joint.end()
    joint.end()
    world.flush()
    assert told
    assert [queue.elements.live_count for queue in both_queues(world.crashed())] == [1, 1]


def test_nothing_is_left_of_a_transaction_that_did_not_end(world: StorageWorld) -> None:
    first, second = both_queues(world)
    joint = store_of(world).join(FlowResource("owner", ResourceKind.CONNECTION, world.environment.manager))
    for queue in (first, second):
        put(world, queue)
        joint.add(storage_of(queue))
        world.flush()
    assert [queue.elements.live_count for queue in both_queues(world.crashed())] == [0, 0]


# ---------------------------------------------------------------------- a full disk


def test_sources_wait_while_the_disk_is_full(world: StorageWorld) -> None:
    store = store_of(world)
    owner = FlowResource("producer", ResourceKind.CONNECTION, world.environment.manager)
    resumed: list[bool] = []

    def resume(_sink: object) -> None:
        resumed.append(store.accepting)

    source = SourceController(owner, Flow("sends"), on_resume=resume, clock=world.environment.clock)
    world.run()
    assert store.accepting
    assert store.accepts(source)
    world.fill_disk()
    assert not store.accepting
    assert not store.accepts(source)
    store.hold_back(source)
    assert source.blocked
    world.empty_disk()
    world.run()
    assert store.accepting
    assert resumed == [True]
    assert not source.blocked
