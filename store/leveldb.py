"""The engine on LevelDB, through plyvel (or plyvel-next, see binding.py).

How failed writes are handled. LevelDB's log is an append-only file. When an append fails half-way (no space), LevelDB
continues as if it had not, and the next recovery silently drops everything written behind the torn record, even if it
was synced, even with paranoid checks (tried with a limit on the size of files). When a sync fails, LevelDB refuses
every later write until it is opened anew. So after any write that raised, this adapter trusts the open database for
reading only, and the next `write` first closes it and opens it again: that replays the log up to the torn record into a
table, syncs that, and begins a new log. Known after a failed write: everything written before is there (after the
reopening: on the disk, too); the failed batch is there as a whole or not at all, and callers write it again. One call
tries one reopening at most, how often is the caller's pace; with no space for it the database stays open, so that
reading is possible while the disk is full.

What plyvel does to the event loop's thread: it releases the GIL in get, write, compact and every step of an iterator,
and takes it for copying a value; beside a busy loop the longest pause seen was 7 to 15 ms, with values of 5 MB. `close`
holds the GIL, for 1 to 6 ms; opening does not. The other way round a busy loop keeps a call waiting for Python's switch
interval (5 ms by default) each time it takes the GIL back: 400 gets of 100 KB took 0.29 s beside a busy loop, 0.09 s
with an interval of 1 ms. So prefer few large values to many small ones.

Iterators are plyvel's raw ones, because the others look at LevelDB's error state only where there is a next key: damage
at the end of the data silently makes a range end early. (They also show nothing, in reverse, when the first key of the
range is all that is in it.)

Two threads at once, one that writes and one that reads: LevelDB allows that, but plyvel closes a database under a call
of another thread, which ends the process (SIGSEGV). So every call that reads, and every closing and opening, holds a
lock for as long as that one call takes. Writes don't, or readers would wait for each sync: none but the thread that
writes gives up a database, and `close` waits for it.

LevelDB's sync omits the log file before the newest: leveldblog.py compensates for that.

Deliberately not here: the lock of the folder and repair (directory.py, repair.py). Not in reach: LevelDB reads its
tables through mmap, so a disk that fails while a page is read ends the process (SIGBUS), with nothing to catch.

Source: DESIGN section 7; LevelDB's db_impl.cc and log_writer.cc as of 1.22, for what a failed write leaves.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import attrs

from ..flow.words import size_in_words
from .binding import plyvel
from .engine import (
    DELETE,
    PUT,
    Change,
    CorruptionError,
    DiskFullError,
    EngineClosedError,
    EngineError,
    EngineFailedError,
)
from .folders import OPENING_FREE_BYTES
from .leveldblog import NewestLog

MIB: Final = 1 << 20

_TABLES: Final = re.compile(r"\d+\.(ldb|sst)|MANIFEST-\d+")
_TABLE_TOO_SHORT: Final = re.compile(rf"\.(ldb|sst): {re.escape(os.strerror(errno.EINVAL))}")
"""Message of LevelDB for a block beyond the end of a table's file. LevelDB calls that an IO error; the table is
damaged.
"""


@attrs.frozen
class LevelDbOptions:
    """LevelDB's settings. Figures: 2 cores shared with others, values of 100 KB (1,000 messages of 100 bytes), LevelDB
    1.22 as plyvel 1.5 ships it, one sync in ten writes.
    """

    write_buffer_bytes: int = 8 * MIB
    """Memory for records that are not in a table yet; twice that while the older half is written out. Also how much log
    an opening replays. Smaller ones compact more often: synced writes of 1 MB had a 99th percentile of 217 and 632 ms
    with 4 MiB, of 25 and 45 ms with 8 MiB (90 and 44 MB/s against 142 and 51; two runs each, the second beside other
    load). 16 MiB brought no more.
    """

    table_bytes: int = MIB
    """Size of table files: LevelDB's least. Tables are mapped, and pages read from them count as memory of the process
    until they are closed: this times `open_files_max` bounds it. A process that had read 1 GB (10 million messages) in
    order was at 123 MB with 1 MiB; one that had read 600 MB was at 116 to 130 MB with 1 MiB and at 160 to 200 MB with 2
    MiB, as fast. The price is a file per 1 MiB of backlog; opening 930 of them took 0.14 s.
    """

    open_files_max: int = 74
    """LevelDB's least: 64 tables, and 10 others. Opening a table again costs 0.1 ms, reading it through 1 ms."""

    cache_bytes: int = MIB
    """LevelDB's cache of blocks. Blocks of mapped tables without compression are read where they lie and never cached,
    so this is for nothing but the odd table that could not be mapped.
    """

    block_bytes: int = 4096
    """Values that are larger (chunks) have a block each; small ones (states, summaries) share one, which is read and
    checked as a whole.
    """

    bloom_bits: int = 10
    """Per key, in every table: a key that is not there (most blocks have no state) costs no read, 99 times of 100. With
    keys of large values that is some bytes a table.
    """

    compression: str | None = None
    """None or "snappy". With bodies of JSON: without, 103 MB/s in and 1,350 MB/s out; with snappy a quarter of the
    disk, but 22 MB/s in, 280 MB/s out and single writes that waited for 2.8 s. With random bodies: the same both ways.
    """

    verify_checksums: bool = True
    """Check each block that is read: 100 KB in 100 us instead of 63. Keys and small records have no checksum of their
    own, and a flipped bit in a key is a lost message.
    """


class RawIterator(Protocol):
    """The methods of plyvel.RawIterator in use. Each method raises plyvel's errors."""

    def valid(self) -> bool: ...
    def seek(self, target: bytes) -> None: ...
    def seek_to_last(self) -> None: ...
    def next(self) -> None: ...
    def prev(self) -> None: ...
    def key(self) -> bytes: ...
    def value(self) -> bytes: ...
    def close(self) -> None: ...


class WriteBatch(Protocol):
    """The methods of plyvel.WriteBatch in use."""

    def put(self, key: bytes, value: bytes) -> None: ...
    def delete(self, key: bytes) -> None: ...
    def write(self) -> None: ...


class Database(Protocol):
    """The methods of plyvel.DB in use; plyvel ships no types."""

    def get(self, key: bytes, *, verify_checksums: bool) -> bytes | None: ...
    def raw_iterator(self, *, verify_checksums: bool, fill_cache: bool) -> RawIterator: ...
    def write_batch(self, *, sync: bool) -> WriteBatch: ...
    def compact_range(self, *, start: bytes, stop: bytes) -> None: ...
    def get_property(self, name: bytes) -> bytes | None: ...
    def close(self) -> None: ...


def open_database(path: Path, options: LevelDbOptions, *, paranoid: bool = True) -> Database:
    """Open (or create) the database and replay its log.

    `paranoid` False: leave out the unreadable part of the log, which is an error otherwise. Raises plyvel.Error for all
    errors of LevelDB, and CorruptionError for tables without the CURRENT that names them: LevelDB would begin anew
    there, and remove them.
    """
    if not (path / "CURRENT").exists() and any(_TABLES.fullmatch(file.name) for file in path.glob("*")):
        raise plyvel.CorruptionError(b"CURRENT is missing, but there are tables")
    database: Database = plyvel.DB(
        str(path), create_if_missing=True, paranoid_checks=paranoid, **plyvel_settings(options)
    )
    return database


def plyvel_settings(options: LevelDbOptions) -> dict[str, Any]:
    """The options under the names that plyvel.DB and plyvel.repair_db have for them."""
    return {
        "write_buffer_size": options.write_buffer_bytes,
        "max_file_size": options.table_bytes,
        "max_open_files": options.open_files_max,
        "lru_cache_size": options.cache_bytes,
        "block_size": options.block_bytes,
        "bloom_filter_bits": options.bloom_bits,
        "compression": options.compression,
    }


def words_of(error: BaseException) -> str:
    """Return LevelDB's message: plyvel passes it as bytes."""
    said = error.args[0] if error.args else ""
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)


def mapped_error(error: plyvel.Error, path: Path, doing: str) -> EngineError:
    """Return LevelDB's error as an EngineError. `doing`: the failed action, such as "writing"."""
    text = words_of(error)
    if isinstance(error, plyvel.CorruptionError) or _TABLE_TOO_SHORT.search(text):
        return CorruptionError(
            f"{path}: LevelDB found damage while {doing}: {text}. Stop the broker and run `sluiceway store repair`: it "
            "keeps what can be read and moves the rest aside."
        )
    if any(os.strerror(number) in text for number in (errno.ENOSPC, errno.EDQUOT)):
        return DiskFullError(f"{path}: no space left while {doing}: {text}. Free space on this disk, or let it drain.")
    return EngineFailedError(
        f"{path}: LevelDB failed while {doing}: {text}. Look at the disk (dmesg, permissions, limits of open files); "
        "the next try opens it again."
    )


def _mapped_os_error(error: OSError, path: Path, doing: str) -> EngineError:
    """Return an error of the operating system as an EngineError."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"{path}: no space left while {doing}. Free space on this disk, or let it drain.")
    return EngineFailedError(
        f"{path}: {doing} failed: {error}. Look at the disk (dmesg, permissions, limits of open files); it is tried "
        "again with the next write."
    )


class LevelDbEngine:
    """Engine in a folder of its own. No other process may use that folder (see directory.py).

    `path`: the folder, made if its parent exists. `opener`: function that opens the database; for tests. Raises
    EngineError if it can't be opened; CorruptionError if its log or its list of tables is damaged.
    """

    __slots__ = (
        "_closed",
        "_database",
        "_log",
        "_opener",
        "_options",
        "_path",
        "_suspect",
        "_using",
        "_verify",
        "_writing",
        "reopened_count",
    )

    def __init__(
        self,
        path: Path,
        options: LevelDbOptions | None = None,
        *,
        opener: Callable[[Path, LevelDbOptions], Database] = open_database,
    ) -> None:
        self._path = path
        self._options = options or LevelDbOptions()
        self._opener = opener
        self._verify = self._options.verify_checksums
        self._closed = False
        self._suspect = False  # a write failed: reading is all that this database is good for
        self._database: Database | None = None
        self._log: NewestLog | None = None
        """The newest log of the open database."""
        self._writing = threading.Lock()
        """Held while something is written. Before `_using`, if both are."""
        self._using = threading.RLock()  # reentrant: an iterator may be collected, and closed, anywhere
        """Held for each call that reads, and while the database is closed or opened."""
        self.reopened_count = 0
        """Number of times the database was opened again because a write had failed."""
        self._database = self._open()

    def get(self, key: bytes) -> bytes | None:
        with self._using:
            database = self._database or self._reopened()
            try:
                return database.get(key, verify_checksums=self._verify)
            except plyvel.Error as error:
                raise mapped_error(error, self._path, f"reading the key {key.hex()}") from error

    def iterate(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        raw = self._raw_iterator()  # now, not with the first step: the snapshot is of this call
        return self._descending(raw, start, stop) if reverse else self._ascending(raw, start, stop)

    def iterate_keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        return (key for key, _value in self._ascending(self._raw_iterator(), start, stop, keys_only=True))

    def write(self, changes: Sequence[Change], *, sync: bool) -> None:
        with self._writing:
            if self._suspect:
                self._give_up_database()
            with self._using:
                database = self._database or self._reopened()
            try:
                batch = database.write_batch(sync=sync)
                count = len(changes)
                fresh: list[bytes] = []
                for kind, key, value in changes:
                    if kind == PUT:
                        batch.put(key, value)
                        fresh.append(key)
                    elif kind == DELETE:
                        batch.delete(key)
                    else:
                        for gone in self.iterate_keys(key, value):
                            batch.delete(gone)
                            count += 1
                        for new in fresh:  # not in the database yet
                            if key <= new < value:
                                batch.delete(new)
                                count += 1
                log = self._log
                assert log is not None, "a database that is open has a log"
                if log.may_be_full:
                    with self._syncing():
                        log.before_write(database)
                batch.write()
                log.written(count, sync=sync)
            except plyvel.Error as error:
                self._suspect = True
                raise mapped_error(error, self._path, "writing") from error
            except MemoryError as error:
                self._suspect = True  # a part of the batch may be in its log
                raise EngineFailedError(f"{self._path}: there is not enough memory to write now") from error

    def size_bytes(self) -> int:
        self._check_open()
        size_bytes = 0
        try:
            with os.scandir(self._path) as entries:
                for entry in entries:
                    try:
                        size_bytes += entry.stat().st_size
                    except FileNotFoundError:
                        continue  # LevelDB removes tables in the background
        except OSError as error:
            raise EngineFailedError(f"{self._path}: its files can't be listed: {error}. Look at the disk.") from error
        return size_bytes

    def compact(self, start: bytes, stop: bytes) -> None:
        with self._writing:
            with self._using:
                database = self._database or self._reopened()
            with self._syncing() as log:
                log.before_compaction()
            try:
                database.compact_range(start=start, stop=stop)
            except plyvel.Error as error:
                raise mapped_error(error, self._path, "compacting") from error
            finally:
                log.compacted()

    def close(self) -> None:
        self._closed = True
        with self._writing, self._using:
            self._close_database()

    def _open(self) -> Database:
        try:
            database = self._opener(self._path, self._options)
        except plyvel.Error as error:
            raise mapped_error(error, self._path, "opening") from error
        try:
            self._log = NewestLog(self._path, self._options.write_buffer_bytes)
        except OSError as error:
            database.close()
            raise _mapped_os_error(error, self._path, "opening") from error
        return database

    def _close_database(self) -> None:
        """Close the database if it is open. The caller holds `_using`."""
        database, self._database = self._database, None
        if database is not None:
            database.close()  # of its own accord it closes its iterators first, which LevelDB insists on
        if self._log is not None:
            self._log.close()

    @contextmanager
    def _syncing(self) -> Iterator[NewestLog]:
        """Return the log of the open database; map errors of its sync."""
        log = self._log
        assert log is not None, "a database that is open has a log"
        try:
            yield log
        except OSError as error:
            self._suspect = self._suspect or log.has_failed
            raise _mapped_os_error(error, self._path, "syncing LevelDB's log") from error

    def _check_open(self) -> None:
        if self._closed:
            raise EngineClosedError(f"{self._path}: the store is closed; nothing can be read or written any more")

    def _reopened(self) -> Database:
        """Return the database, opened again after a write or an earlier reopening failed. The caller holds `_using`.

        Raises EngineClosedError if the engine is closed, other EngineErrors if it can't be opened; the next call tries
        again.
        """
        self._check_open()
        self._database = database = self._open()
        self._suspect = False
        self.reopened_count += 1
        return database

    def _give_up_database(self) -> None:
        """Close a database that failed to write, unless there is no space to open it again: raises DiskFullError then,
        with the database still open.
        """
        try:
            free_bytes = shutil.disk_usage(self._path).free
        except OSError as error:
            raise EngineFailedError(f"{self._path}: its disk does not answer: {error}. Look at the disk.") from error
        if free_bytes < OPENING_FREE_BYTES:
            raise DiskFullError(
                f"{self._path}: {size_in_words(free_bytes)} are free, {size_in_words(OPENING_FREE_BYTES)} are needed "
                "to write again after a failed write. Free space on this disk."
            )
        with self._using:
            self._close_database()

    def _raw_iterator(self) -> RawIterator:
        with self._using:
            database = self._database or self._reopened()
            # An iteration reads each block once: caching it would only push other blocks out.
            return database.raw_iterator(verify_checksums=self._verify, fill_cache=False)

    def _ascending(
        self, raw: RawIterator, start: bytes, stop: bytes, *, keys_only: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        using, begun = self._using, False
        with self._reading(raw, start):
            while True:
                with using:
                    if begun:
                        raw.next()
                    else:
                        raw.seek(start)
                        begun = True
                    if not raw.valid() or (key := raw.key()) >= stop:
                        return
                    value = b"" if keys_only else raw.value()
                yield key, value

    def _descending(self, raw: RawIterator, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        using, begun = self._using, False
        with self._reading(raw, start):
            while True:
                with using:
                    if not begun:
                        begun = True
                        raw.seek(stop)
                        if raw.valid():
                            raw.prev()
                        else:
                            raw.seek_to_last()
                    else:
                        raw.prev()
                    if not raw.valid() or (key := raw.key()) < start:
                        return
                    value = raw.value()
                yield key, value

    @contextmanager
    def _reading(self, raw: RawIterator, start: bytes) -> Iterator[None]:
        """Maps the errors of one iteration, and ends it."""
        try:
            yield
        except plyvel.Error as error:
            raise mapped_error(error, self._path, f"iterating from the key {start.hex()}") from error
        except RuntimeError as error:
            raise self._cut(error) from error
        finally:
            with self._using:
                raw.close()

    def _cut(self, error: RuntimeError) -> EngineError:
        """Map the RuntimeError that plyvel raises for a use after the database was closed, and for nothing else."""
        if self._closed:
            return EngineClosedError(f"{self._path}: the store was closed during an iteration")
        return EngineFailedError(
            f"{self._path}: the database was opened again after a failed write, which cut an iteration ({error}). "
            "Begin it again where it ended."
        )
