"""What a RECEIPT for an ACK says is true, and what an ERROR for one refuses was not done: by a model of what became of
each message, whatever SUBSCRIBEs, UNSUBSCRIBEs, COMMITs and ABORTs came in between.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from sluiceway.protocols.stomp.escaping import Version
from sluiceway.protocols.stomp.late import ENTRIES_MAX
from tests.scenarios.client import Client, Delivery
from tests.scenarios.stage import Stage

Q = "/queue/work"
SEEDS = 16
STEPS = 60


class _Connection:
    """A random client that keeps what the protocol promises of each message."""

    def __init__(self, stage: Stage, random: Random, version: Version, ack: str) -> None:
        self.stage, self.random, self.version, self.ack = stage, random, version, ack
        self.seen: Counter[str] = Counter()
        """What was met, so that the test can tell that it tests something."""
        self.sent_count = 0
        self.client: Client
        self.producer: Client

    async def connect(self) -> None:
        self.client = await self.stage.connect(self.version)
        self.instances: dict[str, int] = {}
        """Which subscription of that id is live, counted."""
        self.instance_count = 0
        self.deliveries: list[tuple[int, str, Delivery]] = []
        """All that were ever seen: by which subscription, its id, and what."""
        self.refused: set[str] = set()
        """By NACKs of this connection: who acknowledges such a message after all gets what he likes."""
        self.settled: set[str] = set()
        """By ACKs of this connection, as far as it was told."""
        self.settled_as: set[tuple[object, str]] = set()
        """The same, by what those ACKs called it."""
        self.open: dict[str, list[tuple[int, Delivery]]] = {}

    @property
    def alive(self) -> set[str]:
        """The bodies that the queue still has, whoever holds them."""
        if Q not in self.stage.broker.registry.destinations:
            return set()
        elements = [queue.elements for queue in self.stage.partitions(Q)]
        there = [each.get(s) for each in elements for s in range(each.first_sequence, each.next_sequence)]
        return {message.wire.rpartition(b"\n")[2].rstrip(b"\0").decode() for message in there if message is not None}

    def collect(self) -> None:
        self.client.receive_now()
        for delivery in self.client.messages:
            id = delivery.headers.get("subscription", next(iter(self.instances), ""))
            self.deliveries.append((self.instances.get(id, 0), id, delivery))
        self.client.messages.clear()

    async def step(self) -> None:
        name = self.random.choice(
            ["send", "send", "subscribe", "subscribe", "unsubscribe", "begin", "end", *["answer"] * 4, "steal"]
        )
        await getattr(self, name)()
        await self.stage.settled_down()
        self.collect()

    async def send(self) -> None:
        count = self.random.randint(1, 4)
        await self.producer.send_all(Q, range(self.sent_count, self.sent_count + count))
        self.sent_count += count

    async def subscribe(self) -> None:
        id = self.random.choice("ab")
        if id in self.instances:
            return
        self.instance_count += 1
        self.instances[id] = self.instance_count
        await self.client.subscribe(Q, id=id, ack=self.ack, prefetch_count="5")

    async def unsubscribe(self) -> None:
        if self.instances:
            id = self.random.choice(list(self.instances))
            await self.client.unsubscribe(id)
            self.collect()
            del self.instances[id]

    async def begin(self) -> None:
        name = f"t{self.random.randint(0, 1)}"
        if name not in self.open:
            self.open[name] = []
            await self.client.request("BEGIN", {"transaction": name})

    async def end(self) -> None:
        if not self.open:
            return
        name = self.random.choice(list(self.open))
        held = self.open.pop(name)
        command = self.random.choice(["COMMIT", "ABORT"])
        await self.client.request(command, {"transaction": name})
        if command == "COMMIT":
            lies = {delivery.text for _instance, delivery in held} & self.alive
            assert not lies, f"the COMMIT said that {lies} are settled"
            self.settled |= {delivery.text for _instance, delivery in held}
        elif any(instance not in self.instances.values() for instance, _delivery in held):
            self.seen["aborted after the end"] += 1

    async def steal(self) -> None:
        """Somebody else takes what is there."""
        heir = await self.stage.connect()
        await heir.subscribe(Q)
        await heir.drain(0.01)
        await heir.disconnect()

    def named_with(self, text: str) -> set[str]:
        """What an ACK of this message may have settled, or hold."""
        if self.ack != "client":
            return {text}
        instances = {instance for instance, _id, delivery in self.deliveries if delivery.text == text}
        return {delivery.text for instance, _id, delivery in self.deliveries if instance in instances}

    async def answer(self) -> None:
        if not self.deliveries:
            return
        left = [
            each for each in self.deliveries if each[0] != self.instances.get(each[1]) and each[2].text in self.alive
        ]
        choices = [self.deliveries, self.deliveries[-4:], left or self.deliveries]
        instance, id, delivery = self.random.choice(self.random.choice(choices))
        headers = self.client.naming(delivery)
        if self.version == "1.0" and self.random.random() < 0.5:
            headers.pop("subscription", None)
        text = delivery.text
        if self.random.random() < 0.1:
            before = [each.text for number, _id, each in self.deliveries if number == instance]
            self.refused.update(before if self.ack == "client" else [text])
            await self.client.frame("NACK" if self.version != "1.0" else "ACK", headers)
            await self.client.sync()
            if self.version == "1.0" and text not in self.alive:
                self.settled.add(text)
            return
        if text in self.refused:
            return
        transaction = self.random.choice([None, *self.open])
        if any(text in self.named_with(other.text) for held in self.open.values() for _i, other in held):
            return  # its end decides
        was_alive = text in self.alive
        name = instance if self.version == "1.2" else headers.get("subscription")
        receipt = self.client.new_receipt_id()
        more = {"receipt": receipt} | ({} if transaction is None else {"transaction": transaction})
        await self.client.frame("ACK", headers | more)
        await self.stage.settled_down()
        self.collect()
        has_ended = instance != self.instances.get(id)
        if self.client.error is not None:
            self.seen["refused"] += 1
            self.seen["refused though its id is live"] += has_ended and id in self.instances
            assert (name, text) not in self.settled_as, f"refused the ACK of {text}, settled under that name before"
            assert was_alive or has_ended, f"refused the ACK of {text}"
            await self.client.expect_closed()
            await self.connect()
            return
        await self.client.expect_receipt(receipt)
        if transaction is not None:
            self.open[transaction].append((instance, delivery))
            return
        assert text not in self.alive, f"the RECEIPT said that {text} is settled"
        if was_alive:
            self.settled.add(text)
            self.settled_as.add((name, text))
        else:
            self.seen["settled before, after the end" if has_ended else "settled before"] += 1
            assert text in self.settled or self.ack == "client", f"the RECEIPT said that {text} is settled by us"


_MODES = [
    ("1.0", "client"),
    ("1.0", "client-individual"),
    ("1.1", "client"),
    ("1.1", "client-individual"),
    ("1.2", "client"),
    ("1.2", "client-individual"),
]


@pytest.mark.parametrize(("version", "ack"), _MODES)
async def test_receipts_and_errors_of_acks_are_true(version: Version, ack: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        async with Stage() as stage:
            connection = _Connection(stage, Random(f"{version} {ack} {seed}"), version, ack)
            connection.producer = await stage.connect()
            await connection.connect()
            for _ in range(STEPS):
                await connection.step()
        seen += connection.seen
    wanted = {"refused", "settled before", "settled before, after the end"}
    assert wanted <= set(seen), f"met only {dict(seen)}"


# ---------------------------------------------------------------------- case by case


async def test_what_abort_gives_back_is_not_settled_by_a_late_ack(stage: Stage, version: Version) -> None:
    client = await stage.connect(version)
    await client.subscribe(Q, ack="client")
    await client.send(Q, "x")
    delivery = await client.next_message()
    await client.request("BEGIN", {"transaction": "t"})
    await client.ack(delivery, transaction="t")
    await client.unsubscribe()
    await client.request("ABORT", {"transaction": "t"})
    await client.frame("ACK", client.naming(delivery) | {"receipt": "r"})
    await client.expect_error("its subscription has ended")


async def test_an_ack_that_comes_again_after_unsubscribe_gets_its_receipt(stage: Stage, version: Version) -> None:
    """Others of its subscription were given back; this one was settled before."""
    client = await stage.connect(version)
    await client.subscribe(Q, ack="client")
    await client.send_all(Q, range(3))
    first, _second, third = await client.next_messages(3)
    await client.ack(first)
    await client.unsubscribe()
    await client.ack(first)
    await client.frame("ACK", client.naming(third) | {"receipt": "r"})
    await client.expect_error("its subscription has ended")


async def test_a_subscription_of_the_same_id_does_not_answer_for_the_last_one(stage: Stage, version: Version) -> None:
    client, heir = await stage.connect(version), await stage.connect()
    await client.subscribe(Q, ack="client")
    await client.send(Q, "x")
    delivery = await client.next_message()
    await heir.subscribe(Q)
    await client.unsubscribe()
    assert await heir.next_texts(1) == ["x"]
    await client.subscribe(Q, ack="client")
    await client.frame("ACK", client.naming(delivery) | {"receipt": "r"})
    await client.expect_error("its subscription has ended")


async def test_what_came_again_under_the_same_id_is_settled_for_good(stage: Stage, later_version: Version) -> None:
    client = await stage.connect(later_version)
    await client.subscribe(Q, ack="client")
    await client.send(Q, "x")
    await client.next_message()
    await client.unsubscribe()
    await client.subscribe(Q, ack="client")
    again = await client.next_message()
    await client.ack(again)
    await client.ack(again)
    await client.unsubscribe()
    await client.ack(again)


async def test_1_2_names_what_was_given_back_by_its_message_id(stage: Stage) -> None:
    client = await stage.connect()
    await client.subscribe(Q, ack="client")
    await client.send(Q, "x")
    delivery = await client.next_message()
    await client.unsubscribe()
    await client.frame("ACK", {"id": delivery.headers["message-id"], "receipt": "r"})
    await client.expect_error("its subscription has ended")


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("client_id", [{}, {"client-id": "c"}])
async def test_a_durable_subscription_gets_what_no_late_ack_could_settle(
    stage: Stage, version: Version, held: bool, client_id: dict[str, str]
) -> None:
    """All that is not settled comes again to the next consumer: what a client id owns, too, of which its topic takes
    nothing back.
    """
    client = await stage.connect(version, **client_id)
    durable = {"activemq.subscriptionName": "audit"}
    await client.request("SUBSCRIBE", {"destination": "/topic/t", "id": "s", "ack": "client", **durable})
    await client.send("/topic/t", "x")
    delivery = await client.next_message()
    if held:
        await client.request("BEGIN", {"transaction": "t"})
        await client.ack(delivery, transaction="t")
    await client.unsubscribe()
    if held:
        await client.request("ABORT", {"transaction": "t"})
    await client.frame("ACK", client.naming(delivery) | {"receipt": "r"})
    await client.expect_error("its subscription has ended")
    heir = await stage.connect(version, **client_id)
    await heir.request("SUBSCRIBE", {"destination": "/topic/t", "id": "s", "ack": "client", **durable})
    await heir.ack(await heir.next_message())


async def test_clients_that_acknowledge_what_needs_none_do_no_harm(stage: Stage, version: Version) -> None:
    """Ack auto, beside and after subscriptions that gave something back: more of them than are remembered."""
    client = await stage.connect(version)
    await client.subscribe("/queue/auto", id="auto")
    for turn in range(ENTRIES_MAX + 2):
        await client.subscribe(Q, id=f"s{turn}", ack="client")
        if not turn:
            await client.send(Q, "x")
        await client.next_message()
        await client.unsubscribe(f"s{turn}")
        await client.send("/queue/auto", str(turn))
        auto = await client.next_message()
        name = auto.headers["message-id"]
        await client.request("ACK", {"id": name} if version == "1.2" else {"message-id": name, "subscription": "auto"})
