"""Requests to the broker: about logs, claims and staged commits, by users who may or may not."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from sluiceway.protocols.stomp.session import Session
from sluiceway.sessions import SessionTable
from tests.scenarios.client import Client
from tests.scenarios.guarded import GuardedLogStage, allow, deny, refused

LOG = "/log/orders"
HIDDEN = "/log/hidden"
QUEUE = "/queue/work"
REPLIES = "/temp-queue/replies"


async def asker(stage: GuardedLogStage, user: str) -> Client:
    client = await stage.as_user(user)
    await client.subscribe(REPLIES, id="replies")
    return client


async def ask(client: Client, request: str, **facts: Any) -> dict[str, Any]:
    await client.send(f"/sluiceway/{request}", json.dumps(facts), reply_to=REPLIES)
    answer = json.loads((await client.next_message()).body)
    assert isinstance(answer, dict)
    return answer


async def filled(stage: GuardedLogStage) -> Client:
    root = await asker(stage, "root")
    for name in (LOG, HIDDEN):
        for number in range(5):
            await root.sent(name, str(number))
    return root


async def test_logs_are_listed_to_those_who_may_read_them() -> None:
    async with GuardedLogStage(allow("ann", "receive", LOG), allow("bob", "browse", HIDDEN)) as stage:
        root = await filled(stage)
        for user, known in (("ann", [LOG]), ("bob", [HIDDEN]), ("eve", [])):
            answer = await ask(await asker(stage, user), "log/list")
            assert [each["log"] for each in answer["logs"]] == known
        assert len((await ask(root, "log/list"))["logs"]) == 2


REQUESTS: dict[str, dict[str, Any]] = {
    "log/describe": {},
    "log/size": {},
    "log/closest": {"timestamp_ms": 0},
    "log/groups": {},
    "log/seek": {"group": "g", "to": "earliest"},
    "log/cursor": {"group": "g", "from": "earliest"},
    "log/delete-group": {"group": "g"},
    "log/truncate": {"before": 3},
    "log/delete": {"passcode": "let me"},
}


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("name", [HIDDEN, "hidden", "/log/absent"])
async def test_requests_about_logs_need_a_permission_on_them(request_name: str, name: str) -> None:
    """Whether such a log is there or not, and however it is written."""
    async with GuardedLogStage(allow("ann", "receive browse", LOG)) as stage:
        await filled(stage)
        ann = await asker(stage, "ann")
        body = json.dumps({"log": name, **REQUESTS[request_name]})
        await ann.send(f"/sluiceway/{request_name}", body, reply_to=REPLIES)
        full = name if name.startswith("/log/") else f"/log/{name}"
        needed = "admin" if request_name in ("log/truncate", "log/delete") else "receive"
        await refused(ann, f"{needed} on {full}")
        assert stage.log(HIDDEN).records.first_index == 0


@pytest.mark.parametrize("request_name", ["log/describe", "log/size", "log/closest", "log/groups"])
async def test_reading_about_a_log_takes_reading_it(request_name: str) -> None:
    async with GuardedLogStage(allow("ann", "receive", LOG), allow("bob", "browse", LOG)) as stage:
        await filled(stage)
        for user in ("ann", "bob"):
            answer = await ask(await asker(stage, user), request_name, log=LOG, **REQUESTS[request_name])
            assert answer["ok"] is True


async def test_who_appends_may_ask_how_far_the_log_is_and_nothing_else() -> None:
    async with GuardedLogStage(allow("ann", "send", LOG)) as stage:
        await filled(stage)
        answer = await ask(await asker(stage, "ann"), "log/size", log=LOG)
        assert (answer["size"], answer["next"], answer["waiting"]) == (5, 5, 0)
        for request_name, facts in (("log/size", {"group": "g"}), ("log/describe", {}), ("log/groups", {})):
            ann = await asker(stage, "ann")
            await ann.send(f"/sluiceway/{request_name}", json.dumps({"log": LOG, **facts}), reply_to=REPLIES)
            await refused(ann, f"receive on {LOG}")


async def test_everybody_may_ask_whether_connections_are_there() -> None:
    """Whose names they know: these can't be guessed."""
    async with GuardedLogStage() as stage:
        ann, other = [await asker(stage, user) for user in ("ann", "ann")]
        sessions = [client.connected.headers["session"] for client in (ann, other) if client.connected is not None]
        assert (await ask(ann, "sessions", sessions=[*sessions, "0123456789abcdef"]))["sessions"] == sessions
        other.vanish()
        await ann.silence()
        assert (await ask(ann, "sessions", sessions=sessions))["sessions"] == sessions[:1]


def test_sessions_that_have_ended_are_not_held() -> None:
    """However many end at once, each with something on its way."""

    class Leaving:
        def __init__(self, number: int) -> None:
            self.session_id = str(number)
            self.is_drained = False

    left_behind = {"99"}
    table = SessionTable(left_behind.__contains__)
    sessions = [Leaving(number) for number in range(1000)]
    for session in sessions:
        table.began(cast(Session, session))
    assert all(table.may_act(session.session_id) for session in sessions)
    for session in sessions:
        table.ended(cast(Session, session))
    assert all(table.may_act(session.session_id) for session in sessions)
    sessions[5].is_drained = True
    assert not table.may_act("5")
    del sessions[10:], session
    assert len(table._leaving) == 10
    assert table.may_act("9")
    assert table.may_act("99"), "what it left behind is on its way"
    assert not table.may_act("98")


def test_clients_of_other_hubs_whose_sessions_are_over_are_not_held() -> None:
    left_behind = {"proxy-0", "proxy-1"}
    table = SessionTable(left_behind.__contains__)
    for number in range(1000):
        table.is_proxy_of(f"client-{number}", f"proxy-{number}")
        table.is_proxy_of("one that comes again", f"proxy-{number % 2}")
    assert table.proxies_may_act("client-1") and table.proxies_may_act("one that comes again")
    assert not table.proxies_may_act("client-2")
    assert len(table._proxies) < 10
    left_behind.clear()
    assert not table.proxies_may_act("client-1")


@pytest.mark.parametrize("asked", [None, "a", [1], ["a"] * 1001])
async def test_a_question_about_sessions_that_makes_no_sense_is_refused(asked: object) -> None:
    async with GuardedLogStage() as stage:
        answer = await ask(await asker(stage, "ann"), "sessions", sessions=asked)
        assert answer["error"] == "INVALID_REQUEST"
        assert "a list of 1,000 names at most" in answer["message"]


async def test_what_is_taken_away_from_everybody_takes_an_administrator_of_that_log() -> None:
    async with GuardedLogStage(allow("ann", "receive send browse", LOG), allow("bob", "admin", LOG)) as stage:
        await filled(stage)
        ann = await asker(stage, "ann")
        await ann.send("/sluiceway/log/truncate", json.dumps({"log": LOG, "before": 3}), reply_to=REPLIES)
        await refused(ann, f"admin on {LOG}")
        assert (await ask(await asker(stage, "bob"), "log/truncate", log=LOG, before=3))["ok"] is True


async def test_a_group_makes_a_log_only_with_create() -> None:
    async with GuardedLogStage(allow("ann", "receive", "/log/>")) as stage:
        ann = await asker(stage, "ann")
        await ann.send("/sluiceway/log/cursor", json.dumps({"log": "new", "group": "g"}), reply_to=REPLIES)
        await refused(ann, "create on /log/new")


async def test_reading_and_writing_a_log_take_their_permissions() -> None:
    async with GuardedLogStage(allow("ann", "receive", LOG), allow("bob", "send", LOG)) as stage:
        await filled(stage)
        ann = await stage.as_user("ann")
        await ann.subscribe(LOG, **{"from": "earliest"})
        assert len(await ann.next_messages(5)) == 5
        await ann.send(LOG, "x")
        await refused(ann, f"send on {LOG}")
        bob = await stage.as_user("bob")
        await bob.sent(LOG, "x")
        await bob.frame("SUBSCRIBE", {"destination": LOG, "id": "s", "group": "g"})
        await refused(bob, f"receive on {LOG}")


# ---------------------------------------------------------------------- claims


CLAIM = {"queue": QUEUE, "group": "g"}


@pytest.mark.parametrize(
    ("request_name", "facts"),
    [
        ("claim/open", {"planner": "p"}),
        ("claim/state", {}),
        ("claim/claim", {"claim": 1, "max": 10}),
        ("claim/ack", {"claim": 1}),
        ("claim/touch", {}),
        ("claim/release", {}),
    ],
)
async def test_claims_take_what_receiving_takes(request_name: str, facts: dict[str, Any]) -> None:
    async with GuardedLogStage(allow("ann", "send browse", QUEUE)) as stage:
        root = await asker(stage, "root")
        await root.sent(QUEUE, "x")
        ann = await asker(stage, "ann")
        body = json.dumps({**CLAIM, "queue": "work", **facts})
        await ann.send(f"/sluiceway/{request_name}", body, reply_to=REPLIES)
        await refused(ann, f"receive on {QUEUE}")
        assert stage.depth_count(QUEUE) == 1


async def test_what_was_claimed_can_be_read_by_those_who_may_receive_from_the_queue() -> None:
    """It lies in a log of the broker's own, whose name can be guessed; a permission on all logs does not help."""
    async with GuardedLogStage(allow("ann", "receive", QUEUE), allow("bob", "send receive create", "/log/>")) as stage:
        root = await asker(stage, "root")
        for number in range(3):
            await root.sent(QUEUE, str(number))
        ann = await asker(stage, "ann")
        await ask(ann, "claim/open", planner="p", **CLAIM)
        claimed = await ask(ann, "claim/claim", claim=1, max=3, **CLAIM)
        log = claimed["log"]
        await ann.subscribe(log, id="claimed", **{"from": "earliest"})
        assert await ann.next_texts(3) == ["0", "1", "2"]
        bob = await stage.as_user("bob")
        await bob.frame("SUBSCRIBE", {"destination": log, "id": "s"})
        await refused(bob, f"receive on {log}")
        bob = await stage.as_user("bob")
        await bob.send(log, "not from the queue")
        await refused(bob, f"send on {log}")
        bob = await asker(stage, "bob")
        listed = (await ask(bob, "log/list"))["logs"]
        assert log not in [each["log"] for each in listed]


# ---------------------------------------------------------------------- staged commits


async def test_a_commit_needs_send_on_every_target_and_stage() -> None:
    stages = allow("ann", "send create", "/log/sluiceway.stage.ann.>")
    async with GuardedLogStage(stages, allow("ann", "send create", LOG)) as stage:
        await filled(stage)
        ann = await asker(stage, "ann")
        own = "/log/sluiceway.stage.ann.1"
        await ann.sent(own, "x")
        parts = [{"stage": own, "to": LOG}, {"stage": own, "to": HIDDEN}]
        await ann.send(
            "/sluiceway/sink/commit", json.dumps({"query": "q", "batch": 1, "parts": parts}), reply_to=REPLIES
        )
        await refused(ann, f"send on {HIDDEN}")
        ann = await asker(stage, "ann")
        answer = await ask(ann, "sink/commit", query="q", batch=1, parts=parts[:1])
        assert answer["ok"] is True, answer
        assert (await ask(ann, "sink/state", query="q"))["ok"] is True
        others = "/log/sluiceway.stage.bob.1"
        await ann.send("/sluiceway/sink/drop", json.dumps({"stages": [others]}), reply_to=REPLIES)
        await refused(ann, f"send on {others}")


async def test_what_queries_have_published_is_for_those_who_stage() -> None:
    async with GuardedLogStage(allow("ann", "send receive create browse", "/queue/>")) as stage:
        ann = await asker(stage, "ann")
        await ann.send("/sluiceway/sink/state", json.dumps({"query": "q"}), reply_to=REPLIES)
        await refused(ann, "send on /log/sluiceway.stage.>")


async def test_a_commit_without_parts_is_for_those_who_stage_too() -> None:
    """It counts as that batch of the query: the real one would be taken for a repetition, and its stages go."""
    async with GuardedLogStage(allow("ann", "send receive create browse", "/queue/>")) as stage:
        body = json.dumps({"query": "q", "batch": 1_000_000, "parts": []})
        ann = await asker(stage, "ann")
        await ann.send("/sluiceway/sink/commit", body, reply_to=REPLIES)
        await refused(ann, "send on /log/sluiceway.stage.>")
        assert (await ask(await asker(stage, "root"), "sink/state", query="q"))["batch"] == -1


# ---------------------------------------------------------------------- all of them


async def test_every_request_there_is_needs_something() -> None:
    """A new one is closed until somebody says what it needs."""
    async with GuardedLogStage(deny("eve", "*"), allow("ann", "send", "/queue/x")) as stage:
        names = [*stage.broker.shards.handlers, "trail", "stat"]
        assert len(names) > 15
        for name in names:
            if name == "log/list":
                continue
            ann = await asker(stage, "ann")
            facts = {
                "log": LOG, "queue": QUEUE, "group": "g", "query": "q", "batch": 1, "stages": [LOG],
                "parts": [{"stage": LOG, "to": LOG}], "message_id": "x",
            }  # fmt: skip
            await ann.send(f"/sluiceway/{name}", json.dumps(facts), reply_to=REPLIES)
            error = await ann.expect_error("no permission")
            assert error.headers["code"] == "forbidden", name


@pytest.mark.parametrize("body", ["", "{}", "[]", "nonsense", '{"log": 7}', '{"queue": ["a"]}', '{"parts": "x"}'])
async def test_malformed_requests_are_refused_by_who_reads_them(body: str) -> None:
    """They name nothing that could be allowed or not; nobody gets in by them."""
    async with GuardedLogStage(allow("ann", "send", "/queue/x")) as stage:
        await filled(stage)
        for name in ("log/truncate", "log/describe", "claim/open", "sink/commit"):
            ann = await asker(stage, "ann")
            await ann.send(f"/sluiceway/{name}", body, reply_to=REPLIES)
            answer = json.loads((await ann.next_message()).body)
            assert answer["ok"] is False, (name, answer)
