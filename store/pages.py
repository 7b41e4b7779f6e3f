"""Files of blocks of messages that are not persistent: they make room in memory, and end with the process.

LevelDB would write each of them three times and more (its log, its tables, each level that they sink to), and deletions
would leave marks to walk over. Here a block is appended once, in one piece, to a *segment*: a file of one queue of
SEGMENT_BYTES or one block. It is read in one piece, and never deleted: a segment is removed as a whole when none of its
pages is needed any more. All segments are removed at the next start, and nothing here is ever synced.

A full disk keeps no half pages: an incomplete one is cut off again, and its place is free (`withdraw`).

The loop assigns places and counts their users; threads write and read. A page is needed by its block, by the write that
is to fill it, and by each read under way. A write may be repeated: it goes to the same place. Segments are only written
at their ends, so the pages that a failure leaves out are the last ones of their segments.

Bound: on disk, the needed pages and those that share a segment with them: if one message in a thousand stays, all of
them. In memory some 300 bytes for each segment.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs
from zlib_ng.zlib_ng import crc32

from .chunks import Part
from .engine import CorruptionError, EngineError
from .folders import make_private_folder
from .segments import SegmentFiles, few_parts

SEGMENT_BYTES: Final = 16 << 20
"""Size at which a segment is closed. Smaller segments are freed sooner, larger ones are fewer files."""

SUFFIX: Final = ".pages"
"""Suffix of the names of segments. No other file in their folder is touched."""


@attrs.frozen
class Page:
    """Place of a block."""

    segment: int
    offset: int
    size_bytes: int


class PagesError(Exception):
    """Some pages could not be written."""

    def __init__(self, reason: EngineError, pages: SequenceOf[Page]) -> None:
        """`pages`: pages that are not in their places."""
        super().__init__(str(reason))
        self.reason = reason
        self.pages = pages


class _Segment:
    __slots__ = ("needed_count", "owner", "size_bytes")

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.size_bytes = 0
        self.needed_count = 0


class PageFiles:
    """The segments of one store."""

    def __init__(self, folder: Path, *, remove_soon: Callable[[Callable[[], int]], None]) -> None:
        """`folder` is for this alone; `remove_soon` runs what blocks in a thread, some time, and gets
        how many bytes that gave back."""
        self._files = SegmentFiles(folder, SUFFIX, "paged-out messages")
        self._remove_soon = remove_soon
        self._segments: dict[int, _Segment] = {}
        self._open: dict[int, int] = {}
        """Segment of the next page, by queue."""
        self._next_segment = 0
        self.size_bytes = 0
        """Size of all segments, on disk or about to be."""

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
        """Keep a page until it is read."""
        self._segments[page.segment].needed_count += 1

    def release(self, page: Page) -> None:
        """Count one use of `page` less. The last use of a segment's pages removes the segment."""
        segment = self._segments[page.segment]
        segment.needed_count -= 1
        if not segment.needed_count:
            del self._segments[page.segment]
            if self._open.get(segment.owner) == page.segment:
                del self._open[segment.owner]
            self.size_bytes -= segment.size_bytes
            self._remove_soon(lambda: self._remove(page.segment, segment.size_bytes))

    def withdraw(self, pages: SequenceOf[Page]) -> None:
        """Free the places of pages that were not written; they were reserved last of all and in this order. Users of
        the pages still call `release`.
        """
        for page in pages:
            self._segments[page.segment].size_bytes -= page.size_bytes
            self.size_bytes -= page.size_bytes

    @property
    def segments_count(self) -> int:
        """Files."""
        return len(self._segments)

    # ------------------------------------------------------------------ in threads

    def write(self, pages: SequenceOf[tuple[Page, SequenceOf[Part]]]) -> None:
        """Write pages to their places, the first reserved first. Raises PagesError, with the pages that could not be
        written.
        """
        for place, (page, parts) in enumerate(pages):
            whole = few_parts(parts)
            checksum = 0
            for part in whole:
                checksum = crc32(part, checksum)
            try:
                self._files.write(page.segment, page.offset, [*whole, checksum.to_bytes(4, "little")], sync=False)
            except EngineError as error:
                raise PagesError(error, [each for each, _parts in pages[place:]]) from error

    def read(self, page: Page) -> bytes:
        """Return the bytes of a page, with a checksum that is right. Raises CorruptionError if it is wrong, or
        EngineError.
        """
        value = self._files.read(page.segment, page.offset, page.size_bytes)
        if len(value) < page.size_bytes:
            raise CorruptionError(f"{self._files.path(page.segment)} ends within a page: something else has cut it off")
        if crc32(memoryview(value)[:-4]) != int.from_bytes(value[-4:], "little"):
            raise CorruptionError(f"{self._files.path(page.segment)} is damaged at {page.offset}: look at the disk")
        return value

    def _remove(self, segment: int, size_bytes: int) -> int:
        self._files.remove(segment)
        return size_bytes


def clear(folder: Path) -> int:
    """Remove the files of an earlier run, which are of no use, and make the folder if it is missing. An existing folder
    stays as it is: it may be a link, or a mount point. Returns the number of bytes freed. Blocks. Raises OSError.
    """
    make_private_folder(folder)
    size_bytes = sum(measure(folder))
    for path in folder.glob("*" + SUFFIX):
        path.unlink()
    return size_bytes


def measure(folder: Path, suffix: str = SUFFIX) -> list[int]:
    """Bytes of each segment in this folder, which need not be there; a broker may be at work in it. Blocks. Raises
    OSError. `suffix`: of the names of segments, where they are not pages.
    """
    found = []
    for path in folder.glob("*" + suffix):
        with suppress(FileNotFoundError):
            found.append(path.lstat().st_size)
    return found
