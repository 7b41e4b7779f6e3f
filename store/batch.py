"""The batch: changes of many queues that are written at once, and callbacks to run afterwards. After a crash the disk
has all of a batch or nothing.

Source: seed 002 "Persistence Store" (several operations in one sync); anchors d10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from functools import partial
from typing import Final, Protocol

import attrs

from ..queues.durables import DurableReader
from ..queues.observer import Observer
from ..queues.storage import DISK, Saved
from .chunks import Part
from .engine import Change
from .pages import Page, PagesError

BATCH_BYTES: Final = 768 << 10
"""About the size at which a batch is closed: a millisecond or two of encoding, in which the loop does nothing else.

Larger ones cost memory, in copies on the loop, in the writer and in LevelDB, and in what the allocator keeps of them:
filling a queue with messages of 1 KiB (2 cores, shared with other work) took the process to 264 MiB with 4 MiB, to 206
with 1 MiB and to 167 with this, and was no slower. With messages of 100 bytes it was a tenth slower than with 4 MiB.
"""

BATCH_COUNT: Final = 3072
"""Elements at which it is closed, however small they are: encoding takes some for each, too."""

PAGES_BYTES: Final = 4 << 20
"""Size of the pages at which a batch is closed: their parts are in memory anyway, and are joined by the writer, one
block after the other. Each batch costs a turn of both threads.
"""


@attrs.frozen
class ChunkRecord:
    """Record of a chunk of a block: its place and its key."""

    key: bytes
    page: Page | None = None
    """None: the engine has it."""


class AnsweredShelf(Protocol):
    """Shelf that is told what became of its part of a batch."""

    def noted(self, lease: int) -> None:
        """Note that a lease is valid."""

    def reader_noted(self, reader: DurableReader) -> None:
        """Note that the place of a reader is on disk."""

    def unpage(self, index: int, record: ChunkRecord | None) -> None:
        """Drop the page of a block, which lies in a file, or has no room there."""


class PageOut:
    """A block that is to leave memory, from the queue's wish to the answer."""

    __slots__ = ("_done", "_refused", "_shelf", "count", "index", "is_refused", "record")

    def __init__(
        self, shelf: AnsweredShelf, index: int, done: Callable[[int], None], refused: Callable[[], None] | None
    ) -> None:
        self._shelf = shelf
        self.index = index
        self._done = done
        self._refused = refused
        self.record: ChunkRecord | None = None
        """Record that this batch writes of the block, for this run only."""
        self.count = 0
        """Messages in that."""
        self.is_refused = False
        """Whether the block stays in memory, because the disk has no room."""

    def answer(self) -> None:
        """Tell the queue."""
        if not self.is_refused:
            self._done(self.index)
            return
        self._shelf.unpage(self.index, self.record)
        if self._refused is not None:
            self._refused()


class StoreBatch:
    """One write under way."""

    __slots__ = (
        "changes",
        "consumed",
        "durability",
        "noting",
        "page_outs",
        "paged_count",
        "pages",
        "pages_bytes",
        "pages_error",
        "readers",
        "saved",
        "saved_count",
        "size_bytes",
        "started_seconds",
        "stored",
        "sync",
        "told_count",
        "waiters",
        "written",
    )

    def __init__(self, started_seconds: float, durability: str = DISK) -> None:
        """`durability`: what is said to those who wait for the disk."""
        self.started_seconds = started_seconds
        self.durability = durability
        self.changes: list[Change] = []
        self.size_bytes = 0
        self.sync = False
        """Whether the write is synced: a callback waits for the disk."""
        self.saved: list[Saved] = []
        """Callbacks that get its durability when the batch is synced."""
        self.consumed: list[Saved] = []
        """Callbacks that get "consumed", because nothing was left to write."""
        self.waiters: list[Callable[[], None]] = []
        """Callbacks for when the batch is synced."""
        self.page_outs: list[PageOut] = []
        """Requests to put blocks out of memory, answered when the batch is written."""
        self.written: list[Callable[[], None]] = []
        """Callbacks for when the batch is written, synced or not."""
        self.noting: list[tuple[AnsweredShelf, int]] = []
        """Leases that are valid when it is written."""
        self.readers: list[tuple[AnsweredShelf, DurableReader]] = []
        """Durable subscriptions whose places are written with it."""
        self.stored: list[tuple[Observer, SequenceOf[int]]] = []
        """Elements that are written with the batch, for their observers."""
        self.pages: list[tuple[Page, list[Part]]] = []
        """Blocks that go into files; see pages.py."""
        self.pages_bytes = 0
        self.pages_error: PagesError | None = None
        """Pages that the last attempt could not write. Set by the writer, taken by the loop."""
        self.saved_count = 0
        self.paged_count = 0
        self.told_count = 0
        """Number of elements whose receipts wait for this batch."""

    @property
    def is_full(self) -> bool:
        """No more should be put in."""
        return self.size_bytes >= BATCH_BYTES or self.saved_count >= BATCH_COUNT or self.pages_bytes >= PAGES_BYTES

    def save(self, observer: Observer | None, sequences: SequenceOf[int]) -> None:
        """Count elements that are written with this batch, and remember the observer to tell."""
        self.saved_count += len(sequences)
        if observer is not None:
            self.stored.append((observer, sequences))

    @property
    def answers_count(self) -> int:
        """Number of answers that are due when the batch is written."""
        return (
            len(self.stored)
            + len(self.noting)
            + 2 * len(self.readers)  # each resumes its consumers
            + len(self.page_outs)
            + len(self.saved)
            + len(self.written)
            + len(self.waiters)
        )

    def answers(self) -> Iterator[Callable[[], None]]:
        """Return the callbacks to run, in order, when the batch is written."""
        for observer, sequences in self.stored:
            yield partial(observer.stored, sequences, synced=self.sync)
        for shelf, lease in self.noting:
            yield partial(shelf.noted, lease)
        for shelf, reader in self.readers:
            yield partial(shelf.reader_noted, reader)
        for page_out in self.page_outs:
            yield page_out.answer
        for saved in self.saved:
            yield partial(saved, self.durability)
        yield from self.written
        yield from self.waiters

    def add(self, change: Change, size_bytes: int) -> None:
        """Put in one more change, with a value of this size."""
        self.changes.append(change)
        self.size_bytes += size_bytes + len(change[1])
