"""Clients that write as for RabbitMQ, ActiveMQ or Artemis: their names and headers do here what they do there."""

from __future__ import annotations

import pytest
import trio

from sluiceway.protocols.stomp.escaping import Version
from tests.cluster.links.two_hubs import TwoHubs
from tests.scenarios.lives import Lives
from tests.scenarios.stage import Stage

# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("/amq/queue/a.b/c", "/queue/a.b/c"),
        ("/exchange/amq.topic/a.b", "/topic/a.b"),
        ("/exchange/amq.fanout", "/topic/amq.fanout"),
        ("/exchange/amq.fanout/any", "/topic/amq.fanout"),
    ],
)
async def test_a_form_of_rabbitmq_is_the_name_that_it_means(
    stage: Stage, version: Version, written: str, name: str
) -> None:
    """The same for SEND, SUBSCRIBE and UNSUBSCRIBE; a MESSAGE says the name, as RabbitMQ's do."""
    consumer, producer = await stage.connect(version), await stage.connect(version)
    for of_consumer, of_producer in ((written, name), (name, written), (written, written)):
        await consumer.subscribe(of_consumer)
        await producer.sent(of_producer, "x", custom="a b")
        delivery = await consumer.next_message()
        assert (delivery.text, delivery.headers["destination"]) == ("x", name)
        assert delivery.headers["custom"] == "a b"
        await consumer.unsubscribe()
    assert not {each for each in stage.broker.registry.destinations if each.startswith(("/amq", "/exchange"))}


async def test_a_form_of_rabbitmq_may_be_part_of_a_composite_and_of_a_transaction(stage: Stage) -> None:
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe("/amq/queue/a,/exchange/amq.topic/b")
    await producer.frame("BEGIN", {"transaction": "t"})
    for name in ("/queue/c,/amq/queue/a", "/exchange/amq.topic/b"):
        await producer.frame("SEND", {"destination": name, "transaction": "t"}, name)
    await producer.request("COMMIT", {"transaction": "t"})
    deliveries = await consumer.next_messages(2)
    assert {each.headers["destination"] for each in deliveries} == {"/queue/a", "/topic/b"}
    assert stage.depth_count("/queue/c") == 1


@pytest.mark.parametrize("written", ["/amq/queue/", "/exchange/amq.topic/"])
async def test_a_form_of_rabbitmq_without_a_name_is_refused(stage: Stage, written: str) -> None:
    for command, headers in (("SEND", {}), ("SUBSCRIBE", {"id": "s"})):
        client = await stage.connect()
        await client.frame(command, {"destination": written, **headers})
        assert (await client.expect_error("has no name")).headers["code"] == "bad-destination"


async def test_names_of_rabbitmq_keep_their_messages_over_a_restart() -> None:
    lives = Lives()
    async with lives.life() as stage:
        client = await stage.connect()
        await client.sent("/amq/queue/a", "x", persistent="true")
    async with lives.life() as stage:
        client = await stage.connect()
        await client.subscribe("/amq/queue/a")
        assert (await client.next_message()).headers["destination"] == "/queue/a"


@pytest.mark.parametrize("version", ["1.0", "1.2"])
async def test_names_of_rabbitmq_find_their_hub(version: Version) -> None:
    async with TwoHubs() as hubs:
        client, other = await hubs.connect(version=version), await hubs.connect(version=version)
        await client.subscribe("/amq/queue/b.x", id="1")
        await client.subscribe("/topic/b.#", id="2")
        for written in ("/amq/queue/b.x", "/exchange/amq.topic/b", "/topic/b.c.d"):
            await other.sent(written, written)
        found = {each.headers["destination"] for each in await client.next_messages(3)}
        assert found == {"/queue/b.x", "/topic/b", "/topic/b.c.d"}


# -- replies ----------------------------------------------------------------------------------------------------------


async def test_a_reply_to_subscribes_to_its_queue_if_the_client_does_not(stage: Stage, version: Version) -> None:
    """RabbitMQ's way: the name of the queue is the id of the subscription."""
    asker, replier = await stage.connect(version), await stage.connect(version)
    await replier.subscribe("/queue/q")
    for number in range(2):
        await asker.send("/queue/q", "x", **{"reply-to": "/temp-queue/t", "correlation-id": str(number)})
        await replier.sent((await replier.next_message()).headers["reply-to"], f"answer {number}")
        reply = await asker.next_message()
        assert (reply.text, reply.headers["subscription"]) == (f"answer {number}", "/temp-queue/t")
    await asker.request("UNSUBSCRIBE", {"id": "/temp-queue/t"})


async def test_a_client_that_subscribes_to_its_reply_queue_gets_all_replies_there(stage: Stage) -> None:
    """Before its SEND, or soon behind it; a late SUBSCRIBE takes over, even under the same id."""
    replier = await stage.connect()
    await replier.subscribe("/queue/q")
    for before, behind in ((["own"], []), ([], ["own"]), ([], ["/temp-queue/t"])):
        asker = await stage.connect()
        for each in before:
            await asker.subscribe("/temp-queue/t", id=each)
        await asker.send("/queue/q", "x", **{"reply-to": "/temp-queue/t"})
        name = (await replier.next_message()).headers["reply-to"]
        if behind == ["/temp-queue/t"]:
            await trio.sleep(1)
        for each in behind:
            await asker.subscribe("/temp-queue/t", id=each, ack="client")
        await trio.sleep(1)
        await replier.sent(name, "y")
        reply = await asker.next_message()
        assert [reply.headers["subscription"]] == before + behind
        await asker.silence()
        await asker.disconnect()


async def test_a_reply_to_subscribes_over_a_link_too() -> None:
    async with TwoHubs() as hubs:
        asker, replier = await hubs.connect(), await hubs.connect()
        await replier.subscribe("/queue/b.q")
        await asker.send("/queue/b.q", "x", **{"reply-to": "/temp-queue/t"})
        await replier.sent((await replier.next_message()).headers["reply-to"], "y")
        assert (await asker.next_message()).headers["subscription"] == "/temp-queue/t"
