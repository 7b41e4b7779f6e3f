"""Records of a link: the same however the bytes are cut, bounded, and no bytes bring the reader down."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.protocols.link.records import (
    DATA_BYTES_MAX,
    PREFACE,
    WORDS_BYTES_MAX,
    Kind,
    LinkFault,
    Record,
    RecordReader,
    cut,
    decode_size,
    decode_taken,
    encode,
    encode_size,
    encode_taken,
    head_of,
)

records = st.builds(Record, st.sampled_from(Kind), st.integers(0, 2**32 - 1), st.binary(max_size=200))


def cut_up(data: bytes, places: list[int]) -> list[bytes]:
    """The bytes in pieces."""
    edges = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(edges)]


def joined(found: Iterable[Record]) -> list[Record]:
    """Join bytes of frames of one flow, up to where the last frame is complete."""
    made: list[Record] = []
    for record in found:
        before = made[-1] if made else None
        is_data = record.kind in (Kind.PART, Kind.DATA)
        if is_data and before is not None and before.kind is Kind.PART and before.flow == record.flow:
            made[-1] = Record(record.kind, record.flow, before.payload + record.payload)
        elif record.payload or record.kind is not Kind.PART:
            made.append(record)
    return made


def test_what_one_read_brings_of_a_flow_is_one_record() -> None:
    """Whatever sizes the peer has written, and also where the last record has not come whole."""
    data = PREFACE + b"".join(encode(Kind.PART, 7, b"x" * 1000) for _ in range(10))
    reader = RecordReader()
    (first,) = reader.feed(data[:-500])
    assert first == Record(Kind.PART, 7, b"x" * 9500)
    (rest,) = reader.feed(data[-500:] + encode(Kind.DATA, 7, b"yz"))
    assert rest == Record(Kind.DATA, 7, b"x" * 500 + b"yz")
    assert not reader.held_bytes


@given(st.lists(records, max_size=20), st.lists(st.integers(0, 4000), max_size=20))
def test_records_come_back_whatever_the_chunking(sent: list[Record], places: list[int]) -> None:
    """What one side writes the other one reads; bytes of frames of one flow may come in other portions."""
    data = PREFACE + b"".join(encode(*record) for record in sent)
    reader = RecordReader()
    found = [record for piece in cut_up(data, places) for record in reader.feed(piece)]
    assert joined(found) == joined(sent)
    assert not reader.held_bytes


@given(st.lists(st.one_of(st.binary(max_size=40), records.map(lambda each: encode(*each))), max_size=12))
def test_no_bytes_bring_the_reader_down(pieces: list[bytes]) -> None:
    """Nonsense is a LinkFault, and less than a record is held."""
    reader = RecordReader()
    try:
        reader.feed(PREFACE)
        for piece in pieces:
            reader.feed(piece)
            assert reader.held_bytes <= WORDS_BYTES_MAX + 9 + 400
    except LinkFault as fault:
        assert str(fault)


@pytest.mark.parametrize(
    "start", [b"GET / HTTP/1.1\r\n", b"CONNECT\naccept-version:1.2\n", b"\x16\x03\x01", b"sluiceway-kink"]
)
def test_a_peer_that_is_no_hub_is_told_from_one(start: bytes) -> None:
    """At the first byte that differs, in words that show what came."""
    reader = RecordReader()
    with pytest.raises(LinkFault, match="the peer is no hub: it began with"):
        for place in range(len(start)):
            reader.feed(start[place : place + 1])


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (head_of(Kind.OPEN, 1, WORDS_BYTES_MAX + 1), "too large"),
        (head_of(Kind.DATA, 1, WORDS_BYTES_MAX + 1), "too large"),
        (b"\0\0\0\0\0\0\0\1\xff", "kind 255, which does not exist"),
    ],
)
def test_a_record_that_can_not_be_is_refused_by_its_head(head: bytes, words: str) -> None:
    """Before any of its payload is held."""
    reader = RecordReader()
    reader.feed(PREFACE)
    with pytest.raises(LinkFault, match=words):
        reader.feed(head)


@given(st.integers(1, 3 * DATA_BYTES_MAX + 5), st.sampled_from([Kind.DATA, Kind.PART]))
def test_data_is_cut_into_records_that_say_where_a_frame_ends(size_bytes: int, kind: Kind) -> None:
    """Only the last record has the kind of the whole."""
    data = b"x" * size_bytes
    pieces = list(cut(kind, 7, data))
    reader = RecordReader()
    reader.payload_bytes_max = DATA_BYTES_MAX
    found = reader.feed(PREFACE + b"".join(head + bytes(piece) for head, piece in pieces))
    assert b"".join(record.payload for record in found) == data
    assert {record.kind for record in found[:-1]} <= {Kind.PART}
    assert found[-1].kind is kind
    assert all(len(piece) <= DATA_BYTES_MAX for _head, piece in pieces)


@given(st.integers(0, 2**62), st.integers(0, 2**62))
def test_confirmations_come_back(done_bytes: int, more_bytes: int) -> None:
    """Bytes read and bytes done."""
    record = encode_taken(3, done_bytes + more_bytes, done_bytes)
    assert decode_taken(record[9:]) == (done_bytes + more_bytes, done_bytes)
    assert decode_size(encode_size(Kind.LARGE, 3, done_bytes + 1)[9:]) == done_bytes + 1


@given(st.binary(max_size=20))
def test_no_payload_brings_the_decoders_down(payload: bytes) -> None:
    """A wrong size, or more done than read, is a LinkFault."""
    for decode in (decode_taken, decode_size):
        try:
            decode(payload)
        except LinkFault as fault:
            assert str(fault)
