"""BigArray: records on the disk by index, appended at the end, removed at the beginning. See array.py and FORMAT.md."""

from store.bigarray.array import BigArray
from store.bigarray.errors import (
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
from store.bigarray.files import Files, RealFiles, current_boot_id
from store.bigarray.options import ArrayOptions
from store.bigarray.reading import Cut, Item
from store.bigarray.recovery import RecoveryReport

__all__ = [
    "ArrayError", "ArrayFailedError", "ArrayFormatError", "ArrayFullError", "ArrayLockedError", "ArrayOptions",
    "ArrayReadOnlyError", "BatchTooLargeError", "BigArray", "Cut", "Files", "Gap", "GapError", "Item", "RealFiles",
    "RecoveryReport", "current_boot_id",
]  # fmt: skip
