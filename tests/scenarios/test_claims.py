"""Claims and staged commits over the wire: requests and their answers, restarts, deletion, and who may do what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.scenarios.client import Client
from tests.scenarios.log_stage import PASSCODE, REPLIES, LogLives, LogStage, numbered, records_of, send_batch

QUEUE = "/queue/work"
STAGE = "/log/sluiceway.stage."


class Planner:
    """Asks for claims of one group."""

    def __init__(self, client: Client, group: str = "g", queue: str = QUEUE) -> None:
        self.client = client
        self.group = group
        self.queue = queue

    async def ask(self, request: str, **facts: Any) -> dict[str, Any]:
        """Any request and its reply."""
        await self.client.send(f"/sluiceway/{request}", json.dumps(facts), reply_to=REPLIES)
        reply = json.loads((await self.client.next_message()).body)
        assert isinstance(reply, dict)
        return reply

    async def about(self, request: str, **facts: Any) -> dict[str, Any]:
        """About the group; it must succeed."""
        reply = await self.ask(f"claim/{request}", queue=self.queue, group=self.group, **facts)
        assert reply.pop("ok") is True, reply
        return reply

    async def claim(self, number: int, *, most: int = 100) -> dict[str, Any]:
        return await self.about("claim", claim=number, max=most)

    async def commit(self, batch: int, *parts: tuple[str, str], query: str = "q") -> dict[str, Any]:
        named = [{"stage": STAGE + stage, "to": target} for stage, target in parts]
        return await self.ask("sink/commit", query=query, batch=batch, parts=named)


async def planner(stage: LogStage, group: str = "g", queue: str = QUEUE) -> Planner:
    client = await stage.connect()
    await client.subscribe(REPLIES, id="replies")
    return Planner(client, group, queue)


async def read(stage: LogStage, log: str, start: int = 0, stop: int | None = None) -> list[str]:
    """These records, over a connection of their own."""
    client = await stage.connect()
    to = {} if stop is None else {"to": str(stop)}
    await client.subscribe(log, **{"from": str(start)}, **to)
    found = [value.decode() for _index, value in records_of(await client.drain())]
    client.vanish()
    return found


async def test_claimed_messages_can_be_read_by_anybody_again_and_again() -> None:
    async with LogStage() as stage:
        producer, asker = await stage.connect(), await planner(stage)
        await producer.send_all(QUEUE, range(5), kind="a")
        claimed = await asker.claim(1, most=3)
        for _ in range(2):
            assert await read(stage, claimed["log"], claimed["from"], claimed["to"]) == ["0", "1", "2"]
        assert stage.depth_count(QUEUE) == 2
        state = await asker.about("state")
        assert (state["acked"], state["next"], state["waiting"]) == (0, 2, 2)
        assert await asker.about("ack", claim=1) == {"acked": 1}
        await asker.about("ack", claim=(await asker.claim(2))["claim"])
        assert (await asker.about("state"))["claims"] == []


async def test_groups_share_a_queue_and_do_not_see_each_others_claims() -> None:
    async with LogStage() as stage:
        producer, one, two = await stage.connect(), await planner(stage, "one"), await planner(stage, "two")
        await producer.send_all(QUEUE, range(4))
        first, second = await one.claim(1, most=2), await two.claim(1)
        assert first["log"] != second["log"]
        assert await read(stage, first["log"]) == ["0", "1"]
        assert await read(stage, second["log"]) == ["2", "3"]


async def test_consumers_and_claims_share_a_queue() -> None:
    """Nobody gets a message twice; between claims consumers have the queue for themselves."""
    async with LogStage() as stage:
        producer, consumer, asker = await stage.connect(), await stage.connect(), await planner(stage)
        await consumer.subscribe(QUEUE, ack="client-individual", prefetch_count="2")
        await producer.send_all(QUEUE, range(4))
        held = await consumer.next_messages(2)
        claimed = await asker.claim(1)
        assert await read(stage, claimed["log"]) == ["2", "3"]
        await consumer.nack(held[1])
        await consumer.ack(held[0])
        assert (await consumer.next_message()).text == "1"


@pytest.mark.parametrize("end", ["in order", "crash"])
async def test_claims_outlive_the_broker(tmp_path: Path, end: str) -> None:
    lives = LogLives(tmp_path)
    async with lives.life(end=end) as stage:
        producer, asker = await stage.connect(), await planner(stage)
        for n in range(6):
            await producer.sent(QUEUE, str(n), persistent="true")
        claimed = await asker.claim(1, most=2)
        await asker.claim(2, most=2)
        await asker.about("ack", claim=1)
        await trio.sleep(5)  # what the queue has forgotten is written, too
        for client in stage.clients:
            client.vanish()
    async with lives.life() as stage:
        asker = await planner(stage)
        assert (await asker.claim(1))["released"] is True
        again = await asker.claim(2)
        assert await read(stage, claimed["log"], again["from"], again["to"]) == ["2", "3"]
        third = await asker.claim(3)
        assert await read(stage, third["log"], third["from"], third["to"]) == ["4", "5"]


async def test_grace_runs_while_nothing_is_heard_also_over_a_restart(tmp_path: Path) -> None:
    lives = LogLives(tmp_path)
    async with lives.life(end="crash") as stage:
        asker = await planner(stage)
        await asker.client.sent(QUEUE, "m", persistent="true")
        await asker.about("state", grace_seconds=100)
        await asker.claim(1)
        asker.client.vanish()
    async with lives.life() as stage:
        asker = await planner(stage)
        for _ in range(3):
            await trio.sleep(90)
            await asker.about("touch")
        state = await asker.about("state")
        assert (state["grace_seconds"], state["claims"][0]["released"]) == (100, False)
        await trio.sleep(150)
        state = await asker.about("state")
        assert (state["claims"][0]["released"], state["again"]) == (True, 1)
        assert await read(stage, state["log"], **_ends(await asker.claim(2))) == ["m"]


def _ends(claimed: dict[str, Any]) -> dict[str, int]:
    return {"start": claimed["from"], "stop": claimed["to"]}


@pytest.mark.parametrize("restart", [False, True])
async def test_an_old_planner_that_wakes_up_changes_nothing_for_the_new_one(tmp_path: Path, restart: bool) -> None:
    """Two queries with the same group and different checkpoints; the first one sleeps while the second takes over."""
    lives = LogLives(tmp_path)
    async with lives.life(end="crash") as stage:
        old, new = await planner(stage), await planner(stage)
        for n in range(4):
            await old.client.sent(QUEUE, str(n), persistent="true")
        await old.about("open", planner="old", grace_seconds=100)
        first = await old.about("claim", claim=1, max=2, planner="old")
        await new.about("open", planner="new")
        taken = await new.about("claim", claim=1, max=2, planner="new")
        assert _ends(taken) == _ends(first), "nobody has acknowledged it"
        await new.about("ack", claim=1, planner="new")
        held = await new.about("claim", claim=2, max=2, planner="new")
        if not restart:
            await _refused_to(old)
            assert await read(stage, held["log"], **_ends(held)) == ["2", "3"]
        for client in stage.clients:
            client.vanish()
    async with lives.life() as stage:
        old, new = await planner(stage), await planner(stage)
        await _refused_to(old)
        again = await new.about("claim", claim=2, max=2, planner="new")
        assert await read(stage, again["log"], **_ends(again)) == ["2", "3"]


async def _refused_to(old: Planner) -> None:
    """Whatever it wants. None of it counts as a sign of life of the group."""
    for request, facts in (
        ("ack", {"claim": 2}),
        ("ack", {"claim": 56}),
        ("release", {}),
        ("claim", {"claim": 3, "max": 1}),
        ("touch", {}),
        ("state", {}),
    ):
        reply = await old.ask(f"claim/{request}", queue=QUEUE, group="g", planner="old", **facts)
        assert (reply["ok"], reply["error"]) == (False, "GROUP_TAKEN"), request


async def test_an_old_planner_keeps_no_claim_alive() -> None:
    async with LogStage() as stage:
        old, new = await planner(stage), await planner(stage)
        await old.client.sent(QUEUE, "m", persistent="true")
        await old.about("open", planner="old", grace_seconds=100)
        await old.about("claim", claim=1, max=1, planner="old")
        await new.about("open", planner="new")
        for _ in range(4):
            await trio.sleep(50)
            await old.ask("claim/touch", queue=QUEUE, group="g", planner="old")
        state = await new.about("state", planner="new")
        assert (state["claims"][0]["released"], state["again"]) == (True, 1)
        assert await read(stage, state["log"], **_ends(await new.claim(2))) == ["m"]


async def test_nobody_else_appends_to_claims() -> None:
    async with LogStage() as stage:
        asker, stranger = await planner(stage), await stage.connect()
        log = (await asker.about("state"))["log"]
        await stranger.send(log, "intruder", receipt="r")
        error = await stranger.expect_error()
        assert "broker's own" in error.headers["message"] + error.body.decode()
        assert await read(stage, log) == []


async def test_retention_does_not_touch_claims() -> None:
    policies = {"/log/>": {"log_retention_seconds": 10.0, "log_retention_bytes": 1, "log_sync": "none"}}
    async with LogStage(policies, journal={"data_page_bytes": 4096, "index_page_count": 16}) as stage:
        producer, asker = await stage.connect(), await planner(stage)
        await producer.send_all(QUEUE, range(200))
        claimed = await asker.claim(1, most=200)
        for _ in range(10):
            await trio.sleep(60)
            await asker.about("touch")
        assert await read(stage, claimed["log"], claimed["from"], claimed["to"]) == [str(n) for n in range(200)]


async def test_a_deleted_claim_log_leaves_the_numbers_and_the_queue() -> None:
    async with LogStage() as stage:
        producer, asker = await stage.connect(), await planner(stage)
        await producer.send_all(QUEUE, range(2))
        log = (await asker.claim(1, most=1))["log"]
        assert (await asker.ask("log/delete", log=log, passcode=PASSCODE))["ok"] is True
        assert (await asker.claim(1))["released"] is True
        claimed = await asker.claim(2)
        assert await read(stage, log, claimed["from"], claimed["to"]) == ["1"]


@pytest.mark.parametrize(
    ("request_name", "facts"),
    [
        ("claim/state", {"queue": "/topic/a", "group": "g"}),
        ("claim/state", {"queue": "/queue/a.>", "group": "g"}),
        ("claim/state", {"queue": "/queue/a,/queue/b", "group": "g"}),
        ("claim/state", {"queue": "/queue/a"}),
        ("claim/state", {"queue": "/queue/a", "group": "g" * 201}),
        ("claim/state", {"queue": "/queue/a", "group": "g", "grace_seconds": 0}),
        ("claim/claim", {"queue": "/queue/a", "group": "g", "claim": 1}),
        ("claim/claim", {"queue": "/queue/a", "group": "g", "claim": 1, "max": 0}),
        ("claim/claim", {"queue": "/queue/a", "group": "g", "claim": 7, "max": 1}),
        ("claim/claim", {"queue": "/queue/a", "group": "g", "claim": 1, "max": 1, "wait_seconds": "x"}),
        ("claim/ack", {"queue": "/queue/a", "group": "g", "claim": -1}),
        ("claim/open", {"queue": "/queue/a", "group": "g"}),
        ("claim/open", {"queue": "/queue/a", "group": "g", "planner": "p" * 201}),
        ("sink/commit", {"query": "q", "batch": 0, "parts": {}}),
        ("sink/commit", {"query": "q", "batch": 0, "parts": [{"stage": "/log/a", "to": "/log/b"}]}),
        ("sink/commit", {"query": "q" * 201, "batch": 0, "parts": []}),
        ("sink/drop", {"stages": "all"}),
    ],
)
async def test_requests_that_make_no_sense_are_refused(request_name: str, facts: dict[str, Any]) -> None:
    async with LogStage() as stage:
        asker = await planner(stage)
        reply = await asker.ask(request_name, **facts)
        assert reply["ok"] is False
        assert len(reply["message"]) > 10


# ---------------------------------------------------------------------- the sink


async def test_staged_records_are_published_once_over_restarts(tmp_path: Path) -> None:
    lives = LogLives(tmp_path)
    parts = (("a", "/log/t"), ("b", "/log/u"))
    async with lives.life(end="crash") as stage:
        asker = await planner(stage)
        await send_batch(asker.client, numbered(range(3)), log=STAGE + "a")
        await send_batch(asker.client, numbered(range(3, 5)), log=STAGE + "b")
        assert (await asker.commit(0, *parts))["published"] is True
        asker.client.vanish()
    async with lives.life() as stage:
        asker = await planner(stage)
        assert (await asker.commit(0, *parts))["published"] is False
        assert await read(stage, "/log/t") == ["0", "1", "2"]
        assert await read(stage, "/log/u") == ["3", "4"]
        assert (await asker.ask("sink/state", query="q"))["batch"] == 0
        logs = [each["log"] for each in (await asker.ask("log/list"))["logs"]]
        assert logs == ["/log/t", "/log/u"]


async def test_readers_see_a_part_as_a_whole() -> None:
    """Whoever waits at the end of the target gets it in one piece, nothing of others in between."""
    async with LogStage() as stage:
        asker, producer, reader = await planner(stage), await stage.connect(), await stage.connect()
        await reader.subscribe("/log/t", **{"from": "next"})
        await send_batch(asker.client, numbered(range(100)), log=STAGE + "a")
        await producer.send_all("/log/t", ["x"] * 50)
        await asker.commit(0, ("a", "/log/t"))
        await producer.send_all("/log/t", ["x"] * 50)
        values = [value.decode() for _index, value in records_of(await reader.drain())]
        start = values.index("0")
        assert values[start : start + 100] == [str(n) for n in range(100)]
        assert len(values) == 200


async def test_a_commit_with_more_parts_than_can_be_kept_is_refused_and_another_one_goes() -> None:
    """Nothing of it is begun: its query is not held up by it."""
    async with LogStage() as stage:
        producer, asker = await stage.connect(), await planner(stage)
        names = [f"{'é' * 30}{number}" for number in range(170)]
        for name in names:
            await send_batch(producer, numbered(["x"]), log=STAGE + name)
        target = "/log/" + "ü" * 30
        parts = [{"stage": STAGE + name, "to": target} for name in names]
        body = json.dumps({"query": "q", "batch": 1, "parts": parts}, ensure_ascii=False)
        await asker.client.send("/sluiceway/sink/commit", body, reply_to=REPLIES)
        refused = json.loads((await asker.client.next_message()).body)
        assert (refused["ok"], refused["error"]) == (False, "INVALID_COMMIT"), refused
        assert "more than can be kept" in refused["message"]
        assert stage.broker.faults.count == 0
        assert (await asker.commit(1, *[(name, target) for name in names[:50]]))["published"] is True
