"""CoilMQ from PyPI, the other STOMP broker in Python, in a virtual environment of its own under the user's cache
folder."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import venv
from pathlib import Path

from perf.load.plans import Endpoint
from perf.peers.daemon import LOOPBACK, Daemon, DaemonPeer, free_port
from perf.peers.port import PeerError

_PACKAGE = "coilmq==1.1.0"

_CONFIGURATION = """\
[coilmq]
listen_addr = {host}
listen_port = {port}
qstore.factory = coilmq.store.memory.MemoryQueue
debug.stats_poll_interval = 0
"""


def cache_folder() -> Path:
    """Return the folder of installed peers: `$XDG_CACHE_HOME/sluiceway-perf`, usually under `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sluiceway-perf"


class CoilMq(DaemonPeer):
    """One Python process with a thread for each connection."""

    name = "coilmq"
    durable = False

    def install(self) -> None:
        """Make the virtual environment unless it exists."""
        if _program().exists():
            return
        folder = cache_folder() / "coilmq"
        venv.create(folder, with_pip=True, clear=True)
        done = subprocess.run(
            [
                str(folder / "bin" / "python"),
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                _PACKAGE,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0 or not _program().exists():
            raise PeerError(f"{_PACKAGE} could not be installed with pip for {sys.executable}:\n{done.stdout[-1500:]}")

    def start(self, folder: Path, cores: frozenset[int] | None = None) -> Endpoint:
        """Start it; see `Peer`."""
        endpoint = Endpoint(LOOPBACK, free_port(), virtual_host=socket.getfqdn())  # it takes no other name
        configuration = folder / "coilmq.cfg"
        configuration.write_text(_CONFIGURATION.format(host=endpoint.host, port=endpoint.port))
        command = [str(_program()), "-c", str(configuration)]
        return self._await(Daemon(self.name, command, folder=folder, cores=cores), endpoint)

    def version(self) -> str:
        """The version that was installed: its CONNECTED frame says none."""
        return _PACKAGE.replace("coilmq==", "CoilMQ/")


def _program() -> Path:
    return cache_folder() / "coilmq" / "bin" / "coilmq"
