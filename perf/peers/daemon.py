"""A broker as a child process: started with its output in a file, awaited at its port, ended with all its children."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

from perf.load.links import BrokerFaultError, RawLink
from perf.load.plans import Endpoint
from perf.load.processes import ProcessTree, on_cores
from perf.peers.port import PeerError

LOOPBACK = "127.0.0.1"
_START_SECONDS = 180.0
"""Time for a start: long, since it may begin on a backlog; a daemon that ends at its start is noticed at once."""
_POLL_SECONDS = 0.02
_LOG_TAIL_BYTES = 1500
_FIRST_PORT = 15_000
_PORTS_COUNT = 15_000
_port_numbers = count(os.getpid() * 101)
"""Each process begins elsewhere."""


def free_port() -> int:
    """Return a loopback port that was free a moment ago.

    One that systems give to nobody who asks for any port: so it is still free when its server starts, and when that
    starts again.
    """
    for _ in range(_PORTS_COUNT):
        port = _FIRST_PORT + next(_port_numbers) % _PORTS_COUNT
        try:
            socket.create_server((LOOPBACK, port)).close()
        except OSError:
            continue
        return port
    raise PeerError(f"no port of {LOOPBACK} from {_FIRST_PORT} on is free")


class Daemon:
    """One process in a session of its own, so that a Ctrl-C at the terminal reaches only the runner, which ends the
    process cleanly.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        cores: frozenset[int] | None = None,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.out"
        try:
            with self.log.open("ab") as log, on_cores(cores):
                self._process = subprocess.Popen(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=folder,
                    env=dict(environment) if environment is not None else None,
                    start_new_session=True,
                )
        except OSError as error:
            raise PeerError(f"{name} could not be started with {command[0]!r}: {error}") from error

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def await_connected(self, endpoint: Endpoint) -> str:
        """Wait until it answers CONNECT at `endpoint`; return its CONNECTED frame.

        Raises PeerError: it ended, or did not answer in time.
        """
        deadline = time.monotonic() + _START_SECONDS
        trouble = "nothing listened"
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise PeerError(
                    f"{self.name} ended with status {self._process.returncode} instead of listening: {self.log_tail()}"
                )
            try:
                link = RawLink(endpoint, 5.0)
            except (OSError, BrokerFaultError) as error:
                trouble = str(error)
                time.sleep(_POLL_SECONDS)
                continue
            link.close()
            return link.greeting
        raise PeerError(
            f"{self.name} did not answer on {endpoint.host}:{endpoint.port} within {_START_SECONDS:g} s ({trouble}): "
            f"{self.log_tail()}"
        )

    def last_words(self) -> str:
        """Tell whether the process runs, or how it ended; and the end of its output."""
        code = self._process.poll()
        return f"{self.name} {'runs' if code is None else f'ended with exit code {code}'}; {self.log_tail()}"

    def log_tail(self) -> str:
        """Return the end of the output."""
        text = self.log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
        return f"its output ends with:\n{text}" if text else "it printed nothing"

    def stop(self, patience_seconds: float = 5.0) -> None:
        """End it and its children, asking first."""
        if self._process.poll() is None:
            ProcessTree([self.pid]).end(patience_seconds)
        self._process.wait()


class DaemonPeer:
    """A peer that is one child process; `install` and `start` differ: see `Peer`."""

    name: str

    def __init__(self) -> None:
        self._daemon: Daemon | None = None
        self._endpoint: Endpoint | None = None
        self._version = "not started"

    def _await(self, daemon: Daemon, endpoint: Endpoint) -> Endpoint:
        """Wait until the process answers CONNECT. Raises PeerError, as `Daemon.await_connected`."""
        self._daemon = daemon
        self._endpoint = endpoint
        self._version = server_version(daemon.await_connected(endpoint))
        return endpoint

    def pids(self) -> list[int]:
        """Return the id of the process."""
        return [self._daemon.pid] if self._daemon else []

    def last_words(self) -> str:
        """See `Peer`."""
        return self._daemon.last_words() if self._daemon else ""

    def version(self) -> str:
        """Return the `server` header of CONNECTED."""
        return self._version

    def store_counts(self) -> Mapping[str, float]:
        """Return nothing: the store is not asked for its counts."""
        return {}

    def stop(self, patience_seconds: float = 5.0) -> None:
        """Stop the process."""
        if self._daemon is not None:
            self._daemon.stop(patience_seconds)
            self._daemon = self._endpoint = None


def server_version(greeting: str) -> str:
    """Return the `server` header of a CONNECTED frame, for instance `RabbitMQ/3.10.8`."""
    for line in greeting.splitlines():
        if line.startswith("server:"):
            return line.partition(":")[2].split()[0]
    return "unknown (CONNECTED has no server header)"
