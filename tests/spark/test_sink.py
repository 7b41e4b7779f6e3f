"""Writers with real Spark: what they write, where it goes, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sluiceway.client.errors import Gap
from sluiceway.client.records import headers_of
from sluiceway.embedded import EmbeddedBroker
from tests.spark.conftest import BrokerMaker, connected, fill, numbers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Record = tuple[bytes, bytes | None, dict[str, str]]


def records(broker: EmbeddedBroker, log: str) -> list[Record]:
    """Value, key and headers of all that is in a log; the broker's own headers left out."""
    found: list[Record] = []
    with connected(broker) as connection:
        described = connection.request("log/describe", log=log)
        for part in connection.read_batches(log, described["first"], described["next"]):
            assert not isinstance(part, Gap)
            keys = part.keys() or [memoryview(b"")] * part.count
            headers = {name: text for name, text in headers_of(part.head).items() if name != "sluiceway-commit"}
            found += [
                (bytes(value), bytes(key) or None, headers) for value, key in zip(part.values(), keys, strict=True)
            ]
    return found


def values(broker: EmbeddedBroker, log: str) -> list[bytes]:
    return [value for value, _key, _headers in records(broker, log)]


def stages(broker: EmbeddedBroker) -> list[str]:
    """Those that are left."""
    with connected(broker) as connection:
        listed = connection.request("log/list")["logs"]
    return [each["log"] for each in listed if each["log"].startswith("/log/sluiceway.stage.")]


def write(rows: DataFrame, broker: EmbeddedBroker, **options: str) -> None:
    rows.write.format("stomp").mode("append").options(brokers=broker.address, **options).save()


def test_rows_arrive_with_keys_and_headers_in_order(spark: SparkSession, broker: EmbeddedBroker) -> None:
    rows = spark.createDataFrame(
        [("a", "k1", {"n": "1"}), ("b", None, {"n": "1"}), ("c", "k2", {"n": "2", "m": "x:y\nz"}), ("", "k1", None)],
        "value string, key string, headers map<string,string>",
    ).coalesce(1)
    write(rows, broker, topic="/log/out")
    assert records(broker, "/log/out") == [
        (b"a", b"k1", {"n": "1"}),
        (b"b", None, {"n": "1"}),
        (b"c", b"k2", {"n": "2", "m": "x:y\nz"}),
        (b"", b"k1", {}),
    ]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_many_rows_without_headers_arrive(spark: SparkSession, broker: EmbeddedBroker, compression: str) -> None:
    """They are taken as Arrow has them, in slices that begin anywhere."""
    rows = spark.range(50_000).selectExpr(
        "repeat(cast(id as string), 1 + id % 9) AS value", "cast(id as string) AS key"
    )
    write(rows.where("id % 7 != 3"), broker, topic="/log/out", compression=compression)
    found = sorted((int(key or b""), value) for value, key, _headers in records(broker, "/log/out"))
    assert found == [(n, str(n).encode() * (1 + n % 9)) for n in range(50_000) if n % 7 != 3]


def test_large_rows_are_cut_into_batches(spark: SparkSession, broker: EmbeddedBroker) -> None:
    rows = spark.range(12).selectExpr("repeat(cast(id % 10 as string), 1000000) AS value")
    write(rows, broker, topic="/log/out")
    assert sorted(value[:1] * (len(value) // 1_000_000) for value in values(broker, "/log/out")) == sorted(
        str(n % 10).encode() for n in range(12)
    )


def test_the_column_topic_says_where_rows_go(spark: SparkSession, broker: EmbeddedBroker) -> None:
    rows = spark.createDataFrame(
        [("1", "/log/a"), ("2", "/queue/q"), ("3", "/log/b"), ("4", "/log/a")], "value string, topic string"
    ).coalesce(1)
    write(rows, broker)
    assert values(broker, "/log/a") == [b"1", b"4"]
    assert values(broker, "/log/b") == [b"3"]
    browsed = spark.read.format("stomp").option("brokers", broker.address).load("/queue/q")
    assert [bytes(row.value) for row in browsed.collect()] == [b"2"]


def test_what_is_written_to_a_queue_can_be_browsed(spark: SparkSession, broker: EmbeddedBroker) -> None:
    """And is there afterwards."""
    rows = spark.range(3000).selectExpr(
        "cast(id as string) AS value", "concat('k', id) AS key", "map('half', cast(id % 2 as string)) AS headers"
    )
    write(rows, broker, topic="/queue/q")
    for _ in range(2):
        browsed = (
            spark.read.format("stomp").options(brokers=broker.address, includeHeaders="true").load("/queue/q").collect()
        )
        assert sorted(int(bytes(row.value)) for row in browsed) == list(range(3000))
        assert all(row.key == b"k" + row.value for row in browsed)
        assert all(row.headers == {"half": str(int(bytes(row.value)) % 2)} for row in browsed)
        assert {(row.topic, row.partition) for row in browsed} == {("/queue/q", 0)}
    assert spark.read.format("stomp").option("brokers", broker.address).load("/queue/empty").count() == 0


def test_several_brokers_share_rows_by_key(spark: SparkSession, make_broker: BrokerMaker) -> None:
    """As the client does it, and as the column `partition` says."""
    from sluiceway.client.partitioning import by_hash

    both = [make_broker(folder="a"), make_broker(folder="b")]
    addresses = ",".join(each.address for each in both)
    rows = spark.range(200).selectExpr("cast(id as string) AS value", "concat('key', id) AS key")
    rows.write.format("stomp").mode("append").options(brokers=addresses, topic="/log/out").save()
    for number, each in enumerate(both):
        wanted = [n for n in range(200) if by_hash(f"key{n}", ["x", "y"]) == number]
        assert sorted(int(value) for value in values(each, "/log/out")) == wanted
    chosen = rows.selectExpr("value", "key", "cast(if(value < '5', 1, null) AS int) AS partition")
    chosen.write.format("stomp").mode("append").options(brokers=addresses, topic="/log/more").save()
    assert {n for n in range(200) if str(n) < "5"} <= {int(value) for value in values(both[1], "/log/more")}


@pytest.mark.parametrize(
    ("select", "options", "says"),
    [
        ("id", {}, "no column 'id'"),
        ("cast(id as string) AS key", {}, "no column value"),
        ("id AS value", {}, "column value is string or binary"),
        ("cast(id as string) AS value", {"topic": ""}, "nothing says where"),
        ("cast(id as string) AS value", {"topic": "/log/a", "transactionid": "t", "tpoic": "x"}, "did you mean topic"),
        ("cast(id as string) AS value", {"topic": "/queue/a", "deliveryGuarantee": "exactly-once"}, "only logs can"),
        ("cast(id as string) AS value", {"topic": "/queue/a", "transactionId": "7"}, "only logs can"),
        ("cast(id as string) AS value", {"topic": "orders"}, "can't be written"),
    ],
)
def test_what_can_not_be_written_is_refused_before_anything_is(
    spark: SparkSession, broker: EmbeddedBroker, select: str, options: dict[str, str], says: str
) -> None:
    with pytest.raises(Exception, match=says):
        write(spark.range(3).selectExpr(select), broker, **({"topic": "/log/a"} | options))
    with connected(broker) as connection:
        assert connection.request("log/list")["logs"] == []


@pytest.mark.parametrize(
    ("select", "says"),
    [
        ("if(id = 2, null, 'x') AS value", "a value that is null"),
        ("'x' AS value; map('destination', '/log/b') AS headers", "can't set"),
        ("'x' AS value; map('a', concat('b', char(0))) AS headers", "has a NUL"),
        ("'x' AS value; cast(7 as int) AS partition", "partition says 7"),
    ],
)
def test_rows_that_can_not_be_written_fail_the_job_and_say_why(
    spark: SparkSession, broker: EmbeddedBroker, select: str, says: str
) -> None:
    with pytest.raises(Exception, match=says):
        write(spark.range(3).coalesce(1).selectExpr(*select.split(";")), broker, topic="/log/a")


# ---------------------------------------------------------------------- once


@pytest.mark.spark_ci
def test_a_transaction_is_written_once(spark: SparkSession, broker: EmbeddedBroker) -> None:
    rows = spark.range(100).selectExpr("cast(id as string) AS value")
    for _ in range(2):
        write(rows, broker, topic="/log/out", transactionId="day 7")
        assert sorted(map(int, values(broker, "/log/out"))) == list(range(100))
    write(rows, broker, topic="/log/out", transactionId="day 8")
    assert len(values(broker, "/log/out")) == 200
    assert stages(broker) == []


def test_a_job_that_fails_leaves_nothing_if_it_writes_exactly_once(spark: SparkSession, broker: EmbeddedBroker) -> None:
    rows = spark.range(100, numPartitions=4).selectExpr("if(id = 99, null, cast(id as string)) AS value")
    with pytest.raises(Exception, match="null"):
        write(rows, broker, topic="/log/out", deliveryGuarantee="exactly-once")
    with connected(broker) as connection:
        logs = [each["log"] for each in connection.request("log/list")["logs"]]
    assert "/log/out" not in logs
    write(rows.where("value is not null"), broker, topic="/log/out", deliveryGuarantee="exactly-once")
    assert len(values(broker, "/log/out")) == 99


@pytest.mark.spark_ci
def test_a_task_that_is_run_again_writes_once(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Its first attempt dies after it has sent rows."""
    marker = str(tmp_path / "failed")

    def fail_once(number: int) -> str:
        import pathlib

        if number == 900 and not pathlib.Path(marker).exists():
            pathlib.Path(marker).touch()
            raise RuntimeError("the first attempt fails")
        return str(number)

    from pyspark.sql.functions import udf

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        numbered = spark.range(1000, numPartitions=1)
        once = udf(fail_once, "string", useArrow=False)  # Arrow would need pandas
        rows = numbered.select(once(numbered.id).alias("value"))
        write(rows, broker, topic="/log/out", deliveryGuarantee="exactly-once")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert Path(marker).exists()
    assert sorted(map(int, values(broker, "/log/out"))) == list(range(1000))


# ---------------------------------------------------------------------- streams


def run_available(rows: DataFrame, checkpoint: Path, **options: str) -> list[dict[str, Any]]:
    """All that is there now, to a sink; the progress of each micro-batch."""
    query = (
        rows.writeStream.format("stomp").options(checkpointLocation=str(checkpoint), **options)
        .trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(120)
    return [json.loads(each.json) for each in query.recentProgress]


@pytest.mark.spark_ci
def test_a_stream_from_log_to_log_keeps_its_counts_over_restarts(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    fill(broker, "/log/in", numbers(1000))
    rows = (
        spark.readStream.format("stomp")
        .options(brokers=broker.address, startingOffsets="earliest", maxOffsetsPerTrigger="300")
        .load("/log/in").selectExpr("value", "key")
    )  # fmt: skip
    for times in (1, 2):
        progress = run_available(rows, tmp_path / "point", brokers=broker.address, topic="/log/out")
        assert len([each for each in progress if each["numInputRows"]]) >= 3
        assert sorted(map(int, values(broker, "/log/out"))) == list(range(1000 * times))
        fill(broker, "/log/in", numbers(1000, 1000 * times))
    assert stages(broker) == []


def test_a_stream_to_a_queue_delivers_all(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    fill(broker, "/log/in", numbers(500))
    rows = (
        spark.readStream.format("stomp").options(brokers=broker.address, startingOffsets="earliest").load("/log/in")
    )  # fmt: skip
    run_available(rows.select("value"), tmp_path / "point", brokers=broker.address, topic="/queue/out")
    browsed = spark.read.format("stomp").option("brokers", broker.address).load("/queue/out").collect()
    assert sorted(int(bytes(row.value)) for row in browsed) == list(range(500))


def test_rows_of_a_stream_go_to_the_same_brokers_when_it_is_run_again(
    spark: SparkSession, make_broker: BrokerMaker, tmp_path: Path
) -> None:
    """Without keys: by their values, so that a batch of which one broker has its part is finished exactly."""
    both = [make_broker(folder="a"), make_broker(folder="b")]
    fill(both[0], "/log/in", numbers(400))
    rows = spark.readStream.format("stomp").options(brokers=both[0].address, startingOffsets="earliest").load("/log/in")
    addresses = ",".join(each.address for each in both)
    run_available(rows.select("value"), tmp_path / "point", brokers=addresses, topic="/log/out")
    # As if Spark had died between the first broker's commit and the second's.
    for file in (tmp_path / "point" / "commits").iterdir():
        file.unlink()
    with connected(both[1]) as connection:
        query = json.loads((tmp_path / "point" / "metadata").read_text())["id"]
        assert connection.request("sink/state", query=query)["batch"] == 0
    run_available(rows.select("value"), tmp_path / "point", brokers=addresses, topic="/log/out")
    found = [int(value) for each in both for value in values(each, "/log/out")]
    assert sorted(found) == list(range(400))
    assert all(values(each, "/log/out") for each in both)
    assert stages(both[0]) == stages(both[1]) == []
