"""What queues tell comes out again, message by message: checked against a plain list of what happened."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.queues.message import Message
from sluiceway.queues.observer import CompositeObserver, Fate
from sluiceway.queues.queue import MessageQueue
from sluiceway.queues.trails import Found, Trails, TrailSearch, Wanted, run
from sluiceway.queues.trails.locating import READS_MAX, Elements, Step, locate
from sluiceway.queues.trails.recording import MOMENT_SECONDS, WHO_MAX, QueueTrail
from sluiceway.queues.trails.rings import EVENT_BYTES, LISTED_BYTES_MAX
from tests.how_often import rounds
from tests.queues.rig import Head, World


class Surroundings:
    """Nothing but some queues."""

    def __init__(self, queues: Callable[[], Iterable[MessageQueue]]) -> None:
        self.queues = queues

    def holder_of(self, queue: MessageQueue, sequence: int) -> Generator[Step, Elements, str | None]:
        yield None
        return None

    def correlation_of(self, message: Message) -> str | None:
        return None

    def now_ms(self) -> int:
        return 0


class FollowedWorld(World):
    """A world whose queues have trails."""

    def __init__(self, bytes_max: int = 1 << 20) -> None:
        super().__init__()
        self.trails = Trails(bytes_max=bytes_max, keep_seconds=1e9, clock=lambda: self.now_seconds)
        self.environment = attrs.evolve(self.environment, observer_of=self.trails.observer_of)
        self.queues: list[MessageQueue] = []
        self.search = TrailSearch(self.trails, Surroundings(lambda: self.queues))

    def found(self, number: int) -> Found | None:
        return run(self.search.by_number(number))

    def trail_of_some(self, count: int) -> QueueTrail:
        """Of a new queue, with so many messages that came at once."""
        queue = self.shared()
        self.queues.append(queue)
        if count:
            self.send(queue, count)
        trail = self.trails.trail_of(queue)
        assert trail is not None
        return trail

    def story(self, number: int) -> list[str]:
        found = self.found(number)
        return [] if found is None else [entry.what for entry in found.entries]


def test_single_messages_within_a_moment_are_one_event_of_each_stage() -> None:
    """A stream that comes one by one costs no event each, and each message still has its own trail."""
    world = FollowedWorld()
    queue = world.shared()
    world.queues.append(queue)
    consumer = world.consumer(auto=True)
    queue.subscribe(consumer)
    world.run()
    for _ in range(50):
        world.send(queue)
        world.now_seconds += MOMENT_SECONDS / 200
        world.run()
    trail = world.trails.trail_of(queue)
    assert trail is not None
    assert len(trail.events) <= 4, "sent is told by the protocol's consumer, not by this one"
    assert [world.story(number) for number in range(50)] == [["accepted", "acked"]] * 50


@pytest.mark.parametrize("auto", [True, False])
def test_what_many_get_within_a_moment_is_one_event_for_up_to_so_many(auto: bool) -> None:
    """A topic with many subscribers: each of them still has its own entry."""
    world = FollowedWorld()
    trail = world.trail_of_some(10)
    before_count = len(trail.events)
    names = [f"consumer-{place}" for place in range(2 * WHO_MAX + 1)]
    for name in names:
        trail.sent(name, range(10), auto=auto)
    for name in names:
        trail.settled(name, range(10))
    assert len(trail.events) - before_count == 6
    for is_sealed in (False, True):
        if is_sealed:
            trail.seal()
        found = world.found(9)
        assert found is not None
        details = [entry.detail for entry in found.entries]
        assert [word for word in details if word.startswith("to ")][-1].startswith(f"to {names[-1]}")
        assert sum("consumer-" in word for word in details) == 2 * len(names)


def test_what_goes_to_others_later_or_is_more_is_an_event_of_its_own() -> None:
    world = FollowedWorld()
    trail = world.trail_of_some(10)
    trail.sent("a", range(10), auto=False)
    trail.sent("b", range(9), auto=False)
    trail.sent("c", range(9), auto=True)
    trail.returned("b", range(9), attempted=True, refused=False)
    trail.sent("b", range(9), auto=True)
    world.advance(MOMENT_SECONDS * 2)
    trail.sent("d", range(9), auto=True)
    assert [event[4] for event in trail.events[1:]] == ["a", "b", "c", "b", "b", "d"]
    times = [event[1] for event in trail.events]
    assert times[-1] > times[0]


def test_events_of_many_consumers_are_paid_for() -> None:
    """Names are in lists: these count, and a ring that has many of them open is sealed."""
    world = FollowedWorld()
    trail = world.trail_of_some(0)
    for start in range(0, 4000, 10):
        for name in ("a", "b", "c"):
            trail.sent(name, range(start, start + 10), auto=True)
        assert trail.listed_bytes <= LISTED_BYTES_MAX
    assert trail.parts
    budget = world.trails.budget
    used_bytes = trail.granted_count * EVENT_BYTES + trail.listed_bytes + sum(part.size_bytes for part in trail.parts)
    assert budget.used_bytes == used_bytes
    every = [event for events in trail.all_events(lambda _part: True) for event in events]
    told = sorted(
        (event[2], name) for event in every for name in (event[4] if isinstance(event[4], list) else [event[4]])
    )
    assert told == [(start, name) for start in range(0, 4000, 10) for name in ("a", "b", "c")]


def test_what_a_new_moment_begins_is_an_event_of_its_own() -> None:
    world = FollowedWorld()
    queue = world.shared()
    world.queues.append(queue)
    for _ in range(3):
        world.send(queue)
        world.advance(MOMENT_SECONDS * 2)
    seconds = [found.entries[0].seconds for number in range(3) if (found := world.found(number)) is not None]
    assert seconds == pytest.approx([100.0, 100.002, 100.004])


def test_numbers_with_gaps_are_told_apart() -> None:
    """Runs that were put together from several senders."""
    world = FollowedWorld()
    queue = world.shared()
    world.queues.append(queue)
    messages = [Message(Head(), b"x" * 8, number) for number in (3, 4, 9, 10, 11, 40)]
    queue.add(messages, 48, None)
    assert [number for number in range(50) if world.story(number)] == [3, 4, 9, 10, 11, 40]
    found = world.found(11)
    assert found is not None and found.place is not None
    assert found.place.sequence == 4


def test_blocks_that_are_closed_early_leave_gaps_between_sequences() -> None:
    """Large messages: one run goes into several blocks, each of which begins at a multiple of 1,024."""
    world = FollowedWorld()
    queue = world.shared()
    world.queues.append(queue)
    queue.elements.block_bytes_max = 3000
    world.send(queue, 20, wire_bytes=600)
    messages = [Message(Head(), b"x" * 600, number) for number in (30, 31, 32, 40, 41, 50)]
    queue.add(messages, 3600, None)
    trail = world.trails.trail_of(queue)
    assert trail is not None
    assert len(trail.events) < 15
    for sequence in queue.elements.live_sequences(0, queue.elements.next_sequence):
        message = queue.elements.get(sequence)
        assert message is not None
        found = world.found(message.number)
        assert found is not None and found.place is not None
        assert found.place.sequence == sequence
    assert [number for number in range(60) if world.story(number)] == [*range(20), 30, 31, 32, 40, 41, 50]


@settings(max_examples=rounds(25), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["send", "ack", "nack", "wait", "expire"]), st.integers(1, 40)), max_size=40))
def test_each_trail_is_what_happened_to_that_message(work: list[tuple[str, int]]) -> None:
    """Model: for each number a list of what was done to it, in order."""
    world = FollowedWorld()
    queue = world.shared()
    world.queues.append(queue)
    consumer = world.consumer(20)
    queue.subscribe(consumer)
    world.run()
    told: dict[int, list[str]] = {}
    for action, count in work:
        held = list(consumer.held)[:count]
        if action == "send":
            for message in world.send(queue, count):
                told[message.number] = ["accepted"]
        elif action == "ack":
            consumer.settle(held)
            for delivery in held:
                told[delivery.number].append("acked")
        elif action == "nack":
            consumer.requeue(held)
            for delivery in held:
                told[delivery.number].append("returned")
        elif action == "expire":
            gone = [
                sequence
                for sequence in queue.elements.live_sequences(0, queue.elements.next_sequence)
                if queue._cursor.is_available(sequence)
            ][:count]
            for sequence in gone:
                leaving = queue.elements.get(sequence)
                assert leaving is not None
                told[leaving.number].append("expired")
            if gone:
                queue.removal.drop_expired(gone)
        world.advance(0.0003 if action != "wait" else 1.0)
    for number, expected in told.items():
        assert world.story(number) == expected, number


def test_what_is_forgotten_is_said_to_be_incomplete() -> None:
    world = FollowedWorld(bytes_max=64 * 1024)
    queue = world.shared()
    world.queues.append(queue)
    world.send(queue)
    for _ in range(5000):
        world.send(queue)
        world.advance(0.01)
    found = world.found(0)
    assert found is not None
    assert not found.complete
    assert found.place is not None and found.place.ahead_count == 0
    latest = world.found(5000)
    assert latest is not None and latest.complete


def test_of_a_deleted_queue_the_trail_stays_for_a_while() -> None:
    world = FollowedWorld()
    queue = world.shared()
    world.send(queue)
    queue.close_queue("nobody used it")
    found = world.found(0)
    assert found is not None
    assert [entry.what for entry in found.entries] == ["accepted", "dropped"]
    assert found.words == "It was dropped: the queue was deleted: nobody used it."


def test_many_deleted_queues_are_forgotten_with_their_events() -> None:
    """Reply queues come and go by the thousand."""
    world = FollowedWorld(bytes_max=64 * 1024)
    for _ in range(3000):
        queue = world.shared()
        world.send(queue)
        queue.close_queue("gone")
    assert len(world.trails.queue_trails()) < 400
    assert world.trails.budget.used_bytes <= 64 * 1024


def test_a_block_that_is_outside_is_read_only_if_it_may_hold_the_message() -> None:
    world = FollowedWorld()
    queue = world.shared()
    world.send(queue, 5000)
    for index in range(4):
        queue.elements.move_out(index)
    steps = locate(2500, [queue])
    wanted = [step for step in iter(lambda: next(steps, None), None) if isinstance(step, Wanted)]
    assert [step.index for step in wanted] == [2]


def test_what_an_earlier_run_left_is_found_by_bisection() -> None:
    """Nothing is known of its numbers; each block that is read halves what is left."""
    world = FollowedWorld()
    queue = world.shared()
    world.send(queue, 100 * 1024)
    kept = {}
    for index in range(99):
        block = queue.elements.block(index)
        assert block is not None
        kept[index] = {sequence: m for sequence, m in enumerate(block.elements, block.base) if m is not None}
        queue.elements.move_out(index)
        assert block.outside is not None
        block.outside.numbers = None
    for number in (0, 50_000, 99 * 1024 - 1):
        steps, read_count = locate(number, [queue]), 0
        answer: dict[int, Message] | None = None
        try:
            while True:
                step = steps.send(answer)
                answer = None
                if isinstance(step, Wanted):
                    read_count += 1
                    answer = kept[step.index]
        except StopIteration as stop:
            assert stop.value == (queue, number)
        assert read_count <= 8 < READS_MAX


def test_a_search_goes_in_bounded_steps() -> None:
    """What is looked for is in none of many blocks: there is a break again and again."""
    world = FollowedWorld()
    queue = world.shared()
    for _ in range(200):
        world.send(queue, 1024)
    assert sum(1 for _ in locate(10**9, [queue])) > 20


def test_two_observers_of_one_queue_hear_the_same() -> None:
    """Trails and tracing beside each other."""
    world = FollowedWorld()
    other = Trails(bytes_max=1 << 20, keep_seconds=1e9, clock=lambda: world.now_seconds)
    queue = world.shared()
    first, second = world.trails.trail_of(queue), other.observer_of(queue)
    assert first is not None
    both = CompositeObserver(first, second)
    queue.observer = both
    messages = world.send(queue, 3)
    both.sent("a", range(3), auto=False)
    both.settled("a", range(2))
    both.returned("a", [2], attempted=True, refused=False)
    both.left(Fate.DROPPED, [2], "why")
    both.missed("b", 0, 2)
    both.outside(Fate.PARKED, messages, "x")
    both.stored(range(3), synced=True)
    both.paged(0, 3, paged_in=False)
    both.restored(3)
    both.closed("end")
    one, another = [[tuple(event) for each in t.all_events(lambda _p: True) for event in each] for t in (first, second)]
    assert one == another
    assert len(one) == 11
