"""Rows on their way out: which columns a sink takes, which broker and destination gets a row, and the bytes of it.

    value       STRING or BINARY    required, not null: the body
    key         STRING or BINARY    of the record; header `key` of a message
    topic       STRING              where it goes, unless the option `topic` says it for all
    partition   INT                 place of the broker in the option `brokers`; null: as the option `partitioner` says
    headers     MAP                 texts

Columns that only the source has (offset, timestamp, message_id) are passed over, so that what was read can be written
as it is. Where no row has headers, no Python runs for a row on its way to a log: values and keys are taken as Arrow has
them.

A row of a sink that writes exactly once gets the same broker each time: without a key it is the hash of its value that
decides, since what is run again after half of the brokers have committed must not choose anew.
"""

from __future__ import annotations

import base64
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import attrs

from pyspark_stomp.schema import SchemaError
from sluiceway.protocols.stomp.escaping import escape_name, escape_value
from sluiceway.queues.logs.batches import CONTENT_TYPE, encode_column
from sluiceway.queues.logs.codecs import Codec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

BATCH_BYTES: Final = 1 << 20
"""Size of one batch, and of one SEND, approximately."""
BATCH_ROWS: Final = 1 << 16
FRAMES_BYTES: Final = 256 * 1024
FRAMES_ROWS: Final = 1000
"""SENDs that share a receipt."""
_TEXTS: Final = ("string", "binary")
_COLUMNS: Final = {
    "value": _TEXTS,
    "key": _TEXTS,
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("map<string,string>",),
}
_PASSED_OVER: Final = frozenset(("offset", "timestamp", "message_id"))
_RESERVED: Final = frozenset(
    ("destination", "content-length", "receipt", "transaction", "key", "key-base64", "sluiceway-commit")
)
_KINDS: Final = ("/log/", "/queue/", "/topic/")


class RowError(ValueError):
    """A row that can't be written. The message says which column, and the remedy."""


def check_schema(schema: StructType, *, has_topic: bool) -> None:
    """Raises SchemaError for rows that a sink can't write. `has_topic`: an option says where all go."""
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, kind in kinds.items():
        if name in _PASSED_OVER:
            continue
        if name not in _COLUMNS:
            raise SchemaError(
                f"a sink has no column {name!r}: select value (and key, topic, partition, headers), for instance with "
                "to_json(struct(*)) AS value"
            )
        if kind not in _COLUMNS[name]:
            raise SchemaError(f"column {name} is {' or '.join(_COLUMNS[name])}, not {kind}: cast it")
    if "value" not in kinds:
        raise SchemaError("there is no column value: select the body AS value")
    if not has_topic and "topic" not in kinds:
        raise SchemaError("nothing says where the rows go: set the option topic, or add a column topic")


@attrs.frozen
class Share:
    """Rows for one destination at one broker, in order."""

    broker: int
    destination: str
    rows: pa.RecordBatch


class Router:
    """Says where rows go."""

    def __init__(self, topic: str | None, brokers_count: int, *, at_random: bool, repeatable: bool) -> None:
        self._topic = topic
        self._brokers_count = brokers_count
        self._at_random = at_random
        self._repeatable = repeatable
        self._turn = 0

    def shares(self, rows: pa.RecordBatch) -> Iterator[Share]:
        """Split rows by broker and destination. Raises RowError."""
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = _checked(rows)
        for destination, of_one in self._by_destination(rows):
            numbers = self._brokers(of_one)
            if isinstance(numbers, int):
                yield Share(numbers, destination, of_one)
                continue
            for broker in range(self._brokers_count):
                mine = of_one.filter(pc.equal(numbers, pa.scalar(broker, pa.int32())))
                if mine.num_rows:
                    yield Share(broker, destination, mine)

    def _by_destination(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        import pyarrow.compute as pc

        if self._topic is not None:
            yield self._topic, rows
            return
        topics = rows.column("topic")
        if topics.null_count:
            raise RowError("a row has no topic: fill the column, or set the option topic for all rows")
        names = pc.unique(topics).to_pylist()
        for name in names:
            if not name.startswith(_KINDS) or "\0" in name:
                raise RowError(
                    f"{name[:80]!r} in column topic can't be written: write /log/NAME, /queue/NAME or /topic/NAME"
                )
            yield name, rows if len(names) == 1 else rows.filter(pc.equal(topics, name))

    def _brokers(self, rows: pa.RecordBatch) -> pa.Array | int:
        """Choose the broker of each row, or of all rows."""
        import pyarrow as pa

        if self._brokers_count == 1 and "partition" not in rows.schema.names:
            return 0
        found: list[int | None] = [None] * rows.num_rows
        if "partition" in rows.schema.names:
            found = rows.column("partition").to_pylist()
            for number in found:
                if number is not None and not 0 <= number < self._brokers_count:
                    raise RowError(f"column partition says {number}: the option brokers names {self._brokers_count}")
        if None in found:
            chosen = self._chosen(rows)
            found = [chosen[place] if number is None else number for place, number in enumerate(found)]
        return pa.array(found, pa.int32())

    def _chosen(self, rows: pa.RecordBatch) -> list[int]:
        """Choose as `sluiceway.client.partitioning` does, unless the choice could not be repeated."""
        count = self._brokers_count
        self._turn += 1
        turn = self._turn % count
        if self._at_random:
            return [turn] * rows.num_rows
        keys = rows.column("key").to_pylist() if "key" in rows.schema.names else [None] * rows.num_rows
        if not self._repeatable:
            return [turn if key is None else zlib.crc32(_bytes(key)) % count for key in keys]
        values = rows.column("value").to_pylist()
        return [
            zlib.crc32(_bytes(value if key is None else key)) % count for key, value in zip(keys, values, strict=True)
        ]


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _checked(rows: pa.RecordBatch) -> pa.RecordBatch:
    if rows.column("value").null_count:
        raise RowError("a row has a value that is null: filter it out, or write coalesce(value, '')")
    return rows


# ---------------------------------------------------------------------- to logs


def batches(rows: pa.RecordBatch, codec: Codec) -> Iterator[tuple[bytes, int]]:
    """Batches of a log, and how many records each has. Raises RowError."""
    values = _binary(rows.column("value"))
    keys = _binary(rows.column("key")) if "key" in rows.schema.names else None
    if keys is not None and keys.null_count == len(keys):
        keys = None
    for start, stop, head in _runs(rows):
        offsets = _offsets(values)
        place = start
        while place < stop:
            most = bisect_right(offsets, offsets[place] + BATCH_BYTES, place + 1, stop + 1) - 1
            end = min(max(place + 1, most), place + BATCH_ROWS, stop)
            parts = _column(values.slice(place, end - place))
            if keys is not None:
                parts += _column(keys.slice(place, end - place).fill_null(b""))
            yield (
                encode_column(b"".join(parts), end - place, head=head, keys=keys is not None, codec=codec),
                end - place,
            )
            place = end


def _binary(column: pa.Array) -> pa.Array:
    """The same bytes; offsets of four bytes."""
    import pyarrow as pa

    return column if column.type == pa.binary() else column.cast(pa.binary())


def _offsets(column: pa.Array) -> memoryview:
    view = memoryview(column.buffers()[1]) if len(column) else memoryview(bytes(4))
    return view.cast("B").cast("i")[column.offset : column.offset + len(column) + 1]


def _column(column: pa.Array) -> list[Any]:
    """Offsets from 0 on, and the bytes of the values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    _validity, table, data = column.buffers()
    offsets = pa.Array.from_buffers(pa.int32(), len(column) + 1, [None, table], offset=column.offset)
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    rebased = pc.subtract(offsets, pa.scalar(first, pa.int32())).buffers()[1]
    values = memoryview(data)[first:last] if data is not None else b""
    return [memoryview(rebased)[: 4 * (len(column) + 1)], values]


def _runs(rows: pa.RecordBatch) -> Iterator[tuple[int, int, bytes]]:
    """Consecutive rows of the same headers, and these as header lines."""
    count = rows.num_rows
    headers = rows.column("headers") if "headers" in rows.schema.names else None
    if headers is None or headers.null_count == count:
        yield 0, count, b""
        return
    start, lines = 0, None
    known: dict[Any, bytes] = {}
    for place, pairs in enumerate(headers.to_pylist()):
        key = tuple(pairs) if pairs else ()
        found = known.get(key)
        if found is None:
            if len(known) > FRAMES_ROWS:
                known.clear()
            found = known[key] = _lines(key)
        if lines is not None and found != lines:
            yield start, place, lines
            start = place
        lines = found
    yield start, count, lines or b""


def _lines(pairs: tuple[tuple[str, str | None], ...]) -> bytes:
    """Header lines in the form of STOMP 1.2. Raises RowError."""
    lines = []
    for name, text in pairs:
        if name in _RESERVED or (name == "content-type" and text == CONTENT_TYPE):
            raise RowError(f"column headers has {name!r}, which a row can't set: leave it out")
        if "\0" in name or "\0" in (text or ""):
            raise RowError(f"header {name!r} in column headers has a NUL, which no header can hold: encode it")
        if text is not None:
            lines.append(f"{escape_name(name, '1.2')}:{escape_value(text, '1.2')}")
    return "\n".join(lines).encode()


# ---------------------------------------------------------------------- to queues and topics


def frames(rows: pa.RecordBatch, destination: str, *, persistent: bool) -> Iterator[tuple[Callable[[str], bytes], int]]:
    """SENDs, some at a time: what makes their bytes, given the receipt for the last of them; and how many they are.
    Raises RowError.
    """
    values = _binary(rows.column("value")).to_pylist()
    keys = rows.column("key").to_pylist() if "key" in rows.schema.names else None
    start = f"SEND\ndestination:{escape_value(destination, '1.2')}\npersistent:{str(persistent).lower()}\n".encode()
    made: list[bytes] = []
    made_bytes = 0
    for first, stop, head in _runs(rows):
        opening = start + head + b"\n" if head else start
        for place in range(first, stop):
            value = values[place]
            key = b"" if keys is None or keys[place] is None else _key_line(keys[place])
            frame = b"%bcontent-length:%d\n%b\n%b\0" % (opening, len(value), key, value)
            made.append(frame)
            made_bytes += len(frame)
            if made_bytes >= FRAMES_BYTES or len(made) >= FRAMES_ROWS:
                yield _with_receipt(made), len(made)
                made, made_bytes = [], 0
    if made:
        yield _with_receipt(made), len(made)


def _key_line(key: str | bytes) -> bytes:
    data = _bytes(key)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:  # bytes that no header can hold as they are, such as those of a number
        return b"key-base64:" + base64.b64encode(data) + b"\n"
    return f"key:{escape_value(text, '1.2')}\n".encode() if text else b""


def _with_receipt(made: list[bytes]) -> Callable[[str], bytes]:
    before, last = b"".join(made[:-1]), made[-1]

    def frames_with(receipt: str) -> bytes:
        return before + last.replace(b"SEND\n", f"SEND\nreceipt:{receipt}\n".encode(), 1)

    return frames_with
