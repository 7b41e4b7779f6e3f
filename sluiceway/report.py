"""The state of a broker as plain data, for `sluiceway stat` and whoever else asks: numbers are what the parts count
themselves.

The flow map comes from the FlowManager; destinations add up their priority partitions. Made on request only: it costs
nothing in between. Who asks over STOMP gets it in steps, and a page of each list; programs that embed a broker get all
of it at once.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from sluiceway.answering import GROUPS_MAX, ReportPart
from sluiceway.flow.graph import Steps, at_once, best_in_steps, sorted_in_steps
from sluiceway.flow.snapshot import ControllerSnapshot, FlowSnapshot
from sluiceway.flow.survey import picture_in_steps
from sluiceway.queues.destination import Destination
from sluiceway.queues.logs.log import Log
from sluiceway.version import VERSION
from sluiceway.views.connections import connection_report
from sluiceway.views.destinations import destination_report, durable_report, figure, oldest_seconds
from sluiceway.views.logs import log_report
from sluiceway.views.stores import stores_in_steps
from sluiceway.views.subscriptions import stalled_in_steps
from sluiceway.views.waits import bottlenecks_in_steps

if TYPE_CHECKING:
    from sluiceway.broker import Broker


Row = dict[str, Any]
Key = Callable[[Any], Any]


def rss_bytes() -> int:
    """Resident memory of this process now; where the system does not tell, its peak."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


FLOWS_MAX: Final = 50
"""Shown of one resource: those that wait or hold others up first."""


def stat_report(broker: Broker, *, uptime_seconds: float, with_idle: bool = True) -> dict[str, Any]:
    """Return the whole report at once, JSON-able; `with_idle` False leaves out idle resources."""
    snapshot = broker.manager.snapshot()
    logs = broker.logs
    return {
        **snapshot.to_dict(with_idle=with_idle),
        "bottlenecks": at_once(bottlenecks_in_steps(snapshot)),
        "stalled": at_once(stalled_in_steps(broker.connections)),
        **at_once(_broker_report(broker, uptime_seconds)),
        "destinations": [_destination_row(broker, d) for d in broker.registry.destinations.values()],
        "durables": [durable_report(broker, durable) for durable in broker.registry.durables],
        "logs": [] if logs is None else [at_once(log_report(logs, log)) for log in logs],
        "connections": [connection_report(connection) for connection in broker.connections],
        **({} if broker.regions is None else {"regions": broker.regions.facts()}),
        "omitted": {},
    }


def _broker_report(broker: Broker, uptime_seconds: float) -> Steps[dict[str, Any]]:
    """Return the part of the report without lists."""
    store = yield from stores_in_steps(broker.shards.stores)
    return {
        "broker": {
            "name": broker.config.broker.name,
            "version": VERSION,
            "uptime_seconds": uptime_seconds,
            "rss_bytes": rss_bytes(),
            "listeners": broker.urls,
            "connections_count": len(broker.connections),
            "unheard_count": broker.registry.unheard_count,
            "left_behind_dropped_count": broker.left_behind.dropped_count,
        },
        **_hub_of(broker),
        "memory": broker.memory.report(),
        "store": store,
        **_shards_of(broker),
        "dispatcher": attrs.asdict(broker.dispatcher.statistics()),
        "faults": broker.faults.report(),
    }


def _hub_of(broker: Broker) -> dict[str, Any]:
    """Return the facts of this hub, where there may be several."""
    return {} if broker.links is None else {"hub": hub_facts(broker)}


def hub_facts(broker: Broker) -> dict[str, Any]:
    """Return what people are told of a hub of a cluster."""
    links, shards = broker.links, broker.shards
    assert links is not None, "it is in a cluster"
    return {
        "name": links.seat.hub,
        "pid": os.getpid(),
        "now_ms": broker.now_ms(),
        "address": next(iter(links.addresses), None),
        "connections_count": len(broker.connections.clients),
        "destinations_count": len(broker.registry.destinations),
        "shards": [] if shards.count == 1 else sorted(shards.open_shards),
        "links": links.facts(),
        "unlinked": links.unlinked(),
    }


def _shards_of(broker: Broker) -> dict[str, Any]:
    """Return a row for each shard, where there are several."""
    shards = broker.shards
    if shards.count == 1:
        return {}
    rows = [{"shard": number, **shards.state_of(number)} for number in range(shards.count)]
    return {"shards": rows}


def _destination_row(broker: Broker, destination: Destination) -> dict[str, Any]:
    return {
        **destination_report(destination),
        "oldest_seconds": oldest_seconds(broker, destination),
    }


# ---------------------------------------------------------------------- in steps


def stat_in_steps(broker: Broker, part: ReportPart, *, uptime_seconds: float) -> Steps[dict[str, Any]]:
    """The report without idle resources, in steps, and of its lists that part: `omitted` says of which lists how many
    rows are left out.
    """
    report: dict[str, Any] = {"omitted": {}}
    if not part.of:
        report |= yield from _broker_report(broker, uptime_seconds)
        if broker.regions is not None:
            report["regions"] = broker.regions.facts()
    if part.of in ("", "resources", "edges", "chains", "bottlenecks", "stalled", "cycles"):
        yield from _map_in_steps(broker, part, report)
    logs = broker.logs

    def describe_log(log: Log) -> Steps[Row]:
        assert logs is not None, "there is a log"
        return log_report(logs, log, groups_max=GROUPS_MAX)

    lists: dict[str, tuple[Iterable[Any], Key, Key, Callable[[Any], Steps[Row]]]] = {
        "destinations": (
            broker.registry.destinations.values(),
            lambda d: d.name,
            lambda d: (figure("depth_count", d), figure("added_count", d)),
            lambda d: _one_step(lambda: _destination_row(broker, d)),
        ),
        "durables": (
            broker.registry.durables,
            lambda durable: (durable.destination, durable.durable_id),
            lambda durable: (not durable.attached, -durable.last_seen_ms),
            lambda durable: _one_step(lambda: durable_report(broker, durable)),
        ),
        "logs": (
            () if logs is None else logs,
            lambda log: log.name,
            lambda log: (log.pending_count, log.records.back_file_size_bytes),
            describe_log,
        ),
        "connections": (
            broker.connections,
            lambda connection: connection.session.session_id,
            lambda connection: (connection.session.lanes.parked_count, connection.session.totals.bytes_in),
            lambda connection: _one_step(lambda: connection_report(connection)),
        ),
    }
    for name, (items, key, rank, make) in lists.items():
        if part.of in ("", name):
            chosen, total = yield from _chosen(items, key, rank, part)
            rows = []
            for item in chosen:
                rows.append((yield from make(item)))
            _put(report, name, rows, total, part)
    return report


def _one_step(make: Callable[[], Row]) -> Steps[Row]:
    yield
    return make()


def _put(report: dict[str, Any], name: str, rows: list[Row], total: int, part: ReportPart) -> None:
    report[name] = rows
    if part.of:
        report["totals"] = {name: total}
    left_count = total - part.offset - len(rows)
    if left_count > 0:
        report["omitted"][name] = left_count


def _chosen(items: Iterable[Any], key: Key, rank: Key, part: ReportPart) -> Steps[tuple[list[Any], int]]:
    """Return that part of the items, and their number: of one list by its key, so that pages fit together; else the
    items of the highest rank.
    """
    if part.of:
        ordered = yield from sorted_in_steps(list(items), key)
        return ordered[part.offset : part.offset + part.limit], len(ordered)
    best, total = yield from best_in_steps(list(items), rank, part.offset + part.limit)
    return best[part.offset :], total


def _map_in_steps(broker: Broker, part: ReportPart, report: dict[str, Any]) -> Steps[None]:
    """The flow map, of what waits or holds something."""
    snapshot = yield from broker.manager.survey().snapshot_in_steps(with_idle=False)
    report |= {
        "taken_at": snapshot.taken_at,
        "used_count": snapshot.used_count,
        "used_bytes": snapshot.used_bytes,
        "overflow_bytes": snapshot.overflow_bytes,
        "reserved_bytes": snapshot.reserved_bytes,
        "resources_count": len(broker.manager.resources),
    }
    found: tuple[tuple[str, Sequence[Any]], ...] = (
        ("edges", snapshot.edges),
        ("chains", snapshot.chains),
        ("cycles", snapshot.cycles),
    )
    for name, items in found:
        if part.of in ("", name):
            rows: list[Row] = []
            for item in items[part.offset : part.offset + part.limit]:
                yield
                rows.append(item.to_dict())
            _put(report, name, rows, len(items), part)
    if part.of in ("", "bottlenecks"):
        rows = yield from bottlenecks_in_steps(snapshot)
        _put(report, "bottlenecks", rows[part.offset : part.offset + part.limit], len(rows), part)
    if part.of in ("", "stalled"):
        rows = yield from stalled_in_steps(broker.connections)
        _put(report, "stalled", rows[part.offset : part.offset + part.limit], len(rows), part)
    if part.of in ("", "resources"):
        yield from _resources_in_steps(broker, snapshot, part, report)


def _resources_in_steps(
    broker: Broker, snapshot: FlowSnapshot, part: ReportPart, report: dict[str, Any]
) -> Steps[None]:
    """Report the resources: those that wait or block, then those that hold most."""
    first: dict[int, int] = {}
    for bottleneck in snapshot.bottlenecks:
        yield
        first[bottleneck.sink.resource_id] = bottleneck.waiting_count
    waiting = set()
    for concerned_one in snapshot.resources:
        yield
        waiting.add(concerned_one.resource_id)
    ranks: dict[int, tuple[int, int]] = {}
    concerned = []
    for each in broker.manager.resources:
        used_bytes = 0
        for controller in each.controllers:
            yield
            limiter = controller.sink_limiter
            used_bytes += 0 if limiter is None else limiter.used_bytes
        key = each.resource_id
        if used_bytes or key in waiting:
            ranks[key] = first.get(key, 0) + (key in waiting), used_bytes
            concerned.append(each)
    chosen, total = yield from _chosen(concerned, lambda one: one.resource_id, lambda one: ranks[one.resource_id], part)
    rows = []
    for each in chosen:
        picture = yield from picture_in_steps(each)
        flows = picture.controllers
        if len(flows) > FLOWS_MAX:
            shown = yield from sorted_in_steps(flows, _flow_rank)
            picture = attrs.evolve(picture, controllers=tuple(shown[:FLOWS_MAX]))
        rows.append({**picture.to_dict(), "controllers_count": len(flows)})
    _put(report, "resources", rows, total, part)


def _flow_rank(flow: ControllerSnapshot) -> tuple[bool, bool, int]:
    limiter = flow.limiter
    full = limiter is not None and limiter.throttled
    return not flow.blocked, not full, -(0 if limiter is None else limiter.used_bytes)
