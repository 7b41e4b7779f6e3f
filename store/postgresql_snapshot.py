"""One moment of a shard in a database, for tools that only read. The broker may work meanwhile, and is not disturbed.

All reading is in one transaction at REPEATABLE READ, which claims nothing. While it is open the server keeps the dead
rows of all tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Final

from .engine import Change, EngineError
from .postgresql_cluster import found_in
from .postgresql_schema import check_version
from .postgresql_sessions import Database

_SESSION: Final = "sluiceway store"
_ROWS_FIRST: Final = 8
_ROWS_MAX: Final = 4096
_PORTION_BYTES: Final = 1 << 20
"""About the size of what one round trip of an iteration brings."""
_GROWTH: Final = 8

_SIZE: Final = (
    b"SELECT coalesce(sum(octet_length(key) + octet_length(value)), 0)::bigint FROM sluiceway_records WHERE shard = %s"
)


class ReadOnlyError(EngineError):
    """A tool that only reads has tried to write: its mistake."""


class PostgresqlSnapshot:
    """An `Engine` of which nothing can be written. For one thread. A context manager that closes it."""

    def __init__(self, url: str, *, shard: int = 0) -> None:
        """Connect, and fix the moment. Raises UnusableUrlError, SchemaError and other EngineErrors."""
        self._database = database = Database(url)
        self._shard = shard
        self._numbers = count(1)
        self._connection = database.connect(_SESSION)
        try:
            with database.telling("reading"):
                self._connection.execute("SET idle_in_transaction_session_timeout = 0")  # a pipe may be slow
                self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                check_version(self._connection, database.words)
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> PostgresqlSnapshot:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def place(self) -> str:
        """Name of the database, without secrets."""
        return self._database.words

    def shards(self) -> list[int]:
        """Return the numbers of all shards that the database has, or is to have. Raises EngineError."""
        with self._database.telling("reading"):
            cluster = found_in(self._connection, self._database).row
        return [0] if cluster is None else list(range(cluster.shards_count))

    def get(self, key: bytes) -> bytes | None:
        query = b"SELECT value FROM sluiceway_records WHERE shard = %s AND key = %b"
        with self._database.telling(f"reading the key {key.hex()}"):
            row: Any = self._connection.cursor(binary=True).execute(query, (self._shard, key)).fetchone()
        return None if row is None else row[0]

    def iterate(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        yield from self._rows("key, value", start, stop, "DESC" if reverse else "ASC")

    def iterate_keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        for (key,) in self._rows("key", start, stop, "ASC"):
            yield key

    def _rows(self, columns: str, start: bytes, stop: bytes, order: str) -> Iterator[Any]:
        name = f"walk_{next(self._numbers)}"
        query = (
            f"DECLARE {name} NO SCROLL CURSOR FOR SELECT {columns} FROM sluiceway_records "
            f"WHERE shard = %s AND key >= %b AND key < %b ORDER BY key {order}"
        )
        rows_max = _ROWS_FIRST
        connection = self._connection
        with self._database.telling(f"reading from the key {start.hex()}"):
            connection.execute(query.encode(), (self._shard, start, stop))
        while True:
            with self._database.telling("reading on"):
                rows = connection.cursor(binary=True).execute(f"FETCH {rows_max} FROM {name}".encode()).fetchall()
            yield from rows
            if len(rows) < rows_max:
                break
            row_bytes = sum(len(column) for row in rows for column in row) // len(rows) + 1  # type: ignore[misc,arg-type]
            rows_max = max(1, min(rows_max * _GROWTH, _PORTION_BYTES // row_bytes, _ROWS_MAX))
        with self._database.telling("reading"):
            connection.execute(f"CLOSE {name}".encode())

    def write(self, changes: Sequence[Change], *, sync: bool) -> None:
        raise ReadOnlyError(f"{self.place}: it is only read")

    def compact(self, start: bytes, stop: bytes) -> None:
        raise ReadOnlyError(f"{self.place}: it is only read")

    def size_bytes(self) -> int:
        """Return the size of the shard's records."""
        with self._database.telling("reading its size"):
            row: Any = self._connection.execute(_SIZE, (self._shard,)).fetchone()
        return int(row[0])

    def close(self) -> None:
        """End the moment. Never raises; may be called again."""
        self._connection.close()
