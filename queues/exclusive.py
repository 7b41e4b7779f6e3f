"""A queue with one subscription: the plainest path from elements to a consumer. Seed 002 "Exclusive Queue"."""

from __future__ import annotations

from ..flow.kinds import ResourceKind
from .consumed import ConsumedQueue
from .selectors.selector import Selection
from .subscription import Consumer, Subscription


class ExclusiveQueue(ConsumedQueue):
    """At most one subscription at a time."""

    kind_label = ResourceKind.EXCLUSIVE_QUEUE

    def subscribe(
        self,
        consumer: Consumer,
        *,
        exclusive: bool = True,
        durable_id: int | None = None,
        shares: bool = False,
        selection: Selection | None = None,
        from_beginning: bool = False,
    ) -> Subscription:
        """As in MessageQueue. Raises ValueError if there is a subscription already, or for a selection: what it did not
        take nobody could.
        """
        if selection is not None:
            raise ValueError(f"{self.name} has one consumer, who gets all: subscribe without a selection")
        if self.subscriptions:
            (taken,) = self.subscriptions.values()
            raise ValueError(f"{self.name} has its one consumer already: {taken.consumer.label}; close that one first")
        return super().subscribe(consumer, exclusive=exclusive, durable_id=durable_id, shares=shares)

    def dispatch(self, budget: int) -> bool:
        ring = self._ring
        while ring:
            subscription = next(iter(ring))
            if subscription.source.blocked:
                del ring[subscription]
                continue
            if not self._cursor.has_more:
                return False
            if budget <= 0:
                return True
            room_count, room_bytes = self._room_of(subscription)
            if not room_count:
                continue
            part = self._take(min(budget, room_count), room_bytes)
            if part is None:
                return False
            budget -= part.cost
            self._hand_over(subscription, part)
        return False
