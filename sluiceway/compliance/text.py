"""Reports for a terminal: a table of results, and every failure with its frames."""

from __future__ import annotations

from collections.abc import Iterator

from sluiceway.compliance.registry import Check, Result
from sluiceway.compliance.running import Outcome, Report

SIGNS = {
    Result.PASSED: "✓",
    Result.FAILED: "✗",
    Result.UNCLEAR: "?",
    Result.UNSUPPORTED: "–",
    Result.SKIPPED: "·",
}


def text(report: Report, *, all_checks: bool = False) -> str:
    """Return the report. `all_checks`: with a line for each check, not only for those that did not pass."""
    return "\n".join(_lines(report, all_checks)) + "\n"


def _lines(report: Report, all_checks: bool) -> Iterator[str]:
    yield f"STOMP compliance of {report.address} ({report.transport}), server: {report.server or 'says nothing'}"
    count, seconds = len(report.outcomes), report.seconds
    yield f"{report.began:%Y-%m-%d %H:%M} UTC, {count} checks in {seconds:.1f} s, seed {report.seed}"
    for version, why in report.versions.items():
        if why:
            yield f"no STOMP {version}: {why}"
    yield ""
    columns = list(Result)
    yield f"{'':12}" + "".join(f"{result.value:>15}" for result in columns)
    for key, counts in report.by_level().items():
        yield f"{key:12}" + "".join(f"{counts[result] or '':>15}" for result in columns)
    if all_checks:
        yield ""
        yield from (line(outcome) for outcome in report.outcomes)
    failed = [outcome for outcome in report.outcomes if outcome.result is Result.FAILED]
    for outcome in failed:
        yield ""
        yield from _failure(outcome)
    others = [each for each in report.outcomes if each.result in (Result.UNCLEAR, Result.UNSUPPORTED)]
    others = [each for each in others if not report.versions.get(each.check.version)]
    if others and not all_checks:
        yield ""
        yield from (line(outcome) for outcome in others)
    if report.left:
        yield ""
        yield f"warning: {report.left}"
    yield ""
    yield verdict(report)


def line(outcome: Outcome) -> str:
    """Return one check in one line."""
    said = f": {outcome.reason}" if outcome.reason else ""
    return f"{SIGNS[outcome.result]} {outcome.check.name} ({outcome.check.level.value}){said}"


def _failure(outcome: Outcome) -> Iterator[str]:
    check = outcome.check
    yield f"✗ {check.name}   {check.level.value}, {check.clause}"
    yield f"  duty: {check.duty}"
    yield f"  expected: {outcome.expected}"
    yield f"  but {outcome.came}"
    for entry in outcome.transcript:
        first, *more = entry.text.split("\n")
        yield f"  {entry.seconds:7.3f} {entry.connection}{entry.kind} {first}"
        yield from (f"          {entry.kind} {each}" for each in more)


def verdict(report: Report) -> str:
    """Return the last line."""
    musts, all_failed = len(report.broken()), report.count(Result.FAILED)
    if not all_failed:
        return "Every duty that could be checked is kept."
    return f"Not kept: {musts} MUST, {all_failed - musts} SHOULD."


def listing(checks: list[Check]) -> str:
    """Return the checks by name, with level, clause and duty."""
    lines: list[str] = []
    for check in checks:
        lines += [f"{check.name}   {check.level.value}, {check.clause}", f"    {check.duty}"]
    return "\n".join([*lines, f"{len(checks)} checks"]) + "\n"
