"""Data sources for Spark's own path: a source that yields one Arrow batch, made once, over and over, and a sink that
drops its input. Both are Python data sources as `stomp` is one, with rows like those of a log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

TASKS: Final = 2


def rows_of_batch(value_bytes: int) -> int:
    """Rows of the prebuilt batch: as many as the source `stomp` puts into a batch of a log with large batches."""
    from pyspark_stomp.schema import BYTES_MAX, ROWS_MAX

    return min(ROWS_MAX, max(1, BYTES_MAX // value_bytes))


class Prebuilt(DataSource):
    """`format("prebuilt")`, options `rows` and `bytes` (of a value); as a sink it takes anything."""

    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    def schema(self) -> str:
        from pyspark_stomp.schema import ddl

        return ddl(include_headers=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(int(self.options["rows"]), int(self.options["bytes"]), tuple(schema.names))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _Discarding()


class _Reader(DataSourceReader):
    def __init__(self, rows_count: int, value_bytes: int, columns: tuple[str, ...]) -> None:
        self._rows_count = rows_count
        self._value_bytes = value_bytes
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._rows_count // TASKS) for _ in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark_stomp.schema import Rows
        from sluiceway.queues.logs.batches import Batch, encode, stamped

        count = min(rows_of_batch(self._value_bytes), partition.value)
        sent = encode([bytes(self._value_bytes)] * count)
        batch = Batch(stamped(sent, 0, 1_700_000_000_000) + sent[32:])
        (made,) = Rows(self._columns, "/log/a", 0).add(batch, "log.abcdef012345")
        for _ in range(partition.value // count):
            yield made
        if partition.value % count:
            yield made.slice(0, partition.value % count)


class _Discarding(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _rows in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        pass
