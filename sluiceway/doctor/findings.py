"""Findings: a checked item with verdict and remedy, and its display."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final

import attrs


class Verdict(Enum):
    """Result of a check."""

    OK = "ok"
    WARNING = "warning"
    """The broker runs, but the item needs attention."""
    PROBLEM = "problem"
    """The broker does not run, or loses data it should keep."""


MARKS: Final = {Verdict.OK: "✓", Verdict.WARNING: "!", Verdict.PROBLEM: "✗"}


@attrs.frozen
class Finding:
    """A checked item."""

    what: str
    said: str
    """Predicate of a sentence about `what`."""
    remedy: str = ""
    """Remedy; empty: no fault."""
    fatal: bool = True
    """Whether the fault is a problem; False: a warning."""

    @property
    def verdict(self) -> Verdict:
        """Verdict by remedy and `fatal`."""
        if not self.remedy:
            return Verdict.OK
        return Verdict.PROBLEM if self.fatal else Verdict.WARNING

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        return {"what": self.what, "verdict": self.verdict.value, "said": self.said, "remedy": self.remedy or None}


def warning(what: str, said: str, remedy: str) -> Finding:
    """Return a finding that is a warning."""
    return Finding(what, said, remedy, fatal=False)


def tell(finding: Finding, echo: Callable[[str], None], *, width: int = 0) -> Verdict:
    """Print a finding: a line, and one for the remedy. `width`: of the column of `what`. Returns its verdict."""
    echo(f" {MARKS[finding.verdict]} {finding.what + ':':<{width + 1}} {finding.said}")
    if finding.remedy:
        echo(f"   {' ' * (width + 2 if width else 0)}{finding.remedy}")
    return finding.verdict


def tell_all(findings: Iterable[Finding], echo: Callable[[str], None]) -> Verdict:
    """Print a table of findings. Returns the worst verdict."""
    found = list(findings)
    width = max((len(finding.what) for finding in found), default=0)
    return worst(tell(finding, echo, width=width) for finding in found)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst verdict; OK for none."""
    order = list(Verdict)
    return max(verdicts, key=order.index, default=Verdict.OK)
