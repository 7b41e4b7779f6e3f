"""Requests to the broker about what another hub has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio.testing

from sluiceway.cluster import calls
from sluiceway.config import DestinationPolicy
from sluiceway.protocols.stomp.placement import HERE, Home
from tests.cluster.links.two_hubs import TwoHubs
from tests.scenarios.client import Client


async def asker(hubs: TwoHubs, hub: str = "a") -> Client:
    """A client that reads its answers."""
    client = await hubs.connect(hub)
    await client.subscribe("/temp-queue/answers", id="answers")
    return client


async def ask(client: Client, request: str, **facts: Any) -> dict[str, Any]:
    """Return the answer to a request."""
    await client.send(f"/sluiceway/{request}", json.dumps(facts), reply_to="/temp-queue/answers")
    return await answer(client)


async def answer(client: Client) -> dict[str, Any]:
    """Return the next answer."""
    told = json.loads((await client.next_message()).body)
    assert isinstance(told, dict)
    return told


@pytest.mark.parametrize("hub", ["a", "b"])
async def test_a_log_is_asked_for_at_any_hub(hub: str) -> None:
    """The answer is the same, whichever hub has the connection."""
    async with TwoHubs() as hubs:
        client = await asker(hubs, hub)
        for name in ("a.x", "b.x"):
            await client.sent(f"/log/{name}", "record")
            described = await ask(client, "log/describe", log=name)
            assert (described["log"], described["size"]) == (f"/log/{name}", 1)
        assert (await ask(client, "log/describe", log="b.none"))["error"] == "TOPIC_NOT_EXIST"


@pytest.mark.parametrize(("offset", "limit", "names", "omitted"), [(0, 10, "a1 a2 b1 b2", 0), (1, 2, "a2 b1", 1)])
async def test_the_list_of_logs_is_that_of_all_hubs(offset: int, limit: int, names: str, omitted: int) -> None:
    """In the order of names, page by page."""
    async with TwoHubs() as hubs:
        client = await asker(hubs)
        for name in ("b2", "a2", "b1", "a1"):
            await client.sent(f"/log/{name}", "record")
        listed = await ask(client, "log/list", offset=offset, limit=limit)
        assert [each["log"] for each in listed["logs"]] == [f"/log/{name}" for name in names.split()]
        assert listed.get("omitted", 0) == omitted


async def test_a_request_finds_what_its_client_has_sent_before() -> None:
    """SENDs without receipts, and then the size: also when the link is cut in between."""
    async with TwoHubs() as hubs:
        client = await asker(hubs)
        for count in (100, 200):
            for _ in range(100):
                await client.send("/log/b.x", "record")
            if count == 200:
                hubs.network.cut()
            answered = await ask(client, "log/size", log="b.x")
            assert answered["size"] >= count, "a record may come twice when a link is lost"


async def test_a_request_waits_for_a_link_and_is_made_again() -> None:
    """Whether it was asked before the link was lost, or while there was none."""
    async with TwoHubs() as hubs:
        client = await asker(hubs)
        await client.sent("/log/b.x", "record")
        await client.send("/sluiceway/log/size", '{"log": "b.x"}', reply_to="/temp-queue/answers")
        hubs.network.is_down = True
        hubs.network.cut()
        await client.send("/sluiceway/log/size", '{"log": "b.x"}', reply_to="/temp-queue/answers")
        await client.silence()
        hubs.network.is_down = False
        assert [(await answer(client))["size"] for _ in range(2)] == [1, 1]


@pytest.mark.parametrize("asked", ["a", "b"])
async def test_a_lost_connection_is_over_when_no_hub_has_anything_of_it(asked: str) -> None:
    """Who sends again what seems lost must know: what waits at another hub comes still."""
    policy = DestinationPolicy(match="/queue/b.>", settings={"count_max": 2, "full": "block"})
    async with TwoHubs(destinations=[policy]) as hubs:
        producer = await hubs.connect("a")
        assert producer.connected is not None
        session = producer.connected.headers["session"]
        for number in range(5):
            await producer.send("/queue/b.full", str(number))
        asking = await hubs.connect(asked)
        await asking.subscribe("/temp-queue/replies", id="replies")

        async def left(*names: str) -> list[str]:
            body = json.dumps({"sessions": names})
            await asking.send("/sluiceway/sessions", body, reply_to="/temp-queue/replies")
            answer: dict[str, list[str]] = json.loads((await asking.next_message()).body)
            return answer["sessions"]

        await trio.sleep(0.1)
        assert await left("b~none", session, "c~of a hub that nobody knows", "no hub") == [session]
        producer.vanish()
        await trio.sleep(0.1)
        assert await left(session) == [session], "three messages wait for room at the other hub"
        consumer = await hubs.connect("b")
        await consumer.subscribe("/queue/b.full", id="all")
        assert await consumer.next_texts(5) == ["0", "1", "2", "3", "4"]
        await trio.sleep(0.1)
        assert await left(session) == []
        hubs.network.is_down = True
        hubs.network.cut()
        await trio.sleep(0.1)
        other = f"{'b' if asked == 'a' else 'a'}~x"
        assert await left(other, f"{asked}~x") == [other, f"{asked}~x"], "who lives and can't be asked may have it"


async def test_a_request_is_refused_when_no_hub_can_answer_for_long() -> None:
    """In words that name the hub."""
    async with TwoHubs() as hubs:
        client = await asker(hubs)
        hubs.network.is_down = True
        hubs.network.cut()
        await client.send("/sluiceway/log/size", '{"log": "b.x"}', reply_to="/temp-queue/answers")
        await trio.sleep(calls.WAIT_SECONDS + 1)
        answered = await answer(client)
        assert answered["error"] == "shard-away"
        assert "hub b can't be reached" in answered["message"]


async def test_a_request_follows_what_it_is_about_to_another_hub() -> None:
    """A hub that has lost a name says so; then the hub is asked that has it now."""
    async with TwoHubs() as hubs:
        client = await asker(hubs)
        await client.sent("/log/a.x", "record")
        made = hubs.a.calls
        assert made is not None
        homes = iter([Home("b"), HERE])
        answers: list[Any] = []
        head = {"name": "log/size", "about": "/log/a.x", "user": None, "groups": []}
        made.ask(lambda: next(homes), "request", head, b'{"log": "a.x"}', lambda *came: answers.append(came))
        await trio.sleep(1)
        ((said, body),) = answers
        assert (said, json.loads(body)["size"]) == ({}, 1)


async def test_claims_are_made_where_the_queue_is() -> None:
    """The records of a claim are read through the link, too."""
    async with TwoHubs() as hubs:
        hubs.owners["s"] = "b"  # with shards the name of their log leads to that of the queue
        client = await asker(hubs)
        for number in range(3):
            await client.sent("/queue/b.x", str(number))
        claimed = await ask(client, "claim/claim", queue="/queue/b.x", group="g", claim=1, max=10)
        assert claimed["ok"], claimed
        await client.subscribe(claimed["log"], id="claimed", **{"from": str(claimed["from"])})
        assert [(await client.next_message()).text for _ in range(3)] == ["0", "1", "2"]
        assert (await ask(client, "claim/ack", queue="/queue/b.x", group="g", claim=claimed["claim"]))["ok"]


async def test_a_commit_of_staged_records_is_for_one_hub() -> None:
    """Others are refused, with the remedy; stages are dropped wherever they are."""
    async with TwoHubs() as hubs:
        client = await asker(hubs)
        answered = await ask(client, "sink/commit", query="a", batch=0, parts=[{"stage": "b.stage", "to": "b.x"}])
        assert answered["error"] == "INVALID_COMMIT"
        assert "braces" in answered["message"]
        assert (await ask(client, "sink/drop", stages=["a.stage", "b.stage"]))["ok"]


async def test_calls_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than so many requests do not wait: they are refused."""
    monkeypatch.setattr(calls, "CALLS_MAX", 2)
    async with TwoHubs() as hubs:
        client = await asker(hubs)
        hubs.network.is_down = True
        hubs.network.cut()
        for _ in range(3):
            await client.send("/sluiceway/log/size", '{"log": "b.x"}', reply_to="/temp-queue/answers")
        assert (await answer(client))["error"] == "TOO_MANY_REQUESTS"
        hubs.network.is_down = False
        await answer(client)
        await answer(client)
        assert hubs.a.calls is not None
        assert hubs.a.calls.under_way_count == 0


async def test_a_call_that_nobody_knows_is_refused() -> None:
    """The other hub may run another version."""
    async with TwoHubs() as hubs:
        made = hubs.a.calls
        assert made is not None
        answers: list[Any] = []
        for home in (HERE, Home("b")):
            made.ask(lambda home=home: home, "riddle", {}, b"", lambda *came: answers.append(came))  # type: ignore[misc]
        await trio.testing.wait_all_tasks_blocked()
        assert [head["error"] for head, _body in answers] == ["not-supported"] * 2


async def test_the_last_request_of_a_client_is_made(tmp_path: Path) -> None:
    """The client does not wait for the answer."""
    async with TwoHubs() as hubs:
        client = await asker(hubs)
        await client.sent("/log/b.x", "record")
        await client.send("/log/b.x", "another")
        await client.send(
            "/sluiceway/log/cursor", '{"log": "b.x", "group": "g", "from": "next"}', reply_to="/temp-queue/answers"
        )
        await trio.testing.wait_all_tasks_blocked()
        client.stream.close()
        await trio.testing.wait_all_tasks_blocked()
        logs = hubs.b.shards.logs
        assert logs is not None
        assert logs.group(logs.logs["/log/b.x"], "g").front == 2


async def test_a_call_that_is_not_to_be_made_twice_fails_in_doubt() -> None:
    """When its link is lost before the answer is there; the error says so."""
    async with TwoHubs() as hubs:
        asking, answering = hubs.a.calls, hubs.b.calls
        assert asking is not None
        assert answering is not None
        asked: list[Any] = []
        answering.serve("never", lambda *call: asked.append(call))
        answers: list[Any] = []
        asking.ask(lambda: Home("b"), "never", {}, b"", lambda *came: answers.append(came), wait_seconds=0)
        await trio.testing.wait_all_tasks_blocked()
        hubs.network.cut()
        await hubs.linked()
        await trio.sleep(1)
        ((head, _body),) = answers
        assert (head["error"], head["in_doubt"], len(asked)) == ("shard-away", True, 1)
