"""Local folder of a store whose data is elsewhere, in a database: what a run may lose with it, and nothing else.

    lock      locked by the process that uses the folder
    paged/    blocks of messages that are not persistent, paged out; emptied at each start
    large/    large bodies of messages that are not persistent; likewise
    attic/    copies of damaged records, bounded

The size of its disk says nothing of the room for messages: pages that do not fit stay in memory (paged.py), and a
database whose disk is full refuses to write.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..flow.bounds import UNBOUNDED
from .directory import LARGE, PAGED, locked, told_of
from .folders import make_private_folder
from .keys import FORMAT_VERSION_MIN
from .pages import clear
from .quarantine import Quarantine


class Scratch:
    """A scratch folder that this process has locked."""

    format_version = FORMAT_VERSION_MIN

    def __init__(self, path: Path) -> None:
        """Make and lock the folder. Raises DirectoryError; LockedError if another process uses it."""
        self.path = path
        self._attic = Quarantine(path / "attic")
        with told_of(path):
            make_private_folder(path)
            self._lock: int | None = locked(path)
            try:
                make_private_folder(self.paged_path)
                clear(self.paged_path)
                make_private_folder(self.large_path)
                make_private_folder(path / "attic")
            except BaseException:
                self.close()
                raise

    @property
    def paged_path(self) -> Path:
        """Folder of blocks that were only paged out."""
        return self.path / PAGED

    @property
    def large_path(self) -> Path:
        """Folder of large bodies that need not survive."""
        return self.path / LARGE

    def free_bytes(self) -> int:
        """Return that there is room: the database says itself when there is none."""
        return UNBOUNDED

    def attic_put(self, name: str, data: bytes) -> Path | None:
        """Keep a damaged record, as `Directory.attic_put`."""
        with told_of(self.path):
            return self._attic.put(name, data)

    def close(self) -> None:
        """Release the lock. May be called again."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)
