"""What can be done: pause, purge, move, retry, close, seek, drain, reload; and it is in the log with who did it."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from sluiceway.admin.server import make_services
from sluiceway.config.admin import AdminConfig
from sluiceway.store.memory import MemoryEngine
from tests.admin.conftest import AdminStage
from tests.scenarios.client import Client
from tests.scenarios.lives import Lives


async def letters(stage: AdminStage, count: int, origin: str = "/queue/poison", **headers: str) -> Client:
    """So many dead letters, in /queue/dead-letters."""
    client = await stage.connect()
    await client.subscribe(origin, id="poison", ack="client-individual")
    await client.send_all(origin, range(count), **headers)
    for delivery in await client.next_messages(count):
        await client.nack(delivery)
    await client.sync()
    await client.unsubscribe("poison")
    assert stage.depth_count("/queue/dead-letters") == count
    return client


POISON = {"/queue/poison": {"redeliveries_max": 0}, "/topic/poison": {"redeliveries_max": 0}}


class TestPause:
    async def test_a_paused_queue_takes_and_does_not_deliver(self, stage: AdminStage) -> None:
        client = await stage.connect()
        await client.subscribe("/queue/a")
        await stage.act("pause", {"name": "/queue/a"})
        await client.sent("/queue/a", "waits")
        await client.silence()
        assert (await stage.get("destination", name="/queue/a"))["paused"]
        await stage.act("resume", {"name": "/queue/a"})
        assert (await client.next_message()).text == "waits"

    async def test_every_priority_of_it_is_paused(self, stage: AdminStage) -> None:
        """Also one that comes into use later."""
        client = await stage.connect()
        await client.subscribe("/queue/a")
        await client.sync()
        await stage.act("pause", {"name": "/queue/a"})
        await client.sent("/queue/a", "express", priority="9")
        await client.silence()
        await stage.act("resume", {"name": "/queue/a"})
        assert (await client.next_message()).text == "express"

    async def test_consumers_get_from_other_queues_meanwhile(self, stage: AdminStage) -> None:
        """A paused one does not keep the turn of a window that several share."""
        client = await stage.connect()
        await client.subscribe("/queue/*", ack="client-individual", **{"prefetch-count": "1"})
        await client.send_all("/queue/a", range(3))
        held = await client.next_message()
        await client.send_all("/queue/b", range(3))
        await client.sync()
        await stage.act("pause", {"name": "/queue/a"})
        for expected in ("0", "1", "2"):
            await client.ack(held)
            held = await client.next_message()
            assert (held.headers["destination"], held.text) == ("/queue/b", expected)
        await client.ack(held)
        await stage.act("resume", {"name": "/queue/a"})
        assert (await client.next_message()).text == "1"

    async def test_a_paused_topic_delivers_nothing(self, stage: AdminStage) -> None:
        client = await stage.connect()
        await client.subscribe("/topic/t")
        await client.sync()
        await stage.act("pause", {"name": "/topic/t"})
        await client.sent("/topic/t", "waits")
        await client.silence()
        await stage.act("resume", {"name": "/topic/t"})
        assert (await client.next_message()).text == "waits"

    async def test_senders_wait_when_it_is_full(self) -> None:
        """And the map says why."""
        async with AdminStage({"/queue/a": {"count_max": 2}}) as stage:
            client = await stage.connect(name="web")
            await client.subscribe("/queue/a", ack="client")
            await client.sync()
            await stage.act("pause", {"name": "/queue/a"})
            await client.send_all("/queue/a", range(5))
            await stage.settled_down()
            (chain,) = stage.chains()
            assert "waits on queue /queue/a" in chain and "paused" in chain
            node = next(n for n in (await stage.get("map"))["nodes"] if n["name"] == "/queue/a")
            assert node["state"] == "paused" and "paused" in node["facts_words"]
            assert "resume" in (await stage.get("chains", id=node["id"]))["remedy"]
            await stage.act("resume", {"name": "/queue/a"})

    async def test_it_is_not_forgotten_while_it_is_empty(self) -> None:
        async with AdminStage({"/queue/a": {"auto_delete_seconds": 1}}) as stage:
            client = await stage.connect()
            await client.subscribe("/queue/a", id="s")
            await client.sync()
            await stage.act("pause", {"name": "/queue/a"})
            await client.unsubscribe("s")
            await trio.sleep(60)
            assert stage.destination("/queue/a").is_paused
            await stage.act("resume", {"name": "/queue/a"})


class TestPurge:
    async def test_what_nobody_holds_goes(self, stage: AdminStage) -> None:
        """What consumers hold stays with them; what is delayed goes, too."""
        client = await stage.connect()
        await client.subscribe("/queue/a", id="s", ack="client", **{"prefetch-count": "2"})
        await client.send_all("/queue/a", range(10))
        await client.sent("/queue/a", "later", delay="60000")
        await client.sent("/queue/a", "express", priority="8")
        held = await client.next_messages(2)
        answer = await stage.act("purge", {"name": "/queue/a", "confirm": "/queue/a"})
        assert (
            answer["done"]["unsettled_count"] == 2 and answer["done"]["purged_count"] + 2 + len(client.messages) >= 10
        )
        await client.ack(held[-1])
        rest = await client.drain()
        assert [m.text for m in rest] in ([], ["express"]), "one that was in its hands already"
        for delivery in rest:
            await client.ack(delivery)
        await client.sync()
        assert stage.depth_count("/queue/a") == 0

    async def test_what_is_on_disk_goes_too(self) -> None:
        """And does not come back with the next start."""
        engine = MemoryEngine()
        async with AdminStage({"/queue/deep": {"memory_bytes": 1_000_000}}, engine=engine) as stage:
            client = await stage.connect()
            for _ in range(4):
                await client.send_all("/queue/deep", [b"x" * 1000] * 1000, persistent="true")
                await client.sync()
            assert stage.reported("/queue/deep")["outside_count"]
            answer = await stage.act("purge", {"name": "/queue/deep", "confirm": "/queue/deep"})
            assert answer["done"]["purged_count"] == 4000
            assert stage.depth_count("/queue/deep") == 0
            await client.sent("/queue/deep", "new", persistent="true")
            await client.subscribe("/queue/deep")
            assert (await client.next_message()).text == "new"

    async def test_it_needs_its_confirmation(self, stage: AdminStage) -> None:
        client = await stage.connect()
        await client.sent("/queue/a", "x")
        for body in ({"name": "/queue/a", "confirm": "/queue/b"}, {"name": "/queue/a"}):
            await stage.act("purge", body, status=400)
        assert stage.depth_count("/queue/a") == 1

    async def test_a_topic_can_not_be_purged(self, stage: AdminStage) -> None:
        """Its messages belong to its readers."""
        client = await stage.connect()
        await client.subscribe("/topic/t")
        await client.sync()
        answer = await stage.act("purge", {"name": "/topic/t", "confirm": "/topic/t"}, status=409)
        assert "durable" in answer["error"]["remedy"]

    async def test_single_messages_are_dropped_and_the_others_stay(self, stage: AdminStage) -> None:
        """One that a consumer holds stays, too."""
        client, web = await stage.connect(), await stage.connect()
        await web.send_all("/queue/a", range(4))
        await web.sync()
        rows = (await stage.get("messages", name="/queue/a"))["items"]
        await client.subscribe("/queue/a", ack="client", **{"prefetch-count": "1"})
        await client.next_message()
        ids = [rows[0]["message_id"], rows[2]["message_id"]]
        answer = await stage.act("purge", {"name": "/queue/a", "confirm": "/queue/a", "message_ids": ids})
        assert answer["done"] == {"purged_count": 1, "unsettled_count": 1}
        left = [row["message_id"] for row in (await stage.get("messages", name="/queue/a"))["items"]]
        assert left == [rows[at]["message_id"] for at in (0, 1, 3)]


class TestPublish:
    async def test_a_published_message_is_delivered_with_its_headers(self, stage: AdminStage) -> None:
        answer = await stage.act(
            "publish", {"to": "/queue/a", "body": "hello, wörld", "headers": {"kind": "test", "priority": "7"}}
        )
        client = await stage.connect()
        await client.subscribe("/queue/a")
        message = await client.next_message()
        assert (message.text, message.headers["kind"], message.headers["priority"]) == ("hello, wörld", "test", "7")
        assert message.headers["message-id"] == answer["done"]["message_id"]

    async def test_where_there_is_no_room_nothing_waits(self) -> None:
        async with AdminStage({"/queue/small": {"count_max": 1}}) as stage:
            for _ in range(2):
                await stage.act("publish", {"to": "/queue/small", "body": "x"})
                if stage.depth_count("/queue/small") == 1:
                    break
            answer = await stage.act("publish", {"to": "/queue/small", "body": "x"}, status=409)
            assert answer["error"]["code"] == "no-room"
            assert (await stage.get("overview"))["bottlenecks"] == []
            answer = await stage.act("publish", {"to": "/topic/nobody", "body": "x"}, status=409)
            assert answer["error"]["code"] == "unheard"

    @pytest.mark.parametrize(
        "body",
        [
            {"to": "/queue/a", "body": "x", "headers": {"receipt": "1"}},
            {"to": "/queue/a", "body": "x", "headers": {"user": "root"}},
            {"to": "/queue/a", "body": "x", "headers": {"dead-letter-destination": "/queue/b"}},
            {"to": "/queue/a", "body": "x", "headers": {"priority": "often"}},
            {"to": "/queue/a,/queue/b", "body": "x"},
            {"to": "/log/a", "body": "x"},
            {"to": "/queue/a"},
        ],
    )
    async def test_what_is_no_message_is_refused(self, stage: AdminStage, body: dict[str, Any]) -> None:
        answer = await stage.act("publish", body, status=400)
        assert answer["error"]["code"] == "bad-request"


class TestMove:
    async def test_all_that_waits_goes_in_order(self, stage: AdminStage) -> None:
        client = await stage.connect()
        await client.send_all("/queue/a", range(150), **{"correlation-id": "kept"})
        await client.sync()
        answer = await stage.act("move", {"from": "/queue/a", "to": "/queue/b", "all": True, "confirm": "/queue/a"})
        assert answer["done"] == {"moved_count": 150, "skipped_count": 0, "complete": True}
        assert stage.depth_count("/queue/a") == 0
        await client.subscribe("/queue/b")
        moved = await client.next_messages(150)
        assert [m.text for m in moved] == [str(n) for n in range(150)]
        assert (moved[0].headers["destination"], moved[0].headers["correlation-id"]) == ("/queue/b", "kept")
        assert not moved[0].redelivered

    async def test_only_the_ones_that_are_named(self, stage: AdminStage) -> None:
        client = await stage.connect()
        await client.send_all("/queue/a", range(4))
        await client.sync()
        items = (await stage.get("messages", name="/queue/a"))["items"]
        ids = [items[1]["message_id"], items[3]["message_id"]]
        answer = await stage.act(
            "move", {"from": "/queue/a", "to": "/queue/b", "message_ids": ids, "confirm": "/queue/a"}
        )
        assert answer["done"]["moved_count"] == 2
        for name, left in (("/queue/a", ["0", "2"]), ("/queue/b", ["1", "3"])):
            assert [item["preview"] for item in (await stage.get("messages", name=name))["items"]] == left

    async def test_what_a_consumer_holds_stays(self, stage: AdminStage) -> None:
        client = await stage.connect()
        await client.subscribe("/queue/a", ack="client-individual", **{"prefetch-count": "1"})
        await client.send_all("/queue/a", range(3))
        held = await client.next_message()
        answer = await stage.act("move", {"from": "/queue/a", "to": "/queue/b", "all": True, "confirm": "/queue/a"})
        assert answer["done"]["moved_count"] == 2
        await client.ack(held)
        await client.sync()
        assert stage.depth_count("/queue/a") == 0 and stage.depth_count("/queue/b") == 2

    async def test_it_waits_for_room_and_loses_nothing(self) -> None:
        """The rest stays where it was."""
        async with AdminStage({"/queue/b": {"count_max": 3}}) as stage:
            client = await stage.connect()
            await client.send_all("/queue/a", range(10))
            await client.sync()
            answer = await stage.act("move", {"from": "/queue/a", "to": "/queue/b", "all": True, "confirm": "/queue/a"})
            moved_count = answer["done"]["moved_count"]
            assert not answer["done"]["complete"] and 0 < moved_count < 10
            assert stage.depth_count("/queue/a") + stage.depth_count("/queue/b") == 10
            assert not stage.chains(), "it waits no more"

    async def test_no_room_by_policy_drops_nothing(self) -> None:
        async with AdminStage({"/queue/b": {"count_max": 3, "full": "drop_oldest"}}) as stage:
            client = await stage.connect()
            await client.send_all("/queue/a", range(10))
            await client.sync()
            answer = await stage.act("move", {"from": "/queue/a", "to": "/queue/b", "all": True, "confirm": "/queue/a"})
            assert answer["done"]["moved_count"] == 3
            assert (stage.depth_count("/queue/a"), stage.depth_count("/queue/b")) == (7, 3)

    async def test_it_goes_on_when_there_is_room(self) -> None:
        async with AdminStage({"/queue/b": {"count_max": 4}}) as stage:
            client = await stage.connect()
            await client.send_all("/queue/a", range(40))
            await client.subscribe("/queue/b")
            await client.sync()
            answer = await stage.act("move", {"from": "/queue/a", "to": "/queue/b", "all": True, "confirm": "/queue/a"})
            assert answer["done"]["moved_count"] == 40
            assert await client.next_texts(40) == [str(n) for n in range(40)]

    async def test_messages_on_disk_are_moved_and_stay_persistent(self) -> None:
        """After the next start they are in their new place, each once."""
        engine = MemoryEngine()
        policies = {"/queue/deep": {"memory_bytes": 1_000_000}}
        async with AdminStage(policies, engine=engine) as stage:
            client = await stage.connect()
            for start in range(0, 4000, 1000):
                bodies = [f"{n:05}" + "x" * 1000 for n in range(start, start + 1000)]
                await client.send_all("/queue/deep", bodies, persistent="true")
                await client.sync()
            body = {"from": "/queue/deep", "to": "/queue/new", "all": True, "confirm": "/queue/deep"}
            answer = await stage.act("move", body)
            assert answer["done"]["moved_count"] == 4000
            assert stage.depth_count("/queue/deep") == 0
            await client.subscribe("/queue/new")
            texts = [m.text[:5] for m in await client.next_messages(4000)]
            assert texts == [f"{n:05}" for n in range(4000)]

    @pytest.mark.parametrize("to", ["/queue/a", "a", "/queue/*", "/log/x", "/temp-queue/x", "", "/queue/a,/queue/b"])
    async def test_a_place_that_makes_no_sense_is_refused(self, to: str, stage: AdminStage) -> None:
        client = await stage.connect()
        await client.sent("/queue/a", "x")
        await stage.act("move", {"from": "/queue/a", "to": to, "all": True, "confirm": "/queue/a"}, status=400)
        assert stage.depth_count("/queue/a") == 1

    async def test_a_topic_that_nobody_hears_takes_nothing(self, stage: AdminStage) -> None:
        client = await stage.connect()
        await client.sent("/queue/a", "x")
        answer = await stage.act("move", {"from": "/queue/a", "to": "/topic/t", "all": True, "confirm": "/queue/a"})
        assert answer["done"]["skipped_count"] == 1 and "has no subscribers" in answer["words"]
        assert stage.depth_count("/queue/a") == 1

    @pytest.mark.parametrize("which", [{}, {"all": False}, {"all": True, "message_ids": []}, {"message_ids": ["x-1"]}])
    async def test_which_messages_must_be_said(self, which: dict[str, Any], stage: AdminStage) -> None:
        client = await stage.connect()
        await client.sent("/queue/a", "x")
        await stage.act("move", {"from": "/queue/a", "to": "/queue/b", "confirm": "/queue/a", **which}, status=400)


class TestRetry:
    async def test_letters_go_back_to_where_they_came_from(self) -> None:
        """Without the story of their death, and as fresh as new ones."""
        async with AdminStage(POISON) as stage:
            client = await letters(stage, 3)
            answer = await stage.act(
                "retry", {"name": "/queue/dead-letters", "all": True, "confirm": "/queue/dead-letters"}
            )
            assert answer["done"] == {"moved_count": 3, "skipped_count": 0, "complete": True}
            await client.subscribe("/queue/poison", id="again", ack="client-individual")
            again = await client.next_messages(3)
            assert [m.text for m in again] == ["0", "1", "2"]
            assert again[0].headers["destination"] == "/queue/poison"
            assert not [name for name in again[0].headers if name.startswith("dead-letter")]
            for delivery in again:
                await client.ack(delivery)

    async def test_a_letter_that_lies_about_its_origin_goes_nowhere(self, stage: AdminStage) -> None:
        client = await stage.connect()
        for origin in ("/queue/*", "nonsense", "/queue/dead-letters", "/temp-queue/x", "/log/l"):
            await client.sent("/queue/dead-letters", "x", **{"dead-letter-destination": origin})
        await client.sent("/queue/dead-letters", "without")
        answer = await stage.act(
            "retry", {"name": "/queue/dead-letters", "all": True, "confirm": "/queue/dead-letters"}
        )
        assert answer["done"]["moved_count"] == 0 and answer["done"]["skipped_count"] == 6
        assert stage.depth_count("/queue/dead-letters") == 6

    async def test_what_one_subscription_refused_is_not_published_again_unasked(self) -> None:
        async with AdminStage(POISON) as stage:
            client = await letters(stage, 2, "/topic/poison")
            body = {"name": "/queue/dead-letters", "all": True, "confirm": "/queue/dead-letters"}
            answer = await stage.act("retry", body)
            assert answer["done"]["skipped_count"] == 2 and "republish" in answer["words"]
            await client.subscribe("/topic/poison", id="again")
            await client.sync()
            answer = await stage.act("retry", {**body, "republish": True})
            assert answer["done"]["moved_count"] == 2
            assert await client.next_texts(2) == ["0", "1"]


class TestConnections:
    async def test_a_closed_connection_gets_an_error_and_gives_back(self, stage: AdminStage) -> None:
        slow = await stage.connect(name="slow")
        await slow.subscribe("/queue/a", ack="client")
        await slow.send_all("/queue/a", range(3))
        await slow.next_messages(3)
        (row,) = (await stage.get("connections"))["items"]
        answer = await stage.act("close-connection", {"session": row["session"], "confirm": row["session"]})
        assert answer["done"] == {"closed": True, "returned_count": 3}
        assert "operator" in (await slow.expect_error()).headers["message"]
        await slow.expect_closed()
        slow.stream.close()
        other = await stage.connect()
        await other.subscribe("/queue/a")
        assert len(await other.next_messages(3)) == 3

    async def test_a_session_that_is_not_there_is_not_found(self, stage: AdminStage) -> None:
        await stage.act("close-connection", {"session": "x", "confirm": "x"}, status=404)


class TestDurables:
    async def away(self, stage: AdminStage, count: int) -> Client:
        """Somebody reads durably from a topic and goes; so many messages come meanwhile."""
        reader = await stage.connect(name="reader", **{"client-id": "laptop"})
        await reader.subscribe("/topic/news", id="mine", durable="true")
        await reader.sync()
        reader.vanish()
        sender = await stage.connect()
        await sender.silence()
        await sender.send_all("/topic/news", range(count))
        await sender.sync()
        return sender

    async def test_one_that_is_removed_drops_what_waits_for_it(self, stage: AdminStage) -> None:
        sender = await self.away(stage, 3)
        (row,) = (await stage.get("durables"))["items"]
        body = {"client_id": row["client_id"], "name": row["name"], "confirm": row["name"]}
        answer = await stage.act("remove-durable", body)
        assert answer["done"] == {"removed": True, "backlog_count": 3}
        assert "3 messages waited for it" in answer["words"]
        assert (await stage.get("durables"))["items"] == []
        assert stage.depth_count("/topic/news") == 0
        await stage.act("remove-durable", body, status=404)
        # The name is free: who comes back begins anew.
        reader = await stage.connect(name="again", **{"client-id": "laptop"})
        await reader.subscribe("/topic/news", id="mine", durable="true")
        await reader.sync()
        await sender.sent("/topic/news", "new")
        assert await reader.next_texts(1) == ["new"]
        await reader.disconnect()

    async def test_one_with_a_consumer_stays(self, stage: AdminStage) -> None:
        reader = await stage.connect(name="reader", **{"client-id": "laptop"})
        await reader.subscribe("/topic/news", id="mine", durable="true")
        await reader.sync()
        answer = await stage.act(
            "remove-durable", {"client_id": "laptop", "name": "mine", "confirm": "mine"}, status=409
        )
        assert answer["error"]["code"] == "in-use"
        assert len((await stage.get("durables"))["items"]) == 1

    async def test_without_a_client_id_the_topic_says_which(self, stage: AdminStage) -> None:
        for topic in ("/topic/news", "/topic/weather"):
            reader = await stage.connect()
            await reader.subscribe(topic, id="mine", durable="true")
            await reader.disconnect()
        body = {"client_id": "", "name": "mine", "confirm": "mine"}
        answer = await stage.act("remove-durable", body, status=409)
        assert answer["error"]["code"] == "many-of-this-name"
        await stage.act("remove-durable", body | {"destination": "/topic/news"})
        (row,) = (await stage.get("durables"))["items"]
        assert (row["destination"], row["consumers_count"]) == ("/topic/weather", 0)
        await stage.act("remove-durable", body)  # the only one left of its name
        assert (await stage.get("durables"))["items"] == []

    async def test_a_slip_removes_nothing(self, stage: AdminStage) -> None:
        await self.away(stage, 0)
        await stage.act("remove-durable", {"client_id": "laptop", "name": "mine", "confirm": "other"}, status=400)
        assert len((await stage.get("durables"))["items"]) == 1


class TestGroups:
    async def test_a_group_goes_on_from_its_new_place(self, stage: AdminStage) -> None:
        client = await stage.connect()
        await client.send_all("/log/l", range(3))
        await client.sync()
        await client.subscribe("/log/l", id="g", ack="client", group="g", **{"from": "earliest"})
        for delivery in await client.next_messages(3):
            await client.ack(delivery)
        await client.sync()
        answer = await stage.act("seek-group", {"log": "/log/l", "group": "g", "to": "1", "confirm": "g"})
        assert answer["done"] == {"front": 1}
        again = await client.next_messages(2)
        assert [m.text for m in again] == ["1", "2"]
        await client.ack(again[-1])
        await client.disconnect()

    @pytest.mark.parametrize(
        ("log", "group", "to"), [("none", "g", "next"), ("l", "none", "next"), ("l", "g", "nowhere"), ("l", "g", "99")]
    )
    async def test_what_is_not_there_is_refused(self, log: str, group: str, to: str, stage: AdminStage) -> None:
        client = await stage.connect()
        await client.subscribe("/log/l", id="g", ack="client", group="g")
        await client.sync()
        await stage.act("seek-group", {"log": log, "group": group, "to": to, "confirm": group}, status=409)


class TestDrain:
    async def test_consumers_finish_and_then_it_stops(self, stage: AdminStage) -> None:
        """Those that only send are ended at once; nobody new gets in."""
        sender, consumer = await stage.connect(), await stage.connect()
        await consumer.subscribe("/queue/a", ack="client-individual")
        await sender.send_all("/queue/a", range(3))
        await sender.sync()
        answer = await stage.act("drain", {"confirm": "sluiceway", "seconds": 60})
        assert answer["done"]["ended_connections_count"] == 1
        assert "drained" in (await sender.expect_error()).headers["message"]
        sender.stream.close()
        assert not stage.broker.stop_wanted.is_set()
        for delivery in await consumer.next_messages(3):
            await consumer.ack(delivery)
        assert "shutting down" in (await consumer.expect_error()).headers["message"]
        consumer.stream.close()
        with trio.fail_after(30):
            await stage.broker.stop_wanted.wait()

    async def test_it_stops_when_the_time_is_up(self, stage: AdminStage) -> None:
        consumer = await stage.connect()
        await consumer.subscribe("/queue/a", ack="client")
        await consumer.sent("/queue/a", "held")
        began = trio.current_time()
        await stage.act("drain", {"confirm": "sluiceway", "seconds": 5})
        await consumer.expect_error()
        consumer.stream.close()
        await stage.broker.stop_wanted.wait()
        assert 5 <= trio.current_time() - began < 20

    async def test_it_needs_the_name_and_a_time_that_makes_sense(self, stage: AdminStage) -> None:
        for body in (
            {"confirm": "other"},
            {"confirm": "sluiceway", "seconds": -1},
            {"confirm": "sluiceway", "seconds": 1e9},
        ):
            await stage.act("drain", body, status=400)
        assert not stage.broker.is_draining


class TestReload:
    async def test_a_broker_without_a_file_says_so(self, stage: AdminStage) -> None:
        answer = await stage.act("reload", {}, status=409)
        assert answer["error"]["code"] == "not-reloaded"


class TestLog:
    async def test_who_did_what_is_in_the_log(self, stage: AdminStage, monkeypatch: pytest.MonkeyPatch) -> None:
        """Done or refused; with the user, where it came from, what it did."""
        told: list[tuple[str, dict[str, Any]]] = []

        class Log:
            def info(self, event: str, **facts: Any) -> None:
                told.append((event, facts))

            warning = info

        monkeypatch.setattr("sluiceway.admin.action_routes.log", Log())
        client = await stage.connect()
        await client.sent("/queue/a", "x")
        await stage.act("purge", {"name": "/queue/a", "confirm": "/queue/a"})
        await stage.act("purge", {"name": "/queue/a", "confirm": "no"}, status=400)
        (done, done_facts), (refused, _facts) = told
        assert (
            done == "admin action" and done_facts["action"] == "purge" and done_facts["about"] == {"name": "/queue/a"}
        )
        assert done_facts["did"]["purged_count"] == 1 and "peer" in done_facts and "user" in done_facts
        assert refused == "admin action was not done, or only in part"


class TestCrashes:
    @pytest.mark.parametrize("end", ["in order", "crash", "power cut"])
    async def test_what_was_moved_is_in_one_place_after_the_end(self, end: str) -> None:
        """However the broker ends: each message once, in its old place or in its new one."""
        lives = Lives()
        async with lives.life(end=end) as stage:
            client = await stage.connect()
            for n in range(100):
                await client.sent("/queue/a", str(n), persistent="true")
            services = make_services(stage.broker, AdminConfig())
            source = stage.destination("/queue/a")
            await services.operations.move(source, "/queue/b", None)
        async with lives.life() as stage:
            client = await stage.connect()
            found = []
            for name in ("/queue/a", "/queue/b"):
                await client.subscribe(name, id=name)
            found = [delivery.text for delivery in await client.drain()]
            assert sorted(found, key=int) == [str(n) for n in range(100)]

    async def test_a_purge_outlives_the_broker(self) -> None:
        lives = Lives()
        async with lives.life() as stage:
            client = await stage.connect()
            await client.sent("/queue/a", "old", persistent="true")
            services = make_services(stage.broker, AdminConfig())
            await services.operations.purge(stage.destination("/queue/a"))
            await client.sent("/queue/a", "new", persistent="true")
        async with lives.life() as stage:
            client = await stage.connect()
            await client.subscribe("/queue/a")
            assert [delivery.text for delivery in await client.drain()] == ["new"]
