"""Chunks read back as they were written, take no room for what is alike, and damage is a ChunkError."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import pack
from typing import Any
from zlib import crc32

import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st

from sluiceway.queues.message import DelayedMessage, Message
from sluiceway.store import chunks
from sluiceway.store.chunks import ChunkError, Summary
from tests.store.heads import FiledMessage, PlainHead, PlainHeads, Row, message_of, row_of

u64 = st.integers(0, 2**64 - 1)
HEADS = PlainHeads()
HEAD = PlainHead(12, b"destination:/queue/a")


def alike(count: int, *, number: int = 7, body: bytes = b"x" * 78) -> list[Message]:
    wire = HEAD.block + b"\n\n" + body
    return [Message(HEAD, wire, number + place) for place in range(count)]


def rows_of(sequences: Sequence[int], messages: Sequence[Message]) -> list[Row]:
    return [row_of(sequence, message) for sequence, message in zip(sequences, messages, strict=True)]


def read(first: int, value: bytes) -> list[Row]:
    return rows_of(*chunks.decode_chunk(first, value, PlainHeads(), FiledMessage))


Stored = tuple[int, Sequence[int], list[Message]]
"""First, sequences, messages."""


@st.composite
def stored(draw: st.DrawFn) -> Stored:
    """Chunks with any mix of what is the same for all, what differs, and what is missing."""
    count = draw(st.integers(1, 12))
    table = draw(
        st.lists(st.builds(PlainHead, st.integers(0, 255), st.binary(max_size=12)), min_size=1, max_size=count)
    )
    times = st.one_of(
        st.just([0] * count),
        u64.map(lambda time: [time] * count),
        st.lists(st.just(0) | u64, min_size=count, max_size=count),
    )
    expires, dues = draw(times), draw(times)
    rest = draw(st.just([b"\n\nbody\0"] * count) | st.lists(st.binary(min_size=1), min_size=count, max_size=count))
    larges = draw(st.lists(st.none() | st.tuples(u64, u64), min_size=count, max_size=count) | st.just([None] * count))
    base = draw(st.integers(0, 2**64 - count))
    numbers = draw(st.just(list(range(base, base + count))) | st.lists(u64, min_size=count, max_size=count))
    first = draw(st.integers(0, 2**40) | st.integers(2**64 - 2000, 2**64 - 1 - count))
    sequences: Sequence[int] = range(first, first + count)
    end = min(2**32, 2**64 - 1 - first)
    if draw(st.booleans()):
        offsets = draw(
            st.sets(st.integers(0, min(end, 40) - 1) | st.integers(0, end - 1), min_size=count, max_size=count)
        )
        sequences = [first + offset for offset in sorted(offsets)]
    messages = []
    for place in range(count):
        head = draw(st.sampled_from(table))
        row = (0, numbers[place], 0, head.block, rest[place], expires[place], dues[place], larges[place])
        messages.append(message_of(head, row))
    return first, sequences, messages


@given(stored())
def test_a_chunk_reads_back(chunk: Stored) -> None:
    first, sequences, messages = chunk
    assert read(first, chunks.encode_chunk(first, sequences, messages, HEADS)) == rows_of(sequences, messages)


@given(stored())
def test_one_pass_writes_the_same_as_two(chunk: Stored) -> None:
    first, sequences, messages = chunk
    assert chunks.encode_chunk_and_summary(first, sequences, messages, HEADS) == (
        chunks.encode_chunk(first, sequences, messages, HEADS),
        chunks.encode_summary(chunks.summary_of(sequences, messages)),
    )


@given(stored())
def test_a_lost_summary_can_be_made_from_the_chunk(chunk: Stored) -> None:
    first, sequences, messages = chunk
    found = chunks.decode_chunk(first, chunks.encode_chunk(first, sequences, messages, HEADS), HEADS, FiledMessage)
    assert chunks.summary_of(*found) == chunks.summary_of(sequences, messages)


# ---------------------------------------------------------------------- what it costs


def test_alike_messages_cost_their_wires_and_31_bytes() -> None:
    messages = alike(1000)
    value = chunks.encode_chunk(5000, range(5000, 6000), messages, HEADS)
    assert len(value) == sum(len(message.wire) for message in messages) + 31


def test_a_header_block_is_restored_once_for_all_messages_that_share_it() -> None:
    one, other = PlainHead(12, b"a"), PlainHead(12, b"b")
    messages = [Message(head, head.block + b"\n\n", place) for place, head in enumerate([one, other] * 50)]
    heads = PlainHeads()
    _, found = chunks.decode_chunk(0, chunks.encode_chunk(0, range(100), messages, heads), heads)
    assert heads.restored_count == 2
    assert len({id(message.head) for message in found}) == 2


@pytest.mark.parametrize("head_count", [1, 2, 256, 257, 65_536, 65_537])
def test_any_number_of_header_blocks_reads_back(head_count: int) -> None:
    """Around the borders between the widths of the head index; one block comes twice, so that there is an index."""
    table = [PlainHead(place & 255, b"%d" % place) for place in range(head_count)]
    messages = [Message(head, head.block + b"\n\n", 0) for head in [*table, table[-1]]]
    sequences = range(len(messages))
    assert read(0, chunks.encode_chunk(0, sequences, messages, HEADS)) == rows_of(sequences, messages)


def test_sequences_without_a_gap_come_back_as_a_range() -> None:
    """Also when they were given as a list: what reads them takes ranges faster."""
    value = chunks.encode_chunk(5, [5, 6, 7], alike(3), HEADS)
    assert chunks.decode_chunk(5, value, HEADS)[0] == range(5, 8)
    assert value == chunks.encode_chunk(5, range(5, 8), alike(3), HEADS)


def test_only_messages_with_a_time_are_delayed_ones() -> None:
    wire = HEAD.block + b"\n\n"
    messages = [Message(HEAD, wire, 0), DelayedMessage(HEAD, wire, 1, 0, 99), DelayedMessage(HEAD, wire, 2, 0, 0)]
    _, found = chunks.decode_chunk(0, chunks.encode_chunk(0, range(3), messages, HEADS), HEADS)
    assert list(map(type, found)) == [Message, DelayedMessage, Message]


# ---------------------------------------------------------------------- what is refused


class HugeWire(bytes):
    """Says that it has 4 GiB, without taking them."""

    def __len__(self) -> int:
        return 2**32


@pytest.mark.parametrize(
    ("sequences", "messages", "fault"),
    [
        (range(5, 5), [], "0 messages"),
        (range(5, 7), alike(3), "2 sequences and 3 messages"),
        ([5, 7, 6], alike(3), "do not ascend"),
        ([5, 6, 6], alike(3), "do not ascend"),
        ([5, 6, 6, 8], alike(4), "do not ascend"),
        ([4, 5, 6], alike(3), "do not fit"),
        ([5, 6, 5 + 2**32], alike(3), "do not fit"),
        ([5, 6, 2**64], alike(3), "do not fit"),
        (range(5, 7), alike(2, number=-1), "do not fit"),
        (range(5, 7), alike(2, number=2**64 - 1), "do not fit"),
        (range(5, 6), [Message(HEAD, b"", 1)], "header block"),
        (range(5, 6), [Message(PlainHead(1, b""), b"", 1)], "is empty"),
        (range(5, 6), [Message(HEAD, HugeWire(HEAD.block), 1)], "do not fit"),
        (range(5, 7), [*alike(1), Message(HEAD, HugeWire(HEAD.block), 1)], "do not fit"),
        (range(5, 7), [*alike(1), Message(HEAD, HEAD.block[:-1], 1)], "message 1 has 19 bytes"),
        (range(5, 6), [Message(PlainHead(256, b""), b"x", 1)], "do not fit"),
        (range(5, 6), [Message(HEAD, HEAD.block, 1, -1)], "do not fit"),
        (range(5, 6), [DelayedMessage(HEAD, HEAD.block, 1, 0, 2**64)], "do not fit"),
        (range(5, 6), [FiledMessage(HEAD, HEAD.block, 1, 0, 0, 2**64, 1)], "do not fit"),
    ],
)
def test_what_does_not_fit_is_refused(sequences: Sequence[int], messages: list[Message], fault: str) -> None:
    with pytest.raises(ChunkError, match=f"chunk from 5.*{fault}"):
        chunks.encode_chunk(5, sequences, messages, HEADS)


def test_a_sequence_beyond_the_last_is_refused() -> None:
    """The last number of eight bytes is none: the end of the chunk would have no place in the summary."""
    last = 2**64 - 2
    chunks.encode_chunk_and_summary(last - 2, range(last - 2, last + 1), alike(3), HEADS)
    with pytest.raises(ChunkError, match=f"no sequence {last + 1}"):
        chunks.encode_chunk(last - 1, range(last - 1, last + 2), alike(3), HEADS)


def test_heads_that_can_not_be_read_are_a_fault_of_the_chunk() -> None:
    message = Message(PlainHead(3, b"unreadable"), b"unreadable\n\n", 1)
    value = chunks.encode_chunk(0, range(1), [message], HEADS)
    with pytest.raises(ChunkError, match="b'unreadable' can't be read: the block"):
        chunks.decode_chunk(0, value, HEADS)
    with pytest.raises(ChunkError, match="can't be read: there is no dialect 3"):
        chunks.decode_chunk(0, value, PlainHeads(dialects=[1, 2]))


def test_bodies_in_files_are_not_dropped_where_there_are_no_files() -> None:
    value = chunks.encode_chunk(0, range(1), [FiledMessage(HEAD, HEAD.block + b"\n\n", 1, 0, 0, 5, 100)], HEADS)
    with pytest.raises(ChunkError, match="its bodies are in files"):
        chunks.decode_chunk(0, value, HEADS)


# ---------------------------------------------------------------------- damage


def sealed(data: bytes) -> bytes:
    return data + pack("<I", crc32(data))


PLAIN = pack("<BBI", 1, 0, 1) + pack("<Q", 7) + pack("<IBI", 1, 12, 1) + pack("<I", 3) + b"abc"
"""One message, without the checksum."""

TWO = pack("<BBI", 1, 0, 2) + pack("<Q", 7)
"""Where the header blocks of two messages begin."""


def test_the_hand_made_chunk_is_one() -> None:
    assert read(5, sealed(PLAIN)) == [(5, 7, 12, b"a", b"bc", 0, 0, None)]


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (b"", "0 bytes"),
        (sealed(b"\x01\0"), "6 bytes"),
        (sealed(b"\x02" + PLAIN[1:]), "layout is 2, known is 1"),
        (PLAIN + b"abcd", "checksum"),
        (sealed(pack("<BBI", 1, 0, 0) + PLAIN[6:]), "no messages"),
        (sealed(PLAIN[:10]), "within its numbers"),
        (sealed(PLAIN[:14]), "within its heads"),
        (sealed(TWO + pack("<IBIBI", 0, 1, 1, 1, 1)), "0 header blocks for 2"),
        (sealed(TWO + pack("<I", 3) + b"\0" * 99), "3 header blocks for 2"),
        (sealed(TWO + pack("<I", 2) + b"\0" * 9), "header block lengths"),
        (sealed(PLAIN + b"d"), "3 bytes, there are 4"),
        (sealed(PLAIN[:-1]), "3 bytes, there are 2"),
        (sealed(PLAIN[:-7] + pack("<I", 0)), "is empty"),
        (sealed(pack("<BBIQIBII", 1, 0, 2**32 - 1, 7, 1, 12, 0, 0)), "is empty"),
        (sealed(TWO[:1] + b"\x04" + TWO[2:] + pack("<IBIII", 1, 12, 1, 0, 3) + b"abc"), "is empty"),
        (sealed(TWO + pack("<IBII", 1, 12, 4, 3) + b"abcdef"), "begin with 4 bytes"),
        (sealed(b"\x01\x18" + PLAIN[2:]), "expires is of unknown kind 3"),
        (sealed(b"\x01\x60" + PLAIN[2:]), "due is of unknown kind 3"),
        (sealed(b"\x01\x80" + PLAIN[2:-3] + pack("<I", 0) + b"abc"), "large bodies are not in order"),
        (sealed(b"\x01\x80" + PLAIN[2:-3] + pack("<IIQQ", 1, 1, 5, 5) + b"abc"), "large bodies are not in order"),
        (sealed(b"\x01\x80" + PLAIN[2:-3] + pack("<I", 1) + b"abc"), "within its large bodies"),
        (sealed(b"\x01\x01" + TWO[2:6] + pack("<II", 1, 1) + TWO[6:]), "do not ascend"),
        (sealed(pack("<BBIQ", 1, 0, 2, 2**64 - 1) + pack("<IBII", 1, 12, 1, 3) + b"abcdef"), "eight bytes"),
        (sealed(pack("<BBIQ", 1, 0, 3, 7) + pack("<I", 2) + b"ab" + b"\0" * 8 + b"\0\0\0"), "no message has its .* 1"),
        (sealed(pack("<BBIQ", 1, 0, 3, 7) + pack("<I", 2) + b"ab" + b"\0" * 8 + b"\0\1\2"), "header block 2, of 2"),
    ],
)
def test_a_malformed_chunk_is_named(value: bytes, fault: str) -> None:
    with pytest.raises(ChunkError, match=f"chunk from 5.*{fault}"):
        read(5, value)


def test_a_chunk_under_a_key_too_high_for_it_is_refused() -> None:
    with pytest.raises(ChunkError, match="eight bytes"):
        read(2**64 - 2, chunks.encode_chunk(0, range(3), alike(3), HEADS))


@given(st.binary(max_size=80))
@example(b"")
def test_random_bytes_are_a_chunk_error(value: bytes) -> None:
    with pytest.raises(ChunkError):
        read(0, value)


def flipped(value: bytes, bits: Sequence[int]) -> bytes:
    damaged = bytearray(value)
    for bit in bits:
        damaged[bit % (8 * len(value)) >> 3] ^= 1 << (bit & 7)
    return bytes(damaged)


Change = Callable[[bytes], bytes]

changes: st.SearchStrategy[Change] = st.one_of(
    st.lists(st.integers(0, 2**13), min_size=1, max_size=3).map(lambda bits: lambda value: flipped(value, bits)),
    st.integers(0, 200).map(lambda length: lambda value: value[:length]),
    st.binary(min_size=1, max_size=9).map(lambda more: lambda value: value + more),
    st.tuples(st.integers(0, 200), st.binary(min_size=1, max_size=8)).map(
        lambda change: lambda value: value[: change[0]] + change[1] + value[change[0] + len(change[1]) :]
    ),
)


@given(stored(), st.integers(0, 2**13))
def test_every_flipped_bit_is_seen(chunk: Stored, bit: int) -> None:
    first, sequences, messages = chunk
    with pytest.raises(ChunkError):
        read(first, flipped(chunks.encode_chunk(first, sequences, messages, HEADS), [bit]))


@given(stored(), changes)
def test_damage_under_a_right_checksum_is_read_or_a_chunk_error(chunk: Stored, change: Change) -> None:
    """A fault of ours could write such a thing: what comes out is messages that can be written again, or an error.

    They need not make sense: nobody looks whether each wire begins with its header block.
    """
    first, sequences, messages = chunk
    value = sealed(change(chunks.encode_chunk(first, sequences, messages, HEADS)[:-4]))
    try:
        found = chunks.decode_chunk(first, value, PlainHeads(), FiledMessage)
    except ChunkError as error:
        assert f"chunk from {first}" in str(error)
    else:
        again = chunks.decode_chunk(first, chunks.encode_chunk(first, *found, HEADS), PlainHeads(), FiledMessage)
        assert again[0] == found[0]
        assert [message.wire for message in again[1]] == [message.wire for message in found[1]]


@given(st.sampled_from([0x00, 0x01, 0x02, 0x04, 0x08, 0x10, 0x80]), st.integers(0, 5), st.binary(max_size=60))
def test_random_columns_under_a_right_checksum_are_read_or_a_chunk_error(flags: int, count: int, data: bytes) -> None:
    try:
        read(0, sealed(pack("<BBI", 1, flags, count) + data))
    except ChunkError as error:
        assert "chunk from 0" in str(error)


# ---------------------------------------------------------------------- summaries


def test_a_summary_says_what_is_in_the_chunk() -> None:
    grouped = evolve(HEAD, group="g")
    wire = HEAD.block + b"\n\n"
    messages = [Message(HEAD, wire, 1), Message(grouped, wire + b"x", 2, 500), DelayedMessage(HEAD, wire, 3, 300, 99)]
    summary = chunks.summary_of([10, 11, 15], messages)
    assert summary == Summary(16, 3, 67, 300, 500, 1, some_due=True, some_grouped=True)
    assert chunks.summary_of([10], messages[:1]) == Summary(11, 1, 22, 0, 0, 1, some_due=False, some_grouped=False)


@given(stored())
def test_a_summary_reads_back(chunk: Stored) -> None:
    summary = chunks.summary_of(*chunk[1:])
    assert chunks.decode_summary(chunks.encode_summary(summary)) == summary


@given(st.binary(max_size=64) | st.binary(min_size=41, max_size=41))
def test_random_bytes_are_a_summary_or_a_chunk_error(value: bytes) -> None:
    try:
        summary = chunks.decode_summary(value)
    except ChunkError as error:
        assert "summary" in str(error)
    else:
        assert chunks.encode_summary(summary) == value


def test_a_summary_of_nothing_or_of_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ChunkError, match="no summary"):
        chunks.summary_of([], [])
    with pytest.raises(ChunkError, match="does not fit"):
        chunks.encode_summary(Summary(2**64, 1, 1, 0, 0, 1, some_due=False, some_grouped=False))


@pytest.mark.parametrize("change", [{"count": 0}, {"undated_count": 4}, {"end_sequence": 2}])
def test_a_summary_that_contradicts_itself_is_refused(change: dict[str, Any]) -> None:
    good = Summary(16, 3, 67, 300, 500, 1, some_due=True, some_grouped=True)
    with pytest.raises(ChunkError, match="contradicts itself"):
        chunks.decode_summary(chunks.encode_summary(evolve(good, **change)))
