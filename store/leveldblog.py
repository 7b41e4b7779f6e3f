"""LevelDB's newest log file: its unsynced part, and the sync that LevelDB omits.

LevelDB appends each batch to its log and to a table in memory. When that table has filled the write buffer, the next
write begins a new log and closes the old one, which it does *not* sync: from then on a write with `sync` syncs the new
log alone. Until the old table is written out (tens of milliseconds, or seconds on a busy disk) a power cut takes
batches of the old log that were not synced, and leaves synced ones of the new log: neither "everything written before
is on the disk" nor "a prefix of whole batches" would hold. So before each write with which LevelDB may begin a new log
the old one is synced here, through a separate descriptor, if a part of it is not synced. Before, not after: the system
may bring the new log to the disk at any time.

*When a new log may begin.* When the table in memory is larger than the write buffer before the write. LevelDB reports
its size only together with the older table that is still being written out. So it is asked when the bound below says
that the table may be that large; usually once or twice for each log.

*When one has begun.* The known file did not grow with a write.

Tried and left: to look for the newest log by name before each sync (10,000 tables in the folder: 4 ms), and to sync
after the write (a commit could survive without what it commits).

Source: DBImpl::MakeRoomForWrite and arena.cc of LevelDB 1.20 to 1.23.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, Protocol

_EMPTY_BYTES: Final = 24 << 10
"""Memory of a table without entries, with its last block, and a margin for the random heights of nodes: six times the
deviation of a full table of the smallest entries.
"""

_ENTRY_BYTES: Final = 40
"""Memory of an entry beside its bytes in the log: its number (8), its node (19 in the mean of random heights, at most 7
for alignment), and lengths.
"""

_UNUSED_BYTES: Final = 1024
"""Bytes that an entry can leave unused at the end of a block in memory of 4 KiB, if it has no block of its own. So at
most a third of the bytes in use.
"""

_LOG: Final = re.compile(r"(\d+)\.log")
_USAGE: Final = b"leveldb.approximate-memory-usage"


class TellsProperties(Protocol):
    """The method of plyvel.DB in use."""

    def get_property(self, name: bytes) -> bytes | None: ...


class NewestLog:
    """Newest log of a database that was opened just now, so that all earlier writes are on the disk.

    For one thread, except `close`, which may come from another when no call is under way. `folder`: the folder of the
    database; `write_buffer_bytes`: as in its options. Raises OSError if the log can't be found or opened; also from
    `before_write` and `before_compaction`.
    """

    __slots__ = (
        "_buffer_bytes", "_descriptor", "_folder", "_size_bytes", "_table_bytes_max",
        "has_failed", "is_synced", "sync_count",
    )  # fmt: skip

    def __init__(self, folder: Path, write_buffer_bytes: int) -> None:
        self._folder = folder
        self._buffer_bytes = write_buffer_bytes
        self._descriptor: int | None = None
        self._size_bytes = 0
        """Size of the file after the last write."""
        self._table_bytes_max = 0
        """An upper bound for the table in memory that belongs to this log."""
        self.is_synced = True
        """Whether everything written so far is synced."""
        self.has_failed = False
        """Whether a sync failed: records in the log may not be on the disk, until the database is opened again."""
        self.sync_count = 0
        """Number of syncs made here."""
        self._find()

    @property
    def may_be_full(self) -> bool:
        """Whether `before_write` has to be called before the next write; it may be called anyway."""
        return self._descriptor is None or (not self.is_synced and self._table_bytes_max > self._buffer_bytes)

    def before_write(self, database: TellsProperties) -> None:
        """Sync the older log if the next batch may begin a new one. Raises OSError if that fails; nothing may be
        written then.
        """
        if self._descriptor is None:
            self._find()
            self._table_bytes_max += self._buffer_bytes  # so LevelDB is asked: the number of entries is unknown
        if not self.is_synced and self._table_bytes_max > self._buffer_bytes:
            usage = database.get_property(_USAGE)
            if usage is None or int(usage) > self._buffer_bytes:
                self._sync()

    def written(self, count: int, *, sync: bool) -> None:
        """Count a batch of `count` entries that was written; `sync`: LevelDB synced its log."""
        assert self._descriptor is not None, "before_write comes first"
        size_bytes = os.lseek(self._descriptor, 0, os.SEEK_END)  # a third of what fstat costs
        grown_bytes = size_bytes - self._size_bytes
        if grown_bytes > 0:
            self._size_bytes = size_bytes
            used_bytes = grown_bytes + _ENTRY_BYTES * count
            self._table_bytes_max += used_bytes + min(used_bytes // 3, _UNUSED_BYTES * count)
        else:
            self._forget()
            try:
                self._find()
            except OSError:
                pass  # the batch is written: the next write checks again, and raises
            self._table_bytes_max += _ENTRY_BYTES * count
        self.is_synced = sync

    def before_compaction(self) -> None:
        """Sync the log: a compaction begins a new one. Raises OSError if that fails; nothing may be compacted then."""
        if not self.is_synced:
            if self._descriptor is None:
                self._find()
            self._sync()

    def compacted(self) -> None:
        """Note that LevelDB may have begun a new log."""
        self._forget()

    def close(self) -> None:
        """Give the descriptor back. May be called again."""
        self._forget()

    def _find(self) -> None:
        """Open the newest log of the folder."""
        found = [_LOG.fullmatch(name) for name in os.listdir(self._folder)]
        number = max((int(match[1]) for match in found if match), default=0)
        self._descriptor = os.open(self._folder / f"{number:06d}.log", os.O_RDONLY | os.O_CLOEXEC)
        self._size_bytes = size_bytes = os.lseek(self._descriptor, 0, os.SEEK_END)
        self._table_bytes_max = _EMPTY_BYTES + size_bytes + size_bytes // 2

    def _sync(self) -> None:
        assert self._descriptor is not None, "it is open"
        try:
            os.fdatasync(self._descriptor)
        except OSError:
            self.has_failed = True
            raise
        self.is_synced = True
        self.sync_count += 1

    def _forget(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
