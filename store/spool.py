"""Spooled transactions: the part of open ones that does not fit into memory, and the part of committed ones that waits
for room.

While a transaction is open its pieces are written as they come, without a sync. COMMIT is one synced batch, with
everything that the transaction settles and the commit record: batches survive in order, so its pieces are on disk, too.
From then on a piece is read when its queue has room, and is deleted in the very batch that saves its messages there
(`QueueRecords.attach`): at any moment a message is on disk either in a piece or in its queue. The commit record goes
last.

Large bodies: a piece is one more record that names their files, so these are kept until it is gone.

Bounds: WRITING_BYTES, and what one read of each connection adds, of pieces on their way to the disk; READS_MAX pieces
on their way back, for all readers together. The numbers and sizes of the pieces, some 20 bytes each.

Source: seed 002 "Transactions", "Persistence Store"; anchors d10; DESIGN section 7.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

import attrs

from ..flow import Account, Flow, SizeLimiter, SourceController
from ..flow.kinds import ResourceKind
from ..queues.large import LargeMessage
from ..queues.logs.marked import transaction_mark
from ..queues.message import Message, wire_bytes_of
from ..queues.queue import MessageQueue
from ..queues.spools import BegunAt, SpoolTarget
from ..queues.storage import Confirms
from . import keys
from .chunks import ChunkError, decode_chunk, encode_chunk
from .engine import Change, CorruptionError, EngineError, delete, put
from .places import GroupRecord
from .queue_records import QueueRecords
from .recovery import RecoveredTransaction
from .spool_records import CommitRecord, PieceError, decode_piece, encode_commit, encode_piece
from .storequeue import StoreQueue
from .together import Shelf

WRITING_BYTES: Final = 8 << 20
"""Two batches: one under way and one that gathers."""

READS_MAX: Final = 8
"""Enough to keep a disk busy; a few MiB."""

DELETE_COUNT: Final = 512
"""Pieces of an aborted transaction that go in one batch."""


class StoreSpooled:
    """The part of a transaction that goes to one queue. Satisfies `sluiceway.queues.spools.Spooled`."""

    __slots__ = ("count", "is_gone", "left_count", "number", "places", "wire_bytes")

    def __init__(self, number: int) -> None:
        self.number = number
        """Number of its target in the spool."""
        self.places = array("I")
        self.count = 0
        self.wire_bytes = 0
        self.left_count = 0
        """Pieces that the disk still has."""
        self.is_gone = False
        """Every start drops them: the disk need not be told that they are."""


class _Record(list[Change]):
    """A change that may be replaced until a batch takes it."""

    is_taken = False

    def __iter__(self) -> Iterator[Change]:
        self.is_taken = True
        return super().__iter__()


@attrs.frozen
class _Read:
    """A read of a piece, with its callbacks."""

    spool: StoreSpool
    place: int
    done: Callable[[list[Message]], None]
    failed: Callable[[], None]


class StoreSpools:
    """The spools of one broker."""

    def __init__(
        self,
        store: StoreQueue,
        *,
        recovered: Iterable[RecoveredTransaction] = (),
        next_transaction_id: int = 1,
        next_commit_number: int = 1,
    ) -> None:
        """`recovered`: committed transactions of an earlier run that are not over, in order of their commits."""
        self.store = store
        self._next_transaction_id = next_transaction_id
        self._next_commit_number = next_commit_number
        self._waiting_reads: deque[_Read] = deque()
        self._reading_count = 0
        self.writing = Account(
            store,
            Flow("pieces of transactions on their way to the disk"),
            SizeLimiter(WRITING_BYTES, clock=store.clock, label="spool"),
            clock=store.clock,
        )
        self.reading = Account(
            store,
            Flow("pieces of transactions on their way to their queues"),
            SizeLimiter(WRITING_BYTES, clock=store.clock, label="spool"),
            clock=store.clock,
        )
        self._by_target: dict[SpoolTarget, dict[StoreSpool, None]] = {}
        """Spools with pieces for a target."""
        self.left = [StoreSpool(self, found.transaction_id, found) for found in recovered]
        """Spools of an earlier run."""
        store.deleted_with = self._deleted_with

    def has_piece_for(self, spool: StoreSpool, target: SpoolTarget) -> None:
        """Note the first piece of a spool for this queue."""
        self._by_target.setdefault(target, {})[spool] = None

    def has_moved(self, spool: StoreSpool, target: SpoolTarget) -> None:
        """Note that a spool has nothing more for this queue."""
        if (left := self._by_target.get(target)) is not None:
            left.pop(spool, None)
            if not left:
                del self._by_target[target]

    def _deleted_with(self, shelf: Shelf) -> list[Change]:
        """Return the changes to write with the deletion of this queue: pieces for it are dropped, too. The next queue
        of its name gets nothing of them.
        """
        if not isinstance(shelf, QueueRecords):
            return []
        changes: list[Change] = []
        for spool in [each for each in self._by_target.get(shelf.target, ()) if each.is_committed]:
            changes += spool.drop(shelf.target)
            self.has_moved(spool, shelf.target)
        return changes

    def begin(self) -> StoreSpool:
        transaction_id = self._next_transaction_id
        self._next_transaction_id += 1
        return StoreSpool(self, transaction_id)

    def take_commit_number(self) -> int:
        """Ever growing."""
        number = self._next_commit_number
        self._next_commit_number += 1
        return number

    # ------------------------------------------------------------------ reading, a few at a time

    def ask(self, read: _Read) -> None:
        """Read this when its turn comes, and the disk has it."""
        if not read.spool.is_written(read.place):
            read.spool.read_when_written(read)
            return
        self._waiting_reads.append(read)
        self._start_reads()

    def _start_reads(self) -> None:
        while self._waiting_reads and self._reading_count < READS_MAX:
            read = self._waiting_reads.popleft()
            self._reading_count += 1
            self.reading.charge(1, read.spool.size_of(read.place), None)
            self._read(read)

    def _read(self, read: _Read) -> None:
        key = keys.transaction_key(read.spool.transaction_id, read.place)
        self.store.worker.read(lambda engine: engine.get(key), partial(self._arrived, read, key))

    def _arrived(self, read: _Read, key: bytes, result: bytes | EngineError | None) -> None:
        if isinstance(result, CorruptionError):
            result = None  # trying again would not help
        if isinstance(result, EngineError):
            read.failed()
            self.store.read_failed(result, lambda: self._read(read))
            return
        try:
            read.done(self._decoded(key, result))
        finally:
            self._reading_count -= 1
            self.reading.release(1, read.spool.size_of(read.place))
            self._start_reads()

    def _decoded(self, key: bytes, value: bytes | None) -> list[Message]:
        store = self.store
        try:
            piece = decode_piece(value or b"")
            _sequences, messages = decode_chunk(0, piece.chunk, store.heads, store.make_large)
        except (PieceError, ChunkError) as error:
            transaction_id, place = keys.parse_transaction_key(key)
            store.corrupt(f"piece {place} of transaction {transaction_id}", key, value or b"", error)
            return []
        return messages


class StoreSpool:
    """The part of one transaction that is not in memory. Satisfies `sluiceway.queues.spools.Spool`."""

    __slots__ = (
        "_begun_at",
        "_commit_number",
        "_committed_count",
        "_dropped",
        "_early",
        "_files",
        "_left_count",
        "_record",
        "_sizes",
        "_spools",
        "_target_by_place",
        "_targets",
        "_written_count",
        "targets",
        "transaction_id",
    )

    def __init__(self, spools: StoreSpools, transaction_id: int, found: RecoveredTransaction | None = None) -> None:
        """`found`: it is one of an earlier run."""
        self._spools = spools
        self.transaction_id = transaction_id
        self.targets: dict[SpoolTarget, StoreSpooled] = {}
        self._sizes = array("L")
        """Sizes of messages in bytes, by place."""
        self._files: dict[int, list[int]] = {}
        """Large bodies, by place."""
        self._begun_at: dict[int, BegunAt] = {}
        """Pieces of an earlier run whose records may be in their log, by place."""
        self._left_count = 0
        self._early: list[_Read] = []
        """Wanted before they are written."""
        self._targets: list[SpoolTarget] = []
        self._target_by_place = array("I")
        """Each a place in `_targets`."""
        self._commit_number = self._committed_count = 0
        self._dropped: dict[SpoolTarget, None] = {}
        """Queues that were deleted since it was committed."""
        self._record: _Record | None = None
        """The commit record, until it goes into a batch."""
        if found is not None:
            self._commit_number, self._committed_count = found.commit_number, found.pieces_count
            self._sizes.extend([0] * (max(found.pieces) + 1))
            self._target_by_place.extend([0] * len(self._sizes))
            for place, piece in sorted(found.pieces.items()):
                self._sizes[place] = piece.size_bytes
                self._target_by_place[place] = self._add_place(piece.target, place)
                if piece.file_ids:
                    self._files[place] = piece.file_ids
                if piece.begun_at is not None:
                    self._begun_at[place] = piece.begun_at
            self._left_count = len(found.pieces)
        self._written_count = len(self._sizes)
        """Pieces below this place are on disk, or were."""

    def size_of(self, place: int) -> int:
        return self._sizes[place]

    def _add_place(self, target: SpoolTarget, place: int) -> int:
        """Assign a piece to its target. Returns the number of the target."""
        spooled = self.targets.get(target)
        if spooled is None:
            spooled = self.targets[target] = StoreSpooled(len(self._targets))
            self._targets.append(target)
            self._spools.has_piece_for(self, target)
        spooled.places.append(place)
        spooled.left_count += 1
        return spooled.number

    @property
    def is_committed(self) -> bool:
        """Whether the transaction is committed: its pieces wait for their queues."""
        return self._commit_number > 0

    def is_written(self, place: int) -> bool:
        return place < self._written_count

    def read_when_written(self, read: _Read) -> None:
        """Do this read when its piece is written. Pieces that are not written take at most WRITING_BYTES."""
        self._early.append(read)

    def _piece_written(self, size_bytes: int) -> None:
        """Note that the next piece is on disk: pieces are written in order."""
        self._written_count += 1
        self._spools.writing.release(1, size_bytes)
        early, self._early = self._early, []
        for read in early:
            self._spools.ask(read)

    # ------------------------------------------------------------------ while it is open

    def write(
        self,
        target: SpoolTarget,
        messages: list[Message],
        source: SourceController | None,
        begun_at: BegunAt | None = None,
    ) -> int:
        store = self._spools.store
        chunk = encode_chunk(0, range(len(messages)), messages, store.heads)
        value = encode_piece(target, chunk, begun_at)
        place, size_bytes = len(self._sizes), len(value)
        if store.bodies is not None and store.bodies.references_count:
            bodies = [message.body for message in messages if isinstance(message, LargeMessage)]
            for body in bodies:
                body.keep()
            if bodies:
                self._files[place] = [body.file_id for body in bodies]
        self._sizes.append(size_bytes)
        self._target_by_place.append(self._add_place(target, place))
        spooled = self.targets[target]
        spooled.count += len(messages)
        spooled.wire_bytes += wire_bytes_of(messages)
        self._left_count += 1
        store.change(
            [put(keys.transaction_key(self.transaction_id, place), value)],
            written=partial(self._piece_written, size_bytes),
        )
        self._spools.writing.charge(1, size_bytes, source)
        return size_bytes

    def abort(self) -> None:
        self._delete(0)

    def _delete(self, start: int) -> None:
        """Delete the pieces from `start` on, and then the rest of the transaction."""
        stop = min(start + DELETE_COUNT, len(self._sizes))
        for number in set(self._target_by_place[start:stop]):
            self._spools.has_moved(self, self._targets[number])
        changes = [delete(keys.transaction_key(self.transaction_id, place)) for place in range(start, stop)]
        if stop < len(self._sizes):
            self._spools.store.change(changes, written=partial(self._delete, stop))
        elif changes:
            self._spools.store.change(changes, written=self._forget_all_files)

    def _forget_all_files(self) -> None:
        for place in list(self._files):
            self._forget_files(place)

    def _forget_files(self, place: int) -> None:
        file_ids, bodies = self._files.pop(place, ()), self._spools.store.bodies
        if file_ids and bodies is not None:
            for file_id in file_ids:
                bodies.forget(file_id)

    # ------------------------------------------------------------------ when it is committed

    def commit(
        self,
        shelves: Iterable[Confirms],
        done: Callable[[], None],
        undone: Callable[[], None],
        *,
        deleted: Iterable[SpoolTarget] = (),
    ) -> None:
        store = self._spools.store
        if not self._sizes:
            raise ValueError(f"transaction {self.transaction_id} has no pieces: there is nothing to carry out later")
        self._commit_number, self._committed_count = self._spools.take_commit_number(), len(self._sizes)
        for target in deleted:
            self._dropped[target] = None
            self._spools.has_moved(self, target)
        change = self._told()
        own = [
            shelf
            for shelf in shelves
            if isinstance(shelf, QueueRecords | GroupRecord) and shelf.queue_id in store.shelves
        ]
        if not own:
            store.change([change], done)
            return
        store.bind(own)
        end = own[0].elements_end
        self._record = _Record([change])
        own[0].attach(end, end, self._record, undone=undone)
        own[0].when_settled(done)

    def _told(self) -> Change:
        """Return the change that writes the commit record as it is now."""
        record = CommitRecord(self._commit_number, self._committed_count, tuple(self._dropped))
        return put(keys.spool_key(self.transaction_id), encode_commit(record))

    def drop(self, target: SpoolTarget) -> list[Change]:
        """Drop the pieces of a queue that is deleted. Returns the changes to write with the deletion."""
        self._dropped[target] = None
        if self._record is not None and not self._record.is_taken:
            # The disk has no commit record yet, and must not before the settled elements.
            self._record[0] = self._told()
            return []
        return [self._told()]

    def read(self, place: int, done: Callable[[list[Message]], None], failed: Callable[[], None]) -> None:
        self._spools.ask(_Read(self, place, done, failed))

    def moved(
        self, place: int, queue: MessageQueue | None, first: int, *, persistent: bool, done: Callable[[], None]
    ) -> None:
        changes = [delete(keys.transaction_key(self.transaction_id, place))]
        if queue is None:
            target = self._targets[self._target_by_place[place]]
            if target not in self._dropped and not self.targets[target].is_gone:
                changes += self.drop(target)  # the disk had nothing of that queue, so its deletion said nothing

        def written() -> None:
            self._gone(place)
            done()

        if queue is not None and persistent and not queue.closed:
            if queue.kind is ResourceKind.RELAY:
                self._spools.store.change(changes, written)  # synced
                return
            shelf, end = queue.storage, queue.elements.next_sequence
            if isinstance(shelf, QueueRecords):
                # Undone: it is there after the next start. None of it was taken (first is end), for it was before: it
                # goes when that is on the disk.
                shelf.attach(first, end, changes, written, done)
                return
        self._spools.store.change(changes, written=written)

    def mark_of(self, place: int) -> bytes:
        return transaction_mark(self.transaction_id, place)

    def begun_at(self, place: int) -> BegunAt | None:
        return self._begun_at.get(place)

    def appended(self, place: int, done: Callable[[], None]) -> None:
        def written() -> None:
            self._gone(place)
            done()

        self._spools.store.change([delete(keys.transaction_key(self.transaction_id, place))], written=written)

    def _gone(self, place: int) -> None:
        """Note that a piece is moved, and that the disk has that."""
        if place in self._files:
            # Synced: or a power cut would bring it back without its bodies.
            self._spools.store.when_flushed([partial(self._forget_files, place)])
        self._begun_at.pop(place, None)
        self._left_count -= 1
        target = self._targets[self._target_by_place[place]]
        spooled = self.targets[target]
        spooled.left_count -= 1
        if not spooled.left_count:
            self._spools.has_moved(self, target)
        if not self._left_count:
            self._spools.store.change([delete(keys.spool_key(self.transaction_id))])
