"""The data source `stomp`: which reader or writer serves what the options ask for.

Spark makes a data source in every process that needs it, and pickles it between them. Readers and writers are imported
then: a session that only reads does not load the writers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from pyspark_stomp.options import read_options, write_options
from pyspark_stomp.schema import columns_of, ddl

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class StompDataSource(DataSource):
    """`spark.read.format("stomp")` and its three relatives."""

    @classmethod
    def name(cls) -> str:
        """Name to be used in `format(...)`."""
        return "stomp"

    def schema(self) -> str:
        """All columns; a sink has no schema of its own."""
        given = {name.lower(): value for name, value in self.options.items()}
        return ddl(include_headers=given.get("includeheaders", "").strip().lower() == "true")

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make a reader of a batch. Raises OptionError, SchemaError."""
        options = read_options(self.options, streaming=False)
        columns = columns_of(schema)
        if options.of_queues:
            from pyspark_stomp.claims import QueueReader

            return QueueReader(options, columns)
        from pyspark_stomp.logs import LogReader

        return LogReader(options, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Make a reader of a stream. Raises OptionError, SchemaError."""
        options = read_options(self.options, streaming=True)
        columns = columns_of(schema)
        if options.of_queues:
            from pyspark_stomp.claims import QueueStreamReader

            return QueueStreamReader(options, columns)
        from pyspark_stomp.logs import LogStreamReader

        return LogStreamReader(options, columns)

    # Spark calls these by position in one process, and by these very names in another one.

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Make a writer of a batch. Raises OptionError, SchemaError."""
        from pyspark_stomp.sink import BatchWriter

        return BatchWriter(write_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Make a writer of a stream. Raises OptionError, SchemaError."""
        from pyspark_stomp.sink import StreamWriter

        return StreamWriter(write_options(self.options), schema)
