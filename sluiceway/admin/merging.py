"""Answers of several hubs to the same request of the admin port, as the answer of one broker.

Pure, and in steps. Rows say their `hub`; ids of nodes begin with it, so that a request with such an id finds its hub.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import attrs

from sluiceway.admin.standings import StandingState
from sluiceway.admin.tables import PageRequest, Row
from sluiceway.cluster.seen_as_one import (
    added,
    clients_in_steps,
    clock_seconds,
    hub_order,
    hubs_in_words,
    merged_in_steps,
    store_of,
)
from sluiceway.cluster.trails_as_one import trails_in_steps
from sluiceway.flow.graph import Steps, best_in_steps
from sluiceway.protocols.connection import Connection
from sluiceway.steps import each
from sluiceway.views.connections import connection_figure

ID_SEPARATOR: Final = "~"
CHAINS_MAX: Final = 50
BOTTLENECKS_MAX: Final = 20
_NEVER: Final = frozenset({"drain_seconds", "quota_seconds"})
"""Fields in which null means never."""


@attrs.frozen
class Gathered:
    """Answers of hubs to one request."""

    asked: str
    """Hub that was asked, whose answer is there."""
    rows: Mapping[str, Row]
    """Answers by hub."""
    missing: Mapping[str, str]
    """Reason why there is no answer, of each other hub."""
    query: Mapping[str, Any]
    absences: Mapping[str, Row] = attrs.field(factory=dict)
    """Facts about hubs that can't answer: `Questions.absences`."""

    @property
    def hubs(self) -> list[str]:
        """Hubs that have answered, in order."""
        return sorted(self.rows, key=hub_order)

    @property
    def page(self) -> PageRequest:
        """Requested page of a list."""
        return PageRequest(self.query["offset"], self.query["limit"], self.query["sort"], self.query["q"])


Merge = Callable[[Gathered], Steps[Row]]


def with_missing(gathered: Gathered, row: Row) -> Row:
    """Add the names of hubs that have not answered, if there are any."""
    return {**row, "missing": dict(gathered.missing)} if gathered.missing else row


def id_at(hub: str, node: Any) -> Any:
    """Return the id of a node for all hubs."""
    return f"{hub}{ID_SEPARATOR}{node}" if isinstance(node, str) else node


def hub_and_id(node: str) -> tuple[str, str]:
    """Return what `id_at` put together; the hub is empty if there is none."""
    hub, _separator, rest = node.rpartition(ID_SEPARATOR)
    return hub, rest


def placed(hub: str, row: Row) -> Row:
    """Return a row with its hub, and ids that hold for all hubs."""
    made = {**row, "hub": hub}
    if "id" in row:
        made["id"] = id_at(hub, row["id"])
    cause = row.get("cause")
    if isinstance(cause, Mapping):
        made["cause"] = {**cause, "id": id_at(hub, cause.get("id"))}
    return made


# ---------------------------------------------------------------------- lists


def page_of(sort: str) -> Merge:
    """Return the merge of pages of a list, each of which begins with its first row. `sort`: the order by default."""

    def merge(gathered: Gathered) -> Steps[Row]:
        page = gathered.page
        wish = page.sort or sort
        rows: list[Row] = []
        total = 0
        for hub in gathered.hubs:
            total += gathered.rows[hub]["total"]
            rows += yield from each(gathered.rows[hub]["items"], partial(placed, hub))
        key = wish.lstrip("-")

        def best(row: Row) -> Any:
            return _rank(row, key)

        if wish.startswith("-"):
            chosen, _total = yield from best_in_steps(rows, best, page.offset + page.limit)
        else:
            yield
            chosen = sorted(rows, key=best)
        return with_missing(
            gathered,
            {"total": total, "offset": page.offset, "items": chosen[page.offset : page.offset + page.limit]},
        )

    return merge


_STATE_RANKS: Final = {str(state.value): state.rank for state in StandingState}


def _rank(row: Row, key: str) -> Any:
    """Return what a row is sorted by: numbers before texts, lest one hub of another version breaks a list."""
    value = row.get(key)
    if key == "state":
        rank = _STATE_RANKS.get(str(value), 0)
        return 0, float(rank), float(row.get("state_seconds") or row.get("depth_count") or 0.0), ""
    if value is None:
        return 0, math.inf if key in _NEVER else 0.0, 0.0, ""
    return (0, float(value), 0.0, "") if isinstance(value, int | float) else (1, 0.0, 0.0, str(value))


def joined_items(gathered: Gathered) -> Steps[Row]:
    """Put the items of all hubs behind each other, each with its hub."""
    items: list[Row] = []
    for hub in gathered.hubs:
        items += yield from each(gathered.rows[hub]["items"], partial(placed, hub))
    return with_missing(gathered, {**gathered.rows[gathered.asked], "items": items})


def trails(gathered: Gathered) -> Steps[Row]:
    """Put the trails of all hubs together: those of one message are one."""
    found = {hub: row["items"] for hub, row in gathered.rows.items()}
    hubs = [*found, *gathered.missing]
    items = yield from trails_in_steps(found, hubs, gathered.query["limit"])
    return with_missing(gathered, {"items": items})


PROXY_FIGURES: Final = (
    "subscriptions_count",
    "unsettled_count",
    "parked_count",
    "stash_bytes",
    "transactions_count",
    "blocked_seconds",
    "waiting_on",
)
"""Figures of a proxy session that are added to those of its client."""


def with_proxies(page: Row, proxies: Mapping[str, Row]) -> Steps[Row]:
    """Add to each client of a page what it has at other hubs. `proxies`: results of `proxies_in_steps` by hub."""
    rows = list(page["items"])
    for at, answer in proxies.items():
        for row in answer["items"]:
            yield
            rows.append({**row, "at": at})
    items = yield from clients_in_steps(rows)
    return {**page, "items": [row for row in items if "at" not in row]}


def proxies_in_steps(connections: Sequence[Connection], wanted: Sequence[Sequence[str]]) -> Steps[Row]:
    """Return the figures of the proxy sessions of clients, which are named by hub and peer."""
    names = {f"{peer} by {hub}": (hub, peer) for hub, peer in wanted}
    items = []
    for connection in connections:
        yield
        found = names.get(connection.session.peer)
        if found is not None:
            figures = {name: connection_figure(name, connection) for name in PROXY_FIGURES}
            items.append({"hub": found[0], "peer": found[1], **figures})
    return {"items": items}


# ---------------------------------------------------------------------- all of it


def overview(gathered: Gathered) -> Steps[Row]:
    """Add up the numbers, and join waits from hub to hub."""
    rows = gathered.rows
    own = rows[gathered.asked]
    brokers = [rows[hub]["broker"] for hub in gathered.hubs]
    reports = {
        hub: {
            "chains": row["chains"],
            "bottlenecks": [{**each_one, "waiting_count": each_one["flows_count"]} for each_one in row["bottlenecks"]],
        }
        for hub, row in rows.items()
    }
    seen = yield from merged_in_steps(reports, gathered.missing, asked=gathered.asked, rows_max=1000)
    seen["bottlenecks"].sort(key=lambda row: (-row["waiting_count"], row["waits_itself"], -row["age_seconds"]))
    chains: dict[str, Row] = {}
    for chain in seen["chains"]:
        chains.setdefault(id_at(chain["hub"], chain["id"]), placed(chain["hub"], _without(chain, _OF_WAITS)))
    stalled = [placed(hub, row) for hub in gathered.hubs for row in rows[hub]["stalled"]]
    stalled.sort(key=lambda row: -row["age_seconds"])
    return with_missing(
        gathered,
        {
            "broker": {
                **own["broker"],
                "rss_bytes": sum(broker["rss_bytes"] for broker in brokers),
                "draining": all(broker["draining"] for broker in brokers),
                "listeners": list(dict.fromkeys(url for broker in brokers for url in broker["listeners"])),
            },
            "totals": added([rows[hub]["totals"] for hub in gathered.hubs]),
            "bottlenecks": [
                {**placed(row["hub"], _without(row, _OF_WAITS)), "title": row["sink"]}
                for row in seen["bottlenecks"][:BOTTLENECKS_MAX]
            ],
            "stalled": stalled[:BOTTLENECKS_MAX],
            "chains": list(chains.values())[:CHAINS_MAX],
            "store": store_of([rows[hub]["store"] for hub in gathered.hubs]),
            "hubs": [
                {
                    "name": hub,
                    "missing": gathered.missing.get(hub),
                    **_of_hub(rows.get(hub), gathered.absences.get(hub), own),
                }
                for hub in sorted({*rows, *gathered.missing}, key=hub_order)
            ],
        },
    )


def _of_hub(row: Row | None, absence: Row | None, own: Row) -> Row:
    """Return what is told of a hub beside its name."""
    if row is None:
        return absence or {}
    rates = {key: row["totals"][key] for key in ("in_per_second", "out_per_second")}
    return {**row["hub"], **rates, "clock_seconds": clock_seconds(row["hub"], own["hub"])}


def cluster(gathered: Gathered) -> Steps[Row]:
    """Add to the division, as the asked hub knows it, what each hub tells of itself."""
    division = gathered.rows[gathered.asked]
    parts = {hub: row["own"] for hub, row in gathered.rows.items()}
    sizes: dict[tuple[str, int], Row] = {}
    for hub, part in parts.items():
        for row in part["shards"]:
            yield
            sizes[hub, row["shard"]] = row
    unknown = {"depth_count": None, "depth_bytes": None, "destinations_count": None}
    hubs = [
        {
            **hub,
            "missing": gathered.missing.get(hub["name"]),
            **gathered.absences.get(hub["name"], {}),
            "links": parts.get(hub["name"], {}).get("links", []),
            "unlinked": parts.get(hub["name"], {}).get("unlinked", []),
        }
        for hub in division["hubs"]
    ]
    shards = [{**shard, **unknown, **sizes.get((shard["hub"], shard["shard"]), {})} for shard in division["shards"]]
    return with_missing(
        gathered,
        {**{key: value for key, value in division.items() if key != "own"}, "hubs": hubs, "shards": shards},
    )


_OF_WAITS: Final = frozenset(
    {"source", "source_id", "edges", "flow", "cyclic", "truncated", "other_count", "sink", "sink_id", "waiting_count"}
)
"""Fields by which waits are joined, and which are not in the answer."""


def _without(row: Row, names: frozenset[str]) -> Row:
    return {key: value for key, value in row.items() if key not in names}


def store(gathered: Gathered) -> Steps[Row]:
    """Add up the stores."""
    yield
    return with_missing(gathered, {"store": store_of([gathered.rows[hub]["store"] for hub in gathered.hubs])})


def history(gathered: Gathered) -> Steps[Row]:
    """Add up the points of all hubs, which end at the same time but for less than a step. Null: no hub knows."""
    own = gathered.rows[gathered.asked]
    series: dict[str, list[float | None]] = {}
    for hub in gathered.hubs:
        for name, points in gathered.rows[hub]["series"].items():
            yield
            known = series.get(name)
            series[name] = points if known is None else [_sum(a, b) for a, b in zip(known, points, strict=True)]
    return with_missing(gathered, {**own, "series": series})


def _sum(first: float | None, second: float | None) -> float | None:
    if first is None or second is None:
        return second if first is None else first
    return first + second


_URGENCY: Final = {"blocked": 2, "throttled": 1, "paused": 1}


def _urgency(node: Row) -> tuple[float, ...]:
    return _URGENCY.get(node["state"], 0), node["senders_count"], node["age_seconds"], node["rate_per_second"]


def _placed_edge(hub: str, edge: Row) -> Row:
    return {**edge, "from": id_at(hub, edge["from"]), "to": id_at(hub, edge["to"])}


_BEHIND_LINK: Final = re.compile(r"to other hubs from (?:.*\((?P<peer>[^()]*)\)|(?P<alone>.*))")


def _over_links(nodes: list[Row], edges: list[Row]) -> Steps[tuple[list[Row], list[Row]]]:
    """Draw what leads over a link as one edge: the node of a proxy session is that of its client, and what it waits for
    is what the link of the client waits for.
    """
    clients: dict[tuple[str, str], str] = {}
    links: dict[tuple[str, str], str] = {}
    for node in nodes:
        yield
        if node["kind"] == "connection":
            found = _BEHIND_LINK.fullmatch(node["name"])
            if found is None:
                clients[node["hub"], node["name"]] = node["id"]
            else:
                links[node["hub"], found["peer"] or found["alone"]] = node["id"]
    begins: dict[str, tuple[str, str, str]] = {}
    """Proxy sessions by their node: node of the client, node of the link of its client (or of the client), words."""
    kept = []
    for node in nodes:
        yield
        peer, by, hub = node["name"].rpartition(" by ")
        client = clients.get((hub, peer)) if by and node["kind"] == "connection" else None
        if client is None:
            kept.append(node)
        else:
            words = f"over the link from {hub} to {node['hub']}"
            begins[node["id"]] = client, links.get((hub, peer), client), words
    drawn = []
    for edge in edges:
        yield
        if edge["from"] == edge["to"] and edge["from"] in begins:
            continue  # it has more to do than it may, which is why its link is held up
        for end, place in (("from", edge["kind"] != "flow"), ("to", False)):
            if edge[end] in begins:
                client, link, words = begins[edge[end]]
                edge = {**edge, end: link if place else client, "words": f"{edge['words']}, {words}"}
        drawn.append(edge)
    return kept, drawn


def flow_map(gathered: Gathered) -> Steps[Row]:
    """Put the maps of all hubs beside each other: what waits and blocks comes first, as in one map."""
    limit = gathered.query["limit"]
    nodes: list[Row] = []
    edges: list[Row] = []
    for hub in gathered.hubs:
        row = gathered.rows[hub]
        nodes += yield from each(row["nodes"], partial(placed, hub))
        edges += yield from each(
            row["edges"],
            partial(_placed_edge, hub),
        )
    nodes, edges = yield from _over_links(nodes, edges)
    several = len(gathered.hubs) > 1
    for node in nodes:
        if several:
            node["title"] = f"{node['title']} on {node['hub']}"
    chosen, _total = yield from best_in_steps(
        nodes,
        _urgency,
        limit,
    )
    shown = {node["id"] for node in chosen}
    kept = [edge for edge in edges if edge["from"] in shown and edge["to"] in shown]
    omitted = added([gathered.rows[hub]["omitted"] for hub in gathered.hubs])
    return with_missing(
        gathered,
        {
            "at_seconds": gathered.rows[gathered.asked]["at_seconds"],
            "nodes": chosen,
            "edges": kept,
            "omitted": {
                "nodes_count": omitted["nodes_count"] + len(nodes) - len(chosen),
                "edges_count": omitted["edges_count"] + len(edges) - len(kept),
            },
        },
    )


def done(gathered: Gathered) -> Steps[Row]:
    """Return what an action did at each hub."""
    yield
    words = [f"{hub}: {gathered.rows[hub]['words']}" for hub in gathered.hubs]
    if gathered.missing:
        words.append(hubs_in_words(gathered.missing))
    return {"done": {hub: gathered.rows[hub]["done"] for hub in gathered.hubs}, "words": "; ".join(words)}
