"""BigArray: an array of records on the disk that only grows at its end and is cut at its beginning.

Seed 001's «big array»: index pages with items of fixed size that lead into data pages; both are sparse files of fixed
size, written with plain writes (a full disk is an error then, and not the death of the process) and read through
mapped memory, without copying. Records are appended, stored and cut out as batches (queues/logs/batches.py). O(1) to
append a batch, however many records it has, and to read by index; O(log n) to find by time or by bytes.

    writing.py    append, flush, remove: one thread appends, another one may flush or remove
    reading.py    find, cut, read: any thread; with `read_only`, any process
    recovery.py   open: what a crash left
    FORMAT.md     the files, and what a process crash and a power cut cost

Indexes count from 0 and are never used twice. Where records are missing there is a gap: see `gaps` and GapError.

Source: seed 001 ("Big Array"), DESIGN section 8. Not here: names, groups, limits; queues/logs has them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import attrs

from ...queues.logs.batches import COUNT_MAX, HEADER_BYTES, Batch, encode
from ...queues.logs.codecs import Codec
from .errors import (
    ArrayError,
    ArrayFormatError,
    ArrayLockedError,
    ArrayReadOnlyError,
    Gap,
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
from .pages import Pages
from .reading import Cut, Item, Reading
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
    """See the module. Get one from `open`; usable as a context manager, which closes it."""

    __slots__ = (
        "_files", "_gaps_seen", "_head", "_pages", "_reading", "_writing", "folder", "identity", "options", "report",
    )  # fmt: skip

    def __init__(
        self,
        folder: Path,
        options: ArrayOptions,
        files: Files,
        reading: Reading,
        pages: Pages,
        writing: Writing | None,
        head: int,
        report: RecoveryReport,
        identity: str,
    ) -> None:
        self.folder = folder
        self.identity = identity
        """Made once, kept in the head: another array in this folder has another one. Empty: there is none."""
        self.options = options
        """With the sizes of pages that the folder has."""
        self.report = report
        """What `open` found and did."""
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
        """The array in this folder; blocks, as long as it takes to verify what was not flushed when it crashed.

        :param options: of a folder that has an array already, its sizes of pages count, not those here.
        :param now_ms: the date, in milliseconds since 1970, for the records.
        :param boot_id: differs after each start of the machine (`current_boot_id()`); empty if that is not known.
        :param identity: of an array that has none yet, because it is made now or was by an earlier version: kept on the
            disk when this returns. 1 to 64 letters and digits, such as nobody else has; empty: it stays without one.
        :param read_only: without a lock, beside a writer in any process; never changes anything. Sees what was there
            when it was opened, and more after each `refresh`.
        :raises ArrayLockedError: somebody else writes to it.
        :raises ArrayFormatError: it can't be read; nothing was changed.
        :raises ArrayError: anything else, see its subclasses.
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
            pages = Pages(files, folder, options.mapped_pages_max, options.resident_bytes_max)
            reading = Reading(files, folder, pages, options.index_page_items, options.data_page_bytes, slot)
            data = files.read_all(folder / GAPS_NAME)
            reading.gaps = Gaps(decode_gaps(data) or () if data is not None else ())
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
            head = files.open(folder / HEAD_NAME, write=True)
            opened.append(head)
            options, slot, found = _read_head(files, head, folder, options)
            if identity and not found:
                write_identity(files, head, identity)
            pages = Pages(files, folder, options.mapped_pages_max, options.resident_bytes_max)
            reading = Reading(files, folder, pages, options.index_page_items, options.data_page_bytes, slot)
            data = files.read_all(folder / GAPS_NAME)
            reading.gaps = Gaps(decode_gaps(data) or () if data is not None else ())
            boot = boot_hash(boot_id) if boot_id else 0
            # At its end the head is synced, with the identity.
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
        return cls(folder, options, files, reading, pages, writing, head, report, found or identity)

    # ---------------------------------------------------------------- write

    def append(self, value: Bytes, *, head: bytes = b"", key: Bytes | None = None) -> int:
        """One record; see `append_many`."""
        return self.append_many((value,), head=head, keys=None if key is None else (key,))

    def append_many(
        self,
        values: Sequence[Bytes],
        *,
        head: bytes = b"",
        keys: Sequence[Bytes] | None = None,
        codec: Codec = Codec.NONE,
    ) -> int:
        """Appends records, as one batch, or as several if they are more than a page holds: all of them or none.

        :param head: STOMP header lines that they share.
        :param keys: one for each, empty where there is none.
        :returns: index of the first one; without values, of the next one that comes.
        :raises: as `append_batches`.
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
        """Appends encoded batches, stamped with index and date, which never goes back. Each is whole and was checked by
        the caller; what they say of themselves is believed. All of them can be read when this returns, none if it
        raises; how sure they are: see FORMAT.md and `flush`. One thread at a time.

        :returns: index of the first record.
        :raises BatchTooLargeError: one does not fit into a data page.
        :raises BatchError: one is no batch.
        :raises ArrayFullError: no space; can be tried again, as after any OSError.
        :raises ArrayError: see its subclasses.
        """
        return self._writer().append(batches)

    def flush(self) -> int:
        """Blocks until all that was appended before is on the disk. Another thread may append meanwhile, or flush: then
        it waits.

        :returns: `synced_index`.
        :raises ArrayFailedError: the disk failed. `synced_index` is what it was; the next flush writes all that is not
            known to be synced once more.
        """
        return self._writer().flush()

    def remove_to(self, index: int) -> int:
        """Lets go of all records below an index (at most `next_index`). Pages that nobody needs any more are deleted;
        who has views of them keeps these. Blocks for a sync. Any thread.

        :returns: `first_index`.
        """
        return self._writer().remove_to(index)

    def remove_before(self, timestamp_ms: int) -> int:
        """Lets go of all records older than this; see `remove_to`. A gap that ends there stays, so that it can be said
        why nothing is in it.
        """
        index = self.find_closest_index(timestamp_ms)
        gap = self._reading.gaps.at(index - 1)
        return self.remove_to(index if gap is None else gap.from_index)

    def limit_back_file_size(self, bytes_max: int) -> int:
        """Lets go of the oldest data pages until no more than this is held; never of the one being written. See
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

    # ---------------------------------------------------------------- read

    @property
    def first_index(self) -> int:
        return self._reading.slot.first_index

    @property
    def next_index(self) -> int:
        """Of the next record; all below can be read."""
        return self._reading.slot.next_index

    @property
    def size(self) -> int:
        """Indexes from first to next, those in gaps too."""
        slot = self._reading.slot
        return slot.next_index - slot.first_index

    @property
    def synced_index(self) -> int:
        """All below is on the disk."""
        return self._reading.slot.synced_index if self._writing is None else self._writing.synced_safe

    @property
    def last_timestamp_ms(self) -> int:
        """Of the last append; 0: there was none."""
        return self._reading.slot.last_timestamp_ms

    @property
    def batch_bytes_max(self) -> int:
        """The largest batch that can be appended: a data page."""
        return self.options.data_page_bytes

    @property
    def gaps(self) -> Sequence[Gap]:
        """Known ones, in order. Damage to the bytes of a batch is found when it is read: see GapError."""
        return self._reading.gaps.all

    @property
    def back_file_size_bytes(self) -> int:
        """Of the data pages: those that are full as a whole, of the last one what is used. Of the index: the items of
        records that are there. Costs a look at the first item if it is read-only.
        """
        slot, writing = self._reading.slot, self._writing
        first_page = first_data_page_of(self._reading) if writing is None else writing.first_data_page
        items_count = max(slot.next_index - slot.first_index - self._reading.gaps.items_count, 0)
        data_bytes = (slot.data_page - first_page) * self.options.data_page_bytes + slot.data_offset
        return data_bytes + items_count * ITEM_BYTES

    def batch_of(self, index: int, *, verify: bool = False) -> Batch:
        """The batch that holds this record: a view of the mapped page.

        :param verify: compare its checksum; its stamp is checked anyway.
        :raises IndexError: not from `first_index` to `next_index` - 1.
        :raises GapError: it is missing or damaged.
        """
        return self._reading.batch_of(index, verify=verify)

    def read(self, index: int) -> memoryview:
        """One record, a view. Raises as `batch_of`."""
        return self._reading.value(index)[0]

    def item(self, index: int) -> Item:
        """One record, its time and length. Raises as `batch_of`."""
        value, timestamp_ms = self._reading.value(index)
        return Item(index, timestamp_ms, len(value), value)

    def read_range(self, start: int, stop: int) -> Iterator[memoryview]:
        """Records `start` .. `stop` - 1, as views. Raises as `batch_of`, when it comes to that record."""
        return self._reading.values(start, stop)

    def cut(self, start: int, stop: int, bytes_max: int) -> Cut:
        """The longest run of whole batches in one data page that begins with the batch of record `start`, has no more
        than `bytes_max` and does not reach beyond `stop`; at least that batch, however large it is and wherever it
        ends. A gap ends it. O(log n). The stamps of its first and last batch are checked, no checksums.

        :raises IndexError: `start` is not from `first_index` to `next_index` - 1.
        :raises GapError: `start` is missing or damaged.
        """
        return self._reading.cut(start, stop, bytes_max)

    def find_closest_index(self, timestamp_ms: int) -> int:
        """The first record that is not older; `next_index` if all are. O(log n)."""
        return self._reading.find_closest_index(timestamp_ms)

    def warm(self, start: int, stop: int) -> None:
        """Blocks until these records were read into the kernel's cache. Gaps are left out. Any thread.

        :raises ArrayError: they can't be read.
        """
        try:
            self._reading.warm(start, stop)
        except OSError as error:
            raise from_os(error, self.folder, "reading ahead") from error

    def refresh(self) -> int:
        """Looks how far the writer has come, if this one is read-only. Returns `next_index`. One thread at a time.

        :raises ArrayError: the head can't be read any more.
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
            # Only when a writer opens it. What this one has found to be missing stays in its list.
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
        """Flush, and give all back. Views stay valid. May be called again.

        :raises ArrayError: it could not be flushed; it is closed all the same, and the next open finds out what is
            there.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<BigArray {self.folder} {self.first_index}..{self.next_index}>"


def _read_head(files: Files, head: int, folder: Path, options: ArrayOptions) -> tuple[ArrayOptions, Slot, str]:
    """The options with the sizes that the folder has, the newest slot, and the identity. Raises OSError,
    ArrayFormatError.
    """
    name = str(folder / HEAD_NAME)
    for _ in range(_HEAD_READS_MAX):
        data = files.pread(head, HEAD_BYTES, 0)
        items, page_bytes = decode_fixed(data, name)
        slot = newest(data)
        # Both slots are broken for a moment only if two writes fell into one read: look again.
        if slot is not None:
            sized = attrs.evolve(options, index_page_items=items, data_page_bytes=page_bytes)
            return sized, slot, identity_of(data)
    raise ArrayFormatError(f"{name} is damaged: neither of its slots is whole. Restore that file from a backup.")
