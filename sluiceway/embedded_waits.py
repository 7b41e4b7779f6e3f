"""Waiting for what an embedded broker does: a condition, or figures of a destination, looked at again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from threading import Event
from typing import Any, Final, Protocol, TypeVar

from sluiceway.embedded_words import check_figures, holdings, listed

T = TypeVar("T")

POLL_SECONDS: Final = 0.002
"""Seconds between two looks."""


class Watched(Protocol):
    """Part of an embedded broker that is looked at."""

    def destination(self, name: str) -> dict[str, Any]: ...
    def report(self) -> dict[str, Any]: ...
    def blockages(self) -> str: ...


def until(broker: Watched, condition: Callable[[], T], timeout_seconds: float, given_up: Event | None = None) -> T:
    """Call `condition` until the result is true, or `given_up` is set; return the result. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_seconds
    while not (result := condition()) and not _is_set(given_up):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the condition was not met within {timeout_seconds:g} s; {broker.blockages()}")
        time.sleep(POLL_SECONDS)
    return result


def for_figures(
    broker: Watched,
    destination: str,
    figures: Mapping[str, object],
    timeout_seconds: float,
    given_up: Event | None = None,
) -> None:
    """Wait until figures of a destination have these values, or `given_up` is set. A destination that does not exist
    has 0 of everything. Raises TimeoutError, KeyError for an unknown figure.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        row = broker.destination(destination)
        check_figures(figures, row)
        found = {name: row[name] if row else 0 for name in figures}
        if found == figures or _is_set(given_up):
            return
        if time.monotonic() > deadline:
            missing = "" if row else f"there is no such destination: {holdings(broker.report()['destinations'])}; "
            raise TimeoutError(
                f"{destination} has {listed(found)}, not {listed(figures)}, after {timeout_seconds:g} s; "
                f"{missing}{broker.blockages()}"
            )
        time.sleep(POLL_SECONDS)


def _is_set(given_up: Event | None) -> bool:
    return given_up is not None and given_up.is_set()
