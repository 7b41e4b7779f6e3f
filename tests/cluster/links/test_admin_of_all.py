"""The admin port of a cluster: whichever hub is asked, all answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import httpx
import jsonschema
import trio
from prometheus_client.parser import text_string_to_metric_families

from sluiceway.admin.app import ROUTES, make_app
from sluiceway.admin.openapi import document
from sluiceway.admin.server import make_services
from sluiceway.config.admin import AdminConfig
from sluiceway.flow.graph import at_once
from sluiceway.metrics.merging import merged_in_steps
from tests.cluster.links.two_hubs import TwoHubs

DEPTH = "sluiceway_destination_messages"


class Admin:
    """Admin ports of both hubs, which share one."""

    def __init__(self, hubs: TwoHubs) -> None:
        self.hubs = hubs
        self.browsers: dict[str, httpx.AsyncClient] = {}

    async def begin(self, nursery: trio.Nursery) -> None:
        for name, broker in self.hubs.network.hubs.items():
            assert broker.seat is not None
            broker._seat = attrs.evolve(broker.seat, admin_secret=b"s" * 32)
            services = make_services(broker, AdminConfig())
            services.reader.open()
            services.history.start()
            nursery.start_soon(services.sampler.run)
            app: Any = make_app(services, AdminConfig())
            assert services.together is not None
            services.together.begin(app.answer_hub)
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            self.browsers[name] = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8161")
            self.services = services

    async def get(self, hub: str, path: str, status: int = 200, **query: Any) -> Any:
        response = await self.browsers[hub].get(f"/api/v1/{path}", params=query)
        assert response.status_code == status, response.text
        return response.json()

    async def act(
        self, hub: str, name: str, body: dict[str, Any], *, csrf_of: str | None = None, status: int = 200
    ) -> Any:
        headers = {"X-Sluiceway-CSRF": (await self.get(csrf_of or hub, "session"))["csrf"]}
        response = await self.browsers[hub].post(f"/api/v1/actions/{name}", json=body, headers=headers)
        assert response.status_code == status, response.text
        return response.json()


@asynccontextmanager
async def admin(hubs: TwoHubs) -> AsyncIterator[Admin]:
    made = Admin(hubs)
    async with trio.open_nursery() as nursery:
        await made.begin(nursery)
        yield made
        nursery.cancel_scope.cancel()


async def test_lists_have_the_rows_of_both_hubs_in_order() -> None:
    async with TwoHubs() as hubs, admin(hubs) as http:
        client = await hubs.connect("a")
        for name, count in (("/queue/a1", 1), ("/queue/b1", 3), ("/queue/a2", 2)):
            for _ in range(count):
                await client.sent(name, "x")
        for hub in ("a", "b"):
            page = await http.get(hub, "destinations", sort="-depth_count", limit=2)
            assert [(row["name"], row["hub"]) for row in page["items"]] == [("/queue/b1", "b"), ("/queue/a2", "a")]
            assert page["total"] == 3
            rest = await http.get(hub, "destinations", sort="-depth_count", limit=2, offset=2)
            assert [row["name"] for row in rest["items"]] == ["/queue/a1"]
            by_name = await http.get(hub, "destinations", sort="name")
            assert [row["name"] for row in by_name["items"]] == ["/queue/a1", "/queue/a2", "/queue/b1"]
            assert (await http.get(hub, "destination", name="/queue/b1"))["depth_count"] == 3
            assert len((await http.get(hub, "messages", name="/queue/b1"))["items"]) == 3
            clients = (await http.get(hub, "connections"))["items"]
            assert [(row["peer"], row["hub"]) for row in clients] == [("client 1", "a")]
            overview = await http.get(hub, "overview")
            assert overview["totals"]["depth_count"] == 6
            assert [each["name"] for each in overview["hubs"]] == ["a", "b"]
        for sort in ("state", "-state", "oldest_seconds", "-drain_seconds", "kind"):
            assert (await http.get("a", "destinations", sort=sort))["total"] == 3
        await http.get("a", "destinations", 400, sort="nonsense")
        await http.get("a", "destinations", 400, offset=20_000)
        for route in ROUTES:
            if (
                route.method == "GET"
                and route.path.startswith("/api/v1/")
                and not any(each.default is None and not each.optional for each in route.query)
            ):
                name = route.path.removeprefix("/api/v1/")
                if name not in ("trails", "cluster"):  # these two hubs have their shards for good
                    await http.get("a", name)


async def test_actions_go_to_the_hub_that_has_the_destination() -> None:
    async with TwoHubs() as hubs, admin(hubs) as http:
        client = await hubs.connect("a")
        await client.sent("/queue/b1", "x")
        # A token of one hub is good at the other: they answer at one port.
        await http.act("a", "pause", {"name": "/queue/b1"}, csrf_of="b")
        assert hubs.b.registry.destinations["/queue/b1"].is_paused
        await http.act("a", "publish", {"to": "/queue/b1", "body": "second"})
        assert hubs.depth_count("b", "/queue/b1") == 2
        done = await http.act("a", "purge", {"name": "/queue/b1", "confirm": "/queue/b1"})
        assert "2" in done["words"] and hubs.depth_count("b", "/queue/b1") == 0
        await http.act("a", "resume", {"name": "/queue/b1"})
        refused = await http.act("a", "purge", {"name": "/queue/b1", "confirm": "nonsense"}, status=400)
        assert "confirm" in refused["error"]["message"]
        assert (await http.act("a", "drain", {"confirm": "sluiceway"}, status=400))["error"]["remedy"] == (
            "The hubs are a, b."
        )
        other = await hubs.connect("b")
        session = next(iter(hubs.b.connections.clients)).session.session_id
        await http.act("a", "close-connection", {"session": session, "confirm": session})
        await other.expect_error()


async def test_a_client_is_one_row_with_what_it_has_at_another_hub() -> None:
    async with TwoHubs() as hubs, admin(hubs) as http:
        consumer = await hubs.connect("a")
        await consumer.subscribe("/queue/b1", ack="client")
        await consumer.subscribe("/queue/a1", id="second")
        producer = await hubs.connect("b")
        await producer.sent("/queue/b1", "x")
        await consumer.next_message()
        for hub in ("a", "b"):
            rows = {row["peer"]: row for row in (await http.get(hub, "connections"))["items"]}
            assert {peer: row["hub"] for peer, row in rows.items()} == {"client 1": "a", "client 2": "b"}
            assert (rows["client 1"]["subscriptions_count"], rows["client 1"]["unsettled_count"]) == (2, 1)


async def test_waits_are_joined_and_a_node_is_found_at_its_hub() -> None:
    async with TwoHubs(stash_bytes_max=4096) as hubs, admin(hubs) as http:
        consumer = await hubs.connect("a")
        await consumer.subscribe("/queue/b1", ack="client", prefetch_count="3")
        producer = await hubs.connect("a")
        with trio.move_on_after(5):
            while True:
                await producer.send("/queue/b1", b"x" * 100_000)
        overview = await http.get("a", "overview")
        assert overview["chains"][0]["words"].startswith("connection client 2 on a waits on queue /queue/b1 on b (")
        cause = overview["bottlenecks"][0]
        assert cause["title"] == "subscription s of client 1 on a" and not cause["waits_itself"]
        chain = await http.get("a", "chains", id=cause["id"])
        assert chain["id"] == cause["id"]
        drawn = await http.get("a", "map")
        nodes = {node["id"]: node for node in drawn["nodes"]}
        assert {node["hub"] for node in nodes.values()} == {"a", "b"}
        assert all(edge["from"] in nodes and edge["to"] in nodes for edge in drawn["edges"])
        named = {f"{node['hub']} {node['name']}": node["id"] for node in drawn["nodes"]}
        assert "b client 2 by a" not in named, "a client is one node"
        over = {(edge["from"], edge["to"]): edge for edge in drawn["edges"] if "over the link" in edge["words"]}
        client, queue = named["a client 2"], named["b /queue/b1"]
        link = next(node for name, node in named.items() if name.startswith("a to other hubs from client 2"))
        assert over[client, queue]["kind"] == "flow"
        assert over[link, queue]["kind"] == "block"
        assert over[link, queue]["words"].endswith(", over the link from a to b")


async def test_a_hub_that_is_gone_is_missing_in_lists_and_named_in_refusals() -> None:
    async with TwoHubs() as hubs, admin(hubs) as http:
        hubs.network.is_down = True
        hubs.network.cut()
        await trio.sleep(0.1)
        why = "there is no link to it, for 100 ms"
        assert (await http.get("a", "destinations"))["missing"] == {"b": why}
        overview = await http.get("a", "overview")
        (here, there) = overview["hubs"]
        assert (here["name"], here["missing"]) == ("a", None)
        assert there["missing"].startswith("there is no link to it, for ") and not there["gone"]
        refused = await http.get("a", "destination", 503, name="/queue/b1")
        assert refused["error"]["message"] == "it is for b, which gives no answer: " + there["missing"]
        await hubs.a.metrics_page()  # a thread looks at the system, and virtual time does not wait for it
        page = (await http.browsers["a"].get("/metrics")).text
        assert 'sluiceway_hub_up{hub="b"} 0.0' in page
        assert 'sluiceway_link_up{hub="a",peer="b"} 0.0' in page
        hubs.network.is_down = False


async def test_what_several_hubs_answer_is_described() -> None:
    described = document(ROUTES)["paths"]
    async with TwoHubs() as hubs, admin(hubs) as http:
        client = await hubs.connect("a")
        await client.sent("/queue/b1", "x")
        hubs.network.is_down = True
        hubs.network.cut()
        for path in ("overview", "map", "destinations", "connections", "store"):
            answer = await http.get("a", path)
            schema = described[f"/api/v1/{path}"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
            jsonschema.Draft202012Validator(schema).validate(answer)
            assert set(answer) == set(schema["properties"]), "nothing is said that is not described"
            for name in {"items", "nodes", "hubs"} & answer.keys():
                fields = schema["properties"][name]["items"]["properties"]
                assert all(set(row) <= set(fields) for row in answer[name]), name
        hubs.network.is_down = False


async def test_one_scrape_has_the_metrics_of_both_hubs() -> None:
    async with TwoHubs() as hubs, admin(hubs) as http:
        client = await hubs.connect("a")
        await client.sent("/queue/b1", "x")
        for hub in (hubs.a, hubs.b):
            await hub.metrics_page()  # a thread looks at the system, and virtual time does not wait for it
        page = (await http.browsers["a"].get("/metrics")).text
        families = list(text_string_to_metric_families(page))
        names = [family.name for family in families]
        assert len(names) == len(set(names))
        samples = [sample for family in families for sample in family.samples]
        assert all(sample.labels["hub"] in ("a", "b") for sample in samples)
        depths = [s for s in samples if (s.name, s.labels.get("destination")) == (DEPTH, "/queue/b1")]
        assert [(s.labels["hub"], s.value) for s in depths] == [("b", 1.0)]
        up = {s.labels["hub"]: s.value for s in samples if s.name == "sluiceway_hub_up"}
        assert up == {"a": 1.0, "b": 1.0}


def test_pages_are_merged_family_by_family_and_labels_are_kept_as_they_are() -> None:
    counter = b"# HELP x_total Help.\n# TYPE x_total counter\n"
    one = counter + b'x_total{queue="a{\\"} 1"} 2.0\n# HELP y Why.\n# TYPE y gauge\ny 1.0\n'
    two = counter + b'x_total{queue="b"} 3.0\n# HELP z Z.\n# TYPE z gauge\nz 4.0\n'
    page = at_once(merged_in_steps({"hub-1": one, "hub-2": two}, {"hub-3": "gone"}, openmetrics=False)).decode()
    assert page.splitlines()[2:] == [
        'sluiceway_hub_up{hub="hub-1"} 1.0',
        'sluiceway_hub_up{hub="hub-2"} 1.0',
        'sluiceway_hub_up{hub="hub-3"} 0.0',
        "# HELP x_total Help.",
        "# TYPE x_total counter",
        'x_total{hub="hub-1",queue="a{\\"} 1"} 2.0',
        'x_total{hub="hub-2",queue="b"} 3.0',
        "# HELP y Why.",
        "# TYPE y gauge",
        'y{hub="hub-1"} 1.0',
        "# HELP z Z.",
        "# TYPE z gauge",
        'z{hub="hub-2"} 4.0',
    ]
    end = at_once(merged_in_steps({"hub-1": one + b"# EOF\n"}, {}, openmetrics=True))
    assert end.endswith(b"# EOF\n") and end.count(b"# EOF") == 1
