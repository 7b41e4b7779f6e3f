"""The durability scorecard: a table of what rounds of faults came to, from their result file."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).resolve().parents[2] / "perf" / "measured" / "cluster-rounds.jsonl"
"""Where the rounds behind docs/cluster.md are kept: a JSON object for each batch, one a line."""

Record = Mapping[str, Any]


def _sum(key: str) -> Callable[[Sequence[Record]], str]:
    return lambda records: f"{sum(record[key] for record in records):,}"


def _pauses(records: Sequence[Record]) -> list[float]:
    return [pause for record in records for pause in record["pauses_seconds"]]


_COLUMNS: Final[Mapping[str, Callable[[Sequence[Record]], str]]] = {
    "fault": lambda records: str(records[0]["fault"]),
    "rounds": _sum("rounds"),
    "sent": _sum("sent"),
    "confirmed": _sum("confirmed"),
    "delivered again, marked": _sum("again_marked"),
    "lost": _sum("lost"),
    "twice unmarked": _sum("twice_unmarked"),
    "again after a confirmed ACK": _sum("after_ack"),
    "pause of a queue: median": lambda records: f"{statistics.median(_pauses(records)):.1f} s",
    "longest": lambda records: f"{max(_pauses(records)):.1f} s",
}


def read(path: Path = RESULTS) -> list[Record]:
    """Return the records of a result file. Raises OSError, ValueError."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def scorecard(records: Sequence[Record]) -> list[str]:
    """Return the lines of a table in Markdown: a row for each fault, in the order in which they come first."""
    faults: dict[str, list[Record]] = {}
    for record in records:
        faults.setdefault(record["fault"], []).append(record)
    rows = [list(_COLUMNS), ["---"] * len(_COLUMNS)]
    rows += [[show(of_fault) for show in _COLUMNS.values()] for of_fault in faults.values()]
    return [f"| {' | '.join(row)} |" for row in rows]
