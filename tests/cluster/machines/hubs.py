"""Three hubs as processes of their own, on a real ZooKeeper and a real PostgreSQL, each of which may be stopped."""

from __future__ import annotations

import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import SystemRandom
from typing import Any

from tests.cluster.coordination.zookeeper_world import ZooKeeperServer
from tests.cluster.machines.places import Place
from tests.cluster.machines.proxy import Proxy
from tests.postgresql_server import Server, server
from tests.sluiceway.broker_process import BrokerProcess, command, environment

SHARDS_COUNT = 8
SESSION_SECONDS = 4.0
TICK_MS = 400
PATIENCE_SECONDS = 45.0
"""Time within which each queue has to serve again; a failover takes a session and two seconds on a machine at rest."""
READY_SECONDS = 120.0
"""Time for a hub to start, on a machine that is busy with other work."""


PORTS = range(15_000, 30_000)
"""Below those of outgoing connections: a client that dials a hub which is down could take its port."""


def _lasting_port() -> int:
    """Return a port that nobody uses, and that stays free while its hub is down."""
    random = SystemRandom()
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class HubAtWork:
    """One hub, at an address that stays over restarts."""

    def __init__(self, place: Place, name: str, session_seconds: float = SESSION_SECONDS) -> None:
        self.name = name
        self.address = ("127.0.0.1", _lasting_port())
        self._session_seconds = session_seconds
        port = _lasting_port()
        self._link = f"127.0.0.1:{port}"
        self.proxy = Proxy(("127.0.0.1", port))
        """Address at which other hubs reach this one."""
        self._place = place
        self.process: BrokerProcess | None = None
        self.logs: list[Path] = []

    def start(self, **changes: Any) -> None:
        """Start the process; returns when clients can connect."""
        links = {"listen": self._link, "advertise": self.proxy.address}
        file = self._place.file(self.name, session_seconds=self._session_seconds, **links, **changes)
        folder = self._place.folder / f"{self.name} at work"
        folder.mkdir(exist_ok=True)
        listen = f"{self.address[0]}:{self.address[1]}"
        self.process = BrokerProcess(folder, "--config", str(file), listen=listen, ready_seconds=READY_SECONDS)
        self.logs.append(self.process.log_path)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.signal(number)

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()

    def stop(self) -> int:
        """Stop it in order; returns the exit code."""
        assert self.process is not None
        self.process.signal(signal.SIGTERM)
        code = self.process.wait()
        self.process.kill()
        return code

    @property
    def log(self) -> str:
        """What all of its lives wrote."""
        return "".join(path.read_text(encoding="utf-8") for path in self.logs)


class ThreeHubs:
    """A cluster."""

    def __init__(
        self,
        zookeeper: ZooKeeperServer,
        database: Server,
        folder: Path,
        *,
        hubs_count: int = 3,
        session_seconds: float = SESSION_SECONDS,
    ) -> None:
        self.zookeeper = zookeeper
        self.database = database
        self.session_seconds = session_seconds
        self.patience_seconds = PATIENCE_SECONDS
        self.place = Place(zookeeper, folder)
        self.hubs = [HubAtWork(self.place, f"hub-{number}", session_seconds) for number in range(1, hubs_count + 1)]

    def init(self, shards_count: int = SHARDS_COUNT) -> None:
        """Make the cluster."""
        file = str(self.place.file(""))
        run = command("cluster", "init", "--config", file, "--shards", str(shards_count))
        subprocess.run(run, env=environment(), check=True, timeout=60, stdout=subprocess.DEVNULL)

    def addresses(self) -> list[tuple[str, int]]:
        """Return the addresses of all hubs, whether they run or not, as clients would have them in their settings."""
        return [hub.address for hub in self.hubs]

    def kill(self) -> None:
        """End all hubs at once."""
        for hub in self.hubs:
            if hub.process is not None and hub.process.process.poll() is None:
                hub.signal(signal.SIGCONT)
            hub.kill()
            hub.proxy.close()


@contextmanager
def three_hubs(
    hubs_count: int = 3, *, session_seconds: float = SESSION_SECONDS, shards_count: int = SHARDS_COUNT
) -> Iterator[ThreeHubs]:
    """A cluster that serves, with services of its own; all are ended behind it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluiceway-hubs-")))
        zookeeper = ZooKeeperServer(folder / "zookeeper", tick_ms=TICK_MS)
        stack.callback(zookeeper.kill)
        zookeeper.start()
        made = ThreeHubs(zookeeper, server(), folder, hubs_count=hubs_count, session_seconds=session_seconds)
        made.init(shards_count)
        stack.callback(made.kill)
        for hub in made.hubs:
            hub.start()
        yield made
