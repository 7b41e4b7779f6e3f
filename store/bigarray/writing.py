"""Appending: batches go into the data page, their items into the index page, then one slot of the head commits.

Uncommitted data does not count: an append that fails half-way leaves bytes behind the head, which are cut off before
the next append (a later power cut must not mistake them for the bytes appended in their place).

After a failed sync, bytes may never reach the disk although they read back well from memory, and the next sync would
not retry them. So everything not known to be synced is verified and written once more before the next sync.

Two threads may be in here: one appends, another one flushes or removes. `_lock` covers the slot and the set of dirty
pages and is held for a few writes to memory and one of 72 bytes; `_flushing` is held during syncs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from struct import Struct
from threading import Lock
from typing import Final

from ...queues.logs.batches import HEADER_BYTES, BatchError, stamped
from .errors import ArrayBatchTooLargeError, ArrayFailedError, ArrayReadOnlyError, from_os
from .files import Bytes, Files
from .head import CLEAN, SLOT_OFFSETS, SUSPECT, Slot, pack_slot
from .options import ITEM_BYTES, ArrayOptions
from .pages import MappedPages, PageShortError, data_path, index_path
from .reading import ITEM, MORE, OFFSET_MASK, ArrayReading
from .verifying import VerifyError, rewrite

_PARTS_MAX: Final = 1000
"""Number of parts in one pwritev; the system takes 1024."""
_U32: Final = Struct("<I").unpack_from
_pack_item = ITEM.pack


class Writing:
    """Writer of an array; the only one."""

    __slots__ = (
        "_closed", "_dirty", "_files", "_first_index_page", "_flushing", "_folder", "_folder_dirty", "_forgotten",
        "_head", "_leftover", "_lock", "_lock_file", "_now_ms", "_open", "_options", "_pages", "_reading",
        "_removal_is_due", "_suspect", "first_data_page", "lease_safe", "slot", "synced_safe",
    )  # fmt: skip

    def __init__(
        self,
        files: Files,
        folder: Path,
        options: ArrayOptions,
        *,
        slot: Slot,
        reading: ArrayReading,
        pages: MappedPages,
        head: int,
        lock_file: int,
        now_ms: Callable[[], int],
        first_data_page: int,
    ) -> None:
        """Start after recovery. `slot` equals the head on the disk, synced. `head`, `lock_file`: descriptors, closed by
        `close`.
        """
        self._files = files
        self._folder = folder
        self._options = options
        self._reading = reading
        self._pages = pages
        self._head = head
        self._lock_file = lock_file
        self._now_ms = now_ms
        self._lock = Lock()
        self._flushing = Lock()
        # Files open for writing: data pages have even keys, index pages odd ones.
        self._open: dict[int, int] = {}
        self._dirty: set[int] = set()
        self._folder_dirty = False
        self._leftover = False
        self._suspect = False
        self._closed = False
        self.slot = slot
        """Values of the next slot. `synced_index` and `lease_index` in it may not be on the disk yet."""
        self.synced_safe = slot.synced_index
        """Index below which everything is on the disk, and the head says so."""
        self.lease_safe = slot.lease_index
        self.first_data_page = first_data_page
        """First data page whose file exists."""
        self._first_index_page = slot.first_index // options.index_page_items
        self._removal_is_due = False
        self._forgotten = slot.data_page * options.data_page_bytes + slot.data_offset
        """Bytes forgotten from the cache, counted from page 0; see `_forget_cached`. Earlier bytes are left alone."""

    # ---------------------------------------------------------------- append

    def append(self, batches: Sequence[Bytes]) -> int:
        """See BigArray.append_batches."""
        if self._closed:
            raise ArrayReadOnlyError(f"{self._folder} is closed")
        if len(batches) == 1 and self._append_one(batches[0]):
            return self.slot.next_index - _U32(batches[0], 32)[0]  # type: ignore[no-any-return]
        if len(self._dirty) > self._options.dirty_pages_max:
            self.flush()  # first: if that fails, nothing is appended
        slot = self.slot
        first_index = index = slot.next_index
        time = timestamp_ms = max(self._now_ms(), slot.last_timestamp_ms, 1)
        if len(batches) > 1:
            time |= MORE
        page, offset = slot.data_page, slot.data_offset
        page_bytes = self._options.data_page_bytes
        parts: list[Bytes] = []
        runs = [(page, offset, parts)]
        items = []
        last = len(batches) - 1
        for place, batch in enumerate(batches):
            total_bytes = len(batch)
            if total_bytes < HEADER_BYTES or _U32(batch, 4)[0] != total_bytes:
                raise BatchError(f"batch {place} of {last + 1} is not one whole batch: it was not checked")
            count: int = _U32(batch, 32)[0]
            if not count:
                raise BatchError(f"batch {place} of {last + 1} has no records: it was not checked")
            if offset + total_bytes > page_bytes:
                if total_bytes > page_bytes:
                    raise ArrayBatchTooLargeError(
                        f"a batch of {total_bytes} bytes does not fit into a data page of {self._folder}, which has "
                        f"{page_bytes}. Append smaller batches, or create the array with larger pages."
                    )
                page += 1
                offset = 0
                parts = []
                runs.append((page, offset, parts))
            parts += (stamped(memoryview(batch), index, timestamp_ms), memoryview(batch)[32:])
            items.append(_pack_item(page << 32 | offset, time if place < last else timestamp_ms) * count)
            offset += total_bytes
            index += count
        if last < 0:
            return first_index
        try:
            if self._leftover:
                self._cut_leftover()
            if index > self.lease_safe:
                self._extend_lease(index)
            self._leftover = True
            for run_page, run_offset, run_parts in runs:
                if run_parts:
                    self._write(self._file(run_page * 2), run_parts, run_offset)
            touched = [run[0] * 2 for run in runs]
            self._write_items(first_index, items[0] if last == 0 else b"".join(items), touched)
            with self._lock:
                self._dirty.update(touched)
                self._write_slot(
                    slot.first_index, index, slot.synced_index, slot.lease_index, timestamp_ms, page, offset, slot.flags
                )
                slot.last_timestamp_ms = timestamp_ms
                slot.data_page = page
                slot.data_offset = offset
                slot.next_index = index  # last: now it can be read
            self._leftover = False
        except OSError as error:
            raise from_os(error, self._folder, "appending") from error
        return first_index

    def _append_one(self, batch: Bytes) -> bool:
        """Append in the usual case: one batch that fits into both pages, which are open, and the disk takes all at
        once. False: take the general way; nothing is visible, and written bytes are overwritten.
        """
        slot = self.slot
        total_bytes = len(batch)
        index, page, offset = slot.next_index, slot.data_page, slot.data_offset
        end_offset = offset + total_bytes
        if total_bytes < HEADER_BYTES or end_offset > self._options.data_page_bytes or self._leftover:
            return False
        count = _U32(batch, 32)[0]
        end_index = index + count
        index_page, place = divmod(index, self._options.index_page_items)
        data_key, index_key = page * 2, index_page * 2 + 1
        data_file, index_file = self._open.get(data_key), self._open.get(index_key)
        if (
            _U32(batch, 4)[0] != total_bytes
            or not count
            or data_file is None
            or index_file is None
            or place + count > self._options.index_page_items
            or end_index > self.lease_safe
        ):
            return False
        timestamp_ms = max(self._now_ms(), slot.last_timestamp_ms, 1)
        view = memoryview(batch)
        items = _pack_item(page << 32 | offset, timestamp_ms) * count
        pwritev = self._files.pwritev
        self._leftover = True
        try:
            if pwritev(data_file, (stamped(view, index, timestamp_ms), view[32:]), offset) != total_bytes or pwritev(
                index_file, (items,), place * ITEM_BYTES
            ) != len(items):
                return False
            with self._lock:
                self._dirty.add(data_key)
                self._dirty.add(index_key)
                self._write_slot(
                    slot.first_index, end_index, slot.synced_index, slot.lease_index, timestamp_ms, page, end_offset,
                    slot.flags,
                )  # fmt: skip
                slot.last_timestamp_ms = timestamp_ms
                slot.data_offset = end_offset
                slot.next_index = end_index  # last: now it can be read
        except OSError as error:
            raise from_os(error, self._folder, "appending") from error
        self._leftover = False
        return True

    def _write_items(self, index: int, items: bytes, touched: list[int]) -> None:
        page, place = divmod(index, self._options.index_page_items)
        room = (self._options.index_page_items - place) * ITEM_BYTES
        if len(items) <= room:
            self._write(self._file(page * 2 + 1), (items,), place * ITEM_BYTES)
            touched.append(page * 2 + 1)
            return
        rest = memoryview(items)
        offset = place * ITEM_BYTES
        while rest:
            self._write(self._file(page * 2 + 1), (rest[:room],), offset)
            touched.append(page * 2 + 1)
            rest = rest[room:]
            room = self._options.index_page_items * ITEM_BYTES
            offset = 0
            page += 1

    def _write(self, file: int, parts: Sequence[Bytes], offset: int) -> None:
        """Write all parts. Raises OSError."""
        pwritev = self._files.pwritev
        if len(parts) > _PARTS_MAX:
            for start in range(0, len(parts), _PARTS_MAX):
                some = parts[start : start + _PARTS_MAX]
                self._write(file, some, offset)
                offset += sum(map(len, some))
            return
        left = sum(map(len, parts))
        while True:
            written = pwritev(file, parts, offset)
            if written == left:
                return
            # A short write: a disk about to be full, or a signal. The next write fails, or goes on.
            offset += written
            left -= written
            parts = _behind(parts, written)

    def _file(self, key: int) -> int:
        """Return the descriptor of a page, created if needed. Raises OSError."""
        file = self._open.get(key)
        return self._opened(key) if file is None else file

    def _opened(self, key: int) -> int:
        path, size_bytes = self._page(key)
        with self._lock:
            if key in self._open:
                return self._open[key]  # the other thread was here first
            file = self._files.open(path, write=True, create=True)
            try:
                if self._files.size(file) < size_bytes:
                    self._files.truncate(file, size_bytes)
            except (OSError, MemoryError):
                self._files.close(file)
                raise
            self._folder_dirty = True
            self._open[key] = file
            return file

    def _page(self, key: int) -> tuple[Path, int]:
        """Return path and full size of a page."""
        if key & 1:
            return index_path(self._folder, key >> 1), self._options.index_page_items * ITEM_BYTES
        return data_path(self._folder, key >> 1), self._options.data_page_bytes

    def _cut_leftover(self) -> None:
        """Remove the bytes of a failed append behind the head, on the disk too. Raises OSError."""
        slot = self.slot
        index_page, place = divmod(slot.next_index, self._options.index_page_items)
        with self._flushing:
            with self._lock:
                self._write_both_slots()  # if the last one reached the disk after all, it covers the bytes removed now
            for key, keep_bytes in ((slot.data_page * 2, slot.data_offset), (index_page * 2 + 1, place * ITEM_BYTES)):
                file = self._file(key)
                self._files.truncate(file, keep_bytes)
                self._files.truncate(file, self._page(key)[1])
                self._sync_or_suspect(key, file)
            for key in [key for key in self._open if key >> 1 > (index_page if key & 1 else slot.data_page)]:
                self._files.truncate(self._open[key], 0)
                self._files.truncate(self._open[key], self._page(key)[1])
                self._sync_or_suspect(key, self._open[key])
        self._leftover = False

    def _sync_or_suspect(self, key: int, file: int) -> None:
        try:
            self._files.sync(file)
        except (OSError, MemoryError):
            with self._lock:
                self._dirty.add(key)
                self._suspect = True
            raise

    # ---------------------------------------------------------------- the head

    def _write_slot(
        self,
        first_index: int,
        next_index: int,
        synced_index: int,
        lease_index: int,
        timestamp_ms: int,
        page: int,
        offset: int,
        flags: int,
    ) -> None:
        """Write one slot, under the lock. Raises OSError; then the other slot is the newest, and the next try is at
        this one.
        """
        slot = self.slot
        sequence = slot.sequence + 1
        data = pack_slot(
            sequence, first_index, next_index, synced_index, lease_index, timestamp_ms, page, offset, slot.boot, flags
        )
        place = SLOT_OFFSETS[sequence & 1]
        written = self._files.pwritev(self._head, (data,), place)
        if written != len(data):
            self._write(self._head, (data[written:],), place + written)
        slot.sequence = sequence

    def _write_both_slots(self) -> None:
        """Write both slots before a sync, so that either one has the data being synced if the other is torn. Under the
        lock.
        """
        slot = self.slot
        for _ in SLOT_OFFSETS:
            self._write_slot(
                slot.first_index, slot.next_index, slot.synced_index, slot.lease_index, slot.last_timestamp_ms,
                slot.data_page, slot.data_offset, slot.flags,
            )  # fmt: skip

    def _sync_head(self, *, synced_index: int | None = None, lease_index: int | None = None) -> None:
        """Write and sync the head. Raises OSError."""
        slot = self.slot
        with self._lock:
            # All slots from now on have these values, also those written during the sync.
            if synced_index is not None:
                slot.synced_index = max(slot.synced_index, synced_index)
            if lease_index is not None:
                slot.lease_index = max(slot.lease_index, lease_index)
            synced_written, lease_written = slot.synced_index, slot.lease_index
            self._write_both_slots()
        self._files.sync(self._head)
        with self._lock:
            self.synced_safe = max(self.synced_safe, synced_written)
            self.lease_safe = max(self.lease_safe, lease_written)

    def _extend_lease(self, index: int) -> None:
        """Reserve more indexes. Raises OSError."""
        self._sync_head(lease_index=index + self._options.lease_items)

    # ---------------------------------------------------------------- flush

    def flush(self) -> int:
        """See BigArray.flush."""
        with self._flushing:
            if self._closed:
                raise ArrayReadOnlyError(f"{self._folder} is closed")
            try:
                self._flush()
            except OSError as error:
                raise from_os(error, self._folder, "flushing") from error
            return self.synced_safe

    def _flush(self) -> None:
        """Sync dirty pages and the head. Raises OSError, ArrayFailedError."""
        slot = self.slot
        with self._lock:
            end_index = slot.next_index
            end = slot.data_page << 32 | slot.data_offset
            dirty, self._dirty = self._dirty, set()
            folder_dirty, self._folder_dirty = self._folder_dirty, False
            suspect = self._suspect
        if not dirty and not folder_dirty and end_index == self.synced_safe and not suspect:
            return
        try:
            if suspect:
                dirty |= self._write_again(end_index)
            for key in sorted(dirty):
                self._files.sync(self._file(key))
            if folder_dirty:
                self._files.sync_folder(self._folder)
        except (OSError, ArrayFailedError, MemoryError):
            with self._lock:
                self._dirty |= dirty
                self._folder_dirty |= folder_dirty
                self._suspect = True
                slot.flags |= SUSPECT
                try:
                    self._write_both_slots()
                except (OSError, MemoryError):
                    pass  # the disk takes nothing any more: the first error says so, and is raised
            raise
        with self._lock:
            self._suspect = False
            slot.flags &= ~SUSPECT
        # The head is synced anyway: the lease is extended here, so that `append` need not do it.
        lease = end_index + self._options.lease_items
        half_used = slot.lease_index - end_index < self._options.lease_items // 2
        self._sync_head(synced_index=end_index, lease_index=lease if half_used else None)
        if self._options.cached_bytes_max:
            self._forget_cached(end)
        self._close_cold(end_index, end >> 32)

    def _forget_cached(self, end: int) -> None:
        """Keep only `cached_bytes_max` of the synced bytes before this position in the page cache."""
        page_bytes = self._options.data_page_bytes
        stop = (end >> 32) * page_bytes + (end & OFFSET_MASK) - self._options.cached_bytes_max
        start = max(self._forgotten, self.first_data_page * page_bytes)
        while start < stop:
            page, offset = divmod(start, page_bytes)
            count_bytes = min(page_bytes - offset, stop - start)
            start += count_bytes
            try:
                file = self._files.open(data_path(self._folder, page))
            except OSError:
                continue  # removed meanwhile; in any case the flush itself succeeded
            try:
                self._files.forget(file, offset, count_bytes)
            finally:
                self._files.close(file)
        self._forgotten = max(self._forgotten, start)

    def _close_cold(self, end_index: int, data_page: int) -> None:
        """Close files that will not be written any more."""
        index_page = end_index // self._options.index_page_items
        with self._lock:
            # An append may be under way: it writes to these pages or to later ones.
            cold = [
                key
                for key in self._open
                if key not in self._dirty and key >> 1 < (index_page if key & 1 else data_page)
            ]
            files = [self._open.pop(key) for key in cold]
        for file in files:
            self._files.close(file)

    def _write_again(self, end_index: int) -> set[int]:
        """Verify and rewrite everything not known to be synced, and return the pages. Raises OSError,
        ArrayFailedError.
        """
        start = max(self.synced_safe, self.slot.first_index)
        try:
            return rewrite(self._files, self._file, self._reading, self._options, start=start, end_index=end_index)
        except VerifyError as error:
            raise ArrayFailedError(
                f"a sync in {self._folder} failed, and the unsynced writes are lost: {error}. Look at that disk; then "
                "close the array and open it anew: it says what is missing."
            ) from error

    # ---------------------------------------------------------------- removal, close

    def remove_to(self, index: int) -> int:
        """See BigArray.remove_to."""
        if self._closed:
            raise ArrayReadOnlyError(f"{self._folder} is closed")
        slot = self.slot
        with self._flushing:
            index = max(min(index, slot.next_index), slot.first_index)
            if index == slot.first_index and not self._removal_is_due:
                return index
            try:
                data_page = self._needed_from(index)
                slot.first_index = index
                self._removal_is_due = True
                self._reading.gaps = self._reading.gaps.trimmed(index, 1 << 63)
                self._sync_head()
                # Delete only now: a head that leads to missing pages would be a damaged array.
                index_page = min(index, max(slot.next_index - 1, 0)) // self._options.index_page_items
                while self._first_index_page < index_page:
                    self._remove(self._first_index_page * 2 + 1)
                    self._first_index_page += 1
                while self.first_data_page < data_page:
                    self._remove(self.first_data_page * 2)
                    self.first_data_page += 1
                self._removal_is_due = False
            except OSError as error:
                raise from_os(error, self._folder, "removing old records") from error
            return index

    def replace_data_page(self, page: int, new: Path) -> bool:
        """See compacting.ReplacesPages. Raises OSError."""
        with self._flushing:
            with self._lock:
                is_full = self.first_data_page <= page < self.slot.data_page and page * 2 not in self._dirty
                file = self._open.pop(page * 2, None) if is_full and not self._closed else None
            if file is not None:
                self._files.close(file)
            if not is_full or self._closed:
                self._files.remove(new)
                return False
            self._files.rename(new, data_path(self._folder, page))
            self._files.sync_folder(self._folder)
            self._pages.forget_data(page)
            return True

    def _needed_from(self, index: int) -> int:
        """Return the first data page needed by an array that begins at this index."""
        slot, reading = self.slot, self._reading
        data_page = slot.data_page  # before the end is looked at: it only grows
        for low, _high in reading.gaps.between(index, slot.next_index):
            try:
                return min(reading.position(low) >> 32, data_page)
            except PageShortError:
                return self.first_data_page  # damaged: remove nothing
        return data_page

    def _remove(self, key: int) -> None:
        with self._lock:
            self._dirty.discard(key)
            file = self._open.pop(key, None)
        if file is not None:
            self._files.close(file)
        if key & 1:
            self._pages.forget_index(key >> 1)
        else:
            self._pages.forget_data(key >> 1)
        self._files.remove(self._page(key)[0])

    def close(self) -> None:
        """Flush, mark the head as closed in order, release everything. Raises ArrayError; everything is released even
        then.
        """
        with self._flushing:
            if self._closed:
                return
            self._closed = True
            slot = self.slot
            try:
                if self._leftover:
                    pass  # cut at the next open, which finds no orderly close
                self._flush()
                if not self._leftover:
                    with self._lock:
                        slot.flags |= CLEAN
                        slot.lease_index = slot.next_index  # the next append takes a new one
                        self._write_both_slots()
                    self._files.sync(self._head)
            except OSError as error:
                raise from_os(error, self._folder, "closing") from error
            finally:
                for file in (*self._open.values(), self._head, self._lock_file):
                    self._files.close(file)
                self._open.clear()


def _behind(parts: Sequence[Bytes], written: int) -> list[Bytes]:
    """Return the rest of these parts behind the first `written` bytes."""
    left: list[Bytes] = []
    for part in parts:
        if written >= len(part):
            written -= len(part)
        elif written:
            left.append(memoryview(part)[written:])
            written = 0
        else:
            left.append(part)
    return left
