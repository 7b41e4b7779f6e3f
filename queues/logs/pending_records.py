"""Placeholder for the records of a log whose files are being made.

Making files costs some syncs, on a busy disk tens of milliseconds, so a thread does it (`Disk.make`). Until then the
log has this empty object as its records, and what is sent to it waits. Invariant: nothing is appended here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NoReturn

from .ports import DiskError, Missing


class PendingRecords:
    """Empty implementation of `sluiceway.queues.logs.ports.Records`."""

    is_mapped: Final = True
    first_index: Final = 0
    next_index: Final = 0
    synced_index: Final = 0
    last_timestamp_ms: Final = 0
    back_file_size_bytes: Final = 0
    gaps: Final[Sequence[Missing]] = ()

    def __init__(self, batch_bytes_max: int) -> None:
        """Take `batch_bytes_max` of the records to come."""
        self.batch_bytes_max = batch_bytes_max

    def batch_of(self, index: int, *, verify: bool = False) -> NoReturn:
        raise IndexError(index)

    def cut(self, start: int, stop: int, bytes_max: int) -> NoReturn:
        raise IndexError(start)

    def end_of_live(self, start: int, stop: int) -> int:
        return stop

    def find_closest_index(self, timestamp_ms: int) -> int:
        return 0

    def append_batches(self, batches: Sequence[bytes | bytearray | memoryview]) -> int:
        raise DiskError("the files of the log are not there yet")

    def flush(self) -> int:
        return 0

    def warm(self, start: int, stop: int) -> None:
        """Do nothing: there are no records to read."""

    def remove_to(self, index: int) -> int:
        return 0

    def remove_before(self, timestamp_ms: int) -> int:
        return 0

    def limit_back_file_size(self, size_bytes: int) -> int:
        return 0

    def close(self) -> None:
        """Do nothing: no file is open."""
