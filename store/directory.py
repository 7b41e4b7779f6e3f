"""The data folder of one broker: locked, with a known layout.

    lock      locked by the process that uses the folder; holds its id and host, for the message to others
    format    "sluiceway-store 1" or 2: the layout of this folder and the records in it (FORMAT.md)
    db/       LevelDB's
    values/   large values of the database, from format 2 on
    large/    bodies that are kept as files of their own
    logs/     logs, each in a folder of its own
    marks     by which large/ and logs/ are known, once they have something (marks.py)
    paged/    blocks that were only paged out, by the run that uses the folder; emptied at each start
    attic/    damaged things moved aside, bounded

The lock is flock's: it ends with the process that holds it, however that ends, and it holds within one process, too.
(LevelDB has a lock of its own, but of another kind: it is per process, and does not name its holder.) The lock file
stays when it is released: to remove it would let two processes lock two different files.

A folder is made in this order: lock, folders, format; each is synced. So a folder without `format` was never finished,
and is finished now; unless it has a database, which then is not Sluiceway's.

Not here: what is in the database; when it is opened (all of this blocks).

Source: DESIGN section 7 ("an unknown format version or a locked directory is a clear error").
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from attrs import frozen

from ..flow.words import size_in_words
from .engine import DiskFullError, Engine, EngineError, EngineFailedError, EngineMissingError, raise_it
from .folders import OPENING_FREE_BYTES, make_private_folder, sync_folder
from .keys import FORMAT_VERSION, FORMAT_VERSION_MIN
from .marks import MarkedFolder, Marks, OtherFolderError
from .quarantine import Quarantine
from .segments import SegmentFiles
from .values import SUFFIX, ValueLog

if TYPE_CHECKING:
    from .leveldb import LevelDbOptions
    from .repair import RepairReport

LARGE: Final = "large"
"""Folder of bodies that are files."""
LOGS: Final = "logs"
"""The folder of logs."""
_FOLDERS: Final = ("db", LARGE, "attic")
VALUES: Final = "values"
"""The folder of large values."""
PAGED: Final = "paged"
"""Name of the folder of blocks that were only paged out."""
_OWN: Final = frozenset(
    {*_FOLDERS, LOGS, VALUES, PAGED, "lock", "format", "format.new", "marks", "marks.new", "scratch", "shards"}
)
"""Names of all that a broker makes in a data folder."""
_OF_OTHERS: Final = frozenset({"lost+found", ".gitignore", ".gitkeep", ".keep", ".DS_Store", ".snapshot"})
"""Names that an otherwise empty folder may have: of file systems, and of files that keep a folder in a repository."""
_SHOWN_MAX: Final = 3
_FORMAT: Final = re.compile(r"sluiceway-store (\d{1,9})\n?")
_FORMAT_LENGTH_MAX: Final = 64
_HOLDER: Final = re.compile(r"(\d+) (\S+)\n?")


class DirectoryError(Exception):
    """The data folder can't be used. Base of all errors of this module; the message names the folder and the remedy."""


class LockedError(DirectoryError):
    """Another process uses the folder (or this one does already).

    `pid` and `host` are its process id and host, None if it did not get to say so.
    """

    def __init__(self, path: Path, pid: int | None, host: str | None) -> None:
        holder = "another process" if pid is None else f"process {pid} on host {host}"
        super().__init__(
            f"{path} is in use by {holder}. Stop that broker, or choose another folder (broker.data_dir, or --data)."
        )
        self.pid = pid
        self.host = host


class FormatError(DirectoryError):
    """The folder was made by another version, or by something else."""


class NotAFolderError(DirectoryError):
    """A file lies where the folder, or a folder in it, should be."""


class MissingError(DirectoryError):
    """The folder was not to be created and is missing, or its database is missing."""


class NotWritableError(DirectoryError):
    """Permission to write in the folder is missing."""


class NoSpaceError(DirectoryError):
    """The disk is full, or nearly so."""


class Directory:
    """A data folder that this process has locked. Get one from `open_directory`; close engines before closing it."""

    __slots__ = ("_lock", "_marks", "attic", "format_version", "path")

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.format_version = FORMAT_VERSION_MIN
        """Version that the folder's `format` file says."""
        self.attic = Quarantine(path / "attic")
        self._lock: int | None = lock
        self._marks = Marks(path)

    @property
    def database_path(self) -> Path:
        """LevelDB's folder."""
        return self.path / "db"

    @property
    def logs_path(self) -> Path:
        """Folder of the logs, each in a folder of its own."""
        return self.path / LOGS

    @property
    def paged_path(self) -> Path:
        """Folder of blocks that were only paged out."""
        return self.path / PAGED

    @property
    def values_path(self) -> Path:
        """The folder of large values."""
        return self.path / VALUES

    @property
    def large_path(self) -> Path:
        """Folder of bodies that are files."""
        return self.path / LARGE

    def marked(self, name: str) -> MarkedFolder:
        """Return the folder LARGE or LOGS, to be marked before it is written to; for one run."""
        return MarkedFolder(self._marks, self.path / name)

    def open_engine(
        self, *, write_buffer_bytes: int | None = None, trouble: Callable[[EngineError], None] = raise_it
    ) -> tuple[ValueLog, RepairReport | None]:
        """Open the database; a database that LevelDB finds damaged is repaired first, once. `write_buffer_bytes`: see
        LevelDbOptions.

        Returns the engine, which the caller closes, and what was done if it was damaged: log that. Raises
        EngineMissingError if the LevelDB binding is not installed, CorruptionError if it is damaged and could not be
        repaired, ValuesMissingError if files of large values are missing, and other EngineErrors if it can't be opened.
        """
        with _adapter_needed():
            from .leveldb import LevelDbOptions
            from .repair import open_mended
        options = LevelDbOptions() if write_buffer_bytes is None else LevelDbOptions(write_buffer_bytes)
        engine, report = open_mended(self.database_path, self.attic, options)
        return self._with_values(engine, trouble, keeps_all=report is not None), report

    def open_undamaged(self, *, keeps_all: bool = False) -> ValueLog:
        """Open the database as it is, to be closed by the caller; even if files of large values are missing.

        `keeps_all`: it was just repaired, so values without a pointer may have lost it, and stay. Raises
        CorruptionError if it is damaged, and other EngineErrors if it can't be opened.
        """
        with _adapter_needed():
            from .leveldb import LevelDbEngine
        return self._with_values(LevelDbEngine(self.database_path), raise_it, accept_missing=True, keeps_all=keeps_all)

    def _with_values(
        self,
        engine: Engine,
        trouble: Callable[[EngineError], None],
        *,
        accept_missing: bool = False,
        keeps_all: bool = False,
    ) -> ValueLog:
        """Return the engine of this folder, joined with its large values. Closes the engine if that fails.

        Raises EngineError if the values can't be listed.
        """
        segments = SegmentFiles(self.values_path, SUFFIX, "stored messages", is_lasting=True)
        try:
            return ValueLog(
                engine,
                segments,
                begin=self._begin_values,
                trouble=trouble,
                accept_missing=accept_missing,
                keeps_all=keeps_all,
            )
        except BaseException:
            engine.close()
            raise

    def _begin_values(self) -> None:
        """Raise the format of the folder before the first large value is written: earlier versions must not open it
        from here on.

        Raises EngineError if that can't be written.
        """
        try:
            make_private_folder(self.values_path)
            sync_folder(self.path)
            if self.format_version < FORMAT_VERSION:
                _write_format(self.path, FORMAT_VERSION)
                self.format_version = FORMAT_VERSION
        except OSError as error:
            kind = DiskFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else EngineFailedError
            raise kind(f"{self.path}: its format can't be written: {error}. Look at the disk.") from error

    def repair(self, options: LevelDbOptions | None = None) -> RepairReport:
        """Repair the database, which must not be open, damaged or not. Reads all of it. Raises EngineError if that
        fails.
        """
        with _adapter_needed():
            from .leveldb import LevelDbOptions
            from .repair import mend
        return mend(self.database_path, self.attic, options or LevelDbOptions(), "a repair was asked for")

    def free_bytes(self) -> int:
        """Return the free bytes of the disk that this process may use. Raises DirectoryError if they can't be read."""
        with told_of(self.path):
            return shutil.disk_usage(self.path).free

    def attic_put(self, name: str, data: bytes) -> Path | None:
        """Keep a damaged record, called `name`, such as its key in hexadecimal; the oldest are removed when there are
        too many.

        Returns its path, None if it is larger than the whole quarantine. Raises DirectoryError if it can't be written.
        """
        with told_of(self.path):
            return self.attic.put(name, data)

    def close(self) -> None:
        """Releases the lock. May be called again."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        with told_of(self.path):
            try:
                os.ftruncate(lock, 0)  # no process holds it any more
            finally:
                os.close(lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def open_directory(path: Path, *, create: bool = True) -> Directory:
    """Lock a data folder, and make it if need be.

    `create`: make it, with its parents, if it does not exist. An existing empty folder is always furnished. Raises
    LockedError if another process uses it; FormatError if it has another version, or files of others; MissingError
    if it does not exist, with `create` False, or if its database or a folder of it is gone; other DirectoryErrors if it
    can't be used. What was made so far stays, and is finished by the next call; the lock is free.
    """
    path = Path(path)
    with told_of(path):
        _make_folder(path, create)
        check_owner(path)
        lock = locked(path)
        directory = Directory(path, lock)
        try:
            _check_space(path)
            directory.format_version = _checked_format(path)
            _check_contents(path, directory.format_version)
            for name in _FOLDERS:
                make_private_folder(path / name)
            if not (path / "format").exists():
                _write_format(path, FORMAT_VERSION_MIN)
            return directory
        except BaseException:
            directory.close()
            raise


def look_at(path: Path) -> None:
    """Check whether an existing folder could be opened, as far as possible without locking, opening or changing it.

    Raises FormatError if it has another version, or files of others; MissingError if its database or a folder of it
    is gone; NoSpaceError if the disk is too full to open it; other DirectoryErrors if it can't be read, or is not a
    folder.
    """
    path = Path(path)
    with told_of(path):
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        check_owner(path)
        _check_space(path)
        _check_contents(path, _checked_format(path))


@frozen(slots=True)
class LockState:
    """Contents of the lock of a folder."""

    is_held: bool
    pid: int | None
    """Process that holds the lock; if it is free, the process that held it to its end without closing the folder. None:
    the lock names no process.
    """
    host: str | None


def lock_state(path: Path) -> LockState:
    """Return which process uses a folder, without using it. The folder is shut for others for some microseconds
    meanwhile.

    Raises DirectoryError if the lock can't be read.
    """
    with told_of(path):
        try:
            lock = os.open(path / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return LockState(False, None, None)
        try:
            match = _HOLDER.fullmatch(os.pread(lock, 400, 0).decode(errors="replace"))
            pid, host = (int(match[1]), match[2]) if match else (None, None)
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return LockState(True, pid, host)
            return LockState(False, pid, host)
        finally:
            os.close(lock)


@contextmanager
def told_of(path: Path) -> Iterator[None]:
    """Turn errors of the operating system about this data folder into errors that name the folder and the remedy.

    Raises DirectoryError for an OSError in the block.
    """
    try:
        yield
    except (FileExistsError, NotADirectoryError) as error:
        raise NotAFolderError(
            f"{_file_in_the_way(Path(error.filename or path))} is not a folder, so the data folder {path} can't be "
            "there. Move that file away, or choose another folder (broker.data_dir, or --data)."
        ) from error
    except OSError as error:
        what = f"{error.filename or path}: {os.strerror(error.errno) if error.errno else error}"
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise NotWritableError(
                f"the data folder {path} can't be written ({what}). Give user {os.geteuid()} the right to write there, "
                "or choose another folder (broker.data_dir, or --data)."
            ) from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpaceError(
                f"no space for the data folder {path} ({what}). Free space on that disk, or choose another folder "
                "(broker.data_dir, or --data)."
            ) from error
        raise DirectoryError(
            f"the data folder {path} can't be used ({what}). Look at the disk, or choose another folder "
            "(broker.data_dir, or --data)."
        ) from error


@contextmanager
def _adapter_needed() -> Iterator[None]:
    """Load the adapter for LevelDB in this block. Raises EngineMissingError if its binding is not installed."""
    try:
        yield
    except ImportError as error:
        raise EngineMissingError(
            f"LevelDB, which keeps messages on the disk, can't be loaded: {error}. Install its binding (pip install "
            "plyvel; plyvel-next from Python 3.13 on), or choose an engine without it (store.engine)."
        ) from error


def _file_in_the_way(path: Path) -> Path:
    """Return the file that stands in the way of this path: the path itself or one of its parents."""
    return next((it for it in reversed((path, *path.parents)) if os.path.exists(it) and not os.path.isdir(it)), path)


def _make_folder(path: Path, create: bool) -> None:
    if path.is_dir():
        return
    if path.exists():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    if not create:
        raise MissingError(
            f"there is no data folder {path}. Start a broker with it once, or name the right one (broker.data_dir, or "
            "--data)."
        )
    make_private_folder(path)


def locked(path: Path) -> int:
    """Return the descriptor of the lock file of a folder, locked. Raises LockedError, OSError."""
    # Not inherited: a child process must not keep the lock.
    lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            match = _HOLDER.fullmatch(os.pread(lock, 400, 0).decode(errors="replace"))
            raise LockedError(path, int(match[1]) if match else None, match[2] if match else None) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()} {socket.gethostname() or '?'}\n".encode(), 0)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _check_space(path: Path) -> None:
    free_bytes = shutil.disk_usage(path).free
    if free_bytes < OPENING_FREE_BYTES:
        raise NoSpaceError(
            f"the disk of the data folder {path} has {size_in_words(free_bytes)} left, "
            f"{size_in_words(OPENING_FREE_BYTES)} are needed to open it. Free space on that disk, or choose another "
            "folder (broker.data_dir, or --data)."
        )


def check_owner(path: Path) -> None:
    """Check that an existing folder is a data folder, or empty but for what a file system or a repository has there.
    Changes nothing. Raises FormatError, OSError.
    """
    names = set(os.listdir(path))
    if "format" in names or not (foreign := sorted(names - _OWN - _OF_OTHERS)):
        return
    shown = ", ".join(foreign[:_SHOWN_MAX]) + (
        f" and {len(foreign) - _SHOWN_MAX} more" if len(foreign) > _SHOWN_MAX else ""
    )
    raise FormatError(
        f"{path} is not empty and is no data folder: it has {shown}. Choose a folder of its own for the broker, such "
        f"as {path / 'sluiceway-data'}, which is made at the start (broker.data_dir, or --data)."
    )


def _checked_format(path: Path) -> int:
    """Return the version in the folder's `format`; the first if it is not finished. Raises FormatError if the format is
    foreign, or its version unknown.
    """
    try:
        with (path / "format").open("rb") as file:
            text = file.read(_FORMAT_LENGTH_MAX).decode(errors="replace")
    except FileNotFoundError:
        if (path / "db" / "CURRENT").exists():
            raise FormatError(
                f"{path / 'db'} has a database, but {path / 'format'} is missing, so its format is unknown. Bring that "
                "file back if this is Sluiceway's folder, otherwise choose another one (broker.data_dir, or "
                "--data)."
            ) from None
        return FORMAT_VERSION_MIN
    match = _FORMAT.fullmatch(text)
    if match is None:
        raise FormatError(
            f"{path / 'format'} says {text!r}, which is not Sluiceway's. Choose another folder (broker.data_dir, or "
            "--data), or restore that file from a backup."
        )
    version = int(match[1])
    if not FORMAT_VERSION_MIN <= version <= FORMAT_VERSION:
        age = "a later" if version > FORMAT_VERSION else "an earlier"
        raise FormatError(
            f"the data folder {path} has format {version}, this version of Sluiceway knows formats "
            f"{FORMAT_VERSION_MIN} to {FORMAT_VERSION}: it was made by {age} version. Run that version with it, or "
            "choose another folder (broker.data_dir, or --data)."
        )
    return version


def _check_contents(path: Path, version: int) -> None:
    """Check that every folder is there. `format` is written when the other folders exist for good, so a missing one was
    taken away.

    Raises MissingError if LevelDB's folder is missing; an empty store in its place would be a silent loss. Also if that
    of large values is: each message in it would be taken for damaged, and be gone when the folder comes back. Also if
    that of large bodies or of logs is not the one that was marked.
    """
    if (path / "format").exists() and not (path / "db").exists():
        raise MissingError(
            f"{path / 'db'}, which has the messages, is missing, though {path / 'format'} is there. Bring it back from "
            f"a backup; or, if all that was in it may be lost, remove {path / 'format'}: then the store begins anew."
        )
    if version > FORMAT_VERSION_MIN and not (path / VALUES).exists():
        raise MissingError(
            f"{path / VALUES}, which has messages of the database, is missing, though {path / 'format'} says that it "
            "is there. Mount it, or bring it back from a backup; or, if all that was in it may be lost, make an empty "
            "folder of this name and run `sluiceway store repair`."
        )
    marks = Marks(path)
    try:
        marks.check(LARGE, "bodies of messages")
        marks.check(LOGS, "the logs")
    except OtherFolderError as error:
        raise MissingError(str(error)) from error


def _write_format(path: Path, version: int) -> None:
    """Makes the `format` file atomically and durably: a reader never finds a part of it."""
    new = path / "format.new"
    with new.open("wb") as file:
        file.write(f"sluiceway-store {version}\n".encode())
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path)  # the folders in it are there before it says that it is finished
    new.rename(path / "format")
    sync_folder(path)
