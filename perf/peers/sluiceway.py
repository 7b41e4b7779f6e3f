"""Sluiceway, started as anybody would start it, with its defaults."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from perf.peers.daemon import LOOPBACK, Daemon, free_port, server_version
from perf.plans import Endpoint

_CHECKOUT = Path(__file__).resolve().parents[2]


class Sluiceway:
    """`python -m sluiceway serve` from this checkout, by the interpreter that runs this."""

    name = "sluiceway"

    def __init__(self) -> None:
        self._daemon: Daemon | None = None
        self._version = "not started"

    def install(self) -> None:
        """Nothing to do: it is this checkout."""

    def start(self, folder: Path, cores: frozenset[int] | None = None) -> Endpoint:
        """Start it; see `Peer`."""
        endpoint = Endpoint(LOOPBACK, free_port())
        command = [
            sys.executable, "-m", "sluiceway", "serve",
            "--listen", f"{endpoint.host}:{endpoint.port}", "--data", str(folder / "data"),
        ]  # fmt: skip
        environment = {**_environment(), "PYTHONPATH": str(_CHECKOUT)}
        self._daemon = Daemon(self.name, command, folder=folder, environment=environment, cores=cores)
        self._version = server_version(self._daemon.await_connected(endpoint))
        return endpoint

    def pids(self) -> list[int]:
        """The process of the broker."""
        return [self._daemon.pid] if self._daemon else []

    def version(self) -> str:
        """Its `server` header."""
        return self._version

    def stop(self) -> None:
        """Stop it."""
        if self._daemon is not None:
            self._daemon.stop()
            self._daemon = None


def _environment() -> dict[str, str]:
    """The environment without settings for Sluiceway: its defaults are what is measured."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SLUICEWAY_")}
