"""How sizes, ages, facts and limiters are said."""

import pytest

from sluiceway.flow import (
    CompositeLimiter,
    RateLimiter,
    SizeLimiter,
    WindowLimiter,
    age_in_words,
    count_in_words,
    facts_in_words,
    size_in_words,
)
from sluiceway.flow.words import part_and_owner, part_in_words
from tests.flow.models import ManualClock


@pytest.mark.parametrize(
    ("size_bytes", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1024 * 1024 - 1, "1.0 MiB"),
        (64 * 1024**2, "64.0 MiB"),
        (1536 * 1024**2, "1.5 GiB"),
        (5 * 1024**6, "5120.0 PiB"),
    ],
)
def test_sizes(size_bytes: int, words: str) -> None:
    assert size_in_words(size_bytes) == words


@pytest.mark.parametrize(
    ("age_seconds", "words"),
    [
        (0, "0 ms"),
        (0.35, "350 ms"),
        (0.9999, "1 s"),
        (41.2, "41 s"),
        (119.4, "119 s"),
        (119.6, "2 min"),
        (7_169, "119 min"),
        (7_200, "2 h"),
        (86_400 * 3, "3 d"),
    ],
)
def test_ages(age_seconds: float, words: str) -> None:
    assert age_in_words(age_seconds) == words


def test_counts() -> None:
    assert (count_in_words(1, "message"), count_in_words(12_000, "message")) == ("1 message", "12,000 messages")


def test_parts_are_told_from_their_owners() -> None:
    assert part_in_words("one of two", "10.0.0.1:80") == "one of two of 10.0.0.1:80"
    assert part_and_owner("one of two of 10.0.0.1:80") == ("one of two", "10.0.0.1:80")
    assert part_and_owner("10.0.0.1:80") == ("", "10.0.0.1:80")


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"unacked": 500, "idle_seconds": 41.0}, "500 unacked, idle 41 s"),
        ({"unacked_count": 3, "buffered_bytes": 2048}, "3 unacked, 2.0 KiB buffered"),
        ({"messages": 1, "consumers": 2, "unacked": 1}, "1 message, 2 consumers, 1 unacked"),
        ({"out_per_second": 1200.0, "share": 0.25}, "out 1,200/s, share 0.25"),
        ({"paused": True, "exclusive": False, "selector": None, "peer": "web-3"}, "paused, not exclusive, peer web-3"),
        ({}, ""),
    ],
)
def test_facts(facts: dict[str, object], words: str) -> None:
    assert facts_in_words(facts) == words


def test_limiters(clock: ManualClock) -> None:
    disk = SizeLimiter(2048, clock=clock, label="disk")
    window = WindowLimiter(10, 100, clock=clock)
    free = WindowLimiter(None, None, clock=clock)
    rate = RateLimiter(1024, 1024, clock=clock)
    assert disk.describe().words == "disk open, 0 B of 2.0 KiB"
    window.add(3, 90)
    assert window.describe().words == "window open, 90 B of 100 B", "the scarcer credit is said"
    window.add(7, 0)
    assert window.describe().words == "window full, 10 of 10 messages"
    slow = WindowLimiter(10, 100, resume_count=5, resume_bytes=20, clock=clock)
    slow.add(10, 90)
    slow.remove(6, 60)
    assert slow.describe().words == "window draining to 20 B, 30 B of 100 B", "what holds it back is said"
    assert free.describe().words == "window open, 0 messages, 0 B"
    assert WindowLimiter(0, 0, clock=clock).describe().words == "window full, 0 of 0 messages"
    assert rate.describe().words == "rate of 1.0 KiB/s not used up"
    both = CompositeLimiter([disk, rate])
    assert both.describe().words == "disk open, 0 B of 2.0 KiB and rate of 1.0 KiB/s not used up"
    both.add(1, 1024)
    assert both.describe().words == "rate of 1.0 KiB/s used up", "only what holds back is said"
    assert RateLimiter(50, 5, unit="messages", clock=clock).describe().words == "rate of 50 messages/s not used up"
