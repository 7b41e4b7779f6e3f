"""The map as a picture: who is a node, what is an edge, which are shown, and that it is made in small steps."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest
import trio

from sluiceway import steps
from sluiceway.admin import sampling
from sluiceway.flow.graph import at_once
from sluiceway.steps import StepPace, json_in_steps
from tests.admin.conftest import AdminStage, error_of


def named(picture: dict[str, Any], name: str) -> dict[str, Any]:
    """The node of that name."""
    (node,) = [node for node in picture["nodes"] if node["name"] == name]
    return dict(node)


def kinds_between(picture: dict[str, Any], source: dict[str, Any], sink: dict[str, Any]) -> set[str]:
    """Of the edges from one node to another."""
    return {edge["kind"] for edge in picture["edges"] if (edge["from"], edge["to"]) == (source["id"], sink["id"])}


class TestPicture:
    async def test_messages_flow_from_connections_through_destinations_to_subscriptions(
        self, stage: AdminStage
    ) -> None:
        """Each with its rate."""
        web, worker = await stage.connect(name="web"), await stage.connect(name="worker")
        await worker.subscribe("/queue/orders", id="w")
        for _ in range(8):
            await web.send_all("/queue/orders", range(20))
            await web.sync()
            await stage.get("map")
            await trio.sleep(1)
        picture = await stage.get("map")
        source, queue = named(picture, "web"), named(picture, "/queue/orders")
        sink = next(node for node in picture["nodes"] if node["kind"] == "subscription")
        assert (source["kind"], queue["kind"]) == ("connection", "destination")
        assert kinds_between(picture, source, queue) == {"flow"} == kinds_between(picture, queue, sink)
        rates = [edge["rate_per_second"] for edge in picture["edges"]]
        assert len(rates) == 2 and all(10 < rate < 25 for rate in rates)
        assert 10 < queue["rate_per_second"] < 25 and 10 < sink["rate_per_second"] < 25

    async def test_a_bottleneck_is_where_the_chain_ends(self) -> None:
        """A consumer that does not acknowledge fills the queue, which holds its sender up."""
        async with AdminStage({"/queue/orders": {"count_max": 5}}) as stage:
            web, billing = await stage.connect(name="web-3"), await stage.connect(name="billing")
            await billing.subscribe("/queue/orders", id="b2", ack="client", **{"prefetch-count": "3"})
            await web.send_all("/queue/orders", range(20))
            await trio.sleep(41)
            picture = await stage.get("map")
            source, queue = named(picture, "web-3"), named(picture, "/queue/orders")
            sink = next(node for node in picture["nodes"] if node["kind"] == "subscription")
            assert (source["state"], queue["state"], sink["state"]) == ("blocked", "blocked", "throttled")
            assert "block" in kinds_between(picture, source, queue)
            assert kinds_between(picture, queue, sink) & {"block", "wait"}
            assert source["age_seconds"] >= 41
            chain = await stage.get("chains", id=source["id"])
            assert [step["id"] for step in chain["steps"]] == [source["id"], queue["id"], sink["id"]]
            assert "3 unacked" in chain["words"] and not chain["cycle"]
            assert "billing" in chain["remedy"] and "acknowledge" in chain["remedy"]
            (limiter,) = [one for one in sink["limiters"] if one["throttled"]]
            assert (limiter["used"], limiter["capacity"], limiter["share"]) == (3, 3, 1.0)

    async def test_ids_stay_while_a_thing_lives(self, stage: AdminStage) -> None:
        client = await stage.connect(name="web")
        await client.sent("/queue/a", "x")
        before = named(await stage.get("map"), "/queue/a")["id"]
        await client.sent("/queue/a", "x", priority="9")
        await trio.sleep(5)
        assert named(await stage.get("map"), "/queue/a")["id"] == before
        (row,) = (await stage.get("destinations"))["items"]
        assert row["id"] == before, "lists say the same"

    async def test_who_waits_is_shown_before_who_is_busy(self) -> None:
        """However many others there are; what is left out is counted."""
        async with AdminStage({"/queue/small": {"count_max": 1}}) as stage:
            busy = await stage.connect(name="busy")
            for place in range(30):
                await busy.send_all(f"/queue/q{place}", range(place + 1))
            held_up = await stage.connect(name="held up")
            await held_up.send_all("/queue/small", range(3))
            await busy.sync()
            picture = await stage.get("map", limit=2)
            assert {node["name"] for node in picture["nodes"]} == {"held up", "/queue/small"}
            assert picture["omitted"]["nodes_count"] == 31
            assert picture["omitted"]["edges_count"] >= 30

    async def test_a_node_that_is_gone_is_not_found(self, stage: AdminStage) -> None:
        for wanted in ("n999999", "x", ""):
            response = await stage.http.get("/api/v1/chains", params={"id": wanted})
            assert (response.status_code, error_of(response)) == (404, "not-found")

    async def test_one_who_waits_on_nobody_has_a_chain_of_itself(self, stage: AdminStage) -> None:
        client = await stage.connect(name="web")
        await client.sent("/queue/a", "x")
        node = named(await stage.get("map"), "/queue/a")
        chain = await stage.get("chains", id=node["id"])
        assert len(chain["steps"]) == 1 and "waits on nothing" in chain["words"] and not chain["remedy"]

    async def test_names_with_script_in_them_are_text(self, stage: AdminStage) -> None:
        evil = '"><script>alert(1)</script>{client}'
        client = await stage.connect(name=evil)
        await client.sent(f"/queue/{evil}", "x")
        picture = await stage.get("map")
        assert named(picture, f"/queue/{evil}") and named(picture, evil)


class TestSampling:
    async def test_nobody_asks_nothing_is_sampled(self, stage: AdminStage, monkeypatch: pytest.MonkeyPatch) -> None:
        """After a while; and rates are there again for the next who asks."""
        await stage.get("overview")
        await trio.sleep(sampling.WATCH_SECONDS + 5)
        before = stage.services.pace.worked_seconds
        await trio.sleep(600)
        assert stage.services.pace.worked_seconds == before
        client = await stage.connect()
        await client.sent("/queue/a", "x")
        totals = (await stage.get("overview"))["totals"]
        assert totals["depth_count"] == 1 and totals["in_per_second"] == 0.0, "what came long ago is no rate"


class TestSteps:
    async def test_a_picture_of_many_is_made_in_many_steps(
        self, stage: AdminStage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """None of them about more than a few things: a topic with all its subscriptions is not looked at in one go."""
        clients = [await stage.connect(name=f"c{place}") for place in range(5)]
        for client in clients:
            for number in range(40):
                await client.subscribe("/topic/t", id=str(number))
            await client.sync()
        counts: list[int] = []
        run = StepPace.run

        def counting(work: Any) -> Any:
            made = 0
            try:
                while True:
                    try:
                        yield next(work)
                    except StopIteration as end:
                        return end.value
                    made += 1
            finally:
                counts.append(made)

        monkeypatch.setattr(StepPace, "run", lambda pace, work: run(pace, counting(work)))
        await stage.get("map")
        await stage.get("subscriptions", limit=200)
        assert max(counts) >= 200

    async def test_work_lets_others_go_between_its_parts(self) -> None:
        """A go takes STEP_SECONDS; while messages are going it rests as well."""
        now = 0.0

        def clock() -> float:
            nonlocal now
            now += steps.STEP_SECONDS / 4
            return now

        def work() -> Any:
            for _ in range(12):
                yield
            return "done"

        others = 0

        async def other() -> None:
            nonlocal others
            while True:
                others += 1
                await trio.sleep(steps.STEP_SECONDS / 10)

        turns = count()
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            assert await StepPace(lambda: next(turns), clock).run(work()) == "done"
            nursery.cancel_scope.cancel()
        assert trio.current_time() - began >= 3 * steps.STEP_SECONDS * steps.REST
        assert others >= 100

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ({}, b"{}"),
            ([], b"[]"),
            ({"a": float("inf"), "b": [float("nan"), 1]}, b'{"a":null,"b":[null,1]}'),
            ({"a": [{"b": i} for i in range(20)]}, None),
            ({"a": b"\xff\x00", "b": {"c": ()}}, b'{"a":"/wA=","b":{"c":[]}}'),
            ("é</script>\ud800", None),
        ],
    )
    def test_json_in_steps_is_json(self, value: Any, expected: bytes | None) -> None:
        """The same as in one go; without infinities, which JSON does not have."""
        written = at_once(json_in_steps(value))
        assert json.loads(written) is not None or value is None
        if expected is not None:
            assert written == expected
        else:
            assert json.loads(written) == value
