"""Runs the scenarios of Spark: a broker, a session on two cores, and jobs on it.

The broker is a process of its own, with a folder of its own. Spark's work before the first row of a batch (planning,
starting tasks) counts, as in any job; so more rows give higher rates. The first time that a job is run does not count:
it starts workers, and is where the rows are checked. Of a streaming query the first micro-batch does not count, for the
same reason.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import psutil

from perf.reports.results import Measurement, Results, describe_machine
from perf.spark.scenarios import SparkScenario
from perf.spark.sources import TASKS, Prebuilt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT: Final = Path(__file__).resolve().parents[2]
BATCH_BYTES: Final = 500_000
"""Bytes of one append; a producer of `sluiceway.client` makes batches of this order."""
MICRO_BATCHES: Final = 5
LONE_RECORDS: Final = 20
SUBJECT: Final = "sluiceway"


class Bench:
    """A broker, a session, and the logs filled already."""

    def __init__(
        self, spark: SparkSession, address: str, broker: psutil.Process, folder: Path, rows_count: int
    ) -> None:
        self._spark = spark
        self._address = address
        self._broker = broker
        self._folder = folder
        self._rows_count = rows_count
        self._filled: dict[tuple[int, bytes], tuple[str, int]] = {}
        self._numbers = count(1)

    def runs(self, scenario: SparkScenario, runs: int) -> Iterator[dict[str, float]]:
        """Return the figures of each run. Raises RuntimeError for rows that differ from those sent."""
        run = {
            "read": self._read,
            "stream": self._stream,
            "claims": self._claims,
            "sink": self._sink,
            "sink-stream": self._sink_stream,
            "visible": self._visible,
        }[scenario.kind]
        yield from run(scenario, runs)

    # ------------------------------------------------------------------ what there is to read

    def _count_of(self, scenario: SparkScenario) -> int:
        return max(1, int(self._rows_count * scenario.share))

    def _log_of(self, scenario: SparkScenario) -> tuple[str, int]:
        """Return a log with the rows of this scenario, and their number."""
        key = (scenario.value_bytes, scenario.head)
        found = self._filled.get(key)
        if found is None or found[1] < self._count_of(scenario) * 0.99:
            name = f"/log/in.{next(self._numbers)}"
            rows_count = fill(self._address, name, self._count_of(scenario), scenario.value_bytes, head=scenario.head)
            found = self._filled[key] = name, rows_count
        return found

    def _fill_queue(self, name: str, rows_count: int, value_bytes: int) -> None:
        import pyarrow as pa

        from pyspark_stomp.outgoing import frames
        from pyspark_stomp.wire import Address, Connection

        values = pa.array([os.urandom(value_bytes) for _ in range(1000)], pa.binary())
        rows = pa.RecordBatch.from_arrays([values], names=["value"])
        with Connection(Address.parse(self._address)) as connection, connection.sender("") as sender:
            for start in range(0, rows_count, 1000):
                for making, many in frames(rows.slice(0, rows_count - start), name, persistent=True):
                    sender.send_frames(making, many)

    def _length(self, log: str) -> int:
        from pyspark_stomp.wire import Address, Connection

        with Connection(Address.parse(self._address)) as connection:
            return int(connection.request("log/describe", log=log)["next"])

    # ------------------------------------------------------------------ batches

    def _read(self, scenario: SparkScenario, runs: int) -> Iterator[dict[str, float]]:
        log, rows_count = self._log_of(scenario)
        options = {"brokers": self._address, "subscribe": log, "minPartitions": str(TASKS)}
        if scenario.head:
            options["includeHeaders"] = "true"

        def rows() -> DataFrame:
            reader = self._spark.read.format("stomp").options(**options)
            return (reader.schema(scenario.schema) if scenario.schema else reader).load()

        def ceiling() -> DataFrame:
            reader = self._spark.read.format("prebuilt").options(rows=rows_count, bytes=scenario.value_bytes)
            return (reader.schema(scenario.schema) if scenario.schema else reader).load()

        found = rows().count()
        if found != rows_count:
            raise RuntimeError(f"{found} rows were read of {rows_count}")
        yield from self._beside(scenario, rows_count, runs, lambda: _to_nothing(rows()), lambda: _to_nothing(ceiling()))

    def _sink(self, scenario: SparkScenario, runs: int) -> Iterator[dict[str, float]]:
        rows_count = self._count_of(scenario) // TASKS * TASKS
        log = f"/log/out.{next(self._numbers)}"

        def rows() -> DataFrame:
            reader = self._spark.read.format("prebuilt").options(rows=rows_count, bytes=scenario.value_bytes)
            return reader.schema("value binary").load()

        def write() -> None:
            before = self._length(log) if written else 0
            rows().write.format("stomp").mode("append").options(brokers=self._address, topic=log).save()
            written.append(self._length(log) - before)
            if written[-1] != rows_count:
                raise RuntimeError(f"{written[-1]} rows were written of {rows_count}")

        written: list[int] = []
        yield from self._beside(
            scenario, rows_count, runs, write, lambda: rows().write.format("prebuilt").mode("append").save()
        )

    def _beside(
        self,
        scenario: SparkScenario,
        rows_count: int,
        runs: int,
        ours: Callable[[], None],
        ceiling: Callable[[], None],
    ) -> Iterator[dict[str, float]]:
        ours()
        ceiling()
        for _ in range(runs):
            start = time.perf_counter()
            ceiling()
            ceiling_rate = rows_count / (time.perf_counter() - start)
            usage = _Usage(self._broker)
            start = time.perf_counter()
            ours()
            rate = rows_count / (time.perf_counter() - start)
            yield {
                **_rates(scenario, rate),
                "ceiling_rate_per_second": ceiling_rate,
                "ceiling_ratio": rate / ceiling_rate,
                **usage.since(rows_count),
            }

    # ------------------------------------------------------------------ streams

    def _stream(self, scenario: SparkScenario, runs: int) -> Iterator[dict[str, float]]:
        log, rows_count = self._log_of(scenario)
        for _ in range(runs):
            rows = self._spark.readStream.format("stomp").options(
                **self._portions(rows_count), subscribe=log, startingOffsets="earliest"
            )
            yield self._streamed(scenario, rows.load(), rows_count, "noop")

    def _claims(self, scenario: SparkScenario, runs: int) -> Iterator[dict[str, float]]:
        rows_count = self._count_of(scenario)
        for _ in range(runs):
            queue = f"/queue/in.{next(self._numbers)}"
            self._fill_queue(queue, rows_count, scenario.value_bytes)
            rows = self._spark.readStream.format("stomp").options(
                **self._portions(rows_count), subscribe=queue, groupId="perf"
            )
            yield self._streamed(scenario, rows.load(), rows_count, "noop")

    def _sink_stream(self, scenario: SparkScenario, runs: int) -> Iterator[dict[str, float]]:
        log, rows_count = self._log_of(scenario)
        for _ in range(runs):
            rows = self._spark.readStream.format("stomp").options(
                **self._portions(rows_count), subscribe=log, startingOffsets="earliest"
            )
            out = f"/log/out.{next(self._numbers)}"
            yield self._streamed(
                scenario, rows.load().select("value"), rows_count, "stomp", brokers=self._address, topic=out
            )
            if self._length(out) != rows_count:
                raise RuntimeError(f"{self._length(out)} rows were written of {rows_count}")

    def _portions(self, rows_count: int) -> dict[str, str]:
        return {
            "brokers": self._address,
            "minPartitions": str(TASKS),
            "maxOffsetsPerTrigger": str(max(1, -(-rows_count // MICRO_BATCHES))),
        }

    def _streamed(
        self, scenario: SparkScenario, rows: DataFrame, rows_count: int, sink: str, **options: str
    ) -> dict[str, float]:
        """The rate of all micro-batches but the first, all that Spark does around them included."""
        checkpoint = str(self._folder / f"checkpoint.{next(self._numbers)}")
        writer = rows.writeStream.format(sink).options(**options).option("checkpointLocation", checkpoint)
        usage = _Usage(self._broker)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        progress: list[Any] = [each for each in query.recentProgress if each["numInputRows"]]
        found = sum(each["numInputRows"] for each in progress)
        if found != rows_count:
            raise RuntimeError(f"{found} rows were read of {rows_count}")
        counted = progress[1:] or progress
        many = sum(each["numInputRows"] for each in counted)
        spent = {
            name: sum(each["durationMs"].get(name, 0) for each in counted) / 1000
            for name in ("triggerExecution", "latestOffset", "addBatch")
        }
        whole = spent["triggerExecution"]
        return {
            **_rates(scenario, many / whole),
            "batch_rows_count": many / len(counted),
            "planning_ratio": spent["latestOffset"] / whole,
            "spark_ratio": 1 - (spent["latestOffset"] + spent["addBatch"]) / whole,
            **usage.since(rows_count),
        }

    def _visible(self, scenario: SparkScenario, _runs: int) -> Iterator[dict[str, float]]:
        """Milliseconds from a SEND to its row in the sink, where a query waits for it."""
        log = f"/log/visible.{next(self._numbers)}"
        seen: SimpleQueue[float] = SimpleQueue()

        def sink(rows: DataFrame, _batch_id: int) -> None:
            many = rows.count()
            now = time.perf_counter()
            for _ in range(many):
                seen.put(now)

        fill(self._address, log, 1, scenario.value_bytes)
        rows = self._spark.readStream.format("stomp").options(
            brokers=self._address, subscribe=log, startingOffsets="earliest"
        )
        writer = rows.load().writeStream.foreachBatch(sink)
        query = writer.option("checkpointLocation", str(self._folder / f"checkpoint.{next(self._numbers)}")).start()
        times: list[float] = []
        try:
            for number in range(LONE_RECORDS + 3):
                start = time.perf_counter()
                if number:
                    fill(self._address, log, 1, scenario.value_bytes)
                try:
                    came = seen.get(timeout=60)
                except Empty:
                    raise RuntimeError("a record did not come through within a minute") from None
                if number >= 3:
                    times.append((came - start) * 1e6)
                time.sleep(0.3)  # the query is idle when the next one comes
        finally:
            query.stop()
        times.sort()
        yield {"p50_us": times[len(times) // 2], "max_us": times[-1]}


class _Usage:
    """CPU time of the broker, of Java, and of all Python processes of Spark."""

    def __init__(self, broker: psutil.Process) -> None:
        self._broker = broker
        self._before = self._seconds()

    def _seconds(self) -> tuple[float, float, float]:
        java = python = 0.0
        for process in psutil.Process().children(recursive=True):
            if process == self._broker:
                continue
            try:
                times, name = process.cpu_times(), process.name()
            except psutil.NoSuchProcess:
                continue
            if "java" in name:
                java += times.user + times.system
            else:  # workers that have ended count with the daemon that started them
                python += times.user + times.system + times.children_user + times.children_system
        times = self._broker.cpu_times()
        return times.user + times.system, java, python

    def since(self, rows_count: int) -> dict[str, float]:
        """Return the usage since this was made, for each row."""
        names = ("broker_cpu_us", "java_cpu_us", "python_cpu_us")
        spent = [now - before for now, before in zip(self._seconds(), self._before, strict=True)]
        return {name: max(0.0, seconds) * 1e6 / rows_count for name, seconds in zip(names, spent, strict=True)}


def _rates(scenario: SparkScenario, rate: float) -> dict[str, float]:
    return {"rate_per_second": rate, "log_bytes_per_second": rate * scenario.value_bytes}


def _to_nothing(rows: DataFrame) -> None:
    rows.write.format("noop").mode("append").save()


@contextmanager
def _broker(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """A broker; its HOST:PORT."""
    command = [sys.executable, "-m", "sluiceway", "serve", "--listen", "127.0.0.1:0", "--data", str(folder / "data")]
    with (folder / "broker.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=log
        )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline().decode()
        if "stomp://" not in ready:
            raise RuntimeError(f"the broker did not start: {(folder / 'broker.log').read_text(encoding='utf-8')}")
        yield ready.rpartition("stomp://")[2].strip(), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.communicate()


def fill(address: str, log: str, rows_count: int, value_bytes: int, *, head: bytes = b"") -> int:
    """Append about `count` records, at least one; return their number."""
    from pyspark_stomp.wire import Address, Connection
    from sluiceway.queues.logs.batches import encode

    each = max(1, min(rows_count, BATCH_BYTES // value_bytes))
    body = encode([os.urandom(value_bytes) for _ in range(each)], head=head)
    with Connection(Address.parse(address)) as connection, connection.sender(log) as sender:
        for _ in range(rows_count // each):
            sender.send_batches(body, each)
    return rows_count // each * each


def measure(scenarios: Sequence[SparkScenario], rows_count: int, runs: int, done: Callable[[Results], None]) -> Results:
    """Run these; `done` gets all that is measured after each of them."""
    import pyspark

    import sluiceway
    from pyspark_stomp.local import session

    spark = session("sluiceway-perf", cores_count=TASKS, log_level="OFF")
    spark.dataSource.register(Prebuilt)
    java = spark.sparkContext._jvm.System.getProperty("java.version")  # type: ignore[union-attr]
    versions = {SUBJECT: f"sluiceway/{sluiceway.__version__}", "spark": f"{pyspark.__version__}, Java {java}"}
    settings = {"runs": str(runs), "rows": f"{rows_count:,}", "tasks": str(TASKS)}
    machine = describe_machine()
    found: list[Measurement] = []
    with tempfile.TemporaryDirectory(prefix="sluiceway-perf-spark-") as name:
        folder = Path(name)
        with _broker(folder) as (address, broker):
            bench = Bench(spark, address, broker, folder, rows_count)
            for scenario in scenarios:
                number = 0
                try:
                    for number, figures in enumerate(bench.runs(scenario, runs), 1):
                        found.append(Measurement(scenario.name, SUBJECT, number, figures))
                except RuntimeError as error:
                    found.append(Measurement(scenario.name, SUBJECT, number + 1, {}, (str(error),)))
                done(Results(machine, versions, settings, tuple(found)))
    spark.stop()
    return Results(machine, versions, settings, tuple(found))
