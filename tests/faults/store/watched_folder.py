"""A real data folder of which it is known what is on the disk, so that it can be made anew as a power cut may leave it.

Watched is what goes through `os.fsync` and `os.fdatasync`, and what LevelDB syncs: its newest log with a write that is
synced, all that it has when it is opened, and each table before its list of tables names it (so says its source). A cut
makes a folder in which there is

    of each file    what was synced; and of what was written after that some, perhaps damaged, or nothing
    of each folder  the names that were there when it was synced; and of the changes since then some: what was made may
                    be missing, what was removed may be back
    of LevelDB      its files as they are, or (that is worse than any disk) those that it had when it was opened, with
                    all logs since: no table was finished; each log cut as any other file

Syncs and writes can be made to fail. What a failed sync should have brought to the disk is never there, also if a later
one succeeds: so it is on Linux.

One life after the other: each has a folder of its own, the earlier ones are gone. Not here: logs (`logs/`), whose files
are written in place (see store/bigarray/faulty.py).
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

import pytest

from sluiceway.store.engine import Change, DiskFullError, EngineFailedError
from sluiceway.store.leveldb import Database, LevelDbEngine
from tests.store.faulty import Failure

_TRIES_COUNT: Final = 1_000
"""To copy LevelDB's files between two of its changes."""

_FAILING: Final = frozenset({"db", "values"})
"""Folders whose files are never written again where a sync failed."""


def _nothing() -> None:
    """Until somebody wants to know."""


class WatchedFolder:
    """Data folders, one for each life, in `base`, which is for this alone. See the module. All within `watching`."""

    def __init__(self, base: Path, random: Random) -> None:
        self._base = base
        self._random = random
        self._lives_count = 0
        self.folder = base / "life-0"
        """Of this life."""
        self._is_watched = False
        self._vault = base / "vault"
        """A second name for each file that may have to come back, by inode."""
        self._synced_bytes: dict[int, int] = {}
        """By inode: how much of a file is on the disk."""
        self._names: dict[Path, dict[str, int]] = {}
        """By folder: the inodes that it names on the disk."""
        self._beyond_help: set[int] = set()
        """Inodes of which a sync failed."""
        self._logs: dict[str, int] = {}
        """LevelDB's, since it was opened, by inode."""
        self._rates: dict[Failure, float] = {}
        self.before_sync: Callable[[], None] = _nothing
        """Called before anything is synced, and within LevelDB's writes."""
        self.before_write: Callable[[], None] = _nothing
        self.after_write: Callable[[], None] = _nothing
        """Of LevelDB's."""
        self.synced_count = 0
        self.lost_bytes = 0
        """Of files that were cut."""
        self.tables_were_lost_count = 0
        """How many cuts left LevelDB without a table that it had made."""

    # ------------------------------------------------------------------ lives

    def begin(self) -> None:
        """A broker is about to use `folder`."""
        self._is_watched = True
        self._rates.clear()
        self.before_sync = self.before_write = self.after_write = _nothing

    def fail_at_rate(self, failure: Failure, rate: float) -> None:
        self._rates[failure] = rate

    def end(self, *, power_cut: bool) -> None:
        """The life is over: what is there now (or after a power cut) is what the next one has in its `folder`. Who
        still uses the old one does so in vain.
        """
        if not self._is_watched:
            return
        self._is_watched = False
        self._lives_count += 1
        old, self.folder = self.folder, self._base / f"life-{self._lives_count}"
        synced_bytes: dict[int, int] = {}
        names: dict[Path, dict[str, int]] = {}
        if old.exists():
            self._copy_folder(old, self.folder, synced_bytes, names, power_cut=power_cut)
        self._synced_bytes, self._names = synced_bytes, names
        self._beyond_help.clear()
        shutil.rmtree(self._base / "opened", ignore_errors=True)
        for number in range(self._lives_count - 1):  # the last one is kept for who looks, and may still be used
            shutil.rmtree(self._base / f"life-{number}", ignore_errors=True)
        shutil.rmtree(self._vault, ignore_errors=True)
        for folder, there in names.items():
            for name, inode in there.items():
                self._keep(folder / name, inode)

    # ------------------------------------------------------------------ what a cut leaves

    def _copy_folder(
        self,
        source: Path,
        target: Path,
        synced_bytes: dict[int, int],
        names: dict[Path, dict[str, int]],
        *,
        power_cut: bool,
    ) -> None:
        random = self._random
        target.mkdir()
        there = {entry.name: entry.inode() for entry in os.scandir(source)}
        durable = self._names.get(source, {})
        kept_share = random.choice((0.0, 0.5, 1.0))
        copied: dict[str, int] = {}
        for name in sorted({*there, *durable}):
            inode, durable_inode = there.get(name), durable.get(name)
            if power_cut and inode != durable_inode and random.random() >= kept_share:
                inode = durable_inode
            if inode is None:
                continue
            origin = source / name if there.get(name) == inode else self._vault / str(inode)
            if origin.is_dir():
                if name == "db":
                    self._copy_leveldb(origin, target / name, synced_bytes, power_cut=power_cut)
                else:
                    self._copy_folder(origin, target / name, synced_bytes, names, power_cut=power_cut)
                copied[name] = (target / name).stat().st_ino
            elif origin.exists():  # else it was made and removed again, and never synced
                copy = target / name
                shutil.copyfile(origin, copy)
                new_inode = copy.stat().st_ino
                if power_cut:
                    self._cut(copy, inode)
                    synced_bytes[new_inode] = copy.stat().st_size
                else:
                    synced_bytes[new_inode] = min(self._synced_bytes.get(inode, 0), copy.stat().st_size)
                if power_cut or inode == durable_inode:
                    copied[name] = new_inode
        names[target] = copied

    def _cut(self, copy: Path, inode: int) -> None:
        """Of a file with this inode."""
        random = self._random
        size_bytes = copy.stat().st_size
        synced_bytes = min(self._synced_bytes.get(inode, 0), size_bytes)
        kept_bytes = random.choice((synced_bytes, size_bytes, random.randint(synced_bytes, size_bytes)))
        os.truncate(copy, kept_bytes)
        self.lost_bytes += size_bytes - kept_bytes
        is_log = copy.suffix == ".log"  # LevelDB drops a torn end, and takes a damaged one for damage
        if kept_bytes > synced_bytes and not is_log and random.random() < 0.5:
            with copy.open("r+b") as file:
                file.seek(random.randrange(synced_bytes, kept_bytes))
                file.write(b"\0" * random.choice((1, kept_bytes - file.tell())))

    def _copy_leveldb(self, source: Path, target: Path, synced_bytes: dict[int, int], *, power_cut: bool) -> None:
        opened = self._base / "opened"
        logs = dict(self._logs)
        if power_cut and opened.exists() and self._random.random() < 0.5:
            self.tables_were_lost_count += len(logs) > 1
            shutil.copytree(opened, target)
            for name, inode in logs.items():
                shutil.copyfile(self._vault / str(inode), target / name)
        else:
            logs = {name: inode for name, inode in _copied_while_it_works(source, target).items() if name in logs}
        self._logs.clear()
        for name, inode in logs.items():
            if power_cut:
                self._cut(target / name, inode)
            found = (target / name).stat()
            self._logs[name] = found.st_ino
            known_bytes = found.st_size if power_cut else self._synced_bytes.get(inode, 0)
            synced_bytes[found.st_ino] = min(known_bytes, found.st_size)

    # ------------------------------------------------------------------ what is on the disk

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Everything that this process syncs is seen, until the end of the block."""
        fsync, fdatasync = os.fsync, os.fdatasync
        write, opened = LevelDbEngine.write, LevelDbEngine._open

        def watched_write(engine: LevelDbEngine, changes: Sequence[Change], *, sync: bool) -> None:
            if self._is_ours(engine._path):
                self._write(engine, changes, sync, write)
            else:
                write(engine, changes, sync=sync)

        def watched_open(engine: LevelDbEngine) -> Database:
            database = opened(engine)
            if self._is_ours(engine._path):
                self._opened(engine._path)
            return database

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", lambda descriptor: self._sync(descriptor, fsync))
            patch.setattr(os, "fdatasync", lambda descriptor: self._sync(descriptor, fdatasync))
            patch.setattr(LevelDbEngine, "write", watched_write)
            patch.setattr(LevelDbEngine, "_open", watched_open)
            yield

    def _is_ours(self, path: Path) -> bool:
        return self._is_watched and path.is_relative_to(self.folder)

    def _sync(self, descriptor: int, sync: Callable[[int], None]) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if not self._is_ours(path):
            sync(descriptor)
            return
        self.before_sync()
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            sync(descriptor)
            if self._is_watched:
                self._note_names(path)
            return
        if path.parent.name in _FAILING and self._fails(Failure.SYNC):
            self._beyond_help.add(found.st_ino)
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        sync(descriptor)
        if self._is_watched:
            self._note(path, found)

    def _fails(self, failure: Failure) -> bool:
        rate = self._rates.get(failure, 0.0)
        return rate > 0 and self._random.random() < rate

    def _note(self, path: Path, found: os.stat_result) -> None:
        self.synced_count += 1
        if found.st_ino not in self._beyond_help:
            self._keep(path, found.st_ino)
            self._synced_bytes[found.st_ino] = found.st_size

    def _note_names(self, folder: Path) -> None:
        names = self._names[folder] = {entry.name: entry.inode() for entry in os.scandir(folder)}
        for name, inode in names.items():
            self._keep(folder / name, inode)

    def _keep(self, path: Path, inode: int) -> None:
        """A name for a file that nobody takes away: so its inode is not given to another one either."""
        self._vault.mkdir(exist_ok=True)
        kept = self._vault / str(inode)
        if not kept.exists() and path.is_file():
            os.link(path, kept)

    def _opened(self, database: Path) -> None:
        """All that it has is on the disk."""
        opened = self._base / "opened"
        _copied_while_it_works(database, opened)
        for log in opened.glob("*.log"):
            log.unlink()
        self._logs.clear()
        self._keep_logs(database)

    def _keep_logs(self, database: Path) -> None:
        for log in database.glob("*.log"):
            if log.name not in self._logs:
                inode = self._logs[log.name] = log.stat().st_ino
                self._keep(log, inode)

    def _write(self, engine: LevelDbEngine, changes: Sequence[Change], sync: bool, write: Callable[..., None]) -> None:
        self.before_write()
        if self._is_watched:
            self._perhaps_fail(engine, changes, sync, write)
        write(engine, changes, sync=sync)
        if self._is_watched:
            self._keep_logs(engine._path)
            self.before_sync()
            if sync and self._is_watched:
                newest = engine._path / max(self._logs)
                found = newest.stat()
                self._synced_bytes[found.st_ino] = found.st_size
        self.after_write()

    def _perhaps_fail(
        self, engine: LevelDbEngine, changes: Sequence[Change], sync: bool, write: Callable[..., None]
    ) -> None:
        if self._fails(Failure.DISK_FULL):
            raise DiskFullError("there is no room: it was told to say so")
        if self._fails(Failure.WRITE):
            engine._suspect = True
            raise EngineFailedError("a write failed: it was told to")
        if sync and self._fails(Failure.SYNC):
            write(engine, changes, sync=False)
            self._keep_logs(engine._path)
            self._beyond_help.add((engine._path / max(self._logs)).stat().st_ino)
            engine._suspect = True
            raise EngineFailedError("a sync failed: it was told to")


def _copied_while_it_works(source: Path, target: Path) -> dict[str, int]:
    """A copy of LevelDB's files as they are at one moment. Returns the inodes of the originals, by name."""
    for _ in range(_TRIES_COUNT):
        before = _looks(source)
        shutil.rmtree(target, ignore_errors=True)
        try:
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("LOCK"))
        except (FileNotFoundError, shutil.Error):
            continue  # it has removed one meanwhile
        if _looks(source) == before:
            return {name: inode for name, (inode, _size_bytes) in before.items()}
    raise AssertionError(f"LevelDB is never done in {source}")


def _looks(folder: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for entry in os.scandir(folder):
        try:
            status = entry.stat()
        except FileNotFoundError:
            continue
        found[entry.name] = (status.st_ino, status.st_size)
    return found
