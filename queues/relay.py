"""Relays: queues that pass messages on and keep none. Senders wait until a consumer has room. Seed 002 "Relay".

A relay is a shared queue without a store and with a gate before its intake. The gate is open while a consumer takes
more than the elements that it has not reached yet; each new run, and each dispatch, checks it again. So elements that
wait for a consumer's room are at most one run beyond the credit of a consumer, and returned elements. Elements that
consumers have passed over block no sender: those that are delayed, or wait for the holder of their message group, for
room in the dead-letter queue, or for a consumer that selects them. All of these, and elements that consumers hold
unacknowledged, are in memory, within `memory_bytes`, and are lost when the broker ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

import attrs

from ..flow import FlowResource, SourceController, WindowLimiter
from ..flow.kinds import ResourceKind
from .consumed import ConsumedQueue
from .environment import QueueEnvironment
from .exclusivity import Exclusivity
from .groups import GroupTable
from .message import Message
from .pace import Gate, Paced
from .policy import QueuePolicy
from .queue import QueueOptions
from .shared import SharedDistribution, shared_queue


class RelayGate(Gate):
    """Holds senders back while no consumer of a relay has room."""

    __slots__ = ("_has_taker",)

    def __init__(
        self,
        resource: FlowResource,
        has_taker: Callable[[], bool],
        *,
        schedule: Callable[[Callable[[], None]], None] | None,
        clock: Callable[[], float],
    ) -> None:
        """`has_taker`: returns whether a consumer takes more than the elements that it has not reached yet; `schedule`:
        see Account.
        """
        self._has_taker = has_taker
        limiter = WindowLimiter(1, None, clock=clock, label="room of its consumers")
        super().__init__(resource, "until a consumer has room", limiter, schedule=schedule, clock=clock)

    def look(self) -> None:
        """Open or shut the gate: consumers have more room, or less, than before. Senders may resume before this
        returns.
        """
        controller = self._controller
        if not controller.closed and controller.limiter.throttled is self._has_taker():
            if controller.limiter.throttled:
                controller.release(1, 0)
            else:
                controller.charge(1, 0, None)

    def admits(self, source: SourceController, queue: Paced) -> bool:
        self.look()
        if self._controller.accepts(source):
            return True
        self._controller.wait_in_line(source)
        return False

    def took(self, count: int) -> None:
        """Do nothing: the next dispatch checks the gate when the elements are in the queue."""

    def relax(self) -> None:
        """Do nothing: the dispatch that a new consumer requests checks the gate."""


class RelayDistribution(SharedDistribution):
    """Distribution of new messages that accepts only what consumers have room for."""

    __slots__ = ("_gate",)

    def __init__(self, queue: ConsumedQueue, groups: GroupTable, exclusivity: Exclusivity) -> None:
        super().__init__(queue, groups, exclusivity)
        environment = queue.environment
        self._gate = RelayGate(queue, self._has_taker, schedule=environment.resume, clock=environment.clock)
        queue.intake.pace = self._gate

    def dispatch(self, budget: int) -> bool:
        more = super().dispatch(budget)
        self._gate.look()
        return more

    def arrived(self, messages: list[Message]) -> None:
        super().arrived(messages)
        self._gate.look()

    def _has_taker(self) -> bool:
        return self._queue.paused_since_seconds is None and self.takes_more()

    def facts(self) -> dict[str, object]:
        facts = super().facts()
        if not self._queue.subscriptions:
            facts["consumers"] = "none: a relay hands on only to consumers that are there; subscribe one"
        return facts


def relay_queue(
    name: str,
    policy: QueuePolicy,
    environment: QueueEnvironment,
    *,
    groups: GroupTable | None = None,
    exclusivity: Exclusivity | None = None,
    **options: Unpack[QueueOptions],
) -> ConsumedQueue:
    """Make a relay. Its policy has no `full` but `block`. `groups`, `exclusivity`: see `shared_queue`."""
    return shared_queue(
        name,
        attrs.evolve(policy, full="block", disconnected_per_second=None, catch_up_share=None),
        attrs.evolve(environment, store=None),
        groups=groups,
        exclusivity=exclusivity,
        distribution=RelayDistribution,
        kind=ResourceKind.RELAY,
        **options,
    )
