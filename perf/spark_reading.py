"""How fast Spark reads logs, beside what its own path from Python carries: a source that yields one Arrow batch, made
once, over and over. What is missing to that ceiling is ours: wire, broker, columns.

    python -m perf spark --rows 2000000 --runs 3

The broker is a process of its own. All that Spark does before the first row (planning, starting workers) counts, as for
anybody who runs a job; so more rows give higher rates.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ROOT: Final = Path(__file__).resolve().parent.parent
BATCH_BYTES: Final = 500_000
"""Of what is appended at once; what a producer of `sluiceway.client` makes is of this order."""
TASKS: Final = 2
TARGETS: Final = {"read-100b": 500_000, "stream-100b": 300_000, "read-1k": 300_000_000 // 1024}
"""Rows a second."""


@attrs.frozen
class Line:
    """What one scenario gave."""

    name: str
    rows_per_second: list[float]
    value_bytes: int

    @property
    def median(self) -> float:
        return statistics.median(self.rows_per_second)

    def text(self) -> str:
        """For people."""
        wanted = TARGETS.get(self.name)
        low, high = min(self.rows_per_second), max(self.rows_per_second)
        said = f"{self.name:22} {self.median:12,.0f} rows/s {self.median * self.value_bytes / 1e6:8,.0f} MB/s"
        said += f"   {low:,.0f} .. {high:,.0f}"
        return said if wanted is None else f"{said}   target {wanted:,}: {'met' if self.median >= wanted else 'MISSED'}"


class Prebuilt(DataSource):
    """Rows as those of a log, from one Arrow batch."""

    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    def schema(self) -> str:
        from pyspark_stomp.schema import ddl

        return ddl(include_headers=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _PrebuiltReader(int(self.options["rows"]), int(self.options["bytes"]))


class _PrebuiltReader(DataSourceReader):
    def __init__(self, rows_count: int, value_bytes: int) -> None:
        self._rows_count = rows_count
        self._value_bytes = value_bytes

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._rows_count // TASKS) for _ in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark_stomp.schema import COLUMNS, Rows
        from queues.logs.batches import Batch, encode, stamped

        count = min(10_000, max(1, (4 << 20) // self._value_bytes))
        sent = encode([bytes(self._value_bytes)] * count)
        batch = Batch(stamped(sent, 0, 1_700_000_000_000) + sent[32:])
        (made,) = Rows(list(COLUMNS), "/log/a", 0).add(batch, "log.abcdef012345")
        for _ in range(partition.value // count):
            yield made


@contextmanager
def _broker(folder: Path) -> Iterator[str]:
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
        yield ready.rpartition("stomp://")[2].strip()
    finally:
        process.terminate()
        process.communicate()


def _fill(address: str, log: str, rows_count: int, value_bytes: int, *, head: bytes = b"") -> int:
    """Append about so many records, at least one; how many they are."""
    from pyspark_stomp.wire import Address, Connection
    from queues.logs.batches import encode

    each = max(1, min(rows_count, BATCH_BYTES // value_bytes))
    body = encode([os.urandom(value_bytes) for _ in range(each)], head=head)
    with Connection(Address.parse(address)) as connection, connection.sender(log) as sender:
        for _ in range(rows_count // each):
            sender.send_batches(body, each)
    return rows_count // each * each


def measure(rows_count: int, runs: int, say: Callable[[str], None]) -> list[Line]:
    """All scenarios."""
    from pyspark_stomp.local import session

    spark = session("sluiceway-perf", cores_count=TASKS, log_level="OFF")
    spark.dataSource.register(Prebuilt)
    lines: list[Line] = []

    def add(name: str, value_bytes: int, count: int, one: Callable[[], float]) -> None:
        one()  # the first starts workers and compiles
        lines.append(Line(name, [count / one() for _ in range(runs)], value_bytes))
        say(lines[-1].text())

    with tempfile.TemporaryDirectory(prefix="sluiceway-perf-spark-") as name:
        folder = Path(name)
        with _broker(folder) as address:
            small = _fill(address, "/log/small", rows_count, 100)
            headed = _fill(address, "/log/headed", rows_count // 4, 100, head=b"content-type:text/plain\nshop:north\n")
            large = _fill(address, "/log/large", rows_count // 4, 1024)

            def read(log: str, *, schema: str = "", **options: str) -> Callable[[], float]:
                def one() -> float:
                    given = {"brokers": address, "subscribe": log, "minPartitions": str(TASKS), **options}
                    reader = spark.read.format("stomp").options(**given)
                    return _seconds_of((reader.schema(schema) if schema else reader).load())

                return one

            def ceiling(value_bytes: int, count: int) -> Callable[[], float]:
                given = {"rows": str(count), "bytes": str(value_bytes)}
                return lambda: _seconds_of(spark.read.format("prebuilt").options(**given).load())

            add("ceiling-100b", 100, small, ceiling(100, small))
            add("read-100b", 100, small, read("/log/small"))
            add("read-100b-value", 100, small, read("/log/small", schema="value binary"))
            add("read-100b-headers", 100, headed, read("/log/headed", includeHeaders="true"))
            add("ceiling-1k", 1024, large, ceiling(1024, large))
            add("read-1k", 1024, large, read("/log/large"))
            lines.append(Line("stream-100b", _streamed(spark, address, folder, small), 100))
            say(lines[-1].text())
            say(f"append to sink: {_visible(spark, address, folder):.0f} ms (median of 20, one record each)")
    return lines


def _seconds_of(rows: DataFrame) -> float:
    start = time.perf_counter()
    rows.write.format("noop").mode("append").save()
    return time.perf_counter() - start


def _streamed(spark: SparkSession, address: str, folder: Path, count: int) -> list[float]:
    """The rate of each micro-batch but the first, all that Spark does around it included."""
    rows = spark.readStream.format("stomp").options(
        brokers=address,
        subscribe="/log/small",
        startingOffsets="earliest",
        minPartitions=str(TASKS),
        maxOffsetsPerTrigger=str(max(1, count // 5)),
    )
    writer = rows.load().writeStream.format("noop").option("checkpointLocation", str(folder / "streamed"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    progress: list[Any] = [each for each in query.recentProgress if each["numInputRows"]]
    return [each["numInputRows"] * 1000 / each["durationMs"]["triggerExecution"] for each in progress[1:]]


def _visible(spark: SparkSession, address: str, folder: Path) -> float:
    """Milliseconds from a SEND to its row in the sink, where a query waits for it."""
    seen: list[float] = []

    def sink(rows: DataFrame, _batch_id: int) -> None:
        if rows.count():
            seen.append(time.perf_counter())

    rows = spark.readStream.format("stomp").options(brokers=address, subscribe="/log/visible", groupId="perf").load()
    writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / "visible"))
    query = writer.start()
    times: list[float] = []
    try:
        for number in range(23):
            known = len(seen)
            time.sleep(0.3)
            start = time.perf_counter()
            _fill(address, "/log/visible", 1, 100)
            while len(seen) == known:
                if time.perf_counter() - start > 60:
                    raise TimeoutError("a record did not come through")
                time.sleep(0.002)
            if number >= 3:
                times.append((seen[-1] - start) * 1000)
    finally:
        query.stop()
    return statistics.median(times)
