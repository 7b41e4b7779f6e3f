"""Base of the queues whose messages are consumed: one cursor, and an element leaves when it is settled.

Shared by ExclusiveQueue (one subscription) and SharedQueue (many).
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from queues.cursored import Cursor, Slice
from queues.message import MESSAGE_OVERHEAD_BYTES
from queues.policy import QueuePolicy
from queues.queue import MessageQueue, QueueEnvironment
from queues.subscription import Subscription


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
            expired = [
                sequence
                for sequence, message in zip(part.sequences, part.messages, strict=True)
                if self._is_expired(message)
            ]
            if not expired:
                return part
            self._drop(expired)
            self.expired_count += len(expired)
            rest = part.without(expired)
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
        self._cursor.give_back(sequences, attempted=attempted)
        self.unsettled_count -= len(sequences)
        self.returned_count += len(sequences)
        self.context.request_dispatch()

    # ------------------------------------------------------------------ leaving unread

    def _drop(self, sequences: list[int]) -> tuple[int, int]:
        """Remove elements that nobody holds; returns their number and charge."""
        charge_bytes = 0
        for sequence in sequences:
            message = self.elements.get(sequence)
            if message is not None:
                charge_bytes += message.size_bytes
        self.elements.remove(sequences, unread=True)
        self._cursor.forget(sequences)
        self._release(len(sequences), charge_bytes)
        return len(sequences), charge_bytes

    def _expire(self, sequences: range) -> None:
        gone = [
            sequence
            for sequence in sequences
            if self._cursor.is_available(sequence) and self.elements.get(sequence) is not None
        ]
        if gone:
            self._drop(gone)
            self.expired_count += len(gone)

    def _make_room(self, over_count: int, over_bytes: int) -> None:
        while over_count > 0 or over_bytes > 0:
            part = self._cursor.take(64, 1 << 62)
            if part is None:
                return
            cut = freed_bytes = 0
            for message in part.messages:
                if over_count <= cut and over_bytes <= freed_bytes:
                    break
                cut += 1
                freed_bytes += message.size_bytes
            self._cursor.give_back(part.sequences[cut:], attempted=False)
            self._drop(list(part.sequences[:cut]))
            self.dropped_count += cut
            over_count -= cut
            over_bytes -= freed_bytes
