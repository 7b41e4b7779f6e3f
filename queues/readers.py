"""Durable subscriptions of a topic: cursors that stay when their consumers go.

While a topic has any, persistent messages are stored. A stored message is handed to a durable subscription only when
the disk has noted that it may have been seen.

*The beginning.* Consumers that were there before a topic are attached to it in steps, and durable subscriptions may get
their cursors in steps. Meanwhile a cursor of the topic's own, which never reads, keeps new messages for them.

Source: seed 002 ("Durables" as cursors).
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator
from itertools import chain, islice
from typing import Final

from .blocks import NOTHING_GONE, Gone
from .cursored import BLOCK_SIZE
from .cursors import TrackingCursor, Wait
from .durables import DurableReader
from .environment import QueueEnvironment
from .overdue import Overdue
from .queue import MessageQueue
from .storage import QueueStorage, Restored
from .subscription import Subscription
from .waking import Waking

MADE_AT_ONCE: Final = 32
"""Readers that are made at once; more are made in steps."""

READER_BYTES: Final = 1536
"""Memory of a durable subscription, here and in the table of all, while no consumer is attached."""


class Beginning:
    """Beginning of one topic.

    Attributes:
        cursor: position where consumers begin that are attached in steps; None: there are none.
        missed_count: messages missed by the consumers that are not attached yet.
    """

    __slots__ = ("_holds_count", "_overdue", "_queue", "cursor", "missed_count")

    def __init__(self, queue: MessageQueue, overdue: Overdue) -> None:
        self._queue = queue
        self._overdue = overdue
        self._holds_count = 0
        self.cursor: TrackingCursor | None = None
        self.missed_count = 0

    def hold(self) -> None:
        """Keep new messages, until `release` was called as often as this."""
        self._holds_count += 1
        if self.cursor is None:
            self.cursor = TrackingCursor(self._queue.elements, self._queue.elements.next_sequence)
            self.missed_count = 0

    def release(self) -> None:
        """End one `hold`."""
        self._holds_count -= 1
        if not self._holds_count and self.cursor is not None:
            cursor, self.cursor = self.cursor, None
            self._queue.free(cursor.close())
            self._overdue.all_released()

    def skip_to(self, floor: int) -> Gone:
        """Give up everything below `floor`. Returns what left because of it."""
        if self.cursor is None or self.cursor.front >= floor:
            return NOTHING_GONE
        missed_count, gone = self.cursor.skip_to(floor)
        self.missed_count += missed_count
        return gone


class Readers:
    """The durable subscriptions of one topic.

    Attributes:
        by_id: readers, by the ids of their durable subscriptions.
        beginning: where readers begin that are made in steps.
    """

    __slots__ = ("_environment", "_noting", "_queue", "_to_make", "_waking", "beginning", "by_id", "passing_ids")

    def __init__(
        self,
        queue: MessageQueue,
        by_id: dict[int, DurableReader],
        beginning: Beginning,
        waking: Waking,
        environment: QueueEnvironment,
    ) -> None:
        """`by_id`: empty, and shared with `waking`."""
        self._queue = queue
        self._waking = waking
        self._environment = environment
        self.by_id = by_id
        self.beginning = beginning
        self.passing_ids: Container[int] = ()
        """Durable subscriptions that come back with their topic: see `are_lasting`."""
        self._to_make: dict[int, None] = {}
        """Durable subscriptions whose readers are still to be made."""
        self._noting: dict[DurableReader, None] = {}
        """Readers that wait until the disk knows that they may read on, and perhaps some that waited for that."""

    @property
    def count(self) -> int:
        """Number of durable subscriptions, including those whose readers are still to be made."""
        return len(self.by_id) + len(self._to_make)

    @property
    def are_lasting(self) -> bool:
        """Whether a reader would be missed if the topic, which is empty, were forgotten. O(readers)."""
        return any(durable_id not in self.passing_ids for durable_id in chain(self.by_id, self._to_make))

    @property
    def are_made(self) -> bool:
        """Whether no reader is still to be made."""
        return not self._to_make

    def cursors(self) -> list[TrackingCursor]:
        """The cursors of all readers, and that of the beginning. O(readers)."""
        cursors = [reader.cursor for reader in self.by_id.values()]
        return cursors if self.beginning.cursor is None else [self.beginning.cursor, *cursors]

    def backlog_of(self, durable_id: int) -> int:
        """Return the number of messages that a durable subscription has not settled. O(blocks)."""
        reader = self.by_id.get(durable_id)
        if reader is not None:
            return reader.cursor.unsettled_count
        cursor = self.beginning.cursor if durable_id in self._to_make else None
        return 0 if cursor is None else cursor.unsettled_count

    # ------------------------------------------------------------------ come and go

    def begin_with(self, durable_ids: Collection[int]) -> None:
        """Make the readers of a new topic, in steps if they are many: new messages are kept for them meanwhile."""
        self._to_make = dict.fromkeys(durable_ids)
        if not self._to_make:
            return
        self._queue.keeps = self._queue.may_keep
        self.beginning.hold()
        if len(self._to_make) <= MADE_AT_ONCE:
            self.make(MADE_AT_ONCE)
        else:
            self._environment.do_in_steps(self._queue, self._making())

    def _making(self) -> Iterator[None]:
        while not self._queue.closed and self.make(1):
            yield

    def make(self, count_max: int) -> int:
        """Make at most `count_max` of the readers that are still to be made. Returns how many are left."""
        for durable_id in list(islice(self._to_make, count_max)):
            self.add(durable_id)
        return len(self._to_make)

    def add(self, durable_id: int) -> DurableReader:
        """Add a reader: behind everything that is there or, if it was still to be made, at the beginning."""
        queue, cursor = self._queue, self.beginning.cursor
        is_late = self._is_made(durable_id)
        position = cursor.front if is_late and cursor is not None else queue.elements.next_sequence
        reader = self.by_id[durable_id] = DurableReader(durable_id, TrackingCursor(queue.elements, position))
        queue.keep(READER_BYTES)
        if queue.may_keep:
            queue.keeps = True
            queue.open_storage().reader_moved(durable_id, is_new=True)
        if is_late and not self._to_make:
            self.beginning.release()
        return reader

    def _is_made(self, durable_id: int) -> bool:
        """Return whether this reader was still to be made, and make it no more."""
        if durable_id not in self._to_make:
            return False
        del self._to_make[durable_id]
        return True

    def remove(self, durable_id: int) -> DurableReader | None:
        """Remove a durable subscription without consumers. Return its reader, whose cursor is to be closed."""
        queue = self._queue
        if self._is_made(durable_id) and not self._to_make:
            self.beginning.release()
        reader = self.by_id.pop(durable_id, None)
        queue.keeps = queue.may_keep and bool(self.count)
        if reader is not None:
            queue.keep(-READER_BYTES)
            if queue.storage is not None:
                queue.storage.reader_gone(durable_id)
        return reader

    def joined(self, subscription: Subscription, durable_id: int) -> DurableReader:
        """Let a subscription read for this durable subscription. Return its reader, made if need be."""
        reader = self.by_id.get(durable_id)
        if reader is None:
            reader = self.add(durable_id)
        reader.subscriptions[subscription] = None
        reader.selection = subscription.selection
        return reader

    def left(self, subscription: Subscription, reader: DurableReader) -> None:
        """Note that a subscription is gone. Elements that it holds stay with it, if it is shared, until it settles them
        or gives them back; otherwise they come again.
        """
        cursor = reader.cursor
        del reader.subscriptions[subscription]
        if not subscription.shares:
            reader.settled_late = None
            self._queue.returned_count += cursor.requeue_held()
        elif not reader.subscriptions:
            cursor.waiting_for = None  # there is no reader to resume
        self.moved(reader)

    # ------------------------------------------------------------------ store

    def moved(self, reader: DurableReader) -> None:
        """Note that a reader has settled something, or that its consumers have changed."""
        storage = self._queue.storage
        if storage is not None:
            storage.reader_moved(reader.durable_id)

    def note(self, reader: DurableReader) -> None:
        """Have the disk note that a reader may have seen the elements that it reads next, if they are stored; the
        reader waits for that.
        """
        queue, cursor = self._queue, reader.cursor
        if queue.storage is None or cursor.waiting_for is not None:
            return
        position = cursor.position = queue.elements.first_live(cursor.position)  # its next element may be far away
        if not queue.storage.may_hand_over(position, position + BLOCK_SIZE, reader):
            cursor.waiting_for = Wait.NOTED
            self._noting[reader] = None

    def noted(self, reader: DurableReader) -> None:
        """Resume a reader whose position is on disk."""
        reader.lease = max(reader.lease, reader.lease_under_way)
        self._noting.pop(reader, None)
        self._go_on(reader)

    def all_noted(self) -> None:
        """Resume all readers that wait for the disk, in steps."""
        noting, self._noting = self._noting, {}
        if noting:
            self._environment.do_in_steps(self._queue, self._going_on(noting))

    def _going_on(self, readers: Iterable[DurableReader]) -> Iterator[None]:
        for reader in readers:
            self._go_on(reader)
            yield

    def _go_on(self, reader: DurableReader) -> None:
        if reader.cursor.arrived(Wait.NOTED):
            self._waking.wake_all(reader)

    def take_leases(self, storage: QueueStorage) -> None:
        """Write the positions of readers anew whose lease runs beyond the end: no consumer has seen the messages that
        come in now.
        """
        for reader in self.by_id.values():
            if reader.lease > self._queue.elements.next_sequence:
                storage.reader_moved(reader.durable_id)

    def restored(self, found: Restored) -> None:
        """Restore the readers of an earlier run."""
        queue = self._queue
        elements = queue.elements
        for record in found.cursors.values():
            # What was not persistent went with that run, but this reader has passed it: what comes in now is behind it.
            passed_to = max([record.front, *(part.stop for part in record.settled)])
            elements.next_sequence = max(elements.next_sequence, passed_to)
        for durable_id, record in found.cursors.items():
            reader = self.by_id[durable_id] = DurableReader(durable_id, TrackingCursor(elements, record.front))
            seen_to = min(record.handed_to, elements.next_sequence)  # later elements are new
            reader.cursor.restore_reader(record.settled, seen_to, record.attempts)
            reader.lease = reader.lease_under_way = record.handed_to
            queue.keep(READER_BYTES)
        queue.keeps = queue.may_keep and bool(self.count)

    def trim(self) -> None:
        """Remove messages of an earlier run that no reader needs."""
        queue = self._queue
        for reader in self.by_id.values():
            # The elements it needed may have ended with the run in which they were sent.
            queue.free(reader.cursor.pass_over(()))
        fronts = [reader.cursor.front for reader in self.by_id.values()]
        queue.free(queue.elements.trim(min(fronts, default=queue.elements.next_sequence)))
