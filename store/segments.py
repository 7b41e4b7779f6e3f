"""Segments: numbered files to which values are appended; used by pages (pages.py) and the value log (values.py).

A *segment* is written at places that its owner gives out, from one thread; it may be read from others meanwhile.
Written parts are never changed, and a segment is removed as a whole.

Not here: use counts of segments, and the next number.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from .engine import CorruptionError, DiskFullError, EngineError, EngineFailedError, UnreadableError
from .folders import sync_folder

if TYPE_CHECKING:
    from .chunks import Part

_SECTOR_ERRORS: Final = {errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.ENODATA}
"""Errors of the system for a place that can't be read: from the disk, or from a file system that verifies checksums."""

SECTOR_BYTES: Final = 4096
"""Bytes that are lost with a bad sector: the unit of reading."""

BAD_SECTORS_MAX: Final = 16
"""Number of bad sectors in one value after which the rest is not read: a disk may try for seconds with each."""

_PROBES_COUNT: Final = 4

PARTS_MAX: Final = 64
"""Number of parts that are written as they lie in memory (and one more). The system takes 1,024 at most."""


class Segments(Protocol):
    """Port to the storage of segments. Every call may block, and raises EngineError if the disk fails."""

    def sizes(self) -> dict[int, int]:
        """Return the sizes of the existing segments in bytes."""

    def make(self, segment: int) -> None:
        """Make an empty segment, durably."""

    def write(self, segment: int, offset: int, parts: Sequence[Part], *, sync: bool) -> None:
        """Write `parts` one after the other. With `sync` they survive a power cut, if the segment was made; without, a
        missing segment is made if they are its first parts. Only at the end of the segment: after an error it is cut
        off there, if possible.
        """

    def read(self, segment: int, offset: int, size_bytes: int, ahead_bytes: int = 0) -> bytes:
        """Return the bytes at this place; fewer if the segment ends before. `ahead_bytes`: number of bytes behind it
        that will be read soon.

        Raises CorruptionError if there is no such segment, but others are; EngineFailedError if the folder is gone or
        another one, or if all lasting segments are gone from it: then they may come back. UnreadableError for a bad
        sector.
        """

    def cut(self, segment: int, size_bytes: int) -> None:
        """Cut the segment off at this size."""

    def remove(self, segment: int) -> None:
        """Give it back, if it is there."""

    def name(self, segment: int) -> str:
        """Name of the segment's place, for people."""


class SegmentFiles:
    """Segments as files in a folder."""

    def __init__(self, folder: Path, suffix: str, what: str, *, is_lasting: bool = False) -> None:
        """`folder` is used by this object alone; it need not exist before the first write. `suffix` of the names of its
        files; other files in it are not touched. `what`: their contents, for errors. `is_lasting`: whether the contents
        outlive the run and may be restored if all of them are gone.
        """
        self._folder = folder
        self._suffix = suffix
        self._what = what
        self._is_lasting = is_lasting
        self._identity: tuple[int, int] | None = None
        """Device and inode of the folder that was found first: a mounted disk may come and go."""

    def sizes(self) -> dict[int, int]:
        found: dict[int, int] = {}
        try:
            for path in self._folder.glob("*" + self._suffix):
                number = path.name.removesuffix(self._suffix)
                if number.isascii() and number.isdigit():
                    found[int(number)] = path.stat().st_size
            self._is_same_folder()
        except OSError as error:
            raise self._mapped(error, "found") from error
        return found

    def make(self, segment: int) -> None:
        try:
            self._check_folder()
            os.close(self._opened(segment, os.O_WRONLY | os.O_CREAT))
            sync_folder(self._folder)
        except OSError as error:
            raise self._mapped(error, "made") from error

    def write(self, segment: int, offset: int, parts: Sequence[Part], *, sync: bool) -> None:
        try:
            whole = few_parts(parts)
            size_bytes = sum([memoryview(part).nbytes for part in whole])
            descriptor = self._opened(segment, os.O_WRONLY | os.O_CREAT)
            try:
                if os.pwritev(descriptor, whole, offset) != size_bytes:
                    _write_all(descriptor, memoryview(b"".join(whole)), offset)
                if sync:
                    os.fdatasync(descriptor)
            except (OSError, MemoryError):
                os.ftruncate(descriptor, offset)  # an incomplete part would only take space
                raise
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._mapped(error, "written") from error
        except MemoryError as error:
            raise EngineFailedError(f"{self._folder}: there is not enough memory to write {self._what} now") from error

    def read(self, segment: int, offset: int, size_bytes: int, ahead_bytes: int = 0) -> bytes:
        try:
            descriptor = self._opened(segment, os.O_RDONLY)
            try:
                value = os.pread(descriptor, size_bytes, offset)
                if ahead_bytes:
                    os.posix_fadvise(descriptor, offset + size_bytes, ahead_bytes, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(descriptor)
        except FileNotFoundError as error:
            try:
                self._check_folder()
            except OSError as gone:
                raise self._mapped(gone, "read") from error
            if self._is_lasting and not self.sizes():
                raise EngineFailedError(
                    f"{self._folder} is empty: {self._what} were there. Mount the disk that has them, or bring them "
                    "back."
                ) from error
            raise CorruptionError(f"{error.filename} is gone: something else than the broker has removed it") from error
        except OSError as error:
            if error.errno in _SECTOR_ERRORS:
                repair = " `sluiceway store repair` discards the messages there." if self._is_lasting else ""
                raise UnreadableError(
                    f"{self.path(segment)} can't be read between {offset} and {offset + size_bytes}: {error}. Look at "
                    f"the disk (dmesg, smartctl).{repair}",
                    partial(read_around, self, segment, offset, size_bytes),
                ) from error
            raise self._mapped(error, "read") from error
        return value

    def cut(self, segment: int, size_bytes: int) -> None:
        try:
            os.truncate(self.path(segment), size_bytes)
        except OSError as error:
            raise self._mapped(error, "cut") from error

    def remove(self, segment: int) -> None:
        try:
            self.path(segment).unlink(missing_ok=True)
        except OSError as error:
            raise self._mapped(error, "removed") from error

    def name(self, segment: int) -> str:
        return str(self.path(segment))

    def path(self, segment: int) -> Path:
        """Return the file of this segment."""
        return self._folder / f"{segment}{self._suffix}"

    def _opened(self, segment: int, flags: int) -> int:
        return os.open(self.path(segment), flags | os.O_CLOEXEC, 0o600)

    def _is_same_folder(self) -> bool:
        """Return whether the folder is the one that was found first, or never existed. Raises OSError if it is gone."""
        try:
            found = os.stat(self._folder)
        except FileNotFoundError:
            if self._identity is None:
                return True
            raise
        if self._identity is None:
            self._identity = (found.st_dev, found.st_ino)
        return self._identity == (found.st_dev, found.st_ino)

    def _check_folder(self) -> None:
        """Check that the folder exists and is the one that was found first: in another one, new files would be out of
        sight, and existing ones missing. Raises OSError if not.
        """
        if not self._is_same_folder():
            raise OSError(
                errno.ESTALE,
                "it is another folder than at the start. If a disk belongs there, mount it, or start the broker again",
                str(self._folder),
            )

    def _mapped(self, error: OSError, done: str) -> EngineError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return DiskFullError(f"{self._folder}: no space left for {self._what}. Free space on this disk.")
        return EngineFailedError(
            f"{self._folder} has a file that can't be {done}: {error}. Look at the disk and at its permissions."
        )


def read_around(segments: Segments, segment: int, offset: int, size_bytes: int) -> bytes | None:
    """Read what can be read at this place, with zeros for each sector that can't; empty if nothing can. None: nothing
    else of the disk can be read either, so this place is not the cause. Blocks. Raises EngineError for other errors.
    """
    pieces: list[bytes] = []
    bad_count = 0
    at, end = offset, offset + size_bytes
    while at < end:
        stop = min(end, (at // SECTOR_BYTES + 1) * SECTOR_BYTES)
        piece = _sector(segments, segment, at, stop - at) if bad_count < BAD_SECTORS_MAX else None
        if piece is None:
            bad_count += 1
        pieces.append(bytes(stop - at) if piece is None else piece)
        at = stop
    if bad_count < len(pieces):
        return b"".join(pieces)
    sizes = segments.sizes()
    elsewhere = [(segment, 0), (segment, end + (1 << 20))] + [(number, 0) for number in sizes if number != segment]
    places = [(number, at) for number, at in elsewhere if at + SECTOR_BYTES <= sizes.get(number, 0)]
    answers = any(_sector(segments, *place, SECTOR_BYTES) for place in places[:_PROBES_COUNT])
    return b"" if answers else None


def _sector(segments: Segments, segment: int, offset: int, size_bytes: int) -> bytes | None:
    try:
        return segments.read(segment, offset, size_bytes)
    except UnreadableError:
        return None


def few_parts(parts: Sequence[Part]) -> list[Part]:
    """The same bytes: a few large parts are not copied; of many small ones a copy costs less than the list of them."""
    return list(parts) if len(parts) <= PARTS_MAX + 1 else [b"".join(parts)]


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        written_bytes = os.pwrite(descriptor, data, offset)
        data, offset = data[written_bytes:], offset + written_bytes
