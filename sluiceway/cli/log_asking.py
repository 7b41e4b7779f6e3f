"""Common parts of the `sluiceway log` commands: the connection for requests, names and places.

Places are those of the protocol (`earliest`, `latest`, `next`, an index, `time:MS`), and three for people: `-N` (the
last N records), `time:2026-11-21T20:15` and `ago:15min`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

if TYPE_CHECKING:
    from sluiceway.client import LogClient
    from sluiceway.client.address import Address

ANSWER_SECONDS: Final = 10.0
WORK_SECONDS: Final = 120.0
"""Time limit of requests that remove files: there may be many."""


def asking(address: Address, *, timeout_seconds: float = ANSWER_SECONDS) -> LogClient:
    """Return a connection for requests; a context manager."""
    from sluiceway.client import LogClient

    return LogClient(address, timeout_seconds=timeout_seconds)


# -- names -------------------------------------------------------------------------------------------------------------


def _log_name(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    name = value.removeprefix("/log/")
    if not name:
        raise click.BadParameter("a log has a name: write NAME or /log/NAME")
    return name


log_argument = click.argument("log", callback=_log_name)
"""Name of a log, with or without `/log/`; the command gets it without."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print the broker's answer as JSON, for programs.")

# -- places ------------------------------------------------------------------------------------------------------------


@attrs.frozen
class AskedPosition:
    """A position in a log, as written by the user."""

    wire: str | None
    """Position in the form of the protocol."""
    last_count: int = 0
    """Alternative: number of records before the end."""
    log_id: str = ""
    """Id of the log; empty: any log of that name."""

    def in_log(self, described: Mapping[str, Any]) -> str:
        """Return the position in the form of the protocol, for a log with this description."""
        if self.wire is not None:
            return self.wire
        return str(max(described["first"], described["next"] - self.last_count))


def parse_place(text: str, now_ms: int) -> AskedPosition:
    """Parse a position. Raises ValueError that shows the possible forms."""
    from sluiceway.config.units import parse_ms
    from sluiceway.queues.logs import positions

    if re.fullmatch(r"-[0-9]{1,18}", text):
        return AskedPosition(None, int(text[1:]))
    kind, _colon, value = text.partition(":")
    if kind == "ago":
        return AskedPosition(f"time:{max(0, now_ms - parse_ms(value))}")
    if kind == "time" and not value.isdecimal():
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(
                f"{value!r} is no time: write time:2026-11-21T20:15 (local time), time:2026-11-21T19:15Z or "
                "time:MILLISECONDS since 1970"
            ) from None
        return AskedPosition(f"time:{max(0, round(moment.timestamp() * 1000))}")
    index, at, log_id = text.partition("@")
    if at and index.isascii() and index.isdecimal() and log_id.isascii() and log_id.isalnum():
        return AskedPosition(index, log_id=log_id)
    try:
        return AskedPosition(str(positions.parse_position(text)))
    except positions.PositionError:
        raise ValueError(
            f"{text[:40]!r} is no place in a log: write earliest, latest, next, an index, INDEX@LOGID, -N for the "
            "last N records, time:2026-11-21T20:15, time:MILLISECONDS or ago:15min"
        ) from None


def place_option(_context: click.Context, parameter: click.Parameter, value: str | None) -> AskedPosition | None:
    """Parse the value of an option that takes a position."""
    try:
        return None if value is None else parse_place(value, int(time.time() * 1000))
    except ValueError as error:
        raise click.BadParameter(str(error), param=parameter) from None


def size_option(_context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Parse the value of an option that takes a size in bytes, with or without a unit."""
    from sluiceway.config.units import parse_bytes

    try:
        return None if value is None else parse_bytes(value)
    except ValueError as error:
        raise click.BadParameter(str(error), param=parameter) from None
