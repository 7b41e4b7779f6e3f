"""Facts with long lists as lines of JSON, so that either end works on them in small steps.

The first line has everything but the lists at the top; then each item of a list is a line: `["connections",{…}]`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sluiceway.flow.graph import Steps
from sluiceway.steps import json_in_steps


def lines_in_steps(facts: Mapping[str, Any]) -> Steps[bytes]:
    """Return facts as lines. Infinity becomes null."""
    lists = {key: value for key, value in facts.items() if isinstance(value, list | tuple)}
    first = yield from json_in_steps(
        {key: [] if key in lists else value for key, value in facts.items()}  # an empty list keeps its place
    )
    lines = [first]
    for key, items in lists.items():
        for item in items:
            line = yield from json_in_steps([key, item])
            lines.append(line)
    return b"\n".join(lines)


def facts_in_steps(lines: bytes) -> Steps[dict[str, Any]]:
    """Return what `lines_in_steps` wrote. Raises ValueError if it is something else."""
    facts: dict[str, Any] = {}
    for place, line in enumerate(lines.split(b"\n")):
        yield
        value = json.loads(line)
        if place:
            key, item = value
            facts[key].append(item)
        elif isinstance(value, dict):
            facts = value
        else:
            raise ValueError("the first line of the facts is no object")
    return facts
