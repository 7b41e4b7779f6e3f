"""Size, window and composite limiters: when they throttle, when they resume, what they refuse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.flow import (
    CompositeLimiter,
    FlowLimiter,
    NegativeAmountError,
    OverReleaseError,
    RateLimiter,
    SizeLimiter,
    ThresholdError,
    WindowLimiter,
)
from tests.flow.models import ManualClock


def limiters_of_each_kind(clock: ManualClock) -> list[FlowLimiter]:
    return [
        SizeLimiter(100, clock=clock),
        WindowLimiter(10, 100, clock=clock),
        RateLimiter(100, 100, clock=clock),
        CompositeLimiter([SizeLimiter(100, clock=clock), WindowLimiter(10, 100, clock=clock)]),
    ]


KINDS = ["size", "window", "rate", "composite"]


@pytest.fixture(params=range(4), ids=KINDS)
def limiter(request: pytest.FixtureRequest, clock: ManualClock) -> FlowLimiter:
    return limiters_of_each_kind(clock)[request.param]


class TestEveryLimiter:
    def test_negative_amounts_raise_and_change_nothing(self, limiter: FlowLimiter) -> None:
        """The prototype only printed a stack trace for a negative size, and counted it."""
        limiter.add(2, 20)
        for count, size_bytes in ((-1, 5), (1, -5)):
            with pytest.raises(NegativeAmountError):
                limiter.add(count, size_bytes)
            with pytest.raises(NegativeAmountError):
                limiter.remove(count, size_bytes)
        assert (limiter.used_count, limiter.used_bytes, limiter.throttled) == (2, 20, False)

    def test_release_of_more_than_is_held_raises_and_changes_nothing(self, limiter: FlowLimiter) -> None:
        limiter.add(2, 20)
        for count, size_bytes in ((3, 20), (2, 21)):
            with pytest.raises(OverReleaseError, match="holds only 2 of 20 bytes"):
                limiter.remove(count, size_bytes)
        assert (limiter.used_count, limiter.used_bytes, limiter.throttled) == (2, 20, False)

    def test_what_was_added_and_not_removed_is_used(self, limiter: FlowLimiter) -> None:
        limiter.add(3, 30)
        limiter.remove(1, 12)
        limiter.add(0, 0)
        assert (limiter.used_count, limiter.used_bytes) == (2, 18)

    def test_charge_may_go_beyond_capacity(self, limiter: FlowLimiter) -> None:
        limiter.add(50, 5000)
        assert (limiter.used_count, limiter.used_bytes, limiter.throttled) == (50, 5000, True)

    def test_description_says_since_when_it_is_throttled(self, limiter: FlowLimiter, clock: ManualClock) -> None:
        assert limiter.describe().throttled_since is None
        limiter.add(50, 5000)
        clock.advance(41)
        limiter.add(1, 1)
        described = limiter.describe()
        assert (described.throttled_since, described.throttled_seconds, described.throttle_count) == (1000.0, 41.0, 1)
        assert limiter.throttled_since == 1000.0


class TestSizeLimiter:
    def test_throttles_when_used_reaches_capacity(self, clock: ManualClock) -> None:
        limiter = SizeLimiter(100, clock=clock)
        limiter.add(1, 99)
        assert not limiter.throttled
        limiter.add(1, 1)
        assert limiter.throttled

    def test_resumes_only_at_threshold(self, clock: ManualClock) -> None:
        limiter = SizeLimiter(100, 40, clock=clock)
        limiter.add(100, 100)
        limiter.remove(59, 59)
        assert limiter.throttled
        limiter.remove(1, 1)
        assert not limiter.throttled

    def test_threshold_defaults_to_half_the_capacity(self, clock: ManualClock) -> None:
        assert SizeLimiter(101, clock=clock).resume_threshold_bytes == 50

    def test_resize_stores_the_threshold(self, clock: ManualClock) -> None:
        """The prototype's setter forgot its argument."""
        limiter = SizeLimiter(100, 40, clock=clock)
        limiter.resize(100, 10)
        assert limiter.resume_threshold_bytes == 10
        limiter.add(1, 100)
        limiter.remove(0, 89)
        assert limiter.throttled
        limiter.remove(0, 1)
        assert not limiter.throttled

    def test_resize_throttles_what_is_full_now(self, clock: ManualClock) -> None:
        limiter = SizeLimiter(100, clock=clock)
        limiter.add(1, 60)
        limiter.resize(60)
        assert limiter.throttled

    def test_resize_resumes_what_is_below_the_new_threshold(self, clock: ManualClock) -> None:
        limiter = SizeLimiter(100, clock=clock)
        limiter.add(1, 100)
        limiter.resize(150)
        assert limiter.throttled, "100 of 150 is below capacity, but not yet at the threshold"
        limiter.resize(200)
        assert not limiter.throttled

    def test_threshold_equal_to_capacity_never_resumes_while_full(self, clock: ManualClock) -> None:
        limiter = SizeLimiter(100, 100, clock=clock)
        limiter.add(2, 101)
        limiter.remove(1, 1)
        assert limiter.throttled
        limiter.remove(0, 1)
        assert not limiter.throttled

    @pytest.mark.parametrize(("capacity", "threshold"), [(100, 101), (100, -1), (0, None), (-5, None)])
    def test_senseless_limits_raise_and_change_nothing(
        self, clock: ManualClock, capacity: int, threshold: int | None
    ) -> None:
        with pytest.raises(ThresholdError):
            SizeLimiter(capacity, threshold, clock=clock)
        limiter = SizeLimiter(50, 20, clock=clock)
        with pytest.raises(ThresholdError):
            limiter.resize(capacity, threshold)
        assert (limiter.capacity_bytes, limiter.resume_threshold_bytes) == (50, 20)

    @given(
        capacity=st.integers(1, 200),
        share=st.floats(0, 1),
        steps=st.lists(st.tuples(st.booleans(), st.integers(0, 120)), max_size=60),
    )
    def test_changes_only_at_its_thresholds(self, capacity: int, share: float, steps: list[tuple[bool, int]]) -> None:
        threshold = int(capacity * share)
        limiter = SizeLimiter(capacity, threshold, clock=ManualClock())
        used = 0
        for adds, amount in steps:
            before = limiter.throttled
            amount = amount if adds else min(amount, used)
            (limiter.add if adds else limiter.remove)(0, amount)
            used += amount if adds else -amount
            assert limiter.used_bytes == used
            if used >= capacity:
                assert limiter.throttled
            elif used <= threshold:
                assert not limiter.throttled
            else:
                assert limiter.throttled == before


class TestWindowLimiter:
    def test_throttles_when_either_credit_is_used_up(self, clock: ManualClock) -> None:
        by_count = WindowLimiter(3, 1000, clock=clock)
        by_count.add(3, 30)
        by_bytes = WindowLimiter(1000, 30, clock=clock)
        by_bytes.add(3, 30)
        assert by_count.throttled and by_bytes.throttled

    def test_resumes_when_both_credits_have_room(self, clock: ManualClock) -> None:
        limiter = WindowLimiter(3, 30, clock=clock)
        limiter.add(3, 30)
        limiter.remove(0, 1)
        assert limiter.throttled, "no message of credit yet"
        limiter.remove(1, 0)
        assert not limiter.throttled

    def test_resume_thresholds_hold_back(self, clock: ManualClock) -> None:
        limiter = WindowLimiter(10, 100, resume_count=5, resume_bytes=80, clock=clock)
        limiter.add(10, 100)
        limiter.remove(4, 40)
        assert limiter.throttled
        limiter.remove(1, 0)
        assert not limiter.throttled

    def test_room_is_what_is_left_and_never_negative(self, clock: ManualClock) -> None:
        limiter = WindowLimiter(10, 100, clock=clock)
        limiter.add(4, 30)
        assert (limiter.room_count(), limiter.room_bytes()) == (6, 70)
        limiter.add(1, 500)
        assert (limiter.room_count(), limiter.room_bytes()) == (5, 0)

    @pytest.mark.parametrize(("count", "size_bytes"), [(0, 100), (10, 0), (0, 0), (0, None)])
    def test_empty_window_is_always_throttled(self, clock: ManualClock, count: int, size_bytes: int | None) -> None:
        limiter = WindowLimiter(count, size_bytes, clock=clock)
        assert limiter.throttled
        limiter.add(1, 1)
        limiter.remove(1, 1)
        limiter.poll()
        assert limiter.throttled

    def test_window_without_limit_in_one_kind_looks_at_the_other(self, clock: ManualClock) -> None:
        limiter = WindowLimiter(None, 100, clock=clock)
        limiter.add(10**9, 99)
        assert not limiter.throttled and limiter.room_count() > 10**9
        assert (limiter.capacity_count, limiter.capacity_bytes) == (None, 100)
        limiter.add(1, 1)
        assert limiter.throttled

    def test_resize_opens_and_closes_the_window(self, clock: ManualClock) -> None:
        limiter = WindowLimiter(0, 0, clock=clock)
        limiter.resize(10, 100)
        assert not limiter.throttled
        limiter.add(5, 50)
        limiter.resize(5, 100)
        assert limiter.throttled
        limiter.resize(6, 100, resume_count=2)
        assert limiter.throttled
        limiter.resize(6, 100)
        assert not limiter.throttled

    def test_senseless_windows_raise_and_change_nothing(self, clock: ManualClock) -> None:
        with pytest.raises(ThresholdError):
            WindowLimiter(-1, 10, clock=clock)
        limiter = WindowLimiter(10, 100, clock=clock)
        for call in (
            lambda: limiter.resize(10, -1),
            lambda: limiter.resize(20, 100, resume_count=21),
            lambda: limiter.resize(20, 100, resume_bytes=101),
            lambda: limiter.resize(20, 100, resume_count=-1),
        ):
            with pytest.raises(ThresholdError):
                call()
        assert (limiter.capacity_count, limiter.capacity_bytes, limiter.throttled) == (10, 100, False)

    @given(
        capacity=st.tuples(st.integers(0, 20), st.integers(0, 200)),
        steps=st.lists(st.tuples(st.booleans(), st.integers(0, 8), st.integers(0, 120)), max_size=60),
    )
    def test_is_throttled_exactly_while_some_credit_is_used_up(
        self, capacity: tuple[int, int], steps: list[tuple[bool, int, int]]
    ) -> None:
        """With the default thresholds there is no gap between throttling and resuming."""
        limiter = WindowLimiter(*capacity, clock=ManualClock())
        for adds, count, size_bytes in steps:
            if adds:
                limiter.add(count, size_bytes)
            else:
                limiter.remove(min(count, limiter.used_count), min(size_bytes, limiter.used_bytes))
            assert limiter.throttled == (limiter.room_count() == 0 or limiter.room_bytes() == 0)


class TestCompositeLimiter:
    def test_is_throttled_while_any_part_is(self, clock: ManualClock) -> None:
        limiter = CompositeLimiter([SizeLimiter(100, clock=clock), WindowLimiter(5, None, clock=clock)])
        limiter.add(5, 100)
        limiter.remove(1, 0)
        assert limiter.throttled, "the window has room, the memory has not"
        limiter.remove(0, 50)
        assert not limiter.throttled

    def test_refused_release_leaves_every_part_as_it_was(self, clock: ManualClock) -> None:
        shared = SizeLimiter(100, clock=clock)
        own = SizeLimiter(100, clock=clock)
        limiter = CompositeLimiter([own, shared])
        limiter.add(1, 10)
        shared.remove(1, 10)
        with pytest.raises(OverReleaseError):
            limiter.remove(1, 10)
        assert (limiter.used_bytes, own.used_bytes, shared.used_bytes) == (10, 10, 0)

    def test_sees_a_part_that_was_resized_when_polled(self, clock: ManualClock) -> None:
        part = SizeLimiter(100, clock=clock)
        limiter = CompositeLimiter([part])
        limiter.add(1, 50)
        part.resize(50)
        limiter.poll()
        assert limiter.throttled
        part.resize(200)
        limiter.poll()
        assert not limiter.throttled

    def test_starts_throttled_when_a_part_is(self, clock: ManualClock) -> None:
        assert CompositeLimiter([WindowLimiter(0, 0, clock=clock)]).throttled

    def test_resumes_at_the_last_of_the_times_its_parts_wait_for(self, clock: ManualClock) -> None:
        slow = RateLimiter(10, 10, unit="messages", resume_tokens=1, clock=clock)
        quick = RateLimiter(100, 10, unit="messages", resume_tokens=1, clock=clock)
        limiter = CompositeLimiter([SizeLimiter(100, clock=clock), slow, quick])
        assert limiter.resumes_at() is None
        limiter.add(10, 0)
        assert limiter.resumes_at() == pytest.approx(1000.1)
        clock.now = 1000.05
        limiter.poll()
        assert limiter.throttled
        clock.now = 1000.2
        limiter.poll()
        assert not limiter.throttled

    def test_without_parts_raises(self) -> None:
        with pytest.raises(ThresholdError):
            CompositeLimiter([])
