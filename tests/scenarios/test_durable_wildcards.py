"""Durable subscriptions to wildcards: all topics that match, also later ones, over restarts."""

from __future__ import annotations

from random import Random
from typing import Final

import pytest
import trio

from sluiceway.protocols.stomp.escaping import Version
from sluiceway.queues import durable_wildcards
from sluiceway.queues.durables import DurableLimitError
from tests.scenarios.guarded import GuardedStage, allow
from tests.scenarios.lives import Lives
from tests.scenarios.stage import Stage
from tests.store.faulty import FaultyEngine

AUDIT: Final = {"activemq.subscriptionName": "audit"}
SHOP: Final = {"client-id": "shop"}


@pytest.mark.parametrize(
    ("connect", "subscribe"), [(SHOP, {"id": "s", **AUDIT}), ({}, {"durable": "true", "id": "audit"})]
)
async def test_a_durable_wildcard_gets_present_and_later_topics_over_restarts(
    version: Version, connect: dict[str, str], subscribe: dict[str, str]
) -> None:
    """At every priority, what came while it was away, once, and none of what it has settled."""
    lives = Lives()
    async with lives.life() as stage:
        client, producer = await stage.connect(version, **connect), await stage.connect()
        for topic in ("a.present", "a.b.z", "other"):  # they are there already
            await (await stage.connect()).subscribe(f"/topic/{topic}")
        await client.subscribe("/topic/a.#", ack="client-individual" if version != "1.0" else "client", **subscribe)
        await producer.sent("/topic/a.present", "1", persistent="true")
        await producer.sent("/topic/a.later", "2", persistent="true")
        await producer.sent("/topic/other", "not for it", persistent="true")
        for text in ("1", "2"):
            delivery = await client.next_message()
            assert delivery.text == text
            if text == "1":
                await client.ack(delivery)
        await client.sync()
        client.vanish()
        await trio.sleep(1)
        await producer.sent("/topic/a.away", "3", persistent="true", priority="9")
    async with lives.life() as stage:
        producer = await stage.connect()
        (row,) = stage.broker.report()["durables"]
        assert (row["destination"], row["backlog_count"], row["attached"]) == ("/topic/a.#", 2, False)
        await producer.sent("/topic/a", "4", persistent="true")
        client = await stage.connect(version, **connect)
        await client.subscribe("/topic/a.#", **subscribe)
        assert sorted(await client.next_texts(3)) == ["2", "3", "4"]
        await client.silence()
        await producer.sent("/topic/a.new", "5")
        assert (await client.next_message()).text == "5"
        await client.request("UNSUBSCRIBE", {"destination": "/topic/a.#", **subscribe})
        assert not list(stage.broker.registry.durables)
        assert not stage.broker.report()["durables"]
        await producer.sent("/topic/a.new", "6", persistent="true")
        assert stage.depth_count("/topic/a.new") == 0
    async with lives.life() as stage:
        assert not list(stage.broker.registry.durables)


async def test_several_consumers_share_a_durable_wildcard(stage: Stage) -> None:
    """Without a client-id: each message of each topic goes to one of them."""
    words = {"durable": "true", "id": "audit", "ack": "client"}
    consumers = [await stage.connect() for _ in range(2)]
    for consumer in consumers:
        await consumer.subscribe("/topic/*.z", **words)
    producer = await stage.connect()
    for number in range(20):
        await producer.sent(f"/topic/{number % 4}.z", str(number))
    found = []
    for consumer in consumers:
        deliveries = await consumer.drain()
        found += [delivery.text for delivery in deliveries]
        for delivery in deliveries:
            await consumer.ack(delivery)
        assert deliveries
    assert sorted(map(int, found)) == list(range(20))


async def test_a_durable_wildcard_with_a_selector_asks_for_the_same_one(stage: Stage) -> None:
    client = await stage.connect(**SHOP)
    await client.subscribe("/topic/a.*", selector="kind = 'x'", **AUDIT)
    await client.disconnect()
    producer = await stage.connect()
    await producer.sent("/topic/a.b", "yes", kind="x")
    await producer.sent("/topic/a.b", "no", kind="y")
    client = await stage.connect(**SHOP)
    await client.subscribe("/topic/a.*", selector="kind = 'x'", **AUDIT)
    assert await client.next_texts(1) == ["yes"]
    await client.silence()
    await client.disconnect()
    other = await stage.connect(**SHOP)
    await other.frame("SUBSCRIBE", {"destination": "/topic/a.*", "id": "1", **AUDIT})
    await other.expect_error("was made with the selector")
    other = await stage.connect(**SHOP)
    await other.request("UNSUBSCRIBE", {"id": "1", "destination": "/topic/a.*", **AUDIT})


async def test_empty_topics_of_a_durable_wildcard_are_forgotten_and_come_back(stage: Stage) -> None:
    """One-off names do not stay for ever; what is unread keeps its topic."""
    client = await stage.connect(**SHOP)
    await client.subscribe("/topic/a.*", **AUDIT)
    producer = await stage.connect()
    await producer.sent("/topic/a.read", "1")
    assert await client.next_texts(1) == ["1"]
    await client.disconnect()
    await producer.sent("/topic/a.unread", "2")
    await producer.disconnect()
    await trio.sleep(120)
    assert set(stage.broker.registry.destinations) == {"/topic/a.unread"}
    await (await stage.connect()).sent("/topic/a.read", "3")
    client = await stage.connect(**SHOP)
    await client.subscribe("/topic/a.*", **AUDIT)
    assert sorted(await client.next_texts(2)) == ["2", "3"]


async def test_a_durable_wildcard_is_for_topics_that_its_user_may_receive() -> None:
    """While its consumer is away new topics are kept for whoever comes; then the others are given up."""
    rules = (
        allow("ann", "receive", "/topic/a.open", "/topic/a.later"),
        allow("bob", "send create", "/topic/>"),
    )
    async with GuardedStage(*rules) as stage:
        ann = await stage.connect(login="ann", passcode="ann", **SHOP)
        bob = await stage.connect(login="bob", passcode="bob")
        await ann.subscribe("/topic/a.*", **AUDIT)
        for topic in ("open", "secret"):
            await bob.sent(f"/topic/a.{topic}", topic)
        assert await ann.next_texts(1) == ["open"]
        assert stage.depth_count("/topic/a.secret") == 0
        await ann.disconnect()
        for topic in ("later", "closed"):
            await bob.sent(f"/topic/a.{topic}", topic)
        assert stage.depth_count("/topic/a.closed") == 1
        ann = await stage.connect(login="ann", passcode="ann", **SHOP)
        await ann.subscribe("/topic/a.*", **AUDIT)
        assert await ann.next_texts(1) == ["later"]
        await ann.silence()
        assert stage.depth_count("/topic/a.closed") == 0
        (durable,) = stage.broker.registry.durables
        assert {each.name for each in stage.broker.registry.topics_of(durable)} == {"/topic/a.open", "/topic/a.later"}


async def test_the_quota_of_each_topic_holds_for_a_durable_wildcard() -> None:
    """Its senders wait for the consumer that is away; those of other topics do not."""
    async with Stage({"/topic/a.full": {"count_max": 3, "full": "block"}}) as stage:
        client = await stage.connect(**SHOP)
        await client.subscribe("/topic/a.*", **AUDIT)
        await client.disconnect()
        producer, other = await stage.connect(), await stage.connect()
        for number in range(6):
            await producer.send("/topic/a.full", str(number), receipt=f"r{number}")
        await other.sent("/topic/a.free", "x")
        await trio.sleep(5)
        assert stage.chains()
        client = await stage.connect(**SHOP)
        await client.subscribe("/topic/a.*", **AUDIT)
        assert sorted(await client.next_texts(7)) == ["0", "1", "2", "3", "4", "5", "x"]


async def test_retained_messages_come_once_to_a_durable_wildcard(stage: Stage) -> None:
    producer = await stage.connect()
    await producer.sent("/topic/a.b", "kept", retain="set")
    for expected in (["kept"], []):
        client = await stage.connect(**SHOP)
        await client.subscribe("/topic/a.*", **AUDIT)
        assert await client.next_texts(len(expected)) == expected
        await client.silence()
        await client.disconnect()


async def test_a_durable_wildcard_with_too_many_topics_is_refused_and_leaves_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that would be one too many is refused, so that nothing is missed in silence."""
    monkeypatch.setattr(durable_wildcards, "TOPICS_MAX", 2)
    producer = await stage.connect()
    for topic in ("a.1", "a.2", "a.3"):
        await (await stage.connect()).subscribe(f"/topic/{topic}")
    client = await stage.connect(**SHOP)
    await client.frame("SUBSCRIBE", {"destination": "/topic/a.*", "id": "1", **AUDIT})
    assert (await client.expect_error("2 topics already")).headers["code"] == DurableLimitError.code
    await trio.sleep(1)
    assert not list(stage.broker.registry.durables)
    client = await stage.connect(**SHOP)
    await client.subscribe("/topic/b.*", **AUDIT)
    for topic in ("b.1", "b.2"):
        await producer.sent(f"/topic/{topic}", "x")
    await producer.frame("SEND", {"destination": "/topic/b.3", "receipt": "r"}, "x")
    assert (await producer.expect_error("2 topics already")).headers["code"] == "too-many-destinations"


async def test_several_shards_have_no_durable_wildcards() -> None:
    async with Stage(engine=[FaultyEngine(Random(0)) for _ in range(2)]) as stage:
        client = await stage.connect(**SHOP)
        await client.frame("SUBSCRIBE", {"destination": "/topic/a.*", "id": "1", **AUDIT})
        assert (await client.expect_error("several shards")).headers["code"] == "not-durable"
