"""Asks the broker again and again, in a thread of its own; says when it is gone, and tries until it is back.

The same request over STOMP as `sluiceway stat` makes, so `top` needs no port beside the one for clients. One request at
a time is under way: a broker or a network that is slow is asked less often, nothing piles up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, Self

import attrs

from sluiceway.client.address import Address
from sluiceway.client.backoff import Backoff
from sluiceway.client.errors import ClientError, ConnectionLostError
from sluiceway.client.link import Link
from sluiceway.flow.words import age_in_words
from sluiceway.top.picture import REPLY_NAME

FIRST_RETRY_SECONDS: Final = 0.5
MOST_RETRY_SECONDS: Final = 10.0


@attrs.frozen(slots=True)
class Answer:
    """The broker's state."""

    report: Mapping[str, Any]


@attrs.frozen(slots=True)
class Gone:
    """The broker does not answer."""

    why: str
    retry_seconds: float
    """Time until the next attempt."""


News = Answer | Gone


class Asking(Protocol):
    """Part of a `Link` that is used: a connection to a broker."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: Any) -> None: ...

    def ask(self, name: str) -> Mapping[str, Any]:
        """One request and its answer. Blocks. Raises ClientError."""
        ...


def link_to(address: Address) -> Link:
    """A link that is not open yet. The queue for its answers has a name that `picture` knows."""
    return Link(address, replies=REPLY_NAME)


def follow(
    connect: Callable[[], Asking],
    tell: Callable[[News], None],
    interval_seconds: float,
    stop: threading.Event,
    *,
    wait: Callable[[float], object] | None = None,
) -> None:
    """Ask until `stop` is set. Blocks: give it a thread.

    `connect`: makes a connection that is not open yet.
    `tell`: gets everything that happens, in order; called in this thread.
    `interval_seconds`: from one answer to the next question.
    `wait`: sleeps for so many seconds, or until `stop`; for tests.
    """
    pause = wait if wait is not None else stop.wait
    backoff = Backoff(FIRST_RETRY_SECONDS, MOST_RETRY_SECONDS)
    while not stop.is_set():
        try:
            with connect() as link:
                while not stop.is_set():
                    report = link.ask("stat")
                    backoff.succeeded()
                    tell(Answer(report))
                    pause(interval_seconds)
        except ClientError as error:
            if stop.is_set():
                return
            retry_seconds = backoff.next_seconds()
            tell(Gone(why_gone(error), retry_seconds))
            pause(retry_seconds)


def why_gone(error: ClientError) -> str:
    """Describe the loss in one line: a terminal has few."""
    lost = isinstance(error, ConnectionLostError)
    return f"{error.short}: the broker stopped, or the way to it did" if lost else error.short


def gone_in_words(gone: Gone) -> str:
    """Describe the absence of the broker."""
    return f"no answer: {gone.why}; next try in {age_in_words(gone.retry_seconds)}"
