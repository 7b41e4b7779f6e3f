"""Over TLS, as a user who may do what the job needs: docs/spark.md says which permissions that takes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from pyspark_stomp.wire import Address, Connection
from sluiceway.client.errors import CannotConnectError, RefusedError
from sluiceway.embedded import EmbeddedBroker
from sluiceway.queues.logs.batches import encode
from tests.network.authority import strange_authority, write_authority
from tests.spark.conftest import numbers
from tests.spark.cutting_proxy import CuttingProxy
from tests.spark.queries import Query, rows_of
from tests.spark.secured import PASSCODE, USER, address_of, secured_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = "root:root@"
QUOTED = f"{USER}:{quote(PASSCODE)}"
LARGE = [b"%08d" % number * 64 for number in range(4000)]
"""Some TLS records each batch."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with secured_broker(tmp_path) as broker:
        yield broker


def connected(broker: EmbeddedBroker, folder: Path, who: str = ROOT) -> Connection:
    return Connection(Address.parse(address_of(broker, folder, who)), patience_seconds=0.0)


def fill(broker: EmbeddedBroker, folder: Path, log: str, values: list[bytes]) -> None:
    with connected(broker, folder) as connection, connection.sender(log) as sender:
        for start in range(0, len(values), 500):
            some = values[start : start + 500]
            sender.send_batches(encode(some), len(some))


def test_records_come_and_go_over_tls(broker: EmbeddedBroker, tmp_path: Path) -> None:
    fill(broker, tmp_path, "/log/in", LARGE)
    with connected(broker, tmp_path) as connection:
        parts = list(connection.read_batches("/log/in", 0, len(LARGE), batch_bytes=100_000))
    assert [bytes(value) for part in parts for value in part.values()] == LARGE  # type: ignore[union-attr]


def test_a_broker_with_another_certificate_is_not_spoken_to(broker: EmbeddedBroker, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.pem"
    strange_authority().cert_pem.write_to_path(str(stranger))
    address = Address.parse(f"stomp+ssl://{ROOT}localhost:{broker.port}?ca={stranger}")
    with (
        Connection(address, patience_seconds=0.0) as connection,
        pytest.raises(CannotConnectError, match="not trusted"),
    ):
        connection.request("log/list")


def test_who_may_only_read_is_told_what_is_missing(broker: EmbeddedBroker, tmp_path: Path) -> None:
    fill(broker, tmp_path, "/log/in", numbers(3))
    fill(broker, tmp_path, "/log/secret", numbers(3))
    with connected(broker, tmp_path, f"{QUOTED}@") as connection:
        assert connection.request("log/size", log="/log/in")["size"] == 3
        assert [each["log"] for each in connection.request("log/list")["logs"]] == ["/log/in"]
        with pytest.raises(RefusedError, match="no permission to receive on /log/secret"):
            connection.request("log/size", log="/log/secret")


def test_a_writer_with_no_more_than_these_permissions_goes_on_after_lost_connections(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """It stages and commits: without `receive`, and without `admin`."""
    proxy = CuttingProxy((broker.host, broker.port), [("up", 9_000), ("up", 9_000)])
    port = proxy.address.rpartition(":")[2]
    address = f"stomp+ssl://{QUOTED}@localhost:{port}?ca={write_authority(tmp_path)}"
    with (
        Connection(Address.parse(address), patience_seconds=20.0) as connection,
        connection.stages(map("/log/sluiceway.stage.{}".format, count()).__next__) as sender,
    ):
        for start in range(0, 3000, 100):
            sender.send_batches(encode(numbers(100, start)), 100)
        assert sender.finish() == 3000
        parts = [
            {"stage": stage.name, "to": "/log/out", "count": stage.count, "whole": stage.whole}
            for stage in sender.stages
            if stage.count
        ]
        assert connection.request("sink/commit", query="pipeline", batch=0, parts=parts)["published"]
    assert proxy.connections_count > 2
    proxy.close()
    with connected(broker, tmp_path) as connection:
        read = list(connection.read_batches("/log/out", 0, 3000))
    assert [bytes(value) for part in read for value in part.values()] == numbers(3000)  # type: ignore[union-attr]


@pytest.mark.spark
@pytest.mark.spark_ci
def test_a_stream_from_log_to_log_over_tls_as_a_user_with_just_these_permissions(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Exactly once."""
    fill(broker, tmp_path, "/log/in", numbers(400))
    options = {"brokers": address_of(broker, tmp_path), "login": USER, "password": PASSCODE}
    for _ in range(2):
        query = (
            spark.readStream.format("stomp")
            .options(**options, subscribe="/log/in", startingOffsets="earliest", groupId="pipeline")
            .load()
            .selectExpr("value")
            .writeStream.format("stomp")
            .options(**options, topic="/log/out", checkpointLocation=str(tmp_path / "writes"))
            .queryName("pipeline")
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(200)
    reading = Query(
        spark,
        tmp_path / "reads",
        brokers=address_of(broker, tmp_path, ROOT),
        subscribe="/log/out",
        startingOffsets="earliest",
    )
    assert [rows for _batch, rows in reading.run()] == [rows_of("/log/out", 0, 0, 400)]
    assert sorted(map(int, reading.values)) == list(range(400))


@pytest.mark.spark
def test_queues_are_claimed_browsed_and_written_with_just_their_permissions(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """A queue is claimed from its first message on: before that it is not there."""
    options = {"brokers": address_of(broker, tmp_path), "login": USER, "password": PASSCODE}

    def claim() -> None:
        query = (
            spark.readStream.format("stomp")
            .options(**options, subscribe="/queue/in", groupId="pipeline")
            .load()
            .selectExpr("value")
            .writeStream.format("stomp")
            .options(**options, topic="/log/out", checkpointLocation=str(tmp_path / "claims"))
            .queryName("claims")
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(200)

    claim()
    with connected(broker, tmp_path) as connection:
        for queue in ("/queue/in", "/queue/seen"):
            with connection.sender(queue) as sender:
                for number in range(7):
                    sender.send(b"%d" % number, [("persistent", "true")])
    claim()
    with connected(broker, tmp_path) as connection:
        (batch,) = connection.read_batches("/log/out", 0, 7)
        assert sorted(map(bytes, batch.values())) == numbers(7)  # type: ignore[union-attr]
    seen = spark.read.format("stomp").options(**options, subscribe="/queue/seen").load()
    assert sorted(bytes(row.value) for row in seen.collect()) == numbers(7)
    seen.selectExpr("value").write.format("stomp").options(**options, topic="/queue/out").mode("append").save()
    written = (
        spark.read.format("stomp").options(brokers=address_of(broker, tmp_path, ROOT), subscribe="/queue/out").load()
    )
    assert sorted(bytes(row.value) for row in written.collect()) == numbers(7)
