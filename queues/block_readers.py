"""Blocks that the readers of a topic read, and readers that wait for a block to come into memory.

A few subscriptions are all asked for their positions. A crowd is asked in portions: the positions that count are those
of the last complete round, of the subscriptions that are served next, and of the foremost reader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from .chores import Chores
from .cursored import BLOCK_BITS, BLOCK_SIZE
from .cursors import TrackingCursor
from .lead import Lead
from .queue import MessageQueue
from .slices import FAN_OUT_COUNT, VISIT_COST, Slice
from .subscription import Subscription
from .waking import Waking

TOLD_AT_ONCE: Final = 128
"""Subscriptions waiting for one block that are resumed in one dispatch."""

READING_AT_ONCE: Final = 512
"""Subscriptions that are asked together which block they read."""


class BlockReaders:
    """The blocks that the readers of one topic read.

    Attributes:
        ahead_of: the block behind which was read ahead in this dispatch: once for all that stand there.
    """

    __slots__ = (
        "_asked", "_awaiting", "_chores", "_lead", "_queue", "_reading", "_reading_next", "_telling", "_waking",
        "ahead_of",
    )  # fmt: skip

    def __init__(self, queue: MessageQueue, lead: Lead, waking: Waking, chores: Chores) -> None:
        self._queue = queue
        self._lead = lead
        self._waking = waking
        self._chores = chores
        self.ahead_of = -1
        self._awaiting: dict[int, dict[Subscription, None]] = {}
        """Subscriptions that wait for a block, by block."""
        self._telling: deque[tuple[int, Iterator[Subscription]]] = deque()
        """Blocks that have arrived, each with the subscriptions that are still to be resumed."""
        self._reading: set[int] = set()
        """Blocks that a crowd read when all of it was asked last."""
        self._reading_next: set[int] = set()
        self._asked: Iterator[Subscription] | None = None
        """A crowd is being asked anew: the subscriptions that are left."""

    def page_in(self, subscription: Subscription, cursor: TrackingCursor, part: Slice | None) -> None:
        """Request the block that this cursor reads next. `part`: what it has just taken; None: nothing was in
        memory.
        """
        pager = self._queue.pager
        assert pager is not None, "only what pages is outside"
        if part is not None:
            index = part.first >> BLOCK_BITS
            is_new = not part.first & (BLOCK_SIZE - 1) or part.end & (BLOCK_SIZE - 1) < FAN_OUT_COUNT
            if is_new and index != self.ahead_of:
                self.ahead_of = index
                pager.read_ahead(index)
        elif isinstance(cursor.waiting_for, int):
            self._awaiting.setdefault(cursor.waiting_for, {})[subscription] = None
            pager.want(cursor.waiting_for)

    def paged_in(self, index: int) -> None:
        """Resume the subscriptions that wait for the block, which is in memory or gone."""
        waiting = self._awaiting.pop(index, None)
        if waiting is not None:
            self._telling.append((index, iter(waiting)))
            self._chores.add(self._tell)

    def blocks(self) -> Iterable[int]:
        """The blocks that subscriptions with credit read next."""
        queue = self._queue
        if len(queue.subscriptions) <= READING_AT_ONCE:
            return _blocks_of(queue.subscriptions.values())
        if self._asked is None:
            self._asked = iter(list(queue.subscriptions.values()))
            self._chores.add(self._ask)
        return self._reading | _blocks_of(islice(queue.ring, READING_AT_ONCE)) | {self._lead.position >> BLOCK_BITS}

    def _tell(self, _budget: int) -> int:
        """Resume a portion of the subscriptions that waited for a block that has arrived."""
        telling, count = self._telling, TOLD_AT_ONCE
        while telling and count > 0:
            index, waiting = telling[0]
            for subscription in islice(waiting, count):
                count -= 1
                cursor = subscription.cursor
                if cursor is not None and cursor.arrived(index):
                    self._waking.wake(subscription)
            if count > 0:
                telling.popleft()
        if telling:
            self._chores.add(self._tell)
        return TOLD_AT_ONCE * VISIT_COST

    def _ask(self, _budget: int) -> int:
        """Ask a portion of a crowd which blocks it reads."""
        if self._asked is None:
            return 0
        part = list(islice(self._asked, READING_AT_ONCE))
        self._reading_next |= _blocks_of(part)
        if len(part) < READING_AT_ONCE:
            self._reading, self._reading_next = self._reading_next, set()
            self._asked = None
        else:
            self._chores.add(self._ask)
        return 0


def _blocks_of(subscriptions: Iterable[Subscription]) -> set[int]:
    """Yield the blocks that the subscriptions with credit read next."""
    return {
        subscription.cursor.position >> BLOCK_BITS
        for subscription in subscriptions
        if subscription.cursor is not None and not subscription.source.blocked
    }
