"""Reports of several hubs as the report of one broker: what `/sluiceway/stat` answers in a cluster.

Every row says its `hub`. Counts are added up. A client has a session at its own hub and a proxy session at each hub
that owns destinations of it: both are one row, at the hub of the client. Chains of waits go on from hub to hub: a
client that waits for its link waits for what its proxy session waits for, and a queue that waits for a proxy session
waits for the client. In words: «connection web-3 (10.0.0.7:50112) on hub-1 waits on queue /queue/orders on hub-2 …».

Pure, and in steps. Ids of resources are renumbered, so that no two hubs have the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import attrs

from sluiceway.answering import LISTS
from sluiceway.flow.graph import Steps
from sluiceway.flow.words import count_in_words

Row = dict[str, Any]
Report = Mapping[str, Any]

_CLIENT_KINDS: Final = frozenset({"connection", "stash", "subscription", "outbound", "link"})
"""Kinds of resources that belong to a client."""
_LINK_TITLE: Final = "link to other hubs from "
"""Title of what a client has under way to other hubs."""
_STORE_STATES: Final = ("failing", "disk low", "not paging", "damaged")
_LARGEST_MAX: Final = 3
_RANKS: Final[Mapping[str, tuple[str, ...]]] = {
    "destinations": ("depth_count", "added_count"),
    "connections": ("parked_count", "in_bytes"),
    "durables": ("away_seconds",),
    "logs": ("waiting", "bytes"),
    "bottlenecks": ("waiting_count", "oldest_seconds"),
    "stalled": ("stalled_seconds",),
    "edges": ("age_seconds",),
}
"""Figures by which the rows of a list are in order, the highest first; other lists stay as they are, hub by hub."""
_LISTS: Final = (*LISTS, "regions")


@attrs.frozen
class _Places:
    """Places of the resources in the report of one hub: that hub, or, of a proxy session, the hub of its client."""

    hub: str
    number: int
    """Number of the hub among all, from 0 on."""
    hubs: Sequence[str]
    pattern: re.Pattern[str]

    def split(self, name: str) -> tuple[str, str]:
        """Return the name of something of a client without its hub, and the hub where the client is."""
        found = self.pattern.search(name)
        if found is None or found["hub"] == self.hub:
            return name, self.hub
        return f"{name[: found.start()]}{found['end']}", found["hub"]

    def title(self, title: str) -> str:
        """Return the title of a resource with its place: `queue /queue/orders on hub-2`."""
        name, hub = self.split(title) if _is_of_client(title) else (title, self.hub)
        return f"{name} on {hub}"

    def resource_id(self, number: Any) -> Any:
        """Return an id that no other hub has."""
        return number * len(self.hubs) + self.number if isinstance(number, int) else number


def _is_of_client(title: str) -> bool:
    return title.partition(" ")[0] in _CLIENT_KINDS


def _pattern_of(hubs: Iterable[str]) -> re.Pattern[str]:
    return re.compile(f" by (?P<hub>{'|'.join(map(re.escape, hubs))})(?P<end>\\)?)$")


def merged_in_steps(
    reports: Mapping[str, Report],
    missing: Mapping[str, str],
    *,
    asked: str,
    rows_max: int,
    is_page: bool = False,
    absences: Mapping[str, Row] = MappingProxyType({}),
) -> Steps[Row]:
    """Return the reports of hubs, by name, as one. `missing`: why each of the others has not answered; `asked`: the hub
    that was asked, which is among the reports; `rows_max`: rows of each list at most; `is_page`: a list is a
    part of a longer one, so that rows keep their order, and chains are as each hub tells them; `absences`: what is
    known of hubs that can't answer (`Questions.absences`).
    """
    hubs = sorted({*reports, *missing}, key=hub_order)
    pattern = _pattern_of(hubs)
    places = {hub: _Places(hub, number, hubs, pattern) for number, hub in enumerate(hubs)}
    lists: dict[str, list[Row]] = {}
    omitted: dict[str, int] = {}
    for hub in (hub for hub in hubs if hub in reports):
        report, place = reports[hub], places[hub]
        for name in _LISTS:
            for row in report.get(name, ()):
                yield
                lists.setdefault(name, []).append(_placed(name, dict(row), place))
            if name in report:
                lists.setdefault(name, [])
        for name, count in report.get("omitted", {}).items():
            omitted[name] = omitted.get(name, 0) + count
    if "connections" in lists:
        lists["connections"] = yield from clients_in_steps(lists["connections"])
    if "chains" in lists:
        yield from _join_in_steps(lists, {} if is_page else missing, is_whole=not is_page)
    for name, rows in lists.items():
        yield
        if not is_page:
            _order(name, rows)
        if len(rows) > rows_max:
            omitted[name] = omitted.get(name, 0) + len(rows) - rows_max
            del rows[rows_max:]
    merged: Row = {**_sums_of(reports, asked), **lists, "omitted": omitted}
    if "broker" in reports[asked]:
        merged["hubs"] = [
            _hub_row(hub, reports.get(hub), missing.get(hub, ""), absences.get(hub), asked=reports[asked])
            for hub in hubs
        ]
    return merged


def hub_order(name: str) -> tuple[str, int, str]:
    """Return the key of the order of hubs: hub-2 is before hub-10."""
    stem = name.rstrip("0123456789")
    digits = name[len(stem) :]
    return stem, int(digits or 0), name


# ---------------------------------------------------------------------- rows


def _placed(name: str, row: Row, place: _Places) -> Row:
    """Return a row with its hub, and with names that hold for the whole cluster."""
    if name in ("resources", "connections", "stalled"):
        key = "peer" if name == "connections" else "name"
        title = f"{row.get('kind')} {row.get('name')}" if name == "resources" else "connection"
        if _is_of_client(title):
            row[key], row["hub"] = place.split(str(row.get(key)))
            if row["hub"] != place.hub:
                row["at"] = place.hub
        else:
            row["hub"] = place.hub
        if name == "resources":
            row["resource_id"] = place.resource_id(row.get("resource_id"))
        if name == "stalled":
            row["peer"] = place.split(str(row.get("peer")))[0]
            _before, colon, rest = str(row.get("words", "")).partition(": ")
            row["words"] = f"subscription {row['name']} on {row['hub']}{colon}{rest}"
    elif name in ("edges", "bottlenecks"):
        _place_ends(row, place)
    elif name == "chains":
        row = _placed_chain(row, place)
    elif name == "cycles":
        row["hub"] = place.hub
        row["words"] = f"{row.get('words', '')} (on {place.hub})"
        row["edges"] = [_place_ends(dict(edge), place) for edge in row.get("edges", ())]
    else:
        row["hub"] = place.hub
    return row


def _place_ends(row: Row, place: _Places) -> Row:
    sink = str(row.get("sink", ""))
    for end in ("source", "sink"):
        if end in row:
            row[end] = place.title(str(row[end]))
            row[f"{end}_id"] = place.resource_id(row.get(f"{end}_id"))
    if "words" in row:
        row["words"] = str(row["words"]).replace(sink, row["sink"], 1)
    row["hub"] = place.hub
    return row


def _placed_chain(row: Row, place: _Places) -> Row:
    edges = [dict(edge) for edge in row.get("edges", ())]
    sink = str(edges[-1].get("sink", "")) if edges else ""
    _before, found, tail = str(row.get("words", "")).rpartition(f"waits on {sink}")
    row["source"] = place.title(str(row.get("source", "")))
    row["source_id"] = place.resource_id(row.get("source_id"))
    row["edges"] = [_place_ends(edge, place) for edge in edges]
    row["hub"] = place.hub
    row["_tail"] = tail if found else ""
    row["words"] = _chain_words(row)
    return row


def _chain_words(chain: Row) -> str:
    edges: list[Row] = chain["edges"]
    if not edges:
        return str(chain.get("words", ""))
    said = [f"waits on {edge['sink']} ({edge.get('details', '')})" for edge in edges[:-1]]
    said.append(f"waits on {edges[-1]['sink']}{chain['_tail']}")
    return f"{chain['source']} {', '.join(said)}"


def clients_in_steps(rows: list[Row]) -> Steps[list[Row]]:
    """Return a row for each client: what its proxy sessions hold is added to its own."""
    clients = {(row["hub"], row.get("peer")): row for row in rows if "at" not in row}
    kept = []
    for row in rows:
        yield
        client = clients.get((row["hub"], row.get("peer")))
        if client is None or client is row:
            kept.append(row)  # of a proxy session whose client is not in this part of the report
            continue
        for key in ("subscriptions_count", "unsettled_count", "parked_count", "stash_bytes", "transactions_count"):
            client[key] = client.get(key, 0) + row.get(key, 0)
        client["blocked_seconds"] = max(client.get("blocked_seconds", 0.0), row.get("blocked_seconds", 0.0))
        if row.get("waiting_on"):
            client["waiting_on"] = f"{row['waiting_on']} on {row['at']}"
    return kept


def _order(name: str, rows: list[Row]) -> None:
    keys = _RANKS.get(name)
    if name == "chains":
        rows.sort(key=lambda row: -(row["edges"][0].get("age_seconds") or 0.0) if row["edges"] else 0.0)
    elif keys is not None:
        rows.sort(key=lambda row: tuple(-_number(row.get(key)) for key in keys))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


# ---------------------------------------------------------------------- waits from hub to hub


def _join_in_steps(lists: dict[str, list[Row]], missing: Mapping[str, str], *, is_whole: bool) -> Steps[None]:
    """Continue chains that end at a link with those of the proxy session, and chains that end at a proxy session with
    what its client is doing. `is_whole` False: parts of lists stay as they are.
    """
    far: dict[str, list[Row]] = {}
    outbound: dict[str, Row] = {}
    for chain in lists["chains"]:
        yield
        source = chain["source"]
        # A proxy session that waits for its own stash says nothing that the wait for a destination does not say.
        if source.startswith("connection ") and not source.endswith(f" on {chain['hub']}"):
            waits_for_itself = len(chain["edges"]) == 1 and chain["edges"][0].get("sink") == source
            if not waits_for_itself:
                far.setdefault(source, []).append(chain)
    for row in lists.get("resources", ()):
        yield
        if row.get("kind") == "outbound" and "at" not in row:
            outbound[f"outbound {row['name']} on {row['hub']}"] = row
    joined: set[str] = set()
    kept = []
    for chain in lists["chains"]:
        yield
        last = chain["edges"][-1] if chain["edges"] else {}
        sink = str(last.get("sink", ""))
        if is_whole and sink.startswith(_LINK_TITLE):
            behind = far.get(f"connection {sink.removeprefix(_LINK_TITLE)}", [])
            if behind:
                _continue(chain, max(behind, key=lambda one: one["edges"][0].get("age_seconds") or 0.0), len(behind))
                joined.add(f"connection {sink.removeprefix(_LINK_TITLE)}")
            elif missing:
                chain["_tail"] += f"; {hubs_in_words(missing)}"
        kept.append(chain)
    lists["chains"] = []
    for chain in kept:
        yield
        if chain["source"] in joined and not chain["source"].endswith(f" on {chain['hub']}"):
            continue  # the chain of the client goes on with it
        _to_client(chain, outbound)
        chain["words"] = _chain_words(chain)
        del chain["_tail"]
        lists["chains"].append(chain)
    for bottleneck in lists.get("bottlenecks", ()):
        sink = str(bottleneck.get("sink", ""))
        if sink.startswith(_LINK_TITLE) and f"connection {sink.removeprefix(_LINK_TITLE)}" in far:
            bottleneck["waits_itself"] = True


def _continue(chain: Row, behind: Row, count: int) -> None:
    """Put the waits of a proxy session in the place of the wait for its link."""
    first = behind["edges"][0]
    chain["edges"] = [
        *chain["edges"][:-1],
        {**first, "source": chain["edges"][-1]["source"], "source_id": chain["edges"][-1]["source_id"]},
        *behind["edges"][1:],
    ]
    for key in ("cyclic", "truncated"):
        chain[key] = behind.get(key, False)
    chain["other_count"] = chain.get("other_count", 0) + behind.get("other_count", 0)
    chain["_tail"] = behind["_tail"]
    if count > 1:
        chain["other_count"] += count - 1
        chain["_tail"] += f" ({count_in_words(count - 1, 'other wait')} beside)"


def _to_client(chain: Row, outbound: Mapping[str, Row]) -> None:
    """Continue a chain that ends at the output of a proxy session with that of the client itself."""
    last = chain["edges"][-1] if chain["edges"] else {}
    client = outbound.get(str(last.get("sink", "")))
    if client is None or last.get("sink_id") == client.get("resource_id") or not client.get("facts_words"):
        return
    chain["_tail"] += f", and its client on {client['hub']} has {client['facts_words']}"


def hubs_in_words(missing: Mapping[str, str]) -> str:
    """Say which hubs have not answered, and why."""
    return "; ".join(
        f"{hub} is missing: {why}" for hub, why in sorted(missing.items(), key=lambda one: hub_order(one[0]))
    )


# ---------------------------------------------------------------------- the broker as a whole


def clock_seconds(hub: Row, asked: Row) -> float:
    """Return how far the clock of a hub is ahead of that of the asked one, by the facts of both: right to the time that
    an answer takes.
    """
    return (_number(hub.get("now_ms")) - _number(asked.get("now_ms"))) / 1000


def _hub_row(hub: str, report: Report | None, why: str, absence: Row | None, *, asked: Report) -> Row:
    if report is None:
        return {"name": hub, "missing": why, **(absence or {})}
    broker = report.get("broker", {})
    facts = {key: broker.get(key) for key in ("version", "uptime_seconds", "rss_bytes")}
    store = report.get("store") or {}
    ahead_seconds = clock_seconds(report.get("hub", {}), asked.get("hub", {}))
    return {
        **report.get("hub", {}),
        "name": hub,
        "missing": None,
        **facts,
        "store": store.get("state"),
        "clock_seconds": ahead_seconds,
    }


def _sums_of(reports: Mapping[str, Report], asked: str) -> Row:
    """Return everything that is no list, added up."""
    own = reports[asked]
    merged: Row = {"taken_at": own["taken_at"]} if "taken_at" in own else {}
    for key in ("used_count", "used_bytes", "overflow_bytes", "reserved_bytes", "resources_count"):
        if key in own:
            merged[key] = sum(report.get(key, 0) for report in reports.values())
    if "broker" in own:
        brokers = [report["broker"] for report in reports.values() if "broker" in report]
        merged["broker"] = {
            **own["broker"],
            **added(brokers, only=("rss_bytes", "unheard_count", "left_behind_dropped_count")),
            "listeners": list(dict.fromkeys(url for broker in brokers for url in broker.get("listeners", ()))),
            "connections_count": sum(
                report.get("hub", report["broker"]).get("connections_count", 0)
                for report in reports.values()
                if "broker" in report
            ),
        }
    if "memory" in own:
        merged["memory"] = _memory_of(reports)
    if "store" in own:
        merged["store"] = store_of([report.get("store") for report in reports.values()])
    if "shards" in own:
        merged["shards"] = _shards_of(reports, asked)
    if "dispatcher" in own:
        merged["dispatcher"] = _dispatcher_of([report.get("dispatcher", {}) for report in reports.values()])
    if "faults" in own:
        merged["faults"] = added([report.get("faults", {}) for report in reports.values()])
    return merged


def added(rows: Sequence[Mapping[str, Any]], *, only: Sequence[str] | None = None) -> Row:
    """Return the sums of all numbers, those of the first row's keys or of these; other values are the first row's."""
    first = rows[0]
    made: Row = {}
    for key in first if only is None else only:
        values = [row[key] for row in rows if key in row]
        if values and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            made[key] = sum(values)
        elif values:
            made[key] = values[0]
    return made


def _memory_of(reports: Mapping[str, Report]) -> Row:
    parts = {hub: report["memory"] for hub, report in reports.items() if "memory" in report}
    merged = added(list(parts.values()))
    largest = [
        {**each, "name": f"{each.get('name')} on {hub}"}
        for hub, part in parts.items()
        for each in part.get("largest", ())
    ]
    largest.sort(key=lambda each: -_number(each.get("used_bytes")))
    allowances = [part["allowance_bytes"] for part in parts.values() if part.get("allowance_bytes") is not None]
    first = next(iter(parts.values()))
    return {
        **merged,
        "machine_bytes": first.get("machine_bytes"),
        "short": any(part.get("short") for part in parts.values()),
        "allowance_bytes": min(allowances, default=None),
        "largest": largest[:_LARGEST_MAX],
    }


def store_of(stores: Sequence[Mapping[str, Any] | None]) -> Row | None:
    known = [store for store in stores if store is not None]
    if not known:
        return None
    worst = min(
        known, key=lambda store: _STORE_STATES.index(store["state"]) if store.get("state") in _STORE_STATES else 9
    )
    longest = [store["longest_write_seconds"] for store in known if "longest_write_seconds" in store]
    merged = {**added(known), "state": worst.get("state"), "error": worst.get("error")}
    return {**merged, "longest_write_seconds": max(longest)} if longest else merged


def _shards_of(reports: Mapping[str, Report], asked: str) -> list[Row]:
    """Return a row for each shard: that of the hub where it is open, else what the asked hub knows."""
    rows: dict[Any, Row] = {}
    for hub, report in sorted(reports.items(), key=lambda one: (one[0] != asked, one[0])):
        for row in report.get("shards", ()):
            known = rows.get(row.get("shard"))
            if known is None or known.get("hub") is None:
                rows[row.get("shard")] = {**row, "hub": None if row.get("state") == "away" else hub}
    return [rows[number] for number in sorted(rows)]


def _dispatcher_of(parts: Sequence[Mapping[str, Any]]) -> Row:
    longest = max(parts, key=lambda part: _number(part.get("longest_dispatch_seconds")))
    merged = {**added(parts), **{key: value for key, value in longest.items() if key.startswith("longest_")}}
    ready = [part["ready_count"] for part in parts if isinstance(part.get("ready_count"), list | tuple)]
    if ready:
        merged["ready_count"] = [sum(counts) for counts in zip(*ready, strict=False)]
    return merged
