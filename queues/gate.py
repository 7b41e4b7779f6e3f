"""The gate of a queue: its limits, and what happens to what comes in when they are reached.

`add` takes a *run*: messages that share one envelope, from one source, with their wire bytes. Under policy `block` the
run goes through the queue's FlowController: while the limiter is throttled it waits in the controller's overflow list
and the source is blocked. The dropping policies never block (but for memory, while the disk takes what must leave it),
and `reject` raises QueueFullError, which costs its sender that frame and nobody else anything.

Before that a run may be held back by the store (it is persistent, and the disk is full or fails) or by the queue's pace
(pace.py).

Bound: the limiter's capacity, plus one run per source (a source is blocked by the first run that overfills).
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

import attrs

from ..flow import (
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
from .message import MESSAGE_OVERHEAD_BYTES, PRIORITY_DEFAULT, Message, size_of
from .pace import Pace
from .policy import QueuePolicy
from .storage import Shelf
from .witness import Fate, Witness


class QueueFullError(Exception):
    """The destination is full and its policy is `reject`. The queue is unchanged."""


@attrs.frozen
class Run:
    """Messages of one envelope on their way in, and what they are charged."""

    messages: list[Message]
    charge_bytes: int


class Gate(FlowResource):
    """The way in. Base of MessageQueue; not for direct use."""

    kind_label = "queue"
    upkeep_bytes = 6784
    """Empty, with its destination; a topic takes as much."""

    full_default = "block"
    keeps_persistent = True
    """Persistent messages outlive the broker, if it has a store."""

    can_page = True
    """It goes to disk when memory is short, if the broker has a store and the policy says so."""

    def __init__(
        self,
        name: str,
        policy: QueuePolicy,
        environment: QueueEnvironment,
        *,
        priority: int = PRIORITY_DEFAULT,
        destination: str | None = None,
        lasting: bool = True,
    ) -> None:
        """`destination`: its name without the priority, if that differs from `name`; `lasting` False: what is
        persistent is not kept beyond the broker's life, for it goes with a connection.
        """
        super().__init__(name, self.kind_label, environment.manager)
        self.name_on_disk = destination if destination is not None else name
        self.policy = policy
        self.priority = priority
        """Messages of raised priority may pass beyond a used-up prefetch."""
        self.elements = CursoredQueue()
        self.closed = False
        self.is_kept = False
        """It is closed, and what is stored of it stays for the next start."""
        self._environment = environment
        self.witness: Witness | None = None if environment.witness_of is None else environment.witness_of(self)
        """Is told what becomes of its messages."""
        self._full = self._full_action()
        self.rejects = self._full == "reject"
        """It may raise QueueFullError."""
        self.promised_count = self.promised_bytes = 0
        """Room that is promised to transactions (together.py)."""
        self._store = environment.store
        self._shelf: Shelf | None = None
        self._residency = self._make_residency()
        """Its limiter, if it pages."""
        self._may_keep = self._store is not None and lasting
        self.keeps = self._may_keep and self.keeps_persistent
        """Persistent messages are stored."""
        self.controller: FlowController[Run] = FlowController(
            self,
            Flow(name),
            self._limiter(),
            accept=self._accept_run,
            schedule=environment.resume,
            priority=priority,
            clock=environment.clock,
            yields=True,
        )
        self._budget = environment.manager.budget
        """The memory of the broker as a whole."""
        if (share := self.controller.limiter.share) is not None:
            share.on_press = self._give_way
            share.drains = self._drains
        self._pace: Pace | None = None
        if policy.disconnected_per_second is not None or policy.catch_up_share is not None:
            self._pace = Pace(
                self,
                disconnected_per_second=policy.disconnected_per_second,
                catch_up_share=policy.catch_up_share,
                clock=environment.clock,
                call_later=environment.scheduling.call_later,
            )
        self.settled_count = 0
        self.dropped_count = 0
        self.rejected_count = 0

    def _make_residency(self) -> ResidencyLimiter | None:
        policy = self.policy
        if self._store is None or not self.can_page:
            return None
        # Where the policy does not block, the gate looks after the quotas itself.
        blocks = self._full == "block"
        return ResidencyLimiter(
            policy.memory_bytes,
            count_max=policy.count_max if blocks else None,
            quota_bytes=policy.bytes_max if blocks else None,
            clock=self._environment.clock,
        )

    def _limiter(self) -> FlowLimiter:
        policy, clock = self.policy, self._environment.clock
        if self._residency is not None:
            return self._residency
        return WindowLimiter(
            policy.count_max,
            policy.limit_bytes,
            resume_count=None if policy.count_max is None else policy.count_max // 2,
            resume_bytes=policy.limit_bytes // 2,
            clock=clock,
            label="memory" if policy.limit_bytes == policy.memory_bytes else "quota",
            count_label="quota",
        )

    def _full_action(self) -> str:
        """What happens at the limit."""
        full = self.policy.full or self.full_default
        return self.full_default if full == "dead_letter" else full  # only what is consumed can give messages up

    # ------------------------------------------------------------------ in

    def add(self, messages: list[Message], wire_bytes: int, source: SourceController | None) -> None:
        """Take a run: at least one message, all of one envelope, `wire_bytes` in total. O(n).

        Policy `block`: may block `source`; never refuses. Raises QueueFullError (policy `reject`), queue unchanged, and
        FlowClosedError once the queue is closed: a source looks at `closed` before it goes on.
        """
        charge_bytes = wire_bytes + len(messages) * MESSAGE_OVERHEAD_BYTES
        if self.witness is not None:
            self.witness.origin = source
        if self._full == "block":
            self.controller.add(Run(messages, charge_bytes), len(messages), charge_bytes, source)
        else:
            self._add_without_blocking(messages, charge_bytes)

    def offer(self, messages: list[Message], wire_bytes: int, source: SourceController) -> bool:
        """Like `add`, but where `add` would let the run wait this refuses it (False). `source` is blocked alike."""
        charge_bytes = wire_bytes + len(messages) * MESSAGE_OVERHEAD_BYTES
        if self.keeps and not self._passes_store(messages, source):
            return False
        if self._pace is not None and not self._is_paced(len(messages), source):
            return False
        if self._budget is not None and self._budget.short:
            self._ask_for_memory(charge_bytes)
        if self.witness is not None:
            self.witness.origin = source
        if self._full == "block" or (self._residency is not None and not self.controller.accepts(source)):
            return self.controller.offer(Run(messages, charge_bytes), len(messages), charge_bytes, source)
        if self._full == "dead_letter" and self._waits_for_dead_letters(len(messages), wire_bytes, source):
            return False
        self._add_without_blocking(messages, charge_bytes)
        return True

    def takes_answer(self) -> bool:
        """It is empty, and only the broker's memory holds its senders back: the broker's own answers go in all the
        same. Who is to find out what takes the memory must be able to ask.
        """
        return self.controller.limiter.refused and not self.elements.live_count

    def _ask_for_memory(self, charge_bytes: int) -> None:
        """The broker's memory is short: so much that comes in is held back if there is no room for it."""
        share = self.controller.limiter.share
        if share is not None:
            if share.budget.full:
                share.ask(charge_bytes)
            if share.limiter.refused:
                self._give_way()

    def _give_way(self) -> None:
        """The broker's memory is short, and much of it is here: let go what can go."""
        if self._full == "drop_oldest" and not self._may_page_out:
            _over_count, over_bytes = self.overhang(0, 0)
            if over_bytes > 0:
                self._make_room(0, over_bytes)

    def _drains(self) -> bool:
        return self.is_consumed or self._may_page_out

    @property
    def _may_page_out(self) -> bool:
        return self._residency is not None and self.policy.paging != "throttle"

    @property
    def memory_limit_bytes(self) -> int:
        """What its messages may take of memory now: while the broker's is short, less than its policy says."""
        memory_bytes = self.policy.memory_bytes
        return memory_bytes if self._budget is None else min(memory_bytes, self._budget.allowance_bytes)

    def waits_on(self) -> Iterable[WaitEdge]:
        limiter = self.controller.limiter
        if limiter.refused and limiter.share is not None:
            budget = limiter.share.budget
            reason = f"{size_in_words(limiter.used_bytes)} here, {budget.words}"
            return (WaitEdge(budget, limiter.share.refused_since, reason, self.controller.flow),)
        return ()

    def _waits_for_dead_letters(self, count: int, wire_bytes: int, source: SourceController) -> bool:
        """Hook of the kinds: so much does not fit, and what is to make room is under way; `source` is blocked."""
        return False

    def must_wait(self, count: int, source: SourceController, *, persistent: bool) -> bool:
        """Whether runs that belong together (see together.py) are held back; then `source` is blocked."""
        if persistent and self.keeps and self._store is not None and not self._store.accepts(source):
            self._store.hold_back(source)
            return True
        if self._pace is not None and not self._is_paced(count, source):
            return True
        if self._budget is not None and self._budget.short:
            self._ask_for_memory(count * MESSAGE_OVERHEAD_BYTES)
        gate = self._shut_gate(source)
        if gate is not None:
            gate.wait_in_line(source)  # its place in the line
        return gate is not None

    def keep_turn(self, source: SourceController) -> None:
        """Runs that belong together come in by steps, and were not held back: until `source` ends its turn nobody else
        takes the room for them.
        """
        if self._full == "block":
            self.controller.keep_turn(source)

    def _shut_gate(self, source: SourceController) -> FlowController[Run] | None:
        """What holds this source back now."""
        if (self._full == "block" or self._residency is not None) and not self.controller.accepts(source):
            return self.controller
        return None

    def take_together(self, runs: SequenceOf[Run], source: SourceController) -> None:
        """Take all of these, over the limit if need be; policies that drop do what they say. Nobody is refused."""
        for run in runs:
            if self.witness is not None:
                self.witness.origin = source
            if self._full in ("block", "reject"):
                # What rejects does not hold its senders back.
                sender = source if self._full == "block" else None
                self.controller.charge(len(run.messages), run.charge_bytes, sender)
                self._accept_run(run)
            else:
                self._add_without_blocking(run.messages, run.charge_bytes)

    def _is_paced(self, count: int, source: SourceController) -> bool:
        """False: senders are to go slower; `source` is blocked."""
        pace = self._pace
        assert pace is not None
        if not pace.admits(
            source,
            is_consumed=self.is_consumed,
            has_backlog=self.elements.outside_count > 0,
            settled_count=self.settled_count,
        ):
            return False
        if self.controller.accepts(source):
            pace.took(count)
        return True

    def _passes_store(self, messages: list[Message], source: SourceController) -> bool:
        """False: these are persistent and the store takes nothing now; `source` is blocked."""
        store = self._store
        if store is None or not messages[0].head.persistent or store.accepts(source):
            return True
        store.hold_back(source)
        return False

    def fits(self, count: int, wire_bytes: int) -> bool:
        """Whether `add` would take a run of this size whole, at once, dropping and refusing nothing. O(1).

        A sender whose frames may have come apart differently asks first, and otherwise adds them one by one: what is
        refused is counted, and a run is refused whole.
        """
        if self._full == "block":
            return self.controller.accepting
        over_count, over_bytes = self.overhang(count, wire_bytes + count * MESSAGE_OVERHEAD_BYTES)
        return over_count <= 0 and over_bytes <= 0

    def _add_without_blocking(self, messages: list[Message], charge_bytes: int) -> None:
        limiter = self.controller.limiter
        over_count, over_bytes = self.overhang(len(messages), charge_bytes)
        if over_count > 0 or over_bytes > 0:
            if self._full == "reject":
                self.rejected_count += len(messages)
                raise QueueFullError(
                    f"{self.name} is full ({limiter.used_count} messages, {limiter.used_bytes} bytes) and refuses new "
                    "messages (policy reject): consume from it, or raise memory_bytes, count_max or bytes_max"
                )
            if self._full == "dead_letter":
                self._make_room(over_count, over_bytes)
                over_count = over_bytes = 0  # what could not go at once holds back the next ones
            elif self._full == "drop_oldest":
                if charge_bytes > self.policy.limit_bytes:
                    messages, charge_bytes = self._without_oversize(messages)
                    if not messages:
                        return
                    over_count, over_bytes = self.overhang(len(messages), charge_bytes)
                self._make_room(over_count, over_bytes)
                over_count, over_bytes = self.overhang(len(messages), charge_bytes)
            if over_count > 0 or over_bytes > 0:
                messages, charge_bytes = self._cut(messages)
                if not messages:
                    return
        self.controller.charge(len(messages), charge_bytes, None)
        self._accept_run(Run(messages, charge_bytes))

    @property
    def entrances(self) -> tuple[FlowController[Run], ...]:
        """Where its senders wait."""
        return (self.controller,)

    def _incoming_dropped(self, count: int) -> None:
        """Hook of the kinds: so many messages were dropped before they got in."""

    def overhang(self, count: int, charge_bytes: int) -> tuple[int, int]:
        """By how much this many more would go over the limits that the full policy is about; negative: they fit."""
        residency = self._residency
        count += self.promised_count
        charge_bytes += self.promised_bytes
        if residency is not None:
            count_max, bytes_max = self.policy.count_max, self.policy.bytes_max
            return (
                -sys.maxsize if count_max is None else residency.total_count + count - count_max,
                -sys.maxsize if bytes_max is None else residency.total_bytes + charge_bytes - bytes_max,
            )
        limiter = self.controller.limiter
        over_count = 0 if self.policy.count_max is None else limiter.used_count + count - self.policy.count_max
        limit_bytes = min(self.policy.limit_bytes, self.memory_limit_bytes)
        return over_count, limiter.used_bytes + charge_bytes - limit_bytes

    def _without_oversize(self, messages: list[Message]) -> tuple[list[Message], int]:
        """Drop those that would not fit even into an empty queue: no other message shall go for them in vain."""
        policy = self.policy
        limit_bytes = policy.limit_bytes if self._residency is None else policy.bytes_max or sys.maxsize
        fitting = [message for message in messages if message.size_bytes <= limit_bytes]
        self._count_dropped_incoming([message for message in messages if message.size_bytes > limit_bytes])
        return fitting, size_of(fitting)

    def _count_dropped_incoming(self, messages: SequenceOf[Message]) -> None:
        self.dropped_count += len(messages)
        self._incoming_dropped(len(messages))
        if self.witness is not None and messages:
            self.witness.outside(Fate.DROPPED, messages, "no room (full policy)")

    def _cut(self, messages: list[Message]) -> tuple[list[Message], int]:
        """As many as there is room for, the newest or (drop_newest) the oldest of them, and their charge."""
        newest_go = self._full == "drop_newest"
        count, charge_bytes = self._fitting(messages if newest_go else messages[::-1])
        missing_count = len(messages) - count
        self._count_dropped_incoming(messages[count:] if newest_go else messages[:missing_count])
        return (messages[:count] if newest_go else messages[missing_count:]), charge_bytes

    def _fitting(self, messages: list[Message]) -> tuple[int, int]:
        """How many of the first of these there is room for, and their charge."""
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

    @property
    @abstractmethod
    def is_consumed(self) -> bool:
        """Somebody takes from it."""

    @abstractmethod
    def _accept_run(self, run: Run) -> None:
        """This is charged: take it in."""

    @abstractmethod
    def _make_room(self, over_count: int, over_bytes: int) -> None:
        """Policy drop_oldest: let the oldest go that nobody holds, until this much is free or nothing is left."""
