"""Base of the queues whose messages are consumed: one cursor, and an element leaves when it is settled.

Shared by ExclusiveQueue (one subscription) and SharedQueue (many).
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Final

from queues.cursored import Cursor, Slice
from queues.message import MESSAGE_OVERHEAD_BYTES, size_of
from queues.policy import QueuePolicy
from queues.queue import MessageQueue, QueueEnvironment
from queues.subscription import Subscription

DROP_COUNT: Final = 64
"""Elements looked at together when room must be made."""

UNLIMITED_BYTES: Final = 1 << 62


class ConsumedQueue(MessageQueue):
    """One consuming cursor. Not for direct use."""

    def __init__(self, name: str, policy: QueuePolicy, environment: QueueEnvironment, *, priority: int = 4) -> None:
        super().__init__(name, policy, environment, priority=priority)
        self._cursor = Cursor(self.elements, 0)

    def _take(self, count_max: int, bytes_max: int) -> Slice | None:
        """The next elements that are not past their date; those that are leave here."""
        while True:
            part = self._cursor.take(count_max, bytes_max)
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
        self.elements.remove(sequences)
        self._cursor.forget(sequences)
        self.unsettled_count -= count
        self.settled_count += count
        self._last_active_seconds = self._environment.clock()
        self.controller.release(count, wire_bytes + count * MESSAGE_OVERHEAD_BYTES)

    def given_back(self, subscription: Subscription, sequences: SequenceOf[int], *, attempted: bool) -> None:
        if self.closed:
            return
        self.unsettled_count -= len(sequences)
        self.returned_count += len(sequences)
        if self._expiring:
            sequences = self._drop_expired(sequences)
        self._put_back(sequences, attempted=attempted)
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
        if gone:
            self.expired_count += len(gone)
            self._drop(gone)

    def _make_room(self, over_count: int, over_bytes: int) -> None:
        while over_count > 0 or over_bytes > 0:
            part = self._cursor.take(DROP_COUNT, UNLIMITED_BYTES)
            if part is None:
                return
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
