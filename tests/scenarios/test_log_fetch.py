"""Fetch: the next records of a log as the answer to a request, and commits of groups that are read so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from sluiceway.queues.logs import fetching
from sluiceway.queues.logs.positions import parse_position
from tests.scenarios.log_stage import LOG, LogLives, LogStage, fill, numbered, send_batch


async def test_records_come_within_the_limits_and_the_next_fetch_continues() -> None:
    async with LogStage() as stage:
        producer, asker = await stage.connect(), await stage.connect_asking()
        await producer.sent(LOG, b"\xff", key="a", shade="dark")
        await send_batch(producer, numbered(range(1, 9)))
        first = await asker.asked("fetch", log=LOG, **{"from": 0, "max_count": 3})
        assert [row["index"] for row in first["records"]] == list(range(first["next"]))
        assert first["records"][0]["value_base64"] == "/w=="
        assert first["records"][0]["headers"] == {"key": "a", "shade": "dark"}
        seen, place = [], 0
        while place < 9:
            reply = await asker.asked("fetch", log=LOG, **{"from": place, "max_bytes": 300})
            seen += [row["index"] for row in reply["records"]]
            assert place < reply["next"]
            place = reply["next"]
        assert seen == list(range(9))


async def test_it_waits_at_the_end_for_a_limited_time() -> None:
    async with LogStage() as stage:
        producer, asker = await stage.connect(), await stage.connect_asking()
        await fill(producer, 1)
        reply = await asker.asked("fetch", log=LOG, **{"from": "next"})
        assert (reply["records"], reply["next"]) == ([], 1)
        reply = await asker.asked("fetch", log=LOG, **{"from": 1, "max_wait_seconds": 0.2})
        assert (reply["records"], reply["next"]) == ([], 1)
        body = b'{"log": "orders", "from": 1, "max_wait_seconds": 15}'
        await asker.client.send("/sluiceway/log/fetch", body, reply_to="/temp-queue/replies")
        await asker.client.silence(0.1)
        await fill(producer, 1, first=1)
        assert b'"index": 1' in (await asker.client.next_message()).body.replace(b'":', b'": ').replace(b":  ", b": ")
        assert not stage.log().outlets


async def test_a_group_is_read_and_committed_over_a_crash(tmp_path: Path) -> None:
    lives = LogLives(tmp_path)
    async with lives.life(end="crash") as stage:
        producer, asker = await stage.connect(), await stage.connect_asking()
        await fill(producer, 6)
        assert await asker.refused("fetch", log=LOG, group="g") == "GROUP_NOT_EXIST"
        await asker.asked("cursor", log=LOG, group="g", **{"from": "earliest"})
        reply = await asker.asked("fetch", log=LOG, group="g", max_count=4)
        again = await asker.asked("fetch", log=LOG, group="g", max_count=4)
        assert reply["records"] == again["records"], "nothing moves without a commit"
        assert await asker.asked("commit", log=LOG, group="g", to=4) == {"front": 4}
        assert await asker.asked("commit", log=LOG, group="g", to=2) == {"front": 4}, "never back"
    async with lives.life() as stage:
        asker, client = await stage.connect_asking(), await stage.connect()
        reply = await asker.asked("fetch", log=LOG, group="g")
        assert [row["index"] for row in reply["records"]] == [4, 5]
        await client.subscribe(LOG, group="g")
        assert await asker.refused("fetch", log=LOG, group="g") == "GROUP_IN_USE"
        assert await asker.refused("commit", log=LOG, group="g", to=5) == "GROUP_IN_USE"


async def test_missing_records_are_told() -> None:
    async with LogStage() as stage:
        producer, asker = await stage.connect(), await stage.connect_asking()
        await fill(producer, 5)
        await asker.asked("truncate", log=LOG, before="3")
        reply = await asker.asked("fetch", log=LOG, **{"from": 0, "max_wait_seconds": 1})
        assert reply["gaps"] == [{"from": 0, "to": 3, "reason": "retention"}]
        assert reply["next"] >= 3


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"log": "none"}, "TOPIC_NOT_EXIST"),
        ({"log": LOG, "from": 99}, "INDEX_OUT_OF_BOUNDS"),
        ({"log": LOG, "from": "yesterday"}, "INVALID_REQUEST"),
        ({"log": LOG, "max_count": 0}, "INVALID_REQUEST"),
        ({"log": LOG, "max_count": 1001}, "INVALID_REQUEST"),
        ({"log": LOG, "max_bytes": 1 << 21}, "INVALID_REQUEST"),
        ({"log": LOG, "max_wait_seconds": 21}, "INVALID_REQUEST"),
        ({"log": LOG, "max_wait_seconds": "long"}, "INVALID_REQUEST"),
        ({"log": LOG, "log_id": "x"}, "other-log"),
    ],
    ids=str,
)
async def test_what_can_not_be_is_refused_in_words(facts: dict[str, object], code: str) -> None:
    async with LogStage() as stage:
        producer, asker = await stage.connect(), await stage.connect_asking()
        await fill(producer, 1)
        assert await asker.refused("fetch", **facts) == code


async def test_records_of_an_answer_are_counted_until_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that asks a thousand times at once has a thousand answers waiting."""
    async with LogStage() as stage:
        producer, asker = await stage.connect(), await stage.connect_asking()
        await fill(producer, 10)
        upkeep, table = stage.broker.manager.upkeep, stage.broker.logs
        assert upkeep is not None and table is not None
        answers: list[Any] = []
        fetch = fetching.Fetch(stage.log(), 5, 1 << 20, answers.append)
        fetch.begin(table, parse_position("0"), 0)
        await asker.asked("size", log=LOG)
        while not answers:  # noqa: ASYNC110 - it is not told to anybody
            await trio.sleep(0.001)
        assert table.fetched_bytes == upkeep.answers.used_bytes > 5 * 20
        monkeypatch.setattr(fetching, "HELD_BYTES_MAX", table.fetched_bytes)
        assert await asker.refused("fetch", log=LOG, **{"from": 0}) == "TOO_MANY_REQUESTS"
        answers.clear()
        assert table.fetched_bytes == upkeep.answers.used_bytes == 0
        assert (await asker.asked("fetch", log=LOG, **{"from": 0}))["next"] == 10
        assert table.fetched_bytes == upkeep.answers.used_bytes == 0
