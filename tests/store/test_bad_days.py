"""What must not end the broker, nor cost others anything: damage found late, a disk without room, queues that hog."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from random import Random

import attrs
import pytest

from sluiceway.dispatcher import DispatcherCore
from sluiceway.queues.atomic_offer import PromisedRoom
from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.queues.cursored import CursoredQueue
from sluiceway.queues.expiry import ExpiryDates
from sluiceway.queues.full_actions import QueueFullError
from sluiceway.queues.message import Envelope, Message
from sluiceway.queues.names import parse
from sluiceway.queues.policy import QueuePolicy
from sluiceway.queues.queue import MessageQueue
from sluiceway.queues.registry import DestinationRegistry
from sluiceway.queues.shared import shared_queue
from sluiceway.queues.topic import Topic
from sluiceway.store import keys
from sluiceway.store.directory import DirectoryError, NoSpaceError
from sluiceway.store.engine import DELETE_RANGE, CorruptionError, put
from sluiceway.store.io_threads import ThreadWorker
from sluiceway.store.memory import MemoryEngine
from sluiceway.store.recovery import NUMBERS_LOST, recover
from sluiceway.store.spool import StoreSpools
from tests.queues.rig import FakeConsumer, Head, World
from tests.store.faulty import FaultyEngine
from tests.store.rig import FakeFolder, OfferingProducer, RigHeads, StoreWorld, shelf_of, tight

GRAVE = "/queue/dead-letters"


@pytest.fixture
def small_blocks() -> Iterator[None]:
    with tight(block_bits=3, lease_count=16, seal_count=2):
        yield


def rewrite(message: Message, changes: dict[str, str | None]) -> tuple[Envelope, bytes]:
    assert isinstance(message.head, Head)
    return Head(destination=str(changes["destination"]), persistent=message.head.persistent), message.wire


def registry(world: StoreWorld, usual: QueuePolicy, grave: QueuePolicy | None = None) -> DestinationRegistry:
    return DestinationRegistry(
        world.environment,
        lambda address: grave if grave is not None and address.canonical == GRAVE else usual,
        rewrite=rewrite,  # type: ignore[arg-type]
        dead_letter_queues={GRAVE} if grave is not None else (),
    )


def partition(destinations: DestinationRegistry, name: str) -> MessageQueue:
    return destinations.get(parse(name)).queue.partition(4)


# ---------------------------------------------------------------------- in whatever order it leaves


def test_dead_letters_may_leave_in_any_order() -> None:
    """They go in the order in which they were given up, over blocks, as soon as there is room for them."""
    world = StoreWorld(MemoryEngine())
    policy = QueuePolicy(redeliveries_max=0, dead_letter=GRAVE)
    destinations = registry(world, policy, QueuePolicy(count_max=6))
    queue, grave = partition(destinations, "/queue/a"), partition(destinations, GRAVE)
    world.put(grave, 6)
    world.put(queue, 3000)
    consumer = world.consumer()
    queue.subscribe(consumer)
    world.flush()
    for sequence in (7, 2000, 5):
        consumer.requeue([delivery for delivery in consumer.held if delivery.sequence == sequence])
        world.run()
    undertaker = world.consumer(auto=True)
    grave.subscribe(undertaker)
    world.flush()
    assert len(undertaker.deliveries) == 9
    consumer.settle()
    world.flush()
    assert world.leftovers() == {}


# ---------------------------------------------------------------------- damage that is found late


def put_first_block_out(world: StoreWorld, queue: MessageQueue) -> None:
    """As if memory were short."""
    block, pager = queue.elements.block(0), queue.pager
    assert block is not None and pager is not None
    block.leaving = True
    pager._leaving_bytes += 1
    shelf_of(queue).page_out(0, lambda index: pager._stored(1, block, index))
    world.flush()
    assert block.outside is not None


def with_damage_in_hand() -> tuple[StoreWorld, ConsumedQueue, FakeConsumer]:
    """A consumer holds three blocks; the first one is outside, and its record damaged."""
    engine = FaultyEngine(Random(1))
    world = StoreWorld(engine)
    queue = world.queue()
    for _ in range(3):
        world.put(queue, 8)
        world.flush(seconds=0.1)
    consumer = world.consumer()
    queue.subscribe(consumer)
    world.flush()
    put_first_block_out(world, queue)
    engine.corrupt(world.records(keys.CHUNK)[0])
    return world, queue, consumer


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("ending", ["settle", "requeue", "both"])
def test_a_consumer_may_be_done_with_what_was_lost_in_its_hands(ending: str) -> None:
    world, queue, consumer = with_damage_in_hand()
    held = list(consumer.held)
    consumer.requeue(held[:1])  # its block has to come in, and can't
    world.flush()
    assert world.store.counters.lost_count == 8
    if ending == "settle":
        consumer.settle()
    elif ending == "requeue":
        consumer.requeue()
    else:
        consumer.settle(held[4:12])
        consumer.requeue()
    world.flush()
    consumer.settle()
    world.flush()
    assert (queue.elements.live_count, queue.unsettled_count, queue.controller.limiter.used_bytes) == (0, 0, 0)
    assert queue._lost_in_hand == set()
    assert world.leftovers() == {}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("ending", ["settle", "requeue", "leave"])
def test_a_durable_subscription_may_be_done_with_what_was_lost_in_its_hands(ending: str) -> None:
    engine = FaultyEngine(Random(1))
    world = StoreWorld(engine)
    topic = Topic("/topic/a", QueuePolicy(), world.environment)
    consumer = world.consumer()
    subscription = topic.subscribe(consumer, durable_id=1)
    for _ in range(3):
        world.put(topic, 8)
        world.flush(seconds=0.1)
    put_first_block_out(world, topic)
    engine.corrupt(world.records(keys.CHUNK)[0])
    consumer.requeue(consumer.held[:1])
    world.flush()
    assert world.store.counters.lost_count == 8
    if ending == "settle":
        consumer.settle()
    elif ending == "requeue":
        consumer.requeue()
    else:
        subscription.close()
        consumer.held.clear()
        topic.subscribe(consumer, durable_id=1)
    world.flush()
    consumer.settle()
    world.flush()
    assert (topic.elements.live_count, topic.unsettled_count, topic.controller.limiter.used_bytes) == (0, 0, 0)
    assert world.leftovers() == {}


@pytest.mark.usefixtures("small_blocks")
def test_new_messages_are_not_taken_for_those_of_a_block_that_is_lost() -> None:
    """Its state says what was settled: of others, if their chunks can't be read any more."""
    engine = FaultyEngine(Random(1))
    world = StoreWorld(engine)
    queue = world.queue()
    world.put(queue, 2)
    world.flush()
    consumer = world.consumer()
    queue.subscribe(consumer)
    world.flush()
    world.put(queue, 6)
    world.flush()
    consumer.settle(consumer.held[2:6])
    world.flush()
    damaged = [*world.records(keys.CHUNK), *world.records(keys.SUMMARY)]
    engine = engine.crash()
    engine.write([put(key, b"damaged") for key in damaged], sync=True)
    later = StoreWorld(engine, now_seconds=world.now_seconds)
    queue = later.restored()
    answers: list[str] = []
    later.put(queue, 3)
    queue.when_saved(0, answers.append)
    later.flush()
    assert answers == ["disk"]
    assert StoreWorld(engine.crash(), now_seconds=later.now_seconds).restored().elements.live_count == 3


class DamagedEngine(MemoryEngine):
    """Finds pieces of transactions damaged by itself, as LevelDB does."""

    def get(self, key: bytes) -> bytes | None:
        if key.startswith(keys.TRANSACTION):
            raise CorruptionError("block checksum mismatch")
        return super().get(key)


def test_a_piece_that_the_engine_finds_damaged_is_told_and_holds_nobody_up() -> None:
    world = StoreWorld(DamagedEngine())
    spools = StoreSpools(world.store)
    spool = spools.begin()
    spool.write(("/queue/a", 4, False), world.messages(3), None)
    world.flush()
    answers: list[list[Message]] = []
    spool.read(0, answers.append, lambda: None)
    world.flush()
    assert answers == [[]]
    assert world.log.names("error") == ["corrupt record can't be kept"]
    assert not spools.reading.limiter.used_bytes


@pytest.mark.parametrize("key", [keys.META_NUMBERS_KEY, keys.META_CLEAN_KEY])
def test_damaged_records_of_the_store_itself_keep_nobody_from_starting(key: bytes) -> None:
    engine = MemoryEngine()
    engine.write([put(key, b"damaged")], sync=True)
    found = recover(engine, lambda _count: None, RigHeads())
    assert [fault.key for fault in found.faults] == [key]
    if key == keys.META_NUMBERS_KEY:
        assert found.next_number == NUMBERS_LOST
    else:
        assert not found.clean


# ---------------------------------------------------------------------- the folder


class BrokenFolder(FakeFolder):
    """A folder that takes nothing, and says nothing."""

    is_silent = False

    def free_bytes(self) -> int:
        if self.is_silent:
            raise DirectoryError("the folder is gone")
        return super().free_bytes()

    def attic_put(self, name: str, data: bytes) -> str:
        raise NoSpaceError("no space")


def test_damage_is_told_also_when_the_attic_has_no_room() -> None:
    engine = FaultyEngine(Random(1))
    world = StoreWorld(engine)
    world.put(world.queue(), 8)
    world.flush(seconds=0.1)
    engine.corrupt(world.records(keys.CHUNK)[0])
    later = StoreWorld(engine.crash(), now_seconds=world.now_seconds, folder=BrokenFolder())
    later.restored().subscribe(later.consumer())
    later.flush()
    assert later.log.names("error") == ["corrupt record can't be kept", "messages lost"]
    assert "no space" in later.log.events[-2][2]["because"]


def test_a_folder_that_does_not_answer_is_told_and_asked_again() -> None:
    folder = BrokenFolder()
    folder.is_silent = True
    world = StoreWorld(MemoryEngine(), folder=folder)
    world.flush()
    assert set(world.log.names("error")) == {"cannot see the free space of the disk"}
    folder.is_silent = False
    told_count = len(world.log.events)
    world.flush()
    assert len(world.log.events) == told_count


# ---------------------------------------------------------------------- one at the cost of others


def test_a_queue_that_fills_every_batch_keeps_no_other_waiting() -> None:
    world = StoreWorld(MemoryEngine())
    hog = shared_queue("/queue/a", QueuePolicy(memory_bytes=1 << 28), world.environment)
    modest = shared_queue("/queue/b", QueuePolicy(), world.environment)
    answers: list[str] = []

    def put_much() -> None:
        first = hog.elements.next_sequence
        world.put(hog, 10, wire_bytes=1 << 20)
        hog.when_saved(first, lambda _how: None)

    put_much()
    world.run()
    world.put(modest)
    modest.when_saved(0, answers.append)
    for _ in range(2):
        put_much()
        world.write()
    world.write()
    assert answers == ["disk"]


def test_a_queue_of_which_nothing_was_stored_costs_no_write_when_it_goes() -> None:
    world = StoreWorld(MemoryEngine())
    queue = world.queue()
    queue.subscribe(world.consumer(auto=True))
    world.put(queue, 3)
    world.flush()
    queue.close_queue("nobody wants it")
    world.flush()
    assert world.worker.batches == []


def test_a_queue_that_was_only_paged_out_leaves_nothing() -> None:
    with tight(block_bits=3):
        world = StoreWorld(MemoryEngine())
        queue = world.queue(memory_bytes=4096)
        world.put(queue, 100, persistent=False)
        world.flush()
        assert world.leftovers().keys() == {"paged"}
        queue.close_queue("nobody wants it")
        world.flush()
    assert world.leftovers() == {}
    assert any(kind == DELETE_RANGE for changes, _sync in world.worker.batches for kind, _key, _value in changes)


@pytest.mark.parametrize("persistent", [True, False])
def test_a_queue_that_is_deleted_sends_no_more_blocks_out(persistent: bool) -> None:
    """Regression: the timer that waited for its consumers did, while it was let go of in steps."""
    with tight(block_bits=3):
        world = StoreWorld(MemoryEngine())
        left: list[Iterator[object]] = []
        world.environment = attrs.evolve(world.environment, in_steps=lambda _owner, work: left.append(work))
        queue = world.queue(memory_bytes=64 * 1024)
        queue.subscribe(world.consumer(1))
        for _ in range(80):
            world.put(queue, 1, wire_bytes=500, persistent=persistent)
        world.settle_down()
        assert queue.pager is not None and queue.pager.is_over and not queue.pager.paged_out_count
        queue.close_queue("its owner left")
        assert queue.elements.live_count, "it is let go of in steps"
        world.wait_in_vain()
        assert not queue.pager.paged_out_count
        for steps in left:
            for _ in steps:
                pass
        world.flush()
    assert world.leftovers() == {}


def test_making_room_in_vain_looks_at_no_more_of_a_topic_than_somebody_lags(monkeypatch: pytest.MonkeyPatch) -> None:
    """A durable subscription holds a backlog beyond the quota, which may be any number of blocks."""
    looked_count = 0
    read = CursoredQueue.read

    def counting(self: CursoredQueue, *args: int, **options: bool) -> object:
        nonlocal looked_count
        looked_count += 1
        return read(self, *args, **options)

    world = StoreWorld(MemoryEngine())
    topic = Topic("/topic/a", QueuePolicy(memory_bytes=1 << 20, bytes_max=2 << 20), world.environment)
    topic.readers.add(1)
    listener = world.consumer(auto=True)
    topic.subscribe(listener)
    world.run()

    def publish(times: int) -> None:
        for _ in range(times):
            world.put(topic, 50, wire_bytes=1000)
            world.settle_down()

    publish(100)
    assert topic.elements.outside_count > 20
    monkeypatch.setattr(CursoredQueue, "read", counting)
    publish(20)
    assert looked_count <= 3 * 20
    assert len(listener.deliveries) == 120 * 50
    assert listener.dropped_counts == [0] * len(listener.dropped_counts)


def test_those_who_are_attached_late_lose_the_oldest_beside_a_durable_subscription_that_keeps_up() -> None:
    """Regression: nothing was dropped for the room that only they needed, and senders waited for their coming."""
    world = StoreWorld(MemoryEngine())
    topic = Topic("/topic/a", QueuePolicy(memory_bytes=1 << 20, bytes_max=2 << 20), world.environment)
    topic.subscribe(world.consumer(auto=True), durable_id=1)
    world.run()
    topic.hold_beginning()
    producer = OfferingProducer(world, topic)
    for _ in range(120):
        producer.send(world.messages(50, wire_bytes=1000))
        world.settle_down()
    assert not producer.outbox
    late = world.consumer(auto=True)
    topic.subscribe(late, from_beginning=True)
    topic.release_beginning()
    world.settle_down()
    assert sum(late.dropped_counts) > 1000
    assert len(late.deliveries) + sum(late.dropped_counts) == 120 * 50


@pytest.mark.parametrize("has_store", [True, False])
@pytest.mark.parametrize("kind", [Topic, shared_queue])
@pytest.mark.parametrize("paging", ["page", "throttle"])
def test_promised_room_is_taken_whatever_the_kind_and_the_store(
    kind: Callable[..., MessageQueue], paging: str, has_store: bool
) -> None:
    """Regression: a topic with a store did not see it, and a COMMIT that had been checked went over the limits."""
    world = StoreWorld(MemoryEngine()) if has_store else World()
    policy = QueuePolicy(full="reject", count_max=10, memory_bytes=20_000, bytes_max=20_000, paging=paging)  # type: ignore[arg-type]
    queue = kind("/topic/a", policy, world.environment)
    queue.subscribe(world.consumer(1))
    promise = PromisedRoom()
    for promised, free in (((8, 1000), (2, 20)), ((1, 19_000), (1, 20))):
        promise.make(queue, *promised)
        assert queue.fits(*free)
        assert not queue.fits(3, 2000)
        with pytest.raises(QueueFullError):
            world.send(queue, 3, wire_bytes=700)
        promise.release()
    assert queue.fits(3, 2000)


def test_a_delayed_message_waits_until_a_topic_that_refuses_has_room() -> None:
    """Policy `reject` has nobody to tell when the time has come."""
    world = StoreWorld(MemoryEngine())
    destinations = registry(world, QueuePolicy(count_max=2, full="reject"))
    destination = destinations.get(parse("/topic/a"))
    topic = destination.queue.partition(4)
    slow = world.consumer(1)
    topic.subscribe(slow)
    delayed = destination.delay_queue(4)
    for _ in range(2):
        for delay_ms in (1000, 1001):
            run = world.messages(1, head=Head(destination="/topic/a", delay_ms=delay_ms, persistent=True))
            delayed.add(run, len(run[0].wire), None)
        world.now_seconds += 2.0
        world.settle_down()
    assert (delayed.elements.live_count, topic.elements.live_count) == (2, 2)
    world.flush()
    for _ in range(20):
        slow.settle()
        world.flush(seconds=0.5)
    assert slow.numbers == list(range(4))
    assert (delayed.elements.live_count, topic.elements.live_count, topic.rejected_count) == (0, 0, 0)


def test_spooled_transactions_keep_no_receipt_waiting() -> None:
    """Their pieces come beside queues, and may fill batch after batch."""
    world = StoreWorld(MemoryEngine())
    queue = world.queue()
    answers: list[str] = []
    piece = bytes(5 << 20)
    world.store.change([put(b"t1", piece)])
    world.run()
    world.put(queue)
    queue.when_saved(0, answers.append)
    world.store.change([put(b"t2", piece)])
    world.write()
    world.store.change([put(b"t3", piece)])
    world.write()
    assert answers == ["disk"]


def test_dates_of_blocks_that_go_out_are_not_sought_one_block_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be a date for each message in memory."""
    looked_count = 0
    counts = ExpiryDates._counts

    def counting(self: ExpiryDates, entry: tuple[int, int, int]) -> bool:
        nonlocal looked_count
        looked_count += 1
        return counts(self, entry)

    monkeypatch.setattr(ExpiryDates, "_counts", counting)
    world = StoreWorld(MemoryEngine())
    queue = world.queue(memory_bytes=8 << 20)
    for _ in range(30_000):
        world.now_seconds += 0.001
        world.put(queue, ttl_ms=100_000, wire_bytes=300)
        if not queue.elements.next_sequence % 100:
            world.settle_down()
    assert queue.elements.outside_count > 10
    assert looked_count < 4 * 30_000
    inside_count = queue.elements.live_count - 1024 * queue.elements.outside_count
    assert len(queue.expiry) < 4 * inside_count
    world.flush(seconds=200)
    assert (queue.elements.live_count, queue.expired_count) == (0, 30_000)


# ---------------------------------------------------------------------- the end


def test_what_a_worker_was_given_is_done_though_nobody_can_be_told_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    core = DispatcherCore(time.monotonic)
    engine = MemoryEngine()
    worker = ThreadWorker(engine, core.submit)
    core.close()
    worker.write([put(b"a", b"1")], sync=False, done=lambda _error: None)
    worker.write([put(b"b", b"2")], sync=False, done=lambda _error: None)
    worker.close()
    assert engine.contents() == [(b"a", b"1"), (b"b", b"2")]
    assert raised == []
