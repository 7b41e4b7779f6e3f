"""Words of an embedded broker for a test that fails: what is there, what a name or a figure was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sluiceway.queues.names import Kind
from sluiceway.queues.statistics import FIGURES

_FIGURES: Final = (*FIGURES, "producers_count", "unheard_count", "idle_seconds", "oldest_seconds", "kind", "paused")
_NAMES_SHOWN_MAX: Final = 10
_ROWS_SHOWN_MAX: Final = 20
_SHOWN: Final = ("depth_count", "unsettled_count", "delayed_count", "added_count", "settled_count")
_SHOWN_UNLESS_0: Final = (
    "returned_count",
    "dropped_count",
    "expired_count",
    "rejected_count",
    "duplicates_count",
    "dead_lettered_count",
    "subscriptions_count",
    "producers_count",
)

INSTEAD_OF_BROWSING: Final[Mapping[Kind, str]] = {
    Kind.TOPIC: "{0} is a topic, and keeps no messages to look at: subscribe before something is sent there, and take "
    'what comes: with broker.subscribe("{0}") as arrivals: ... arrivals.receive()',
    Kind.LOG: "{0} is a log: its records are read, not browsed: with sluiceway.client.Consumer, or "
    'with broker.subscribe("{0}", {{"from": "earliest"}}) as records: ... records.receive()',
}
"""Advice for destinations whose messages can't be browsed, by kind; `{0}` is the name."""


class Missing(dict[str, Any]):
    """The row of a destination that does not exist: empty, and a look-up says which exist."""

    def __init__(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self._name = name
        self._rows = rows

    def __missing__(self, key: str) -> Any:
        raise KeyError(f"{key}: there is no destination {self._name}; {holdings(self._rows)}")


def check_figures(wanted: Mapping[str, object], row: Mapping[str, Any]) -> None:
    """Raise KeyError for figures that a destination does not have. `row`: empty if there is no destination."""
    known = row or _FIGURES
    for name in wanted:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise KeyError(f"a destination has no figure {name}: {hint}")


def listed(figures: Mapping[str, object]) -> str:
    """Return figures as `depth_count=1, dropped_count=0`."""
    return ", ".join(f"{name}={value}" for name, value in figures.items())


def holdings(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return which destinations a broker has, in a line."""
    names = [row["name"] for row in rows[:_NAMES_SHOWN_MAX]]
    more = f" and {len(rows) - len(names)} more" if len(rows) > len(names) else ""
    return f"the broker has {', '.join(names)}{more}" if names else "the broker has no destinations"


def summary(report: Mapping[str, Any]) -> str:
    """Return what a broker holds and who waits, in lines."""
    rows = report["destinations"]
    lines = [
        f"{row['name']}: {listed(_interesting(row))}"
        for row in sorted(rows[:_ROWS_SHOWN_MAX], key=lambda row: row["name"])
    ]
    if len(rows) > _ROWS_SHOWN_MAX:
        lines.append(f"and {len(rows) - _ROWS_SHOWN_MAX} more destinations")
    lines.append(f"connections of other programs: {len(report['connections'])}" if rows else "no destinations")
    lines += [found["words"] for found in report["bottlenecks"]]
    return "\n".join(lines)


def _interesting(row: Mapping[str, Any]) -> dict[str, object]:
    always = {name: row[name] for name in _SHOWN if name in row}
    return always | {name: row[name] for name in _SHOWN_UNLESS_0 if row.get(name)}
