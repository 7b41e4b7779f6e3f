"""A queue without a buffer: what comes in goes straight on, under a controller. Seed 002 "Relay".

The relay holds a run only while the sink behind it blocks: then the run's space stays reserved, the relay's limiter
fills, and the relay in turn blocks its own sources. So back pressure passes through it, and its limit says how much may
receive buffer up before it does.

A sink that refuses (policy `reject`) costs the run: the sender is no longer there to be told. It is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from ..flow import Flow, FlowController, FlowManager, FlowResource, SizeLimiter, SourceController
from ..flow.kinds import ResourceKind
from .full_actions import QueueFullError
from .intake import Run
from .message import MESSAGE_OVERHEAD_BYTES, Message


class RunSink(Protocol):
    """Anything that takes runs: a queue, a partitioned queue, another relay."""

    def add(self, messages: list[Message], wire_bytes: int, source: SourceController | None) -> None: ...


class Relay(FlowResource):
    """Passes runs on to `sink`."""

    def __init__(
        self,
        name: str,
        sink: RunSink,
        *,
        capacity_bytes: int,
        manager: FlowManager,
        clock: Callable[[], float],
        resume: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        super().__init__(name, ResourceKind.RELAY, manager)
        self._sink = sink
        self.passed_count = 0
        self.rejected_count = 0
        self.controller: FlowController[Run] = FlowController(
            self,
            Flow(name),
            SizeLimiter(capacity_bytes, clock=clock),
            accept=self._pass_on,
            schedule=resume,
            clock=clock,
        )
        self.open()

    @property
    def closed(self) -> bool:
        """It takes nothing any more."""
        return self.controller.closed

    def add(self, messages: list[Message], wire_bytes: int, source: SourceController | None) -> None:
        """Pass this run on; blocks `source` when the sink has blocked the relay and the relay's limit is reached.

        Raises FlowClosedError once the relay is closed. Close a relay before the sink behind it.
        """
        charge_bytes = wire_bytes + len(messages) * MESSAGE_OVERHEAD_BYTES
        self.controller.add(Run(messages, charge_bytes), len(messages), charge_bytes, source)

    def _pass_on(self, run: Run) -> None:
        count = len(run.messages)
        try:
            self._sink.add(run.messages, run.charge_bytes - count * MESSAGE_OVERHEAD_BYTES, self.controller)
            self.passed_count += count
        except QueueFullError:
            self.rejected_count += count
        # If the sink has just blocked us this only reserves the space; it is freed when the sink lets go.
        self.controller.release(count, run.charge_bytes)

    def facts(self) -> Mapping[str, object]:
        facts: dict[str, object] = {"passed": self.passed_count}
        if self.rejected_count:
            facts["rejected by the sink"] = self.rejected_count
        return facts
