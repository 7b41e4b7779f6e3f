"""RangeSet against a plain set of numbers: whatever is put in, in whatever order, and nothing else."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from sluiceway.queues.ranges import RangeSet

NUMBERS = st.lists(st.integers(0, 30))


@given(chunks=st.lists(NUMBERS | st.builds(range, st.integers(0, 30), st.integers(0, 30))), floor=st.integers(0, 10))
@example(chunks=[[5, 0, 7]], floor=0)  # as far apart as they are many: 6 is not among them, and 0 is
@example(chunks=[[1, 0, 3]], floor=0)
def test_it_holds_what_was_added_and_nothing_else(chunks: list[list[int] | range], floor: int) -> None:
    ranges, model = RangeSet(), set[int]()
    for chunk in chunks:
        ranges.add_all(chunk, floor=floor)
        model |= {number for number in chunk if number >= floor}
    assert {number for start, end in ranges for number in range(start, end)} == model
    assert ranges.number_count == len(model)
    assert [number in ranges for number in range(32)] == [number in model for number in range(32)]
    runs = list(ranges)
    assert all(start < end for start, end in runs)
    assert all(runs[place][1] < runs[place + 1][0] for place in range(len(runs) - 1)), "disjoint, and they don't touch"


@given(
    first=st.lists(st.integers(0, 400), max_size=200),
    second=st.lists(st.integers(0, 400), min_size=20, max_size=200),
    floor=st.integers(0, 100),
)
def test_many_that_come_together_are_merged_with_those_that_are_there(
    first: list[int], second: list[int], floor: int
) -> None:
    ranges = RangeSet()
    ranges.add_all(first)
    ranges.add_all(second, floor=floor)
    model = {*first, *(number for number in second if number >= floor)}
    assert {number for start, end in ranges for number in range(start, end)} == model
    runs = list(ranges)
    assert all(runs[place][1] < runs[place + 1][0] for place in range(len(runs) - 1)), "disjoint, and they don't touch"
    assert list(RangeSet((number, number + 1) for number in [*second, *first])) == list(
        RangeSet((number, number + 1) for number in sorted({*first, *second}))
    )


@given(numbers=NUMBERS, start=st.integers(0, 32), end=st.integers(0, 32))
def test_what_is_removed_is_gone_and_nothing_else(numbers: list[int], start: int, end: int) -> None:
    ranges = RangeSet()
    ranges.add_all(numbers)
    ranges.remove(start, end)
    assert {n for low, high in ranges for n in range(low, high)} == {n for n in numbers if not start <= n < end}
    assert all(low < high for low, high in ranges)


@given(numbers=NUMBERS, floor=st.integers(0, 32))
def test_below_a_floor_all_is_forgotten(numbers: list[int], floor: int) -> None:
    ranges = RangeSet()
    ranges.add_all(numbers)
    ranges.drop_below(floor)
    assert {n for start, end in ranges for n in range(start, end)} == {n for n in numbers if n >= floor}


@given(numbers=NUMBERS, start=st.integers(0, 32), end=st.integers(0, 32))
def test_holes_and_first_gap_are_what_is_missing(numbers: list[int], start: int, end: int) -> None:
    ranges = RangeSet()
    ranges.add_all(numbers)
    missing = [n for hole_start, hole_end in ranges.holes(start, end) for n in range(hole_start, hole_end)]
    assert missing == [n for n in range(start, end) if n not in numbers]
    assert ranges.first_gap(start) == next(n for n in range(start, 100) if n not in numbers)
