"""Target queues of an import: the next sequence of each, and the records that add messages to it.

How it works: a queue keeps the sequences of the export, if they are free: then an export of the result is the same.
Otherwise all of them are shifted behind the existing ones, by whole blocks, so that blocks stay blocks; to a store, a
gap in the sequences equals settled messages. Order within a queue is kept whatever the lines say: a message that would
go before one already taken is shifted behind it.

Invariant: the changes that `ImportedQueue` gives belong together; between two calls the store is consistent.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...queues.blocks import bit_range, bits_of
from ...queues.message import Message
from .. import keys
from ..chunks import HeadCodec, decode_summary, encode_chunk_and_summary
from ..engine import Change, Engine, put
from ..states import KIND_QUEUE, KIND_TOPIC, decode_head, decode_queue, encode_head, encode_queue, encode_state
from .records import QueueName


class ImportedQueue:
    """One queue."""

    __slots__ = (
        "_attempts",
        "_block",
        "_handed_to",
        "_introduced",
        "_present",
        "_shift",
        "_span",
        "base",
        "messages_count",
        "name",
        "next_sequence",
        "queue_id",
    )

    def __init__(self, queue_id: int, name: QueueName, *, base: int, handed_to: int, known: bool) -> None:
        """Prepare a queue. `base`: first sequence of a block, at or above which the queue has nothing; `known`: whether
        the store has a record of the queue.
        """
        self.queue_id = queue_id
        self.name = name
        self.base = base
        self.next_sequence = base
        self.messages_count = 0
        """Number of messages taken by this import."""
        self._handed_to = min(handed_to, base)
        self._introduced = known
        self._shift: int | None = None
        self._block = -1
        self._span = self._present = 0
        self._attempts: dict[int, int] = {}

    @property
    def is_appended_to(self) -> bool:
        """Whether the queue had messages before."""
        return self.base > 0

    def moved(self, sequence: int) -> int:
        """Return the new sequence for one of the export, as far as known: for cursors. The first request decides the
        shift.
        """
        if self._shift is None:
            self._shift = self._shift_for(sequence)
        return sequence + self._shift

    def place(self, sequence: int | None) -> int:
        """Return the new sequence of the next message, which was `sequence` in the export (None: any)."""
        if sequence is None:
            place = self.next_sequence
        else:
            place = self.moved(sequence)
            if place < self.next_sequence:
                # Out of order, or a queue twice in the export: append. Cursors keep the first shift.
                place = sequence + self._shift_for(sequence)
        self.next_sequence = place + 1
        self.messages_count += 1
        return place

    def _shift_for(self, sequence: int) -> int:
        border = _block_border(self.next_sequence)
        start = sequence >> keys.BLOCK_BITS << keys.BLOCK_BITS
        return 0 if start >= border else border - start

    def chunk(
        self, sequences: list[int], messages: list[Message], attempts: dict[int, int], heads: HeadCodec
    ) -> Iterator[Change]:
        """Yield the records of these messages, all of one block and placed by `place`; `attempts` by sequence.

        Raises ChunkError for messages that do not fit into a record.
        """
        first, last = sequences[0], sequences[-1]
        index = first >> keys.BLOCK_BITS
        if index != self._block:
            self._block = index
            self._span = self._present = 0
            self._attempts = {}
        base = index << keys.BLOCK_BITS
        run = range(first, last + 1)
        value, summary = encode_chunk_and_summary(
            first, run if len(run) == len(sequences) else sequences, messages, heads
        )
        yield from self.introduce()
        yield put(keys.chunk_key(self.queue_id, first), value)
        yield put(keys.summary_key(self.queue_id, first), summary)
        self._span |= bit_range(first - base, last + 1 - base)
        self._present |= bits_of([sequence - base for sequence in sequences])
        if attempts:
            self._attempts.update({sequence - base: count for sequence, count in attempts.items()})
            if self._handed_to:
                # The queue does not record exactly which were seen. Better mark some too many than one too few.
                self._handed_to = max(self._handed_to, max(attempts) + 1)
        holes = self._span & ~self._present
        if holes or self._attempts:
            yield put(keys.state_key(self.queue_id, index), encode_state(holes, self._attempts))
        yield self.head()

    def introduce(self) -> Iterator[Change]:
        """Yield the record of the queue, if the store has none."""
        if not self._introduced:
            self._introduced = True
            kind = KIND_TOPIC if self.name.topic else KIND_QUEUE
            yield put(keys.queue_key(self.queue_id), encode_queue(kind, self.name.priority, self.name.name))

    def head(self) -> Change:
        """Return the record of the next sequence."""
        return put(keys.head_key(self.queue_id), encode_head(self.next_sequence, self._handed_to))


class Targets:
    """All queues of a store, and those added by an import."""

    def __init__(self, engine: Engine) -> None:
        """Read the queues. Raises EngineError, and StoreFormatError for a damaged store."""
        self._engine = engine
        self._ids: dict[QueueName, int] = {}
        for key, value in engine.iterate(*keys.family_range(keys.QUEUE)):
            kind, priority, name = decode_queue(value)
            self._ids.setdefault(QueueName(name, priority, kind == KIND_TOPIC), keys.parse_queue_key(key))
        self._next_id = max(self._ids.values(), default=0) + 1
        # Skip ids of queues whose record is lost: their messages must not join another queue.
        for family in (keys.CHUNK, keys.SUMMARY, keys.STATE):
            for key, _value in engine.iterate(*keys.family_range(family), reverse=True):
                self._next_id = max(self._next_id, keys.parse_placed_key(key)[0] + 1)
                break
        self._targets: dict[QueueName, ImportedQueue] = {}

    def find(self, name: QueueName) -> ImportedQueue:
        """Return the queue of this name, a new one if needed. Raises EngineError and StoreFormatError."""
        target = self._targets.get(name)
        if target is None:
            queue_id = self._ids.get(name)
            if queue_id is None:
                target = ImportedQueue(self._next_id, name, base=0, handed_to=0, known=False)
                self._next_id += 1
            else:
                target = self._known(queue_id, name)
            self._targets[name] = target
        return target

    def used(self) -> list[ImportedQueue]:
        """Return the queues found by `find`, in that order."""
        return list(self._targets.values())

    def _known(self, queue_id: int, name: QueueName) -> ImportedQueue:
        value = self._engine.get(keys.head_key(queue_id))
        end, handed_to = decode_head(value) if value is not None else (0, 0)
        for family in (keys.SUMMARY, keys.CHUNK, keys.STATE):
            for key, record in self._engine.iterate(*keys.queue_range(family, queue_id), reverse=True):
                number = keys.parse_placed_key(key)[1]
                if family == keys.SUMMARY:
                    end = max(end, decode_summary(record).end_sequence)
                elif family == keys.CHUNK:
                    end = max(end, number + 1)
                else:
                    end = max(end, number + 1 << keys.BLOCK_BITS)
                break
        return ImportedQueue(queue_id, name, base=_block_border(end), handed_to=handed_to, known=True)


def _block_border(sequence: int) -> int:
    """Return the first sequence of a block, at or after this one."""
    return (sequence + keys.BLOCK_SIZE - 1) >> keys.BLOCK_BITS << keys.BLOCK_BITS
