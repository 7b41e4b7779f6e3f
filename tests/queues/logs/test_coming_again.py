"""What was given back comes again in order, whatever was given back when, and costs no walk over what is there."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sluiceway.queues.logs.redelivery import Redelivery


def test_bites_of_one_run_are_one_again() -> None:
    again = Redelivery()
    for start in (0, 20, 10, 30):
        again.add((index, index + 1, 2) for index in range(start, start + 10))
    (one,) = again
    assert (one.start, one.end, one.failures) == (0, 40, 2)


def test_what_failed_more_often_stays_apart() -> None:
    again = Redelivery([(0, 5, 1), (5, 6, 2), (6, 9, 1)])
    assert [(each.start, each.end, each.failures) for each in again] == [(0, 5, 1), (5, 6, 2), (6, 9, 1)]


@given(st.data())
def test_it_is_what_a_table_of_records_would_be(data: st.DataObject) -> None:
    """Against a dictionary: what is given back, handed over and dropped, in any order."""
    again = Redelivery()
    table: dict[int, int] = {}
    for _ in range(data.draw(st.integers(1, 12))):
        act = data.draw(st.sampled_from(["add", "add", "pass", "drop", "drop between"]))
        if act == "add":
            free = [index for index in range(60) if index not in table]
            chosen = data.draw(st.lists(st.sampled_from(free), unique=True)) if free else []
            failures = data.draw(st.integers(-1, 2))
            again.add([(index, index + 1, failures) for index in chosen])
            table.update(dict.fromkeys(chosen, failures))
        elif act == "drop":
            end = data.draw(st.integers(0, 60))
            again.drop_below(end)
            table = {index: failures for index, failures in table.items() if index >= end}
        elif act == "drop between":
            start, end = data.draw(st.integers(0, 60)), data.draw(st.integers(1, 61))
            if start < end:
                again.drop_between(start, end)
                table = {index: failures for index, failures in table.items() if not start <= index < end}
        elif (first := again.first) is not None:
            end = data.draw(st.integers(first.start + 1, first.end))
            handed = range(first.start, end)
            again.pass_first(end)
            for index in handed:
                del table[index]
        found = [(index, each.failures) for each in again for index in range(each.start, each.end)]
        assert found == sorted(table.items())
        assert bool(again) is bool(table)
        neighbours = list(again)
        assert not any(a.goes_on_as(b) for a, b in pairwise(neighbours))
