"""All feeds of a broker, and the connections that they have to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio

from sluiceway.connections import Connections
from sluiceway.protocols.connection import Connection
from sluiceway.protocols.stomp.authorization import Action, Identity, RateGate
from sluiceway.protocols.stomp.placement import Placement
from sluiceway.protocols.streams import MemoryStream, memory_pair
from sluiceway.regions.config import RegionsConfig
from sluiceway.regions.feed import Feed, limits_of
from sluiceway.session_hub import SessionHub

LABEL: Final = "region"
"""Listener of the connections, for people."""


class OriginGuard:
    """Guard of the connections of regions: they publish, whatever users may."""

    generation = 0
    allows_everything = True
    stamps_user = False

    def may(self, identity: Identity, action: Action, destination: str | None = None) -> bool:
        return True

    def refused(self, action: Action) -> None:
        return

    def rates_of(self, identity: Identity, listener: str) -> list[RateGate]:
        return []


class Regions:
    """Topics of other regions that are published here."""

    def __init__(
        self,
        config: RegionsConfig,
        name: str,
        hub: SessionHub,
        connections: Connections,
        *,
        placement: Placement | None,
        spawn: Callable[[Callable[[], Awaitable[object]]], None],
    ) -> None:
        """`name`: of the broker; `placement`: where topics are at home in the cluster, None without one; `spawn` starts
        a task that lives no longer than the broker.
        """
        self._config = config
        self._hub = hub
        self._connections = connections
        self._placement = placement
        self._spawn = spawn
        self._scopes: list[trio.CancelScope] = []
        self._running_count = 0
        self._all_ended = trio.Event()
        self.feeds = [
            Feed(
                region,
                topic,
                own_name=config.own_name or name,
                message_bytes_max=config.message_bytes_max,
                manager=hub.manager,
                clock=hub.clock,
                connect_here=self._connect,
                is_ours=partial(self._is_ours, topic),
            )
            for region in config.origins
            for topic in region.topics
        ]

    def begin(self) -> None:
        """Start all feeds."""
        self._running_count = len(self.feeds)
        for feed in self.feeds:
            self._scopes.append(scope := trio.CancelScope())
            self._spawn(partial(self._run, feed, scope))

    async def _run(self, feed: Feed, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await feed.run()
        finally:
            self._running_count -= 1
            if not self._running_count:
                self._all_ended.set()

    def _is_ours(self, topic: str) -> bool:
        if self._placement is None:
            return True
        home = self._placement.home_of(topic)
        return not home.hub and not home.why_not

    def facts(self) -> list[dict[str, object]]:
        """Return all feeds of topics that are at home at this hub, as data."""
        return [feed.facts() for feed in self.feeds if self._is_ours(feed.topic)]

    def _connect(self, region: str) -> MemoryStream:
        """Open a connection to this broker whose SENDs say that they are of a region."""
        ours, theirs = memory_pair(names=(f"region {region}", f"region {region}"))
        hub = self._hub.admitting(Identity(None, origin=region), OriginGuard())
        limits = limits_of(self._config.message_bytes_max)
        self._connections.begin(Connection(hub, limits, theirs, listener=LABEL, spawn=self._spawn), None)
        return ours

    def stop(self) -> None:
        """Take nothing more: the broker ends. What is not acknowledged comes again after the next start."""
        for scope in self._scopes:
            scope.cancel()

    async def close(self) -> None:
        """Do `stop`, and wait for the end of all feeds."""
        self.stop()
        if self._running_count:
            await self._all_ended.wait()
