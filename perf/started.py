"""A broker that was started for a measurement, with its folder: access beside sending frames."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perf.load.plans import Endpoint
from perf.load.processes import ProcessTree
from perf.peers.port import Peer
from perf.peers.sluiceway import SETTINGS_FILE

_STOP_PATIENCE_SECONDS = 180.0
"""Time for an orderly stop with millions of messages: a killed broker would be measured at its recovery instead."""


class Started:
    """A peer that listens. `endpoint` and `tree` change with `restart`, so ask for them anew."""

    __slots__ = ("_cores", "_folder", "endpoint", "peer", "tree")

    def __init__(self, peer: Peer, folder: Path, cores: frozenset[int] | None) -> None:
        self.peer = peer
        self._folder = folder
        self._cores = cores
        self._start()

    def restart(self) -> tuple[float, float]:
        """Stop it in good order and start it on the same data; return the seconds until it was down, and those from
        there until it answers again (CONNECT and, where it has them, a request for its statistics).

        Raises PeerError: it did not come back.
        """
        began = time.monotonic()
        self.peer.stop(_STOP_PATIENCE_SECONDS)
        stopped = time.monotonic()
        self._start()
        self.peer.store_counts()
        return stopped - began, time.monotonic() - stopped

    def last_words(self) -> list[str]:
        """Return the broker's own words after a failure: its end, and that of its log."""
        ended = [] if self.tree.alive() else ["the broker's process has ended"]
        return [*ended, *filter(None, [self.peer.last_words()])]

    def disk_bytes(self) -> int:
        """Return the size of the folder on the disk, logs and all."""
        total = 0
        for path in self._folder.rglob("*"):
            try:
                total += path.lstat().st_blocks * 512
            except FileNotFoundError:
                continue  # the broker removed it meanwhile
        return total

    def forget_cached(self) -> None:
        """Have the system's page cache forget what the broker has written to its folder. Linux; a no-op elsewhere."""
        if not hasattr(os, "posix_fadvise"):
            return
        for path in self._folder.rglob("*"):
            try:
                file = os.open(path, os.O_RDONLY)
            except OSError:
                continue  # a folder without permission, or removed meanwhile
            try:
                if path.is_file():
                    os.fsync(file)  # pages that are not on the disk can't be dropped
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)

    @contextmanager
    def scratch_file(self) -> Iterator[int]:
        """Open a new file on the broker's disk for writing; it is deleted afterwards."""
        path = self._folder / "scratch"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            yield file
        finally:
            os.close(file)
            path.unlink()

    def _start(self) -> None:
        self.endpoint: Endpoint = self.peer.start(self._folder, self._cores)
        self.tree = ProcessTree(self.peer.pids())


@contextmanager
def started(peer: Peer, cores: frozenset[int] | None, settings: str = "") -> Iterator[Started]:
    """Run a peer within the context, with its folder; also on an interrupt the peer is ended and the folder deleted.

    `settings`: TOML for Sluiceway, besides its defaults.

    Raises PeerError: it did not start.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"sluiceway-perf-{peer.name.partition(':')[0]}-"))
    try:
        if settings:
            (folder / SETTINGS_FILE).write_text(settings)
        yield Started(peer, folder, cores)
    finally:
        peer.stop()
        shutil.rmtree(folder, ignore_errors=True)
