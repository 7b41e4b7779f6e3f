"""A streaming query whose hubs are killed and paused, and whose shards move: real Spark, real hub processes."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyspark_stomp.wire import Address, Connection, Gap
from sluiceway.queues.logs.batches import encode
from tests.sluiceway.hub_processes import Hubs
from tests.spark.conftest import numbers, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

EACH_COUNT = 400
PER_BATCH_COUNT = 100


def test_every_row_is_there_once_though_owners_die_in_the_middle_of_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A queue and two logs into two logs. In the midst of one micro-batch after the other a shard that is written is
    moved by an operator, the hub dies that has the queue and a log that is written, and one stands still for a moment.
    """
    from pyspark.sql.functions import udf

    with Hubs(tmp_path) as hubs:
        wanted = {
            name: numbers(EACH_COUNT, start)
            for name, start in (("/queue/in", 0), ("/log/in", 10_000), ("/log/also", 20_000))
        }
        for name, values in wanted.items():
            fill(hubs, name, values)
        if hubs.home_of("/queue/in")[1] != hubs.home_of("/log/even")[1]:
            hubs.move("/log/even")
        common = {"brokers": hubs.brokers, "reconnectSeconds": "90"}
        limits = {"maxOffsetsPerTrigger": str(PER_BATCH_COUNT), "groupId": "once"}
        queue = spark.readStream.format("stomp").options(**common, **limits).load("/queue/in")
        logs = spark.readStream.format("stomp").options(**common, **limits, startingOffsets="earliest")
        rows = queue.select("value").union(logs.load("/log/in,/log/also").select("value"))
        query = (
            rows.select(udf(slowly, "string", useArrow=False)(rows["value"].cast("string")).alias("value"))
            .selectExpr("value", "if(cast(value as int) % 2 = 0, '/log/even', '/log/odd') AS topic")
            .writeStream.format("stomp")
            .options(**common)
            .option("checkpointLocation", str(tmp_path / "point"))
            .start()
        )
        try:
            for batch, fault, name in (
                (1, hubs.move, "/log/odd"),
                (2, hubs.kill_owner, "/log/even"),
                (3, partial(hubs.stop_owner, seconds=2.0), "/log/also"),
            ):
                offsets = tmp_path / "point" / "offsets" / str(batch)
                until(lambda offsets=offsets: query.exception() is not None or offsets.exists(), 90)
                assert query.exception() is None
                time.sleep(0.5)  # its tasks are at work
                assert not (tmp_path / "point" / "commits" / str(batch)).exists(), "it is under way"
                fault(name)
            until(lambda: query.exception() is not None or count_of(hubs) >= 3 * EACH_COUNT, 150)
            assert query.exception() is None
        finally:
            query.stop()
        found = {log: read_all(hubs, log) for log in ("/log/even", "/log/odd")}
        assert {int(value) % 2 for value in found["/log/even"]} == {0}
        assert sorted(map(int, [*found["/log/even"], *found["/log/odd"]])) == sorted(
            int(value) for values in wanted.values() for value in values
        )


def slowly(value: str) -> str:
    """The same, a moment later: a task is in the middle of its stages for most of its time."""
    time.sleep(0.01)
    return value


def connected(hubs: Hubs, name: str) -> Connection:
    return Connection(Address.parse(hubs.brokers), destination=name, patience_seconds=60.0)


def fill(hubs: Hubs, name: str, values: list[bytes]) -> None:
    with connected(hubs, name) as connection, connection.sender(name) as sender:
        if name.startswith("/log/"):
            sender.send_batches(encode(values), len(values))
        else:
            for value in values:
                sender.send(value, [("persistent", "true")])


def count_of(hubs: Hubs) -> int:
    """Records that are in both logs."""
    total = 0
    for log in ("/log/even", "/log/odd"):
        with connected(hubs, log) as connection:
            total += int(connection.request("log/size", log=log)["size"])
    return total


def read_all(hubs: Hubs, log: str) -> list[bytes]:
    with connected(hubs, log) as connection:
        described = connection.request("log/describe", log=log)
        found: list[bytes] = []
        for part in connection.read_batches(log, described["first"], described["next"]):
            assert not isinstance(part, Gap), part
            found += map(bytes, part.values())
    return found
