"""The states of destinations, connections and subscriptions in lists: who is blocked by whom, what is stalled, what is
only busy.
"""

from __future__ import annotations

from typing import Any

import trio

from tests.admin.conftest import AdminStage

SMALL = {"/queue/orders": {"count_max": 5}}


async def row_of(stage: AdminStage, name: str, key: str, value: str) -> dict[str, Any]:
    """The only row of a list with that value."""
    (row,) = [row for row in (await stage.get(name))["items"] if row[key] == value]
    return dict(row)


class TestBlocked:
    async def test_every_list_says_who_is_blocked_by_whom(self) -> None:
        """The queue blocks its sender, because of the consumer that acknowledges nothing."""
        async with AdminStage(SMALL) as stage:
            web, billing = await stage.connect(name="web-3"), await stage.connect(name="billing")
            await billing.subscribe("/queue/orders", id="b2", ack="client", **{"prefetch-count": "3"})
            await web.send_all("/queue/orders", range(20))
            await trio.sleep(41)
            queue = await row_of(stage, "destinations", "name", "/queue/orders")
            assert queue["state"] == "blocking" and queue["state_seconds"] >= 41
            assert "1 sender waits, for 41 s, because of subscription" in queue["state_words"]
            assert queue["cause"]["kind"] == "subscription" and queue["cause"]["unsettled_count"] == 3
            sender = await row_of(stage, "connections", "peer", "web-3")
            assert sender["state"] == "blocked" and "blocked by /queue/orders for 41 s" in sender["state_words"]
            culprit = await row_of(stage, "connections", "peer", "billing")
            assert culprit["state"] == "blocking" and sender["cause"]["session"] == culprit["session"]
            (consumer,) = (await stage.get("subscriptions"))["items"]
            assert consumer["state"] == "blocking" and "none acknowledged for" in consumer["state_words"]
            chain = await stage.get("chains", id=queue["id"])
            assert chain["cause"]["session"] == culprit["session"]
            (bottleneck,) = [one for one in (await stage.get("overview"))["bottlenecks"] if not one["waits_itself"]]
            assert bottleneck["cause"]["peer"] == "billing" and bottleneck["flows_count"] == 1

    async def test_a_full_queue_without_consumers_is_its_own_cause(self) -> None:
        async with AdminStage(SMALL) as stage:
            web = await stage.connect(name="web")
            await web.send_all("/queue/orders", range(20))
            await trio.sleep(5)
            queue = await row_of(stage, "destinations", "name", "/queue/orders")
            assert queue["state"] == "blocking" and queue["cause"] is None
            assert queue["state_words"].endswith("it has no consumer")

    async def test_lists_are_sorted_by_state_the_worst_first(self) -> None:
        async with AdminStage(SMALL) as stage:
            busy, web = await stage.connect(name="busy"), await stage.connect(name="web")
            await busy.send_all("/queue/deep", range(50))
            await web.send_all("/queue/orders", range(20))
            await trio.sleep(5)
            rows = (await stage.get("destinations", sort="-state"))["items"]
            assert [row["name"] for row in rows] == ["/queue/orders", "/queue/deep"]
            assert rows[1]["state"] == "unconsumed" and "50 messages wait for a consumer" in rows[1]["state_words"]
            peers = [row["peer"] for row in (await stage.get("connections", sort="-state"))["items"]]
            assert peers == ["web", "busy"]


class TestNotBlocked:
    async def test_a_consumer_at_its_prefetch_with_no_sender_waiting_is_no_bottleneck(self, stage: AdminStage) -> None:
        """Stalled after some seconds without an acknowledgement; until then it has enough to do."""
        web, thumb = await stage.connect(name="web"), await stage.connect(name="thumb")
        await thumb.subscribe("/queue/images", id="i", ack="client-individual", **{"prefetch-count": "2"})
        await web.send_all("/queue/images", range(9))
        await web.sync()
        await trio.sleep(1)
        (consumer,) = (await stage.get("subscriptions"))["items"]
        assert consumer["state"] == "busy"
        overview = await stage.get("overview")
        assert overview["bottlenecks"] == [] == overview["stalled"]
        states = {node["state"] for node in (await stage.get("map"))["nodes"]}
        assert states == {"open"}
        await trio.sleep(30)
        (consumer,) = (await stage.get("subscriptions"))["items"]
        assert consumer["state"] == "stalled" and "2 unacknowledged messages" in consumer["state_words"]
        overview = await stage.get("overview")
        assert overview["bottlenecks"] == [] and overview["stalled"][0]["cause"]["peer"] == "thumb"
        assert (await row_of(stage, "destinations", "name", "/queue/images"))["state"] == "stalled"

    async def test_a_hung_consumer_beside_a_healthy_one_is_said_to_be_just_that(self, stage: AdminStage) -> None:
        web = await stage.connect(name="web")
        hung, healthy = await stage.connect(name="hung"), await stage.connect(name="healthy")
        await hung.subscribe("/queue/jobs", id="j", ack="client-individual", **{"prefetch-count": "2"})
        await healthy.subscribe("/queue/jobs", id="j")
        for _ in range(20):
            await web.send_all("/queue/jobs", range(4))
            await web.sync()
            await stage.get("overview")
            await trio.sleep(1)
        queue = await row_of(stage, "destinations", "name", "/queue/jobs")
        assert queue["state"] == "degraded"
        assert queue["state_words"].startswith("1 of 2 consumers stalled: subscription j of hung")
        assert (await stage.get("overview"))["bottlenecks"] == []

    async def test_a_paused_queue_says_so_and_whom_it_blocks(self) -> None:
        async with AdminStage(SMALL) as stage:
            web = await stage.connect(name="web")
            await stage.connect(name="worker")
            await web.send_all("/queue/orders", range(2))
            await web.sync()
            await stage.act("pause", {"name": "/queue/orders"})
            queue = await row_of(stage, "destinations", "name", "/queue/orders")
            assert (queue["state"], queue["state_words"]) == ("paused", "paused")
            await web.send_all("/queue/orders", range(20))
            await trio.sleep(7)
            queue = await row_of(stage, "destinations", "name", "/queue/orders")
            assert (queue["state"], queue["state_words"]) == ("paused", "paused; 1 sender waits, for 7 s")
