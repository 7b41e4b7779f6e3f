"""One consumer gets everything: the plainest path from elements to a consumer. Seed 002 "Exclusive Queue"."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from .consumed import ConsumedQueue
from .distribution import ConsumedDistribution
from .selectors.selector import Selection


class SingleDistribution(ConsumedDistribution):
    """Distribution with at most one subscription at a time."""

    __slots__ = ("_cursor", "_queue")

    def __init__(self, queue: ConsumedQueue, *, senders_wait: bool = True) -> None:
        super().__init__(senders_wait=senders_wait)
        self._queue = queue
        self._cursor = queue.states.cursor

    def check(self, selection: Selection | None) -> None:
        name, subscriptions = self._queue.name, self._queue.subscriptions
        if selection is not None:
            raise ValueError(f"{name} has one consumer, which gets all messages: subscribe without a selection")
        if subscriptions:
            (taken,) = subscriptions.values()
            raise ValueError(f"{name} has its one consumer already: {taken.consumer.label}; close that one first")

    def dispatch(self, budget: int) -> bool:
        queue = self._queue
        ring = queue.ring
        while ring:
            subscription = next(iter(ring))
            if subscription.source.blocked:
                del ring[subscription]
                continue
            if not self._cursor.has_more:
                return False
            if budget <= 0:
                return True
            room_count, room_bytes = queue.room_of(subscription)
            if not room_count:
                continue
            part = queue.acquire(min(budget, room_count), room_bytes)
            if part is None:
                return False
            budget -= part.cost
            queue.hand_over(subscription, part)
        return False

    def requeue(self, sequences: SequenceOf[int]) -> None:
        self._cursor.requeue(sequences, attempted=False)
