"""Virtual hosts: sets of destinations that know nothing of each other, over everything that names a destination."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest

from sluiceway.admin.messages import MessageReader
from sluiceway.admin.operations import Operations
from sluiceway.config.virtual_hosts import VirtualHost
from sluiceway.protocols.stomp.escaping import Version
from sluiceway.store.engine import Engine
from tests.scenarios.client import Client, UnexpectedError
from tests.scenarios.guarded import GuardedStage, allow
from tests.scenarios.lives import Lives
from tests.scenarios.spooled import SMALL, commit, send_transaction
from tests.scenarios.stage import Stage
from tests.store.faulty import FaultyEngine

SHOP, BANK = VirtualHost(name="shop", aliases=("shop.example.com",)), VirtualHost(name="bank")
HOSTS = (SHOP, BANK)


async def refused(stage: Stage, code: str, **headers: Any) -> str:
    """The ERROR of a CONNECT."""
    stranger = stage.stranger()
    with pytest.raises(UnexpectedError):
        await stranger.connect("1.2", **headers)
    error = await stranger.expect_error()
    assert error.headers["code"] == code
    return f"{error.headers['message']} {error.body.decode()}"


async def all_hosts(stage: Stage) -> list[Client]:
    """A client of the default host, and one of each other."""
    return [await stage.connect(host=host) for host in ("/", "shop", "bank")]


@contextmanager
def reading(stage: Stage) -> Iterator[Operations]:
    """What an operator does."""
    reader = MessageReader(stage.broker.manager)
    reader.open()
    yield Operations(stage.broker, reader)
    reader.close()


async def error_of(client: Client, about: str) -> str:
    error = await client.expect_error(about)
    return " ".join([*error.headers.values(), error.body.decode()])


# ---------------------------------------------------------------------- which host


async def test_without_virtual_hosts_any_host_means_the_same(stage: Stage) -> None:
    here, there = await stage.connect(host="shop"), await stage.connect(host="/")
    await here.subscribe("/queue/a")
    await there.sent("/queue/a", "x")
    assert await here.next_texts(1) == ["x"]


async def test_a_connect_names_a_host_that_is_there(version: Version) -> None:
    async with Stage(hosts=HOSTS) as stage:
        for host in ("/", "shop", "shop.example.com", "test"):
            await stage.connect(version, host=host)
        said = await refused(stage, "unknown-host", host="shp")
        assert "'shp'" in said
        assert "[[virtual_hosts]]" in said
        assert "shop" not in said, "a stranger learns no names"
        assert len(await refused(stage, "unknown-host", host="x" * 6_000)) < 500
        assert "begins with @" in await refused(stage, "bad-client-id", host="/", **{"client-id": "@shop/x"})
        silent = stage.stranger()
        await silent.send_raw(b"CONNECT\naccept-version:1.0\n\n\0SEND\ndestination:/queue/a\nreceipt:r\n\nx\0")
        assert b"RECEIPT" in await silent.raw_bytes(1)
        assert "/queue/a" in stage.broker.registry.destinations


async def test_limits_of_a_host() -> None:
    host = VirtualHost(name="shop", connections_max=2, destinations_max=2)
    async with Stage(hosts=[host, BANK]) as stage:
        first, second = await stage.connect(host="shop"), await stage.connect(host="shop")
        assert "2 connections" in await refused(stage, "too-many-connections", host="shop")
        await first.disconnect()
        await stage.settled_down()
        third = await stage.connect(host="shop")
        await third.sent("/queue/a", "x")
        await third.sent("/queue/b", "x")
        await second.send("/queue/c", "x")
        said = await error_of(second, "cannot make /queue/c")
        assert "the virtual host shop holds 2" in said
        other = await stage.connect(host="bank")
        await other.sent("/queue/c", "x")


async def test_users_of_a_host_and_entries_about_its_names() -> None:
    everywhere = allow("ann bob", "send receive create", "/queue/>")
    in_bank = allow("eve", "send receive create", "/@bank/queue/>")
    shop = VirtualHost(name="shop", users=("ann", "root"))
    async with GuardedStage(everywhere, in_bank, hosts=[shop, BANK]) as stage:
        await refused(stage, "forbidden", host="shop", login="bob", passcode="bob")
        ann, eve = await stage.as_user("ann", host="shop"), await stage.as_user("eve", host="bank")
        await ann.sent("/queue/a", "ann")
        await eve.sent("/queue/a", "eve")
        assert {"/@shop/queue/a", "/@bank/queue/a"} <= stage.broker.registry.destinations.keys()
        for client in (ann, eve):
            await client.subscribe("/queue/*", id="all")
        texts = [[each.text for each in await client.drain()] for client in (ann, eve)]
        assert texts == [["ann"], ["eve"]]
        await ann.send("/topic/a", "x")
        said = await error_of(ann, "no permission to send on /topic/a")
        assert "@shop" not in said
        outside = await stage.as_user("eve", host="/")
        await outside.send("/queue/a", "x")
        await outside.expect_error("no permission")


async def test_a_client_id_is_of_one_host() -> None:
    async with Stage(hosts=HOSTS) as stage:
        stage.broker.config = attrs.evolve(
            stage.broker.config, broker=attrs.evolve(stage.broker.config.broker, client_id_in_use="refuse")
        )
        for host in ("/", "shop", "bank"):
            await stage.connect(host=host, **{"client-id": "c"})
        assert "client-id" in await refused(stage, "client-id-in-use", host="shop", **{"client-id": "c"})


# ---------------------------------------------------------------------- isolation


@pytest.mark.parametrize("pattern", ["/queue/>", "/queue/*", "/>", "/*/a"])
async def test_wildcards_see_their_own_host(pattern: str) -> None:
    async with Stage(hosts=HOSTS) as stage:
        clients = await all_hosts(stage)
        for client in clients:
            await client.subscribe(pattern)
        for name, client in zip(("none", "shop", "bank"), clients, strict=True):
            for destination in ("/queue/a", "/topic/a", "/own/a"):
                await client.sent(destination, f"{name} {destination}")
        for name, client in zip(("none", "shop", "bank"), clients, strict=True):
            for delivery in await client.drain():
                assert delivery.text == f"{name} {delivery.headers['destination']}"


async def test_topics_and_retained_messages_of_a_host() -> None:
    async with Stage(hosts=HOSTS) as stage:
        clients = await all_hosts(stage)
        for client in clients:
            await client.subscribe("/topic/#", id="all")
        for text, client in zip("abc", clients, strict=True):
            await client.sent("/topic/t", text, retain="set")
        assert [[each.text for each in await client.drain()] for client in clients] == [["a"], ["b"], ["c"]]
        for text, late in zip("abc", await all_hosts(stage), strict=True):
            await late.subscribe("/topic/>")
            delivery = await late.next_message()
            assert (delivery.text, delivery.headers["destination"]) == (text, "/topic/t")
            await late.silence()


@pytest.mark.parametrize(
    "name", ["/@shop/queue/a", "/@shop/x", "/@bank/topic/>", "/@", "/queue/a,/@shop/queue/a", "/@shop/temp-queue/a"]
)
async def test_no_client_can_spell_the_name_of_another_host(name: str) -> None:
    async with Stage(hosts=HOSTS) as stage:
        for host in ("/", "shop"):
            client = await stage.connect(host=host)
            await client.frame("SUBSCRIBE", {"id": "1", "destination": name})
            await client.expect_error("virtual host")
        client = await stage.connect(host="bank")
        await client.frame("BEGIN", {"transaction": "t"})
        await client.send(name.replace(">", "a"), "x", transaction="t")
        await client.frame("COMMIT", {"transaction": "t"})
        await client.expect_error("virtual host")
        assert not stage.broker.registry.destinations.keys() - {"/queue/a", "/@bank/queue/a"}


async def test_names_with_signs_are_plain_in_each_host() -> None:
    async with Stage(hosts=HOSTS) as stage:
        shop = await stage.connect(host="shop")
        for name in ("/queue/@shop/a", "/queue/a%40b", "@shop", "/queue/@", "/own/@bank/a"):
            await shop.subscribe(name, id=name)
            await shop.sent(name, name)
            delivery = await shop.next_message()
            assert (delivery.text, delivery.headers["destination"]) == (name, name)
        assert all(each.startswith("/@shop/") for each in stage.broker.registry.destinations)
        await shop.send("/queu/@shop/a", "x")
        assert "did you mean /queue/@shop/a?" in await error_of(shop, "")


async def test_what_a_client_of_a_host_can_not_use_is_refused_in_words() -> None:
    async with Stage(hosts=HOSTS) as stage:
        for destination in ("/log/a", "/sluiceway/stat", "/sluiceway/trail"):
            client = await stage.connect(host="shop")
            await client.send(destination, "{}", **{"reply-to": "/temp-queue/r"})
            assert "host:/" in await error_of(client, "default host")


# ---------------------------------------------------------------------- there and back


async def test_replies_composites_and_transactions_stay_in_the_host() -> None:
    async with Stage(hosts=HOSTS) as stage:
        _default, server, other = await all_hosts(stage)
        client = await stage.connect(host="shop")
        await server.subscribe("/queue/work", id="work")
        await client.subscribe("/temp-queue/r", id="r")
        await client.frame("BEGIN", {"transaction": "t"})
        await client.send("/queue/work,/queue/copy", "ask", transaction="t", **{"reply-to": "/temp-queue/r"})
        await client.request("COMMIT", {"transaction": "t"})
        asked = await server.next_message()
        assert asked.headers["destination"] == "/queue/work"
        reply_to = asked.headers["reply-to"]
        assert reply_to.startswith("/remote-temp-queue/")
        await other.sent(reply_to, "forged")
        await server.sent(reply_to, "answer")
        assert await client.next_texts(1) == ["answer"]
        await server.subscribe("/queue/copy", id="copy")
        assert (await server.next_message()).headers["destination"] == "/queue/copy"
        await client.send("/sluiceway/credit", "", id="r", paused="false", **{"reply-to": "/temp-queue/r"})
        assert json.loads((await client.next_message()).body)["id"] == "r"
        assert {"/@shop/queue/work", "/@shop/queue/copy"} <= stage.broker.registry.destinations.keys()


async def test_dead_letters_stay_in_the_host_and_come_back() -> None:
    async with Stage(
        {"/queue/>": {"redeliveries_max": 0}, "/@bank/queue/>": {"redeliveries_max": 1}}, hosts=HOSTS
    ) as stage:
        shop, bank = await stage.connect(host="shop"), await stage.connect(host="bank")
        for client in (shop, bank):
            await client.subscribe("/queue/work", id="work", ack="client-individual")
            await client.sent("/queue/work", "x")
            await client.nack(await client.next_message())
        assert (await bank.next_message()).delivery_count == 2
        undertaker = await stage.connect(host="shop")
        await undertaker.subscribe("/queue/dead-letters", id="dead", ack="client-individual")
        letter = await undertaker.next_message()
        assert letter.headers["destination"] == "/queue/dead-letters"
        assert letter.headers["dead-letter-destination"] == "/queue/work"
        assert stage.depth_count("/@shop/queue/dead-letters") == 1
        assert "/queue/dead-letters" not in stage.broker.registry.destinations
        await undertaker.disconnect()
        await shop.sent("/queue/dead-letters", "forged", **{"dead-letter-destination": "/@bank/queue/work"})
        with reading(stage) as operations:
            graves = stage.destination("/@shop/queue/dead-letters")
            await operations.retry(graves, None, republish=False, may_send=lambda _name: True)
        again = await shop.next_message()
        assert (again.text, again.headers["destination"]) == ("x", "/queue/work")
        await shop.ack(again)
        assert [message.text for message in await bank.drain()] == []


async def test_durable_subscriptions_of_each_host_outlive_a_restart() -> None:
    lives = Lives(hosts=HOSTS)
    async with lives.life() as stage:
        for host in ("/", "shop", "bank"):
            client = await stage.connect(host=host, **{"client-id": "c"})
            await client.subscribe("/topic/t", id="s", durable="true")
            await client.disconnect()
            sender = await stage.connect(host=host)
            await sender.subscribe("/topic/t", id="shared", durable="true")
            await sender.unsubscribe("shared")
            await sender.sent("/topic/t", host, persistent="true")
            await sender.sent("/queue/q", host, persistent="true")
    async with lives.life(end="crash") as stage:
        for host in ("/", "shop", "bank"):
            client = await stage.connect(host=host, **{"client-id": "c"})
            await client.subscribe("/topic/t", id="s", durable="true")
            await client.subscribe("/queue/>", id="q")
            got = await client.next_messages(2)
            assert {(each.text, each.headers["destination"]) for each in got} == {
                (host, "/topic/t"),
                (host, "/queue/q"),
            }
            await client.silence()
        bank = await stage.connect(host="bank")
        await bank.request("UNSUBSCRIBE", {"id": "shared", "durable": "true"})
        await bank.frame("UNSUBSCRIBE", {"id": "s", "durable": "true"})
        await bank.expect_error("no durable subscription 's'")
        left = {(each.client_id, each.name, each.destination) for each in stage.broker.registry.durables}
        assert ("@shop/", "shared", "/@shop/topic/t") in left
        assert not any(name == "shared" and "bank" in topic for _client, name, topic in left)


async def test_a_purge_of_one_host_leaves_the_others() -> None:
    """Operators name destinations with their host."""
    async with Stage(hosts=HOSTS) as stage:
        for client in await all_hosts(stage):
            await client.sent("/queue/a", "x")
        assert stage.reported("/@shop/queue/a")["depth_count"] == 1
        assert {row["host"] for row in stage.broker.report()["connections"]} == {"/", "shop", "bank"}
        with reading(stage) as operations:
            await operations.purge(stage.destination("/@shop/queue/a"))
        assert [stage.depth_count(each) for each in ("/queue/a", "/@shop/queue/a", "/@bank/queue/a")] == [1, 0, 1]


@pytest.mark.usefixtures("small_pieces")
async def test_large_bodies_and_transactions_on_disk_find_the_shards_of_a_host(tmp_path: Path) -> None:
    engines: list[Engine] = [FaultyEngine(Random(shard)) for shard in range(4)]
    async with Stage(engine=engines, hosts=HOSTS, large_folder=tmp_path, large_body_bytes=20_000, **SMALL) as stage:
        shop, other = await stage.connect(host="shop"), await stage.connect(host="bank")
        await shop.subscribe("/queue/>")
        await other.subscribe("/queue/>")
        for name in ("/queue/a", "/queue/b", "/queue/c", "/queue/d"):
            await shop.sent(name, "x" * 30_000, persistent="true", content_length="30000")
            await send_transaction(shop, 30, name)
            await commit(shop)
            got = await shop.next_messages(31)
            assert {each.headers["destination"] for each in got} == {name}
            assert len(got[0].body) == 30_000
            assert stage.destination(f"/@shop{name}").environment.shard == stage.broker.shards.shard_of(f"/@shop{name}")
        await other.silence()


def test_a_single_text_is_no_list_of_users() -> None:
    """Its letters would be taken for users, and the one who is meant be refused."""
    with pytest.raises(ValueError, match="must be a list of texts"):
        VirtualHost("shop", users="web")
