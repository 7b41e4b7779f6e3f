"""Sluiceway, started in the ordinary way, with its defaults; a scenario may bring settings for features that are off by
default (`SETTINGS_FILE`). From this checkout, or from another one: then a change is measured beside its base.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from perf.load.links import RawLink
from perf.load.plans import Endpoint
from perf.peers.daemon import LOOPBACK, Daemon, DaemonPeer, free_port
from perf.peers.port import PeerError

_CHECKOUT = Path(__file__).resolve().parents[2]
_OWN_PYTHON = Path(".venv", "bin", "python")
SETTINGS_FILE = "sluiceway.toml"
"""Name of a configuration file in the folder of a run, which the caller may have written."""


class Sluiceway(DaemonPeer):
    """`python -m sluiceway serve` from this checkout, by the interpreter that runs this."""

    name = "sluiceway"
    durable = True
    settings: Mapping[str, str] = MappingProxyType({})
    """Environment variables that are not as by default."""
    checkout = _CHECKOUT
    python = sys.executable

    def use_checkout(self, checkout: Path) -> None:
        """Start it from another checkout, by the interpreter of its `.venv` if there is one: old beside new.

        Raises PeerError if the folder is no checkout.
        """
        if not (checkout / "sluiceway" / "__main__.py").is_file():
            raise PeerError(f"{checkout} is no checkout of Sluiceway; git worktree add FOLDER COMMIT makes one")
        self.checkout = checkout.absolute()
        self.name = f"{self.name}@{self.checkout.name}"
        python = self.checkout / _OWN_PYTHON
        self.python = str(python) if python.exists() else sys.executable

    def install(self) -> None:
        """Do nothing: the broker is this checkout."""

    def flags(self) -> list[str]:
        """Return additional arguments of the command line for this start."""
        return []

    def endpoint(self, folder: Path) -> tuple[Endpoint, str]:
        """Return the address of the broker, and its form on the command line."""
        endpoint = Endpoint(LOOPBACK, free_port())
        return endpoint, f"{endpoint.host}:{endpoint.port}"

    def start(self, folder: Path, cores: frozenset[int] | None = None) -> Endpoint:
        """Start it; see `Peer`."""
        endpoint, listen = self.endpoint(folder)
        command = [
            self.python, "-m", "sluiceway", "serve",
            "--listen", listen, "--data", str(folder / "data"),
        ]  # fmt: skip
        if (folder / SETTINGS_FILE).exists():
            self._use_former_names(folder / SETTINGS_FILE)
            command += ["--config", str(folder / SETTINGS_FILE)]
        command += self.flags()
        environment = {**plain_environment(), **self.settings, "PYTHONPATH": str(self.checkout)}
        return self._await(Daemon(self.name, command, folder=folder, environment=environment, cores=cores), endpoint)

    def _use_former_names(self, settings: Path) -> None:
        """Write settings for a checkout of before `[journal]` was called `[logs]`, where it is one."""
        if not (self.checkout / "sluiceway" / "config" / "logging.py").is_file():
            settings.write_text(settings.read_text().replace("[logs]", "[journal]"))

    def store_counts(self) -> Mapping[str, float]:
        """The numbers of `store` in its report, as any client gets it."""
        assert self._endpoint is not None
        link = RawLink(self._endpoint)
        try:
            link.subscribe("/temp-queue/stat", "stat", "auto", 1)
            link.sock.sendall(b"SEND\ndestination:/sluiceway/stat\nreply-to:/temp-queue/stat\n\n\0")
            _, _, body = link.expect(b"MESSAGE").partition(b"\n\n")
        finally:
            link.close()
        store = json.loads(body).get("store") or {}
        return {name: value for name, value in store.items() if isinstance(value, int | float)}


def plain_environment() -> dict[str, str]:
    """Return the environment without settings for Sluiceway: the defaults are measured."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SLUICEWAY_")}
