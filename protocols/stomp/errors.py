"""Errors of the STOMP machine, split by whose fault they are.

`ProtocolError` is the peer's mistake. STOMP knows no mistake that a connection survives (b29, b52: ERROR, then close),
so each one parks the machine. It carries all parts of the ERROR frame: one line for the ``message`` header, a body with
the remedy, the receipt id of the frame that caused it (b53) and the headers that identify that frame.

`LocalProtocolError` is a mistake of the code that calls the machine: a frame that may not be sent now, or one that
can't be written.

Deliberately not here: the bytes of the ERROR frame (`encoder.error_frame`), and anything about logging.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

#: Headers that tell a client which of its frames was refused. A passcode is not among them, and must never be.
IDENTIFYING_HEADERS = ("destination", "id", "message-id", "subscription", "transaction")

#: An identifying header longer than this is left out of the ERROR frame: it would cost more than it tells.
IDENTIFYING_VALUE_LENGTH_MAX = 1024


_WORDS: Final = {"INTERNAL_ERROR": "log-failed"}
"""The ERROR `internal-error` is a mistake of the broker; with `log-failed` the disk, or memory, has not done it."""


def word_of(code: str) -> str:
    """Return the word with hyphens for a result code of Luxun (``TOPIC_NOT_EXIST``); any other code is a word already,
    and is returned unchanged. Each result code has a word of its own.
    """
    return _WORDS.get(code, code.lower().replace("_", "-")) if code.isupper() else code


class LocalProtocolError(ValueError):
    """The broker asked the machine for something that STOMP does not allow: a bug in the caller, never caused by a
    peer.
    """


class ProtocolError(Exception):
    """The peer broke the protocol or a limit; the connection ends with an ERROR frame.

    `code` is stable and meant for programs and logs (for example ``"header-block-too-large"``): it is the header
    ``code`` of the ERROR frame. A result code of Luxun (for example ``"TOPIC_NOT_EXIST"``) is made a word for it
    (``"topic-not-exist"``), and goes into the header ``result-code`` as it is. `message` is one line.
    `detail` says more, with the remedy. `extra` are headers that this ERROR must carry besides (b19: ``version``).
    `receipt_id` and `headers` are filled in by `identify`, or by whoever raises it after a frame was taken apart.
    """

    def __init__(
        self,
        code: str,
        message: str,
        detail: str = "",
        *,
        receipt_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        extra: Iterable[tuple[str, str]] = (),
    ) -> None:
        super().__init__(message)
        self.code = word_of(code)
        self.message = message
        self.detail = detail
        self.receipt_id = receipt_id
        self.command: str | None = None
        self.headers: dict[str, str] = {}
        self.extra: tuple[tuple[str, str], ...] = tuple(extra)
        if self.code != code:
            self.extra = (("result-code", code), *self.extra)
        if headers is not None:
            self._keep(headers)

    def identify(self, command: str, headers: Mapping[str, str]) -> None:
        """Note which frame caused this error. Only the first call counts: it was nearest to the fault."""
        if self.command is not None:
            return
        self.command = command[:64]
        if self.receipt_id is None:
            self.receipt_id = headers.get("receipt")
        self._keep(headers)

    def reword(self, told: Callable[[str], str]) -> None:
        """Replace what is said by `told` of it."""
        self.message, self.detail = told(self.message), told(self.detail)

    def _keep(self, headers: Mapping[str, str]) -> None:
        for name in IDENTIFYING_HEADERS:
            value = headers.get(name)
            if value is not None and name not in self.headers and len(value) <= IDENTIFYING_VALUE_LENGTH_MAX:
                self.headers[name] = value

    def __repr__(self) -> str:
        return f"ProtocolError({self.code!r}, {self.message!r}, receipt_id={self.receipt_id!r})"


def unknown_ack(token: bytes) -> ProtocolError:
    """Make the ERROR for an ACK or NACK that names no delivery."""
    return ProtocolError(
        "unknown-delivery",
        f"nothing was delivered to this connection under {token[:80].decode('utf-8', 'replace')!r}",
        "ACK and NACK name the ack header of a MESSAGE (1.2), or its message-id and subscription (1.0, 1.1).",
    )
