"""Rows: what of a record stands in which column, whatever batch it came in."""

from __future__ import annotations

import base64
import datetime
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

from pyspark_stomp.schema import BYTES_MAX, COLUMNS, HEADERS, ROWS_MAX, Rows  # noqa: E402
from sluiceway.client.errors import DamagedError  # noqa: E402
from sluiceway.queues.logs.batches import Batch, encode, stamped  # noqa: E402
from sluiceway.queues.logs.codecs import Codec  # noqa: E402

TIME_MS = 1_795_292_104_123
WHEN = datetime.datetime.fromtimestamp(TIME_MS // 1000, datetime.UTC) + datetime.timedelta(milliseconds=123)
ALL = (*COLUMNS, *HEADERS)


def batch_of(values: list[bytes], first: int = 0, **options: Any) -> Batch:
    sent = encode(values, **options)
    return Batch(stamped(sent, first, TIME_MS) + sent[32:])


def rows_of(*batches: Batch, columns: tuple[str, ...] = ALL, **limits: int) -> list[dict[str, Any]]:
    return [row for made in made_of(*batches, columns=columns, **limits) for row in made.to_pylist()]


def made_of(*batches: Batch, columns: tuple[str, ...] = ALL, **limits: int) -> list[Any]:
    rows = Rows(columns, "/log/a", 3, **limits)
    made = [found for batch in batches for found in rows.add(batch, "log.abc")]
    made += rows.rest()
    for each in made:
        each.validate(full=True)
    return made


def test_a_row_has_all_of_its_record() -> None:
    found = rows_of(batch_of([b"one", b""], 7, keys=[b"k", b""], head=b"kind:x\ncolour:a\\cb\n"))
    headers = [("kind", "x"), ("colour", "a:b")]
    common = {"topic": "/log/a", "partition": 3, "timestamp": WHEN, "headers": headers}
    assert found == [
        {"key": b"k", "value": b"one", "offset": 7, "message_id": "log.abc-7", **common},
        {"key": None, "value": b"", "offset": 8, "message_id": "log.abc-8", **common},
    ]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.ZSTD])
@pytest.mark.parametrize("keyed", [False, True])
def test_rows_are_the_same_in_small_and_large_and_compressed_batches(codec: Codec, keyed: bool) -> None:
    values = [b"%d" % number * (number % 7) for number in range(500)]
    keys = [b"k%d" % number * (number % 3) for number in range(500)] if keyed else None
    options: dict[str, Any] = {"codec": codec, "head": b"kind:x\n"}
    whole = rows_of(batch_of(values, keys=keys, **options))
    for size in (1, 3, 31, 32, 100):
        parts = [
            batch_of(values[at : at + size], at, keys=None if keys is None else keys[at : at + size], **options)
            for at in range(0, 500, size)
        ]
        assert rows_of(*parts) == whole
    assert [row["value"] for row in whole] == values
    assert [row["offset"] for row in whole] == [*range(500)]
    if keys is not None:
        assert [row["key"] for row in whole] == [key or None for key in keys]


def test_small_batches_with_other_headers_keep_their_own() -> None:
    found = rows_of(*[batch_of([b"x"], at, head=b"number:%d\n" % (at // 3)) for at in range(10)])
    assert [row["headers"] for row in found] == [[("number", str(at // 3))] for at in range(10)]


def test_a_record_sent_by_itself_has_its_key_in_a_header() -> None:
    many = [b"x"] * 40
    for values in ([b"x"], many):
        assert rows_of(batch_of(values, head=b"key:ann\n"))[0]["key"] == b"ann"
        assert rows_of(batch_of(values, head=b"key-base64:w6Q=\n"))[0]["key"] == "ä".encode()
        assert rows_of(batch_of(values, head=b"key-base64:nonsense!\n"))[0]["key"] is None
        assert rows_of(batch_of(values, head=b"key:ann\nkind:x\n"))[0]["headers"] == [("kind", "x")]


def test_record_batches_are_bounded_in_rows_and_bytes() -> None:
    made = made_of(batch_of([b"x"] * 25_000))
    assert [each.num_rows for each in made] == [ROWS_MAX, ROWS_MAX, 5_000]
    values = [bytes(700_000)] * 40 + [bytes(5 << 20), b"small"]
    for size in (1, 40, 42):
        made = made_of(
            *[batch_of(values[at : at + size], at) for at in range(0, 42, size)], columns=("value", "offset")
        )
        assert [row for each in made for row in each.column("offset").to_pylist()] == [*range(42)]
        for each in made:
            assert each.num_rows == 1 or sum(map(len, each.column("value").to_pylist())) <= BYTES_MAX


def test_only_the_columns_that_are_wanted_are_made() -> None:
    (made,) = made_of(batch_of([b"one", b"two"]), columns=("offset", "value"))
    assert made.schema.names == ["offset", "value"]
    (made,) = made_of(batch_of([b"one", b"two"]), columns=())
    assert (made.num_rows, made.num_columns) == (2, 0)


def test_every_record_batch_has_the_very_same_schema() -> None:
    """Spark looks at the first one only, and dies of another."""
    made = made_of(
        *[batch_of([b"x"], at) for at in range(3)],
        batch_of([b"x"] * 50, 3, keys=[b"k"] * 50),
        batch_of([b"x"] * 50, 53, head=b"kind:x\n"),
        rows_max=40,
    )
    assert len({each.schema for each in made}) == 1
    assert all(each.schema.equals(made[0].schema, check_metadata=True) for each in made)


def test_offsets_that_lead_out_of_a_batch_are_refused() -> None:
    sent = bytearray(encode([b"x" * 10] * 40))
    sent[48 + 4 : 48 + 8] = (1 << 20).to_bytes(4, "little")
    with pytest.raises(DamagedError, match="records from 5 are damaged"):
        made_of(Batch(stamped(bytes(sent[:32]), 5, TIME_MS) + bytes(sent[32:])), columns=("value",))


@pytest.mark.parametrize("count", [1, 40])
def test_a_key_is_bytes_whatever_they_are(count: int) -> None:
    """In a batch, and in the header of a record that was sent by itself."""
    every = [bytes([byte]) * 2 for byte in range(256)]
    for key in [*every, b"\xff\xfe", bytes(8), "ä".encode()]:
        assert [row["key"] for row in rows_of(batch_of([b"x"] * count, keys=[key] * count))] == [key] * count
        head = b"key-base64:" + base64.b64encode(key)
        assert [row["key"] for row in rows_of(batch_of([b"x"] * count, head=head))] == [key] * count
