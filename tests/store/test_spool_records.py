"""Pieces and commit records read back as they were written, and nothing else is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.queues.message import Message
from sluiceway.store.chunks import decode_chunk, encode_chunk
from sluiceway.store.keys import StoreFormatError
from sluiceway.store.spool_records import (
    CommitRecord,
    PieceError,
    decode_commit,
    decode_piece,
    encode_commit,
    encode_piece,
)
from tests.store.heads import FiledMessage, PlainHead, PlainHeads

HEADS = PlainHeads()
HEAD = PlainHead(2, b"destination:/queue/a")
names = st.text(max_size=40)
priorities = st.integers(0, 9)


def chunk_of(count: int) -> bytes:
    messages = [Message(HEAD, HEAD.block + b"\n\n%d\0" % number, number) for number in range(count)]
    return encode_chunk(0, range(count), messages, HEADS)


@given(name=names, priority=priorities, topic=st.booleans(), chunk=st.binary(max_size=50))
def test_a_piece_reads_back(name: str, priority: int, topic: bool, chunk: bytes) -> None:
    piece = decode_piece(encode_piece((name, priority, topic), chunk))
    assert (piece.target, piece.chunk) == ((name, priority, topic), chunk)


def test_its_messages_read_back() -> None:
    piece = decode_piece(encode_piece(("/queue/a", 4, False), chunk_of(3)))
    sequences, messages = decode_chunk(0, piece.chunk, HEADS)
    assert list(sequences) == [0, 1, 2]
    assert [message.number for message in messages] == [0, 1, 2]
    assert not piece.some_large


def test_it_says_whether_bodies_lie_in_files() -> None:
    large = FiledMessage(HEAD, HEAD.block + b"\n\n", 7, 0, 0, 5, 2_000_000)
    assert decode_piece(encode_piece(("/queue/a", 4, False), encode_chunk(0, range(1), [large], HEADS))).some_large


@given(value=st.binary(max_size=60))
def test_whatever_is_no_piece_is_an_error_of_the_format(value: bytes) -> None:
    for decode in (decode_piece, decode_commit):
        try:
            decode(value)
        except StoreFormatError as error:
            assert "piece" in str(error) or "commit record" in str(error)


@given(place=st.integers(0, 12 + 4), bit=st.integers(0, 7))
def test_a_flipped_bit_never_sends_messages_elsewhere(place: int, bit: int) -> None:
    value = bytearray(encode_piece(("/queue/a", 4, False), chunk_of(2)))
    value[place] ^= 1 << bit
    with pytest.raises(PieceError):
        decode_piece(bytes(value))


@pytest.mark.parametrize("target", [("/queue/a", 10, False), ("/queue/a", -1, True), ("x" * 70_000, 4, False)])
def test_what_does_not_fit_is_refused(target: tuple[str, int, bool]) -> None:
    with pytest.raises(PieceError):
        encode_piece(target, b"")


@given(
    commit_number=st.integers(0, 2**64 - 1),
    pieces_count=st.integers(0, 2**32 - 1),
    dropped=st.lists(st.tuples(names, priorities, st.booleans()), max_size=4),
)
def test_a_commit_record_reads_back(
    commit_number: int, pieces_count: int, dropped: list[tuple[str, int, bool]]
) -> None:
    record = CommitRecord(commit_number, pieces_count, tuple(dropped))
    assert decode_commit(encode_commit(record)) == record


def test_numbers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(PieceError):
        encode_commit(CommitRecord(2**64, 1))
