"""Reports as JSON; docs/compliance.md describes the schema."""

from __future__ import annotations

from typing import Any, Final

from sluiceway.compliance.registry import Result
from sluiceway.compliance.running import Outcome, Report
from sluiceway.version import VERSION

SCHEMA: Final = 1


def data(report: Report, *, transcripts: bool = False) -> dict[str, Any]:
    """Return the report as plain data. `transcripts`: of all checks, not only of those that failed or are unclear."""
    return {
        "schema": SCHEMA,
        "kit": f"sluiceway/{VERSION}",
        "broker": {"address": report.address, "transport": report.transport, "server": report.server},
        "began": report.began.isoformat(timespec="seconds"),
        "seconds": round(report.seconds, 2),
        "seed": report.seed,
        "versions": report.versions,
        "not_cleaned": report.left,
        "summary": {
            key: {result.value: count for result, count in counts.items()} for key, counts in report.by_level().items()
        },
        "checks": [_check(outcome, transcripts) for outcome in report.outcomes],
    }


def _check(outcome: Outcome, transcripts: bool) -> dict[str, Any]:
    check = outcome.check
    made: dict[str, Any] = {
        "name": check.name,
        "version": check.version,
        "section": check.section,
        "level": check.level.value,
        "duty": check.duty,
        "result": outcome.result.value,
        "reason": outcome.reason,
        "expected": outcome.expected or check.duty,
        "came": outcome.came,
        "seconds": round(outcome.seconds, 3),
    }
    if transcripts or outcome.result in (Result.FAILED, Result.UNCLEAR):
        made["transcript"] = [
            {"seconds": round(entry.seconds, 3), "connection": entry.connection, "kind": entry.kind, "text": entry.text}
            for entry in outcome.transcript
        ]
    return made
