"""Deliveries of one log, from all brokers, that wait for the streams of the consumer.

Bounded by bytes: a reader waits until there is room, and so its broker does. Whole deliveries go through it, so a
record costs nothing here. Errors come in their turn, behind what came before them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from sluiceway.client.errors import ClientError, Gap
from sluiceway.client.records import Delivery

TICK_SECONDS = 1.0
"""Time between two signs of life of a reader that waits for room."""


class Inbox:
    """Inbox of one log of a consumer."""

    def __init__(self, buffer_bytes: int, readers_count: int) -> None:
        self.held_bytes = 0
        self._buffer_bytes = buffer_bytes
        self._readers_count = readers_count
        self._items: deque[Delivery | Gap] = deque()
        lock = threading.Lock()
        self._arrived = threading.Condition(lock)
        self._room = threading.Condition(lock)
        self._error: ClientError | None = None
        self._closed = False

    # ------------------------------------------------------------------ readers

    def put(self, delivery: Delivery, waiting: Callable[[], bool]) -> bool:
        """Add a delivery as soon as there is room. `waiting` is called now and then; when it says False, or the inbox
        is closed, the delivery is dropped and False returned.
        """
        size_bytes = delivery.size_bytes
        with self._arrived:
            while self.held_bytes and self.held_bytes + size_bytes > self._buffer_bytes:
                if self._closed or not waiting():
                    return False
                self._room.wait(TICK_SECONDS)
            if self._closed or self._error is not None:
                return False
            self._items.append(delivery)
            self.held_bytes += size_bytes
            self._arrived.notify()
            return True

    def put_gap(self, gap: Gap) -> None:
        """Add word of a gap."""
        with self._arrived:
            if not self._closed and self._error is None:
                self._items.append(gap)
                self._arrived.notify()

    def fail(self, error: ClientError) -> None:
        """Raise this in all streams when they have taken what came before. Only the first one counts."""
        with self._arrived:
            if self._error is None:
                self._error = error
            self._arrived.notify_all()
            self._room.notify_all()

    def reader_ended(self) -> None:
        """A reader has no more. After the last one the streams end."""
        with self._arrived:
            self._readers_count -= 1
            self._arrived.notify_all()

    def drop(self, stale: Callable[[Delivery], bool]) -> None:
        """Forget deliveries that their broker will deliver again."""
        with self._arrived:
            kept: deque[Delivery | Gap] = deque()
            for item in self._items:
                if isinstance(item, Delivery) and stale(item):
                    self.held_bytes -= item.size_bytes
                else:
                    kept.append(item)
            self._items = kept
            self._room.notify_all()

    # ------------------------------------------------------------------ streams

    def take(self, timeout_seconds: float | None) -> Delivery | Gap | None:
        """The next thing, or None: after that time, or when `ended`. Raises the error that a reader met."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        with self._arrived:
            while not self._items:
                if self._error is not None and not self._closed:
                    raise self._error
                if self._closed or self._readers_count == 0:
                    return None
                if not self._arrived.wait(None if deadline is None else max(0.0, deadline - time.monotonic())):
                    return None
            item = self._items.popleft()
            if isinstance(item, Delivery):
                self.held_bytes -= item.size_bytes
                self._room.notify_all()
            return item

    @property
    def ended(self) -> bool:
        """Whether nothing will come any more."""
        with self._arrived:
            return not self._items and (self._closed or self._readers_count == 0)

    # ------------------------------------------------------------------ the consumer

    def close(self, *, keep: bool) -> None:
        """Take no more records from readers; with `keep` streams may still take the present ones."""
        with self._arrived:
            self._closed = True
            if not keep:
                self._items.clear()
                self.held_bytes = 0
            self._arrived.notify_all()
            self._room.notify_all()
