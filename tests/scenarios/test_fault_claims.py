"""A claim group in which the broker makes a mistake: whoever asks is told, the queue goes on, the next start has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from sluiceway.queues.logs.claims import ClaimGroup
from sluiceway.queues.logs.log import Log
from sluiceway.store.metadata.operations import OperationLine
from tests.scenarios.log_stage import LOG, REPLIES, LogLives, LogStage, fill
from tests.scenarios.test_claims import QUEUE, Planner, planner
from tests.scenarios.test_faults import check_good, fail_once

METHODS: Final = [
    "claim",
    "touch",
    "deliver",
    "_lingered",
    "_perhaps_complete",
    "_stored",
    "_decide",
    "_settle",
    "_save",
]
"""Of a group: in requests, in its queue's dispatch, in timers, in answers of the disk."""


async def asks(asker: Planner, request: str, **facts: Any) -> None:
    """Ask about the group, and wait for nothing."""
    await asker.client.send(
        f"/sluiceway/claim/{request}", json.dumps({"queue": QUEUE, "group": "g", **facts}), reply_to=REPLIES
    )


async def said_to(asker: Planner) -> list[dict[str, Any]]:
    return [json.loads(delivery.body) for delivery in await asker.client.drain()]


@pytest.mark.parametrize("method", METHODS)
async def test_a_claim_group_that_breaks_costs_its_log_and_no_message(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = LogLives(tmp_path)
    async with lives.life() as stage:
        producer, bystander, consumer = await stage.connect(), await stage.connect(), await stage.connect()
        asker, other = await planner(stage), await planner(stage, "h")
        for number in range(6):
            await producer.sent(QUEUE, str(number), persistent="true")
        assert (await asker.claim(1, most=2))["to"] == 2
        assert (await other.claim(1, most=1))["to"] == 1
        await trio.sleep(5)  # what claims took is settled on disk
        with monkeypatch.context() as patch:
            failed = fail_once(ClaimGroup, method, patch, only=lambda group: group.state.group == "g")
            await asks(asker, "claim", claim=2, max=2)
            await trio.sleep(1)
        assert failed and stage.broker.faults.count == 1
        (answer,) = await said_to(asker)
        assert (answer["ok"], answer["error"]) == (False, "INTERNAL_ERROR"), answer
        await check_good(stage, bystander)
        await asks(asker, "claim", claim=2, max=2)
        (answer,) = await said_to(asker)
        assert not answer["ok"], "its log is closed until the next start"
        if method != "deliver":  # that interrupted the queue as well
            assert (await other.claim(2, most=1))["to"] == 2
            await consumer.subscribe(QUEUE)
            assert await consumer.next_texts(2) == ["4", "5"], "what its claim took came back, and 3 went to the other"
    async with lives.life() as stage:
        asker, consumer = await planner(stage), await stage.connect()
        state = await asker.about("state")
        assert (state["claims"][0]["from"], state["claims"][0]["to"]) == (0, 2)
        assert await asker.about("ack", claim=1) == {"acked": 1}
        await consumer.subscribe(QUEUE)
        left = [delivery.text for delivery in await consumer.drain(2)]
        assert left == (["3", "4", "5"] if method == "deliver" else [])
        if method == "_settle":
            assert len(state["claims"]) == 2, "it was on disk; what it took has come again, as after a crash"


@pytest.mark.parametrize("where", ["the save is under way", "the save waits for another"])
async def test_who_waits_for_the_disk_is_told_when_the_group_breaks(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = LogLives(tmp_path)
    async with lives.life() as stage:
        producer = await stage.connect()
        asker = await planner(stage)
        await producer.send_all(QUEUE, range(6), kind="a", persistent="true")
        claimed = await asker.claim(1, most=2)
        held: list[Any] = []
        with monkeypatch.context() as patch:
            patch.setattr(OperationLine, "change", lambda _line, *arguments, **named: held.append((arguments, named)))
            await asks(asker, "ack", claim=1)
            await trio.sleep(1)
            if where != "the save is under way":
                await asks(asker, "open", planner="p")
                await trio.sleep(1)
            assert held and not await said_to(asker)
            group = stage.broker.claims.groups[claimed["log"]]  # type: ignore[union-attr]
            failed = fail_once(ClaimGroup, "_watch", patch)
            stage.broker.dispatcher.call_later(0.0, lambda: group._watch())
            await trio.sleep(1)
        assert failed and stage.broker.faults.count == 1
        waiting_count = 1 if where == "the save is under way" else 2
        assert [answer["ok"] for answer in await said_to(asker)] == [False] * waiting_count


async def test_a_log_that_breaks_also_when_it_is_closed_takes_its_group_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with LogLives(tmp_path).life() as stage:
        producer, bystander = await stage.connect(), await stage.connect()
        asker = await planner(stage)
        await producer.send_all(QUEUE, range(6), kind="a", persistent="true")
        claimed = await asker.claim(1, most=2)
        with monkeypatch.context() as patch:
            failed = fail_once(Log, "take_plain", patch), fail_once(Log, "close", patch)
            await asks(asker, "claim", claim=2, max=2)
            await trio.sleep(1)
        assert all(failed) and stage.broker.faults.count == 1
        assert claimed["log"] not in stage.broker.claims.groups  # type: ignore[union-attr]
        assert [answer["ok"] for answer in await said_to(asker)] == [False]
        await check_good(stage, bystander)


async def test_a_request_that_waits_for_a_log_that_breaks_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for what is on its way to the disk; its connection has nothing else to do with that log."""
    async with LogStage(folder=tmp_path) as stage:
        producer, asker = await stage.connect(), await stage.connect_asking()
        await fill(producer, 3)
        log = stage.log()
        with monkeypatch.context() as patch:
            patch.setattr(log._disk, "append", lambda *_arguments, **_named: None)
            await producer.send(LOG, "on its way")
            await trio.sleep(1)
            await asker.client.send("/sluiceway/log/describe", json.dumps({"log": LOG}), reply_to=REPLIES)
            assert not await asker.client.drain(1)
            failed = fail_once(Log, "await_tail", patch)
            stage.broker.dispatcher.call_later(0.0, lambda: log.await_tail(None))
            await trio.sleep(1)
        assert failed and stage.broker.faults.count == 1
        (answer,) = await asker.client.drain()
        assert not json.loads(answer.body)["ok"]
