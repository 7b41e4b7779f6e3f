"""Who pages and who waits, in virtual time: whatever the pattern of bursts and pauses, and whoever waits for whom.

The disk writes and reads at half of the consumer's rate, each by itself. A tick is twenty milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluiceway.queues.message import MESSAGE_OVERHEAD_BYTES
from sluiceway.queues.policy import QueuePolicy
from sluiceway.queues.selectors import Selection, compile_selector
from sluiceway.queues.shared import shared_queue
from sluiceway.queues.taking import DRAIN_SECONDS, PATIENCE_SECONDS, Taking
from sluiceway.queues.topic import Topic
from sluiceway.store.memory import MemoryEngine
from tests.how_often import rounds
from tests.queues.rig import Head
from tests.store.rig import OfferingProducer, StoreWorld, tight

TICK_SECONDS = 0.02
WIRE_BYTES = 1000
CHARGE_BYTES = WIRE_BYTES + MESSAGE_OVERHEAD_BYTES
MEMORY_COUNT = 200
PER_SECOND = 1_000
"""What the consumer takes while it does not pause: five times the memory."""
DISK_PER_SECOND = PER_SECOND // 2
RUN_COUNT = 10


@pytest.fixture(autouse=True)
def small_blocks() -> Iterator[None]:
    with tight(block_bits=4, lease_count=1 << 16, seal_count=8, blocks_min=8):
        yield


class Play:
    """One queue, a producer that sends what it may, a disk with a rate."""

    def __init__(self, **policy: object) -> None:
        self.world = StoreWorld(MemoryEngine())
        self.queue = self.world.queue(memory_bytes=MEMORY_COUNT * CHARGE_BYTES, **policy)
        self.sent_count = 0
        self.producer = OfferingProducer(self.world, self.queue, on_taken=self._taken)
        self._write_room = self._read_room = 0.0

    def _taken(self, run: list[object], _first: int) -> None:
        self.sent_count += len(run)

    def send(self, count: int, *, persistent: bool) -> int:
        """As many as that, unless the producer waits with some. Returns how many it has sent."""
        head = Head(persistent=persistent)
        for sent_count in range(0, count - RUN_COUNT + 1, RUN_COUNT):
            if self.producer.is_blocked:
                return sent_count
            self.producer.send(self.world.messages(RUN_COUNT, wire_bytes=WIRE_BYTES, head=head))
        return count // RUN_COUNT * RUN_COUNT

    def tick(self) -> None:
        world, worker = self.world, self.world.worker
        world.advance(TICK_SECONDS)
        per_tick = DISK_PER_SECOND * TICK_SECONDS
        self._write_room = min(self._write_room + per_tick, 8 * per_tick)
        self._read_room = min(self._read_room + per_tick, 8 * per_tick)
        while self._write_room > 0:
            batches_count = len(worker.batches)
            if not worker.step(read=False):
                break
            world.run()
            size_bytes = sum(
                len(change[2]) for changes, _sync in worker.batches[batches_count - 1 :][:1] for change in changes
            )
            self._write_room -= size_bytes / WIRE_BYTES
        while self._read_room > 0:
            loaded_count = world.store.loaded_count
            if not worker.step(read=True):
                break
            world.run()
            self._read_room -= world.store.loaded_count - loaded_count
        world.run()

    @property
    def paged_out_count(self) -> int:
        assert self.queue.pager is not None
        return self.queue.pager.paged_out_count


class Taker:
    """Settles so many a second, while it does not pause."""

    def __init__(self, play: Play, per_second: float, *, window: int | None = 100) -> None:
        self.consumer = play.world.consumer(window)
        play.queue.subscribe(self.consumer)
        self._per_tick = per_second * TICK_SECONDS
        self._room = 0.0
        self.settled_count = 0

    def take(self) -> None:
        """One tick's share; what was not there to be taken is missed."""
        self._room += self._per_tick
        held = self.consumer.held[: int(self._room)]
        if held:
            self.consumer.settle(held)
            self.settled_count += len(held)
        self._room = min(self._room - len(held), max(2 * self._per_tick, 1.0))


def throughput(
    *,
    pause_seconds: float,
    run_seconds: float,
    burst_seconds: float = 0.0,
    rest_seconds: float = 0.0,
    window: int | None = 100,
    persistent: bool = False,
    slow_count: int = 0,
    seconds: float = 20.0,
) -> tuple[float, float]:
    """What got through in that time, and what the slower side could have had (both in messages)."""
    play = Play()
    taker = Taker(play, PER_SECOND, window=window)
    slow = [Taker(play, 5, window=5) for _ in range(slow_count)]
    took = sent = 0.0
    owed_count = 0
    ticks = round(seconds / TICK_SECONDS)
    for tick in range(ticks):
        now = tick * TICK_SECONDS
        if not rest_seconds or now % (burst_seconds + rest_seconds) < burst_seconds:
            owed_count += 4 * round(PER_SECOND * TICK_SECONDS)
            sent += 4 * PER_SECOND * TICK_SECONDS
        owed_count -= play.send(owed_count, persistent=persistent)  # who had to wait goes on with the burst later
        play.tick()
        if now % (pause_seconds + run_seconds) >= pause_seconds:
            taker.take()
            took += PER_SECOND * TICK_SECONDS
        for other in slow:
            other.take()
    return taker.settled_count + sum(other.settled_count for other in slow), min(took, sent)


PAUSES = [0.0, 0.1, 0.5, 1.9, 2.1, 5.0, 10.0]


@pytest.mark.parametrize(
    ("pause_seconds", "run_seconds"),
    [*((pause, 2.0) for pause in PAUSES), (0.5, 0.2), (2.1, 0.2), (1.9, 10.0), (5.0, 10.0)],
)
def test_no_pause_of_the_consumer_halves_what_gets_through(pause_seconds: float, run_seconds: float) -> None:
    got, possible = throughput(pause_seconds=pause_seconds, run_seconds=run_seconds)
    assert got >= possible / 2 - MEMORY_COUNT


@pytest.mark.parametrize(
    ("window", "persistent", "pause_seconds"),
    [
        *((1, True, 0.5), (10, False, 0.5), (1000, True, 0.5), (None, False, 0.5)),
        *((1, False, 3.0), (10, True, 3.0), (1000, False, 3.0), (None, True, 3.0)),
    ],
)
def test_nor_does_any_prefetch(window: int | None, persistent: bool, pause_seconds: float) -> None:
    got, possible = throughput(
        pause_seconds=pause_seconds, run_seconds=3.0, window=window, persistent=persistent, seconds=12.0
    )
    # With a window of one it is the window that limits: one message a tick.
    possible = min(possible, 12.0 / TICK_SECONDS / 2) if window == 1 else possible
    possible = min(possible, 10 * 12.0 / TICK_SECONDS / 2) if window == 10 else possible
    assert got >= possible / 2 - MEMORY_COUNT


@pytest.mark.parametrize("burst_seconds", [0.05, 3.0])
@pytest.mark.parametrize("rest_seconds", [0.05, 3.0])
@pytest.mark.parametrize("pause_seconds", [0.7, 2.5])
def test_nor_do_bursts_of_the_producer(burst_seconds: float, rest_seconds: float, pause_seconds: float) -> None:
    got, possible = throughput(
        pause_seconds=pause_seconds,
        run_seconds=1.3,
        burst_seconds=burst_seconds,
        rest_seconds=rest_seconds,
        seconds=12.0,
    )
    assert got >= possible / 2 - MEMORY_COUNT


@settings(max_examples=rounds(8))
@given(
    pause_seconds=st.floats(0.0, 8.0),
    run_seconds=st.floats(0.1, 8.0),
    burst_seconds=st.floats(0.05, 5.0),
    rest_seconds=st.floats(0.0, 5.0),
    persistent=st.booleans(),
    slow_count=st.integers(0, 3),
)
@example(2.0, 2.0, 2.0, 0.0, False, 1)
def test_nor_does_any_pattern_of_both(
    pause_seconds: float,
    run_seconds: float,
    burst_seconds: float,
    rest_seconds: float,
    persistent: bool,
    slow_count: int,
) -> None:
    """Also beside consumers that are slow."""
    got, possible = throughput(
        pause_seconds=pause_seconds,
        run_seconds=run_seconds,
        burst_seconds=burst_seconds,
        rest_seconds=rest_seconds,
        persistent=persistent,
        slow_count=slow_count,
        seconds=10.0,
    )
    assert got >= possible / 2 - MEMORY_COUNT


def test_while_a_consumer_takes_nothing_is_paged() -> None:
    play = Play()
    taker = Taker(play, PER_SECOND)
    for _ in range(1000):
        play.send(80, persistent=False)
        play.tick()
        taker.take()
    assert play.paged_out_count == 0 and not play.world.worker.batches
    assert taker.settled_count >= 0.95 * 1000 * PER_SECOND * TICK_SECONDS


def test_a_queue_without_consumers_pages_at_once() -> None:
    play = Play()
    for _ in range(200):
        play.send(5 * RUN_COUNT, persistent=False)
        play.world.settle_down()
        assert not play.producer.is_blocked
    assert play.sent_count == 10_000


@pytest.mark.parametrize("stops", ["stands still", "leaves"])
def test_a_consumer_that_stops_is_waited_for_so_long_and_no_longer(stops: str) -> None:
    play = Play()
    taker = Taker(play, PER_SECOND)
    for _ in range(300):
        play.send(80, persistent=False)
        play.tick()
        taker.take()
    if stops == "leaves":
        for subscription in list(play.queue.subscriptions.values()):
            subscription.close()
        taker.consumer.requeue()
    waited = 0
    while not play.paged_out_count:
        play.send(80, persistent=False)
        play.tick()
        waited += 1
        assert waited * TICK_SECONDS <= 2 * PATIENCE_SECONDS
    sent_count = play.sent_count
    for _ in range(1000):
        play.send(80, persistent=False)
        play.tick()
    assert play.sent_count - sent_count >= 0.9 * 1000 * DISK_PER_SECOND * TICK_SECONDS, "at the disk's rate"


def test_what_was_paged_is_drained_before_senders_go_on() -> None:
    play = Play()
    for _ in range(100):
        play.send(80, persistent=False)
        play.world.settle_down()
    taker = Taker(play, PER_SECOND)
    for _ in range(round(24 / TICK_SECONDS)):
        play.send(80, persistent=False)
        play.tick()
        taker.take()
    assert play.queue.elements.outside_count == 0, "all is in memory again"
    paged_out_count = play.paged_out_count
    for _ in range(500):
        play.send(80, persistent=False)
        play.tick()
        taker.take()
    assert play.paged_out_count == paged_out_count


def test_consumers_that_need_long_for_what_there_is_are_slow() -> None:
    taking = Taking()
    memory_count = 1000
    for per_second, is_slow in (
        (memory_count / DRAIN_SECONDS * 0.9, True),
        (memory_count / DRAIN_SECONDS * 1.1, False),
    ):
        start = 1000.0 * per_second
        assert not taking.is_slow(start, is_consumed=True, taken_count=0, held_count=memory_count)
        taken_count = round(per_second * PATIENCE_SECONDS * 1000)
        found = taking.is_slow(
            start + PATIENCE_SECONDS, is_consumed=True, taken_count=taken_count, held_count=1000 * memory_count
        )
        assert found is is_slow


# ---------------------------------------------------------------------- who waits for whom


def test_a_server_that_answers_on_one_connection_never_stands_still() -> None:
    """The client reads answers when it has sent all its requests; the server takes the next request when its answer has
    been taken. Both queues are short of memory.
    """
    world = StoreWorld(MemoryEngine())
    policy = QueuePolicy(memory_bytes=20 * CHARGE_BYTES)
    requests = shared_queue("/queue/requests", policy, world.environment)
    answers = shared_queue("/queue/answers", policy, world.environment)
    server, client = world.consumer(5), world.consumer(5)
    requests.subscribe(server)
    answers.subscribe(client)
    replier, caller = OfferingProducer(world, answers), OfferingProducer(world, requests)
    caller.send(*[world.messages(1, wire_bytes=WIRE_BYTES, head=Head()) for _ in range(500)])
    for _ in range(2000):
        world.advance(0.05)
        world.settle_down()
        if server.held and not replier.is_blocked:
            replier.send(world.messages(1, wire_bytes=WIRE_BYTES, head=Head()))
            server.settle(server.held[:1])
        if client.held and not caller.outbox:
            client.settle(client.held[:1])
    assert len(client.deliveries) == 500 and not client.held


def test_a_match_behind_the_memory_is_found() -> None:
    """A consumer with a selector waits for what its own sender has yet to send."""
    world = StoreWorld(MemoryEngine())
    queue = shared_queue("/queue/a", QueuePolicy(memory_bytes=20 * CHARGE_BYTES), world.environment)
    consumer = world.consumer(5, auto=True)
    selector = compile_selector("color = 'red'")
    assert selector is not None
    queue.subscribe(consumer, selection=Selection(selector))
    producer = OfferingProducer(world, queue)
    producer.send(*[world.messages(1, wire_bytes=WIRE_BYTES, head=Head(color="blue")) for _ in range(200)])
    producer.send(world.messages(1, wire_bytes=WIRE_BYTES, head=Head(color="red")))
    for _ in range(200):
        world.advance(0.1)
        world.settle_down()
    assert not producer.outbox and len(consumer.deliveries) == 1


def test_a_consumer_that_holds_its_whole_prefetch_until_more_comes_gets_more() -> None:
    """A batch of a thousand that is acknowledged together, and half of it does not fit into memory."""
    world = StoreWorld(MemoryEngine())
    queue = shared_queue("/queue/a", QueuePolicy(memory_bytes=100 * CHARGE_BYTES), world.environment)
    consumer = world.consumer()
    queue.subscribe(consumer)
    producer = OfferingProducer(world, queue)
    producer.send(*[world.messages(10, wire_bytes=WIRE_BYTES, head=Head()) for _ in range(100)])
    for _ in range(100):
        world.advance(0.1)
        world.settle_down()
    assert len(consumer.held) == 1000 and not producer.outbox


def test_a_topic_s_laggards_go_to_the_disk_while_the_others_keep_their_rate() -> None:
    """Nobody waits for a durable subscription that is away or stands still."""
    world = StoreWorld(MemoryEngine())
    policy = QueuePolicy(memory_bytes=50 * CHARGE_BYTES, lag_bytes_per_second=None)
    topic = Topic("/topic/a", policy, world.environment)
    topic.readers.add(1)
    topic.readers.add(2)
    still, fast = world.consumer(3), world.consumer(auto=True)
    topic.subscribe(still, durable_id=2)
    topic.subscribe(fast)
    producer = OfferingProducer(world, topic)
    for _ in range(100):
        producer.send(world.messages(10, wire_bytes=WIRE_BYTES, head=Head(persistent=True)))
        world.settle_down()
        assert not producer.is_blocked
    assert len(fast.deliveries) == 1000
