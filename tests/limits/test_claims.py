"""Claims, staged commits and retention of logs at the limits of the default configuration, on a counted clock."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from sluiceway.claims import FORGOTTEN_SECONDS
from sluiceway.queues.logs.batches import encode
from sluiceway.queues.logs.staged_commits import STAGE_PREFIX, SinkState
from tests.how_often import crowd_of
from tests.limits.law import CROWD_COUNT, frame
from tests.limits.test_logs import LogLawStage, batches
from tests.scenarios.client import Client
from tests.scenarios.log_stage import LOG

QUEUE = "/queue/work"
REPLIES = "/temp-queue/r"


@pytest.fixture
async def logs(tmp_path: Path) -> AsyncIterator[LogLawStage]:
    async with LogLawStage({LOG: {"log_groups_max": CROWD_COUNT}}, folder=tmp_path) as stage:
        yield stage


class Asking:
    """One who asks, each request at its limit."""

    def __init__(self, logs: LogLawStage, client: Client, crowd: str) -> None:
        self._logs = logs
        self._client = client
        self._crowd = crowd

    async def ask(self, name: str, label: str = "", **facts: Any) -> dict[str, Any]:
        with self._logs.law(f"/sluiceway/{name}{label}", limit="one request", crowd=self._crowd) as counting:
            counting.measures_with(self._logs.broker.answers, self._logs.broker.answers._pace)
            await self._client.send(f"/sluiceway/{name}", json.dumps(facts).encode(), reply_to=REPLIES)
            answer: dict[str, Any] = json.loads((await self._client.next_message()).body)
            await trio.sleep(2)
        assert answer.pop("ok"), answer
        return answer


async def asking(logs: LogLawStage, crowd: str) -> Asking:
    client = await logs.client()
    await client.subscribe(REPLIES)
    return Asking(logs, client, crowd)


async def test_claims(logs: LogLawStage) -> None:
    """One of a hundred thousand messages, and many small ones."""
    await logs.filled(QUEUE, 10 * CROWD_COUNT)
    asker = await asking(logs, "100,000 messages")
    group = {"queue": QUEUE, "group": "g"}
    claimed = await asker.ask("claim/claim", " of all", **group, claim=1, max=10 * CROWD_COUNT, wait_seconds=20)
    assert claimed["to"] - claimed["from"] == 10 * CROWD_COUNT, claimed
    await asker.ask("claim/release", " of all", **group)
    for number in range(2, 300):
        await asker._client.send(
            "/sluiceway/claim/claim", json.dumps({**group, "claim": number, "max": 10}).encode(), reply_to=REPLIES
        )
        await asker._client.next_message()
    asker._crowd = "300 claims"
    for name in ("open", "state", "touch"):
        await asker.ask(f"claim/{name}", **group, planner="p")
    await asker.ask("claim/claim", " again", **group, claim=5, max=1)
    await asker.ask("claim/release", **group)
    await asker.ask("claim/claim", " of what was released", **group, claim=300, max=100_000)
    await asker.ask("claim/ack", **group, claim=300)


STAGES_COUNT = 200


async def asking_about_stages(logs: LogLawStage) -> Asking:
    """Who asks where there are so many, each with ten records."""
    sender = await logs.client()
    await sender.send_raw(
        b"".join(batches(encode([b"x"] * 10), f"{STAGE_PREFIX}{number}") for number in range(STAGES_COUNT))
    )
    await sender.sync()
    await trio.sleep(3)
    return await asking(logs, f"{STAGES_COUNT} stages")


async def test_a_commit_of_many_stages(logs: LogLawStage) -> None:
    """A quarter of what one request can name: to make more takes long, and what goes over all of them in one step shows
    with these.
    """
    asker = await asking_about_stages(logs)
    parts = [{"stage": f"{STAGE_PREFIX}{number}", "to": LOG} for number in range(STAGES_COUNT)]
    assert (await asker.ask("sink/commit", query="q", batch=1, parts=parts))["published"]
    assert logs.log().records.next_index == 10 * STAGES_COUNT
    await asker.ask("sink/state", query="q")
    assert not (await asker.ask("sink/commit", " again", query="q", batch=1, parts=parts))["published"]


async def test_stages_are_dropped(logs: LogLawStage) -> None:
    asker = await asking_about_stages(logs)
    await asker.ask("sink/drop", stages=[f"{STAGE_PREFIX}{number}" for number in range(STAGES_COUNT)])
    assert not [name for name in logs.broker.logs.logs if name.startswith(STAGE_PREFIX)]  # type: ignore[union-attr]


async def test_a_commit_with_many_queries_there(logs: LogLawStage) -> None:
    sender, claims = await logs.client(), logs.broker.claims
    assert claims is not None
    claims.sinks.restore([SinkState(f"q{number}", batch=1, used_ms=number) for number in range(CROWD_COUNT)])
    await sender.send_raw(batches(encode([b"x"] * 10), f"{STAGE_PREFIX}a"))
    await sender.sync()
    await trio.sleep(3)
    asker = await asking(logs, "10,000 queries")
    parts = [{"stage": f"{STAGE_PREFIX}a", "to": LOG}]
    assert (await asker.ask("sink/commit", " of one more", query="q", batch=1, parts=parts))["published"]
    await asker.ask("sink/drop", " of none", stages=[f"{STAGE_PREFIX}b"])
    await trio.sleep(FORGOTTEN_SECONDS - trio.current_time() - 20)
    count = len(claims.sinks.states)
    with logs.law("queries that are forgotten", limit="QUERIES_MAX", crowd="10,000 queries"):
        await trio.sleep(40)
    assert len(claims.sinks.states) < count


async def test_retention(tmp_path: Path) -> None:
    """Of many logs, one of which has readers at its end."""
    policies = {"/log/**": {"log_retention_seconds": 60, "log_retention_bytes": 1_000}}
    logs_count, readers_count = crowd_of(300, 200), crowd_of(2_000, 1_000)
    async with LogLawStage(policies, folder=tmp_path) as logs:
        sender = await logs.client()
        for _ in range(2):
            await sender.send_raw(
                b"".join(batches(encode([b"x" * 100] * 20), f"/log/l{number}") for number in range(logs_count))
            )
            await sender.send_raw(batches(encode([b"x" * 100] * 20)))
            await sender.sync()
        for place in range(readers_count // 500):
            reader = await logs.client()
            numbers = range(place * 500, place * 500 + 500)
            await reader.send_raw(
                b"".join(frame("SUBSCRIBE", id=number, destination=LOG, **{"from": "next"}) for number in numbers)
            )
            await reader.sync()
        await trio.sleep(2)
        with logs.law("retention of logs", limit="logs_max", crowd=f"{logs_count} logs, {readers_count:,} readers"):
            await trio.sleep(120)
        with logs.law("SEND to a log with readers at its end", limit="one SEND", crowd=f"{readers_count:,} readers"):
            await sender.send(LOG, b"x")
            await trio.sleep(2)


async def test_reading_by_time(logs: LogLawStage) -> None:
    """Over ten thousand batches."""
    sender, reader = await logs.client(), await logs.client()
    for _ in range(CROWD_COUNT // 500):
        await sender.send_raw(batches(encode([b"x"] * 10) * 500))
        await sender.sync()
        await trio.sleep(1)
    first_ms, last_ms = logs.log().records.batch_of(0).timestamp_ms, logs.log().records.last_timestamp_ms
    for name, place in {"the middle": (first_ms + last_ms) // 2, "the end": last_ms, "before all": 1}.items():
        with logs.law(f"SUBSCRIBE to a log from a time, {name}", limit="10,000 batches"):
            await reader.send_raw(
                frame("SUBSCRIBE", id=name, destination=LOG, prefetch_count=1, **{"from": f"time:{place}"})
            )
            await trio.sleep(1)
        assert reader.error is None
    asker = await asking(logs, "10,000 batches")
    await asker.ask("log/closest", " in the middle", log="orders", timestamp_ms=(first_ms + last_ms) // 2)
