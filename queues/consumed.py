"""Base of the queues whose messages are consumed: one cursor, and an element leaves when it is settled.

Shared by ExclusiveQueue (one subscription) and SharedQueue (many).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import Final

from queues.blocks import Gone
from queues.cursored import BLOCK_BITS, BLOCK_SIZE
from queues.cursors import NOTING, Cursor
from queues.message import MESSAGE_OVERHEAD_BYTES, size_of
from queues.policy import QueuePolicy
from queues.queue import MessageQueue, QueueEnvironment
from queues.slices import Slice
from queues.storage import Restored
from queues.subscription import Subscription

DROP_COUNT: Final = 64
"""Elements looked at together when room must be made."""

UNLIMITED_BYTES: Final = 1 << 62


class ConsumedQueue(MessageQueue):
    """One consuming cursor. Not for direct use."""

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
        self._cursor = Cursor(self.elements, 0)
        self._reading_index = -1

    def _take(self, count_max: int, bytes_max: int) -> Slice | None:
        """The next elements that are not past their date; those that are leave here. None: nothing lies ahead, or what
        does has to come into memory first.
        """
        cursor = self._cursor
        while True:
            if self._shelf is not None and cursor.waiting_for is None:
                position = cursor.position
                if not self._shelf.may_hand_over(position, position + BLOCK_SIZE):
                    cursor.waiting_for = NOTING
                    return None
            part = cursor.take(count_max, bytes_max)
            if self.pager is not None:
                self._page_in(part)
            if part is None or not self._expiring:
                return part
            now_ms = self._environment.now_ms()
            expired = [
                sequence
                for sequence, message in zip(part.sequences, part.messages, strict=True)
                if 0 < message.expires_at_ms <= now_ms
            ]
            if not expired:
                return part
            rest = part.without(expired)
            self.expired_count += len(expired)
            self._drop(expired)
            if rest is not None:
                return rest

    def _page_in(self, part: Slice | None) -> None:
        """Ask for what is read next."""
        assert self.pager is not None, "only what pages is outside"
        waiting_for = self._cursor.waiting_for
        if waiting_for is not None and part is None:
            if waiting_for != NOTING:
                self.pager.want(waiting_for)
        elif part is not None and part.first >> BLOCK_BITS != self._reading_index:
            self._reading_index = part.first >> BLOCK_BITS
            self.pager.read_ahead(self._reading_index)

    def came_in(self, index: int) -> None:
        super().came_in(index)
        if self._cursor.arrived(index):
            self.context.request_dispatch()

    def may_go_on(self) -> None:
        if self._cursor.arrived(NOTING):
            self.context.request_dispatch()

    def restored(self, found: Restored) -> None:
        super().restored(found)
        seen_to = min(found.handed_to, self.elements.next_sequence)  # what comes in from now on is new
        self._cursor.restore(seen_to, found.attempts)

    def reading_blocks(self) -> Iterable[int]:
        returned = self._cursor.next_returned
        here = self._cursor.position >> BLOCK_BITS
        return (here,) if returned is None else (here, returned >> BLOCK_BITS)

    def seen(self) -> Mapping[int, int]:
        return self._cursor.seen()

    @property
    def handed_to(self) -> int:
        return self._cursor.position

    def _hand_over(self, subscription: Subscription, part: Slice) -> None:
        count = len(part.messages)
        self.unsettled_count += count
        subscription.unsettled_count += count
        subscription.delivered_count += count
        subscription.consumer.deliver(subscription, part, dropped_count=0)

    def settled(self, subscription: Subscription, sequences: SequenceOf[int], wire_bytes: int) -> None:
        if self.closed:
            return
        count = len(sequences)
        inside_count = count
        if self.elements.outside_count and (outside_count := self._count_outside(sequences)):
            inside_count -= outside_count
            wire_bytes = sum([len(m.wire) for s in sequences if (m := self.elements.get(s)) is not None])
        self.elements.remove(sequences)
        self._cursor.forget(sequences)
        self.unsettled_count -= count
        self.settled_count += count
        self._last_active_seconds = self._environment.clock()
        if self._shelf is not None:
            self._shelf.settled(sequences)
        if inside_count < count:
            self._account_for_outside_gone()
        self.controller.release(inside_count, wire_bytes + inside_count * MESSAGE_OVERHEAD_BYTES)

    def _count_outside(self, sequences: SequenceOf[int]) -> int:
        """How many of these are not in memory."""
        elements = self.elements
        first, last = elements.block(sequences[0] >> BLOCK_BITS), elements.block(sequences[-1] >> BLOCK_BITS)
        if first is last and first is not None:
            return len(sequences) if first.outside is not None else 0
        return sum([elements.get(sequence) is None for sequence in sequences])

    def given_back(self, subscription: Subscription, sequences: SequenceOf[int], *, attempted: bool) -> None:
        if self.closed:
            return
        self.unsettled_count -= len(sequences)
        self.returned_count += len(sequences)
        if self._expiring:
            sequences = self._drop_expired(sequences)
        self._put_back(sequences, attempted=attempted)
        if self._shelf is not None and attempted:
            attempts_of = self._cursor.attempts_of
            self._shelf.returned({sequence: attempts_of(sequence) for sequence in sequences})
        self.context.request_dispatch()

    def _put_back(self, sequences: SequenceOf[int], *, attempted: bool) -> None:
        """Hook of the kinds: these wait again."""
        self._cursor.give_back(sequences, attempted=attempted)

    # ------------------------------------------------------------------ leaving unread

    def _drop(self, sequences: SequenceOf[int]) -> None:
        """Remove elements that nobody holds, and free their space: which may let senders go on before this returns."""
        messages = [message for sequence in sequences if (message := self.elements.get(sequence)) is not None]
        # Unread always: a cursor that untakes may come past here again.
        self.elements.remove(sequences, unread=True)
        self._cursor.forget(sequences)
        if self._shelf is not None:
            self._shelf.settled(sequences)
        if self.elements.outside_gone_count:
            self._account_for_outside_gone()
        if messages:
            self.controller.release(len(messages), size_of(messages))

    def _drop_expired(self, sequences: SequenceOf[int]) -> SequenceOf[int]:
        """Of elements that come back: drop those past their date, return the others."""
        now_ms = self._environment.now_ms()
        expired = [
            sequence
            for sequence in sequences
            if (message := self.elements.get(sequence)) is not None and 0 < message.expires_at_ms <= now_ms
        ]
        if not expired:
            return sequences
        self.expired_count += len(expired)
        self._drop(expired)
        out = set(expired)
        return [sequence for sequence in sequences if sequence not in out]

    def _waits(self, sequence: int) -> bool:
        """Whether this element, if it is there, is in nobody's hands."""
        return self._cursor.is_available(sequence)

    def _expire(self, sequences: SequenceOf[int]) -> None:
        gone = [s for s in sequences if self._waits(s) and self.elements.get(s) is not None]
        if self.elements.outside_count:
            gone += self._expired_outside(sequences)
        if gone:
            self.expired_count += len(gone)
            self._drop(gone)

    def _expired_outside(self, sequences: SequenceOf[int]) -> list[int]:
        """Of blocks that are outside: all of one in which everything is past its date and in nobody's hands. Others
        have to come in.
        """
        assert self.pager is not None, "only what pages is outside"
        now_ms = self._environment.now_ms()
        gone: list[int] = []
        for index in dict.fromkeys([sequence >> BLOCK_BITS for sequence in sequences]):
            block = self.elements.block(index)
            if block is None or block.outside is None:
                continue
            dates = block.outside.dates
            if dates.all_dated and dates.latest_ms <= now_ms and block.base >= self._cursor.position:
                gone += self.elements.live_sequences(block.base, block.base + block.length)
            else:
                self.pager.want(index)
        return gone

    def _make_room(self, over_count: int, over_bytes: int) -> None:
        while over_count > 0 or over_bytes > 0:
            part = self._cursor.take(DROP_COUNT, UNLIMITED_BYTES)
            if part is None:
                index = self._cursor.waiting_for
                if index is None or index == NOTING:
                    return
                freed = self._drop_outside(index)
                over_count -= freed[0]
                over_bytes -= freed[1]
                continue
            cut = freed_bytes = 0
            for message in part.messages:
                if over_count <= cut and over_bytes <= freed_bytes:
                    break
                cut += 1
                freed_bytes += message.size_bytes
            self._cursor.untake(part, cut)
            self.dropped_count += cut
            self._drop(part.sequences[:cut])
            over_count -= cut
            over_bytes -= freed_bytes

    def _drop_outside(self, index: int) -> Gone:
        """Of a block that is outside, and is the next to be read: all that nobody holds goes, unread. Returns how much
        room that made.
        """
        block = self.elements.block(index)
        cursor = self._cursor
        cursor.waiting_for = None
        if block is None or block.outside is None:
            return 0, 0
        end = block.base + block.length
        sequences = [s for s in self.elements.live_sequences(block.base, end) if cursor.is_available(s)]
        before_bytes = block.outside.wire_bytes
        cursor.position = max(cursor.position, end)
        self.dropped_count += len(sequences)
        self._drop(sequences)
        return len(sequences), before_bytes - block.outside.wire_bytes + len(sequences) * MESSAGE_OVERHEAD_BYTES
