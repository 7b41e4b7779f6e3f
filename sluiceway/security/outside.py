"""Port to logins that others vouch for: issuers of tokens, directories. Pure.

An adapter answers one attempt with `Accepted`, or raises NotAcceptedError, whose words are for the log alone: the
client learns that its login is refused.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Protocol

import attrs


class Reason(enum.Enum):
    """Reasons of refused logins. The value is the label of the metric."""

    PASSCODE = "passcode"
    UNKNOWN = "unknown-user"
    NO_LOGIN = "no-login"
    SLOWED = "slowed"
    NOT_PERMITTED = "not-permitted"
    NAME = "name"
    TOKEN = "token"
    SIGNATURE = "signature"
    KEY = "key"
    EXPIRED = "expired"
    NOT_YET = "not-yet"
    ISSUER = "issuer"
    AUDIENCE = "audience"
    UNAVAILABLE = "unavailable"


class NotAcceptedError(Exception):
    """The login is refused. The message is for operators, with the remedy where there is one."""

    def __init__(self, reason: Reason, words: str, *, is_guess: bool = False) -> None:
        """Make the refusal. `is_guess`: it counts as a failed attempt, which slows further ones."""
        super().__init__(words)
        self.reason = reason
        self.is_guess = is_guess


@attrs.frozen(slots=True)
class Accepted:
    """A login that a source vouches for."""

    user: str
    groups: frozenset[str]
    source: str
    """Label of the issuer or directory."""
    until_seconds: float | None = None
    """End of the login, on the broker's clock; None: it has none."""


class LoginSource(Protocol):
    """One issuer of tokens, or one directory."""

    @property
    def name(self) -> str:
        """Name in the log and in identities."""

    def account(self, login: str, host: str) -> str:
        """Return the name under which failed attempts are counted."""

    async def log_in(self, login: str, secret: str, late: Callable[[], bool]) -> Accepted | None:
        """Check a login; None: the attempt was `late` when its turn came, and begins again. Raises NotAcceptedError."""

    def start(self) -> None:
        """Begin work in the background."""

    def close(self) -> None:
        """End it. Logins under way may still be answered."""
