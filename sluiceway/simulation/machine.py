"""A broker of a simulation on a machine of its own: it starts, crashes and starts again, on a disk that stays.

The disk is a store in memory, and files of logs in a temporary folder; both know what is synced. A crash of the process
loses what the broker had not written; a power cut loses what was not synced, too, all or a part. Work on the disk takes
no time. Large bodies are held in memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from sluiceway.broker import Broker
from sluiceway.config import Config, Listener
from sluiceway.config.admin import AdminConfig
from sluiceway.embedded_words import Missing
from sluiceway.queues.names import parse
from sluiceway.simulation.faults import Chance, Faults
from sluiceway.simulation.faulty_engine import Failure, FaultyEngine, WriteTimes
from sluiceway.simulation.faulty_files import FaultyFiles, LifeFiles
from sluiceway.simulation.network import BrokerEnd, Connection

NO_STORE: Final = "none"
_FAILURES: Final = (Failure.WRITE, Failure.SYNC, Failure.DISK_FULL)


def settings(config: Config) -> Config:
    """Return a configuration as a simulation can run it: one listener, without ports that others know, and no HTTP.

    Raises ValueError for a store that can't be simulated.
    """
    if config.store.engine not in ("auto", "memory", NO_STORE):
        raise ValueError(
            f'a simulated broker has a simulated disk, so store.engine = "{config.store.engine}" does not fit: leave '
            f'it out, or write "{NO_STORE}" for a broker without a store'
        )
    # Simulated clients come by memory alone; a Broker binds a port in any case.
    listener = Listener(address="127.0.0.1:0", limits=config.listeners[0].limits, rates=config.listeners[0].rates)
    return attrs.evolve(config, listeners=(listener,), admin=AdminConfig())


class _Disk:
    """Contents of a machine that stay from one start of its broker to the next."""

    def __init__(self, chance: Chance, faults: Callable[[], Faults], tell: Callable[[str], None]) -> None:
        self._chance = chance
        self._faults = faults
        self._tell = tell
        self._folder = tempfile.TemporaryDirectory(prefix="sluiceway-simulation-")
        self.engine = FaultyEngine(chance.random(), times=WriteTimes(), spend=self._before_write)
        self._files = FaultyFiles(chance.random(), Path(self._folder.name, "disk"))
        self.files = LifeFiles(self._files)
        """Files of logs, as the present process has them."""
        self.boots_count = 1
        self.may_fail = False
        """Whether writes may fail: a broker does not start on a disk that fails."""

    @property
    def logs(self) -> Path:
        """Folder of logs."""
        return Path(self._folder.name, "logs")

    def _before_write(self, _seconds: float) -> None:
        if self.may_fail and self._chance.strikes("disk", self._faults().disk):
            failure = _FAILURES[self._chance.number(0, len(_FAILURES) - 1)]
            self._tell(f"the disk fails: {failure.value}")
            self.engine.fail_next(failure)

    def end(self, *, power_cut: bool) -> None:
        """End a life: the next one finds what is there now, or would be after a power cut."""
        self.may_fail = False
        self.files.is_over = True
        self.files = LifeFiles(self._files)
        if power_cut:
            self.engine = self.engine.power_cut()
            self._files.power_cut()
            self.boots_count += 1
        else:
            self.engine = self.engine.crash()
            self._files.kill()

    def remove(self) -> None:
        """Remove the temporary folder."""
        self._folder.cleanup()


class SimulatedBroker:
    """A broker that can crash. Made by `Simulation.broker`."""

    def __init__(
        self,
        name: str,
        config: Config,
        *,
        chance: Chance,
        faults: Callable[[], Faults],
        tell: Callable[[str], None],
        now_ms: Callable[[], int],
        options: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        """`options`: further arguments of each Broker."""
        self.name = name
        self.config = settings(config)
        self.starts_count = 0
        """Number of starts so far."""
        self._now_ms = now_ms
        self._options = options
        self._tell = tell
        self._disk = None if config.store.engine == NO_STORE else _Disk(chance, faults, self._tell_of)
        self._broker: Broker | None = None
        self._connections: list[tuple[Connection, BrokerEnd]] = []
        self._scope = trio.CancelScope()
        self._stop_wanted = trio.Event()
        self._ended = trio.Event()
        self._ended.set()
        self._starting = trio.Lock()
        self._is_killed = False

    def _tell_of(self, what: str) -> None:
        self._tell(f"{self.name}: {what}")

    # ------------------------------------------------------------------ what it is

    @property
    def is_up(self) -> bool:
        """Whether clients can connect."""
        return self._broker is not None

    @property
    def broker(self) -> Broker:
        """The running `sluiceway.Broker`, another one after each start. Raises RuntimeError while it is down."""
        if self._broker is None:
            raise RuntimeError(f"{self.name} is down: restart it with `await world.restart({self.name})`")
        return self._broker

    def report(self) -> dict[str, Any]:
        """Return the state of the broker, as `EmbeddedBroker.report`. Raises RuntimeError while it is down."""
        return self.broker.report()

    def destination(self, name: str) -> dict[str, Any]:
        """Return the row of a destination in the report; empty if there is none. Raises ValueError for an impossible
        name, RuntimeError while the broker is down.
        """
        canonical = parse(name).canonical
        rows: list[dict[str, Any]] = self.report()["destinations"]
        return next((row for row in rows if row["name"] == canonical), None) or Missing(canonical, rows)

    # ------------------------------------------------------------------ its life

    async def start(self, nursery: trio.Nursery) -> None:
        """Start the broker on what its disk has. Does nothing if it runs. Raises what starting raises."""
        async with self._starting:
            if self._broker is not None and not self._stop_wanted.is_set():
                return
            await self._ended.wait()
            self._ended = trio.Event()
            for connection, _end in self._connections:
                connection.cut()  # a machine that is back refuses what belongs to an earlier run
            self._connections.clear()
            await nursery.start(self._live)

    async def _live(self, task_status: trio.TaskStatus[None]) -> None:
        self._scope, self._stop_wanted = trio.CancelScope(), trio.Event()
        self._is_killed = False
        options = {"now_ms": self._now_ms, **self._options()}
        if self._disk is not None:
            options |= {
                "engine": self._disk.engine,
                "journal_folder": self._disk.logs,
                "journal_files": self._disk.files,
                "boot": f"boot {self._disk.boots_count}",
            }
        try:
            with self._scope:
                broker = Broker(self.config, work_clock=trio.current_time, **options)
                async with broker:
                    self._broker = broker
                    self.starts_count += 1
                    if self._disk is not None:
                        self._disk.may_fail = True
                    self._tell_of("starts" if self.starts_count == 1 else "starts again")
                    task_status.started()
                    await self._stop_wanted.wait()
                    self._broker = None
                    if self._disk is not None:
                        self._disk.may_fail = False  # what is left is written
        finally:
            self._broker = None
            if self._disk is not None and not self._is_killed:
                self._disk.end(power_cut=False)
            self._ended.set()

    async def stop(self) -> None:
        """Stop the broker in order, and wait for that. Does nothing if it is down."""
        if self._broker is not None:
            self._tell_of("stops")
            self._stop_wanted.set()
            await self._ended.wait()

    async def crash(self, *, power_cut: bool) -> None:
        """End the broker at once: no word to clients, nothing more to the disk. Does nothing if it is down."""
        if self._broker is None or self._stop_wanted.is_set():
            return
        self._tell_of("loses its power" if power_cut else "crashes")
        self._broker = None
        self._is_killed = True
        if self._disk is not None:
            self._disk.end(power_cut=power_cut)
        for connection, end in self._connections:
            end.abandon()
            if power_cut:
                connection.lose()  # no machine is there to tell the clients
            else:
                connection.cut()
        self._scope.cancel()
        with trio.CancelScope(shield=True):
            await self._ended.wait()

    def remove(self) -> None:
        """Remove what is left, when the broker has ended for good."""
        if self._disk is not None:
            self._disk.remove()

    # ------------------------------------------------------------------ connections

    def accept(self, connection: Connection) -> None:
        """Serve a client. Raises ConnectionRefusedError while the broker is down."""
        if self._broker is None:
            raise ConnectionRefusedError(f"{self.name} is down")
        self.hold(connection, connection.broker_end)
        self._broker.connect_stream(connection.broker_end)

    def hold(self, connection: Connection, end: BrokerEnd) -> None:
        """Have a connection break when this machine crashes; `end` is the end at this machine."""
        self._connections = [each for each in self._connections if not each[0].is_over]
        self._connections.append((connection, end))

    @property
    def connections(self) -> list[Connection]:
        """Connections that are not over."""
        return [connection for connection, _end in self._connections if not connection.is_over]
