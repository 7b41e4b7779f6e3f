"""One answer of the broker as rows: the contents of each view, with rates, ages and states; before anything is drawn.

A `Painter` is given one answer after the other and remembers what it needs of those before. It never asks for the time:
the answer says when it was taken.

What it remembers is bounded: `COURSES_MAX` courses of each kind, and two numbers per destination that is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final

import attrs

from sluiceway.cli.answers import list_of, mapping_of, number_of, rows_of, title_of
from sluiceway.flow.kinds import ResourceKind
from sluiceway.flow.words import part_and_owner
from sluiceway.top.chains import Chain, FlowMap, troubles
from sluiceway.top.course import Age, Course, Courses
from sluiceway.views.waits import is_lasting

REPLY_NAME: Final = "sluiceway-top"
"""Name of the temporary queue of answers: it is not shown."""
COURSES_MAX: Final = 1_000
"""Maximum of courses of each kind, the busiest: some kilobytes each."""
BORN_SLACK_SECONDS: Final = 1.0
"""A broker whose start moved further than this was started anew."""

Row = Mapping[str, Any]
"""One line of a view: values by column, with `key` (stable) and `title` (of the flow map; None if it is not there)."""


class View(Enum):
    """Views of the display; the value is the heading."""

    DESTINATIONS = "Destinations"
    CONNECTIONS = "Connections"
    SUBSCRIPTIONS = "Subscriptions"
    LOGS = "Logs"
    GROUPS = "Groups"
    STORE = "Store"
    HUBS = "Hubs"
    """Shown where the broker has several."""


@attrs.frozen(slots=True)
class Trouble:
    """Cause of blocking."""

    age_seconds: float | None
    words: str


@attrs.frozen(slots=True)
class Head:
    """The broker as a whole; None: not known."""

    name: str
    version: str
    uptime_seconds: float | None
    in_per_second: float | None
    out_per_second: float | None
    rss_bytes: float | None
    used_bytes: float | None
    connections_count: int
    state: str
    """State in a word or two: `ok`, `blocked`, or that of the store."""


@attrs.frozen(slots=True)
class Picture:
    """Whole display at one moment."""

    head: Head
    troubles: tuple[Trouble, ...]
    """The worst first."""
    views: Mapping[View, tuple[Row, ...]]
    map: FlowMap

    def chain(self, row: Row) -> Chain:
        """Return the chain of waits of that row."""
        return self.map.chain(str(row.get("title") or row["key"]))


class Painter:
    """Makes pictures of answers; see the module."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._at_seconds: float | None = None
        self._born_seconds: float | None = None
        self._destinations = Courses(COURSES_MAX)
        self._connections = Courses(COURSES_MAX)
        self._connection_bytes = Courses(COURSES_MAX)
        self._logs = Courses(COURSES_MAX)
        self._groups = Courses(COURSES_MAX, from_zero=False)
        self._store = Courses(COURSES_MAX)

    def paint(self, report: Mapping[str, Any]) -> Picture:
        """Make a picture of that answer. An answer of the same moment as the one before changes no rate."""
        broker = mapping_of(report, "broker")
        at_seconds = number_of(report, "taken_at") or 0.0
        uptime_seconds = number_of(broker, "uptime_seconds")
        self._forget_another_life(at_seconds, uptime_seconds)
        flow_map = FlowMap(report)
        views = {
            View.DESTINATIONS: tuple(self._destination_rows(report, flow_map, at_seconds)),
            View.CONNECTIONS: tuple(self._connection_rows(report, flow_map, at_seconds)),
            View.SUBSCRIPTIONS: tuple(_subscription_rows(report, flow_map)),
            View.LOGS: tuple(self._log_rows(report, flow_map, at_seconds)),
            View.GROUPS: tuple(self._group_rows(report, flow_map, at_seconds)),
            View.STORE: tuple(self._store_rows(report, at_seconds)),
        }
        views[View.HUBS] = tuple(_hub_rows(report, views))
        self._at_seconds = at_seconds
        found = tuple(Trouble(age_seconds, words) for age_seconds, words in troubles(report))
        head = Head(
            name=str(broker.get("name", "broker")),
            version=str(broker.get("version", "")),
            uptime_seconds=uptime_seconds,
            in_per_second=_total("in_per_second", views[View.DESTINATIONS], views[View.LOGS]),
            out_per_second=_total("out_per_second", views[View.DESTINATIONS], views[View.GROUPS]),
            rss_bytes=number_of(broker, "rss_bytes"),
            used_bytes=number_of(report, "used_bytes"),
            connections_count=len(views[View.CONNECTIONS]),
            state=_state_of(report, broker, found),
        )
        return Picture(head, found, views, flow_map)

    # ------------------------------------------------------------------ one life of a broker

    def _forget_another_life(self, at_seconds: float, uptime_seconds: float | None) -> None:
        born_seconds = None if uptime_seconds is None else at_seconds - uptime_seconds
        is_another = self._at_seconds is not None and at_seconds < self._at_seconds
        if born_seconds is not None and self._born_seconds is not None:
            is_another |= abs(born_seconds - self._born_seconds) > BORN_SLACK_SECONDS
        if is_another:
            self._forget()
        self._born_seconds = born_seconds

    # ------------------------------------------------------------------ views

    def _destination_rows(self, report: Mapping[str, Any], flow_map: FlowMap, at_seconds: float) -> Iterator[Row]:
        self._destinations.begin(at_seconds)
        for row in rows_of(report, "destinations", ("depth_count", "added_count")):
            if _is_ours(row):
                continue
            name = str(row.get("name"))
            course = self._destinations.see(name, _count(row, "added_count"), _count(row, "settled_count"))
            depth_count = _count(row, "depth_count")
            title = flow_map.title(name)
            yield {
                **row,
                "key": name,
                "title": title,
                **_rates(course),
                "oldest": _oldest(row, course, depth_count),
                "drain_seconds": _first_number(row, "drain_seconds") or course.drain_seconds(depth_count),
                "state": _destination_state(row, flow_map, title, course),
            }

    def _connection_rows(self, report: Mapping[str, Any], flow_map: FlowMap, at_seconds: float) -> Iterator[Row]:
        self._connections.begin(at_seconds)
        self._connection_bytes.begin(at_seconds)
        for row in rows_of(report, "connections", ("blocked_seconds", "in_bytes")):
            key = str(row.get("session") or row.get("peer"))
            messages = self._connections.see(key, _count(row, "in_count"), 0.0)
            octets = self._connection_bytes.see(key, _count(row, "in_bytes"), _count(row, "out_bytes"))
            title = flow_map.title(str(row.get("peer")))
            wait = flow_map.wait_of(title) if title is not None else None
            yield {
                **row,
                "key": key,
                "client": row.get("client_id") or row.get("peer"),
                "title": title or f"connection {row.get('peer')}",
                "in_per_second": messages.in_per_second,
                "in_bytes_per_second": octets.in_per_second,
                "out_bytes_per_second": octets.out_per_second,
                "waiting_on": wait.sink if wait is not None else row.get("waiting_on"),
                "state": _connection_state(row),
            }

    def _log_rows(self, report: Mapping[str, Any], flow_map: FlowMap, at_seconds: float) -> Iterator[Row]:
        self._logs.begin(at_seconds)
        for row in rows_of(report, "logs", ("waiting", "bytes")):
            name = str(row.get("log"))
            course = self._logs.see(name, _count(row, "next"), 0.0)
            state = (
                f"failing: {row['failing']}"
                if row.get("failing")
                else "waits for the disk"
                if row.get("waiting")
                else ""
            )
            yield {
                **row,
                "key": name,
                "title": flow_map.title(name),
                "in_per_second": course.in_per_second,
                "in_rates": tuple(course.in_rates),
                "groups_count": len(rows_of(row, "groups")),
                "state": state or "ok",
            }

    def _group_rows(self, report: Mapping[str, Any], flow_map: FlowMap, at_seconds: float) -> Iterator[Row]:
        self._groups.begin(at_seconds)
        for log in rows_of(report, "logs"):
            for row in rows_of(log, "groups"):
                key = f"{log.get('log')} group {row.get('group')}"
                course = self._groups.see(key, _count(log, "next"), _count(row, "front"))
                lag = _count(row, "lag")
                lag_seconds = number_of(row, "lag_seconds")
                yield {
                    **row,
                    "log": log.get("log"),
                    "key": key,
                    "title": flow_map.title(key),
                    "out_per_second": course.out_per_second,
                    "out_rates": tuple(course.out_rates),
                    "oldest": Age(lag_seconds) if lag and lag_seconds is not None else None,
                    "drain_seconds": course.drain_seconds(lag),
                    "state": _group_state(row, lag, course),
                }

    def _store_rows(self, report: Mapping[str, Any], at_seconds: float) -> Iterator[Row]:
        store = mapping_of(report, "store")
        self._store.begin(at_seconds)
        for key, words in _STORE_WORDS.items():
            value = store.get(key)
            if value is None or value == "":
                continue
            per_second = None
            if key in _STORE_GROWING:
                per_second = self._store.see(key, _count(store, key), 0.0).in_per_second
            yield {"key": key, "title": "store", "what": words, "value": value, "per_second": per_second}


def _hub_rows(report: Mapping[str, Any], views: Mapping[View, tuple[Row, ...]]) -> Iterator[Row]:
    """Yield the hubs, with the rates of all that is there."""
    for row in rows_of(report, "hubs"):
        name = row.get("name")
        missing = row.get("missing")
        there = [each for view in (View.DESTINATIONS, View.LOGS) for each in views[view] if each.get("hub") == name]
        yield {
            **row,
            "key": str(name),
            "title": None,
            "in_per_second": None if missing else _total("in_per_second", tuple(there)),
            "out_per_second": None
            if missing
            else _total("out_per_second", tuple(each for each in there if "out_per_second" in each)),
            "shards_count": None if missing else len(list_of(row, "shards")),
            "state": f"missing: {missing}" if missing else "ok",
        }


_STORE_WORDS: Final = {
    "state": "state",
    "error": "what fails",
    "engine": "engine",
    "size_bytes": "size on disk",
    "written_count": "messages written",
    "written_bytes": "bytes written",
    "cancelled_count": "acknowledged before they had to be written",
    "syncs_count": "syncs",
    "batches_count": "batches",
    "under_way_bytes": "bytes under way",
    "paged_out_count": "messages paged out",
    "loaded_count": "messages paged in",
    "last_write_seconds": "last write took",
    "longest_write_seconds": "longest write took",
    "failures_count": "failed writes",
    "corrupt_count": "damaged records",
    "lost_count": "messages lost to damage",
}
"""Figures of the store that are shown, and their names."""
_STORE_GROWING: Final = frozenset(key for key in _STORE_WORDS if key.endswith("_count")) | {"written_bytes"}
_OURS: Final = re.compile(rf"/(?:remote-)?temp-queue/.*\b{REPLY_NAME}$")


def _is_ours(row: Row) -> bool:
    return _OURS.fullmatch(str(row.get("name"))) is not None


def _subscription_rows(report: Mapping[str, Any], flow_map: FlowMap) -> Iterator[Row]:
    """Yield the subscriptions that hold something, or block: the broker names no others."""
    clients = {row.get("peer"): row.get("client_id") for row in rows_of(report, "connections")}
    for resource in rows_of(report, "resources"):
        if resource.get("kind") != ResourceKind.SUBSCRIPTION:
            continue
        facts = mapping_of(resource, "facts")
        title = title_of(resource)
        behind = flow_map.behind(title)
        sources = sorted({wait.source for wait in behind})
        state = "ok"
        if behind and is_lasting(behind[0].age_seconds):
            state = "full"
        name, peer = part_and_owner(str(resource.get("name")))
        yield {
            "key": title,
            "title": title,
            "name": name or peer,
            "peer": peer,
            "client": clients.get(peer) or peer,
            "ack": facts.get("ack"),
            "unacked": number_of(facts, "unacked"),
            "idle_seconds": number_of(facts, "idle_seconds"),
            "window": ", ".join(
                str(controller["limiter"].get("words", ""))
                for controller in rows_of(resource, "controllers")
                if isinstance(controller.get("limiter"), Mapping)
            ),
            "holds_up": len(behind),
            "held_seconds": behind[0].age_seconds if behind else None,
            "sources": ", ".join(sources),
            "state": state,
        }


def _total(key: str, *tables: tuple[Row, ...]) -> float | None:
    """Sum the rates of all rows; None: no rate is known yet, of rows that there are."""
    rates = [row[key] for rows in tables for row in rows]
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known or not rates else None


def _state_of(report: Mapping[str, Any], broker: Mapping[str, Any], found: tuple[Trouble, ...]) -> str:
    store_state = mapping_of(report, "store").get("state")
    if store_state not in (None, "ok"):
        return f"store {store_state}"
    if broker.get("draining"):
        return "shutting down"
    if found:
        return "blocked"
    return "ok"


def _destination_state(row: Row, flow_map: FlowMap, title: str | None, course: Course) -> str:
    """Return the state in a word, the most urgent first."""
    if row.get("paused"):
        return "paused"
    behind = flow_map.behind(title) if title is not None else []
    if behind and is_lasting(behind[0].age_seconds):
        return "full"
    wait = flow_map.wait_of(title) if title is not None else None
    if wait is not None and is_lasting(wait.age_seconds):
        return "waits"
    depth_count = _count(row, "depth_count")
    if depth_count and not row.get("subscriptions_count"):
        return "no reader"
    if depth_count and course.grows():
        return "grows"
    if depth_count and course.drain_seconds(depth_count) is not None:
        return "drains"
    return "flows" if course.in_per_second or course.out_per_second else "idle"


def _connection_state(row: Row) -> str:
    if is_lasting(_count(row, "blocked_seconds")):
        return "blocked"
    if row.get("version") is None and "version" in row:
        return "connecting"
    return "parked" if row.get("parked_count") else "ok"


def _group_state(row: Row, lag: float, course: Course) -> str:
    if lag and not row.get("consumers"):
        return "no reader"
    if lag and course.grows():
        return "falls behind"
    return "catches up" if lag and course.drain_seconds(lag) is not None else "behind" if lag else "ok"


def _rates(course: Course) -> dict[str, Any]:
    return {
        "in_per_second": course.in_per_second,
        "out_per_second": course.out_per_second,
        "in_rates": tuple(course.in_rates),
        "out_rates": tuple(course.out_rates),
    }


def _oldest(row: Row, course: Course, depth_count: float) -> Age | None:
    """Return the age that the broker tells, else the one that follows from the counters."""
    told = _first_number(row, "oldest_seconds", "oldest_age_seconds")
    if told is None:
        return course.oldest(depth_count)
    return Age(told) if depth_count else None


def _first_number(row: Row, *keys: str) -> float | None:
    return next((value for key in keys if (value := number_of(row, key)) is not None), None)


def _count(row: Row, key: str) -> float:
    return number_of(row, key) or 0.0
