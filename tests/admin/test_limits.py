"""Limits of one destination, changed by an operator while the broker runs."""

from __future__ import annotations

from typing import Any

import pytest

from sluiceway.store.memory import MemoryEngine
from tests.admin.conftest import AdminStage
from tests.log_lines import LogLines


async def change(stage: AdminStage, name: str, status: int = 200, **limits: Any) -> Any:
    return await stage.act("limit", {"name": name, "limits": limits, "confirm": name}, status=status)


@pytest.mark.parametrize("stored", [False, True])
async def test_waiting_senders_go_on_at_once(stored: bool, log_lines: LogLines) -> None:
    async with AdminStage({"/queue/a": {"count_max": 2}}, engine=MemoryEngine() if stored else None) as stage:
        client = await stage.connect(name="web")
        await client.send_all("/queue/a", range(20), persistent="true")
        await stage.settled_down()
        assert stage.depth_count("/queue/a") < 20 and stage.chains()
        answer = await change(stage, "/queue/a", count_max=50)
        await stage.settled_down()
        assert stage.depth_count("/queue/a") == 20 and not stage.chains()
        assert answer["done"]["changed_limits"] == {"count_max": {"value": 50, "configured": 2}}
        assert answer["words"].startswith("count_max of /queue/a is 50 now, after 2. Changed at run time: count_max,")
        row = await stage.get("destination", name="/queue/a")
        assert row["changed_limits"] == answer["done"]["changed_limits"] and row["policy"]["count_max"] == 50
        assert stage.reported("/queue/a")["changed_limits"] == answer["done"]["changed_limits"]
        (line,) = log_lines.of("admin action")
        assert (line["action"], line["about"]) == ("limit", {"name": "/queue/a", "limits": {"count_max": 50}})
        back = await stage.act("limit", {"name": "/queue/a", "configured": True, "confirm": "/queue/a"})
        assert "18 messages more than its limits: nothing of it is lost, and senders wait" in back["words"]
        assert back["words"].endswith("All limits are as configured.")
        assert stage.depth_count("/queue/a") == 20


async def test_sizes_may_have_units_and_null_is_no_limit() -> None:
    async with AdminStage({"/queue/a": {"bytes_max": 1024}, "/topic/a": {}}) as stage:
        client = await stage.connect()
        await client.subscribe("/topic/a")
        await client.sent("/queue/a", "x")
        answer = await change(stage, "/queue/a", bytes_max=None, memory_bytes="2 MiB")
        assert answer["done"]["limits"]["bytes_max"] is None and answer["done"]["limits"]["memory_bytes"] == 2 << 20
        answer = await change(stage, "/topic/a", lead_bytes="1 MiB")
        assert "lead_bytes of /topic/a is 1.0 MiB now" in answer["words"]
        answer = await change(stage, "/queue/a", memory_bytes="900 GiB")
        assert "memory_bytes of [broker] allows one destination" in answer["words"]


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"count_max": 0}, "count_max must be from 1 to"),
        ({"count_max": True}, "must be a integer or string or null"),
        ({"count_max": 1.5}, "must be a integer or string or null"),
        ({"count_max": "many"}, "count_max: 'many' is not a number of messages"),
        ({"bytes_max": "1 XB"}, "bytes_max: "),
        ({"bytes_max": 1 << 80}, "bytes_max must be from 1 to"),
        ({"memory_bytes": None}, "memory_bytes can't be without limit"),
        ({"lead_bytes": 5}, "lead_bytes is a limit of topics"),
        ({"full": "reject"}, "'full' can't be changed at run time"),
        ({}, "name a limit to change"),
    ],
)
async def test_what_can_not_be_is_refused_in_words(stage: AdminStage, limits: dict[str, Any], said: str) -> None:
    client = await stage.connect()
    await client.sent("/queue/a", "x")
    answer = await change(stage, "/queue/a", 400, **limits)
    assert said in answer["error"]["message"]
    assert not stage.destination("/queue/a").changed_limits


async def test_it_wants_the_name_again_and_one_wish(stage: AdminStage) -> None:
    client = await stage.connect()
    await client.sent("/queue/a", "x")
    body = {"name": "/queue/a", "limits": {"count_max": 5}, "confirm": "/queue/b"}
    assert "confirm must repeat" in (await stage.act("limit", body, status=400))["error"]["message"]
    body |= {"confirm": "/queue/a", "configured": True}
    assert '"limits", or "configured"' in (await stage.act("limit", body, status=400))["error"]["message"]


async def test_a_log_and_a_missing_destination_are_told_apart(stage: AdminStage) -> None:
    answer = await change(stage, "/log/a", 409, count_max=5)
    assert answer["error"]["code"] == "not-limited" and "log_retention_bytes" in answer["error"]["remedy"]
    await change(stage, "/queue/none", 404, count_max=5)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize(("full", "fate"), [("drop_oldest", "drop them"), ("dead_letter", "dead-letter queue")])
async def test_a_lower_limit_makes_no_messages_leave(full: str, fate: str, stored: bool) -> None:
    """Where the next message would make them leave it is refused."""
    engine = MemoryEngine() if stored else None
    async with AdminStage({"/queue/a": {"full": full, "count_max": 10}}, engine=engine) as stage:
        client = await stage.connect()
        await client.send_all("/queue/a", range(8))
        await client.sync()
        answer = await change(stage, "/queue/a", 409, count_max=5)
        assert answer["error"]["code"] == "would-lose" and fate in answer["error"]["message"]
        assert "3 messages more than that" in answer["error"]["message"]
        await change(stage, "/queue/a", count_max=8)
        await client.sync()
        assert stage.depth_count("/queue/a") == 8
        await client.sent("/queue/a", "new")
        assert stage.depth_count("/queue/a") == 8


async def test_a_queue_that_rejects_says_what_becomes_of_new_messages() -> None:
    async with AdminStage({"/queue/a": {"full": "reject", "count_max": 10}}) as stage:
        client = await stage.connect()
        await client.send_all("/queue/a", range(8))
        await client.sync()
        answer = await change(stage, "/queue/a", count_max=5)
        assert "holds 3 messages more than its limits" in answer["words"] and "are refused" in answer["words"]
        assert stage.depth_count("/queue/a") == 8


async def test_slow_subscribers_of_a_topic_lose_nothing_by_a_lower_limit() -> None:
    async with AdminStage({"/topic/a": {"count_max": 100}}) as stage:
        slow, fast = await stage.connect(), await stage.connect()
        await slow.subscribe("/topic/a", ack="client", **{"prefetch-count": "1"})
        await fast.subscribe("/topic/a")
        await slow.sync()
        await fast.sync()
        sender = await stage.connect()
        for number in range(20):
            await sender.sent("/topic/a", str(number))
            await fast.next_message()
        assert (await change(stage, "/topic/a", 409, count_max=5))["error"]["code"] == "would-lose"
        await change(stage, "/topic/a", count_max=200)
