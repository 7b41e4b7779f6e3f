"""Pausing, and other credit, of subscriptions to what another hub has."""

from __future__ import annotations

import json

import pytest
import trio.testing

from sluiceway.protocols.stomp.escaping import Version
from sluiceway.queues.shard_hash import shard_of
from tests.cluster.links.two_hubs import TwoHubs
from tests.cluster.moves.moving_hubs import SHARDS, MovingHubs

CREDIT = "/sluiceway/credit"
BOTH_HUBS = "/queue/a.x,/queue/b.x"


@pytest.mark.parametrize("version", ["1.0", "1.2"])
@pytest.mark.parametrize("destination", ["/queue/b.x", "/topic/b.x", "/topic/a.x", BOTH_HUBS])
async def test_subscription_at_another_hub_is_paused_and_resumed(version: Version, destination: str) -> None:
    """Wherever its parts are: the RECEIPT comes when all of them are paused."""
    async with TwoHubs() as hubs:
        client, sender = await hubs.connect(version=version), await hubs.connect("b")
        await client.subscribe(destination)
        await client.sent(CREDIT, id="s", credit="0")
        await sender.send_all(destination, range(3))
        await client.silence()
        await client.sent(CREDIT, id="s", paused="false")
        count = 3 * len(destination.split(","))
        assert sorted(await client.next_texts(count)) == sorted(["0", "1", "2"] * (count // 3))


async def test_window_of_a_subscription_at_another_hub() -> None:
    async with TwoHubs() as hubs:
        client = await hubs.connect()
        await client.subscribe("/queue/b.x", ack="client-individual", prefetch_count="1")
        await client.send_all("/queue/b.x", range(10))
        await client.next_message()
        await client.sent(CREDIT, id="s", credit="4,100000")
        assert await client.next_texts(3) == ["1", "2", "3"]
        await client.silence()


async def test_pause_outlives_the_link() -> None:
    """The subscription is made again, paused, with its window."""
    async with TwoHubs() as hubs:
        client, sender = await hubs.connect(), await hubs.connect("b")
        await client.subscribe("/queue/b.x", ack="client-individual")
        await client.sent(CREDIT, id="s", credit="2", paused="true")
        hubs.network.cut()
        await hubs.linked()
        await trio.testing.wait_all_tasks_blocked()
        await sender.send_all("/queue/b.x", range(5))
        await client.silence()
        await client.sent(CREDIT, id="s", paused="false")
        assert await client.next_texts(2) == ["0", "1"]
        await client.silence()


@pytest.mark.parametrize(("first", "then"), [("b", "a"), ("a", "b")])
async def test_pause_follows_a_destination_that_moves(first: str, then: str) -> None:
    """From another hub to that of the client, and away from it, with the window."""
    async with MovingHubs() as hubs:
        shard = shard_of("/queue/moves", SHARDS)
        await hubs.member("a").move(shard, first)
        await hubs.until(lambda: hubs.owners()[shard] == first)
        client, sender = await hubs.connect("a"), await hubs.connect("b")
        await client.subscribe("/queue/moves", ack="client-individual")
        await client.sent(CREDIT, id="s", credit="2", paused="true")
        await hubs.member("a").move(shard, then)
        await hubs.until(lambda: hubs.owners()[shard] == then)
        for text in "01234":
            await sender.sent("/queue/moves", text, persistent="true")
        await client.silence()
        await client.sent(CREDIT, id="s", paused="false")
        assert await client.next_texts(2) == ["0", "1"]
        await client.silence()


@pytest.mark.parametrize("destination", ["/queue/b.x", BOTH_HUBS])
async def test_the_answer_says_what_is_in_force_at_another_hub(destination: str) -> None:
    """Also where the link is lost before it came: the subscription is made again with this credit."""
    async with TwoHubs() as hubs:
        client, sender = await hubs.connect(), await hubs.connect("b")
        await client.subscribe(destination, ack="client")
        await client.subscribe("/temp-queue/answers", id="a")
        asked = {"id": "s", "credit": "7,8000", "reply_to": "/temp-queue/answers", "correlation_id": "c"}
        for is_cut in (False, True):
            await client.send(CREDIT, **asked)
            if is_cut:
                hubs.network.cut()
            answer = await client.next_message()
            assert answer.headers["correlation-id"] == "c"
            assert json.loads(answer.body) == {"id": "s", "paused": False, "credit_count": 7, "credit_bytes": 8000}
        await hubs.linked()
        await sender.send_all("/queue/b.x", range(10))
        assert await client.next_texts(7) == [f"{number}" for number in range(7)]
        await client.silence()


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"id": "s", "credit": "x"}, "bad-credit"),
        ({"id": "t", "credit": "1"}, "unknown-subscription"),
        ({"id": "s"}, "missing-header"),
    ],
)
async def test_wrong_request_about_another_hub_is_an_error(headers: dict[str, str], code: str) -> None:
    async with TwoHubs() as hubs:
        client = await hubs.connect()
        await client.subscribe("/queue/b.x")
        await client.send(CREDIT, receipt="r", **headers)
        error = await client.expect_error()
        assert (error.headers["code"], error.headers["receipt-id"]) == (code, "r")
