"""Messages about interest as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.cluster.interest.compact import CompactFault, decode_pair, encode_pair
from sluiceway.cluster.interest.messages import (
    BYTES_MAX,
    Ask,
    Delta,
    Digest,
    InterestFault,
    Join,
    Message,
    Seen,
    Table,
    decode,
    encode,
    in_pieces,
)

NUMBERS = st.integers(0, 2**64 - 1)
NAMES = st.lists(st.text(max_size=20), max_size=5).map(tuple)
PAIRS = st.tuples(NUMBERS, NUMBERS).map(lambda both: (min(both), max(both)))
SMALL = st.integers(0, 2**40)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(lambda run, pair, a, r: Delta(run, *pair, a, r), NUMBERS, PAIRS, NAMES, NAMES),
    st.builds(
        lambda hub, run, version, covers, part, names: Table(hub, run, version, covers, part, part + 1, names),
        st.text(max_size=10),
        NUMBERS,
        SMALL,
        st.booleans(),
        SMALL,
        NAMES,
    ),
    st.builds(Digest, NUMBERS, SMALL, NUMBERS, NUMBERS, st.lists(PAIRS, max_size=4).map(tuple)),
    st.builds(lambda run, pair: Seen(run, *pair), NUMBERS, PAIRS),
    st.builds(Ask, NUMBERS, SMALL, st.booleans()),
    st.builds(Join, NUMBERS),
)


def test_the_example_of_the_source() -> None:
    """HD = 2000000, HR = 2000500 (JGroups, "Digest"): six bytes in place of sixteen."""
    signed = [50, -128, -124, 30, -12, 1]
    assert encode_pair(2_000_000, 2_000_500) == bytes(byte % 256 for byte in signed)
    assert decode_pair(encode_pair(2_000_000, 2_000_500)) == (2_000_000, 2_000_500, 6)


@given(PAIRS, st.binary(max_size=5))
def test_pairs_come_back(pair: tuple[int, int], behind: bytes) -> None:
    data = encode_pair(*pair)
    assert decode_pair(data + behind) == (*pair, len(data))


@pytest.mark.parametrize("data", [b"", b"\x10", b"\x90" + bytes(9), b"\x10\x00", b"\x01\x00"])
def test_bytes_that_are_no_pair(data: bytes) -> None:
    with pytest.raises(CompactFault):
        decode_pair(data)


@pytest.mark.parametrize("pair", [(1, 0), (-1, 2), (0, 2**64)])
def test_numbers_that_are_no_pair(pair: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"bytes each|not two numbers"):
        encode_pair(*pair)


@given(MESSAGES)
def test_messages_come_back(message: Message) -> None:
    assert decode(encode(message)) == message


@given(MESSAGES, st.data())
def test_cut_and_changed_messages_are_faults_or_messages(message: Message, data: st.DataObject) -> None:
    raw = encode(message)
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(InterestFault):
        decode(raw[:cut])
    place, byte = data.draw(st.integers(0, len(raw) - 1)), data.draw(st.integers(0, 255))
    try:
        decode(raw[:place] + bytes((byte,)) + raw[place + 1 :])
    except InterestFault as fault:
        assert str(fault)


def test_a_digest_of_a_thousand_hubs_is_small() -> None:
    """16 bytes of hashes, and six or so for each hub."""
    seen = tuple((2_000_000 + number, 2_000_500 + number) for number in range(1000))
    assert len(encode(Digest(7, 2_000_000, 1, 2, seen))) < 6_100


def test_names_are_cut_into_messages() -> None:
    names = [f"/topic/{number:06}" for number in range(20_000)]
    pieces = list(in_pieces(names))
    assert [name for piece in pieces for name in piece] == names
    assert all(len(encode(Delta(1, 0, 1, piece, ()))) <= BYTES_MAX + 100 for piece in pieces)
    assert list(in_pieces([])) == [()]
