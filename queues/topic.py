"""A topic: every subscriber gets every message, and all of them read one copy.

Each subscriber is a cursor over the same elements; an element goes when the last cursor has passed it. Rendering is shared too: cursors at
the same position get the same slice.

Who waits for whom: senders are paced by the *fastest* subscriber (the `lead` controller: bytes ahead of the foremost cursor), never by a
slow one. A subscriber that lags by more than the topic's memory behind loses the oldest messages, is told how many with its next MESSAGE, and hurts
nobody. With policy `block` senders wait for the slowest instead. Without subscribers a message is dropped before it is stored (seed 004: discard early).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence as SequenceOf
from typing import Final

from flow import Flow, FlowController, SizeLimiter, SourceController
from queues.cursored import Cursor, Slice
from queues.message import MESSAGE_OVERHEAD_BYTES, Message, size_of
from queues.policy import QueuePolicy
from queues.queue import Expiry, MessageQueue, QueueEnvironment, Run
from queues.subscription import Subscription

FAN_OUT_COUNT: Final = 512
"""Messages per hand-over. Constant, so that cursors stay at common positions and share slices."""


class Topic(MessageQueue):
    """Many tracking cursors over one sequence."""

    kind_label = "topic"
    full_default = "drop_oldest"

    def __init__(self, name: str, policy: QueuePolicy, environment: QueueEnvironment, *, priority: int = 4) -> None:
        super().__init__(name, policy, environment, priority=priority)
        self.unheard_count = 0
        """Messages that nobody was there to hear."""
        self._lead_position = 0
        self._caught_up: list[Subscription] = []
        self.lead: FlowController[Run] = FlowController(
            self,
            Flow(f"{name} (lead)"),
            SizeLimiter(min(policy.lead_bytes, policy.limit_bytes), clock=environment.clock),
            accept=self._accept_lead,
            schedule=environment.resume,
            clock=environment.clock,
        )

    # ------------------------------------------------------------------ in

    def add(self, messages: list[Message], wire_bytes: int, source: SourceController | None) -> None:
        if not self.subscriptions:
            self.unheard_count += len(messages)
        elif self._full == "drop_oldest":
            charge_bytes = wire_bytes + len(messages) * MESSAGE_OVERHEAD_BYTES
            self.lead.add(Run(messages, charge_bytes), len(messages), charge_bytes, source)
        else:
            super().add(messages, wire_bytes, source)

    def _accept_lead(self, run: Run) -> None:
        if not self.subscriptions:
            self.unheard_count += len(run.messages)
            self.lead.release(len(run.messages), run.charge_bytes)
            return
        added_count = self.added_count
        self._add_without_blocking(run.messages, run.charge_bytes, None)
        if self.added_count - added_count < len(run.messages):
            # The run alone was larger than the topic's memory: part of it was dropped and will never be read.
            kept = self.added_count - added_count
            kept_bytes = size_of(run.messages[len(run.messages) - kept :])
            self.lead.release(len(run.messages) - kept, run.charge_bytes - kept_bytes)

    def _arrived(self, messages: list[Message]) -> None:
        if self._caught_up:
            self._ring.extend(self._caught_up)
            self._caught_up.clear()

    def _remember_expiry(self, expiry: Expiry) -> None:
        """Nothing to remember: each cursor skips what is past its date when it gets there."""

    def _expire(self, sequences: range) -> None:
        raise AssertionError("topics do not expire by timer")

    # ------------------------------------------------------------------ subscribers

    def _subscribed(self, subscription: Subscription) -> None:
        subscription.cursor = Cursor(self.elements, self.elements.next_sequence, tracking=True)
        self._release_lead()  # the newcomer stands at the tail: it is the foremost now

    def _release_lead(self) -> None:
        """No element lies ahead of the foremost cursor."""
        self._lead_position = self.elements.next_sequence
        limiter = self.lead.limiter
        if limiter.used_count:
            self.lead.release(limiter.used_count, limiter.used_bytes)

    def _detached(self, subscription: Subscription) -> None:
        if not subscription.in_ring or subscription in self._caught_up:
            self._caught_up = [other for other in self._caught_up if other is not subscription]
        self.unsettled_count -= subscription.unsettled_count
        subscription.unsettled_count = 0
        assert subscription.cursor is not None
        self._gone(subscription.cursor.close())
        if not self.subscriptions:
            self._release_lead()

    # ------------------------------------------------------------------ out

    def dispatch(self, budget: int) -> bool:
        ring = self._ring
        while ring:
            subscription = ring[0]
            if subscription.closed or subscription.source.blocked:
                ring.popleft()
                subscription.in_ring = False
                continue
            if budget <= 0:
                return True
            cursor = subscription.cursor
            assert cursor is not None
            room_count, room_bytes = subscription.consumer.room(express=self.express)
            part = self._take(subscription, cursor, min(FAN_OUT_COUNT, room_count), room_bytes)
            if part is None:
                ring.popleft()
                self._caught_up.append(subscription)
                continue
            budget -= len(part.messages)
            ring.rotate(-1)
            count = len(part.messages)
            self.unsettled_count += count
            subscription.unsettled_count += count
            subscription.delivered_count += count
            dropped_count = subscription.dropped_unreported_count
            subscription.dropped_unreported_count = 0
            subscription.consumer.deliver(subscription, part, dropped_count=dropped_count)
            if part.end > self._lead_position:
                self._advance_lead(part)
        self.elements.forget_shared_slice()
        return False

    def _take(self, subscription: Subscription, cursor: Cursor, count_max: int, bytes_max: int) -> Slice | None:
        while True:
            part = cursor.take(count_max, bytes_max)
            if part is None or not self._expiring:
                return part
            expired = [
                sequence
                for sequence, message in zip(part.sequences, part.messages, strict=True)
                if self._is_expired(message)
            ]
            if not expired:
                return part
            self.expired_count += len(expired)
            if part.end > self._lead_position:
                self._advance_lead(part)
            rest = part.without(expired)
            self._gone(cursor.settle(expired))
            if rest is not None:
                return rest

    def _advance_lead(self, part: Slice) -> None:
        """The foremost cursor moved on: senders may follow."""
        if part.first >= self._lead_position:
            count, charge_bytes = len(part.messages), part.charge_bytes
        else:
            fresh = [m for s, m in zip(part.sequences, part.messages, strict=True) if s >= self._lead_position]
            count, charge_bytes = len(fresh), size_of(fresh)
        self._lead_position = part.end
        if self._full == "drop_oldest":
            self.lead.release(count, charge_bytes)

    def settled(self, subscription: Subscription, sequences: SequenceOf[int], wire_bytes: int) -> None:
        if subscription.closed or self.closed:
            return
        self.unsettled_count -= len(sequences)
        self.settled_count += len(sequences)
        self._last_active_seconds = self._environment.clock()
        assert subscription.cursor is not None
        self._gone(subscription.cursor.settle(sequences))

    def given_back(self, subscription: Subscription, sequences: SequenceOf[int], *, attempted: bool) -> None:
        if subscription.closed or self.closed:
            return
        self.unsettled_count -= len(sequences)
        self.returned_count += len(sequences)
        assert subscription.cursor is not None
        subscription.cursor.give_back(sequences, attempted=attempted)
        if subscription in self._caught_up:
            self._caught_up.remove(subscription)
            self._ring.append(subscription)
        self.context.request_dispatch()

    def _gone(self, messages: list[Message]) -> None:
        """These left the elements: nobody needs them any more."""
        if messages:
            self.controller.release(len(messages), size_of(messages))

    def _make_room(self, over_count: int, over_bytes: int) -> None:
        """Move every cursor that lags past the oldest elements. Drops a little more than asked, so that it is not done for each run."""
        over_bytes = max(over_bytes, self.policy.limit_bytes // 16)
        position = self.elements.first_sequence
        freed_count = freed_bytes = 0
        floor = position
        while (freed_bytes < over_bytes or freed_count < over_count) and position < self._lead_position:
            part, position = self.elements.read(position, FAN_OUT_COUNT, over_bytes)
            if part is None:
                break
            floor = part.end
            freed_count += len(part.messages)
            freed_bytes += part.charge_bytes
        floor = min(floor, self._lead_position)
        gone: list[Message] = []
        for subscription in self.subscriptions.values():
            cursor = subscription.cursor
            assert cursor is not None
            if cursor.front < floor:
                missed_count, left = cursor.skip_to(floor)
                gone += left
                subscription.dropped_count += missed_count
                subscription.dropped_unreported_count += missed_count
                self.dropped_count += missed_count
        self._gone(gone)

    # ------------------------------------------------------------------ end, and what people see

    def close_queue(self, reason: str) -> list[Message]:
        was_closed = self.closed
        gone = super().close_queue(reason)
        if not was_closed:
            for run in self.lead.close():
                gone.extend(run.messages)
        return gone

    @property
    def is_empty(self) -> bool:
        return super().is_empty and not self.lead.overflow_count

    def facts(self) -> Mapping[str, object]:
        facts = dict(super().facts())
        if not self.subscriptions:
            facts["consumers"] = "none: messages are dropped unheard"
        return facts
