"""Retained messages of topics: new subscribers get the last one first, then all that comes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import trio

from sluiceway.protocols.stomp.escaping import Version
from tests.scenarios.lives import Lives, durability
from tests.scenarios.stage import Stage

T = "/topic/prices.eu"


def texts(deliveries: list[Any]) -> list[tuple[str, bool]]:
    return [(each.text, each.headers.get("retained") == "true") for each in deliveries]


async def test_new_subscribers_get_the_last_one_first(stage: Stage, version: Version) -> None:
    """Marked as retained; those who are there get it live, without the mark."""
    sender, early = await stage.connect(version), await stage.connect(version)
    await early.subscribe(T)
    for text in ("old", "new"):
        await sender.send(T, text, retain="set")
    await sender.sent(T, "not kept")
    assert texts(await early.next_messages(3)) == [("old", False), ("new", False), ("not kept", False)]
    late = await stage.connect(version)
    await late.subscribe(T)
    await sender.sent(T, "live")
    assert texts(await late.next_messages(2)) == [("new", True), ("live", False)]
    await late.silence()


@pytest.mark.parametrize("ack", ["client", "client-individual"])
async def test_ack_of_a_retained_message_does_nothing(stage: Stage, version: Version, ack: str) -> None:
    """It takes no credit, and needs no ACK; one is accepted."""
    sender, client = await stage.connect(version), await stage.connect(version)
    await sender.sent(T, "kept", retain="set")
    await client.subscribe(T, ack=ack, prefetch_count="1")
    retained = await client.next_message()
    await sender.send_all(T, range(2))
    live = await client.next_message()
    await client.silence()
    await client.ack(retained)
    await client.silence()
    await client.ack(live)
    await client.ack(await client.next_message())


async def test_it_is_there_without_a_subscriber_and_after_the_topic_is_forgotten(stage: Stage) -> None:
    sender = await stage.connect()
    await sender.sent(T, "kept", retain="true")
    await sender.disconnect()
    await trio.sleep(200)
    assert T not in stage.broker.registry.destinations
    client = await stage.connect()
    await client.subscribe("/topic/>")
    assert texts(await client.next_messages(1)) == [("kept", True)]


async def test_wildcards_get_that_of_each_topic(stage: Stage) -> None:
    """Of topics that are there, and of those that are not; of other ones, and other destinations, nothing."""
    sender, client = await stage.connect(), await stage.connect()
    for n in range(50):
        await sender.send(f"/topic/a.{n}", str(n), retain="set")
    await sender.sent("/topic/b.x", "no", retain="set")
    await client.subscribe("/topic/a.*,/topic/a.3")
    assert sorted(int(text) for text in await client.next_texts(50)) == list(range(50))
    await client.silence()
    await sender.sent("/topic/a.3", "live", retain="set")
    assert texts(await client.next_messages(1)) == [("live", False)]
    queues = await stage.connect()
    await queues.subscribe("/queue/>")
    await queues.subscribe("/>", id="all")
    await queues.drain()
    assert stage.depth_count("/retained/a.3") == 1


async def test_removed_expired_and_selected_ones(stage: Stage) -> None:
    sender = await stage.connect()
    await sender.send("/topic/a", "x", retain="set")
    await sender.sent("/topic/a", "", retain="remove")
    await sender.send("/topic/b", "x", retain="set", expiration="5000")
    await sender.sent("/topic/c", "x", retain="set", colour="red")
    await trio.sleep(10)
    for name, selector, count in (("a", "", 0), ("b", "", 0), ("c", "colour = 'red'", 1), ("c", "colour = 'blue'", 0)):
        client = await stage.connect()
        await client.subscribe(f"/topic/{name}", **({"selector": selector} if selector else {}))
        assert len(await client.drain()) == count, name


async def test_paused_subscriber_gets_it_when_it_resumes(stage: Stage) -> None:
    sender, client = await stage.connect(), await stage.connect()
    await sender.sent(T, "kept", retain="set")
    await client.subscribe(T, paused="true")
    await sender.sent(T, "live")
    await client.silence()
    await client.sent("/sluiceway/credit", id="s", paused="false")
    assert texts(await client.next_messages(2)) == [("kept", True), ("live", False)]


async def test_durable_subscription_gets_it_once(stage: Stage) -> None:
    """When it is new: later it has all that came."""
    sender = await stage.connect()
    await sender.sent(T, "kept", retain="set")
    for expected in ([("kept", True)], []):
        client = await stage.connect(client_id="c")
        await client.subscribe(T, id="d", durable="true")
        assert texts(await client.drain()) == expected
        await client.disconnect()
    client = await stage.connect(client_id="c")
    await client.request("UNSUBSCRIBE", {"id": "d", "durable": "true"})


async def test_no_gap_and_no_copy_while_others_send(stage: Stage) -> None:
    """Whenever a subscriber comes, it gets the last value, and then each one behind it."""
    sender = await stage.connect()

    async def send() -> None:
        for n in range(60):
            await sender.send(T, str(n), retain="set")
            if n % 3 == 0:
                await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        for _ in range(15):
            await trio.sleep(0.1)
            client = await stage.connect()
            await client.subscribe(T if _ % 2 else "/topic/>")
    for client in stage.clients[1:]:
        got = [int(each.text) for each in await client.drain()]
        assert got == list(range(got[0], 60))


@pytest.mark.parametrize("end", ["in order", "crash", "power cut"])
async def test_persistent_one_survives_the_broker(end: str) -> None:
    """Its RECEIPT says so; what is not persistent ends with the broker, and so does what was removed."""
    lives = Lives()
    async with lives.life(end=end) as stage:
        sender = await stage.connect()
        await sender.sent(T, "old", retain="set", persistent="true")
        await sender.sent(T, "kept", retain="set", persistent="true", priority="9")
        assert durability(sender) == ["disk"] * 2
        await sender.sent("/topic/b", "x", retain="set")
        await sender.sent("/topic/c", "x", retain="set", persistent="true")
        await sender.sent("/topic/c", "", retain="remove")
    async with lives.life() as stage:
        client, sender = await stage.connect(), await stage.connect()
        await client.subscribe("/topic/>")
        assert texts(await client.drain()) == [("kept", True)]
        stage.broker.registry.retained.bytes_max = 100
        await sender.send("/topic/d", "y" * 50, retain="set")
        assert (await sender.expect_error()).headers["code"] == "too-many-retained"


@pytest.mark.parametrize(
    ("destination", "headers", "code"),
    [
        (T, {"retain": "maybe"}, "bad-retain"),
        ("/queue/a", {"retain": "set"}, "bad-retain"),
        ("/temp-topic/a", {"retain": "set"}, "bad-retain"),
        (T, {"retain": "set", "delay": "100"}, "not-supported"),
        (T, {"retain": "set", "transaction": "t"}, "not-supported"),
        ("/retained/a", {}, "bad-destination"),
    ],
)
async def test_what_cannot_be_retained(stage: Stage, destination: str, headers: Mapping[str, str], code: str) -> None:
    client = await stage.connect()
    await client.request("BEGIN", {"transaction": "t"})
    await client.send(destination, "x", **headers)
    assert (await client.expect_error()).headers["code"] == code


async def test_subscribing_to_the_queue_of_one_is_refused_but_browsing_is_not(stage: Stage) -> None:
    sender, browser = await stage.connect(), await stage.connect()
    await sender.sent(T, "kept", retain="set")
    await browser.subscribe("/retained/prices.eu", browser="true")
    assert (await browser.next_message()).text == "kept"
    await sender.frame("SUBSCRIBE", {"destination": "/retained/prices.eu", "id": "s"})
    assert (await sender.expect_error("/topic/prices.eu")).headers["code"] == "bad-destination"


@pytest.mark.parametrize("limit", ["count", "bytes"])
async def test_limits(stage: Stage, limit: str) -> None:
    """The one that is too many is refused, and not published; room comes back when others are removed."""
    retained = stage.broker.registry.retained
    sender, client = await stage.connect(), await stage.connect()
    await client.subscribe("/topic/c")
    if limit == "count":
        retained.count_max = 2
    else:
        retained.bytes_max = 5000
    for name in "ab":
        await sender.sent(f"/topic/{name}", "x" * 1500, retain="set")
    await sender.sent("/topic/a", "x" * 1500, retain="set")
    other = await stage.connect()
    await other.send("/topic/c", "x" * 3000, retain="set")
    error = await other.expect_error("retained_")
    assert error.headers["code"] == "too-many-retained"
    await client.silence()
    await sender.sent("/topic/a", "", retain="remove")
    await trio.sleep(200)
    await sender.sent("/topic/c", "x" * 3000, retain="set")
    await client.next_message()
