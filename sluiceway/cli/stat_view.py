"""Display of the answer of `sluiceway stat`: faults first, then what is blocked by what in words, then tables.

The answer is JSON of a broker that may be older or newer than this command, so any key may be missing; it is then not
drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.table import Table

from sluiceway.cli.answers import (
    circumstances_of,
    is_number,
    list_of,
    mapping_of,
    missing_hubs,
    rows_of,
    title_of,
    words_of,
    wrong_clocks,
)
from sluiceway.flow.words import age_in_words, count_in_words, size_in_words
from sluiceway.remedies import remedy_for
from sluiceway.views.limits import changed_limits_in_words
from sluiceway.views.waits import bottlenecks_of, root_causes_of, waited_seconds

CHAINS_MAX: Final = 5
STALLED_MAX: Final = 5
_ALWAYS: Final = frozenset(
    {
        "name",
        "peer",
        "depth_count",
        "subscriptions_count",
        "producers_count",
        "backlog_count",
        "log",
        "size",
        "first",
        "next",
    }
    | {"group", "front", "lag", "consumers"}
)


def render(
    report: Mapping[str, Any], console: Console, *, rows_max: int | None = 20, own_session: str | None = None
) -> None:
    """Print the report. `rows_max`: rows per table, the busiest first; None: all. `own_session`: session of this
    command's connection, which is marked; its temporary queue is left out.
    """
    _header(report, console)
    _missing_hubs(report, console)
    _faults(report, console)
    _memory(report, console)
    _bottleneck(report, console)
    _chains(report, console, None if rows_max is None else CHAINS_MAX)
    _remedy(report, console)
    _changed_limits(report, console)
    draw_table(console, "Hubs", _HUBS, hubs_of(report), rows_max)
    destinations = rows_of(report, "destinations", ("depth_count", "added_count"))
    if own_session:  # the answer came through a destination of its own
        own = f"/remote-temp-queue/{own_session}."
        destinations = [row for row in destinations if not str(row.get("name", "")).startswith(own)]
    draw_table(console, "Destinations", _DESTINATIONS, destinations, rows_max)
    logs = rows_of(report, "logs", ("waiting", "bytes"))
    draw_table(console, "Logs", LOGS, logs, rows_max)
    groups: list[Mapping[str, Any]] = [
        {**row, "log": log.get("log"), "hub": log.get("hub")} for log in logs for row in rows_of(log, "groups", ())
    ]
    groups.sort(key=_lag_of)
    draw_table(console, "Groups of logs", (_LOG, *GROUPS), groups, rows_max)
    draw_table(console, "Durable subscriptions", _DURABLES, rows_of(report, "durables", ("backlog_count",)), rows_max)
    draw_table(console, "Topics of other regions", _REGIONS, rows_of(report, "regions", ()), rows_max)
    connections = rows_of(report, "connections", ("blocked_seconds", "in_bytes"))
    if own_session:
        connections = [_marked(row) if row.get("session") == own_session else row for row in connections]
    draw_table(console, "Connections", _CONNECTIONS, connections, rows_max)
    _omitted(report, console)
    _store(report, console)
    _dispatcher(report, console)


def _marked(connection: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**connection, "peer": f"{connection.get('peer', '')} (this one)"}


def is_blocked(report: Mapping[str, Any]) -> bool:
    """Return whether senders have waited for something for a while, or for ever."""
    return bool(list_of(report, "cycles") or bottlenecks_of(report))


def bottleneck_line(report: Mapping[str, Any]) -> str:
    """Return the sentence about the bottleneck, or that there is none."""
    cycles = list_of(report, "cycles")
    if cycles:
        return f"a cycle, which never resolves by itself: {words_of(cycles[0])}"
    causes = root_causes_of(report)
    return f"bottleneck: {words_of(causes[0])}" if causes else "nothing is blocked"


# -- parts -------------------------------------------------------------------------------------------------------------


def _header(report: Mapping[str, Any], console: Console) -> None:
    broker = mapping_of(report, "broker")
    said = [f"[bold]{escape(str(broker.get('name', 'broker')))}[/]"]
    if "version" in broker:
        said.append(f"version {escape(str(broker['version']))}")
    if is_number(broker.get("uptime_seconds")):
        said.append(f"up {age_in_words(broker['uptime_seconds'])}")
    if is_number(report.get("used_bytes")):
        said.append(f"{size_in_words(report['used_bytes'])} buffered")
    if is_number(broker.get("rss_bytes")):
        said.append(f"{size_in_words(broker['rss_bytes'])} of memory")
    console.print(", ".join(said), highlight=False, soft_wrap=True)


def _missing_hubs(report: Mapping[str, Any], console: Console) -> None:
    for line in missing_hubs(report) + wrong_clocks(report):
        console.print(f"[bold red]{escape(line)}[/]", highlight=False, soft_wrap=True)


def hubs_of(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rows of hubs; empty: the broker is one process."""
    return [
        {**hub, "shards": len(list_of(hub, "shards")), "state": "missing" if hub.get("missing") else "ok"}
        for hub in rows_of(report, "hubs")
    ]


def _faults(report: Mapping[str, Any], console: Console) -> None:
    """Print the number of internal faults of the broker, if any: a restart restores what they closed."""
    faults = mapping_of(report, "faults")
    if not is_number(faults.get("count")) or not faults["count"]:
        return
    line = f"internal errors: {faults['count']:,}"
    for key, words in (("destinations_abandoned", "destinations"), ("connections_abandoned", "connections")):
        if is_number(faults.get(key)) and faults[key]:
            line += f"; {faults[key]:,} {words} closed by them"
    line += ". Its log has the details: please report them; a restart brings closed destinations back"
    console.print(f"[bold red]{escape(line)}[/]", highlight=False, soft_wrap=True)


def _memory(report: Mapping[str, Any], console: Console) -> None:
    """Print the broker's memory, if half of it is used."""
    memory = mapping_of(report, "memory")
    used_bytes, capacity_bytes = memory.get("used_bytes"), memory.get("capacity_bytes")
    if not is_number(used_bytes) or not is_number(capacity_bytes) or (used_bytes < capacity_bytes / 2):
        return
    holders = [
        f"{each['name']} ({size_in_words(each['used_bytes'])})"
        for each in list_of(memory, "largest")
        if isinstance(each, dict) and "name" in each and is_number(each.get("used_bytes"))
    ]
    line = f"memory of the broker: {size_in_words(used_bytes)} of {size_in_words(capacity_bytes)}"
    if holders:
        line += f"; the largest holders: {', '.join(holders)}"
    if memory.get("held_back_count"):
        line += f"; {memory['held_back_count']:,} held back"
    console.print(
        f"[{'bold red' if memory.get('short') else 'yellow'}]{escape(line)}[/]", highlight=False, soft_wrap=True
    )


def _bottleneck(report: Mapping[str, Any], console: Console) -> None:
    line = bottleneck_line(report)
    console.print(
        f"[{'bold red' if is_blocked(report) else 'green'}]{escape(line)}[/]", highlight=False, soft_wrap=True
    )
    for row in list_of(report, "stalled")[:STALLED_MAX]:
        console.print(f"[yellow]stalled: {escape(words_of(row))}[/]", highlight=False, soft_wrap=True)


def _omitted(report: Mapping[str, Any], console: Console) -> None:
    left = [f"{count:,} {name}" for name, count in mapping_of(report, "omitted").items() if is_number(count)]
    if left:
        console.print(f"not in this answer, which has the busiest: {', '.join(left)} (--all)", highlight=False)


def _changed_limits(report: Mapping[str, Any], console: Console) -> None:
    """Print the limits that an operator has changed at run time."""
    for row in list_of(report, "destinations"):
        if isinstance(row, dict) and (changed := mapping_of(row, "changed_limits")):
            line = f"limits of {row.get('name')} changed at run time: {changed_limits_in_words(changed)}"
            console.print(f"[yellow]{escape(line)}[/]", highlight=False, soft_wrap=True)


def _chains(report: Mapping[str, Any], console: Console, chains_max: int | None) -> None:
    chains = list_of(report, "chains") if is_blocked(report) else []  # others come and go
    shown = chains[:chains_max]
    for chain in shown:
        console.print(f"  {escape(words_of(chain))}", highlight=False, soft_wrap=True)
    if len(chains) > len(shown):
        console.print(f"  … and {len(chains) - len(shown):,} more that wait (--all)", highlight=False)


def _remedy(report: Mapping[str, Any], console: Console) -> None:
    if said := remedy_of(report):
        console.print(f"what to do: {escape(said)}", highlight=False, soft_wrap=True)


def remedy_of(report: Mapping[str, Any]) -> str:
    """Return what to do about the bottleneck; empty if nothing is known, or it has not lasted."""
    causes = root_causes_of(report)
    if list_of(report, "cycles") or not causes or waited_seconds(causes[0]) is None:
        return ""
    sinks = (row for row in rows_of(report, "resources") if title_of(row) == causes[0].get("sink"))
    sink = next(sinks, None)
    return "" if sink is None else remedy_for(str(sink.get("kind")), circumstances_of(sink))


def _store(report: Mapping[str, Any], console: Console) -> None:
    store = mapping_of(report, "store")
    if not store:
        return
    said = []
    if is_number(store.get("size_bytes")):
        said.append(f"{size_in_words(store['size_bytes'])} on disk")
    for key, noun, words in (
        ("written_count", "message", "{} written"),
        ("cancelled_count", "", "{} acknowledged before they had to be"),
        ("paged_out_count", "", "{} paged out"),
        ("syncs_count", "sync", "{}"),
        ("lost_count", "", "{} lost to corruption"),
    ):
        if is_number(store.get(key)) and (store[key] or key == "written_count"):
            said.append(words.format(count_in_words(store[key], noun) if noun else f"{store[key]:,}"))
    if is_number(store.get("longest_write_seconds")):
        said.append(f"longest write {age_in_words(store['longest_write_seconds'])}")
    console.print(f"store: {', '.join(said)}", highlight=False, soft_wrap=True)
    if trouble := store_trouble(report):
        console.print(f"[bold red]{escape(trouble)}[/]", highlight=False, soft_wrap=True)


def store_trouble(report: Mapping[str, Any]) -> str:
    """Return the failure of the disk; empty: none."""
    store = mapping_of(report, "store")
    if store.get("state") in (None, "ok"):
        return ""
    return f"store: {store['state']}" + (f": {store['error']}" if store.get("error") else "")


def _dispatcher(report: Mapping[str, Any], console: Console) -> None:
    dispatcher = mapping_of(report, "dispatcher")
    if not dispatcher:
        return
    said = []
    if is_number(dispatcher.get("dispatches_count")):
        said.append(f"{dispatcher['dispatches_count']:,} dispatches")
    if is_number(dispatcher.get("longest_dispatch_seconds")):
        label = dispatcher.get("longest_dispatch_label")
        by = f" ({escape(str(label))})" if label else ""
        said.append(f"longest {age_in_words(dispatcher['longest_dispatch_seconds'])}{by}")
    ready = dispatcher.get("ready_count")
    if isinstance(ready, list) and all(is_number(count) for count in ready):
        said.append(f"{sum(ready):,} ready")
    if is_number(dispatcher.get("timers_count")):
        said.append(f"{dispatcher['timers_count']:,} timers")
    if said:
        console.print(f"dispatcher: {', '.join(said)}", highlight=False, soft_wrap=True)


Column = tuple[str, str, Callable[[Any], str]]
"""Key in the report, heading, formatting of a value."""


def _count(value: Any) -> str:
    return f"{value:,}" if is_number(value) else str(value)


def _size(value: Any) -> str:
    return size_in_words(value) if is_number(value) else str(value)


def _age(value: Any) -> str:
    return age_in_words(value) if is_number(value) else str(value)


_HUB: Final[Column] = ("hub", "hub", str)
_HUBS: Final[Sequence[Column]] = (
    ("name", "hub", str),
    ("state", "state", str),
    ("pid", "process", str),
    ("address", "address for hubs", str),
    ("uptime_seconds", "up", _age),
    ("connections_count", "connections", _count),
    ("destinations_count", "destinations", _count),
    ("rss_bytes", "memory", _size),
    ("store", "store", str),
    ("shards", "shards", _count),
)
_DESTINATIONS: Final[Sequence[Column]] = (
    ("name", "destination", str),
    _HUB,
    ("depth_count", "holds", _count),
    ("depth_bytes", "size", _size),
    ("outside_count", "blocks on disk", _count),
    ("delayed_count", "delayed", _count),
    ("unsettled_count", "unsettled", _count),
    ("subscriptions_count", "consumers", _count),
    ("producers_count", "producers", _count),
    ("added_count", "in", _count),
    ("settled_count", "settled", _count),
    ("dropped_count", "dropped", _count),
    ("dead_lettered_count", "dead letters", _count),
    ("expired_count", "expired", _count),
    ("rejected_count", "rejected", _count),
    ("duplicates_count", "duplicates", _count),
    ("oldest_age_seconds", "oldest", _age),
)
_LOG: Final[Column] = ("log", "log", str)
LOGS: Final[Sequence[Column]] = (
    _LOG,
    _HUB,
    ("size", "records", _count),
    ("bytes", "size", _size),
    ("first", "first", _count),
    ("next", "next", _count),
    ("oldest", "oldest", str),
    ("newest", "newest", str),
    ("groups_count", "groups", _count),
    ("readers", "readers", _count),
    ("waiting", "waiting", _count),
    ("compacted_count", "compacted", _count),
    ("gaps", "gaps told", _count),
    ("failing", "failing", str),
)
"""Columns of logs, as in their requests."""
GROUPS: Final[Sequence[Column]] = (
    ("group", "group", str),
    ("front", "front", _count),
    ("lag", "behind", _count),
    ("lag_bytes", "size", _size),
    ("lag_seconds", "age", _age),
    ("consumers", "consumers", _count),
    ("unsettled", "unsettled", _count),
    ("gaps", "gaps told", _count),
)
_DURABLES: Final[Sequence[Column]] = (
    ("name", "durable subscription", str),
    ("client_id", "client", str),
    ("destination", "topic", str),
    _HUB,
    ("consumers_count", "consumers", _count),
    ("backlog_count", "backlog", _count),
    ("age_seconds", "age", _age),
    ("away_seconds", "away", _age),
)
_REGIONS: Final[Sequence[Column]] = (
    ("region", "region", str),
    ("topic", "topic", str),
    ("connected_to", "connected to", str),
    ("reason", "not connected because", str),
    ("taken_count", "taken", _count),
    ("refused_count", "refused", _count),
    ("underway_count", "under way", _count),
)
_CONNECTIONS: Final[Sequence[Column]] = (
    ("client_id", "client", str),
    ("peer", "connection", str),
    _HUB,
    ("user", "user", str),
    ("version", "STOMP", str),
    ("subscriptions_count", "subscriptions", _count),
    ("unsettled_count", "unsettled", _count),
    ("in_bytes", "received", _size),
    ("out_bytes", "sent", _size),
    ("waiting_bytes", "to be sent", _size),
    ("stash_bytes", "parked", _size),
    ("blocked_seconds", "blocked", _age),
    ("waiting_on", "waits on", str),
)


def draw_table(
    console: Console, title: str, columns: Sequence[Column], rows: list[Mapping[str, Any]], rows_max: int | None
) -> None:
    """Draw a table of the columns with content: a column that is empty or zero in every row is omitted."""
    if not rows:
        return
    present = [column for column in columns if column[0] in _ALWAYS or any(row.get(column[0]) for row in rows)]
    table = Table(
        title=f"{title}: {len(rows):,}", title_justify="left", header_style="bold", box=SIMPLE_HEAD, pad_edge=False
    )
    for _key, heading, say in present:
        justify: JustifyMethod = "left" if say is str else "right"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=say is not str)
    shown = rows[:rows_max]
    for row in shown:
        table.add_row(*("" if row.get(key) is None else escape(say(row[key])) for key, _heading, say in present))
    console.print(table)
    if len(rows) > len(shown):
        console.print(f"  … and {len(rows) - len(shown):,} more (--all)", highlight=False)


def _lag_of(group: Mapping[str, Any]) -> float:
    lag: Any = group.get("lag")
    return -lag if is_number(lag) else 0.0
