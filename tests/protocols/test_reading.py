"""The gate of a connection: every hold that is let go of asks, and only what counts keeps it shut."""

from __future__ import annotations

import pytest

from sluiceway.flow import Account, Flow, FlowManager, FlowResource, SizeLimiter
from sluiceway.protocols.reading import ReadGate


class Asked:
    """Counts how often the connection was asked to look."""

    def __init__(self) -> None:
        self.count = 0
        self.gate = ReadGate(self.ask)

    def ask(self) -> None:
        self.count += 1


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_the_first_hold_in_order_is_named_and_each_that_ends_asks(asked: Asked) -> None:
    first, second = asked.gate.hold("first"), asked.gate.hold("second")
    second.take()
    first.take()
    first.take()
    assert (asked.gate.why, asked.count) == ("first", 0)
    first.let_go()
    assert (asked.gate.why, asked.count) == ("second", 1)
    first.let_go()
    second.let_go()
    assert (asked.gate.why, asked.count) == ("", 2)


def test_a_count_holds_while_above_its_limit(asked: Asked) -> None:
    count = asked.gate.count("receipts", 10)
    count.add(10)
    assert asked.gate.why == ""
    count.add(1)
    count.add(5)
    assert asked.gate.why == "receipts"
    count.remove(5)
    assert (asked.gate.why, asked.count) == ("receipts", 0)
    count.remove(1)
    assert (asked.gate.why, asked.count) == ("", 1)
    with pytest.raises(AssertionError, match="more was removed than added"):
        count.remove(11)


def test_a_passable_hold_counts_only_while_its_condition_says_no(asked: Asked) -> None:
    passable = [False]
    asked.gate.hold("blocked destinations", is_passable=lambda: passable[0]).take()
    assert asked.gate.why == "blocked destinations"
    passable[0] = True
    assert asked.gate.why == ""


def test_a_dropped_hold_asks_too(asked: Asked) -> None:
    hold = asked.gate.hold("rate")
    hold.take()
    asked.gate.drop(hold)
    assert (asked.gate.why, asked.count, asked.gate.holds) == ("", 1, ())


def test_a_source_holds_while_any_sink_blocks_it(asked: Asked) -> None:
    def clock() -> float:
        return 0.0

    manager = FlowManager(clock)
    place = FlowResource("disk", "disk", manager)
    sinks: list[Account] = [
        Account(place, Flow(name), SizeLimiter(10, clock=clock), clock=clock) for name in ("a", "b")
    ]
    source = asked.gate.hold("the disk").source(place, Flow("in"), clock=clock)
    for sink in sinks:
        sink.charge(0, 10, source)
    assert asked.gate.why == "the disk"
    sinks[0].release(0, 10)
    assert (asked.gate.why, asked.count) == ("the disk", 0)
    sinks[1].release(0, 10)
    assert (asked.gate.why, asked.count) == ("", 1)


def test_a_source_that_is_blocked_again_as_it_resumes_holds_on(asked: Asked) -> None:
    def clock() -> float:
        return 0.0

    place = FlowResource("disk", "disk", FlowManager(clock))
    sink = Account(place, Flow("a"), SizeLimiter(10, clock=clock), clock=clock)
    again = [10, 0]
    source = asked.gate.hold("the disk").source(
        place, Flow("in"), clock=clock, on_resume=lambda: sink.charge(0, again.pop(0), source)
    )
    sink.charge(0, 10, source)
    sink.release(0, 10)
    assert (asked.gate.why, asked.count) == ("the disk", 0)
    sink.release(0, 10)
    assert (asked.gate.why, asked.count) == ("", 1)
