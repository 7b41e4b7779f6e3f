"""Intake of a queue: its limits, and the fate of new messages when the limits are reached.

`add` takes a *run*: messages that share one envelope, from one source, with their wire bytes. Where senders wait at the
limit (full_actions.py) the run goes through the queue's FlowController: while the limiter is throttled it waits in the
controller's overflow list and the source is blocked. The other actions never block (except for memory, while blocks
that must leave it are written to the disk).

Before that a run may be held back by the store (it is persistent, and the disk is full or fails), by the queue's pace
(pace.py), or by the memory of the broker as a whole.

Bound: the limiter's capacity, plus one run per source (a source is blocked by the first run that overfills).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from typing import Any, Protocol

import attrs

from ..flow import (
    Clock,
    Flow,
    FlowController,
    FlowLimiter,
    FlowResource,
    ResidencyLimiter,
    SourceController,
    WaitEdge,
    WindowLimiter,
    size_in_words,
)
from .cursored import CursoredQueue
from .environment import QueueEnvironment
from .full_actions import FullAction
from .message import MESSAGE_OVERHEAD_BYTES, Message
from .observer import Fate, Observer
from .pace import Gate, Pace
from .policy import QueuePolicy

ResidencyLimits = tuple[int, int | None, int | None]
"""Bytes in memory; messages and bytes in memory and outside (None: no limit)."""


@attrs.frozen
class Run:
    """Run of messages of one envelope on their way in, with their charge."""

    messages: list[Message]
    charge_bytes: int


class IntakeOwner(Protocol):
    """Part of a queue that an intake uses."""

    name: str
    elements: CursoredQueue
    keeps: bool
    observer: Observer | None
    settled_count: int
    dropped_count: int
    rejected_count: int

    @property
    def is_consumed(self) -> bool:
        """Whether a consumer is attached."""

    def accept_run(self, run: Run) -> None:
        """Take in a run that is charged."""

    def make_room(self, over_count: int, over_bytes: int) -> None:
        """Let the oldest elements go that no consumer holds, until this much is free or nothing is left."""

    def waits_for_dead_letters(self, count: int, wire_bytes: int, source: SourceController) -> bool:
        """Return whether a run does not fit while the messages that leave for it are still on their way; `source` is
        blocked then.
        """

    def give_way(self) -> None:
        """Free what can be freed: the broker's memory is short, and much of it is here."""

    def incoming_dropped(self, count: int) -> None:
        """Note that messages were dropped before they got in."""


class Intake:
    """Limits of one queue, and the line of senders that wait at them.

    Attributes:
        queue: queue of the intake.
        action: action at the limit.
        controller: where senders wait.
        residency: its limiter, if the queue pages.
        promised_count, promised_bytes: room that is promised to transactions (atomic_offer.py).
        pace: blocks senders before they reach the limits; None: no pace.
    """

    __slots__ = (
        "_budget",
        "_store",
        "action",
        "controller",
        "pace",
        "policy",
        "promised_bytes",
        "promised_count",
        "queue",
        "residency",
    )

    def __init__(
        self,
        queue: IntakeOwner,
        resource: FlowResource,
        policy: QueuePolicy,
        environment: QueueEnvironment,
        action: FullAction,
        residency: ResidencyLimiter | None,
        *,
        priority: int,
    ) -> None:
        """`resource`: the queue as a place on the flow map."""
        self.queue = queue
        self.policy = policy
        self.action = action
        self.residency = residency
        self.promised_count = self.promised_bytes = 0
        self._store = environment.store
        self.controller: FlowController[Run] = FlowController(
            resource,
            Flow(resource.name),
            _window(policy, environment) if residency is None else residency,
            accept=queue.accept_run,
            schedule=environment.resume,
            priority=priority,
            clock=environment.clock,
            yields=True,
        )
        self._budget = environment.manager.budget
        if (share := self.controller.limiter.share) is not None:
            share.on_press = queue.give_way
            share.drains = self.drains
        self.pace: Gate | None = None
        if policy.disconnected_per_second is not None or policy.catch_up_share is not None:
            self.pace = Pace(
                resource,
                disconnected_per_second=policy.disconnected_per_second,
                catch_up_share=policy.catch_up_share,
                clock=environment.clock,
                call_later=environment.scheduling.call_later,
            )

    # ------------------------------------------------------------------ other limits

    def follow(self, policy: QueuePolicy, residency_limits: ResidencyLimits) -> None:
        """Follow other limits. Waiting senders resume, in their turns, where there is room now; what exceeds a lower
        limit stays.
        """
        self.policy = policy
        limiter = self.controller.limiter
        if self.residency is not None:
            memory_bytes, count_max, quota_bytes = residency_limits
            self.residency.resize(memory_bytes, count_max=count_max, quota_bytes=quota_bytes)
        elif isinstance(limiter, WindowLimiter):
            limiter.label = _bytes_label(policy)
            resize_window(limiter, policy.count_max, policy.limit_bytes)
        limiter.resume_below_capacity()
        self.controller.poll()

    def overhang_with(self, policy: QueuePolicy) -> tuple[int, int]:
        """Return by how many messages and bytes the present content would exceed the limits of another policy;
        negative: it fits.
        """
        present, self.policy = self.policy, policy
        try:
            return self.overhang(0, 0)
        finally:
            self.policy = present

    # ------------------------------------------------------------------ one run

    def add(self, messages: list[Message], wire_bytes: int, source: SourceController | None) -> None:
        """See `MessageQueue.add`."""
        charge_bytes = wire_bytes + len(messages) * MESSAGE_OVERHEAD_BYTES
        if self.queue.observer is not None:
            self.queue.observer.origin = source
        if self.action.holds_back:
            self.controller.add(Run(messages, charge_bytes), len(messages), charge_bytes, source)
        else:
            self._add_without_blocking(messages, charge_bytes)

    def offer(self, messages: list[Message], wire_bytes: int, source: SourceController) -> bool:
        """See `MessageQueue.offer`."""
        charge_bytes = wire_bytes + len(messages) * MESSAGE_OVERHEAD_BYTES
        queue = self.queue
        if queue.keeps and not self._passes_store(messages, source):
            return False
        if self.pace is not None and not self._is_paced(self.pace, len(messages), source):
            return False
        if self._budget is not None and self._budget.short:
            self._ask_for_memory(charge_bytes)
        if queue.observer is not None:
            queue.observer.origin = source
        action = self.action
        if action.holds_back or (self.residency is not None and not self.controller.accepts(source)):
            return self.controller.offer(Run(messages, charge_bytes), len(messages), charge_bytes, source)
        if action.must_wait(self, len(messages), wire_bytes, source):
            return False
        self._add_without_blocking(messages, charge_bytes)
        return True

    def fits(self, count: int, wire_bytes: int) -> bool:
        """See `MessageQueue.fits`."""
        if self.action.holds_back:
            return self.controller.accepting
        over_count, over_bytes = self.overhang(count, wire_bytes + count * MESSAGE_OVERHEAD_BYTES)
        return over_count <= 0 and over_bytes <= 0

    def _add_without_blocking(self, messages: list[Message], charge_bytes: int) -> None:
        over_count, over_bytes = self.overhang(len(messages), charge_bytes)
        if over_count > 0 or over_bytes > 0:
            messages, charge_bytes = self.action.fit(self, messages, charge_bytes)
            if not messages:
                return
        self.controller.charge(len(messages), charge_bytes, None)
        self.queue.accept_run(Run(messages, charge_bytes))

    def _passes_store(self, messages: list[Message], source: SourceController) -> bool:
        """Return whether the store accepts messages; False: they are persistent, the store accepts none now, and
        `source` is blocked.
        """
        store = self._store
        if store is None or not messages[0].head.persistent or store.accepts(source):
            return True
        store.hold_back(source)
        return False

    def _is_paced(self, pace: Gate, count: int, source: SourceController) -> bool:
        """False: senders are to go slower; `source` is blocked."""
        if not pace.admits(source, self.queue):
            return False
        if self.controller.accepts(source):
            pace.took(count)
        return True

    # ------------------------------------------------------------------ runs that belong together

    def must_wait(self, count: int, source: SourceController, *, persistent: bool) -> bool:
        """Return whether runs that belong together (see atomic_offer.py) are held back; then `source` is blocked."""
        if persistent and self.queue.keeps and self._store is not None and not self._store.accepts(source):
            self._store.hold_back(source)
            return True
        if self.pace is not None and not self._is_paced(self.pace, count, source):
            return True
        if self._budget is not None and self._budget.short:
            self._ask_for_memory(count * MESSAGE_OVERHEAD_BYTES)
        gate = self._shut_gate(source)
        if gate is not None:
            gate.wait_in_line(source)
        return gate is not None

    def keep_turn(self, source: SourceController) -> None:
        """Keep the room for `source` alone until it ends its turn: runs that belong together come in by steps."""
        if self.action.holds_back:
            self.controller.keep_turn(source)

    def take_together(self, runs: SequenceOf[Run], source: SourceController) -> None:
        """Add all runs, over the limit if need be; policies that drop do so. None is refused."""
        queue, action = self.queue, self.action
        for run in runs:
            if queue.observer is not None:
                queue.observer.origin = source
            if action.takes_together:
                self.controller.charge(len(run.messages), run.charge_bytes, source if action.holds_back else None)
                queue.accept_run(run)
            else:
                self._add_without_blocking(run.messages, run.charge_bytes)

    def charge_ahead(self, runs: SequenceOf[Run], source: SourceController) -> None:
        """Charge what `take_charged` takes later, of a queue whose senders wait. May block `source`."""
        for run in runs:
            self.controller.charge(len(run.messages), run.charge_bytes, source)

    def take_charged(self, runs: SequenceOf[Run], source: SourceController) -> None:
        """Take runs that are charged. A queue that was closed meanwhile takes none."""
        queue = self.queue
        for run in runs:
            if self.controller.closed:
                self.controller.release(len(run.messages), run.charge_bytes)
                continue
            if queue.observer is not None:
                queue.observer.origin = source
            queue.accept_run(run)

    def _shut_gate(self, source: SourceController) -> FlowController[Run] | None:
        """Return what holds this source back now."""
        if (self.action.holds_back or self.residency is not None) and not self.controller.accepts(source):
            return self.controller
        return None

    # ------------------------------------------------------------------ the broker's memory

    def takes_answer(self) -> bool:
        """Return whether only the broker's memory holds senders back, and the queue is empty: the broker's own answers
        go in then all the same. An operator who looks for the cause must be able to ask.
        """
        return self.controller.limiter.refused and not self.queue.elements.live_count

    def _ask_for_memory(self, charge_bytes: int) -> None:
        """Ask for memory while the broker's is short: new messages are blocked if there is no room."""
        share = self.controller.limiter.share
        if share is not None:
            if share.budget.full:
                share.ask(charge_bytes)
            if share.limiter.refused:
                self.queue.give_way()

    def drop_for_memory(self) -> None:
        """Drop messages over the present limit, if the oldest may be dropped: the broker's memory is short."""
        if self.action.drops_oldest and not self.may_page_out:
            _over_count, over_bytes = self.overhang(0, 0)
            if over_bytes > 0:
                self.queue.make_room(0, over_bytes)

    def drains(self) -> bool:
        """Return whether new messages will leave without help."""
        return self.queue.is_consumed or self.may_page_out

    @property
    def may_page_out(self) -> bool:
        """Whether messages in memory may be paged out."""
        return self.residency is not None and self.policy.paging != "throttle"

    @property
    def bytes_max(self) -> int | None:
        """Bytes that the queue may hold in memory and outside; None: no limit but the disk."""
        return self.policy.bytes_max if self.may_page_out else self.policy.limit_bytes

    @property
    def memory_limit_bytes(self) -> int:
        """Bytes of memory that the queue's messages may take now: less than the policy allows while the broker's memory
        is short.
        """
        memory_bytes = self.policy.memory_bytes
        return memory_bytes if self._budget is None else min(memory_bytes, self._budget.allowance_bytes)

    def waits_on(self) -> Iterable[WaitEdge]:
        """The broker's memory, if that holds senders back."""
        limiter = self.controller.limiter
        if limiter.refused and limiter.share is not None:
            budget = limiter.share.budget
            reason = f"{size_in_words(limiter.used_bytes)} here, {budget.words}"
            return (WaitEdge(budget, limiter.share.refused_since, reason, self.controller.flow),)
        return ()

    # ------------------------------------------------------------------ for the full actions

    @property
    def entrances(self) -> tuple[FlowController[Run], ...]:
        """Controllers at which senders wait."""
        return (self.controller,)

    @property
    def blocks_somebody(self) -> bool:
        """Senders wait before its limits, or before that."""
        return self.controller.blocks_somebody or (self.pace is not None and self.pace.blocks_somebody)

    def waiting_since(self) -> list[float]:
        """Return clock readings: since when each sender waits here."""
        paced = [] if self.pace is None else self.pace.waiting_since()
        return [since for gate in self.entrances for since in gate.waiting_since()] + paced

    def overhang(self, count: int, charge_bytes: int) -> tuple[int, int]:
        """Return by how much `count` messages of `charge_bytes` would exceed the limits of the full policy; negative:
        they fit.
        """
        residency, policy = self.residency, self.policy
        count += self.promised_count
        charge_bytes += self.promised_bytes
        if residency is not None:
            count_max, bytes_max = policy.count_max, policy.bytes_max
            return (
                -sys.maxsize if count_max is None else residency.total_count + count - count_max,
                -sys.maxsize if bytes_max is None else residency.total_bytes + charge_bytes - bytes_max,
            )
        limiter = self.controller.limiter
        over_count = 0 if policy.count_max is None else limiter.used_count + count - policy.count_max
        limit_bytes = min(policy.limit_bytes, self.memory_limit_bytes)
        return over_count, limiter.used_bytes + charge_bytes - limit_bytes

    def count_that_fits(self, messages: list[Message]) -> tuple[int, int]:
        """Return the number of messages at the beginning for which there is room, and their charge in bytes."""
        over_count, over_bytes = self.overhang(0, 0)
        count = charge_bytes = 0
        for message in messages:
            size_bytes = message.size_bytes
            if over_bytes + size_bytes > 0 or (self.policy.count_max is not None and over_count + 1 > 0):
                break
            over_count += 1
            over_bytes += size_bytes
            charge_bytes += size_bytes
            count += 1
        return count, charge_bytes

    def drop_incoming(self, messages: SequenceOf[Message]) -> None:
        """Count messages that are dropped before they got in."""
        queue = self.queue
        queue.dropped_count += len(messages)
        queue.incoming_dropped(len(messages))
        if queue.observer is not None and messages:
            queue.observer.outside(Fate.DROPPED, messages, "no room (full policy)")


def _window(policy: QueuePolicy, environment: QueueEnvironment) -> FlowLimiter:
    return window(
        policy.count_max,
        policy.limit_bytes,
        clock=environment.clock,
        label=_bytes_label(policy),
        count_label="quota",
    )


def _bytes_label(policy: QueuePolicy) -> str:
    return "memory" if policy.limit_bytes == policy.memory_bytes else "quota"


def window(count_max: int | None, bytes_max: int, *, clock: Clock, label: str, count_label: str = "") -> WindowLimiter:
    """Make a limiter in messages and bytes that resumes at half of both."""
    thresholds = _thresholds(count_max, bytes_max)
    return WindowLimiter(count_max, bytes_max, **thresholds, clock=clock, label=label, count_label=count_label)


def resize_window(limiter: WindowLimiter, count_max: int | None, bytes_max: int) -> None:
    """Set other limits, in messages and bytes, with half of both as thresholds."""
    limiter.resize(count_max, bytes_max, **_thresholds(count_max, bytes_max))


def _thresholds(count_max: int | None, bytes_max: int) -> dict[str, Any]:
    return {"resume_count": None if count_max is None else count_max // 2, "resume_bytes": bytes_max // 2}
