"""What keeps the transactions that are too large for memory: the ports, here with their users.

`Spools` begins spools; a `Spool` is the part of one transaction that has left memory. It consists of *pieces*, each
some messages for one queue, by place: 0, 1, … A piece is written once, and read again when its transaction is
committed and its queue has room. `sluiceway.store.spool` implements them.

Everything is synchronous and never waits; answers come as callbacks on the dispatch loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import Protocol

from ...flow import SourceController
from ...queues.message import Message
from ...queues.queue import MessageQueue
from ...queues.storage import Confirms

Target = tuple[str, int, bool]
"""A queue: full name of its destination, priority, whether it is a topic (and not what waits in front of one)."""


class Spooled(Protocol):
    """What of a spool goes to one target."""

    @property
    def places(self) -> SequenceOf[int]:
        """Its pieces, in order."""

    @property
    def count(self) -> int:
        """Messages."""

    @property
    def wire_bytes(self) -> int: ...


class Spool(Protocol):
    """The part of one transaction that is not in memory."""

    @property
    def targets(self) -> Mapping[Target, Spooled]:
        """Where its messages go."""

    def write(self, target: Target, messages: list[Message], source: SourceController | None) -> int:
        """One more piece. Blocks `source` while too much waits for the disk. Returns its size on the disk, in bytes."""

    def size_of(self, place: int) -> int:
        """Of a piece on the disk, in bytes."""

    def commit(
        self,
        storages: Iterable[Confirms],
        done: Callable[[], None],
        undone: Callable[[], None],
        *,
        deleted: Iterable[Target] = (),
    ) -> None:
        """It is to be carried out, whatever happens; in one batch with all that was settled in these storages. `done`
        when the disk has it; `undone` in place of that, if the broker makes a mistake with one of them before: it never
        will, and is to be aborted. `deleted`: these queues are gone already; what becomes of pieces for a queue that is
        deleted later is seen to with its deletion.
        """

    def read(self, place: int, done: Callable[[list[Message]], None], failed: Callable[[], None]) -> None:
        """`done` gets the messages of this piece, later: none, if it is damaged (the log says so). `failed` is called
        each time that it can't be read yet.
        """

    def moved(
        self, place: int, queue: MessageQueue | None, first: int, *, persistent: bool, done: Callable[[], None]
    ) -> None:
        """This piece is in its queue, from element `first` on (None: nobody wants it): delete it, if some are
        persistent in the very batch that saves them. `done` when that is written, or never will be, for the broker made
        a mistake with the queue: then the next start finds it here. After the last piece the transaction
        is over.
        """

    def abort(self) -> None:
        """It never was."""


class Spools(Protocol):
    """Where spools are kept."""

    def begin(self) -> Spool:
        """For one transaction."""
