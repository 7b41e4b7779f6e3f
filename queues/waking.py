"""Readers of a topic whose cursors may find something again: their consumers go back into the ring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from .chores import Chores
from .durables import DurableReader
from .queue import MessageQueue
from .subscription import Subscription

WOKEN_AT_ONCE: Final = 16
"""Consumers that share one durable subscription; more are woken in dispatches."""

WOKEN_PER_DISPATCH: Final = 128
"""Consumers that are woken in one dispatch."""


class Waking:
    """Wakes the consumers of one topic."""

    __slots__ = ("_chores", "_queue", "_readers", "_to_wake", "_waking")

    def __init__(self, queue: MessageQueue, readers: Mapping[int, DurableReader], chores: Chores) -> None:
        """`readers`: the durable subscriptions, by their ids."""
        self._queue = queue
        self._readers = readers
        self._chores = chores
        self._to_wake: dict[DurableReader, None] = {}
        """Readers with many consumers."""
        self._waking: tuple[DurableReader, Iterator[Subscription]] | None = None
        """Reader whose consumers are being woken, and the iterator over the rest of them."""

    def wake(self, subscription: Subscription) -> None:
        """Wake a subscription whose cursor may find something, and all that read with the same cursor."""
        if subscription.durable_id is None:
            self._queue.enter_ring(subscription)
        elif (reader := self._readers.get(subscription.durable_id)) is not None:  # or it was removed meanwhile
            self.wake_all(reader)

    def wake_all(self, reader: DurableReader) -> None:
        """Wake all consumers of a reader; if they are many, in dispatches and once, however often that is asked for."""
        if len(reader.subscriptions) > WOKEN_AT_ONCE:
            self._to_wake[reader] = None
            self._chores.add(self._go_on)
            return
        for subscription in reader.subscriptions:
            self._queue.enter_ring(subscription)

    def _go_on(self, _budget: int) -> int:
        if self._waking is None:
            if not self._to_wake:
                return 0
            reader = next(iter(self._to_wake))
            del self._to_wake[reader]
            self._waking = reader, iter(list(reader.subscriptions))
        reader, left = self._waking
        part = list(islice(left, WOKEN_PER_DISPATCH))
        if self._readers.get(reader.durable_id) is reader:  # it was not removed meanwhile
            for subscription in part:
                self._queue.enter_ring(subscription)
        if len(part) < WOKEN_PER_DISPATCH:
            self._waking = None
        if self._waking is not None or self._to_wake:
            self._chores.add(self._go_on)
        return WOKEN_PER_DISPATCH
