"""All that an array asks of the file system. A port, so that tests can make it fail (faulty.py).

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
        """A descriptor; `create`: make the file, empty, if it is not there."""

    def close(self, file: int) -> None: ...

    def size(self, file: int) -> int:
        """Bytes, holes included."""

    def pread(self, file: int, count_bytes: int, offset: int) -> bytes: ...

    def pwritev(self, file: int, parts: Sequence[Bytes], offset: int) -> int:
        """Returns how many bytes were written, perhaps fewer than there are."""

    def truncate(self, file: int, size_bytes: int) -> None:
        """Cut off what is behind, or add a hole."""

    def allocate(self, file: int, size_bytes: int) -> None:
        """Make sure that there is space."""

    def sync(self, file: int) -> None:
        """The bytes of the file, and what is needed to read them, are on the disk."""

    def forget(self, file: int, offset: int, count_bytes: int) -> None:
        """These bytes, which are synced, need not stay in the page cache: a hint."""

    def sync_folder(self, folder: Path) -> None:
        """What was created, renamed or removed in it is on the disk."""

    def make_folder(self, folder: Path) -> None:
        """With its parents, all on the disk."""

    def names(self, folder: Path) -> list[str]: ...

    def remove(self, path: Path) -> None:
        """It need not be there."""

    def rename(self, old: Path, new: Path) -> None:
        """Replaces `new`."""

    def read_all(self, path: Path) -> bytes | None:
        """None: there is no such file."""

    def map(self, path: Path) -> mmap.mmap | None:
        """All that is there of a file, read-only. None: no such file, or it is empty."""

    def lock(self, path: Path) -> int | None:
        """A descriptor that holds the lock until it is closed. None: somebody else does."""


class RealFiles:
    """The operating system's."""

    __slots__ = ()

    close = staticmethod(os.close)
    pread = staticmethod(os.pread)
    pwritev = staticmethod(os.pwritev)
    truncate = staticmethod(os.ftruncate)
    sync = staticmethod(getattr(os, "fdatasync", os.fsync))

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        flags = (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0) | os.O_CLOEXEC
        return os.open(path, flags, 0o600)  # records are nobody else's business

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
    """Differs after each start of the machine; empty where that can't be known (then every crash counts as a power
    cut, which is safe).
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
