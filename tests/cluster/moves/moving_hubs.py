"""Hubs in one process on virtual time, which agree on owners of shards by a simulated service, and share all stores.

A store is open at one hub at a time, as the lock of a folder makes sure of. What a hub that crashes had not synced is
lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, Self

import attrs
import trio

from sluiceway.broker import Broker
from sluiceway.cluster.coordination.port import Coordination
from sluiceway.cluster.coordination.simulated import HubTime, SimulatedChannel, SimulatedService
from sluiceway.cluster.links import Seat
from sluiceway.cluster.membership import Loop, Membership, Spawn
from sluiceway.config import Config, Listener, SecurityConfig
from sluiceway.dispatcher import Dispatcher
from sluiceway.protocols.stomp.escaping import Version
from sluiceway.queues.shard_hash import shard_of
from sluiceway.store.engine import EngineError
from tests.cluster.links.two_hubs import SECRET, Network
from tests.scenarios.client import Client
from tests.scenarios.stage import wall_clock_ms
from tests.store.faulty import FaultyEngine

SHARDS = 4
SESSION_SECONDS = 6.0


def names(prefix: str, count: int = SHARDS) -> list[str]:
    """A destination in each shard."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < count:
        name = f"{prefix}{number}"
        found.setdefault(shard_of(name, count), name)
        number += 1
    return [found[shard] for shard in range(count)]


class Stores:
    """The store of each shard, which all hubs reach."""

    def __init__(self) -> None:
        self.engines = [FaultyEngine(Random(shard)) for shard in range(SHARDS)]
        self.users = [""] * SHARDS
        self.epochs: list[list[int]] = [[] for _ in range(SHARDS)]
        self.refuses: set[int] = set()
        """Shards whose store can't be opened now."""

    def open(self, shard: int, hub: str, epoch: int) -> FaultyEngine:
        """Raises EngineError."""
        if self.users[shard] and not self.engines[shard]._seen._closed:
            raise EngineError(f"the store of shard {shard} is in use by {self.users[shard]}")
        if shard in self.refuses:
            raise EngineError("the disk is away")
        self.engines[shard] = engine = self.engines[shard].crash()
        self.users[shard] = hub
        self.epochs[shard].append(epoch)
        return engine


@attrs.define(eq=False)
class Running:
    """One run of a hub."""

    broker: Broker
    channel: SimulatedChannel
    time: HubTime
    scope: trio.CancelScope
    stop: trio.Event
    ended: trio.Event


class MovingHubs:
    """Hubs `a`, `b`, …"""

    def __init__(self, count: int = 2, *, ahead_ms: Mapping[str, int] | None = None) -> None:
        """`ahead_ms`: hubs whose clocks are wrong."""
        self._ahead_ms = ahead_ms or {}
        self.names = [chr(ord("a") + number) for number in range(count)]
        self.network = Network()
        self.stores = Stores()
        self.running: dict[str, Running] = {}
        self.clients: list[Client] = []
        self._loop = Dispatcher()
        self._nursery: trio.Nursery
        self._manager = trio.open_nursery()

    async def __aenter__(self) -> Self:
        self._nursery = await self._manager.__aenter__()
        await self._nursery.start(self._loop.run)
        self.service = SimulatedService(self, Random(1), ends_with_connection=True)
        try:
            for name in self.names:
                await self.start(name)
            await self.balanced()
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self.clients:
            client.stream.close()
        if kind is None:
            for name in list(self.running):
                await self.leave(name)
        else:
            for run in self.running.values():
                run.scope.cancel()
        self._nursery.cancel_scope.cancel()
        await self._manager.__aexit__(kind, error, trace)

    # Time of the service.

    def clock(self) -> float:
        return trio.current_time()

    def call_later(self, delay_seconds: float, callback: Callable[[], None]) -> Any:
        return self._loop.call_later(max(delay_seconds, 0.0), callback)

    # Hubs.

    async def start(self, name: str) -> None:
        """Start a hub, and wait until it serves."""
        self.running[name] = await self._nursery.start(partial(self._run, name))

    async def _run(self, name: str, *, task_status: trio.TaskStatus[Running]) -> None:
        time = HubTime(self)
        channel = self.service.channel(time, session_seconds=SESSION_SECONDS)

        def coordination(_loop: Loop, _clock: Callable[[], float], _spawn: Spawn) -> Coordination:
            return channel.client

        def engine_of(shard: int, epoch: int) -> FaultyEngine:
            return self.stores.open(shard, name, epoch)

        seat = Seat(
            cluster="0123abcd",
            hub=name,
            shards_count=SHARDS,
            secret=SECRET,
            dial=self.network.dial,
            advertised=name,
            membership=Membership(coordination=coordination, expected=self.names),
        )
        config = Config(listeners=(Listener(address="127.0.0.1:0"),), security=SecurityConfig(default="allow"))
        now_ms = lambda: wall_clock_ms() + self._ahead_ms.get(name, 0)  # noqa: E731
        broker = Broker(config, now_ms=now_ms, seat=seat, engine=engine_of, all_in_engine=True)
        ended = trio.Event()
        try:
            with trio.CancelScope() as scope:
                async with broker:
                    self.network.hubs[name] = broker
                    run = Running(broker, channel, time, scope, trio.Event(), ended)
                    task_status.started(run)
                    await run.stop.wait()
        finally:
            self.network.hubs.pop(name, None)
            ended.set()

    async def leave(self, name: str) -> None:
        """Stop a hub in order."""
        run = self.running.pop(name)
        run.stop.set()
        await run.ended.wait()

    async def crash(self, name: str) -> None:
        """Kill a hub: its connections and its session end, its stores are as they were synced."""
        run = self.running.pop(name)
        run.time.crash()
        run.channel.cut("the process ended")
        run.scope.cancel()
        await run.ended.wait()

    def owners(self) -> list[str]:
        """Hub that has each shard open, and may confirm; empty: none."""
        found: list[str] = []
        for shard in range(SHARDS):
            holders = [name for name, run in self.running.items() if self.member(name).ownership.may_confirm(shard)]
            assert len(holders) <= 1, f"shard {shard} is at {holders}"
            found.append(holders[0] if holders else "")
        return found

    def member(self, name: str) -> Any:
        """Part of a hub in the cluster."""
        member = self.running[name].broker.member
        assert member is not None
        return member

    async def until(self, is_so: Callable[[], bool], seconds: float = 30.0) -> None:
        """Wait for something."""
        with trio.move_on_after(seconds):
            while not is_so():  # noqa: ASYNC110 - what it waits for is no event of one task
                await trio.sleep(0.01)
        assert is_so(), f"not within {seconds} s; owners: {self.owners()}"

    async def balanced(self) -> None:
        """Wait until each shard is at the hub that is to have it, and all hubs know."""
        await self.until(lambda: all(self.owners()) and self._is_balanced())

    def _is_balanced(self) -> bool:
        owners = self.owners()
        for name in self.running:
            ownership = self.member(name).ownership
            if [ownership.where(shard).hub for shard in range(SHARDS)] != owners:
                return False
            if any(ownership._wanted_at(ownership._claims[shard]) != owners[shard] for shard in range(SHARDS)):
                return False
            links = self.running[name].broker.links
            assert links is not None
            if links.reachable != sorted(self.running.keys() - {name}):
                return False
            if any(owner != name and shard not in links.shards_at(owner) for shard, owner in enumerate(owners)):
                return False
        return True

    async def connect(self, hub: str, version: Version = "1.2", **headers: str) -> Client:
        """A connected client of a hub."""
        name = f"client {len(self.clients) + 1}"
        client = Client(self.running[hub].broker.connect_memory(name=name), name)
        self.clients.append(client)
        await client.connect(version, **headers)
        return client
