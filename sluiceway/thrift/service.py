"""The calls of Luxun's QueueService, on the logs of this broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import attrs
import trio

from sluiceway.protocols.thrift.queue_service import EARLIEST_TIME, LATEST_TIME, ErrorCode, ResultCode
from sluiceway.queues.logs.batches import split
from sluiceway.queues.logs.codes import GROUP_NOT_EXIST, TOPIC_NOT_EXIST
from sluiceway.thrift.desk import Delivery, Desk, DeskError

FETCH_BYTES_MIN: Final = 1024
FETCH_BYTES_MAX: Final = 8 * 1024 * 1024
"""Limits of the header `batch` of a SUBSCRIBE to a log."""
IN_A_THREAD_BYTES: Final = 64 * 1024
"""Batches from this size on are cut into items in a thread, as the loop has other work."""
HELD_SECONDS: Final = 0.5
"""Time to wait for records of a group that are there, and may be with another consumer."""
TOPICS_MAX: Final = 1000
"""Names in one answer of `listTopics`."""

_ALL_CONSUMED: Final = "ALL_MESSAGE_CONSUMED"
_EMPTY: Final = "TOPIC_IS_EMPTY"
_BEYOND: Final = "INDEX_OUT_OF_BOUNDS"
_LATER: Final = "TRY_LATER"
_TO_BE_TRIED: Final = frozenset(
    {_LATER, "log-failed", "group-not-stored", "upkeep-full", "shutdown", "draining", "no-owner", "shard-away"}
)
"""Codes of what may be well a little later."""
_CODES: Final = {
    GROUP_NOT_EXIST: ErrorCode.TOPIC_NOT_EXIST,
    "bad-destination": ErrorCode.INVALID_TOPIC,
    "body-too-large": ErrorCode.MESSAGE_SIZE_TOO_LARGE,
    "forbidden": ErrorCode.AUTHENTICATION_FAILURE,
    "login-refused": ErrorCode.AUTHENTICATION_FAILURE,
}

Values = dict[str, Any]


@attrs.frozen
class Answer:
    """Answer to a call, and what is left to do when the client has it."""

    values: Values
    then: Callable[[], Awaitable[None]] | None = None


def failed(error: DeskError) -> Values:
    """Return the answer that says why the broker refused a call."""
    code = _CODES.get(error.code)
    if code is None:
        code = ErrorCode.__members__.get(error.code, ErrorCode.INTERNAL_ERROR)
    result_code = ResultCode.TRY_LATER if error.code in _TO_BE_TRIED else ResultCode.FAILURE
    return {"result": {"resultCode": result_code, "errorCode": code, "errorMessage": str(error)}}


async def answer(desk: Desk, call: str, request: Mapping[str, Any]) -> Answer:
    """Make a call. Raises DeskError, DeskClosed."""
    topic = request.get("topic", "")
    if "," in topic:  # in a SEND that names several destinations
        raise DeskError("INVALID_TOPIC", f"{topic!r} can't be a topic: it has a comma")
    for name in ("topic", "fanoutId"):
        if "\0" in request.get(name, ""):  # no header can hold one
            raise DeskError("INVALID_TOPIC", f"{name} {request[name]!r} holds a NUL")
    return await _CALLS[call](desk, request)


def _well(**values: Any) -> Answer:
    return Answer({"result": {"resultCode": ResultCode.SUCCESS}, **values})


async def _produce(desk: Desk, request: Mapping[str, Any]) -> Answer:
    return _well(index=await desk.append(request["topic"], request["item"]))


async def _consume(desk: Desk, request: Mapping[str, Any]) -> Answer:
    fetch_bytes = request.get("maxFetchSize", 0)
    if request.get("fanoutId"):
        return await _consume_of_group(desk, request["topic"], request["fanoutId"], fetch_bytes)
    return await _consume_from(desk, request["topic"], request.get("startIndex", 0), fetch_bytes)


async def _consume_from(desk: Desk, topic: str, index: int, fetch_bytes: int) -> Answer:
    there = await desk.ask("describe", log=topic)
    first, end = there["first"], there["next"]
    if first == end and index in (0, end):
        raise DeskError(_EMPTY, f"/log/{topic} has no records; the next one has index {end}")
    if index == end:
        raise DeskError(_ALL_CONSUMED, f"index {index} is the next one of /log/{topic}: nothing is there yet")
    if not first <= index < end:
        raise DeskError(_BEYOND, f"/log/{topic} has the indexes {first} to {end - 1}, not {index}")
    batch = [("batch", str(_within(fetch_bytes)))] if fetch_bytes > 0 else []
    subscription = await desk.subscribe(topic, headers=[("from", str(index)), ("log-id", there["log_id"]), *batch])
    found = await desk.delivery(subscription, HELD_SECONDS)
    await desk.end(subscription, None)
    if found is None:
        raise DeskError(_LATER, f"/log/{topic} could not be read at {index} within {HELD_SECONDS} s: try again")
    items = await _items_of(found)
    kept_count, size_bytes = 1, len(items[0])
    while kept_count < len(items) and (size_bytes := size_bytes + len(items[kept_count])) <= fetch_bytes:
        kept_count += 1
    del items[kept_count:]
    return _well(itemList=items, lastConsumedIndex=int(found.headers["index"]) + kept_count - 1)


async def _consume_of_group(desk: Desk, topic: str, group: str, fetch_bytes: int) -> Answer:
    """Consume for a group: what the client got counts as consumed."""
    size = (await desk.ask("size", log=topic))["size"]
    if not size:
        raise DeskError(_EMPTY, f"/log/{topic} has no records")
    try:
        left = (await desk.ask("size", log=topic, group=group))["size"]
    except DeskError as error:
        if error.code != GROUP_NOT_EXIST:
            raise
        left = size  # its first subscription makes it
    if not left:
        raise DeskError(_ALL_CONSUMED, f"{group!r} has consumed all of /log/{topic}")
    batch = [("batch", str(_within(fetch_bytes)))] if fetch_bytes > 0 else []
    subscription = await desk.subscribe(topic, headers=[("group", group), ("from", "earliest"), *batch])
    found = await desk.delivery(subscription, HELD_SECONDS)
    if found is None:
        await desk.end(subscription, None)
        raise DeskError(_LATER, f"other consumers of {group!r} have what is left of /log/{topic}")
    items = await _items_of(found)
    last_index = int(found.headers["index"]) + len(items) - 1
    return attrs.evolve(_well(itemList=items, lastConsumedIndex=last_index), then=lambda: desk.end(subscription, found))


def _within(fetch_bytes: int) -> int:
    return max(FETCH_BYTES_MIN, min(fetch_bytes, FETCH_BYTES_MAX))


async def _items_of(found: Delivery) -> list[memoryview]:
    if not found.is_batch:
        return [memoryview(found.body)]

    def cut() -> list[memoryview]:
        return [value for batch in split(found.body) for value in batch.values()]

    return cut() if len(found.body) < IN_A_THREAD_BYTES else await trio.to_thread.run_sync(cut)


async def _find(desk: Desk, request: Mapping[str, Any]) -> Answer:
    topic, timestamp_ms = request["topic"], request["timestamp"]
    if timestamp_ms == LATEST_TIME:
        there = await desk.ask("describe", log=topic)
        return _well(index=there["next"], timestampOfIndex=there["last_timestamp_ms"])
    if timestamp_ms < 0 and timestamp_ms != EARLIEST_TIME:
        raise DeskError(
            _BEYOND, f"{timestamp_ms} is no time: give milliseconds since 1970, -1 (earliest) or -2 (latest)"
        )
    found = await desk.ask("closest", log=topic, timestamp_ms=max(0, timestamp_ms))
    return _well(index=found["index"], timestampOfIndex=found["timestamp_ms"])


async def _delete(desk: Desk, request: Mapping[str, Any]) -> Answer:
    await desk.ask("delete", log=request["topic"], passcode=request["password"])
    return _well()


async def _size(desk: Desk, request: Mapping[str, Any]) -> Answer:
    group = request.get("fanoutId")
    there = await desk.ask("size", log=request["topic"], **({"group": group} if group else {}))
    return _well(size=there["size"])


async def _list(desk: Desk, request: Mapping[str, Any]) -> Answer:
    there = await desk.ask("list", offset=max(0, request.get("offset", 0)), limit=TOPICS_MAX)
    names = [row["log"].removeprefix("/log/") for row in there["logs"]]
    return _well(topics=names, omitted=there.get("omitted", 0))


_CALLS: Final[dict[str, Callable[[Desk, Mapping[str, Any]], Awaitable[Answer]]]] = {
    "produce": _produce,
    "consume": _consume,
    "findClosestIndexByTime": _find,
    "deleteTopic": _delete,
    "getSize": _size,
    "listTopics": _list,
}

assert TOPIC_NOT_EXIST in ErrorCode.__members__, "codes that are Luxun's own are looked up by their names"
