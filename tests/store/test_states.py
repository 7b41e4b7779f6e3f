"""The small records read back as they were written, and damage in them is an error of the format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluiceway.store import states
from sluiceway.store.states import ATTEMPTS_MAX, DurableRecord, StateError

u64 = st.integers(0, 2**64 - 1)
places = st.integers(0, 1023)
masks = st.one_of(
    st.sets(places).map(lambda chosen: sum(1 << place for place in chosen)),
    st.lists(st.tuples(places, places), max_size=6).map(  # runs
        lambda runs: sum({1 << place for a, b in runs for place in range(min(a, b), max(a, b) + 1)})
    ),
)
attempt_counts = st.dictionaries(places, st.integers(0, ATTEMPTS_MAX), max_size=20)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


# ---------------------------------------------------------------------- the state of a block


@given(masks, attempt_counts)
@example(0, {})
@example((1 << 1024) - 1, {0: 0, 1023: ATTEMPTS_MAX})
@example(int("10" * 512, 2), {})
def test_a_state_reads_back(mask: int, attempts: dict[int, int]) -> None:
    assert states.decode_state(states.encode_state(mask, attempts)) == (mask, attempts)


@given(masks)
def test_a_state_takes_the_shorter_form(mask: int) -> None:
    runs = len([place for place in range(1024) if mask >> place & 1 and not (place and mask >> (place - 1) & 1)])
    assert len(states.encode_state(mask, {})) == 2 + min(4 * runs, (mask.bit_length() + 7) // 8)


def test_a_block_settled_in_order_costs_six_bytes() -> None:
    assert len(states.encode_state((1 << 1000) - 1, {})) == 6


@given(attempt_counts)
def test_the_order_of_attempts_does_not_matter(attempts: dict[int, int]) -> None:
    backwards = dict(sorted(attempts.items(), reverse=True))
    assert states.encode_state(1, backwards) == states.encode_state(1, attempts)


def test_attempts_are_capped_not_refused() -> None:
    """A message that is given back for ever must not stop the store."""
    assert states.decode_state(states.encode_state(0, {5: ATTEMPTS_MAX + 1})) == (0, {5: ATTEMPTS_MAX})


@pytest.mark.parametrize(
    ("mask", "attempts"), [(1 << 1024, {}), (-1, {}), (0, {1024: 1}), (0, {-1: 1}), (0, {1: -1})], ids=str
)
def test_what_is_not_in_the_block_is_refused(mask: int, attempts: dict[int, int]) -> None:
    with pytest.raises(StateError, match="block state"):
        states.encode_state(mask, attempts)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("", "0 bytes"),
        ("00", "1 bytes"),
        ("02 00", "unknown kind 2"),
        ("00 02 01", "of which"),
        ("01 01 00 00", "of which"),
        ("00 00 01 00 01", "of which"),
        ("00 81" + "01" * 129, "bitmap of 129"),
        ("01 01 05 00 05 00", "run 5 to 5"),
        ("01 01 00 00 01 04", "run 0 to 1025"),
        ("01 02 00 00 02 00 02 00 04 00", "run 2 to 4"),
        ("01 02 08 00 09 00 02 00 04 00", "run 2 to 4"),
        ("00 00 00 04 01 00", "attempts"),
        ("00 00 05 00 01 00 05 00 01 00", "attempts"),
    ],
)
def test_a_malformed_state_is_named(value: str, fault: str) -> None:
    with pytest.raises(StateError, match=f"block state.*{fault}"):
        states.decode_state(bytes.fromhex(value))


# ---------------------------------------------------------------------- the cursor of a durable subscription


@st.composite
def cursors(draw: st.DrawFn) -> tuple[int, int, set[int], dict[int, int]]:
    front = draw(st.integers(0, 2**20) | st.integers(2**64 - 200, 2**64 - 1))
    ahead = st.integers(front, min(front + 300, 2**64 - 1)) | st.integers(front, 2**64 - 1)
    return front, draw(u64), draw(st.sets(ahead, max_size=60)), draw(st.dictionaries(ahead, u64, max_size=10))


@given(cursors())
@example((2**64 - 1, 0, {2**64 - 1}, {2**64 - 1: 2**64 - 1}))
def test_a_cursor_reads_back(cursor: tuple[int, int, set[int], dict[int, int]]) -> None:
    front, handed_to, settled, attempts = cursor
    found = states.decode_cursor(states.encode_cursor(front, handed_to, settled, attempts))
    assert (found.front, found.handed_to, found.attempts) == (front, handed_to, attempts)
    assert [sequence for run in found.settled for sequence in run] == sorted(settled)
    assert all(a.stop < b.start for a, b in zip(found.settled, found.settled[1:], strict=False))


def test_a_cursor_costs_by_its_gaps() -> None:
    """A consumer that settled a million elements behind one that it still holds."""
    value = states.encode_cursor(10, 2_000_000, range(11, 1_000_011), {})
    assert len(value) < 32
    assert states.decode_cursor(value).settled == (range(11, 1_000_011),)


@pytest.mark.parametrize(
    ("front", "settled", "attempts"),
    [
        (5, [4], {}),
        (5, [7, 7], {}),
        (5, [2**64], {}),
        (5, [], {4: 1}),
        (5, [], {2**64: 1}),
        (5, [], {6: -1}),
        (-1, [], {}),
        (2**64, [], {}),
    ],
    ids=str,
)
def test_a_cursor_that_contradicts_itself_is_refused(front: int, settled: list[int], attempts: dict[int, int]) -> None:
    with pytest.raises(StateError, match="cursor"):
        states.encode_cursor(front, 0, settled, attempts)


START = "01" + "0a" + "00" * 15
"""Front 10, handed to 0."""


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("", "0 bytes"),
        ("02" + START[2:] + "00 00", "unknown layout 2"),
        (START, "does not end"),
        (START + "00", "does not end"),
        (START + "01 80", "does not end"),
        (START + "00 00 00", "1 bytes too many"),
        (START + "80 00 00", "say nothing"),
        (START + "ff" * 10 + "01", "too large"),
        (START + "ff" * 9 + "02", "too large"),
        (START + "02 00 00 00 00 00", "not apart"),
        (START + "01" + "ff" * 9 + "01 00 00", "too long"),
        (START + "00 01" + "ff" * 9 + "01 00", "no sequence"),
        (START + "ff" * 9 + "01 00 00", "not apart|does not end"),
    ],
)
def test_a_malformed_cursor_is_named(value: str, fault: str) -> None:
    with pytest.raises(StateError, match=f"cursor.*({fault})"):
        states.decode_cursor(bytes.fromhex(value))


# ---------------------------------------------------------------------- the other records


durables = st.builds(DurableRecord, texts, texts, texts, texts, u64, u64)


@given(durables, st.binary())
def test_a_durable_subscription_reads_back_whatever_a_later_version_adds(record: DurableRecord, added: bytes) -> None:
    assert states.decode_durable(states.encode_durable(record) + added) == record


@given(durables, st.data())
def test_a_cut_durable_subscription_is_an_error_of_the_format(record: DurableRecord, data: st.DataObject) -> None:
    value = states.encode_durable(record)
    with pytest.raises(StateError, match="durable subscription"):
        states.decode_durable(value[: data.draw(st.integers(0, len(value) - 1))])


def test_what_is_no_text_and_no_time_is_refused() -> None:
    with pytest.raises(StateError, match="can't be written"):
        states.encode_durable(DurableRecord("\ud800", "", "", "", 0, 0))
    with pytest.raises(StateError, match="can't be written"):
        states.encode_durable(DurableRecord("", "", "", "", -1, 0))
    with pytest.raises(StateError, match="can't be written"):
        states.encode_queue(0, 4, "\ud800")


@given(st.sampled_from([states.KIND_QUEUE, states.KIND_TOPIC]), st.integers(0, 9), texts)
def test_a_queue_record_reads_back(kind: int, priority: int, name: str) -> None:
    assert states.decode_queue(states.encode_queue(kind, priority, name)) == (kind, priority, name)


@pytest.mark.parametrize(("kind", "priority"), [(2, 0), (-1, 0), (0, 10), (0, -1)])
def test_a_queue_of_no_kind_or_priority_is_refused(kind: int, priority: int) -> None:
    with pytest.raises(StateError, match="queue record"):
        states.encode_queue(kind, priority, "/queue/a")


@given(u64, u64)
def test_a_head_reads_back(next_sequence: int, handed_to: int) -> None:
    assert states.decode_head(states.encode_head(next_sequence, handed_to)) == (next_sequence, handed_to)


@given(u64, st.integers(0, 2**32 - 1), st.booleans())
def test_the_records_of_the_store_itself_read_back(numbers: int, version: int, clean: bool) -> None:
    assert states.decode_numbers(states.encode_numbers(numbers)) == numbers
    assert states.decode_format(states.encode_format(version)) == version
    assert states.decode_clean(states.encode_clean(clean)) is clean


@pytest.mark.parametrize(
    "encode",
    [lambda: states.encode_head(-1, 0), lambda: states.encode_numbers(2**64), lambda: states.encode_format(-1)],
)
def test_a_number_that_does_not_fit_is_refused(encode: Callable[[], bytes]) -> None:
    with pytest.raises(StateError):
        encode()


# ---------------------------------------------------------------------- damage


DECODERS: dict[str, tuple[Callable[[bytes], Any], list[bytes]]] = {
    "state": (
        states.decode_state,
        [states.encode_state(int("10" * 512, 2), {1: 2}), states.encode_state((1 << 900) - 1, {})],
    ),
    "cursor": (states.decode_cursor, [states.encode_cursor(5, 9, [6, 7, 12], {8: 1})]),
    "durable": (states.decode_durable, [states.encode_durable(DurableRecord("ä", "b", "/topic/>", "x = 1", 1, 2))]),
    "queue": (states.decode_queue, [states.encode_queue(1, 4, "/topic/ä")]),
    "head": (states.decode_head, [states.encode_head(1, 2)]),
    "numbers": (states.decode_numbers, [states.encode_numbers(7)]),
    "format": (states.decode_format, [states.encode_format(1)]),
    "clean": (states.decode_clean, [states.encode_clean(True)]),
}


@pytest.mark.parametrize("record", DECODERS)
@given(data=st.data())
def test_random_and_damaged_bytes_are_read_or_an_error_of_the_format(record: str, data: st.DataObject) -> None:
    decode, good = DECODERS[record]
    value = data.draw(st.binary(max_size=64) | st.sampled_from(good))
    for place in data.draw(st.lists(st.integers(0, max(0, len(value) * 8 - 1)), max_size=3)):
        if value:
            value = value[: place >> 3] + bytes((value[place >> 3] ^ 1 << (place & 7),)) + value[(place >> 3) + 1 :]
    try:
        decode(value)
    except StateError as error:
        assert len(str(error)) > 10
