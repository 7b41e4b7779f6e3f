"""What the RECEIPT of a persistent SEND promises, and what a restart finds."""

from __future__ import annotations

import pytest
import trio

from tests.scenarios.lives import Lives, durability
from tests.scenarios.stage import Stage

Q = "/queue/orders"
ENDS = ("in order", "crash", "power cut")


@pytest.mark.parametrize("end", ENDS)
async def test_receipted_persistent_messages_outlive_the_broker(end: str) -> None:
    lives = Lives()
    async with lives.life(end=end) as stage:
        producer = await stage.connect()
        for number in range(20):
            await producer.sent(Q, str(number), persistent="true")
        assert durability(producer) == ["disk"] * 20
    async with lives.life() as stage:
        consumer = await stage.connect()
        await consumer.subscribe(Q)
        deliveries = await consumer.next_messages(20)
        assert [delivery.text for delivery in deliveries] == [str(number) for number in range(20)]
        assert not any(delivery.redelivered for delivery in deliveries), "nobody has seen them before"


async def test_messages_that_are_not_persistent_end_with_the_broker() -> None:
    lives = Lives()
    async with lives.life() as stage:
        producer = await stage.connect()
        await producer.sent(Q, "volatile")
        await producer.sent(Q, "lasting", persistent="true")
        assert durability(producer) == ["memory", "disk"]
    async with lives.life() as stage:
        consumer = await stage.connect()
        await consumer.subscribe(Q)
        assert await consumer.next_texts(1) == ["lasting"]
        await consumer.silence()


async def test_without_a_store_a_receipt_promises_memory(stage: Stage) -> None:
    producer = await stage.connect()
    await producer.sent(Q, "m", persistent="true")
    assert durability(producer) == ["memory"]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("ack", ["client", "client-individual"])
async def test_an_acknowledgement_that_was_receipted_is_for_good(end: str, ack: str) -> None:
    lives = Lives()
    async with lives.life(end=end) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        for number in range(6):
            await producer.sent(Q, str(number), persistent="true")
        await consumer.subscribe(Q, ack=ack)
        deliveries = await consumer.next_messages(6)
        for delivery in deliveries[:3]:
            await consumer.request("ACK", consumer.naming(delivery))
    async with lives.life() as stage:
        consumer = await stage.connect()
        await consumer.subscribe(Q)
        left = await consumer.next_messages(3)
        assert [delivery.text for delivery in left] == ["3", "4", "5"]
        assert all(delivery.redelivered for delivery in left), "they were in a consumer's hands"
        await consumer.silence()


@pytest.mark.parametrize("end", ENDS)
async def test_only_what_was_handed_out_is_marked(end: str) -> None:
    """After a crash the broker may mark more than was seen, but never messages of the new life."""
    lives = Lives()
    async with lives.life(end=end) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        for number in range(5):
            await producer.sent(Q, str(number), persistent="true")
        await consumer.subscribe(Q, ack="client-individual", prefetch_count="2")
        await consumer.next_messages(2)
    async with lives.life() as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await producer.sent(Q, "new", persistent="true")
        await consumer.subscribe(Q)
        deliveries = await consumer.next_messages(6)
        marks = [delivery.redelivered for delivery in deliveries]
        assert [delivery.text for delivery in deliveries] == ["0", "1", "2", "3", "4", "new"]
        assert marks[:2] == [True, True]
        assert marks[5] is False
        if end == "in order":
            assert marks[2:5] == [False, False, False]


async def test_message_ids_do_not_come_twice() -> None:
    """A restart goes on with the numbers, under the same token."""
    lives = Lives()
    ids: list[str] = []
    for life in range(3):
        async with lives.life(end="crash") as stage:
            client = await stage.connect()
            await client.subscribe(f"/queue/{life}")
            await client.sent(f"/queue/{life}", "m", persistent="true")
            ids.append((await client.next_message()).headers["message-id"])
    assert len(set(ids)) == 3
    assert len({message_id.rpartition("-")[0] for message_id in ids}) == 1


@pytest.mark.parametrize("end", ENDS)
async def test_priorities_groups_and_headers_are_as_before(end: str) -> None:
    lives = Lives()
    async with lives.life(end=end) as stage:
        producer = await stage.connect()
        await producer.sent(Q, "low", persistent="true", priority="1")
        await producer.sent(Q, "a1", persistent="true", group="a", colour="rot:grün")
        await producer.sent(Q, "high", persistent="true", priority="9")
        await producer.sent(Q, "a2", persistent="true", group="a")
    async with lives.life() as stage:
        one, two = await stage.connect(), await stage.connect()
        for consumer in (one, two):
            await consumer.subscribe(Q, ack="client-individual", prefetch_count="1")
        first = {"one": await one.next_message(), "two": await two.next_message()}
        assert {delivery.text for delivery in first.values()} == {"high", "a1"}
        for delivery in first.values():
            if delivery.text == "a1":
                assert delivery.headers["colour"] == "rot:grün"
        holder = one if first["one"].text == "high" else two
        await holder.ack(first["one"] if holder is one else first["two"])
        assert (await holder.next_message()).text == "low", "a2 waits for the consumer that has a1"


@pytest.mark.parametrize("end", ENDS)
async def test_a_transaction_is_there_as_a_whole_or_not_at_all(end: str) -> None:
    lives = Lives()
    async with lives.life(end=end) as stage:
        client = await stage.connect()
        await client.sent("/queue/in", "order", persistent="true")
        await client.subscribe("/queue/in", ack="client-individual")
        order = await client.next_message()
        await client.frame("BEGIN", {"transaction": "t"})
        await client.frame("ACK", {**client.naming(order), "transaction": "t"})
        for name in ("/queue/a", "/queue/b"):
            await client.frame("SEND", {"destination": name, "persistent": "true", "transaction": "t"}, b"part")
        await client.request("COMMIT", {"transaction": "t"})
    async with lives.life() as stage:
        client = await stage.connect()
        for name in ("/queue/in", "/queue/a", "/queue/b"):
            await client.subscribe(name, id=name)
        assert sorted([d.headers["subscription"] for d in await client.drain()]) == ["/queue/a", "/queue/b"]


async def test_what_a_consumer_settles_in_time_is_never_written() -> None:
    engine_lives = Lives()
    async with engine_lives.life() as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await consumer.subscribe(Q)
        for number in range(200):
            await producer.send(Q, str(number), persistent="true")
        await consumer.next_messages(200)
        await trio.sleep(2)
        report = stage.broker.report()["store"]
        assert report["written_count"] == 0
        assert report["cancelled_count"] == 200


async def test_one_sync_serves_all_receipts_of_a_turn() -> None:
    lives = Lives()
    async with lives.life() as stage:
        producer = await stage.connect()
        before = lives.engine.sync_count
        frames = [
            producer.encode("SEND", {"destination": Q, "persistent": "true", "receipt": f"r{number}"}, b"m")
            for number in range(50)
        ]
        await producer.send_raw(b"".join(frames))
        for number in range(50):
            await producer.expect_receipt(f"r{number}")
        assert lives.engine.sync_count - before == 1


async def test_expired_messages_do_not_come_back() -> None:
    lives = Lives()
    async with lives.life(end="crash") as stage:
        producer = await stage.connect()
        await producer.sent(Q, "short", persistent="true", expiration="1000")
        await producer.sent(Q, "long", persistent="true", expiration="100000")
        await producer.sent(Q, "forever", persistent="true")
        await trio.sleep(2)
    async with lives.life() as stage:
        consumer = await stage.connect()
        await consumer.subscribe(Q)
        assert await consumer.next_texts(2) == ["long", "forever"]
        await consumer.silence()


@pytest.mark.parametrize("end", ["crash", "power cut"])
async def test_the_receipt_of_disconnect_is_for_all_that_was_sent(end: str) -> None:
    """Also for SENDs without receipts, and for ACKs."""
    lives = Lives()
    async with lives.life(end=end) as stage:
        client = await stage.connect()
        await client.sent(Q, "old", persistent="true")
        await client.subscribe(Q, ack="client-individual")
        await client.frame("ACK", client.naming(await client.next_message()))
        await client.unsubscribe()
        for number in range(10):
            await client.send(Q, str(number), persistent="true")
        await client.disconnect()
    async with lives.life() as stage:
        consumer = await stage.connect()
        await consumer.subscribe(Q)
        assert await consumer.next_texts(10) == [str(number) for number in range(10)]
        await consumer.silence()
