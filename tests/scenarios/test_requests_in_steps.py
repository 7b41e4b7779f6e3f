"""Answers that grow with what the broker has are made in steps, shared, in pages, and for those who are there."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing

from sluiceway.answering import LISTS, WAITING_MAX, Answers, ReportPart
from sluiceway.broker import Broker
from sluiceway.flow.graph import Steps
from sluiceway.report import stat_in_steps
from sluiceway.steps import StepPace
from tests.scenarios.client import Client
from tests.scenarios.log_stage import LogStage
from tests.scenarios.stage import Stage

REPLIES = "/temp-queue/answers"


@pytest.fixture(autouse=True)
def nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer is made by the task, and a go of it is one step."""
    monkeypatch.setattr("sluiceway.answering.INLINE_SECONDS", 0.0)
    monkeypatch.setattr("sluiceway.steps.STEP_SECONDS", 1e-9)


async def ask(client: Client, request: str, **facts: Any) -> dict[str, Any]:
    await client.send(f"/sluiceway/{request}", json.dumps(facts) if facts else "", reply_to=REPLIES)
    answer = json.loads((await client.next_message()).body)
    assert isinstance(answer, dict)
    return answer


async def asker(stage: Stage) -> Client:
    client = await stage.connect(name="asker")
    await client.subscribe(REPLIES)
    return client


async def make_topics(stage: Stage, count: int) -> None:
    client = await stage.connect(name="maker")
    for n in range(count):
        await client.frame("SUBSCRIBE", {"destination": f"/topic/t{n:04}", "id": str(n)})
    await client.sync()


async def test_others_go_on_while_a_stat_over_many_topics_is_made() -> None:
    """A message goes to and fro many times before the answer is there."""
    async with Stage(subscriptions_max=2000) as stage:
        await make_topics(stage, 1000)
        client, other = await asker(stage), await stage.connect(name="other")
        await other.subscribe("/queue/q")
        await client.send("/sluiceway/stat", "", reply_to=REPLIES)
        await client.sync()
        for _ in range(100):
            await other.send("/queue/q", "x")
            await other.next_message()
        assert stage.broker.answers.waiting_count == 1, "it is still being made"
        answer = json.loads((await client.next_message()).body)
        assert len(answer["destinations"]) == 1000
        assert answer["omitted"] == {"destinations": len(stage.broker.registry.destinations) - 1000}


async def test_every_list_comes_in_pages_that_together_are_all_of_it() -> None:
    async with Stage(subscriptions_max=2000) as stage:
        await make_topics(stage, 25)
        client = await asker(stage)
        names: list[str] = []
        while True:
            answer = await ask(client, "stat", list="destinations", offset=len(names), limit=10)
            names += [row["name"] for row in answer["destinations"]]
            if not answer["omitted"]:
                break
        assert sorted(names) == sorted(stage.broker.registry.destinations)
        for name in LISTS:
            assert name in await ask(client, "stat", list=name, limit=1)


@pytest.mark.parametrize(
    "facts", [{"list": "queues"}, {"limit": 0}, {"limit": 1001}, {"offset": -1}, {"offset": 10**9}, {"list": ["logs"]}]
)
async def test_a_page_that_can_not_be_is_refused(facts: dict[str, Any]) -> None:
    async with Stage() as stage:
        answer = await ask(await asker(stage), "stat", **facts)
        assert (answer["ok"], answer["error"]) == (False, "INVALID_REQUEST")


async def test_who_asks_at_once_shares_one_picture() -> None:
    async with Stage() as stage:
        clients = [await asker(stage) for _ in range(20)]
        for client in clients:
            await client.send("/sluiceway/stat", "", reply_to=REPLIES)
        bodies = {(await client.next_message()).body for client in clients}
        assert len(bodies) == 1


async def test_who_leaves_in_the_middle_costs_nothing() -> None:
    async with Stage(subscriptions_max=2000) as stage:
        await make_topics(stage, 200)
        client = await asker(stage)
        await client.send("/sluiceway/stat", "", reply_to=REPLIES)
        await client.sync()
        client.vanish()
        await trio.sleep(60)
        assert stage.broker.answers.waiting_count == 0
        assert stage.broker.left_behind.connections_count == 0


async def test_who_asks_on_without_reading_the_answers_is_refused() -> None:
    async with Stage({"/temp-queue/>": {"full": "block", "count_max": 2}}, stash_bytes_max=10_000) as stage:
        client = await stage.connect()
        request = client.encode("SEND", {"destination": "/sluiceway/stat", "reply-to": REPLIES})
        await client.send_raw(request * 300)
        error = await client.expect_error("answers to")
        assert error.headers["code"] == "too-many-requests"
        await trio.sleep(60)
        assert stage.broker.answers.waiting_count == 0


async def test_the_body_of_a_request_is_bounded() -> None:
    async with LogStage() as stage:
        client = await asker(stage)
        answer = await ask(client, "log/list", x="x" * 70_000)
        assert (answer["ok"], answer["error"]) == (False, "INVALID_REQUEST")
        assert "65,536" in answer["message"]


async def test_logs_and_groups_come_in_pages() -> None:
    async with LogStage() as stage:
        client = await asker(stage)
        for n in range(7):
            await client.sent(f"/log/l{n}", "x")
        for n in range(5):
            await ask(client, "log/cursor", log="l0", group=f"g{n}")
        first = await ask(client, "log/list", limit=4)
        rest = await ask(client, "log/list", limit=4, offset=4)
        assert [row["log"] for row in first["logs"] + rest["logs"]] == [f"/log/l{n}" for n in range(7)]
        assert (first["omitted"], "omitted" in rest) == (3, False)
        page = await ask(client, "log/groups", log="l0", offset=3, limit=1)
        assert ([row["group"] for row in page["groups"]], page["omitted"]) == (["g3"], 1)
        assert (await ask(client, "log/describe", log="l0"))["groups_count"] == 5


def _unexpected(error: Exception) -> None:
    raise error


async def test_reports_asked_for_without_end_take_a_tenth_of_the_time_and_are_never_older_than_their_request(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Each takes a second of work, in two steps."""
    worked_seconds, state = 0.0, 0
    answered = trio.Event()

    def now() -> float:
        return trio.current_time() + worked_seconds

    def steps() -> Steps[bytes]:
        nonlocal worked_seconds
        seen = state
        for _ in range(2):
            worked_seconds += 0.5
            yield
        return str(seen).encode()

    def take(body: bytes) -> None:
        assert int(body) >= asked_in_state
        answered.set()

    async with trio.open_nursery() as nursery:
        answers = Answers(StepPace(lambda: 0, now), nursery.start_soon, _unexpected, now)
        began = now()
        for _ in range(10):
            state += 1
            asked_in_state, answered = state, trio.Event()
            answers.make(steps, take, key="report", ration=True)
            state += 1
            await answered.wait()
    assert worked_seconds == 10.0
    assert now() - began >= 9 * 9 + 10


async def test_more_than_may_wait_are_refused_at_once() -> None:
    answers = Answers(StepPace(lambda: 0), lambda _task: None, _unexpected)
    told: list[bytes] = []

    def steps() -> Steps[bytes]:
        yield
        return b""

    for _ in range(WAITING_MAX + 5):
        answers.make(steps, told.append)
    assert len(told) == 5
    assert b"TOO_MANY_REQUESTS" in told[0]


async def test_no_step_of_a_report_looks_at_many_things() -> None:
    """With ten times as much there are ten times as many steps: none of them is longer."""

    async def counted(count: int) -> int:
        async with Stage(subscriptions_max=20_000) as stage:
            await make_topics(stage, count)
            return steps_of(stage.broker)

    def steps_of(broker: Broker) -> int:
        steps = stat_in_steps(broker, ReportPart(1000), uptime_seconds=0.0)
        made = 0
        while True:
            try:
                next(steps)
            except StopIteration:
                return made
            made += 1

    few, many = await counted(50), await counted(500)
    assert many > 7 * few
