"""Changes of a batch that belong to no shelf (pieces of spooled transactions, records of deleted queues, groups that
begin and end), and callbacks that wait for the batch as a whole.

*In order of arrival.* While a batch is gathered, at once or in steps, a change goes into it at once, between the
changes of shelves: a change that depends on an earlier one must not be on disk before it. So a commit record is never
in a batch before the pieces that it counts, nor a group's position before the group.

Bound: changes that arrive while one batch is written: WRITING_BYTES of pieces (spool.py), some records for each queue
or group that is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .batch import StoreBatch
from .engine import Change


class Beside:
    """The changes beside queues of one store."""

    __slots__ = ("_batch", "_changes", "_size_bytes", "_waiting", "_written")

    def __init__(self) -> None:
        self._batch: StoreBatch | None = None
        """Batch that is being gathered."""
        self._size_bytes = 0
        """Size of the changes that are waiting. It takes no room from queues."""
        self._changes: list[Change] = []
        self._written: list[Callable[[], None]] = []
        self._waiting: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        """Return whether changes or callbacks wait for the next batch."""
        return bool(self._changes or self._written or self._waiting)

    @property
    def waits(self) -> bool:
        """Whether a callback waits for the next batch to be synced."""
        return bool(self._waiting)

    def add(self, changes: Iterable[Change], written: Callable[[], None] | None = None) -> None:
        """Add changes to the next batch. `written` is called when they are written, synced or not."""
        self._changes += changes
        if written is not None:
            self._written.append(written)
        self._put()

    def wait(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Call `callbacks` when everything added so far is synced."""
        self._waiting += callbacks
        self._put()

    def begin(self, batch: StoreBatch) -> None:
        """Begin to gather a batch: add the waiting changes, and until `end` those that follow."""
        self._batch = batch
        self._put()

    def _put(self) -> None:
        batch = self._batch
        if batch is None:
            return
        before_bytes = batch.size_bytes
        for change in self._changes:
            batch.add(change, len(change[2]))
        self._size_bytes += batch.size_bytes - before_bytes
        batch.size_bytes = before_bytes
        batch.written += self._written
        if self._waiting:
            batch.waiters += self._waiting
            batch.sync = True
        self._changes, self._written, self._waiting = [], [], []

    def end(self) -> None:
        """End the gathering of a batch: everything for it is in it."""
        if self._batch is not None:
            self._batch.size_bytes += self._size_bytes
        self._batch, self._size_bytes = None, 0
