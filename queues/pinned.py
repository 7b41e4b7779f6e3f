"""Pinned elements of a topic: no reader needs them, but they are behind an element that a reader holds.

An element leaves a topic when all fronts have passed it, so an element that is held for long would keep all elements
that its reader passes over behind it. Such elements are removed by name: now and then (PINNED_COUNT), and before
anything else when room has to be made.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .blocks import NOTHING_GONE, Gone
from .chores import Chores
from .cursors import TrackingCursor
from .overdue import Overdue
from .queue import MessageQueue
from .ranges import RangeSet
from .readers import Readers

PINNED_COUNT: Final = 256
"""Messages passed over behind a held one, after which a look is due for elements that no reader needs. If a look takes
more steps than that, as many messages as it takes steps: a look never costs more than the passing itself.
"""

PINNED_SHARE: Final = 8
"""Divisor of the topic's memory: the alternative limit, when half of the memory is in use."""

LOOKED_AT_ONCE: Final = 64
"""Readers that are asked in one dispatch which elements they need."""

RUNS_PER_STEP: Final = 16
FREED_AT_ONCE: Final = 256
FREED_PER_STEP: Final = 8
"""Elements freed per step: about the time it takes to ask one reader."""


class Pinned:
    """Pinned elements of one topic.

    Attributes:
        count: elements passed over behind a held one since the last look.
        look: the look that is under way, as an iterator over its findings; None: none is. Plain, because the hot path
            reads it.
    """

    __slots__ = ("_bytes", "_chores", "_look_count", "_overdue", "_queue", "_readers", "count", "look")

    def __init__(self, queue: MessageQueue, readers: Readers, overdue: Overdue, chores: Chores) -> None:
        self._queue = queue
        self._readers = readers
        self._overdue = overdue
        self._chores = chores
        self.count = self._bytes = 0
        self._look_count = PINNED_COUNT
        """Number after which the next look is due."""
        self.look: Iterator[list[int]] | None = None

    @property
    def may_be_there(self) -> bool:
        """Whether the topic may hold elements that no reader needs."""
        return self.count > 0 or self.look is not None

    def passed(self, count: int, charge_bytes: int) -> None:
        """Note elements that a reader passed over behind one that it holds."""
        self.count += count
        self._bytes += charge_bytes
        if self.count >= self._look_count or self._may_be_much():
            self.begin()  # and the dispatch continues it: one look for all elements passed over

    def _may_be_much(self) -> bool:
        """Return whether pinned elements may be a good part of the memory, and that part is needed. (Of many readers
        each counts the same.)
        """
        memory_bytes, used_bytes = self._queue.policy.memory_bytes, self._queue.controller.limiter.used_bytes
        return self._bytes * PINNED_SHARE >= memory_bytes and used_bytes * 2 >= memory_bytes

    def begin(self) -> None:
        """Begin a look, unless one is under way. The next dispatches continue it."""
        if self.look is None:
            self.count = self._bytes = 0
            self.look = self._looking()
            self._chores.add(self._go_on)

    def letting_go(self) -> Iterator[Gone]:
        """Let all of it go, in steps of the caller."""
        yield from self._rest()  # that look began before the latest was passed over
        if self.count:
            self.begin()
            yield from self._rest()

    def _rest(self) -> Iterator[Gone]:
        while self.look is not None:
            self.look_on(1)
            yield NOTHING_GONE

    def _go_on(self, _budget: int) -> int:
        if self.look is None:
            return 0
        self.look_on(LOOKED_AT_ONCE)
        return LOOKED_AT_ONCE

    def look_on(self, count: int) -> None:
        """Continue the look by `count` steps."""
        look, gone_count, gone_bytes = self.look, 0, 0
        while count > 0 and look is not None:
            free = next(look, None)
            if free is None:
                look = self.look = None
                break
            count -= 1
            if free:
                count -= len(free) // FREED_PER_STEP
                gone_count += len(free)
                gone_bytes += self._let_go_of(free)
        if look is not None:
            self._chores.add(self._go_on)
        if gone_count:
            self._queue.free((gone_count, gone_bytes))

    def _let_go_of(self, free: list[int]) -> int:
        """Remove elements that no reader needs. Return their bytes."""
        elements, storage = self._queue.elements, self._queue.storage
        get, outside_bytes = elements.get, elements.outside_gone_bytes
        wires = [len(message.wire) for sequence in free if (message := get(sequence)) is not None]
        elements.remove(free, unread=True)
        if storage is not None:
            storage.settled(free)
        self._overdue.sequences.difference_update(free)
        return sum(wires) + elements.outside_gone_bytes - outside_bytes

    def _looking(self) -> Iterator[list[int]]:
        """Ask all readers, one after the other, which of the present elements they need; then yield the elements that
        none needs, in portions. An element that a reader does not need now it will never need, and a reader that comes
        meanwhile begins behind all of them, or with the beginning, which is asked first. O(holes in the settled set of
        each reader).
        """
        elements = self._queue.elements
        end, steps_count = elements.next_sequence, 0
        lowest, needed = end, RangeSet()
        # All from the lowest on is needed, and more.
        for cursor in self._cursors():
            steps_count += 1
            if cursor.front < lowest:
                settled = cursor.settled_above()
                if not settled:
                    lowest = cursor.front
                    if elements.first_live(0) >= lowest:
                        break  # all present elements are needed
                start = cursor.front
                for number, (first, stop) in enumerate(settled, 1):
                    if first >= lowest:
                        break
                    needed.add(start, first)
                    start = stop
                    if number % RUNS_PER_STEP == 0:
                        steps_count += 1
                        yield []
                if settled:
                    needed.add(start, lowest)
            yield []
        self._look_count = max(PINNED_COUNT, steps_count)
        for first, stop in needed.holes(elements.first_live(0), lowest):
            for start in range(first, stop, FREED_AT_ONCE):
                yield elements.live_sequences(start, min(stop, start + FREED_AT_ONCE))

    def _cursors(self) -> Iterator[TrackingCursor]:
        """Yield all present cursors, the beginning first, except those that are gone when their turn comes."""
        by_id = self._readers.by_id
        subscriptions, readers = list(self._queue.subscriptions.values()), list(by_id.values())
        if self._readers.beginning.cursor is not None:
            yield self._readers.beginning.cursor
        for subscription in subscriptions:
            if subscription.durable_id is None and subscription.cursor is not None and not subscription.closed:
                yield subscription.cursor
        for reader in readers:
            if reader.durable_id in by_id:
                yield reader.cursor
