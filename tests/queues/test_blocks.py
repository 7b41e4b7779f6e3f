"""A block alone: what stays of it while it is outside, what leaves it there, and how it comes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.queues.blocks import Block, Dates, QueueInvariantError, bit_range, bits_of, dates_of, places_of
from sluiceway.queues.message import Message
from tests.queues.rig import Head


def message(number: int, wire_bytes: int = 10, expires_at_ms: int = 0) -> Message:
    return Message(Head(), b"x" * wire_bytes, number, expires_at_ms)


def block_of(*elements: Message | None, base: int = 8) -> Block:
    block = Block(base)
    block.elements = list(elements)
    block.live_count = sum(element is not None for element in elements)
    return block


def test_outside_a_block_keeps_who_is_alive_how_much_they_take_and_when_they_expire() -> None:
    block = block_of(message(0, 10, 500), None, message(2, 30), message(3, 20, 900))
    block.unload()
    assert block.outside is not None
    assert (block.elements, block.live_count, block.length) == ([], 3, 4)
    assert block.live_bits() == 0b1101
    assert block.wire_bytes == 60
    assert block.outside.dates == Dates(500, 900, 1)
    assert not block.outside.wanted


def test_what_comes_back_is_where_it_was() -> None:
    first, third = message(0), message(2)
    block = block_of(first, None, third)
    block.unload()
    block.load({0: first, 2: third})
    assert block.outside is None
    assert block.elements == [first, None, third]
    assert block.holed


def test_what_left_meanwhile_is_passed_over_though_the_store_has_it() -> None:
    messages = [message(number) for number in range(4)]
    block = block_of(*messages)
    block.unload()
    block.take_bits(0b0110)
    block.load(dict(enumerate(messages)))
    assert block.elements == [messages[0], None, None, messages[3]]
    assert block.live_count == 2


def test_one_that_is_alive_and_did_not_come_is_a_broken_invariant() -> None:
    block = block_of(message(0), message(1))
    block.unload()
    with pytest.raises(QueueInvariantError, match="block at 8: 2 elements are alive, 1 came back"):
        block.load({1: message(1)})


def test_what_leaves_outside_takes_its_share_so_that_the_last_takes_the_rest() -> None:
    """Whatever the sizes were: charge and release pair up."""
    block = block_of(message(0, 1), message(1, 100), message(2, 7))
    block.unload()
    gone = [block.take_bits(0b001), block.take_bits(0b100), block.take_bits(0b010)]
    assert [count for count, _bytes in gone] == [1, 1, 1]
    assert sum(size_bytes for _count, size_bytes in gone) == 108
    assert (block.live_count, block.wire_bytes, block.live_bits()) == (0, 0, 0)


def test_placeholders_know_the_size_and_the_date_of_each() -> None:
    block = block_of(message(0, 1, 700), None, message(2, 100))
    block.unload(placeholders=True)
    assert block.outside is not None and block.outside.placeholders is not None
    assert list(block.outside.placeholders.sizes) == [1, 0, 100]
    assert list(block.outside.placeholders.dates or ()) == [700, 0, 0]
    assert block.take_bits(0b100) == (1, 100)
    assert block.take_bits(0b001) == (1, 1)


def test_placeholders_cost_nothing_for_dates_if_there_are_none() -> None:
    block = block_of(message(0), message(1))
    block.unload(placeholders=True)
    assert block.outside is not None and block.outside.placeholders is not None
    assert block.outside.placeholders.dates is None


@pytest.mark.parametrize("bits", [0b1, 0b10, 0b11, 0b1000])
def test_what_is_gone_or_never_was_cannot_leave(bits: int) -> None:
    block = block_of(None, message(1), message(2))
    block.unload()
    block.take_bits(0b010)
    with pytest.raises(QueueInvariantError, match="some of these elements left the queue before"):
        block.take_bits(bits)
    assert (block.live_count, block.live_bits()) == (1, 0b100)


def test_to_take_nothing_is_nothing() -> None:
    block = block_of(message(0))
    block.unload()
    assert block.take_bits(0) == (0, 0)


def test_expiry_is_not_told_again_of_what_it_has_looked_at() -> None:
    """It is past its date and in somebody's hands: otherwise the block would be read again as soon as it is out."""
    block = block_of(message(0, expires_at_ms=500), message(1, expires_at_ms=900))
    block.looked_ms = 600
    block.unload()
    assert block.outside is not None
    assert (block.outside.dates.earliest_ms, block.outside.dates.next_ms) == (500, 900)
    block.load({0: message(0, expires_at_ms=500), 1: message(1, expires_at_ms=900)})
    block.looked_ms = 900
    block.unload()
    assert block.outside.dates.next_ms == 0


def test_all_are_dated_only_if_each_has_a_date() -> None:
    assert dates_of([message(0, expires_at_ms=5), message(1, expires_at_ms=3)]) == Dates(3, 5, 0)
    assert dates_of([message(0, expires_at_ms=5)]).all_dated
    assert not dates_of([message(0, expires_at_ms=5), message(1)]).all_dated
    assert not dates_of([message(0)]).all_dated
    assert dates_of([]) == Dates(0, 0, 0)


PLACES = st.sets(st.integers(0, 1023))


@given(places=PLACES)
def test_bits_and_places_are_two_ways_to_say_the_same(places: set[int]) -> None:
    assert list(places_of(bits_of(places))) == sorted(places)
    assert bits_of(places) == sum(1 << place for place in places)


@given(start=st.integers(0, 1023), length=st.integers(0, 1024))
def test_a_range_of_bits_is_the_bits_of_the_range(start: int, length: int) -> None:
    assert list(places_of(bit_range(start, start + length))) == list(range(start, start + length))


@given(
    sizes=st.lists(st.none() | st.integers(0, 50), min_size=1, max_size=40),
    order=st.randoms(use_true_random=False),
    placeholders=st.booleans(),
)
def test_whatever_leaves_in_whatever_portions_adds_up(
    sizes: list[int | None], order: object, placeholders: bool
) -> None:
    elements = [None if size is None else message(n, size) for n, size in enumerate(sizes)]
    block = block_of(*elements)
    block.unload(placeholders=placeholders)
    places = [place for place, element in enumerate(elements) if element is not None]
    order.shuffle(places)  # type: ignore[attr-defined]
    gone_count = gone_bytes = 0
    while places:
        portion, places = places[:3], places[3:]
        count, size_bytes = block.take_bits(bits_of(portion))
        gone_count, gone_bytes = gone_count + count, gone_bytes + size_bytes
        assert block.live_count == len(places)
        assert sorted(places) == list(places_of(block.live_bits()))
    assert gone_count == sum(size is not None for size in sizes)
    assert gone_bytes == sum(size or 0 for size in sizes)
