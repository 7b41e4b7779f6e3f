"""ResidencyLimiter: memory and quota throttle apart, and what moves between memory and disk changes only the memory."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluiceway.flow import Dimension, NegativeAmountError, OverReleaseError, ResidencyLimiter
from sluiceway.flow.errors import ThresholdError
from tests.flow.models import ManualClock


def make(
    clock: ManualClock, capacity_bytes: int = 100, *, count_max: int | None = None, quota_bytes: int | None = None
) -> ResidencyLimiter:
    return ResidencyLimiter(capacity_bytes, count_max=count_max, quota_bytes=quota_bytes, clock=clock)


def test_memory_throttles_at_capacity_and_resumes_at_half(clock: ManualClock) -> None:
    limiter = make(clock)
    limiter.add(1, 99)
    assert not limiter.throttled
    limiter.add(1, 1)
    assert limiter.throttled
    limiter.remove(1, 49)
    assert limiter.throttled
    limiter.remove(0, 1)
    assert not limiter.throttled


def test_moving_out_frees_memory_and_nothing_else(clock: ManualClock) -> None:
    limiter = make(clock)
    limiter.add(4, 100)
    limiter.move_out(2, 50)
    assert not limiter.throttled
    assert (limiter.used_count, limiter.used_bytes) == (2, 50)
    assert (limiter.total_count, limiter.total_bytes) == (4, 100)


def test_moving_in_takes_memory_and_may_throttle(clock: ManualClock) -> None:
    limiter = make(clock)
    limiter.add(4, 100)
    limiter.move_out(2, 50)
    limiter.add(1, 40)
    limiter.move_in(1, 10)
    assert limiter.throttled
    assert (limiter.used_count, limiter.used_bytes) == (4, 100)
    assert (limiter.total_count, limiter.total_bytes) == (5, 140)


@pytest.mark.parametrize(("limits", "size_bytes"), [({"count_max": 10}, 1), ({"quota_bytes": 1000}, 100)])
def test_a_quota_counts_what_is_outside_and_resumes_at_nine_tenths(
    clock: ManualClock, limits: dict[str, int], size_bytes: int
) -> None:
    """What is on disk drains slowly: half of it would be a long wait."""
    limiter = make(clock, 10_000, **limits)
    for _ in range(9):
        limiter.add(1, size_bytes)
        limiter.move_out(1, size_bytes)
    assert not limiter.throttled
    limiter.add(1, size_bytes)
    assert (limiter.throttled, limiter.quota_is_used_up) == (True, True)
    limiter.remove_outside(1, size_bytes)
    assert not limiter.throttled


def test_it_resumes_only_when_memory_and_quotas_are_all_relieved(clock: ManualClock) -> None:
    limiter = make(clock, 100, count_max=10, quota_bytes=1000)
    limiter.add(10, 1000)
    limiter.move_out(10, 1000)
    assert limiter.throttled, "the quotas are used up"
    limiter.remove_outside(1, 0)
    assert limiter.throttled, "the quota in bytes still is"
    limiter.remove_outside(0, 100)
    assert not limiter.throttled


def test_what_a_restart_finds_counts_for_the_quota_and_not_as_memory(clock: ManualClock) -> None:
    limiter = make(clock, 100, count_max=5)
    limiter.add_outside(4, 4000)
    assert (limiter.used_bytes, limiter.total_bytes, limiter.throttled) == (0, 4000, False)
    limiter.add_outside(1, 1)
    assert limiter.throttled
    limiter.remove_outside(1, 1)
    assert not limiter.throttled


def test_a_limit_of_one_works(clock: ManualClock) -> None:
    """Thresholds never round up to the limit itself: it would resume while it is full."""
    limiter = make(clock, 1, count_max=1, quota_bytes=1)
    limiter.add(1, 1)
    limiter.move_out(1, 1)
    assert limiter.throttled
    limiter.remove_outside(1, 1)
    assert not limiter.throttled


def test_a_correction_changes_what_is_held_in_all(clock: ManualClock) -> None:
    limiter = make(clock, 100, quota_bytes=1000)
    limiter.add_outside(2, 300)
    limiter.correct(50)
    assert (limiter.total_bytes, limiter.used_bytes) == (350, 0)
    limiter.correct(-100)
    assert limiter.total_bytes == 250


@pytest.mark.parametrize("limits", [(0, None, None), (1, 0, None), (1, None, 0), (-1, None, None)])
def test_limits_that_let_nothing_pass_are_refused(
    clock: ManualClock, limits: tuple[int, int | None, int | None]
) -> None:
    with pytest.raises(ThresholdError, match="lets nothing pass; give at least 1"):
        make(clock, limits[0], count_max=limits[1], quota_bytes=limits[2])


def test_a_call_that_raises_changes_nothing(clock: ManualClock) -> None:
    limiter = make(clock)
    limiter.add(2, 20)
    limiter.move_out(1, 10)
    with pytest.raises(NegativeAmountError):
        limiter.add(-1, 0)
    with pytest.raises(OverReleaseError):
        limiter.remove(2, 10)
    with pytest.raises(OverReleaseError):
        limiter.move_out(1, 11)
    assert (limiter.used_count, limiter.used_bytes, limiter.total_count, limiter.total_bytes) == (1, 10, 2, 20)


def test_people_are_shown_the_memory(clock: ManualClock) -> None:
    limiter = make(clock, 100, count_max=10)
    limiter.add(2, 20)
    limiter.move_out(1, 10)
    described = limiter.describe()
    assert (described.used_count, described.used_bytes, described.throttled) == (1, 10, False)
    assert described.dimensions == (Dimension("memory", "bytes", 10, 100, 50),)
    quota = described.parts[1]
    assert quota.dimensions == (Dimension("quota", "messages", 2, 10, 9),)
    said = described.to_dict()
    assert (said["kind"], said["label"], said["capacity_bytes"], said["resume_bytes"]) == (
        "composite",
        "memory",
        100,
        50,
    )
    assert (said["capacity_count"], said["resume_count"], said["throttle_count"]) == (None, None, 0)


AMOUNTS = st.tuples(st.integers(0, 5), st.integers(0, 60))


class ResidencyMachine(RuleBasedStateMachine):
    """Against two plain sums: one of what is in memory, one of what is outside."""

    @initialize(
        capacity_bytes=st.integers(1, 200),
        count_max=st.none() | st.integers(1, 20),
        quota_bytes=st.none() | st.integers(1, 400),
    )
    def start(self, capacity_bytes: int, count_max: int | None, quota_bytes: int | None) -> None:
        self.limits = capacity_bytes, count_max, quota_bytes
        self.limiter = make(ManualClock(), capacity_bytes, count_max=count_max, quota_bytes=quota_bytes)
        self.inside = [0, 0]
        self.outside = [0, 0]

    @rule(amount=AMOUNTS)
    def add(self, amount: tuple[int, int]) -> None:
        self.limiter.add(*amount)
        self._move(amount, None, self.inside)

    @rule(amount=AMOUNTS)
    def add_outside(self, amount: tuple[int, int]) -> None:
        self.limiter.add_outside(*amount)
        self._move(amount, None, self.outside)

    @rule(amount=AMOUNTS)
    def remove(self, amount: tuple[int, int]) -> None:
        amount = self._within(amount, self.inside)
        self.limiter.remove(*amount)
        self._move(amount, self.inside, None)

    @rule(amount=AMOUNTS)
    def remove_outside(self, amount: tuple[int, int]) -> None:
        amount = self._within(amount, self.outside)
        self.limiter.remove_outside(*amount)
        self._move(amount, self.outside, None)

    @rule(amount=AMOUNTS)
    def move_out(self, amount: tuple[int, int]) -> None:
        amount = self._within(amount, self.inside)
        self.limiter.move_out(*amount)
        self._move(amount, self.inside, self.outside)

    @precondition(lambda self: any(self.outside))
    @rule(amount=AMOUNTS)
    def move_in(self, amount: tuple[int, int]) -> None:
        amount = self._within(amount, self.outside)
        self.limiter.move_in(*amount)
        self._move(amount, self.outside, self.inside)

    @staticmethod
    def _within(amount: tuple[int, int], held: list[int]) -> tuple[int, int]:
        return min(amount[0], held[0]), min(amount[1], held[1])

    @staticmethod
    def _move(amount: tuple[int, int], source: list[int] | None, target: list[int] | None) -> None:
        for place in (0, 1):
            if source is not None:
                source[place] -= amount[place]
            if target is not None:
                target[place] += amount[place]

    @invariant()
    def it_holds_the_sums(self) -> None:
        if not hasattr(self, "limiter"):
            return
        limiter = self.limiter
        assert [limiter.used_count, limiter.used_bytes] == self.inside
        assert [limiter.total_count, limiter.total_bytes] == [
            a + b for a, b in zip(self.inside, self.outside, strict=True)
        ]

    @invariant()
    def it_is_throttled_when_full_and_not_when_nearly_empty(self) -> None:
        if not hasattr(self, "limiter"):
            return
        limiter = self.limiter
        capacity_bytes, count_max, quota_bytes = self.limits
        if (
            limiter.used_bytes >= capacity_bytes
            or (count_max is not None and limiter.total_count >= count_max)
            or (quota_bytes is not None and limiter.total_bytes >= quota_bytes)
        ):
            assert limiter.throttled
        if not limiter.total_count and not limiter.total_bytes:
            assert not limiter.throttled


TestResidency = ResidencyMachine.TestCase
TestResidency.settings = settings(max_examples=100, stateful_step_count=30)


# ---------------------------------------------------------------------- what it says


@pytest.mark.parametrize(
    ("capacity_bytes", "count_max", "quota_bytes", "words"),
    [
        (100, None, None, "memory full, 100 B of 100 B"),
        (1000, 10, None, "quota full, 10 of 10 messages"),
        (1000, None, 100, "quota full, 100 B of 100 B"),
        (1000, 10, 100, "quota full, 10 of 10 messages and quota full, 100 B of 100 B"),
        (100, 100, 10_000, "memory full, 100 B of 100 B"),
    ],
)
def test_it_says_what_is_short(
    clock: ManualClock, capacity_bytes: int, count_max: int | None, quota_bytes: int | None, words: str
) -> None:
    limiter = make(clock, capacity_bytes, count_max=count_max, quota_bytes=quota_bytes)
    limiter.add(10, 100)
    assert limiter.throttled
    assert limiter.describe().words == words


def test_it_says_what_it_waits_for_while_it_drains(clock: ManualClock) -> None:
    limiter = make(clock, 100, count_max=20, quota_bytes=10_000)
    limiter.add(20, 60)
    assert limiter.describe().words == "quota full, 20 of 20 messages and memory draining to 50 B, 60 B of 100 B" or (
        limiter.describe().words == "memory draining to 50 B, 60 B of 100 B and quota full, 20 of 20 messages"
    )
    limiter.remove(1, 20)
    assert limiter.describe().words == "quota draining to 18, 19 of 20 messages"
    limiter.remove(1, 0)
    assert not limiter.throttled
    assert limiter.describe().used_bytes == 40
