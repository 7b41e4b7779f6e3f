"""RangeSet does what a set of numbers does, in few ranges."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sluiceway.queues.ranges import RangeSet

NUMBERS = st.integers(0, 60)
STEPS = st.lists(st.tuples(st.sampled_from(["add", "add", "add", "drop"]), NUMBERS, st.integers(-2, 20)), max_size=40)


@given(STEPS, NUMBERS, NUMBERS)
def test_a_range_set_is_a_set(steps: list[tuple[str, int, int]], start: int, end: int) -> None:
    ranges, numbers = RangeSet(), set[int]()
    for what, first, count in steps:
        if what == "add":
            ranges.add(first, first + count)
            numbers |= set(range(first, first + count))
        else:
            ranges.drop_below(first)
            numbers = {number for number in numbers if number >= first}
        pairs = list(ranges)
        assert [number for a, b in pairs for number in range(a, b)] == sorted(numbers)
        assert all(a < b for a, b in pairs)
        assert all(b < c for (_a, b), (c, _d) in pairwise(pairs)), "they do not touch"
        assert ranges.number_count == len(numbers)
        assert len(ranges) == len(pairs)
    for number in range(85):
        assert (number in ranges) is (number in numbers)
        gap = ranges.first_gap(number)
        assert gap not in numbers
        assert set(range(number, gap)) <= numbers
    holes = list(ranges.holes(start, end))
    assert [n for a, b in holes for n in range(a, b)] == [n for n in range(start, end) if n not in numbers]
    assert list(RangeSet(ranges)) == list(ranges)
