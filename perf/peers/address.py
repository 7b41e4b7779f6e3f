"""A running broker: `HOST:PORT`, with `/PID` behind it where its CPU time and memory are wanted too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import psutil

from perf.load.links import BrokerFaultError, RawLink
from perf.load.plans import Endpoint
from perf.peers.daemon import server_version
from perf.peers.port import PeerError


class RemotePeer:
    """Broker at an address. The load does not start, pin or stop it; it should be on this machine, or the network is
    measured with it.
    """

    durable = False  # unknown: the load may not restart the broker

    def __init__(self, host: str, port: int, pid: int | None) -> None:
        self.name = f"{host}:{port}"
        self._endpoint = Endpoint(host, port)
        self._pid = pid
        self._version = "not connected"

    @classmethod
    def parse(cls, text: str) -> RemotePeer:
        """Read `HOST:PORT` or `HOST:PORT/PID`.

        Raises PeerError: it is neither.
        """
        address, _, pid = text.partition("/")
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or (pid and not pid.isdecimal()):
            raise PeerError(
                f"{text!r} is not an address: write HOST:PORT or HOST:PORT/PID, for instance 127.0.0.1:61613/4711"
            )
        return cls(host.strip("[]"), int(port), int(pid) if pid else None)

    def install(self) -> None:
        """Do nothing."""

    def start(self, folder: Path, cores: frozenset[int] | None = None) -> Endpoint:
        """Check that it answers.

        Raises PeerError: it doesn't, or there is no process of that id.
        """
        if self._pid is not None and not psutil.pid_exists(self._pid):
            raise PeerError(f"no process has the id {self._pid}: leave it out or give the broker's")
        try:
            link = RawLink(self._endpoint)
        except (OSError, BrokerFaultError) as error:
            raise PeerError(f"no broker answers at {self.name}: {error}") from error
        link.close()
        self._version = server_version(link.greeting)
        return self._endpoint

    def pids(self) -> list[int]:
        """The process given, if any."""
        return [self._pid] if self._pid is not None else []

    def last_words(self) -> str:
        """Return nothing: the process was not started here."""
        return ""

    def version(self) -> str:
        """Return the `server` header of the broker."""
        return self._version

    def store_counts(self) -> Mapping[str, float]:
        """Return nothing: the broker may be any product."""
        return {}

    def stop(self, patience_seconds: float = 5.0) -> None:
        """Leave it running."""
