"""One thing that was looked at: what it is, whether it is well, and what to do if it is not; and how that is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final

import attrs


class Verdict(Enum):
    """Whether it is well."""

    OK = "ok"
    WARNING = "warning"
    """It runs, but something is worth a look."""
    PROBLEM = "problem"
    """It does not run like this, or loses what it should keep."""


MARKS: Final = {Verdict.OK: "✓", Verdict.WARNING: "!", Verdict.PROBLEM: "✗"}


@attrs.frozen
class Finding:
    """One thing that was looked at."""

    what: str
    said: str
    """One sentence, as it goes on after `what`."""
    remedy: str = ""
    """Empty: it is well."""
    fatal: bool = True
    """Whether it does not run with it; False: a warning."""

    @property
    def verdict(self) -> Verdict:
        """By remedy and `fatal`."""
        if not self.remedy:
            return Verdict.OK
        return Verdict.PROBLEM if self.fatal else Verdict.WARNING

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {"what": self.what, "verdict": self.verdict.value, "said": self.said, "remedy": self.remedy or None}


def warning(what: str, said: str, remedy: str) -> Finding:
    """It runs with it, but something is worth a look."""
    return Finding(what, said, remedy, fatal=False)


def tell(finding: Finding, echo: Callable[[str], None], *, width: int = 0) -> Verdict:
    """Print a finding: a line, and one for the remedy. `width`: of the column of `what`. Returns its verdict."""
    echo(f" {MARKS[finding.verdict]} {finding.what + ':':<{width + 1}} {finding.said}")
    if finding.remedy:
        echo(f"   {' ' * (width + 2 if width else 0)}{finding.remedy}")
    return finding.verdict


def tell_all(findings: Iterable[Finding], echo: Callable[[str], None]) -> Verdict:
    """Print a table of them. Returns the worst verdict."""
    found = list(findings)
    width = max((len(finding.what) for finding in found), default=0)
    return worst(tell(finding, echo, width=width) for finding in found)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Of several; OK of none."""
    order = list(Verdict)
    return max(verdicts, key=order.index, default=Verdict.OK)
