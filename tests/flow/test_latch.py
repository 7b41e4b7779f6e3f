"""A latch calls back once, when the last of its things has happened."""

from __future__ import annotations

from sluiceway.flow.latch import Latch


def test_the_last_call_calls_back_once() -> None:
    told: list[str] = []
    latch = Latch(3, lambda: told.append("all"))
    latch()
    latch()
    assert not told
    latch()
    assert told == ["all"]


def test_what_begins_the_things_counts_as_one() -> None:
    """So nothing that is done at once ends the wait too early, and none at all ends it."""
    for count in (0, 1, 5):
        told: list[int] = []
        latch = Latch(count + 1, lambda told=told, count=count: told.append(count))
        for _ in range(count):
            latch()
            assert not told
        latch()
        assert told == [count]
