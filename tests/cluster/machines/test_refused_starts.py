"""Hubs of several machines that can't start, or wait: what `sluiceway serve` says, and with which exit code."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from sluiceway.cli.exits import Exit
from sluiceway.cluster.coordination.messages import hub_of
from sluiceway.cluster.coordination.zookeeper_once import ZooKeeperOnce
from sluiceway.cluster.founding import found_cluster, zookeeper_settings
from tests.cluster.coordination.zookeeper_world import ZooKeeperServer, free_port
from tests.cluster.machines.places import Place
from tests.interop.raw_client import RawClient, frame
from tests.network import authority
from tests.postgresql_server import PASSWORD_USER, server
from tests.sluiceway.broker_process import BrokerProcess, command, environment

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(120)]
DEADLINE_SECONDS = 60.0


@pytest.fixture
def place(zookeeper_server: ZooKeeperServer, tmp_path: Path) -> Place:
    return Place(zookeeper_server, tmp_path)


IMPATIENT: Final = """
from sluiceway.cluster.coordination import zookeeper_once
zookeeper_once.CONNECT_SECONDS = 1.0
from sluiceway.cli import main
main(prog_name="sluiceway")
"""
"""The command line, which waits a second for a ZooKeeper server to answer, and not ten."""


def refused(file: Path, *arguments: str, is_patient: bool = True) -> tuple[int, str]:
    """Start a hub that is to end by itself; returns exit code and words."""
    run = command("serve", "--config", str(file), *arguments)
    if not is_patient:
        run[1:3] = ["-c", IMPATIENT]
    ended = subprocess.run(run, env=environment(), capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert "Traceback" not in ended.stderr
    return ended.returncode, ended.stderr


def until(is_so: Callable[[], bool]) -> None:
    end = threading.Event()
    for _ in range(int(DEADLINE_SECONDS / 0.05)):
        if is_so():
            return
        end.wait(0.05)
    raise AssertionError("not in time")


def test_a_path_without_a_cluster(place: Place) -> None:
    code, said = refused(place.file())
    assert code == Exit.USAGE
    assert f"there is no cluster at {place.servers}{place.root} yet: make it with `sluiceway cluster init`" in said


def test_zookeeper_that_is_gone(place: Place) -> None:
    """Its supervisor starts the hub again, as with a database that is gone."""
    gone = f"127.0.0.1:{free_port()}"
    code, said = refused(place.file(coordination=f"{gone}{place.root}"), is_patient=False)
    assert code == Exit.CONNECT
    assert f"no ZooKeeper server answers at {gone} within 1 s: look whether they run" in said


def test_a_database_that_is_gone_and_one_that_refuses_the_password(place: Place) -> None:
    found_cluster(place.config(), name="", shards_count=8)
    code, said = refused(place.file(store={"url": f"postgresql://127.0.0.1:{free_port()}/sluiceway"}))
    assert code == Exit.STORE
    assert "connecting failed" in said
    url = f"postgresql://{PASSWORD_USER}:wrong-word@/postgres?host={server().folder}"
    code, said = refused(place.file(store={"url": url}))
    assert code == Exit.STORE
    assert "Give the right password" in said and "wrong-word" not in said


def test_a_secret_that_is_missing(place: Place) -> None:
    found_cluster(place.config(), name="", shards_count=8)
    (place.folder / "secret").unlink()
    code, said = refused(place.file())
    assert code == Exit.USAGE
    assert "secret can't be read, and cluster.secret_file names it: No such file" in said


def test_one_hub_of_a_cluster_and_several_of_a_host_are_two_things(place: Place) -> None:
    code, said = refused(place.file(), "--hubs", "2")
    assert code == Exit.USAGE
    assert "--hubs starts several hubs, and cluster.hub in the configuration is the name of one" in said


def test_a_hub_tells_where_others_reach_it(place: Place) -> None:
    """In the list of live hubs, for hubs and for clients."""
    found_cluster(place.config(), name="", shards_count=2)
    url = "stomp://hub-1.example.org:61613"
    changes = {"advertise": "hub-1.example.org:61612", "advertise_clients": url, "weight": 2}
    with BrokerProcess(place.folder, "--config", str(place.file(**changes)), listen=None) as hub:
        with ZooKeeperOnce(zookeeper_settings(place.config().cluster)) as zookeeper:
            until(lambda: zookeeper.read("/hubs/hub-1") is not None)
            found = hub_of(json.loads(zookeeper.read("/hubs/hub-1") or b""))
        assert (found.address, found.clients, found.weight) == ("hub-1.example.org:61612", url, 2)
        hub.process.terminate()
        assert hub.wait() == 0


def test_hubs_with_certificates_are_one_broker(place: Place) -> None:
    """Without a secret: each queue is at one of both, and both serve all."""
    found_cluster(place.config(), name="", shards_count=4)
    queues = [f"/queue/{number}" for number in range(8)]
    with ExitStack() as stack:
        hubs = []
        for name in ("hub-1", "hub-2"):
            folder = place.folder / f"{name} at work"
            folder.mkdir()
            tls = {
                "certificate": str(authority.write(authority.authority().issue_cert(name), folder)),
                "client_ca": str(authority.write_authority(folder)),
                "client_certificates": "required",
            }
            file = str(place.file(name, secret_file="none", tls=tls))
            hubs.append(stack.enter_context(BrokerProcess(folder, "--config", file, listen=None)))
        until(lambda: all("link opened" in hub.log for hub in hubs))
        until(lambda: sum(hub.log.count("shard opened") for hub in hubs) >= 4)
        sender, receiver = (stack.enter_context(RawClient(hub.address)) for hub in hubs)
        for client in (sender, receiver):
            client.connect()
        for queue in queues:
            sender.send(frame("SEND", queue.encode(), destination=queue, persistent="true", receipt=queue))
        assert {sender.expect("RECEIPT")["receipt-id"] for _ in queues} == set(queues)
        for queue in queues:
            receiver.send(frame("SUBSCRIBE", destination=queue, id=queue, ack="auto"))
        assert {receiver.expect("MESSAGE").body.decode() for _ in queues} == set(queues)


def test_a_second_hub_of_one_name_waits_and_the_first_one_serves_on(place: Place) -> None:
    """The second one says why. When the first one leaves, it takes its place."""
    found_cluster(place.config(), name="", shards_count=2)
    file = place.file()
    with BrokerProcess(tmp := place.folder, "--config", str(file), listen=None) as first:
        until(lambda: first.log.count("shard opened") == 2)
        other = place.file("hub-1", store={}).rename(tmp / "other.toml")
        other.write_text(other.read_text().replace(str(tmp / "hub-1"), str(tmp / "other data")))
        with BrokerProcess(tmp, "--config", str(other), listen=None) as second:
            until(lambda: "is in the cluster already" in second.log)
            assert "every hub needs a name of its own" in second.log
            assert "shard opened" not in second.log
            first.process.terminate()
            assert first.wait() == 0
            until(lambda: second.log.count("shard opened") == 2)
            second.process.terminate()
            assert second.wait() == 0
