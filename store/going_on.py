"""Release of readers that wait for the disk when it begins to fail; in steps, for there may be a hundred thousand.

Readers of queues wait for a lease, and do not while the disk fails (`QueueRecords.may_hand_over`); readers that wait
already are released here, as are requests to put blocks out of memory for which there is no room: their batch may never
succeed.

Bound: the shelves of the store once, and the blocks of one batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from ..queues.environment import DispatchHandle, Scheduling
from .batch import PageOut

if TYPE_CHECKING:
    from .together import Shelf

PER_STEP: Final = 128
"""Shelves per dispatch: about a millisecond, if all of them have readers."""


class GoingOn:
    """Release of the waiting readers of one store."""

    def __init__(self, scheduling: Scheduling, tell: Callable[[Iterable[Callable[[], None]]], None]) -> None:
        """`tell` runs callbacks, and contains their errors."""
        self._context: DispatchHandle = scheduling.register(
            self._dispatch, "readers that continue while the disk fails"
        )
        self._tell = tell
        self._shelves: Iterator[Shelf] = iter(())
        self._refused: deque[PageOut] = deque()

    def all_readers(self, shelves: Iterable[Shelf]) -> None:
        """Release the waiting readers of all `shelves`: the disk begins to fail. They include the rest of an earlier
        round.
        """
        self._shelves = iter(list(shelves))
        self._context.request_dispatch()

    def refused(self, page_outs: Iterable[PageOut]) -> None:
        """Tell queues that these blocks stay in memory."""
        self._refused.extend(page_outs)
        self._context.request_dispatch()

    def _dispatch(self, _budget: int) -> bool:
        shelves = list(islice(self._shelves, PER_STEP))
        self._tell([shelf.go_on_unnoted for shelf in shelves])
        page_outs = [self._refused.popleft() for _ in range(min(PER_STEP - len(shelves), len(self._refused)))]
        self._tell([page_out.answer for page_out in page_outs])
        return bool(shelves or self._refused)
