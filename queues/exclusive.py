"""A queue with one subscription: the plainest path from elements to a consumer. Seed 002 "Exclusive Queue"."""

from __future__ import annotations

from queues.consumed import ConsumedQueue
from queues.subscription import Consumer, Subscription


class ExclusiveQueue(ConsumedQueue):
    """At most one subscription at a time; a second one raises ValueError."""

    kind_label = "exclusive queue"

    def subscribe(self, consumer: Consumer, *, exclusive: bool = True) -> Subscription:
        if self.subscriptions:
            (taken,) = self.subscriptions.values()
            raise ValueError(f"{self.name} has its one consumer already: {taken.consumer.label}")
        return super().subscribe(consumer, exclusive=exclusive)

    def dispatch(self, budget: int) -> bool:
        while self._ring:
            subscription = self._ring[0]
            if subscription.closed or subscription.source.blocked:
                subscription.in_ring = False
                self._ring.popleft()
                continue
            if budget <= 0:
                return self._cursor.has_more
            room_count, room_bytes = subscription.consumer.room(express=self.express)
            part = self._take(min(budget, room_count), room_bytes)
            if part is None:
                return False
            budget -= len(part.messages)
            self._hand_over(subscription, part)
        return False
