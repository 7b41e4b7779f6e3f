"""Sluiceway with watchers, and Sluiceway without: the cost of watching.

`sluiceway-watched` has its admin port on. A process beside it asks each second for what an open console shows (its
first page: the overview and the map) and for the metrics, as Prometheus would. Trails are on, as by default.
`sluiceway-bare` has neither port nor trails. The watcher continues while others are measured, so brokers are started
anew for each run where it takes part (`RESTLESS`).
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType

from perf.load.plans import Endpoint
from perf.peers.daemon import LOOPBACK, free_port
from perf.peers.port import PeerError
from perf.peers.sluiceway import Sluiceway
from perf.probes.watcher import UnwatchedError, Watcher


class BareSluiceway(Sluiceway):
    """Sluiceway without trails, admin port and watchers."""

    name = "sluiceway-bare"
    settings = MappingProxyType({"SLUICEWAY_TRAILS__ENABLED": "false"})


class WatchedSluiceway(Sluiceway):
    """Sluiceway whose console and metrics are watched."""

    name = "sluiceway-watched"

    def __init__(self) -> None:
        super().__init__()
        self._port = 0
        self._watcher: subprocess.Popen[bytes] | None = None

    def flags(self) -> list[str]:
        self._port = free_port()
        return ["--admin", f"{LOOPBACK}:{self._port}"]

    def start(self, folder: Path, cores: frozenset[int] | None = None) -> Endpoint:
        """Start the broker, and who watches it."""
        endpoint = super().start(folder, cores)
        try:
            watcher = Watcher(self._port)
            watcher.ask()
            watcher.close()
        except UnwatchedError as error:
            raise PeerError(f"{self.name}: {error}") from error
        self._watcher = subprocess.Popen(
            [sys.executable, "-m", "perf.probes.watcher", str(self._port)], stdout=subprocess.PIPE, text=True
        )
        assert self._watcher.stdout is not None
        if self._watcher.stdout.readline() != "ready\n":  # before that a signal would end it
            raise PeerError(f"{self.name}: who watches ended with status {self._watcher.wait()}")
        return endpoint

    def rest(self, wanted: bool) -> None:
        """Pause the watcher, or let it continue."""
        if self._watcher is not None:
            self._watcher.send_signal(signal.SIGUSR1 if wanted else signal.SIGUSR2)

    def stop(self, patience_seconds: float = 5.0) -> None:
        """Stop both. Raises PeerError if the watcher had ended before."""
        watcher, self._watcher = self._watcher, None
        try:
            if watcher is not None:
                code = watcher.poll()
                watcher.kill()
                watcher.wait()
                if watcher.stdout is not None:
                    watcher.stdout.close()
                if code is not None:
                    raise PeerError(f"{self.name}: who watched ended with status {code} before the measurement did")
        finally:
            super().stop(patience_seconds)
