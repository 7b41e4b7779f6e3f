"""A full destination holds back the SENDs to it, and nothing else. DESIGN section 4, granular flows."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from sluiceway.protocols.reading import Reason
from sluiceway.protocols.stomp.escaping import Version
from sluiceway.protocols.stomp.session import Session
from tests.scenarios.client import Client
from tests.scenarios.stage import Stage

FULL = "/queue/full"
BLOCK = {FULL: {"full": "block", "count_max": 10}}


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    """A broker where `/queue/full` takes ten messages and then blocks."""
    async with Stage(BLOCK) as stage:
        yield stage


def session_of(stage: Stage, client: Client) -> Session:
    """The broker's side of a connection."""
    (session,) = [c.session for c in stage.broker.connections if c.session.peer == client.name]
    return session


async def fill(client: Client) -> None:
    """Ten messages that fit, ten that are parked."""
    await client.send_all(FULL, range(20))


# ---------------------------------------------------------------------- what goes on


async def test_other_destinations_go_on(stage: Stage, version: Version) -> None:
    client = await stage.connect(version)
    await client.subscribe("/queue/free")
    await fill(client)
    await client.sent("/queue/free", "x")
    assert (await client.next_message()).text == "x"
    assert session_of(stage, client).lanes.parked_count > 0


async def test_other_priorities_of_the_full_queue_go_on(stage: Stage) -> None:
    """Each priority has room of its own, so what is urgent is not held up by the backlog."""
    client = await stage.connect()
    await fill(client)
    await client.sent(FULL, "urgent", priority="9")


async def test_ack_and_nack_go_on(stage: Stage, later_version: Version) -> None:
    client = await stage.connect(later_version)
    await client.subscribe(FULL, ack="client-individual")
    await fill(client)
    deliveries = await client.next_messages(10)
    await client.nack(deliveries[0])
    assert (await client.next_message()).redelivered
    for delivery in deliveries[1:]:
        await client.ack(delivery)
    assert await client.next_texts(9) == [str(n) for n in range(10, 19)]


async def test_subscribe_and_unsubscribe_go_on(stage: Stage, version: Version) -> None:
    client = await stage.connect(version)
    await fill(client)
    await client.subscribe("/queue/free", id="other")
    await client.unsubscribe("other")
    await client.subscribe(FULL)
    assert await client.next_texts(20) == [str(n) for n in range(20)]


async def test_transactions_elsewhere_go_on(stage: Stage, version: Version) -> None:
    client = await stage.connect(version)
    await fill(client)
    await client.request("BEGIN", {"transaction": "t"})
    await client.sent("/queue/free", "x", transaction="t")
    await client.request("COMMIT", {"transaction": "t"})
    assert stage.depth_count("/queue/free") == 1


async def test_heart_beats_go_on(stage: Stage) -> None:
    client = await stage.connect(heart_beat=(1000, 1000))
    await fill(client)
    async with trio.open_nursery() as nursery:

        async def beat() -> None:
            for _ in range(20):
                await client.send_raw(b"\n")
                await trio.sleep(0.9)

        nursery.start_soon(beat)
        assert (await client.raw_bytes(17)).count(b"\n") >= 15
    assert not session_of(stage, client).failed


async def test_other_connections_go_on(stage: Stage, version: Version) -> None:
    stuck, other = await stage.connect(version), await stage.connect(version)
    await fill(stuck)
    await other.subscribe("/queue/free")
    for n in range(10):
        await other.sent("/queue/free", str(n))
    assert await other.next_texts(10) == [str(n) for n in range(10)]


# ---------------------------------------------------------------------- receipts and order


async def test_receipts_of_parked_sends_come_when_they_are_in(stage: Stage, version: Version) -> None:
    producer, consumer = await stage.connect(version), await stage.connect(version)
    frames = [producer.encode("SEND", {"destination": FULL, "receipt": str(n)}, str(n)) for n in range(30)]
    for frame in frames:
        await producer.send_raw(frame)
    await producer.drain()
    assert 10 <= len(producer.receipts) < 30
    assert list(producer.receipts) == [str(n) for n in range(len(producer.receipts))]
    await consumer.subscribe(FULL)
    await producer.expect_receipt("29")
    assert await consumer.next_texts(30) == [str(n) for n in range(30)]
    assert list(producer.receipts) == [str(n) for n in range(29)]


async def test_receipt_of_a_composite_comes_when_all_of_it_is_in(stage: Stage) -> None:
    producer, consumer = await stage.connect(), await stage.connect()
    await fill(producer)
    await producer.frame("SEND", {"destination": f"/queue/free,{FULL}", "receipt": "r"}, "both")
    await consumer.subscribe("/queue/free", id="free")
    assert (await consumer.next_message()).text == "both"
    await producer.silence()
    await consumer.subscribe(FULL, id="full")
    await producer.expect_receipt("r")
    assert (await consumer.next_texts(21))[-1] == "both"


async def test_parked_sends_keep_their_order(stage: Stage) -> None:
    """Whatever heads they have: one lane is one line."""
    producer, consumer = await stage.connect(), await stage.connect()
    for n in range(60):
        await producer.send(FULL, str(n), kind=str(n % 4))
    await consumer.subscribe(FULL, ack="client-individual", prefetch_count="1")
    for n in range(60):
        delivery = await consumer.next_message()
        assert delivery.text == str(n)
        await consumer.ack(delivery)


async def test_parked_sends_of_an_ended_connection_still_arrive(stage: Stage, version: Version) -> None:
    """b50: they were received. (With DISCONNECT it waits for them: test_leaving.)"""
    producer, consumer = await stage.connect(version), await stage.connect(version)
    await producer.send_all(FULL, range(50))
    producer.vanish()
    await trio.sleep(5)
    assert len(stage.broker.connections) == 1
    await consumer.subscribe(FULL)
    assert await consumer.next_texts(50) == [str(n) for n in range(50)]


# ---------------------------------------------------------------------- the stash


async def test_full_stash_stops_the_socket_and_lets_it_go_on() -> None:
    async with Stage(BLOCK, stash_bytes_max=50_000) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        count = 2_000
        frames = b"".join(producer.encode("SEND", {"destination": FULL}, str(n).ljust(1_000)) for n in range(count))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.stream.send_all, frames)
            await trio.sleep(10)
            session = session_of(stage, producer)
            assert session.reading_blocked_by is Reason.DESTINATIONS
            assert session.totals.bytes_in < 700_000, "one large read beyond the stash at most"
            assert any("blocked destinations" in str(c["waiting_on"]) for c in stage.broker.report()["connections"])
            await consumer.subscribe(FULL, ack="client")
            seen = 0
            while seen < count:
                delivery = await consumer.next_message()
                assert delivery.text.strip() == str(seen)
                seen += 1
                if seen % 5 == 0 or seen == count:
                    await consumer.frame("ACK", consumer.naming(delivery))
        assert session.reading_blocked_by is None


async def test_full_stash_of_a_connection_with_unacknowledged_messages_is_read_on() -> None:
    """Its ACKs may be behind the SENDs, and only they can free the queue."""
    async with Stage(BLOCK, stash_bytes_max=20_000) as stage:
        client = await stage.connect()
        await client.subscribe(FULL, ack="client-individual")
        await client.send_all(FULL, range(10))
        deliveries = await client.next_messages(10)
        frames = [client.encode("SEND", {"destination": FULL}, str(n).ljust(1_000)) for n in range(300)]
        acks = [client.encode("ACK", client.naming(delivery)) for delivery in deliveries]
        await client.send_raw(b"".join(frames) + b"".join(acks))
        for n in range(300):
            delivery = await client.next_message()
            assert delivery.text.strip() == str(n)
            await client.frame("ACK", client.naming(delivery))
        assert await client.drain() == []


async def test_overfull_stash_ends_with_an_error_that_says_what_to_do() -> None:
    """A client that never acknowledges and never stops sending is not kept in memory for ever."""
    async with Stage(BLOCK, stash_bytes_max=20_000, stash_overfull_bytes_max=200_000) as stage:
        client = await stage.connect()
        await client.subscribe(FULL, ack="client-individual")
        await client.send_all(FULL, range(10))
        await client.next_messages(10)
        frames = b"".join(client.encode("SEND", {"destination": FULL}, b"x" * 1_000) for n in range(1_000))
        await client.send_raw(frames)
        error = await client.expect_error("200000 bytes wait for blocked destinations")
        assert b"10 unacknowledged" in error.body
        assert b"Acknowledge faster" in error.body


# ---------------------------------------------------------------------- never locked up by itself

COUNT = 20_000


@pytest.mark.parametrize("ack", ["client-individual", "client", "auto"])
async def test_connection_that_produces_and_consumes_the_same_full_queue_gets_everything(
    stage: Stage, ack: str
) -> None:
    client = await stage.connect()
    await client.subscribe(FULL, ack=ack)
    writing = trio.Lock()

    async def send() -> None:
        for first in range(0, COUNT, 100):
            frames = b"".join(client.encode("SEND", {"destination": FULL}, str(n)) for n in range(first, first + 100))
            async with writing:
                await client.stream.send_all(frames)

    async def acknowledge(acks: list[bytes]) -> None:
        async with writing:
            await client.stream.send_all(b"".join(acks))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        seen = 0
        while seen < COUNT:
            acks = []
            deliveries = [await client.next_message()]
            while client.messages:
                deliveries.append(client.messages.popleft())
            for delivery in deliveries:
                assert delivery.text == str(seen)
                assert not delivery.redelivered
                seen += 1
                if ack == "client-individual":
                    acks.append(client.encode("ACK", client.naming(delivery)))
            if ack == "client":
                acks.append(client.encode("ACK", client.naming(deliveries[-1])))
            if acks:
                nursery.start_soon(acknowledge, acks)
    await client.silence()


async def test_connection_that_produces_and_consumes_in_transactions_gets_everything(stage: Stage) -> None:
    """SENDs in transactions of twenty, ACKs in transactions of five, all to and from the same full queue."""
    client = await stage.connect()
    await client.subscribe(FULL, ack="client-individual")
    count = 2_000
    writing = trio.Lock()

    async def send() -> None:
        for first in range(0, count, 20):
            name = f"send {first}"
            frames = [client.encode("BEGIN", {"transaction": name})]
            headers = {"destination": FULL, "transaction": name}
            frames += [client.encode("SEND", headers, str(n)) for n in range(first, first + 20)]
            frames.append(client.encode("COMMIT", {"transaction": name}))
            async with writing:
                await client.stream.send_all(b"".join(frames))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        for first in range(0, count, 5):
            name = f"ack {first}"
            frames = [client.encode("BEGIN", {"transaction": name})]
            for n in range(first, first + 5):
                delivery = await client.next_message()
                assert delivery.text == str(n)
                frames.append(client.encode("ACK", {**client.naming(delivery), "transaction": name}))
            frames.append(client.encode("COMMIT", {"transaction": name}))
            async with writing:
                await client.stream.send_all(b"".join(frames))
    await client.silence()


async def test_two_connections_that_feed_each_other_full_queues_never_lock_up() -> None:
    """Each consumes from one full queue and forwards to the other: all arrive, as long as messages leave the ring."""
    policies = {"/queue/ring.>": {"full": "block", "count_max": 10}}
    async with Stage(policies) as stage:
        source, one, two, end = [await stage.connect() for _ in range(4)]
        count = 500

        async def forward(client: Client, to: str) -> None:
            for _ in range(count):
                delivery = await client.next_message()
                await client.frame("SEND", {"destination": to}, delivery.body)
                await client.frame("ACK", client.naming(delivery))

        await one.subscribe("/queue/ring.a", ack="client-individual")
        await two.subscribe("/queue/ring.b", ack="client-individual")
        await end.subscribe("/queue/ring.c", ack="client-individual", prefetch_count="1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(forward, one, "/queue/ring.b")
            nursery.start_soon(forward, two, "/queue/ring.c")
            nursery.start_soon(source.send_all, "/queue/ring.a", range(count))
            for n in range(count):
                delivery = await end.next_message()
                assert delivery.text == str(n)
                await end.ack(delivery)


async def test_who_holds_nothing_of_what_blocks_is_held_back_not_ended() -> None:
    """One unacknowledged job of another queue: its ACK is looked for among what is unread, but not for ever."""
    policies = {"/queue/out": {"full": "block", "count_max": 10}}
    async with Stage(policies, stash_bytes_max=10_000, stash_overfull_bytes_max=100_000) as stage:
        other, worker = await stage.connect(), await stage.connect()
        await other.sent("/queue/in", "job")
        await worker.subscribe("/queue/in", ack="client-individual")
        job = await worker.next_message()

        async def produce() -> None:
            for _ in range(700):
                await worker.stream.send_all(worker.encode("SEND", {"destination": "/queue/out"}, "x" * 1_000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce)
            await trio.sleep(600)
            assert worker.error is None
            await other.subscribe("/queue/out")
            await other.next_messages(700)
        await worker.ack(job)


async def test_error_of_an_overfull_stash_names_its_send() -> None:
    """And that SEND is not delivered all the same."""
    policies = {"/queue/q": {"full": "block", "count_max": 2}}
    async with Stage(policies, stash_bytes_max=1_000, stash_overfull_bytes_max=50_000) as stage:
        client, other = await stage.connect(), await stage.connect()
        await client.subscribe("/queue/q", ack="client-individual")
        await client.send_all("/queue/q", ["taken", "taken", "parked"])
        await client.send("/queue/q", "x" * 60_000, receipt="too much")
        error = await client.expect_error("wait for blocked destinations")
        assert error.headers["receipt-id"] == "too much"
        await other.subscribe("/queue/q")
        assert await other.next_texts(3) == ["taken", "taken", "parked"]
        await other.silence()


async def test_one_send_may_be_larger_than_the_stash() -> None:
    policies = {"/queue/q": {"full": "block", "count_max": 2}}
    async with Stage(policies, stash_bytes_max=1_000, stash_overfull_bytes_max=50_000) as stage:
        client, other = await stage.connect(), await stage.connect()
        await client.subscribe("/queue/q", ack="client-individual")
        await client.send_all("/queue/q", ["taken", "taken"])
        await client.send("/queue/q", "x" * 60_000)
        await client.ack((await client.next_messages(2))[0])
        assert len((await client.next_message()).body) == 60_000
        await other.sync()
