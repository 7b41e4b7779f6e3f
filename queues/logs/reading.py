"""Records as they are handed over: MESSAGEs are made once for all readers at one position, and kept for a while.

A *chunk* is up to a thousand consecutive records (or a megabyte) as messages; readers get slices of it. Batches that
were taken apart, compressed ones above all, are kept too, since the next chunk begins in the middle of one. Both are
charged to one limiter for all logs; the oldest unused go.

A record that can't be read (its batch is damaged) is a gap, see `Unreadable`.
"""

from __future__ import annotations

import base64
import re
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from flow import Flow, FlowController, FlowManager, FlowResource, SizeLimiter
from queues.logs.batches import Batch, BatchError
from queues.logs.ports import DiskError, HeadCodec, MissingRecordsError
from queues.message import MESSAGE_OVERHEAD_BYTES, Envelope, Message
from queues.slices import Slice, fit

if TYPE_CHECKING:
    from queues.logs.log import Log

CHUNK_COUNT: Final = 1024
CHUNK_BYTES: Final = 1024 * 1024
DIALECT_12: Final = 2
_PLAIN_KEY: Final = re.compile(rb"[!-9;-\[\]-~](?:[ -9;-\[\]-~]*[!-9;-\[\]-~])?")


class Unreadable(Exception):
    """What is stored there is damaged: from `first_index` to before `end_index`."""

    def __init__(self, first_index: int, end_index: int, why: str) -> None:
        super().__init__(why)
        self.first_index = first_index
        self.end_index = end_index


class Record(Message):
    """A record as a message; its number is its index."""

    __slots__ = ("lines_bytes",)

    def __init__(self, head: Envelope, wire: bytes, number: int, lines_bytes: int) -> None:
        """`lines_bytes`: of the broker's own lines at the beginning, which read the same in every version."""
        super().__init__(head, wire, number)
        self.lines_bytes = lines_bytes


class _Chunk:
    __slots__ = ("end", "messages", "size_bytes", "start", "whole")

    def __init__(self, start: int, messages: list[Message], wire_bytes: int) -> None:
        self.start = start
        self.end = start + len(messages)
        self.messages = messages
        self.size_bytes = wire_bytes + len(messages) * MESSAGE_OVERHEAD_BYTES
        self.whole = Slice(messages, range(start, self.end), wire_bytes)


class Reading(FlowResource):
    """The cache of all logs of a broker."""

    def __init__(self, capacity_bytes: int, heads: HeadCodec, *, manager: FlowManager, clock: object) -> None:
        super().__init__("log records", "cache", manager)
        self._capacity_bytes = capacity_bytes
        self._heads = heads
        self._chunks: OrderedDict[tuple[str, int], _Chunk] = OrderedDict()
        self._starts: dict[str, list[int]] = {}
        self._batches: OrderedDict[tuple[str, int], tuple[Batch, int]] = OrderedDict()
        self._used_bytes = 0
        self._controller: FlowController[None] = FlowController(
            self,
            Flow("log records"),
            SizeLimiter(capacity_bytes, clock=clock),  # type: ignore[arg-type]
            accept=_never,
            clock=clock,  # type: ignore[arg-type]
        )
        self.open()

    def part(self, log: Log, start: int, stop: int, count_max: int, bytes_max: int) -> Slice:
        """Records from `start` on: at least one, not more than asked for. Raises Unreadable."""
        chunk = self._chunk(log, start)
        end = min(stop, chunk.end, start + count_max)
        if start == chunk.start and end == chunk.end and chunk.whole.wire_bytes <= bytes_max:
            return chunk.whole
        messages = chunk.messages[start - chunk.start : end - chunk.start]
        count, wire_bytes = fit([message.wire for message in messages], bytes_max)
        return Slice(messages[:count], range(start, start + count), wire_bytes)

    def batch(self, log: Log, index: int) -> Batch:
        """The batch that holds this record, checked. Raises Unreadable."""
        records = log.records
        try:
            batch = records.batch_of(index)
        except MissingRecordsError as gone:
            raise Unreadable(max(index, gone.from_index), gone.to_index, str(gone)) from None
        key = log.log_id, batch.first_index
        known = self._batches.get(key)
        if known is not None:
            self._batches.move_to_end(key)
            return known[0]
        try:
            batch.check(plain_bytes_max=max(log.policy.log_expanded_bytes_max, batch.total_bytes))
            if not batch.is_stamped_right():
                raise BatchError(f"index {index} of {log.name} is stored under the wrong number")
        except BatchError as error:
            raise Unreadable(index, max(index + 1, min(batch.end_index, records.next_index)), str(error)) from None
        size_bytes = 4 * batch.count + 512 + (batch.plain_bytes if batch.codec_number else 0)
        self._batches[key] = batch, size_bytes
        self._take(size_bytes)
        return batch

    def head_of(self, name: str, lines: bytes, *, offered: bool = False) -> Envelope:
        """The head of records of this log that share these header lines. Raises BatchError for lines that can't stand
        in a MESSAGE, and if they are `offered` by a client for those that are the broker's.
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

    def forget(self, log: Log) -> None:
        """That log is gone, or is another one under the same name."""
        for key in [key for key in self._chunks if key[0] == log.log_id]:
            self._drop_chunk(key)
        for key in [key for key in self._batches if key[0] == log.log_id]:
            self._drop_batch(key)
        self._starts.pop(log.log_id, None)

    def facts(self) -> Mapping[str, object]:
        return {"chunks": len(self._chunks), "batches": len(self._batches)}

    # ------------------------------------------------------------------ how

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
        while index < stop and wire_bytes < CHUNK_BYTES:
            if index > start and log.gap_at(index) is not None:
                break
            try:
                batch = self.batch(log, index)
                place = index - batch.first_index
                more_count = min(stop - index, batch.count - place)
                average_bytes = batch.plain_bytes // batch.count + 1
                more_count = max(1, min(more_count, (CHUNK_BYTES - wire_bytes) // average_bytes + 1))
                made = self._messages(log, batch, place, place + more_count)
            except (Unreadable, IndexError, DiskError):
                if messages:
                    break  # it is told when somebody comes there
                raise
            messages += made
            wire_bytes += sum([len(message.wire) for message in made])
            index += len(made)
        return _Chunk(start, messages, wire_bytes)

    def _messages(self, log: Log, batch: Batch, start: int, stop: int) -> list[Message]:
        try:
            head = self.head_of(log.name, batch.head)
        except BatchError as error:
            raise Unreadable(batch.first_index + start, batch.end_index, str(error)) from None
        # What the broker says comes first, the length too: of headers with one name the first counts.
        block: bytes = head.block  # type: ignore[attr-defined]
        lines = b"index:%d\ntimestamp:" + str(batch.timestamp_ms).encode()
        template = lines + b"\ncontent-length:%d\n" + block.replace(b"%", b"%%") + b"\n\n%b\0"
        values = batch.values(start, stop)
        keys = batch.keys(start, stop)
        first = batch.first_index + start
        if keys is None:
            lines_bytes = len(lines) - 2 + len(b"\ncontent-length:\n")
            return [
                Record(
                    head,
                    template % (index, (length := len(value)), value),
                    index,
                    lines_bytes + _digits(index) + _digits(length),
                )
                for index, value in enumerate(values, first)
            ]
        made: list[Message] = []
        for index, (value, key) in enumerate(zip(values, keys, strict=True), first):
            own = lines % index + b"\ncontent-length:%d\n" % len(value) + _key_line(bytes(key))
            wire = own + block + b"\n\n" + value + b"\0"
            made.append(Record(head, wire, index, len(own)))
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


def _digits(number: int) -> int:
    return len(str(number))


def _key_line(key: bytes) -> bytes:
    """A key as a header: as it is where every version reads it the same, else in base 64."""
    if not key:
        return b""
    if _PLAIN_KEY.fullmatch(key) is not None:
        return b"key:" + key + b"\n"
    return b"key-base64:" + base64.b64encode(key) + b"\n"


def _never(_element: None) -> None:
    raise AssertionError("the cache is charged, nothing is added to it")
