"""SpoolRecovery: overflow first, then the sources in turn, never beyond capacity, never in a recursion, and fair."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.flow import FlowManager, RateLimiter, SizeLimiter, WindowLimiter
from tests.flow.models import Executor, ManualClock, Source, Tank


def blocked_sources(tank: Tank, manager: FlowManager, count: int, log: list[str] | None = None) -> list[Source]:
    """Fill the tank and let `count` sources find it full; none of them has an element in overflow."""
    tank.add("fill", 100, None)
    sources = [Source(f"s{number}", manager, log) for number in range(count)]
    for source in sources:
        assert not tank.offer("x", 1, source)
    return sources


def test_overflow_goes_first_and_in_order(manager: FlowManager, clock: ManualClock) -> None:
    tank = Tank("t", manager, SizeLimiter(100, clock=clock))
    log: list[str] = []
    first, second = Source("first", manager, log), Source("second", manager, log)
    tank.add("a", 100, first)
    for name, source in (("b", second), ("c", first), ("d", second)):
        tank.add(name, 10, source)
    first.when_resumed = lambda: tank.add("e", 10, first)
    tank.drain()
    assert tank.accepted == ["a", "b", "c", "d", "e"]
    assert log == ["block first", "block second", "resume first", "resume second"]


def test_overflow_that_throttles_again_resumes_nobody(manager: FlowManager, clock: ManualClock) -> None:
    tank = Tank("t", manager, SizeLimiter(100, clock=clock))
    source = Source("s", manager)
    tank.add("a", 100, source)
    tank.add("b", 100, source)
    tank.drain()
    assert tank.accepted == ["a", "b"] and source.controller.blocked and source.resume_calls_count == 0


def test_resuming_source_cannot_overfill_the_sink(manager: FlowManager, clock: ManualClock) -> None:
    """Fault of the prototype: all sources were resumed at once, however much the first of them sent."""
    tank = Tank("t", manager, SizeLimiter(100, clock=clock))
    sources = blocked_sources(tank, manager, 5)
    for source in sources:
        source.when_resumed = lambda source=source: tank.add("batch", 90, source)
    tank.drain()
    assert tank.limiter.used_bytes == 180, "two batches of 90: the second reached the capacity"
    assert [source.resume_calls_count for source in sources] == [1, 1, 0, 0, 0]


def test_source_that_goes_on_adding_in_its_turn_overflows(manager: FlowManager, clock: ManualClock) -> None:
    """Its turn ends with the room: what it adds beyond it is not charged, though it does not look."""
    tank = Tank("t", manager, SizeLimiter(100, clock=clock))
    (source,) = blocked_sources(tank, manager, 1)
    source.when_resumed = lambda: [tank.add(name, 60, source) for name in "abcd"]
    tank.drain()
    assert tank.limiter.used_bytes == 120 and tank.controller.overflow_count == 2
    assert source.controller.blocked and source.block_calls_count == 2


def test_turn_does_not_pass_what_lies_in_overflow(manager: FlowManager, clock: ManualClock) -> None:
    """A newcomer that adds within the turn of another was before what that one adds after it."""
    tank = Tank("t", manager, SizeLimiter(100, clock=clock), sources_per_turn=2)
    first, second = blocked_sources(tank, manager, 2)
    newcomer = Source("new", manager)

    def resumed() -> None:
        if first.resume_calls_count == 1:
            tank.add("a", 1, first)
            tank.add("n", 1, newcomer)
            tank.add("b", 1, first)

    first.when_resumed = resumed
    second.when_resumed = lambda: tank.add("c", 1, second)
    tank.drain()
    assert tank.accepted == ["fill", "a", "n", "b", "c"]
    assert second.block_calls_count == 1, "the overflow went first, so the second found the door open"


def test_newcomer_waits_for_the_turn_to_end_even_if_nobody_else_waits(manager: FlowManager, clock: ManualClock) -> None:
    tank = Tank("t", manager, SizeLimiter(100, clock=clock))
    first, second = blocked_sources(tank, manager, 2)
    newcomer = Source("new", manager)

    def resumed() -> None:
        second.controller.close()
        tank.add("n", 1, newcomer)
        assert tank.accepted == ["fill"] and newcomer.controller.blocked

    first.when_resumed = resumed
    tank.drain()
    assert tank.accepted == ["fill", "n"] and not newcomer.controller.blocked


def test_last_waiting_source_that_closes_opens_the_gate(manager: FlowManager, clock: ManualClock) -> None:
    executor = Executor()
    tank = Tank("t", manager, SizeLimiter(100, clock=clock), schedule=executor)
    (source,) = blocked_sources(tank, manager, 1)
    source.controller.close()
    tank.drain()
    assert tank.controller.accepting and not executor.pending, "nobody is left to take a turn"


def test_sources_not_reached_keep_their_place(manager: FlowManager, clock: ManualClock) -> None:
    tank = Tank("t", manager, SizeLimiter(100, clock=clock))
    sources = blocked_sources(tank, manager, 4)
    for source in sources:
        source.when_resumed = lambda source=source: tank.add(source.name, 100, source)
    for _ in range(5):
        tank.drain()
    assert tank.accepted == ["fill", "s0", "s1", "s2", "s3", "s0"]


def test_newcomers_wait_behind_those_who_resume(manager: FlowManager, clock: ManualClock) -> None:
    executor = Executor()
    tank = Tank("t", manager, SizeLimiter(100, clock=clock), schedule=executor)
    log: list[str] = []
    blocked_sources(tank, manager, 2, log)
    log.clear()
    tank.drain()
    newcomer, refused = Source("new", manager, log), Source("refused", manager, log)
    tank.add("n", 1, newcomer)
    assert not tank.offer("r", 1, refused)
    assert tank.accepted == ["fill"], "there is room, but others were first"
    assert len(executor.pending) == 1, "one turn is on its way, whoever asks for one"
    executor.run_all()
    assert log == ["block new", "block refused", "resume s0", "resume s1", "resume new", "resume refused"]
    assert tank.accepted == ["fill", "n"]


@pytest.mark.parametrize("sources_per_turn", [1, 3])
def test_turn_resumes_no_more_sources_than_allowed(
    manager: FlowManager, clock: ManualClock, sources_per_turn: int
) -> None:
    executor = Executor()
    tank = Tank("t", manager, SizeLimiter(100, clock=clock), schedule=executor, sources_per_turn=sources_per_turn)
    sources = blocked_sources(tank, manager, 9)
    tank.drain()
    resumed_count = 0
    while executor.pending:
        assert len(executor.pending) == 1
        executor.run_one()
        resumed = sum(source.resume_calls_count for source in sources)
        assert resumed - resumed_count <= sources_per_turn
        resumed_count = resumed
    assert resumed_count == 9


def test_turn_takes_a_bounded_part_of_a_long_overflow(manager: FlowManager, clock: ManualClock) -> None:
    executor = Executor()
    tank = Tank("t", manager, WindowLimiter(10_000, None, clock=clock), schedule=executor)
    tank.controller.charge(10_000, 0, None)
    for _ in range(2500):
        tank.add("x", 1, None)
    tank.controller.release(5000, 0)
    assert executor.run_all() == 3
    assert len(tank.accepted) == 2500


def test_source_that_adds_later_is_served_in_turn(manager: FlowManager, clock: ManualClock) -> None:
    """A source that asks for a dispatch when it resumes, and adds only then, waits behind the rest."""
    executor = Executor()
    tank = Tank("t", manager, SizeLimiter(100, clock=clock), schedule=executor)
    sources = blocked_sources(tank, manager, 3)
    for source in sources:
        source.when_resumed = lambda source=source: executor(lambda: tank.add(source.name, 10, source))
    tank.drain()
    executor.run_one()
    executor.run_one()
    for source in sources:
        source.when_resumed = None
    executor.run_all()
    assert sorted(tank.accepted) == ["fill", "s0"]
    assert not any(source.controller.blocked for source in sources)


@pytest.mark.parametrize("schedule", [None, lambda call: call()], ids=["inline", "executor that runs at once"])
def test_ten_thousand_sources_resume_without_recursion(
    manager: FlowManager, clock: ManualClock, schedule: None
) -> None:
    tank = Tank("t", manager, SizeLimiter(10**9, 10, clock=clock), schedule=schedule)
    tank.add("fill", 10**9, None)
    sources = [Source(f"s{number}", manager) for number in range(10_000)]
    depths: list[int] = []

    def resumed(source: Source) -> None:
        depths.append(_stack_depth())
        tank.add("again", 1, source)

    for source in sources:
        source.when_resumed = lambda source=source: resumed(source)
        tank.offer("x", 1, source)
    tank.drain()
    assert len(tank.accepted) == 10_001 and not any(source.controller.blocked for source in sources)
    assert max(depths) - min(depths) <= 2


def test_callback_that_drains_the_sink_does_not_recurse(manager: FlowManager, clock: ManualClock) -> None:
    """Each resumed source fills the tank and consumes at once, which would resume the next from within."""
    tank = Tank("t", manager, SizeLimiter(100, clock=clock))
    sources = blocked_sources(tank, manager, 2000)
    depths: list[int] = []

    def resumed(source: Source) -> None:
        depths.append(_stack_depth())
        tank.add(source.name, 100, source)
        tank.drain()

    for source in sources:
        source.when_resumed = lambda source=source: resumed(source) if source.resume_calls_count == 1 else None
    tank.drain()
    assert all(source.resume_calls_count == 2 for source in sources)
    assert max(depths) - min(depths) <= 2


def test_source_that_closes_in_its_turn_ends_it(manager: FlowManager, clock: ManualClock) -> None:
    tank = Tank("t", manager, SizeLimiter(100, clock=clock))
    first, second = blocked_sources(tank, manager, 2)
    first.when_resumed = lambda: (first.controller.close(), second.controller.close())
    tank.drain()
    assert tank.controller.blocked_sources() == () and second.resume_calls_count == 0
    tank.add("a", 1, None)
    assert tank.accepted[-1] == "a", "the gate is open again"


def test_sink_closed_by_a_callback_ends_resumption(manager: FlowManager, clock: ManualClock) -> None:
    tank = Tank("t", manager, SizeLimiter(100, clock=clock))
    sources = blocked_sources(tank, manager, 3)
    sources[0].when_resumed = lambda: tank.controller.close()
    tank.drain()
    assert [source.resume_calls_count for source in sources] == [1, 1, 1]


def test_source_may_charge_in_its_turn(manager: FlowManager, clock: ManualClock) -> None:
    tank = Tank("t", manager, SizeLimiter(100, clock=clock))
    first, second = blocked_sources(tank, manager, 2)
    first.when_resumed = lambda: tank.controller.charge(1, 10, first.controller)
    tank.drain()
    assert first.block_calls_count == 1 and second.resume_calls_count == 1


def test_closed_sink_accepts_nothing_more_from_overflow(manager: FlowManager, clock: ManualClock) -> None:
    """Not even if its close was broken off by a callback, with a turn on its way."""
    executor = Executor()
    tank = Tank("t", manager, SizeLimiter(100, clock=clock), schedule=executor)

    def fail() -> None:
        raise RuntimeError("callback")

    source = Source("s", manager)
    source.when_resumed = fail
    tank.add("fill", 100, source)
    tank.add("waits", 1, None)
    tank.drain()
    with pytest.raises(RuntimeError, match="callback"):
        tank.controller.close()
    executor.run_all()
    assert tank.accepted == ["fill"] and tank.controller.close() == [("waits", 1)]


def test_scheduled_turn_after_close_does_nothing(manager: FlowManager, clock: ManualClock) -> None:
    executor = Executor()
    tank = Tank("t", manager, SizeLimiter(100, clock=clock), schedule=executor)
    (source,) = blocked_sources(tank, manager, 1)
    tank.drain()
    tank.controller.close()
    executor.run_all()
    assert source.resume_calls_count == 1


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("event", ["poll", "add", "offer", "release"])
def test_callback_that_raises_delays_the_others_but_loses_none(
    manager: FlowManager, clock: ManualClock, scheduled: bool, event: str
) -> None:
    """Whatever happens next at the sink starts the resumption again."""
    executor = Executor()
    tank = Tank("t", manager, SizeLimiter(100, clock=clock), schedule=executor if scheduled else None)
    first, second = blocked_sources(tank, manager, 2)

    def fail() -> None:
        raise RuntimeError("callback")

    first.when_resumed = fail
    with pytest.raises(RuntimeError, match="callback"):
        tank.drain()
        executor.run_all()
    assert not first.controller.blocked and second.controller.blocked
    match event:
        case "poll":
            tank.controller.poll()
        case "add":
            tank.add("a", 1, None)
        case "offer":
            tank.offer("o", 1, None)
        case "release":
            tank.controller.release(0, 0)
    executor.run_all()
    assert not second.controller.blocked


def test_rate_limited_source_resumes_when_polled_in_time(manager: FlowManager, clock: ManualClock) -> None:
    limiter = RateLimiter(10, 5, unit="messages", resume_tokens=2, clock=clock)
    tank = Tank("t", manager, limiter)
    source = Source("s", manager)
    for name in "abcdefg":
        tank.add(name, 1, source)
    assert tank.accepted == list("abcde")
    clock.now = limiter.resumes_at()
    tank.controller.poll()
    assert tank.accepted == list("abcdefg") and source.controller.blocked, "two tokens, two elements"
    clock.now = limiter.resumes_at()
    tank.controller.poll()
    assert not source.controller.blocked


@given(
    sources_count=st.integers(2, 12),
    batch_bytes=st.integers(1, 70),
    drains=st.lists(st.integers(1, 8), min_size=20, max_size=60),
    scheduled=st.booleans(),
    sources_per_turn=st.integers(1, 4),
)
def test_resumption_is_fair(
    sources_count: int, batch_bytes: int, drains: list[int], scheduled: bool, sources_per_turn: int
) -> None:
    """N sources that fill the sink at once whenever they may: nobody gets ahead of another by more than one turn."""
    clock = ManualClock()
    manager = FlowManager(clock)
    executor = Executor()
    tank = Tank(
        "t",
        manager,
        SizeLimiter(100, clock=clock),
        schedule=executor if scheduled else None,
        sources_per_turn=sources_per_turn,
    )
    sources = [Source(f"s{number}", manager) for number in range(sources_count)]

    def add_until_blocked(source: Source) -> None:
        while not source.controller.blocked:
            tank.add(source.name, batch_bytes, source)

    for source in sources:
        source.when_resumed = lambda source=source: add_until_blocked(source)
        add_until_blocked(source)
    for drain_count in drains:
        tank.drain(min(drain_count, len(tank.held)))
        executor.run_all()
        turns = [source.resume_calls_count for source in sources]
        assert max(turns) - min(turns) <= 1
        assert tank.limiter.used_bytes < 100 + batch_bytes
        assert tank.controller.overflow_count <= sources_count, "one batch of each source at most"


def _stack_depth() -> int:
    depth = 0
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        depth += 1
    return depth
