"""Whole hubs whose shards move, with all kinds of destinations: durable subscriptions, transactions, topics, logs.

The hubs, faults and steps of moving.py; other clients. What each of them is told is in books of its own. Laws, beside
those of moving.py about owners:

    durable      what a topic has confirmed comes to each durable subscription, a second time marked only, unmarked in
                 the order of its publisher; an acknowledged message does not come again
    topics       to one subscription nothing comes twice without a mark, and unmarked ones of a publisher come in its
                 order; when the faults have ended each message comes to all subscribers, at whichever hub
    transaction  all of it takes effect, or nothing: SENDs to two queues and a log; an ACK and a SEND. What was aborted,
                 or had no COMMIT, does nothing; what is confirmed is done; each message is moved once
    index        a record of a log has the index that its RECEIPT says; an index names one record to all readers, before
                 and behind every fault; records of a publisher are in its order, twice with a mark only
    group        a group gets each record; a second time marked, and not behind an ACK that was confirmed
    refused      clients are refused for what passes only: a shard that moves, a flow that was lost
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from random import Random
from typing import Final

import attrs
import trio

from sluiceway.client.errors import RefusedError
from sluiceway.embedded_messages import Message
from sluiceway.simulation import Client, Subscription
from tests.cluster.moving import MovingHistory, MovingPlan, MovingSimulation
from tests.cluster.shared_engine import LawBrokenError
from tests.cluster.whole import CALM_SECONDS, LOST, PERSISTENT, Key, Ledger

PUBLISHED_COUNT: Final = 40
"""Messages of each publisher."""
TRANSACTIONS_COUNT: Final = 12
SUBSCRIPTIONS: Final = ("audit", "billing")
LAST_COUNT: Final = 3
"""Messages of each hub when the faults have ended."""
PASSING_CODES: Final = (
    "transaction-lost", "unknown-delivery",  # what went with a flow
    "shutdown", "heart-beat-missed", "durable-not-stored", "group-not-stored",  # a hub that stops, a network, a store
)  # fmt: skip
"""Codes of ERRORs behind which a client begins again."""
LATE_SECONDS: Final = 10.0
"""Time in which what must not come would have come."""
MARKS: Final = ("possible-duplicate", "redelivered")


def is_marked(message: Message) -> bool:
    """Return whether a delivery says that the message may have come before."""
    return any(message.headers.get(mark) == "true" for mark in MARKS)


def key_of(message: Message) -> Key:
    """Return whose message it is, and its number there."""
    return message.headers["producer"], int(message.headers["number"])


class Traffic:
    """Clients of one kind. Their connections are lost and made again."""

    def __init__(self, history: MixedHistory, name: str) -> None:
        self.history = history
        self.name = name
        number = Random(f"{history.world.seed} {name}").randint(0, 999)
        self.place = f"{name}{number}"
        """Name that its destinations have in common."""

    def publishers(self) -> list[Callable[[Random], Awaitable[None]]]:
        """Return what ends when all is sent."""
        return []

    def consumers(self) -> list[Callable[[Random], Awaitable[None]]]:
        """Return what is cancelled in the end."""
        return []

    def left(self) -> str:
        """Return words about what has not come yet; empty: nothing is to come."""
        return ""

    def check(self) -> None:
        """Look at all of it, when nothing is to come. Raises LawBrokenError."""

    async def last(self) -> None:
        """Do what can be done when the faults have ended."""

    # ------------------------------------------------------------------ for all kinds

    async def connected(self, what: str, random: Random, serve: Callable[[Client], Awaitable[None]]) -> None:
        """Serve over one connection after the other, until it returns. Raises LawBrokenError."""
        while True:
            client: Client | None = None
            try:
                client = await self.history._client(f"{self.name}-{what}", random)
                await serve(client)
                await client.close()
                return
            except RefusedError as error:
                if not (error.is_passing or error.code in PASSING_CODES):
                    raise LawBrokenError(f"refused: {self.name} {what}: {error}") from error
            except LOST:
                pass
            finally:
                if client is not None:
                    client.vanish()
            await trio.sleep(random.random())

    async def publish(
        self, what: str, destination: str, random: Random, confirmed: Callable[[Key, Mapping[str, str]], None]
    ) -> None:
        """Send all messages of a publisher. Each connection is a publisher of its own to the books."""
        left_count = PUBLISHED_COUNT

        async def serve(client: Client) -> None:
            nonlocal left_count
            number = 0
            while left_count > 0:
                sent = []
                for _ in range(random.choice((1, 1, 3, 8))):
                    headers = {**PERSISTENT, "producer": client.name, "number": str(number), "receipt": f"r{number}"}
                    await client.publish(destination, "x" * random.choice((1, 1, 3000)), headers, receipt=False)
                    sent.append((client.name, number))
                    number += 1
                left_count -= len(sent)
                for key in sent:
                    confirmed(key, await client.receipt(f"r{key[1]}", math.inf))
                await trio.sleep(random.random() * 3)

        await self.connected(what, random, serve)

    async def settle(self, client: Client, messages: Subscription, message: Message, random: Random) -> bool:
        """Refuse or acknowledge a message. Returns whether the broker has said that it has the ACK."""
        if random.random() < 0.2:
            await trio.sleep(random.random())
        how = random.random()
        if how < 0.05 and not self.history.world._is_calm:
            await messages.nack(message)
        elif how < 0.4:
            await client._send("ACK", {"id": message.headers["ack"]}, b"", 60.0)
        else:
            await messages.acknowledge(message)
            return True
        return False

    def patience_seconds(self, random: Random) -> float:
        """Return the time after which a consumer goes."""
        return math.inf if self.history.world._is_calm else random.choice((3.0, 1e6, 1e6))


class Durable(Traffic):
    """A topic with durable subscriptions."""

    def __init__(self, history: MixedHistory) -> None:
        super().__init__(history, "durable")
        self.topic = f"/topic/{self.place}"
        self.ledgers = {name: Ledger() for name in SUBSCRIPTIONS}
        self.confirmed: set[Key] = set()
        self._made: set[str] = set()
        self._are_made = trio.Event()

    def publishers(self) -> list[Callable[[Random], Awaitable[None]]]:
        return [self._publish, self._publish]

    def consumers(self) -> list[Callable[[Random], Awaitable[None]]]:
        return [partial(self._consume, name) for name in SUBSCRIPTIONS]

    async def _publish(self, random: Random) -> None:
        await self._are_made.wait()
        await self.publish("publisher", self.topic, random, lambda key, _receipt: self.confirmed.add(key))

    async def _consume(self, name: str, random: Random) -> None:
        async def serve(client: Client) -> None:
            headers = {"durable": "true", "x-queue-name": name, "prefetch-count": random.choice(("1", "5", "100"))}
            messages = await client.subscribe(self.topic, headers)
            self._made.add(name)
            if len(self._made) == len(SUBSCRIPTIONS):
                self._are_made.set()
            with trio.move_on_after(self.patience_seconds(random)):
                async for message in messages:
                    self.ledgers[name].arrived(key_of(message), message, client.name)
                    if await self.settle(client, messages, message, random):
                        self.ledgers[name].settled[message.message_id] = trio.current_time()

        while True:
            await self.connected(name, random, serve)

    def left(self) -> str:
        for name, ledger in self.ledgers.items():
            missing = self.confirmed - ledger.delivered.keys()
            if missing:
                return f"durable: {sorted(missing)[:5]} of {len(self.confirmed)} never came to {name}"
        return ""


class Topic(Traffic):
    """A topic with subscribers that come and go."""

    def __init__(self, history: MixedHistory) -> None:
        super().__init__(history, "topic")
        self.topic = f"/topic/{self.place}"
        self.arrived_count = 0

    def publishers(self) -> list[Callable[[Random], Awaitable[None]]]:
        return [partial(self.publish, "publisher", self.topic, confirmed=lambda _key, _receipt: None)] * 2

    def consumers(self) -> list[Callable[[Random], Awaitable[None]]]:
        return [self._consume, self._consume]

    async def _consume(self, random: Random) -> None:
        async def serve(client: Client) -> None:
            ledger = Ledger()  # what is new to this subscription
            messages = await client.subscribe(self.topic, {"ack": "auto"})
            with trio.move_on_after(self.patience_seconds(random)):
                async for message in messages:
                    ledger.arrived(key_of(message), message, client.name)
                    self.arrived_count += 1

        while True:
            await self.connected("subscriber", random, serve)

    def left(self) -> str:
        return "" if self._agree() else "topics: hubs do not agree who hears what"

    def _agree(self) -> bool:
        hubs = {name: machine.broker for name, machine in self.history.world.machines.items() if machine.is_up}
        for name, broker in hubs.items():
            assert broker.links is not None, "it is a hub"
            book = broker.links.topics.book
            others = hubs.keys() - {name}
            if not (set(broker.links.reachable) >= others and book.is_complete()):
                return False
            if not all(book.is_seen_by(other) for other in others):
                return False
        return True

    async def last(self) -> None:
        hubs = [machine for machine in self.history.world.machines.values() if machine.is_up]
        clients = [await self.history.world.client(hub, name="last") for hub in hubs]
        subscriptions = [await client.subscribe(self.topic, {"ack": "auto"}) for client in clients]
        wanted = []
        for client in clients:
            for number in range(LAST_COUNT):
                wanted.append((client.name, number))
                await client.publish(self.topic, "", {**PERSISTENT, "producer": client.name, "number": str(number)})
        for client, messages in zip(clients, subscriptions, strict=True):
            found = []
            for _ in wanted:
                try:
                    found.append(key_of(await messages.receive(acknowledge=False)))
                except TimeoutError as error:
                    raise LawBrokenError(
                        f"topics: {sorted(set(wanted) - set(found))} did not come to {client.name}"
                    ) from error
            if sorted(found, key=lambda key: key[0]) != sorted(wanted, key=lambda key: key[0]):
                raise LawBrokenError(f"topics: to {client.name} came {found}")
            await client.close()


@attrs.define
class Group:
    """One transaction."""

    parts: frozenset[str]
    """Places of all that it does."""
    state: str = "open"
    """`open`, `doubt` when COMMIT is on its way, then `done`; or `aborted`."""
    seen: set[str] = attrs.field(factory=set)


class Transactions(Traffic):
    """Transactions over two queues and a log, and those that move a message from one queue to the other."""

    def __init__(self, history: MixedHistory) -> None:
        super().__init__(history, "transaction")
        self.queues = tuple(f"/queue/{{{self.place}}}.{letter}" for letter in "ab")
        self.log = f"/log/{{{self.place}}}.log"
        self.groups: dict[str, Group] = {}
        self.moved: dict[str, str] = {}
        """Message that was moved, by its message-id, and the transaction that did it."""
        self.ledgers = {queue: Ledger() for queue in self.queues}
        self.records = Records(self.name)

    def publishers(self) -> list[Callable[[Random], Awaitable[None]]]:
        return [self._publish, self._publish]

    def consumers(self) -> list[Callable[[Random], Awaitable[None]]]:
        first, second = self.queues
        return [
            partial(self._consume, first, self._move),
            partial(self._consume, second, self._take),
            partial(self.records.follow, self, self.log, self._recorded),
        ]

    async def _publish(self, random: Random) -> None:
        left_count = TRANSACTIONS_COUNT

        async def serve(client: Client) -> None:
            nonlocal left_count
            number = 0
            while left_count > 0:
                left_count -= 1
                name = f"{client.name}-{left_count}"
                places = [random.choice((*self.queues, self.log)) for _ in range(random.randint(2, 5))]
                parts = [f"{place} {part}" for part, place in enumerate(places)]
                group = self.groups[name] = Group(frozenset(parts))
                await client.request("BEGIN", {"transaction": name})
                for part, place in zip(parts, places, strict=True):
                    headers = {**PERSISTENT, "producer": client.name, "number": str(number), "of": name, "part": part}
                    await client.publish(place, "y", headers, transaction=name, receipt=False)
                    number += 1
                if random.random() < 0.15:
                    group.state = "aborted"
                    await client.request("ABORT", {"transaction": name})
                else:
                    await self._commit(client, name, group)
                await trio.sleep(random.random() * 6)

        await self.connected("publisher", random, serve)

    async def _commit(self, client: Client, name: str, group: Group) -> None:
        group.state = "doubt"
        try:
            await client.request("COMMIT", {"transaction": name}, timeout_seconds=math.inf)
        except RefusedError as error:
            if error.code == "transaction-lost":
                group.state = "lost"
            raise
        group.state = "done"

    async def _consume(
        self, queue: str, use: Callable[[Client, Subscription, Message, Random], Awaitable[bool]], random: Random
    ) -> None:
        ledger = self.ledgers[queue]

        async def serve(client: Client) -> None:
            messages = await client.subscribe(queue, {"prefetch-count": random.choice(("1", "5", "100"))})
            with trio.move_on_after(self.patience_seconds(random)):
                async for message in messages:
                    ledger.arrived(key_of(message), message, client.name)
                    self._seen(message)
                    if await use(client, messages, message, random):
                        ledger.settled[message.message_id] = trio.current_time()

        while True:
            await self.connected("consumer", random, serve)

    def _seen(self, message: Message) -> None:
        name, part = message.headers["of"], message.headers["part"]
        group = self.groups[name]
        if group.state not in ("doubt", "done"):
            raise LawBrokenError(f"transaction: {part} of {name} came, which is {group.state}")
        group.seen.add(part)
        if moved := message.headers.get("moved"):
            before = self.moved.setdefault(moved, name)
            if before != name:
                raise LawBrokenError(f"transaction: {moved} was moved by {before} and by {name}")

    async def _take(self, client: Client, messages: Subscription, message: Message, random: Random) -> bool:
        return await self.settle(client, messages, message, random)

    async def _move(self, client: Client, messages: Subscription, message: Message, random: Random) -> bool:
        name = f"{client.name}-{message.message_id}"
        group = self.groups[name] = Group(frozenset(["moved"]))
        await client.request("BEGIN", {"transaction": name})
        headers = {**PERSISTENT, "producer": client.name, "number": str(len(self.groups)), "of": name, "part": "moved"}
        headers["moved"] = message.message_id
        await client.publish(self.queues[1], "z", headers, transaction=name, receipt=False)
        await client._send("ACK", {"id": message.headers["ack"], "transaction": name}, b"", 60.0)
        if random.random() < 0.2:
            await trio.sleep(random.random())
        await self._commit(client, name, group)
        return True

    def _recorded(self, message: Message) -> None:
        self._seen(message)

    def left(self) -> str:
        for name, group in self.groups.items():
            if group.seen != group.parts and (group.seen or group.state == "done"):
                lacking = sorted(group.parts - group.seen)
                return f"transaction: of {name}, which is {group.state}, {lacking} of {len(group.parts)} never came"
        return ""


class Records:
    """What readers know of one log."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.by_index: dict[int, Key] = {}
        self.places: dict[Key, int] = {}
        self.highest: dict[str, int] = {}

    def read(self, message: Message) -> None:
        """Note a record. Raises LawBrokenError."""
        index, key = int(message.headers["index"]), key_of(message)
        if self.by_index.setdefault(index, key) != key:
            raise LawBrokenError(f"index: {self._name} has {self.by_index[index]} and {key} at {index}")

    async def follow(self, traffic: Traffic, log: str, use: Callable[[Message], None], random: Random) -> None:
        """Read each record once, over one connection after the other. Raises LawBrokenError."""
        following = 0

        async def serve(client: Client) -> None:
            nonlocal following
            start = str(following) if following else "earliest"
            messages = await client.subscribe(log, {"from": start, "ack": "auto", "prefetch-count": "20"})
            with trio.move_on_after(traffic.patience_seconds(random)):
                async for message in messages:
                    if message.headers.get("gap") == "true":
                        following = self._skip(message)
                        continue
                    index = int(message.headers["index"])
                    if index != following:
                        raise LawBrokenError(f"index: {self._name} continues with {index}, not {following}")
                    following += 1
                    self.read(message)
                    self.in_order(message, index)
                    use(message)

        while True:
            await traffic.connected("reader", random, serve)

    def in_order(self, message: Message, index: int) -> None:
        """Note a record that a reader of all has come to. Raises LawBrokenError."""
        key = producer, number = key_of(message)
        before = self.places.setdefault(key, index)
        if is_marked(message):
            return
        if before != index:
            raise LawBrokenError(f"index: {self._name} has {key} at {before} and, without a mark, at {index}")
        if number <= self.highest.get(producer, -1):
            raise LawBrokenError(f"index: {self._name} has {key} behind {self.highest[producer]}")
        self.highest[producer] = number

    def _skip(self, message: Message) -> int:
        first, end = int(message.headers["gap-from"]), int(message.headers["gap-to"])
        if known := [index for index in range(first, end) if index in self.by_index]:
            raise LawBrokenError(f"index: {self._name} has lost {known}, which were read")
        return end


class Log(Traffic):
    """A log with a reader that keeps its place, and a group."""

    def __init__(self, history: MixedHistory) -> None:
        super().__init__(history, "log")
        self.log = f"/log/{self.place}"
        self.records = Records(self.name)
        self.confirmed: dict[Key, int] = {}
        self.ledger = Ledger()

    def publishers(self) -> list[Callable[[Random], Awaitable[None]]]:
        return [partial(self.publish, "publisher", self.log, confirmed=self._confirmed)] * 2

    def consumers(self) -> list[Callable[[Random], Awaitable[None]]]:
        return [partial(self.records.follow, self, self.log, lambda _message: None), self._consume]

    def _confirmed(self, key: Key, receipt: Mapping[str, str]) -> None:
        index = self.confirmed[key] = int(receipt["index"])
        if self.records.by_index.setdefault(index, key) != key:
            raise LawBrokenError(f"index: {key} was confirmed at {index}, where {self.records.by_index[index]} is")

    async def _consume(self, random: Random) -> None:
        async def serve(client: Client) -> None:
            headers = {"group": "all", "from": "earliest", "prefetch-count": random.choice(("1", "5", "100"))}
            messages = await client.subscribe(self.log, headers)
            with trio.move_on_after(self.patience_seconds(random)):
                async for message in messages:
                    if message.headers.get("gap") == "true":
                        continue
                    self.records.read(message)
                    index = message.headers["index"]
                    # To a group a record is new, however often it was sent.
                    told = {"redelivered": message.headers.get("redelivered", "false"), "message-id": index}
                    self.ledger.arrived(("log", int(index)), attrs.evolve(message, headers=told), client.name)
                    if await self.settle(client, messages, message, random):
                        self.ledger.settled[index] = trio.current_time()

        while True:
            await self.connected("group", random, serve)

    def left(self) -> str:
        for key, index in self.confirmed.items():
            if key not in self.records.places:
                return f"index: {key}, confirmed at {index}, was never read"
            if ("log", index) not in self.ledger.delivered:
                return f"group: {key}, confirmed at {index}, never came to the group"
        return ""


class MixedHistory(MovingHistory):
    """One history with clients of all kinds."""

    def __init__(self, world: MovingSimulation, plan: MovingPlan) -> None:
        super().__init__(world, plan)
        self.traffics = [Durable(self), Topic(self), Transactions(self), Log(self)]

    def _start_consumers(self, nursery: trio.Nursery) -> None:
        for traffic in self.traffics:
            for number, consume in enumerate(traffic.consumers()):
                nursery.start_soon(consume, Random(f"{self.world.seed} {traffic.name} consumer {number}"))

    async def _produce_all(self) -> None:
        async with trio.open_nursery() as nursery:
            for traffic in self.traffics:
                for number, publish in enumerate(traffic.publishers()):
                    nursery.start_soon(publish, Random(f"{self.world.seed} {traffic.name} publisher {number}"))

    async def _run_empty(self) -> None:
        with trio.move_on_after(CALM_SECONDS):
            while self.world.homeless() or any(traffic.left() for traffic in self.traffics):  # noqa: ASYNC110 - as above
                await trio.sleep(0.5)
        if homeless := self.world.homeless():
            raise LawBrokenError(f"going on: {homeless}")
        for traffic in self.traffics:
            if left := traffic.left():
                raise LawBrokenError(f"{left}; {self._waits()}")
        for traffic in self.traffics:
            await traffic.last()
        await trio.sleep(LATE_SECONDS)


async def laws_hold(seed: int) -> None:
    """Play the cluster of a seed, with clients of all kinds. Raises LawBrokenError."""
    plan = MovingPlan.of(seed)
    async with MovingSimulation(plan, seed) as world:
        await MixedHistory(world, plan).play()
