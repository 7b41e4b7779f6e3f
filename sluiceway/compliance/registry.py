"""Checks as a table: each is a function with a name, the clause it comes from, and a level for each version.

    @check("send/destination-required", "SEND", MUST)
    def destination_required(kit: Kit) -> None:
        '''Answer a SEND without destination with ERROR, and close.'''
        ...

The docstring is the duty. The function returns (passed), calls `kit.saw` with the broker's choice where the
specification leaves one, or raises `Failed`, `Unclear` or `Unsupported`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

import attrs

from sluiceway.compliance.wire import VERSIONS


class Level(enum.Enum):
    """Weight of a duty."""

    MUST = "MUST"
    SHOULD = "SHOULD"
    CHOICE = "choice"


MUST: Final = Level.MUST
SHOULD: Final = Level.SHOULD
CHOICE: Final = Level.CHOICE
LATER: Final = ("1.1", "1.2")


class Result(enum.Enum):
    """Outcome of a check."""

    PASSED = "passed"
    FAILED = "failed"
    UNCLEAR = "unclear"
    UNSUPPORTED = "not supported"
    SKIPPED = "skipped"


class Failed(Exception):
    """The duty is not kept."""

    def __init__(self, expected: str, came: str) -> None:
        super().__init__(f"expected {expected}; {came}")
        self.expected = expected
        self.came = came


class Unclear(Exception):
    """The check could not tell; the message says why."""


class Unsupported(Exception):
    """The broker does not have what the check is about, and need not; the message says what."""


Body = Callable[[Any], None]
"""Function of a check, which gets a `Kit` (`Any` here, since the kit knows its check)."""

_OLD_SECTIONS: Final = {
    "STOMP Frames": "Augmented BNF",
    "Value Encoding": "Augmented BNF",
    "Repeated Header Entries": "Augmented BNF",
    "Size Limits": "Augmented BNF",
    "Connecting": "(opening)",
    "CONNECTED Frame": "(opening)",
    "Protocol Negotiation": "(opening)",
    "Once Connected": "(opening)",
    "Connection Lingering": "(opening)",
    "Header content-length": "SEND",
    "Header content-type": "SEND",
    "Header receipt": "Receipt",
    "SUBSCRIBE ack Header": "SUBSCRIBE",
    "SUBSCRIBE id Header": "SUBSCRIBE",
    "NACK": "Client Commands",
}
"""Sections of 1.0 for those of 1.2 of which it has no namesake."""


@attrs.frozen
class Check:
    """One duty in one version."""

    name: str
    """VERSION/AREA/DUTY, such as `1.2/send/destination-required`."""
    version: str
    section: str
    level: Level
    duty: str
    body: Body = attrs.field(repr=False)

    @property
    def clause(self) -> str:
        """Version and section of the specification."""
        return f"STOMP {self.version}, {self.section}"

    @property
    def area(self) -> str:
        """Middle part of the name."""
        return self.name.split("/")[1]

    def is_meant(self, pattern: str) -> bool:
        """Return whether `pattern`, a part of name or clause in any case, or a glob for the whole name, means it."""
        low = pattern.lower()
        return low in self.name.lower() or low in self.clause.lower() or fnmatchcase(self.name, pattern)


CHECKS: Final[list[Check]] = []
"""All checks, in the order of the modules in `checks`."""


def check(
    name: str,
    section: str,
    level: Level | Mapping[str, Level],
    versions: tuple[str, ...] = VERSIONS,
    *,
    table: list[Check] | None = None,
) -> Callable[[Body], Body]:
    """Register a check for each of `versions`. `section`: title in the specification 1.2. `level`: one for all, or by
    version, where MUST is meant for those not named. `table`: where to register; default are the kit's own.
    """

    def register(body: Body) -> Body:
        duty = " ".join((body.__doc__ or "").split())
        if not duty:
            raise ValueError(f"the check {name} has no docstring: say the duty")
        for version in versions:
            title = _OLD_SECTIONS.get(section, section) if version == "1.0" else section
            weight = level if isinstance(level, Level) else level.get(version, MUST)
            target = CHECKS if table is None else table
            target.append(Check(f"{version}/{name}", version, title, weight, duty, body))
        return body

    return register
