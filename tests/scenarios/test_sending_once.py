"""A message that its producer sends again is confirmed, and not taken a second time: whatever came in between."""

from __future__ import annotations

import pytest

from tests.scenarios.client import Client
from tests.scenarios.lives import Lives, durability
from tests.scenarios.stage import Stage

Q = "/queue/orders"


async def send(client: Client, *sequences: int, destination: str = Q, receipt: bool = True, **headers: str) -> None:
    """Send messages of producer p; the bodies are their numbers."""
    for sequence in sequences:
        numbered = {"producer_id": "p", "producer_sequence": str(sequence), **headers}
        method = client.sent if receipt else client.send
        await method(destination, str(sequence), **numbered)


async def send_with_id(client: Client, *ids: str, **headers: str) -> None:
    """Send messages with ids of their own, which are their bodies."""
    for each in ids:
        await client.request("SEND", {"destination": Q, "_AMQ_DUPL_ID": each, **headers}, each)


async def texts(client: Client) -> list[str]:
    """All that waits in the queue, acknowledged."""
    await client.subscribe(Q)
    found = [delivery.text for delivery in await client.drain()]
    await client.unsubscribe()
    return found


@pytest.mark.parametrize("end", ["in order", "crash", "power cut"])
async def test_a_resend_is_neither_lost_nor_doubled(end: str) -> None:
    lives = Lives()
    async with lives.life(end=end) as stage:
        client = await stage.connect()
        await send(client, 1, 2, 5, persistent="true")
        assert await texts(client) == ["1", "2", "5"], "gaps are allowed"
        await send(client, 6, 4, 6, persistent="true")  # 4 is below what is known
        await send_with_id(client, "a", "a", persistent="true")
        assert set(durability(client)) == {"disk"}
        assert stage.reported(Q)["duplicates_count"] == 3
    async with lives.life() as stage:
        client = await stage.connect()
        await send(client, 5, 6, 7, persistent="true")
        await send_with_id(client, "a", persistent="true")
        assert durability(client) == ["disk"] * 4
        assert await texts(client) == ["6", "a", "7"]
        stage.broker.registry.delete(stage.destination(Q), "by an operator")
        await send(client, 1, persistent="true")
        assert await texts(client) == ["1"], "what was known has gone with the queue"


@pytest.mark.parametrize("persistent", ["true", "false"])
async def test_what_is_parked_when_its_connection_breaks_comes_once(persistent: str) -> None:
    stage = Stage({Q: {"count_max": 2}})
    async with stage:
        first, second, consumer = await stage.connect(), await stage.connect(), await stage.connect()
        await send(first, 1, 2, 3, 4, receipt=False, persistent=persistent)
        await first.sync()
        first.vanish()
        await send(second, 1, 2, 3, 4, 5, receipt=False, persistent=persistent)
        await second.sync()
        await consumer.subscribe(Q)
        assert sorted(await consumer.next_texts(5)) == ["1", "2", "3", "4", "5"]
        await consumer.silence()


async def test_a_transaction_that_is_committed_again_sends_nothing_twice() -> None:
    lives = Lives()
    async with lives.life(end="crash") as stage:
        client = await stage.connect()
        for _ in range(2):
            await client.request("BEGIN", {"transaction": "t"})
            await send(client, 1, 2, 2, transaction="t", persistent="true")
            await client.request("COMMIT", {"transaction": "t"})
            await client.sync()
    async with lives.life() as stage:
        client = await stage.connect()
        await client.request("BEGIN", {"transaction": "t"})
        await send(client, 2, 3, transaction="t", persistent="true")
        await client.request("COMMIT", {"transaction": "t"})
        assert await texts(client) == ["1", "2", "3"]


async def test_a_spooled_transaction_that_is_committed_again_sends_nothing_twice() -> None:
    lives = Lives(transaction_bytes_max=4096)
    async with lives.life(end="crash") as stage:
        client = await stage.connect()
        for _ in range(2):
            await client.request("BEGIN", {"transaction": "t"})
            for number in range(20):
                await client.send(
                    Q, f"{number:1000}", transaction="t", persistent="true",
                    **{"producer-id": "p", "producer-sequence": str(number)},
                )  # fmt: skip
            await client.request("COMMIT", {"transaction": "t"})
        await stage.settled_down()
    async with lives.life() as stage:
        client = await stage.connect()
        assert [int(text) for text in await texts(client)] == list(range(20))


async def test_few_producers_are_remembered() -> None:
    async with Stage({Q: {"producers_max": 2, "duplicate_ids_max": 2}}) as small:
        client = await small.connect()
        for producer in ("a", "b", "a", "c", "b"):  # c takes the place of b, which was quiet for longest
            await client.sent(Q, producer, **{"producer-id": producer, "producer-sequence": "1"})
        await send_with_id(client, "1", "2", "1", "3", "2")
        assert await texts(client) == ["a", "b", "c", "b", "1", "2", "3", "2"]


BAD = {
    "a number that is none": ({"producer-id": "p", "producer-sequence": "x"}, "bad-producer-sequence"),
    "no number": ({"producer-id": "p"}, "bad-producer"),
    "no producer": ({"producer-sequence": "1"}, "bad-producer"),
    "too long": ({"producer-id": "p" * 201, "producer-sequence": "1"}, "bad-producer"),
    "empty": ({"_AMQ_DUPL_ID": ""}, "bad-producer"),
}


@pytest.mark.parametrize("case", BAD)
async def test_a_producer_that_can_not_be_known_is_told(stage: Stage, case: str) -> None:
    headers, code = BAD[case]
    client = await stage.connect()
    await client.frame("SEND", {"destination": Q, **headers}, "m")
    error = await client.expect_error()
    assert error.headers["code"] == code
