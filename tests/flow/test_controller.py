"""Controllers: add, offer, charge and release; blocking and its pairing; reserved space."""

import pytest

from sluiceway.flow import (
    Flow,
    FlowClosedError,
    FlowController,
    FlowError,
    FlowManager,
    NegativeAmountError,
    OverReleaseError,
    PairingError,
    SizeLimiter,
    WindowLimiter,
)
from tests.flow.models import ManualClock, Source, Tank


@pytest.fixture
def source(manager: FlowManager) -> Source:
    return Source("web-1", manager)


@pytest.fixture
def tank(manager: FlowManager, clock: ManualClock) -> Tank:
    """Holds 100 bytes, resumes at 50."""
    return Tank("orders", manager, SizeLimiter(100, clock=clock))


class TestAdd:
    def test_element_is_charged_before_it_is_accepted(self, manager: FlowManager, clock: ManualClock) -> None:
        seen: list[int] = []
        limiter = SizeLimiter(100, clock=clock)
        controller = FlowController[str](
            Tank("t", manager, limiter).resource,
            Flow("x"),
            limiter,
            accept=lambda _element: seen.append(limiter.used_bytes),
            clock=clock,
        )
        controller.add("a", 1, 10, None)
        assert seen == [10]

    def test_element_that_throttles_is_accepted_and_blocks_its_source(self, tank: Tank, source: Source) -> None:
        tank.add("a", 99, source)
        assert not source.controller.blocked
        tank.add("b", 500, source)
        assert tank.accepted == ["a", "b"]
        assert source.controller.blocked and source.block_calls_count == 1

    def test_element_beyond_capacity_waits_in_overflow_uncharged(self, tank: Tank, source: Source) -> None:
        tank.add("a", 100, source)
        tank.add("b", 30, source)
        assert tank.accepted == ["a"]
        assert (tank.controller.overflow_count, tank.controller.overflow_bytes, tank.limiter.used_bytes) == (1, 30, 100)

    def test_blocks_a_source_once_however_much_it_adds(self, tank: Tank, source: Source) -> None:
        for name in "abcdef":
            tank.add(name, 100, source)
        assert source.block_calls_count == 1 and tank.controller.blocked_sources() == (source.controller,)

    def test_element_without_source_overflows_and_is_taken_later(self, tank: Tank) -> None:
        tank.add("a", 100, None)
        tank.add("b", 10, None)
        assert tank.controller.overflow_count == 1
        tank.drain()
        assert tank.accepted == ["a", "b"] and tank.controller.overflow_count == 0

    def test_sink_that_lets_go_within_accept_blocks_nobody(
        self, manager: FlowManager, clock: ManualClock, source: Source
    ) -> None:
        """What passes through at once never fills the sink."""
        controller: FlowController[str] = FlowController(
            Source("relay", manager).resource,
            Flow("relay"),
            SizeLimiter(10, clock=clock),
            accept=lambda element: controller.release(1, 100),
            clock=clock,
        )
        for _ in range(5):
            controller.add("x", 1, 100, source.controller)
        assert source.block_calls_count == 0 and controller.limiter.used_bytes == 0

    @pytest.mark.parametrize("full", [False, True])
    def test_negative_amounts_raise_and_change_nothing(self, tank: Tank, source: Source, full: bool) -> None:
        if full:
            tank.add("a", 100, None)
        before = tank.controller.describe()
        for count, size_bytes in ((-1, 1), (1, -1)):
            with pytest.raises(NegativeAmountError):
                tank.controller.add(("x", 1), count, size_bytes, source.controller)
            with pytest.raises(NegativeAmountError):
                tank.controller.offer(("x", 1), count, size_bytes, source.controller)
            with pytest.raises(NegativeAmountError):
                tank.controller.charge(count, size_bytes, source.controller)
            with pytest.raises(NegativeAmountError):
                tank.controller.release(count, size_bytes)
        assert tank.controller.describe() == before and not source.controller.blocked


class TestOffer:
    def test_with_room_takes_the_element(self, tank: Tank, source: Source) -> None:
        assert tank.offer("a", 60, source) and tank.offer("b", 60, source)
        assert tank.accepted == ["a", "b"] and source.controller.blocked

    def test_without_room_refuses_and_blocks_the_source(self, tank: Tank, source: Source) -> None:
        tank.add("a", 100, None)
        assert not tank.offer("b", 1, source)
        assert tank.accepted == ["a"] and source.controller.blocked and tank.limiter.used_bytes == 100
        assert tank.controller.overflow_count == 0

    def test_refused_source_is_resumed_when_there_is_room(self, tank: Tank, source: Source) -> None:
        tank.add("a", 100, None)
        tank.offer("b", 1, source)
        tank.drain()
        assert not source.controller.blocked and source.resume_calls_count == 1


class TestCharge:
    def test_blocks_when_it_throttles(self, tank: Tank, source: Source) -> None:
        tank.controller.charge(10, 99, source.controller)
        assert not source.controller.blocked and tank.controller.accepting
        tank.controller.charge(1, 1, source.controller)
        assert source.controller.blocked and not tank.controller.accepting

    def test_blocks_when_others_wait(self, manager: FlowManager, clock: ManualClock, source: Source) -> None:
        """Whoever takes the short way doesn't pass those who wait."""
        turns: list[object] = []
        tank = Tank("orders", manager, SizeLimiter(100, clock=clock), schedule=turns.append)
        tank.add("a", 100, Source("web-2", manager))
        tank.drain()
        assert not tank.limiter.throttled and turns
        tank.controller.charge(1, 1, source.controller)
        assert source.controller.blocked


class TestRelease:
    def test_source_resumes_only_at_threshold(self, tank: Tank, source: Source) -> None:
        for name in ("a", "b", "c", "d"):
            tank.add(name, 25, source)
        tank.drain()
        assert source.controller.blocked
        tank.drain()
        assert not source.controller.blocked and source.resume_calls_count == 1

    def test_of_what_was_never_charged_raises_and_changes_nothing(self, tank: Tank) -> None:
        tank.add("a", 10, None)
        with pytest.raises(OverReleaseError):
            tank.controller.release(1, 11)
        assert tank.limiter.used_bytes == 10

    def test_of_overflow_raises_because_it_is_not_charged_here(self, tank: Tank) -> None:
        tank.add("a", 100, None)
        tank.add("b", 10, None)
        with pytest.raises(OverReleaseError):
            tank.controller.release(2, 110)


class TestReservedSpace:
    """A source that was blocked during dispatch keeps the space charged until the last sink that blocks it lets go."""

    @pytest.fixture
    def upstream(self, manager: FlowManager, clock: ManualClock) -> Tank:
        return Tank("upstream", manager, SizeLimiter(100, clock=clock))

    def test_release_while_blocked_only_reserves(self, upstream: Tank, tank: Tank) -> None:
        upstream.add("a", 60, None)
        tank.add("x", 100, None)
        upstream.pass_on(tank)
        assert upstream.controller.blocked
        assert (upstream.controller.reserved_count, upstream.controller.reserved_bytes) == (1, 60)
        assert upstream.limiter.used_bytes == 60

    def test_element_that_throttles_the_sink_is_reserved_upstream(self, upstream: Tank, tank: Tank) -> None:
        """The sink took it, but from now on the source must wait: its space is what makes it wait."""
        upstream.add("a", 100, None)
        upstream.pass_on(tank)
        assert tank.accepted == ["a"] and upstream.controller.reserved_bytes == 100

    def test_reserved_space_is_freed_when_the_last_sink_lets_go(
        self, upstream: Tank, tank: Tank, manager: FlowManager, clock: ManualClock
    ) -> None:
        other = Tank("other", manager, SizeLimiter(100, clock=clock))
        for sink in (tank, other):
            sink.add("x", 100, None)
            upstream.add("a", 30, None)
            upstream.pass_on(sink)
        tank.drain()
        assert upstream.controller.blocked and upstream.controller.reserved_bytes == 60
        other.drain()
        assert not upstream.controller.blocked and upstream.controller.reserved_bytes == 0
        assert upstream.limiter.used_bytes == 0

    def test_bytes_without_a_count_are_reserved_and_freed_too(self, upstream: Tank, tank: Tank) -> None:
        upstream.controller.charge(0, 30, None)
        tank.add("x", 100, None)
        tank.controller.add(("part", 30), 0, 30, upstream.controller)
        upstream.controller.release(0, 30)
        assert upstream.controller.reserved_bytes == 30
        tank.drain()
        assert upstream.controller.reserved_bytes == upstream.limiter.used_bytes == 0

    def test_reserved_space_cannot_be_released_again(self, upstream: Tank, tank: Tank) -> None:
        upstream.add("a", 60, None)
        tank.add("x", 100, None)
        upstream.pass_on(tank)
        with pytest.raises(OverReleaseError, match="not reserved"):
            upstream.controller.release(1, 60)
        with pytest.raises(OverReleaseError, match="not reserved"):
            upstream.controller.discard(1, 60)
        assert upstream.controller.reserved_bytes == upstream.limiter.used_bytes == 60

    def test_pressure_travels_upstream_through_reserved_space(self, upstream: Tank, tank: Tank, source: Source) -> None:
        tank.add("x", 100, None)
        for name in ("a", "b", "c", "d"):
            upstream.add(name, 25, source)
            upstream.pass_on(tank)
        assert source.controller.blocked, "nothing is held upstream, but all of its space is reserved"
        tank.drain()
        assert tank.accepted == ["x", "a", "b", "c", "d"]
        assert source.controller.blocked, "the overflow has filled the sink again"
        tank.drain(2)
        assert not source.controller.blocked and upstream.limiter.used_bytes == 0

    def test_discard_frees_at_once_even_while_blocked(self, upstream: Tank, tank: Tank) -> None:
        upstream.add("a", 60, None)
        upstream.add("b", 30, None)
        tank.add("x", 100, None)
        upstream.pass_on(tank)
        upstream.held.clear()
        upstream.controller.discard(1, 30)
        assert upstream.limiter.used_bytes == upstream.controller.reserved_bytes == 60

    def test_own_callback_runs_before_upstream_sources_resume(
        self, manager: FlowManager, clock: ManualClock, tank: Tank, source: Source
    ) -> None:
        """What is held already goes on before what is let in."""
        log = source.log
        middle: FlowController[str] = FlowController(
            Source("middle", manager).resource,
            Flow("middle"),
            SizeLimiter(10, clock=clock),
            accept=lambda _element: None,
            on_resume=lambda _sink: log.append("resume middle"),
            clock=clock,
        )
        tank.add("x", 100, None)
        middle.add("a", 1, 10, source.controller)
        tank.controller.add(("a", 10), 1, 10, middle)
        middle.release(1, 10)
        tank.drain()
        assert log == ["block web-1", "resume middle", "resume web-1"]


class TestPairing:
    def test_second_block_by_the_same_sink_raises(self, tank: Tank, source: Source) -> None:
        source.controller.block(tank.controller)
        with pytest.raises(PairingError, match="blocks producer web-1"):
            source.controller.block(tank.controller)
        assert source.block_calls_count == 1 and len(source.controller.blocked_by) == 1

    def test_resume_by_a_sink_that_did_not_block_raises(self, tank: Tank, source: Source) -> None:
        with pytest.raises(PairingError, match="does not block producer web-1"):
            source.controller.resume(tank.controller)
        assert source.resume_calls_count == 0

    def test_source_blocked_by_two_sinks_resumes_with_the_last(
        self, manager: FlowManager, clock: ManualClock, tank: Tank, source: Source
    ) -> None:
        other = Tank("other", manager, SizeLimiter(100, clock=clock))
        tank.add("a", 100, source)
        clock.advance(2)
        other.add("b", 100, source)
        assert dict(source.controller.blocked_by) == {tank.controller: 1000.0, other.controller: 1002.0}
        tank.drain()
        assert source.controller.blocked and source.resume_calls_count == 0
        other.drain()
        assert not source.controller.blocked
        assert (source.block_calls_count, source.resume_calls_count) == (2, 1)

    def test_zero_sources_per_turn_raises(self, manager: FlowManager, clock: ManualClock) -> None:
        with pytest.raises(FlowError, match="at least 1"):
            Tank("t", manager, SizeLimiter(1, clock=clock), sources_per_turn=0)


class TestPoll:
    def test_resumes_after_the_limiter_was_resized(
        self, manager: FlowManager, clock: ManualClock, source: Source
    ) -> None:
        window = WindowLimiter(0, 0, clock=clock)
        tank = Tank("sub", manager, window)
        tank.add("a", 10, source)
        assert source.controller.blocked and tank.accepted == []
        window.resize(10, 1000)
        assert source.controller.blocked
        tank.controller.poll()
        assert not source.controller.blocked and tank.accepted == ["a"]


class TestClose:
    def test_source_that_closes_withdraws_from_its_sinks(self, tank: Tank, source: Source) -> None:
        tank.add("a", 100, source)
        tank.add("b", 5, source)
        assert source.controller.close() == []
        assert not source.controller.blocked and tank.controller.blocked_sources() == ()
        assert source.resume_calls_count == 0
        tank.drain()
        assert tank.accepted == ["a", "b"], "what it had added stays"
        source.controller.close()

    def test_closed_source_counts_as_nobody(self, tank: Tank, source: Source) -> None:
        source.controller.close()
        tank.add("a", 100, source)
        tank.add("b", 1, source)
        assert not source.controller.blocked and tank.controller.overflow_count == 1
        with pytest.raises(FlowClosedError):
            source.controller.block(tank.controller)

    def test_sink_that_closes_resumes_its_sources_and_returns_overflow(
        self, manager: FlowManager, tank: Tank, source: Source
    ) -> None:
        other = Source("web-2", manager)
        tank.add("a", 100, source)
        tank.add("b", 5, other)
        tank.add("c", 6, source)
        assert tank.controller.close() == [("b", 5), ("c", 6)]
        assert (source.resume_calls_count, other.resume_calls_count) == (1, 1)
        assert tank.controller.overflow_count == tank.controller.overflow_bytes == 0
        assert tank.controller.close() == []

    def test_sink_that_is_shut_lets_everybody_go_and_is_counted_until_it_is_closed(
        self, manager: FlowManager, tank: Tank, source: Source
    ) -> None:
        tank.resource.open()
        tank.add("a", 100, source)
        tank.add("b", 5, source)
        assert tank.controller.shut() == [("b", 5)]
        assert not source.controller.blocked
        with pytest.raises(FlowClosedError):
            tank.add("c", 1, source)
        assert manager.used_bytes == 100
        tank.controller.release(1, 60)
        assert manager.used_bytes == 40
        assert tank.controller.shut() == tank.controller.close() == []
        assert (manager.used_bytes, tank.controller in tank.resource.controllers) == (0, False)
        tank.controller.release(0, 40)

    def test_sink_that_is_shut_can_let_one_after_the_other_go(
        self, manager: FlowManager, tank: Tank, source: Source
    ) -> None:
        other = Source("web-2", manager)
        tank.add("a", 100, source)
        tank.add("b", 5, other)
        assert tank.controller.shut(at_once=False) == [("b", 5)]
        assert (source.controller.blocked, other.controller.blocked) == (True, True)
        tank.controller.resume_next()
        assert (source.controller.blocked, other.controller.blocked) == (False, True)
        tank.controller.close()
        assert not other.controller.blocked and not tank.controller.blocks_somebody

    def test_closed_sink_takes_nothing(self, tank: Tank, source: Source) -> None:
        tank.controller.close()
        with pytest.raises(FlowClosedError):
            tank.add("a", 1, source)
        with pytest.raises(FlowClosedError):
            tank.offer("a", 1, source)
        with pytest.raises(FlowClosedError):
            tank.controller.charge(1, 1, source.controller)
        assert tank.limiter.used_count == 0 and not source.controller.blocked and not tank.controller.accepting

    def test_elements_of_a_closed_sink_can_still_be_released(self, tank: Tank) -> None:
        tank.add("a", 30, None)
        tank.controller.close()
        tank.drain()
        assert tank.limiter.used_bytes == 0

    def test_closing_frees_what_is_reserved(self, manager: FlowManager, clock: ManualClock, tank: Tank) -> None:
        upstream = Tank("upstream", manager, SizeLimiter(100, clock=clock))
        tank.add("x", 100, None)
        upstream.add("a", 30, None)
        upstream.pass_on(tank)
        upstream.controller.close()
        assert upstream.limiter.used_bytes == upstream.controller.reserved_bytes == 0
        assert tank.controller.blocked_sources() == ()

    def test_callback_that_raises_loses_no_source_and_no_element(
        self, manager: FlowManager, tank: Tank, source: Source
    ) -> None:
        def fail() -> None:
            raise RuntimeError("callback")

        other = Source("web-2", manager)
        source.when_resumed = fail
        tank.add("a", 100, source)
        tank.add("b", 5, other)
        with pytest.raises(RuntimeError, match="callback"):
            tank.controller.close()
        assert tank.controller.close() == [("b", 5)]
        assert not source.controller.blocked and not other.controller.blocked


def test_a_resource_adds_up_how_long_it_held_up_its_sources(
    tank: Tank, manager: FlowManager, clock: ManualClock
) -> None:
    """Each source for itself, resumed or withdrawn; what still waits is told by `waits`. It outlives the resource."""
    first, second = Source("first", manager), Source("second", manager)
    tank.resource.open()
    tank.add("a", 100, first)
    clock.advance(10)
    assert not tank.offer("b", 1, second)
    clock.advance(5)
    assert sorted(tank.controller.waiting_since()) == [clock.now - 15, clock.now - 5]
    assert tank.resource.held_up_seconds == 0
    second.controller.close()
    assert tank.resource.held_up_seconds == 5
    tank.drain()
    assert tank.resource.held_up_seconds == 20
    assert tank.controller.waiting_since() == []
    tank.resource.close()
    assert manager.gone_held_up_seconds == {"queue": 20}
