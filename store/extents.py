"""Extents: consecutive batches of a log as one record of an engine.

An extent is what one append wrote, up to EXTENT_BYTES, or several small ones that were joined (engine_log.py). Its key
says which records it has, their times and its length (FORMAT.md), so the index of a log is read without its records.

`ExtentIndex` is that index in memory: 32 bytes for each extent, that is for each mebibyte or so. `Contents` is an
extent that was read, with the place of each batch. `ExtentCache` keeps those read or written last, of all logs of a
process.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable
from struct import Struct
from threading import Lock
from typing import Final

import attrs
from zlib_ng import zlib_ng

from ..flow import Account, Flow, FlowManager, FlowResource, SizeLimiter
from ..flow.kinds import ResourceKind
from ..queues.logs.batches import HEADER_BYTES, MAGIC
from .keys import extent_key, parse_extent_key

_HEAD: Final = Struct("<4sIQQIII").unpack_from
_TIME_OFFSET: Final = 16
_U64: Final = Struct("<Q").unpack_from
ENTRY_BYTES: Final = 12
"""Memory for the place of a batch."""
CONTENTS_BYTES: Final = 600
"""Memory for an extent that was read, beside its bytes."""


@attrs.frozen
class Extent:
    """Facts of an extent, as its key has them."""

    first_index: int
    count: int
    first_ms: int
    """Time of its first batch, milliseconds since 1970."""
    last_ms: int
    """Time of its last batch."""
    size_bytes: int

    @property
    def end_index(self) -> int:
        """Index behind its last record."""
        return self.first_index + self.count

    def key(self, log_id: bytes) -> bytes:
        """Return its key in a log."""
        return extent_key(log_id, self.first_index, self.count, self.first_ms, self.last_ms, self.size_bytes)

    @classmethod
    def of_key(cls, key: bytes) -> Extent:
        """Return the extent with this key. Raises KeyFormatError."""
        return cls(*parse_extent_key(key)[1:])


class ExtentIndex:
    """All extents of a log, in order. For one thread at a time."""

    __slots__ = ("_counts", "_first_ms", "_firsts", "_last_ms", "_sizes", "size_bytes")

    def __init__(self, extents: Iterable[Extent] = ()) -> None:
        self._firsts = array("Q")
        self._counts = array("I")
        self._first_ms = array("Q")
        self._last_ms = array("Q")
        self._sizes = array("I")
        self.size_bytes = 0
        """Size of all extents."""
        for each in extents:
            self.append(each)

    def __len__(self) -> int:
        return len(self._firsts)

    def __getitem__(self, place: int) -> Extent:
        return Extent(
            self._firsts[place], self._counts[place], self._first_ms[place], self._last_ms[place], self._sizes[place]
        )

    def append(self, extent: Extent) -> None:
        """Add an extent behind all others."""
        self._firsts.append(extent.first_index)
        self._counts.append(extent.count)
        self._first_ms.append(extent.first_ms)
        self._last_ms.append(extent.last_ms)
        self._sizes.append(extent.size_bytes)
        self.size_bytes += extent.size_bytes

    def join(self, start: int, stop: int, joined: Extent) -> None:
        """Replace the extents `start` .. `stop` - 1 by one with the same records."""
        self.size_bytes += joined.size_bytes - sum(self._sizes[start:stop])
        self._firsts[start:stop] = array("Q", (joined.first_index,))
        self._counts[start:stop] = array("I", (joined.count,))
        self._first_ms[start:stop] = array("Q", (joined.first_ms,))
        self._last_ms[start:stop] = array("Q", (joined.last_ms,))
        self._sizes[start:stop] = array("I", (joined.size_bytes,))

    def drop(self, count: int) -> None:
        """Drop the first `count` extents."""
        self.size_bytes -= sum(self._sizes[:count])
        for column in (self._firsts, self._counts, self._first_ms, self._last_ms, self._sizes):
            del column[:count]

    def place_of(self, index: int) -> int:
        """Return the place of the last extent that begins at an index or before; -1: there is none."""
        return bisect_right(self._firsts, index) - 1

    def place_at(self, timestamp_ms: int) -> int:
        """Return the place of the first extent that has a record of this time or later; their number: there is none."""
        return bisect_left(self._last_ms, timestamp_ms)

    def place_over(self, size_bytes: int) -> int:
        """Return the place of the first extent from which on they are no more than `size_bytes` together, the last one
        at most.
        """
        left_bytes, place = self.size_bytes, 0
        while left_bytes > size_bytes and place + 1 < len(self):
            left_bytes -= self._sizes[place]
            place += 1
        return place

    def small_tail(self, size_bytes: int, from_index: int) -> tuple[int, int]:
        """Return the place of the first of those extents at the end, from an index on, that are all smaller than this,
        and their size.
        """
        place, tail_bytes = len(self), 0
        while place and self._sizes[place - 1] < size_bytes and self._firsts[place - 1] >= from_index:
            place -= 1
            tail_bytes += self._sizes[place]
        return place, tail_bytes


class Contents:
    """An extent that was read: its bytes, and where its batches are. Never changed."""

    __slots__ = ("data", "extent", "offsets", "sound_end", "starts", "why")

    def __init__(self, extent: Extent, data: bytes) -> None:
        """Look at the stamp of each batch. O(batches)."""
        self.extent = extent
        self.data = data
        self.starts = array("Q")
        """First indexes of batches, up to the first damaged one."""
        self.offsets = array("I")
        self.why = ""
        """Damage; empty: there is none."""
        index, offset = extent.first_index, 0
        while offset < len(data):
            if len(data) - offset < HEADER_BYTES:
                self.why = f"its last {len(data) - offset} bytes are no batch"
                break
            magic, total_bytes, first, _time, stamp, _checksum, count = _HEAD(data, offset)
            if magic != MAGIC or total_bytes < HEADER_BYTES or total_bytes > len(data) - offset:
                self.why = f"no whole batch begins at byte {offset}"
                break
            lead = zlib_ng.crc32(data[offset : offset + 24])
            if first != index or not count or zlib_ng.crc32(data[offset + 28 : offset + 32], lead) != stamp:
                self.why = f"the stamp of the batch at byte {offset} is wrong"
                break
            self.starts.append(index)
            self.offsets.append(offset)
            index += count
            offset += total_bytes
        self.sound_end = index
        """Index behind the last sound batch."""
        if not self.why and index != extent.end_index:
            self.why = f"it ends before index {index}, and should end before {extent.end_index}"

    @property
    def size_bytes(self) -> int:
        """Memory that it takes."""
        return CONTENTS_BYTES + len(self.data) + ENTRY_BYTES * len(self.starts)

    def place_of(self, index: int) -> int:
        """Return the place of the batch with this record, which is sound."""
        return bisect_right(self.starts, index) - 1

    def end_offset(self, place: int) -> int:
        """Return the offset behind a batch."""
        return self.offsets[place] + int.from_bytes(
            self.data[self.offsets[place] + 4 : self.offsets[place] + 8], "little"
        )

    def end_index(self, place: int) -> int:
        """Return the index behind the last record of a batch."""
        return self.starts[place + 1] if place + 1 < len(self.starts) else self.sound_end

    def first_at(self, timestamp_ms: int) -> int:
        """Return the first index that is not older; the end of the sound batches: all are older."""
        place = bisect_left(range(len(self.starts)), timestamp_ms, key=self._time_of)
        return self.starts[place] if place < len(self.starts) else self.sound_end

    def _time_of(self, place: int) -> int:
        return int(_U64(self.data, self.offsets[place] + _TIME_OFFSET)[0])


class ExtentCache(FlowResource):
    """Extents that were written or read last, of all logs of a process. Any thread, except for `settle_up`."""

    def __init__(self, capacity_bytes: int, *, manager: FlowManager, clock: Callable[[], float]) -> None:
        super().__init__("log extents", ResourceKind.CACHE, manager)
        self.capacity_bytes = capacity_bytes
        self._kept: OrderedDict[tuple[bytes, int, int], Contents] = OrderedDict()
        self._lock = Lock()
        self._used_bytes = self._charged_bytes = 0
        self._account = Account(self, Flow("log extents"), SizeLimiter(capacity_bytes, clock=clock), clock=clock)
        self.open()

    def get(self, log_id: bytes, extent: Extent) -> Contents | None:
        """Return what is kept of an extent."""
        key = log_id, extent.first_index, extent.size_bytes
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
        return found

    def put(self, log_id: bytes, contents: Contents) -> None:
        """Keep an extent; those used least recently are dropped for it."""
        key = log_id, contents.extent.first_index, contents.extent.size_bytes
        with self._lock:
            self._forget(key)
            self._kept[key] = contents
            self._used_bytes += contents.size_bytes
            while self._used_bytes > self.capacity_bytes and len(self._kept) > 1:
                self._forget(next(iter(self._kept)))

    def drop(self, log_id: bytes, extents: Iterable[Extent]) -> None:
        """Drop extents that are gone."""
        with self._lock:
            for each in extents:
                self._forget((log_id, each.first_index, each.size_bytes))

    def _forget(self, key: tuple[bytes, int, int]) -> None:
        gone = self._kept.pop(key, None)
        if gone is not None:
            self._used_bytes -= gone.size_bytes

    def clear(self) -> None:
        """Drop everything: it is fetched again where it is needed."""
        with self._lock:
            self._kept.clear()
            self._used_bytes = 0

    def settle_up(self) -> None:
        """Charge what it takes now. On the loop, behind each job that reads or writes extents."""
        more_bytes = self._used_bytes - self._charged_bytes
        self._charged_bytes += more_bytes
        if more_bytes > 0:
            self._account.charge(0, more_bytes, None)
        elif more_bytes:
            self._account.release(0, -more_bytes)

    def facts(self) -> dict[str, object]:
        return {"extents": len(self._kept)}
