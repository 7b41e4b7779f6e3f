"""Access to the answer of `/sluiceway/stat`. The broker may be older or newer than this command, so any key may be
missing or of another type; it then reads as empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeGuard

from sluiceway.flow.snapshot import Circumstances
from sluiceway.flow.words import age_in_words, part_and_owner


def rows_of(report: Mapping[str, Any], key: str, busiest: Sequence[str] = ()) -> list[Mapping[str, Any]]:
    """Return the rows of a table, in descending order of the numbers under the keys `busiest`."""

    def rank(row: Mapping[str, Any]) -> tuple[float, ...]:
        return tuple(-row[name] if is_number(row.get(name)) else 0.0 for name in busiest)

    return sorted((row for row in list_of(report, key) if isinstance(row, Mapping)), key=rank)


def list_of(report: Mapping[str, Any], key: str) -> list[Any]:
    """Return the list under a key; empty if it is no list."""
    value = report.get(key)
    return value if isinstance(value, list) else []


def mapping_of(report: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the mapping under a key; empty if it is no mapping."""
    value = report.get(key)
    return value if isinstance(value, Mapping) else {}


def number_of(report: Mapping[str, Any], key: str) -> float | None:
    """Return the number under a key; None if it is no number."""
    value = report.get(key)
    return value if is_number(value) else None


def words_of(item: Any) -> str:
    """Return the text of an item of the map."""
    return str(item.get("words", item)) if isinstance(item, Mapping) else str(item)


def title_of(resource: Mapping[str, Any]) -> str:
    """Return kind and name of a resource, as edges and bottlenecks name it: `queue /queue/a`, of several hubs with the
    place: `queue /queue/a on hub-2`; once if kind and name are equal.
    """
    kind, name = str(resource.get("kind")), str(resource.get("name"))
    title = name if name == kind else f"{kind} {name}"
    return f"{title} on {resource['hub']}" if "hub" in resource else title


def missing_hubs(report: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each hub that has not answered, and of which the report has nothing."""
    return [
        f"{hub.get('name')} is missing: {hub['missing']}"
        + ("" if hub.get("gone") else "; what is there is not in this answer")
        for hub in rows_of(report, "hubs")
        if hub.get("missing")
    ]


CLOCK_SECONDS: Final = 30.0
"""Difference between the clocks of two hubs that people are told of: more than an answer takes."""


def wrong_clocks(report: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each hub whose clock is far from that of the hub that was asked."""
    said = []
    for hub in rows_of(report, "hubs"):
        seconds = number_of(hub, "clock_seconds") or 0.0
        if abs(seconds) > CLOCK_SECONDS:
            way = "ahead of" if seconds > 0 else "behind"
            said.append(
                f"the clock of {hub.get('name')} is {age_in_words(abs(seconds))} {way} that of the hub that was asked: "
                "messages expire, and delayed ones come, by the clock of the hub that has them"
            )
    return said


def circumstances_of(resource: Mapping[str, Any]) -> Circumstances:
    """Return what decides what to do about a resource of the map. No consumers are said in words."""
    facts = mapping_of(resource, "facts")
    _part, owner = part_and_owner(str(resource.get("name")))
    has_consumers = bool(number_of(facts, "consumers")) if "consumers" in facts else None
    return Circumstances(owner, number_of(facts, "paused_seconds") is not None, has_consumers)


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether the value is a number; a bool is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)
