"""Message of a sending command when the broker has confirmed nothing for some seconds: that it waits, the reason in the
broker's words, and how to stop.

The reason is that of `sluiceway stat`, requested on a connection of its own. Without permission or an answer within two
seconds, the message names the command to use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from sluiceway.client.address import Address

ANSWER_SECONDS: Final = 2.0
PATIENCE_SECONDS: Final = 5.0
"""Time without a confirmation after which the command says that it waits: longer than any ordinary answer."""
LOOK_SECONDS: Final = 0.25
"""Interval of checking progress."""


def say_that_it_waits(address: Address) -> None:
    """Print the message on standard error."""
    click.echo(
        "sluiceway: waiting: the broker has not confirmed all of it yet"
        + "".join(f"\n  {line}" for line in _why(address) or ["`sluiceway stat` names the cause"])
        + "\n  It resumes as soon as the broker does; Ctrl-C ends it",
        err=True,
    )


def _why(address: Address) -> list[str]:
    """Return the broker's reason; empty without a quick answer."""
    said: list[str] = []
    asking = threading.Thread(target=_ask, args=(address, said), name="sluiceway asking why", daemon=True)
    asking.start()
    asking.join(ANSWER_SECONDS)
    return said


def _ask(address: Address, said: list[str]) -> None:
    from sluiceway.client import ClientError
    from sluiceway.client.link import Link

    try:
        with Link(address) as link:
            said += words_of_report(link.ask("stat"))
    except ClientError:
        pass  # the message then names the command to use


def words_of_report(report: Mapping[str, Any]) -> list[str]:
    """Return the reason of a wait from a report: the state of the store, the bottleneck, and the remedy."""
    from sluiceway.cli.stat_view import bottleneck_line, is_blocked, remedy_of, store_trouble

    said = [store_trouble(report)]
    if is_blocked(report):
        said.append(bottleneck_line(report))
    if remedy := remedy_of(report):
        said.append(f"what to do: {remedy}")
    return [line for line in said if line]


@contextmanager
def watched(
    progress: Callable[[], tuple[int, bool]], patience_seconds: float, on_standstill: Callable[[], None]
) -> Iterator[None]:
    """Call `on_standstill`, in another thread and once, if the body makes no progress for `patience_seconds`.
    `progress` returns how much is done, and whether the broker has more to do (else the command waits for its input).
    """
    over = threading.Event()

    def watch() -> None:
        last_count, waited_seconds = -1, 0.0
        while not over.wait(LOOK_SECONDS):
            done_count, waits = progress()
            waited_seconds = waited_seconds + LOOK_SECONDS if waits and done_count == last_count else 0.0
            last_count = done_count
            if waited_seconds >= patience_seconds:
                on_standstill()
                return

    thread = threading.Thread(target=watch, name="sluiceway waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
