"""Committed transactions on their way from the disk to their queues: as sources that wait like any other.

A `SpoolDrain` brings pieces to one queue, one at a time and in order. It is a flow source: when the queue has no room
it gets into line there, and when its turn comes it keeps it while it reads its next piece. A piece goes in whole; the
next one follows when the disk knows that it did, so consumers always get something in between.

Nothing is kept in memory of what waits but the numbers of the pieces.

Pieces for a queue that the broker abandoned (its own mistake) stay on the disk: the next start has both again.

Pieces for a queue that was deleted are dropped, DROP_COUNT at a time: after a crash the next start drops the rest, for
the store has noted it with the deletion.

Invariant: a piece is told to be moved once at most, when it is in its queue, or nobody wants it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby, islice
from typing import Final

from ...flow import SourceController
from ...flow.latch import Latch
from ...queues.atomic_offer import offer_together
from ...queues.intake import Run
from ...queues.message import Message, size_of
from ...queues.queue import MessageQueue
from .spools import Spool

DROP_COUNT: Final = 256
"""Pieces that nobody wants go so many at a time: a millisecond."""


class SpoolDrain:
    """Pieces on their way to one queue."""

    __slots__ = (
        "_count",
        "_is_reading",
        "_left",
        "_may_go",
        "_persistent_only",
        "_pieces",
        "_unheard",
        "_writing_count",
        "is_over",
        "moved_count",
        "queue",
        "source",
    )

    def __init__(
        self,
        pieces: Iterable[tuple[Spool, int]],
        queue: MessageQueue,
        source: SourceController,
        *,
        count: int,
        may_go: Callable[[], bool],
        left: Callable[[Spool, int, int, int], None],
        unheard: Callable[[int], None],
        persistent_only: bool = False,
    ) -> None:
        """`pieces` (spool and place; `count` messages) go to `queue` as `source`, while `may_go`. `left` is told of
        each that is moved, and how many messages and bytes the queue got; `unheard`, how many messages nobody wanted.
        `persistent_only`: the others belonged to an earlier run.
        """
        self._pieces = deque(pieces)
        self._count = count
        self.queue = queue
        self.source = source
        """What the queue blocks."""
        self._may_go = may_go
        self._left = left
        self._unheard = unheard
        self._persistent_only = persistent_only
        self._is_reading = False
        self._writing_count = 0
        """Pieces that are moved, and the disk does not know."""
        self.is_over = not self._pieces
        """All of it is moved, and the disk knows."""
        self.moved_count = 0
        """Pieces."""

    @property
    def left_count(self) -> int:
        """Pieces that are not moved yet."""
        return len(self._pieces)

    def go(self) -> bool:
        """Something may have changed: read the next piece, if it is time. Returns whether one is being read. If not,
        the turn of the source is of no use to this leg; others may have the same source.
        """
        if self._is_reading:
            return True
        if self.queue.is_kept:
            self._leave()
            return False
        if self._writing_count or not self._pieces or not self._may_go():
            return False
        if self.queue.closed:
            self._drop()
        elif not self.source.blocked:
            spool, place = self._pieces[0]
            self._is_reading = True
            spool.read(place, self._arrived, self.source.end_turn)
        return self._is_reading

    def _arrived(self, messages: list[Message]) -> None:
        self._is_reading = False
        queue = self.queue
        if queue.is_kept:
            self._leave()
            return
        if queue.closed:
            self._drop()
            return
        if self.source.blocked:
            return  # by the store, perhaps: its turn will come
        count = len(messages)
        if self._persistent_only:
            messages = [message for message in messages if message.head.persistent]
        first = queue.elements.next_sequence
        runs = runs_of(messages)
        if runs and not offer_together(queue, runs, self.source):
            self.source.end_turn()
            return
        self._count -= count
        persistent = any(message.head.persistent for message in messages)
        self._piece_moved(queue, first, runs, persistent=persistent)
        self.source.end_turn()

    def _leave(self) -> None:
        """The queue is there again with the next start, and so are its pieces."""
        self.source.end_turn()
        while self._pieces:
            spool, place = self._pieces.popleft()
            self._left(spool, place, 0, 0)

    def _drop(self) -> None:
        """Nobody wants the rest: the next ones follow when these are gone from the disk."""
        self._unheard(max(0, self._count))
        self._count = 0
        self.source.end_turn()
        for _ in range(min(DROP_COUNT, len(self._pieces))):
            self._piece_moved(None, 0, [], persistent=False)

    def _piece_moved(self, queue: MessageQueue | None, first: int, runs: list[Run], *, persistent: bool) -> None:
        spool, place = self._pieces.popleft()
        self._writing_count += 1
        self.moved_count += 1
        spool.moved(place, queue, first, persistent=persistent, done=self._written)
        self._left(spool, place, sum([len(run.messages) for run in runs]), sum([run.charge_bytes for run in runs]))

    def _written(self) -> None:
        self._writing_count -= 1
        self.is_over = not self._pieces and not self._writing_count
        self.go()


def drop(
    pieces: Iterator[tuple[Spool, int]], *, dropped: Callable[[Spool, int], None], done: Callable[[], None]
) -> None:
    """Delete pieces for a destination that is gone, DROP_COUNT at a time: the next ones follow when the disk has let go
    of these. `dropped` is told of each before that, `done` when all are gone.
    """
    some = list(islice(pieces, DROP_COUNT))
    if not some:
        done()
        return
    gone = Latch(len(some), partial(drop, pieces, dropped=dropped, done=done))
    for spool, place in some:
        dropped(spool, place)
        spool.moved(place, None, 0, persistent=False, done=gone)


def runs_of(messages: list[Message]) -> list[Run]:
    """Messages as queues take them: those that they have to look at one by one apart."""
    runs: list[Run] = []
    for _kind, group in groupby(messages, key=_kind_of):
        part = list(group)
        charge_bytes = size_of(part)
        runs.append(Run(part, charge_bytes))
    return runs


def _kind_of(message: Message) -> object:
    head = message.head
    plain = head.group is None and not (head.expires_at_ms or head.ttl_ms or head.delay_ms)
    return head.persistent if plain else id(head)
