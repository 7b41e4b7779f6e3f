"""COMMITs that wait for a full queue keep their order, in memory or on the disk, whatever ends meanwhile."""

from __future__ import annotations

import pytest
import trio

from tests.scenarios.client import Client
from tests.scenarios.lives import Lives

FULL = "/queue/full"


async def commit(client: Client, name: str, bodies: list[str]) -> None:
    """Without a receipt: it waits."""
    await client.frame("BEGIN", {"transaction": name})
    for body in bodies:
        await client.frame("SEND", {"destination": FULL, "persistent": "true", "transaction": name}, body)
    await client.frame("COMMIT", {"transaction": name})


@pytest.mark.parametrize("ends", ["nothing", "the connection", "the broker"])
async def test_a_spooled_commit_does_not_overtake_one_in_memory(ends: str) -> None:
    lives = Lives({FULL: {"memory_bytes": 2_000, "paging": "throttle"}}, transaction_bytes_max=6_000)
    large = [f"b{number:02}{'z' * 800}" for number in range(20)]
    texts: list[str] = []
    async with lives.life() as stage:
        producer, other = await stage.connect(), await stage.connect()
        await other.send_all(FULL, ["x" * 1_500, "y" * 1_500], persistent="true")
        await other.sync()
        await commit(producer, "small", ["a1", "a2"])
        await commit(producer, "large", large)
        await trio.sleep(1)
        if ends == "the connection":
            producer.vanish()
            await trio.sleep(1)
        if ends != "the broker":
            consumer = await stage.connect()
            await consumer.subscribe(FULL)
            texts = [delivery.text for delivery in await consumer.drain(3)]
    async with lives.life() as stage:
        consumer = await stage.connect()
        await consumer.subscribe(FULL)
        texts += [delivery.text for delivery in await consumer.drain(3)]
    assert texts[2:] == ["a1", "a2", *large]
