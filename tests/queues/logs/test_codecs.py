"""Codecs: what was compressed expands to just that, or is refused."""

from __future__ import annotations

from mmap import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.queues.logs.batches import Batch, encode
from sluiceway.queues.logs.codecs import Codec, CodecError, codec_named, compress, expand
from sluiceway.store.log_storage import LogDisk

COMPRESSING = [Codec.GZIP, Codec.SNAPPY, Codec.ZSTD]
PLAIN = st.binary(max_size=2_000) | st.builds(
    lambda piece, times: piece * times, st.binary(max_size=9), st.integers(0, 999)
)


@given(st.sampled_from(Codec), PLAIN)
def test_what_was_compressed_expands_to_the_same(codec: Codec, plain: bytes) -> None:
    body = compress(codec, plain)
    assert bytes(expand(codec, body, len(plain))) == plain
    assert bytes(expand(codec, memoryview(body), len(plain))) == plain


@given(st.sampled_from(Codec), PLAIN, st.integers(-5, 5).filter(bool))
def test_another_size_than_it_says_is_refused(codec: Codec, plain: bytes, more: int) -> None:
    if len(plain) + more >= 0:
        with pytest.raises(CodecError):
            expand(codec, compress(codec, plain), len(plain) + more)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_bomb_costs_no_more_than_it_admits_to(codec: Codec) -> None:
    bomb = compress(codec, bytes(50_000_000))
    with pytest.raises(CodecError, match=codec.label):
        expand(codec, bomb, 1_000)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_it_expands_into_memory_that_is_brought(codec: Codec) -> None:
    """Such as the thread that expands 60 MB brings: a bytearray is filled with zeros first, while nobody else runs."""
    disk = LogDisk.inline(lambda callback: callback())
    plain = bytes(range(256)) * 10_000
    batch = Batch(encode([plain], codec=codec))
    batch.check(plain_bytes_max=10_000_000, room=disk.room)
    expanded = batch.plain()
    assert isinstance(expanded, memoryview) and isinstance(expanded.obj, mmap)
    assert bytes(batch.value(0)) == plain
    for wrong_bytes in (-1, 1):
        with pytest.raises(CodecError, match=codec.label):
            expand(codec, batch.body, batch.plain_bytes + wrong_bytes, disk.room)


@given(st.sampled_from(COMPRESSING), st.binary(max_size=300), st.integers(0, 3_000))
def test_nonsense_is_refused_or_has_the_size_it_says(codec: Codec, body: bytes, plain_bytes: int) -> None:
    try:
        assert len(expand(codec, body, plain_bytes)) == plain_bytes
    except CodecError as error:
        assert str(error).startswith(codec.label)


@given(st.sampled_from(COMPRESSING), st.binary(min_size=1, max_size=300), st.data())
def test_damage_is_refused_or_has_the_size_it_says(codec: Codec, plain: bytes, data: st.DataObject) -> None:
    body = bytearray(compress(codec, plain))
    body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        assert len(expand(codec, bytes(body), len(plain))) == len(plain)
    except CodecError:
        pass


def test_codecs_have_names() -> None:
    assert [codec_named(name) for name in ("none", "gzip", "snappy", "zstd")] == list(Codec)
    for name in ("", "lz4", "GZIP", "x" * 1000):
        with pytest.raises(CodecError, match=r"compression .{0,60} is not known: use none, gzip, snappy or zstd"):
            codec_named(name)
