"""The logs of a broker: opened with it, closed with it; the offsets of groups; requests about logs.

Groups are subscriptions of the metadata managers (topic: the log, subscriber: the group), which read them; written they
are in the batches of the store (`sluiceway.store.places`), for a transaction may acknowledge records and send to a
queue. Without a store they are in memory, as is all else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from typing import Any, Final, Protocol

import attrs
import trio

from sluiceway.answering import GROUPS_MAX, OFFSET_MAX, ROWS_MAX, Answers, encoded, refused
from sluiceway.config.errors import ConfigError
from sluiceway.flow.graph import Steps, sorted_in_steps
from sluiceway.protocols.log import get_logger
from sluiceway.protocols.stomp.authorization import ForbiddenError
from sluiceway.protocols.stomp.errors import ProtocolError
from sluiceway.protocols.stomp.header_codec import HeaderCodec
from sluiceway.queues.environment import QueueEnvironment
from sluiceway.queues.logs.codes import GROUP_IN_USE, INTERNAL_ERROR
from sluiceway.queues.logs.fetching import BYTES_DEFAULT, BYTES_MAX, COUNT_MAX, WAIT_SECONDS_MAX, Fetch
from sluiceway.queues.logs.group import Group
from sluiceway.queues.logs.log import Log
from sluiceway.queues.logs.ports import DiskError, GroupPlace, GroupState
from sluiceway.queues.logs.positions import Position, PositionError, PositionKind, parse_index, parse_position
from sluiceway.queues.logs.producers import LogKeeper, NoProducers, ProducerSnapshot, continued
from sluiceway.queues.logs.reading import RecordCache
from sluiceway.queues.logs.table import PREFIX, Cabinet, LogError, LogTable, Opened, open_all
from sluiceway.queues.policy import QueuePolicy
from sluiceway.steps import read_json
from sluiceway.store.engine import EngineError
from sluiceway.store.keys import StoreFormatError
from sluiceway.store.log_producers import kept_producers
from sluiceway.store.log_storage import LogDisk, LogStorageConfig
from sluiceway.store.metadata import (
    MetadataError,
    MetadataManagers,
    SubscriptionData,
    SubscriptionDataManager,
    Versioned,
)
from sluiceway.store.places import StoredPlaces, group_state_of
from sluiceway.store.storequeue import StoreQueue
from sluiceway.views.logs import groups_report, log_report

INVALID_REQUEST: Final = "INVALID_REQUEST"
REQUEST_BYTES_MAX: Final = 64 * 1024
"""Maximum size of the body of a request: read as JSON in one go."""
_EFFECT: Final = "what producers send again may be appended a second time"
CLOSING_SECONDS: Final = 5.0
"""Time for the disk to write the rest of each log at the end."""

log = get_logger("sluiceway.log_service")

Done = Callable[[Exception | None], None]
Contain = Callable[[Exception], None]


class HasSubscriptions(Protocol):
    """Part of the metadata managers that durable subscriptions, groups and claims use."""

    @property
    def subscriptions(self) -> SubscriptionDataManager: ...


class _NoPlace:
    """Place of a group that does not outlive the broker."""

    def changed(self) -> None:
        """Do nothing: the place is not kept."""

    def when_settled(self, callback: Callable[[], None]) -> None:
        callback()

    def forget(self) -> None:
        """Do nothing: the place is not kept."""


class NoPlaces(NoProducers):
    """Groups and producers of a broker without a store. Satisfies `sluiceway.queues.logs.producers.LogKeeper`."""

    def place(self, _log: str, _group: str, _state: Callable[[], GroupState]) -> GroupPlace:
        return _NoPlace()

    def create(self, _log: str, _group: str, _place: GroupPlace, done: Done) -> None:
        done(None)

    def delete(self, _log: str, _group: str, done: Done) -> None:
        done(None)


async def read_all(managers: HasSubscriptions, topic: str) -> Mapping[str, Versioned[SubscriptionData]]:
    """All subscriptions of a topic. Raises MetadataError."""
    answered = trio.Event()
    results: list[Mapping[str, Versioned[SubscriptionData]] | MetadataError] = []

    def read(result: Mapping[str, Versioned[SubscriptionData]] | MetadataError) -> None:
        results.append(result)
        answered.set()

    managers.subscriptions.read_subscriptions(topic, read)
    await answered.wait()
    result = results[0]
    if isinstance(result, MetadataError):
        raise result
    return result


async def groups_of(
    managers: MetadataManagers, names: list[str]
) -> tuple[dict[str, dict[str, GroupState]], dict[tuple[str, str], int]]:
    """Read the places of the groups of these logs, and the versions of their records. Raises MetadataError."""
    found: dict[str, dict[str, GroupState]] = {}
    versions: dict[tuple[str, str], int] = {}
    for name in names:
        found[name] = {}
        for group, versioned in (await read_all(managers, name)).items():
            state = group_state_of(versioned.value)
            if state is not None:
                found[name][group] = state
                versions[name, group] = versioned.version.number
    return found, versions


class OpeningReport(Protocol):
    """Result of opening a log; as a text it says what is missing."""

    @property
    def needs_telling(self) -> bool:
        """Whether records are missing that were not known to be."""


class LogCabinet(Cabinet, Protocol):
    """Storage of the logs of one shard: a folder, or the engine."""

    @property
    def keeps(self) -> bool:
        """Whether an earlier run may have left logs."""

    def mark(self) -> None:
        """Mark it, so that another one in its place is noticed. Raises DiskError."""

    def reports(self) -> Mapping[str, OpeningReport]:
        """Reports of opening, by log."""

    def close(self) -> list[str]:
        """Close all logs; returns the errors. Blocks."""


@attrs.define
class LogFiles:
    """The logs of one shard as an earlier run left them, and where their records are."""

    storage: LogCabinet
    keeper: LogKeeper
    managers: MetadataManagers
    opened: dict[str, Opened | DiskError]
    groups: dict[str, dict[str, GroupState]]
    producers: dict[str, ProducerSnapshot]


async def _producers_of(
    store: StoreQueue | None, opened: Mapping[str, Opened | DiskError], *, inline: bool
) -> dict[str, ProducerSnapshot]:
    """Return the producers that these logs know: what the store has of them, and what the records behind that say."""
    if store is None or not opened:
        return {}
    answered = trio.Event()
    results: list[dict[str, ProducerSnapshot] | EngineError] = []

    def bad(key: str, error: StoreFormatError) -> None:
        log.warning("what a log knows of producers can't be read", key=key, error=str(error), effect=_EFFECT)

    def read(result: dict[str, ProducerSnapshot] | EngineError) -> None:
        results.append(result)
        answered.set()

    store.worker.read(lambda engine: kept_producers(engine, bad), read)
    await answered.wait()
    kept = results[0]
    if isinstance(kept, EngineError):
        log.warning("what logs know of producers can't be read", error=str(kept), effect=_EFFECT)
        return {}

    def look() -> dict[str, ProducerSnapshot]:
        found: dict[str, ProducerSnapshot] = {}
        for name, snapshot in kept.items():
            there = opened.get(name)
            if isinstance(there, Opened) and there.log_id == snapshot.log_id:
                try:
                    found[name] = continued(there.records, snapshot)
                except DiskError as error:
                    found[name] = snapshot
                    log.warning("the producers of a log can't be read", log=name, error=str(error), effect=_EFFECT)
        return found

    return look() if inline else await trio.to_thread.run_sync(look)


async def open_log_files(
    storage: LogCabinet,
    *,
    now_ms: Callable[[], int],
    managers: MetadataManagers,
    store: StoreQueue | None,
    inline: bool,
) -> LogFiles:
    """Open the logs of an earlier run. `inline`: no threads. Raises DiskError and MetadataError."""
    opened = {}
    if storage.keeps:
        opened = open_all(storage) if inline else await trio.to_thread.run_sync(open_all, storage)
    if opened:
        _mark(storage)
    groups, versions = await groups_of(managers, list(opened))
    keeper = NoPlaces() if store is None else StoredPlaces(store, now_ms, versions)
    for name, report in storage.reports().items():
        if report.needs_telling:
            log.warning("a log has lost records: its readers are told where", log=name, found=str(report))
    producers = await _producers_of(store, opened, inline=inline)
    return LogFiles(storage, keeper, managers, opened, groups, producers)


@attrs.define
class Logs:
    """The logs of all open shards of a broker."""

    table: LogTable
    disk: LogDisk
    parts: dict[int, LogFiles]
    """Files of logs, by shard."""

    async def leave(self, shard: int, *, inline: bool) -> None:
        """Write pending records of a shard, answer those who wait for them, and close its files. Before its store is
        closed. Clients stay, and would wait for a RECEIPT for ever.
        """
        part = self.parts[shard]
        own = [each for each in self.table if each.environment.shard == shard]
        for each in own:
            await _until(each.when_written)
            if not each.failing:
                await _until(each.when_settled)
        for each in own:
            self.table.leave(each)
        await _until(lambda done: part.managers.flush(lambda _error: done()))
        part.managers.close()
        del self.parts[shard]
        closing = part.storage.close
        for fault in closing() if inline else await trio.to_thread.run_sync(closing):
            log.error("a log was not closed in order", error=fault)

    async def close(self, *, inline: bool) -> None:
        """Write pending records, close the files. Before the stores are closed, which note the offsets of groups."""
        table = self.table
        for each in tuple(table):  # parked SENDs of an ended connection may make some meanwhile
            await _until(each.when_written)
        table.close()
        table.reading.close()
        for part in tuple(self.parts.values()):  # a shard that is about to be closed may leave meanwhile
            managers = part.managers
            await _until(lambda done, managers=managers: managers.flush(lambda _error: done()))  # type: ignore[misc]
            managers.close()
        faults = self._close_files() if inline else await trio.to_thread.run_sync(self._close_files)
        for fault in faults:
            log.error("a log was not closed in order", error=fault)

    def _close_files(self) -> list[str]:
        self.disk.close()
        return [fault for part in tuple(self.parts.values()) for fault in part.storage.close()]

    def abandon(self) -> None:
        """Close the files without writing. A second call does nothing."""
        self.disk.close()
        for part in self.parts.values():
            part.storage.close()


async def _until(ask: Callable[[Callable[[], None]], None]) -> None:
    """Wait until `ask` calls back, for CLOSING_SECONDS at most."""
    done = trio.Event()
    with trio.move_on_after(CLOSING_SECONDS):
        ask(done.set)
        await done.wait()


def open_logs(
    config: LogStorageConfig,
    parts: dict[int, LogFiles],
    *,
    cabinet: Cabinet,
    keeper: LogKeeper,
    environment: QueueEnvironment,
    environment_of: Callable[[str], QueueEnvironment] | None,
    disk: LogDisk,
    policy_for: Callable[[str], QueuePolicy],
) -> Logs:
    """Return the logs of these shards. Raises ConfigError for settings that these logs can't have.

    `cabinet`, `keeper`, `environment_of`: those of the shard that a log is in."""
    table = LogTable(
        cabinet,
        disk,
        keeper,
        RecordCache(config.cache_bytes_max, HeaderCodec(), manager=environment.manager, clock=environment.clock),
        environment,
        policy_for,
        environment_of=environment_of,
        logs_max=config.logs_max,
        delete_passcode=config.delete_passcode,
        warn=log.warning,
        compaction_bytes_max=config.compaction_bytes_max,
    )
    mistakes = table.mistakes_of_settings([name for part in parts.values() for name in part.opened])
    if mistakes:
        Logs(table, disk, parts).abandon()
        raise ConfigError("\n".join(mistakes))
    for part in parts.values():
        table.restore(part.opened, part.groups, part.producers)
    table.start({}, {})
    return Logs(table, disk, parts)


def _mark(storage: LogCabinet) -> None:
    """Mark the folder at the start, for logs of earlier versions. A full disk must not keep readers away."""
    try:
        storage.mark()
    except DiskError as error:
        log.warning(
            "cannot mark the folder of logs",
            error=str(error),
            effect="a start where its disk is not mounted is not noticed; tried again with the next log",
        )


# ---------------------------------------------------------------------- requests


class BadRequestError(Exception):
    """A request that makes no sense; the message says why."""


def text_of(request: Mapping[str, Any], name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str) or not value:
        raise BadRequestError(f'the request needs "{name}", a text')
    return value


def number_of(request: Mapping[str, Any], name: str) -> int:
    value = request.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadRequestError(f'the request needs "{name}", a whole number of 0 or more')
    return value


def _done(reply: Callable[..., None], **facts: Any) -> Callable[[object], None]:
    def done(result: object) -> None:
        if isinstance(result, Exception):
            reply(LogError(INTERNAL_ERROR, str(result)))
        else:
            reply(facts)

    return done


Send = Callable[[Mapping[str, Any] | LogError | Steps[Mapping[str, Any]]], None]
"""Answer to a request: facts, an error, or steps that lead to the facts."""

Handler = Callable[[Mapping[str, Any], Send], None]


def answer(
    handler: Handler,
    body: bytes,
    reply: Callable[[bytes], None],
    answers: Answers,
    *,
    bytes_max: int = REQUEST_BYTES_MAX,
    contain: Contain | None = None,
) -> None:
    """Answer a request by this handler; an exception becomes an answer, too. `contain`: is given bugs of the broker."""

    def send(result: Mapping[str, Any] | LogError | Steps[Mapping[str, Any]]) -> None:
        if isinstance(result, LogError):
            reply(refused(result.code, str(result)))
        elif isinstance(result, Generator):
            answers.make(lambda: encoded(_told(result)), reply)
        else:
            reply(json.dumps({"ok": True, **result}, separators=(",", ":")).encode())

    def read_and_handle() -> None:
        if len(body) > bytes_max:
            raise BadRequestError(f"the body has {len(body):,} bytes: {bytes_max:,} at most")
        try:
            request = read_json(body)
        except ValueError as error:
            raise BadRequestError(f"the body is no JSON: {error}") from None
        if not isinstance(request, dict):
            raise BadRequestError("the body must be a JSON object")
        handler(request, send)

    _carefully(read_and_handle, send, contain)


def _told(steps: Steps[Mapping[str, Any]]) -> Steps[Mapping[str, Any]]:
    try:
        facts = yield from steps
    except LogError as error:
        return {"ok": False, "error": error.code, "message": str(error)}
    return {"ok": True, **facts}


def _carefully(handle: Callable[[], None], send: Send, contain: Contain | None) -> None:
    """Run a handler; an exception becomes an answer."""
    try:
        handle()
    except (BadRequestError, PositionError) as error:
        send(LogError(INVALID_REQUEST, str(error)))
    except LogError as error:
        send(error)
    except (ForbiddenError, ProtocolError):  # the session's to tell, as an ERROR
        raise
    except Exception as error:
        if contain is None:
            raise
        contain(error)
        send(LogError(INTERNAL_ERROR, "the broker made a mistake with this request: its log has the details"))


def _behind_writes(
    table: LogTable,
    handler: Callable[[LogTable, Mapping[str, Any], Send], None],
    request: Mapping[str, Any],
    send: Send,
) -> None:
    """Run a handler behind the writes under way: a client that has sent records to a log sees them in the answer."""
    name = request.get("log")
    log = table.logs.get(name if name.startswith(PREFIX) else PREFIX + name) if isinstance(name, str) else None
    if log is None:
        handler(table, request, send)
        return

    def handle() -> None:
        _carefully(lambda: handler(table, request, send), send, table.contain)

    def located(place: Position) -> Iterator[object]:
        yield from table.locating(log.name, place)
        handle()

    place = _time_in(request)
    if place is None:
        log.when_written(handle)
    else:  # records to look at may be away
        log.when_written(lambda: table.do_in_steps(object(), located(place)))


def _time_in(request: Mapping[str, Any]) -> Position | None:
    """Return the time that a request names as a position. None: it names none that can be read."""
    for name in ("to", "from", "timestamp_ms"):
        text = request.get(name)
        try:
            place = parse_position(f"time:{text}" if name == "timestamp_ms" else str(text))
        except PositionError:
            continue
        if place.kind is PositionKind.TIME:
            return place
    return None


def _named(table: LogTable, request: Mapping[str, Any]) -> Log:
    """The log that a request names; if it says which one it means (`log_id`), that one. Raises LogError,
    BadRequestError.
    """
    return table.meant(text_of(request, "log"), text_of(request, "log_id") if "log_id" in request else "")


def page_of(request: Mapping[str, Any]) -> tuple[int, int]:
    """Offset and limit of a request for a list."""
    offset = number_of(request, "offset") if "offset" in request else 0
    limit = number_of(request, "limit") if "limit" in request else ROWS_MAX
    if offset > OFFSET_MAX or not 0 < limit <= ROWS_MAX:
        raise BadRequestError(f'"offset" may be {OFFSET_MAX:,} at most, "limit" 1 to {ROWS_MAX:,}')
    return offset, limit


def _page(name: str, rows: list[dict[str, Any]], left_count: int) -> Mapping[str, Any]:
    return {name: rows, "omitted": left_count} if left_count > 0 else {name: rows}


def _list(table: LogTable, request: Mapping[str, Any], send: Send) -> None:
    list_known(table, lambda _name: True, request, send)


def list_known(table: LogTable, may_know: Callable[[str], bool], request: Mapping[str, Any], send: Send) -> None:
    """The logs that the asker may know of: a page of them, by name."""
    offset, limit = page_of(request)

    def steps() -> Steps[Mapping[str, Any]]:
        total, rows = yield from listed_logs(table, may_know, offset, limit)
        return _page("logs", rows, total - offset - limit)

    send(steps())


def listed_logs(
    table: LogTable, may_know: Callable[[str], bool], offset: int, limit: int
) -> Steps[tuple[int, list[dict[str, Any]]]]:
    """Return the number of the logs that an asker may know of, and a page of them by name."""
    known = []
    for each in list(table):
        yield
        if may_know(each.name):
            known.append(each)
    known = yield from sorted_in_steps(known, lambda each: each.name)
    rows = []
    for each in known[offset : offset + limit]:
        if not each.closed:
            rows.append((yield from log_report(table, each, groups_max=GROUPS_MAX)))
    return len(known), rows


def _describe(table: LogTable, request: Mapping[str, Any], send: Send) -> None:
    send(log_report(table, _named(table, request), groups_max=ROWS_MAX))


def _size(table: LogTable, request: Mapping[str, Any], send: Send) -> None:
    named = _named(table, request)
    if request.get("group") is not None:
        send({"size": table.group(named, text_of(request, "group")).lag_count})
    else:
        records = named.records
        size = records.next_index - records.first_index
        facts = {"size": size, "next": records.next_index, "waiting": named.pending_count}
        send({**facts, "log_id": named.log_id})


def _closest(table: LogTable, request: Mapping[str, Any], send: Send) -> None:
    index, timestamp_ms = table.closest(_named(table, request), number_of(request, "timestamp_ms"))
    send({"index": index, "timestamp_ms": timestamp_ms})


def _groups(table: LogTable, request: Mapping[str, Any], send: Send) -> None:
    offset, limit = page_of(request)
    named = _named(table, request)

    def steps() -> Steps[Mapping[str, Any]]:
        groups = yield from groups_report(table, named, offset=offset, limit=limit)
        return _page("groups", groups, len(table.groups.get(named.name, {})) - offset - limit)

    send(steps())


def _seek(table: LogTable, request: Mapping[str, Any], send: Send) -> None:
    to = request.get("to")
    place = parse_position(str(to) if isinstance(to, int) and not isinstance(to, bool) else text_of(request, "to"))
    named, group = _named(table, request), text_of(request, "group")
    front = table.seek(named, group, place)
    table.group(named, group).place.when_settled(lambda: send({"front": front}))


def _cursor(table: LogTable, request: Mapping[str, Any], send: Send) -> None:
    """Return the place of a group, which is made if need be; the log, too, so that later records count."""
    place = parse_position(str(request.get("from", "next")))
    name, group = text_of(request, "log"), text_of(request, "group")
    if "log_id" in request:
        named = _named(table, request)
    else:
        named = table.get(name if name.startswith(PREFIX) else PREFIX + name)

    def created(error: Exception | None) -> None:
        try:
            if error:
                send(LogError(INTERNAL_ERROR, str(error)))
            else:
                send({"front": table.group(named, group).front, "log_id": named.log_id})
        except LogError as gone:  # it was deleted in this moment
            send(gone)

    table.make_group(named, group, place, created)


def _delete_group(table: LogTable, request: Mapping[str, Any], send: Send) -> None:
    table.delete_group(_named(table, request), text_of(request, "group"), _done(send))


def _truncate(table: LogTable, request: Mapping[str, Any], send: Send) -> None:
    before = request.get("before")
    text = str(before) if isinstance(before, int) and not isinstance(before, bool) else text_of(request, "before")

    def truncated(result: int | DiskError) -> None:
        send(LogError(INTERNAL_ERROR, str(result)) if isinstance(result, DiskError) else {"first": result})

    if text.startswith("size:"):
        table.truncate(_named(table, request), parse_index(text[5:], "size in bytes"), truncated)
    else:
        table.truncate(_named(table, request), parse_position(text), truncated)


def _delete(table: LogTable, request: Mapping[str, Any], send: Send) -> None:
    passcode = request.get("passcode", "")
    table.delete(_named(table, request), passcode if isinstance(passcode, str) else "", _done(send))


def _fetch(table: LogTable, request: Mapping[str, Any], send: Send) -> None:
    named = _named(table, request)
    count_max = number_of(request, "max_count") if "max_count" in request else COUNT_MAX
    bytes_max = number_of(request, "max_bytes") if "max_bytes" in request else BYTES_DEFAULT
    wait_seconds = request.get("max_wait_seconds", 0)
    if not 0 < count_max <= COUNT_MAX or not 0 < bytes_max <= BYTES_MAX:
        raise BadRequestError(f'"max_count" may be 1 to {COUNT_MAX:,}, "max_bytes" 1 to {BYTES_MAX:,}')
    is_number = isinstance(wait_seconds, int | float) and not isinstance(wait_seconds, bool)
    if not is_number or not 0 <= wait_seconds <= WAIT_SECONDS_MAX:
        raise BadRequestError(f'"max_wait_seconds" may be 0 to {WAIT_SECONDS_MAX:g}')
    if "group" in request:
        group = _pulled(table, named, request)
        if "from" in request:
            raise BadRequestError('"from" and "group" exclude each other: a group has its own place')
        place = Position(PositionKind.INDEX, group.front)
    else:
        place = parse_position(str(request.get("from", "next")))
    Fetch(named, count_max, bytes_max, send).begin(table, place, wait_seconds)


def _pulled(table: LogTable, named: Log, request: Mapping[str, Any]) -> Group:
    """Return the group that a client reads by requests. Raises LogError if it has consumers."""
    group = table.group(named, text_of(request, "group"))
    if group.subscriptions or group.shared_out is not None:
        raise LogError(
            GROUP_IN_USE,
            f"group {group.group!r} of {named.name} has {len(group.subscriptions)} consumers, which would get the same "
            "records: end them, or subscribe as one of them",
        )
    return group


def _commit(table: LogTable, request: Mapping[str, Any], send: Send) -> None:
    """Settle all records of a group below an index. Never moves it back."""
    named, to = _named(table, request), number_of(request, "to")
    group = _pulled(table, named, request)
    if to > group.front:
        table.seek(named, group.group, Position(PositionKind.INDEX, to))
    group.place.when_settled(lambda: send({"front": group.front}))


_ABOUT_LOGS: Final[dict[str, Callable[[LogTable, Mapping[str, Any], Send], None]]] = {
    "list": _list,
    "describe": _describe,
    "size": _size,
    "closest": _closest,
    "groups": _groups,
    "fetch": _fetch,
    "seek": _seek,
    "commit": _commit,
    "cursor": _cursor,
    "delete-group": _delete_group,
    "truncate": _truncate,
    "delete": _delete,
}


def handlers(table: LogTable) -> dict[str, Handler]:
    """Return the handlers of requests about logs, by the name behind `/sluiceway/log/`."""
    return {name: partial(_behind_writes, table, handler) for name, handler in _ABOUT_LOGS.items()}
