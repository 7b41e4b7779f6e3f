"""Compaction: of the records with one key the last one stays, and the others go from the pages that are full.

A round has two parts. First it reads on where the last one ended, and notes the last index of each key, for as many
keys as have room. Then it goes over all full pages from the first on, and removes each record whose key has a later
one. What it noted is done then: `clean_index` moves up to there, and the next round continues behind it.

A page is compacted in this order, and a crash between any two steps leaves an array that is whole:

1. the index items of what goes get the flag REMOVED, and are synced: from here on these records can't be read;
2. what stays is written to `data-N.new`, each batch at the offset that it had, so that no item changes: batches without
   a record left out, those with some written anew with nothing in place of the others; synced;
3. `data-N.new` takes the place of the page. The file system keeps no blocks for what is empty.

Records that have no key stay, as do the last record of the array and batches that can't be read. A tombstone goes when
it is old enough and lies below `clean_index`: what came before it went in an earlier round, and is synced.

Everything here runs in one thread, in steps; what others use meanwhile changes under the locks of `Writing` only.

Source: docs/design/decisions.md, "Compaction keeps each batch where it is".
"""

from __future__ import annotations

import re
import struct
import sys
from array import array
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import attrs
from zlib_ng import zlib_ng

from ...queues.logs.batches import CHECKED_OFFSET, Batch, BatchError, encode_column, stamped
from ...queues.logs.record_keys import CompactionOrder, HeadFacts, head_facts
from .errors import ArrayError, from_os
from .files import Bytes, Files
from .options import ITEM_BYTES, ArrayOptions
from .pages import DATA_NAME, PageShortError, data_path, index_path
from .reading import ITEM, OFFSET_MASK, REMOVED, ArrayReading

COMPACTED_NAME: Final = "compacted"
MAGIC: Final = b"SLUICECP"
CHECKPOINT: Final = struct.Struct("<8sQI")
RECORDS_PER_STEP: Final = 512
BYTES_PER_STEP: Final = 512 * 1024
STEP_COST: Final = 512
"""Work of one step, in records that are looked at."""
BATCH_COST: Final = 16
"""Work of looking at a batch, in records."""
CHECKED_BYTES_PER_COST: Final = 8192
"""Bytes of a batch that cost as much to check as a record to look at."""
PARTS_MAX: Final = 512
_NEW_NAME: Final = re.compile(rf"{DATA_NAME.pattern}\.new")


class ReplacesPages(Protocol):
    """The writer of the array, as compaction uses it."""

    first_data_page: int
    synced_safe: int

    def replace_data_page(self, page: int, new: Path) -> bool:
        """Put this file in the place of a full page. False: the page is gone, or is not synced yet; so is the file."""


def encode_checkpoint(clean_index: int) -> bytes:
    """Return the contents of the file `compacted`."""
    body = CHECKPOINT.pack(MAGIC, clean_index, 0)[:16]
    return body + struct.pack("<I", zlib_ng.crc32(body))


def decode_checkpoint(data: bytes) -> int | None:
    """Return the index below which all was compacted. None: damaged."""
    if len(data) != CHECKPOINT.size:
        return None
    magic, clean_index, checksum = CHECKPOINT.unpack(data)
    return clean_index if magic == MAGIC and zlib_ng.crc32(data[:16]) == checksum else None


def new_path(folder: Path, page: int) -> Path:
    """Return where a page is written anew."""
    return folder / f"{data_path(folder, page).name}.new"


@attrs.define
class Compacted:
    """State and figures of compaction, of one array."""

    clean_index: int = 0
    """Index below which each key has one record at most, or had when this was reached."""
    next_page: int = 0
    """First data page that has records behind `clean_index`."""
    removed_count: int = 0
    """Records removed since the array was opened."""
    freed_bytes: int = 0
    """Bytes of batches that pages no longer hold, since the array was opened."""
    rounds_count: int = 0


class Compaction:
    """One round over one array. `steps` yields after each half a millisecond or so of work."""

    def __init__(
        self,
        files: Files,
        folder: Path,
        options: ArrayOptions,
        *,
        reading: ArrayReading,
        writing: ReplacesPages,
        state: Compacted,
        order: CompactionOrder,
    ) -> None:
        self._files = files
        self._folder = folder
        self._options = options
        self._reading = reading
        self._writing = writing
        self._state = state
        self._order = order
        self._last = order.last
        self._opened: dict[int, int] = {}
        """Index pages that were written to: their descriptors."""
        self._noted_to = 0
        self._damaged_count = 0
        """Batches that could not be read, of one pass over a page."""
        self._page_freed_bytes = 0
        self._cost = 0

    def steps(self) -> Generator[None, None, None]:
        """Do the round. Raises ArrayError if the disk fails, or pages were removed meanwhile: the array is whole, and
        the next round continues.
        """
        try:
            yield from self._round()
        except OSError as error:
            raise from_os(error, self._folder, "compacting") from error
        except PageShortError as error:
            raise ArrayError(f"compacting in {self._folder} ended early: {error}") from error
        finally:
            for file in self._opened.values():
                self._files.close(file)
            self._opened.clear()

    def _round(self) -> Iterator[None]:
        state, reading, slot = self._state, self._reading, self._reading.slot
        page_end = self._full_pages_end()
        end = reading.first_at(page_end << 32, slot.first_index, slot.next_index)
        clean = max(state.clean_index, slot.first_index)
        self._noted_to = clean
        if clean < end:
            yield from self._note_keys(clean, end)
            page = self._writing.first_data_page
            unfinished = self._unfinished(page)
            while page < page_end:
                start = reading.first_at(page << 32, slot.first_index, end)
                if start >= self._noted_to:
                    break
                stop = reading.first_at((page + 1) << 32, start, end)
                yield from self._compact_page(page, start, stop, clean, page in unfinished)
                page += 1
            state.clean_index = max(state.clean_index, self._noted_to)
            self._write_checkpoint()
        if self._noted_to >= end:
            state.next_page = page_end
        state.rounds_count += 1

    def _unfinished(self, first_page: int) -> set[int]:
        """Return the pages that an earlier round has begun to write anew; what is left of removed ones is deleted."""
        pages = {int(match[1]) for name in self._files.names(self._folder) if (match := _NEW_NAME.fullmatch(name))}
        for page in sorted(pages):
            if page < first_page:
                self._files.remove(new_path(self._folder, page))
        return pages

    def _full_pages_end(self) -> int:
        """Return the first data page that is still written to, or not synced."""
        slot, reading = self._reading.slot, self._reading
        page = slot.data_page
        for low, _high in reading.gaps.between(max(self._writing.synced_safe, slot.first_index), slot.next_index):
            return min(page, reading.position(low) >> 32)
        return page

    # ------------------------------------------------------------------ first part: the keys

    def _note_keys(self, start: int, end: int) -> Iterator[None]:
        """Note the last record of each key, up to the end or as long as there is room."""
        reading, last = self._reading, self._last
        for batch in self._batches(start, end):
            if self._is_step(BATCH_COST):
                yield
            if batch is None:
                continue
            facts = head_facts(batch.head)
            self._noted_to = max(self._noted_to, batch.first_index)
            if facts.key or batch.has_keys:
                if not (yield from self._checked(batch)):
                    continue
                first = max(start, batch.first_index)
                stop = min(batch.end_index, end)
                for low in range(first, stop, RECORDS_PER_STEP):
                    high = min(low + RECORDS_PER_STEP, stop)
                    removed = reading.end_of_live(low, high) < high
                    for index, key in enumerate(self._keys(batch, facts, low, high), low):
                        if not key or (removed and reading.item(index)[1] & REMOVED):
                            continue
                        if not last.note(key, index):
                            self._noted_to = max(start, index)
                            return
                    if self._is_step(high - low):
                        yield
        self._noted_to = end

    @staticmethod
    def _keys(batch: Batch, facts: HeadFacts, low: int, high: int) -> list[bytes]:
        """Return the keys of these records, empty where there is none."""
        keys = batch.keys(low - batch.first_index, high - batch.first_index)
        if keys is None:
            return [facts.key] * (high - low)
        return [bytes(key) or facts.key for key in keys]

    def _batches(self, start: int, end: int) -> Iterator[Batch | None]:
        """Yield the batches that have records from `start` to before `end`; None: something was passed over. Those that
        can't be read are left out, and noted in `_damaged_count`. Raises PageShortError.
        """
        reading = self._reading
        for low, high in list(reading.gaps.between(start, end)):
            index = low
            while index < high:
                behind = reading.end_of_removed(index, high)
                if behind > index:
                    index = behind
                    yield None
                    continue
                position = reading.position(index)
                try:
                    batch = reading.batch_at(position)
                    if not batch.first_index <= index < batch.end_index:
                        raise BatchError("it is not where the index says")
                except BatchError:
                    self._damaged_count += 1
                    index = reading.alike(index)[1]
                    yield None
                    continue
                yield batch
                index = batch.end_index

    def _checked(self, batch: Batch) -> Generator[None, None, bool]:
        """Check a batch in steps; return False if it can't be read, or is too large to look into."""
        try:
            bytes_max = max(self._order.expanded_bytes_max, batch.total_bytes)
            for _ in batch.checking(plain_bytes_max=bytes_max, room=self._order.room):
                if self._is_step(min(batch.count, RECORDS_PER_STEP) + batch.total_bytes // CHECKED_BYTES_PER_COST):
                    yield
        except BatchError:
            return False
        return True

    # ------------------------------------------------------------------ second part: the pages

    def _compact_page(self, page: int, start: int, stop: int, clean: int, unfinished: bool) -> Iterator[None]:
        """Remove what has a later record from one page."""
        marked = False
        self._page_freed_bytes = 0
        for batch in self._batches(start, stop):
            if self._is_step(BATCH_COST):
                yield
            if batch is None:
                continue
            facts = head_facts(batch.head)
            if not (facts.key or batch.has_keys):
                continue
            if facts.is_marked and batch.timestamp_ms >= self._order.marks_before_ms:
                continue
            if not batch.has_keys and not facts.is_tombstone and not self._has_later(facts.key, batch.first_index):
                continue  # the usual case of single SENDs: nothing has to be looked into
            if not (yield from self._checked(batch)):
                continue
            for low in range(batch.first_index, batch.end_index, RECORDS_PER_STEP):
                high = min(low + RECORDS_PER_STEP, batch.end_index)
                gone = self._gone(batch, facts, low, high, clean)
                if 1 in gone:
                    if not marked:
                        marked = True
                        self._begin(page)
                    self._mark(low, gone)
                if self._is_step(2 * (high - low)):
                    yield
            if marked and self._reading.end_of_removed(batch.first_index, batch.end_index) >= batch.end_index:
                self._page_freed_bytes += batch.total_bytes
        for file in self._opened.values():
            self._files.sync(file)
        yield
        if marked or unfinished:
            yield from self._write_anew(page, start, stop)

    def _is_step(self, cost: int) -> bool:
        """Count work, and return whether it is enough for one step."""
        self._cost += cost
        if self._cost < STEP_COST:
            return False
        self._cost = 0
        return True

    def _has_later(self, key: bytes, index: int) -> bool:
        return self._last.last_of(key) > index

    def _gone(self, batch: Batch, facts: HeadFacts, low: int, high: int, clean: int) -> bytearray:
        """Return a 1 for each of these records that goes now, a 0 for each that stays or has gone before."""
        gone = bytearray(high - low)
        last_of = self._last.last_of
        final = self._reading.slot.next_index - 1
        offsets = None
        if facts.is_tombstone and batch.timestamp_ms < self._order.tombstones_before_ms:
            offsets = batch.offsets()
        some_removed = self._reading.end_of_live(low, high) < high
        for place, key in enumerate(self._keys(batch, facts, low, high)):
            index = low + place
            if not key or index == final:
                continue
            if last_of(key) > index or (
                offsets is not None
                and index < clean
                and offsets[index - batch.first_index] == offsets[index - batch.first_index + 1]
            ):
                gone[place] = not (some_removed and self._reading.item(index)[1] & REMOVED)
        return gone

    def _begin(self, page: int) -> None:
        """Leave what tells a later round that this page has to be written anew; before anything is removed."""
        if not self._reading.has_removed:
            self._write_checkpoint()
            self._reading.has_removed = True
        self._files.close(self._files.open(new_path(self._folder, page), write=True, create=True))

    def _mark(self, low: int, gone: bytearray) -> None:
        """Flag the items of these records."""
        reading = self._reading
        self._state.removed_count += gone.count(1)
        items = []
        for place, goes in enumerate(gone):
            position, time = reading.item(low + place)
            items.append(ITEM.pack(position, time | REMOVED if goes else time))
        start = 0
        while start < len(items):
            index_page, place = divmod(low + start, self._options.index_page_items)
            count = min(len(items) - start, self._options.index_page_items - place)
            file = self._opened.get(index_page)
            if file is None:
                file = self._opened[index_page] = self._files.open(index_path(self._folder, index_page), write=True)
            self._write(file, [b"".join(items[start : start + count])], place * ITEM_BYTES)
            start += count

    def _write_anew(self, page: int, start: int, stop: int) -> Iterator[None]:
        """Write what is left of a page beside it, and put it in its place."""
        path = new_path(self._folder, page)
        file = self._files.open(path, write=True, create=True)
        try:
            self._files.truncate(file, 0)
            self._files.truncate(file, self._options.data_page_bytes)
            is_whole = yield from self._copy(file, start, stop)
            if is_whole:
                self._files.sync(file)
        finally:
            self._files.close(file)
        if not is_whole:  # damage: the page stays as it is, and what was removed from it is not read
            self._files.remove(path)
        elif self._writing.replace_data_page(page, path):
            self._state.freed_bytes += self._page_freed_bytes
        yield

    def _copy(self, file: int, start: int, stop: int) -> Generator[None, None, bool]:
        """Write the batches that have records left, each at its offset. Returns False if one can't be read."""
        reading = self._reading
        parts: list[Bytes] = []
        offset = size_bytes = 0
        self._damaged_count = 0
        for batch in self._batches(start, stop):
            if self._damaged_count:
                return False
            if self._is_step(BATCH_COST):
                yield
            if batch is None:
                continue
            data = yield from self._left_of(batch)
            if data is None:
                return False
            place = reading.position(batch.first_index) & OFFSET_MASK
            if parts and (place != offset + size_bytes or size_bytes >= BYTES_PER_STEP or len(parts) >= PARTS_MAX):
                self._write(file, parts, offset)
                parts = []
                yield
            if not parts:
                offset, size_bytes = place, 0
            parts.append(data)
            size_bytes += len(data)
        if parts:
            self._write(file, parts, offset)
        return not self._damaged_count

    def _left_of(self, batch: Batch) -> Generator[None, None, Bytes | None]:
        """Return the bytes of a batch without those of removed records; None: it can't be read."""
        reading, first, end = self._reading, batch.first_index, batch.end_index
        if reading.end_of_live(first, end) == end:
            return batch.data
        if not (yield from self._checked(batch)):
            return None
        body = yield from self._column_left(batch, batch.offsets(), 4 * (batch.count + 1))
        if batch.has_keys:
            body += yield from self._column_left(batch, *batch.key_offsets())
        new = encode_column(b"".join(body), batch.count, head=batch.head, keys=batch.has_keys, codec=batch.codec)
        if len(new) >= batch.total_bytes:
            return batch.data
        self._page_freed_bytes += batch.total_bytes - len(new)
        return stamped(new, first, batch.timestamp_ms) + new[CHECKED_OFFSET:]

    def _column_left(
        self, batch: Batch, offsets: Sequence[int], base: int
    ) -> Generator[None, None, list[bytes | memoryview]]:
        """Return the offsets and the values of a column, with nothing in place of the values of removed records."""
        reading, first = self._reading, batch.first_index
        plain = memoryview(batch.plain())
        left = array("I", [0])
        values: list[bytes | memoryview] = []
        total_bytes = place = 0
        while place < batch.count:
            step_end = min(place + RECORDS_PER_STEP, batch.count)
            live_end = reading.end_of_live(first + place, first + step_end) - first
            if live_end > place:
                moved_by = total_bytes - offsets[place]
                left.extend([offset + moved_by for offset in offsets[place + 1 : live_end + 1]])
                values.append(plain[base + offsets[place] : base + offsets[live_end]])
                total_bytes += len(values[-1])
                place = live_end
            else:
                removed_end = max(place + 1, reading.end_of_removed(first + place, first + step_end) - first)
                left.extend([total_bytes] * (removed_end - place))
                place = removed_end
            if not place % RECORDS_PER_STEP:
                yield
        if sys.byteorder == "big":
            left.byteswap()
        return [left.tobytes(), *values]

    # ------------------------------------------------------------------ files

    def _write(self, file: int, parts: Sequence[Bytes], offset: int) -> None:
        """Write all parts. Raises OSError."""
        written = self._files.pwritev(file, parts, offset)
        data = memoryview(b"" if written == sum(map(len, parts)) else b"".join(parts))
        while written < len(data):
            written += self._files.pwritev(file, (data[written:],), offset + written)

    def _write_checkpoint(self) -> None:
        """Write the file `compacted`, synced. Raises OSError."""
        path = self._folder / COMPACTED_NAME
        new = path.with_name(f"{COMPACTED_NAME}.new")
        file = self._files.open(new, write=True, create=True)
        try:
            self._files.truncate(file, 0)
            self._write(file, (encode_checkpoint(self._state.clean_index),), 0)
            self._files.sync(file)
        finally:
            self._files.close(file)
        self._files.rename(new, path)
        self._files.sync_folder(self._folder)
