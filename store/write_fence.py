"""Changes that belong to elements of a queue, and are written with them: all in one batch, or none.

A piece of a spooled transaction is deleted in the very batch that saves its messages in their queue, so that at any
moment they are in one of the two on disk, and never in both. Until that batch is written its elements are *held*: no
consumer gets them, for a crash would bring them back as if they had never been seen.

Bound: one entry for each piece that was moved and is not written; the sender that moves them waits for that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from ..queues.storage import Elements
from .batch import StoreBatch
from .engine import Change
from .keys import BLOCK_BITS

NOTHING_BEGUN: Final = 0


class FencedChanges(NamedTuple):
    """Changes that go into the batch with elements `first` to `end - 1`."""

    first: int
    end: int
    changes: list[Change]
    done: Callable[[], None] | None
    """Called when the changes are written."""
    undone: Callable[[], None] | None
    """Called if they never will be: the broker made a mistake with the queue."""


class WriteFence:
    """The attached changes of one shelf, in order of their elements."""

    __slots__ = ("_held", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[FencedChanges] = deque()
        """Changes that are in no batch yet."""
        self._held: deque[tuple[int, int]] = deque()
        """First and end of elements that are not on disk yet."""

    def __bool__(self) -> bool:
        """Return whether changes are in no batch yet."""
        return bool(self._waiting)

    def add(
        self,
        first: int,
        end: int,
        changes: list[Change],
        done: Callable[[], None] | None,
        undone: Callable[[], None] | None = None,
    ) -> None:
        """Attach changes to elements `first` to `end - 1`, behind all others; with `first == end`: to the next
        elements, or to those saved before this place is reached. `done` and `undone`: see `QueueRecords.attach`.
        """
        place = len(self._waiting)
        while place and self._waiting[place - 1].end > end:  # changes passed on by a deleted queue are older
            place -= 1
        self._waiting.insert(place, FencedChanges(first, end, changes, done, undone))
        if first < end:
            self._held.append((first, end))

    def begun_to(self, saved_to: int) -> int:
        """Return the end of attachments whose first elements were saved, and that must go into the same batch.
        NOTHING_BEGUN: there are none.
        """
        if not self._waiting or self._waiting[0].first >= saved_to:
            return NOTHING_BEGUN
        return self._waiting[0].end

    def put_into(self, batch: StoreBatch, saved_to: int, let_through: Callable[[], None]) -> None:
        """Put changes into the batch whose elements are saved by now. `let_through`: called when some are not held any
        more.
        """
        waiting = self._waiting
        while waiting and waiting[0].end <= saved_to:
            one = waiting.popleft()
            for change in one.changes:
                batch.add(change, len(change[2]))
            if one.first < one.end:
                batch.sync = True  # their receivers must not get them again from their former place, after a power cut
                batch.written.append(partial(self._written, let_through))
            if one.done is not None:
                batch.written.append(one.done)

    def _written(self, let_through: Callable[[], None]) -> None:
        self._held.popleft()
        let_through()

    def take_all(self) -> list[FencedChanges]:
        """Take all changes that are in no batch: the queue is gone."""
        left = list(self._waiting)
        self._waiting.clear()
        return left

    def holds(self, elements: Elements, position: int) -> bool:
        """Return whether a reader that continues at `position` may reach elements that are held."""
        if not self._held:
            return False
        first, end = self._held[0][0], self._held[-1][1]
        if end <= position:
            return False
        # A reader may come as far as the end of the next block, or further over a gap.
        index = position >> BLOCK_BITS
        return first < (index + 2) << BLOCK_BITS or elements.block(index) is None or elements.block(index + 1) is None
