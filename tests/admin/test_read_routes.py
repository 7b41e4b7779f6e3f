"""What the admin port tells: everything fits its description, lists come in pages, messages are shown and not taken."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import trio
from openapi_spec_validator import validate

from scripts.reference import routes
from sluiceway.admin.app import ROUTES
from sluiceway.admin.openapi import document
from sluiceway.admin.pages import ConsoleFiles
from sluiceway.admin.routes import ApiRoute
from sluiceway.config import SecurityConfig
from sluiceway.security.config import Permission
from sluiceway.store.memory import MemoryEngine
from tests.admin.conftest import AdminStage, basic, error_of
from tests.architecture.sources import ROOT

CLIENT_ID: Any = {"client-id": "c"}
LOOKS = [route for route in ROUTES if route.method == "GET" and not route.path.endswith("/cluster")]
"""`/cluster` is for hubs whose shards move: tests/cluster/moves."""


@pytest.fixture
async def busy() -> AsyncIterator[AdminStage]:
    """A broker that has something of everything."""
    async with AdminStage({"/queue/poison": {"redeliveries_max": 0}}, engine=MemoryEngine()) as stage:
        producer = await stage.connect(name="producer")
        consumer = await stage.connect(name="consumer", heart_beat=(0, 0), **CLIENT_ID)
        await producer.send("/queue/orders", "one", **{"correlation-id": "k1"})
        await producer.send("/queue/orders", "two", priority="9")
        await consumer.subscribe("/queue/work", id="w", ack="client")
        await producer.sent("/queue/work", "held")
        await consumer.next_message()
        await consumer.subscribe("/topic/news", id="mine", durable="true")
        await producer.sent("/log/events", "first")
        await consumer.subscribe("/log/events", id="l", ack="client", group="g", **{"from": "earliest"})
        await consumer.next_message()
        await consumer.subscribe("/queue/poison", id="p", ack="client-individual")
        await producer.sent("/queue/poison", "bad")
        await consumer.nack(await consumer.next_message())
        await consumer.sync()
        yield stage
        await consumer.disconnect()
        await stage.settled_down()
        (durable,) = stage.broker.registry.durables
        stage.broker.registry.remove_durable(durable, lambda _error: None)
        await stage.settled_down()


class TestDescription:
    def test_the_openapi_document_is_valid(self) -> None:
        """By the rules of OpenAPI 3.1, with every route of the table in it."""
        described = document(ROUTES)
        validate(described)
        told = {(path, method.upper()) for path, methods in described["paths"].items() for method in methods}
        assert told == {(route.path, route.method) for route in ROUTES}

    def test_the_guide_has_every_route(self) -> None:
        """Its tables are made of them; scripts/generate.py writes them."""
        page = (ROOT / "docs" / "admin-api.md").read_text(encoding="utf-8")
        assert routes() in page

    async def test_a_broker_that_is_no_hub_says_so(self, stage: AdminStage) -> None:
        response = await stage.http.get("/api/v1/cluster")
        assert response.status_code == 404
        assert "sluiceway serve --hubs N" in response.json()["error"]["remedy"]

    async def test_the_document_is_served(self, stage: AdminStage) -> None:
        response = await stage.http.get("/api/v1/openapi.json")
        assert response.json() == document(ROUTES)

    @pytest.mark.parametrize("route", LOOKS, ids=lambda route: route.path)
    async def test_every_answer_fits_its_schema(self, route: ApiRoute, busy: AdminStage) -> None:
        """All that can be looked at, on a broker that has something of everything."""
        query: dict[str, Any] = {
            parameter.name: "/queue/orders" for parameter in route.query if parameter.name == "name"
        }
        if route.path.endswith(("/log", "/records")):
            query = {"name": "events"}
        elif route.path.endswith("/chains"):
            query = {"id": (await busy.get("map"))["nodes"][0]["id"]}
        elif route.path.endswith("/message"):
            found = await busy.get("messages", name="/queue/orders")
            query["message_id"] = found["items"][0]["message_id"]
        elif route.path.endswith("/trails"):
            query = {"correlation_id": "k1"}
        response = await busy.http.get(route.path, params=query)
        assert response.status_code == 200, response.text
        answer = response.json()
        jsonschema.Draft202012Validator(route.answer).validate(answer)
        if "items" in answer:
            assert answer["items"], "an empty list proves nothing"


class TestTrails:
    async def test_a_message_is_found_by_the_correlation_id_of_its_sender(self, stage: AdminStage) -> None:
        """And each of those that came with it, with what became of it."""
        client = await stage.connect(name="shop")
        for body in ("one", "two"):
            await client.send("/queue/orders", body, **{"correlation-id": "k1"})
        await client.sent("/queue/orders", "other", **{"correlation-id": "k2"})
        await client.subscribe("/queue/orders", ack="client-individual")
        first, _second, _third = await client.next_messages(3)
        await client.ack(first)
        await client.sync()
        items = (await stage.get("trails", correlation_id="k1"))["items"]
        assert [item["correlation_id"] for item in items] == ["k1", "k1"]
        assert [[entry["what"] for entry in item["entries"]] for item in items] == [
            ["accepted", "sent", "acked"],
            ["accepted", "sent"],
        ]
        assert (await stage.get("trails", correlation_id="k3"))["items"] == []


class TestOverview:
    async def test_totals_count_what_is_there(self, stage: AdminStage) -> None:
        client = await stage.connect()
        await client.send_all("/queue/orders", range(5))
        await client.sync()
        totals = (await stage.get("overview"))["totals"]
        assert (totals["depth_count"], totals["connections_count"], totals["destinations_count"]) == (5, 1, 1)

    async def test_a_bottleneck_is_told_with_its_chain(self) -> None:
        """Who holds others up, how many, and who waits, in words."""
        async with AdminStage({"/queue/small": {"count_max": 2}}) as stage:
            client = await stage.connect(name="web-3")
            await client.send_all("/queue/small", range(9))
            await stage.settled_down()
            assert not (await stage.get("overview"))["bottlenecks"], "a wait of a moment is none"
            await trio.sleep(2)
            overview = await stage.get("overview")
            (bottleneck,) = overview["bottlenecks"]
            assert bottleneck["title"] == "queue /queue/small" and bottleneck["flows_count"] == 1
            (chain,) = overview["chains"]
            assert chain["words"].startswith("connection web-3 waits on queue /queue/small")


class TestLists:
    async def test_pages_cover_a_list_once(self, stage: AdminStage) -> None:
        client = await stage.connect()
        for place in range(7):
            await client.send_all(f"/queue/q{place}", range(place + 1))
        await client.sync()
        names = []
        for offset in (0, 3, 6):
            page = await stage.get("destinations", offset=offset, limit=3)
            assert (page["total"], page["offset"]) == (7, offset)
            names += [item["name"] for item in page["items"]]
        assert names == [f"/queue/q{place}" for place in reversed(range(7))], "the deepest first"

    async def test_they_are_sorted_and_filtered_as_asked(self, stage: AdminStage) -> None:
        client = await stage.connect()
        for name in ("beta", "alpha", "gamma"):
            await client.sent(f"/queue/{name}", "x")
        page = await stage.get("destinations", sort="name", q="A")
        assert [item["name"] for item in page["items"]] == ["/queue/alpha", "/queue/beta", "/queue/gamma"]
        page = await stage.get("destinations", sort="-name", q="PH")
        assert [item["name"] for item in page["items"]] == ["/queue/alpha"]

    @pytest.mark.parametrize(
        "query",
        [
            {"limit": "0"},
            {"limit": "501"},
            {"offset": "-1"},
            {"limit": "x"},
            {"sort": "colour"},
            {"limit": "1e3"},
            {"limt": "10"},
        ],
        ids=str,
    )
    async def test_what_makes_no_sense_is_refused(self, query: dict[str, str], stage: AdminStage) -> None:
        await (await stage.connect()).sent("/queue/a", "x")
        response = await stage.http.get("/api/v1/destinations", params=query)
        assert (response.status_code, error_of(response)) == (400, "bad-request")

    async def test_a_parameter_that_is_not_known_is_named_with_those_that_are(self, stage: AdminStage) -> None:
        """Else a slip gives other rows than were asked for, without a word."""
        response = await stage.http.get("/api/v1/destinations", params={"limt": "10"})
        assert response.json()["error"] == {
            "code": "bad-request",
            "message": "the request has an unknown query parameter 'limt'",
            "remedy": "Known: offset, limit, sort, q.",
        }
        assert (await stage.http.get("/api/v1/session", params={"a": "b"})).json()["error"][
            "remedy"
        ] == "It takes none."
        assert (await stage.http.get("/healthz", params={"from": "a-probe"})).status_code == 200

    async def test_forecasts_say_when_a_queue_is_empty_and_when_full(self) -> None:
        """From how fast it grows or shrinks."""
        async with AdminStage({"/queue/grows": {"count_max": 1000}}) as stage:
            client = await stage.connect()
            await client.send_all("/queue/shrinks", range(100))
            await client.subscribe("/queue/shrinks", id="s", ack="client-individual", **{"prefetch-count": "1"})
            for _ in range(8):
                await client.send_all("/queue/grows", range(10))
                await client.ack(await client.next_message())
                await client.sync()
                await stage.get("destinations")
                await trio.sleep(1.0)
            rows = {row["name"]: row for row in (await stage.get("destinations"))["items"]}
            grows, shrinks = rows["/queue/grows"], rows["/queue/shrinks"]
            assert grows["drain_seconds"] is None and 50 < grows["quota_seconds"] < 200
            assert shrinks["quota_seconds"] is None and 50 < shrinks["drain_seconds"] < 200
            assert 5 < grows["in_per_second"] < 15

    async def test_a_part_that_fills_while_others_empty_is_foretold_by_itself(self) -> None:
        policy = {"partition_by": "header:customer", "partitions_count": 4, "count_max": 100}
        async with AdminStage({"/queue/parts": policy}) as stage:
            client = await stage.connect()
            for customer in ("c0", "c1", "c2", "c3"):  # in parts 3, 1, 3 and 1
                await client.send_all("/queue/parts", range(45), customer=customer)
            await client.subscribe("/queue/parts", id="s", ack="client-individual", selector="customer = 'c1'")
            held = await client.next_messages(45)
            for _ in range(8):
                await client.send_all("/queue/parts", range(1), customer="c0")
                for delivery in held[:4]:
                    await client.ack(delivery)
                del held[:4]
                await client.sync()
                await stage.get("destinations")
                await trio.sleep(1.0)
            (row,) = (await stage.get("destinations"))["items"]
            assert row["depth_count"] > 100 and row["drain_seconds"] is not None
            assert 1 <= row["quota_seconds"] < 10

    async def test_the_oldest_message_has_an_age(self, stage: AdminStage) -> None:
        client = await stage.connect()
        await trio.sleep(3)
        await client.sent("/queue/a", "x")
        await trio.sleep(40)
        (row,) = (await stage.get("destinations"))["items"]
        assert 39 < row["oldest_seconds"] < 45


class TestMessages:
    async def test_looking_takes_and_marks_nothing(self, stage: AdminStage) -> None:
        client = await stage.connect()
        await client.send_all("/queue/a", ["one", "two"])
        await client.sync()
        shown = await stage.get("messages", name="/queue/a")
        assert [(item["preview"], item["state"]) for item in shown["items"]] == [("one", "waiting"), ("two", "waiting")]
        await client.subscribe("/queue/a")
        assert [(m.text, m.redelivered) for m in await client.next_messages(2)] == [("one", False), ("two", False)]

    async def test_pages_go_on_from_next(self, stage: AdminStage) -> None:
        """Highest priority first, then in order; also past what left in between."""
        client = await stage.connect()
        await client.send_all("/queue/a", range(5))
        await client.sent("/queue/a", "express", priority="9")
        first = await stage.get("messages", name="/queue/a", limit=3)
        rest = await stage.get("messages", name="/queue/a", limit=9, **{"from": first["next"]})
        previews = [item["preview"] for item in [*first["items"], *rest["items"]]]
        assert previews == ["express", "0", "1", "2", "3", "4"] and rest["next"] is None

    async def test_states_say_who_has_it(self, stage: AdminStage) -> None:
        client = await stage.connect()
        await client.subscribe("/queue/a", ack="client", **{"prefetch-count": "1"})
        await client.send("/queue/a", "held")
        await client.send("/queue/a", "later", delay="60000")
        await client.sent("/queue/a", "ready")
        await client.next_message()
        shown = await stage.get("messages", name="/queue/a")
        assert [item["state"] for item in shown["items"]] == ["unsettled", "delayed", "waiting"]
        await client.disconnect()
        await trio.sleep(61)

    async def test_html_stays_text(self, stage: AdminStage) -> None:
        """In names, headers and bodies: it goes out as JSON strings, and browsers are told not to guess."""
        evil = "<script>alert(1)</script>"
        client = await stage.connect()
        await client.sent(f"/queue/{evil}", evil, **{f"x{evil}": evil})
        response = await stage.http.get("/api/v1/messages", params={"name": f"/queue/{evil}"})
        assert response.headers["content-type"] == "application/json"
        assert response.headers["x-content-type-options"] == "nosniff"
        (item,) = response.json()["items"]
        assert item["preview"] == evil and item["headers"][f"x{evil}"] == evil
        assert "default-src 'self'" in response.headers["content-security-policy"]

    @pytest.mark.parametrize(
        ("body", "encoding"), [(b"text \xc3\xa9", "text"), (b"\xff\xfe\x00", "base64"), (b"", "text")], ids=repr
    )
    async def test_a_body_is_text_or_base64(self, body: bytes, encoding: str, stage: AdminStage) -> None:
        client = await stage.connect()
        await client.sent("/queue/a", body, **{"content-length": str(len(body))})
        (item,) = (await stage.get("messages", name="/queue/a"))["items"]
        shown = (await stage.get("message", name="/queue/a", message_id=item["message_id"]))["body"]
        assert (shown["encoding"], shown["bytes_total"], shown["truncated"]) == (encoding, len(body), False)
        assert shown.get("text", "").encode() == body or base64.b64decode(shown["data"]) == body

    async def test_a_long_body_is_cut(self, stage: AdminStage) -> None:
        client = await stage.connect()
        await client.sent("/queue/a", "é" * 200_000)
        (item,) = (await stage.get("messages", name="/queue/a"))["items"]
        shown = (await stage.get("message", name="/queue/a", message_id=item["message_id"]))["body"]
        assert shown["truncated"] and shown["bytes_total"] == 400_000 and set(shown["text"]) == {"é"}

    async def test_what_is_on_disk_is_shown_and_stays_there(self) -> None:
        """A block is read for the answer alone."""
        engine = MemoryEngine()
        async with AdminStage({"/queue/deep": {"memory_bytes": 1_000_000}}, engine=engine) as stage:
            client = await stage.connect()
            for _ in range(5):
                await client.send_all("/queue/deep", [b"x" * 1000] * 1000)
                await client.sync()
            await stage.settled_down()
            outside_count = stage.reported("/queue/deep")["outside_count"]
            assert outside_count
            seen = 0
            start: str | None = "0"
            while start is not None:
                page = await stage.get("messages", name="/queue/deep", limit=500, **{"from": start})
                seen, start = seen + len(page["items"]), page["next"]
            assert seen == 5000
            assert stage.reported("/queue/deep")["outside_count"] == outside_count
            assert stage.services.reader._held.limiter.used_bytes == 0

    @pytest.mark.parametrize("place", ["x", "1", "4.x", "4.-1", "10.3", "4.1.1", "../4.1", "4." + "9" * 30])
    async def test_a_place_that_is_none_is_refused(self, place: str, stage: AdminStage) -> None:
        await (await stage.connect()).sent("/queue/a", "x")
        response = await stage.http.get("/api/v1/messages", params={"name": "/queue/a", "from": place})
        assert error_of(response) == "bad-request"

    @pytest.mark.parametrize("message_id", ["x", "x-1", "-", "TOKEN-x", "TOKEN-999"])
    async def test_a_message_that_is_not_there_is_not_found(self, message_id: str, stage: AdminStage) -> None:
        await (await stage.connect()).sent("/queue/a", "x")
        message_id = message_id.replace("TOKEN", stage.broker.shards.token.decode())
        response = await stage.http.get("/api/v1/message", params={"name": "/queue/a", "message_id": message_id})
        assert response.status_code in (400, 404)

    async def test_dead_letters_are_counted_by_reason_and_origin(self) -> None:
        async with AdminStage({"/queue/poison": {"redeliveries_max": 0}}) as stage:
            client = await stage.connect()
            await client.subscribe("/queue/poison", ack="client-individual")
            await client.send_all("/queue/poison", range(3))
            for delivery in await client.next_messages(3):
                await client.nack(delivery)
            await client.sync()
            (row,) = (await stage.get("dead-letters"))["items"]
            assert row["name"] == "/queue/dead-letters" and row["depth_count"] == 3
            assert row["reasons"] == [{"reason": "redeliveries", "count": 3}]
            assert row["origins"] == [{"origin": "/queue/poison", "count": 3}]

    async def test_a_search_finds_texts_in_headers_and_bodies(self, stage: AdminStage) -> None:
        """In whatever case; the answer says how many were looked at."""
        client = await stage.connect()
        for number in range(5):
            await client.sent("/queue/a", f"Order {number}", tenant="North" if number == 3 else "south")
        found = await stage.get("messages", name="/queue/a", q="order 2")
        assert [row["preview"] for row in found["items"]] == ["Order 2"] and found["looked_count"] == 5
        found = await stage.get("messages", name="/queue/a", q="NORTH")
        assert [row["preview"] for row in found["items"]] == ["Order 3"]
        assert (await stage.get("messages", name="/queue/a", q="west"))["items"] == []

    async def test_a_search_ends_after_so_many_and_goes_on_from_there(
        self, stage: AdminStage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sluiceway.admin.messages.SEARCH_COUNT_MAX", 3)
        client = await stage.connect()
        for number in range(5):
            await client.sent("/queue/a", f"Order {number}")
        found = await stage.get("messages", name="/queue/a", q="order 4")
        assert found["items"] == [] and found["looked_count"] == 3 and found["next"]
        found = await stage.get("messages", name="/queue/a", q="order 4", **{"from": found["next"]})
        assert [row["preview"] for row in found["items"]] == ["Order 4"] and found["next"] is None


class TestRecords:
    async def test_records_are_found_by_index_and_by_time(self, stage: AdminStage) -> None:
        """A page at a time; nothing is consumed."""
        client = await stage.connect()
        for number in range(6):
            await client.sent("/log/events", f"record {number}", kind="test")
            await trio.sleep(10)
        found = await stage.get("records", name="events", **{"from": "2"}, limit=2)
        assert [(row["index"], row["preview"]) for row in found["items"]] == [(2, "record 2"), (3, "record 3")]
        assert found["items"][0]["headers"]["kind"] == "test" and found["items"][0]["size_bytes"] == len("record 2")
        assert (found["first"], found["next"], found["from"]) == (0, 6, 4)
        times = [row["timestamp_ms"] for row in (await stage.get("records", name="events"))["items"]]
        assert len(times) == 6 and times == sorted(times)
        found = await stage.get("records", name="/log/events", **{"from": f"time:{times[4]}"})
        assert [row["index"] for row in found["items"]] == [4, 5] and found["from"] is None
        found = await stage.get("records", name="/log/events", **{"from": "latest"}, limit=1)
        assert [row["index"] for row in found["items"]] == [5]
        assert (await stage.get("log", name="events"))["groups"] == []

    async def test_what_is_no_place_is_refused(self, stage: AdminStage) -> None:
        client = await stage.connect()
        await client.sent("/log/events", "x")
        for place in ("yesterday", "time:soon", "-1"):
            response = await stage.http.get("/api/v1/records", params={"name": "events", "from": place})
            assert (response.status_code, error_of(response)) == (400, "bad-request")
        response = await stage.http.get("/api/v1/records", params={"name": "none"})
        assert (response.status_code, error_of(response)) == (404, "not-found")


class TestNames:
    @pytest.mark.parametrize(
        "name", ["", "/", "orders", "/queue/../etc/passwd", "/queue/none", "\x00", "/log/x", "é" * 999]
    )
    async def test_a_destination_that_is_not_there_is_not_found(self, name: str, stage: AdminStage) -> None:
        """Whatever it looks like; and asking makes none."""
        response = await stage.http.get("/api/v1/destination", params={"name": name})
        assert (response.status_code, error_of(response)) == (404, "not-found")
        assert not stage.broker.registry.destinations

    async def test_a_name_that_is_too_long_is_refused(self, stage: AdminStage) -> None:
        response = await stage.http.get("/api/v1/destination", params={"name": "x" * 5000})
        assert error_of(response) == "bad-request"

    @pytest.mark.parametrize(
        "path",
        [
            "/static/../../config.py",
            "/static/%2e%2e/%2e%2e/broker.py",
            "/static//etc/passwd",
            "/static/..%2findex.html",
            "/static/",
            "/nothing",
            "/api/v1/",
            "/api/v2/overview",
        ],
    )
    async def test_no_path_leads_out_of_the_console(self, path: str, stage: AdminStage) -> None:
        response = await stage.http.get(path)
        assert (response.status_code, error_of(response)) == (404, "not-found")

    async def test_another_method_is_refused(self, stage: AdminStage) -> None:
        response = await stage.http.delete("/api/v1/overview")
        assert (response.status_code, error_of(response)) == (405, "wrong-method")


class TestConfig:
    async def test_secrets_are_not_shown(self) -> None:
        """Neither their values nor how long they are."""
        security = SecurityConfig(
            users={"ann": "sesame-" * 3}, permissions=(Permission(users=("ann",), actions=("*",)),)
        )
        async with AdminStage(security=security) as stage:
            stage.http = stage.browser(**basic("ann", "sesame-" * 3))
            response = await stage.http.get("/api/v1/config")
            assert "sesame" not in response.text
            rows = {row["key"]: row for row in response.json()["values"]}
            assert rows["security.users"]["value"] == "(not shown)" and rows["security.users"]["changed"]
            assert rows["broker.name"]["value"] == "sluiceway" and not rows["broker.name"]["changed"]


class TestPages:
    async def test_the_console_is_served_and_cached(self, stage: AdminStage) -> None:
        response = await stage.http.get("/")
        assert response.headers["content-type"] == "text/html; charset=utf-8"
        again = await stage.http.get("/", headers={"If-None-Match": response.headers["etag"]})
        assert again.status_code == 304 and not again.content

    def test_a_missing_console_says_so(self, tmp_path: Path) -> None:
        assert b"not part of this installation" in ConsoleFiles(tmp_path / "none").index.data

    def test_only_known_kinds_of_files_are_served(self, tmp_path: Path) -> None:
        (tmp_path / "js").mkdir()
        (tmp_path / "js" / "app.js").write_text("1")
        (tmp_path / "secret.py").write_text("1")
        pages = ConsoleFiles(tmp_path)
        assert pages.get("js/app.js") is not None
        assert pages.get("secret.py") is None


class TestReadiness:
    async def test_it_is_ready_until_it_drains(self, stage: AdminStage) -> None:
        response = await stage.http.get("/readyz")
        assert (response.status_code, response.json()) == (200, {"ready": True, "reasons": []})
        consumer = await stage.connect()
        await consumer.subscribe("/queue/a", ack="client")
        await consumer.sent("/queue/a", "x")
        stage.broker.drain(60)
        response = await stage.http.get("/readyz")
        assert (response.status_code, response.json()["reasons"]) == (503, ["it is being drained"])
        assert (await stage.http.get("/healthz")).status_code == 200
        await stage.broker.stop()
