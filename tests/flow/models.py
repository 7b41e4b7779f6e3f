"""Small actors for flow tests: a clock that is turned by hand, a source that counts what happens to it, a tank that
keeps elements.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from sluiceway.flow import Account, Flow, FlowController, FlowLimiter, FlowManager, FlowResource, SourceController


class ManualClock:
    """Stands still until somebody turns it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class Executor:
    """Keeps what is scheduled until the test runs it: one turn of the dispatch loop per `run_one`."""

    def __init__(self) -> None:
        self.pending: deque[Callable[[], None]] = deque()

    def __call__(self, call: Callable[[], None]) -> None:
        self.pending.append(call)

    def run_one(self) -> None:
        self.pending.popleft()()

    def run_all(self) -> int:
        """Run until nothing is left; return how many turns that took."""
        turns_count = 0
        while self.pending:
            self.run_one()
            turns_count += 1
        return turns_count


class Resource(FlowResource):
    """A resource whose facts a test can set."""

    def __init__(self, name: str, kind: str, manager: FlowManager, facts: Mapping[str, object] | None = None) -> None:
        super().__init__(name, kind, manager)
        self.said = dict(facts or {})

    def facts(self) -> Mapping[str, object]:
        return self.said


class Source:
    """A producer without a limiter of its own. Logs its callbacks; a test may set `when_resumed`."""

    def __init__(self, name: str, manager: FlowManager, log: list[str] | None = None) -> None:
        self.name = name
        self.log = [] if log is None else log
        self.block_calls_count = 0
        self.resume_calls_count = 0
        self.when_resumed: Callable[[], None] | None = None
        self.resource = Resource(name, "producer", manager)
        self.controller = SourceController(
            self.resource, Flow(name), on_block=self._blocked, on_resume=self._resumed, clock=manager.clock
        )

    def _blocked(self, sink: Account) -> None:
        self.block_calls_count += 1
        self.log.append(f"block {self.name}")

    def _resumed(self, sink: Account) -> None:
        self.resume_calls_count += 1
        self.log.append(f"resume {self.name}")
        if self.when_resumed is not None:
            self.when_resumed()


class Tank:
    """A sink that keeps each element in a list until it is drained.

    An element counts as one and its size is given with it.
    """

    def __init__(
        self,
        name: str,
        manager: FlowManager,
        limiter: FlowLimiter,
        *,
        schedule: Callable[[Callable[[], None]], None] | None = None,
        sources_per_turn: int = 1,
        kind: str = "queue",
    ) -> None:
        self.resource = Resource(name, kind, manager)
        self.held: deque[tuple[str, int]] = deque()
        self.accepted: list[str] = []
        self.controller: FlowController[tuple[str, int]] = FlowController(
            self.resource,
            Flow(name),
            limiter,
            accept=self._accept,
            schedule=schedule,
            sources_per_turn=sources_per_turn,
            clock=manager.clock,
        )

    @property
    def limiter(self) -> FlowLimiter:
        return self.controller.limiter

    def _accept(self, element: tuple[str, int]) -> None:
        self.held.append(element)
        self.accepted.append(element[0])

    def add(self, name: str, size_bytes: int, source: Source | Tank | None) -> None:
        self.controller.add((name, size_bytes), 1, size_bytes, source.controller if source else None)

    def offer(self, name: str, size_bytes: int, source: Source | Tank | None) -> bool:
        return self.controller.offer((name, size_bytes), 1, size_bytes, source.controller if source else None)

    def drain(self, count: int = 1) -> None:
        """Consume the oldest elements: they are done with."""
        for _ in range(count):
            _, size_bytes = self.held.popleft()
            self.controller.release(1, size_bytes)

    def pass_on(self, sink: Tank, count: int = 1) -> None:
        """Dispatch the oldest elements to another tank, and only then let go of their space: the seed's contract."""
        for _ in range(count):
            name, size_bytes = self.held.popleft()
            sink.add(name, size_bytes, self)
            self.controller.release(1, size_bytes)
