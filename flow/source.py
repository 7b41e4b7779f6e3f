"""Sources: one flow of one resource that sends on, and the sinks that block it.

A sink is an `Account` (account.py). It blocks a source within the source's own call, so that the source sees the block
before its call returns, and resumes it when there is room again and it is the source's turn.

Invariants
    - A sink is in `source.blocked_by` exactly if the source is in `sink.blocked_sources()`. A source's `blocked` says
      whether there is any.
    - A source has one turn at most: the one it was given last.

Source: seed 002 "Flow Control".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .errors import FlowClosedError, PairingError
from .limiters import Clock, FlowLimiter
from .resource import Flow, FlowResource
from .snapshot import ControllerSnapshot

if TYPE_CHECKING:
    from .account import Account

BlockCallback = Callable[["Account"], None]
"""Called with the sink that blocked."""

ResumeCallback = Callable[["Account"], bool | None]
"""Callback with the last sink that resumed the source. Returns True if the source uses its turn later, and calls
`end_turn` then.
"""

PRIORITY_ORDINARY = 4
"""Sources above it are of raised priority: they may use a limiter's headroom."""


class SourceController:
    """One flow of one source.

    Attributes:
        resource, flow: resource and flow of the source.
        blocked: whether a sink blocks the source. Plain, because the hot path reads it; never written from outside.
        block_count: number of times a sink blocked it.
        priority: order of resumption among the sources of one sink (0 to 9, 9 is the highest).
        overflow_count: 0, since a source takes nothing in. Here so that both kinds can be asked.
    """

    __slots__ = (
        "_blocked_by",
        "_clock",
        "_closed",
        "_on_block",
        "_on_resume",
        "_turn_sink",
        "block_count",
        "blocked",
        "flow",
        "has_waiting",
        "overflow_count",
        "priority",
        "resource",
    )

    def __init__(
        self,
        resource: FlowResource,
        flow: Flow,
        *,
        on_block: BlockCallback | None = None,
        on_resume: ResumeCallback | None = None,
        priority: int = PRIORITY_ORDINARY,
        has_waiting: Callable[[], bool] | None = None,
        clock: Clock,
    ) -> None:
        """Attach a source of `flow` to `resource`.

        `on_block` is called when a sink blocks this source, once for each sink, within the source's own call to it.
        `on_resume` is called when the last of them resumes the source. Both find the state already changed. `on_resume`
        may add to that sink at once and return None. Or it returns True: the source keeps its turn, adds later, and
        then calls `end_turn` whether or not it had anything to add: until then that sink resumes no other source.
        `has_waiting`: returns whether elements wait for its sinks; otherwise the flow map does not show it as waiting
        (None: they always do).
        """
        self.has_waiting = has_waiting
        self.resource = resource
        self.flow = flow
        self.blocked = False
        self.block_count = 0
        self.priority = priority
        self.overflow_count = 0
        self._turn_sink: Account | None = None
        self._blocked_by: dict[Account, float] = {}
        self._on_block = on_block
        self._on_resume = on_resume
        self._clock = clock
        self._closed = False
        resource.attach_controller(self)

    @property
    def blocked_by(self) -> Mapping[Account, float]:
        """The sinks that block this source, each with the clock reading since when. A live view."""
        return MappingProxyType(self._blocked_by)

    @property
    def waits(self) -> bool:
        """A sink blocks it, and something of it waits for that."""
        return self.blocked and (self.has_waiting is None or self.has_waiting())

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def sink_limiter(self) -> FlowLimiter | None:
        """Limiter of incoming elements; None for a pure source."""
        return None

    def block(self, sink: Account) -> None:
        """Block this source at `sink`. For sinks that are not a FlowController, which calls it itself.

        Raises PairingError if this sink blocks it already, FlowClosedError if the source is closed; nothing changes
        then.
        """
        if self._closed:
            raise FlowClosedError(f"{self.title} is closed: {sink.title} cannot block it")
        if sink in self._blocked_by:
            raise PairingError(
                f"{sink.title} blocks {self.title} already; a sink blocks a source once and resumes it once"
            )
        self._blocked_by[sink] = self._clock()
        self.blocked = True
        self.block_count += 1
        if self._on_block is not None:
            self._on_block(sink)

    def resume(self, sink: Account) -> bool:
        """Resume this source at `sink`; if that was the last sink, the source continues. Returns True if it holds its
        turn until `end_turn`.

        Raises PairingError if the sink did not block it; nothing changes then.
        """
        since = self._blocked_by.pop(sink, None)
        if since is None:
            raise PairingError(
                f"{sink.title} does not block {self.title}; a sink resumes only a source that it blocked"
            )
        sink.resource.held_up_seconds += self._clock() - since
        if self._blocked_by:
            return False
        self.blocked = False
        return self._unblocked(sink)

    def end_turn(self) -> None:
        """End the turn that `on_resume` kept by returning True: the sink may resume the next source, at once.

        Call this right after the elements were added, blocked or not, and also if there was none. Does nothing without
        a turn.
        """
        sink = self._turn_sink
        if sink is not None:
            self._turn_sink = None
            sink._turn_is_over()

    def close(self) -> list[Any]:
        """Withdraw from all sinks that block this source, end its turn, and leave the resource.

        `on_resume` is not called. A second call does nothing. Elements of this source in the overflow of a sink stay
        there. Returns what waited in its own overflow: for a pure source, nothing.
        """
        if not self._closed:
            self._closed = True
            self._withdraw()
            self.resource.detach_controller(self)
            self.end_turn()
        return []

    def describe(self) -> ControllerSnapshot:
        """Return a picture of this flow as it is now."""
        return ControllerSnapshot(
            flow=self.flow.name,
            limiter=None,
            blocked=self.blocked,
            block_count=self.block_count,
        )

    @property
    def title(self) -> str:
        """Title for people: ``queue orders [flow orders]``."""
        return f"{self.resource.kind} {self.resource.name} [flow {self.flow.name}]"

    def _withdraw(self) -> None:
        while self._blocked_by:
            sink, since = self._blocked_by.popitem()
            sink.resource.held_up_seconds += self._clock() - since
            sink._forget(self)
        self.blocked = False

    def _unblocked(self, sink: Account) -> bool:
        return self._on_resume is not None and self._on_resume(sink) is True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.title}{' blocked' if self.blocked else ''}>"
