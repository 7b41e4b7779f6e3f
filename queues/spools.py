"""Spools: messages of committed transactions that wait on the disk, and the way from there to their queues.

`Spool` is the part of one transaction that has left memory, `Spools` begins spools; both are ports, which
`sluiceway.store.spool` implements. A spool consists of *pieces*, each some messages for one queue, by place: 0, 1, … A
piece is written once, and read again when its transaction is committed and its queue has room. Everything is
synchronous and never waits; answers come as callbacks on the dispatch loop.

A `SpoolDrain` brings pieces to one queue, one at a time and in order. A drain is a flow source: when the queue has no
room the drain gets into line there, and when its turn comes it keeps the turn while it reads its next piece. A piece
goes in whole; the next one follows when the disk knows that it did, so consumers always get something in between. Of
waiting pieces nothing is in memory but their numbers.

Pieces for a queue that the broker abandoned (its own mistake) stay on the disk: the next start restores both. Pieces
for a queue that was deleted are dropped, DROP_COUNT at a time: after a crash the next start drops the rest, for the
store has noted that with the deletion.

A relay keeps nothing, so no batch that deletes a piece can save its messages. What is persistent of it, and would come
again after a crash, comes once at most: its piece is deleted, with a sync, before the relay gets it. Meanwhile it is
charged there, which had room.

Invariant: `Spool.moved` is called once at most for each piece, when it is in its queue (or will be, in a relay), or its
destination is gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from functools import partial
from itertools import groupby, islice
from typing import Final, Protocol

from ..flow import SourceController
from ..flow.kinds import ResourceKind
from ..flow.latch import Latch
from .atomic_offer import offer_together
from .intake import Run
from .message import Message, size_of
from .names import parse, split_part
from .producers import origin_of
from .queue import MessageQueue
from .registry import DestinationRegistry
from .storage import Confirms

DROP_COUNT: Final = 256
"""Number of pieces that are dropped at a time: a millisecond."""

SpoolTarget = tuple[str, int, bool]
"""Queue as a target: full name of its destination, priority, whether it is a topic (not the delay queue in front of
one). A log: its name, PRIORITY_DEFAULT, False.
"""

BegunAt = tuple[str, int]
"""Id of a log, and its end when a piece for it was written: the records of the piece are at no lower index."""


class Spooled(Protocol):
    """The part of a spool that goes to one target."""

    @property
    def places(self) -> SequenceOf[int]:
        """Pieces, in order."""

    @property
    def count(self) -> int:
        """Number of messages."""

    @property
    def wire_bytes(self) -> int: ...


class Spool(Protocol):
    """The part of one transaction that is not in memory."""

    @property
    def targets(self) -> Mapping[SpoolTarget, Spooled]:
        """Parts, by the queue that they go to."""

    def write(
        self,
        target: SpoolTarget,
        messages: list[Message],
        source: SourceController | None,
        begun_at: BegunAt | None = None,
    ) -> int:
        """Write one more piece; `begun_at`: only for a log. Blocks `source` while too much waits for the disk. Returns
        the size of the piece on the disk, in bytes.
        """

    def size_of(self, place: int) -> int:
        """Return the size of a piece on the disk, in bytes."""

    def commit(
        self,
        changed: Iterable[Confirms],
        done: Callable[[], None],
        undone: Callable[[], None],
        *,
        deleted: Iterable[SpoolTarget] = (),
    ) -> None:
        """Promise that the transaction is carried out even after a crash, in one batch with everything settled in the
        queues and groups that it `changed`. `done` is called when the disk has the promise; `undone` in place of that,
        if the broker makes a mistake with one of them before: the promise is never written, and the spool is to be
        aborted. `deleted`: queues that are gone already; pieces for a queue that is deleted later go with its deletion.
        """

    def read(self, place: int, done: Callable[[list[Message]], None], failed: Callable[[], None]) -> None:
        """Read a piece: `done` gets its messages, later; none, if the piece is damaged (the log says so). `failed` is
        called for each failed attempt.
        """

    def moved(
        self, place: int, queue: MessageQueue | None, first: int, *, persistent: bool, done: Callable[[], None]
    ) -> None:
        """Delete a piece that is in its queue, from element `first` on (None: its destination is gone); if some of its
        messages are persistent in the very batch that saves them, or with a sync, where the queue saves nothing. `done`
        is called when that is written, or never will be, for the broker made a mistake with the queue: then the next
        start finds the piece here. The last piece ends the transaction.
        """

    def mark_of(self, place: int) -> bytes:
        """Return the header line that marks the records of a piece in its log."""

    def begun_at(self, place: int) -> BegunAt | None:
        """Return where the records of a piece may be in its log; None: they are not there, this run wrote the piece."""

    def appended(self, place: int, done: Callable[[], None]) -> None:
        """Delete a piece whose records are safe in its log. `done` is called when that is written."""

    def abort(self) -> None:
        """Delete all pieces of a transaction that is not committed."""


class Spools(Protocol):
    """The spools of one broker."""

    def begin(self) -> Spool:
        """Return a spool for one more transaction."""


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
        each piece that is moved, and how many messages and bytes the queue got; `unheard`, how many messages were for
        a deleted queue. `persistent_only`: the other messages belonged to an earlier run.
        """
        self._pieces = deque(pieces)
        self._count = count
        self.queue = queue
        self.source = source
        """Source that the queue blocks."""
        self._may_go = may_go
        self._left = left
        self._unheard = unheard
        self._persistent_only = persistent_only
        self._is_reading = False
        self._writing_count = 0
        """Pieces that are moved, and the disk does not know."""

    @property
    def name(self) -> str:
        """Name of the queue."""
        return self.queue.name

    @property
    def left_count(self) -> int:
        """Number of pieces that are not moved yet."""
        return len(self._pieces)

    def go(self) -> bool:
        """Read the next piece, if it is time. Returns whether one is being read. If not, the turn of the source is of
        no use to this drain; others may have the same source.
        """
        if self._is_reading:
            return True
        if self._writing_count or not self._pieces or not self._may_go():
            return False
        if self.queue.is_kept:
            self._leave()
        elif self.queue.closed:
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
        persistent = any(message.head.persistent for message in messages)
        has_origins = any(origin_of(message) is not None for message in messages)
        if has_origins:
            fresh = queue.open_producers().fresh(messages)
            repeated_count, messages = len(messages) - len(fresh), fresh
        runs = runs_of(messages)
        if persistent and queue.kind is ResourceKind.RELAY:
            if not queue.intake.must_wait(len(messages), self.source, persistent=True):
                queue.intake.charge_ahead(runs, self.source)
                spool, place = self._pieces[0]
                self._writing_count += 1
                if has_origins:
                    queue.open_producers().note(messages, first, stored=False)
                spool.moved(place, queue, first, persistent=True, done=partial(self._deleted, runs, count))
            self.source.end_turn()
            return
        if runs and not offer_together(queue, runs, self.source):
            self.source.end_turn()
            return
        if has_origins:
            queue.open_producers().duplicates_count += repeated_count
            for run in runs:
                queue.produced(run.messages, first)
        self._count -= count
        self._piece_moved(queue, first, runs, persistent=persistent)
        self.source.end_turn()

    def _deleted(self, runs: list[Run], count: int) -> None:
        """Give a relay the piece that the disk has no more."""
        spool, place = self._pieces.popleft()
        self._count -= count
        self.queue.intake.take_charged(runs, self.source)
        if self.queue.closed:
            self._unheard(count)
            runs = []
        self._left(spool, place, sum([len(run.messages) for run in runs]), sum([run.charge_bytes for run in runs]))
        self._written()

    def _leave(self) -> None:
        """Leave the pieces on the disk: the next start has the queue again."""
        self.source.end_turn()
        while self._pieces:
            spool, place = self._pieces.popleft()
            self._left(spool, place, 0, 0)

    def _drop(self) -> None:
        """Drop pieces of a deleted queue; the next ones follow when they are gone from the disk."""
        self._unheard(max(0, self._count))
        self._count = 0
        self.source.end_turn()
        for _ in range(min(DROP_COUNT, len(self._pieces))):
            self._piece_moved(None, 0, [], persistent=False)

    def _piece_moved(self, queue: MessageQueue | None, first: int, runs: list[Run], *, persistent: bool) -> None:
        spool, place = self._pieces.popleft()
        self._writing_count += 1
        spool.moved(place, queue, first, persistent=persistent, done=self._written)
        self._left(spool, place, sum([len(run.messages) for run in runs]), sum([run.charge_bytes for run in runs]))

    def _written(self) -> None:
        self._writing_count -= 1
        self.go()


def drop(
    pieces: Iterator[tuple[Spool, int]], *, dropped: Callable[[Spool, int], None], done: Callable[[], None]
) -> None:
    """Drop pieces for a deleted destination, DROP_COUNT at a time: the next ones follow when the first are gone from
    the disk. `dropped` is called for each before that, `done` after the last.
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
    """Return messages as queues take them, with messages separate that a queue has to check one by one."""
    runs: list[Run] = []
    for _kind, group in groupby(messages, key=_kind_of):
        part = list(group)
        runs.append(Run(part, size_of(part)))
    return runs


def _kind_of(message: Message) -> object:
    head = message.head
    plain = head.group is None and not (head.expires_at_ms or head.ttl_ms or head.delay_ms)
    return head.persistent if plain else id(head)


def queue_of(target: SpoolTarget, registry: DestinationRegistry, *, is_stored: bool = False) -> MessageQueue | None:
    """Return the queue that a target names now, made if need be. None: a temporary destination that is gone. Raises
    DestinationLimitError, but not for pieces that are stored (`is_stored`): an earlier run committed them.
    """
    name_on_disk, priority, topic = target
    name, part = split_part(name_on_disk)
    address = parse(name)
    if address.temporary_global and name not in registry.destinations:
        return None
    return registry.get(address, is_stored=is_stored).stored_queue(priority, part, topic=topic)
