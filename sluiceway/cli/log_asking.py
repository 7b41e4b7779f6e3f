"""What the `sluiceway log` commands share: the options, the connection for requests, names and places, and what is said
when something can't be done.

Places are those of the protocol (`earliest`, `latest`, `next`, an index, `time:MS`), and three for people: `-N` (the
last N records), `time:2026-11-21T20:15` and `ago:15min`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

from sluiceway.cli.exits import Exit, fail
from sluiceway.cli.messages import login_options

if TYPE_CHECKING:
    from sluiceway.client import LogClient
    from sluiceway.client.address import Address
    from sluiceway.client.errors import RequestError

ANSWER_SECONDS: Final = 10.0
WORK_SECONDS: Final = 120.0
"""For what removes files: there may be many."""

_REMEDIES: Final = {
    "TOPIC_NOT_EXIST": "`sluiceway log list` shows the logs that there are; `sluiceway log append` makes one.",
    "GROUP_NOT_EXIST": "`sluiceway log groups LOG` shows the groups that there are; a consumer's SUBSCRIBE makes one.",
    "INDEX_OUT_OF_BOUNDS": "`sluiceway log describe LOG` shows the first index and the next.",
    "GROUP_IN_USE": "`sluiceway stat` shows who reads it.",
}


def log_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that say which broker, hands the command its `Address` as `address`, and ends it with a message
    and an exit code when something can't be done.
    """

    @login_options
    @wraps(command)
    def with_address(url: str, login: str | None, passcode: str | None, **options: Any) -> None:
        from sluiceway.client.address import Address

        try:
            address = Address.parse(url)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--url") from None
        if login is not None:
            address = attrs.evolve(address, login=login)
        if passcode is not None:
            address = attrs.evolve(address, passcode=passcode)
        with told_errors():
            command(address=address, **options)

    return with_address


@contextmanager
def told_errors() -> Iterator[None]:
    """What a client raises inside ends the command: with a message, and the exit code for it."""
    from sluiceway.client import (
        CannotConnectError,
        ClientError,
        GapError,
        LogDeletedError,
        RefusedError,
        RequestError,
    )

    try:
        yield
    except RequestError as error:
        fail(Exit.REFUSED, in_words(error))
    except RefusedError as error:
        fail(Exit.REFUSED, str(error))
    except GapError as error:
        gap = error.gap
        if gap.reason == "other-log":
            fail(Exit.INCOMPLETE, f"/log/{gap.log} was deleted, and another one is there. To read it: --from earliest.")
        fail(
            Exit.INCOMPLETE,
            f"records {gap.first} to {gap.end - 1} of /log/{gap.log} are gone ({gap.reason})\n"
            f"To go on without them: --from {gap.end}, or --on-gap tell.",
        )
    except LogDeletedError as error:
        fail(Exit.INCOMPLETE, str(error))
    except CannotConnectError as error:
        fail(Exit.CONNECT, f"{error}\nStart one with `sluiceway serve`, or name another with --url.")
    except (ClientError, TimeoutError) as error:
        fail(Exit.CONNECT, str(error))


def in_words(error: RequestError) -> str:
    """What the broker said, and what to do about it if it did not say so."""
    remedy = _REMEDIES.get(error.code)
    return str(error) if remedy is None else f"{error}\n{remedy}"


def asking(address: Address, *, timeout_seconds: float = ANSWER_SECONDS) -> LogClient:
    """A connection for requests; a context manager."""
    from sluiceway.client import LogClient

    return LogClient(address, timeout_seconds=timeout_seconds)


# -- names -------------------------------------------------------------------------------------------------------------


def _log_name(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    name = value.removeprefix("/log/")
    if not name:
        raise click.BadParameter("a log has a name: write NAME or /log/NAME")
    return name


log_argument = click.argument("log", callback=_log_name)
"""With or without `/log/`; the command gets it without."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print the broker's answer as JSON, for programs.")

# -- places ------------------------------------------------------------------------------------------------------------


@attrs.frozen
class Place:
    """A place in a log, as it was written."""

    wire: str | None
    """As the protocol has it."""
    last_count: int = 0
    """Or: so many records before the end."""
    log_id: str = ""
    """Of the log that is meant; empty: whichever is there."""

    def in_log(self, described: Mapping[str, Any]) -> str:
        """As the protocol has it, in a log of which this was said."""
        if self.wire is not None:
            return self.wire
        return str(max(described["first"], described["next"] - self.last_count))


def parse_place(text: str, now_ms: int) -> Place:
    """Raises ValueError, which says how places are written."""
    from sluiceway.config.units import parse_ms
    from sluiceway.queues.logs import positions

    if re.fullmatch(r"-[0-9]{1,18}", text):
        return Place(None, int(text[1:]))
    kind, _colon, value = text.partition(":")
    if kind == "ago":
        return Place(f"time:{max(0, now_ms - parse_ms(value))}")
    if kind == "time" and not value.isdecimal():
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(
                f"{value!r} is no time: write time:2026-11-21T20:15 (local time), time:2026-11-21T19:15Z or "
                "time:MILLISECONDS since 1970"
            ) from None
        return Place(f"time:{max(0, round(moment.timestamp() * 1000))}")
    index, at, log_id = text.partition("@")
    if at and index.isascii() and index.isdecimal() and log_id.isascii() and log_id.isalnum():
        return Place(index, log_id=log_id)
    try:
        return Place(str(positions.parse_place(text)))
    except positions.PlaceError:
        raise ValueError(
            f"{text[:40]!r} is no place in a log: write earliest, latest, next, an index, INDEX@LOGID, -N for the "
            "last N records, time:2026-11-21T20:15, time:MILLISECONDS or ago:15min"
        ) from None


def place_option(_context: click.Context, parameter: click.Parameter, value: str | None) -> Place | None:
    """Callback of an option that takes a place."""
    try:
        return None if value is None else parse_place(value, int(time.time() * 1000))
    except ValueError as error:
        raise click.BadParameter(str(error), param=parameter) from None


def size_option(_context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Callback of an option that takes a size in bytes, with or without a unit."""
    from sluiceway.config.units import parse_bytes

    try:
        return None if value is None else parse_bytes(value)
    except ValueError as error:
        raise click.BadParameter(str(error), param=parameter) from None
