"""The gate of a connection: every hold that is let go of asks, and only what counts keeps it shut."""

from __future__ import annotations

import pytest

from sluiceway.flow import Account, Flow, FlowManager, FlowResource, SizeLimiter
from sluiceway.protocols.reading import ReadGate, Reason


class Asked:
    """Counts how often the connection was asked to look."""

    def __init__(self) -> None:
        self.count = 0
        self.gate = ReadGate(self.ask)

    @property
    def told(self) -> tuple[str, int]:
        """What people are told the connection waits for, and how often it was asked to look."""
        hold = self.gate.blocking()
        return "" if hold is None else hold.words, self.count

    def ask(self) -> None:
        self.count += 1


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_the_first_hold_in_order_is_named_and_each_that_ends_asks(asked: Asked) -> None:
    first, second = asked.gate.hold(Reason.LOGIN), asked.gate.hold(Reason.RATE, "rate limit of ann")
    second.take()
    first.take()
    first.take()
    assert asked.told == ("the check of its login", 0)
    first.release()
    assert asked.told == ("rate limit of ann", 1)
    first.release()
    second.release()
    assert asked.told == ("", 2)


def test_a_count_holds_while_above_its_limit(asked: Asked) -> None:
    count = asked.gate.count(Reason.RECEIPTS_READ, 10)
    count.add(10)
    assert asked.told == ("", 0)
    count.add(1)
    count.add(5)
    assert asked.told == ("the client to read its receipts", 0)
    count.remove(5)
    assert asked.told == ("the client to read its receipts", 0)
    count.remove(1)
    assert asked.told == ("", 1)
    with pytest.raises(AssertionError, match="more was removed than added"):
        count.remove(11)


def test_a_passable_hold_counts_only_while_its_condition_says_no(asked: Asked) -> None:
    passable = [False]
    hold = asked.gate.hold(Reason.DESTINATIONS, is_passable=lambda: passable[0])
    hold.take()
    assert asked.gate.blocking() is hold
    passable[0] = True
    assert asked.gate.blocking() is None


def test_a_dropped_hold_asks_too(asked: Asked) -> None:
    hold = asked.gate.hold(Reason.RATE)
    hold.take()
    asked.gate.drop(hold)
    assert (asked.told, asked.gate.holds) == (("", 1), ())


def test_a_source_holds_while_any_sink_blocks_it(asked: Asked) -> None:
    def clock() -> float:
        return 0.0

    manager = FlowManager(clock)
    place = FlowResource("disk", "disk", manager)
    sinks: list[Account] = [
        Account(place, Flow(name), SizeLimiter(10, clock=clock), clock=clock) for name in ("a", "b")
    ]
    source = asked.gate.hold(Reason.LARGE_MESSAGE).source(place, Flow("in"), clock=clock)
    for sink in sinks:
        sink.charge(0, 10, source)
    assert asked.told == ("the disk, for its large message", 0)
    sinks[0].release(0, 10)
    assert asked.told == ("the disk, for its large message", 0)
    sinks[1].release(0, 10)
    assert asked.told == ("", 1)


def test_a_source_that_is_blocked_again_as_it_resumes_holds_on(asked: Asked) -> None:
    def clock() -> float:
        return 0.0

    place = FlowResource("disk", "disk", FlowManager(clock))
    sink = Account(place, Flow("a"), SizeLimiter(10, clock=clock), clock=clock)
    again = [10, 0]
    source = asked.gate.hold(Reason.LARGE_MESSAGE).source(
        place, Flow("in"), clock=clock, on_resume=lambda: sink.charge(0, again.pop(0), source)
    )
    sink.charge(0, 10, source)
    sink.release(0, 10)
    assert asked.told == ("the disk, for its large message", 0)
    sink.release(0, 10)
    assert asked.told == ("", 1)
