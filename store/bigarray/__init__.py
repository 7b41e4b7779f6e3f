"""BigArray: records on the disk by index, appended at the end, removed at the beginning. See array.py and FORMAT.md."""

from .array import BigArray
from .errors import (
    ArrayError,
    ArrayFailedError,
    ArrayFormatError,
    ArrayFullError,
    ArrayLockedError,
    ArrayReadOnlyError,
    BatchTooLargeError,
    Gap,
    GapError,
)
from .files import Files, RealFiles, current_boot_id
from .options import ArrayOptions
from .reading import Cut, Item
from .recovery import RecoveryReport

__all__ = [
    "ArrayError", "ArrayFailedError", "ArrayFormatError", "ArrayFullError", "ArrayLockedError", "ArrayOptions",
    "ArrayReadOnlyError", "BatchTooLargeError", "BigArray", "Cut", "Files", "Gap", "GapError", "Item", "RealFiles",
    "RecoveryReport", "current_boot_id",
]  # fmt: skip
