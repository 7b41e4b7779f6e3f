"""Records of a log by index and by time, for people who look: nothing is consumed, and no group moves.

Records are read through the cache of all readers, one at a time with others in between. Damaged and missing records
are rows of their own.
"""

from __future__ import annotations

from typing import Any, Final

import trio

from sluiceway.admin.errors import ApiError, bad_request
from sluiceway.admin.previews import preview
from sluiceway.admin.tables import Row
from sluiceway.queues.logs.log import Log
from sluiceway.queues.logs.ports import AwayError, DiskError, MissingRecordsError
from sluiceway.queues.logs.positions import PositionError, PositionKind, parse_position
from sluiceway.queues.logs.reading import NotReadyError, Unreadable
from sluiceway.queues.message import Message

RECORDS_MAX: Final = 100
PREVIEW_BYTES: Final = 800


async def records_of(log: Log, place: str, limit: int) -> Row:
    """Return records of a log from a place on: earliest, latest, an index or time:MS. Raises ApiError."""
    index = await _index_of(log, place, limit)
    items: list[Row] = []
    while index < log.records.next_index and len(items) < limit and not log.closed:
        try:
            items.append(_row(index, log.reading.record(log, index)))
            index += 1
        except NotReadyError as error:
            await _ready(log, error.key)
        except Unreadable as gone:
            items.append({"index": index, "end": gone.end_index, "missing": str(gone)})
            index = max(index + 1, gone.end_index)
        except DiskError as error:
            raise _unreadable(log, error) from None
        await trio.lowlevel.checkpoint()
    return {
        "log": log.name,
        "first": log.records.first_index,
        "next": log.records.next_index,
        "items": items,
        "from": index if index < log.records.next_index else None,
    }


async def _index_of(log: Log, text: str, limit: int) -> int:
    records = log.records
    try:
        place = parse_position(text)
        if place.kind is PositionKind.TIME:
            return await _closest(log, place.number)
    except PositionError as error:
        raise bad_request(str(error)) from None
    except (MissingRecordsError, DiskError) as error:
        raise _unreadable(log, error) from None
    if place.kind is PositionKind.EARLIEST:
        return records.first_index
    if place.kind is PositionKind.INDEX:
        return max(records.first_index, place.number)
    return max(records.first_index, records.next_index - limit)


async def _closest(log: Log, timestamp_ms: int) -> int:
    """Return the first record that is not older. Raises as `find_closest_index`."""
    while True:
        try:
            return log.records.find_closest_index(timestamp_ms)
        except AwayError as away:
            await _ready(log, log.reading.fetching(log, away).key)


def _unreadable(log: Log, error: Exception) -> ApiError:
    return ApiError(503, "unreadable", f"{log.name} can't be read now: {error}", "Look at the store page.")


async def _ready(log: Log, key: tuple[str, int]) -> None:
    """Wait for a batch that a thread checks. Raises ApiError if the disk fails."""
    waiter = _Waiter()
    log.reading.await_batch(key, waiter)
    await waiter.done.wait()
    if waiter.error is not None:
        raise _unreadable(log, waiter.error)


class _Waiter:
    """Waits for one batch."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.error: DiskError | None = None

    def go_on(self, error: DiskError | None) -> None:
        self.error = error
        self.done.set()


def _row(index: int, record: Message) -> Row:
    start = record.wire.index(b"\n\n") + 2
    body_bytes = len(record.wire) - start - 1  # the terminator is no part of it
    own: dict[str, str] = {}
    for line in record.wire[:start].split(b"\n", 3)[:3]:
        name, _colon, value = line.partition(b":")
        own[name.decode()] = value.decode("utf-8", "replace")
    head: Any = record.head
    body = record.wire[start : start + min(PREVIEW_BYTES, body_bytes)]
    return {
        "index": index,
        "timestamp_ms": int(own.get("timestamp") or 0),
        "size_bytes": body_bytes,
        "headers": dict(head.headers),
        "preview": preview(body, is_whole=len(body) == body_bytes),
    }
