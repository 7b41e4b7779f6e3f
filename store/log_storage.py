"""Storage of logs: a folder with one folder for each log, and the threads that work on them.

A log's folder has the name of the log, with all characters but letters and digits written as %XX, so that no name leads
out of the folder. It is a BigArray, whose identity is that of the log, permanently: message-ids are made of it, and
clients that continue at an index compare it. Earlier versions kept it in the file `id`: from there it moves into the
head.

Five threads: one makes the files of new logs, one appends (and prunes), one syncs, one reads ahead, one compacts; none
waits for another, and the dispatch loop for none. Within each, jobs run in the order given.

Without a data folder logs are kept in a temporary one, which goes when the broker does.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote

import attrs

from ..queues.logs.codes import INVALID_TOPIC
from ..queues.logs.page_cache import TAIL_BYTES
from ..queues.logs.pending_records import PendingRecords
from ..queues.logs.ports import DiskError
from ..queues.logs.table import PREFIX, LogError, Opened, check_name
from ..queues.settings import about, at_least, field
from .bigarray import ArrayError, ArrayOptions, BigArray, Files, RecoveryReport
from .folders import make_private_folder, sync_folder
from .io_threads import InlineRunner, IoThread, Job, Runner
from .marks import MarkedFolder

T = TypeVar("T")
MIB: Final = 1024 * 1024
_ID_FILE: Final = "id"
FOLDER_NAME_BYTES_MAX: Final = 255
"""Longest name of a folder in a file system."""
_ID_BYTES: Final = 6
_ID_LENGTH_MAX: Final = 64
_DOOMED: Final = ".removed-"
"""Marker in the name of a folder that is being removed. No log's folder has a dot in its name."""


def _nothing_or_the_tail(_instance: object, attribute: attrs.Attribute[Any], value: int) -> None:
    if value and value < TAIL_BYTES:
        raise ValueError(f"{attribute.name} must be 0 or at least {TAIL_BYTES}, got {value}")


@attrs.frozen
class LogStorageConfig:
    """Settings of where logs (`/log/...`) are kept. The limits of a log are settings of destinations."""

    data_page_bytes: int = field(
        128 * MIB,
        "bytes",
        "Size of one file of records (sparse). Retention removes whole files, so smaller ones follow it more closely; "
        "larger ones are fewer. For logs that are made from now on.",
        at_least(1),
    )
    index_page_count: int = field(
        1 << 20,
        "count",
        "Records in one file of the index, 16 bytes each. For logs that are made from now on.",
        at_least(1),
    )
    mapped_pages_max: int = field(
        16, "count", "Files of one log that are mapped into memory for reading; the coldest are unmapped.", at_least(1)
    )
    page_cache_bytes_max: int = field(
        0,
        "bytes",
        "How much of the end of each log is left in the system's page cache; the part before is dropped once it is "
        "synced. 0: the system decides, which is best where readers come back for older records. Set it (to 256 MiB, "
        "say) under heavy appending where fresh memory is expensive, as in virtual machines that return free memory to"
        " their host: appending can be twice as fast. 0 or at least 64 MiB.",
        _nothing_or_the_tail,
    )
    extents_bytes_max: int = field(
        32 * MIB,
        "bytes",
        "Memory for records of logs in a database: what was appended last, and what readers come to, in pieces of about"
        " 1 MiB. Readers at more places than fit fetch the same records again and again.",
        at_least(1),
    )
    cache_bytes_max: int = field(
        64 * MIB,
        "bytes",
        "Records of all logs that are kept as they go to readers, so that many readers at one place cost little more "
        "than one.",
        at_least(1),
    )
    compaction_bytes_max: int = field(
        16 * MIB,
        "bytes",
        "Memory for the keys of a log that is compacted (`log_compact`), 224 bytes each; one log at a time. A log with "
        "more keys is compacted in several rounds, each of which reads all of it.",
        at_least(1),
    )
    logs_max: int = field(
        1000,
        "count",
        "Logs at a time. Each has some files open. Bounds what clients that make up names cost.",
        at_least(1),
    )
    delete_passcode: str = attrs.field(
        default="",
        metadata=about("Clients that know it may delete logs. Empty: logs can't be deleted.", secret=True),
    )


def boot_id() -> str:
    """Return the name of this run of the machine: another name means that the power may have failed. Empty where it is
    not known.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class LogStorage:
    """The folder. Satisfies `sluiceway.queues.logs.table.Cabinet`."""

    def __init__(
        self,
        folder: Path | None,
        config: LogStorageConfig,
        *,
        now_ms: Callable[[], int],
        boot: str | None = None,
        files: Files | None = None,
        marked: MarkedFolder | None = None,
    ) -> None:
        """`folder`: None for a temporary one. `boot`: see `boot_id`; `files`: for tests. `marked`: the same folder, if
        it is to be known again.
        """
        self._folder = folder
        self._marked = marked
        self._temporary: Path | None = None
        self._config = config
        self._now_ms = now_ms
        self._boot = boot_id() if boot is None else boot
        self._files = files
        self._arrays: dict[str, BigArray] = {}
        self._taken_away: dict[str, Path] = {}
        """Folders of logs that are being deleted."""

    @property
    def folder(self) -> Path:
        """Folder of all logs. A temporary folder is made on the first request: most brokers never have a log."""
        if self._folder is not None:
            return self._folder
        if self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="sluiceway-logs-"))
        return self._temporary

    @property
    def keeps(self) -> bool:
        """Whether the folder stays when the broker ends, so that it may have logs of an earlier run."""
        return self._folder is not None

    def names(self) -> list[str]:
        """Names of the logs on disk. Raises DiskError."""
        try:
            self._check()
            make_private_folder(self.folder)
            self._check()  # this folder is the right one from now on
            entries = [entry.name for entry in os.scandir(self.folder) if entry.is_dir()]
        except OSError as error:
            raise DiskError(f"the folder of logs {self.folder} can't be read: {error}") from error
        names = []
        for entry in sorted(entries):
            if _DOOMED in entry:  # the broker ended while it removed this
                shutil.rmtree(self.folder / entry, ignore_errors=True)
                continue
            name = PREFIX + unquote(entry)
            try:
                check_name(name)
            except LogError:
                continue  # something else that lies there
            if self.folder_of(name).name == entry:
                names.append(name)
        return names

    def mark(self) -> None:
        """Mark the folder, which has logs, so that another one in its place is noticed. Raises DiskError."""
        if self._marked is not None:
            try:
                self._marked.before_writing()
            except OSError as error:
                raise DiskError(f"{self.folder} can't be marked: {error}") from error

    def _check(self) -> None:
        """Raises OSError if the folder is another one than at the start."""
        if self._marked is not None:
            self._marked.check()

    def folder_of(self, name: str) -> Path:
        """Return the folder of a log."""
        return self.folder / quote(name.removeprefix(PREFIX), safe="").replace(".", "%2E")

    def open(self, name: str) -> Opened:
        """Open a log, or make it. Raises DiskError; LogError for a name that can't be that of a folder."""
        return self._open(name, self._checked_folder(name), "")

    def begin(self, name: str) -> Opened:
        """Return a log that is yet to be made, by its `make`. An existing folder, which an earlier run made and this
        one could not open, is opened. Raises as `open`.
        """
        folder = self._checked_folder(name)
        if os.path.lexists(folder):
            return self._open(name, folder, "")
        log_id = _new_id()
        return Opened(
            PendingRecords(self._config.data_page_bytes), log_id, lambda: self._open(name, folder, log_id).records
        )

    def _checked_folder(self, name: str) -> Path:
        """Raises DiskError; LogError."""
        try:
            folder = self.folder_of(name)
        except OSError as error:
            raise DiskError(f"there is no temporary folder for logs: {error}") from error
        if len(folder.name) > FOLDER_NAME_BYTES_MAX:
            raise LogError(
                INVALID_TOPIC,
                f"{name[:80]!r}... is too long for the name of a folder: other characters than ASCII letters and "
                "digits count three times and more",
            )
        return folder

    def _open(self, name: str, folder: Path, log_id: str) -> Opened:
        """`log_id`: the one that it must have; empty: whichever it has. Raises DiskError."""
        config = self._config
        options = ArrayOptions(
            data_page_bytes=config.data_page_bytes,
            index_page_items=config.index_page_count,
            mapped_pages_max=config.mapped_pages_max,
            cached_bytes_max=config.page_cache_bytes_max,
        )
        try:
            self._check()
            make_private_folder(self.folder)
            if self._marked is not None and not os.path.lexists(folder):
                self._marked.before_writing()
            array = BigArray.open(
                folder,
                options,
                files=self._files,
                now_ms=self._now_ms,
                boot_id=self._boot,
                identity=log_id or _earlier_id(folder) or _new_id(),
            )
        except (ArrayError, OSError) as error:
            raise DiskError(str(error)) from error
        if log_id and array.identity != log_id:
            with suppress(ArrayError):
                array.close()
            raise DiskError(f"another program has created {folder} meanwhile: start the broker again to read it")
        self._arrays[name] = array
        return Opened(array, array.identity)

    def take_away(self, name: str) -> None:
        """Move the folder of a log to where no start finds it; code that has the log open can still use it. Raises
        DiskError: nothing has changed then.
        """
        if name in self._taken_away:
            return
        folder, doomed = self.folder_of(name), self.folder / f"log{_DOOMED}{secrets.token_hex(6)}"
        try:
            self._check()
            try:
                folder.rename(doomed)
            except FileNotFoundError:
                return  # the disk did not take it when it was to be made
            self._taken_away[name] = doomed
            sync_folder(self.folder)
        except Exception as error:  # of any kind: code that has the log open can still use it
            if name in self._taken_away:
                try:
                    doomed.rename(folder)
                except OSError:
                    return  # the folder is away: at worst a power cut brings it back
                del self._taken_away[name]
            if not isinstance(error, OSError):
                raise
            raise DiskError(
                f"{name} can't be deleted, and stays as it is: {error}. Make sure that the broker may rename files in "
                f"{self.folder}, and delete the log again."
            ) from error

    def remove(self, name: str) -> None:
        """Close a log and delete its files; `take_away` first, if that was not done. Raises DiskError: then it is
        closed, and there as before, or its files still take room; the message says which.
        """
        array = self._arrays.pop(name, None)
        if array is not None:
            with suppress(ArrayError, MemoryError):  # unflushed records were to be deleted anyway
                array.close()
        self.take_away(name)
        doomed = self._taken_away.pop(name, None)
        if doomed is None:
            return
        try:
            shutil.rmtree(doomed)
        except OSError as error:
            raise DiskError(
                f"{name} is deleted, but its files still take room: {error}. Remove {doomed}; else the broker tries it "
                "again when it starts."
            ) from error

    def reports(self) -> dict[str, RecoveryReport]:
        """Reports of opening, by log."""
        return {name: array.report for name, array in self._arrays.items()}

    def close(self) -> list[str]:
        """Sync and close all logs; returns the errors. Blocks."""
        faults = []
        for name, array in self._arrays.items():
            try:
                array.close()
            except ArrayError as error:
                faults.append(f"{name}: {error}")
        self._arrays.clear()
        self._clean_up()
        return faults

    def _clean_up(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)


def _new_id() -> str:
    return secrets.token_hex(_ID_BYTES)


def _earlier_id(folder: Path) -> str:
    """Return the id that an earlier version gave the log in this folder; empty if there is none. Raises OSError."""
    try:
        text = (folder / _ID_FILE).read_bytes().decode("latin-1").strip()
    except FileNotFoundError:
        return ""
    return text if text.isascii() and text.isalnum() and len(text) <= _ID_LENGTH_MAX else ""


class LogDisk:
    """The threads of logs. Satisfies `sluiceway.queues.logs.ports.Disk`."""

    def __init__(self, making: Runner, appending: Runner, syncing: Runner, reading: Runner, compacting: Runner) -> None:
        self.then: Callable[[], None] = _nothing
        """Called on the loop before the result of a job that appends or reads is handed over."""
        self._making = making
        self._appending = appending
        self._syncing = syncing
        self._reading = reading
        self._compacting = compacting

    @classmethod
    def threads(cls, submit: Callable[[Callable[[], None]], None]) -> LogDisk:
        """The real ones; each begins with its first job."""
        kinds = ("maker", "writer", "syncer", "reader", "compactor")
        return cls(*(IoThread(f"sluiceway log {kind}", submit) for kind in kinds))

    @classmethod
    def inline(cls, schedule: Callable[[Callable[[], None]], None]) -> LogDisk:
        """Return a disk that works on the loop, for tests in virtual time."""
        return cls(*(InlineRunner(schedule) for _ in range(5)))

    def make(self, work: Callable[[], T], done: Callable[[T | DiskError], None]) -> None:
        self._making.put(Job(_told(work), done))

    def append(self, work: Callable[[], T], done: Callable[[T | DiskError], None]) -> None:
        self._appending.put(_LogJob(_told(work), done, self.then))

    def sync(self, work: Callable[[], T], done: Callable[[T | DiskError], None]) -> None:
        self._syncing.put(Job(_told(work), done))

    def read(self, work: Callable[[], T], done: Callable[[T | DiskError], None]) -> None:
        self._reading.put(_LogJob(_told(work), done, self.then))

    def compact(self, work: Callable[[], T], done: Callable[[T | DiskError], None]) -> None:
        self._compacting.put(Job(_told(work), done))

    def room(self, size_bytes: int) -> mmap:
        """A bytearray would be filled with zeros first: 50 ms for 60 MB, in which no other thread runs."""
        return mmap(-1, size_bytes, flags=MAP_PRIVATE | MAP_ANONYMOUS)

    def close(self) -> None:
        """Finish all given jobs, and wait for that."""
        for runner in (self._compacting, self._making, self._reading, self._appending, self._syncing):
            runner.close()


class _LogJob(Job):
    """Work with records, and a call on the loop before its result is handed over."""

    __slots__ = ("_then",)

    def __init__(self, work: Callable[[], Any], done: Callable[[Any], None], then: Callable[[], None]) -> None:
        super().__init__(work, done)
        self._then = then

    def tell(self) -> None:
        self._then()
        super().tell()


def _nothing() -> None:
    """Do nothing: no memory changes with a job."""


def _told(work: Callable[[], T]) -> Callable[[], T | DiskError]:
    def run() -> T | DiskError:
        try:
            return work()
        except DiskError as error:
            return error
        except (ArrayError, OSError) as error:
            return DiskError(str(error))
        except MemoryError:
            # An array is whole behind it: what a half-done append or removal left is cut or finished by the next one.
            return DiskError("there is not enough memory for it now. Give the broker more, or less to do.")

    return run
