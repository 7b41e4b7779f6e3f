"""Durable subscriptions: a place in a topic that stays when its consumer goes, and when the broker does."""

from __future__ import annotations

import pytest
import trio

from sluiceway.protocols.stomp.escaping import Version
from tests.scenarios.client import Client
from tests.scenarios.lives import Lives, durability
from tests.scenarios.stage import Stage

T = "/topic/prices"
ENDS = ("in order", "crash", "power cut")


async def _reader(stage: Stage, *, ack: str = "client-individual", **headers: str) -> Client:
    """ActiveMQ's dialect: client-id at CONNECT, a name at SUBSCRIBE."""
    client = await stage.connect(**{"client-id": "shop"})
    await client.subscribe(T, ack=ack, **{"activemq.subscriptionName": "audit"}, **headers)
    return client


@pytest.mark.parametrize("end", ENDS)
async def test_resumes_behind_the_last_settled_message(end: str) -> None:
    lives = Lives()
    async with lives.life(end=end) as stage:
        reader = await _reader(stage)
        producer = await stage.connect()
        for number in range(6):
            await producer.sent(T, str(number), persistent="true")
        deliveries = await reader.next_messages(6)
        for delivery in (deliveries[0], deliveries[1], deliveries[3]):
            await reader.request("ACK", reader.naming(delivery))
    async with lives.life() as stage:
        reader = await _reader(stage)
        left = await reader.next_messages(3)
        assert [delivery.text for delivery in left] == ["2", "4", "5"]
        assert all(delivery.redelivered for delivery in left)
        await reader.silence()


@pytest.mark.parametrize("end", ENDS)
async def test_gets_what_came_while_it_was_away(end: str) -> None:
    lives = Lives()
    async with lives.life(end=end) as stage:
        reader = await _reader(stage)
        await reader.disconnect()
        producer = await stage.connect()
        for number in range(3):
            await producer.sent(T, str(number), persistent="true")
        assert durability(producer) == ["disk"] * 3
    async with lives.life(end=end) as stage:
        producer = await stage.connect()
        await producer.sent(T, "3", persistent="true")
    async with lives.life() as stage:
        reader = await _reader(stage)
        deliveries = await reader.next_messages(4)
        assert [delivery.text for delivery in deliveries] == ["0", "1", "2", "3"]
        assert not any(delivery.redelivered for delivery in deliveries)


async def test_the_other_dialect_names_it_by_id() -> None:
    """`durable:true` and an id, as RabbitMQ has it."""
    lives = Lives()
    async with lives.life() as stage:
        client = await stage.connect()
        await client.subscribe(T, id="audit", durable="true")
    async with lives.life() as stage:
        await (await stage.connect()).sent(T, "m", persistent="true")
        client = await stage.connect()
        await client.subscribe(T, id="audit", durable="true")
        assert (await client.next_message()).text == "m"


@pytest.mark.parametrize("ack", ["auto", "client", "client-individual"])
async def test_the_receipt_of_subscribe_comes_before_what_waits(version: Version, ack: str) -> None:
    """Clients wait for it before they listen, as RabbitMQ lets them."""
    lives = Lives()
    async with lives.life() as stage:
        first = await stage.connect(**{"client-id": "shop"})
        await first.subscribe(T, **{"activemq.subscriptionName": "audit"})
        await first.disconnect()
        producer = await stage.connect()
        await producer.send_all(T, range(100), persistent="true")
        for _ in range(2):
            reader = await stage.connect(version, **{"client-id": "shop"})
            await reader.frame(
                "SUBSCRIBE",
                {"id": "s", "destination": T, "ack": ack, "activemq.subscriptionName": "audit", "receipt": "r"},
            )
            await reader.next_messages(100)
            assert [frame.command for frame in reader.received[1:3]] == ["RECEIPT", "MESSAGE"]
            reader.receipts.clear()
            reader.vanish()
            await stage.settled_down()
            if ack == "auto":
                break


async def test_one_that_ends_before_its_receipt_leaves_nothing_behind() -> None:
    lives = Lives()
    async with lives.life() as stage:
        reader = await stage.connect(**{"client-id": "shop"})
        name = {"id": "s", "activemq.subscriptionName": "audit"}
        await reader.send_raw(
            reader.encode("SUBSCRIBE", {"destination": T, **name, "receipt": "r"})
            + reader.encode("UNSUBSCRIBE", {"id": "s", "receipt": "u"})
            + reader.encode("SUBSCRIBE", {"destination": T, **name, "receipt": "again"})
        )
        for receipt_id in ("r", "u", "again"):
            await reader.expect_receipt(receipt_id)
        await reader.sent(T, "m")
        assert (await reader.next_message()).text == "m"


async def test_survives_a_reconnect_without_a_store(stage: Stage) -> None:
    reader = await _reader(stage)
    await reader.disconnect()
    producer = await stage.connect()
    await producer.sent(T, "m")
    reader = await _reader(stage)
    assert (await reader.next_message()).text == "m"
    await reader.request("UNSUBSCRIBE", {"id": "s", "activemq.subscriptionName": "audit"})


async def test_what_was_unsettled_when_the_consumer_left_comes_again_marked(stage: Stage) -> None:
    reader = await _reader(stage)
    producer = await stage.connect()
    await producer.send_all(T, range(4))
    deliveries = await reader.next_messages(4)
    await reader.ack(deliveries[1])
    reader.vanish()
    await stage.settled_down()
    reader = await _reader(stage)
    left = await reader.next_messages(3)
    assert [(delivery.text, delivery.redelivered) for delivery in left] == [("0", True), ("2", True), ("3", True)]
    await reader.request("UNSUBSCRIBE", {"id": "s", "activemq.subscriptionName": "audit"})


async def test_one_consumer_at_a_time(stage: Stage) -> None:
    reader = await _reader(stage)
    second = await stage.connect(**{"client-id": "shop"})
    await second.frame("SUBSCRIBE", {"id": "s", "destination": T, "activemq.subscriptionName": "audit"})
    await second.expect_error("has its consumer already: end that one, or choose another name")
    await reader.request("UNSUBSCRIBE", {"id": "s", "activemq.subscriptionName": "audit"})


async def test_clients_have_names_of_their_own(stage: Stage) -> None:
    """The same name under another client-id is another subscription."""
    clients = [await stage.connect(**{"client-id": name}) for name in ("a", "b")]
    for client in clients:
        await client.subscribe(T, **{"activemq.subscriptionName": "audit"})
    await clients[0].sent(T, "m")
    for client in clients:
        assert (await client.next_message()).text == "m"
        await client.request("UNSUBSCRIBE", {"id": "s", "activemq.subscriptionName": "audit"})


async def test_unsubscribe_by_name_removes_it_and_its_backlog() -> None:
    lives = Lives()
    async with lives.life() as stage:
        reader = await _reader(stage)
        await reader.unsubscribe()
        producer = await stage.connect()
        await producer.sent(T, "m", persistent="true")
        assert stage.broker.report()["durables"][0]["backlog_count"] == 1
        await reader.request("UNSUBSCRIBE", {"id": "s", "activemq.subscriptionName": "audit"})
        assert stage.broker.report()["durables"] == []
        assert stage.depth_count(T) == 0
    async with lives.life() as stage:
        assert stage.broker.report()["durables"] == []
        reader = await _reader(stage)
        await reader.silence()


async def test_one_that_belongs_to_another_topic_is_refused(stage: Stage) -> None:
    reader = await _reader(stage)
    await reader.unsubscribe()
    await reader.frame("SUBSCRIBE", {"id": "s", "destination": "/topic/x", "activemq.subscriptionName": "audit"})
    await reader.expect_error(f"belongs to {T}")
    other = await stage.connect(**{"client-id": "shop"})
    await other.request("UNSUBSCRIBE", {"id": "s", "activemq.subscriptionName": "audit"})


@pytest.mark.parametrize("destination", ["/topic/a,/topic/b", "/topic/a,/queue/q"])
async def test_a_composite_cannot_be_subscribed_durably(stage: Stage, destination: str) -> None:
    client = await stage.connect()
    await client.frame("SUBSCRIBE", {"id": "s", "destination": destination, "durable": "true"})
    await client.expect_error("durable subscription is to one topic")


@pytest.mark.parametrize("headers", [{"durable": "true"}, {"activemq.subscriptionName": "django"}])
@pytest.mark.parametrize("destination", ["/queue/q", "/queue/q.>", "/queue/q,/queue/r"])
async def test_queues_are_durable_anyway(stage: Stage, destination: str, headers: dict[str, str]) -> None:
    """There are clients (django-stomp) that say so for each destination."""
    client, producer = await stage.connect(), await stage.connect()
    await client.request("SUBSCRIBE", {"id": "s", "destination": destination, "ack": "client", **headers})
    await producer.send("/queue/q" if ">" not in destination else "/queue/q.1", "x")
    await client.ack(await client.next_message())
    await client.request("UNSUBSCRIBE", {"id": "s", **headers})
    assert not stage.broker.report()["durables"]


async def test_one_without_a_name_is_refused(stage: Stage) -> None:
    """An empty name is none: nobody could tell whose backlog it is."""
    client = await stage.connect(**{"client-id": "shop"})
    await client.frame("SUBSCRIBE", {"id": "s", "destination": T, "activemq.subscriptionName": ""})
    await client.expect_error("a durable subscription has a name")


async def test_an_abandoned_one_is_removed_by_policy() -> None:
    lives = Lives({"/topic/>": {"durable_expires_seconds": 60.0}})
    async with lives.life() as stage:
        reader = await _reader(stage)
        await reader.disconnect()
        await (await stage.connect()).sent(T, "m", persistent="true")
        await trio.sleep(50)
        assert [durable["backlog_count"] for durable in stage.broker.report()["durables"]] == [1]
        await trio.sleep(30)
        assert stage.broker.report()["durables"] == []
        assert stage.depth_count(T) == 0


async def test_all_priorities_are_kept_and_resumed() -> None:
    """A partition that is made while the subscriber is away belongs to it as well."""
    lives = Lives()
    async with lives.life(end="crash") as stage:
        reader = await _reader(stage)
        await reader.disconnect()
        producer = await stage.connect()
        await producer.sent(T, "plain", persistent="true")
        await producer.sent(T, "high", persistent="true", priority="9")
    async with lives.life() as stage:
        reader = await _reader(stage)
        assert sorted(await reader.next_texts(2)) == ["high", "plain"]


async def test_a_stored_message_is_there_once_for_many_readers() -> None:
    lives = Lives()
    async with lives.life() as stage:
        for number in range(20):
            client = await stage.connect(**{"client-id": f"c{number}"})
            await client.subscribe(T, **{"activemq.subscriptionName": "audit"})
            await client.disconnect()
        await (await stage.connect()).sent(T, "x" * 1000, persistent="true")
        report = stage.broker.report()
        assert report["store"]["written_count"] == 1
        assert [durable["backlog_count"] for durable in report["durables"]] == [1] * 20


async def test_nobody_waits_for_a_durable_subscriber_that_is_away(stage: Stage) -> None:
    reader = await _reader(stage)
    await reader.disconnect()
    producer, fast = await stage.connect(), await stage.connect()
    await fast.subscribe(T)
    for _ in range(20):
        await producer.send(T, "x" * 1_000_000)
        await fast.next_message()
    other = await stage.connect(**{"client-id": "shop"})
    await other.request("UNSUBSCRIBE", {"id": "s", "activemq.subscriptionName": "audit"})
