"""Where scenarios play: a whole broker in virtual time, its clients, and the check that nothing is left behind.

The check at the end is the suite's leak detector: when all connections are gone and all queues are drained, no limiter
holds anything, no resource is registered but destinations, and every message that was added is accounted for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import attrs
import trio

from sluiceway.broker import Broker
from sluiceway.config import BrokerConfig, Config, DestinationPolicy, Listener, SecurityConfig
from sluiceway.config.virtual_hosts import VirtualHost
from sluiceway.protocols.stomp.escaping import Version
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.queues.destination import Destination
from sluiceway.queues.names import HOST_SIGN, host_prefix_of, without_host
from sluiceway.queues.queue import MessageQueue
from sluiceway.queues.retained import is_retained, topic_of
from sluiceway.store.engine import Engine
from tests.scenarios.client import Client

EPOCH_MS = 1_700_000_000_000
"""The wall clock when virtual time is 0."""


def wall_clock_ms() -> int:
    """The date that goes with virtual time."""
    return EPOCH_MS + round(trio.current_time() * 1000)


class Stage:
    """A broker and its clients. An async context manager; leaving it in peace checks that all is accounted for."""

    in_engine = bool(os.environ.get("ALL_IN_ENGINE"))
    """Whether an engine of the stage has logs and large bodies, too, as a database does, and not files."""

    def __init__(
        self,
        policies: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        users: Mapping[str, str] | None = None,
        security: SecurityConfig | None = None,
        shutdown_seconds: float = 10.0,
        large_folder: Path | None = None,
        engine: Engine | list[Engine] | None = None,
        hosts: Sequence[VirtualHost] = (),
        **limits: Any,
    ) -> None:
        """`policies`: settings of QueuePolicy by destination pattern; `users`: they may do everything; `security`: in
        place of that; `large_folder`: where large bodies go; `engine`: a store, so that persistent messages outlive the
        broker and others page, or one for each shard; `hosts`: virtual hosts beside the default one;
        `limits`: fields of StompLimits.
        """
        self.broker = Broker(
            Config(
                broker=BrokerConfig(shutdown_seconds=shutdown_seconds),
                security=security or SecurityConfig(users=users or {}, default="allow"),
                listeners=(Listener(address="127.0.0.1:0", limits=attrs.evolve(StompLimits(), **limits)),),
                virtual_hosts=(VirtualHost(name="/", aliases=("test",)), *hosts) if hosts else (),
                destinations=tuple(DestinationPolicy(match, settings) for match, settings in (policies or {}).items()),
            ),
            now_ms=wall_clock_ms,
            large_folder=large_folder,
            engine=engine,
            all_in_engine=self.in_engine and engine is not None,
        )
        self._large_folder = large_folder
        self.clients: list[Client] = []

    async def __aenter__(self) -> Self:
        await self.broker.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and not self.broker.dispatcher.closed:
                await self.check_all_accounted_for()
        except BaseException as failure:
            await self._leave(failure)
            raise
        await self._leave(error)

    async def _leave(self, error: BaseException | None) -> None:
        for listener in self.broker.listeners:
            listener.close()
        trace = None if error is None else error.__traceback__
        await self.broker.__aexit__(None if error is None else type(error), error, trace)

    # ------------------------------------------------------------------ clients

    def stranger(self, name: str | None = None) -> Client:
        """A client that has not said CONNECT yet."""
        name = name or f"client {len(self.clients) + 1}"
        client = Client(self.broker.connect_memory(name=name), name)
        self.clients.append(client)
        return client

    async def connect(
        self,
        version: Version = "1.2",
        *,
        name: str | None = None,
        heart_beat: tuple[int, int] = (0, 0),
        **headers: str,
    ) -> Client:
        """A connected client."""
        client = self.stranger(name)
        await client.connect(version, heart_beat=heart_beat, **headers)
        return client

    # ------------------------------------------------------------------ looking inside

    def destination(self, name: str) -> Destination:
        """A destination by its full name."""
        return self.broker.registry.destinations[name]

    def partitions(self, name: str) -> list[MessageQueue]:
        """The queues of a destination."""
        return list(self.destination(name).queue.partitions.values())

    def depth_count(self, name: str) -> int:
        """Messages in a destination, unacknowledged ones included; 0 if it is not there."""
        if name not in self.broker.registry.destinations:
            return 0
        return sum(queue.statistics().depth_count for queue in self.partitions(name))

    def reported(self, name: str) -> dict[str, Any]:
        """A destination as `broker.report()` shows it."""
        (found,) = [d for d in self.broker.report()["destinations"] if d["name"] == name]
        return dict(found)

    def chains(self) -> list[str]:
        """Who waits on whom, in words."""
        return [chain["words"] for chain in self.broker.report()["chains"]]

    async def settled_down(self) -> None:
        """Until the broker has nothing left to do now (virtual time does not pass)."""
        await trio.testing.wait_all_tasks_blocked()

    @property
    def used_bytes(self) -> int:
        """What messages take: memory in use without what is kept beside them."""
        upkeep_bytes = self.upkeep_bytes  # settles
        return self.broker.manager.used_bytes - upkeep_bytes

    @property
    def upkeep_bytes(self) -> int:
        """What is kept beside messages."""
        upkeep = self.broker.memory.upkeep
        upkeep.settle()
        return upkeep.things.used_bytes + upkeep.heads.used_bytes

    # ------------------------------------------------------------------ the check

    def staying(self) -> set[int]:
        """Hook: what else may be registered at the end, by id: a log and its groups stay."""
        logs = self.broker.logs
        if logs is None:
            return set()
        groups: list[object] = [group for groups in logs.groups.values() for group in groups.values()]
        claims = self.broker.claims
        if claims is not None:
            groups += claims.groups.values()
        return {id(each) for each in (*logs, *groups, logs.reading, logs.compactor, self.broker.shards.extents)}

    def forget_records(self) -> None:
        """Empty the cache of logs: what it holds is charged."""
        logs = self.broker.logs
        for each in () if logs is None else logs:
            for _ in each.reading.forgetting(each):
                pass
        extents = self.broker.shards.extents
        if extents is not None:
            extents.clear()
            extents.settle_up()

    async def check_all_accounted_for(self) -> None:
        """Everybody goes, everything is consumed: now nothing may be charged, registered or waited for any more."""
        for client in self.clients:
            client.stream.close()
        await self.drain_queues()
        await self.settled_down()
        self.forget_records()
        broker = self.broker
        assert not broker.connections, [connection.session.peer for connection in broker.connections]
        assert self.used_bytes == 0, self._charged()
        queues = {id(queue) for d in broker.registry.destinations.values() for queue in d.queues}
        assert broker.left_behind.connections_count == 0
        assert broker.registry.attachments.used_count == 0
        registry = broker.registry
        accounts = {
            id(broker.left_behind),
            id(registry.attachments),
            id(registry.selectors),
            id(broker.memory.budget),
            id(broker.memory.upkeep),
        }
        stored = {id(part) for shard in broker.shards for part in (shard.bodies, shard.store)}
        ours = queues | accounts | stored | self.staying()
        if self._large_folder is not None:
            left = [each for each in self._large_folder.rglob("*") if each.is_file()]
            assert not left, "large bodies that nobody refers to"
        left = [resource for resource in broker.manager.resources if id(resource) not in ours]
        assert not left, f"still registered: {left}"
        snapshot = broker.manager.snapshot()
        assert not snapshot.chains, [chain.words for chain in snapshot.chains]
        for name, destination in broker.registry.destinations.items():
            assert destination.producers_count == 0, f"{name} believes in {destination.producers_count} producers"
            assert not destination.queue.attachments, f"{name} has consumers left: {destination.queue.attachments}"
            for queue in self.partitions(name):
                seen = queue.statistics()
                assert (seen.depth_count, seen.unsettled_count, seen.subscriptions_count) == (0, 0, 0), (name, seen)

    async def drain_queues(self) -> list[bytes]:
        """Consume what is left in all queues, over a connection like any other; returns the bodies.

        Goes on while there are connections: one whose socket is not read while its SENDs wait ends only after them.
        """
        bodies: list[bytes] = []
        for _ in range(1_000):
            for name in [each for each in self.broker.registry.destinations if is_retained(each)]:
                self.broker.registry.retained.remove(topic_of(name))
            names = [
                name
                for name, destination in self.broker.registry.destinations.items()
                if not destination.address.kind.is_topic and not destination.queue.is_empty
            ]
            if not names and not self.broker.connections:
                break
            if names:
                client = Client(self.broker.connect_memory(name="drain"), "drain")
                login, passcode = next(iter(self.broker.config.security.users.items()), ("", ""))
                await client.connect("1.2", login=login, passcode=passcode)
                for name in names:
                    if not host_prefix_of(name):
                        await client.subscribe(name, id=name)
                bodies += [delivery.body for delivery in await client.drain()]
                client.stream.close()
                for name in [each for each in names if host_prefix_of(each)]:
                    client = Client(self.broker.connect_memory(name="drain"), "drain")
                    host = host_prefix_of(name).removeprefix(HOST_SIGN)
                    await client.connect("1.2", host=host, login=login, passcode=passcode)
                    await client.subscribe(without_host(name))
                    bodies += [delivery.body for delivery in await client.drain()]
                    client.stream.close()
            await trio.sleep(0.01)
        return bodies

    def _charged(self) -> list[str]:
        return [
            f"{resource.kind} {resource.name}: {controller.flow.name} holds {limiter.used_count} of "
            f"{limiter.used_bytes} bytes"
            for resource in self.broker.manager.resources
            for controller in resource.controllers
            if (limiter := controller.sink_limiter) is not None and limiter.used_bytes
        ]
