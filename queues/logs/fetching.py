"""Fetch: the next records of a log as the answer to a request, for clients that ask in place of subscribing.

A fetch is a reader of the log with a position of its own (`LogTable.read`) whose consumer collects one answer: what can
be had at once, at least one record. At the end of the log it waits, for a limited time. So it reads, waits for the disk
and is told of gaps as any reader, and costs no task. With a group it begins at the group's front and moves nothing: the
client commits what it has worked on by another request.

Bounds: WAITING_MAX fetches of a broker wait at a time, more are answered at once with what is there; an answer has
COUNT_MAX records and BYTES_MAX bytes, and a longer record is refused. Answers that are not made yet hold HELD_BYTES_MAX
of records together, counted with what the broker keeps beside messages; beyond that a fetch is refused.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from ...flow.graph import Steps
from ...flow.upkeep import UpkeepAccount
from ..message import Message
from ..slices import Slice
from ..subscription import Subscription
from .codecs import Codec
from .codes import TOPIC_NOT_EXIST
from .log import Log
from .ordering import ANY
from .positions import Position
from .reading import RecordMessage
from .table import LogError, LogTable

COUNT_MAX: Final = 1000
BYTES_MAX: Final = 1024 * 1024
BYTES_DEFAULT: Final = 256 * 1024
WAIT_SECONDS_MAX: Final = 20.0
WAITING_MAX: Final = 250
HELD_BYTES_MAX: Final = 16 * 1024 * 1024
RECORD_TOO_LARGE: Final = "RECORD_TOO_LARGE"
TOO_MANY_REQUESTS: Final = "TOO_MANY_REQUESTS"

Send = Callable[[Mapping[str, Any] | LogError | Steps[Mapping[str, Any]]], None]


class _Held:
    """Memory of the records of one answer, counted until nothing refers to them any more."""

    __slots__ = ("_account", "_size_bytes", "_table")

    def __init__(self, table: LogTable, account: UpkeepAccount | None) -> None:
        self._table = table
        self._account = account
        self._size_bytes = 0

    def add(self, size_bytes: int) -> None:
        self._size_bytes += size_bytes
        self._table.fetched_bytes += size_bytes
        if self._account is not None:
            self._account.add(size_bytes)

    def __del__(self) -> None:
        self._table.fetched_bytes -= self._size_bytes
        if self._account is not None:
            self._account.gone(self._size_bytes)


class Fetch:
    """Consumer that collects the records of one answer."""

    rank = 0
    batch_bytes = None
    codecs = frozenset((Codec.NONE,))
    stops_at_gaps = False
    selection = None
    order = ANY
    label = "a fetch"

    def __init__(self, log: Log, count_max: int, bytes_max: int, send: Send) -> None:
        self._log = log
        self._room_count = count_max
        self._room_bytes = bytes_max
        self._send: Send | None = send
        self._messages: list[Message] = []
        self._held: _Held | None = None
        self._gaps: list[dict[str, object]] = []
        self._subscription: Subscription | None = None
        self._next = 0
        self._timer: Any = None
        self._table: LogTable | None = None
        """Table that counts this fetch as waiting; None: it does not wait."""

    def begin(self, table: LogTable, place: Position, wait_seconds: float) -> None:
        """Read from a place on. Raises LogError."""
        if table.fetched_bytes >= HELD_BYTES_MAX:
            raise LogError(
                TOO_MANY_REQUESTS,
                f"answers to other fetches hold {table.fetched_bytes:,} bytes, {HELD_BYTES_MAX:,} are the limit: ask "
                "again later",
            )
        upkeep = self._log.environment.manager.upkeep
        self._held = _Held(table, None if upkeep is None else upkeep.answers)
        outlet, self._subscription = table.read(self._log, self, place, None, label=f"{self._log.name} for a fetch")
        self._next = outlet.position
        if wait_seconds > 0 and table.fetching_count < WAITING_MAX:
            self._table = table
            table.fetching_count += 1
        else:
            wait_seconds = 0.0
        at_end = outlet.position >= self._log.records.next_index
        if at_end and not wait_seconds:
            self._soon(0.0)
        elif wait_seconds:
            self._soon(wait_seconds)

    def _soon(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._log.environment.scheduling.call_later(seconds, self._finish)

    # ------------------------------------------------------------------ port of consumers

    def room(self, subscription: Subscription) -> tuple[int, int]:
        return (self._room_count, self._room_bytes) if self._send is not None and self._room_bytes > 0 else (0, 0)

    def wait(self, subscription: Subscription) -> None:
        """Wait for the end, which comes at once."""
        self._soon(0.0)

    def deliver(self, subscription: Subscription, part: Slice, *, dropped_count: int) -> None:
        self._messages += part.messages
        assert self._held is not None, "it has begun"
        self._held.add(part.wire_bytes)
        self._room_count -= len(part.messages)
        self._room_bytes -= part.wire_bytes
        self._next = part.end
        subscription.settle(part.sequences, part.wire_bytes)
        self._soon(0.0)

    def deliver_run(self, subscription: Subscription, run: object, failures: int | None) -> None:
        """Refuse: it does not ask for runs."""
        raise AssertionError("a fetch takes records")

    def tell_gap(self, subscription: Subscription, start: int, end: int, reason: str) -> None:
        self._gaps.append({"from": start, "to": end, "reason": reason})
        self._next = max(self._next, end)
        self._soon(0.0)

    def tell_end(self, subscription: Subscription, index: int) -> None:
        """Do nothing: a fetch has no end."""

    def tell_deleted(self, subscription: Subscription) -> None:
        self._answer(LogError(TOPIC_NOT_EXIST, f"{self._log.name} was deleted"))

    def cancelled(self, subscription: Subscription, reason: str) -> Iterable[None]:
        return ()

    # ------------------------------------------------------------------ answer

    def _finish(self) -> None:
        if self._subscription is not None:
            self._subscription.close()
        first = self._messages[0] if self._messages else None
        if first is not None and len(first.wire) > BYTES_MAX:
            index = first.number
            self._answer(
                LogError(
                    RECORD_TOO_LARGE,
                    f"record {index} has {len(first.wire):,} bytes, an answer {BYTES_MAX:,} at most: SUBSCRIBE from "
                    f"{index}, or fetch from {index + 1}",
                )
            )
        else:
            self._answer(_told(self._messages, self._held, self._log.log_id, self._next, self._gaps))
        self._messages, self._held = [], None  # the answer has them

    def _answer(self, result: LogError | Steps[Mapping[str, Any]]) -> None:
        send, self._send = self._send, None
        if self._timer is not None:
            self._timer.cancel()
        table, self._table = self._table, None
        if table is not None:
            table.fetching_count -= 1
        if send is not None:
            send(result)


def _told(
    messages: list[Message], _held: _Held | None, log_id: str, following: int, gaps: list[dict[str, object]]
) -> Steps[Mapping[str, Any]]:
    """Tell of records, in steps. `_held` counts them until these steps are done or dropped."""
    rows: list[dict[str, object]] = []
    headers: dict[int, dict[str, str]] = {}
    for message in messages:
        head: Any = message.head
        if id(head) not in headers:
            own = headers[id(head)] = dict(head.headers)
            own.pop("destination", None)
        rows.append(_row(message, headers[id(head)]))
        yield
    facts: dict[str, Any] = {"records": rows, "next": following, "log_id": log_id}
    return facts | {"gaps": gaps} if gaps else facts


def _row(message: Message, headers: Mapping[str, str]) -> dict[str, object]:
    assert isinstance(message, RecordMessage), "a log has nothing else"
    said = dict(line.split(":", 1) for line in message.wire[: message.lines_bytes].decode().split("\n") if line)
    block: bytes = message.head.block  # type: ignore[attr-defined]
    value = bytes(message.wire[message.lines_bytes + len(block) + 2 : -1])
    row: dict[str, object] = {"index": message.number, "timestamp_ms": int(said["timestamp"])}
    for name in ("key", "key-base64"):
        if name in said:
            row[name.replace("-", "_")] = said[name]
    if headers:
        row["headers"] = headers
    try:
        row["value"] = value.decode()
    except UnicodeDecodeError:
        row["value_base64"] = base64.b64encode(value).decode()
    return row
