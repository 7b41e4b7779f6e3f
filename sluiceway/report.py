"""The state of a broker as plain data, for `sluiceway stat` and whoever else asks: numbers are what the parts count
themselves.

The flow map comes from the FlowManager; destinations add up their priority partitions. Made on request only: it costs
nothing in between.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import attrs

from protocols.connection import Connection
from queues import Destination, Durable, Topic
from sluiceway.version import VERSION

if TYPE_CHECKING:
    from sluiceway.broker import Broker


def rss_bytes() -> int:
    """Resident memory of this process now; where the system does not tell, its peak."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def stat_report(broker: Broker, *, uptime_seconds: float, with_idle: bool = True) -> dict[str, Any]:
    """Everything, JSON-able; `with_idle` False leaves out resources that have nothing to tell."""
    from sluiceway.metrics.destinations import oldest_seconds  # which needs this module

    snapshot = broker.manager.snapshot()
    return {
        **snapshot.to_dict(with_idle=with_idle),
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
        "destinations": [
            {**destination_report(d), "oldest_seconds": oldest_seconds(broker, d)}
            for d in broker.registry.destinations.values()
        ],
        "durables": [durable_report(broker, durable) for durable in broker.registry.durables],
        "logs": [] if broker.logs is None else [broker.logs.describe(log) for log in broker.logs],
        "connections": connection_reports(broker.connections, broker.clock()),
        "store": None if broker.store is None else broker.store.report(),
        "dispatcher": attrs.asdict(broker.dispatcher.statistics()),
    }


def destination_report(destination: Destination) -> dict[str, Any]:
    """One destination, its partitions added up. What a topic has yet to publish is in what it holds, not in what it
    took in.
    """
    partitions = list(destination.queue.partitions.values())
    statistics = [queue.statistics() for queue in partitions]
    delayed = [queue.statistics() for queue in (destination.delay_queues or {}).values()]
    report: dict[str, Any] = {
        "name": destination.name,
        "kind": destination.address.kind.value,
        "producers_count": destination.producers_count,
        "subscriptions_count": destination.queue.attachments_count,
        "paused": destination.is_paused,
        "idle_seconds": min(s.idle_seconds for s in statistics),
    }
    for name in (
        "depth_count",
        "depth_bytes",
        "memory_bytes",
        "outside_count",
        "waiting_count",
        "delayed_count",
        "overflow_count",
        "expired_count",
        "rejected_count",
    ):
        report[name] = sum(getattr(s, name) for s in (*statistics, *delayed))
    for name in (
        "unsettled_count",
        "added_count",
        "delivered_count",
        "settled_count",
        "returned_count",
        "dropped_count",
        "dead_lettered_count",
        "moved_count",
    ):
        report[name] = sum(getattr(s, name) for s in statistics)
    if destination.address.kind.is_topic:
        report["unheard_count"] = sum(queue.unheard_count for queue in partitions if isinstance(queue, Topic))
    return report


def durable_report(broker: Broker, durable: Durable) -> dict[str, Any]:
    """One durable subscription: what it has yet to settle, and how long nobody has come for it."""
    destination = broker.registry.destinations.get(durable.destination)
    partitions = [] if destination is None else destination.queue.partitions.values()
    topics = [queue for queue in partitions if isinstance(queue, Topic)]
    now_ms = broker.now_ms()
    return {
        "name": durable.name,
        "client_id": durable.client_id,
        "destination": durable.destination,
        "attached": durable.attached,
        "backlog_count": sum(topic.backlog_of(durable.durable_id) for topic in topics),
        "age_seconds": max(0, now_ms - durable.created_ms) / 1000,
        "away_seconds": 0.0 if durable.attached else max(0, now_ms - durable.last_seen_ms) / 1000,
    }


def connection_reports(connections: Iterable[Connection], now_seconds: float) -> list[dict[str, Any]]:
    """One entry per connection."""
    return [connection_report(connection, now_seconds) for connection in connections]


def connection_report(connection: Connection, now_seconds: float) -> dict[str, Any]:
    """One connection."""
    session = connection.session
    return {
        "peer": session.peer,
        "session": session.session_id,
        "user": session.user,
        "client_id": session.subscriptions.client_id or None,
        "version": session.version if session.connected else None,
        "subscriptions_count": len(session.subscriptions.live),
        "unsettled_count": session.unsettled_count,
        "parked_count": session.lanes.parked_count,
        "stash_bytes": session.lanes.stash_bytes,
        "waiting_bytes": session.outbound.waiting_bytes,
        "transactions_count": len(session.transactions),
        "in_bytes": session.totals.bytes_in,
        "out_bytes": session.outbound.taken_bytes,
        "in_count": session.totals.messages_in_count,
        "blocked_seconds": blocked_seconds_of(connection, now_seconds),
        "waiting_on": session.lanes.waiting_for or None,
    }


def blocked_seconds_of(connection: Connection, now_seconds: float) -> float:
    """For how long its sends to some destination have been held up; 0: none are."""
    controllers = connection.session.lanes.controllers
    since = [since for controller in controllers if controller.blocked for since in controller.blocked_by.values()]
    return now_seconds - min(since) if since else 0.0
