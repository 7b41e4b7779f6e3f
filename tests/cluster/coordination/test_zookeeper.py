"""ZooKeeper for real: servers killed and stopped, hubs that sleep, paths and credentials that are wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio

from sluiceway.cluster.coordination.port import Hub
from sluiceway.cluster.coordination.zookeeper import ZooKeeperCoordination, ZooKeeperSettings, ZooKeeperSettingsError
from sluiceway.cluster.ownership import Ownership
from sluiceway.dispatcher import Dispatcher
from sluiceway.store.compare_and_set import MetadataFailedError, Version, Versioned
from tests.architecture.sources import ROOT
from tests.cluster.coordination.worlds import DEADLINE_SECONDS
from tests.cluster.coordination.zookeeper_world import ZooKeeperServer, ZooKeeperWorld, free_port

pytestmark = pytest.mark.zookeeper

HUB = """
import sys, trio
from sluiceway.cluster.coordination.port import Hub
from sluiceway.cluster.coordination.zookeeper import ZooKeeperCoordination, ZooKeeperSettings
from sluiceway.dispatcher import Dispatcher

class Events:
    def session_began(self, session): print("began", flush=True)
    def session_uncertain(self): pass
    def session_certain(self): pass
    def session_ended(self, reason): print("ended", flush=True)
    def hubs_changed(self, hubs): pass

async def main():
    dispatcher = Dispatcher()
    settings = ZooKeeperSettings(sys.argv[1], session_seconds=float(sys.argv[2]))
    hub = ZooKeeperCoordination(settings, dispatcher, trio.current_time, dispatcher.submit)
    hub.start(Hub("process"), Events())
    await dispatcher.run()

trio.run(main)
"""


def started(hosts: str) -> subprocess.Popen[str]:
    """Start a hub in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", HUB, hosts, "1.2"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
    )


@pytest.fixture
async def world(zookeeper_server: ZooKeeperServer, tmp_path: Path) -> AsyncIterator[ZooKeeperWorld]:
    dispatcher = Dispatcher()
    async with trio.open_nursery() as nursery:
        await nursery.start(dispatcher.run)
        made = ZooKeeperWorld(zookeeper_server, f"/sluiceway/{tmp_path.name}", dispatcher)
        yield made
        await made.close()
        nursery.cancel_scope.cancel()


async def test_a_server_that_is_killed_and_started_costs_pauses_and_loses_nothing(world: ZooKeeperWorld) -> None:
    hub = await world.start("hub-1")
    told: list[bool] = []
    version = await hub.ask(hub.coordination.write, "/a", b"1", Version.NEW)
    hub.coordination.watch("/a", lambda: told.append(True))
    world.server.kill()
    await world.until(lambda: not hub.is_certain)
    assert isinstance(await hub.ask(hub.coordination.write, "/a", b"2", version), MetadataFailedError)
    await trio.to_thread.run_sync(world.server.start)
    told.clear()
    await world.until(lambda: hub.is_certain and bool(told))
    found = await hub.ask(hub.coordination.read, "/a")
    assert isinstance(found, Versioned)
    told.clear()
    await hub.ask(hub.coordination.write, "/a", b"3", found.version)
    await world.until(lambda: bool(told))


async def test_a_hub_that_is_stopped_loses_its_session_and_notices_when_it_wakes(world: ZooKeeperWorld) -> None:
    other = await world.start("hub-2")
    hosts = f"127.0.0.1:{world.server.port}{world.root}"
    process = started(hosts)
    assert process.stdout is not None
    readline: Callable[[], str] = process.stdout.readline
    try:
        with trio.fail_after(DEADLINE_SECONDS):
            assert await trio.to_thread.run_sync(readline) == "began\n"
            await world.until(lambda: "process" in other.heard.hubs)
            process.send_signal(signal.SIGSTOP)
            await world.until(lambda: "process" not in other.heard.hubs)
            process.send_signal(signal.SIGCONT)
            assert await trio.to_thread.run_sync(readline) == "ended\n"
            assert await trio.to_thread.run_sync(readline) == "began\n"
            await world.until(lambda: "process" in other.heard.hubs)
            process.kill()
            await world.until(lambda: "process" not in other.heard.hubs)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def test_shards_are_taken_over_by_epochs(world: ZooKeeperWorld) -> None:
    class Host:
        def open(self, shard: int, epoch: int, done: Callable[[Exception | None], None]) -> None:
            done(None)

        def close(self, shard: int, done: Callable[[], None]) -> None:
            done()

        def abandon(self, shard: int) -> None: ...
        def hold(self) -> None: ...
        def resume(self) -> None: ...
        def hubs_changed(self) -> None: ...

        def owner_changed(self, shard: int) -> None: ...

    hosts = f"127.0.0.1:{world.server.port}{world.root}"
    settings = ZooKeeperSettings(hosts, session_seconds=1.2, makes_root=True)
    dispatcher = world._dispatcher
    owners = []
    for name in ("hub-1", "hub-2"):
        coordination = ZooKeeperCoordination(settings, dispatcher, trio.current_time, dispatcher.submit)
        ownership = Ownership(
            coordination,
            Host(),
            dispatcher,
            trio.current_time,
            hub=Hub(name),
            shards_count=8,
            settle_seconds=0.5,
            sweep_seconds=0.5,
        )
        ownership.start()
        owners.append((ownership, coordination))

    def held(number: int) -> set[int]:
        return {shard for shard in range(8) if owners[number][0].may_confirm(shard)}

    await world.until(lambda: bool(held(0)) and bool(held(1)) and len(held(0) | held(1)) == 8)
    assert not held(0) & held(1)
    lost = held(0)
    left: list[bool] = []
    await trio.to_thread.run_sync(owners[0][1]._zoo.stop)  # the session ends under the hub
    await world.until(lambda: held(1) == set(range(8)))
    assert {owners[1][0].epoch(shard) for shard in lost} == {2}
    for ownership, _coordination in owners:
        ownership.leave(lambda: left.append(True))
    await world.until(lambda: len(left) == 2)


async def test_a_path_that_is_missing_is_said_and_waited_for(world: ZooKeeperWorld) -> None:
    hub = world.member("hub-1")
    await world.until(lambda: "there is no cluster at 127.0.0.1" in hub.coordination.words)
    assert "`sluiceway cluster init`" in hub.coordination.words and not hub.heard.events
    await world.start("hub-2")
    await world.until(lambda: hub.is_certain)


async def test_wrong_credentials_are_said(world: ZooKeeperWorld) -> None:
    owner = world.member("hub-1", makes_root=True, user="sluiceway", password="right")
    await world.until(lambda: owner.is_certain)
    wrong = world.member("hub-2", user="sluiceway", password="wrong")
    without = world.member("hub-3")
    await world.until(lambda: "the credentials of 'sluiceway' do not allow it" in wrong.coordination.words)
    await world.until(lambda: "it asks for credentials" in without.coordination.words)
    assert "right" not in repr(ZooKeeperSettings("a:1/b", password="right"))
    right = world.member("hub-4", user="sluiceway", password="right")
    await world.until(lambda: right.is_certain)


async def test_a_server_that_is_not_there_is_said_and_operations_fail(world: ZooKeeperWorld) -> None:
    hosts = f"127.0.0.1:{free_port()}/sluiceway"
    hub = world.member("hub-1", hosts=hosts)
    await world.seconds(0.3)
    assert f"no ZooKeeper server answers at {hosts.partition('/')[0]}" in hub.coordination.words
    answer = await hub.ask(hub.coordination.read, "/a")
    assert isinstance(answer, MetadataFailedError) and "no ZooKeeper server answers" in str(answer)


@pytest.mark.parametrize(
    "hosts", ["", "zk-1", "zk-1:2181", "zk-1:2181/", "/a", "zk-1/a", "zk-1:x/a", "zk-1:2181,/a", "zk-1:2181//a", ":1/a"]
)
def test_an_address_that_is_none_says_how_one_looks(hosts: str) -> None:
    with pytest.raises(ZooKeeperSettingsError, match="as in zk-1:2181,zk-2:2181/sluiceway/orders"):
        ZooKeeperSettings(hosts)


def test_an_address_has_servers_and_a_path() -> None:
    settings = ZooKeeperSettings("zk-1:2181,[::1]:2182/sluiceway/orders")
    assert (settings.servers, settings.root) == ("zk-1:2181,[::1]:2182", "/sluiceway/orders")
