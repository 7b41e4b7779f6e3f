"""Files for simulations and tests: they fail on demand, and a power cut loses writes that were not synced.

Works on real files (arrays read them through mapped memory), and remembers for each file the state on the disk: the
512-byte blocks overwritten since the last sync, the size at that time, and the names created, removed or renamed since
the folder was synced. Chance comes from a `random.Random` that is passed in: the same seed and the same calls are the
same run.

    fail(at, error)    the operation `at` from now raises: each operation that changes something counts, syncs too
    short              a write that is to fail writes a part first
    kill()             the process died: written data is there; descriptors and locks are gone
    power_cut()        the machine died: each block written since the last sync is kept or lost independently, and
                       so are sizes and names

A failed sync behaves as on Linux: its data counts as written from then on, though it is not on the disk; only data
written again goes with the next sync.

After kill() or power_cut() the old descriptors raise OSError; open the array anew.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import attrs

from sluiceway.store.bigarray.files import Bytes, RealFiles

BLOCK_BYTES: Final = 512


@attrs.define(eq=False)
class _File:
    """One file, under all its names. `vault` is a name of its own, so that the file outlives its removal."""

    vault: Path
    durable_bytes: int = 0
    before: dict[int, bytes] = attrs.field(factory=dict)
    """Disk contents of the blocks that the next sync writes."""
    stale: dict[int, bytes] = attrs.field(factory=dict)
    """Disk contents of the blocks that a failed sync left out, and that no later one will write."""


@attrs.frozen
class _Change:
    """Change to a folder: `name` now leads to `file`, or to nothing."""

    names: tuple[tuple[Path, _File | None], ...]


class FaultyFiles:
    """Fault-injecting files: see the module. `vault`: a folder of the same file system, outside those that arrays
    use.
    """

    def __init__(self, random: Random, vault: Path) -> None:
        vault.mkdir(parents=True, exist_ok=True)
        self._random = random
        self._real = RealFiles()
        self._vault = vault
        self._names: dict[Path, _File] = {}
        self._durable_names: dict[Path, _File] = {}
        self._changes: dict[Path, list[_Change]] = {}
        self._open: dict[int, _File] = {}
        self._plain: set[int] = set()
        self._files: list[_File] = []
        self._fail_at = 0
        self._error = 0
        self._times = 0
        self._short_next = False
        self.short = False
        self.operations_count = 0
        """Number of operations that can be made to fail."""

    # ---------------------------------------------------------------- faults

    def fail(self, at: int, error: int, *, short: bool = False, times: int = 1) -> None:
        """Make the operation `at` from now (1: the next) raise this errno, and `times` - 1 more after it. 0: none."""
        self._fail_at, self._error, self.short, self._times = at, error, short, times if at else 0
        self._short_next = False

    @property
    def has_failed(self) -> bool:
        """Whether all requested failures have happened."""
        return self._times == 0

    def _perhaps_fail(self, path: object = None) -> None:
        self.operations_count += 1
        if self._fail_at > 1:
            self._fail_at -= 1
        elif self._fail_at == 1 and self._times:
            self._times -= 1
            raise OSError(self._error, os.strerror(self._error), str(path) if path else None)

    def kill(self) -> None:
        """Simulate the death of the process: see the module."""
        for file in (*self._open, *self._plain):
            os.close(file)
        self._open.clear()
        self._plain.clear()
        self.fail(0, 0)

    def power_cut(self) -> None:
        """Simulate a power cut: see the module."""
        self.kill()
        for file in self._files:
            self._roll_back(file)
        names = dict(self._durable_names)
        for folder in sorted(self._changes):
            self._keep_some(self._changes[folder], names)
        for path in {*self._names, *self._durable_names}:
            path.unlink(missing_ok=True)
        self._bring_back_folders(names)
        for path, file in names.items():
            os.link(file.vault, path)
        self._names = dict(names)
        self._durable_names = names
        self._changes.clear()

    def _bring_back_folders(self, names: dict[Path, _File]) -> None:
        """Restore or drop, by chance, folders removed by others."""
        for folder in sorted({path.parent for path in names if not path.parent.exists()}):
            if self._random.random() < 0.5:
                folder.mkdir()
            else:
                for path in [path for path in names if path.parent == folder]:
                    del names[path]

    def _roll_back(self, file: _File) -> None:
        random = self._random
        lost_share = random.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        # A copy: a process that still maps the old file, and died of the power cut, must not die of a bus error.
        new = file.vault.with_suffix(".new")
        shutil.copyfile(file.vault, new)
        new.replace(file.vault)
        descriptor = os.open(file.vault, os.O_RDWR)
        try:
            size_bytes = os.fstat(descriptor).st_size
            if random.random() < lost_share:
                os.ftruncate(descriptor, file.durable_bytes)
                size_bytes = file.durable_bytes
            for block, data in sorted({**file.stale, **file.before}.items()):
                if random.random() < lost_share:
                    room_bytes = max(size_bytes - block * BLOCK_BYTES, 0)
                    os.pwrite(descriptor, data[:room_bytes], block * BLOCK_BYTES)
            file.durable_bytes = size_bytes
            file.before.clear()
            file.stale.clear()
        finally:
            os.close(descriptor)

    def _keep_some(self, changes: list[_Change], names: dict[Path, _File]) -> None:
        random = self._random
        kept_share = random.choice((0.0, 0.5, 1.0))
        for change in changes:
            if random.random() < kept_share:
                for path, file in change.names:
                    if file is None:
                        names.pop(path, None)
                    else:
                        names[path] = file

    # ---------------------------------------------------------------- what any files do

    def _known(self, path: Path) -> _File:
        """Return an existing file; one that existed before counts as synced."""
        file = self._names.get(path)
        if file is None:
            file = _File(self._vault / str(len(self._files)), path.stat().st_size)
            os.link(path, file.vault)
            self._files.append(file)
            self._names[path] = self._durable_names[path] = file
        return file

    def _changed(self, *names: tuple[Path, _File | None]) -> None:
        self._changes.setdefault(names[0][0].parent, []).append(_Change(names))

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        if create and not path.exists():
            self._perhaps_fail(path)
            descriptor = self._real.open(path, write=write, create=True)
            file = _File(self._vault / str(len(self._files)))
            os.link(path, file.vault)
            self._files.append(file)
            self._names[path] = file
            self._changed((path, file))
        else:
            descriptor = self._real.open(path, write=write)
            file = self._known(path)
        self._open[descriptor] = file
        return descriptor

    def close(self, file: int) -> None:
        if file in self._plain:
            self._plain.remove(file)
        elif self._open.pop(file, None) is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        os.close(file)

    def _file(self, file: int) -> _File:
        try:
            return self._open[file]
        except KeyError:
            raise OSError(errno.EBADF, "this descriptor died with its process") from None

    def size(self, file: int) -> int:
        self._file(file)
        return self._real.size(file)

    def pread(self, file: int, count_bytes: int, offset: int) -> bytes:
        self._file(file)
        return os.pread(file, count_bytes, offset)

    def pwritev(self, file: int, parts: Sequence[Bytes], offset: int) -> int:
        data = b"".join(parts)
        if self.short and self._fail_at == 1 and self._times and not self._short_next and len(data) > 1:
            self._short_next = True  # a part goes, the rest fails
            data = data[: self._random.randint(1, len(data) - 1)]
        else:
            self._perhaps_fail()
        self._remember(file, offset, offset + len(data))
        written = os.pwrite(file, data, offset)
        assert written == len(data), "the real disk is full"
        return written

    def _remember(self, descriptor: int, start: int, end: int) -> None:
        """Save the disk contents of these bytes before they are overwritten."""
        file = self._file(descriptor)
        if start >= end:
            return
        first, last = start // BLOCK_BYTES, (end - 1) // BLOCK_BYTES
        old = os.pread(descriptor, (last - first + 1) * BLOCK_BYTES, first * BLOCK_BYTES)
        for block in range(first, last + 1):
            place = (block - first) * BLOCK_BYTES
            if block in file.stale:
                file.before[block] = file.stale.pop(block)
            elif block not in file.before:
                file.before[block] = old[place : place + BLOCK_BYTES].ljust(BLOCK_BYTES, b"\0")

    def truncate(self, file: int, size_bytes: int) -> None:
        self._perhaps_fail()
        old_bytes = self.size(file)
        self._remember(file, size_bytes, old_bytes)
        os.ftruncate(file, size_bytes)

    def allocate(self, file: int, size_bytes: int) -> None:
        self._perhaps_fail()
        self._file(file)
        self._real.allocate(file, size_bytes)

    def sync(self, file: int) -> None:
        known = self._file(file)
        try:
            self._perhaps_fail(known.vault)
        except OSError:
            known.stale.update(known.before)
            known.before.clear()
            raise
        known.before.clear()
        known.durable_bytes = self._real.size(file)

    def forget(self, file: int, offset: int, count_bytes: int) -> None:
        """Do nothing: a hint can't fail."""

    def sync_folder(self, folder: Path) -> None:
        self._perhaps_fail(folder)
        for change in self._changes.pop(folder, ()):
            for path, file in change.names:
                if file is None:
                    self._durable_names.pop(path, None)
                else:
                    self._durable_names[path] = file

    def make_folder(self, folder: Path) -> None:
        self._real.make_folder(folder)

    def names(self, folder: Path) -> list[str]:
        return self._real.names(folder)

    def remove(self, path: Path) -> None:
        if path.exists():
            self._perhaps_fail(path)
            self._known(path)
            path.unlink()
            del self._names[path]
            self._changed((path, None))

    def rename(self, old: Path, new: Path) -> None:
        self._perhaps_fail(old)
        if new.exists():
            self._known(new)
        file = self._known(old)
        self._real.rename(old, new)
        del self._names[old]
        self._names[new] = file
        self._changed((new, file), (old, None))

    def read_all(self, path: Path) -> bytes | None:
        return self._real.read_all(path)

    def map(self, path: Path) -> mmap.mmap | None:
        return self._real.map(path)

    def lock(self, path: Path) -> int | None:
        lock = self._real.lock(path)
        if lock is not None:
            self._plain.add(lock)
        return lock


class LifeFiles:
    """FaultyFiles as one process has them: when that is dead they take nothing more, and forgive who closes them."""

    def __init__(self, files: FaultyFiles) -> None:
        self._files = files
        self.is_over = False

    def __getattr__(self, name: str) -> Any:
        does = getattr(self._files, name)

        def do(*arguments: Any, **options: Any) -> Any:
            if not self.is_over:
                return does(*arguments, **options)
            if name == "close":
                return None
            raise OSError(errno.EIO, "the process of these files is dead")

        return do
