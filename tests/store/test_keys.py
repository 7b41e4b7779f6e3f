"""Keys sort as their numbers do, read back as they were made, and ranges hold exactly what they say."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.queues import cursored
from sluiceway.store import keys
from sluiceway.store.keys import KeyFormatError

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
few = st.integers(0, 3)
"""Small numbers, so that two of them are often equal."""

PLACED: dict[Callable[[int, int], bytes], bytes] = {
    keys.chunk_key: keys.CHUNK,
    keys.paged_key: keys.PAGED,
    keys.summary_key: keys.SUMMARY,
}


@pytest.mark.parametrize("make", [*PLACED, keys.state_key])
@given(queue_id=u32, place=u64)
def test_placed_keys_read_back(make: Callable[[int, int], bytes], queue_id: int, place: int) -> None:
    assert keys.parse_placed_key(make(queue_id, place)) == (queue_id, place)


@given(queue_id=u32, durable_id=u32, transaction_id=u64)
def test_other_keys_read_back(queue_id: int, durable_id: int, transaction_id: int) -> None:
    assert keys.parse_queue_key(keys.queue_key(queue_id)) == queue_id
    assert keys.parse_queue_key(keys.head_key(queue_id)) == queue_id
    assert keys.parse_durable_key(keys.durable_key(durable_id)) == durable_id
    assert keys.parse_cursor_key(keys.cursor_key(queue_id, durable_id)) == (queue_id, durable_id)
    assert keys.parse_transaction_key(keys.transaction_key(transaction_id, durable_id)) == (transaction_id, durable_id)
    assert keys.parse_spool_key(keys.spool_key(transaction_id)) == transaction_id


@given(a=st.tuples(few | u32, few | u64), b=st.tuples(few | u32, few | u64))
def test_keys_of_a_family_sort_as_their_numbers(a: tuple[int, int], b: tuple[int, int]) -> None:
    for make in (*PLACED, keys.state_key):
        assert (make(*a) < make(*b)) == (a < b)
    c, d = (a[0], a[1] & 0xFFFFFFFF), (b[0], b[1] & 0xFFFFFFFF)
    assert (keys.cursor_key(*c) < keys.cursor_key(*d)) == (c < d)


@given(key=st.binary(max_size=24) | st.builds(lambda a, b: a + b, st.sampled_from(sorted(keys.FAMILIES)), st.binary()))
def test_whatever_is_no_key_is_an_error_of_the_format(key: bytes) -> None:
    readings: list[Callable[[], bytes]] = [
        lambda: keys.chunk_key(*keys.parse_placed_key(key)),
        lambda: keys.cursor_key(*keys.parse_cursor_key(key)),
        lambda: keys.transaction_key(*keys.parse_transaction_key(key)),
        lambda: keys.spool_key(keys.parse_spool_key(key)),
        lambda: keys.queue_key(keys.parse_queue_key(key)),
        lambda: keys.durable_key(keys.parse_durable_key(key)),
    ]
    for reading in readings:
        try:
            again = reading()
        except KeyFormatError as error:
            assert "key" in str(error)
        else:
            assert again[1:] == key[1:]


@pytest.mark.parametrize("number", [-1, 2**32])
def test_an_id_that_does_not_fit_is_refused(number: int) -> None:
    for make in (keys.queue_key, keys.head_key, keys.durable_key):
        with pytest.raises(KeyFormatError, match=str(number)):
            make(number)
    with pytest.raises(KeyFormatError, match=str(2**64)):
        keys.chunk_key(1, 2**64)


def test_no_family_is_known_that_was_not_given() -> None:
    assert {keys.family_of(family + b"...") for family in keys.FAMILIES} == keys.FAMILIES
    for key in (b"", b"z", b"\x01abc"):
        with pytest.raises(KeyFormatError):
            keys.family_of(key)
        with pytest.raises(KeyFormatError):
            keys.family_range(key)


def holds(bounds: keys.Range, key: bytes) -> bool:
    return bounds[0] <= key < bounds[1]


@given(family=st.sampled_from(sorted(keys.FAMILIES)), other=st.sampled_from(sorted(keys.FAMILIES)), rest=st.binary())
def test_family_range_holds_its_family_only(family: bytes, other: bytes, rest: bytes) -> None:
    assert holds(keys.family_range(family), other + rest) == (family == other)


@pytest.mark.parametrize("family", [keys.CHUNK, keys.STATE, keys.QUEUE, keys.HEAD, keys.CURSOR])
@given(a=u32 | st.just(2**32 - 1), b=u32 | few, place=u64, durable_id=u32)
def test_queue_range_holds_its_queue_only(family: bytes, a: int, b: int, place: int, durable_id: int) -> None:
    for queue_id in (a, b):
        key = {
            keys.CHUNK: keys.chunk_key(queue_id, place),
            keys.STATE: keys.state_key(queue_id, place),
            keys.QUEUE: keys.queue_key(queue_id),
            keys.HEAD: keys.head_key(queue_id),
            keys.CURSOR: keys.cursor_key(queue_id, durable_id),
        }[family]
        assert holds(keys.queue_range(family, a), key) == (queue_id == a)


@given(a=u64 | st.just(2**64 - 1), b=u64 | few, place=u32)
def test_transaction_range_holds_its_pieces_only(a: int, b: int, place: int) -> None:
    for transaction_id in (a, b):
        key = keys.transaction_key(transaction_id, place)
        assert holds(keys.transaction_range(a), key) == (transaction_id == a)


def test_the_last_key_of_the_last_queue_is_in_its_range() -> None:
    assert holds(keys.queue_range(keys.CHUNK, 2**32 - 1), keys.chunk_key(2**32 - 1, 2**64 - 1))


def test_ranges_of_families_without_a_queue_are_refused() -> None:
    with pytest.raises(KeyFormatError):
        keys.queue_range(keys.DURABLE, 1)


def test_blocks_on_disk_are_those_in_memory() -> None:
    """Not needed for the format, but states are masks over the blocks of a queue."""
    assert cursored.BLOCK_BITS == keys.BLOCK_BITS
