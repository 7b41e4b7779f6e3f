"""File-system operations that an array uses. A port, so that tests can inject faults (tests/store/bigarray/faulty.py).

Descriptors are numbers. Everything blocks and raises OSError.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ..folders import make_private_folder, sync_folder

Bytes = bytes | bytearray | memoryview


class Files(Protocol):
    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        """Return a descriptor; `create`: make the file, empty, if it is missing."""

    def close(self, file: int) -> None: ...

    def size(self, file: int) -> int:
        """Return the size in bytes, holes included."""

    def pread(self, file: int, count_bytes: int, offset: int) -> bytes: ...

    def pwritev(self, file: int, parts: Sequence[Bytes], offset: int) -> int:
        """Return the number of bytes written, perhaps fewer than passed."""

    def truncate(self, file: int, size_bytes: int) -> None:
        """Cut the file off there, or extend it with a hole."""

    def allocate(self, file: int, size_bytes: int) -> None:
        """Reserve space on the disk."""

    def sync(self, file: int) -> None:
        """Sync the bytes of the file, and the metadata needed to read them."""

    def forget(self, file: int, offset: int, count_bytes: int) -> None:
        """Hint that these synced bytes need not stay in the page cache."""

    def sync_folder(self, folder: Path) -> None:
        """Sync the creations, renames and removals in a folder."""

    def make_folder(self, folder: Path) -> None:
        """Make a folder with its parents, and sync them."""

    def names(self, folder: Path) -> list[str]: ...

    def remove(self, path: Path) -> None:
        """Remove the file, if it exists."""

    def rename(self, old: Path, new: Path) -> None:
        """Rename, replacing `new`."""

    def read_all(self, path: Path) -> bytes | None:
        """Return the contents. None: no such file."""

    def map(self, path: Path) -> mmap.mmap | None:
        """Map the whole file, read-only. None: no such file, or empty."""

    def lock(self, path: Path) -> int | None:
        """Return a descriptor that holds the lock until it is closed. None: locked by another process."""


class RealFiles:
    """Files of the operating system."""

    __slots__ = ()

    close = staticmethod(os.close)
    pread = staticmethod(os.pread)
    pwritev = staticmethod(os.pwritev)
    truncate = staticmethod(os.ftruncate)
    sync = staticmethod(getattr(os, "fdatasync", os.fsync))

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        flags = (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0) | os.O_CLOEXEC
        return os.open(path, flags, 0o600)  # records are private

    def size(self, file: int) -> int:
        return os.fstat(file).st_size

    def allocate(self, file: int, size_bytes: int) -> None:
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(file, 0, size_bytes)
                return
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                    raise
        os.pwrite(file, bytes(size_bytes), 0)

    def forget(self, file: int, offset: int, count_bytes: int) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file, offset, count_bytes, os.POSIX_FADV_DONTNEED)

    def sync_folder(self, folder: Path) -> None:
        sync_folder(folder)

    def make_folder(self, folder: Path) -> None:
        make_private_folder(folder)

    def names(self, folder: Path) -> list[str]:
        return os.listdir(folder)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def rename(self, old: Path, new: Path) -> None:
        old.replace(new)

    def read_all(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def map(self, path: Path) -> mmap.mmap | None:
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            size_bytes = os.fstat(file).st_size
            return mmap.mmap(file, size_bytes, prot=mmap.PROT_READ) if size_bytes else None
        finally:
            os.close(file)

    def lock(self, path: Path) -> int | None:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        except BaseException:
            os.close(lock)
            raise
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()} {socket.gethostname() or '?'}\n".encode(), 0)
        return lock


def current_boot_id() -> str:
    """Return an id that differs after each start of the machine; empty where it can't be known (then every crash counts
    as a power cut, which is safe).
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
