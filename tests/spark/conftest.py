"""One Spark session for all tests that need one, and brokers for it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from pyspark_stomp.wire import Address, Connection
from sluiceway.embedded import EmbeddedBroker, embedded_config
from sluiceway.queues.logs.batches import encode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What Spark starts must be this Python; loop-back, because the name of this machine may lead anywhere.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
# Its processes find the checkout, wherever the tests are started.
ROOT = str(Path(__file__).resolve().parents[2])
os.environ["PYTHONPATH"] = os.pathsep.join([ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real Spark is slow to begin with, and its own code warns."""
    for item in items:
        if item.get_closest_marker("spark") is not None:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(300))
            item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A real session on two cores. A failed task is tried again, as on a cluster."""
    pytest.importorskip("pyspark")
    from pyspark_stomp.local import session as local_session

    session = local_session(
        "sluiceway-tests",
        cores_count=2,
        settings={
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
        log_level="OFF",
    )
    yield session
    for query in session.streams.active:
        query.stop()
    session.stop()


BrokerMaker = Callable[..., EmbeddedBroker]


@pytest.fixture
def make_broker(tmp_path: Path) -> Iterator[BrokerMaker]:
    """Start brokers: `make_broker(port=0, folder="a", **journal)`. One that is stopped can be started again by a second
    call with the same port and folder."""
    with ExitStack() as stack:

        def make(*, port: int = 0, folder: str = "data", **journal: Any) -> EmbeddedBroker:
            config = embedded_config()
            config = attrs.evolve(
                config,
                listeners=(attrs.evolve(config.listeners[0], address=f"127.0.0.1:{port}"),),
                broker=attrs.evolve(config.broker, data_dir=tmp_path / folder),
                store=attrs.evolve(config.store, engine="leveldb"),
                logs=attrs.evolve(config.logs, **journal),
            )
            broker = EmbeddedBroker(config).start()
            stack.callback(broker.stop)
            return broker

        yield make


@pytest.fixture
def broker(make_broker: BrokerMaker) -> EmbeddedBroker:
    """One."""
    return make_broker()


def connected(broker: EmbeddedBroker, *, patience_seconds: float = 20.0) -> Connection:
    """A connection to it."""
    return Connection(Address.parse(broker.address), patience_seconds=patience_seconds)


def fill(
    broker: EmbeddedBroker,
    log: str,
    values: list[bytes],
    *,
    keys: list[bytes] | None = None,
    head: bytes = b"",
    per_batch: int = 100,
) -> None:
    """Append these records, and wait until they are there."""
    with connected(broker) as connection, connection.sender(log) as sender:
        for start in range(0, len(values), per_batch):
            some = values[start : start + per_batch]
            own = None if keys is None else keys[start : start + per_batch]
            sender.send_batches(encode(some, keys=own, head=head), len(some))


def numbers(count: int, start: int = 0) -> list[bytes]:
    """Values that tell which they are."""
    return [b"%d" % number for number in range(start, start + count)]


def until(found: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for it. Polls, because neither Spark nor a broker says so."""
    deadline = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)
