"""MemoryBudget and FlowController together: whoever waits for memory has a turn as soon as there is some, whatever it
was that found the memory free: a step, a look of somebody else, or something that came in all the same.
"""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from sluiceway.flow import Flow, FlowController, FlowManager, MemoryBudget, ResidencyLimiter, SizeLimiter, WindowLimiter
from sluiceway.flow.limiters import FlowLimiter
from tests.flow.models import Executor, ManualClock, Resource, Source

MIB = 1 << 20
CAPACITY_BYTES = 4 * MIB
RUN_BYTES = 1000


class Sender(Source):
    """Offers runs of one size, one for each turn, as long as it has any."""

    def __init__(self, name: str, manager: FlowManager, queue: Queue) -> None:
        super().__init__(name, manager)
        self._queue = queue
        self.waiting_count = 0
        self.when_resumed = self._go

    def send(self, count: int) -> None:
        self.waiting_count += count
        if not self.controller.blocked:
            self._go()

    def _go(self) -> None:
        if self.waiting_count and self._queue.offer(self):
            self.waiting_count -= 1
            if self.waiting_count and not self.controller.blocked:
                self._go()


class Queue:
    """As a queue does, it asks for memory when that is full. `drains`: it may be given a waiver."""

    def __init__(self, name: str, manager: FlowManager, executor: Executor, limiter: FlowLimiter) -> None:
        self.name = name
        self.limiter = limiter
        self.controller: FlowController[None] = FlowController(
            Resource(name, "queue", manager),
            Flow(name),
            limiter,
            accept=lambda _element: None,
            schedule=executor,
            clock=manager.clock,
            yields=True,
        )
        assert limiter.share is not None
        self.share = limiter.share
        self.share.drains = lambda: True

    def look(self, size_bytes: int = RUN_BYTES) -> None:
        """As a COMMIT does that then finds another queue full."""
        if self.share.budget.full:
            self.share.ask(size_bytes)

    def offer(self, sender: Sender) -> bool:
        self.look()
        return self.controller.offer(None, 1, RUN_BYTES, sender.controller)

    def take(self) -> None:
        limiter = self.limiter
        if limiter.used_bytes:
            size_bytes = min(RUN_BYTES, limiter.used_bytes)
            is_last = size_bytes == limiter.used_bytes
            self.controller.release(limiter.used_count if is_last else min(1, limiter.used_count), size_bytes)


class Hall:
    """Queues, their senders, and something that takes the memory away."""

    def __init__(self, limiters: list[FlowLimiter], clock: ManualClock) -> None:
        manager = FlowManager(clock)
        self.executor = Executor()
        self.budget = manager.budget = MemoryBudget(CAPACITY_BYTES, manager=manager)
        self.budget.open()
        self.queues = [Queue(f"q{n}", manager, self.executor, limiter) for n, limiter in enumerate(limiters)]
        self.senders = [[Sender(f"s{n} of {q.name}", manager, q) for n in range(3)] for q in self.queues]
        limiter = SizeLimiter(1 << 40, clock=clock)
        self.others: FlowController[None] = FlowController(
            Resource("others", "queue", manager), Flow("others"), limiter, accept=lambda _element: None, clock=clock
        )

    def fill(self, used_bytes: int) -> None:
        """Others take so much."""
        more_bytes = used_bytes - self.others.limiter.used_bytes
        if more_bytes > 0:
            self.others.limiter.add(0, more_bytes)
        else:
            self.others.release(0, -more_bytes)

    def check(self) -> None:
        for queue in self.queues:
            controller = queue.controller
            waits = controller.blocks_somebody and not queue.limiter.throttled
            assert not waits or self.executor.pending, f"{queue.name} has room, senders that wait, and no turn"


def hall(count: int = 1) -> Hall:
    clock = ManualClock()
    return Hall([SizeLimiter(64 * MIB, clock=clock) for _ in range(count)], clock)


def test_who_waits_goes_on_when_another_one_asks_and_there_is_room() -> None:
    """The memory has become free, and before the next step somebody comes by who did not wait, and takes nothing."""
    full = hall()
    [queue], [[first, *_others]] = full.queues, full.senders
    full.fill(2 * CAPACITY_BYTES)
    first.send(1)
    assert first.controller.blocked
    full.fill(CAPACITY_BYTES - 100_000)
    assert full.budget.full
    queue.look()
    full.check()
    full.executor.run_all()
    assert not first.controller.blocked and not first.waiting_count


def test_who_waits_goes_on_when_something_comes_in_all_the_same() -> None:
    """A transaction that is charged over the limit, or what comes in from the disk."""
    full = hall()
    [queue], [[first, *_others]] = full.queues, full.senders
    full.fill(2 * CAPACITY_BYTES)
    first.send(1)
    full.fill(CAPACITY_BYTES - 100_000)
    queue.controller.charge(1, 100, None)
    full.check()
    while full.budget.short and first.controller.blocked and full.budget.waiting_count:
        full.budget.step()
        full.executor.run_all()
    assert not first.controller.blocked and not first.waiting_count


def test_to_ask_does_not_use_a_waiver_up() -> None:
    """What comes in does. A COMMIT looks at several queues, and may find another one of them full."""
    full = hall()
    [queue], [[first, *_others]] = full.queues, full.senders
    full.fill(2 * CAPACITY_BYTES)
    queue.look()
    assert queue.limiter.refused
    full.budget.step()
    assert queue.share.waived
    for _look in range(3):
        queue.look()
        assert not queue.limiter.refused
    first.send(2)
    assert first.waiting_count == 1 and first.controller.blocked
    assert not queue.share.waived and queue.limiter.refused


def test_a_waiver_is_for_one_thing_also_if_that_leaves_at_once() -> None:
    full = hall()
    [queue], [[first, *_others]] = full.queues, full.senders
    full.fill(2 * CAPACITY_BYTES)
    queue.look()
    full.budget.step()
    first.send(1)
    assert not first.waiting_count
    queue.take()
    full.executor.run_all()
    first.send(1)
    assert first.waiting_count == 1 and first.controller.blocked


@given(seed=st.integers(0, 100_000), kinds=st.lists(st.integers(0, 2), min_size=1, max_size=5))
def test_nobody_waits_for_what_has_room(seed: int, kinds: list[int]) -> None:
    """Looks in vain, runs, charges over the limit, others that come and go, and steps in between."""
    random = Random(seed)
    clock = ManualClock()
    made: list[FlowLimiter] = []
    for kind in kinds:
        capacity_bytes = random.choice((2 * RUN_BYTES, 64 * MIB))
        if kind == 0:
            made.append(SizeLimiter(capacity_bytes, clock=clock))
        elif kind == 1:
            made.append(WindowLimiter(random.choice((2, 1000)), capacity_bytes, clock=clock))
        else:
            made.append(ResidencyLimiter(capacity_bytes, count_max=None, quota_bytes=None, clock=clock))
    full = Hall(made, clock)
    for _ in range(300):
        place = random.randrange(len(full.queues))
        queue = full.queues[place]
        act = random.random()
        if act < 0.3:
            random.choice(full.senders[place]).send(random.choice((1, 1, 5)))
        elif act < 0.4:
            queue.look(random.choice((1, RUN_BYTES, MIB)))
        elif act < 0.45:
            queue.controller.charge(1, random.choice((1, RUN_BYTES, 50_000)), None)
        elif act < 0.6:
            queue.take()
        elif act < 0.7:
            full.fill(random.choice((0, CAPACITY_BYTES // 2, CAPACITY_BYTES - 100_000, 2 * CAPACITY_BYTES)))
        elif act < 0.8 and full.budget.short:
            full.budget.step()
        elif full.executor.pending:
            full.executor.run_one()
        full.check()
    # The others stay, and everything is consumed: each step lets something in, until nobody waits.
    full.fill(2 * CAPACITY_BYTES)
    for _ in range(10_000):
        full.executor.run_all()
        for queue in full.queues:
            queue.take()
        full.executor.run_all()
        full.check()
        if not any(sender.waiting_count for senders in full.senders for sender in senders):
            break
        full.budget.step()
    assert not any(sender.waiting_count for senders in full.senders for sender in senders)
