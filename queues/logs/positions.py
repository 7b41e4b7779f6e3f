"""Positions in a log, as written by users: `earliest`, `latest`, `next`, an index, `time:MS`.

`earliest` is the first existing record, `latest` the last one, `next` the one to come. A time means the first record
appended then or later. RabbitMQ's dialect (`x-stream-offset`) is accepted, too.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

import attrs

INDEX_MAX: Final = 2**63 - 1
_NUMBER: Final = re.compile(r"[0-9]{1,19}")
_DIALECT: Final = {"first": "earliest", "last": "latest", "next": "next"}


class PositionError(ValueError):
    """Invalid position. The message says how a position is written."""


class PositionKind(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"
    NEXT = "next"
    INDEX = "index"
    TIME = "time"


@attrs.frozen
class Position:
    """A position; `number` is the index, or milliseconds since 1970."""

    kind: PositionKind
    number: int = 0

    def __str__(self) -> str:
        if self.kind is PositionKind.INDEX:
            return str(self.number)
        return f"time:{self.number}" if self.kind is PositionKind.TIME else self.kind.value


def _whole(text: str, what: str) -> int:
    if _NUMBER.fullmatch(text) is None or int(text) > INDEX_MAX:
        raise PositionError(f"{what} {text[:40]!r} is not a whole number of 0 or more")
    return int(text)


def parse_index(text: str, what: str = "index") -> int:
    """Return a whole number from 0 on. Raises PositionError, which calls it `what`."""
    return _whole(text, what)


def parse_position(text: str) -> Position:
    """Parse `earliest`, `latest`, `next`, an index or `time:MS`. Raises PositionError."""
    if text in ("earliest", "latest", "next"):
        return Position(PositionKind(text))
    if text.startswith("time:"):
        return Position(PositionKind.TIME, _whole(text[5:], "time in milliseconds"))
    if _NUMBER.fullmatch(text) is not None:
        return Position(PositionKind.INDEX, _whole(text, "index"))
    raise PositionError(
        f"{text[:40]!r} is no place in a log: write earliest, latest, next, an index, or time:MILLISECONDS"
    )


def parse_stream_offset(text: str) -> Position:
    """Parse RabbitMQ's `first`, `last`, `next`, `offset=N` or `timestamp=SECONDS`. Raises PositionError."""
    if text in _DIALECT:
        return Position(PositionKind(_DIALECT[text]))
    name, equals, value = text.partition("=")
    if equals and name == "offset":
        return Position(PositionKind.INDEX, _whole(value, "offset"))
    if equals and name == "timestamp":
        return Position(PositionKind.TIME, 1000 * _whole(value, "timestamp in seconds"))
    raise PositionError(
        f"{text[:40]!r} is no x-stream-offset: write first, last, next, offset=NUMBER, or timestamp=SECONDS"
    )
