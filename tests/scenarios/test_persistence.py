"""What the RECEIPT of a persistent SEND promises, and what a restart finds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

import pytest
import trio

from sluiceway.broker import Broker
from sluiceway.config import BrokerConfig, Config, Listener
from tests.scenarios.client import Client
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


@pytest.mark.parametrize("end", ["crash", "power cut"])
async def test_the_receipt_of_disconnect_is_for_a_commit_without_one(end: str) -> None:
    """The transaction as a whole is on disk then."""
    lives = Lives()
    async with lives.life(end=end) as stage:
        client = await stage.connect()
        await client.sent(Q, "old", persistent="true")
        await client.subscribe(Q, ack="client-individual")
        order = await client.next_message()
        await client.frame("BEGIN", {"transaction": "t"})
        await client.frame("ACK", {**client.naming(order), "transaction": "t"})
        await client.frame("SEND", {"destination": "/queue/b", "persistent": "true", "transaction": "t"}, b"new")
        await client.frame("COMMIT", {"transaction": "t"})
        await client.disconnect()
    async with lives.life() as stage:
        client = await stage.connect()
        for name in (Q, "/queue/b"):
            await client.subscribe(name, id=name)
        assert [delivery.text for delivery in await client.drain()] == ["new"]


@pytest.mark.parametrize("receipt", [{"receipt": "bye"}, {}])
async def test_the_receipts_that_wait_for_the_disk_come_before_the_end(receipt: dict[str, str]) -> None:
    """That of DISCONNECT is the last one, and without one the connection lasts as long as something is owed."""
    lives = Lives(transaction_bytes_max=1000)
    async with lives.life() as stage:
        client = await stage.connect("1.1")
        await client.sent(Q, "old", persistent="true")
        await client.subscribe(Q, ack="client-individual")
        order = await client.next_message()
        part = {"destination": Q, "persistent": "true", "transaction": "t"}
        await client.send_raw(
            client.encode("SEND", {"destination": "/queue/b", "persistent": "true", "receipt": "send"}, b"m")
            + client.encode("ACK", {**client.naming(order), "receipt": "ack"})
            + client.encode("BEGIN", {"transaction": "t"})
            + client.encode("SEND", part, b"x" * 3000)
            + client.encode("COMMIT", {"transaction": "t", "receipt": "commit"})
            + client.encode("DISCONNECT", receipt)
        )
        await client.expect_closed()
        last = [frame.headers["receipt-id"] for frame in client.received if frame.command == "RECEIPT"][2:]
        assert sorted(last[:3]) == ["ack", "commit", "send"]
        assert last[3:] == list(receipt.values())


async def test_a_second_ack_is_not_confirmed_before_the_first_is_on_disk() -> None:
    lives = Lives()
    async with lives.life(end="power cut") as stage:
        client = await stage.connect()
        await client.sent(Q, "m", persistent="true")
        await client.subscribe(Q, ack="client")
        delivery = await client.next_message()
        naming = client.naming(delivery)
        await client.frame("ACK", naming)
        for _ in range(3):
            await client.send_raw(client.encode("ACK", {**naming, "receipt": "r1"}) * 3)
        await client.request("ACK", naming)
        assert client.receipts.count("r1") == 9
    async with lives.life() as stage:
        consumer = await stage.connect()
        await consumer.subscribe(Q)
        await consumer.silence()


async def test_what_a_refused_run_had_is_not_promised_before_it_is_on_disk() -> None:
    """Nothing can follow the ERROR, so there are no receipts for what was taken of the run."""
    lives = Lives({Q: {"full": "reject", "count_max": 3}})
    async with lives.life() as stage:
        client = await stage.connect()
        frames = [
            client.encode("SEND", {"destination": Q, "persistent": "true", "receipt": f"r{number}"}, b"m")
            for number in range(5)
        ]
        await client.send_raw(b"".join(frames))
        error = await client.expect_error("is full")
        assert error.headers["receipt-id"] == "r3"
        assert not client.receipts
        assert stage.depth_count(Q) == 3


@pytest.mark.parametrize("persistent", ["true", "false"])
async def test_a_queue_that_rejects_loses_nothing_while_the_disk_is_full(persistent: str) -> None:
    """A run of which only a part fits waits as a whole; what is not persistent need not wait."""
    lives = Lives({Q: {"full": "reject", "count_max": 3}})
    async with lives.life() as stage:
        client = await stage.connect()
        _fill_disk(stage, is_full=True)
        frames = [
            client.encode("SEND", {"destination": Q, "persistent": persistent, "receipt": f"r{number}"}, b"m")
            for number in range(5)
        ]
        await client.send_raw(b"".join(frames))
        if persistent == "true":
            await client.silence()
            _fill_disk(stage, is_full=False)
        await client.expect_error("is full")
        assert stage.depth_count(Q) == 3
        assert len(client.receipts) == (0 if persistent == "true" else 3)


def _fill_disk(stage: Stage, *, is_full: bool) -> None:
    store = stage.broker.store
    assert store is not None
    store.disk_is_low = is_full
    store._set_gate()


async def test_what_is_stored_comes_back_under_a_lower_limit_for_destinations() -> None:
    """The limit is for what is new."""
    lives = Lives(transaction_bytes_max=1000)
    async with lives.life(end="crash") as stage:
        client = await stage.connect()
        await client.subscribe("/topic/t", id="d", durable="true")
        for number in range(5):
            await client.sent(f"/queue/{number}", "m", persistent="true")
        await client.frame("BEGIN", {"transaction": "t"})
        for number in range(5, 8):
            part = {"destination": f"/queue/{number}", "persistent": "true", "transaction": "t"}
            await client.frame("SEND", part, b"x" * 900)
        receipt_id = client.new_receipt_id()
        await client.frame("COMMIT", {"transaction": "t", "receipt": receipt_id})
        await client.expect_receipt(receipt_id)
    config = Config(broker=BrokerConfig(destinations_max=2), listeners=(Listener(address="127.0.0.1:0"),))
    async with Broker(config, engine=lives.engine) as broker:
        assert set(broker.registry.destinations) == {f"/queue/{number}" for number in range(8)} | {"/topic/t"}
        client = Client(broker.connect_memory(), "newcomer")
        await client.connect("1.2")
        await client.send("/queue/new", "m")
        await client.expect_error("destinations_max")


async def test_while_the_disk_stands_still_receipts_do_not_become_many() -> None:
    """What they take is bounded: then nothing more is read, until they are out."""
    lives = Lives(outbound_bytes_max=10_000)
    async with lives.life() as stage:
        client = await stage.connect()
        worker = stage.broker.store.worker  # type: ignore[union-attr]
        write, held = worker.write, deque[Callable[[], None]]()
        worker.write = lambda *batch, **how: held.append(partial(write, *batch, **how))  # type: ignore[method-assign]
        frames = [
            client.encode("SEND", {"destination": Q, "persistent": "true", "receipt": f"{number:0900}"}, b"m")
            for number in range(1000)
        ]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_raw, b"".join(frames))
            await trio.sleep(1)
            assert stage.depth_count(Q) < 1000
            (connection,) = stage.broker.report()["connections"]
            assert connection["waiting_on"] == "the disk, for its receipts"
            worker.write = write  # type: ignore[method-assign]
            held.popleft()()
            for number in range(1000):
                await client.expect_receipt(f"{number:0900}")
        assert not held
