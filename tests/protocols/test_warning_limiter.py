"""What strangers can cause is said once, then counted."""

from __future__ import annotations

from sluiceway.protocols.warning_limiter import KEYS_MAX, QUIET_SECONDS, WarningLimiter


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_first_is_said_and_the_next_ones_are_counted() -> None:
    clock = Clock()
    bursts = WarningLimiter(clock)
    assert bursts.say("a") == 0
    assert [bursts.say("a") for _ in range(5)] == [None] * 5
    assert bursts.say("b") == 0
    clock.now = QUIET_SECONDS
    assert bursts.say("a") == 5
    assert bursts.say("a") is None


def test_many_kinds_take_bounded_memory() -> None:
    bursts = WarningLimiter(Clock())
    for number in range(10 * KEYS_MAX):
        bursts.say(str(number))
    assert len(bursts._seen) == KEYS_MAX
