"""Recovery of an earlier run's store: read from the small records only, so that ten million messages take seconds.

The bodies stay where they are: of each block the summaries of its chunks and its state record tell how many elements
are alive, about how large they are and when they expire. Queues page them in when a consumer reads. Only chunks with
elements whose bodies lie in files are read, for the numbers of these files.

Elements that were stored without being persistent (paged out) belong to the run that stored them: they are deleted.

Spooled transactions (spool_records.py) that were not committed never were: their pieces are deleted. Of committed ones
the pieces that are left are found, for the broker to move them on.

A small record that can't be read does not keep the broker from starting: it is reported as a fault, and replaced by a
safe assumption. A lost summary is made again from its chunk; a lost state means that nothing of its block was settled;
without the head of a queue all of it counts as seen; a durable subscription whose place is lost begins with the oldest
message there is.

Source: DESIGN section 7 "Recovery"; anchors c20, c21, c23, d24.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, cast

import attrs

from ..flow.bounds import UNBOUNDED
from ..queues.blocks import Dates, Outside, bit_range
from ..queues.message import DelayedMessage, Envelope
from ..queues.producers import Remembered
from ..queues.spools import BegunAt, SpoolTarget
from . import keys
from .chunks import ChunkError, HeadCodec, Summary, decode_chunk, decode_summary, summary_of
from .durables import durable_changes, kept_durables, removal
from .engine import Change, CorruptionError, Engine, delete, delete_range, put
from .keys import StoreFormatError
from .metadata.damage import DamageSearch
from .spool_records import CommitRecord, PieceError, decode_commit, decode_piece
from .states import (
    KIND_TOPIC,
    CursorRecord,
    DurableRecord,
    StateError,
    decode_clean,
    decode_cursor,
    decode_durable,
    decode_head,
    decode_numbers,
    decode_producer,
    decode_queue,
    decode_state,
    encode_clean,
    encode_format,
    encode_numbers,
)
from .stored_block import StoredBlock

PROGRESS_COUNT: Final = 1_000
"""Records between two reports of progress."""

ALL_SEEN: Final = UNBOUNDED
"""A place behind all elements."""

NUMBERS_LOST: Final = 1 << 48
"""Number above all message numbers that can be in use: 80 years at 100,000 a second."""

WIPE_COUNT: Final = 20_000
"""Records deleted in one batch."""


@attrs.define
class RecoveredQueue:
    """A queue of an earlier run."""

    queue_id: int
    name: str
    priority: int
    topic: bool
    next_sequence: int = 0
    handed_to: int = 0
    """Elements below this may have been seen by a consumer; 0: which, the attempts of the blocks say exactly."""
    blocks: dict[int, StoredBlock] = attrs.field(factory=dict)
    outside: dict[int, tuple[Outside, int]] = attrs.field(factory=dict)
    """Facts that the queue needs about each block, by block, with the number of its elements that are alive."""
    grouped: set[int] = attrs.field(factory=set)
    """Blocks with elements that belong to a message group."""
    cursors: dict[int, CursorRecord] = attrs.field(factory=dict)
    """Cursors of durable subscriptions, by their ids."""
    due: set[int] = attrs.field(factory=set)
    """Blocks with elements that must not be delivered before a time."""
    producers: dict[str, Remembered] = attrs.field(factory=dict)
    """Memory of producers, by name on disk, the one that was quiet for longest first."""
    larges: dict[int, int] = attrs.field(factory=dict)
    """Files of the large bodies of elements that are alive, by sequence."""

    @property
    def attempts(self) -> dict[int, int]:
        """Number of times that returned elements were handed over, by sequence."""
        return {
            (index << keys.BLOCK_BITS) + place: count
            for index, block in self.blocks.items()
            for place, count in (block.attempts or {}).items()
        }

    @property
    def live_count(self) -> int:
        return sum(count for _outside, count in self.outside.values())


@attrs.frozen
class RecoveredPiece:
    """A piece of a spooled transaction."""

    target: SpoolTarget
    size_bytes: int
    file_ids: list[int]
    """Files of large bodies."""
    begun_at: BegunAt | None = None
    """Place from which on its records may be in its log; None: it is for a queue."""


@attrs.define
class RecoveredTransaction:
    """A committed transaction that is not all in its queues."""

    transaction_id: int
    commit_number: int
    pieces_count: int = 0
    """Number of pieces when the transaction was committed."""
    pieces: dict[int, RecoveredPiece] = attrs.field(factory=dict)
    """Pieces by place; at least one."""


@attrs.frozen
class BadRecord:
    """A record that can't be read."""

    key: bytes
    value: bytes
    what: str
    effect: str
    changes: tuple[Change, ...] = ()
    """Changes that repair the fault; to be written when `value` is kept somewhere else."""


@attrs.define
class Recovered:
    """Contents recovered from a store."""

    queues: dict[tuple[str, int, bool], RecoveredQueue] = attrs.field(factory=dict)
    next_queue_id: int = 1
    token: bytes | None = None
    """Token of the message-ids of this store."""
    next_number: int = 1
    """Message numbers below this may be in use."""
    durables: dict[int, DurableRecord] = attrs.field(factory=dict)
    tidying: list[Change] = attrs.field(factory=list)
    """Changes to write before the store is used: they move records of an earlier version to their present place, and
    delete what a crash left of deleted objects.
    """
    faults: list[BadRecord] = attrs.field(factory=list)
    clean: bool = True
    """The earlier run ended in good order."""
    live_count: int = 0
    transactions: list[RecoveredTransaction] = attrs.field(factory=list)
    """Committed transactions, in order of their commits."""
    next_transaction_id: int = 1
    next_commit_number: int = 1
    rolled_back_count: int = 0
    """Spooled transactions that were not committed."""
    body_counts: Counter[int] = attrs.field(factory=Counter)
    """Number of elements that are alive and have the large body, by file."""
    may_miss_bodies: bool = False
    """Whether unreadable records may have named further bodies."""

    def take(self, name: str, priority: int, *, topic: bool) -> RecoveredQueue | None:
        """Return, once, the recovered state of a queue."""
        return self.queues.pop((name, priority, topic), None)


class _Spans:
    """The chunks of one block, added up."""

    __slots__ = (
        "count",
        "due",
        "earliest_ms",
        "firsts",
        "grouped",
        "large_firsts",
        "latest_ms",
        "span",
        "undated",
        "wire_bytes",
    )

    def __init__(self) -> None:
        self.span = self.count = self.wire_bytes = self.undated = 0
        self.firsts: list[int] = []
        self.large_firsts: list[int] = []
        """First sequences of chunks with large bodies."""
        self.earliest_ms = self.latest_ms = 0
        self.grouped = self.due = False


def recover(engine: Engine, progress: Callable[[int], None], heads: HeadCodec) -> Recovered:
    """Read the records of an earlier run, and delete those that no later run needs. `progress` gets the number of
    messages found so far.

    Blocks: for a worker thread, or before anything runs. O(chunks + blocks). Raises EngineError; unreadable records are
    in `faults`.
    """
    found = Recovered()
    found.token = engine.get(keys.META_TOKEN_KEY)
    numbers = engine.get(keys.META_NUMBERS_KEY)
    if numbers is not None:
        try:
            found.next_number = decode_numbers(numbers)
        except StateError as error:
            found.next_number = NUMBERS_LOST
            found.faults.append(BadRecord(keys.META_NUMBERS_KEY, numbers, str(error), "message numbers leap far ahead"))
    clean = engine.get(keys.META_CLEAN_KEY)
    if clean is not None:
        try:
            found.clean = decode_clean(clean)
        except StateError as error:
            found.clean = False
            found.faults.append(BadRecord(keys.META_CLEAN_KEY, clean, str(error), "the last stop counts as a crash"))
    by_id: dict[int, RecoveredQueue] = {}
    for key, value in engine.iterate(*keys.family_range(keys.QUEUE)):
        queue_id = keys.parse_queue_key(key)
        found.next_queue_id = max(found.next_queue_id, queue_id + 1)
        try:
            kind, priority, name = decode_queue(value)
        except StateError as error:
            found.faults.append(BadRecord(key, value, str(error), "the messages of this queue are not found"))
            continue
        by_id[queue_id] = RecoveredQueue(queue_id, name, priority, kind == KIND_TOPIC)
    for family in (keys.CHUNK, keys.SUMMARY, keys.STATE):  # records may be there whose queue record is lost
        for key, _value in engine.iterate(*keys.family_range(family), reverse=True):
            found.next_queue_id = max(found.next_queue_id, keys.parse_placed_key(key)[0] + 1)
            break
    for key, value in engine.iterate(*keys.family_range(keys.HEAD)):
        queue = by_id.get(keys.parse_queue_key(key))
        if queue is None:
            continue
        try:
            queue.next_sequence, queue.handed_to = decode_head(value)
        except StateError as error:
            queue.handed_to = ALL_SEEN
            found.faults.append(BadRecord(key, value, str(error), f"all messages of {queue.name} count as redelivered"))
    _read_durables(engine, found)
    for key, value in engine.iterate(*keys.family_range(keys.CURSOR)):
        queue_id, durable_id = keys.parse_cursor_key(key)
        if durable_id not in found.durables:
            # Otherwise the next transaction of this number would take the record for its own.
            found.tidying.append(delete(key))
        elif queue_id in by_id:
            try:
                record = decode_cursor(value)
            except StateError as error:
                record = CursorRecord(0, ALL_SEEN, (), {})
                effect = f"durable subscription {found.durables[durable_id].name} begins with the oldest message"
                found.faults.append(BadRecord(key, value, str(error), effect))
            by_id[queue_id].cursors[durable_id] = record
    _read_producers(engine, by_id, found)
    for damage in DamageSearch(engine).found():
        what = f"{damage.where}: {damage.what}"
        found.faults.append(BadRecord(damage.key, damage.value or b"", what, damage.effect, damage.changes))
    _wipe(engine, *keys.family_range(keys.PAGED))
    _read_transactions(engine, found)
    spans = _read_spans(engine, by_id, progress, heads, found.faults)
    states = _read_states(engine, by_id, found.faults)
    for queue_id, queue in by_id.items():
        _put_together(queue, spans.get(queue_id, {}), states.get(queue_id, {}))
        if not _find_larges(engine, queue, spans.get(queue_id, {})):
            found.may_miss_bodies = True
        found.body_counts.update(queue.larges.values())
        found.live_count += queue.live_count
        found.queues[queue.name, queue.priority, queue.topic] = queue
    found.may_miss_bodies |= bool(found.faults)
    return found


def _read_durables(engine: Engine, found: Recovered) -> None:
    """Read the durable subscriptions of the metadata, and move those that an earlier version wrote to their present
    place.
    """

    def bad(key: bytes, value: bytes, error: StoreFormatError) -> None:
        found.faults.append(BadRecord(key, value, str(error), "a durable subscription is lost", removal(key)))

    found.durables.update(kept_durables(engine, bad))
    for key, value in engine.iterate(*keys.family_range(keys.DURABLE)):
        try:
            durable_id, record = keys.parse_durable_key(key), decode_durable(value)
            found.tidying += [*durable_changes(durable_id, record), delete(key)]
            found.durables[durable_id] = record
        except StateError as error:
            found.faults.append(BadRecord(key, value, str(error), "a durable subscription is lost"))


def _read_producers(engine: Engine, by_id: dict[int, RecoveredQueue], found: Recovered) -> None:
    for key, value in engine.iterate(*keys.family_range(keys.PRODUCER)):
        try:
            queue_id, name = keys.parse_producer_key(key)
            remembered = decode_producer(value)
        except StoreFormatError as error:
            effect = "what this producer repeats may be taken a second time"
            found.faults.append(BadRecord(key, value, str(error), effect, (delete(key),)))
            continue
        queue = by_id.get(queue_id)
        if queue is None:
            found.tidying.append(delete(key))
        else:
            queue.producers[name] = remembered
    for queue in by_id.values():
        queue.producers = dict(sorted(queue.producers.items(), key=lambda item: item[1][1]))


def _wipe(engine: Engine, start: bytes, stop: bytes) -> None:
    batch: list[Change] = []
    first = start
    count = 0
    for key in engine.iterate_keys(start, stop):
        count += 1
        if count % WIPE_COUNT == 0:
            batch.append(delete_range(first, key))
            first = key
    if count:
        batch.append(delete_range(first, stop))
    for change in batch:
        engine.write([change], sync=False)


def _read_spans(
    engine: Engine,
    by_id: dict[int, RecoveredQueue],
    progress: Callable[[int], None],
    heads: HeadCodec,
    faults: list[BadRecord],
) -> dict[int, dict[int, _Spans]]:
    spans: dict[int, dict[int, _Spans]] = {}
    messages_count = 0
    for records_count, (key, value) in enumerate(engine.iterate(*keys.family_range(keys.SUMMARY))):
        queue_id, first = keys.parse_placed_key(key)
        summary = _summary(engine, key, value, heads, faults)
        if summary is None:
            _pass_block(by_id, queue_id, first >> keys.BLOCK_BITS)
            continue
        messages_count += summary.count
        if records_count % PROGRESS_COUNT == PROGRESS_COUNT - 1:
            progress(messages_count)
        if queue_id not in by_id:
            continue
        index = first >> keys.BLOCK_BITS
        part = spans.setdefault(queue_id, {}).setdefault(index, _Spans())
        base = index << keys.BLOCK_BITS
        part.span |= bit_range(first - base, summary.end_sequence - base)
        part.firsts.append(first)
        if summary.some_large:
            part.large_firsts.append(first)
        part.count += summary.count
        part.wire_bytes += summary.wire_bytes
        part.undated += summary.undated_count
        if summary.expires_min_ms:
            earliest_ms = part.earliest_ms
            part.earliest_ms = min(earliest_ms, summary.expires_min_ms) if earliest_ms else summary.expires_min_ms
            part.latest_ms = max(part.latest_ms, summary.expires_max_ms)
        part.grouped = part.grouped or summary.some_grouped
        part.due = part.due or summary.some_due
    progress(messages_count)
    return spans


def _pass_block(by_id: dict[int, RecoveredQueue], queue_id: int, index: int) -> None:
    """Let new elements begin behind this block: records of it must not be taken for theirs."""
    queue = by_id.get(queue_id)
    if queue is not None:
        queue.next_sequence = max(queue.next_sequence, (index + 1) << keys.BLOCK_BITS)


def _summary(engine: Engine, key: bytes, value: bytes, heads: HeadCodec, faults: list[BadRecord]) -> Summary | None:
    """Return a summary; where it can't be read, make it from its chunk. None: the chunk can't be read either."""
    queue_id, first = keys.parse_placed_key(key)
    room_count = keys.BLOCK_SIZE - (first & (keys.BLOCK_SIZE - 1))
    try:
        summary = decode_summary(value)
        if summary.end_sequence - first > room_count or summary.end_sequence <= first:
            raise ChunkError(f"a summary of {summary.end_sequence - first} places where {room_count} are left")
        return summary
    except ChunkError as error:
        chunk = _chunk(engine, keys.chunk_key(queue_id, first))
        try:
            sequences, messages = decode_chunk(first, chunk or b"", heads, _Noted)
        except ChunkError as chunk_error:
            faults.append(BadRecord(key, value, f"{error}; {chunk_error}", "its messages are not found"))
            return None
        faults.append(BadRecord(key, value, str(error), "none: it was made again from its chunk"))
        return summary_of(sequences, messages)


def _read_states(
    engine: Engine, by_id: dict[int, RecoveredQueue], faults: list[BadRecord]
) -> dict[int, dict[int, tuple[int, dict[int, int]]]]:
    states: dict[int, dict[int, tuple[int, dict[int, int]]]] = {}
    for key, value in engine.iterate(*keys.family_range(keys.STATE)):
        queue_id, index = keys.parse_placed_key(key)
        _pass_block(by_id, queue_id, index)
        if queue_id in by_id:
            try:
                states.setdefault(queue_id, {})[index] = decode_state(value)
            except StateError as error:
                by_id[queue_id].handed_to = ALL_SEEN
                effect = f"acknowledged messages in block {index} of {by_id[queue_id].name} are redelivered"
                faults.append(BadRecord(key, value, str(error), effect))
    return states


def _put_together(
    queue: RecoveredQueue, spans: dict[int, _Spans], states: dict[int, tuple[int, dict[int, int]]]
) -> None:
    for index in sorted(spans):
        part = spans[index]
        settled, attempts = states.get(index, (0, {}))
        live = part.span & ~settled
        stored = StoredBlock(part.span, live, part.firsts)
        stored.attempts = attempts or None
        queue.blocks[index] = stored
        # Also behind a block of which nothing is alive: its chunks are still there, and what is new must not mix with
        # them.
        queue.next_sequence = max(queue.next_sequence, (index + 1) << keys.BLOCK_BITS)
        if not live:
            continue  # deleted with the first batch
        live_count = live.bit_count()
        size_bytes = part.wire_bytes * live_count // part.count
        dates = Dates(part.earliest_ms, part.latest_ms, part.undated)
        queue.outside[index] = Outside(live, live.bit_length(), size_bytes, dates), live_count
        if part.grouped:
            queue.grouped.add(index)
        if part.due:
            queue.due.add(index)


class _Noted(DelayedMessage):
    """A message whose body lies in a file, to be counted only."""

    __slots__ = ("large",)

    def __init__(
        self,
        head: Envelope,
        wire: bytes,
        number: int,
        expires_at_ms: int,
        due_at_ms: int,
        file_id: int,
        length_bytes: int,
    ) -> None:
        super().__init__(head, wire, number, expires_at_ms, due_at_ms)
        self.large = (file_id, length_bytes)  # type: ignore[misc]


class _AnyHead:
    """HeadCodec for callers that do not use heads."""

    def describe(self, head: Envelope) -> tuple[int, int]:
        raise NotImplementedError("nothing is written here")

    def restore(self, dialect: int, block: bytes) -> Envelope:
        return cast(Envelope, None)


def _chunk(engine: Engine, key: bytes) -> bytes | None:
    """Return a chunk, as far as it can be read: a later load of the block reports the damage. Raises EngineError where
    another attempt may help.
    """
    try:
        return engine.get(key)
    except CorruptionError:
        return b""


def _find_larges(engine: Engine, queue: RecoveredQueue, spans: dict[int, _Spans]) -> bool:
    """Find the files of the live elements: only their chunks are read. Returns whether all of these could be read."""
    is_whole = True
    for index, part in spans.items():
        live = queue.blocks[index].live
        for first in part.large_firsts:
            value = _chunk(engine, keys.chunk_key(queue.queue_id, first))
            try:
                sequences, messages = decode_chunk(first, value or b"", _AnyHead(), _Noted)
            except ChunkError:
                is_whole = False  # a reader of the block reports that, and moves the record aside
                continue
            for sequence, message in zip(sequences, messages, strict=True):
                large = message.large
                if large is not None and live >> (sequence & (keys.BLOCK_SIZE - 1)) & 1:
                    queue.larges[sequence] = large[0]
    return is_whole


def _read_transactions(engine: Engine, found: Recovered) -> None:
    """Committed ones with the pieces that they have left; the others are deleted. Reads all of their pieces."""
    commits: dict[int, CommitRecord] = {}
    for key, value in engine.iterate(*keys.family_range(keys.SPOOL)):
        transaction_id = keys.parse_spool_key(key)
        try:
            commits[transaction_id] = decode_commit(value)
        except PieceError as error:
            commits[transaction_id] = CommitRecord(0, 0)
            found.faults.append(BadRecord(key, value, str(error), "this transaction comes before others, at worst"))
    start, stop = keys.family_range(keys.TRANSACTION)
    while (first := next(engine.iterate_keys(start, stop), None)) is not None:
        transaction_id, _place = keys.parse_transaction_key(first)
        pieces_range = keys.transaction_range(transaction_id)
        found.next_transaction_id = max(found.next_transaction_id, transaction_id + 1)
        start = pieces_range[1]
        if transaction_id in commits:
            record = commits[transaction_id]
            transaction = RecoveredTransaction(transaction_id, record.commit_number, record.pieces_count)
            _read_pieces(engine, transaction, frozenset(record.dropped), found)
            if transaction.pieces:
                found.transactions.append(transaction)
        else:
            found.rolled_back_count += 1
            _wipe(engine, *pieces_range)
    left = {transaction.transaction_id for transaction in found.transactions}
    for transaction_id, record in commits.items():
        found.next_transaction_id = max(found.next_transaction_id, transaction_id + 1)
        found.next_commit_number = max(found.next_commit_number, record.commit_number + 1)
        if transaction_id not in left:
            engine.write([delete(keys.spool_key(transaction_id))], sync=False)
    found.transactions.sort(key=lambda transaction: (transaction.commit_number, transaction.transaction_id))


def _read_pieces(
    engine: Engine, transaction: RecoveredTransaction, dropped: frozenset[SpoolTarget], found: Recovered
) -> None:
    """Find the pieces of a transaction; those for queues that were `dropped` are deleted."""
    gone: list[Change] = []
    for key, value in engine.iterate(*keys.transaction_range(transaction.transaction_id)):
        _transaction_id, place = keys.parse_transaction_key(key)
        file_ids: list[int] = []
        try:
            piece = decode_piece(value)
            if piece.target in dropped:
                gone.append(delete(key))
                continue
            if piece.some_large:
                _sequences, messages = decode_chunk(0, piece.chunk, _AnyHead(), _Noted)
                file_ids = [message.large[0] for message in messages if message.large is not None]
        except (PieceError, ChunkError) as error:
            found.faults.append(BadRecord(key, value, str(error), "messages of a committed transaction are lost"))
            continue
        transaction.pieces[place] = RecoveredPiece(piece.target, len(value), file_ids, piece.begun_at)
        found.body_counts.update(file_ids)
    for first in range(0, len(gone), WIPE_COUNT):
        engine.write(gone[first : first + WIPE_COUNT], sync=False)


def opening_records(token: bytes, numbers_to: int, format_version: int = keys.FORMAT_VERSION_MIN) -> list[Change]:
    """Return the records to write, synced, before a broker uses a store: from then on the store is not closed in
    order.
    """
    return [
        put(keys.META_FORMAT_KEY, encode_format(format_version)),
        put(keys.META_TOKEN_KEY, token),
        put(keys.META_NUMBERS_KEY, encode_numbers(numbers_to)),
        put(keys.META_CLEAN_KEY, encode_clean(False)),
    ]


def closing_records(next_number: int) -> list[Change]:
    """Return the records to write last."""
    return [
        put(keys.META_NUMBERS_KEY, encode_numbers(next_number)),
        put(keys.META_CLEAN_KEY, encode_clean(True)),
    ]
