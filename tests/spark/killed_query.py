"""A query in a process of its own that dies by `kill -9` at a chosen point of a micro-batch: Python, Java and the
workers at once, as one process group. It reads a log and a queue, or the log alone, and writes them to a log.

    python -m tests.spark.killed_query '{"broker": ..., "checkpoint": ..., "point": ..., "batch": 2, "source": "both"}'
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition, WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadLimit

from pyspark_stomp.claims import QueueStreamReader
from pyspark_stomp.logs import LogStreamReader
from pyspark_stomp.options import read_options, write_options
from pyspark_stomp.schema import columns_of
from pyspark_stomp.sink import StreamWriter, Written
from pyspark_stomp.source import StompDataSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

POINTS: Final = (
    "before the offsets",  # the source has said how far the batch goes (and made a claim), Spark has not written it
    "before the read",  # Spark has written it, and nothing is read
    "in the sink",
    "before the commit",
    "behind the commit",  # the sink has published, Spark does not know
)
GROUP: Final = "killed"
BOTH: Final = "both"
ROOT: Final = Path(__file__).resolve().parents[2]

Offsets = dict[str, dict[str, int]]


@attrs.frozen
class Death:
    """When to die. Goes through options to the processes where that is."""

    point: str
    batch: int
    group: int
    """Of processes: who dies."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Death:
        """As `options` of a query has it."""
        return cls(options["dyingpoint"], int(options["dyingbatch"]), int(options["dyinggroup"]))

    def options(self) -> dict[str, str]:
        """To be given to the format `dying`."""
        return {"dyingPoint": self.point, "dyingBatch": str(self.batch), "dyingGroup": str(self.group)}

    def comes(self, point: str, batch: int) -> None:
        """If this is where."""
        if (point, batch) == (self.point, self.batch):
            os.killpg(self.group, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)  # Spark's workers have left the group


class DyingReader:
    """Of a stream: what the process that plans does. The one that reads has another copy, which lives."""

    death: Death | None = None
    planned = -1
    """The last batch that it has set an end to."""
    ends: Offsets | None = None
    """Of that one."""

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """Of Spark. All is done as always, but Spark does not hear of it."""
        ends: Offsets = super().latestOffset(start, limit)  # type: ignore[misc]
        if self.death is not None and ends != self.ends:  # Spark makes a first batch even if there is nothing for it
            self.ends = ends
            self.planned += 1
            self.death.comes("before the offsets", self.planned)
        return ends

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Of Spark."""
        if self.death is not None:
            self.death.comes("before the read", self.planned)
        ranges: Sequence[InputPartition] = super().partitions(start, end)  # type: ignore[misc]
        return ranges


class DyingLogReader(DyingReader, LogStreamReader):
    """Of a log."""


class DyingQueueReader(DyingReader, QueueStreamReader):
    """Of a queue."""


class DyingWriter(StreamWriter):
    """Dies in one batch."""

    death: Death

    def write(self, iterator: Iterator[Any]) -> Written:
        """As always, but for that batch."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        return super().write(self._until_dead(iterator, batch))

    def _until_dead(self, iterator: Iterator[Any], batch: int) -> Iterator[Any]:
        for rows in iterator:
            half = rows.num_rows // 2
            yield rows.slice(0, half)
            self.death.comes("in the sink", batch)
            yield rows.slice(half)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """As always, but for that batch."""
        self.death.comes("before the commit", batchId)
        super().commit(messages, batchId)
        self.death.comes("behind the commit", batchId)


class DyingSource(StompDataSource):
    """The format `dying`: with options of its own, which say when."""

    @classmethod
    def name(cls) -> str:
        """See above."""
        return "dying"

    def _others(self) -> dict[str, str]:
        return {name: text for name, text in self.options.items() if not name.startswith("dying")}

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Of a log or a queue."""
        options = read_options(self._others(), streaming=True)
        reader = (DyingQueueReader if options.of_queues else DyingLogReader)(options, columns_of(schema))
        reader.death = Death.of(self.options)
        return reader

    def streamWriter(self, schema: StructType, overwrite: bool) -> DyingWriter:
        """Into a log."""
        writer = DyingWriter(write_options(self._others()), schema)
        writer.death = Death.of(self.options)
        return writer


@attrs.frozen
class KilledQuery:
    """What is read, and where the checkpoint is; the sink is the log `/log/out`."""

    broker: str
    checkpoint: str
    source: str = BOTH
    starting: str = "earliest"

    def rows(self, spark: SparkSession, death: Death | None = None) -> DataFrame:
        """A log and a queue, so many of each at a time; or the log alone."""
        dying = {} if death is None else death.options()
        common = {"brokers": self.broker, "maxOffsetsPerTrigger": "100", "minPartitions": "2", "groupId": GROUP}
        log = spark.readStream.format("stomp").options(**common, startingOffsets=self.starting)
        if self.source != BOTH:
            return log.format("dying" if dying else "stomp").options(**dying).load("/log/in").select("value")
        # One of them plans its own death, or the claim that is made and never heard of would not be.
        queue = spark.readStream.format("dying" if dying else "stomp").options(**common, **dying)
        return log.load("/log/in").select("value").union(queue.load("/queue/in").select("value"))

    def die(self, point: str, batch: int) -> str:
        """Run it in a process of its own until it is dead; what that said on standard error."""
        plan = json.dumps({**attrs.asdict(self), "point": point, "batch": batch})
        # A file: Spark's workers would hold a pipe open until they notice that all is over.
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.killed_query", plan],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
            try:
                process.wait(200)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            errors.seek(0)
            said = errors.read()
        assert process.returncode == -signal.SIGKILL, said[-2000:]
        return said


def main(plan: str) -> None:
    """Until it is dead."""
    from pyspark_stomp.local import session

    asked = json.loads(plan)
    death = Death(asked.pop("point"), asked.pop("batch"), os.getpgrp())
    query = KilledQuery(**asked)
    spark = session("killed", cores_count=2, settings={"spark.driver.memory": "512m"}, log_level="OFF")
    spark.dataSource.register(DyingSource)
    rows = query.rows(spark, death)
    writer = rows.writeStream.format("dying").options(**death.options(), brokers=query.broker, topic="/log/out")
    writer.option("checkpointLocation", query.checkpoint).start().awaitTermination(150)


if __name__ == "__main__":
    main(*sys.argv[1:])
