"""What fits, in which order, and how values are said."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.top.columns import (
    COLUMNS,
    GAP,
    arranged,
    cell,
    cut,
    fitting,
    printable,
    say_age,
    say_bars,
    say_count,
    say_rate,
)
from sluiceway.top.course import Age
from sluiceway.top.picture import Painter, View
from tests.top.reports import HELD_UP, report


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "0"), (999, "999"), (12_345, "12,345"), (99_999, "99,999"), (123_456, "123k"), (1_234_567, "1.2M"),
     (45_000_000, "45M"), (5_000_000_000, "5.0G"), (None, "–"), ("x\x1b", "x\\x1b")],
)  # fmt: skip
def test_counts_are_short(value: object, said: str) -> None:
    assert say_count(value) == said


def test_a_slow_rate_is_not_nothing() -> None:
    assert (say_rate(0.2), say_rate(0.0), say_rate(None)) == ("0.2", "0", "–")


def test_an_age_says_when_it_is_a_lower_bound() -> None:
    assert (say_age(Age(41.0)), say_age(Age(41.0, at_least=True)), say_age(None)) == ("41 s", "≥41 s", "")
    assert (say_age(Age(0.0)), say_age(Age(0.3, at_least=True))) == ("<1 s", "≥300 ms")


def test_bars_are_as_high_as_the_rates() -> None:
    assert say_bars((0.0, 50.0, 100.0)) == "▁▅█"
    assert say_bars((0.0, 0.0)) == ""


@given(st.text())
def test_nothing_that_a_client_names_steers_the_terminal(name: str) -> None:
    assert printable(name).isprintable()


@given(st.text(max_size=60), st.integers(1, 40))
def test_a_cut_text_has_the_width(text: str, width: int) -> None:
    assert len(cut(text, width)) == min(len(text), width)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 132, 400])
@pytest.mark.parametrize("view", View)
def test_every_view_fits_every_width(view: View, width: int) -> None:
    rows = Painter().paint(report(9.0, **HELD_UP, store={"state": "ok"})).views[view]
    columns = fitting(view, width, rows)
    assert sum(column_width + GAP for _column, column_width in columns) - GAP <= width
    assert columns[0][0] is COLUMNS[view][0], "the name is always there"


def test_forty_characters_show_name_rate_depth_and_state() -> None:
    columns = fitting(View.DESTINATIONS, 39, [])
    assert [column.key for column, _width in columns] == ["name", "in_per_second", "depth_count", "state"]


def test_widths_do_not_jump_with_the_numbers() -> None:
    small: dict[str, Any] = {"key": "a", "name": "a", "depth_count": 1, "state": "ok"}
    large = {**small, "depth_count": 99_999, "state": "no reader"}
    assert fitting(View.DESTINATIONS, 80, [small]) == fitting(View.DESTINATIONS, 80, [large])


ROWS: list[dict[str, Any]] = [
    {"key": "b", "name": "b", "depth": 2, "oldest": Age(5.0)},
    {"key": "a", "name": "a", "depth": None, "oldest": None},
    {"key": "C", "name": "C", "depth": 10, "oldest": Age(1.0)},
]


@pytest.mark.parametrize(
    ("key", "descending", "order"),
    [
        ("depth", True, "Cba"),
        ("depth", False, "bCa"),
        ("name", False, "abC"),
        ("oldest", True, "bCa"),
        ("", True, "baC"),
    ],
)
def test_rows_are_sorted_and_those_without_a_value_come_last(key: str, descending: bool, order: str) -> None:
    assert "".join(row["key"] for row in arranged(ROWS, key, descending)) == order


def test_a_column_of_numbers_and_texts_can_be_sorted() -> None:
    rows: list[dict[str, Any]] = [{"key": "1", "v": "text"}, {"key": "2", "v": 3}, {"key": "3", "v": (1.0, 9.0)}]
    assert [row["key"] for row in arranged(rows, "v", False)] == ["2", "3", "1"]


def test_a_filter_finds_text_whatever_its_case() -> None:
    assert [row["key"] for row in arranged(ROWS, "name", False, "c")] == ["C"]
    assert arranged(ROWS, "name", False, "nowhere") == []


def test_values_of_the_store_are_said_by_their_unit() -> None:
    column = COLUMNS[View.STORE][1]
    assert cell(column, {"key": "size_bytes", "value": 2048}) == "2.0 KiB"
    assert cell(column, {"key": "last_write_seconds", "value": 0.012}) == "12 ms"
    assert cell(column, {"key": "state", "value": "ok"}) == "ok"
