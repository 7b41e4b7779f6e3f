"""Recovery of an array at opening: what exists, what a crash or a power cut tore, what is missing.

1. Page files below the index `synced_index` of the head must exist, and be as long as their batches need; the rest is a
   gap, «damaged».

2. After an orderly close, nothing more. Else each batch from `synced_index` on is verified; the longest run of whole
   appends counts.

3. Same start of the machine (the process crashed): the kernel has kept all writes, so the head is right. If a batch
   behind `synced_index` is damaged all the same, the rest is a gap, «damaged». Another start (power cut): everything
   behind the run is cut off. Some of it may have been read, so its indexes are not used again: the array continues at
   the lease, below which lie all indexes that were ever visible; between them is a gap, «lost».

4. Everything behind the head is cut off, on the disk too, before anything is written in its place; then the gaps are
   recorded, then the head is written; each step is synced before the next one. After a crash in between all steps are
   repeated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import attrs

from ...queues.logs.batches import BatchError
from .errors import DAMAGED, LOST, ArrayGap
from .files import Files
from .gaps import Gaps, encode_gaps
from .head import (
    CLEAN,
    HEAD_BYTES,
    IDENTITY_OFFSET,
    SLOT_OFFSETS,
    SUSPECT,
    encode_identity,
    encode_slot,
    new_head,
)
from .options import ITEM_BYTES, ArrayOptions
from .pages import DATA_NAME, INDEX_NAME, MappedPages, PageShortError, data_path, index_path
from .reading import OFFSET_MASK, ArrayReading
from .verifying import VerifiedRange, VerifyError, rewrite, walk

HEAD_NAME: Final = "head"
GAPS_NAME: Final = "gaps"


@attrs.frozen
class RecoveryReport:
    """Result of `open`."""

    created: bool = False
    clean: bool = True
    """Whether the array was closed in order."""
    power_cut: bool = False
    """Whether the array was not closed in order and the machine was restarted since."""
    verified_batches_count: int = 0
    why: str = ""
    """Damage found there."""
    new_gaps: tuple[ArrayGap, ...] = ()
    """Gaps found by this open."""

    @property
    def needs_telling(self) -> bool:
        """Whether records not known to be missing are missing."""
        return bool(self.new_gaps or self.why)

    def __str__(self) -> str:
        gaps = ", ".join(f"{gap.from_index} to {gap.to_index - 1} ({gap.reason})" for gap in self.new_gaps)
        said = [f"no records at {gaps}"] if gaps else []
        if self.power_cut:
            said.append("the machine was not shut down in order")
        if self.why:
            said.append(self.why)
        return "; ".join(said) or "nothing is missing"


def create(files: Files, folder: Path, options: ArrayOptions, identity: str) -> None:
    """Create an empty array on the disk. Raises OSError."""
    new = folder / "head.new"
    file = files.open(new, write=True, create=True)
    try:
        files.truncate(file, 0)
        files.allocate(file, HEAD_BYTES)
        files.pwritev(file, (new_head(options.index_page_items, options.data_page_bytes, identity),), 0)
        files.sync(file)
    finally:
        files.close(file)
    files.rename(new, folder / HEAD_NAME)
    files.sync_folder(folder)


def write_identity(files: Files, head: int, identity: str) -> None:
    """Write an identity into the head of an array without one; not synced. Raises OSError."""
    data, written = encode_identity(identity), 0
    while written < len(data):
        written += files.pwritev(head, (data[written:],), IDENTITY_OFFSET + written)


def page_files(names: list[str]) -> tuple[set[int], set[int]]:
    """Return the numbers of the index pages and of the data pages among these names."""
    index_pages = {int(match[1]) for name in names if (match := INDEX_NAME.fullmatch(name))}
    data_pages = {int(match[1]) for name in names if (match := DATA_NAME.fullmatch(name))}
    return index_pages, data_pages


# ---------------------------------------------------------------------------- page files


def survey(files: Files, folder: Path, reading: ArrayReading, options: ArrayOptions, stop: int) -> None:
    """Add gaps to `reading.gaps` for missing parts of page files below this index. Raises OSError."""
    first = reading.slot.first_index
    if first >= stop:
        return
    index_pages, data_pages = page_files(files.names(folder))
    items = options.index_page_items
    damaged = []
    for page in range(first // items, (stop - 1) // items + 1):
        there = _size(files, index_path(folder, page)) // ITEM_BYTES if page in index_pages else 0
        for low, high in reading.gaps.between(max(first, page * items + there), min(stop, (page + 1) * items)):
            damaged.append(ArrayGap(low, high, DAMAGED))
    reading.gaps = Gaps((*reading.gaps.all, *damaged))
    sound = list(reading.gaps.between(first, stop))
    if not sound:
        return
    try:
        first_page = reading.position(sound[0][0]) >> 32
        last_page = reading.position(sound[-1][1] - 1) >> 32
        for page in range(first_page, last_page + 1):
            size_bytes = _size(files, data_path(folder, page)) if page in data_pages else 0
            if size_bytes < options.data_page_bytes:
                _short_data_page(reading, page, size_bytes, first, stop)
    except PageShortError:
        return  # the file shrinks meanwhile: reading there raises


def _short_data_page(reading: ArrayReading, page: int, size_bytes: int, first: int, stop: int) -> None:
    """Add a gap for records behind the end of a short data page. Raises PageShortError."""
    end = reading.first_at((page + 1) << 32, first, stop)
    start = reading.first_at(page << 32 | size_bytes, first, end)
    before = [part for part in reading.gaps.between(first, start) if part[1] == start]
    if before:
        position = reading.position(start - 1)
        if position >> 32 == page:
            try:
                reading.batch_at(position)
            except (BatchError, PageShortError):
                start = reading.alike(start - 1)[0]
    gaps = [ArrayGap(low, high, DAMAGED) for low, high in reading.gaps.between(start, end)]
    reading.gaps = Gaps((*reading.gaps.all, *gaps))


def _size(files: Files, path: Path) -> int:
    try:
        file = files.open(path)
    except FileNotFoundError:
        return 0
    try:
        return files.size(file)
    finally:
        files.close(file)


# ---------------------------------------------------------------------------- recovery


class Recovery:
    """Recovery of one array opened to write. `head`: its file, open for writing."""

    def __init__(
        self,
        files: Files,
        folder: Path,
        options: ArrayOptions,
        reading: ArrayReading,
        pages: MappedPages,
        head: int,
        boot: int,
    ) -> None:
        self._files = files
        self._folder = folder
        self._options = options
        self._reading = reading
        self._pages = pages
        self._head = head
        self._boot = boot

    def run(self, *, created: bool) -> RecoveryReport:
        """Recover; afterwards the slot, the gaps and the disk agree, and everything is synced. Raises OSError."""
        slot, reading = self._reading.slot, self._reading
        recorded = reading.gaps
        clean, same_boot = bool(slot.flags & CLEAN), slot.boot == self._boot != 0  # 0: not known
        start = slot.next_index if clean else max(slot.synced_index, slot.first_index)
        survey(self._files, self._folder, reading, self._options, start)
        found = VerifiedRange(slot.next_index)
        missing: ArrayGap | None = None
        if not clean:
            found = walk(reading, start, slot.next_index)
            missing = self._same_machine(start, found) if same_boot else self._after_power_cut(start, found)
            if missing is not None:
                reading.gaps = Gaps((*reading.gaps.all, missing))
            self._cut(found.end_index if missing is not None and not same_boot else slot.next_index)
            if missing is not None and not same_boot:
                slot.next_index = missing.to_index
        self._remove_needless()
        reading.gaps = reading.gaps.trimmed(slot.first_index, 1 << 63)
        if reading.gaps.all != recorded.all:
            self._record_gaps()
        if not clean:
            self._files.sync_folder(self._folder)  # an open that failed may have renamed the gaps
        slot.flags = 0
        slot.boot = self._boot
        slot.synced_index = slot.lease_index = slot.next_index
        self._write_head()
        self._pages.forget_all()
        known = recorded.trimmed(slot.first_index, slot.next_index).all
        return RecoveryReport(
            created=created,
            clean=clean,
            power_cut=not clean and not same_boot,
            verified_batches_count=found.batches_count,
            why=found.why,
            new_gaps=tuple(gap for gap in reading.gaps.all if gap not in known),
        )

    def _same_machine(self, start: int, found: VerifiedRange) -> ArrayGap | None:
        """Sync the records written before a process crash; the head is right."""
        slot, reading = self._reading.slot, self._reading
        if found.end_index > start:
            opened: dict[int, int] = {}
            try:
                if slot.flags & SUSPECT:
                    rewrite(
                        self._files, lambda key: self._opened(opened, key), reading, self._options, start=start,
                        end_index=found.end_index,
                    )  # fmt: skip
                for key in self._keys(start, found.end_index):
                    self._files.sync(self._opened(opened, key))
                self._files.sync_folder(self._folder)
            except OSError:
                self._suspect()
                raise
            except (VerifyError, PageShortError) as error:
                found.why = str(error)  # it was whole a moment ago: the disk is failing
                found.end_index = start
            finally:
                for file in opened.values():
                    self._files.close(file)
        return ArrayGap(found.end_index, slot.next_index, DAMAGED) if found.end_index < slot.next_index else None

    def _suspect(self) -> None:
        """Mark the array so that the next open writes all this again: its sync would not."""
        self._reading.slot.flags |= SUSPECT
        try:
            self._write_slots()
        except OSError:
            pass  # the disk takes nothing any more: the first error says so, and is raised

    def _opened(self, opened: dict[int, int], key: int) -> int:
        if key not in opened:
            path = index_path(self._folder, key >> 1) if key & 1 else data_path(self._folder, key >> 1)
            opened[key] = self._files.open(path, write=True)
        return opened[key]

    def _keys(self, start: int, stop: int) -> list[int]:
        """Return the keys of the pages that hold these records. Raises PageShortError."""
        keys: set[int] = set()
        for low, high in self._reading.gaps.between(start, stop):
            for page in range(low // self._options.index_page_items, (high - 1) // self._options.index_page_items + 1):
                keys.add(page * 2 + 1)
            for page in range(self._reading.position(low) >> 32, (self._reading.position(high - 1) >> 32) + 1):
                keys.add(page * 2)
        return sorted(keys)

    def _after_power_cut(self, start: int, found: VerifiedRange) -> ArrayGap | None:
        """Cut off records that are not whole; their indexes are not used again."""
        slot = self._reading.slot
        if found.end_index < slot.next_index:
            position = found.position if found.position is not None else self._end_before(start)
            slot.data_page, slot.data_offset = position >> 32, position & OFFSET_MASK
        return ArrayGap(found.end_index, slot.lease_index, LOST) if found.end_index < slot.lease_index else None

    def _end_before(self, index: int) -> int:
        """Return the position behind the record before this one, or of a never used page if unknown."""
        if index > self._reading.slot.first_index and self._reading.gaps.at(index - 1) is None:
            try:
                return self._reading.end_position(index - 1)
            except (PageShortError, BatchError):
                pass  # damaged: reported by the survey, or when it is read
        return (self._reading.slot.data_page + 1) << 32

    def _cut(self, end_index: int) -> None:
        """Cut everything behind this index and behind the slot's position, on the disk too."""
        slot = self._reading.slot
        self._pages.forget_all()
        page, place = divmod(end_index, self._options.index_page_items)
        self._cut_page(index_path(self._folder, page), place * ITEM_BYTES, self._options.index_page_items * ITEM_BYTES)
        self._cut_page(data_path(self._folder, slot.data_page), slot.data_offset, self._options.data_page_bytes)
        index_pages, data_pages = page_files(self._files.names(self._folder))
        for number in sorted(index_pages):
            if number > page:
                self._files.remove(index_path(self._folder, number))
        for number in sorted(data_pages):
            if number > slot.data_page:
                self._files.remove(data_path(self._folder, number))
        self._files.sync_folder(self._folder)

    def _cut_page(self, path: Path, keep_bytes: int, size_bytes: int) -> None:
        try:
            file = self._files.open(path, write=True)
        except FileNotFoundError:
            return
        try:
            self._files.truncate(file, keep_bytes)
            self._files.truncate(file, size_bytes)
            self._files.sync(file)
        finally:
            self._files.close(file)

    def _remove_needless(self) -> None:
        """Remove pages below the first index, left by an interrupted retention."""
        slot = self._reading.slot
        index_pages, data_pages = page_files(self._files.names(self._folder))
        first_page = min(slot.first_index, max(slot.next_index - 1, 0)) // self._options.index_page_items
        for number in sorted(index_pages):
            if number < first_page:
                self._files.remove(index_path(self._folder, number))
        first_data_page = first_data_page_of(self._reading)
        for number in sorted(data_pages):
            if number < first_data_page:
                self._files.remove(data_path(self._folder, number))

    def _record_gaps(self) -> None:
        new = self._folder / "gaps.new"
        data = encode_gaps(self._reading.gaps.all)
        file = self._files.open(new, write=True, create=True)
        try:
            self._files.truncate(file, 0)
            written = 0
            while written < len(data):
                written += self._files.pwritev(file, (memoryview(data)[written:],), written)
            self._files.sync(file)
        finally:
            self._files.close(file)
        self._files.rename(new, self._folder / GAPS_NAME)
        self._files.sync_folder(self._folder)

    def _write_head(self) -> None:
        self._write_slots()
        self._files.sync(self._head)

    def _write_slots(self) -> None:
        slot = self._reading.slot
        for _ in SLOT_OFFSETS:
            slot.sequence += 1
            data, place = encode_slot(slot), SLOT_OFFSETS[slot.sequence & 1]
            written = 0
            while written < len(data):
                written += self._files.pwritev(self._head, (data[written:],), place + written)


def first_data_page_of(reading: ArrayReading) -> int:
    """Return the oldest data page that is still needed; in doubt a page is needed."""
    slot = reading.slot
    for low, _high in reading.gaps.between(slot.first_index, slot.next_index):
        try:
            return reading.position(low) >> 32
        except PageShortError:
            return 0
    return slot.data_page
