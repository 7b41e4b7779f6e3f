"""Durable subscriptions: what went wrong once between two lives, or between two consumers."""

from __future__ import annotations

import pytest

from tests.faults.store.small_store import constants, small
from tests.scenarios.client import Client
from tests.scenarios.lives import Lives
from tests.scenarios.stage import Stage

T = "/topic/prices"
FULL = "/queue/full"


async def reader_of(stage: Stage) -> Client:
    """Attached to the durable subscription of this test."""
    client = stage.stranger()
    await client.connect("1.2", **{"client-id": "shop"})  # type: ignore[arg-type]
    await client.subscribe(T, ack="client-individual", **{"activemq.subscriptionName": "audit"})
    return client


@pytest.mark.parametrize("end", ["crash", "power cut"])
async def test_a_place_beyond_what_survived_does_not_hide_what_comes_next(end: str) -> None:
    """What is not persistent takes sequences that a crash forgets; a reader that has settled them has passed them."""
    with constants(small(2)):
        lives = Lives()
        async with lives.life(end=end) as stage:
            reader, producer = await reader_of(stage), await stage.connect()
            await producer.sent(T, "kept", persistent="true")
            for number in range(5):
                await producer.sent(T, f"volatile {number}")
            _kept, *volatile = await reader.next_messages(6)
            for delivery in volatile:
                await reader.ack(delivery)
        async with lives.life() as stage:
            producer = await stage.connect()
            for number in range(5):
                await producer.sent(T, f"new {number}", persistent="true")
            reader = await reader_of(stage)
            assert await reader.next_texts(6) == ["kept", *(f"new {number}" for number in range(5))]


@pytest.mark.parametrize("leaves", ["breaks", "DISCONNECT"])
async def test_what_a_late_commit_acknowledges_does_not_come_again(leaves: str) -> None:
    """COMMIT waits for a full queue, its connection ends, the next reader may have the messages already: all of the
    transaction counts all the same.
    """
    lives = Lives({FULL: {"memory_bytes": 2_000, "paging": "throttle"}})
    async with lives.life(end="crash") as stage:
        reader, producer = await reader_of(stage), await stage.connect()
        await producer.send_all(FULL, ["x" * 1_500, "y" * 1_500], persistent="true")
        await producer.sent(T, "acknowledged", persistent="true")
        (first,) = await reader.next_messages(1)
        await reader.frame("BEGIN", {"transaction": "t"})
        await reader.frame("SEND", {"destination": FULL, "persistent": "true", "transaction": "t"}, "sent")
        await reader.frame("ACK", {**reader.naming(first), "transaction": "t"})
        await reader.frame("COMMIT", {"transaction": "t"})
        if leaves == "breaks":
            reader.vanish()
        else:
            await reader.frame("DISCONNECT", {"receipt": "bye"})
        await stage.settled_down()
        successor = await reader_of(stage)
        await producer.sent(T, "left", persistent="true")
        again = await successor.drain()
        consumer = await stage.connect()
        await consumer.subscribe(FULL)
        assert (await consumer.next_texts(3))[2] == "sent", "the transaction was carried out"
        for delivery in again:
            await successor.nack(delivery)
        assert {delivery.text for delivery in await successor.drain()} == {"left"}
        await producer.sent(T, "behind it", persistent="true")
    async with lives.life() as stage:
        reader = await reader_of(stage)
        assert {delivery.text for delivery in await reader.drain()} == {"left", "behind it"}
