"""Turns that are held, the line by priority, headroom, and the questions that can be asked before anything is sent."""

from __future__ import annotations

import pytest

from sluiceway.flow import (
    Account,
    Flow,
    FlowManager,
    SizeLimiter,
    SourceController,
    ThresholdError,
    WindowLimiter,
)
from sluiceway.flow.waiting import SHARE_INTERVAL_COUNT, WaitingLine
from tests.flow.models import ManualClock, Resource, Source, Tank


class Patient:
    """Uses its turn later: takes what room there is when `act` is called, one element at a time."""

    def __init__(self, name: str, manager: FlowManager, sink: Account, *, priority: int = 4) -> None:
        self.sink = sink
        self.turns_count = 0
        self.used_count = 0
        self.controller = SourceController(
            Resource(name, "queue", manager),
            Flow(name),
            on_resume=self._resumed,
            priority=priority,
            clock=manager.clock,
        )

    def _resumed(self, _sink: Account) -> bool:
        self.turns_count += 1
        return True

    def wait(self) -> None:
        self.sink.wait_in_line(self.controller)

    def act(self, count: int = 1) -> None:
        """One dispatch: send on while there is room, then end the turn."""
        limiter = self.sink.limiter
        assert isinstance(limiter, WindowLimiter)
        for _ in range(count):
            beyond = self.sink.may_exceed(self.controller)
            if limiter.exhausted if beyond else limiter.throttled:
                self.wait()
                break
            self.sink.charge(1, 1, self.controller)
            self.used_count += 1
        self.controller.end_turn()


def window_of(manager: FlowManager, clock: ManualClock, count: int, headroom_count: int = 0) -> Account:
    return Account(
        Resource("consumer", "subscription", manager),
        Flow("window"),
        WindowLimiter(count, None, headroom_count=headroom_count, clock=clock),
        clock=clock,
    )


def waiting(manager: FlowManager, window: Account, *priorities: int) -> list[Patient]:
    """Fill the window; these wait for it, in this order."""
    limiter = window.limiter
    assert isinstance(limiter, WindowLimiter)
    window.charge(limiter.room_count(), 0, None)
    sources = [Patient(f"s{place}", manager, window, priority=priority) for place, priority in enumerate(priorities)]
    for source in sources:
        source.wait()
    return sources


# ---------------------------------------------------------------------- held turns


def test_held_turn_keeps_the_others_waiting(manager: FlowManager, clock: ManualClock) -> None:
    """One resumption for each piece of room, however many wait: no thundering herd."""
    window = window_of(manager, clock, 10)
    sources = waiting(manager, window, *[4] * 50)
    window.release(1, 0)
    assert [source.turns_count for source in sources[:2]] == [1, 0]
    sources[0].act()
    assert window.limiter.throttled and sum(source.turns_count for source in sources) == 1
    for _ in range(30):
        window.release(1, 0)
        next(source for source in sources if not source.controller.blocked).act()
    assert sum(source.turns_count for source in sources) == 31


def test_next_goes_on_when_the_first_has_left_room(manager: FlowManager, clock: ManualClock) -> None:
    window = window_of(manager, clock, 10)
    first, second, third = waiting(manager, window, 4, 4, 4)
    window.release(2, 0)
    first.act()
    assert (second.turns_count, third.turns_count) == (1, 0)
    second.act()
    assert third.turns_count == 0, "the room is used up"


def test_idle_source_does_not_stall_the_line(manager: FlowManager, clock: ManualClock) -> None:
    window = window_of(manager, clock, 10)
    idle, busy = waiting(manager, window, 4, 4)
    window.release(1, 0)
    idle.controller.end_turn()
    assert busy.turns_count == 1 and not idle.controller.blocked


def test_source_that_closes_in_its_turn_does_not_stall_the_line(manager: FlowManager, clock: ManualClock) -> None:
    window = window_of(manager, clock, 10)
    gone, left = waiting(manager, window, 4, 4)
    window.release(1, 0)
    gone.controller.close()
    assert left.turns_count == 1


def test_release_within_a_turn_resumes_nobody_before_its_end(manager: FlowManager, clock: ManualClock) -> None:
    window = window_of(manager, clock, 10)
    first, second = waiting(manager, window, 4, 4)
    window.release(1, 0)
    window.release(5, 0)
    assert second.turns_count == 0
    first.act()
    assert second.turns_count == 1


def test_ending_a_turn_that_is_not_held_does_nothing(manager: FlowManager, clock: ManualClock) -> None:
    window = window_of(manager, clock, 10)
    first, second = waiting(manager, window, 4, 4)
    first.controller.end_turn()
    assert first.controller.blocked and second.turns_count == 0
    window.release(1, 0)
    second.controller.end_turn()
    assert second.turns_count == 0 and second.controller.blocked


def test_sink_that_closes_in_a_turn_lets_everybody_go(manager: FlowManager, clock: ManualClock) -> None:
    window = window_of(manager, clock, 10)
    first, second = waiting(manager, window, 4, 4)
    window.release(1, 0)
    window.close()
    assert not second.controller.blocked
    first.controller.end_turn()
    second.controller.end_turn()
    assert (first.turns_count, second.turns_count) == (1, 1)


def test_source_has_one_turn_at_a_time(manager: FlowManager, clock: ManualClock) -> None:
    """Blocked by another sink in the midst of a turn, and resumed by that: the first sink goes on without it."""
    window, other = window_of(manager, clock, 10), window_of(manager, clock, 10)
    first, second = waiting(manager, window, 4, 4)
    window.release(1, 0)
    other.charge(10, 0, first.controller)
    other.release(1, 0)
    assert second.turns_count == 1, "its turn at the window ended with the one that the other sink gave it"


# ---------------------------------------------------------------------- priorities


def test_highest_priority_is_resumed_first(manager: FlowManager, clock: ManualClock) -> None:
    window = window_of(manager, clock, 10)
    sources = waiting(manager, window, 0, 4, 9, 4, 9)
    assert [source.priority for source in window.blocked_sources()] == [9, 9, 4, 4, 0]
    order = []
    for _ in range(5):
        window.release(1, 0)
        source = next(source for source in sources if not source.controller.blocked)
        window.charge(1, 0, None)
        source.controller.close()
        sources.remove(source)
        order.append(source.controller.resource.name)
    assert order == ["s2", "s4", "s1", "s3", "s0"]


def test_lower_priorities_have_a_share_of_the_turns(manager: FlowManager, clock: ManualClock) -> None:
    """One of twenty, in rotation among them; round robin within each."""
    window = window_of(manager, clock, 10)
    sources = waiting(manager, window, 9, 9, 4, 4, 0)
    for _ in range(4 * SHARE_INTERVAL_COUNT):
        window.release(1, 0)
        next(source for source in sources if not source.controller.blocked).act()
    assert [source.used_count for source in sources] == [38, 38, 1, 1, 2]


def test_share_counts_anew_when_only_one_priority_waits() -> None:
    """So that a priority which begins to wait is passed over a whole interval before it takes a turn from a higher."""
    clock = ManualClock()
    manager = FlowManager(clock)
    line = WaitingLine()
    resource = Resource("r", "queue", manager)
    high, low = (SourceController(resource, Flow("f"), priority=p, clock=clock) for p in (9, 4))
    for _ in range(100):
        line.add(high)
        assert line.take() is high
    line.add(low)
    for _ in range(SHARE_INTERVAL_COUNT - 1):
        line.add(high)
        assert line.take() is high and not line.took_share
    line.add(high)
    assert line.take() is low and line.took_share
    assert line.take() is high and not line and line.highest == -1
    with pytest.raises(ValueError, match="no source waits"):
        line.take()


def test_source_that_leaves_the_line_leaves_no_trace(manager: FlowManager, clock: ManualClock) -> None:
    window = window_of(manager, clock, 10)
    low, high = waiting(manager, window, 4, 9)
    high.controller.close()
    window.release(1, 0)
    assert low.turns_count == 1 and window.blocked_sources() == ()


# ---------------------------------------------------------------------- headroom


def test_raised_priority_may_use_the_headroom(manager: FlowManager, clock: ManualClock) -> None:
    window = window_of(manager, clock, 10, headroom_count=2)
    (ordinary,) = waiting(manager, window, 4)
    urgent = Patient("u", manager, window, priority=9)
    urgent.act(5)
    assert urgent.used_count == 2 and urgent.controller.blocked and window.limiter.exhausted
    window.release(2, 0)
    urgent.controller.end_turn()
    assert ordinary.turns_count == 0, "what is beyond the window comes off it first"
    window.release(1, 0)
    assert ordinary.turns_count == 1


def test_stream_of_raised_priority_leaves_a_share_of_the_headroom(manager: FlowManager, clock: ManualClock) -> None:
    """Though the window itself is never free: what raised priority has out takes all of it."""
    window = window_of(manager, clock, 10, headroom_count=1)
    ordinary, urgent = waiting(manager, window, 4, 9)
    for _ in range(10 * SHARE_INTERVAL_COUNT):
        for source in (urgent, ordinary):
            if not source.controller.blocked:
                source.act(5)
        assert window.limiter.used_count <= 11
        window.release(1, 0)
    assert 8 <= ordinary.used_count <= 11
    assert urgent.used_count >= 9 * SHARE_INTERVAL_COUNT


def test_headroom_must_not_be_negative(clock: ManualClock) -> None:
    with pytest.raises(ThresholdError, match="headroom"):
        WindowLimiter(10, None, headroom_count=-1, clock=clock)


# ---------------------------------------------------------------------- asking first


def test_accepts_says_what_offer_will_do(manager: FlowManager, clock: ManualClock) -> None:
    tank = Tank("t", manager, SizeLimiter(100, clock=clock))
    source, other = Source("s", manager), Source("o", manager)
    assert tank.controller.accepts(source.controller) and tank.controller.accepts(None)
    tank.add("fill", 100, None)
    assert not tank.controller.accepts(source.controller)
    assert not source.controller.blocked, "asking is not waiting"
    assert not tank.offer("x", 500, source)
    source.when_resumed = lambda: log.append(
        (tank.controller.accepts(source.controller), tank.controller.accepts(other.controller))
    )
    log: list[tuple[bool, bool]] = []
    tank.drain()
    assert log == [(True, False)], "it is the turn of one, the other would be before its time"
    assert tank.controller.accepts(other.controller)


def test_newcomer_gets_in_line_behind_a_held_turn(manager: FlowManager, clock: ManualClock) -> None:
    """However often it comes: a lane that sends later than it is resumed is not overtaken for ever."""
    tank = Tank("t", manager, SizeLimiter(100, clock=clock))
    tank.add("fill", 100, None)
    controller = SourceController(
        Resource("lane", "connection", manager), Flow("lane"), on_resume=lambda _sink: True, clock=clock
    )
    assert not tank.controller.offer(("later", 10), 1, 10, controller)
    newcomer = Source("new", manager)
    tank.drain()
    assert not controller.blocked
    for _ in range(3):
        assert not tank.offer("n", 1, newcomer)
    assert tank.controller.offer(("later", 10), 1, 10, controller)
    controller.end_turn()
    assert tank.accepted == ["fill", "later"] and newcomer.resume_calls_count == 1
    assert tank.offer("n", 1, newcomer)


# ---------------------------------------------------------------------- overflow that nobody is charged for


def test_overflow_without_a_limiter_behind_it_is_memory_in_use(manager: FlowManager, clock: ManualClock) -> None:
    tank = Tank("t", manager, SizeLimiter(100, clock=clock))
    upstream = Tank("u", manager, SizeLimiter(1000, clock=clock))
    for resource in (tank.resource, upstream.resource):
        resource.open()
    upstream.add("u", 50, None)
    tank.add("fill", 100, None)
    tank.add("nobody's", 30, None)
    tank.add("a producer's", 7, Source("s", manager))
    upstream.pass_on(tank)
    snapshot = manager.snapshot()
    assert manager.used_bytes == snapshot.used_bytes == 100 + 30 + 7 + 50
    assert snapshot.overflow_bytes == 30 + 7 + 50
    picture = tank.controller.describe()
    assert (picture.overflow_count, picture.overflow_bytes) == (3, 87)
    assert tank.controller.unaccounted_bytes == 37
    tank.drain()
    assert tank.controller.unaccounted_bytes == 0 and manager.used_bytes == 30 + 7 + 50


# ------------------------------------------------------------------ turns that a source keeps


def test_nobody_else_comes_in_while_a_source_keeps_its_turn(manager: FlowManager, clock: ManualClock) -> None:
    tank = Tank("q", manager, SizeLimiter(100, clock=clock))
    first, second = Source("first", manager), Source("second", manager)
    tank.controller.keep_turn(first.controller)
    assert not tank.offer("b", 10, second) and second.controller.blocked
    assert not tank.controller.accepts(second.controller) and tank.controller.accepts(first.controller)
    assert tank.offer("a", 200, first) and first.controller.blocked, "over the capacity"
    second.when_resumed = lambda: tank.add("b", 10, second)
    first.controller.end_turn()
    assert tank.accepted == ["a"], "there is no room"
    tank.drain()
    assert tank.accepted == ["a", "b"] and not first.controller.blocked


def test_who_is_not_accepted_keeps_no_turn(manager: FlowManager, clock: ManualClock) -> None:
    tank = Tank("q", manager, SizeLimiter(100, clock=clock))
    first, second = Source("first", manager), Source("second", manager)
    tank.controller.keep_turn(first.controller)
    tank.controller.keep_turn(second.controller)
    second.controller.end_turn()
    assert not tank.controller.accepts(second.controller)
    first.controller.end_turn()
    tank.add("a", 100, None)
    tank.controller.keep_turn(second.controller)
    tank.drain()
    assert tank.controller.accepts(first.controller)


def test_a_source_that_is_closed_keeps_no_turn(manager: FlowManager, clock: ManualClock) -> None:
    tank = Tank("q", manager, SizeLimiter(100, clock=clock))
    first, second = Source("first", manager), Source("second", manager)
    tank.controller.keep_turn(first.controller)
    assert not tank.offer("b", 10, second)
    first.controller.close()
    assert not second.controller.blocked and tank.offer("b", 10, second)
