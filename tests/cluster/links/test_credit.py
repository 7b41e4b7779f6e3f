"""Pausing, and other credit, of subscriptions to what another hub has."""

from __future__ import annotations

import pytest
import trio.testing

from sluiceway.protocols.stomp.escaping import Version
from tests.cluster.links.two_hubs import TwoHubs

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


async def test_pause_follows_a_destination_that_moves() -> None:
    async with TwoHubs() as hubs:
        client, sender = await hubs.connect(), await hubs.connect("b")
        await client.subscribe("/queue/a.x")
        await client.sent(CREDIT, id="s", credit="0")
        await client.subscribe("/queue/b.x", id="t")
        await client.sent(CREDIT, id="t", credit="0")
        await sender.send_all("/queue/b.x", range(2))
        await client.silence()
        await client.sent(CREDIT, id="t", credit="10")
        assert await client.next_texts(2) == ["0", "1"]


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"id": "s", "credit": "x"}, "bad-credit"),
        ({"id": "s", "credit": "1", "reply_to": "/temp-queue/a"}, "not-supported"),
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
