"""Columns of a view, the words for their values, the order of rows, and the choice of columns for a width.

A terminal of 80 characters shows what matters most; one of 40 shows a name and a few numbers. Nothing is told by colour
alone: a state is a word.

Texts come from clients (names of destinations, logins), so everything that is drawn goes through `printable`: a control
character in a name must not steer the terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from sluiceway.cli.answers import is_number
from sluiceway.flow.words import age_in_words, size_in_words
from sluiceway.top.course import Age
from sluiceway.top.picture import Row, View

UNKNOWN: Final = "–"
BARS: Final = "▁▂▃▄▅▆▇█"
NAME_WIDTH_MIN: Final = 14
"""Minimum width of the first column, which takes the rest."""
SPARE_RANK: Final = 8
"""Columns from this rank on are left out where they say nothing."""
FIXED_WIDTH_MAX: Final = 12
"""Characters. Wider columns hold names, and are as wide as the longest."""
GAP: Final = 1
"""Blanks between columns."""


@attrs.frozen(slots=True)
class Column:
    """One column of a view."""

    key: str
    heading: str
    say: Callable[[Any], str]
    width: int
    """Characters at least; of the first column, see `NAME_WIDTH_MIN`."""
    rank: int
    """The lower, the longer it stays when the terminal gets narrow; 0: always there."""
    right: bool = True
    """Numbers stand at the right."""
    about: str = ""
    """Meaning of the column, for the help."""


# ---------------------------------------------------------------------- values


def printable(text: str) -> str:
    """The text with everything that is no visible character replaced: `\\n` as `\\x0a`, escape as `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1].replace("\\n", "\\x0a") for character in text
    )


def say_count(value: Any) -> str:
    """`999`, `12,345`, `123k`, `1.2M`: at most seven characters."""
    if not is_number(value):
        return UNKNOWN if value is None else printable(str(value))
    for limit, divisor, unit in ((99_999.5, 1, ""), (999_500, 1e3, "k"), (999_500_000, 1e6, "M")):
        if abs(value) < limit:
            scaled = value / divisor
            return f"{scaled:,.1f}{unit}" if unit == "M" and scaled < 9.95 else f"{scaled:,.0f}{unit}"
    return f"{value / 1e9:,.1f}G"


def say_rate(value: Any) -> str:
    """Return the rate as a count, but a slow rate is not 0."""
    return f"{value:.1f}" if is_number(value) and 0 < abs(value) < 9.95 else say_count(value)


def say_size(value: Any) -> str:
    """`64.0 MiB`."""
    return size_in_words(value) if is_number(value) else UNKNOWN if value is None else printable(str(value))


def say_age(value: Any) -> str:
    """Return an age: `41 s`; of something older than the first look `≥41 s`."""
    if isinstance(value, Age):
        if value.seconds < 1 and not value.at_least:
            return "<1 s"  # counters are compared once in a while: the milliseconds are unknown
        return f"{'≥' if value.at_least else ''}{age_in_words(value.seconds)}"
    return age_in_words(value) if is_number(value) else "" if value is None else printable(str(value))


def say_wait(value: Any) -> str:
    """Return an age, or nothing without a wait."""
    return say_age(value) if value else ""


def say_text(value: Any) -> str:
    """Return the text with visible characters only."""
    return "" if value is None else printable(str(value))


def say_bars(value: Any) -> str:
    """A small picture of rates, the latest at the right: `▁▁▃▆█`."""
    rates = [rate for rate in value or () if is_number(rate)]
    most = max(rates, default=0.0)
    if most <= 0:
        return ""
    return "".join(
        BARS[min(len(BARS) - 1, int(max(0.0, rate) / most * (len(BARS) - 1) + 0.5))] for rate in rates[-BARS_WIDTH:]
    )


BARS_WIDTH: Final = 8

# ---------------------------------------------------------------------- views

COLUMNS: Final[Mapping[View, Sequence[Column]]] = {
    View.DESTINATIONS: (
        Column("name", "destination", say_text, NAME_WIDTH_MIN, 0, right=False),
        Column("hub", "hub", say_text, 8, 12, right=False, about="process that has it, of several"),
        Column("in_per_second", "in/s", say_rate, 6, 1, about="messages taken in"),
        Column("in_rates", "lately", say_bars, BARS_WIDTH, 10, right=False, about="how in/s went"),
        Column("out_per_second", "out/s", say_rate, 6, 4, about="messages acknowledged"),
        Column("out_rates", "lately", say_bars, BARS_WIDTH, 11, right=False, about="how out/s went"),
        Column("depth_count", "depth", say_count, 6, 2, about="messages in it, with unacknowledged ones"),
        Column("oldest", "oldest", say_age, 7, 5, about="age of its oldest message (≥: at least)"),
        Column("unsettled_count", "unacked", say_count, 7, 6, about="handed to consumers, not acknowledged"),
        Column("drain_seconds", "drained", say_age, 7, 7, about="when it is empty, at the present rates"),
        Column("subscriptions_count", "subs", say_count, 5, 8, about="subscriptions"),
        Column("depth_bytes", "size", say_size, 9, 9, about="of the messages in it"),
        Column(
            "state", "state", say_text, 9, 3, right=False, about="full: holds its senders up; waits: on its readers"
        ),
    ),
    View.CONNECTIONS: (
        Column("client", "connection", say_text, 18, 0, right=False, about="by its client-id, or its address"),
        Column("hub", "hub", say_text, 8, 12, right=False, about="process that has it, of several"),
        Column("user", "user", say_text, 10, 7, right=False),
        Column("in_per_second", "in/s", say_rate, 6, 1, about="messages that it sends"),
        Column("in_bytes_per_second", "read/s", say_size, 9, 6, about="bytes read from it"),
        Column("out_bytes_per_second", "written/s", say_size, 9, 5, about="bytes written to it"),
        Column("unsettled_count", "unacked", say_count, 7, 3, about="given to it, not acknowledged"),
        Column("subscriptions_count", "subs", say_count, 5, 8, about="subscriptions"),
        Column("waiting_bytes", "unread", say_size, 9, 9, about="written for it, which it has not read"),
        Column("stash_bytes", "parked", say_size, 9, 10, about="sent by it, without room yet"),
        Column("blocked_seconds", "blocked", say_wait, 7, 2, about="for how long"),
        Column("waiting_on", "waits on", say_text, 20, 11, right=False),
        Column("state", "state", say_text, 9, 4, right=False),
    ),
    View.SUBSCRIPTIONS: (
        Column("name", "subscription", say_text, NAME_WIDTH_MIN, 0, right=False),
        Column("hub", "hub", say_text, 8, 10, right=False, about="process that has it, of several"),
        Column("client", "of", say_text, 21, 2, right=False, about="connection, by its client-id, or its address"),
        Column("unacked", "unacked", say_count, 7, 1, about="given to it, not acknowledged"),
        Column("idle_seconds", "idle", say_age, 6, 3, about="since it last acknowledged"),
        Column("holds_up", "blocks", say_count, 8, 6, about="flows that wait on it"),
        Column("held_seconds", "for", say_age, 6, 4, about="the longest of them"),
        Column("window", "window", say_text, 33, 8, right=False, about="its limit"),
        Column("sources", "who waits", say_text, 20, 9, right=False),
        Column("ack", "ack", say_text, 10, 7, right=False),
        Column("state", "state", say_text, 5, 5, right=False),
    ),
    View.LOGS: (
        Column("log", "log", say_text, NAME_WIDTH_MIN, 0, right=False),
        Column("hub", "hub", say_text, 8, 10, right=False, about="process that has it, of several"),
        Column("in_per_second", "in/s", say_rate, 6, 1, about="records appended"),
        Column("in_rates", "lately", say_bars, BARS_WIDTH, 8, right=False, about="how in/s went"),
        Column("size", "records", say_count, 7, 2),
        Column("bytes", "size", say_size, 9, 4),
        Column("next", "next", say_count, 9, 7, about="index of the next record"),
        Column("groups_count", "groups", say_count, 6, 5),
        Column("readers", "readers", say_count, 7, 9, about="readers without a group"),
        Column("waiting", "waiting", say_count, 7, 6, about="records that wait for the disk"),
        Column("state", "state", say_text, 12, 3, right=False),
    ),
    View.GROUPS: (
        Column("group", "group", say_text, NAME_WIDTH_MIN, 0, right=False),
        Column("log", "log", say_text, 16, 4, right=False),
        Column("out_per_second", "out/s", say_rate, 6, 2, about="records acknowledged"),
        Column("out_rates", "lately", say_bars, BARS_WIDTH, 9, right=False, about="how out/s went"),
        Column("lag", "lag", say_count, 7, 1, about="records that it has yet to acknowledge"),
        Column("oldest", "age", say_age, 7, 3, about="of the first of them"),
        Column("drain_seconds", "caught up", say_age, 9, 6, about="when, at the present rates"),
        Column("unsettled", "unacked", say_count, 7, 7),
        Column("consumers", "consumers", say_count, 9, 8),
        Column("state", "state", say_text, 12, 5, right=False),
    ),
    View.STORE: (
        Column("what", "store", say_text, NAME_WIDTH_MIN, 0, right=False),
        Column("value", "value", say_text, 12, 1),
        Column("per_second", "per second", say_rate, 10, 2),
    ),
    View.HUBS: (
        Column("name", "hub", say_text, NAME_WIDTH_MIN, 0, right=False),
        Column("in_per_second", "in/s", say_rate, 6, 1, about="messages taken in"),
        Column("out_per_second", "out/s", say_rate, 6, 4, about="messages acknowledged"),
        Column("connections_count", "conns", say_count, 6, 3, about="connections of clients"),
        Column("destinations_count", "dests", say_count, 6, 6, about="destinations that it has"),
        Column("shards_count", "shards", say_count, 6, 7, about="shards that it has open"),
        Column("rss_bytes", "memory", say_size, 9, 5, about="of the process"),
        Column("uptime_seconds", "up", say_age, 6, 8),
        Column("pid", "process", say_text, 8, 9),
        Column("state", "state", say_text, 20, 2, right=False),
    ),
}
"""All columns, in the order in which they stand."""

SORT_BY: Final[Mapping[View, tuple[str, bool]]] = {
    View.DESTINATIONS: ("depth_count", True),
    View.CONNECTIONS: ("blocked_seconds", True),
    View.SUBSCRIPTIONS: ("held_seconds", True),
    View.LOGS: ("in_per_second", True),
    View.GROUPS: ("lag", True),
    View.STORE: ("", False),
    View.HUBS: ("", False),
}
"""Initial sort column of each view, and whether the largest come first; empty: the order of the report."""


def cell(column: Column, row: Row) -> str:
    """Return the text of a cell."""
    value = row.get(column.key)
    if column.key == "value":
        return _say_store_value(str(row.get("key")), value)
    return column.say(value)


def _say_store_value(key: str, value: Any) -> str:
    if key.endswith("_bytes"):
        return say_size(value)
    return say_age(value) if key.endswith("_seconds") else say_count(value)


def fitting(view: View, width: int, rows: Iterable[Row]) -> list[tuple[Column, int]]:
    """Return the columns of that view that fit into `width` characters, with their widths; `rows`: their contents. The
    first column gets the rest, and no more than it needs.

    Most columns have their width whatever is in them, or they would jump about from one second to the next.
    """
    shown = list(rows)
    columns = COLUMNS[view]
    wanted = {column.key: _wanted_width(column, shown) for column in columns}
    chosen = {columns[0].key}
    left = width - columns[0].width
    for column in sorted(columns[1:], key=lambda column: column.rank):
        if column.rank >= SPARE_RANK and not any(_says_something(column, row) for row in shown):
            continue
        if left < wanted[column.key] + GAP:
            continue
        left -= wanted[column.key] + GAP
        chosen.add(column.key)
    needed = max([len(columns[0].heading), *(len(cell(columns[0], row)) for row in shown)])
    first = max(1, min(columns[0].width + left, needed, width))
    return [
        (column, first if column is columns[0] else wanted[column.key]) for column in columns if column.key in chosen
    ]


def _wanted_width(column: Column, rows: Sequence[Row]) -> int:
    if column.width <= FIXED_WIDTH_MAX:
        return column.width
    return max([len(column.heading), *(min(column.width, len(cell(column, row))) for row in rows)])


def _says_something(column: Column, row: Row) -> bool:
    value = row.get(column.key)
    return value not in (None, "", 0, ())


def cut(text: str, width: int) -> str:
    """Return the text in `width` characters: a long name loses its middle, because its ends tell more."""
    if len(text) <= width:
        return text
    if width < 4:
        return text[:width]
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def arranged(rows: Iterable[Row], sort_key: str, descending: bool, wanted: str = "") -> list[Row]:
    """Return the rows that have the text `wanted` in some value, in order. Rows without a value come last."""
    needle = wanted.casefold()
    found = [row for row in rows if not needle or _has(row, needle)]
    if not sort_key:
        return found
    with_value = [row for row in found if row.get(sort_key) is not None]
    with_value.sort(key=lambda row: _rank(row[sort_key]), reverse=descending)
    return with_value + [row for row in found if row.get(sort_key) is None]


def _has(row: Row, needle: str) -> bool:
    return any(isinstance(value, str) and needle in value.casefold() for value in row.values())


def _rank(value: Any) -> tuple[int, float, str]:
    """Numbers and texts in one order: the broker may be of another version, and say either."""
    if isinstance(value, Age):
        return (0, value.seconds, "")
    if isinstance(value, tuple | list):
        return (0, float(value[-1]) if value and is_number(value[-1]) else 0.0, "")
    return (0, float(value), "") if is_number(value) else (1, 0.0, str(value).casefold())
