"""Brokers that take topics from one another, in one process on virtual time, over connections that can be cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from sluiceway.broker import Broker
from sluiceway.client.address import Address
from sluiceway.config import Config, DestinationPolicy, Listener, SecurityConfig
from sluiceway.protocols.streams import MemoryStream
from sluiceway.regions.config import Region, RegionsConfig
from tests.scenarios.client import Client
from tests.scenarios.stage import wall_clock_ms

T = "/topic/prices"


class Cut(MemoryStream):
    """A client's end that breaks when so many bytes have come."""

    def __init__(self, stream: MemoryStream, internet: Internet) -> None:
        super().__init__(stream._in, stream._out, stream.peer)
        self._internet = internet

    async def receive_some(self, size_max: int = 65536) -> bytes:
        data = await super().receive_some(size_max)
        left = self._internet.left_bytes
        if left is not None:
            data = data[:left]
            self._internet.left_bytes = left - len(data)
            if not data:
                self._internet.cut()
                raise ConnectionResetError("cut")
        return data


class Internet:
    """Connections between regions: `hosts` says whom an address is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hosts: dict[str, Broker] = {}
        self.is_down = False
        self.left_bytes: int | None = None
        """Bytes until the next cut; None: there is none."""
        self.cuts_count = self.dials_count = 0
        self._streams: list[Cut] = []
        monkeypatch.setattr("sluiceway.regions.feed.dial", self.dial)

    async def dial(self, address: Address) -> tuple[Cut, Callable[[], None]]:
        self.dials_count += 1
        await trio.lowlevel.checkpoint()
        if self.is_down or address.host not in self.hosts:
            raise ConnectionRefusedError("no such host")
        stream = Cut(self.hosts[address.host].connect_memory(name="region"), self)
        self._streams.append(stream)
        return stream, stream.close

    def cut(self) -> None:
        """Cut all connections."""
        self.cuts_count += 1
        self.left_bytes = None
        streams, self._streams = self._streams, []
        for stream in streams:
            stream.close()


def broker_of(
    name: str,
    *regions: Region,
    policies: dict[str, dict[str, Any]] | None = None,
    users: dict[str, str] | None = None,
    **settings: Any,
) -> Broker:
    """A broker that takes topics from these regions."""
    config = Config(
        security=SecurityConfig(users=users or {}, default="allow"),
        listeners=(Listener(address="127.0.0.1:0"),),
        regions=RegionsConfig(own_name=name, origins=regions, **settings),
        destinations=tuple(DestinationPolicy(match, given) for match, given in (policies or {}).items()),
    )
    return Broker(config, now_ms=wall_clock_ms)


def region(name: str, *topics: str, **changes: Any) -> Region:
    """A region at the address that is called like it."""
    return Region(name=name, hubs=(f"{name}:1",), topics=topics or (T,), **changes)


async def client_of(broker: Broker, **headers: str) -> Client:
    """A client of a broker."""
    client = Client(broker.connect_memory(), "client")
    await client.connect("1.2", **headers)
    return client


async def connected(broker: Broker) -> None:
    """Wait until a broker has its topics."""
    assert broker.regions is not None
    with trio.fail_after(120):
        while not all(fact["connected_to"] for fact in broker.regions.facts()):  # noqa: ASYNC110 - nothing tells it
            await trio.sleep(0.1)
