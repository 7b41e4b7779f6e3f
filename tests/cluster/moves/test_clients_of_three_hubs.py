"""Clients of three hubs, whose topics are at any of them."""

from __future__ import annotations

import trio

from tests.cluster.moves.moving_hubs import MovingHubs, names

TOPICS = names("/topic/t")
QUEUES = names("/queue/s")


async def test_a_durable_subscription_is_removed_by_its_name_at_any_hub() -> None:
    """Whichever of three hubs has it; a name that none of them has is an ERROR, as with one hub."""
    async with MovingHubs(3) as hubs:
        assert set(hubs.owners()) == {"a", "b", "c"}
        reader = await hubs.connect("b", **{"client-id": "c1"})
        for number, topic in enumerate(TOPICS):
            await reader.subscribe(topic, id=topic, **{"activemq.subscriptionName": f"d{number}"})
        await reader.disconnect()
        client = await hubs.connect("a", **{"client-id": "c1"})
        for number in range(len(TOPICS)):
            await client.request("UNSUBSCRIBE", {"id": "none", "activemq.subscriptionName": f"d{number}"})
        left = [each.name for run in hubs.running.values() for each in run.broker.registry.durables]
        assert left == []
        await client.sync()  # the connection is as it was
        await client.frame("UNSUBSCRIBE", {"id": "none", "activemq.subscriptionName": "d0", "receipt": "r"})
        error = await client.expect_error("no durable subscription 'd0' of client 'c1'")
        assert (error.headers["code"], error.headers["receipt-id"]) == ("unknown-subscription", "r")


async def test_without_a_client_id_the_topic_has_to_be_named() -> None:
    """For topics of several hubs may have a subscription of that name."""
    async with MovingHubs(3) as hubs:
        client = await hubs.connect("a")
        await client.frame("UNSUBSCRIBE", {"id": "none", "activemq.subscriptionName": "d"})
        error = await client.expect_error("without a client-id and without its topic")
        assert error.headers["code"] == "missing-header"


async def test_no_local_holds_through_hubs() -> None:
    """Of topics of all hubs, also in runs that are passed on as they lie, and for a durable subscription."""
    async with MovingHubs(3) as hubs:
        client, other = await hubs.connect("a", **{"client-id": "c1"}), await hubs.connect("b")
        for topic in TOPICS:
            await other.subscribe(topic, id=topic)
            await client.subscribe(topic, id=topic, **{"no-local": "true"})
            await client.subscribe(
                topic, id=f"kept {topic}", **{"activemq.subscriptionName": topic, "no-local": "true"}
            )
        for topic in TOPICS:
            await client.send_all(topic, ["own"] * 20)
        assert await other.next_texts(20 * len(TOPICS)) == ["own"] * 20 * len(TOPICS)
        await client.silence()
        for topic in TOPICS:
            await other.sent(topic, "of another")
        assert await client.next_texts(2 * len(TOPICS)) == ["of another"] * 2 * len(TOPICS)


async def test_message_ids_are_unique_and_name_deliveries_of_any_hub() -> None:
    """In STOMP 1.1, where an ACK names the message-id: of topics at the own hub, and of queues elsewhere."""
    async with MovingHubs(3) as hubs:
        readers = [await hubs.connect(hub, version="1.1") for hub in "abc"]
        sender = await hubs.connect("b")
        for number, reader in enumerate(readers):
            for topic in TOPICS:
                await reader.subscribe(topic, id=topic, ack="client-individual")
            await reader.subscribe(QUEUES[number], id="queue", ack="client-individual", prefetch_count="1")
        for destination in (*TOPICS, *QUEUES):
            for _ in range(2):
                await sender.sent(destination, "x")
        ids: list[str] = []
        for reader in readers:
            for _ in range(2 * len(TOPICS) + 2):  # the second message of the queue comes behind the ACK of the first
                delivery = await reader.next_message()
                ids.append(delivery.headers["message-id"])
                await reader.ack(delivery)
            await reader.silence()
        assert len(set(ids)) == len(ids) == 3 * (2 * len(TOPICS) + 2)
        await trio.sleep(1.0)
        for reader in readers:
            await reader.disconnect()
