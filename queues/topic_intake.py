"""Intake of a topic: messages without a subscriber are dropped, and senders follow the fastest subscriber.

Where a topic drops the oldest (its default), its *lead* holds the messages that no subscriber has been handed yet:
senders wait for the foremost subscriber, never for a slow one. The other full actions work as in a queue. See topic.py.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Final, Protocol

from ..flow import Flow, FlowController, FlowResource, ResidencyLimiter, SourceController
from .environment import QueueEnvironment
from .full_actions import FullAction
from .intake import Intake, IntakeOwner, ResidencyLimits, Run, resize_window, window
from .lead import Lead
from .message import MESSAGE_OVERHEAD_BYTES, Message
from .paging import HIGH
from .policy import QueuePolicy

LAG_FACTOR: Final = 16
"""Multiple of its memory that a topic with a store and without a `bytes_max` holds before slow subscribers lose the
oldest messages: 1 GiB by default.
"""

SPARING_SHARE: Final = HIGH - 1 / 32
"""Part of memory for slow subscribers while nothing goes to the disk for them."""


class TopicIntakeOwner(IntakeOwner, Protocol):
    """Part of a topic that its intake uses, beside that of an `IntakeOwner`."""

    closed: bool
    lead: Lead

    @property
    def is_heard(self) -> bool:
        """Whether a subscription is to get new messages."""

    def spares_disk(self) -> bool:
        """Return whether what laggards have yet to read must do with memory."""

    def unheard(self, messages: list[Message]) -> None:
        """Drop messages that have no subscriber."""


class TopicIntake(Intake):
    """Limits of one topic.

    Attributes:
        lead: charged with the messages that no subscriber has been handed yet.
        follows_fastest: whether senders wait for the foremost subscriber there.
    """

    __slots__ = ("_lead_window", "_topic", "follows_fastest", "lead")

    def __init__(
        self,
        topic: TopicIntakeOwner,
        resource: FlowResource,
        policy: QueuePolicy,
        environment: QueueEnvironment,
        action: FullAction,
        residency: ResidencyLimiter | None,
        *,
        priority: int,
    ) -> None:
        """`resource`: the topic as a place on the flow map."""
        super().__init__(topic, resource, policy, environment, action, residency, priority=priority)
        self._topic = topic
        self.follows_fastest = action.drops_oldest
        self._lead_window = window(
            policy.count_max,
            min(policy.lead_bytes, policy.limit_bytes),
            clock=environment.clock,
            label="lead over the fastest subscriber",
        )
        self.lead: FlowController[Run] = FlowController(
            resource,
            Flow(f"{topic.name} (lead)"),
            self._lead_window,
            accept=self._accept_lead,
            schedule=environment.resume,
            clock=environment.clock,
            counts_memory=False,  # the same messages are charged to the other controller
        )

    def follow(self, policy: QueuePolicy, residency_limits: ResidencyLimits) -> None:
        super().follow(policy, residency_limits)
        resize_window(self._lead_window, policy.count_max, min(policy.lead_bytes, policy.limit_bytes))
        self._lead_window.resume_below_capacity()
        self.lead.poll()

    def add(self, messages: list[Message], wire_bytes: int, source: SourceController | None) -> None:
        topic = self._topic
        if topic.observer is not None:
            topic.observer.origin = source
        if not topic.is_heard and not topic.closed:
            topic.unheard(messages)
        elif self.follows_fastest:
            charge_bytes = wire_bytes + len(messages) * MESSAGE_OVERHEAD_BYTES
            self.lead.add(Run(messages, charge_bytes), len(messages), charge_bytes, source)
        else:
            super().add(messages, wire_bytes, source)

    def offer(self, messages: list[Message], wire_bytes: int, source: SourceController) -> bool:
        topic = self._topic
        if topic.observer is not None:
            topic.observer.origin = source
        if not topic.is_heard and not topic.closed:
            topic.unheard(messages)
            return True
        if not self.follows_fastest:
            return super().offer(messages, wire_bytes, source)
        if topic.keeps and not self._passes_store(messages, source):
            return False
        charge_bytes = wire_bytes + len(messages) * MESSAGE_OVERHEAD_BYTES
        if self._budget is not None and self._budget.short:
            self._ask_for_memory(charge_bytes)
        if self.residency is not None and not self.controller.accepts(source):
            self.controller.wait_in_line(source)  # until the disk has taken something
            return False
        run = Run(messages, charge_bytes)
        if topic.lead.is_led or topic.closed:
            return self.lead.offer(run, len(messages), charge_bytes, source)
        self._take_in(run)
        topic.lead.position = topic.elements.next_sequence
        return True

    def take_together(self, runs: SequenceOf[Run], source: SourceController) -> None:
        topic = self._topic
        if not self.follows_fastest and topic.is_heard:
            super().take_together(runs, source)
            return
        for run in runs:
            if topic.observer is not None:
                topic.observer.origin = source
            if not topic.is_heard:
                topic.unheard(run.messages)
            elif topic.lead.is_led:
                self.lead.charge(len(run.messages), run.charge_bytes, source)
                self._accept_lead(run)
            else:
                self._take_in(run)
                topic.lead.position = topic.elements.next_sequence

    def fits(self, count: int, wire_bytes: int) -> bool:
        if not self._topic.is_heard:
            return True
        if not self.follows_fastest:
            return super().fits(count, wire_bytes)
        return self.lead.accepting and (self.residency is None or self.controller.accepting)

    @property
    def entrances(self) -> tuple[FlowController[Run], ...]:
        return (self.controller, self.lead)

    def drains(self) -> bool:
        return not self._topic.is_heard or super().drains()

    def overhang(self, count: int, charge_bytes: int) -> tuple[int, int]:
        residency, policy = self.residency, self.policy
        if residency is None:
            return super().overhang(count, charge_bytes)
        count += self.promised_count
        charge_bytes += self.promised_bytes
        over_count = 0 if policy.count_max is None else residency.total_count + count - policy.count_max
        if not self.may_page_out:
            return over_count, residency.used_bytes + charge_bytes - min(policy.limit_bytes, self.memory_limit_bytes)
        if self._topic.spares_disk():
            return over_count, residency.used_bytes + charge_bytes - int(self.memory_limit_bytes * SPARING_SHARE)
        return over_count, residency.total_bytes + charge_bytes - self.bytes_max

    @property
    def bytes_max(self) -> int:
        bytes_max = super().bytes_max
        return self.policy.memory_bytes * LAG_FACTOR if bytes_max is None else bytes_max

    def _shut_gate(self, source: SourceController) -> FlowController[Run] | None:
        topic = self._topic
        if not topic.is_heard:
            return None
        gate = super()._shut_gate(source)
        if gate is None and self.follows_fastest and topic.lead.is_led and not self.lead.accepts(source):
            return self.lead
        return gate

    def _accept_lead(self, run: Run) -> None:
        """Accept a run that is charged to the lead, unless the last subscriber has left while the run waited."""
        if self._topic.is_heard:
            self._take_in(run)
        else:
            self._topic.unheard(run.messages)
            self.lead.release(len(run.messages), run.charge_bytes)

    def _take_in(self, run: Run) -> None:
        count = len(run.messages)
        over_count, over_bytes = self.overhang(count, run.charge_bytes)
        if over_count > 0 or over_bytes > 0:
            self._topic.make_room(over_count, over_bytes)
        self.controller.charge(count, run.charge_bytes, None)
        self._topic.accept_run(run)
