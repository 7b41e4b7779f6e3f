"""One history: brokers, clients and faults from one seed.

    async with Simulation(seed=7, faults=Faults(cut=0.01, delay_seconds=(0.0, 0.2))) as world:
        broker = await world.broker(destinations={"/queue/>": {"redeliveries_max": 3}})
        client = await world.client()
        await world.crash(broker)

Time is virtual: it passes when every task waits. So a simulation runs below `sluiceway.simulation.run` or `run_seeds`,
or on a `trio.testing.MockClock(autojump_threshold=0)` of the caller's, without threads and sockets beside it.

Bounds: HISTORY_LINES_MAX lines of history, the first half and the last.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

import trio
from trio.testing import MockClock

from sluiceway.client.errors import ClientError, RefusedError
from sluiceway.config import Config
from sluiceway.embedded import embedded_config
from sluiceway.protocols.log import warnings_to
from sluiceway.simulation.client import HEART_BEAT_MS, Client
from sluiceway.simulation.faults import CALM, WATCH, Chance, Faults, Identity, Watch
from sluiceway.simulation.machine import SimulatedBroker
from sluiceway.simulation.network import Connection, SimulatedStream

EPOCH_MS: Final = 1_700_000_000_000
"""The wall clock when virtual time is 0: 14 November 2023."""
HISTORY_LINES_MAX: Final = 2_000
RETRY_SECONDS: Final = 60.0
_RETRY_PAUSE_SECONDS: Final = 0.25


class Simulation:
    """A world of brokers and clients in virtual time. An async context manager; brokers stop in order at its end, and
    what ended a broker or raised in the block is raised.
    """

    def __init__(self, *, seed: int = 0, faults: Faults | None = None) -> None:
        """`seed`: begins all chance; `faults`: what goes wrong by chance, nothing by default."""
        self.seed = seed
        self._faults = faults or CALM
        self._watch = WATCH.get() or Watch()
        self._head: list[str] = []
        self._tail: deque[str] = deque(maxlen=HISTORY_LINES_MAX // 2)
        self.injected: Counter[str] = Counter()
        """Number of times that each fault came."""
        self._seen = hashlib.sha256()
        self._names: Counter[str] = Counter()
        self._make_machine: Callable[..., SimulatedBroker] = SimulatedBroker
        self._brokers: dict[str, SimulatedBroker] = {}
        self._is_calm = False
        self._nursery: trio.Nursery
        self._nursery_manager: Any = None

    async def __aenter__(self) -> Self:
        if not isinstance(trio.lowlevel.current_clock(), MockClock):
            raise RuntimeError(
                "a simulation needs virtual time, and this program runs in real time: call it with "
                "sluiceway.simulation.run or run_seeds, or with trio.run(…, clock=MockClock(autojump_threshold=0))"
            )
        self._lines = warnings_to(self._warned)
        self._lines.__enter__()
        self._nursery_manager = trio.open_nursery()
        self._nursery = await self._nursery_manager.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._is_calm = True
                for broker in self._brokers.values():
                    await broker.stop()
        finally:
            self._nursery.cancel_scope.cancel()
            try:
                await self._nursery_manager.__aexit__(None, None, None)
            except BaseExceptionGroup as group:
                # Tasks of the simulation: what ended a broker explains all the rest.
                raise (group.exceptions[0] if len(group.exceptions) == 1 else group) from error
            finally:
                self._lines.__exit__(None, None, None)
                for broker in self._brokers.values():
                    broker.remove()
                self._watch.history += self.history

    # ------------------------------------------------------------------ brokers

    async def broker(self, config: Config | None = None, *, name: str = "broker", **tables: Any) -> SimulatedBroker:
        """Start a broker, with a configuration or with tables as `EmbeddedBroker` takes them. It keeps persistent
        messages on a simulated disk, unless `store={"engine": "none"}`; ports, TLS and HTTP of its configuration are
        left out.

        Raises TypeError for both at once, ConfigError for wrong tables, ValueError for a store that can't be simulated
        and for a name that another broker has.
        """
        if config is not None and tables:
            raise TypeError(f"a broker takes a Config or {', '.join(tables)}, not both: use attrs.evolve")
        if name in self._brokers:
            raise ValueError(f"there is a broker called {name!r}: give this one another name")
        return await self._add(name, embedded_config(tables) if config is None else config)

    async def _add(self, name: str, config: Config, options: Callable[[], dict[str, Any]] = dict) -> SimulatedBroker:
        """Start a broker. `options`: further arguments of each `Broker`."""
        machine = self._brokers[name] = self._make_machine(
            name,
            config,
            chance=self.chance(f"{name}'s disk"),
            faults=lambda: self.faults,
            tell=self.note,
            now_ms=self.now_ms,
            options=options,
        )
        await machine.start(self._nursery)
        if self._faults.crash_seconds is not None:
            self._nursery.start_soon(self._crash_by_chance, machine, self.chance(f"{name}'s end"))
        return machine

    async def crash(self, broker: SimulatedBroker | None = None, *, power_cut: bool = False) -> None:
        """End a broker at once: its process dies, or the power of its machine fails. What it had not written, or not
        synced, is lost; `restart` starts it on the rest. Does nothing if it is down. `broker`: may be left out if there
        is one.
        """
        await self._the(broker).crash(power_cut=power_cut)

    async def restart(self, broker: SimulatedBroker | None = None) -> None:
        """Start a broker that is down, on what its disk has. Does nothing if it runs."""
        await self._the(broker).start(self._nursery)

    async def stop(self, broker: SimulatedBroker | None = None) -> None:
        """Stop a broker in order, as SIGTERM does. Does nothing if it is down."""
        await self._the(broker).stop()

    async def calm(self) -> None:
        """End all chance of faults: brokers that are down start, and connections on which nothing arrives are cut. What
        a history has to show in the end comes after this.
        """
        self._is_calm = True
        self.note("no more faults")
        for machine in self._brokers.values():
            for connection in machine.connections:
                if connection.there.is_lost or connection.back.is_lost:
                    connection.cut()
            await machine.start(self._nursery)

    async def _crash_by_chance(self, machine: SimulatedBroker, chance: Chance) -> None:
        faults = self._faults
        assert faults.crash_seconds is not None
        while not self._is_calm:
            await trio.sleep(chance.seconds(faults.crash_seconds))
            if machine.is_up and chance.strikes("crash", 1.0):
                power_cut = chance.strikes("power-cut", faults.power_cut)
                down_seconds = chance.seconds(faults.down_seconds)
                await machine.crash(power_cut=power_cut)
                await trio.sleep(down_seconds)
                await machine.start(self._nursery)

    def _the(self, broker: SimulatedBroker | None) -> SimulatedBroker:
        if broker is not None:
            return broker
        if len(self._brokers) != 1:
            raise ValueError(f"which broker is meant? There are {len(self._brokers)}")
        return next(iter(self._brokers.values()))

    # ------------------------------------------------------------------ clients

    async def connect(self, broker: SimulatedBroker | None = None, *, name: str = "client") -> SimulatedStream:
        """Open a connection, and return the client's end: bytes, for a client of the caller's own. Raises
        ConnectionRefusedError (an OSError) while the broker is down.
        """
        machine = self._the(broker)
        self._names[name] += 1
        name = f"{name}-{self._names[name]}"
        connection = Connection(
            name, machine.name, faults=lambda: self.faults, chance=self.chance, tell=self.note, seen=self._seen
        )
        await trio.sleep(self.chance(f"{name} connects").seconds(self.faults.delay_seconds))
        machine.accept(connection)
        self.note(f"{name} connects to {machine.name}")
        return connection.client_end

    async def client(
        self,
        broker: SimulatedBroker | None = None,
        *,
        name: str = "client",
        login: str | None = None,
        passcode: str | None = None,
        heart_beat_ms: int = HEART_BEAT_MS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> Client:
        """Connect a client that is ready to be used: its own task reads and beats. While the broker is down, or the
        connection breaks before CONNECTED, it tries again for `retry_seconds`.

        Raises RefusedError, and after that time OSError, ConnectionLostError or TimeoutError of the last attempt.
        """
        machine = self._the(broker)
        deadline = trio.current_time() + retry_seconds
        while True:
            client: Client | None = None
            try:
                stream = await self.connect(machine, name=name)
                client = Client(stream, stream.name)
                self._nursery.start_soon(client.run)
                host = machine.config.broker.name
                await client.connect(login=login, passcode=passcode, heart_beat_ms=heart_beat_ms, host=host)
            except BaseException as error:
                if client is not None:
                    client.vanish()
                again = isinstance(error, OSError | ClientError | TimeoutError) and not isinstance(error, RefusedError)
                if not again or trio.current_time() >= deadline:
                    raise
                await trio.sleep(_RETRY_PAUSE_SECONDS)
            else:
                self._nursery.start_soon(client.beat)
                return client

    def cut(self, client: Client | SimulatedStream) -> None:
        """Break the connection of a client now: both sides see that, and what is on its way is lost."""
        self._connection(client, "is cut off").cut()

    def half_cut(self, client: Client | SimulatedStream, *, to_broker: bool = True, to_client: bool = True) -> None:
        """Have nothing arrive any more in one direction, or both, and tell no side."""
        connection = self._connection(client, "hears nothing" if to_client else "is not heard")
        if to_broker:
            connection.there.lose()
        if to_client:
            connection.back.lose()

    def _connection(self, client: Client | SimulatedStream, what: str) -> Connection:
        stream = client.stream if isinstance(client, Client) else client
        if not isinstance(stream, SimulatedStream):
            raise TypeError(f"{client!r} is not connected by this simulation")
        self.note(f"{stream.name} {what}")
        return stream.connection

    # ------------------------------------------------------------------ chance, time, history

    @property
    def faults(self) -> Faults:
        """Faults in force: none after `calm`."""
        return CALM if self._is_calm else self._faults

    def chance(self, name: str) -> Chance:
        """Return chance from the seed for a part of the program, which no other part uses up. The same name gives the
        same again.
        """
        return Chance(
            self.seed,
            name,
            spared=self._watch.spared,
            happened=self._happened,
            stopped=lambda: self._is_calm,
        )

    def _happened(self, fault: Identity) -> None:
        self._watch.happened.append(fault)
        self.injected[fault[1]] += 1

    def now_ms(self) -> int:
        """Return the wall clock of all brokers, in milliseconds since the epoch; it goes with virtual time."""
        return EPOCH_MS + round(trio.current_time() * 1000)

    def note(self, what: str) -> None:
        """Add a line to the history: what the program does belongs there, too."""
        line = f"{trio.current_time():9.3f} s  {what}"
        self._seen.update(line.encode())
        if len(self._head) < HISTORY_LINES_MAX // 2:
            self._head.append(line)
        else:
            self._tail.append(line)

    def _warned(self, event: str, values: dict[str, Any]) -> None:
        told = ", ".join(f"{name}={value}" for name, value in values.items())
        self.note(f"  warning: {event} ({told})" if told else f"  warning: {event}")

    @property
    def history(self) -> list[str]:
        """Lines of all that has happened, with times; of a long history the first and the last ones."""
        return [*self._head, *self._tail]

    @property
    def fingerprint(self) -> str:
        """Hash of the whole history and of every byte that was sent: the same seed gives the same."""
        return self._seen.hexdigest()
