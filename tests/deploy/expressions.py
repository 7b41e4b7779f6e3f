"""PromQL as far as a test needs it: which metrics and labels an expression names."""

from __future__ import annotations

import re
from typing import Final

from sluiceway.metrics.catalogue import FAMILIES

_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_SELECTOR: Final = re.compile(r"\b([a-zA-Z_:][\w:]*)\s*(?:\{([^}]*)\})?")
_LABEL: Final = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPING: Final = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")

SAMPLES: Final = {
    sample: {*family.labels, *(["le"] if sample.endswith("_bucket") else [])}
    for family in FAMILIES.values()
    for sample in family.sample_names
}
"""The labels of everything that a query can name."""

TARGET_LABELS: Final = frozenset({"instance", "job", "hub"})
"""What Prometheus adds by itself, and what the page of several hubs has beside the labels of one."""


def metrics_of(expression: str) -> dict[str, set[str]]:
    """The metrics of an expression, each with the labels that it selects by."""
    bare = _STRINGS.sub('""', expression)
    found: dict[str, set[str]] = {}
    for name, inside in _SELECTOR.findall(_GROUPING.sub("", bare)):
        if name.startswith(("sluiceway_", "process_", "up")):
            found.setdefault(name, set()).update(_LABEL.findall(inside))
    return found


def groupings_of(expression: str) -> set[str]:
    """The labels that it adds up by."""
    return {label.strip() for inside in _GROUPING.findall(expression) for label in inside.split(",") if label.strip()}


def mistakes_in(expression: str) -> list[str]:
    """What is not on the page."""
    found = []
    named = metrics_of(expression)
    known: set[str] = set(TARGET_LABELS)
    for name, labels in named.items():
        if name == "up":
            continue
        if name not in SAMPLES:
            found.append(f"no metric {name}")
            continue
        known |= SAMPLES[name]
        found += [f"{name} has no label {label}" for label in labels - SAMPLES[name] - TARGET_LABELS]
    found += [f"nothing here has the label {label}" for label in groupings_of(expression) - known]
    return found if named else [f"names no metric: {expression}"]
