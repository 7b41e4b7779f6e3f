"""Links that are cut, again and again: clients stay connected, nothing is lost, nothing comes twice unmarked.

One seed decides who sends and acknowledges when, and when the network is cut.
"""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise

import pytest
import trio
import trio.testing

from sluiceway.protocols.link.stream import FlowStream
from sluiceway.protocols.stomp.errors import ProtocolError
from sluiceway.protocols.streams import ByteStream
from tests.cluster.links.two_hubs import TwoHubs
from tests.scenarios.client import Client, Delivery

MESSAGES_COUNT = 150
QUEUES = ("/queue/b.one", "/queue/b.two")


class Ledger:
    """Messages that were sent, and messages that came."""

    def __init__(self) -> None:
        self.sent: set[tuple[str, str, int]] = set()
        self.came: dict[tuple[str, str, int], int] = defaultdict(int)
        self.highest: dict[tuple[str, str], int] = defaultdict(lambda: -1)
        self.marked_count = 0

    def arrived(self, queue: str, delivery: Delivery) -> None:
        """Note a delivery: a second one has to be marked, and first ones come in the order of their producer."""
        producer, _, number = delivery.text.partition(" ")
        key = (queue, producer, int(number))
        is_marked = delivery.redelivered or delivery.headers.get("possible-duplicate") == "true"
        self.marked_count += is_marked
        self.came[key] += 1
        if self.came[key] > 1:
            assert is_marked, f"{key} came twice unmarked"
            return
        assert int(number) > self.highest[queue, producer], f"{key} came behind {self.highest[queue, producer]}"
        self.highest[queue, producer] = int(number)


async def produce(client: Client, dice: random.Random, ledger: Ledger) -> None:
    """Send to both queues, in pieces, some with receipts."""
    receipts: list[str] = []
    number = 0
    while number < MESSAGES_COUNT:
        queue = dice.choice(QUEUES)
        data = b""
        for _ in range(dice.choice((1, 1, 3, 20))):
            headers = {"destination": queue}
            if dice.random() < 0.5:
                receipts.append(client.new_receipt_id())
                headers["receipt"] = receipts[-1]
            data += client.encode("SEND", headers, f"{client.name.replace(' ', '-')} {number}")
            ledger.sent.add((queue, client.name.replace(" ", "-"), number))
            number += 1
        await client.send_raw(data)
        await trio.sleep(dice.random() * 0.05)
    for receipt_id in receipts:
        await client.expect_receipt(receipt_id)


async def consume(client: Client, queue: str, ack: str, dice: random.Random, ledger: Ledger) -> None:
    """Receive, and acknowledge sooner or later."""
    await client.subscribe(queue, id=queue, ack=ack)
    while True:
        delivery = await client.next_message()
        ledger.arrived(queue, delivery)
        if ack == "auto":
            continue
        if ack == "client-individual" and dice.random() < 0.3:
            await trio.sleep(dice.random() * 0.02)
        await client.frame("ACK", client.naming(delivery))


@pytest.mark.parametrize("seed", range(6))
async def test_nothing_is_lost_and_nothing_comes_twice_unmarked(seed: int) -> None:
    """Whatever is cut when: each message comes, in the order of its producer; a second time only with a mark."""
    dice = random.Random(seed)
    ledger = Ledger()
    version = dice.choice(("1.1", "1.2"))
    async with TwoHubs() as hubs, trio.open_nursery() as consumers:
        for queue in QUEUES:
            client = await hubs.connect(version=version)  # type: ignore[arg-type]
            ack = dice.choice(("auto", "client", "client-individual"))
            consumers.start_soon(consume, client, queue, ack, random.Random(seed), ledger)
        async with trio.open_nursery() as cutting:

            async def cut() -> None:
                for _ in range(dice.randrange(3, 12)):
                    await trio.sleep(dice.random() * 0.3)
                    hubs.network.left_bytes = dice.randrange(1, 2000)
                    await trio.sleep(dice.random() * 0.1)
                    hubs.network.is_down = True
                    await trio.sleep(dice.random() * 0.2)
                    hubs.network.is_down = False

            cutting.start_soon(cut)
            async with trio.open_nursery() as producers:
                for _ in range(2):
                    producers.start_soon(produce, await hubs.connect(), random.Random(dice.random()), ledger)
        hubs.network.left_bytes = None
        await hubs.linked()
        for _ in range(150):
            if ledger.came.keys() == ledger.sent:
                break
            await trio.sleep(0.1)
        consumers.cancel_scope.cancel()
    assert set(ledger.came) == ledger.sent
    assert hubs.network.cuts_count, "bytes were under way"


@pytest.mark.parametrize("ack", ["auto", "client", "client-individual"])
async def test_a_consumer_goes_on_when_its_hub_is_linked_again(ack: str) -> None:
    """Its subscription is made again; what it held comes again, marked; late ACKs are forgotten."""
    async with TwoHubs() as hubs:
        consumer, producer = await hubs.connect(), await hubs.connect("b")
        await consumer.subscribe("/queue/b.x", ack=ack)
        await producer.sent("/queue/b.x", "1")
        first = await consumer.next_message()
        assert not first.redelivered
        if ack == "auto":
            await trio.testing.wait_all_tasks_blocked()  # the owner is told that it was taken
        hubs.network.cut()
        await hubs.linked()
        if ack != "auto":
            again = await consumer.next_message()
            assert again.redelivered
            await consumer.frame("ACK", consumer.naming(first))
            await consumer.ack(again)
        await producer.sent("/queue/b.x", "2")
        assert (await consumer.next_message()).text == "2"
        assert consumer.error is None


@pytest.mark.parametrize(("address", "longest_seconds"), [("unix:/run/b", 0.25), ("b.example:61618", 2.0)])
async def test_a_hub_that_is_back_is_dialled_soon(address: str, longest_seconds: float) -> None:
    """At once if it is on this machine."""
    async with TwoHubs() as hubs:
        assert hubs.a.links is not None
        peers = hubs.a.links.seat.peers()
        assert isinstance(peers, dict)
        peers["b"] = address
        dialled_seconds: list[float] = []

        async def refused(dialled: str) -> ByteStream:
            assert dialled == address
            await trio.lowlevel.checkpoint()
            dialled_seconds.append(trio.current_time())
            raise ConnectionRefusedError("nobody listens there")

        object.__setattr__(hubs.a.links.seat, "dial", refused)
        hubs.network.cut()
        await trio.sleep(60)
        pauses = [later - earlier for earlier, later in pairwise(dialled_seconds)][10:]
        assert longest_seconds / 2 <= min(pauses) <= max(pauses) <= longest_seconds + 0.01


async def test_a_receipt_for_the_ack_of_a_lost_delivery_would_lie() -> None:
    """So its connection gets an ERROR."""
    async with TwoHubs() as hubs:
        consumer, producer = await hubs.connect(), await hubs.connect("b")
        await consumer.subscribe("/queue/b.x", ack="client-individual")
        await producer.sent("/queue/b.x", "1")
        first = await consumer.next_message()
        hubs.network.cut()
        await hubs.linked()
        await consumer.frame("ACK", {**consumer.naming(first), "receipt": "r"})
        await consumer.expect_error("the hub that had delivered it was lost")


async def test_sends_wait_for_the_link_and_stop_their_client_at_the_stash() -> None:
    """Bounded: then the client is not read, and goes on when the link is there."""
    async with TwoHubs(stash_bytes_max=20_000) as hubs:
        producer = await hubs.connect()
        await producer.sent("/queue/b.x", "first")
        hubs.network.cut()
        hubs.network.is_down = True
        await trio.sleep(0.1)
        frame = producer.encode("SEND", {"destination": "/queue/b.x"}, b"x" * 1000)
        async with trio.open_nursery() as nursery:
            over = trio.Event()

            async def send() -> None:
                for _ in range(300):
                    await producer.stream.send_all(frame)
                over.set()

            nursery.start_soon(send)
            await trio.sleep(5)
            assert not over.is_set()
            chains = hubs.a.report()["chains"]
            assert any("other hubs" in chain["words"] for chain in chains), chains
            hubs.network.is_down = False
        await hubs.linked()
        await producer.sent("/queue/b.x", "last")
        assert hubs.depth_count("b", "/queue/b.x") == 302
        assert not hubs.a.report()["chains"]


async def test_a_transaction_is_lost_with_its_link() -> None:
    """COMMIT is refused, nothing of it was done."""
    async with TwoHubs() as hubs:
        client = await hubs.connect()
        await client.frame("BEGIN", {"transaction": "t"})
        await client.frame("SEND", {"destination": "/queue/b.x", "transaction": "t"}, "x")
        await trio.testing.wait_all_tasks_blocked()
        hubs.network.cut()
        await hubs.linked()
        await client.frame("COMMIT", {"transaction": "t"})
        await client.expect_error("transaction 't' is lost")
        assert hubs.depth_count("b", "/queue/b.x") == 0


async def test_an_owner_that_stops_in_order_hands_its_clients_on() -> None:
    """The client stays connected, and its SENDs go to the next owner."""
    async with TwoHubs() as hubs:
        client = await hubs.connect()
        await client.subscribe("/queue/b.x")
        hubs.owners["b"] = "a"
        await hubs.b.stop()
        hubs.moved()
        await client.sent("/queue/b.x", "1")
        assert (await client.next_message()).text == "1"
        assert hubs.depth_count("a", "/queue/b.x") == 0
        assert client.error is None


async def test_what_a_silent_hub_may_have_delivered_is_marked_when_the_owner_ends_its_flow() -> None:
    """A shard moves while the hub of the client is stopped: whether the client has the message can't be known."""
    async with TwoHubs() as hubs:
        client = await hubs.connect()
        await client.subscribe("/queue/b.x", ack="client")
        other = await hubs.connect("b")
        hubs.network.mute("a")
        await other.sent("/queue/b.x", "1")
        assert not (await client.next_message()).redelivered
        for connection in tuple(hubs.b.connections):
            if isinstance(connection._stream, FlowStream):
                connection.session.fail(ProtocolError("shard-away", "it moves"), peers_fault=False)
        await other.subscribe("/queue/b.x")
        assert (await other.next_message()).redelivered
