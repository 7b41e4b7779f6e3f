"""Errors of an array, by what to do about them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final, Literal

import attrs

from ...queues.logs.ports import DiskError, MissingRecordsError

Reason = Literal["lost", "damaged", "compacted"]
LOST: Final = "lost"
DAMAGED: Final = "damaged"
COMPACTED: Final = "compacted"


@attrs.frozen
class ArrayGap:
    """Range of indexes without records: `from_index` .. `to_index - 1`."""

    from_index: int
    to_index: int
    reason: Reason
    """lost: the power failed before they were flushed, if they were ever used. damaged: a file is missing, short or
    corrupt. compacted (found by a read only): later records have the keys."""


class ArrayError(Exception):
    """Base of all errors of this package; the message names the folder and the remedy."""


class ArrayLockedError(ArrayError):
    """Another process, or another array of this one, writes to the folder."""


class ArrayFullError(ArrayError):
    """No space on the disk. Nothing of the append is visible; retry is possible."""


class ArrayFailedError(ArrayError):
    """The disk failed. Nothing of the append is visible, or `synced_index` has not moved."""


class ReadFailedError(ArrayFailedError, DiskError):
    """A page can't be mapped now (no more open files, no memory, a failing disk): this says nothing about its records.
    Retry is possible."""


class ArrayFormatError(ArrayError):
    """Another version or another program made the folder, or its head is damaged."""


class ArrayReadOnlyError(ArrayError):
    """The array was opened for reading, or is closed."""


class ArrayBatchTooLargeError(ArrayError):
    """A batch does not fit into a data page."""


class ArrayGapError(ArrayError, MissingRecordsError):
    """No record at this index; `gap` has the range and the reason."""

    def __init__(self, gap: ArrayGap, why: str) -> None:
        super().__init__(
            f"indexes {gap.from_index} to {gap.to_index - 1} are {gap.reason}: {why}. Continue at {gap.to_index}."
        )
        self.gap = gap

    @property
    def from_index(self) -> int:
        return self.gap.from_index

    @property
    def to_index(self) -> int:
        """Index behind the gap."""
        return self.gap.to_index

    @property
    def reason(self) -> Reason:
        return self.gap.reason


def from_os(error: OSError, folder: Path, doing: str) -> ArrayError:
    """Return an operating system's error as one that names the folder and the remedy."""
    what = f"{doing} in {folder} failed: {os.strerror(error.errno) if error.errno else error}"
    if error.filename:
        what += f" ({error.filename})"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ArrayFullError(f"{what}. Free space on that disk, or remove old records, and try again.")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ArrayError(f"{what}. Give user {os.geteuid()} the right to use that folder, or choose another one.")
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return ArrayError(f"{what}. Move the obstacle away, or choose another folder.")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return ArrayFailedError(f"{what}. Allow this process more open files (ulimit -n).")
    return ArrayFailedError(f"{what}. Look at that disk, then try again.")
