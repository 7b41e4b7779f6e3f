"""Handling of records that can't be read: the store moves them aside, counts them, and logs them."""

from __future__ import annotations

from .counters import StoreCounters
from .directory import DirectoryError
from .ports import DataFolder, Logger


class DamageReports:
    """Reports of damage in one store."""

    __slots__ = ("_counters", "_folder", "_log")

    def __init__(self, counters: StoreCounters, folder: DataFolder | None, log: Logger) -> None:
        self._counters = counters
        self._folder = folder
        self._log = log

    def corrupt(self, queue_name: str, key: bytes, value: bytes, error: Exception) -> None:
        """Move a record aside that can't be read, and log that."""
        self._counters.corrupt_count += 1
        place: object = None
        why_not = "the store has no folder" if value else "not even its bytes can be read"
        if self._folder is not None and value:
            try:
                place = self._folder.attic_put(f"chunk-{key.hex()}", value)
                why_not = "it is larger than the whole quarantine"
            except DirectoryError as full:
                why_not = str(full)
        if place is None:
            self._log.error("corrupt record can't be kept", queue=queue_name, error=str(error), because=why_not)
        else:
            self._log.error("corrupt record moved aside", queue=queue_name, error=str(error), moved_to=str(place))

    def lost(self, queue_name: str, index: int, count: int) -> None:
        """Messages of a block can't be read."""
        self._counters.lost_count += count
        self._log.error(
            "messages lost",
            queue=queue_name,
            count=count,
            block=index,
            remedy="see the quarantine, `attic/`, of the data folder",
        )
