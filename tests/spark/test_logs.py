"""Real Spark reads logs: batches, and streams through crashes of everything that can crash."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.conftest import ROOT, BrokerMaker, connected, fill, numbers, until
from tests.spark.cutting_proxy import CuttingProxy
from tests.spark.queries import Query, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sluiceway.embedded import EmbeddedBroker

pytestmark = pytest.mark.spark

LOG = "/log/a"


def read(spark: SparkSession, *brokers: EmbeddedBroker, subscribe: str = LOG, **options: Any) -> DataFrame:
    given = {name: str(value) for name, value in options.items()}
    addresses = ",".join(broker.address for broker in brokers)
    return spark.read.format("stomp").options(brokers=addresses, subscribe=subscribe, **given).load()


def knocked_at(port: int) -> None:
    """Wait until somebody tries to connect to this port, where nobody is, and hang up."""
    with socket.create_server(("127.0.0.1", port)) as gone:
        gone.settimeout(60)
        gone.accept()[0].close()


# ---------------------------------------------------------------------- batches


@pytest.mark.spark_ci
def test_a_batch_has_every_record_of_all_brokers_once(spark: SparkSession, make_broker: BrokerMaker) -> None:
    """One has two logs, one an empty one, one none at all."""
    brokers = [make_broker(folder=f"{number}") for number in range(3)]
    fill(brokers[0], LOG, numbers(2000), keys=[b"k%d" % (number % 3) for number in range(2000)], head=b"kind:x\n")
    fill(brokers[0], "/log/b", numbers(10))
    fill(brokers[1], "/log/b", numbers(5))
    with connected(brokers[1]) as connection:
        connection.request("log/cursor", log=LOG, group="g")  # makes the log
    frame = read(spark, *brokers, subscribe="/log/a,/log/b", includeHeaders="true", minPartitions=4)
    assert frame.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("message_id", "string"),
        ("headers", "map<string,string>"),
    ]
    found = frame.collect()
    assert sorted((row.topic, row.partition, row.offset) for row in found) == [
        *rows_of(LOG, 0, 0, 2000),
        *rows_of("/log/b", 0, 0, 10),
        *rows_of("/log/b", 1, 0, 5),
    ]
    assert sorted(int(row.value) for row in found) == sorted([*range(2000), *range(10), *range(5)])
    assert len({row.message_id for row in found}) == len(found)
    some = next(row for row in found if (row.topic, row.offset) == (LOG, 7))
    assert (bytes(some.key), bytes(some.value), some.headers) == (b"k1", b"7", {"kind": "x"})
    assert frame.filter("headers['kind'] = 'x'").groupBy("key").count().orderBy("key").collect() == [
        (b"k0", 667),
        (b"k1", 667),
        (b"k2", 666),
    ]
    assert frame.filter("CAST(key AS STRING) = 'k1'").count() == 667


@pytest.mark.spark_ci
def test_keys_of_any_bytes_come_through_spark_and_back(spark: SparkSession, broker: EmbeddedBroker) -> None:
    """Read, made an Arrow table, and written again to a log and to a queue: the same bytes."""
    keys = [bytes([byte, 255 - byte]) for byte in range(256)] + [bytes(8), b"plain", "ä".encode()]
    fill(broker, LOG, numbers(len(keys)), keys=keys)
    frame = read(spark, broker)
    table = frame.select("key", "value").toArrow()
    assert dict(zip(table["value"].to_pylist(), table["key"].to_pylist(), strict=True)) == dict(
        zip(numbers(len(keys)), keys, strict=True)
    )
    written = frame.select("key", "value")
    for target in ("/log/copy", "/queue/copy"):
        written.write.format("stomp").mode("append").option("brokers", broker.address).save(target)
        copied = spark.read.format("stomp").option("brokers", broker.address).load(target).collect()
        assert sorted((int(row.value), bytes(row.key)) for row in copied) == [*enumerate(keys)]


def test_nothing_to_read_is_no_error(spark: SparkSession, broker: EmbeddedBroker) -> None:
    fill(broker, LOG, numbers(5))
    assert read(spark, broker, startingTimestamp=10**15).count() == 0


def test_sql_reads_a_log_and_only_the_columns_that_are_wanted_are_made(
    spark: SparkSession, broker: EmbeddedBroker
) -> None:
    fill(broker, LOG, numbers(100))
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW a USING stomp OPTIONS (brokers '{broker.address}', subscribe '{LOG}')")
    assert spark.sql("SELECT sum(cast(cast(value AS string) AS int)) FROM a").collect() == [(sum(range(100)),)]
    options = {"brokers": broker.address, "path": LOG}
    narrow = spark.read.format("stomp").schema("offset bigint, value binary").options(**options).load()
    assert [tuple(row) for row in narrow.orderBy("offset").take(2)] == [(0, b"0"), (1, b"1")]
    assert narrow.count() == 100


def test_an_action_that_is_repeated_sees_the_same_records(spark: SparkSession, broker: EmbeddedBroker) -> None:
    fill(broker, LOG, numbers(50))
    frame = read(spark, broker)
    assert frame.count() == 50
    fill(broker, LOG, numbers(50))
    assert frame.count() == 50
    assert read(spark, broker).count() == 100


def test_wrong_options_are_told_to_the_user(spark: SparkSession, broker: EmbeddedBroker) -> None:
    with pytest.raises(Exception, match="did you mean startingOffsets"):
        read(spark, broker, startingOfsets="earliest").count()
    with pytest.raises(Exception, match="no /log/typo"):
        read(spark, broker, subscribe="/log/typo").count()


def test_a_task_that_is_tried_again_counts_once(spark: SparkSession, broker: EmbeddedBroker) -> None:
    fill(broker, LOG, numbers(30_000), per_batch=5000)

    def fail_once(rows: Iterable[Any]) -> Iterable[int]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for number, row in enumerate(rows):
            if number == 12_000 and context.attemptNumber() == 0:
                raise RuntimeError("the first attempt fails in the middle")
            yield row.offset

    found = read(spark, broker, minPartitions=2).select("offset").rdd.mapPartitions(fail_once).collect()
    assert sorted(found) == [*range(30_000)]


@pytest.mark.spark_ci
def test_connections_that_are_lost_and_a_broker_that_is_restarted_in_the_middle_of_a_read_go_unnoticed(
    spark: SparkSession, make_broker: BrokerMaker
) -> None:
    broker = make_broker()
    fill(broker, LOG, [b"%08d" % number * 16 for number in range(20_000)])
    restarted: list[EmbeddedBroker] = []

    def restart() -> None:
        broker.stop()
        restarted.append(make_broker(port=broker.port))

    proxy = CuttingProxy((broker.host, broker.port), [("down", 300_000)] * 6, at_first_cut=restart)
    options = {"brokers": proxy.address, "subscribe": LOG, "minPartitions": "2"}
    frame = spark.read.format("stomp").options(**options).load()
    assert tuple(frame.selectExpr("count(*)", "count(distinct value)").first() or ()) == (20_000, 20_000)
    assert len(restarted) == 1
    assert proxy.connections_count > 6
    proxy.close()


@pytest.mark.spark_ci
@pytest.mark.parametrize("fails", ["true", "false"])
def test_records_that_retention_took_fail_the_job_or_are_left_out(
    spark: SparkSession, broker: EmbeddedBroker, fails: str
) -> None:
    fill(broker, LOG, numbers(100))
    with connected(broker) as connection:
        connection.request("log/truncate", log=LOG, before=30)
    frame = read(spark, broker, startingOffsets='{"/log/a":{"0":10}}', failOnDataLoss=fails)
    if fails == "true":
        with pytest.raises(Exception, match=r"records 10 to 29 of /log/a .* are gone"):
            frame.collect()
    else:
        assert sorted(row.offset for row in frame.collect()) == [*range(30, 100)]


def test_bodies_of_a_megabyte_come_through_a_few_at_a_time(spark: SparkSession, broker: EmbeddedBroker) -> None:
    """A task holds some of them, not all: 10,000 rows of a megabyte would be Spark's own measure."""
    fill(broker, LOG, [bytes([number]) * (1 << 20) for number in range(150)], per_batch=4)
    total = read(spark, broker, minPartitions=2).selectExpr("count(*)", "sum(length(value))").first()
    assert tuple(total or ()) == (150, 150 << 20)
    script = (
        "import resource\n"
        "from pyspark_stomp.logs import LogReader\n"
        "from pyspark_stomp.options import read_options\n"
        f"options = read_options({{'brokers': '{broker.address}', 'subscribe': '{LOG}'}}, streaming=False)\n"
        "reader = LogReader(options, ['value'])\n"
        "(part,) = reader.partitions()\n"
        "import pyarrow, pyarrow.compute\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "count = 0\n"
        "for made in reader.read(part):\n"
        "    count += made.num_rows\n"
        "    assert made.nbytes <= 5 << 20, made.nbytes\n"
        "print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True, timeout=60)
    count, more_kib = map(int, done.stdout.split())
    assert count == 150
    assert more_kib < 64 * 1024


# ---------------------------------------------------------------------- streams


@pytest.mark.spark_ci
def test_a_stream_takes_all_in_limited_batches_and_goes_on_where_it_was(
    spark: SparkSession, make_broker: BrokerMaker, tmp_path: Path
) -> None:
    """Then, as after a crash at each point of a micro-batch: the same batch has the same rows."""
    brokers = [make_broker(folder=f"{number}") for number in range(2)]
    fill(brokers[0], LOG, numbers(500))
    fill(brokers[1], LOG, numbers(250))
    query = Query(
        spark,
        tmp_path / "checkpoint",
        brokers=",".join(broker.address for broker in brokers),
        subscribe=LOG,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=300,
    )
    runs = query.run()
    assert [(batch_id, len(rows)) for batch_id, rows in runs] == [(0, 300), (1, 300), (2, 150)]
    assert sorted(row for _, rows in runs for row in rows) == rows_of(LOG, 0, 0, 500) + rows_of(LOG, 1, 0, 250)

    # Stopped, and started again: nothing twice, nothing left out.
    assert query.run() == []
    fill(brokers[1], LOG, numbers(10))
    ((batch_id, rows),) = query.run()
    assert (batch_id, rows) == (3, rows_of(LOG, 1, 250, 260))

    # A crash before the commit was written: the batch comes again, the very same.
    query.forget("commits", 3)
    fill(brokers[0], LOG, numbers(20))
    assert query.run() == [(3, rows_of(LOG, 1, 250, 260)), (4, rows_of(LOG, 0, 500, 520))]

    # A crash before the offsets were written: what it would have taken comes in the next batch of this number.
    query.forget("commits", 4)
    query.forget("offsets", 4)
    fill(brokers[0], LOG, numbers(5))
    assert query.run() == [(4, rows_of(LOG, 0, 500, 525))]


def test_a_batch_whose_sink_failed_comes_again_the_very_same(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    fill(broker, LOG, numbers(100))
    query = Query(spark, tmp_path / "checkpoint", brokers=broker.address, subscribe=LOG, startingOffsets="earliest")

    def fail(_batch_id: int) -> None:
        raise RuntimeError("the sink fails")

    query.after = fail
    with pytest.raises(Exception, match="the sink fails"):
        query.run()
    assert query.logged("commits") == []
    query.after = None
    fill(broker, LOG, numbers(50))
    assert query.run() == [(0, rows_of(LOG, 0, 0, 100)), (1, rows_of(LOG, 0, 100, 150))]
    assert query.runs[0] == query.runs[1]


def test_latest_skips_nothing_when_the_query_dies_before_its_first_commit(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    fill(broker, LOG, numbers(100))
    query = Query(spark, tmp_path / "checkpoint", brokers=broker.address, subscribe=LOG, groupId="g")
    assert all(not rows for _, rows in query.run())
    shutil.rmtree(query.checkpoint)  # as if it had died before it wrote anything
    fill(broker, LOG, numbers(10))
    assert [rows for _, rows in query.run()] == [rows_of(LOG, 0, 100, 110)]
    with connected(broker) as connection:
        (group,) = connection.request("log/groups", log=LOG)["groups"]
    assert (group["group"], group["lag"]) == ("g", 0)


def test_a_range_that_is_read_twice_in_one_batch_is_the_same_twice(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    fill(broker, LOG, numbers(3000))
    twice: list[tuple[int, int]] = []

    def sink(rows: DataFrame, _batch_id: int) -> None:
        ordered = rows.orderBy("offset").collect()
        twice.append((len(ordered), rows.selectExpr("sum(offset)").first()[0]))  # type: ignore[index]

    frame = spark.readStream.format("stomp").options(
        brokers=broker.address, subscribe=LOG, startingOffsets="earliest", minPartitions="3"
    )
    writer = frame.load().writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(200)
    assert twice == [(3000, sum(range(3000)))]


@pytest.mark.spark_ci
def test_a_running_query_outlives_its_broker_and_finds_new_logs(
    spark: SparkSession, make_broker: BrokerMaker, tmp_path: Path
) -> None:
    """A restart between batches and one while a batch is planned to be read; a new log, and a new partition of one."""
    broker, second = make_broker(), make_broker(folder="second")
    fill(broker, "/log/x.a", numbers(10))
    query = Query(
        spark,
        tmp_path / "checkpoint",
        brokers=f"{broker.address},{second.address}",
        subscribePattern="/log/x\\..*",
        startingOffsets="earliest",
        groupId="g",
    )
    running = query.start()

    def rows_count() -> int:
        return sum(len(rows) for _, rows in query.runs)

    try:
        until(lambda: rows_count() == 10, 120)
        port = broker.port
        broker.stop()
        knocked_at(port)
        assert running.isActive
        broker = make_broker(port=port)
        fill(broker, "/log/x.b", numbers(7))
        fill(second, "/log/x.a", numbers(5))
        until(lambda: rows_count() == 22, 120)

        # In the sink of the next batch, before it reads: the broker goes, and comes back while the task waits.
        filled, stopped = threading.Event(), threading.Event()

        def stop_once(_batch_id: int) -> None:
            if not stopped.is_set():
                stopped.set()
                assert filled.wait(60)  # or the producer would send again what has no receipt yet
                broker.stop()
                threading.Timer(1.5, lambda: make_broker(port=port)).start()

        query.before = stop_once
        fill(broker, "/log/x.a", numbers(20))
        filled.set()
        until(lambda: rows_count() == 42, 120)
        assert running.isActive
        progress = running.lastProgress
        assert progress is not None
        assert json.loads(progress["sources"][0]["endOffset"] or "{}").keys() == {"/log/x.a", "/log/x.b"}
    finally:
        running.stop()
    found = sorted(row for _, rows in query.runs for row in rows)
    assert found == [*rows_of("/log/x.a", 0, 0, 30), *rows_of("/log/x.a", 1, 0, 5), *rows_of("/log/x.b", 0, 0, 7)]


def test_a_stream_that_was_overtaken_by_retention_fails_or_goes_on_as_it_is_told(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    fill(broker, LOG, numbers(10))
    query = Query(spark, tmp_path / "checkpoint", brokers=broker.address, subscribe=LOG, startingOffsets="earliest")
    query.run()
    fill(broker, LOG, numbers(90))
    with connected(broker) as connection:
        connection.request("log/truncate", log=LOG, before=40)
    with pytest.raises(Exception, match=r"records 10 to 39 of /log/a .* are gone"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    assert [rows for _, rows in query.run()] == [rows_of(LOG, 0, 40, 100)]


# ---------------------------------------------------------------------- processes


def remake(broker: EmbeddedBroker, count: int | None) -> None:
    """Delete the log, and make it anew with so many records; None: it is gone."""
    with connected(broker) as connection:
        connection.request("log/delete", log=LOG, passcode="pw")
    if count is not None:
        fill(broker, LOG, numbers(count, 10_000))


@pytest.mark.spark_ci
def test_a_query_skips_nothing_of_a_log_that_was_made_anew_between_two_runs(
    spark: SparkSession, make_broker: BrokerMaker, tmp_path: Path
) -> None:
    """It is longer than the old one: the index in the checkpoint is there."""
    broker = make_broker(delete_passcode="pw")
    fill(broker, LOG, numbers(1000))
    query = Query(spark, tmp_path / "q", brokers=broker.address, subscribe=LOG, startingOffsets="earliest")
    query.run()
    remake(broker, None)
    with pytest.raises(Exception, match=r"/log/a at .* is gone, and the query was at index 1000"):
        query.run()
    fill(broker, LOG, numbers(2100, 10_000))
    with pytest.raises(Exception, match="is another log than the one that the query has read up to index 1000"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    query.run()
    assert sorted(map(int, query.values)) == [*range(1000), *range(10_000, 12_100)]
    fill(broker, LOG, numbers(5, 20_000))
    query.options["failOnDataLoss"] = "true"
    assert [rows for _batch, rows in query.run() if rows] == [rows_of(LOG, 0, 2100, 2105)]


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_running_query_whose_log_is_deleted_and_made_anew(
    spark: SparkSession, make_broker: BrokerMaker, tmp_path: Path, fails: str
) -> None:
    broker = make_broker(delete_passcode="pw")
    fill(broker, LOG, numbers(100))
    query = Query(
        spark, tmp_path / "q", brokers=broker.address, subscribe=LOG, startingOffsets="earliest", failOnDataLoss=fails
    )
    running = query.start()
    try:
        until(lambda: len(query.values) == 100)
        if fails == "true":
            remake(broker, None)
            with pytest.raises(Exception, match="is gone, and the query was at index 100"):
                running.awaitTermination(60)
            return
        for count in (300, 40):
            remake(broker, None)
            del query.values[:]
            fill(broker, LOG, numbers(count, 10_000))
            until(lambda count=count: len(query.values) == count)  # type: ignore[misc]
            assert sorted(map(int, query.values)) == [*range(10_000, 10_000 + count)]
        assert running.isActive
    finally:
        running.stop()


def test_a_log_that_is_made_anew_in_the_middle_of_a_batch(
    spark: SparkSession, make_broker: BrokerMaker, tmp_path: Path
) -> None:
    """Planned and in the checkpoint, but not read yet: other records never stand in for those that were meant."""
    broker = make_broker(delete_passcode="pw")
    fill(broker, LOG, numbers(100))
    query = Query(spark, tmp_path / "q", brokers=broker.address, subscribe=LOG, startingOffsets="earliest")
    query.before = lambda _batch_id: remake(broker, 300)
    with pytest.raises(Exception, match="the log was deleted, and there is another one of its name"):
        query.run()
    query.before = None
    with pytest.raises(Exception, match="the log was deleted, and there is another one of its name"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    assert [rows for _batch, rows in query.run() if rows] == [rows_of(LOG, 0, 0, 300)]
    assert sorted(map(int, query.values)) == [*range(10_000, 10_300)]


@pytest.mark.spark_ci
def test_a_checkpoint_of_an_earlier_version_goes_on_and_knows_its_log_then(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    fill(broker, LOG, numbers(100))
    query = Query(spark, tmp_path / "q", brokers=broker.address, subscribe=LOG, startingOffsets="earliest")
    query.run()
    for path in (query.checkpoint / "offsets").iterdir():
        if path.name.isdigit():
            lines = path.read_text().splitlines()
            lines[-1] = json.dumps({LOG: {"0": 100}})
            path.write_text("\n".join(lines))
            (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    fill(broker, LOG, numbers(50, 100))
    assert [rows for _batch, rows in query.run() if rows] == [rows_of(LOG, 0, 100, 150)]
    with connected(broker) as connection:
        log_id = connection.request("log/describe", log=LOG)["log_id"]
    newest = query.checkpoint / "offsets" / str(query.logged("offsets")[-1])
    assert json.loads(newest.read_text().splitlines()[-1]) == {LOG: {"0": f"150@{log_id}"}}
    assert query.run() == []


def started(script: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """A program of its own, with all that it starts in one process group."""
    inherited = {**os.environ, **environment}
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT,
        env=inherited,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def killed(process: subprocess.Popen[str]) -> None:
    """kill -9 of all of it."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


KILLED_QUERY = """
import sys
from pyspark_stomp.local import session
address, checkpoint, target = sys.argv[1:]
spark = session("killed", cores_count=2, log_level="OFF")
rows = spark.readStream.format("stomp").options(
    brokers=address, subscribe="/log/a", startingOffsets="earliest", maxOffsetsPerTrigger="1000"
).load()
query = rows.writeStream.format("parquet").option("checkpointLocation", checkpoint).option("path", target).start()
while True:
    progress = query.lastProgress
    print(progress["batchId"] if progress else -1, flush=True)
    query.awaitTermination(0.1)
"""


def test_kill_minus_nine_of_the_query_loses_nothing_and_doubles_nothing(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    fill(broker, LOG, numbers(40_000), per_batch=1000)
    checkpoint, target = tmp_path / "checkpoint", tmp_path / "target"
    process = started(KILLED_QUERY, broker.address, str(checkpoint), str(target))
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 2:
                break
        else:
            raise AssertionError(process.communicate()[1])
    finally:
        killed(process)
    rows = spark.readStream.format("stomp").options(
        brokers=broker.address, subscribe=LOG, startingOffsets="earliest", maxOffsetsPerTrigger="10000"
    )
    writer = rows.load().writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
    query = writer.option("path", str(target)).trigger(availableNow=True).start()
    assert query.awaitTermination(200)
    found = spark.read.parquet(str(target)).selectExpr(
        "count(*)", "count(distinct offset)", "sum(cast(cast(value as string) as bigint))"
    )
    assert tuple(found.first() or ()) == (40_000, 40_000, sum(range(40_000)))


FOUND_BY_ITSELF = """
import sys
address, = sys.argv[1:]
from pyspark.sql import SparkSession
from pyspark_stomp.java import find_java
home = getattr(find_java(), "home", None)
import os
if home is not None:
    os.environ["JAVA_HOME"] = str(home)
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
def count():
    return spark.read.format("stomp").options(brokers=address, subscribe="/log/a").load().count()
try:
    print("found", count())
except Exception as error:
    print("not found")
    import pyspark_stomp
    pyspark_stomp.register(spark)
    print("registered", count())
spark.stop()
"""


@pytest.mark.parametrize("broken", [False, True])
def test_spark_finds_the_source_by_itself_and_it_can_be_registered_where_that_fails(
    broker: EmbeddedBroker, tmp_path: Path, broken: bool
) -> None:
    """Found without pandas and numpy. Somebody's `pyspark_broken` that can't be imported spoils the search for all."""
    fill(broker, LOG, numbers(12))
    if broken:
        (tmp_path / "pyspark_broken.py").write_text("raise ImportError('broken')\n", encoding="utf-8")
    else:
        hidden = "import sys\nsys.modules['pandas'] = sys.modules['numpy'] = None\n"
        (tmp_path / "sitecustomize.py").write_text(hidden, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    process = started(FOUND_BY_ITSELF, broker.address, PYTHONPATH=path)
    try:
        said, log = process.communicate(timeout=200)
    finally:
        if process.poll() is None:
            killed(process)
    wanted = ["not found", "registered 12"] if broken else ["found 12"]
    assert [line for line in said.splitlines() if "found" in line or "registered" in line] == wanted, log[-2000:]
