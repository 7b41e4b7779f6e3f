"""BigArray: an array of records on the disk that only grows at its end and is cut at its beginning.

Seed 001's «big array»: index pages with items of fixed size that point into data pages. Both are sparse files of fixed
size, written with plain writes (a full disk is then an error, not the death of the process) and read through mapped
memory, without copying. Records are appended, stored and cut out as batches (queues/logs/batches.py). Appending a batch
is O(1), however many records it has, and so is reading by index; finding by time or by bytes is O(log n).

    writing.py    append, flush, remove: one thread appends, another one may flush or remove
    reading.py    find, cut, read: any thread; with `read_only`, any process
    recovery.py   open: repair after a crash
    FORMAT.md     the files, and what a process crash and a power cut cost

Indexes count from 0 and are never used twice. A gap is a range of missing records: see `gaps` and ArrayGapError.

Source: seed 001 ("Big Array"), DESIGN section 8. Not here: names, groups, limits; queues/logs has them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Final, Self

import attrs

from ...queues.logs.batches import COUNT_MAX, HEADER_BYTES, Batch, encode
from ...queues.logs.codecs import Codec
from ...queues.logs.record_keys import CompactionOrder
from .compacting import COMPACTED_NAME, Compacted, Compaction, decode_checkpoint
from .errors import (
    ArrayError,
    ArrayFormatError,
    ArrayGap,
    ArrayLockedError,
    ArrayReadOnlyError,
    from_os,
)
from .files import Bytes, Files, RealFiles
from .gaps import Gaps, decode_gaps
from .head import (
    HEAD_BYTES,
    Slot,
    boot_hash,
    decode_fixed,
    identity_of,
    newest,
)
from .options import ITEM_BYTES, ArrayOptions
from .pages import MappedPages
from .reading import ArrayReading, Cut, Item
from .recovery import (
    GAPS_NAME,
    HEAD_NAME,
    Recovery,
    RecoveryReport,
    create,
    first_data_page_of,
    page_files,
    survey,
    write_identity,
)
from .writing import Writing

_HEAD_READS_MAX: Final = 1000


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class BigArray:
    """An array in one folder: see the module. Made by `open`; a context manager that closes the array."""

    __slots__ = (
        "_files", "_gaps_seen", "_head", "_pages", "_reading", "_writing", "compacted", "folder", "identity", "options",
        "report",
    )  # fmt: skip

    def __init__(
        self,
        folder: Path,
        options: ArrayOptions,
        files: Files,
        reading: ArrayReading,
        pages: MappedPages,
        writing: Writing | None,
        head: int,
        report: RecoveryReport,
        identity: str,
    ) -> None:
        self.folder = folder
        self.identity = identity
        """Name that no other array has, made once and kept in the head. Empty: none."""
        self.options = options
        """Options, with the page sizes of the folder."""
        self.report = report
        """Result of `open`."""
        self.compacted = Compacted()
        """Progress of compaction."""
        self._files = files
        self._reading = reading
        self._pages = pages
        self._writing = writing
        self._head: int | None = head
        self._gaps_seen: bytes | None = None

    @classmethod
    def open(
        cls,
        folder: Path,
        options: ArrayOptions | None = None,
        *,
        files: Files | None = None,
        now_ms: Callable[[], int] = _wall_clock_ms,
        boot_id: str,
        identity: str = "",
        read_only: bool = False,
    ) -> BigArray:
        """Open the array in a folder. Blocks while records not flushed before a crash are verified.

        `options`: an existing array keeps its own page sizes. `now_ms`: the date, in milliseconds since 1970, for the
        records. `boot_id`: differs after each start of the machine (`current_boot_id()`); empty if unknown. `identity`:
        for an array that has none yet, because it is new or was made by an earlier version; on the disk when this
        returns. 1 to 64 letters and digits, unique; empty: stay without one. `read_only`: open without a lock, beside a
        writer in any process, and never change anything; the array shows the records there at opening, and more after
        each `refresh`.

        Raises ArrayLockedError if another writer has the folder, ArrayFormatError if the array can't be read (nothing
        was changed), ArrayError otherwise: see its subclasses.
        """
        folder = Path(folder)
        options = options or ArrayOptions()
        options.check()
        files = files or RealFiles()
        try:
            if read_only:
                return cls._open_to_read(folder, options, files)
            return cls._open_to_write(folder, options, files, now_ms, boot_id, identity)
        except FileNotFoundError as error:
            raise ArrayError(
                f"there is no array in {folder} ({error.filename} is missing). Name the right folder, or open it for "
                "writing once."
            ) from error
        except OSError as error:
            raise from_os(error, folder, "opening the array") from error

    @classmethod
    def _open_to_read(cls, folder: Path, options: ArrayOptions, files: Files) -> BigArray:
        head = files.open(folder / HEAD_NAME)
        try:
            options, slot, identity = _read_head(files, head, folder, options)
            pages = MappedPages(files, folder, options.mapped_pages_max, options.resident_bytes_max)
            reading = ArrayReading(files, folder, pages, options.index_page_items, options.data_page_bytes, slot)
            data = files.read_all(folder / GAPS_NAME)
            reading.gaps = Gaps(decode_gaps(data) or () if data is not None else ())
            reading.has_removed = True  # the writer may begin with it at any time
            survey(files, folder, reading, options, slot.synced_index)
        except BaseException:
            files.close(head)
            raise
        array = cls(folder, options, files, reading, pages, None, head, RecoveryReport(), identity)
        array._gaps_seen = data
        return array

    @classmethod
    def _open_to_write(
        cls, folder: Path, options: ArrayOptions, files: Files, now_ms: Callable[[], int], boot_id: str, identity: str
    ) -> BigArray:
        files.make_folder(folder)
        lock = files.lock(folder / "lock")
        if lock is None:
            holder = (files.read_all(folder / "lock") or b"").decode(errors="replace").split()
            who = f"process {holder[0]} on host {holder[1]}" if len(holder) == 2 else "another process"
            raise ArrayLockedError(f"the array {folder} is written to by {who}. Stop that, or open it read-only.")
        opened = [lock]
        try:
            names = files.names(folder)
            created = HEAD_NAME not in names
            if created:
                if any(page_files(names)):
                    raise ArrayFormatError(
                        f"{folder} has pages of an array, but no {HEAD_NAME}. Restore that file from a backup, or "
                        "choose another folder."
                    )
                create(files, folder, options, identity)
            else:  # an earlier `create` may have failed in its last step; no page may outlive the name of the head
                files.sync_folder(folder)
            head = files.open(folder / HEAD_NAME, write=True)
            opened.append(head)
            options, slot, found = _read_head(files, head, folder, options)
            if identity and not found:
                write_identity(files, head, identity)
            pages = MappedPages(files, folder, options.mapped_pages_max, options.resident_bytes_max)
            reading = ArrayReading(files, folder, pages, options.index_page_items, options.data_page_bytes, slot)
            data = files.read_all(folder / GAPS_NAME)
            reading.gaps = Gaps(decode_gaps(data) or () if data is not None else ())
            compacted = files.read_all(folder / COMPACTED_NAME)
            reading.has_removed = compacted is not None
            boot = boot_hash(boot_id) if boot_id else 0
            # Recovery ends by syncing the head, with the identity.
            report = Recovery(files, folder, options, reading, pages, head, boot).run(created=created)
            writing = Writing(
                files,
                folder,
                options,
                slot=slot,
                reading=reading,
                pages=pages,
                head=head,
                lock_file=lock,
                now_ms=now_ms,
                first_data_page=first_data_page_of(reading),
            )
        except BaseException:
            for file in opened:
                files.close(file)
            raise
        made = cls(folder, options, files, reading, pages, writing, head, report, found or identity)
        if compacted is not None:
            made.compacted.clean_index = min(decode_checkpoint(compacted) or 0, slot.next_index)
        return made

    # ---------------------------------------------------------------- write

    def append(self, value: Bytes, *, head: bytes = b"", key: Bytes | None = None) -> int:
        """Append one record; see `append_many`."""
        return self.append_many((value,), head=head, keys=None if key is None else (key,))

    def append_many(
        self,
        values: Sequence[Bytes],
        *,
        head: bytes = b"",
        keys: Sequence[Bytes] | None = None,
        codec: Codec = Codec.NONE,
    ) -> int:
        """Append records as one batch, or as several if they exceed a page: all of them or none.

        `head`: STOMP header lines that all share. `keys`: one for each, empty where there is none. Returns the index of
        the first record; without values, the index of the next record to come. Raises as `append_batches`.
        """
        return self.append_batches(self._encoded(values, head, keys, codec) if values else ())

    def _encoded(self, values: Sequence[Bytes], head: bytes, keys: Sequence[Bytes] | None, codec: Codec) -> list[bytes]:
        room_bytes = self.options.data_page_bytes - HEADER_BYTES - len(head)
        if len(values) > 1 and (len(values) > COUNT_MAX or sum(map(len, values)) > room_bytes * 8):
            return self._halves(values, head, keys, codec)  # even the best codec is not waited for
        batch = encode(values, head=head, keys=keys, codec=codec)  # type: ignore[arg-type]
        if len(batch) > self.options.data_page_bytes and len(values) > 1:
            return self._halves(values, head, keys, codec)
        return [batch]

    def _halves(self, values: Sequence[Bytes], head: bytes, keys: Sequence[Bytes] | None, codec: Codec) -> list[bytes]:
        middle = len(values) // 2
        left, right = (None, None) if keys is None else (keys[:middle], keys[middle:])
        return self._encoded(values[:middle], head, left, codec) + self._encoded(values[middle:], head, right, codec)

    def append_batches(self, batches: Sequence[Bytes]) -> int:
        """Append encoded batches, stamped with index and date; the date never goes back. The caller has checked that
        each is whole; their contents are trusted. All of them can be read when this returns, none if it raises;
        durability: see FORMAT.md and `flush`. One thread at a time.

        Returns the index of the first record. Raises ArrayBatchTooLargeError if a batch does not fit into a data page,
        BatchError if one is invalid, ArrayFullError if there is no space (can be retried, as after any OSError),
        ArrayError otherwise: see its subclasses.
        """
        return self._writer().append(batches)

    def flush(self) -> int:
        """Block until all records appended before are on the disk. Another thread may append meanwhile; another flush
        waits.

        Returns `synced_index`. Raises ArrayFailedError if the disk failed: `synced_index` is unchanged, and the next
        flush writes everything again that is not known to be synced.
        """
        return self._writer().flush()

    def remove_to(self, index: int) -> int:
        """Remove all records below an index (at most `next_index`) and return `first_index`. Deletes pages without
        records; existing views stay valid. Blocks for a sync. Any thread.
        """
        return self._writer().remove_to(index)

    def remove_before(self, timestamp_ms: int) -> int:
        """Remove all records older than this; see `remove_to`. Keeps a gap that ends there, so that reads can report
        why records are missing.
        """
        index = self.find_closest_index(timestamp_ms)
        gap = self._reading.gaps.at(index - 1)
        return self.remove_to(index if gap is None else gap.from_index)

    def limit_back_file_size(self, bytes_max: int) -> int:
        """Remove the oldest data pages, never the one being written, until no more than `bytes_max` are held. See
        `remove_to`.
        """
        writer = self._writer()
        over_bytes = self.back_file_size_bytes - bytes_max
        if over_bytes <= 0:
            return self.first_index
        pages = -(-over_bytes // self.options.data_page_bytes)
        slot = writer.slot
        page = min(writer.first_data_page + pages, slot.data_page)
        return self.remove_to(self._reading.first_of_page(page))

    def compacting(self, order: CompactionOrder) -> Generator[None, None, None]:
        """Begin a round of compaction, in steps: of the records with one key the last one stays, in all pages that are
        full and synced. One round at a time, in any thread; the array is whole between any two steps. Raises ArrayError
        if it is read-only; on a step also if the disk fails, and if pages were removed meanwhile.
        """
        writer = self._writer()
        round_ = Compaction(
            self._files, self.folder, self.options, reading=self._reading, writing=writer, state=self.compacted,
            order=order,
        )  # fmt: skip
        return round_.steps()

    @property
    def compaction_is_due(self) -> bool:
        """Whether pages became full since the last round of compaction."""
        return self._writing is not None and self._reading.slot.data_page > self.compacted.next_page

    # ---------------------------------------------------------------- read

    def end_of_live(self, start: int, stop: int) -> int:
        """Return the end of the records from `start` on, up to `stop`, of which compaction has removed none."""
        return self._reading.end_of_live(start, stop)

    @property
    def is_mapped(self) -> bool:
        """True: batches are views of mapped files."""
        return True

    @property
    def first_index(self) -> int:
        return self._reading.slot.first_index

    @property
    def next_index(self) -> int:
        """Index of the next record; all below can be read."""
        return self._reading.slot.next_index

    @property
    def size(self) -> int:
        """Number of indexes from first to next, gaps included."""
        slot = self._reading.slot
        return slot.next_index - slot.first_index

    @property
    def synced_index(self) -> int:
        """Index below which everything is on the disk."""
        return self._reading.slot.synced_index if self._writing is None else self._writing.synced_safe

    @property
    def last_timestamp_ms(self) -> int:
        """Time of the last append; 0: none."""
        return self._reading.slot.last_timestamp_ms

    @property
    def batch_bytes_max(self) -> int:
        """Size of the largest batch that can be appended: a data page."""
        return self.options.data_page_bytes

    @property
    def gaps(self) -> Sequence[ArrayGap]:
        """Known gaps, in order. Damage to the bytes of a batch is found only by a read: see ArrayGapError."""
        return self._reading.gaps.all

    @property
    def back_file_size_bytes(self) -> int:
        """Bytes of the data pages (full ones as a whole, the used part of the last one) and of the index items of
        existing records. If read-only, reads the first item.
        """
        slot, writing = self._reading.slot, self._writing
        first_page = first_data_page_of(self._reading) if writing is None else writing.first_data_page
        items_count = max(slot.next_index - slot.first_index - self._reading.gaps.items_count, 0)
        data_bytes = (slot.data_page - first_page) * self.options.data_page_bytes + slot.data_offset
        return data_bytes + items_count * ITEM_BYTES

    def batch_of(self, index: int, *, verify: bool = False) -> Batch:
        """Return the batch that holds this record: a view of the mapped page.

        `verify`: compare its checksum; its stamp is checked anyway. Raises IndexError if the index is not from
        `first_index` to `next_index` - 1, ArrayGapError if the record is missing or damaged.
        """
        return self._reading.batch_of(index, verify=verify)

    def read(self, index: int) -> memoryview:
        """Return one record, a view. Raises as `batch_of`."""
        return self._reading.value(index)[0]

    def item(self, index: int) -> Item:
        """Return one record with its time and length. Raises as `batch_of`."""
        value, timestamp_ms = self._reading.value(index)
        return Item(index, timestamp_ms, len(value), value)

    def read_range(self, start: int, stop: int) -> Iterator[memoryview]:
        """Yield records `start` .. `stop` - 1 as views. Raises as `batch_of`, on reaching the record."""
        return self._reading.values(start, stop)

    def cut(self, start: int, stop: int, bytes_max: int) -> Cut:
        """Return the longest run of whole batches in one data page that begins with the batch of record `start`, has at
        most `bytes_max` and does not reach beyond `stop`; at least that batch, whatever its size and end. A gap ends
        the run. O(log n). Checks the stamps of the first and last batch, no checksums.

        Raises IndexError if `start` is not from `first_index` to `next_index` - 1, ArrayGapError if it is missing or
        damaged.
        """
        return self._reading.cut(start, stop, bytes_max)

    def find_closest_index(self, timestamp_ms: int) -> int:
        """Return the first record that is not older; `next_index` if all are older. O(log n)."""
        return self._reading.find_closest_index(timestamp_ms)

    def warm(self, start: int, stop: int) -> None:
        """Block until these records were read into the kernel's cache; gaps are left out. Any thread. Raises ArrayError
        if they can't be read.
        """
        try:
            self._reading.warm(start, stop)
        except OSError as error:
            raise from_os(error, self.folder, "reading ahead") from error

    def refresh(self) -> int:
        """Read the writer's progress, if this array is read-only, and return `next_index`. One thread at a time. Raises
        ArrayError if the head can't be read any more.
        """
        if self._writing is not None:
            return self.next_index
        if self._head is None:
            raise ArrayReadOnlyError(f"{self.folder} is closed")
        try:
            _options, new, _identity = _read_head(self._files, self._head, self.folder, self.options)
            gaps_data = self._files.read_all(self.folder / GAPS_NAME)
        except OSError as error:
            raise from_os(error, self.folder, "reading the head") from error
        if gaps_data != self._gaps_seen:
            # Changes only when a writer opens the array. Gaps found here stay in the list.
            self._gaps_seen = gaps_data
            known = decode_gaps(gaps_data) if gaps_data is not None else None
            self._reading.gaps = Gaps((*(known or ()), *self._reading.gaps.all))
        slot = self._reading.slot
        for field in attrs.fields(Slot):
            if field.name != "next_index":
                setattr(slot, field.name, getattr(new, field.name))
        slot.next_index = new.next_index  # last: other threads read meanwhile
        return slot.next_index

    # ---------------------------------------------------------------- end

    def _writer(self) -> Writing:
        if self._writing is None:
            raise ArrayReadOnlyError(f"{self.folder} was opened read-only, or is closed: open it for writing")
        return self._writing

    def close(self) -> None:
        """Flush, and release everything. Views stay valid. May be called again. Raises ArrayError if the flush fails:
        the array is closed all the same, and the next open recovers it.
        """
        head, self._head = self._head, None
        if head is None:
            return
        try:
            if self._writing is None:
                self._files.close(head)
            else:
                self._writing.close()
        finally:
            self._pages.forget_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<BigArray {self.folder} {self.first_index}..{self.next_index}>"


def _read_head(files: Files, head: int, folder: Path, options: ArrayOptions) -> tuple[ArrayOptions, Slot, str]:
    """Return the options with the page sizes of the folder, the newest slot, and the identity. Raises OSError,
    ArrayFormatError.
    """
    name = str(folder / HEAD_NAME)
    for _ in range(_HEAD_READS_MAX):
        data = files.pread(head, HEAD_BYTES, 0)
        items, page_bytes = decode_fixed(data, name)
        slot = newest(data)
        # Both slots are broken for a moment only, when two writes fall into one read: look again.
        if slot is not None:
            sized = attrs.evolve(options, index_page_items=items, data_page_bytes=page_bytes)
            return sized, slot, identity_of(data)
    raise ArrayFormatError(f"{name} is damaged: neither of its slots is whole. Restore that file from a backup.")
