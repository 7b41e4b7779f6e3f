"""What is remembered stays within the budget, and is forgotten in order."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from sluiceway.queues.queue import MessageQueue
from sluiceway.queues.trails.recording import Trails
from sluiceway.queues.trails.rings import EVENT_BYTES, GRANT_MAX, LISTED_BYTES, LISTED_BYTES_MAX, Budget, Ring

KIB = 1024


class Clock:
    """Time that is set."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class PlainRing(Ring):
    """Events are about their third and fourth value."""

    __slots__ = ()

    def bounds_of(self, columns: list[tuple[Any, ...]]) -> tuple[int, int, int, int]:
        return min(columns[2]), max(columns[3]), 0, 0

    def add(self, number: int, seconds: float = 0.0) -> None:
        self.events.append((0, seconds, number, number + 1, "", None))
        if len(self.events) >= self.granted_count:
            self.is_full()

    def numbers(self) -> list[int]:
        return [event[2] for events in self.all_events(lambda _part: True) for event in events]


def budget_of(bytes_max: int, keep_seconds: float = 1000.0) -> tuple[Budget, Clock]:
    clock = Clock()
    return Budget(bytes_max, keep_seconds, clock), clock


def test_what_fits_is_remembered_whole_and_in_order() -> None:
    budget, _clock = budget_of(1 << 20)
    ring = PlainRing(budget)
    for number in range(5000):
        ring.add(number)
    assert ring.numbers() == list(range(5000))
    assert not ring.has_forgotten


def test_beyond_the_budget_the_oldest_goes() -> None:
    budget, _clock = budget_of(128 * KIB)
    ring = PlainRing(budget)
    for number in range(50_000):
        ring.add(number)
    numbers = ring.numbers()
    assert ring.has_forgotten
    assert numbers == list(range(numbers[0], 50_000))
    assert budget.used_bytes <= 128 * KIB


def test_a_flood_does_not_make_a_quiet_ring_forget_its_last_events() -> None:
    budget, _clock = budget_of(256 * KIB)
    quiet, loud = PlainRing(budget), PlainRing(budget)
    for number in range(3):
        quiet.add(number)
    for number in range(50_000):
        loud.add(number)
    assert quiet.numbers() == [0, 1, 2]


def test_ten_thousand_rings_share_the_budget() -> None:
    budget, _clock = budget_of(256 * KIB)
    rings = [PlainRing(budget) for _ in range(10_000)]
    for number in range(5):
        for ring in rings:
            ring.add(number)
    assert budget.used_bytes <= 256 * KIB + GRANT_MAX * EVENT_BYTES
    assert rings[-1].numbers()[-1] == 4, "the latest is there"


def test_what_is_older_than_its_time_is_forgotten() -> None:
    budget, clock = budget_of(1 << 20, keep_seconds=60)
    ring = PlainRing(budget)
    for number in range(300):
        ring.add(number, seconds=number)
    ring.seal()
    clock.seconds = 330
    budget.forget_old()
    assert all(part.last_seconds >= 270 for part in ring.parts)
    assert ring.has_forgotten


def test_a_smaller_budget_holds_at_once() -> None:
    budget, _clock = budget_of(1 << 20)
    rings = [PlainRing(budget) for _ in range(20)]
    for number in range(1000):
        for ring in rings:
            ring.add(number)
    budget.resize(64 * KIB, 1000)
    assert budget.used_bytes <= 64 * KIB + GRANT_MAX * EVENT_BYTES


def test_what_ended_gives_its_grant_back() -> None:
    budget, _clock = budget_of(1 << 20)
    ring = PlainRing(budget)
    for number in range(100):
        ring.add(number)
    ring.seal(give_back=True)
    assert budget.used_bytes == sum(part.size_bytes for part in ring.parts)
    assert ring.numbers() == list(range(100))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 400)), max_size=60), st.integers(16, 400))
def test_the_budget_is_what_all_rings_hold(work: list[tuple[int, int]], kib: int) -> None:
    """Whatever happens: used is granted and sealed, within the limit, and each ring ends with what came last."""
    budget, _clock = budget_of(kib * KIB)
    rings = [PlainRing(budget) for _ in range(6)]
    counts = [0] * 6
    for which, count in work:
        for _ in range(count):
            rings[which].add(counts[which])
            counts[which] += 1
    held = sum(ring.granted_count * EVENT_BYTES + sum(part.size_bytes for part in ring.parts) for ring in rings)
    assert budget.used_bytes == held <= kib * KIB + GRANT_MAX * EVENT_BYTES
    for ring, count in zip(rings, counts, strict=True):
        numbers = ring.numbers()
        assert numbers == list(range(count - len(numbers), count))
        assert len(ring.events) <= max(1, ring.granted_count)


class ListingQueue:
    """Of a name."""

    name = "/queue/a"


def test_events_that_list_elements_one_by_one_stay_within_the_budget_too() -> None:
    """A consumer with a selector gets every second message of fifty busy queues: each event has a list."""
    clock = Clock()
    trails = Trails(bytes_max=512 * KIB, keep_seconds=1000.0, clock=clock)
    followed = [trails.observer_of(cast(MessageQueue, ListingQueue())) for _ in range(50)]
    for turn in range(100):
        for trail in followed:
            trail.sent("one", list(range(turn * 512, turn * 512 + 512, 2)), auto=False)
            trail.settled("one", list(range(turn * 512, turn * 512 + 512, 2)))
            open_bytes = sum(trail.listed_bytes for trail in followed)
            assert trails.budget.used_bytes <= 512 * KIB + GRANT_MAX * EVENT_BYTES + LISTED_BYTES_MAX
            assert open_bytes <= trails.budget.used_bytes
    listed_count = sum(len(event[5]) for trail in followed for event in trail.events if event[5] is not None)
    assert sum(trail.listed_bytes for trail in followed) == listed_count * LISTED_BYTES
    for trail in followed:
        trail.closed("gone")
    assert sum(trail.listed_bytes for trail in followed) == 0
