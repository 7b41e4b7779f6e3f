"""A query in a process of its own that dies by `kill -9` at a chosen point of a micro-batch: the JVM, and with it all
of its Python processes. It reads a log and a queue, and writes both to a log.

    python -m tests.spark.killed_query BROKER CHECKPOINT POINT BATCH
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage

from pyspark_stomp.options import write_options
from pyspark_stomp.sink import StreamWriter, Written
from pyspark_stomp.source import StompDataSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

POINTS: Final = ("in the sink", "before the commit", "behind the commit")
GROUP: Final = "killed"


def kill_spark() -> None:
    """The JVM above this process."""
    parent = os.getppid()
    while parent > 1:
        if Path(f"/proc/{parent}/comm").read_text().strip() == "java":
            os.kill(parent, signal.SIGKILL)
            break
        parent = int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(os.getpid(), signal.SIGKILL)


class DyingWriter(StreamWriter):
    """Kills Spark in one batch."""

    point = ""
    batch = -1

    def write(self, iterator: Iterator[Any]) -> Written:
        """As always, but for that batch."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if self.point == "in the sink" and int(context.getLocalProperty("streaming.sql.batchId") or -1) == self.batch:
            return super().write(_until_dead(iterator))
        return super().write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """As always, but for that batch."""
        if batchId == self.batch and self.point == "before the commit":
            kill_spark()
        super().commit(messages, batchId)
        if batchId == self.batch and self.point == "behind the commit":
            kill_spark()


def _until_dead(iterator: Iterator[Any]) -> Iterator[Any]:
    for rows in iterator:
        yield rows.slice(0, rows.num_rows // 2)
        kill_spark()


class DyingSource(StompDataSource):
    """The format `dying`."""

    @classmethod
    def name(cls) -> str:
        """See above."""
        return "dying"

    def streamWriter(self, schema: Any, overwrite: bool) -> DyingWriter:
        """With options of its own, which say when it dies."""
        options = {name: text for name, text in self.options.items() if not name.startswith("dying")}
        writer = DyingWriter(write_options(options), schema)
        writer.point, writer.batch = self.options["dyingpoint"], int(self.options["dyingbatch"])
        return writer


def both_sources(spark: SparkSession, broker: str) -> DataFrame:
    """A log and a queue, so many of each at a time."""
    common = {"brokers": broker, "maxOffsetsPerTrigger": "100", "minPartitions": "2"}
    log = spark.readStream.format("stomp").options(**common, startingOffsets="earliest").load("/log/in")
    queue = spark.readStream.format("stomp").options(**common, groupId=GROUP).load("/queue/in")
    return log.select("value").union(queue.select("value"))


def main(broker: str, checkpoint: str, point: str, batch: str) -> None:
    """Until it is dead."""
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "512m")
        .getOrCreate()
    )
    spark.dataSource.register(DyingSource)
    query = (
        both_sources(spark, broker)
        .writeStream.format("dying")
        .options(brokers=broker, topic="/log/out", checkpointLocation=checkpoint, dyingpoint=point, dyingbatch=batch)
        .start()
    )
    query.awaitTermination(120)


if __name__ == "__main__":
    main(*sys.argv[1:])
