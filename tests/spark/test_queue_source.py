"""Queues as a stream with real Spark: everything arrives, nothing is left unacknowledged, and with a sink that knows
its batches everything arrives once, also over `kill -9` of all of Spark and over restarts of the broker.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sluiceway.embedded import EmbeddedBroker
from tests.spark.conftest import BrokerMaker, connected, fill, numbers, until
from tests.spark.killed_query import GROUP, POINTS, KilledQuery
from tests.spark.test_sink import run_available, stages, values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

POINTS_OF_CI = ("before the offsets", "behind the commit")


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
    assert all(row.key == b"k" + row.value for row in found)
    assert {(row.topic, row.partition, row.headers["colour"]) for row in found} == {("/queue/in", 0, "red")}
    assert len({row.message_id for row in found}) == 250
    state = claims(broker)
    assert (state["claims"], state["waiting"], state["again"]) == ([], 0, 0)


@pytest.mark.spark_ci
def test_a_claim_that_is_read_twice_and_by_tasks_that_fail_has_the_same_messages(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """`orderBy` looks at its input twice; then a first attempt of a task dies in the middle."""
    send(broker, numbers(300))
    found: list[list[int]] = []

    def fail_once(rows: Iterable[Any]) -> Iterable[int]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for number, row in enumerate(rows):
            if number == 40 and context.attemptNumber() == 0:
                raise RuntimeError("the first attempt fails in the middle")
            yield int(bytes(row.value))

    def keep(batch: DataFrame, _number: int) -> None:
        found.append([int(bytes(row.value)) for row in batch.orderBy("offset").collect()])
        found.append(sorted(batch.rdd.mapPartitions(fail_once).collect()))

    query = (
        stream(spark, broker, minPartitions="3").writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(120)
    assert found == [list(range(300))] * 2


@pytest.mark.spark_ci
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


@pytest.mark.parametrize(
    "point",
    # For the others continuous integration has no time: each starts another Spark.
    [pytest.param(point, marks=[pytest.mark.spark_ci] if point in POINTS_OF_CI else []) for point in POINTS],
)
def test_after_kill_9_at_any_point_of_a_batch_every_row_is_there_once(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path, point: str
) -> None:
    """Log and queue into a log, killed in the third batch."""
    fill(broker, "/log/in", numbers(450))
    send(broker, numbers(450, 1000))
    checkpoint = tmp_path / "point"
    query = KilledQuery(broker.address, str(checkpoint))
    said = query.die(point, 2)
    assert (checkpoint / "commits" / "1").exists(), said[-2000:]
    assert (checkpoint / "offsets" / "2").exists() == (point != "before the offsets")
    assert not (checkpoint / "commits" / "2").exists()
    assert len(claims(broker)["claims"]) == 1, "it was made, and not acknowledged"
    before = values(broker, "/log/out")
    assert len(before) == (600 if point == "behind the commit" else 400)
    run_available(query.rows(spark), checkpoint, brokers=broker.address, topic="/log/out")
    after = values(broker, "/log/out")
    assert after[: len(before)] == before
    assert sorted(map(int, after)) == [*range(450), *range(1000, 1450)]
    state = claims(broker)
    assert (state["claims"], state["waiting"], state["again"]) == ([], 0, 0)
    assert len(stages(broker)) <= 4, "what the killed tasks had begun goes after a day"


def test_latest_means_the_same_after_kill_9_before_the_first_commit(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """First before Spark has written anything, then behind the offsets of its first batch."""
    fill(broker, "/log/in", numbers(100))
    checkpoint = tmp_path / "point"
    query = KilledQuery(broker.address, str(checkpoint), source="log", starting="latest")
    query.die("before the offsets", 0)
    assert not (checkpoint / "offsets" / "0").exists()
    fill(broker, "/log/in", numbers(50, 100))
    query.die("in the sink", 0)
    assert (checkpoint / "offsets" / "0").exists()
    assert not (checkpoint / "commits" / "0").exists()
    fill(broker, "/log/in", numbers(30, 150))
    run_available(query.rows(spark), checkpoint, brokers=broker.address, topic="/log/out")
    assert sorted(map(int, values(broker, "/log/out"))) == list(range(100, 180))
