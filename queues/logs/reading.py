"""Records as MESSAGEs: made once for all readers at one position, and cached.

A *chunk* is up to five hundred consecutive records (or a megabyte) as messages; readers get slices of it. Batches that
were taken apart, above all compressed ones, are cached, too, as the next chunk begins in the middle of one. Both are
charged to one limiter for all logs; the least recently used are dropped.

A record of a damaged batch is a gap, see `Unreadable`.
"""

from __future__ import annotations

import base64
import re
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from ...flow import Account, Flow, FlowManager, FlowResource, SizeLimiter
from ...flow.kinds import ResourceKind
from ..message import MESSAGE_OVERHEAD_BYTES, Envelope, Message, wire_bytes_of
from ..slices import Slice, fit
from .batches import Batch, BatchError
from .codecs import Room
from .offers import INLINE_PLAIN_BYTES
from .ports import COMPACTED, AwayError, DiskError, EnvelopeCodec, MissingRecordsError

if TYPE_CHECKING:
    from .log import Log

CHUNK_COUNT: Final = 512
"""Records made messages in one go: two milliseconds. More in one dispatch would be too much, see RECORDS_PER_BATCH."""
RECORDS_PER_BATCH: Final = 32
"""Records made or encoded anew that count as one more batch taken apart: a whole chunk uses up a dispatch."""
CHUNK_BYTES: Final = 1024 * 1024
BATCH_BYTES: Final = 1024
"""Size of a batch taken apart without its body: views of its page, its header fields, its share of the chunk."""
CHUNK_BATCHES: Final = 24
"""Maximum number of batches per chunk: each takes as long as some 50 records of one."""
CHECKED_COUNT: Final = 2048
"""Number of records above which a thread checks a batch."""
CHECKED_BYTES: Final = 1024 * 1024
"""Size of a batch in bytes above which a thread checks it."""
FORGOTTEN_COUNT: Final = 64
"""Batches examined per step when a log is gone."""
DIALECT_12: Final = 2
_PLAIN_KEY: Final = re.compile(rb"[!-9;-\[\]-~](?:[ -9;-\[\]-~]*[!-9;-\[\]-~])?")


class Unreadable(Exception):
    """Damaged or removed records from `first_index` to before `end_index`."""

    def __init__(self, first_index: int, end_index: int, why: str, *, is_compacted: bool = False) -> None:
        """Take `is_compacted`: compaction has removed the records, and readers pass over them."""
        super().__init__(why)
        self.first_index = first_index
        self.end_index = end_index
        self.is_compacted = is_compacted


class NotReadyError(DiskError):
    """Refusal to read a batch that a thread is still bringing, or a long one that it is checking or expanding."""

    def __init__(self, key: tuple[str, int]) -> None:
        super().__init__("a batch is being brought or checked")
        self.key = key


class AwaitsBatch(Protocol):
    """A waiter for a batch that a thread is checking."""

    def go_on(self, error: DiskError | None) -> None:
        """Continue, as the batch is ready, or the disk has failed."""


class RecordMessage(Message):
    """A record as a message; its number is its index."""

    __slots__ = ("lines_bytes",)

    def __init__(self, head: Envelope, wire: bytes, number: int, lines_bytes: int) -> None:
        """Take `lines_bytes`, the length of the broker's own lines at the beginning, which are the same in every
        version.
        """
        super().__init__(head, wire, number)
        self.lines_bytes = lines_bytes

    @property
    def own_key(self) -> bytes:
        """Key of the record in its batch, as its header line (`key_line`); empty without one."""
        own = self.wire[: self.lines_bytes]
        place = own.find(b"\nkey")
        return own[place + 1 : -1] if place >= 0 else b""


class _Chunk:
    __slots__ = ("end", "messages", "size_bytes", "start", "whole")

    def __init__(self, start: int, messages: list[Message], wire_bytes: int) -> None:
        self.start = start
        self.end = start + len(messages)
        self.messages = messages
        self.size_bytes = wire_bytes + len(messages) * MESSAGE_OVERHEAD_BYTES
        self.whole = Slice(messages, range(start, self.end), wire_bytes)


class RecordCache(FlowResource):
    """Cache of the records of all logs."""

    def __init__(self, capacity_bytes: int, heads: EnvelopeCodec, *, manager: FlowManager, clock: object) -> None:
        super().__init__("log records", ResourceKind.CACHE, manager)
        self._capacity_bytes = capacity_bytes
        self._heads = heads
        self._chunks: OrderedDict[tuple[str, int], _Chunk] = OrderedDict()
        self._starts: dict[str, list[int]] = {}
        self._batches: OrderedDict[tuple[str, int], tuple[Batch, int, str]] = OrderedDict()
        """Batches with their sizes, and the faults of the unreadable ones."""
        self._checking: dict[tuple[str, int], dict[AwaitsBatch, None]] = {}
        """Waiters for the batches that a thread checks."""
        self._used_bytes = 0
        self.taken_apart_count = 0
        """Total of batches whose records were made messages or encoded anew, weighed by RECORDS_PER_BATCH."""
        self.made_count = 0
        """Total of records made messages."""
        self._controller = Account(
            self,
            Flow("log records"),
            SizeLimiter(capacity_bytes, clock=clock),  # type: ignore[arg-type]
            clock=clock,  # type: ignore[arg-type]
        )
        self.open()

    def part(self, log: Log, start: int, stop: int, count_max: int, bytes_max: int) -> Slice:
        """Return records from `start` on: at least one, within the limits. Raises Unreadable."""
        chunk = self._chunk(log, start)
        end = min(stop, chunk.end, start + count_max)
        if start == chunk.start and end == chunk.end and chunk.whole.wire_bytes <= bytes_max:
            return chunk.whole
        messages = chunk.messages[start - chunk.start : end - chunk.start]
        count, wire_bytes = fit([message.wire for message in messages], bytes_max)
        return Slice(messages[:count], range(start, start + count), wire_bytes)

    def record(self, log: Log, index: int) -> Message:
        """Return one record without making messages of its neighbours. Raises as `part`."""
        starts = self._starts.get(log.log_id, ())
        place = bisect_right(starts, index) - 1
        if place >= 0 and index < (chunk := self._chunks[log.log_id, starts[place]]).end:
            return chunk.messages[index - chunk.start]
        batch = self.batch(log, index)
        place = index - batch.first_index
        return self._messages(log, batch, place, place + 1)[0]

    def batch(self, log: Log, index: int) -> Batch:
        """Return the checked batch that holds this record. Raises Unreadable, and NotReadyError for one that is away,
        and for a long one not checked yet, which a thread then brings or checks.
        """
        records = log.records
        try:
            batch = records.batch_of(index)
        except MissingRecordsError as gone:
            raise unreadable(index, gone) from None
        except AwayError as away:
            raise self.fetching(log, away) from None
        key = log.log_id, batch.first_index
        known = self._batches.get(key)
        if known is None and _is_long(batch):
            self._check_elsewhere(log, batch, key)
            known = self._batches.get(key)
            if known is None:
                raise NotReadyError(key)
        if known is None:
            known = self._keep(key, batch, _trouble(log, batch), in_memory=not records.is_mapped)
        else:
            self._batches.move_to_end(key)
        batch, _size_bytes, trouble = known
        if trouble:
            raise Unreadable(index, max(index + 1, min(batch.end_index, records.next_index)), trouble)
        return batch

    def fetching(self, log: Log, away: AwayError) -> NotReadyError:
        """Have records brought that are away, and return the error for a reader that comes to them."""
        key = log.log_id, -1 - away.index
        if key not in self._checking:
            self._checking[key] = {}

            def fetched(result: object) -> None:
                waiting = self._checking.pop(key)
                error = result if isinstance(result, DiskError) else None
                log.environment.do_in_steps(object(), _going_on(waiting, error))

            log.read_ahead(away.index, away.index + 1, fetched)
        return NotReadyError(key)

    def await_batch(self, key: tuple[str, int], who: AwaitsBatch) -> None:
        """Call `who.go_on` when the batch of a NotReadyError is ready."""
        self._checking[key][who] = None

    def _check_elsewhere(self, log: Log, batch: Batch, key: tuple[str, int]) -> None:
        if key in self._checking:
            return
        self._checking[key] = {}

        def checked(trouble: str | DiskError) -> None:
            waiting = self._checking.pop(key)
            error = trouble if isinstance(trouble, DiskError) else None
            if not isinstance(trouble, DiskError) and not log.closed:
                self._keep(key, batch, trouble, in_memory=not log.records.is_mapped)
            log.environment.do_in_steps(waiting_for, _going_on(waiting, error))

        waiting_for = object()  # a new owner: no other steps wait behind them
        log.elsewhere(lambda: _trouble(log, batch, log.room), checked)

    def _keep(self, key: tuple[str, int], batch: Batch, trouble: str, *, in_memory: bool) -> tuple[Batch, int, str]:
        size_bytes = BATCH_BYTES + (batch.total_bytes if in_memory else 0)
        if not trouble:
            size_bytes += (8 if batch.has_keys else 4) * batch.count + (batch.plain_bytes if batch.codec_number else 0)
        kept = self._batches[key] = batch, size_bytes, trouble
        self._take(size_bytes)
        return kept

    def head_of(self, name: str, lines: bytes, *, offered: bool = False) -> Envelope:
        """Return the head of records with these header lines. Raises BatchError for lines that are invalid in a
        MESSAGE, and in lines `offered` by a client for headers that only the broker may set.
        """
        lines = lines.removesuffix(b"\n")
        if b"\0" in lines or b"\r" in lines:
            raise BatchError("the headers of a batch hold a NUL or a CR: write CR as \\r")
        block = b"destination:" + name.encode()
        block = block + b"\n" + lines if lines else block
        try:
            if offered:
                self._heads.check_offered(DIALECT_12, block)
            return self._heads.restore(DIALECT_12, block)  # type: ignore[no-any-return]
        except ValueError as error:
            raise BatchError(f"the headers of a batch can't be: {error}") from None

    def forgetting(self, log: Log) -> Iterator[None]:
        """Drop the records of a deleted log without readers, in steps."""
        log_id = log.log_id
        starts = self._starts.get(log_id, [])
        while starts:
            self._drop_chunk((log_id, starts[-1]))
            yield
        self._starts.pop(log_id, None)
        keys = list(self._batches)
        for first in range(0, len(keys), FORGOTTEN_COUNT):
            for key in keys[first : first + FORGOTTEN_COUNT]:
                if key[0] == log_id and key in self._batches:
                    self._drop_batch(key)
            yield

    def facts(self) -> Mapping[str, object]:
        return {"chunks": len(self._chunks), "batches": len(self._batches)}

    # ------------------------------------------------------------------ internals

    def _chunk(self, log: Log, start: int) -> _Chunk:
        starts = self._starts.get(log.log_id)
        if starts is None:
            starts = self._starts[log.log_id] = []
        place = bisect_right(starts, start) - 1
        if place >= 0:
            key = log.log_id, starts[place]
            chunk = self._chunks[key]
            if start < chunk.end:
                self._chunks.move_to_end(key)
                return chunk
        stop = min(start + CHUNK_COUNT, log.records.next_index)
        if place + 1 < len(starts):
            stop = min(stop, starts[place + 1])
        chunk = self._make(log, start, stop)
        insort(starts, start)
        self._chunks[log.log_id, start] = chunk
        self._take(chunk.size_bytes)
        return chunk

    def _make(self, log: Log, start: int, stop: int) -> _Chunk:
        messages: list[Message] = []
        wire_bytes = 0
        index = start
        batches_count = 0
        while index < stop and wire_bytes < CHUNK_BYTES and batches_count < CHUNK_BATCHES:
            if index > start and log.gap_at(index) is not None:
                break
            try:
                batch = self.batch(log, index)
                place = index - batch.first_index
                more_count = min(stop - index, batch.count - place)
                if more_count > 1:  # asked after the batch was read
                    more_count = max(1, log.records.end_of_live(index, index + more_count) - index)
                average_bytes = batch.plain_bytes // batch.count + 1
                more_count = max(1, min(more_count, (CHUNK_BYTES - wire_bytes) // average_bytes + 1))
                made = self._messages(log, batch, place, place + more_count)
            except (Unreadable, IndexError, DiskError):
                if messages:
                    break  # reported to the reader that gets there
                raise
            messages += made
            batches_count += 1
            self.taken_apart_count += 1 + len(made) // RECORDS_PER_BATCH
            self.made_count += len(made)
            wire_bytes += wire_bytes_of(made)
            index += len(made)
        return _Chunk(start, messages, wire_bytes)

    def _messages(self, log: Log, batch: Batch, start: int, stop: int) -> list[Message]:
        try:
            head = self.head_of(log.name, batch.head)
        except BatchError as error:
            raise Unreadable(batch.first_index + start, batch.end_index, str(error)) from None
        # The broker's headers come first, content-length too: of repeated headers the first counts.
        block: bytes = head.block  # type: ignore[attr-defined]
        lines = b"index:%d\ntimestamp:" + str(batch.timestamp_ms).encode()
        template = lines + b"\ncontent-length:%d\n" + block.replace(b"%", b"%%") + b"\n\n%b\0"
        values = batch.values(start, stop)
        keys = batch.keys(start, stop)
        first = batch.first_index + start
        if keys is None:
            lines_bytes = len(lines) - 2 + len(b"\ncontent-length:\n")
            return [
                RecordMessage(
                    head,
                    template % (index, (length := len(value)), value),
                    index,
                    lines_bytes + _digits(index) + _digits(length),
                )
                for index, value in enumerate(values, first)
            ]
        made: list[Message] = []
        for index, (value, key) in enumerate(zip(values, keys, strict=True), first):
            own = lines % index + b"\ncontent-length:%d\n" % len(value) + key_line(bytes(key))
            wire = own + block + b"\n\n" + value + b"\0"
            made.append(RecordMessage(head, wire, index, len(own)))
        return made

    def _take(self, size_bytes: int) -> None:
        self._used_bytes += size_bytes
        self._controller.charge(0, size_bytes, None)
        while self._used_bytes > self._capacity_bytes and len(self._chunks) > 1:
            self._drop_chunk(next(iter(self._chunks)))
        while self._used_bytes > self._capacity_bytes and len(self._batches) > 1:
            self._drop_batch(next(iter(self._batches)))

    def _drop_chunk(self, key: tuple[str, int]) -> None:
        chunk = self._chunks.pop(key)
        starts = self._starts[key[0]]
        del starts[bisect_right(starts, key[1]) - 1]
        self._give(chunk.size_bytes)

    def _drop_batch(self, key: tuple[str, int]) -> None:
        self._give(self._batches.pop(key)[1])

    def _give(self, size_bytes: int) -> None:
        self._used_bytes -= size_bytes
        self._controller.release(0, size_bytes)


def unreadable(index: int, gone: MissingRecordsError) -> Unreadable:
    """Return the error for a reader that comes to a missing record."""
    return Unreadable(max(index, gone.from_index), gone.to_index, str(gone), is_compacted=gone.reason == COMPACTED)


def _going_on(waiting: Iterable[AwaitsBatch], error: DiskError | None) -> Iterator[None]:
    for each in waiting:
        each.go_on(error)
        yield


def _is_long(batch: Batch) -> bool:
    """Return whether checking the batch is too much for the loop in one go."""
    if batch.count > CHECKED_COUNT or batch.total_bytes > CHECKED_BYTES:
        return True
    return bool(batch.codec_number) and batch.plain_bytes > INLINE_PLAIN_BYTES


def _trouble(log: Log, batch: Batch, room: Room = bytearray) -> str:
    """Return the fault of the batch; empty: it is checked and expanded. For any thread."""
    try:
        batch.check(plain_bytes_max=max(log.policy.log_expanded_bytes_max, batch.total_bytes), room=room)
        if not batch.is_stamped_right():
            raise BatchError(f"index {batch.first_index} of {log.name} is stored under the wrong number")
    except BatchError as error:
        batch.forget()
        return str(error)
    return ""


def _digits(number: int) -> int:
    return len(str(number))


def key_line(key: bytes) -> bytes:
    """Return a key as a header line: plain where every version reads it the same, else in base 64."""
    if not key:
        return b""
    if _PLAIN_KEY.fullmatch(key) is not None:
        return b"key:" + key + b"\n"
    return b"key-base64:" + base64.b64encode(key) + b"\n"
