"""What every adapter of Coordination promises."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from sluiceway.cluster.coordination import port
from sluiceway.cluster.coordination.port import Hub, SessionState
from sluiceway.dispatcher import Dispatcher
from sluiceway.store.compare_and_set import BadVersionError, MetadataFailedError, NoRecordError, Version, Versioned
from tests.cluster.coordination.worlds import Member, SimulatedWorld, SupervisedWorld, World
from tests.cluster.coordination.zookeeper_world import ZooKeeperServer, ZooKeeperWorld


@asynccontextmanager
async def world_of(kind: str, folder: Path, server: ZooKeeperServer | None) -> AsyncIterator[World]:
    if kind == "simulated":
        yield SimulatedWorld()
        return
    dispatcher = Dispatcher()
    async with trio.open_nursery() as nursery:
        await nursery.start(dispatcher.run)
        if server is None:
            world = SupervisedWorld(folder, nursery, dispatcher)
            await world.start_service()
            yield world
        else:
            zookeeper = ZooKeeperWorld(server, f"/sluiceway/{folder.name}", dispatcher)
            yield zookeeper
            await zookeeper.close()
        nursery.cancel_scope.cancel()


@pytest.fixture(params=["simulated", "supervised", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    server = request.getfixturevalue("zookeeper_server") if request.param == "zookeeper" else None
    async with world_of(request.param, tmp_path, server) as made:
        yield made


async def test_a_record_is_written_once_and_then_by_its_version(world: World) -> None:
    hub = await world.start("hub-1")
    records = hub.coordination
    assert await hub.ask(records.read, "/shards/1") is None
    first = await hub.ask(records.write, "/shards/1", b"\x00one\xff", Version.NEW)
    assert isinstance(first, Version)
    assert await hub.ask(records.read, "/shards/1") == Versioned(b"\x00one\xff", first)
    refused = await hub.ask(records.write, "/shards/1", b"x", Version.NEW)
    assert isinstance(refused, BadVersionError) and refused.current == first
    second = await hub.ask(records.write, "/shards/1", b"", first)
    assert isinstance(await hub.ask(records.write, "/shards/1", b"x", first), BadVersionError)
    assert await hub.ask(records.read, "/shards/1") == Versioned(b"", second)
    third = await hub.ask(records.write, "/shards/1", b"3", Version.ANY)
    assert len({first, second, third}) == 3


async def test_a_record_that_is_not_there_can_be_made_only(world: World) -> None:
    hub = await world.start("hub-1")
    records = hub.coordination
    assert isinstance(await hub.ask(records.write, "/a/b", b"", Version.ANY), NoRecordError)
    assert isinstance(await hub.ask(records.write, "/a/b", b"", Version(0)), NoRecordError)
    assert isinstance(await hub.ask(records.delete, "/a/b", Version.ANY), NoRecordError)


async def test_a_record_is_deleted_by_its_version(world: World) -> None:
    hub = await world.start("hub-1")
    records = hub.coordination
    first = await hub.ask(records.write, "/a/b", b"1", Version.NEW)
    second = await hub.ask(records.write, "/a/b", b"2", first)
    assert isinstance(await hub.ask(records.delete, "/a/b", first), BadVersionError)
    assert await hub.ask(records.delete, "/a/b", second) is None
    assert await hub.ask(records.read, "/a/b") is None
    assert isinstance(await hub.ask(records.write, "/a/b", b"3", Version.NEW), Version)


async def test_names_below_a_path_are_listed_in_order(world: World) -> None:
    hub = await world.start("hub-1")
    records = hub.coordination
    assert await hub.ask(records.children, "/groups") == []
    for name in ("b", "a", "größe %2F"):
        await hub.ask(records.write, f"/groups/{name}", b"", Version.NEW)
    await hub.ask(records.write, "/groups/c/deeper", b"", Version.NEW)
    await hub.ask(records.write, "/groupsandmore", b"", Version.NEW)
    assert await hub.ask(records.children, "/groups") == ["a", "b", "c", "größe %2F"]


@pytest.mark.parametrize("path", ["", "/", "a", "/a/", "//a", "/a/../b", "/a\x00", "/" + "a" * 40_000])
async def test_a_path_that_is_none_is_a_mistake_of_the_caller(world: World, path: str) -> None:
    hub = await world.start("hub-1")
    with pytest.raises(ValueError, match="no path of a record"):
        hub.coordination.read(path, lambda _: None)


async def test_a_value_that_is_too_large_is_a_mistake_of_the_caller(world: World) -> None:
    hub = await world.start("hub-1")
    large = bytes(512 << 10)
    assert isinstance(await hub.ask(hub.coordination.write, "/a", large, Version.NEW), Version)
    with pytest.raises(ValueError, match="at most"):
        hub.coordination.write("/a", large + b"x", Version.ANY, lambda _: None)


async def test_of_two_hubs_with_one_version_one_wins(world: World) -> None:
    one, two = await world.start("hub-1"), await world.start("hub-2")
    version = await one.ask(one.coordination.write, "/a", b"0", Version.NEW)
    results: list[object] = []
    one.coordination.write("/a", b"1", version, results.append)
    two.coordination.write("/a", b"2", version, results.append)
    await world.until(lambda: len(results) == 2)
    assert sorted(isinstance(result, Version) for result in results) == [False, True]


async def test_calls_take_effect_in_their_order(world: World) -> None:
    hub = await world.start("hub-1")
    answers: list[object] = []
    hub.coordination.write("/a", b"1", Version.NEW, answers.append)
    hub.coordination.read("/a", answers.append)
    hub.coordination.write("/a", b"2", Version.ANY, answers.append)
    hub.coordination.read("/a", answers.append)
    await world.until(lambda: len(answers) == 4)
    assert [answer.value for answer in answers if isinstance(answer, Versioned)] == [b"1", b"2"]


async def test_hubs_see_each_other_and_what_they_advertise(world: World) -> None:
    one = await world.start("hub-1", address="10.0.0.1:7000", version="0.3.0", weight=2.0)
    two = await world.start("hub-2")
    await world.until(lambda: set(one.heard.hubs) == set(two.heard.hubs) == {"hub-1", "hub-2"})
    seen = two.heard.hubs["hub-1"]
    assert seen == Hub("hub-1", "10.0.0.1:7000", "0.3.0", 2.0, one.heard.sessions[0])
    one.coordination.advertise(Hub("hub-1", address="10.0.0.1:7000", weight=0.0))
    await world.until(lambda: two.heard.hubs["hub-1"].weight == 0.0)
    hubs = await two.ask(two.coordination.read_hubs)
    assert hubs["hub-1"].session == one.heard.sessions[0] and hubs["hub-1"].version == ""


async def test_a_hub_that_leaves_is_gone_at_once_and_hears_nothing_more(world: World) -> None:
    one, two = await world.start("hub-1"), await world.start("hub-2")
    await world.until(lambda: len(two.heard.hubs) == 2)
    closed: list[bool] = []
    one.coordination.close(lambda: closed.append(True))
    await world.until(lambda: set(two.heard.hubs) == {"hub-2"} and closed == [True])
    assert one.coordination.state is SessionState.CLOSED and not one.is_certain
    assert one.heard.events == ["began"]
    assert isinstance(await one.ask(one.coordination.read, "/a"), MetadataFailedError)


async def test_a_watch_tells_of_changes_of_others_until_it_is_cancelled(world: World) -> None:
    one, two = await world.start("hub-1"), await world.start("hub-2")
    told: list[str] = []
    watch = one.coordination.watch("/shards/1", lambda: told.append("record"))
    one.coordination.watch("/shards", lambda: told.append("below"))
    await one.ask(one.coordination.read, "/shards/1")
    told.clear()
    await two.ask(two.coordination.write, "/shards/1", b"1", Version.NEW)
    await world.until(lambda: {"record", "below"} <= set(told))
    await one.ask(one.coordination.read, "/shards/1")
    told.clear()
    await two.ask(two.coordination.write, "/shards/1", b"2", Version.ANY)
    await world.until(lambda: "record" in told)
    watch.cancel()
    watch.cancel()
    told.clear()
    await two.ask(two.coordination.delete, "/shards/1", Version.ANY)
    await world.until(lambda: "below" in told)
    assert "record" not in told


async def test_an_expired_session_ends_and_another_one_begins(world: World) -> None:
    one, two = await world.start("hub-1"), await world.start("hub-2")
    told: list[bool] = []
    one.coordination.watch("/a", lambda: told.append(True))
    told.clear()
    await world.expire(one)
    await world.until(lambda: one.heard.events[-2:] == ["ended", "began"])
    assert len(set(one.heard.sessions)) == 2 and one.heard.reasons[0]
    await world.until(lambda: bool(told) and one.is_certain)
    await world.until(lambda: two.heard.hubs.get("hub-1") is not None)
    await world.until(lambda: two.heard.hubs["hub-1"].session == one.heard.sessions[1])
    told.clear()
    await two.ask(two.coordination.write, "/a", b"", Version.NEW)
    await world.until(lambda: bool(told))


async def test_a_service_that_is_away_for_a_moment_costs_no_session(world: World) -> None:
    one = await world.start("hub-1")
    version = await one.ask(one.coordination.write, "/a", b"1", Version.NEW)
    await world.stop_service()
    await world.start_service()
    await world.until(lambda: one.is_certain)
    await world.seconds(world.session_seconds * 1.5)
    await world.until(lambda: one.is_certain)
    assert one.coordination.session == one.heard.sessions[0] and "ended" not in one.heard.events
    assert await one.ask(one.coordination.read, "/a") == Versioned(b"1", version)


async def test_a_service_that_is_away_makes_hubs_uncertain_and_then_ends_their_sessions(world: World) -> None:
    one = await world.start("hub-1")
    version = await one.ask(one.coordination.write, "/a", b"1", Version.NEW)
    await world.stop_service()
    await world.until(lambda: "uncertain" in one.heard.events)
    assert not one.is_certain and one.coordination.words
    await world.until(lambda: "ended" in one.heard.events)
    assert one.heard.events == ["began", "uncertain", "ended"]
    assert one.coordination.session is None and one.coordination.words
    assert isinstance(await one.ask(one.coordination.read, "/a"), MetadataFailedError)
    await world.start_service()
    await world.until(lambda: one.is_certain)
    assert one.heard.events[3:] == ["began"] and len(set(one.heard.sessions)) == 2
    assert await one.ask(one.coordination.read, "/a") == Versioned(b"1", version)


async def test_a_service_that_is_not_there_yet_is_waited_for(world: World) -> None:
    await world.stop_service()
    one = world.start_soon("hub-1")
    assert one.coordination.words
    await world.seconds(world.session_seconds / 2)
    assert one.heard.events == [] and "can't be reached" in one.coordination.words
    await world.start_service()
    await world.until(lambda: one.is_certain)


async def test_a_name_that_is_taken_is_refused_in_words_until_it_is_free(world: World) -> None:
    one = await world.start("hub-1", address="10.0.0.1:7000")
    second = world.start_soon("hub-1", address="10.0.0.2:7000")
    await world.until(lambda: "in the cluster already, from 10.0.0.1:7000" in second.coordination.words)
    assert second.heard.events == []
    one.coordination.close(lambda: None)
    await world.until(lambda: second.coordination.session is not None)


async def test_of_a_flood_of_hubs_some_join_and_the_others_wait_in_words(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port, "HUBS_MAX", 3)
    one = await world.start("hub-1")
    flood = [world.start_soon(f"flood-{number}") for number in range(7)]

    def joined() -> list[Member]:
        return [hub for hub in flood if hub.coordination.session is not None]

    def refused() -> list[Member]:
        return [hub for hub in flood if "the cluster has 3 hubs already" in hub.coordination.words]

    await world.until(lambda: len(joined()) == 2 and len(refused()) == 5 and len(one.heard.hubs) == 3)
    assert "ended" not in one.heard.events and "hub-1" in one.heard.hubs
    assert all(not hub.heard.events for hub in refused())
    for hub in joined():
        hub.coordination.close(lambda: None)
    await world.until(lambda: len(joined()) == 2 and len(one.heard.hubs) == 3)
    for hub in flood:
        hub.coordination.close(lambda: None)
    await world.until(lambda: set(one.heard.hubs) == {"hub-1"})
    assert "ended" not in one.heard.events
