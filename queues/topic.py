"""Topics: every subscriber gets every message, and all of them read one copy.

Each subscriber is a cursor over the same elements; an element leaves when the last cursor has passed it. Rendering is
shared, too: cursors at the same position get the same slice.

Pacing (policy `drop_oldest`, the default): senders are paced by the *fastest* subscriber, never by a slow one. The
`lead` controller holds the messages that no subscriber has been handed yet. A subscriber that lags by more than the
topic's memory loses the oldest messages, gets their number with its next MESSAGE, and does not affect others. With
policy `block` senders wait for the slowest instead; `drop_newest` and `reject` drop or refuse new messages as soon as
the slowest has the memory filled. Without subscribers a message is dropped before it is stored (seed 004: discard
early).

Expiry. An expired message that no subscriber holds is removed by name, wherever the cursors are, so that expired
messages do not take up room behind a slow subscriber. A message that a subscriber holds at its date is *overdue*
(overdue.py). `expired_count` counts a message once when it leaves that way, and each time that a subscriber passes over
an overdue one.

Memory. With a store, messages that only slow subscribers have yet to read go to disk beyond half of the topic's memory,
and the topic may hold `bytes_max` (by default LAG_FACTOR times its memory) before a slow subscriber loses any.

Durable subscriptions (readers.py) are cursors that stay when their consumer goes. While there are any, persistent
messages are stored. Messages that a durable one has yet to read are not dropped unless the policy sets `drop_oldest`
explicitly: at the quota senders wait. The lead is measured against a *leading* subscriber, which has caught up since it
was attached: a subscriber that reads an old backlog does not block senders, and with none connected only the quota
does.

Parts: `FanOut` (the strategy: who is served), `Lead`, `Laggards`, `Readers` (durable subscriptions), `RefusalTable`,
`Overdue`, `BlockReaders` (blocks read from the disk), `Skipping` and `Pinned` (selectors), `Waking`. Work that asks all
subscribers is one of its `Chores`.

Invariants: an element is in the topic only while some cursor has not passed it, and is charged to `controller`. Every
overdue element is held by a subscriber, or withdrawn.

Bound: the policy's memory plus one run per source, since nothing beyond the lead position is ever dropped; and a 32nd
of it while room is made by more than DROP_COUNT subscribers, who are moved on in steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from typing import Final, Unpack

from ..flow import ResidencyLimiter
from ..flow.kinds import ResourceKind
from .block_readers import BlockReaders
from .chores import Chores
from .cursored import BLOCK_BITS, BLOCK_SIZE
from .cursors import TrackingCursor
from .durables import DurableReader
from .environment import QueueEnvironment
from .expiry import EXPIRE_COUNT
from .fan_out import FanOut
from .full_actions import FullAction
from .intake import ResidencyLimits, Run
from .lag import Laggards
from .lead import Lead
from .message import Message, wire_bytes_of
from .observer import Fate
from .overdue import Overdue
from .pinned import Pinned
from .policy import MIB, QueuePolicy
from .queue import MessageQueue, QueueOptions
from .readers import Beginning, Readers
from .refusals import RefusalTable
from .skipping import Skipping
from .storage import QueueStorage, Restored
from .subscription import Subscription
from .topic_intake import TopicIntake
from .waking import Waking

EXPIRE_LOOKS: Final = 16_384
"""Looks at expired elements, one per reader, done at once: about two milliseconds."""


class Topic(MessageQueue):
    """Many tracking cursors over one sequence."""

    full_default = "drop_oldest"
    keeps_persistent = False
    intake: TopicIntake
    distribution: FanOut

    def __init__(
        self, name: str, policy: QueuePolicy, environment: QueueEnvironment, **options: Unpack[QueueOptions]
    ) -> None:
        super().__init__(name, policy, environment, kind=ResourceKind.TOPIC, **options)
        self.unheard_count = 0
        """Messages that came while there was no subscription."""
        by_id: dict[int, DurableReader] = {}
        self.chores = Chores(self.context)
        self.lead = Lead(self, self.intake.lead, self.chores, follows_fastest=self.intake.follows_fastest)
        self.overdue = Overdue(self, environment)
        self.waking = Waking(self, by_id, self.chores)
        self.readers = Readers(self, by_id, Beginning(self, self.overdue), self.waking, environment)
        self.refusals = RefusalTable(self, self.readers, self.overdue, self.waking, environment)
        self.blocks = BlockReaders(self, self.lead, self.waking, self.chores)
        self.pinned = Pinned(self, self.readers, self.overdue, self.chores)
        self.skipping = Skipping(self, self.readers, self.pinned, self.chores)
        self.distribution = FanOut(
            self,
            self.chores,
            self.lead,
            self.waking,
            self.readers,
            self.refusals,
            self.blocks,
            self.pinned,
            self.skipping,
        )
        self._distribute_by(self.distribution)
        self.laggards = Laggards(
            self,
            self.intake,
            self.chores,
            self.lead,
            self.readers,
            self.refusals,
            self.overdue,
            self.pinned,
            self.distribution,
        )

    def _make_intake(self, action: FullAction, residency: ResidencyLimiter | None) -> TopicIntake:
        return TopicIntake(self, self, self.policy, self.environment, action, residency, priority=self.priority)

    def _residency_limits(self, action: FullAction) -> ResidencyLimits:
        policy = self.policy
        # Room is made within the quotas; beyond them there is only what durable subscriptions hold back.
        # Without paging, memory is such a quota, too.
        beside_bytes = policy.memory_bytes // 16 + MIB if policy.paging == "throttle" and action.drops_oldest else 0
        return (
            policy.memory_bytes + beside_bytes,
            None if policy.count_max is None else policy.count_max + policy.count_max // 16 + BLOCK_SIZE,
            None if policy.bytes_max is None else policy.bytes_max + policy.bytes_max // 16 + MIB,
        )

    def follow(self, policy: QueuePolicy) -> None:
        super().follow(policy)
        self.laggards.follow(policy)

    # ------------------------------------------------------------------ in

    @property
    def is_heard(self) -> bool:
        """Whether a subscription is to get new messages: one that is attached or being attached, or a durable one."""
        return bool(self.subscriptions or self.readers.by_id or self.readers.beginning.cursor is not None)

    @property
    def discards(self) -> bool:
        """Whether a message that came now would be counted as unheard, and nothing else would happen but that the
        observer is told: no subscription is to get it.
        """
        return not (self.is_heard or self.closed or self.keeps)

    def accept_run(self, run: Run) -> None:
        if self.is_heard:
            super().accept_run(run)
        else:  # it waited until the last subscriber had left
            self.unheard(run.messages)
            self.controller.release(len(run.messages), run.charge_bytes)

    def unheard(self, messages: list[Message]) -> None:
        """Drop messages that have no subscriber."""
        self.unheard_count += len(messages)
        if self.observer is not None:
            self.observer.outside(Fate.DROPPED, messages, "no subscribers")

    def incoming_dropped(self, count: int) -> None:
        self.distribution.incoming_dropped(count)
        self.readers.beginning.missed_count += count

    def make_room(self, over_count: int, over_bytes: int) -> None:
        self.laggards.make_room(over_count, over_bytes)

    # ------------------------------------------------------------------ subscribers

    def hold_beginning(self) -> None:
        self.readers.beginning.hold()

    def release_beginning(self) -> None:
        self.readers.beginning.release()

    def _subscribed(self, subscription: Subscription, *, from_beginning: bool) -> None:
        beginning, durable_id = self.readers.beginning, subscription.durable_id
        if durable_id is not None:
            reader = self.readers.joined(subscription, durable_id)
            self.skipping.forget(reader)
            subscription.cursor = reader.cursor
        elif from_beginning and beginning.cursor is not None:
            subscription.cursor = TrackingCursor(self.elements, beginning.cursor.front)
            subscription.dropped_unreported_count = beginning.missed_count
        else:
            subscription.cursor = TrackingCursor(self.elements, self.elements.next_sequence)
        super()._subscribed(subscription, from_beginning=from_beginning)

    def unsubscribed(self, subscription: Subscription) -> None:
        super().unsubscribed(subscription)
        self.overdue.all_released()

    def remove_reader(self, durable_id: int) -> None:
        """Remove a durable subscription, with what only it needs. No consumer is attached to it."""
        reader = self.readers.remove(durable_id)
        if reader is not None:
            self.skipping.forget(reader)
            self.refusals.close_cursor(reader.cursor)
            self.overdue.all_released()

    def settled(self, subscription: Subscription, sequences: SequenceOf[int], wire_bytes: int) -> None:
        if self.closed:
            return
        reader = None
        if subscription.durable_id is not None:
            reader = self.readers.by_id.get(subscription.durable_id)
        if subscription.closed:
            if not subscription.shares:
                if reader is not None:
                    self._settled_late(reader, sequences)
                return
            if reader is None:  # the durable subscription was removed
                self.unsettled_count -= len(sequences)
                return
        self.unsettled_count -= len(sequences)
        self.settled_count += len(sequences)
        self._last_active_seconds = self.environment.clock()
        assert subscription.cursor is not None
        self.free(subscription.cursor.settle(sequences))
        if reader is not None:
            self.readers.moved(reader)
        if self.overdue.sequences:
            self.overdue.released(sequences)

    def _settled_late(self, reader: DurableReader, sequences: SequenceOf[int]) -> None:
        """Settle elements in a transaction that was carried out after its consumer had left: all of them count, so the
        durable subscription has settled them, even if another consumer holds them again.
        """
        cursor, is_alive = reader.cursor, self.elements.is_alive
        left = [sequence for sequence in sequences if is_alive(sequence) and cursor.needs(sequence)]
        if left:
            held = cursor.held_of(left)
            if held:
                reader.settled_late = held | (reader.settled_late or set())
            if (withdrawn := cursor.withdrawn.intersection(left)) and (refusals := self.refusals.get(cursor)):
                refusals.forget(withdrawn)
            self.settled_count += len(left)
            self.free(cursor.settle(left))
            self.readers.moved(reader)

    def requeued(
        self,
        subscription: Subscription,
        sequences: SequenceOf[int],
        *,
        attempted: bool,
        charged: SequenceOf[int] | None = None,
        for_good: bool = False,
    ) -> None:
        if self.closed or (subscription.closed and not subscription.shares):
            return
        self.unsettled_count -= len(sequences)
        reader = None
        if subscription.durable_id is not None:
            reader = self.readers.by_id.get(subscription.durable_id)
            if reader is None:
                return  # the durable subscription was removed
        self.returned_count += len(sequences)
        cursor = subscription.cursor
        assert cursor is not None
        if reader is not None and (late := reader.settled_late):
            charged = None if charged is None else [sequence for sequence in charged if sequence not in late]
            sequences = [sequence for sequence in sequences if sequence not in late]
        missed_count = cursor.requeue(sequences, attempted=attempted, charged=charged)
        self.dropped_count += missed_count
        subscription.dropped_unreported_count += missed_count
        if attempted:
            if reader is not None:
                self.readers.moved(reader)
            self.refusals.refuse(subscription, sequences if charged is None else charged, for_good=for_good)
        self.overdue.requeued(sequences)
        self.waking.wake(subscription)

    # ------------------------------------------------------------------ expiry

    @property
    def expire_count(self) -> int:
        readers_count = len(self.subscriptions) + len(self.readers.by_id)
        return min(EXPIRE_COUNT, 1 + EXPIRE_LOOKS // (1 + readers_count))

    def expire(self, sequences: SequenceOf[int]) -> None:
        """O(sequences + subscriptions), and O(sequences) for each subscription that is among them."""
        elements, overdue = self.elements, self.overdue.sequences
        overdue.difference_update(sequences)
        if elements.outside_count and self.pager is not None:
            for index in {sequence >> BLOCK_BITS for sequence in sequences}:
                block = elements.block(index)
                if block is not None and block.outside is not None:
                    block.looked_ms = self.environment.now_ms()  # elements held then are checked when they come back
                    self.pager.want(index)
        sequences = [sequence for sequence in sequences if elements.get(sequence) is not None]
        if not sequences:
            return
        first, end = sequences[0], sequences[-1] + 1
        cursors = [s.cursor for s in self.subscriptions.values() if s.cursor is not None and s.durable_id is None]
        behind = [cursor for cursor in (*cursors, *self.readers.cursors()) if cursor.front < end]
        dead = set(sequences)
        for cursor in behind:
            if cursor.position > first:
                dead -= cursor.held_of(dead) | cursor.withdrawn
        overdue.update([sequence for sequence in sequences if sequence not in dead])
        if not dead:
            return
        sequences = sorted(dead)
        messages = [message for sequence in sequences if (message := elements.get(sequence)) is not None]
        self.distribution.dropped(messages)
        self.expired_count += len(messages)
        if self.observer is not None:
            self.observer.left(Fate.EXPIRED, sequences, "")
        elements.remove(sequences, unread=True)
        if self.storage is not None:
            self.storage.settled(sequences)
        gone_count, gone_bytes = len(messages), wire_bytes_of(messages)
        for cursor in behind:
            passed_count, passed_bytes = cursor.pass_over(sequences)
            gone_count += passed_count
            gone_bytes += passed_bytes
        self.lead.removed(sequences, messages)
        self.free((gone_count, gone_bytes))

    # ------------------------------------------------------------------ memory and store

    def spares_disk(self) -> bool:
        return self.laggards.spare_disk()

    def paged_out(self, indices: list[int]) -> None:
        super().paged_out(indices)
        self.laggards.paged_out(indices)

    def paged_in(self, index: int) -> None:
        super().paged_in(index)
        self.blocks.paged_in(index)
        self.refusals.paged_in()

    def open_storage(self) -> QueueStorage:
        if self.storage is not None:
            return self.storage
        storage = super().open_storage()
        self.elements.on_trim = storage.trimmed
        self.readers.take_leases(storage)
        return storage

    def open_stored(self) -> None:
        """Take over the messages of an earlier run; those that no durable subscription needs are removed."""
        super().open_stored()
        self.readers.trim()

    def restored(self, found: Restored) -> None:
        super().restored(found)
        self.readers.restored(found)
        self.lead.position = self.elements.next_sequence

    def reader_states(self) -> Mapping[int, DurableReader]:
        return self.readers.by_id

    def reader_noted(self, reader: DurableReader) -> None:
        self.readers.noted(reader)

    def make_readers(self, count_max: int) -> int:
        return self.readers.make(count_max)

    def may_go_on(self) -> None:
        self.readers.all_noted()

    # ------------------------------------------------------------------ end, and what people see

    def close_gates(self) -> int:
        self.laggards.close()
        self.refusals.close()
        self.overdue.close()
        waiting_count = super().close_gates()
        self.lead.release_all()
        return waiting_count

    @property
    def is_empty(self) -> bool:
        return super().is_empty and not self.intake.lead.overflow_count and not self.readers.are_lasting

    def facts(self) -> Mapping[str, object]:
        facts = dict(super().facts())
        if self.readers.count:
            facts["durable subscriptions"] = self.readers.count
        elif not self.is_heard:
            facts["consumers"] = "none: messages are dropped unheard"
        return facts | self.refusals.facts()
