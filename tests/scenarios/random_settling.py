"""Random ACKs and NACKs that are done in many bites, with everything that can come between two of them.

Two references. `OneConsumer` knows exactly what a lone consumer must be sent, with which marks, whatever is done in how
many bites: always the lowest that nobody holds. `Crowd` has several consumers, groups and priorities, and connections
that end: it knows who may hold what, and what must come out in the end.
"""

from __future__ import annotations

import random
from bisect import insort
from collections import Counter
from typing import Any

import attrs
import trio

from sluiceway.protocols.stomp.session import Session
from tests.scenarios.client import Client, Delivery
from tests.scenarios.stage import Stage

Q = "/queue/work"
DEAD = "/queue/dead"


def session_of(stage: Stage, client: Client) -> Session:
    """The broker's side of this client."""
    return next(c.session for c in stage.broker.connections if client.name in str(c.session.peer))


@attrs.define
class OneConsumer:
    """A lone consumer, and the queue as it must be."""

    stage: Stage
    chance: random.Random
    sender: Client
    client: Client
    ack: str
    prefetch_count: int
    redeliveries_max: int | None
    available: list[int] = attrs.field(factory=list)
    in_hand: list[tuple[int, Delivery]] = attrs.field(factory=list)
    seen: dict[int, int] = attrs.field(factory=dict)
    dead: list[int] = attrs.field(factory=list)
    sent_count: int = 0
    story: list[object] = attrs.field(factory=list)
    """The latest rounds."""

    async def subscribe(self) -> None:
        await self.client.subscribe(Q, ack=self.ack, prefetch_count=str(self.prefetch_count))

    async def send(self, count: int) -> None:
        first, self.sent_count = self.sent_count, self.sent_count + count
        await self.sender.send_all(Q, range(first, self.sent_count))
        self.available += range(first, self.sent_count)

    async def check(self) -> None:
        """All that it has room for has come, in order, with the right marks."""
        await self.stage.settled_down()
        self.client.receive_now()
        while self.client.messages:
            delivery = self.client.messages.popleft()
            number = self.available.pop(0)
            failures = self.seen.get(number)
            marks = (False, 1) if failures is None else (True, failures + 1)
            came = int(delivery.text), delivery.redelivered, delivery.delivery_count
            assert came == (number, *marks), (came, (number, *marks), self.story)
            self.in_hand.append((number, delivery))
        assert len(self.in_hand) <= self.prefetch_count
        assert not self.available or len(self.in_hand) == self.prefetch_count, "it has room, and gets nothing"
        assert session_of(self.stage, self.client).unsettled_count == len(self.in_hand)
        waiting_count = session_of(self.stage, self.sender).lanes.parked_count
        assert self.stage.depth_count(Q) + waiting_count == len(self.in_hand) + len(self.available)

    def gives_back(self, gone: list[tuple[int, Delivery]], charged: list[int]) -> None:
        for number, _delivery in gone:
            self.seen[number] = self.seen.get(number, 0) + (number in charged)
            if self.redeliveries_max is not None and self.seen[number] > self.redeliveries_max:
                self.dead.append(number)
            else:
                insort(self.available, number)

    def taken(self, places: list[int]) -> list[tuple[int, Delivery]]:
        """What ACKs or NACKs that name these cover."""
        covered = set(range(max(places) + 1)) if self.ack == "client" else set(places)
        gone = [self.in_hand[place] for place in sorted(covered)]
        self.in_hand = [each for place, each in enumerate(self.in_hand) if place not in covered]
        return gone

    async def round(self) -> None:
        """ACKs, or NACKs at the end of which others send."""
        await self.send(self.chance.choice([0, 1, 5, 30]))
        await self.check()
        if not self.in_hand:
            return
        if self.chance.random() < 0.1:
            await self.client.frame("UNSUBSCRIBE", {"id": "s"})
            self.gives_back(self.in_hand, [])
            self.in_hand = []
            await self.subscribe()
            return
        command = self.chance.choice(["ACK", "NACK", "NACK"])
        count = self.chance.choice([1, 2, len(self.in_hand)]) if self.ack != "client" else 1
        places = self.chance.sample(range(len(self.in_hand)), min(count, len(self.in_hand)))
        named = [self.client.naming(self.in_hand[place][1]) for place in places]
        charged = [self.in_hand[place][0] for place in places]
        receipt_id = self.client.new_receipt_id()
        if len(named) == 1 and self.chance.random() < 0.5:  # behind others it would be a run of its own
            named[-1]["receipt"] = receipt_id
        session = session_of(self.stage, self.client)
        before_count = session.unsettled_count
        await self.client.send_raw(b"".join(self.client.encode(command, each) for each in named))
        for _ in range(20):  # until it has begun; it may be over in one go
            if session.unsettled_count == before_count:
                await trio.lowlevel.checkpoint()
        for _ in range(self.chance.randrange(4)):
            await trio.lowlevel.checkpoint()
        gone = self.taken(places)
        self.story = [*self.story[-5:], (command, charged, [number for number, _delivery in gone])]
        if command == "NACK":
            self.gives_back(gone, charged)
        await self.send(self.chance.choice([0, 1, 3]))
        if "receipt" in named[-1]:
            while receipt_id not in self.client.receipts:
                await self.client._receive()
            assert not session.subscriptions.work.is_busy, "the RECEIPT has come too early"


class Crowd:
    """Several consumers of one queue."""

    def __init__(self, stage: Stage, chance: random.Random, *, groups: bool, priorities: bool) -> None:
        self.stage = stage
        self.chance = chance
        self.groups = groups
        self.priorities = priorities
        self.consumers: list[Client] = []
        self.made_count = 0
        self.sent_count = 0
        self.held: dict[int, Client] = {}
        """Who has it, and has not said that it is done with it."""
        self.deliveries: dict[Client, dict[int, Delivery]] = {}
        """In the order in which they came."""
        self.came: Counter[int] = Counter()
        self.acked: set[int] = set()
        """The broker has said so."""
        self.perhaps: set[int] = set()
        """An ACK was sent by a connection that broke."""
        self.unconfirmed: dict[Client, set[int]] = {}
        self.ids: dict[Client, int] = {}
        self.acks: dict[Client, str] = {}

    def group_of(self, number: int) -> str:
        return "abc"[number % 3]

    async def send(self, sender: Client, count: int) -> None:
        frames = []
        for number in range(self.sent_count, self.sent_count + count):
            headers = {"destination": Q}
            if self.groups and number % 4:
                headers["group"] = self.group_of(number)
            if self.priorities:
                headers["priority"] = str(4 + number % 2)
            frames.append(sender.encode("SEND", headers, str(number)))
        self.sent_count += count
        await sender.send_raw(b"".join(frames))

    async def join(self) -> None:
        self.made_count += 1
        client = await self.stage.connect(name=f"consumer {self.made_count}")
        self.consumers.append(client)
        self.ids[client] = 0
        await self.subscribe(client)

    async def subscribe(self, client: Client) -> None:
        self.ids[client] += 1
        self.acks[client] = self.chance.choice(["client", "client-individual"])
        self.deliveries[client] = {}
        self.unconfirmed.setdefault(client, set())
        credit = str(self.chance.choice([1, 7, 50]))
        headers = {"destination": Q, "id": f"s{self.ids[client]}", "ack": self.acks[client], "prefetch-count": credit}
        await client.frame("SUBSCRIBE", headers)

    def look(self) -> None:
        """What has come, may it have come?"""
        for client in self.consumers:
            client.receive_now()
            assert client.error is None, client.error
            self.came.update(int(delivery.text) for delivery in client.messages)
        for client in self.consumers:
            while client.messages:
                delivery = client.messages.popleft()
                number = int(delivery.text)
                assert number not in self.acked, f"{number} was acknowledged"
                if delivery.headers["subscription"] != f"s{self.ids[client]}":
                    continue  # on its way when the subscription ended
                if number not in self.perhaps:
                    assert number not in self.held, f"{number} is with {self.held[number].name}"
                assert self.came[number] > 1 or not delivery.redelivered, f"{number} was never here before"
                if self.groups and number % 4:
                    others = [n for n, who in self.held.items() if who is not client and n % 4 and n % 3 == number % 3]
                    assert not others, f"{number} came though others have {others} of its group"
                self.held[number] = client
                self.deliveries[client][number] = delivery

    def let_go(self, client: Client) -> None:
        for number in self.deliveries[client]:
            self.held.pop(number, None)
        self.deliveries[client] = {}

    async def act(self) -> None:
        client = self.chance.choice(self.consumers)
        mine = list(self.deliveries[client])
        what = self.chance.random()
        if what < 0.04 and len(self.consumers) > 1:
            self.look()
            client.vanish()
            self.perhaps |= self.unconfirmed.pop(client)
            self.let_go(client)
            self.consumers.remove(client)
            await self.join()
        elif what < 0.08 and len(self.consumers) > 1:
            self.let_go(client)
            self.consumers.remove(client)
            await client.disconnect()
            self.came.update(int(delivery.text) for delivery in client.messages)  # too late for it
            self.acked |= self.unconfirmed.pop(client)
            await self.join()
        elif what < 0.14:
            await client.frame("UNSUBSCRIBE", {"id": f"s{self.ids[client]}"})
            self.let_go(client)
            await self.subscribe(client)
        elif what < 0.2:
            await client.sync()
            self.look()
            self.acked |= self.unconfirmed[client]
            self.unconfirmed[client] = set()
        elif mine:
            await self.acknowledge(client, mine)

    async def acknowledge(self, client: Client, mine: list[int]) -> None:
        command = self.chance.choice(["ACK", "NACK"])
        cumulative = self.acks[client] == "client"
        if cumulative:
            named = [self.chance.choice(mine)]
            covered = mine[: mine.index(named[0]) + 1]
        else:
            covered = named = self.chance.sample(mine, self.chance.randint(1, len(mine)))
        frames = [client.encode(command, client.naming(self.deliveries[client][number])) for number in named]
        for number in covered:
            del self.deliveries[client][number]
            self.held.pop(number, None)
            if command == "ACK":
                self.unconfirmed[client].add(number)
        await client.send_raw(b"".join(frames))

    async def finish(self) -> None:
        """Everybody goes; each message comes out once, but those that were acknowledged."""
        for client in self.consumers:
            await client.sync()
            self.look()
            self.acked |= self.unconfirmed[client]
        self.check_books()
        for client in self.consumers:
            client.vanish()
        await self.stage.settled_down()
        await trio.sleep(1)
        left = Counter(int(body) for body in await self.stage.drain_queues())
        assert not [number for number, count in left.items() if count > 1]
        assert not left.keys() & self.acked, "acknowledged, and still there"
        lost = set(range(self.sent_count)) - left.keys() - self.acked - self.perhaps
        assert not lost, f"lost: {sorted(lost)}"

    def check_books(self) -> None:
        """What the broker believes that everybody has."""
        held_count = sum(len(deliveries) for deliveries in self.deliveries.values())
        known = sum(session_of(self.stage, client).unsettled_count for client in self.consumers)
        assert known >= held_count
        assert sum(queue.unsettled_count for queue in self.stage.partitions(Q)) == known


def make_small(monkeypatch: Any) -> None:
    """Bites of two or three deliveries, one step at a time."""
    from sluiceway.protocols.stomp import delivery, ledger, settling
    from sluiceway.queues import cursors, steps

    monkeypatch.setattr(ledger, "BITE_CHUNKS", 2)
    monkeypatch.setattr(ledger, "BITE_COUNT", 3)
    monkeypatch.setattr(settling, "BITE_CHUNKS", 2)
    monkeypatch.setattr(settling, "_UNITS_PER_STEP", 2)
    monkeypatch.setattr(delivery, "MESSAGES_PER_STEP", 1)
    monkeypatch.setattr(cursors, "AGAIN_COUNT_MAX", 2)
    monkeypatch.setattr(steps, "AT_ONCE_COUNT", 1)
    monkeypatch.setattr(steps, "STEP_COUNT", 1)
