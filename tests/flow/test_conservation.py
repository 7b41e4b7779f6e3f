"""Whatever happens in whatever order: nothing is lost, charged minus released is held, blocks and resumes pair up.

A machine of three producers, two stages (a queue that passes on to an outbox) and everything that can be done to
them: adds and offers, dispatches, acks, expiry, resizes, sources that come and go, scheduled turns at any time. The
model beside it is plain lists and sums.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluiceway.flow import FlowManager, SizeLimiter, WindowLimiter
from tests.flow.models import Executor, ManualClock, Source, Tank

SIZES = st.integers(0, 60)


class TwoStages(RuleBasedStateMachine):
    @initialize(scheduled=st.booleans(), sources_per_turn=st.integers(1, 3), eager=st.booleans())
    def build(self, scheduled: bool, sources_per_turn: int, eager: bool) -> None:
        self.clock = ManualClock()
        self.manager = FlowManager(self.clock)
        self.executor = Executor()
        schedule = self.executor if scheduled else None
        self.queue_limiter = SizeLimiter(100, 40, clock=self.clock)
        self.outbox_limiter = WindowLimiter(4, 80, resume_count=2, clock=self.clock)
        self.queue = Tank(
            "orders", self.manager, self.queue_limiter, schedule=schedule, sources_per_turn=sources_per_turn
        )
        self.outbox = Tank("outbox", self.manager, self.outbox_limiter, schedule=schedule)
        self.sources: list[Source] = []
        self.eager = eager
        self.names_count = 0
        self.sizes: dict[str, int] = {}
        self.taken: list[str] = []
        self.gone_count = 0
        for _ in range(3):
            self.a_source_comes()

    def element(self, size_bytes: int) -> str:
        self.names_count += 1
        name = f"e{self.names_count}"
        self.sizes[name] = size_bytes
        return name

    def resumed(self, source: Source) -> None:
        """An eager source adds as soon as it may."""
        if self.eager:
            self.send(source, 25)

    def send(self, source: Source | None, size_bytes: int) -> None:
        name = self.element(size_bytes)
        self.taken.append(name)
        self.queue.add(name, size_bytes, source)

    # ------------------------------------------------------------------ what can happen

    @rule()
    def a_source_comes(self) -> None:
        if len(self.sources) < 6:
            source = Source(f"s{self.names_count}", self.manager)
            source.when_resumed = lambda: self.resumed(source)
            self.sources.append(source)

    @rule(data=st.data())
    def a_source_goes(self, data: st.DataObject) -> None:
        if len(self.sources) > 1:
            source = data.draw(st.sampled_from(self.sources))
            self.sources.remove(source)
            source.controller.close()
            assert source.controller not in self.queue.controller.blocked_sources()

    @rule(data=st.data(), size_bytes=SIZES)
    def add(self, data: st.DataObject, size_bytes: int) -> None:
        self.send(data.draw(st.sampled_from([*self.sources, None])), size_bytes)

    @rule(data=st.data(), size_bytes=SIZES)
    def offer(self, data: st.DataObject, size_bytes: int) -> None:
        source = data.draw(st.sampled_from(self.sources))
        name = self.element(size_bytes)
        accepting = self.queue.controller.accepting
        assert self.queue.offer(name, size_bytes, source) == accepting
        if accepting:
            self.taken.append(name)
        else:
            assert source.controller.blocked

    @rule(count=st.integers(1, 3))
    def dispatch(self, count: int) -> None:
        self.queue.pass_on(self.outbox, min(count, len(self.queue.held)))

    @precondition(lambda self: self.outbox.held)
    @rule()
    def acknowledge(self) -> None:
        self.gone_count += 1
        self.outbox.drain()

    @precondition(lambda self: self.queue.held)
    @rule()
    def expire(self) -> None:
        self.gone_count += 1
        _, size_bytes = self.queue.held.popleft()
        self.queue.controller.discard(1, size_bytes)

    @precondition(lambda self: self.executor.pending)
    @rule()
    def run_a_turn(self) -> None:
        self.executor.run_one()

    @rule(capacity_bytes=st.integers(1, 200))
    def resize_the_queue(self, capacity_bytes: int) -> None:
        self.queue_limiter.resize(capacity_bytes)
        self.queue.controller.poll()

    @rule(count=st.integers(0, 6), size_bytes=st.integers(0, 120))
    def resize_the_window(self, count: int, size_bytes: int) -> None:
        self.outbox_limiter.resize(count, size_bytes)
        self.outbox.controller.poll()

    # ------------------------------------------------------------------ what must always be true

    @invariant()
    def charged_minus_released_is_held(self) -> None:
        for tank in (self.queue, self.outbox):
            controller = tank.controller
            held_bytes = sum(size_bytes for _, size_bytes in tank.held)
            assert tank.limiter.used_count == len(tank.held) + controller.reserved_count
            assert tank.limiter.used_bytes == held_bytes + controller.reserved_bytes
            assert controller.overflow_count == len(controller._overflow)
            assert controller.overflow_bytes == sum(size_bytes for _, _, size_bytes, _ in controller._overflow)

    @invariant()
    def space_is_reserved_only_while_blocked(self) -> None:
        controller = self.queue.controller
        assert controller.blocked or controller.reserved_count == controller.reserved_bytes == 0

    @invariant()
    def nothing_is_lost_and_order_is_kept(self) -> None:
        waiting = [element[0] for element, *_ in self.queue.controller._overflow]
        assert self.queue.accepted + waiting == self.taken
        held_count = sum(len(tank.held) + tank.controller.overflow_count for tank in (self.queue, self.outbox))
        assert self.gone_count + held_count == len(self.taken)

    @invariant()
    def blocks_and_resumes_pair_up(self) -> None:
        blocked = set(self.queue.controller.blocked_sources())
        for source in self.sources:
            assert source.controller.blocked == (source.controller in blocked) == bool(source.controller.blocked_by)
            assert source.block_calls_count - source.resume_calls_count == source.controller.blocked
            assert source.controller.block_count == source.block_calls_count
        assert blocked <= {source.controller for source in self.sources}
        assert self.queue.controller.blocked == (self.queue.controller in self.outbox.controller.blocked_sources())

    @invariant()
    def nobody_waits_before_an_open_door(self) -> None:
        """If there is room and somebody waits, a turn is on its way."""
        for tank in (self.queue, self.outbox):
            controller = tank.controller
            if controller.blocked_sources() or controller.overflow_count:
                assert tank.limiter.throttled or self.executor.pending
            elif not self.executor.pending:
                assert controller.accepting == (not tank.limiter.throttled)

    @invariant()
    def memory_in_use_is_the_limiters_and_what_nobody_is_charged_for(self) -> None:
        """The queue goes on being charged for what waits before the outbox; the producers have no limiter."""
        used_bytes = self.queue.limiter.used_bytes + self.outbox.limiter.used_bytes
        used_bytes += self.queue.controller.overflow_bytes
        assert self.outbox.controller.unaccounted_bytes == 0
        for tank in (self.queue, self.outbox):
            if not tank.resource.is_open:
                tank.resource.open()
        snapshot = self.manager.snapshot()
        assert snapshot.used_bytes == self.manager.used_bytes == used_bytes

    def teardown(self) -> None:
        """Consumers that keep up let everybody go on in the end."""
        if not hasattr(self, "queue"):
            return
        self.eager = False
        self.queue_limiter.resize(1000)
        self.outbox_limiter.resize(1000, None)
        self.queue.controller.poll()
        self.outbox.controller.poll()
        while self.queue.held or self.outbox.held or self.executor.pending:
            self.executor.run_all()
            self.queue.pass_on(self.outbox, len(self.queue.held))
            self.outbox.drain(len(self.outbox.held))
        assert self.outbox.limiter.used_bytes == self.queue.limiter.used_bytes == 0
        assert not any(source.controller.blocked for source in self.sources)
        expected = [name for name in self.outbox.accepted if name in self.sizes]
        assert sorted(expected, key=lambda name: self.taken.index(name)) == expected


TestTwoStages = TwoStages.TestCase
TestTwoStages.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
