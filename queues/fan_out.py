"""Fan-out: each subscription of a topic gets every message. The strategy of topics, beside those of consumed queues
(shared.py).

Subscriptions with credit are served in turns, each with the elements ahead of its own cursor. One that has caught up is
in line again when an element is added; one with a selector is in line without credit, too, to pass elements that it
does not take.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

from ..flow.bounds import UNBOUNDED
from .block_readers import BlockReaders
from .chores import Chores
from .cursors import TrackingCursor
from .lead import Lead
from .message import Message
from .observer import Fate
from .pinned import LOOKED_AT_ONCE, Pinned
from .queue import MessageQueue
from .readers import Readers
from .refusals import RefusalTable
from .selectors.selector import LOOK_COUNT_MIN, Selection
from .skipping import Skipping
from .slices import FAN_OUT_COUNT, VISIT_COST, Slice
from .subscription import Subscription
from .waking import Waking


class FanOut:
    """Many subscriptions, each message to all of them: a Distribution (queue.py)."""

    __slots__ = (
        "_blocks", "_caught_up", "_chores", "_elements", "_incoming_dropped_count", "_lead", "_pinned", "_queue",
        "_readers", "_refusals", "_ring", "_selecting", "_skipping", "_waking",
    )  # fmt: skip

    def __init__(
        self,
        queue: MessageQueue,
        chores: Chores,
        lead: Lead,
        waking: Waking,
        readers: Readers,
        refusals: RefusalTable,
        blocks: BlockReaders,
        pinned: Pinned,
        skipping: Skipping,
    ) -> None:
        self._queue = queue
        self._elements = queue.elements
        self._ring = queue.ring
        self._chores = chores
        self._lead = lead
        self._waking = waking
        self._readers = readers
        self._refusals = refusals
        self._blocks = blocks
        self._pinned = pinned
        self._skipping = skipping
        self._caught_up: dict[Subscription, None] = {}
        self._selecting: dict[Subscription, None] = {}
        """Subscriptions with a selector: without credit, too, they pass elements that they don't take."""
        self._incoming_dropped_count = 0
        """Messages dropped as they came in: all subscriptions of that time have missed them."""

    # ------------------------------------------------------------------ consumers

    def check(self, selection: Selection | None) -> None:
        """Take everyone."""

    def joined(self, subscription: Subscription) -> None:
        if subscription.selection is not None:
            self._selecting[subscription] = None
        subscription.dropped_unreported_count -= self._incoming_dropped_count
        assert subscription.cursor is not None, "the topic has given it one"
        self._lead.joined(subscription.cursor.position)

    def left(self, subscription: Subscription) -> None:
        self._caught_up.pop(subscription, None)
        self._selecting.pop(subscription, None)
        cursor, durable_id = subscription.cursor, subscription.durable_id
        assert cursor is not None
        was_foremost = cursor.position >= self._lead.position
        if not subscription.shares:
            self._queue.unsettled_count -= subscription.unsettled_count
        if durable_id is None:
            self._refusals.close_cursor(cursor)
        elif (reader := self._readers.by_id.get(durable_id)) is not None:  # or it was removed meanwhile
            self._readers.left(subscription, reader)
            self._skipping.left(reader)
        self._lead.left(was_foremost=was_foremost)

    def credited(self, subscription: Subscription) -> bool:
        self._caught_up.pop(subscription, None)
        return True

    def is_seeking(self, subscription: Subscription) -> bool:
        return False  # subscriptions with a selector are in the ring, too

    def incoming_dropped(self, count: int) -> None:
        """Note messages that were dropped before they got in: all subscriptions have missed them."""
        self._incoming_dropped_count += count

    def skipped(self, subscription: Subscription) -> None:
        """Note that a subscription was moved on: it may have waited for a block that it skipped."""
        if subscription in self._caught_up or subscription.shares:
            self._waking.wake(subscription)

    # ------------------------------------------------------------------ dispatch

    def dispatch(self, budget: int) -> bool:
        queue, ring, elements, lead, blocks = self._queue, self._ring, self._elements, self._lead, self._blocks
        blocks.ahead_of = -1
        if self._chores.due:
            budget = self._chores.do(budget)
        while ring:
            subscription = next(iter(ring))
            selection = subscription.selection
            if subscription.source.blocked:
                if selection is not None:
                    if budget <= 0:
                        return True
                    budget -= VISIT_COST + self._pass_without_credit(subscription, selection)
                else:
                    del ring[subscription]
                continue
            if budget <= 0:
                return True
            budget -= VISIT_COST
            cursor = subscription.cursor
            assert cursor is not None
            room_count, room_bytes = queue.room_of(subscription)
            if not room_count:
                continue
            ring.move_to_end(subscription)
            if subscription.durable_id is not None:
                reader = self._readers.by_id[subscription.durable_id]
                self._readers.note(reader)
                if subscription.shares and len(reader.subscriptions) > 1:
                    room_count = min(room_count, reader.share_of(min(len(reader.subscriptions), len(ring))))
            if selection is None:
                looked = part = cursor.acquire(min(FAN_OUT_COUNT, room_count), room_bytes)
                if elements.outside_count:
                    blocks.page_in(subscription, cursor, part)
            else:  # messages that it does not take need no room
                look_count = max(LOOK_COUNT_MIN, 2 * room_count)
                looked = part = cursor.acquire(min(FAN_OUT_COUNT, look_count, selection.selector.looks_max), UNBOUNDED)
                if elements.outside_count:
                    blocks.page_in(subscription, cursor, part)
                if part is not None:
                    choose = self._skipping.choose
                    looked, part, cost = choose(subscription, cursor, selection, part, room_count, room_bytes)
                    budget -= cost
            if looked is None:
                del ring[subscription]
                self._caught_up[subscription] = None
                if cursor.waiting_for is None and (lead.search is not None or not lead.is_led):
                    lead.caught_up()
                continue
            if part is None:  # none of them is selected
                if looked.end > lead.position:
                    lead.advance(looked)
                continue
            if part.attempts is not None:
                part = self._refusals.without_spent(subscription, part)
                if part is None:
                    continue
            count = len(part.messages)
            budget -= part.cost
            if queue.expiry.is_needed:
                part = self._without_expired(cursor, part, looked)
                if part is None:
                    continue
                count = len(part.messages)
            queue.unsettled_count += count
            subscription.unsettled_count += count
            subscription.delivered(count)
            dropped_count = subscription.dropped_unreported_count + self._incoming_dropped_count
            subscription.dropped_unreported_count = -self._incoming_dropped_count
            subscription.consumer.deliver(subscription, part, dropped_count=dropped_count)
            if looked.end > lead.position:
                lead.advance(looked)
        pinned = self._pinned
        if pinned.count and queue.controller.limiter.throttled:
            pinned.begin()  # senders wait for room
        if pinned.look is not None:
            pinned.look_on(LOOKED_AT_ONCE)
        elements.forget_shared_slice()
        return False

    def _pass_without_credit(self, subscription: Subscription, selection: Selection) -> int:
        """Let a subscription without credit pass elements that it does not take. Returns the cost."""
        del self._ring[subscription]
        cursor = subscription.cursor
        assert cursor is not None
        passed, at_end, cost = self._skipping.pass_without_credit(subscription, cursor, selection)
        if at_end:
            self._caught_up[subscription] = None
        elif passed is not None:
            self._ring[subscription] = None
            if passed.end > self._lead.position:
                self._lead.advance(passed)
        return cost

    def _without_expired(self, cursor: TrackingCursor, part: Slice, looked: Slice) -> Slice | None:
        """Return the elements of `part` that have not expired, or None. The others leave, or this cursor passes them
        over while others hold them. `looked`: all elements that the cursor has passed.
        """
        queue = self._queue
        expired = part.expired(queue.environment.now_ms())
        if not expired:
            return part
        queue.expired_count += len(expired)
        if queue.observer is not None:
            queue.observer.left(Fate.EXPIRED, expired, "skipped by a subscriber while another holds it")
        rest = part.without(expired)
        queue.free(cursor.settle(expired))
        if looked.end > self._lead.position:
            self._lead.advance(looked)
        return rest

    # ------------------------------------------------------------------ elements

    def arrived(self, messages: list[Message]) -> None:
        if self._caught_up:
            self._ring.update(self._caught_up)
            self._caught_up.clear()
        if self._selecting:
            self._ring.update(self._selecting)
        if self._skipping.away:
            self._skipping.seek()

    def dropped(self, messages: SequenceOf[Message]) -> None:
        if self._selecting:  # an element before one of them may be gone
            self._ring.update(self._selecting)
            self._queue.context.request_dispatch()

    def reading_blocks(self) -> Iterable[int]:
        return self._blocks.blocks()
