"""A hub that is not certain of its session delivers nothing that other hubs send: they may have given it up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

from tests.cluster.links.two_hubs import TwoHubs
from tests.scenarios.client import Client

QUEUE = "/queue/b"


@attrs.define
class Standing:
    """What hub `a` knows of its part in the cluster."""

    session: str | None = "first"
    is_certain: bool = True

    def certain_seconds(self) -> float:
        return 10.0 if self.is_certain else 0.0


@asynccontextmanager
async def consuming() -> AsyncIterator[tuple[TwoHubs, Standing, Client, Client]]:
    """A consumer at hub `a` of a queue at hub `b`, and a client of hub `b`."""
    async with TwoHubs() as hubs:
        standing = Standing()
        assert hubs.a.links is not None
        hubs.a.links._standing = standing
        consumer, other = await hubs.connect("a"), await hubs.connect("b")
        await consumer.subscribe(QUEUE, id="s", ack="client-individual")
        await other.sent(QUEUE, "1")
        assert (await consumer.next_message()).text == "1"
        yield hubs, standing, consumer, other


def look(hubs: TwoHubs) -> None:
    assert hubs.a.links is not None
    hubs.a.links.look()


async def test_messages_wait_until_the_session_is_certain_again() -> None:
    """Also what comes behind them, in order; a sender at that hub goes on."""
    async with consuming() as (hubs, standing, consumer, other):
        standing.is_certain = False
        await other.sent(QUEUE, "2")
        await consumer.send(QUEUE, "3", receipt="3")
        await consumer.silence()
        look(hubs)
        await consumer.silence()
        standing.is_certain = True
        look(hubs)
        came = [await consumer.next_message(), await consumer.next_message()]
        assert [each.text for each in came] == ["2", "3"]
        assert not any(each.redelivered for each in came)
        await consumer.expect_receipt("3")
        await other.sent(QUEUE, "4")
        assert (await consumer.next_message()).text == "4"


@pytest.mark.parametrize("is_heard_of", [True, False])
async def test_what_came_before_a_session_ended_comes_over_another_flow(is_heard_of: bool) -> None:
    """The others have given such a hub up. `is_heard_of`: it hears of the end before messages of the old flow come."""
    async with consuming() as (hubs, standing, consumer, other):
        standing.is_certain = False
        if is_heard_of:
            await other.sent(QUEUE, "2")
            await consumer.silence()
            standing.session = None
            look(hubs)
        standing.session, standing.is_certain = "second", True
        if is_heard_of:
            look(hubs)
        else:
            await other.sent(QUEUE, "2")
        came = [await consumer.next_message(), await consumer.next_message()]
        assert {each.text: each.redelivered for each in came} == {"1": True, "2": False}, "nobody has had the second"
        for each in came:
            await consumer.ack(each)
        await consumer.sync()
        assert hubs.depth_count("b", QUEUE) == 0
        await other.sent(QUEUE, "3")
        assert (await consumer.next_message()).text == "3"


async def test_a_link_that_is_lost_takes_what_waits_with_it() -> None:
    async with consuming() as (hubs, standing, consumer, other):
        standing.is_certain = False
        await other.sent(QUEUE, "2")
        await trio.testing.wait_all_tasks_blocked()
        hubs.network.cut()
        await hubs.linked()
        await consumer.silence()
        standing.is_certain = True
        look(hubs)
        assert {each.text for each in await consumer.next_messages(2)} == {"1", "2"}, "each once, by the new link"
        await consumer.silence()


async def test_an_orderly_end_passes_on_what_is_no_delivery() -> None:
    """An ERROR of the other hub stands behind messages that wait."""
    async with consuming() as (_hubs, standing, consumer, other):
        standing.is_certain = False
        await other.sent(QUEUE, "2")
        await consumer.silence()
        await consumer.frame("ACK", {"id": "0.unknown", "receipt": "r"})
        await consumer.expect_error()


async def test_a_client_may_leave_while_messages_wait() -> None:
    async with consuming() as (hubs, standing, consumer, other):
        standing.is_certain = False
        await other.sent(QUEUE, "2")
        await consumer.silence()
        consumer.stream.close()
        await trio.testing.wait_all_tasks_blocked()
        standing.is_certain = True
        look(hubs)
        relief = await hubs.connect("b")
        await relief.subscribe(QUEUE, ack="client-individual")
        assert {(await relief.next_message()).text for _ in range(2)} == {"1", "2"}
