"""Errors between a program and its brokers, by their remedies.

Waiting that took too long is Python's own `TimeoutError`; a wrong argument is a `ValueError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import attrs

from sluiceway.protocols.stomp.errors import word_of

Reason = Literal["no-answer", "unknown-host"]
"""Causes of a missing connection for which callers have a remedy of their own."""

AWAY: Final = "shard-away"
"""Code of ERRORs and of replies to requests about what no hub has at the moment."""
PASSING: Final = frozenset((AWAY, "in-doubt", "no-owner"))


class ClientError(Exception):
    """Failure between the client and a broker; the message says what, where, and the remedy."""

    @property
    def short(self) -> str:
        """Description in one line, without the remedy."""
        return str(self)


class CannotConnectError(ClientError):
    """The address gave no answer, or none in STOMP. Another attempt may help."""

    def __init__(self, said: str, remedy: str = "", *, reason: Reason | None = None) -> None:
        super().__init__(f"{said}: {remedy}" if remedy else said)
        self._said = said
        self.reason = reason
        """Reason in a word, for callers with another remedy."""

    @property
    def short(self) -> str:
        """Description in one line, without the remedy."""
        return self._said


class ConnectionLostError(ClientError):
    """The connection ended before the work was done. Another attempt may help."""


class RefusedError(ClientError):
    """The broker answered with an ERROR. The same again would be refused again."""

    def __init__(self, message: str, code: str | None = None, result_code: str | None = None) -> None:
        super().__init__(message)
        self.code = None if code is None else word_of(code)
        """Code of the ERROR, such as `bad-destination` (docs/stomp-errors.md); None where the broker gives none."""
        # Brokers of earlier versions have the result code in the place of the word.
        self.result_code = result_code if code == self.code else code
        """Code that replies to requests have for errors about logs, such as TOPIC_NOT_EXIST; None for other errors."""
        self.words = message
        """Words of the broker, in one line."""
        self.detail = ""
        """Body of the ERROR, unless it repeats the words."""
        self.command: str | None = None
        """Command of the frame that was refused; None for an ERROR that is about the connection."""
        self.receipt_id: str | None = None
        """Receipt that the frame asked for."""

    @property
    def short(self) -> str:
        """The broker's words, in one line."""
        return f"the broker answered ERROR: {self.words}"

    @property
    def is_passing(self) -> bool:
        """Whether the same may be done in a moment: a shard of a cluster was moving, or its hub died."""
        return self.code in PASSING

    @classmethod
    def of(cls, url: str, headers: Mapping[str, str], body: bytes) -> RefusedError:
        """Make the error from an ERROR frame."""
        words = headers.get("message", "no message")
        detail = body.decode("utf-8", "replace").strip()
        if detail == words:
            detail = ""
        message = f"{url} answered ERROR: {words}{f': {detail}' if detail else ''}"
        error = cls(message, headers.get("code"), headers.get("result-code"))
        error.words, error.detail = words, detail
        error.command, error.receipt_id = headers.get("command"), headers.get("receipt-id")
        return error


class NotSluicewayError(ClientError):
    """The other side speaks STOMP, but does not know this request: another broker, or another version."""


class NoReplyError(NotSluicewayError, TimeoutError):
    """A request got no reply in time."""


class RequestError(ClientError):
    """A request about a log can't be fulfilled."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        """Code such as TOPIC_NOT_EXIST or INDEX_OUT_OF_BOUNDS; docs/clients.md lists them."""


class BufferFullError(ClientError):
    """`send` would have had to wait for room longer than it may. Nothing of the record was kept."""


class ClosedError(ClientError):
    """The producer or consumer is closed, or was closed before this could be done."""


class DamagedError(ClientError):
    """Data of the broker makes no sense. (Records whose checksum is wrong are a gap.)"""


class LogDeletedError(ClientError):
    """The log that was read is no more."""


@attrs.frozen
class Gap:
    """Records that a reader can't have any more."""

    log: str
    broker: str
    first: int
    """Index of the first record that is missing."""
    end: int
    """Index behind the last missing record."""
    reason: str
    """`retention` (too old, or the log too large), `lost` (in a power cut) or `damaged`; `other-log`: the log was
    deleted and made anew, nothing from `first` on is there, and reading goes on at `end` of the new one.
    """


class GapError(ClientError):
    """Records are missing, and the consumer was told that this is an error."""

    def __init__(self, gap: Gap) -> None:
        what = (
            f"log {gap.log} at {gap.broker} was deleted, and another one is there: index {gap.first} was next"
            if gap.reason == "other-log"
            else f"records {gap.first} to {gap.end - 1} of log {gap.log} at {gap.broker} are gone ({gap.reason})"
        )
        super().__init__(f"{what}; to continue without them, read from {gap.end}, or with on_gap='report'")
        self.gap = gap
