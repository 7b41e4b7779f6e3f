"""A topic: every subscriber gets every message, and all of them read one copy.

Each subscriber is a cursor over the same elements; an element goes when the last cursor has passed it. Rendering is
shared too: cursors at the same position get the same slice.

Who waits for whom (policy `drop_oldest`, the default): senders are paced by the *fastest* subscriber, never by a slow
one. The `lead` controller holds what no subscriber has been handed yet. A subscriber that lags by more than the topic's
memory behind loses the oldest messages, is told how many with its next MESSAGE, and hurts nobody. With policy `block`
senders wait for the slowest instead; `drop_newest` and `reject` do to incoming messages what they say as soon as the
slowest has the memory filled. Without subscribers a message is dropped before it is stored (seed 004: discard early).

Expiry. What is past its date and in nobody's hands leaves by name, wherever the cursors are, so that the dead do not
take up room behind a slow subscriber. What somebody holds at its date is *overdue*: looked at again whenever a holder
settles it, gives it back or leaves. `expired_count` counts a message once when it leaves that way, and each time that a
subscriber passes over an overdue one.

Memory. With a store, what laggards have yet to read goes to disk beyond half of the topic's memory, and the topic may
hold `bytes_max` (by default LAG_FACTOR times its memory) before a laggard loses anything.

Durable subscriptions (durables.py) are cursors that stay when their consumer goes. While there are any, persistent
messages are stored. What a durable one has yet to read is not dropped unless the policy says `drop_oldest` in so many
words: at the quota senders wait. The lead is that over a *leading* subscriber, one that has caught up since it came:
one that reads an old backlog holds nobody back, and with none connected nobody is held back but by the quota.

Invariants: an element is there only while some cursor has not passed it, and is charged to `controller`. An element at
or beyond `lead_position`, the foremost place that any cursor has reached, is charged to `lead` too. Everything in
`_overdue` is in somebody's hands, or withdrawn.

Bound: the policy's memory plus one run per source, since nothing beyond the lead position is ever dropped; and a 32nd
of it while room is made by more than DROP_COUNT subscribers, who are moved on in steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from itertools import islice
from typing import Final, Unpack

from ..flow import FlowController, ResidencyLimiter
from ..flow.bounds import UNBOUNDED
from .blocks import NOTHING_GONE, Gone
from .cursored import BLOCK_BITS, BLOCK_SIZE
from .cursors import TrackingCursor
from .durables import DurableReader
from .environment import QueueEnvironment
from .full_actions import FullAction
from .intake import Run
from .lag import DROP_COUNT, LagBudget, Laggards
from .message import MESSAGE_OVERHEAD_BYTES, Message, size_of, wire_bytes_of
from .observer import Fate
from .policy import MIB, QueuePolicy
from .queue import QueueOptions
from .readers import TOLD_AT_ONCE
from .selectors.selector import Selection
from .skipping import LOOK_COUNT_MIN, LOOKED_AT_ONCE, LOOKS_PER_COST, PASS_COUNT, SkippingQueue
from .slices import FAN_OUT_COUNT, VISIT_COST, Slice
from .storage import Restored
from .subscription import Subscription
from .topic_intake import TopicIntake

LED_AT_ONCE: Final = 512
"""Subscriptions that are looked at together for one that leads."""


class Topic(SkippingQueue):
    """Many tracking cursors over one sequence."""

    full_default = "drop_oldest"
    intake: TopicIntake

    def __init__(
        self, name: str, policy: QueuePolicy, environment: QueueEnvironment, **options: Unpack[QueueOptions]
    ) -> None:
        super().__init__(name, policy, environment, **options)
        self.is_led = False
        """A connected subscription has caught up since it came."""
        self._lead_unsure = False
        """One that led has left, and who leads now is to be looked for."""
        self._lead_search: Iterator[Subscription] | None = None
        """That is under way: those who have not been looked at yet."""
        self.drops_durables = policy.full == "drop_oldest"
        """Also what a durable subscription has yet to read is dropped for others."""
        self.unheard_count = 0
        """Messages that nobody was there to hear."""
        self._incoming_dropped_count = 0
        """What was dropped as it came in: all who were there have missed it."""
        self.lead_position = 0
        self._caught_up: dict[Subscription, None] = {}
        self._ahead_of = -1
        """The block behind which it was read ahead in this dispatch: once for all who stand there."""
        self.laggards = Laggards(self)
        self._selecting: dict[Subscription, None] = {}
        """Subscriptions with a selector: they pass what they don't take also without credit."""
        per_second = policy.lag_bytes_per_second
        self._lag_budget: LagBudget | None = None
        if self.intake.may_page_out and self.intake.follows_fastest and per_second is not None:
            self._lag_budget = LagBudget(per_second, policy.memory_bytes, environment.clock)
        self.lead: FlowController[Run] = self.intake.lead

    def _make_intake(self, action: FullAction, residency: ResidencyLimiter | None) -> TopicIntake:
        return TopicIntake(self, self.policy, self.environment, action, residency, priority=self.priority)

    # ------------------------------------------------------------------ in

    @property
    def is_heard(self) -> bool:
        """Somebody is to get what comes in: who subscribes, who is attached in steps, or a durable subscription."""
        return bool(self.subscriptions or self.readers or self.beginning is not None)

    def _make_residency(self, action: FullAction) -> ResidencyLimiter | None:
        if self._store is None:
            return None
        policy = self.policy
        # Room is made within the quotas; beyond them there is only what durable subscriptions hold back.
        # Without paging, memory is such a quota, too.
        beside_bytes = policy.memory_bytes // 16 + MIB if policy.paging == "throttle" and action.drops_oldest else 0
        return ResidencyLimiter(
            policy.memory_bytes + beside_bytes,
            count_max=None if policy.count_max is None else policy.count_max + policy.count_max // 16 + BLOCK_SIZE,
            quota_bytes=None if policy.bytes_max is None else policy.bytes_max + policy.bytes_max // 16 + MIB,
            clock=self.environment.clock,
        )

    @property
    def spares_disk(self) -> bool:
        """What lags must do with memory: too much goes to the disk for it already, and nothing is durable."""
        return self._lag_budget is not None and not self.has_durables and self._lag_budget.exhausted

    def went_out(self, indices: list[int]) -> None:
        super().went_out(indices)
        if self._lag_budget is not None and not self.has_durables:
            for block in map(self.elements.block, indices):
                if block is not None and block.outside is not None:
                    self._lag_budget.spend(block.outside.wire_bytes + block.live_count * MESSAGE_OVERHEAD_BYTES)

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
            self.observer.outside(Fate.DROPPED, messages, "nobody was subscribed")

    def incoming_dropped(self, count: int) -> None:
        self._incoming_dropped_count += count
        self._beginning_missed_count += count

    def _arrived(self, messages: list[Message]) -> None:
        if self._caught_up:
            self.ring.update(self._caught_up)
            self._caught_up.clear()
        if self._selecting:
            self.ring.update(self._selecting)
        if self._selecting_away:
            self._away.update(self._selecting_away)

    # ------------------------------------------------------------------ subscribers

    def _subscribed(self, subscription: Subscription, *, from_beginning: bool) -> None:
        durable_id = subscription.durable_id
        if subscription.selection is not None:
            self._selecting[subscription] = None
        subscription.dropped_unreported_count = -self._incoming_dropped_count
        if durable_id is None:
            subscription.cursor = TrackingCursor(self.elements, self._place_of_newcomer(subscription, from_beginning))
        else:
            reader = self.readers.get(durable_id)
            if reader is None:
                reader = self.add_reader(durable_id)
            reader.subscriptions[subscription] = None
            reader.selection = subscription.selection
            self._away.pop(reader, None)
            self._selecting_away.pop(reader, None)
            subscription.cursor = reader.cursor
        position, lead_position = subscription.cursor.position, self.lead_position
        # At the tail, or one that passed more than anybody was handed while its consumer was away. One that stands
        # before what nobody has been handed yet (`from_beginning`) leads as soon as it has caught up.
        if position > lead_position or position >= self.elements.next_sequence:
            self.is_led = True
            self._lead_search = None
            self._release_lead()

    def _release_lead(self) -> None:
        """No element lies ahead of the foremost cursor."""
        self.lead_position = self.elements.next_sequence
        limiter = self.lead.limiter
        if limiter.used_count:
            self.lead.release(limiter.used_count, limiter.used_bytes)

    def _detached(self, subscription: Subscription) -> None:
        self._caught_up.pop(subscription, None)
        self._selecting.pop(subscription, None)
        assert subscription.cursor is not None
        was_foremost = subscription.cursor.position >= self.lead_position
        self._leave_cursor(subscription)
        if subscription.durable_id is not None:
            self._may_select_away(subscription.durable_id)
        if not self.subscriptions:
            self._nobody_leads()
        elif was_foremost:  # others may be as far: who looks, looks at all, so once for all that leave together
            self._lead_unsure = True
            self.context.request_dispatch()
        if self._overdue:
            self._look_at_overdue()

    def _find_lead(self) -> None:
        """Whoever led may have left. O(subscriptions), some at a time."""
        if self._lead_unsure:
            self._lead_unsure = False
            self._lead_search = iter(list(self.subscriptions.values()))
        assert self._lead_search is not None, "somebody asks who leads"
        lead_position, looked = self.lead_position, None
        for looked in islice(self._lead_search, LED_AT_ONCE):
            if looked.cursor is not None and looked.cursor.position >= lead_position and not looked.closed:
                self._lead_search = None
                return
        if looked is None:
            self._nobody_leads()
        else:
            self.context.request_dispatch()

    def _nobody_leads(self) -> None:
        """Perhaps one is just a little behind: then it leads again as soon as it has caught up."""
        self._lead_search = None
        self._lead_unsure = self.is_led = False
        self._release_lead()

    @property
    def _foremost(self) -> int:
        return self.lead_position

    def enter_ring(self, subscription: Subscription) -> None:
        self._caught_up.pop(subscription, None)
        super().enter_ring(subscription)

    # ------------------------------------------------------------------ out

    def dispatch(self, budget: int) -> bool:
        ring = self.ring
        self._ahead_of = -1
        if self._lead_unsure or self._lead_search is not None:
            self._find_lead()
        if self.laggards.busy:
            budget -= DROP_COUNT * VISIT_COST
            self.laggards.go_on(DROP_COUNT)
        if self._look is not None:
            budget -= LOOKED_AT_ONCE
            self._look_on(LOOKED_AT_ONCE)
        if self._reading_look is not None:
            self._look_at_readers()
        if self._telling:
            budget -= TOLD_AT_ONCE * VISIT_COST
            self._tell(TOLD_AT_ONCE)
        if self._waking is not None or self._to_wake:
            budget -= TOLD_AT_ONCE
            self._wake_on(TOLD_AT_ONCE)
        if self._away:
            budget -= self._pass_for_those_away(FAN_OUT_COUNT, budget)
        while ring:
            subscription = next(iter(ring))
            if subscription.source.blocked:
                if subscription.selection is not None:
                    if budget <= 0:
                        return True
                    del ring[subscription]
                    budget -= VISIT_COST + self._move_on(subscription, subscription.selection)
                else:
                    del ring[subscription]
                continue
            if budget <= 0:
                return True
            budget -= VISIT_COST
            cursor = subscription.cursor
            assert cursor is not None
            room_count, room_bytes = self.room_of(subscription)
            if not room_count:
                continue
            ring.move_to_end(subscription)
            if subscription.durable_id is not None:
                reader = self.readers[subscription.durable_id]
                self._note_reader(reader)
                if subscription.shares and len(reader.subscriptions) > 1:
                    room_count = min(room_count, reader.share_of(min(len(reader.subscriptions), len(ring))))
            selection = subscription.selection
            if selection is None:
                looked = part = cursor.take(min(FAN_OUT_COUNT, room_count), room_bytes)
            else:  # what it does not take needs no room
                selector = selection.selector
                before_units = selector.spent_units
                look_count = min(FAN_OUT_COUNT, max(LOOK_COUNT_MIN, 2 * room_count), selector.looks_max)
                looked = part = cursor.take(look_count, UNBOUNDED)
            if self.elements.outside_count:
                self._page_in(subscription, cursor, part)
            if part is not None and selection is not None:
                looked, part = self._select(cursor, selection, part, (room_count, room_bytes))
                budget -= 1 + len(looked.messages) // LOOKS_PER_COST + selector.cost_since(before_units)
                if subscription.durable_id is not None:
                    self._reader_moved(self.readers[subscription.durable_id])
                if part is None:
                    if looked.end > self.lead_position:
                        self._advance_lead(looked)
                    continue
            if part is not None and part.attempts is not None:
                part = self._without_spent(subscription, part)
                if part is None:
                    continue
            if part is None or looked is None:
                del ring[subscription]
                self._caught_up[subscription] = None
                if cursor.waiting_for is None:
                    self._lead_search = None  # this one leads, perhaps with others
                    if not self.is_led:
                        self.is_led = True
                        self._release_lead()
                continue
            count = len(part.messages)
            budget -= part.cost
            if self.expiry.is_needed:
                part = self._without_expired(cursor, part, looked)
                if part is None:
                    continue
                count = len(part.messages)
            self.unsettled_count += count
            subscription.unsettled_count += count
            subscription.delivered(count)
            dropped_count = subscription.dropped_unreported_count + self._incoming_dropped_count
            subscription.dropped_unreported_count = -self._incoming_dropped_count
            subscription.consumer.deliver(subscription, part, dropped_count=dropped_count)
            if looked.end > self.lead_position:
                self._advance_lead(looked)
        if self.pinned_count and self.controller.limiter.throttled:
            self._begin_look()  # senders wait for room
        if self._look is not None:
            self._look_on(LOOKED_AT_ONCE)
        self.elements.forget_shared_slice()
        return False

    def _move_on(self, subscription: Subscription, selection: Selection) -> int:
        """It has no credit: let it pass what it does not take. Returns what that cost."""
        cursor = subscription.cursor
        assert cursor is not None
        passed, at_end, cost = self._pass_ahead(cursor, selection, PASS_COUNT)
        if at_end:
            self._caught_up[subscription] = None
        elif passed is not None:
            self.ring[subscription] = None
            if subscription.durable_id is not None:
                self._reader_moved(self.readers[subscription.durable_id])
            if passed.end > self.lead_position:
                self._advance_lead(passed)
        return cost

    def _without_expired(self, cursor: TrackingCursor, part: Slice, looked: Slice) -> Slice | None:
        """What of this is not past its date. The rest leaves, or this one passes it over while others hold it.
        `looked`: all that the cursor has come by.
        """
        now_ms = self.environment.now_ms()
        expired = [
            sequence
            for sequence, message in zip(part.sequences, part.messages, strict=True)
            if 0 < message.expires_at_ms <= now_ms
        ]
        if not expired:
            return part
        self.expired_count += len(expired)
        if self.observer is not None:
            self.observer.left(Fate.EXPIRED, expired, "passed over by a subscriber while another holds it")
        rest = part.without(expired)
        self._gone(cursor.settle(expired))
        if looked.end > self.lead_position:
            self._advance_lead(looked)
        return rest

    def _advance_lead(self, part: Slice) -> None:
        """The foremost cursor moved on: senders may follow."""
        if part.first >= self.lead_position:
            count, charge_bytes = len(part.messages), part.charge_bytes
        else:
            fresh = [m for s, m in zip(part.sequences, part.messages, strict=True) if s >= self.lead_position]
            count, charge_bytes = len(fresh), size_of(fresh)
        self.lead_position = part.end
        self._lead_search = None  # this one leads
        if self.intake.follows_fastest:
            self.lead.release(count, charge_bytes)

    # ------------------------------------------------------------------ leaving for other reasons

    def expire(self, sequences: SequenceOf[int]) -> None:
        """O(sequences + subscriptions), and O(sequences) for each subscription that is among them."""
        self._overdue.difference_update(sequences)
        if self.elements.outside_count and self.pager is not None:
            for index in {sequence >> BLOCK_BITS for sequence in sequences}:
                block = self.elements.block(index)
                if block is not None and block.outside is not None:
                    block.looked_ms = self.environment.now_ms()  # what is held then is looked at when it comes back
                    self.pager.want(index)
        sequences = [sequence for sequence in sequences if self.elements.get(sequence) is not None]
        if not sequences:
            return
        first, end = sequences[0], sequences[-1] + 1
        behind = [cursor for cursor in self._cursors() if cursor.front < end]
        dead = set(sequences)
        for cursor in behind:
            if cursor.position > first:
                dead -= cursor.held_of(dead) | cursor.withdrawn
        self._overdue.update([sequence for sequence in sequences if sequence not in dead])
        if dead and self._selecting:  # what one of them stood before may have gone
            self.ring.update(self._selecting)
            self.context.request_dispatch()
        if not dead:
            return
        sequences = sorted(dead)
        messages = [message for sequence in sequences if (message := self.elements.get(sequence)) is not None]
        ahead = messages[bisect_left(sequences, self.lead_position) :]
        wire_bytes = wire_bytes_of(messages)
        self.expired_count += len(messages)
        if self.observer is not None:
            self.observer.left(Fate.EXPIRED, sequences, "")
        self.elements.remove(sequences, unread=True)
        if self._storage is not None:
            self._storage.settled(sequences)
        gone_count, gone_bytes = len(messages), wire_bytes
        for cursor in behind:
            passed_count, passed_bytes = cursor.pass_over(sequences)
            gone_count += passed_count
            gone_bytes += passed_bytes
        if ahead and self.intake.follows_fastest:
            self.lead.release(len(ahead), size_of(ahead))
        self._gone((gone_count, gone_bytes))

    def make_room(self, over_count: int, over_bytes: int) -> None:
        self.laggards.make_room(over_count, over_bytes)

    def beginning_skips(self, floor: int) -> Gone:
        """Those who are attached in steps get nothing below this. Returns what left because of it."""
        beginning = self.beginning
        if beginning is None or beginning.front >= floor or (self._to_make and not self.drops_durables):
            return NOTHING_GONE
        missed_count, gone = beginning.skip_to(floor)
        self._beginning_missed_count += missed_count
        return gone

    def reader_skips(self, reader: DurableReader, floor: int) -> Gone:
        """A durable subscription with which nobody reads gives up all below this. Returns what left because of it."""
        if self.observer is not None:
            self.observer.missed(f"durable subscription {reader.durable_id}", reader.cursor.front, floor)
        missed_count, gone = self._skip(reader.cursor, floor)
        self.dropped_count += missed_count
        self._reader_moved(reader)
        return gone

    def subscription_skips(self, subscription: Subscription, cursor: TrackingCursor, floor: int) -> Gone:
        """A subscriber gives up all below this, and is told with its next message. Returns what left because of it."""
        if self.observer is not None:
            self.observer.missed(subscription.who, cursor.front, floor)
        missed_count, gone = self._skip(cursor, floor)
        if missed_count:
            self._missed(subscription, missed_count)
        if subscription in self._caught_up or subscription.shares:
            self._wake(subscription)  # it may have waited for a block that it skipped
        return gone

    def all_skipped(self, floor: int) -> None:
        """All who lagged have given up what is below this."""
        if self._overdue and self._refusals:  # what was withdrawn, and is nobody's now
            self._look_at_overdue([sequence for sequence in self._overdue if sequence < floor])

    # ------------------------------------------------------------------ memory and store

    def _page_in(self, subscription: Subscription, cursor: TrackingCursor, part: Slice | None) -> None:
        """Ask for what is read next."""
        assert self.pager is not None, "only what pages is outside"
        if part is not None:
            index = part.first >> BLOCK_BITS
            is_new = not part.first & (BLOCK_SIZE - 1) or part.end & (BLOCK_SIZE - 1) < FAN_OUT_COUNT
            if is_new and index != self._ahead_of:
                self._ahead_of = index
                self.pager.read_ahead(index)
        elif isinstance(cursor.waiting_for, int):
            self._awaits(subscription, cursor.waiting_for)
            self.pager.want(cursor.waiting_for)

    def restored(self, found: Restored) -> None:
        super().restored(found)
        self.lead_position = self.elements.next_sequence

    # ------------------------------------------------------------------ end, and what people see

    def _close_gates(self) -> int:
        self.laggards.close()
        waiting_count = super()._close_gates()
        limiter = self.lead.limiter
        self.lead.release(limiter.used_count, limiter.used_bytes)
        return waiting_count

    @property
    def is_empty(self) -> bool:
        return super().is_empty and not self.lead.overflow_count and not self.has_durables

    def facts(self) -> Mapping[str, object]:
        facts = dict(super().facts())
        if self.has_durables:
            facts["durable subscriptions"] = len(self.readers) + len(self._to_make)
        elif not self.is_heard:
            facts["consumers"] = "none: messages are dropped unheard"
        facts |= self._refusal_facts()
        return facts
