"""Rows of records: which columns there are, and how batches of a log become Arrow record batches.

    key         BINARY      of the record; null if it has none
    value       BINARY      its body
    topic       STRING      /log/NAME
    partition   INT         place of the broker in the option `brokers`
    offset      BIGINT      its index in the log of that broker
    timestamp   TIMESTAMP   when the broker appended it
    message_id  STRING      unlike for all records of all logs of a broker
    headers     MAP         of the record; only with the option includeHeaders

No Python runs for a record: values and keys are taken as they lie in the batch, offsets and times are computed by
Arrow, the other columns are one value or one map, repeated. Only in small batches (of producers that send single
records) values are joined one by one.

Spark can't tell a source which columns it wants; who reads `.schema("value binary, offset bigint")` gets just those,
and the others cost nothing. A record batch has at most ROWS_MAX rows and about BYTES_MAX bytes of values, since Spark
holds some of them at a time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from sluiceway.client.errors import DamagedError
from sluiceway.client.records import headers_of, key_of
from sluiceway.queues.logs.batches import Batch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

ROWS_MAX: Final = 10_000
BYTES_MAX: Final = 4 << 20
SMALL_COUNT: Final = 32
SMALL_BYTES: Final = 256 << 10
"""Batches of fewer records and bytes are joined value by value: cheaper than columns of a few rows."""
COLUMNS: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "message_id": "string",
}
HEADERS: Final = {"headers": "map<string,string>"}
INTERNAL_HEADERS: Final = frozenset(("sluiceway-commit", "key", "key-base64"))
"""Headers that rows do not show: the broker's own, and the key, which has a column."""


class SchemaError(ValueError):
    """A schema that this source does not have."""


def ddl(*, include_headers: bool) -> str:
    """All columns, as Spark writes schemas."""
    return ", ".join(f"{name} {kind}" for name, kind in (COLUMNS | (HEADERS if include_headers else {})).items())


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns that are wanted, in order. Raises SchemaError for one that there is not, or not of this type."""
    kinds = COLUMNS | HEADERS
    for field in schema.fields:
        kind = kinds.get(field.name)
        if kind is None:
            raise SchemaError(f"there is no column {field.name!r}; there are {', '.join(kinds)}")
        if field.dataType.simpleString() != kind:
            cast = f": read it as {kind}, then CAST({field.name} AS STRING)" if kind == "binary" else ""
            raise SchemaError(f"column {field.name} is {kind}, not {field.dataType.simpleString()}{cast}")
    return tuple(field.name for field in schema.fields)


class Rows:
    """Makes record batches of the records of one partition of one log. Needs pyarrow."""

    def __init__(
        self,
        columns: Sequence[str],
        topic: str,
        partition: int,
        *,
        rows_max: int = ROWS_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self._columns = tuple(columns)
        self._topic = topic
        self._partition = partition
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._schema = arrow_schema(self._columns)
        self._waiting: list[Batch] = []
        self._waiting_count = 0
        self._waiting_bytes = 0
        self._id_prefix = ""
        self._makers: dict[str, Callable[[_Piece], pa.Array]] = {
            "key": self._keys,
            "value": self._values,
            "topic": self._topics,
            "partition": self._partitions,
            "offset": self._offsets,
            "timestamp": self._timestamps,
            "message_id": self._message_ids,
            "headers": self._headers,
        }

    def add(self, batch: Batch, log_id: str) -> Iterator[pa.RecordBatch]:
        """The next batch; what is full now. `log_id`: the beginning of its message-ids. Raises BatchError."""
        self._id_prefix = f"{log_id}-"
        if batch.count >= SMALL_COUNT or batch.plain_bytes >= SMALL_BYTES:
            yield from self.rest()
            for start, stop in self._cuts(batch):
                yield self._record_batch(_Piece([batch], batch.first_index + start, stop - start, start, stop))
            return
        if self._waiting and (
            self._waiting_count + batch.count > self._rows_max
            or self._waiting_bytes + batch.plain_bytes > self._bytes_max
            or self._waiting[-1].end_index != batch.first_index
        ):
            yield from self.rest()
        self._waiting.append(batch)
        self._waiting_count += batch.count
        self._waiting_bytes += batch.plain_bytes

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that wait for more."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            count, self._waiting_count, self._waiting_bytes = self._waiting_count, 0, 0
            if len(waiting) == 1:
                yield self._record_batch(_Piece(waiting, waiting[0].first_index, count, 0, count))
            else:
                yield self._record_batch(_Piece(waiting, waiting[0].first_index, count, 0, 0))

    def _cuts(self, batch: Batch) -> Iterator[tuple[int, int]]:
        count = batch.count
        if count <= self._rows_max and batch.plain_bytes <= self._bytes_max:
            yield 0, count
            return
        offsets = batch.offsets()
        start = 0
        while start < count:
            most = bisect_right(offsets, offsets[start] + self._bytes_max, start + 1, count + 1) - 1
            stop = min(max(start + 1, most), start + self._rows_max, count)
            yield start, stop
            start = stop

    def _record_batch(self, piece: _Piece) -> pa.RecordBatch:
        import pyarrow as pa

        if not self._columns:
            return pa.RecordBatch.from_arrays([pa.nulls(piece.count)], names=[""]).select([])
        arrays = [self._makers[name](piece) for name in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    # ------------------------------------------------------------------ columns

    def _values(self, piece: _Piece) -> pa.Array:
        import pyarrow as pa

        if piece.joined:
            values: list[memoryview] = []
            for batch in piece.batches:
                values += batch.values()
            return pa.array(values, pa.binary())
        batch = piece.batches[0]
        return _column(batch, 0)[0].slice(piece.start, piece.count)

    def _keys(self, piece: _Piece) -> pa.Array:
        import pyarrow as pa
        import pyarrow.compute as pc

        if piece.joined:
            parts: list[bytes | memoryview | None] = []
            for batch in piece.batches:
                keys = batch.keys()
                parts += [_lone_key(batch)] * batch.count if keys is None else [key or None for key in keys]
            return pa.array(parts, pa.binary())
        batch = piece.batches[0]
        if not batch.has_keys:
            return pa.repeat(pa.scalar(_lone_key(batch), pa.binary()), piece.count)
        # The offsets of the keys lie behind the values, wherever that is: they are copied to where Arrow may read them.
        found = _column(batch, _column(batch, 0)[1])[0].slice(piece.start, piece.count)
        absent = pc.equal(pc.binary_length(found), 0)
        return pc.if_else(absent, pa.scalar(None, pa.binary()), found)

    def _topics(self, piece: _Piece) -> pa.Array:
        return _repeated(self._topic, "string", self._rows_max).slice(0, piece.count)

    def _partitions(self, piece: _Piece) -> pa.Array:
        return _repeated(self._partition, "int32", self._rows_max).slice(0, piece.count)

    def _offsets(self, piece: _Piece) -> pa.Array:
        import pyarrow.compute as pc

        return pc.add(_counting(self._rows_max).slice(0, piece.count), piece.first_index)

    def _timestamps(self, piece: _Piece) -> pa.Array:
        import pyarrow as pa

        kind = pa.timestamp("us", tz="UTC")
        if not piece.joined:
            return pa.repeat(pa.scalar(piece.batches[0].timestamp_ms * 1000, kind), piece.count)
        times: list[int] = []
        for batch in piece.batches:
            times += [batch.timestamp_ms * 1000] * batch.count
        return pa.array(times, pa.int64()).cast(kind)

    def _message_ids(self, piece: _Piece) -> pa.Array:
        import pyarrow as pa
        import pyarrow.compute as pc

        numbers = self._offsets(piece).cast(pa.string())
        return pc.binary_join_element_wise(pa.scalar(self._id_prefix), numbers, "")

    def _headers(self, piece: _Piece) -> pa.Array:
        import pyarrow as pa

        runs: list[pa.Array] = []
        start = 0
        batches = piece.batches
        while start < len(batches):
            stop, count = start, 0
            head = batches[start].head
            while stop < len(batches) and batches[stop].head == head:
                count += batches[stop].count
                stop += 1
            shown = {name: text for name, text in headers_of(head).items() if name not in INTERNAL_HEADERS}
            runs.append(_map_of(shown, count if piece.joined else piece.count))
            start = stop
        return runs[0] if len(runs) == 1 else pa.concat_arrays(runs)


class _Piece:
    """Some consecutive records: of one batch those from `start` to before `stop`, or all of several batches."""

    __slots__ = ("batches", "count", "first_index", "joined", "start")

    def __init__(self, batches: list[Batch], first_index: int, count: int, start: int, stop: int) -> None:
        self.batches = batches
        self.first_index = first_index
        self.count = count
        self.start = start
        self.joined = stop == 0


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Exactly as Spark wants it: it compares types."""
    import pyarrow as pa

    kinds = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "message_id": pa.string(),
        "headers": pa.map_(pa.string(), pa.string()),
    }
    return pa.schema([(name, kinds[name]) for name in columns])


def _column(batch: Batch, start: int) -> tuple[pa.Array, int]:
    """The column of values or keys whose offsets begin at this byte of the body, and where it ends; a view."""
    import pyarrow as pa

    plain = memoryview(batch.plain())
    table_bytes = 4 * (batch.count + 1)
    table = plain[start : start + table_bytes]
    found = pa.BinaryArray.from_buffers(
        pa.binary(),
        batch.count,
        [
            None,
            pa.py_buffer(table if start == 0 else bytes(table)),
            pa.py_buffer(plain[start + table_bytes :]),
        ],
    )
    try:
        if len(table) < table_bytes:
            raise ValueError("it ends within its offsets")
        found.validate(full=True)  # the offsets come from a wire: they must not lead anywhere else
    except ValueError as error:
        raise DamagedError(f"records from {batch.first_index} are damaged: {error}") from error
    end = int.from_bytes(table[-4:], "little")
    return found, start + table_bytes + end


def _lone_key(batch: Batch) -> bytes | None:
    """The key of a record that was sent by itself: a header."""
    return key_of(headers_of(batch.head))


@lru_cache(maxsize=64)
def _repeated(value: Any, kind: str, count: int) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(value, pa.type_for_alias(kind)), count)


@lru_cache(maxsize=4)
def _counting(count: int) -> pa.Array:
    """0, 1, 2, ..."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(array("q", range(count)))])


def _map_of(headers: Mapping[str, str], count: int) -> pa.Array:
    """Return an array of `count` times this map."""
    import pyarrow as pa
    import pyarrow.compute as pc

    each = len(headers)
    offsets = _counting(ROWS_MAX + 1) if count <= ROWS_MAX else _counting(count + 1)
    ends = pc.multiply(offsets.slice(0, count + 1), each).cast(pa.int32())
    places = _places(each, ROWS_MAX if count <= ROWS_MAX else count).slice(0, each * count)
    names = pa.array(list(headers), pa.string()).take(places)
    texts = pa.array(list(headers.values()), pa.string()).take(places)
    return pa.MapArray.from_arrays(ends, names, texts)


@lru_cache(maxsize=64)
def _places(each: int, count: int) -> pa.Array:
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int32(), each * count, [None, pa.py_buffer(array("i", range(each)) * count)])
