"""Find and read records: index items, and the batches they point to, as views of mapped pages.

An index item has 16 bytes: `position` (data page << 32 | offset) and `time` (ms since 1970; the top bit says that the
append continues with the next batch, the one below it that compaction has removed the record). All records of a batch
have the same item but for that bit, so the items of a range without gaps ascend and can be bisected. An item of zeros
was never written (a time is at least 1).

The head only moves forward and is read without a lock: records below `next_index` never change. Retention may remove
pages at any moment; then the page is missing, and `first_index` tells why.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import attrs

from ...queues.logs.batches import Batch, BatchError
from .errors import COMPACTED, DAMAGED, ArrayGap, ArrayGapError
from .files import Files
from .gaps import Gaps
from .head import Slot
from .options import ITEM_BYTES
from .pages import MappedPages, PageShortError, data_path

ITEM: Final = struct.Struct("<QQ")
MORE: Final = 1 << 63
"""Flag in the time of an item: the append continues with the next batch."""
REMOVED: Final = 1 << 62
"""Flag in the time of an item: compaction has removed the record."""
TIME_MASK: Final = REMOVED - 1
OFFSET_MASK: Final = (1 << 32) - 1
_LENGTHS: Final = struct.Struct("<4sIQ")
_WARM_BYTES: Final = 1 << 20
_TOP_BYTE: Final = ITEM_BYTES - 1
_IS_REMOVED: Final = re.compile(rb"[\x40-\x7f\xc0-\xff]")
_IS_LIVE: Final = re.compile(rb"[^\x40-\x7f\xc0-\xff]")
_LOOK_COUNT: Final = 1024
"""Items that are looked at first for one that compaction has removed; then more and more,"""
_LOOKS_COUNT_MAX: Final = 1 << 17
"""up to this many in one call: half a millisecond."""

_unpack_item = ITEM.unpack_from


@attrs.frozen
class Item:
    """One record. Its value is a view."""

    index: int
    timestamp_ms: int
    length: int
    value: memoryview


@attrs.frozen
class Cut:
    """Run of whole batches, as stored in its page."""

    data: memoryview
    first_index: int
    """Index of the first batch; may be lower than the requested one."""
    end_index: int
    """Index behind the last record."""


class ArrayReading:
    """Reader of the records below the slot's `next_index`. Any thread."""

    __slots__ = ("_files", "_folder", "_items", "_page_bytes", "_pages", "gaps", "has_removed", "slot")

    def __init__(
        self, files: Files, folder: Path, pages: MappedPages, index_page_items: int, data_page_bytes: int, slot: Slot
    ) -> None:
        self._files = files
        self._folder = folder
        self._pages = pages
        self._items = index_page_items
        self._page_bytes = data_page_bytes
        self.slot = slot
        """Slot shared with the writer."""
        self.gaps = Gaps()
        """Known gaps, replaced as a whole."""
        self.has_removed = False
        """Whether compaction may have removed records."""

    # ---------------------------------------------------------------- items

    def item(self, index: int) -> tuple[int, int]:
        """Return position and time of an existing record. Raises PageShortError."""
        page, place = divmod(index, self._items)
        offset = place * ITEM_BYTES
        return _unpack_item(self._pages.index(page, offset + ITEM_BYTES), offset)

    def has_items(self, start: int, stop: int, item: tuple[int, int]) -> bool:
        """Return whether all these records have this item. Raises PageShortError."""
        data = ITEM.pack(*item)
        while start < stop:
            page, place = divmod(start, self._items)
            count = min(self._items - place, stop - start)
            offset, end = place * ITEM_BYTES, (place + count) * ITEM_BYTES
            if self._pages.index(page, end)[offset:end] != data * count:
                return False
            start += count
        return True

    def position(self, index: int) -> int:
        """Return the position of an existing record. Raises PageShortError."""
        page, place = divmod(index, self._items)
        offset = place * ITEM_BYTES
        return _unpack_item(self._pages.index(page, offset + ITEM_BYTES), offset)[0]  # type: ignore[no-any-return]

    def end_of_live(self, start: int, stop: int) -> int:
        """Return the first index of `start` .. `stop` - 1 whose record compaction has removed; `stop` if there is none.
        Gaps and missing pages count as not removed.
        """
        return self._looked_for(_IS_REMOVED, start, stop) if self.has_removed else stop

    def end_of_removed(self, start: int, stop: int) -> int:
        """Return the end of the records from `start` on that compaction has removed; at most `_LOOKS_COUNT_MAX` of them
        are looked at.
        """
        if not self.has_removed:
            return start
        return self._looked_for(_IS_LIVE, start, min(stop, start + _LOOKS_COUNT_MAX))

    def _looked_for(self, what: re.Pattern[bytes], start: int, stop: int) -> int:
        count_max = _LOOK_COUNT
        while start < stop:
            page, place = divmod(start, self._items)
            count = min(self._items - place, stop - start, count_max)
            count_max = min(count_max * 8, _LOOKS_COUNT_MAX)
            offset, end = place * ITEM_BYTES, (place + count) * ITEM_BYTES
            try:
                tops = bytes(self._pages.index(page, end)[offset + _TOP_BYTE : end : ITEM_BYTES])
            except PageShortError:  # not removed by compaction: the page is damaged, or in a gap
                tops = bytes(count)
            found = what.search(tops)
            if found is not None:
                return start + found.start()
            start += count
        return stop

    def first_where(self, holds: Callable[[int], bool], start: int, stop: int) -> int:
        """Return the first index of `start` .. `stop` - 1, gaps left out, for which `holds` is true; `stop` if there is
        none. `holds` must stay true for all later indexes. Raises PageShortError.
        """
        for low, high in self.gaps.between(start, stop):
            if not holds(high - 1):
                continue
            high -= 1
            while low < high:
                middle = (low + high) // 2
                if holds(middle):
                    high = middle
                else:
                    low = middle + 1
            return low
        return stop

    def first_at(self, position: int, start: int, stop: int) -> int:
        """Return the first index whose batch lies at this position or behind. Raises PageShortError."""
        return self.first_where(lambda index: self._written(index)[0] >= position, start, stop)

    def _written(self, index: int) -> tuple[int, int]:
        """Return an item to search by. Raises PageShortError, also for an item of zeros: it would lead a search, and
        retention after it, past undamaged records.
        """
        item = self.item(index)
        if not item[1]:
            raise PageShortError(f"the index item of record {index} was never written")
        return item

    def alike(self, index: int) -> tuple[int, int]:
        """Return the range of indexes around this one with the same item: a batch, if undamaged."""
        first, stop = self.slot.first_index, self.slot.next_index
        page = index // self._items
        try:
            item = self.item(index)
        except PageShortError:
            return max(first, page * self._items), min(stop, (page + 1) * self._items)
        start, end = index, index + 1

        def same(other: int) -> bool:
            if not first <= other < stop or self.gaps.at(other) is not None:
                return False
            try:
                return self.item(other) == item
            except PageShortError:
                return False

        step = 1
        while step:
            if same(end + step - 1):
                end += step
                step *= 2
            else:
                step //= 2
        step = 1
        while step:
            if same(start - step):
                start -= step
                step *= 2
            else:
                step //= 2
        return start, end

    # ---------------------------------------------------------------- batches

    def found(self, index: int) -> tuple[Batch, int, int]:
        """Return the batch that holds this record, its position and its time. Raises IndexError, ArrayGapError."""
        slot = self.slot
        next_index = slot.next_index
        if not slot.first_index <= index < next_index:
            raise self._out_of_range(index)
        gap = self.gaps.at(index)
        if gap is not None:
            raise ArrayGapError(gap, "see the report of the array when it was opened")
        try:
            position, time = self.item(index)
            if time & REMOVED:
                raise self._compacted(index, next_index)
            batch = self.batch_at(position)
            end_index = batch.end_index
            if (
                not batch.first_index <= index < end_index <= next_index
                or batch.timestamp_ms != time & TIME_MASK
                or not self._leads_to(end_index - 1, position)
                or (end_index < next_index and self._leads_to(end_index, position, in_gap=False))
            ):
                raise BatchError(f"the batch does not fit to the index of record {index}")
            if self.has_removed and self.item(index)[1] & REMOVED:  # meanwhile, and the batch may be without it
                raise self._compacted(index, next_index)
        except (PageShortError, BatchError) as error:
            raise self.damaged(index, str(error)) from None
        return batch, position, time & TIME_MASK

    def _compacted(self, index: int, next_index: int) -> ArrayGapError:
        end = max(index + 1, self.end_of_removed(index, next_index))
        return ArrayGapError(ArrayGap(index, end, COMPACTED), "later records have their keys")

    def _leads_to(self, index: int, position: int, *, in_gap: bool = True) -> bool:
        """Return whether the item of `index` has this position; gaps may have no items. Raises PageShortError."""
        if self.gaps.all and self.gaps.at(index) is not None:
            return in_gap
        return self.position(index) == position

    def batch_at(self, position: int) -> Batch:
        """Return the batch at this position, its stamp checked. Raises PageShortError, BatchError."""
        page, offset = position >> 32, position & OFFSET_MASK
        view = self._pages.data(page, offset + 32)
        if offset + 16 <= len(view):
            # The file may have grown since it was mapped.
            end = offset + _LENGTHS.unpack_from(view, offset)[1]
            if len(view) < end <= self._page_bytes:
                view = self._pages.data(page, end)
        batch = Batch(view, offset)
        if not batch.is_stamped_right():
            raise BatchError(f"the stamp of the batch at byte {offset} of {data_path(self._folder, page)} is wrong")
        self._pages.touch(page, offset, batch.total_bytes)
        return batch

    def damaged(self, index: int, why: str) -> IndexError | ArrayGapError:
        """Return the error for an unreadable record: removed meanwhile, or damaged."""
        if index < self.slot.first_index:
            return self._out_of_range(index)
        return ArrayGapError(ArrayGap(*self.alike(index), DAMAGED), why)

    def _out_of_range(self, index: int) -> IndexError:
        slot = self.slot
        return IndexError(f"index {index} is not in {self._folder}: it has {slot.first_index} to {slot.next_index - 1}")

    def batch_of(self, index: int, *, verify: bool) -> Batch:
        batch, _position, _time = self.found(index)
        if verify:
            try:
                batch.verify()
            except BatchError as error:
                raise self.damaged(index, str(error)) from None
        return batch

    def value(self, index: int) -> tuple[memoryview, int]:
        """Return a record and its time. Raises IndexError, ArrayGapError."""
        batch, _position, time = self.found(index)
        try:
            return batch.value(index - batch.first_index), time
        except BatchError as error:
            raise self.damaged(index, str(error)) from None

    def values(self, start: int, stop: int) -> Iterator[memoryview]:
        """Yield records. Raises IndexError, ArrayGapError on reaching the record."""
        while start < stop:
            batch, _position, _time = self.found(start)
            try:
                end_index = self.end_of_live(start, min(stop, batch.end_index))
                values = batch.values(start - batch.first_index, end_index - batch.first_index)
            except BatchError as error:
                raise self.damaged(start, str(error)) from None
            start = end_index
            yield from values

    def cut(self, start: int, stop: int, bytes_max: int) -> Cut:
        """See BigArray.cut."""
        batch, position, _time = self.found(start)
        page, offset = position >> 32, position & OFFSET_MASK
        end_index, end = batch.end_index, offset + batch.total_bytes
        stop = min(stop, self.slot.next_index)
        gap_start = self.gaps.next_start(start)
        if gap_start is not None:
            stop = min(stop, gap_start)
        limit = offset + bytes_max
        if end_index < stop and end < limit:
            try:
                end_index, end = self._cut_end(batch, position, stop, limit)
                if self.has_removed:
                    end_index, end = self._cut_before_removed(batch, position, end_index, end)
            except PageShortError:
                pass  # the first batch is there; reading a later one reports its damage
        view = self._pages.data(page, end) if end > offset + batch.total_bytes else None
        data = batch.data if view is None else view[offset:end]
        self._pages.touch(page, offset, len(data))
        return Cut(data, batch.first_index, end_index)

    def _cut_before_removed(self, batch: Batch, position: int, end_index: int, end: int) -> tuple[int, int]:
        """Return where a run of whole batches ends before the first one that compaction may have written anew: behind
        it there are zeros. Raises PageShortError.
        """
        removed = self.end_of_live(batch.first_index, end_index)
        if removed >= end_index:
            return end_index, end
        if removed < batch.end_index:
            return batch.end_index, (position & OFFSET_MASK) + batch.total_bytes
        place = self.position(removed)
        return self.first_at(place, batch.end_index, removed + 1), place & OFFSET_MASK

    def _cut_end(self, batch: Batch, position: int, stop: int, limit: int) -> tuple[int, int]:
        """Return index and offset of the end of the longest run of batches that begins with this one."""
        page = position >> 32
        bound = page << 32 | min(limit, OFFSET_MASK)
        # Find the last record whose batch begins at the limit or before: far steps first, guessed from the first batch,
        # then bisection. Far index pages are not touched.
        low, high = batch.end_index - 1, stop
        step = max(1, (limit - (position & OFFSET_MASK)) * batch.count // batch.total_bytes)
        while low + step < high:
            if self.position(low + step) > bound:
                high = low + step
                break
            low += step
            step *= 2
        while low + 1 < high:
            middle = (low + high) // 2
            if self.position(middle) <= bound:
                low = middle
            else:
                high = middle
        last = self.position(low)
        offset = last & OFFSET_MASK
        if last <= position:
            return batch.end_index, (position & OFFSET_MASK) + batch.total_bytes
        try:
            final = self.batch_at(last)
        except BatchError:
            return self.alike(low)[0], offset
        if not final.first_index <= low < final.end_index:
            return self.alike(low)[0], offset
        if offset + final.total_bytes <= limit and final.end_index <= stop:
            return final.end_index, offset + final.total_bytes
        return final.first_index, offset

    def find_closest_index(self, timestamp_ms: int) -> int:
        """See BigArray.find_closest_index."""
        slot = self.slot
        try:
            index = self.first_where(
                lambda index: self._written(index)[1] & TIME_MASK >= timestamp_ms, slot.first_index, slot.next_index
            )
            return self.end_of_removed(index, slot.next_index)
        except PageShortError as error:
            raise self.damaged(slot.first_index, str(error)) from None

    def first_of_page(self, page: int) -> int:
        """Return the first record in this data page or behind."""
        slot = self.slot
        try:
            return self.first_at(page << 32, slot.first_index, slot.next_index)
        except PageShortError:
            return slot.first_index  # damaged: remove nothing

    def warm(self, start: int, stop: int) -> None:
        """See BigArray.warm."""
        slot = self.slot
        start, stop = max(start, slot.first_index), min(stop, slot.next_index)
        for low, high in self.gaps.between(start, stop):
            try:
                first = self.position(low)
                has_end = not self.item(high - 1)[1] & REMOVED
                end_position = self.end_position(high - 1) if has_end else self.position(high - 1)
            except (PageShortError, BatchError):
                continue  # damaged: reading it raises
            self._warm_bytes(first, end_position)

    def end_position(self, index: int) -> int:
        """Return the position behind the batch of this record. Raises PageShortError, BatchError."""
        position = self.position(index)
        return position + self.batch_at(position).total_bytes

    def _warm_bytes(self, first: int, end: int) -> None:
        for page in range(first >> 32, (end >> 32) + 1):
            offset = first & OFFSET_MASK if page == first >> 32 else 0
            stop = end & OFFSET_MASK if page == end >> 32 else self._page_bytes
            try:
                file = self._files.open(data_path(self._folder, page))
            except FileNotFoundError:
                continue  # removed meanwhile
            try:
                while offset < stop and self._files.pread(file, min(_WARM_BYTES, stop - offset), offset):
                    offset += _WARM_BYTES
            finally:
                self._files.close(file)
