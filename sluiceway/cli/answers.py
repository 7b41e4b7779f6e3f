"""Reading the answer of `/sluiceway/stat`: it comes from a broker that may be older or newer than this command, so
every key may be missing or of another kind. What is not there reads as nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard


def rows_of(report: Mapping[str, Any], key: str, busiest: Sequence[str] = ()) -> list[Mapping[str, Any]]:
    """The rows of that table, those with the largest numbers under the keys `busiest` first."""

    def rank(row: Mapping[str, Any]) -> tuple[float, ...]:
        return tuple(-row[name] if is_number(row.get(name)) else 0.0 for name in busiest)

    return sorted((row for row in list_of(report, key) if isinstance(row, Mapping)), key=rank)


def list_of(report: Mapping[str, Any], key: str) -> list[Any]:
    """That list; an empty one if it is none."""
    value = report.get(key)
    return value if isinstance(value, list) else []


def mapping_of(report: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """That mapping; an empty one if it is none."""
    value = report.get(key)
    return value if isinstance(value, Mapping) else {}


def number_of(report: Mapping[str, Any], key: str) -> float | None:
    """That number, None if it is none."""
    value = report.get(key)
    return value if is_number(value) else None


def words_of(item: Any) -> str:
    """What an item of the map says of itself."""
    return str(item.get("words", item)) if isinstance(item, Mapping) else str(item)


def title_of(resource: Mapping[str, Any]) -> str:
    """Kind and name of a resource, as edges and bottlenecks name it: `queue /queue/a`; once if they are the same."""
    kind, name = str(resource.get("kind")), str(resource.get("name"))
    return name if name == kind else f"{kind} {name}"


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it can be counted with: a bool can't."""
    return isinstance(value, int | float) and not isinstance(value, bool)
