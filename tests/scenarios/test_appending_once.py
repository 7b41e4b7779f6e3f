"""A record that its producer sends again is confirmed, with the index that it has, and not appended a second time."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from sluiceway.queues.logs import producers
from sluiceway.queues.logs.batches import CONTENT_TYPE, encode
from tests.scenarios.client import Client
from tests.scenarios.log_stage import LOG, LogStage
from tests.store.faulty import FaultyEngine

PRODUCER = "CORP\\carol:1"
"""A name with what header lines escape, and with a text that looks like an escape."""


async def append(client: Client, *sequences: int, **headers: str) -> list[str]:
    """Send records of one producer, whose values are their numbers. Returns the indexes of the RECEIPTs."""
    before = len(client.received)
    for sequence in sequences:
        await client.sent(LOG, str(sequence), producer_id=PRODUCER, producer_sequence=str(sequence), **headers)
    return [frame.headers.get("index", "") for frame in client.received[before:] if frame.command == "RECEIPT"]


async def values(client: Client) -> list[str]:
    """All records of the log."""
    await client.subscribe(LOG, **{"from": "earliest"})
    found = [delivery.text for delivery in await client.drain()]
    await client.unsubscribe()
    return found


@pytest.mark.parametrize("in_engine", [False, True])
async def test_a_resend_is_neither_lost_nor_doubled(
    tmp_path: Path, in_engine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "SNAPSHOT_COUNT", 3)
    engine = FaultyEngine(Random(0))
    limits: dict[str, Any] = {"folder": tmp_path, "in_engine": in_engine}
    first = LogStage(engine=engine, **limits)
    broker = await first.broker.__aenter__()
    try:
        client = await first.connect()
        assert await append(client, 1, 2, 5, 5, 2) == ["0", "1", "2", "2", "1"]
        batch = encode([b"a", b"b"], head=b"x:1")
        for _ in range(2):
            await client.sent(LOG, batch, content_type=CONTENT_TYPE, producer_id=PRODUCER, producer_sequence="6")
        assert await append(client, 7) == ["5"]
        assert first.log().producers.duplicates_count == 3
    finally:
        broker.shards.abandon()
        engine = engine.crash()
        await broker.__aexit__(None, None, None)
    async with LogStage(engine=engine, **limits) as second:
        client = await second.connect()
        assert await append(client, 7, 6, 1, 8) == ["5", "3", "0", "6"]
        assert await values(client) == ["1", "2", "5", "a", "b", "7", "8"]


async def test_a_transaction_that_is_committed_again_appends_nothing_twice() -> None:
    async with LogStage() as stage:
        client = await stage.connect()
        for sequences in ((1, 2), (1, 2), (2, 3)):
            await client.request("BEGIN", {"transaction": "t"})
            await append(client, *sequences, transaction="t")
            await client.request("COMMIT", {"transaction": "t"})
        await append(client, 3, 4)
        assert await values(client) == ["1", "2", "3", "4"]


async def test_logs_know_producers_and_no_single_messages() -> None:
    async with LogStage() as stage:
        client = await stage.connect()
        await client.frame("SEND", {"destination": LOG, "_AMQ_DUPL_ID": "a"}, "m")
        assert (await client.expect_error()).headers["code"] == "not-supported"
