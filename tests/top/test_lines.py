"""The lines around the table, at any width."""

from __future__ import annotations

import pytest

from sluiceway.top.lines import head_line, key_line, trouble_lines, view_line
from sluiceway.top.picture import Head, Trouble, View

HEAD = Head("orders-1", "0.1.0", 300.0, 1203.0, 1100.0, 52_000_000.0, 1000.0, 17, "blocked")
SENTENCE = "subscription billing-2 of 10.0.0.7:4711 blocks 7 flows, for 41 s: ack client, 500 unacked, idle 41 s"


def test_a_wide_head_says_everything() -> None:
    assert head_line(HEAD, 100) == (
        "orders-1  0.1.0  up 5 min  in 1,203/s  out 1,100/s  49.6 MiB  17 connections  blocked"
    )


@pytest.mark.parametrize(
    ("width", "line"), [(40, "orders-1  in 1,203/s  49.6 MiB  blocked"), (20, "orders-1  blocked"), (5, "or…-1")]
)
def test_a_narrow_head_keeps_what_matters_most(width: int, line: str) -> None:
    assert head_line(HEAD, width) == line


@pytest.mark.parametrize("width", range(1, 120))
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    assert len(head_line(HEAD, width)) <= width
    assert len(key_line(width)) <= width


def test_troubles_are_sentences_and_the_rest_is_counted() -> None:
    found = [Trouble(41.0, SENTENCE)] * 4
    lines = trouble_lines(found, 80, 3)
    assert lines[0].startswith("! subscription billing-2")
    assert lines[-1] == "  … and 3 more that hold others up"
    assert len(lines) == 3


def test_a_long_sentence_never_takes_more_than_its_lines() -> None:
    assert len(trouble_lines([Trouble(None, SENTENCE)] * 2, 20, 3)) == 3


def test_no_trouble_is_said() -> None:
    assert trouble_lines([], 80, 3) == ["nothing is blocked"]


def test_troubles_can_not_steer_the_terminal() -> None:
    assert "\x1b" not in "".join(trouble_lines([Trouble(1.0, "queue \x1b[2J\n holds")], 80, 3))


@pytest.mark.parametrize("width", [26, 40, 80, 120])
def test_the_chosen_view_stands_in_brackets_at_any_width(width: int) -> None:
    """It must be seen without colour."""
    pieces = view_line(View.LOGS, {}, width)
    assert sum(len(text) for text, _chosen in pieces) <= width
    [chosen] = [text for text, is_chosen in pieces if is_chosen]
    assert chosen.startswith("[4 ")
    assert len(pieces) == len(View) - 1  # hubs are shown where there are several
    assert len(view_line(View.HUBS, {View.HUBS: 2}, 120)) == len(View)
