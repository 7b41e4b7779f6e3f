"""Two hubs in one process on virtual time: all destinations live at one, clients come to the other.

The network between them can be cut, at any byte, and put together again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import attrs
import trio
import trio.testing

from sluiceway.broker import Broker
from sluiceway.cluster.links import Seat
from sluiceway.cluster.placement import TablePlacement
from sluiceway.config import Config, DestinationPolicy, Listener, SecurityConfig
from sluiceway.protocols.stomp.escaping import Version
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.protocols.streams import ByteStream, MemoryStream, _Pipe
from sluiceway.store.memory import MemoryEngine
from tests.scenarios.client import Client
from tests.scenarios.stage import wall_clock_ms

SECRET = b"the secret of this cluster"


class Wire(MemoryStream):
    """One end of a connection of two hubs."""

    __slots__ = ("_network", "is_mute")

    def __init__(self, inward: _Pipe, outward: _Pipe, peer: str, network: Network) -> None:
        super().__init__(inward, outward, peer)
        self._network = network
        self.is_mute = False
        """Whether all that is written here is held up in the network, for ever."""

    def write(self, pieces: Sequence[bytes | memoryview]) -> int:
        if self.is_mute:
            return sum(map(len, pieces))
        left_bytes = self._network.left_bytes
        if left_bytes is None:
            return super().write(pieces)
        taken = super().write([b"".join(pieces)[:left_bytes]])
        self._network.left_bytes = left_bytes - taken
        if taken == left_bytes:
            self._network.cut()
        return taken


class Network:
    """Streams between hubs, which can be cut."""

    def __init__(self) -> None:
        self.left_bytes: int | None = None
        """Bytes until the next cut; None: there is none."""
        self.cuts_count = 0
        self.hubs: dict[str, Broker] = {}
        self._streams: list[Wire] = []
        self.is_down = False

    async def dial(self, address: str) -> ByteStream:
        """Open a stream to a hub by its id."""
        await trio.lowlevel.checkpoint()
        hub = self.hubs.get(address)
        if self.is_down or hub is None or hub.links is None:
            raise ConnectionRefusedError("nobody listens there")
        there, back = _Pipe(1 << 18), _Pipe(1 << 18)
        ours, theirs = Wire(back, there, address, self), Wire(there, back, "hub that dialled", self)
        self._streams += (ours, theirs)
        hub.links.accepted(theirs)
        return ours

    def mute(self, hub: str) -> None:
        """Let nothing more of a hub come through, as a hub that was stopped: its streams stay."""
        for stream in self._streams:
            if (stream.peer in self.hubs) == (hub == "a"):  # hub `a` dials
                stream.is_mute = True

    def cut(self) -> None:
        """Cut all streams: both ends see a broken connection; what is under way is lost."""
        streams, self._streams = self._streams, []
        self.left_bytes = None
        self.cuts_count += 1
        for stream in streams:
            for pipe in (stream._in, stream._out):
                pipe.chunks.clear()
                pipe.size_bytes = 0
                pipe.end()


def seat(network: Network, hub: str, peers: dict[str, str], owner_of: Callable[[str], str], **changes: Any) -> Seat:
    """Make the place of a hub."""
    facts: dict[str, Any] = {
        "cluster": "c1",
        "hub": hub,
        "shards_count": 1,
        "placement": TablePlacement(hub, owner_of, sorted({hub, *peers})),
        "peers": lambda: peers,
        "secret": SECRET,
        "dial": network.dial,
    }
    return Seat(**{**facts, **changes})


class FrontHub:
    """A hub in front of another one: it owns nothing, and its clients use what the other one has."""

    def __init__(self, owner: Broker, network: Network) -> None:
        self.network = network
        folder = owner._location.large_folder
        if folder is not None:
            folder = folder.parent / "of the hub in front"
            folder.mkdir(exist_ok=True)
        self.broker = Broker(
            Config(
                broker=owner.config.broker.__class__(),
                listeners=owner.config.listeners,
                security=owner.config.security,
                destinations=owner.config.destinations,
            ),
            now_ms=owner.now_ms,
            large_folder=folder,
            seat=seat(network, "a", {"b": "b"}, lambda _name: "b"),
        )


class TwoHubs:
    """Hub `a`, to which clients connect, and hub `b`, which owns names that begin with `/queue/b` or `/topic/b`."""

    def __init__(
        self,
        large_folder: Path | None = None,
        destinations: Sequence[DestinationPolicy] = (),
        stored_at: Path | None = None,
        **limits: Any,
    ) -> None:
        """`large_folder`: folder of large bodies of the hub `b`; `stored_at`: folder of logs of both hubs, which have
        stores then."""
        self.network = Network()
        self._stored_at = stored_at
        listener = Listener(address="127.0.0.1:0", limits=attrs.evolve(StompLimits(), **limits))
        config = Config(
            listeners=(listener,), security=SecurityConfig(default="allow"), destinations=tuple(destinations)
        )
        self.owners = {"b": "b"}
        self.placements: list[TablePlacement] = []
        self.a = self._hub("a", "b", config)
        self.b = self._hub("b", "a", config, large_folder)
        self.clients: list[Client] = []

    def owner_of(self, name: str) -> str:
        """Return the owner of a name: the hub that its first letter says, or whatever `owners` says of it."""
        letter = name.removeprefix("/queue/").removeprefix("/topic/").removeprefix("/log/")[:1]
        return self.owners.get(letter, "a")

    def _hub(self, name: str, other: str, config: Config, large_folder: Path | None = None) -> Broker:
        made = seat(self.network, name, {other: other}, self.owner_of)
        assert isinstance(made.placement, TablePlacement)
        self.placements.append(made.placement)
        stored: dict[str, Any] = {}
        if self._stored_at is not None:
            stored = {"engine": MemoryEngine(), "journal_folder": self._stored_at / name}
        return Broker(config, now_ms=wall_clock_ms, seat=made, large_folder=large_folder, **stored)

    async def __aenter__(self) -> Self:
        self.network.hubs = {"b": self.b, "a": self.a}  # left in the other order
        for hub in self.network.hubs.values():
            await hub.__aenter__()
        await self.linked()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for client in self.clients:
                client.stream.close()
            await self.a.__aexit__(kind, error, trace)
        finally:
            await self.b.__aexit__(kind, error, trace)

    async def linked(self) -> None:
        """Wait until the hubs are linked."""
        await trio.testing.wait_all_tasks_blocked()  # a cut is noticed
        links = [self.a.links, self.b.links]
        for _ in range(3000):
            if all(each is not None and each.reachable for each in links):
                return
            await trio.sleep(0.01)
        raise AssertionError("the hubs do not find each other")

    async def connect(self, hub: str = "a", version: Version = "1.2", **headers: str) -> Client:
        """A connected client of a hub."""
        name = f"client {len(self.clients) + 1}"
        client = Client(self.network.hubs[hub].connect_memory(name=name), name)
        self.clients.append(client)
        await client.connect(version, **headers)
        return client

    def moved(self) -> None:
        """Tell both hubs that owners have changed."""
        for placement in self.placements:
            placement.moved()
        for hub in (self.a, self.b):
            assert hub.links is not None
            hub.links.look()

    def depth_count(self, hub: str, name: str) -> int:
        """Messages in a destination of a hub."""
        destination = self.network.hubs[hub].registry.destinations.get(name)
        if destination is None:
            return 0
        return sum(queue.statistics().depth_count for queue in destination.queue.partitions.values())
