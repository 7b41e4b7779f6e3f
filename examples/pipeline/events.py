"""Web-access events of one day, each computed from its number: all sums follow from the number of events.

One event in ten comes up to twenty minutes late: it is produced later than its time says, so windows must wait for it.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import attrs

PAGES_FILE: Final = Path(__file__).with_name("pages.csv")
DAY: Final = "2026-11-20"
DAY_START_MS: Final = int(datetime.fromisoformat(DAY).replace(tzinfo=UTC).timestamp() * 1000)
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
LATE_MS_MAX: Final = 20 * 60_000
USERS_COUNT: Final = 997

Cell = tuple[int, str]
"""Beginning of the hour in milliseconds since 1970, and section."""


@attrs.frozen
class Event:
    """Request for a page."""

    number: int
    time_ms: int
    """Milliseconds since 1970."""
    user: str
    path: str
    status: int
    bytes_count: int

    @property
    def is_incident(self) -> bool:
        """Whether the server failed."""
        return self.status >= 500

    def to_json(self) -> bytes:
        """Encode the event as it is sent."""
        return (
            f'{{"id":{self.number},"time_ms":{self.time_ms},"user":"{self.user}","path":"{self.path}",'
            f'"status":{self.status},"bytes":{self.bytes_count}}}'
        ).encode()


@attrs.define
class Tally:
    """Sums over events, by hour and section."""

    counts: Counter[Cell] = attrs.field(factory=Counter)
    bytes_counts: Counter[Cell] = attrs.field(factory=Counter)

    def add(self, cell: Cell, count: int, bytes_count: int) -> None:
        """Add some events of one cell."""
        self.counts[cell] += count
        self.bytes_counts[cell] += bytes_count

    @property
    def total_count(self) -> int:
        """Number of all events."""
        return self.counts.total()


def read_pages() -> dict[str, str]:
    """Read the table from path to section."""
    with PAGES_FILE.open(newline="", encoding="utf-8") as file:
        return {row["path"]: row["section"] for row in csv.DictReader(file)}


_PATHS: Final = tuple(read_pages())


def event(number: int, total_count: int) -> Event:
    """Make the event with this number, of a day of `total_count` events."""
    # Knuth's multiplicative hash: enough disorder, and the same everywhere.
    chance = (number * 2_654_435_761) & 0xFFFFFFFF
    late_ms = (chance >> 7) % LATE_MS_MAX if number % 10 == 3 else 0
    time_ms = max(DAY_START_MS, DAY_START_MS + number * DAY_MS // total_count - late_ms)
    status = 503 if chance % 199 == 0 else 404 if chance % 41 == 0 else 200
    return Event(
        number=number,
        time_ms=time_ms,
        user=f"user-{(chance >> 3) % USERS_COUNT}",
        path=_PATHS[(chance >> 11) % len(_PATHS)],
        status=status,
        bytes_count=200 + (chance >> 5) % 20_000,
    )


def events(start: int, stop: int, total_count: int) -> Iterator[Event]:
    """Yield events `start` to before `stop`, in the order in which they happen to be noticed."""
    return (event(number, total_count) for number in range(start, stop))


def tally(some: Iterable[Event]) -> Tally:
    """Count what Spark must come to."""
    pages = read_pages()
    sums = Tally()
    for each in some:
        sums.add((each.time_ms // HOUR_MS * HOUR_MS, pages[each.path]), 1, each.bytes_count)
    return sums
