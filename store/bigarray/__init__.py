"""BigArray: records on the disk by index, appended at the end, removed at the beginning. See array.py and FORMAT.md."""

from .array import BigArray
from .errors import (
    ArrayBatchTooLargeError,
    ArrayError,
    ArrayFailedError,
    ArrayFormatError,
    ArrayFullError,
    ArrayGap,
    ArrayGapError,
    ArrayLockedError,
    ArrayReadOnlyError,
)
from .files import Files, RealFiles, current_boot_id
from .options import ArrayOptions
from .reading import Cut, Item
from .recovery import RecoveryReport

__all__ = [
    "ArrayBatchTooLargeError",
    "ArrayError",
    "ArrayFailedError",
    "ArrayFormatError",
    "ArrayFullError",
    "ArrayGap",
    "ArrayGapError",
    "ArrayLockedError",
    "ArrayOptions",
    "ArrayReadOnlyError",
    "BigArray",
    "Cut",
    "Files",
    "Item",
    "RealFiles",
    "RecoveryReport",
    "current_boot_id",
]  # fmt: skip
