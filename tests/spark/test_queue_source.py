"""Queues as a stream with real Spark: everything arrives, nothing is left unacknowledged, and with a sink that knows
its batches everything arrives once, also over `kill -9` of all of Spark and over restarts of the broker.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sluiceway.embedded import EmbeddedBroker
from tests.spark.conftest import ROOT, BrokerMaker, connected, fill, numbers
from tests.spark.killed_query import GROUP, POINTS, both_sources
from tests.spark.test_sink import run_available, stages, values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def send(broker: EmbeddedBroker, bodies: list[bytes], *, queue: str = "/queue/in") -> None:
    """Messages that outlive the broker."""
    with connected(broker) as connection, connection.sender(queue) as sender:
        for body in bodies:
            sender.send(body, [("persistent", "true"), ("key", f"k{body.decode()}"), ("colour", "red")])


def claims(broker: EmbeddedBroker, *, queue: str = "/queue/in", group: str = GROUP) -> dict[str, Any]:
    with connected(broker) as connection:
        return connection.request("claim/state", queue=queue, group=group)


def stream(spark: SparkSession, broker: EmbeddedBroker, **options: str) -> DataFrame:
    return (
        spark.readStream.format("stomp").options(brokers=broker.address, groupId=GROUP, **options).load("/queue/in")
    )  # fmt: skip


def _is_at(broker: EmbeddedBroker, number: int) -> bool:
    return bool(claims(broker)["acked"] >= number)


def until(found: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for it. Polls, because Spark says nothing by itself."""
    deadline = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)


def test_available_now_takes_all_in_portions_with_all_columns(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    send(broker, numbers(250))
    rows = stream(spark, broker, includeHeaders="true", maxOffsetsPerTrigger="100", minPartitions="3")
    taken: list[Any] = []

    def keep(batch: DataFrame, _number: int) -> None:
        taken.append((batch.rdd.getNumPartitions(), batch.collect()))

    query = (
        rows.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(120)
    assert [len(found) for _partitions, found in taken] == [100, 100, 50]
    assert {partitions for partitions, _found in taken} == {3}
    found = [row for _partitions, rows in taken for row in rows]
    assert sorted(int(bytes(row.value)) for row in found) == list(range(250))
    assert all(row.key == f"k{bytes(row.value).decode()}" for row in found)
    assert {(row.topic, row.partition, row.headers["colour"]) for row in found} == {("/queue/in", 0, "red")}
    assert len({row.message_id for row in found}) == 250
    state = claims(broker)
    assert (state["claims"], state["waiting"], state["again"]) == ([], 0, 0)


def test_an_idle_query_leaves_nothing_unacknowledged(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    send(broker, numbers(10))
    query = (
        stream(spark, broker).select("value").writeStream.format("stomp")
        .options(brokers=broker.address, topic="/log/out", checkpointLocation=str(tmp_path)).start()
    )  # fmt: skip
    try:
        until(lambda: claims(broker)["acked"] >= 1 and not claims(broker)["claims"])
        send(broker, numbers(10, 10))
        until(lambda: claims(broker)["acked"] >= 2 and not claims(broker)["claims"])
    finally:
        query.stop()
    assert sorted(map(int, values(broker, "/log/out"))) == list(range(20))


def test_a_query_lives_through_restarts_of_the_broker(
    spark: SparkSession, make_broker: BrokerMaker, tmp_path: Path
) -> None:
    """It is delayed by them, and no more: source and sink go on where they were."""
    broker = make_broker()
    port = int(broker.address.rpartition(":")[2])
    send(broker, numbers(300))
    query = (
        stream(spark, broker, maxOffsetsPerTrigger="50").select("value").writeStream.format("stomp")
        .options(brokers=broker.address, topic="/log/out", checkpointLocation=str(tmp_path)).start()
    )  # fmt: skip
    try:
        for round_number in range(2):
            until(partial(_is_at, broker, 1 + 3 * round_number))
            broker.stop()
            time.sleep(0.5)
            broker = make_broker(port=port)
            send(broker, numbers(100, 300 + 100 * round_number))
        until(lambda: claims(broker)["waiting"] == 0 and not claims(broker)["claims"], 120)
        assert query.isActive
    finally:
        query.stop()
    assert sorted(map(int, values(broker, "/log/out"))) == list(range(500))


def test_released_claims_come_again_in_a_later_batch(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """A query that was away for longer than its claims live: nothing is lost."""
    send(broker, numbers(30))
    with connected(broker) as connection:  # a planner that died when it had claimed
        connection.request("claim/claim", queue="/queue/in", group=GROUP, claim=1, max=20)
        connection.request("claim/release", queue="/queue/in", group=GROUP)
    run_available(stream(spark, broker).select("value"), tmp_path, brokers=broker.address, topic="/log/out")
    assert sorted(map(int, values(broker, "/log/out"))) == list(range(30))
    assert not claims(broker)["claims"]


def test_a_group_needs_a_name(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    rows = spark.readStream.format("stomp").option("brokers", broker.address)
    with pytest.raises(Exception, match="option groupId is missing"):
        run_available(rows.load("/queue/in").select("value"), tmp_path, brokers=broker.address, topic="/log/out")


@pytest.mark.parametrize("point", POINTS)
def test_after_kill_9_of_spark_every_row_is_there_once(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path, point: str
) -> None:
    """Log and queue into a log: in the sink, before its commit, and behind it, before Spark knows of it."""
    fill(broker, "/log/in", numbers(450))
    send(broker, numbers(450, 1000))
    checkpoint = tmp_path / "point"
    killed = subprocess.run(
        [sys.executable, "-m", "tests.spark.killed_query", broker.address, str(checkpoint), point, "2"],
        cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert killed.returncode != 0
    assert (checkpoint / "offsets" / "2").exists(), killed.stderr[-2000:]
    assert not (checkpoint / "commits" / "2").exists()
    before = len(values(broker, "/log/out"))
    assert before == (600 if point == "behind the commit" else 400)
    run_available(both_sources(spark, broker.address), checkpoint, brokers=broker.address, topic="/log/out")
    assert sorted(map(int, values(broker, "/log/out"))) == [*range(450), *range(1000, 1450)]
    state = claims(broker)
    assert (state["claims"], state["waiting"], state["again"]) == ([], 0, 0)
    assert len(stages(broker)) <= 4, "what the killed tasks had begun goes after a day"
