"""Streaming queries whose micro-batches a test looks at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Row = tuple[str, int, int]
"""Log, partition, offset."""


class Query:
    """One query that may be started again and again, with the same checkpoint."""

    def __init__(self, spark: SparkSession, checkpoint: Path, **options: Any) -> None:
        self._spark = spark
        self.checkpoint = checkpoint
        self.options = {name: str(value) for name, value in options.items()}
        self.runs: list[tuple[int, list[Row]]] = []
        """What the sink was given: batch id and rows, in the order of the calls."""
        self.values: list[bytes] = []
        self.before: Callable[[int], None] | None = None
        """Called with the batch id in the sink, before the rows are taken: may raise."""
        self.after: Callable[[int], None] | None = None

    def _sink(self, rows: DataFrame, batch_id: int) -> None:
        if self.before is not None:
            self.before(batch_id)
        found = rows.select("topic", "partition", "offset", "value").collect()
        self.runs.append((batch_id, sorted((row[0], row[1], row[2]) for row in found)))
        self.values += [bytes(row[3]) for row in found]
        if self.after is not None:
            self.after(batch_id)

    def start(self, **trigger: Any) -> StreamingQuery:
        """Start it; without a trigger it runs until it is stopped."""
        rows = self._spark.readStream.format("stomp").options(**self.options).load()
        writer = rows.writeStream.foreachBatch(self._sink).option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**trigger).start() if trigger else writer.start()

    def run(self) -> list[tuple[int, list[Row]]]:
        """With what is there now (AvailableNow), to its end; what the sink was given meanwhile."""
        known = len(self.runs)
        query = self.start(availableNow=True)
        assert query.awaitTermination(200), "the query has not ended"
        return self.runs[known:]

    def logged(self, kind: str) -> list[int]:
        """Which batches stand in the checkpoint: `offsets` or `commits`."""
        folder = self.checkpoint / kind
        return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit()) if folder.exists() else []

    def forget(self, kind: str, batch_id: int) -> None:
        """As if it had crashed before this was written."""
        (self.checkpoint / kind / str(batch_id)).unlink()
        (self.checkpoint / kind / f".{batch_id}.crc").unlink(missing_ok=True)


def rows_of(log: str, partition: int, start: int, stop: int) -> list[Row]:
    """These records."""
    return [(log, partition, offset) for offset in range(start, stop)]
