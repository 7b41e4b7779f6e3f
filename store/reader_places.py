"""Places of the durable subscriptions of one topic, as far as the disk does not know them: a part of the topic's shelf.

The place of a new subscription is written in any case, in one batch with the first message behind it, or before. The
place of another one is written when something of the topic is on disk, which it could miss or get again.

Places that are yet to be made (`MessageQueue.make_readers`) are made here: a subscription that is to get a message has
its place on disk as soon as the message is.

Bound: two entries for each durable subscription.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, Protocol

from ..queues.storage import PulledQueue
from . import keys
from .batch import AnsweredShelf, StoreBatch
from .engine import put
from .states import encode_cursor_runs

MAKING_COST: Final = 4
"""Number of places that are written in the time that making one takes."""


class TopicShelf(AnsweredShelf, Protocol):
    """Shelf of a topic."""

    queue_id: int

    def introduce(self, batch: StoreBatch) -> None:
        """Write the topic's own record, if the disk has none."""


class ReaderPlaces:
    """The places of one shelf."""

    __slots__ = ("_moved", "_new", "_queue", "is_noting")

    def __init__(self, queue: PulledQueue) -> None:
        self._queue = queue
        self._new: dict[int, None] = {}
        """Subscriptions that the disk does not have at all."""
        self._moved: dict[int, None] = {}
        """Readers whose positions on disk are out of date, in order."""
        self.is_noting = False
        """One waits until its place is written."""

    def moved(self, durable_id: int, *, is_new: bool) -> None:
        """Note that a place is out of date on disk. `is_new`: write it in any case."""
        self._moved[durable_id] = None
        if is_new:
            self._new[durable_id] = None

    def note(self, durable_id: int) -> None:
        """Let a subscription wait until its place is written."""
        self._moved[durable_id] = None
        self.is_noting = True

    def gone(self, durable_id: int) -> None:
        """Drop a subscription that is removed."""
        self._moved.pop(durable_id, None)
        self._new.pop(durable_id, None)

    @property
    def count(self) -> int:
        """Largest number of positions that are to be written."""
        return len(self._moved) + self._queue.make_readers(0)

    def due_count(self, *, is_stored: bool) -> int:
        """Return the number of positions that are to be written now. `is_stored`: the topic has messages on disk."""
        return len(self._due(is_stored=is_stored)) + self._queue.make_readers(0)

    def _due(self, *, is_stored: bool) -> dict[int, None]:
        return self._moved if is_stored or self.is_noting else self._new

    def write(self, batch: StoreBatch, shelf: TopicShelf, count_max: int, *, is_stored: bool) -> None:
        """Write up to `count_max` places that are due; or make places that are to be made, which takes as long."""
        if self._queue.make_readers(0):
            self._queue.make_readers(1 + count_max // MAKING_COST)
            return
        due, readers = self._due(is_stored=is_stored), self._queue.reader_states()
        for durable_id in list(islice(due, count_max)):
            self.gone(durable_id)
            reader = readers.get(durable_id)
            if reader is not None:
                self._write_one(batch, shelf, durable_id, exactly=False)
                batch.readers.append((shelf, reader))
                # A lease counts when it is synced: after a power cut it must not be below elements that were handed
                # over.
                batch.sync = batch.sync or reader.lease_under_way > reader.lease

    def write_rest(self, batch: StoreBatch, shelf: TopicShelf, *, is_stored: bool) -> None:
        """Write all remaining positions."""
        self._queue.make_readers(self._queue.make_readers(0))
        self.write(batch, shelf, self.due_count(is_stored=is_stored), is_stored=is_stored)
        batch.sync = batch.sync or self.is_noting
        self.is_noting = False

    def write_exactly(self, batch: StoreBatch, shelf: TopicShelf) -> None:
        """The broker stops: write all of them, with exactly what each was handed in place of a lease."""
        self._queue.make_readers(self._queue.make_readers(0))
        for durable_id in self._queue.reader_states():
            self._write_one(batch, shelf, durable_id, exactly=True)

    def _write_one(self, batch: StoreBatch, shelf: TopicShelf, durable_id: int, *, exactly: bool) -> None:
        state = self._queue.reader_states()[durable_id].state(exactly=exactly)
        value = encode_cursor_runs(state.front, state.handed_to, state.settled, state.attempts)
        shelf.introduce(batch)
        batch.add(put(keys.cursor_key(shelf.queue_id, durable_id), value), len(value))
