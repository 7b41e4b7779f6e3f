"""A whole cluster from one seed: hubs with disks, links over a network with faults, clients at any hub, and a ledger.

Each hub is a machine of `sluiceway.simulation`: it crashes, loses its power, starts again on what its disk has. Links
and connections of clients are cut, half-cut, late, in pieces; clients come and go, and read slowly. Owners stay: hub N
has the queues that begin with its name.

Laws:
    nothing is lost      a persistent message with a RECEIPT is delivered
    settled              an acknowledged message, confirmed by a RECEIPT, is not delivered again
    marked               a second delivery says `redelivered`, or `possible-duplicate` where a hub had to send anew; of
                         several consumers of a queue one may look late at the first, which has no mark
    order                unmarked messages of one producer are delivered to the one consumer of a queue in their order
    going on             when the faults end, every blocked sender continues, and every queue runs empty
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any, Final

import attrs
import trio

from sluiceway.client.errors import ClientError
from sluiceway.cluster.links import Seat
from sluiceway.cluster.placement import TablePlacement
from sluiceway.embedded import embedded_config
from sluiceway.embedded_messages import Message
from sluiceway.protocols.streams import ByteStream
from sluiceway.simulation import Client, Faults, SimulatedBroker, Simulation, Subscription
from sluiceway.simulation.network import BrokerEnd, Connection
from tests.cluster.shared_engine import LawBrokenError

LOST: Final = (ClientError, OSError, TimeoutError)
CALM_SECONDS: Final = 300.0
"""Time in which all is to be done when the faults have ended."""
LATE_SECONDS: Final = 60.0
"""Time within which a consumer has looked at what it has read."""
PERSISTENT: Final = {"persistent": "true"}
SECRET: Final = b"the secret of this cluster"

Key = tuple[str, int]
"""A message: its producer, and its number there."""


class Link(Connection):
    """A connection of two hubs: the first has dialled."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.dialler_end = BrokerEnd(self.back, self.there, self.broker_name)
        self.pair: frozenset[str] = frozenset()
        """Both hubs."""

    @property
    def is_over(self) -> bool:
        return self.there.is_broken or (self.dialler_end.is_closed and self.broker_end.is_closed)


class ClusterSimulation(Simulation):
    """A simulation with hubs."""

    def __init__(self, *, hubs: Sequence[str], seed: int, faults: Faults) -> None:
        super().__init__(seed=seed, faults=faults)
        self.hubs = list(hubs)
        self.machines: dict[str, SimulatedBroker] = {}

    async def start(self, **tables: Any) -> None:
        """Start all hubs, with these settings."""
        for hub in self.hubs:
            self.machines[hub] = await self._add(
                hub, embedded_config(tables), lambda hub=hub: {"seat": self._seat(hub)}
            )

    def _seat(self, hub: str) -> Seat:
        peers = {other: other for other in self.hubs if other != hub}

        async def dial(address: str) -> ByteStream:
            return await self._dial(hub, address)

        return Seat(
            cluster="c1",
            hub=hub,
            shards_count=1,
            placement=TablePlacement(hub, self.owner_of, self.hubs),
            peers=lambda: peers,
            secret=SECRET,
            dial=dial,
        )

    def owner_of(self, name: str) -> str:
        """Return the hub that a destination begins with."""
        return name.rpartition("/")[2].partition(".")[0]

    async def _dial(self, hub: str, other: str) -> ByteStream:
        target = self.machines.get(other)
        self._names[f"link {hub} {other}"] += 1
        name = f"{hub}-link-{self._names[f'link {hub} {other}']}"
        await trio.sleep(self.chance(f"{name} dials {other}").seconds(self.faults.delay_seconds))
        if target is None or not target.is_up or target.broker.links is None:
            raise ConnectionRefusedError(f"{other} is down")
        link = Link(name, other, faults=lambda: self.faults, chance=self.chance, tell=self.note, seen=self._seen)
        link.pair = frozenset((hub, other))
        self.machines[hub].hold(link, link.dialler_end)
        target.hold(link, link.broker_end)
        self._accepted(target, link)
        return link.dialler_end

    def _accepted(self, target: SimulatedBroker, link: Link) -> None:
        assert target.broker.links is not None, "it is a hub"
        target.broker.links.accepted(link.broker_end)


@attrs.define
class Ledger:
    """Messages that were confirmed, delivered, settled."""

    confirmed: set[Key] = attrs.field(factory=set)
    delivered: Counter[Key] = attrs.field(factory=Counter)
    is_competing: bool = False
    """Whether a queue has several consumers. Then what one has read already may have come to another since, and was
    settled there; and what was not sent yet to a consumer that goes comes to the other one behind later messages.
    """
    settled: dict[str, float] = attrs.field(factory=dict)
    """Message-ids, with the time: where a hub had to send anew, there are two messages of one key."""
    highest: dict[tuple[str, str], int] = attrs.field(factory=dict)
    unmarked: set[Key] = attrs.field(factory=set)
    marked_count: int = 0

    def arrived(self, key: Key, message: Message, consumer: str) -> None:
        """Note a delivery. Raises LawBrokenError."""
        producer, number = key
        is_marked = "true" in (message.headers.get("possible-duplicate"), message.headers.get("redelivered"))
        self.marked_count += is_marked
        self.delivered[key] += 1
        late_seconds = LATE_SECONDS if self.is_competing else 0.0
        if trio.current_time() - self.settled.get(message.message_id, math.inf) >= late_seconds:
            raise LawBrokenError(f"settled: {key} comes to {consumer} again")
        if not is_marked and (key in self.unmarked or (self.delivered[key] > 1 and not self.is_competing)):
            raise LawBrokenError(f"marked: {key} comes to {consumer} a second time, without a mark")
        if not is_marked:
            self.unmarked.add(key)
        if not is_marked:
            before = self.highest.get((consumer, producer), -1)
            if number <= before and not self.is_competing:
                raise LawBrokenError(f"order: {key} comes to {consumer} behind {before}")
            self.highest[consumer, producer] = number


def network_faults(
    random: Random, *, cut: Sequence[float], half_cut: Sequence[float], split: Sequence[float], late: Sequence[float]
) -> Faults:
    """Draw faults of the network, each from a few rates; `late`: the longest delay in seconds."""
    return Faults(
        cut=random.choice(cut),
        half_cut=random.choice(half_cut),
        split=random.choice(split),
        delay_seconds=(0.0, random.choice(late)),
        stall=random.choice((0.0, 0.05)),
    )


@attrs.frozen
class Plan:
    """Shape of one history."""

    hubs: tuple[str, ...]
    queues: tuple[str, ...]
    faults: Faults
    tables: dict[str, Any]
    producers_count: int
    messages_count: int

    @classmethod
    def of(cls, seed: int) -> Plan:
        random = Random(f"cluster {seed}")
        hubs = tuple(f"hub{number}" for number in range(1, random.randint(2, 4) + 1))
        faults = attrs.evolve(
            network_faults(
                random,
                cut=(0.0, 0.005, 0.02),
                half_cut=(0.0, 0.002, 0.01),
                split=(0.0, 0.1, 0.5),
                late=(0.0, 0.01, 0.3),
            ),
            crash_seconds=random.choice((None, (2.0, 10.0), (5.0, 60.0))),
            disk=random.choice((0.0, 0.0, 0.01)),
        )
        return cls(
            hubs,
            tuple(f"/queue/{hub}.{letter}" for hub in hubs for letter in "ab"[: random.randint(1, 2)]),
            faults,
            {"destinations": {"/queue/>": {"count_max": random.choice((3, 20, 1000))}}},
            random.randint(1, 4),
            random.choice((20, 60)),
        )


class History:
    """One history of a plan."""

    def __init__(self, world: ClusterSimulation, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.ledger = Ledger()
        self.consumers_count = 1
        """Consumers of each queue."""

    async def play(self) -> None:
        """Play all of it. Raises LawBrokenError."""
        await self.world.start(**self.plan.tables)
        async with trio.open_nursery() as consumers:
            self._start_consumers(consumers)
            over = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_the_faults, over)
                await self._produce_all()
                over.set()
            await self._run_empty()
            consumers.cancel_scope.cancel()

    def _start_consumers(self, nursery: trio.Nursery) -> None:
        for queue in self.plan.queues:
            for number in range(self.consumers_count):
                nursery.start_soon(self._consume, queue, Random(f"{self.world.seed} {queue} {number}"))

    async def _produce_all(self) -> None:
        """Return when all is sent and confirmed."""
        async with trio.open_nursery() as producers:
            for number in range(self.plan.producers_count):
                producers.start_soon(self._produce, Random(f"{self.world.seed} producer {number}"))

    async def _end_the_faults(self, over: trio.Event) -> None:
        """End them after a minute, or when all is sent; then all is to be done within a time."""
        with trio.move_on_after(60):
            await over.wait()
        await self.world.calm()
        with trio.move_on_after(CALM_SECONDS):
            await over.wait()
            return
        raise LawBrokenError(f"going on: senders still wait: {self._waits()}")

    async def _run_empty(self) -> None:
        with trio.move_on_after(CALM_SECONDS):
            while left := self._left():  # noqa: ASYNC110 - of the brokers, which have no event for it
                await trio.sleep(0.5)
            lost = self.ledger.confirmed - set(self.ledger.delivered)
            if lost:
                raise LawBrokenError(f"nothing is lost: {sorted(lost)[:5]} of {len(self.ledger.confirmed)} never came")
            return
        raise LawBrokenError(f"going on: {left}; {self._waits()}")

    def _left(self) -> dict[str, object]:
        machines = [machine for machine in self.world.machines.values() if machine.is_up]
        rows = [row for machine in machines for row in machine.report()["destinations"]]
        return {row["name"]: row["depth_count"] for row in rows if row["depth_count"]}

    def _waits(self) -> str:
        told = [
            chain["words"]
            for machine in self.world.machines.values()
            if machine.is_up
            for chain in machine.report()["chains"]
        ]
        return "; ".join(told) or "nobody waits on anything"

    # ------------------------------------------------------------------ clients

    def _hubs(self) -> Sequence[str]:
        return self.plan.hubs

    async def _client(self, name: str, random: Random) -> Client:
        hub = self.world.machines[random.choice(self._hubs())]
        return await self.world.client(hub, name=name, retry_seconds=5.0)

    async def _produce(self, random: Random) -> None:
        """Send over one connection after the other; each is a producer of its own."""
        left_count = self.plan.messages_count
        while left_count > 0:
            client: Client | None = None
            try:
                client = await self._client("producer", random)
                number = 0
                while left_count > 0:
                    count = random.choice((1, 1, 3, 10))
                    queue = random.choice(self.plan.queues)
                    sent = []
                    for _ in range(count):
                        receipt = f"r{number}"
                        headers = {**PERSISTENT, "receipt": receipt, "producer": client.name, "number": str(number)}
                        await client.publish(queue, "x" * random.choice((1, 1, 3000)), headers, receipt=False)
                        sent.append((receipt, (client.name, number)))
                        number += 1
                    left_count -= count
                    for receipt, key in sent:
                        await client.receipt(receipt, math.inf)
                        self.ledger.confirmed.add(key)
                    await trio.sleep(random.random() * 2)
                await client.close()
            except LOST:
                if client is not None:
                    client.vanish()
                await trio.sleep(random.random())

    async def _consume(self, queue: str, random: Random) -> None:
        """Receive and acknowledge over one connection after the other."""
        while True:
            client: Client | None = None
            try:
                client = await self._client("consumer", random)
                messages = await client.subscribe(queue, {"prefetch-count": random.choice(("1", "5", "100"))})
                with trio.move_on_after(random.choice((3.0, 1e6, 1e6)) if not self.world._is_calm else 1e6):
                    async for message in messages:
                        await self._settle(client, messages, message, random)
            except LOST:
                await trio.sleep(random.random())
            if client is not None:
                client.vanish()

    async def _settle(self, client: Client, messages: Subscription, message: Message, random: Random) -> None:
        key = (message.headers["producer"], int(message.headers["number"]))
        self.ledger.arrived(key, message, client.name)
        if random.random() < 0.2:
            await trio.sleep(random.random())
        how = random.random()
        if how < 0.05 and not self.world._is_calm:
            await messages.nack(message)
        elif how < 0.5:
            await client._send("ACK", {"id": message.headers["ack"]}, b"", 60.0)
        else:
            await messages.acknowledge(message)
            self.ledger.settled[message.message_id] = trio.current_time()


async def laws_hold(seed: int) -> None:
    """Play the cluster of a seed. Raises LawBrokenError."""
    plan = Plan.of(seed)
    async with ClusterSimulation(hubs=plan.hubs, seed=seed, faults=plan.faults) as world:
        await History(world, plan).play()
