"""Batches: what goes in comes out, and what is damaged is refused."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.queues.logs.batches import (
    CHECKED_OFFSET,
    COUNT_MAX,
    HEAD_BYTES_MAX,
    HEADER,
    HEADER_BYTES,
    Batch,
    BatchError,
    encode,
    padded,
    split,
    stamped,
)
from sluiceway.queues.logs.codecs import Codec

PLAIN_BYTES_MAX = 1 << 20
VALUES = st.lists(st.binary(max_size=50), min_size=1, max_size=30)


def rewritten(batch: bytes, **fields: int) -> bytes:
    """With other fields in its header and a checksum that is right again: what a hostile producer sends."""
    names = ["magic", "total", "first", "time", "stamp", "checksum", "count", "plain", "codec", "flags", "head", "body"]
    parts = dict(zip(names, HEADER.unpack_from(batch), strict=True)) | fields
    head = HEADER.pack(*parts.values())
    return with_checksum(head + batch[HEADER_BYTES:])


def with_checksum(batch: bytes) -> bytes:
    return batch[:28] + struct.pack("<I", zlib.crc32(batch[CHECKED_OFFSET:])) + batch[CHECKED_OFFSET:]


@given(VALUES, st.data(), st.sampled_from(Codec), st.binary(max_size=40), st.integers(0, 2**64 - 1))
def test_what_goes_in_comes_out(
    values: list[bytes], data: st.DataObject, codec: Codec, head: bytes, index: int
) -> None:
    """Whatever is in it, stamped or not, from the middle of other bytes."""
    one_each = st.lists(st.binary(max_size=9), min_size=len(values), max_size=len(values))
    keys = data.draw(st.none() | one_each)
    encoded = encode(values, head=head, keys=keys, codec=codec)
    assert len(encoded) % 8 == 0
    for batch in (Batch(encoded), Batch(b"12345678" + stamped(encoded, index, 5) + encoded[32:] + b"more", 8)):
        batch.check(plain_bytes_max=PLAIN_BYTES_MAX)
        assert (batch.count, batch.codec, batch.head, batch.total_bytes) == (len(values), codec, head, len(encoded))
        assert [bytes(value) for value in batch.values()] == values
        found = batch.keys()
        assert (found is None) == (keys is None)
        assert [bytes(key) for key in found or ()] == (keys or [])
        assert batch.end_index - batch.first_index == len(values)
    assert (batch.first_index, batch.timestamp_ms, batch.is_stamped_right()) == (index, 5, True)
    place = data.draw(st.integers(0, len(values) - 1))
    assert bytes(batch.value(place)) == values[place]
    assert [bytes(value) for value in batch.values(place, min(place + 2, batch.count))] == values[place : place + 2]
    for outside in (-1, len(values)):
        with pytest.raises(IndexError):
            batch.value(outside)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("keys", [None, [b"k", b"", b"long key"]])
def test_each_damaged_bit_is_refused(codec: Codec, keys: list[bytes] | None) -> None:
    """Of all but what is stamped later: that is noticed when it is stamped."""
    batch = encode([b"one", b"", b"three" * 3], head=b"a:b\n", keys=keys, codec=codec)
    batch = stamped(batch, 7, 1_000) + batch[32:]
    for bit in range(len(batch) * 8):
        broken = bytearray(batch)
        broken[bit // 8] ^= 1 << bit % 8
        try:
            read = Batch(bytes(broken))
            read.check(plain_bytes_max=PLAIN_BYTES_MAX)
        except BatchError:
            continue
        assert 8 <= bit // 8 < 28
        assert not read.is_stamped_right()


@given(st.binary(max_size=200))
def test_nonsense_is_refused(data: bytes) -> None:
    for tried in (data, b"SLB1" + data):
        with pytest.raises(BatchError):
            Batch(tried).check(plain_bytes_max=PLAIN_BYTES_MAX)


@given(st.integers(32, HEADER_BYTES - 1), st.integers(0, 255), st.sampled_from(Codec))
def test_a_hostile_header_is_refused_or_harmless(place: int, byte: int, codec: Codec) -> None:
    """With a right checksum. No size is believed that the body does not bear out."""
    batch = bytearray(encode([b"one", b"two"], codec=codec))
    batch[place] = byte
    try:
        read = Batch(with_checksum(bytes(batch)))
        read.check(plain_bytes_max=PLAIN_BYTES_MAX)
    except BatchError:
        return
    assert [bytes(value) for value in read.values()] == [b"one", b"two"]


@given(st.integers(0, 30), st.integers(0, 255), st.booleans())
def test_a_hostile_table_of_records_is_refused_or_harmless(place: int, byte: int, with_keys: bool) -> None:
    """Views never lead out of the body."""
    batch = bytearray(encode([b"one", b"two"], keys=[b"k", b"l"] if with_keys else None))
    place = HEADER_BYTES + place % (len(batch) - HEADER_BYTES)
    batch[place] = byte
    try:
        read = Batch(with_checksum(bytes(batch)))
        read.check(plain_bytes_max=PLAIN_BYTES_MAX)
    except BatchError:
        return
    assert sum(map(len, read.values())) + sum(map(len, read.keys() or ())) <= read.plain_bytes


def test_a_bomb_is_refused_before_it_is_expanded() -> None:
    bomb = encode([bytes(1 << 22)], codec=Codec.ZSTD)
    assert len(bomb) < 2_000
    with pytest.raises(BatchError, match="expands to 4194312 bytes, more than 1048576"):
        Batch(bomb).check(plain_bytes_max=PLAIN_BYTES_MAX)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.ZSTD])
@pytest.mark.parametrize("plain_bytes", [0, 1, 100, (1 << 20) - 1])
def test_a_bomb_that_lies_about_its_size_is_refused(codec: Codec, plain_bytes: int) -> None:
    bomb = rewritten(encode([bytes(1 << 22)], codec=codec), plain=plain_bytes)
    with pytest.raises(BatchError):
        Batch(bomb).check(plain_bytes_max=PLAIN_BYTES_MAX)


def test_more_records_than_its_bytes_can_hold_are_refused() -> None:
    for count in (3, COUNT_MAX, COUNT_MAX + 1, 2**32 - 1):
        with pytest.raises(BatchError):
            Batch(rewritten(encode([b"one", b"two"]), count=count)).check(plain_bytes_max=PLAIN_BYTES_MAX)


def test_flags_and_codecs_that_are_not_known_are_refused() -> None:
    for fields in ({"flags": 2}, {"flags": 128}, {"codec": 4}, {"codec": 255}):
        with pytest.raises(BatchError, match="not known"):
            Batch(rewritten(encode([b"x"]), **fields)).check(plain_bytes_max=PLAIN_BYTES_MAX)


@given(st.lists(VALUES, min_size=1, max_size=5))
def test_a_run_is_split_into_its_batches(runs: list[list[bytes]]) -> None:
    run = b"".join(encode(values) for values in runs)
    assert [[bytes(value) for value in batch.values()] for batch in split(run)] == runs


def test_a_run_with_anything_between_or_behind_is_refused() -> None:
    batch = encode([b"x"])
    for run in (batch + b"\0" * 8, batch + b"x", batch[:-8], batch + batch[:40], b"\n" + batch):
        with pytest.raises(BatchError):
            list(split(run))
    assert list(split(b"")) == []


def test_what_a_batch_cannot_hold_is_refused() -> None:
    with pytest.raises(BatchError, match="0 records"):
        encode([])
    with pytest.raises(BatchError, match="bytes of headers"):
        encode([b""], head=bytes(HEAD_BYTES_MAX + 1))
    with pytest.raises(BatchError, match="1 keys for 2 records"):
        encode([b"", b""], keys=[b""])


def test_padding_is_to_eight() -> None:
    assert [padded(length) for length in (0, 1, 7, 8, 9)] == [0, 8, 8, 8, 16]
