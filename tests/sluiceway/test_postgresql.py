"""A broker process whose messages are in a real PostgreSQL."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from sluiceway.cli.exits import Exit
from tests.interop.raw_client import RawClient
from tests.postgresql_server import Server, server
from tests.sluiceway.broker_process import BrokerProcess

DEADLINE_SECONDS: Final = 20.0

pytestmark = [pytest.mark.interop, pytest.mark.timeout(90)]


@pytest.fixture
def url() -> str:
    return server().new_schema()


@pytest.fixture
def start(tmp_path: Path, url: str) -> Callable[[], BrokerProcess]:
    config = tmp_path / "sluiceway.toml"
    limits = "[[listeners]]\naddress = '127.0.0.1:0'\nlimits = { large_body_bytes = 1048576 }\n"
    config.write_text(f'[store]\nengine = "postgresql"\nurl = "{url}"\n{limits}')

    def starts() -> BrokerProcess:
        return BrokerProcess(tmp_path, "--config", str(config), "--data", str(tmp_path / "data"))

    return starts


def send(client: RawClient, name: str, *, destination: str = "/queue/a") -> None:
    client.send(f"SEND\ndestination:{destination}\npersistent:true\nreceipt:{name}\n\n{name}\0".encode())


def receive(client: RawClient, *names: str) -> None:
    """Get these messages, and acknowledge them."""
    client.send(b"SUBSCRIBE\ndestination:/queue/a\nid:s\nack:client-individual\n\n\0")
    messages = [client.expect("MESSAGE") for _name in names]
    assert [message.body.decode() for message in messages] == list(names)
    for message in messages:
        client.send(f"ACK\nid:{message['ack']}\nreceipt:{message['ack']}\n\n\0".encode())
        assert client.expect("RECEIPT")["receipt-id"] == message["ack"]


def append(client: RawClient, *bodies: str) -> list[int]:
    """Append records to a log; returns their indexes when they are safe."""
    for body in bodies:
        client.send(f"SEND\ndestination:/log/a\nreceipt:{body}\n\n{body}\0".encode())
    receipts = [client.expect("RECEIPT") for _body in bodies]
    assert {receipt["durability"] for receipt in receipts} == {"shared"}
    return [int(receipt["index"]) for receipt in receipts]


def read_log(client: RawClient, count: int, *lines: str) -> list[tuple[int, str]]:
    """Read so many records of the log, and acknowledge them; more that come meanwhile are given back."""
    asked = "\n".join(("SUBSCRIBE", "destination:/log/a", "id:log", "ack:client", *lines))
    client.send(f"{asked}\n\n\0".encode())
    messages = [client.expect("MESSAGE") for _ in range(count)]
    client.send(f"ACK\nid:{messages[-1]['ack']}\nreceipt:read\n\n\0UNSUBSCRIBE\nid:log\nreceipt:end\n\n\0".encode())
    receipts: set[str] = set()
    while receipts < {"read", "end"}:
        frame = client.frame()
        if frame.command == "RECEIPT":
            receipts.add(frame["receipt-id"])
    return [(int(message["index"]), message.body.decode()) for message in messages]


def store_of(broker: BrokerProcess) -> dict[str, Any]:
    with RawClient(broker.address) as client:
        client.connect()
        store: dict[str, Any] = client.report()["store"]
        return store


def wait_until(condition: Callable[[], bool]) -> None:
    until_seconds = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < until_seconds, "it does not come"
        time.sleep(0.05)


def test_what_is_receipted_is_shared_and_there_after_kill_9(start: Callable[[], BrokerProcess]) -> None:
    with start() as broker, RawClient(broker.address) as client:
        client.connect()
        send(client, "one")
        assert client.expect("RECEIPT")["durability"] == "shared"
        assert store_of(broker)["engine"] == "postgresql"
        broker.kill()
    with start() as broker, RawClient(broker.address) as client:
        client.connect()
        receive(client, "one")
        client.send(b"DISCONNECT\nreceipt:bye\n\n\0")
        client.expect("RECEIPT")
        broker.signal(signal.SIGTERM)
        assert broker.wait() == Exit.OK


def test_senders_wait_while_the_database_is_down_and_go_on_by_themselves(start: Callable[[], BrokerProcess]) -> None:
    database: Server = server()
    with start() as broker, RawClient(broker.address) as client:
        client.connect()
        send(client, "one")
        client.expect("RECEIPT")
        append(client, "log one")
        database.stop("immediate")
        try:
            send(client, "two")
            wait_until(lambda: store_of(broker)["state"] == "failing")
            assert "Look whether the server runs" in store_of(broker)["error"]
            send(client, "three")
            for name in ("log two", "log three"):
                send(client, name, destination="/log/a")
        finally:
            database.start()
        assert {client.expect("RECEIPT")["receipt-id"] for _ in range(4)} == {"two", "three", "log two", "log three"}
        wait_until(lambda: store_of(broker)["state"] == "ok")
        receive(client, "one", "two", "three")
        assert read_log(client, 3, "from:earliest") == [(0, "log one"), (1, "log two"), (2, "log three")]


def test_a_database_that_is_stopped_is_told_of_within_seconds(start: Callable[[], BrokerProcess]) -> None:
    """It sends no error: a new connection is tried, which is not answered either."""
    with start() as broker, RawClient(broker.address) as client:
        client.connect()
        send(client, "one")
        client.expect("RECEIPT")
        with server().frozen():
            send(client, "two")
            wait_until(lambda: store_of(broker)["state"] == "failing")
            assert "answers no new connection" in store_of(broker)["error"]
        assert client.expect("RECEIPT")["receipt-id"] == "two"
        wait_until(lambda: store_of(broker)["state"] == "ok")
        receive(client, "one", "two")


def test_a_broker_whose_shard_went_to_another_owner_ends(start: Callable[[], BrokerProcess], url: str) -> None:
    """Idle, too: what it would deliver from memory is not its own any more."""
    from sluiceway.store.postgresql import PostgresqlEngine

    with start() as broker:
        other = PostgresqlEngine(url, epoch=1000)
        assert broker.wait() == Exit.STORE
        assert "has another owner" in broker.log
        other.close()


def test_a_stopped_owner_that_wakes_up_confirms_nothing(start: Callable[[], BrokerProcess], url: str) -> None:
    """A paused virtual machine, say: others took over meanwhile."""
    from sluiceway.store.postgresql import PostgresqlEngine

    with start() as broker, RawClient(broker.address) as client:
        client.connect()
        send(client, "one")
        client.expect("RECEIPT")
        append(client, "log one")
        broker.signal(signal.SIGSTOP)
        other = PostgresqlEngine(url, epoch=1000)
        there = list(other.iterate(b"", b"\xff" * 8))
        send(client, "two")
        send(client, "log two", destination="/log/a")
        broker.signal(signal.SIGCONT)
        assert "RECEIPT" not in [frame.command for frame in client.frames_to_end()]
        assert broker.wait() == Exit.STORE
        assert list(other.iterate(b"", b"\xff" * 8)) == there
        other.close()


def test_logs_and_large_bodies_are_shared_and_there_after_kill_9(start: Callable[[], BrokerProcess]) -> None:
    """Records by index, by time, and for a group that goes on; a body that is larger than any message in memory."""
    body = bytes(range(256)) * (3 << 12)  # 3 MiB
    with start() as broker, RawClient(broker.address) as client:
        client.connect()
        assert append(client, "one", "two") == [0, 1]
        assert read_log(client, 1, "group:g", "from:earliest") == [(0, "one")]
        between_ms = time.time_ns() // 1_000_000 + 1
        wait_until(lambda: time.time_ns() // 1_000_000 > between_ms)
        assert append(client, "three") == [2]
        head = f"SEND\ndestination:/queue/large\npersistent:true\nreceipt:large\ncontent-length:{len(body)}"
        client.send(head.encode() + b"\n\n" + body + b"\0")
        assert client.expect("RECEIPT")["durability"] == "shared"
        broker.kill()
    with start() as broker, RawClient(broker.address) as client:
        client.connect()
        client.send(b"SUBSCRIBE\ndestination:/queue/large\nid:large\n\n\0")
        assert client.expect("MESSAGE").body == body
        assert append(client, "four") == [3]
        assert read_log(client, 2, f"from:time:{between_ms}") == [(2, "three"), (3, "four")]
        assert read_log(client, 4, "from:earliest") == [(0, "one"), (1, "two"), (2, "three"), (3, "four")]
        assert read_log(client, 3, "group:g") == [(1, "two"), (2, "three"), (3, "four")]


def test_a_wrong_url_ends_the_start_with_words(tmp_path: Path, url: str) -> None:
    config = tmp_path / "sluiceway.toml"
    config.write_text('[store]\nengine = "postgresql"\nurl = "postgresql://user:hidden@/nowhere?host=/nowhere"\n')
    with pytest.raises(AssertionError, match="Look whether the server runs") as caught:
        BrokerProcess(tmp_path, "--config", str(config), "--data", str(tmp_path / "data"))
    assert "hidden" not in str(caught.value)
