"""The token bucket: what passes within a time, and when it resumes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.flow import RateLimiter, ThresholdError
from tests.flow.models import ManualClock


def test_burst_passes_at_once_and_the_last_token_throttles(clock: ManualClock) -> None:
    limiter = RateLimiter(10, 5, unit="messages", clock=clock)
    limiter.add(4, 4000)
    assert not limiter.throttled
    limiter.add(1, 1000)
    assert limiter.throttled


def test_counts_bytes_unless_told_otherwise(clock: ManualClock) -> None:
    limiter = RateLimiter(1000, 1000, clock=clock)
    limiter.add(1, 999)
    assert not limiter.throttled and limiter.tokens == 1
    limiter.add(1, 1)
    assert limiter.throttled


def test_batch_leaves_a_debt_that_time_pays(clock: ManualClock) -> None:
    limiter = RateLimiter(10, 5, unit="messages", resume_tokens=1, clock=clock)
    limiter.add(25, 0)
    assert limiter.tokens == -20
    assert limiter.resumes_at() == pytest.approx(1002.1)


def test_resumes_when_polled_at_the_time_it_named(clock: ManualClock) -> None:
    limiter = RateLimiter(3, 7, unit="messages", clock=clock)
    limiter.add(11, 0)
    due = limiter.resumes_at()
    clock.now = due - 0.001
    limiter.poll()
    assert limiter.throttled
    clock.now = due
    limiter.poll()
    assert not limiter.throttled


def test_release_gives_no_tokens_back(clock: ManualClock) -> None:
    limiter = RateLimiter(10, 5, unit="messages", clock=clock)
    limiter.add(5, 0)
    limiter.remove(5, 0)
    assert limiter.throttled and limiter.used_count == 0


def test_release_looks_at_the_clock(clock: ManualClock) -> None:
    limiter = RateLimiter(10, 5, unit="messages", clock=clock)
    limiter.add(5, 0)
    clock.advance(1)
    limiter.remove(5, 0)
    assert not limiter.throttled


def test_pause_earns_no_more_than_the_burst(clock: ManualClock) -> None:
    """A bucket that was full for an hour is not credited for that hour once it is emptied."""
    limiter = RateLimiter(10, 5, unit="messages", clock=clock)
    clock.advance(3600)
    limiter.add(5, 0)
    assert limiter.throttled and limiter.tokens == 0


def test_wake_ups_wait_for_twenty_milliseconds_of_credit(clock: ManualClock) -> None:
    limiter = RateLimiter(10_000, 1000, unit="messages", clock=clock)
    limiter.add(1000, 0)
    assert limiter.resumes_at() == pytest.approx(1000.02)


def test_resize_keeps_what_was_earned_and_may_resume(clock: ManualClock) -> None:
    limiter = RateLimiter(1, 10, unit="messages", clock=clock)
    limiter.add(20, 0)
    limiter.resize(1000, 10)
    assert limiter.throttled and limiter.tokens == -10
    clock.now = limiter.resumes_at()
    limiter.poll()
    assert not limiter.throttled


@pytest.mark.parametrize(
    ("per_second", "burst", "resume_tokens"), [(0, 5, None), (-1, 5, None), (5, 0, None), (5, 5, 6), (5, 5, 0.5)]
)
def test_senseless_rates_raise(
    clock: ManualClock, per_second: float, burst: float, resume_tokens: float | None
) -> None:
    with pytest.raises(ThresholdError):
        RateLimiter(per_second, burst, resume_tokens=resume_tokens, clock=clock)
    limiter = RateLimiter(10, 5, clock=clock)
    with pytest.raises(ThresholdError):
        limiter.resize(per_second, burst, resume_tokens=resume_tokens)
    assert (limiter.per_second, limiter.burst) == (10, 5)


@given(
    per_second=st.integers(1, 1000),
    burst=st.integers(1, 100),
    steps=st.lists(st.tuples(st.floats(0, 2), st.integers(1, 20)), max_size=60),
)
def test_no_more_passes_than_burst_and_rate_allow(per_second: int, burst: int, steps: list[tuple[float, int]]) -> None:
    """A sender that adds batches whenever it may passes at most burst + rate x time + one batch."""
    clock = ManualClock()
    limiter = RateLimiter(per_second, burst, unit="messages", clock=clock)
    begin, passed = clock.now, 0
    for pause_seconds, batch_count in steps:
        clock.advance(pause_seconds)
        limiter.poll()
        allowed = burst + per_second * (clock.now - begin)
        if not limiter.throttled:
            limiter.add(batch_count, 0)
            passed += batch_count
        assert passed <= allowed + batch_count + 1e-6
        if limiter.throttled:
            due = limiter.resumes_at()
            clock.now = max(clock.now, due)
            limiter.poll()
            assert not limiter.throttled, "the time it named is enough"
