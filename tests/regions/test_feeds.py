"""Topics of other regions: they come, say where they are from, are not sent on, and catch up after a cut."""

from __future__ import annotations

import json
from io import StringIO

import pytest
import trio
from rich.console import Console

from sluiceway.cli.stat_view import render
from tests.cluster.links.two_hubs import Network, seat
from tests.regions.regions import Internet, T, broker_of, client_of, connected, region


@pytest.fixture
def internet(monkeypatch: pytest.MonkeyPatch) -> Internet:
    return Internet(monkeypatch)


async def test_messages_come_with_their_origin(internet: Internet) -> None:
    async with broker_of("eu") as eu, broker_of("us", region("eu")) as us:
        internet.hosts["eu"] = eu
        await connected(us)
        here, there = await client_of(us), await client_of(eu)
        await here.subscribe(T)
        await there.sent(T, "12.50", **{"currency": "EUR", "content-type": "text/plain", "origin-region": "mars"})
        message = await here.next_message()
        assert message.text == "12.50"
        assert message.headers["origin-region"] == "eu"
        assert message.headers["currency"] == "EUR"
        assert message.headers["content-type"] == "text/plain"
        assert "possible-duplicate" not in message.headers
        assert us.regions is not None
        await there.sync()
        await trio.sleep(1)
        (fact,) = us.regions.facts()
        assert (fact["taken_count"], fact["underway_count"], fact["refused_count"]) == (1, 0, 0)
        report = us.report()
        assert report["regions"] == [fact]
        console = Console(file=StringIO(), width=160)
        render(report, console)
        shown = console.file.getvalue()  # type: ignore[attr-defined]
        assert "Topics of other regions: 1" in shown
        assert "eu:1" in shown
        assert "not connected because" not in shown
        asking = await client_of(us)
        await asking.subscribe("/temp-queue/stat")
        await asking.send("/sluiceway/stat", **{"reply-to": "/temp-queue/stat"})
        assert json.loads((await asking.next_message()).body)["regions"] == [fact]


async def test_clients_cannot_say_that_they_are_of_a_region(internet: Internet) -> None:
    async with broker_of("us", region("eu")) as us:
        client = await client_of(us)
        await client.subscribe("/topic/own")
        await client.sent("/topic/own", "m", **{"origin-region": "eu"})
        assert "origin-region" not in (await client.next_message()).headers


async def test_what_came_from_a_region_is_not_sent_on(internet: Internet) -> None:
    """Two brokers take the topic from each other, and a third one from both."""
    async with broker_of("eu", region("us")) as eu, broker_of("us", region("eu")) as us:
        internet.hosts.update(eu=eu, us=us)
        async with broker_of("asia", region("eu"), region("us")) as asia:
            for broker in (eu, us, asia):
                await connected(broker)
            clients = [await client_of(broker) for broker in (eu, us, asia)]
            for client in clients:
                await client.subscribe(T)
            await clients[0].sent(T, "from eu")
            await clients[1].sent(T, "from us")
            await trio.sleep(30)
            for client in clients:
                assert sorted(await client.next_texts(2)) == ["from eu", "from us"]
                await client.sync()
                with trio.move_on_after(5) as waiting:
                    await client.next_message()
                assert waiting.cancelled_caught, "each once"


async def test_a_cut_for_hours_is_caught_up(internet: Internet) -> None:
    async with broker_of("eu") as eu, broker_of("us", region("eu")) as us:
        internet.hosts["eu"] = eu
        await connected(us)
        here, there = await client_of(us), await client_of(eu)
        await here.subscribe(T)
        await there.sent(T, "before")
        assert (await here.next_message()).text == "before"
        await trio.sleep(1)  # until it is acknowledged over there
        internet.is_down = True
        internet.cut()
        for number in range(2000):
            await there.send(T, str(number))
        await there.sync()
        await trio.sleep(5 * 3600)
        assert us.regions is not None
        (fact,) = us.regions.facts()
        assert fact["reason"] == "no such host"
        assert not fact["connected_to"]
        internet.is_down = False
        await connected(us)  # it tries again every 30 seconds
        assert await here.next_texts(2000) == [str(number) for number in range(2000)]


@pytest.mark.parametrize("seed", range(8))
async def test_cut_at_any_byte_nothing_is_lost(internet: Internet, seed: int) -> None:
    """What comes a second time says that it may; the order is that of the sender, but for what comes again."""
    async with broker_of("eu") as eu, broker_of("us", region("eu")) as us:
        internet.hosts["eu"] = eu
        await connected(us)
        here, there = await client_of(us), await client_of(eu)
        await here.subscribe(T)
        for number in range(400):
            if number % 50 == 0:
                internet.left_bytes = 500 + (seed * 7919 + number * 104_729) % 5000
            await there.send(T, f"{number} " + "x" * (number % 100))
        await there.sync()
        await trio.sleep(300)
        internet.left_bytes = None
        await there.sent(T, "last")
        seen: set[int] = set()
        highest = -1
        while (message := await here.next_message()).text != "last":
            number = int(message.text.partition(" ")[0])
            if number in seen:
                assert message.headers.get("possible-duplicate") == "true"
            else:
                assert number > highest, "in order"
                highest = number
            seen.add(number)
        assert seen == set(range(400))
        assert internet.cuts_count


async def test_what_has_no_room_here_waits_there(internet: Internet) -> None:
    policies = {T: {"full": "block", "memory_bytes": 65536}}
    async with broker_of("eu") as eu, broker_of("us", region("eu"), policies=policies) as us:
        internet.hosts["eu"] = eu
        await connected(us)
        here, there = await client_of(us), await client_of(eu)
        await here.subscribe(T, ack="client", **{"prefetch-count": "1"})
        for number in range(2000):
            await there.send(T, f"{number} " + "x" * 1000)
        await there.sync()
        await trio.sleep(60)
        assert us.regions is not None
        (fact,) = us.regions.facts()
        assert fact["connected_to"]
        assert 0 < int(str(fact["underway_count"])) <= 500, "the credit over there bounds it"
        for number in range(2000):
            message = await here.next_message()
            assert message.text.partition(" ")[0] == str(number)
            await here.ack(message)


async def test_addresses_are_tried_in_turn(internet: Internet) -> None:
    async with broker_of("eu") as eu:
        eu_hubs = region("eu").__class__(name="eu", hubs=("gone:1", "eu:1"), topics=(T,))
        async with broker_of("us", eu_hubs) as us:
            internet.hosts["eu"] = eu
            await connected(us)
            assert us.regions is not None
            assert us.regions.facts()[0]["connected_to"] == "eu:1"


async def test_large_bodies_come_between_small_ones(internet: Internet) -> None:
    async with broker_of("eu") as eu, broker_of("us", region("eu")) as us:
        internet.hosts["eu"] = eu
        await connected(us)
        here, there = await client_of(us), await client_of(eu)
        await here.subscribe(T)
        sizes = [10, 5_000_000, 10, 65_536, 65_535, 10]
        for size in sizes:
            await there.send(T, b"\0" * size)
        await there.sync()
        for size in sizes:
            assert (await here.next_message()).body == b"\0" * size


async def test_too_large_a_message_is_told(internet: Internet) -> None:
    async with broker_of("eu") as eu, broker_of("us", region("eu"), message_bytes_max=2000) as us:
        internet.hosts["eu"] = eu
        await connected(us)
        there = await client_of(eu)
        await there.sent(T, "x" * 3000)
        await trio.sleep(10)
        assert us.regions is not None
        assert "2000" in str(us.regions.facts()[0]["reason"])


async def test_users_of_this_broker_play_no_part(internet: Internet) -> None:
    """Nor does a reload of their permissions end it."""
    async with broker_of("eu") as eu, broker_of("us", region("eu"), users={"web": "w"}) as us:
        internet.hosts["eu"] = eu
        await connected(us)
        here, there = await client_of(us, login="web", passcode="w"), await client_of(eu)
        await here.subscribe(T)
        await there.sent(T, "a")
        message = await here.next_message()
        assert message.headers["origin-region"] == "eu"
        assert "user" not in message.headers


async def test_a_broker_that_is_drained_takes_nothing_more(internet: Internet) -> None:
    async with broker_of("eu") as eu, broker_of("us", region("eu")) as us:
        internet.hosts["eu"] = eu
        await connected(us)
        here, there = await client_of(us), await client_of(eu)
        await here.subscribe(T, ack="client", **{"prefetch-count": "1"})
        await there.sent(T, "before")
        message = await here.next_message()
        us.drain(3600)
        dials_count = internet.dials_count
        await there.sent(T, "after")
        await trio.sleep(60)
        assert internet.dials_count == dials_count
        await here.ack(message)
        await us.stop_wanted.wait()


async def test_in_a_cluster_the_owner_of_the_topic_has_it(internet: Internet) -> None:
    network = Network()
    hubs = {"a": "a", "b": "b"}
    async with broker_of("eu") as eu:
        internet.hosts["eu"] = eu
        brokers = []
        for hub in hubs:
            broker = broker_of("us", region("eu"))
            broker._seat = seat(network, hub, {each: each for each in hubs if each != hub}, lambda _name: "b")
            brokers.append(broker)
        async with brokers[0] as front, brokers[1] as owner:
            network.hubs.update(a=front, b=owner)
            await connected(owner)
            assert front.regions is not None
            assert front.regions.feeds[0].reason == "another hub of this cluster has it"
            assert not front.regions.facts()
            here, there = await client_of(front), await client_of(eu)
            with trio.fail_after(60):
                while not (front.links and front.links.reachable):  # noqa: ASYNC110 - nothing tells it
                    await trio.sleep(0.1)
            await here.subscribe(T)
            await here.sync()
            await there.sent(T, "m")
            assert (await here.next_message()).headers["origin-region"] == "eu"


async def test_an_origin_crosses_a_link(internet: Internet, monkeypatch: pytest.MonkeyPatch) -> None:
    """As while a topic moves to another hub: the link has proved who says it."""
    monkeypatch.setattr("sluiceway.regions.service.Regions._is_ours", lambda _self, _topic: True)
    network = Network()
    async with broker_of("eu") as eu:
        internet.hosts["eu"] = eu
        front, owner = broker_of("us", region("eu")), broker_of("us", users={"web": "w"})
        front._seat = seat(network, "a", {"b": "b"}, lambda _name: "b")
        owner._seat = seat(network, "b", {"a": "a"}, lambda _name: "b")
        async with front, owner:
            network.hubs.update(a=front, b=owner)
            await connected(front)
            here, there = await client_of(owner, login="web", passcode="w"), await client_of(eu)
            await here.subscribe(T)
            await there.sent(T, "m")
            assert (await here.next_message()).headers["origin-region"] == "eu"
