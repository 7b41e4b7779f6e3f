"""Files for what makes room in memory and outlives nobody: blocks of messages that are not persistent.

LevelDB would write each of them three times and more (its log, its tables, each level that they sink to), and deleting
them would leave marks to walk over. Here a block is appended once, in one piece, to a *segment*: a file of one queue of
SEGMENT_BYTES or one block. It is read at once, and never deleted: a segment goes as a whole when nothing in it is
needed any more. All segments go at the next start, and nothing here is ever synced.

The loop gives out places and counts who needs them; threads write and read. A page is needed by its block, by the write
that is to fill it, and by each read under way. A write may be done again: it goes to the same place.

Bound: on disk, what is needed, and for each queue what shares its segments with it: where one message in a thousand
stays, all of it. In memory some 300 bytes for each segment.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from pathlib import Path
from typing import Final
from zlib import crc32

import attrs

from store.chunks import Part
from store.engine import CorruptionError, DiskFullError, EngineError, EngineFailedError
from store.folders import make_private_folder

SEGMENT_BYTES: Final = 16 << 20
"""A segment that has so much is closed. Smaller ones are given back sooner, larger ones are fewer files."""

SUFFIX: Final = ".pages"
"""Of the names of segments. Nothing else in their folder is touched."""

PARTS_MAX: Final = 64
"""So many parts of a block are written as they lie in memory. The system takes 1,024 at most."""


@attrs.frozen
class Page:
    """Where a block lies."""

    segment: int
    offset: int
    size_bytes: int


class _Segment:
    __slots__ = ("needed_count", "owner", "size_bytes")

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.size_bytes = 0
        self.needed_count = 0


class PageFiles:
    """The segments of one store."""

    def __init__(self, folder: Path, *, remove_soon: Callable[[Callable[[], None]], None]) -> None:
        """`folder` is for this alone; `remove_soon` runs what blocks in a thread, some time."""
        self._folder = folder
        self._remove_soon = remove_soon
        self._segments: dict[int, _Segment] = {}
        self._open: dict[int, int] = {}
        """By queue: the segment to which its next page goes."""
        self._next_segment = 0
        self.size_bytes = 0
        """Of all segments, on disk or about to be."""

    # ------------------------------------------------------------------ on the loop

    def reserve(self, owner: int, size_bytes: int) -> Page:
        """A place for a page of this queue. It is needed twice: by its block and by the write that is to come."""
        number = self._open.get(owner)
        if number is None:
            number = self._open[owner] = self._next_segment
            self._next_segment += 1
            self._segments[number] = _Segment(owner)
        segment = self._segments[number]
        page = Page(number, segment.size_bytes, size_bytes)
        segment.size_bytes += size_bytes
        segment.needed_count += 2
        self.size_bytes += size_bytes
        if segment.size_bytes >= SEGMENT_BYTES:
            del self._open[owner]
        return page

    def hold(self, page: Page) -> None:
        """It is going to be read."""
        self._segments[page.segment].needed_count += 1

    def let_go(self, page: Page) -> None:
        """One who needed it needs it no more. The last one of a segment removes that."""
        segment = self._segments[page.segment]
        segment.needed_count -= 1
        if not segment.needed_count:
            del self._segments[page.segment]
            if self._open.get(segment.owner) == page.segment:
                del self._open[segment.owner]
            self.size_bytes -= segment.size_bytes
            self._remove_soon(lambda: self._remove(page.segment))

    @property
    def segments_count(self) -> int:
        """Files."""
        return len(self._segments)

    # ------------------------------------------------------------------ in threads

    def write(self, pages: SequenceOf[tuple[Page, SequenceOf[Part]]]) -> None:
        """Write these to their places. Raises EngineError: then write all of them again."""
        try:
            for page, parts in pages:
                # A few large parts are not copied; of many small ones a copy costs less than the list of them.
                whole = list(parts) if len(parts) <= PARTS_MAX else [b"".join(parts)]
                checksum = 0
                for part in whole:
                    checksum = crc32(part, checksum)
                whole.append(checksum.to_bytes(4, "little"))
                descriptor = os.open(self._path(page.segment), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    if os.pwritev(descriptor, whole, page.offset) != page.size_bytes:
                        _write_all(descriptor, memoryview(b"".join(whole)), page.offset)
                finally:
                    os.close(descriptor)
        except OSError as error:
            raise self._mapped(error, "written") from error

    def read(self, page: Page) -> bytes:
        """What lies there, with its checksum, which is right. Else raises CorruptionError; or EngineError."""
        try:
            descriptor = os.open(self._path(page.segment), os.O_RDONLY | os.O_CLOEXEC)
            try:
                value = os.pread(descriptor, page.size_bytes, page.offset)
            finally:
                os.close(descriptor)
        except FileNotFoundError as error:
            raise CorruptionError(f"{error.filename} is gone: something else than the broker has removed it") from error
        except OSError as error:
            raise self._mapped(error, "read") from error
        if len(value) < page.size_bytes:
            raise CorruptionError(f"{self._path(page.segment)} ends within a page: something else has cut it off")
        if crc32(memoryview(value)[:-4]) != int.from_bytes(value[-4:], "little"):
            raise CorruptionError(f"{self._path(page.segment)} is damaged at {page.offset}: look at the disk")
        return value

    def _remove(self, segment: int) -> None:
        try:
            self._path(segment).unlink(missing_ok=True)
        except OSError as error:
            raise self._mapped(error, "removed") from error

    def _path(self, segment: int) -> Path:
        return self._folder / f"{segment}{SUFFIX}"

    def _mapped(self, error: OSError, done: str) -> EngineError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return DiskFullError(f"{self._folder}: no space left for what is paged out. Free space on this disk.")
        return EngineFailedError(
            f"{self._folder} has a file that can't be {done}: {error}. Look at the disk and at its permissions."
        )


def clear(folder: Path) -> int:
    """Remove what an earlier run left, which is of no use to anybody, and make the folder if it is missing. One that is
    there stays as it is: it may be a link, or where another disk is mounted. Returns how many bytes that gave back.
    Blocks. Raises OSError.
    """
    make_private_folder(folder)
    size_bytes = 0
    for path in folder.glob("*" + SUFFIX):
        size_bytes += path.lstat().st_size
        path.unlink()
    return size_bytes


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        written_bytes = os.pwrite(descriptor, data, offset)
        data, offset = data[written_bytes:], offset + written_bytes
