"""Power cuts of a real LevelDB: which bytes of which file are on the disk when the power fails.

The faulty engine (store/faulty.py) forgets what the *port* does not promise; what LevelDB does with its files it can't
show. Here LevelDB runs on real files, and a watcher knows of each how much of it was synced: by LevelDB with a write,
or by us with fdatasync. A cut makes a folder as the disk may have it: of each log and each segment what was synced, and
some of what was written after that.

The folder has no table that was finished since the database was opened: to write one takes LevelDB a moment, at each of
which the power may fail. (So with many logs it is worse than any disk. What is promised holds for it too.)
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from sluiceway.store.engine import Change
from sluiceway.store.leveldb import LevelDbEngine, LevelDbOptions
from sluiceway.store.segments import SegmentFiles
from sluiceway.store.values import SUFFIX

SMALL_BUFFER = LevelDbOptions(write_buffer_bytes=64 << 10)
"""LevelDB's least."""


class WatchedLevelDb(LevelDbEngine):
    """LevelDB in `folder/db`, with room for segments in `folder/values`. Close it when the test ends."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, options: LevelDbOptions = SMALL_BUFFER) -> None:
        self.folder = folder
        self.synced_bytes: dict[int, int] = {}
        """By inode: how much is on the disk."""
        self._logs: dict[str, Path] = {}
        """All there ever were, kept beside."""
        (folder / "db").mkdir(parents=True, exist_ok=True)
        (folder / "values").mkdir(exist_ok=True)
        (folder / "kept").mkdir()
        fdatasync = os.fdatasync

        def watched(descriptor: int) -> None:
            fdatasync(descriptor)
            found = os.fstat(descriptor)
            self.synced_bytes[found.st_ino] = found.st_size

        patch.setattr(os, "fdatasync", watched)
        super().__init__(folder / "db", options)
        shutil.copytree(folder / "db", folder / "opened", ignore=shutil.ignore_patterns("*.log", "LOCK"))
        self._keep_logs()

    @property
    def segments(self) -> SegmentFiles:
        return SegmentFiles(self.folder / "values", SUFFIX, "values", is_lasting=True)

    @property
    def logs_count(self) -> int:
        """How many there were so far."""
        return len(self._logs)

    def write(self, changes: Sequence[Change], *, sync: bool) -> None:
        super().write(changes, sync=sync)
        self._keep_logs()
        if sync:
            found = self._logs[max(self._logs)].stat()
            self.synced_bytes[found.st_ino] = found.st_size

    def power_cut(self, into: Path, random: Random | None = None) -> Path:
        """A folder as the disk may have it now. `random`: some of what was not synced is there too, in each file as
        it comes; None: nothing is.
        """
        shutil.rmtree(into, ignore_errors=True)
        shutil.copytree(self.folder / "opened", into / "db")
        shutil.copytree(self.folder / "values", into / "values")
        for name, kept in self._logs.items():
            shutil.copy(kept, into / "db" / name)
            self._cut(into / "db" / name, kept, random)
        for segment in (self.folder / "values").iterdir():
            self._cut(into / "values" / segment.name, segment, random)
        return into

    def _cut(self, copy: Path, file: Path, random: Random | None) -> None:
        found = file.stat()
        synced_bytes = self.synced_bytes.get(found.st_ino, 0)
        os.truncate(copy, synced_bytes if random is None else random.randint(synced_bytes, found.st_size))

    def _keep_logs(self) -> None:
        for segment in (self.folder / "values").iterdir():
            kept = self.folder / "kept" / segment.name
            if not kept.exists():
                os.link(segment, kept)  # or its inode could be another's
        for log in (self.folder / "db").glob("*.log"):
            if log.name not in self._logs:
                kept = self._logs[log.name] = self.folder / "kept" / log.name
                os.link(log, kept)


def reopened(folder: Path, use: Callable[[LevelDbEngine], None]) -> None:
    """What a start finds there."""
    engine = LevelDbEngine(folder / "db", SMALL_BUFFER)
    try:
        use(engine)
    finally:
        engine.close()
