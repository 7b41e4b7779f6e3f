"""Screens of the demonstration: the interface of all, and the plain one: lines of text, for files, pipes and CI."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from examples.stage.account import Check
from examples.stage.flow_map import edges_of, oldest_wait_seconds, waits_in_words

FLOW_LINE_SECONDS: Final = 1.0
"""Plain lines can't be overwritten, so the flow picture is printed this often at most, and only when it has changed."""
FLOW_NOTEWORTHY_SECONDS: Final = 0.3
"""Shorter waits are the normal breathing of a broker."""
NOBODY_WAITS: Final = "nothing is blocked"


class Screen(Protocol):
    """Screen of the show. `report` is called by the flow map's thread, all else by the main one."""

    reading_seconds: float
    """Time for which an act should hold a picture that people are to read."""

    def open(self, titles: Sequence[str]) -> None:
        """The show begins."""

    def act(self, number: int, title: str, promise: str) -> None:
        """Begin an act; `promise` says what the act will show."""

    def say(self, text: str) -> None:
        """Show what happens now."""

    def progress(self, what: str, done_count: int, total_count: int) -> None:
        """Show the progress; may be called at any rate."""

    def report(self, report: Mapping[str, Any]) -> None:
        """A new report of the broker."""

    def name(self, address: str, name: str) -> None:
        """Call the connection from this address by this name."""

    def checked(self, check: Check) -> None:
        """The act has proved something, or not."""

    def close(self) -> None:
        """The show is over; what follows is printed below."""


def marks() -> tuple[str, str]:
    """Return the marks for «yes» and «no» on standard output."""
    try:
        "✓✗".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return "ok", "NO"
    return "✓", "✗"


class PlainScreen:
    """One line for each thing that happens, with the seconds since the start."""

    reading_seconds = 0.5

    def __init__(self) -> None:
        self._started_seconds = time.monotonic()
        self._names: dict[str, str] = {}
        self._edges: frozenset[tuple[str, str]] = frozenset()
        self._flow_printed_seconds = 0.0
        self._yes, self._no = marks()

    def open(self, titles: Sequence[str]) -> None:
        self._line(f"{len(titles)} acts: {'; '.join(titles)}")

    def act(self, number: int, title: str, promise: str) -> None:
        self._line(f"Act {number}: {title}. {promise}")

    def say(self, text: str) -> None:
        self._line(f"  {text}")

    def progress(self, what: str, done_count: int, total_count: int) -> None:
        """Show nothing: a file wants results."""

    def report(self, report: Mapping[str, Any]) -> None:
        now_seconds = time.monotonic()
        edges = edges_of(report)
        if edges == self._edges or now_seconds - self._flow_printed_seconds < FLOW_LINE_SECONDS:
            return
        if edges and oldest_wait_seconds(report) < FLOW_NOTEWORTHY_SECONDS:
            return
        self._edges = edges
        self._flow_printed_seconds = now_seconds
        for words in waits_in_words(report, self._names) or [NOBODY_WAITS]:
            self._line(f"  | {words}")

    def name(self, address: str, name: str) -> None:
        self._names[address] = name

    def checked(self, check: Check) -> None:
        self._line(f"  {self._yes if check.met else self._no} {check.claim}: {check.numbers}")

    def close(self) -> None:
        """Do nothing."""

    def _line(self, text: str) -> None:
        print(f"{time.monotonic() - self._started_seconds:5.1f} s  {text}", flush=True)
