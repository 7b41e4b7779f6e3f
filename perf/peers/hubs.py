"""Two hubs of Sluiceway on one host: beside `sluiceway` in one call they tell what the way by another hub costs, and
what two hubs that share the machine bring.
"""

from __future__ import annotations

from pathlib import Path

from attrs import evolve

from perf.load.plans import Endpoint
from perf.peers.daemon import LOOPBACK, Daemon, free_port
from perf.peers.sluiceway import Sluiceway, plain_environment

_HUBS = ("a", "b")
_PROCESS = Path(__file__).with_name("hub_process.py")


class AcrossSluiceway(Sluiceway):
    """All clients are connected to one hub, and all destinations live with the other one."""

    name = "sluiceway-across"
    owners = "last"

    def __init__(self) -> None:
        super().__init__()
        self._hubs: list[Daemon] = []

    def start(self, folder: Path, cores: frozenset[int] | None = None) -> Endpoint:
        """Start both hubs; see `Peer`."""
        ports = [free_port() for _hub in _HUBS]
        environment = {**plain_environment(), **self.settings, "PYTHONPATH": str(self.checkout)}
        self._hubs = [
            Daemon(
                f"{self.name.replace('/', '-')}-{hub}",
                [self.python, "-P", str(_PROCESS), hub, str(port), str(folder), ",".join(_HUBS), self.owners],
                folder=folder,
                environment=environment,
                cores=cores,
            )
            for hub, port in zip(_HUBS, ports, strict=True)
        ]
        for hub, port in zip(self._hubs[1:], ports[1:], strict=True):
            hub.await_connected(Endpoint(LOOPBACK, port))
        self._await(self._hubs[0], Endpoint(LOOPBACK, ports[0]))
        return self.reached(Endpoint(LOOPBACK, ports[0]), ports)

    def reached(self, first: Endpoint, ports: list[int]) -> Endpoint:
        """Return where clients connect."""
        return first

    def pids(self) -> list[int]:
        """Return the ids of both processes."""
        return [hub.pid for hub in self._hubs]

    def last_words(self) -> str:
        """See `Peer`."""
        return "; ".join(hub.last_words() for hub in self._hubs)

    def stop(self, patience_seconds: float = 5.0) -> None:
        """Stop both."""
        hubs, self._hubs = self._hubs, []
        for hub in hubs:
            hub.stop(patience_seconds)
        self._daemon = self._endpoint = None


class SpreadSluiceway(AcrossSluiceway):
    """Destinations are spread over both hubs by the number in their names, and clients are connected to the owners."""

    name = "sluiceway-hubs"
    owners = "number"

    def reached(self, first: Endpoint, ports: list[int]) -> Endpoint:
        return evolve(first, ports=tuple(ports))
