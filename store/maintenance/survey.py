"""Survey of a whole store: finds faults, and for each fault its repair.

How it works: one pass over the chunks with their summaries and states, block by block, and one over each family of
small records. The readable chunks determine what a block should look like: their summaries, and a state within them.
Every difference is a fault, with the changes that remove it; check.py reports them, mending.py applies them. So report
and repair can't drift apart.

A *fault* is damage by a disk, memory or program. Leftovers of a killed broker are not faults: the next start deletes
them, and they are only a *note* here.

Nothing is guessed: a summary follows from its chunk; the record of a queue from the messages in it; an unreadable state
is replaced by one that says «nothing is settled, all of it may have been seen», so that nothing is lost and
redeliveries are marked. Faults whose repair can't be derived (two queues of one name, chunks that overlap) are reported
and left alone: export and import put them in order.

Bounds: the records of one block, and a few hundred bytes for each queue, durable subscription and large body.

Source: FORMAT.md, "Damage".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import attrs

from ...flow.words import count_in_words
from ...queues.blocks import bit_range, bits_of
from ...queues.durables import DurableKey, key_of
from ...queues.message import Message
from .. import keys
from ..chunks import ChunkError, HeadCodec, decode_chunk, encode_summary, summary_of
from ..durables import kept_durables, removal
from ..engine import Engine, delete, delete_range, put
from ..keys import KeyFormatError, StoreFormatError
from ..log_producers import decode_producers
from ..metadata.damage import DamageSearch
from ..states import (
    KIND_QUEUE,
    KIND_TOPIC,
    DurableRecord,
    decode_clean,
    decode_cursor,
    decode_durable,
    decode_format,
    decode_head,
    decode_numbers,
    decode_producer,
    decode_queue,
    decode_state,
    encode_clean,
    encode_cursor,
    encode_format,
    encode_head,
    encode_numbers,
    encode_queue,
    encode_state,
)
from .bodies import Bodies
from .faults import CARRY_OVER, NO_MEND, QueueCount, StoreFault, alive_count, summary_fault
from .metadata import metadata_faults
from .records import BlockRecords, QueueName, blocks, make_large, queue_of

_PROGRESS_CHUNKS: Final = 64
_KEYS_END: Final = b"\xff" * 16
_COUNT_AT: Final = slice(2, 6)
"""Position of the number of messages in a chunk."""


@attrs.define
class _Found:
    """A block under examination."""

    span: int = 0
    """Elements from the first to the last of each readable chunk."""
    present: int = 0
    torn: bool = False
    """Whether a chunk can't be read: its part of the state is no fault of the state."""
    crossing: bool = False
    """Whether a chunk reaches into the next block: then the state is ambiguous."""
    faults: list[StoreFault] = attrs.field(factory=list)


class StoreSurvey:
    """One pass over a store. Run `faults` to its end; then the other attributes are filled. See the module."""

    def __init__(
        self,
        engine: Engine,
        heads: HeadCodec,
        *,
        bodies: Bodies | None = None,
    ) -> None:
        """Prepare a survey. `bodies`: large bodies, None: skip them."""
        self._engine = engine
        self._heads = heads
        self._shelf = bodies
        self.on_progress: Callable[[int], None] | None = None
        """Gets the number of messages so far, settled ones included."""
        self.queues: dict[int, QueueCount] = {}
        self.durables: dict[int, DurableRecord] = {}
        self.metadata = DamageSearch(engine)
        self.notes: list[str] = []
        self.clean = True
        """Whether the last broker stopped in order."""
        self.messages_read_count = 0
        """Number of messages in chunks, settled ones included."""
        self._handed_to: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        """End of the last chunk of each queue."""
        self._numbers_end = 0
        self._bodies: dict[int, int] = {}
        """Length of each file that a chunk names."""
        self._spooled_count = 0
        self._bad: list[tuple[bytes, bytes]] = []
        self._first_of_unknown: Message | None = None
        """First message of the current queue, if that has no record."""

    def faults(self) -> Iterator[StoreFault]:
        """Yield all faults. Raises EngineError where LevelDB itself can't read on."""
        yield from self._queue_records()
        self._read_heads()
        yield from self._blocks()
        yield from self._heads_and_cursors()
        yield from metadata_faults(self.metadata)
        yield from self._meta()
        self._count_transactions()
        yield from self._large_bodies()
        self._count_paged()
        self._find_strangers()
        for key, value in self._bad:
            yield StoreFault(
                "bad-key",
                f"record {key.hex()}",
                "its key is none of its family: nothing reads it",
                "moved to quarantine",
                changes=(delete(key),),
                aside=((f"record-{key.hex()}", value),),
            )

    def _note_bad_key(self, key: bytes, value: bytes) -> None:
        self._bad.append((key, value))

    # ------------------------------------------------------------------ queues

    def _queue_records(self) -> Iterator[StoreFault]:
        names: dict[tuple[str, int, bool], int] = {}
        for key, value in self._engine.iterate(*keys.family_range(keys.QUEUE)):
            try:
                queue_id = keys.parse_queue_key(key)
            except KeyFormatError:
                self._note_bad_key(key, value)
                continue
            try:
                kind, priority, name = decode_queue(value)
            except StoreFormatError as error:
                yield StoreFault(
                    "corrupt-queue",
                    f"queue {queue_id}",
                    str(error),
                    "moved to quarantine, and made again if it has messages",
                    changes=(delete(key),),
                    aside=((f"queue-{key.hex()}", value),),
                )
                continue
            queue = self.queues[queue_id] = QueueCount(queue_id, name, priority, kind == KIND_TOPIC)
            same_id = names.setdefault((name, priority, queue.topic), queue_id)
            if same_id != queue_id:
                yield StoreFault(
                    "double-queue",
                    name,
                    f"it is there twice with priority {priority}, as number {same_id} and {queue_id}: a broker sees "
                    "the messages of one of them only",
                    CARRY_OVER,
                )

    def _read_heads(self) -> None:
        """Read which messages count as seen; faults of heads are reported later, when all queues are known."""
        for key, value in self._engine.iterate(*keys.family_range(keys.HEAD)):
            try:
                self._handed_to[keys.parse_queue_key(key)] = decode_head(value)[1]
            except StoreFormatError:
                continue

    def _heads_and_cursors(self) -> Iterator[StoreFault]:
        for key, value in self._engine.iterate(*keys.family_range(keys.HEAD)):
            try:
                queue_id = keys.parse_queue_key(key)
            except KeyFormatError:
                self._note_bad_key(key, value)
                continue
            queue = self.queues.get(queue_id)
            if queue is None:
                yield self._of_no_queue(key, queue_id, "its head")
                continue
            try:
                decode_head(value)
            except StoreFormatError as error:
                end = self._ends.get(queue_id, 0)
                yield StoreFault(
                    "corrupt-head",
                    queue.name,
                    str(error),
                    "moved to quarantine and made again; its messages count as seen",
                    changes=(put(key, encode_head(end, end)),),
                    aside=((f"head-{key.hex()}", value),),
                )
        yield from self._durable_records()
        yield from self._cursor_records()
        yield from self._producer_records()
        yield from self._log_producers()

    def _producer_records(self) -> Iterator[StoreFault]:
        for key, value in self._engine.iterate(*keys.family_range(keys.PRODUCER)):
            try:
                queue_id, producer = keys.parse_producer_key(key)
            except KeyFormatError:
                self._note_bad_key(key, value)
                continue
            queue = self.queues.get(queue_id)
            if queue is None:
                yield self._of_no_queue(key, queue_id, f"a record of producer {producer[1:]!r}")
                continue
            try:
                decode_producer(value)
            except StoreFormatError as error:
                yield StoreFault(
                    "corrupt-producer",
                    queue.name,
                    f"of {producer[1:]!r}: {error}",
                    "moved to quarantine: what this producer sends again may be taken a second time",
                    changes=(delete(key),),
                    aside=((f"producer-{key.hex()}", value),),
                )

    def _log_producers(self) -> Iterator[StoreFault]:
        for key, value in self._engine.iterate(*keys.family_range(keys.LOG_PRODUCERS)):
            try:
                log = keys.parse_log_producers_key(key)
            except KeyFormatError:
                self._note_bad_key(key, value)
                continue
            try:
                decode_producers(value)
            except StoreFormatError as error:
                yield StoreFault(
                    "corrupt-producer",
                    log,
                    str(error),
                    "moved to quarantine: what producers of the log send again may be appended a second time",
                    changes=(delete(key),),
                    aside=((f"producers-{key.hex()}", value),),
                )

    def _durable_records(self) -> Iterator[StoreFault]:
        names: dict[DurableKey, int] = {}
        bad: list[tuple[bytes, bytes, StoreFormatError]] = []
        for durable_id, record in kept_durables(self._engine, lambda *one: bad.append(one)):
            yield from self._durable(durable_id, record, names)
        for key, value, error in bad:
            yield StoreFault(
                "corrupt-durable",
                f"durable subscription {key.hex()}",
                str(error),
                "moved to quarantine: the subscription is lost",
                changes=removal(key),
                aside=((f"durable-{key.hex()}", value),),
            )
        # Records of an earlier version, until the next start moves them.
        for key, value in self._engine.iterate(*keys.family_range(keys.DURABLE)):
            try:
                durable_id = keys.parse_durable_key(key)
            except KeyFormatError:
                self._note_bad_key(key, value)
                continue
            try:
                record = decode_durable(value)
            except StoreFormatError as error:
                yield StoreFault(
                    "corrupt-durable",
                    f"durable subscription {durable_id}",
                    str(error),
                    "moved to quarantine: the subscription is lost",
                    changes=(delete(key),),
                    aside=((f"durable-{key.hex()}", value),),
                )
                continue
            yield from self._durable(durable_id, record, names)

    def _durable(self, durable_id: int, record: DurableRecord, names: dict[DurableKey, int]) -> Iterator[StoreFault]:
        same_id = names.setdefault(key_of(record.client_id, record.name, record.destination), durable_id)
        if same_id != durable_id or durable_id in self.durables:
            yield StoreFault(
                "double-durable",
                f"durable subscription {record.name!r} of client {record.client_id!r}",
                f"it is there twice, as number {same_id} and {durable_id}"
                if same_id != durable_id
                else f"there is another one of its number, {durable_id}",
                NO_MEND,
            )
        self.durables[durable_id] = record

    def _cursor_records(self) -> Iterator[StoreFault]:
        left_count = 0
        for key, value in self._engine.iterate(*keys.family_range(keys.CURSOR)):
            try:
                queue_id, durable_id = keys.parse_cursor_key(key)
            except KeyFormatError:
                self._note_bad_key(key, value)
                continue
            if queue_id not in self.queues:
                yield self._of_no_queue(key, queue_id, f"a cursor of durable subscription {durable_id}")
                continue
            name = self.queues[queue_id].name
            if durable_id not in self.durables:
                left_count += 1
                continue
            try:
                decode_cursor(value)
            except StoreFormatError as error:
                yield StoreFault(
                    "corrupt-cursor",
                    name,
                    f"of durable subscription {self.durables[durable_id].name!r}: {error}",
                    "moved to quarantine: the subscription begins with the oldest message there is, marked as seen",
                    changes=(put(key, encode_cursor(0, self._ends.get(queue_id, 0), (), {})),),
                    aside=((f"cursor-{key.hex()}", value),),
                )
        if left_count:
            self.notes.append(
                f"{count_in_words(left_count, 'cursor')} of durable subscriptions that were removed: the next start "
                "deletes them"
            )

    def _of_no_queue(self, key: bytes, queue_id: int, what: str) -> StoreFault:
        return StoreFault(
            "orphan-record",
            f"queue {queue_id}",
            f"{what} is there, but no such queue",
            "deleted",
            changes=(delete(key),),
        )

    # ------------------------------------------------------------------ messages

    def _blocks(self) -> Iterator[StoreFault]:
        unknown: QueueCount | None = None
        self._first_of_unknown = None
        for place, block in enumerate(blocks(self._engine, self._note_bad_key)):
            queue = self.queues.get(block.queue_id)
            if queue is None:
                if unknown is None or unknown.queue_id != block.queue_id:
                    if unknown is not None:
                        yield from self._unknown_queue(unknown)
                    unknown = QueueCount(block.queue_id, "", -1, topic=False)
                queue = unknown
            yield from self._block(block, queue)
            if place % _PROGRESS_CHUNKS == 0 and self.on_progress is not None:
                self.on_progress(self.messages_read_count)
        if unknown is not None:
            yield from self._unknown_queue(unknown)
        if self.on_progress is not None:
            self.on_progress(self.messages_read_count)

    def _unknown_queue(self, queue: QueueCount) -> Iterator[StoreFault]:
        """Report blocks without a queue record: the first message may name the queue."""
        queue_id = queue.queue_id
        where = f"queue {queue_id}"
        first, self._first_of_unknown = self._first_of_unknown, None
        if first is None:
            ranges = [keys.queue_range(family, queue_id) for family in (keys.SUMMARY, keys.STATE)]
            yield StoreFault(
                "orphan-record",
                where,
                "summaries or states of it are there, but no such queue and no messages",
                "deleted",
                changes=tuple(delete_range(*part) for part in ranges),
            )
            return
        what = f"{queue.messages_count} messages are there, but no record that says of which queue"
        self.queues[queue_id] = queue
        name = queue_of(first)
        if name is None:
            queue.name = where
            yield StoreFault(
                "unknown-queue", where, f"{what}; by its headers the first is for {first.head.destination!r}", NO_MEND
            )
            return
        twin = name in {QueueName(other.name, other.priority, other.topic) for other in self.queues.values()}
        queue.name, queue.priority, queue.topic = name
        if twin:
            yield StoreFault(
                "unknown-queue", where, f"{what}; by their headers {name.name}, which is there as well", CARRY_OVER
            )
            return
        value = encode_queue(KIND_TOPIC if name.topic else KIND_QUEUE, name.priority, name.name)
        yield StoreFault(
            "unknown-queue",
            where,
            what,
            f"it is made again from its messages: {name.name}, priority {name.priority}",
            changes=(put(keys.queue_key(queue_id), value),),
        )

    def _block(self, block: BlockRecords, queue: QueueCount) -> list[StoreFault]:
        found = _Found()
        where = queue.name or f"queue {block.queue_id}"
        queue.chunks_count += len(block.chunks)
        state = self._state(block, where, found)
        settled, attempts = state if state is not None else (0, {})
        for first, value in block.chunks:
            self._chunk(block, first, value, settled, queue, found)
        chunks = dict(block.chunks)
        for first, value in block.summaries.items():
            if first not in chunks:
                found.torn = True
                lost_count = alive_count(value, first, block, settled)
                found.faults.append(
                    StoreFault(
                        "orphan-summary",
                        where,
                        f"the chunk from {first} is missing, its summary is there",
                        "the summary is deleted",
                        lost_count=lost_count,
                        changes=(delete(keys.summary_key(block.queue_id, first)),),
                    )
                )
        self._hold_against_state(block, where, found, settled, attempts, corrupt=state is None)
        alive = found.present & ~settled
        queue.messages_count += alive.bit_count()
        queue.settled_count += (found.present & settled).bit_count()
        handed_to = self._handed_to.get(block.queue_id, 0)
        seen = bit_range(0, min(max(0, handed_to - block.base), keys.BLOCK_SIZE))
        if state is None:
            seen = found.present
        queue.seen_count += (alive & (seen | bits_of(sorted(attempts)))).bit_count()
        return found.faults

    def _state(self, block: BlockRecords, where: str, found: _Found) -> tuple[int, dict[int, int]] | None:
        """Return settled bits and attempts. None: unreadable."""
        if block.state is None:
            return 0, {}
        try:
            return decode_state(block.state)
        except StoreFormatError as error:
            key = keys.state_key(block.queue_id, block.index)
            found.faults.append(
                StoreFault(
                    "corrupt-state",
                    where,
                    f"block {block.index}: {error}",
                    "moved to quarantine; all messages of the block are redelivered, marked",
                    aside=((f"state-{key.hex()}", block.state),),
                )
            )
            return None

    def _chunk(
        self, block: BlockRecords, first: int, value: bytes, settled: int, queue: QueueCount, found: _Found
    ) -> None:
        where = queue.name or f"queue {block.queue_id}"
        summary_value = block.summaries.get(first)
        key, summary_key = keys.chunk_key(block.queue_id, first), keys.summary_key(block.queue_id, first)
        try:
            sequences, messages = decode_chunk(first, value, self._heads, make_large)
        except ChunkError as error:
            found.torn = True
            changes = [delete(key)]
            if summary_value is not None:
                changes.append(delete(summary_key))
            found.faults.append(
                StoreFault(
                    "corrupt-chunk",
                    where,
                    str(error),
                    "moved to quarantine; its messages are lost",
                    lost_count=alive_count(summary_value, first, block, settled),
                    changes=tuple(changes),
                    aside=((f"chunk-{key.hex()}", value),),
                )
            )
            return
        count = len(messages)
        self.messages_read_count += count
        self._numbers_end = max(self._numbers_end, max([message.number for message in messages]) + 1)
        self._ends[block.queue_id] = max(self._ends.get(block.queue_id, 0), sequences[-1] + 1)
        if not queue.name and self._first_of_unknown is None:
            self._first_of_unknown = messages[0]
        for message in messages:
            if message.large is not None:
                file_id, length_bytes = message.large
                self._bodies[file_id] = length_bytes
        summary = summary_of(sequences, messages)
        if sequences[-1] >> keys.BLOCK_BITS != block.index:
            found.faults.append(
                StoreFault(
                    "crossing-chunk",
                    where,
                    f"the chunk from {first} crosses the border of its block: it ends with {sequences[-1]}",
                    CARRY_OVER,
                )
            )
            queue.messages_count += count
            found.crossing = True
            return
        span = bit_range(first - block.base, summary.end_sequence - block.base)
        if span & found.span:
            found.faults.append(
                StoreFault(
                    "overlapping-chunks",
                    where,
                    f"the chunk from {first} begins before the one before it has ended",
                    CARRY_OVER,
                )
            )
        found.span |= span
        places = [sequence - block.base for sequence in sequences]
        found.present |= span if len(places) == span.bit_count() else bits_of(places)
        if settled:
            rows = zip(places, messages, strict=True)
            queue.wire_bytes += sum([len(message.wire) for place, message in rows if not settled >> place & 1])
        else:
            queue.wire_bytes += summary.wire_bytes
        fault = summary_fault(summary_value, summary, first, where)
        if fault is not None:
            found.faults.append(attrs.evolve(fault, changes=(put(summary_key, encode_summary(summary)),)))

    def _hold_against_state(
        self,
        block: BlockRecords,
        where: str,
        found: _Found,
        settled: int,
        attempts: dict[int, int],
        *,
        corrupt: bool,
    ) -> None:
        """Compare the state with the chunks, and report differences."""
        if found.crossing:
            return
        holes = found.span & ~found.present
        wanted = (settled & found.span) | holes
        wanted_attempts = {place: n for place, n in attempts.items() if found.present >> place & 1}
        alive = found.present & ~settled
        wanted_attempts = {place: n for place, n in wanted_attempts.items() if alive >> place & 1}
        if corrupt:
            wanted_attempts = {place: 0 for place in range(keys.BLOCK_SIZE) if found.present >> place & 1}
        elif (wanted, wanted_attempts) == (settled, attempts) and (found.span or block.state is None):
            return
        key = keys.state_key(block.queue_id, block.index)
        if not found.span:
            change = delete(key)
        else:
            change = put(key, encode_state(wanted, wanted_attempts))
        if corrupt:
            # The first fault of this block is that of its state.
            found.faults[0] = attrs.evolve(found.faults[0], changes=(change,))
            return
        missing_count = (holes & ~settled).bit_count()
        if missing_count:
            found.faults.append(
                StoreFault(
                    "missing-messages",
                    where,
                    f"block {block.index}: {missing_count} messages count as alive that no chunk has",
                    "they are marked as acknowledged",
                    lost_count=missing_count,
                    changes=(change,),
                )
            )
        elif found.torn and found.faults:
            # The state of an unreadable chunk goes with that chunk.
            last = found.faults[-1]
            if last.changes:
                found.faults[-1] = attrs.evolve(last, changes=(*last.changes, change))
        elif not found.span:
            found.faults.append(
                StoreFault(
                    "orphan-state",
                    where,
                    f"block {block.index} has a state, but no chunk",
                    "deleted",
                    changes=(change,),
                )
            )
        else:
            found.faults.append(
                StoreFault(
                    "state-beyond-chunks",
                    where,
                    f"the state of block {block.index} names messages that no chunk has, or counts attempts of "
                    "acknowledged ones",
                    "it is cut to the present messages",
                    changes=(change,),
                )
            )

    # ------------------------------------------------------------------ the store itself

    def _meta(self) -> Iterator[StoreFault]:
        numbers_end = self._numbers_end
        wanted: dict[bytes, tuple[Callable[[bytes], int], bytes, str]] = {
            keys.META_FORMAT_KEY: (decode_format, encode_format(keys.FORMAT_VERSION_MIN), "format"),
            keys.META_CLEAN_KEY: (decode_clean, encode_clean(False), "clean"),
            keys.META_NUMBERS_KEY: (decode_numbers, encode_numbers(numbers_end), "numbers"),
        }
        read: dict[str, int] = {}
        for key, (decode, good, name) in wanted.items():
            value = self._engine.get(key)
            if value is None:
                if self.queues:
                    yield StoreFault(
                        "missing-meta", f"record {name!r}", "it is not there", "made again", changes=(put(key, good),)
                    )
                continue
            try:
                read[name] = decode(value)
            except StoreFormatError as error:
                yield StoreFault(
                    "corrupt-meta",
                    f"record {name!r}",
                    str(error),
                    "made again",
                    changes=(put(key, good),),
                    aside=((f"meta-{name}", value),),
                )
        self.clean = bool(read.get("clean", 1))
        if not self.clean:
            self.notes.append("the last broker did not stop cleanly: its data is intact all the same")
        if read.get("numbers", numbers_end) < numbers_end:
            yield StoreFault(
                "low-numbers",
                "record 'numbers'",
                f"messages have numbers up to {numbers_end - 1}, new ones would begin with {read['numbers']}: "
                "message-ids would come twice",
                "raised",
                changes=(put(keys.META_NUMBERS_KEY, encode_numbers(numbers_end)),),
            )
        known = {keys.META_TOKEN_KEY, *wanted}
        strange = [key for key in self._engine.iterate_keys(*keys.family_range(keys.META)) if key not in known]
        if strange:
            names = ", ".join(sorted(repr(key[1:].decode(errors="replace")) for key in strange)[:5])
            self.notes.append(f"{len(strange)} settings of the store that this version does not know: {names}")

    def _count_paged(self) -> None:
        count = records_count = 0
        for key, value in self._engine.iterate(*keys.family_range(keys.PAGED)):
            try:
                keys.parse_placed_key(key)
            except KeyFormatError:
                self._note_bad_key(key, value)
                continue
            records_count += 1
            count += int.from_bytes(value[_COUNT_AT], "little")
        if records_count:
            self.notes.append(
                f"{count} messages that were not persistent, left by the last broker: the next start deletes them"
            )

    def _count_transactions(self) -> None:
        self._spooled_count = committed_count = sum(
            1 for _key in self._engine.iterate_keys(*keys.family_range(keys.SPOOL))
        )
        if committed_count:
            self.notes.append(
                f"{self._spooled_count} large transactions are committed, not all in their queues yet: the next start "
                "moves them on; until then their messages are not counted here"
            )
        elif next(iter(self._engine.iterate_keys(*keys.family_range(keys.TRANSACTION))), None) is not None:
            self.notes.append("large transactions that were not committed: the next start deletes them")

    def _find_strangers(self) -> None:
        """Note records of families that this version does not know or check."""
        count = 0
        start = b""
        looked_into = sorted(keys.FAMILIES - {keys.VALUE})
        for family in [*looked_into, None]:
            begin, end = keys.family_range(family) if family is not None else (_KEYS_END, _KEYS_END)
            for _key in self._engine.iterate_keys(start, begin):
                count += 1
            start = end
        if count:
            self.notes.append(f"{count} records of kinds that this version does not know; they are left alone")

    def _large_bodies(self) -> Iterator[StoreFault]:
        shelf = self._shelf
        if shelf is None:
            return
        for file_id, length_bytes in sorted(self._bodies.items()):
            there_bytes = shelf.size_bytes(file_id)
            if there_bytes == length_bytes:
                continue
            what = f"{shelf.noun} is missing"
            if there_bytes is not None:
                what = f"{shelf.noun} has {there_bytes} bytes, not {length_bytes}"
            yield StoreFault(
                "bad-body",
                shelf.place(file_id),
                what,
                "nothing here: bring the file back; or `sluiceway store export`, which leaves the message out, and "
                "`import` into a new folder",
                lost_count=1,
            )
        left = shelf.strangers(self._bodies)
        if left and not self._spooled_count:  # transactions may have some of them
            self.notes.append(f"{left} with bodies that no message has: the next start removes them")
