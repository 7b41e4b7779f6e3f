"""Overdue elements of a topic: expired, but held by a reader, or refused and not given up yet.

An *overdue* element leaves when its last holder releases it: it is checked again whenever a reader settles it, gives it
back or leaves. A check asks all readers, so it is done soon after, in portions, and once for all readers that release
elements together.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from .environment import QueueEnvironment, TimerHandle
from .queue import MessageQueue


class Overdue:
    """The overdue elements of one topic.

    Attributes:
        sequences: all of them. Plain, because the hot path reads it.
    """

    __slots__ = ("_all_released", "_environment", "_queue", "_released", "_timer", "sequences")

    def __init__(self, queue: MessageQueue, environment: QueueEnvironment) -> None:
        self._queue = queue
        self._environment = environment
        self.sequences: set[int] = set()
        self._released: set[int] = set()
        """Elements that a reader has released, and that are to be checked."""
        self._all_released = False
        self._timer: TimerHandle | None = None

    def released(self, sequences: SequenceOf[int]) -> None:
        """Check soon the overdue ones of the elements that a reader has released. O(sequences)."""
        self._released.update(self.sequences.intersection(sequences))
        self._arm()

    def all_released(self) -> None:
        """Check soon all overdue elements: a reader is gone."""
        if self.sequences:
            self._all_released = True
            self._arm()

    def requeued(self, sequences: SequenceOf[int]) -> None:
        """Expire the expired ones of the elements that a reader has just given back."""
        queue = self._queue
        if queue.expiry.is_needed:
            now_ms, elements = self._environment.now_ms(), queue.elements
            get = elements.get
            queue.expire(sorted([s for s in sequences if (m := get(s)) is not None and 0 < m.expires_at_ms <= now_ms]))
            if self.sequences:  # elements dropped by the topic since have no holder now
                self.sequences.difference_update([s for s in sequences if not elements.is_alive(s)])

    def close(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        if (self._all_released or self._released) and self._timer is None and not self._queue.closed:
            self._timer = self._environment.scheduling.call_later(0, self._expire)

    def _expire(self) -> None:
        """Check a portion of the released elements."""
        self._timer = None
        if self._all_released:
            self._all_released = False
            self._released = set(self.sequences)
        released, queue = self._released, self._queue
        portion = [released.pop() for _ in range(min(len(released), queue.expire_count))]
        queue.expire(sorted(self.sequences.intersection(portion)))
        self._arm()
