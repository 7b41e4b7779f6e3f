"""The records of one log in an engine that several threads may call, such as a database: the second adapter of
`sluiceway.queues.logs.ports.Records`, beside mapped files (bigarray/).

*Append.* What is appended together is one batch of the engine, synced: one round trip, and records can be read only
when they are as safe as the engine makes them. So no crash takes a record that was read, an index is never used twice,
and `flush` has nothing to do. After an append that failed it is not known whether it is there; the next one removes
what it may have left, in the same batch.

*Join.* Each append begins an extent (extents.py). When JOINED_COUNT small ones lie at the end, or they are as large as
a full one together, they become one, before the next append. So the index in memory has one entry for some mebibyte,
and a reader of old records one round trip.

*Read.* Extents that were written or read last are in an `ExtentCache`. Records of others are refused with AwayError
until `warm` has brought them.

*Remove.* Whole extents, from the beginning. Removal by age or size leaves an extent as long as one of its records is to
stay; removal to an index hides those before it at once.

Threads: one appends and removes, others read. Bound: the index, one join at a time, the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from struct import Struct
from struct import error as StructError
from threading import Lock
from typing import Final

import attrs
from zlib_ng import zlib_ng

from ..queues.logs.batches import HEADER_BYTES, Batch, BatchError, stamped
from ..queues.logs.ports import AwayError, DiskError, MissingRecordsError
from .engine import Change, Engine, EngineError, delete, delete_range, put
from .extents import Contents, Extent, ExtentCache, ExtentIndex
from .keys import KeyFormatError, extents_range, log_key

EXTENT_BYTES: Final = 1 << 20
"""Size at which an append begins another extent. One batch that is larger is an extent by itself."""
SMALL_SHARE: Final = 4
"""An extent at the end that is smaller than a quarter of that is joined with its neighbours."""
JOINED_COUNT: Final = 256
"""Number of small extents that are joined."""
REMOVED_COUNT: Final = 256
"""Number of extents removed in one batch of the engine: the database has a deadline for each statement."""
DOOMED: Final = "deleted "
"""Beginning of the name of a log that is being deleted; its identity follows."""
WARM_SHARE: Final = 4
"""Share of the cache that one call of `warm` fills at most: a quarter."""

_U32: Final = Struct("<I").unpack_from
_HEAD: Final = Struct("<BBQQQ")
_CRC: Final = Struct("<I")
_HEAD_VERSION: Final = 1

Bytes = bytes | bytearray | memoryview


class LogFormatError(DiskError):
    """The head of a log, or the key of an extent, is not what FORMAT.md says."""


@attrs.frozen
class LogHead:
    """Record of a log: its identity, and what its extents don't say."""

    log_id: str
    """Identity, in hexadecimal digits."""
    first_index: int = 0
    """Index of the first record that was not removed."""
    next_index: int = 0
    """Index of the next record when this was written, or a lower one."""
    last_timestamp_ms: int = 0
    """Time of the last record then."""

    def encoded(self) -> bytes:
        """Return the value of its record."""
        text = self.log_id.encode("ascii")
        body = _HEAD.pack(_HEAD_VERSION, len(text), self.first_index, self.next_index, self.last_timestamp_ms) + text
        return body + _CRC.pack(zlib_ng.crc32(body))

    @classmethod
    def decoded(cls, name: str, value: bytes) -> LogHead:
        """Return the head with this value. Raises LogFormatError."""
        try:
            version, id_bytes, first_index, next_index, last_ms = _HEAD.unpack_from(value)
            body, (crc,) = value[: _HEAD.size + id_bytes], _CRC.unpack(value[_HEAD.size + id_bytes :])
            if version != _HEAD_VERSION or crc != zlib_ng.crc32(body):
                raise ValueError("version or checksum are wrong")
            log_id = body[_HEAD.size :].decode("ascii")
            bytes.fromhex(log_id)
        except (StructError, ValueError) as error:
            raise LogFormatError(
                f"the record of {name} in the database is damaged: {error}. Restore the database from a backup, or "
                "delete that record to give the log up."
            ) from None
        return cls(log_id, first_index, next_index, last_ms)


@attrs.frozen
class Hole:
    """Range of indexes without records. Satisfies `sluiceway.queues.logs.ports.Missing`."""

    from_index: int
    to_index: int
    reason: str = "lost"


class HoleError(MissingRecordsError):
    """No record at an index; see `Hole`."""

    def __init__(self, from_index: int, to_index: int, why: str, reason: str = "damaged") -> None:
        super().__init__(f"indexes {from_index} to {to_index - 1} are {reason}: {why}. Continue at {to_index}.")
        self._hole = Hole(from_index, to_index, reason)

    @property
    def from_index(self) -> int:
        return self._hole.from_index

    @property
    def to_index(self) -> int:
        return self._hole.to_index

    @property
    def reason(self) -> str:
        return self._hole.reason


@attrs.frozen
class ExtentCut:
    """Run of whole batches. Satisfies `sluiceway.queues.logs.ports.FilePart`."""

    data: memoryview
    first_index: int
    end_index: int


@contextmanager
def telling() -> Iterator[None]:
    """Map errors of the engine to DiskError."""
    try:
        yield
    except EngineError as error:
        raise DiskError(str(error)) from error
    except MemoryError as error:
        raise DiskError("there is not enough memory for it now. Give the broker more, or less to do.") from error


class EngineLog:
    """Records of one log: see the module. Satisfies `sluiceway.queues.logs.ports.Records`."""

    is_mapped: Final = False

    def __init__(
        self,
        engine: Engine,
        cache: ExtentCache,
        name: str,
        head: LogHead,
        *,
        now_ms: Callable[[], int],
        batch_bytes_max: int,
        extent_bytes: int | None = None,
    ) -> None:
        """Read the index of a log whose `head` is stored. Blocks. Raises DiskError."""
        self.name = name
        self.log_id = head.log_id
        self.batch_bytes_max = batch_bytes_max
        self._id = bytes.fromhex(head.log_id)
        self._engine = engine
        self._cache = cache
        self._now_ms = now_ms
        self._extent_bytes = extent_bytes or EXTENT_BYTES
        self._small_bytes = self._extent_bytes // SMALL_SHARE
        self._lock = Lock()
        """Held while the index and `next_index` are used or changed: for microseconds."""
        self._index = ExtentIndex()
        self._holes: tuple[Hole, ...] = ()
        self._in_doubt = False
        """Whether extents behind `next_index` may be stored."""
        self._join_from = 0
        """Index from which on extents are joined: before it, one is damaged."""
        self._joining: tuple[list[Change], Contents, int] | None = None
        """Join that may be stored or not: its changes, the extent, and the number of those that it replaces."""
        self._removal_is_due = False
        self._head_is_due = False
        """Whether the head may be stored under another name."""
        self._closed = False
        self.first_index = head.first_index
        self.next_index = head.next_index
        self.last_timestamp_ms = head.last_timestamp_ms
        self._read_index()

    def _read_index(self) -> None:
        holes: list[Hole] = []
        end = self.first_index
        with telling():
            for key in self._engine.iterate_keys(*extents_range(self._id)):
                try:
                    extent = Extent.of_key(key)
                except KeyFormatError as error:
                    raise LogFormatError(f"{self.name}: {error}. Restore the database from a backup.") from None
                if extent.end_index <= self.first_index:
                    self._removal_is_due = True
                    continue
                if extent.first_index > end:
                    holes.append(Hole(end, extent.first_index))
                self._index.append(extent)
                end = extent.end_index
                self.last_timestamp_ms = max(self.last_timestamp_ms, extent.last_ms)
        if end < self.next_index:
            holes.append(Hole(end, self.next_index))
        self.next_index = max(end, self.next_index)
        self._holes = tuple(holes)

    # ---------------------------------------------------------------- append

    def append_batches(self, batches: Sequence[Bytes]) -> int:
        """Append encoded batches, stamped with index and date; the date never goes back. The caller has checked that
        each is whole. All of them are stored and can be read when this returns. Returns the index of the first record.
        Raises DiskError: none can be read then, and whether they are stored is decided by the next call.
        """
        self._check_open()
        if not batches:
            return self.next_index
        first_index = self.next_index
        timestamp_ms = max(self._now_ms(), self.last_timestamp_ms, 1)
        made = self._extents_of(batches, timestamp_ms)
        self._join_small()
        changes: list[Change] = []
        if self._head_is_due:
            changes.append(put(log_key(self.name), self._head().encoded()))
            changes.append(delete(log_key(DOOMED + self.log_id)))
        if self._in_doubt:
            changes.append(delete_range(*extents_range(self._id, first_index)))
        changes += [put(each.extent.key(self._id), each.data) for each in made]
        self._in_doubt = True
        with telling():
            self._engine.write(changes, sync=True)
        self._in_doubt = self._head_is_due = False
        for each in made:
            self._cache.put(self._id, each)
        with self._lock:
            for each in made:
                self._index.append(each.extent)
            self.last_timestamp_ms = timestamp_ms
            self.next_index = made[-1].extent.end_index  # last: now they can be read
        return first_index

    def _extents_of(self, batches: Sequence[Bytes], timestamp_ms: int) -> list[Contents]:
        made: list[Contents] = []
        parts: list[Bytes] = []
        size_bytes = 0
        start = index = self.next_index

        def cut() -> None:
            nonlocal start, size_bytes
            if parts:
                data = b"".join(parts)
                made.append(Contents(Extent(start, index - start, timestamp_ms, timestamp_ms, len(data)), data))
                parts.clear()
                start, size_bytes = index, 0

        for batch in batches:
            view = memoryview(batch)
            total_bytes = len(view)
            if total_bytes < HEADER_BYTES or _U32(view, 4)[0] != total_bytes or not _U32(view, 32)[0]:
                raise BatchError(f"what is appended to {self.name} is not one whole batch: it was not checked")
            if total_bytes > self.batch_bytes_max:
                raise DiskError(
                    f"a batch of {total_bytes} bytes does not fit into {self.name}: {self.batch_bytes_max} at most"
                )
            if size_bytes + total_bytes > self._extent_bytes:
                cut()
            parts += (stamped(view, index, timestamp_ms), view[32:])
            size_bytes += total_bytes
            index += _U32(view, 32)[0]
        cut()
        return made

    def _join_small(self) -> None:
        """Join small extents at the end, if there are enough of them. Raises DiskError."""
        if self._joining is None:
            start, tail_bytes = self._index.small_tail(self._small_bytes, self._join_from)
            count = len(self._index) - start
            if count < 2 or (count < JOINED_COUNT and tail_bytes < self._extent_bytes):
                return
            self._joining = self._planned(start)
        if self._joining is None:
            self._join_from = self.next_index
            return
        changes, joined, count = self._joining
        with telling():
            self._engine.write(changes, sync=False)
        gone = [self._index[place] for place in range(len(self._index) - count, len(self._index))]
        self._cache.put(self._id, joined)
        with self._lock:
            self._index.join(len(self._index) - count, len(self._index), joined.extent)
            self._joining = None
        self._cache.drop(self._id, gone)

    def _planned(self, start: int) -> tuple[list[Change], Contents, int] | None:
        """Return the join of the extents from a place on. None: one of them is damaged, or a hole is between."""
        extents = [self._index[place] for place in range(start, len(self._index))]
        parts = []
        index = extents[0].first_index
        self.warm(index, self.next_index)
        for extent in extents:
            contents = self._cache.get(self._id, extent) or self._read(extent)
            if contents is None or contents.why or extent.first_index != index:
                return None
            parts.append(contents.data)
            index = extent.end_index
        data = b"".join(parts)
        first = extents[0]
        joined = Extent(first.first_index, index - first.first_index, first.first_ms, extents[-1].last_ms, len(data))
        changes = [delete(each.key(self._id)) for each in extents]
        return [*changes, put(joined.key(self._id), data)], Contents(joined, data), len(extents)

    def flush(self) -> int:
        """Return `synced_index`: what can be read is synced."""
        self._check_open()
        return self.next_index

    # ---------------------------------------------------------------- remove

    def remove_to(self, index: int) -> int:
        """Remove all records below an index (at most `next_index`), and return `first_index`. Blocks. Raises DiskError:
        then they are hidden, and removed by the next call.
        """
        self._check_open()
        self._finish_join()
        with self._lock:
            index = max(min(index, self.next_index), self.first_index)
            if index == self.first_index and not self._removal_is_due:
                return index
            self._removal_is_due = True
            self.first_index = index
            self._holes = tuple(each for each in self._holes if each.to_index > index)
            count = self._index.place_of(index)
            if count >= 0 and self._index[count].end_index <= index:
                count += 1
            gone = [self._index[place] for place in range(max(count, 0))]
            self._index.drop(len(gone))
            kept_from = self._index[0].first_index if len(self._index) else self.next_index
        self._cache.drop(self._id, gone)
        stops = [*(each.first_index for each in gone[REMOVED_COUNT::REMOVED_COUNT]), kept_from]
        head = put(log_key(self.name), self._head().encoded())
        start, _end = extents_range(self._id)
        with telling():
            for stop in stops:
                self._engine.write([head, delete_range(start, extents_range(self._id, stop)[0])], sync=False)
        self._removal_is_due = False
        return index

    def _finish_join(self) -> None:
        """Finish a join that may be stored or not, before the index changes in another way."""
        if self._joining is not None:
            self._join_small()

    def remove_before(self, timestamp_ms: int) -> int:
        """Remove extents of which all records are older than this; see `remove_to`."""
        with self._lock:
            place = self._index.place_at(timestamp_ms)
            index = self._index[place].first_index if place < len(self._index) else self.next_index
        return self.remove_to(index)

    def limit_back_file_size(self, size_bytes: int) -> int:
        """Remove the oldest extents, never the last one, until no more than this is held; see `remove_to`."""
        with self._lock:
            place = self._index.place_over(size_bytes)
            index = self._index[place].first_index if place else self.first_index
        return self.remove_to(index)

    def _head(self) -> LogHead:
        return LogHead(self.log_id, self.first_index, self.next_index, self.last_timestamp_ms)

    def head_in_doubt(self) -> None:
        """Note that the head may be stored under another name: the next append stores it again."""
        self._head_is_due = True

    def close(self) -> None:
        """Refuse all writing from now on, and drop what is in the cache. The engine stays open."""
        self._closed = True
        with self._lock:
            extents = [self._index[place] for place in range(len(self._index))]
        self._cache.drop(self._id, extents)

    def _check_open(self) -> None:
        if self._closed:
            raise DiskError(f"{self.name} is closed")

    # ---------------------------------------------------------------- read

    @property
    def synced_index(self) -> int:
        """Index below which everything is as safe as the engine makes it: all that can be read."""
        return self.next_index

    @property
    def back_file_size_bytes(self) -> int:
        """Bytes of all extents."""
        return self._index.size_bytes

    @property
    def gaps(self) -> Sequence[Hole]:
        """Ranges without records that were found by opening it, in order."""
        return self._holes

    def batch_of(self, index: int, *, verify: bool = False) -> Batch:
        """Return the batch that holds this record. `verify`: compare its checksum.

        Raises IndexError if the index is not from `first_index` to `next_index` - 1, HoleError if the record is missing
        or damaged, AwayError if `warm` has to bring it first.
        """
        contents = self._found(index)
        return self._batch(contents, contents.place_of(index), verify=verify)

    def _batch(self, contents: Contents, place: int, *, verify: bool) -> Batch:
        start, end = contents.offsets[place], contents.end_offset(place)
        data = contents.data
        try:
            # A small view would keep the whole extent in memory.
            batch = Batch(data[start:end]) if (end - start) * 2 < len(data) else Batch(memoryview(data)[start:end])
            if verify:
                batch.verify()
        except BatchError as error:
            raise HoleError(contents.starts[place], contents.end_index(place), str(error)) from None
        return batch

    def _found(self, index: int) -> Contents:
        """Return the extent of a record, which is sound there."""
        with self._lock:
            extent = self._extent_of(index)
        contents = self._cache.get(self._id, extent)
        if contents is None:
            raise AwayError(index, extent.first_ms)
        if index >= contents.sound_end:
            raise HoleError(max(contents.sound_end, extent.first_index), extent.end_index, contents.why)
        return contents

    def _extent_of(self, index: int) -> Extent:
        """Return the extent of a record, under the lock. Raises IndexError, HoleError."""
        if not self.first_index <= index < self.next_index:
            raise IndexError(f"index {index} is not in {self.name}: it has {self.first_index} to {self.next_index - 1}")
        place = self._index.place_of(index)
        if place >= 0 and index < (extent := self._index[place]).end_index:
            return extent
        hole = next((each for each in self._holes if each.from_index <= index < each.to_index), None)
        hole = hole or Hole(index, index + 1)
        raise HoleError(hole.from_index, hole.to_index, "the database does not have them", hole.reason)

    def cut(self, start: int, stop: int, bytes_max: int) -> ExtentCut:
        """Return a run of whole batches that begins with the batch of record `start`, has at most `bytes_max` and does
        not reach beyond `stop`; at least that batch, whatever its size and end. It ends where a gap or an extent that
        is away begins. Raises as `batch_of`.
        """
        contents = first = self._found(start)
        place = contents.place_of(start)
        first_index = contents.starts[place]
        parts: list[memoryview] = []
        size_bytes = 0
        while True:
            begin, data = contents.offsets[place], contents.data
            end, end_index = contents.end_offset(place), contents.end_index(place)
            while place + 1 < len(contents.starts):
                next_end, next_index = contents.end_offset(place + 1), contents.end_index(place + 1)
                if next_index > stop or size_bytes + next_end - begin > bytes_max:
                    break
                place, end, end_index = place + 1, next_end, next_index
            parts.append(memoryview(data)[begin:end])
            size_bytes += end - begin
            if place + 1 < len(contents.starts) or end_index != contents.extent.end_index:
                break
            try:
                contents = self._found(end_index)
            except (AwayError, HoleError, IndexError):
                break
            place = 0
            if contents.end_index(0) > stop or size_bytes + contents.end_offset(0) > bytes_max:
                break
        whole = len(parts) == 1 and size_bytes * 2 >= len(first.data)  # a small view would keep all of it
        return ExtentCut(parts[0] if whole else memoryview(b"".join(parts)), first_index, end_index)

    def end_of_live(self, start: int, stop: int) -> int:
        """Return `stop`: logs in a database are not compacted."""
        return stop

    def find_closest_index(self, timestamp_ms: int) -> int:
        """Return the first record that is not older; `next_index` if all are older. O(log n). Raises AwayError if an
        extent has to be looked at that is away.
        """
        with self._lock:
            place = self._index.place_at(timestamp_ms)
            if place == len(self._index):
                return self.next_index
            extent = self._index[place]
            first_index = self.first_index
        if extent.first_ms >= timestamp_ms:
            return max(extent.first_index, first_index)
        contents = self._cache.get(self._id, extent)
        if contents is None:
            raise AwayError(max(extent.first_index, first_index), extent.first_ms)
        return max(contents.first_at(timestamp_ms), first_index)

    def warm(self, start: int, stop: int) -> None:
        """Read the extents of these records that are away, up to a share of the cache; at least the first one. Any
        thread. Raises DiskError.
        """
        with self._lock:
            place = max(self._index.place_of(max(start, self.first_index)), 0)
            wanted: list[Extent] = []
            left_bytes = self._cache.capacity_bytes // WARM_SHARE
            while place < len(self._index) and (extent := self._index[place]).first_index < stop:
                left_bytes -= extent.size_bytes
                if left_bytes < 0 and wanted:
                    break
                wanted.append(extent)
                place += 1
        for run in self._runs_away(wanted):
            self._fetch(run)

    def _runs_away(self, extents: Sequence[Extent]) -> list[list[Extent]]:
        """Return those that are not in the cache, neighbours together."""
        runs: list[list[Extent]] = [[]]
        for each in extents:
            if self._cache.get(self._id, each) is None:
                runs[-1].append(each)
            elif runs[-1]:
                runs.append([])
        return [run for run in runs if run]

    def _fetch(self, extents: Sequence[Extent]) -> None:
        if len(extents) > 1:
            # As one iteration: many small ones would be many round trips.
            start, _end = extents_range(self._id, extents[0].first_index)
            stop, _end = extents_range(self._id, extents[-1].end_index)
            wanted = {each.key(self._id): each for each in extents}
            with telling():
                for key, value in self._engine.iterate(start, stop):
                    extent = wanted.pop(key, None)
                    if extent is not None:
                        self._cache.put(self._id, Contents(extent, value))
            extents = list(wanted.values())
        for extent in extents:
            contents = self._read(extent)
            if contents is not None:
                self._cache.put(self._id, contents)

    def _read(self, extent: Extent) -> Contents | None:
        """Read one extent. None: it is not in the index any more: joined with others, or removed."""
        with telling():
            value = self._engine.get(extent.key(self._id))
        if value is not None:
            return Contents(extent, value)
        with self._lock:
            if self._joining is not None:
                raise DiskError(f"{self.name}: it is not known yet how its last records are stored")
            place = self._index.place_of(extent.first_index)
            if place < 0 or self._index[place] != extent:
                return None
        contents = Contents(extent, b"")
        contents.why = "the database does not have them"
        return contents
