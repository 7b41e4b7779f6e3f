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
or beyond `_lead_position`, the foremost place that any cursor has reached, is charged to `lead` too. Everything in
`_overdue` is in somebody's hands, or withdrawn.

Bound: the policy's memory plus one run per source, since nothing beyond the lead position is ever dropped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from typing import Final

from flow import Flow, FlowController, ResidencyLimiter, SourceController, WindowLimiter
from queues.cursored import BLOCK_BITS, BLOCK_SIZE
from queues.cursors import NOTING, TrackingCursor
from queues.environment import QueueEnvironment
from queues.gate import Run
from queues.lag import LagBudget
from queues.leaving import UNLIMITED_BYTES
from queues.message import MESSAGE_OVERHEAD_BYTES, Message, size_of
from queues.paging import HIGH
from queues.policy import MIB, QueuePolicy
from queues.selectors.selector import Selection
from queues.skipping import LOOK_COUNT_MIN, LOOKS_PER_COST, PASS_COUNT, VISIT_COST, SkippingQueue
from queues.slices import Slice
from queues.storage import Restored
from queues.subscription import Subscription
from queues.witness import Fate

FAN_OUT_COUNT: Final = 512
"""Messages per hand-over. Constant, so that cursors stay at common positions and share slices."""

LAG_FACTOR: Final = 16
"""With a store, and without a `bytes_max`, a topic holds so many times its memory before laggards lose the oldest:
1 GiB by default.
"""

SPARING_SHARE: Final = HIGH - 1 / 32
"""Of memory, for those who lag while nothing goes to the disk for them."""

DROP_SHARE: Final = 16
"""A lagging subscriber loses at least this part of the limit at once, so that making room is not done for each run."""


class Topic(SkippingQueue):
    """Many tracking cursors over one sequence."""

    kind_label = "topic"
    full_default = "drop_oldest"

    def __init__(
        self,
        name: str,
        policy: QueuePolicy,
        environment: QueueEnvironment,
        *,
        priority: int = 4,
        destination: str | None = None,
        lasting: bool = True,
    ) -> None:
        super().__init__(name, policy, environment, priority=priority, destination=destination, lasting=lasting)
        self._leading = False
        """A connected subscription has caught up since it came."""
        self._lead_unsure = False
        """One that led has left, and nobody has looked who leads now."""
        self._drops_durables = policy.full == "drop_oldest"
        self.unheard_count = 0
        """Messages that nobody was there to hear."""
        self._lead_position = 0
        self._caught_up: dict[Subscription, None] = {}
        self._selecting: dict[Subscription, None] = {}
        """Subscriptions with a selector: they pass what they don't take also without credit."""
        per_second = policy.lag_bytes_per_second
        self._lag_budget: LagBudget | None = None
        if self._residency is not None and self._pages_out and self._full == "drop_oldest" and per_second is not None:
            self._lag_budget = LagBudget(per_second, policy.memory_bytes, environment.clock)
        lead_bytes = min(policy.lead_bytes, policy.limit_bytes)
        self.lead: FlowController[Run] = FlowController(
            self,
            Flow(f"{name} (lead)"),
            WindowLimiter(
                policy.count_max,
                lead_bytes,
                resume_count=None if policy.count_max is None else policy.count_max // 2,
                resume_bytes=lead_bytes // 2,
                clock=environment.clock,
                label="lead over the fastest subscriber",
            ),
            accept=self._accept_lead,
            schedule=environment.resume,
            clock=environment.clock,
            counts_memory=False,  # the same messages are charged to the other controller
        )

    # ------------------------------------------------------------------ in

    def add(self, messages: list[Message], wire_bytes: int, source: SourceController | None) -> None:
        if self.witness is not None:
            self.witness.origin = source
        if not self._is_heard and not self.closed:
            self._unheard(messages)
        elif self._full == "drop_oldest":
            charge_bytes = wire_bytes + len(messages) * MESSAGE_OVERHEAD_BYTES
            self.lead.add(Run(messages, charge_bytes), len(messages), charge_bytes, source)
        else:
            super().add(messages, wire_bytes, source)

    def offer(self, messages: list[Message], wire_bytes: int, source: SourceController) -> bool:
        if self.witness is not None:
            self.witness.origin = source
        if not self._is_heard and not self.closed:
            self._unheard(messages)
            return True
        if self._full != "drop_oldest":
            return super().offer(messages, wire_bytes, source)
        if self.keeps and not self._passes_store(messages, source):
            return False
        controller = self.controller
        if self._budget is not None and self._budget.short:
            self._ask_for_memory(wire_bytes + len(messages) * MESSAGE_OVERHEAD_BYTES)
        if self._residency is not None and not controller.accepts(source):
            controller.charge(0, 0, source)  # its place in the line, until the disk has taken something
            return False
        charge_bytes = wire_bytes + len(messages) * MESSAGE_OVERHEAD_BYTES
        run = Run(messages, charge_bytes)
        if self._leading or self.closed:
            return self.lead.offer(run, len(messages), charge_bytes, source)
        self._take_in(run)
        self._lead_position = self.elements.next_sequence
        return True

    def _shut_gate(self, source: SourceController) -> FlowController[Run] | None:
        if not self._is_heard:
            return None
        gate = super()._shut_gate(source)
        if gate is None and self._full == "drop_oldest" and self._leading and not self.lead.accepts(source):
            return self.lead
        return gate

    def take_together(self, runs: SequenceOf[Run], source: SourceController) -> None:
        if self._full != "drop_oldest" and self._is_heard:
            super().take_together(runs, source)
            return
        for run in runs:
            if self.witness is not None:
                self.witness.origin = source
            if not self._is_heard:
                self._unheard(run.messages)
            elif self._leading:
                self.lead.charge(len(run.messages), run.charge_bytes, source)
                self._accept_lead(run)
            else:
                self._take_in(run)
                self._lead_position = self.elements.next_sequence

    @property
    def _is_heard(self) -> bool:
        """Somebody is to get what comes in."""
        return bool(self.subscriptions or self.readers)

    def _drains(self) -> bool:
        return not self._is_heard or super()._drains()

    def fits(self, count: int, wire_bytes: int) -> bool:
        if not self._is_heard:
            return True
        if self._full != "drop_oldest":
            return super().fits(count, wire_bytes)
        return self.lead.accepting and (self._residency is None or self.controller.accepting)

    def _make_residency(self) -> ResidencyLimiter | None:
        if self._store is None:
            return None
        policy = self.policy
        # Room is made within the quotas; beyond them there is only what durable subscriptions hold back.
        # Without paging, memory is such a quota, too.
        beside_bytes = policy.memory_bytes // 16 + MIB if not self._pages_out and self._full == "drop_oldest" else 0
        return ResidencyLimiter(
            policy.memory_bytes + beside_bytes,
            count_max=None if policy.count_max is None else policy.count_max + policy.count_max // 16 + BLOCK_SIZE,
            quota_bytes=None if policy.bytes_max is None else policy.bytes_max + policy.bytes_max // 16 + MIB,
            clock=self._environment.clock,
        )

    def overhang(self, count: int, charge_bytes: int) -> tuple[int, int]:
        residency, policy = self._residency, self.policy
        if residency is None:
            return super().overhang(count, charge_bytes)
        over_count = 0 if policy.count_max is None else residency.total_count + count - policy.count_max
        if not self._pages_out:
            return over_count, residency.used_bytes + charge_bytes - min(policy.limit_bytes, self.memory_limit_bytes)
        if self._spares_disk:
            return over_count, residency.used_bytes + charge_bytes - int(self.memory_limit_bytes * SPARING_SHARE)
        bytes_max = policy.bytes_max if policy.bytes_max is not None else policy.memory_bytes * LAG_FACTOR
        return over_count, residency.total_bytes + charge_bytes - bytes_max

    @property
    def _spares_disk(self) -> bool:
        """What lags must do with memory: too much goes to the disk for it already, and nothing is durable."""
        return self._lag_budget is not None and not self.readers and self._lag_budget.exhausted

    def went_out(self, indices: list[int]) -> None:
        super().went_out(indices)
        if self._lag_budget is not None and not self.readers:
            for block in map(self.elements.block, indices):
                if block is not None and block.outside is not None:
                    self._lag_budget.spend(block.outside.wire_bytes + block.live_count * MESSAGE_OVERHEAD_BYTES)

    @property
    def _pages_out(self) -> bool:
        return self.policy.paging != "throttle"

    def _accept_lead(self, run: Run) -> None:
        count = len(run.messages)
        if not self._is_heard:
            self._unheard(run.messages)
            self.lead.release(count, run.charge_bytes)
            return
        self._take_in(run)

    def _take_in(self, run: Run) -> None:
        count = len(run.messages)
        over_count, over_bytes = self.overhang(count, run.charge_bytes)
        if over_count > 0 or over_bytes > 0:
            self._make_room(over_count, over_bytes)
        self.controller.charge(count, run.charge_bytes, None)
        super()._accept_run(run)

    def _accept_run(self, run: Run) -> None:
        if self._is_heard:
            super()._accept_run(run)
        else:  # it waited until the last subscriber had left
            self._unheard(run.messages)
            self.controller.release(len(run.messages), run.charge_bytes)

    def _unheard(self, messages: list[Message]) -> None:
        """Nobody is there to get these."""
        self.unheard_count += len(messages)
        if self.witness is not None:
            self.witness.outside(Fate.DROPPED, messages, "nobody was subscribed")

    def _incoming_dropped(self, count: int) -> None:
        for subscription in self.subscriptions.values():
            subscription.dropped_count += count
            subscription.dropped_unreported_count += count

    def _arrived(self, messages: list[Message]) -> None:
        if self._caught_up:
            self._ring.update(self._caught_up)
            self._caught_up.clear()
        if self._selecting:
            self._ring.update(self._selecting)
        if self._selecting_away:
            self._away.update(self._selecting_away)

    # ------------------------------------------------------------------ subscribers

    def _subscribed(self, subscription: Subscription) -> None:
        durable_id = subscription.durable_id
        if subscription.selection is not None:
            self._selecting[subscription] = None
        if durable_id is None:
            subscription.cursor = TrackingCursor(self.elements, self.elements.next_sequence)
        else:
            reader = self.readers.get(durable_id)
            if reader is None:
                reader = self.add_reader(durable_id)
            reader.subscriptions[subscription] = None
            reader.selection = subscription.selection
            self._away.pop(reader, None)
            self._selecting_away.pop(reader, None)
            subscription.cursor = reader.cursor
        if subscription.cursor.position >= self._lead_position:
            self._leading = True
            self._release_lead()  # the newcomer stands at the tail: it is the foremost now

    def _release_lead(self) -> None:
        """No element lies ahead of the foremost cursor."""
        self._lead_position = self.elements.next_sequence
        limiter = self.lead.limiter
        if limiter.used_count:
            self.lead.release(limiter.used_count, limiter.used_bytes)

    def _detached(self, subscription: Subscription) -> None:
        self._caught_up.pop(subscription, None)
        self._selecting.pop(subscription, None)
        assert subscription.cursor is not None
        was_foremost = subscription.cursor.position >= self._lead_position
        self._leave_cursor(subscription)
        if subscription.durable_id is not None:
            self._may_select_away(subscription.durable_id)
        if not self.subscriptions:
            self._find_lead()
        elif was_foremost:  # others may be as far: who looks, looks at all, so once for all that leave together
            self._lead_unsure = True
            self.context.request_dispatch()
        if self._overdue:
            self._look_at_overdue()

    def _find_lead(self) -> None:
        """Whoever led may have left. O(subscriptions)."""
        self._lead_unsure = False
        lead_position = self._lead_position
        if not any(s.cursor is not None and s.cursor.position >= lead_position for s in self.subscriptions.values()):
            # Perhaps one is just a little behind: then it leads again as soon as it has caught up.
            self._leading = False
            self._release_lead()

    def _enter_ring(self, subscription: Subscription) -> None:
        self._caught_up.pop(subscription, None)
        super()._enter_ring(subscription)

    # ------------------------------------------------------------------ out

    def dispatch(self, budget: int) -> bool:
        ring = self._ring
        if self._lead_unsure:
            self._find_lead()
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
            room_count, room_bytes = self._room_of(subscription)
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
                looked = part = cursor.take(look_count, UNLIMITED_BYTES)
            if self.elements.outside_count:
                self._page_in(cursor, part)
            if part is not None and selection is not None:
                looked, part = self._select(cursor, selection, part, (room_count, room_bytes))
                budget -= 1 + len(looked.messages) // LOOKS_PER_COST + selector.cost_since(before_units)
                if subscription.durable_id is not None:
                    self._reader_moved(self.readers[subscription.durable_id])
                if part is None:
                    if looked.end > self._lead_position:
                        self._advance_lead(looked)
                    continue
            if part is not None and part.attempts is not None:
                part = self._without_spent(subscription, part)
                if part is None:
                    continue
            if part is None or looked is None:
                del ring[subscription]
                self._caught_up[subscription] = None
                if cursor.waiting_for is None and not self._leading:
                    self._leading = True
                    self._release_lead()
                continue
            count = len(part.messages)
            budget -= part.cost
            if self._expiring:
                part = self._without_expired(cursor, part, looked)
                if part is None:
                    continue
                count = len(part.messages)
            self.unsettled_count += count
            subscription.unsettled_count += count
            subscription.delivered(count)
            dropped_count = subscription.dropped_unreported_count
            subscription.dropped_unreported_count = 0
            subscription.consumer.deliver(subscription, part, dropped_count=dropped_count)
            if looked.end > self._lead_position:
                self._advance_lead(looked)
        if self._pinned_count and self.controller.limiter.throttled:
            self._let_go_of_pinned()  # senders wait for room
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
            self._ring[subscription] = None
            if subscription.durable_id is not None:
                self._reader_moved(self.readers[subscription.durable_id])
            if passed.end > self._lead_position:
                self._advance_lead(passed)
        return cost

    def _without_expired(self, cursor: TrackingCursor, part: Slice, looked: Slice) -> Slice | None:
        """What of this is not past its date. The rest leaves, or this one passes it over while others hold it.
        `looked`: all that the cursor has come by.
        """
        now_ms = self._environment.now_ms()
        expired = [
            sequence
            for sequence, message in zip(part.sequences, part.messages, strict=True)
            if 0 < message.expires_at_ms <= now_ms
        ]
        if not expired:
            return part
        self.expired_count += len(expired)
        if self.witness is not None:
            self.witness.left(Fate.EXPIRED, expired, "passed over by a subscriber while another holds it")
        rest = part.without(expired)
        self._gone(cursor.settle(expired))
        if looked.end > self._lead_position:
            self._advance_lead(looked)
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

    # ------------------------------------------------------------------ leaving for other reasons

    def _expire(self, sequences: SequenceOf[int]) -> None:
        """O(sequences + subscriptions), and O(sequences) for each subscription that is among them."""
        self._overdue.difference_update(sequences)
        if self.elements.outside_count and self.pager is not None:
            for index in {sequence >> BLOCK_BITS for sequence in sequences}:
                block = self.elements.block(index)
                if block is not None and block.outside is not None:
                    block.looked_ms = self._environment.now_ms()  # what is held then is looked at when it comes back
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
            self._ring.update(self._selecting)
            self.context.request_dispatch()
        if not dead:
            return
        sequences = sorted(dead)
        messages = [message for sequence in sequences if (message := self.elements.get(sequence)) is not None]
        ahead = messages[bisect_left(sequences, self._lead_position) :]
        wire_bytes = sum([len(message.wire) for message in messages])
        self.expired_count += len(messages)
        if self.witness is not None:
            self.witness.left(Fate.EXPIRED, sequences, "")
        self.elements.remove(sequences, unread=True)
        if self._shelf is not None:
            self._shelf.settled(sequences)
        gone_count, gone_bytes = len(messages), wire_bytes
        for cursor in behind:
            passed_count, passed_bytes = cursor.pass_over(sequences)
            gone_count += passed_count
            gone_bytes += passed_bytes
        if ahead and self._full == "drop_oldest":
            self.lead.release(len(ahead), size_of(ahead))
        self._gone((gone_count, gone_bytes))

    def _make_room(self, over_count: int, over_bytes: int) -> None:
        """Move every cursor that lags past the oldest elements, by a little more than asked (DROP_SHARE)."""
        if self._pinned_count:
            count, wire_bytes = self._let_go_of_pinned()
            over_count -= count
            over_bytes -= wire_bytes + count * MESSAGE_OVERHEAD_BYTES
            if over_count <= 0 and over_bytes <= 0:
                return
        if self._nobody_lags(over_count, over_bytes):
            return  # durable subscriptions hold it, which nothing can be done about
        if over_bytes > 0:
            over_bytes = max(over_bytes, min(self.policy.limit_bytes, self.memory_limit_bytes) // DROP_SHARE)
        if over_count > 0:
            over_count = max(over_count, (self.policy.count_max or 0) // DROP_SHARE)
        position = floor = self.elements.first_sequence
        if self._spares_disk and over_count <= 0:
            floor = self._floor_by_blocks(over_bytes)
            over_bytes = 0
        while (over_count > 0 or over_bytes > 0) and position < self._lead_position:
            count_max = FAN_OUT_COUNT if over_bytes > 0 else min(FAN_OUT_COUNT, over_count)
            part, position = self.elements.read(position, count_max, over_bytes if over_bytes > 0 else 1 << 62)
            if part is None:
                block = None if self.elements.missing is None else self.elements.block(self.elements.missing)
                if block is None:
                    break
                floor = position = block.base + block.length
                over_count -= block.live_count
                over_bytes -= block.wire_bytes + block.live_count * MESSAGE_OVERHEAD_BYTES
                continue
            floor = part.end
            over_count -= len(part.messages)
            over_bytes -= part.charge_bytes
        floor = min(floor, self._lead_position)
        gone_count = gone_bytes = 0
        if self._drops_durables:
            for reader in self.readers.values():
                if not reader.subscriptions and reader.cursor.front < floor:
                    if self.witness is not None:
                        who = f"durable subscription {reader.durable_id}"
                        self.witness.missed(who, reader.cursor.front, floor)
                    missed_count, (left_count, left_bytes) = self._skip(reader.cursor, floor)
                    self.dropped_count += missed_count
                    gone_count += left_count
                    gone_bytes += left_bytes
                    self._reader_moved(reader)
        lagging = [s for s in self.subscriptions.values() if s.cursor is not None and s.cursor.front < floor]
        for subscription in lagging:
            cursor = subscription.cursor
            assert cursor is not None
            if subscription.durable_id is None or self._drops_durables:
                if self.witness is not None:
                    self.witness.missed(subscription.who, cursor.front, floor)
                missed_count, (left_count, left_bytes) = self._skip(cursor, floor)
                gone_count += left_count
                gone_bytes += left_bytes
                if missed_count:
                    self._missed(subscription, missed_count)
                if subscription in self._caught_up or subscription.shares:
                    self._wake(subscription)  # it may have waited for a block that it skipped
        self._gone((gone_count, gone_bytes))
        if self._overdue and self._refusals:  # what was withdrawn, and is nobody's now
            self._look_at_overdue([sequence for sequence in self._overdue if sequence < floor])

    def _floor_by_blocks(self, over_bytes: int) -> int:
        """Up to where whole blocks take so much memory, by their sums alone. What is outside takes none."""
        floor = self.elements.first_sequence
        for _index, block in self.elements.blocks():
            if over_bytes <= 0 or block.base + block.length > self._lead_position:
                break
            if block.outside is None:
                over_bytes -= block.filled_bytes or block.wire_bytes + block.live_count * MESSAGE_OVERHEAD_BYTES
            floor = block.base + block.length
        return floor

    def _nobody_lags(self, over_count: int, over_bytes: int) -> bool:
        """Nobody who may lose anything is so far behind that it would help. O(blocks that the last of them lags)."""
        residency = self._residency
        if residency is None or not self.readers or self._drops_durables:
            return False
        fronts = [s.cursor.front for s in self.subscriptions.values() if s.cursor is not None and s.durable_id is None]
        front = min(fronts, default=self._lead_position)
        left_count, left_bytes = residency.total_count - over_count, residency.total_bytes - over_bytes
        for block in self.elements.latest_blocks():
            if block.base + block.length <= front:
                break
            left_count -= block.live_count
            # Of those in memory what was ever put in, which need not be added up.
            left_bytes -= block.filled_bytes or block.wire_bytes + block.live_count * MESSAGE_OVERHEAD_BYTES
            if left_count < 0 or left_bytes < 0:
                return False
        return True

    # ------------------------------------------------------------------ memory and store

    def _page_in(self, cursor: TrackingCursor, part: Slice | None) -> None:
        """Ask for what is read next."""
        assert self.pager is not None, "only what pages is outside"
        if part is not None:
            if not part.first & (BLOCK_SIZE - 1) or part.end & (BLOCK_SIZE - 1) < FAN_OUT_COUNT:
                self.pager.read_ahead(part.first >> BLOCK_BITS)
        elif cursor.waiting_for is not None and cursor.waiting_for != NOTING:
            self.pager.want(cursor.waiting_for)

    def restored(self, found: Restored) -> None:
        super().restored(found)
        self._lead_position = self.elements.next_sequence

    # ------------------------------------------------------------------ end, and what people see

    def _close_gates(self) -> int:
        waiting_count = super()._close_gates() + sum([len(run.messages) for run in self.lead.close()])
        limiter = self.lead.limiter
        self.lead.release(limiter.used_count, limiter.used_bytes)
        return waiting_count

    @property
    def is_empty(self) -> bool:
        return super().is_empty and not self.lead.overflow_count and not self.readers

    def facts(self) -> Mapping[str, object]:
        facts = dict(super().facts())
        if self.readers:
            facts["durable subscriptions"] = len(self.readers)
        elif not self.subscriptions:
            facts["consumers"] = "none: messages are dropped unheard"
        facts |= self._refusal_facts()
        return facts
