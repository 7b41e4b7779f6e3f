"""`sluiceway serve --hubs N` as its users meet it: real processes, a real client, real signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import stomp  # type: ignore[import-untyped]

from tests.sluiceway.broker_process import BrokerProcess, command, environment

QUEUES = [f"/queue/q{number}" for number in range(8)]
DEADLINE_SECONDS = 30.0

pytestmark = [pytest.mark.slow, pytest.mark.interop]


class Client(stomp.ConnectionListener):  # type: ignore[misc]
    """A connection, and what it was sent."""

    def __init__(self, address: tuple[str, int], version: str = "1.2") -> None:
        self.changed = threading.Condition()
        self.receipts: set[str] = set()
        self.bodies: list[str] = []
        self.marked: set[str] = set()
        """Bodies of messages that may have been delivered before."""
        self.errors: list[str] = []
        self.is_lost = False
        self.hub = ""
        self.unacknowledged: list[Any] = []
        self.version = version
        connect = {"1.0": stomp.Connection10, "1.1": stomp.Connection11, "1.2": stomp.Connection12}[version]
        beats = {} if version == "1.0" else {"heartbeats": (0, 0)}
        self.connection = connect([address], reconnect_attempts_max=1, **beats)
        self.connection.set_listener("", self)
        self.connection.connect(wait=True)

    def on_connected(self, frame: Any) -> None:
        self.session = frame.headers["session"]
        self.hub = self.session.partition("~")[0]

    def on_receipt(self, frame: Any) -> None:
        with self.changed:
            self.receipts.add(frame.headers["receipt-id"])
            self.changed.notify_all()

    def on_message(self, frame: Any) -> None:
        with self.changed:
            self.bodies.append(frame.body)
            self.unacknowledged.append(frame.headers)
            if "true" in (frame.headers.get("redelivered"), frame.headers.get("possible-duplicate")):
                self.marked.add(frame.body)
            self.changed.notify_all()

    def on_error(self, frame: Any) -> None:
        with self.changed:
            self.errors.append(frame.headers["code"])
            self.changed.notify_all()

    def on_disconnected(self) -> None:
        self.is_lost = True

    def acknowledge_all(self) -> None:
        with self.changed:
            deliveries, self.unacknowledged = self.unacknowledged, []
        for headers in deliveries:
            if self.version == "1.0":
                self.connection.ack(headers["message-id"])
            elif self.version == "1.1":
                self.connection.ack(headers["message-id"], headers["subscription"])
            else:
                self.connection.ack(headers["ack"])

    def send(self, queue: str, body: str, **headers: str) -> None:
        self.connection.send(queue, body, headers={"persistent": "true", "receipt": body, **headers})

    def subscribe_all(self, queues: list[str] = QUEUES) -> None:
        for number, queue in enumerate(queues):
            self.connection.subscribe(queue, id=str(number), ack="auto")

    def until(self, is_so: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(is_so, DEADLINE_SECONDS), (
                len(self.receipts),
                len(self.bodies),
                self.errors,
                self.is_lost,
                self.hub,
            )


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[BrokerProcess]:
    """Two hubs on a new data folder."""
    with BrokerProcess(folder, "--hubs", "2", "--data", str(folder / "data"), *arguments) as supervisor:
        yield supervisor


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Two hubs for all tests that leave them as they are: to start them takes seconds."""
    with serving(tmp_path_factory.mktemp("both"), "--admin", "127.0.0.1:0") as supervisor:
        yield supervisor


@contextmanager
def client_at(supervisor: BrokerProcess, hub: str, version: str = "1.2") -> Iterator[Client]:
    """A client whose connection the kernel has given to this hub: one of many tries."""
    tried: list[Client] = []
    try:
        for _ in range(100):
            tried.append(Client(supervisor.address, version))
            if tried[-1].hub == hub:
                yield tried[-1]
                return
        raise AssertionError(f"a hundred connections, none to {hub}")
    finally:
        for client in tried:
            client.connection.disconnect()


def each_hub_is_reached_alone(client: Client) -> None:
    """At the address that clients are told, for those who go to the owner of a destination."""
    client.connection.subscribe("/temp-queue/where", id="where", ack="auto")
    client.connection.send("/sluiceway/cluster", '{"names": ["/queue/q0"]}', headers={"reply-to": "/temp-queue/where"})
    client.until(lambda: bool(client.bodies))
    told = json.loads(client.bodies[0])
    assert told["hub"] == client.hub and told["homes"][0]["hub"] in ("hub-1", "hub-2")
    for hub in told["hubs"]:
        (url,) = hub["clients"]
        at_hub = Client(("127.0.0.1", int(url.removeprefix("stomp://127.0.0.1:"))))
        assert at_hub.hub == hub["name"]
        at_hub.connection.disconnect()


def lines(supervisor: BrokerProcess, event: str) -> list[dict[str, Any]]:
    said = [json.loads(line) for line in supervisor.log.splitlines() if line.startswith("{")]
    return [line for line in said if line["event"] == event]


def pids(supervisor: BrokerProcess) -> dict[str, int]:
    return {line["hub"]: line["pid"] for line in lines(supervisor, "hub ready")}


def has_shards_again(supervisor: BrokerProcess, hub: str) -> bool:
    """Whether a hub has opened a shard since it was started last."""
    started = max(line["timestamp"] for line in lines(supervisor, "hub starts") if line["hub"] == hub)
    return any(line["hub"] == hub and line["timestamp"] > started for line in lines(supervisor, "shard opened"))


def until(is_so: Callable[[], bool]) -> None:
    end = threading.Event()
    for _ in range(int(DEADLINE_SECONDS / 0.05)):
        if is_so():
            return
        end.wait(0.05)
    raise AssertionError("not in time")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_two_hubs_are_one_broker_and_outlive_a_kill_and_a_rolling_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as supervisor:
        with client_at(supervisor, "hub-1") as sender:
            for queue in QUEUES:
                sender.send(queue, f"first {queue}")
            sender.until(lambda: len(sender.receipts) == len(QUEUES))
            each_hub_is_reached_alone(sender)
            with client_at(supervisor, "hub-2") as receiver:
                receiver.subscribe_all()
                receiver.until(lambda: len(receiver.bodies) == len(QUEUES))
            assert sorted(receiver.bodies) == sorted(sender.receipts)

            killed = pids(supervisor)["hub-2"]
            os.kill(killed, signal.SIGKILL)
            for queue in QUEUES:
                sender.send(queue, f"second {queue}")
            sender.until(lambda: len(sender.receipts) == 2 * len(QUEUES))
            assert not sender.is_lost and not sender.errors
            until(lambda: pids(supervisor)["hub-2"] != killed)  # the other hub has answered meanwhile

        before = pids(supervisor)
        supervisor.signal(signal.SIGHUP)
        until(lambda: bool(lines(supervisor, "rolling restart done")))
        assert not set(before.values()) & set(pids(supervisor).values())
        receiver = Client(supervisor.address)
        receiver.subscribe_all()
        wanted = {f"second {queue}" for queue in QUEUES}
        receiver.until(lambda: wanted <= set(receiver.bodies))
        # What the kill has caught between its delivery and the next batch to the disk comes again, and says so.
        assert set(receiver.bodies) - wanted <= receiver.marked
        assert len(receiver.bodies) == len(set(receiver.bodies))
        receiver.connection.disconnect()

        hubs = pids(supervisor).values()
        supervisor.signal(signal.SIGTERM)
        assert supervisor.wait() == 0
        assert not any(is_alive(pid) for pid in hubs)


@pytest.mark.timeout(240)
def test_nothing_confirmed_is_lost_while_owners_are_killed_and_stopped_under_load(tmp_path: Path) -> None:
    """A hub that stands still is killed when its session has ended: the lock of its shards' folders ends with it."""
    with serving(tmp_path) as supervisor, client_at(supervisor, "hub-1") as client:
        for number, queue in enumerate(QUEUES):
            client.connection.subscribe(queue, id=str(number), ack="client-individual")
        is_over = threading.Event()
        sent: list[str] = []

        def load() -> None:
            while not is_over.wait(0.01):
                client.send(QUEUES[len(sent) % len(QUEUES)], f"{len(sent)}")
                sent.append(f"{len(sent)}")
                client.acknowledge_all()

        sending = threading.Thread(target=load)
        sending.start()
        try:
            until(lambda: has_shards_again(supervisor, "hub-2"))
            os.kill(pids(supervisor)["hub-2"], signal.SIGKILL)
            confirmed_count = len(client.receipts)
            client.until(lambda: len(client.receipts) > confirmed_count + 10 * len(QUEUES))
            until(lambda: len(lines(supervisor, "hub starts")) == 3 and has_shards_again(supervisor, "hub-2"))
            os.kill(pids(supervisor)["hub-2"], signal.SIGSTOP)
            until(lambda: bool(lines(supervisor, "hub hangs: it is killed")))
            (killed,) = lines(supervisor, "hub hangs: it is killed")
            assert killed["silent_seconds"] < 20, "its session was over, and others wait for its shards"
        finally:
            is_over.set()
            sending.join()
        client.until(lambda: client.receipts >= set(sent))
        until(lambda: client.acknowledge_all() or len(set(client.bodies)) == len(sent))
        assert not client.errors and not client.is_lost
        twice = {body for body in client.bodies if client.bodies.count(body) > 1}
        assert twice <= client.marked


def test_acks_of_every_version_reach_the_hub_that_has_delivered(both: BrokerProcess) -> None:
    """Both hubs share the data folder, and so the first part of message-ids."""
    for version in ("1.0", "1.1", "1.2"):
        acks_reach_the_hub_that_has_delivered(both, version)


def acks_reach_the_hub_that_has_delivered(supervisor: BrokerProcess, version: str) -> None:
    queues = [f"{queue}.{version}" for queue in QUEUES]
    with client_at(supervisor, "hub-1", version) as client:
        for queue in queues:
            for number in range(3):
                client.send(queue, f"{number} {queue}")
        client.until(lambda: len(client.receipts) == 3 * len(queues))
        for number, queue in enumerate(queues):
            client.connection.subscribe(queue, id=str(number), ack="client-individual", headers={"prefetch-count": "1"})
        for count in range(len(queues), 3 * len(queues) + 1, len(queues)):
            client.until(lambda count=count: len(client.bodies) == count)
            client.acknowledge_all()
        for number in range(len(queues)):
            client.connection.unsubscribe(id=str(number), headers={"receipt": f"gone {number}"})
        client.until(lambda: sum(receipt.startswith("gone") for receipt in client.receipts) == len(queues))
        with client_at(supervisor, "hub-2", version) as second:
            second.subscribe_all(queues)
            second.send(queues[0], "last")
            second.until(lambda: "last" in second.bodies)
            assert second.bodies == ["last"]


def stat(supervisor: BrokerProcess, *arguments: str) -> str:
    url = f"stomp://{supervisor.address[0]}:{supervisor.address[1]}"
    done = subprocess.run(
        command("stat", "--url", url, *arguments),
        env=environment(), capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=True,
    )  # fmt: skip
    return done.stdout


def test_stat_shows_both_hubs_and_says_which_one_is_missing(both: BrokerProcess) -> None:
    with client_at(both, "hub-1") as sender:
        for queue in QUEUES:
            sender.send(queue, f"first {queue}")
        sender.until(lambda: len(sender.receipts) == len(QUEUES))
        report = json.loads(stat(both, "--json"))
        assert {row["pid"] for row in report["hubs"]} == set(pids(both).values())
        assert {row["hub"] for row in report["destinations"] if row["name"] in QUEUES} == {"hub-1", "hub-2"}
        assert sum(len(row["shards"]) for row in report["hubs"]) == 32
        clients = [row for row in report["connections"] if row["session"] == sender.session]
        assert [(row["hub"], row["in_count"]) for row in clients] == [("hub-1", len(QUEUES))]
        stopped = pids(both)["hub-2"]
        os.kill(stopped, signal.SIGSTOP)
        try:
            # Connections that the kernel gives to the hub that stands still get no answer: ask the other one.
            sender.connection.subscribe("/temp-queue/stat", id="stat", ack="auto")
            sender.connection.send("/sluiceway/stat", "", headers={"reply-to": "/temp-queue/stat"})
            sender.until(lambda: bool(sender.bodies))
        finally:
            os.kill(stopped, signal.SIGCONT)
        report = json.loads(sender.bodies[0])
        assert [row["missing"] for row in report["hubs"]] == [None, "it has not answered within 1 s"]
    shown = stat(both)
    assert "Hubs: 2" in shown and "hub-2" in shown and "is missing" not in shown


def test_one_admin_port_answers_for_both_hubs_even_while_one_stands(both: BrokerProcess) -> None:
    with client_at(both, "hub-1") as sender:
        until(lambda: len(lines(both, "admin port ready")) == 2)
        (admin_url,) = {url for line in lines(both, "admin port ready") for url in line["urls"]}

        def get(path: str, **query: str) -> Any:
            # Each request may come to another hub.
            response = httpx.get(f"{admin_url}{path}", params=query, timeout=DEADLINE_SECONDS)
            assert response.status_code == 200, response.text
            return response

        for queue in QUEUES:
            sender.send(queue, f"first {queue}")
        sender.until(lambda: len(sender.receipts) == len(QUEUES))
        for _ in range(5):
            rows = get("/api/v1/destinations").json()["items"]
            assert {row["name"] for row in rows} >= set(QUEUES)
            assert {row["hub"] for row in rows if row["name"] in QUEUES} == {"hub-1", "hub-2"}
            page = get("/metrics").text
            assert all(f'sluiceway_hub_up{{hub="{hub}"}} 1.0' in page for hub in ("hub-1", "hub-2"))
        token = get("/api/v1/session").json()["csrf"]  # of either hub, and good at both
        for queue in QUEUES:
            for action in ("pause", "resume"):
                response = httpx.post(
                    f"{admin_url}/api/v1/actions/{action}",
                    json={"name": queue}, headers={"X-Sluiceway-CSRF": token}, timeout=DEADLINE_SECONDS,
                )  # fmt: skip
                assert response.status_code == 200, response.text
        operators_move_shards(admin_url)
        stopped = pids(both)["hub-2"]
        os.kill(stopped, signal.SIGSTOP)
        try:
            for _ in range(3):  # new connections are taken by the other hub
                found = get("/api/v1/destinations").json()
                assert found["missing"] == {"hub-2": "it has not answered within 1 s"}
            assert 'sluiceway_hub_up{hub="hub-2"} 0.0' in get("/metrics").text
        finally:
            os.kill(stopped, signal.SIGCONT)


def operators_move_shards(admin_url: str) -> None:
    """Move a shard, drain a hub and have it take shards again, from the command line."""

    def cluster(*arguments: str, code: int = 0) -> str:
        ended = subprocess.run(
            command("cluster", *arguments, "--admin-url", admin_url),
            env=environment(), capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False,
        )  # fmt: skip
        assert ended.returncode == code, ended.stderr
        return ended.stdout if code == 0 else ended.stderr

    shards = json.loads(cluster("status", "--json"))["shards"]
    shard = next(row["shard"] for row in shards if row["hub"] == "hub-1")
    assert f"Shard {shard} is open at hub-2." in cluster("move", str(shard), "hub-2", "--yes")
    assert f"chosen by operators: {shard} at hub-2" in cluster("status")
    assert "no shard 99" in cluster("move", "99", "hub-2", "--yes", code=5)
    assert "hub-9" in cluster("move", "1", "hub-9", "--yes", code=5)
    assert "hub-2 has no shard, and all are open elsewhere." in cluster("drain", "hub-2", "--yes")
    assert "hub-1 has 0-31" in cluster("status")
    assert "hub-2 takes shards again" in cluster("resume", "hub-2")


def test_hubs_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    with serving(tmp_path) as supervisor:
        hubs = pids(supervisor).values()
        supervisor.kill()
        until(lambda: not any(is_alive(pid) for pid in hubs))
        assert {line["hub"] for line in lines(supervisor, "the supervisor of the hubs is gone: this hub stops")} == {
            "hub-1",
            "hub-2",
        }


@pytest.mark.parametrize(
    ("arguments", "shards", "code", "words"),
    [
        (["--hubs", "none"], 0, 2, "'none' is no number of hubs: 1 to 64, or auto"),
        (["--hubs", "0"], 0, 2, "'0' is no number of hubs"),
        (["--hubs", "2", "--config", "memory.toml"], 0, 2, "--hubs needs a data folder, and store.engine is 'memory'"),
        (["--hubs", "2", "--data", "old"], 1, 6, "is the data folder of a broker with one shard, and can't be divided"),
        (["--hubs", "64", "--data", "divided"], 4, 2, "has 4 shards, too few for 64 hubs: take at most 4"),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, arguments: list[str], shards: int, code: int, words: str) -> None:
    """The data folder is there before, with so many shards."""
    (tmp_path / "memory.toml").write_text('[store]\nengine = "memory"\n', encoding="utf-8")
    if shards:
        made = command("cluster", "init", "--data", arguments[-1], "--shards", str(shards))
        subprocess.run(made, cwd=tmp_path, env=environment(), check=True, capture_output=True)
    ended = subprocess.run(
        command("serve", "--listen", "127.0.0.1:0", *arguments),
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False,
    )  # fmt: skip
    assert ended.returncode == code, ended.stderr
    assert words in ended.stderr


def test_neither_port_nor_data_folder_is_shared_with_another_supervisor(both: BrokerProcess, tmp_path: Path) -> None:
    def second(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command("serve", "--hubs", "2", *arguments),
            cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False,
        )  # fmt: skip

    host, port = both.address
    port_taken = second("--listen", f"{host}:{port}", "--data", "other")
    folder_taken = second("--listen", "127.0.0.1:0", "--data", str(both.log_path.parent / "data"))
    assert port_taken.returncode == 3, port_taken.stderr
    assert f"Port {port} is taken by another program" in port_taken.stderr
    assert folder_taken.returncode == 6, folder_taken.stderr
    assert "is used by another process" in folder_taken.stderr or "in use" in folder_taken.stderr, folder_taken.stderr
