"""Retained messages in a cluster: refused in words, wherever the topic is at home."""

from __future__ import annotations

import pytest

from tests.cluster.links.two_hubs import TwoHubs


@pytest.mark.parametrize("destination", ["/topic/a.x", "/topic/b.x"])
async def test_retained_messages_are_refused_in_a_cluster(destination: str) -> None:
    async with TwoHubs() as hubs:
        client, subscriber = await hubs.connect(), await hubs.connect("b")
        await subscriber.subscribe(destination)
        await client.send(destination, "x", retain="set", receipt="r")
        error = await client.expect_error("a cluster has no retained messages")
        assert (error.headers["code"], error.headers["receipt-id"]) == ("not-supported", "r")
        await subscriber.silence()
