"""What can go wrong with an array, by what to do about it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final, Literal

import attrs

from ...queues.logs.ports import DiskError, MissingRecordsError

Reason = Literal["lost", "damaged"]
LOST: Final = "lost"
DAMAGED: Final = "damaged"


@attrs.frozen
class Gap:
    """Indexes `from_index` .. `to_index - 1` have no records."""

    from_index: int
    to_index: int
    reason: Reason
    """lost: the power failed before they were flushed, if they were ever used. damaged: a file is missing, short or
    corrupt."""


class ArrayError(Exception):
    """The array can't do this. Base of all errors of this package; the message names the folder and the remedy."""


class ArrayLockedError(ArrayError):
    """Another process, or another array of this one, writes to the folder."""


class ArrayFullError(ArrayError):
    """No space on the disk. Nothing of the append is visible; it can be tried again."""


class ArrayFailedError(ArrayError):
    """The disk failed. Nothing of the append is visible, or nothing more is known to be synced."""


class ReadFailedError(ArrayFailedError, DiskError):
    """A page can't be mapped now (no more open files, no memory, a disk that fails): that says nothing of its records.
    It can be tried again."""


class ArrayFormatError(ArrayError):
    """The folder was made by another version, or by something else, or its head is damaged."""


class ArrayReadOnlyError(ArrayError):
    """The array was opened for reading, or is closed."""


class BatchTooLargeError(ArrayError):
    """A batch does not fit into a data page."""


class GapError(ArrayError, MissingRecordsError):
    """There is nothing to read at this index; `gap` says from where to where, and why."""

    def __init__(self, gap: Gap, why: str) -> None:
        super().__init__(
            f"indexes {gap.from_index} to {gap.to_index - 1} are {gap.reason}: {why}. Go on at {gap.to_index}."
        )
        self.gap = gap

    @property
    def from_index(self) -> int:
        return self.gap.from_index

    @property
    def to_index(self) -> int:
        """Behind the gap."""
        return self.gap.to_index

    @property
    def reason(self) -> Reason:
        return self.gap.reason


def from_os(error: OSError, folder: Path, doing: str) -> ArrayError:
    """What the operating system says, as an error that names the folder and the remedy."""
    what = f"{doing} in {folder} failed: {os.strerror(error.errno) if error.errno else error}"
    if error.filename:
        what += f" ({error.filename})"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ArrayFullError(f"{what}. Free space on that disk, or remove old records, and try again.")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ArrayError(f"{what}. Give user {os.geteuid()} the right to use that folder, or choose another one.")
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return ArrayError(f"{what}. Move away what is in the way there, or choose another folder.")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return ArrayFailedError(f"{what}. Allow this process more open files (ulimit -n).")
    return ArrayFailedError(f"{what}. Look at that disk, then try again.")
