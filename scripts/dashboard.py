"""The Grafana dashboard, as a program: rows, panels and queries by name, places by themselves. `scripts/generate.py`
writes it to deploy/grafana/sluiceway.json.

Who waits comes first, for that is what one looks for; then what flows, what piles up, and what it all stands on.
"""

from __future__ import annotations

import json
from typing import Any, Final

import attrs

COLUMNS: Final = 24
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
BROKER: Final = 'instance=~"$instance"'
SENDERS: Final = BROKER + ', kind=~"queue|topic|log|store"'
WHERE: Final = BROKER + ', destination=~"$destination"'

UNITS: Final = {
    "per second": "cps",
    "count": "short",
    "bytes": "bytes",
    "bytes per second": "Bps",
    "seconds": "s",
    "share": "percentunit",
    "time": "dateTimeFromNow",
}


@attrs.frozen
class Query:
    """One line or number: an expression, and its name (with {{label}})."""

    expr: str
    legend: str = ""


@attrs.frozen
class Panel:
    """One picture."""

    title: str
    about: str
    """Meaning of the panel and reason to worry: the text behind the i."""
    unit: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    red_from: float | None = None
    """Value from which on the panel is red."""
    stacked: bool = False


def _top(expr: str, count: int = 10) -> str:
    return f"topk({count}, {expr})"


def _rate(name: str, where: str = WHERE) -> str:
    return f"rate({name}{{{where}}}[$__rate_interval])"


ROWS: Final[tuple[tuple[str, tuple[Panel, ...]], ...]] = (
    (
        "Who waits",
        (
            Panel(
                "Senders held back",
                "How many senders wait for room in a destination, a log or the store right now. 0 is healthy.",
                "count",
                (
                    Query(f"sum(sluiceway_blocked_flows{{{SENDERS}}}) or vector(0)", "now"),
                    Query(f"sum(sluiceway_blocked_senders{{{BROKER}}}) or vector(0)", "for a second or longer"),
                ),
                kind="stat",
                width=4,
                height=5,
                red_from=1,
            ),
            Panel(
                "Longest wait",
                "How long the sender has waited that has waited longest.",
                "seconds",
                (Query(f"max(sluiceway_blocked_longest_seconds{{{SENDERS}}}) or vector(0)"),),
                kind="stat",
                width=4,
                height=5,
                red_from=10,
            ),
            Panel(
                "Oldest unacknowledged",
                "Age of the oldest message of these destinations.",
                "seconds",
                (Query(f"max(sluiceway_destination_oldest_seconds{{{WHERE}}})"),),
                kind="stat",
                width=4,
                height=5,
                red_from=600,
            ),
            Panel(
                "Disk guard",
                "Open: persistent messages are taken. Shut: the disk is nearly full, and their senders wait.",
                "count",
                (Query(f"max(sluiceway_store_disk_guard_shut{{{BROKER}}})"),),
                kind="stat",
                width=4,
                height=5,
                red_from=1,
            ),
            Panel(
                "Paused",
                "Destinations that an administrator has paused.",
                "count",
                (Query(f"sum(sluiceway_destination_paused{{{WHERE}}})"),),
                kind="stat",
                width=4,
                height=5,
                red_from=1,
            ),
            Panel(
                "Dead-lettered or dropped, 1 h",
                "Messages that went to the dead letters, or were dropped, in the last hour.",
                "count",
                (
                    Query(f"sum(increase(sluiceway_messages_dead_lettered_total{{{WHERE}}}[1h]))", "dead letters"),
                    Query(f"sum(increase(sluiceway_messages_dropped_total{{{WHERE}}}[1h]))", "dropped"),
                ),
                kind="stat",
                width=4,
                height=5,
                red_from=1,
            ),
            Panel(
                "Senders waiting, by destination",
                "On average, from the time that they waited. Who is at the top holds others back.",
                "count",
                (Query(_top(_rate("sluiceway_destination_blocked_seconds_total")), "{{destination}}"),),
                width=12,
            ),
            Panel(
                "Waiting, by what for",
                "subscription: queues that wait for a consumer's window, which is how consumers are kept busy. queue, "
                "topic, log, store: senders that are held back. outbound: connections that do not read. stalled "
                "consumers: those that acknowledge nothing of what they have. slow consumers: as policies have it.",
                "count",
                (
                    Query(f"sum by (kind) ({_rate('sluiceway_blocked_seconds_total', BROKER)})", "{{kind}}"),
                    Query(f"sum(sluiceway_stalled_consumers{{{BROKER}}})", "stalled consumers"),
                    Query(f"sum(sluiceway_slow_consumers{{{BROKER}}})", "slow consumers"),
                ),
                width=12,
            ),
        ),
    ),
    (
        "Flow",
        (
            Panel(
                "Accepted",
                "Messages that come in, by destination.",
                "per second",
                (Query(_top(_rate("sluiceway_messages_accepted_total")), "{{destination}}"),),
            ),
            Panel(
                "Delivered",
                "Messages handed to consumers; of a topic to each of them.",
                "per second",
                (Query(_top(_rate("sluiceway_messages_delivered_total")), "{{destination}}"),),
            ),
            Panel(
                "Acknowledged",
                "Messages that consumers are done with.",
                "per second",
                (Query(_top(_rate("sluiceway_messages_acknowledged_total")), "{{destination}}"),),
            ),
            Panel(
                "What did not arrive",
                "Expired, dropped, given up, rejected, sent again, and published to topics that nobody listened to.",
                "per second",
                (
                    Query(f"sum({_rate('sluiceway_messages_expired_total')})", "expired"),
                    Query(f"sum({_rate('sluiceway_messages_dropped_total')})", "dropped"),
                    Query(f"sum({_rate('sluiceway_messages_dead_lettered_total')})", "dead letters"),
                    Query(f"sum({_rate('sluiceway_messages_rejected_total')})", "rejected"),
                    Query(f"sum({_rate('sluiceway_messages_duplicate_total')})", "duplicates"),
                    Query(f"sum({_rate('sluiceway_messages_unheard_total')})", "unheard"),
                ),
            ),
            Panel(
                "Came back",
                "Refused by consumers, or their connection went away. A message that comes back again and again is "
                "one that no consumer can take.",
                "per second",
                (Query(_top(_rate("sluiceway_messages_returned_total")), "{{destination}}"),),
            ),
            Panel(
                "Appended to logs",
                "Records per second.",
                "per second",
                (Query(_top(_rate("sluiceway_log_records_appended_total", BROKER)), "{{log}}"),),
            ),
        ),
    ),
    (
        "Backlog",
        (
            Panel(
                "Messages",
                "In each destination, unacknowledged ones included.",
                "count",
                (Query(_top(f"sluiceway_destination_messages{{{WHERE}}}"), "{{destination}}"),),
            ),
            Panel(
                "Age of the oldest",
                "Of what is not acknowledged. It grows by a second a second while nobody takes the first one.",
                "seconds",
                (Query(_top(f"sluiceway_destination_oldest_seconds{{{WHERE}}}"), "{{destination}}"),),
            ),
            Panel(
                "Unacknowledged",
                "In the hands of consumers.",
                "count",
                (Query(_top(f"sluiceway_destination_unacknowledged_messages{{{WHERE}}}"), "{{destination}}"),),
            ),
            Panel(
                "Time until empty",
                "If it goes on like in the last half minute. Not shown: it does not shrink.",
                "seconds",
                (
                    Query(
                        f"topk(10, sluiceway_destination_drain_seconds{{{WHERE}}} < +Inf)",
                        "{{destination}}",
                    ),
                ),
            ),
            Panel(
                "Quota used",
                "Of those with a quota. At 100 % the full policy decides.",
                "share",
                (Query(_top(f"sluiceway_destination_quota_used_ratio{{{WHERE}}}"), "{{destination}}"),),
                red_from=0.8,
            ),
            Panel(
                "Time until the quota",
                "If it goes on like in the last half minute. Not shown: it does not grow.",
                "seconds",
                (
                    Query(
                        f"bottomk(10, sluiceway_destination_quota_seconds{{{WHERE}}} < +Inf)",
                        "{{destination}}",
                    ),
                ),
            ),
            Panel(
                "Lag of durable subscriptions",
                "Age of what each has yet to acknowledge.",
                "seconds",
                (Query(_top(f"sluiceway_durable_lag_seconds{{{WHERE}}}"), "{{client_id}} {{subscription}}"),),
            ),
            Panel(
                "Lag of log groups",
                "Age of what each has yet to acknowledge.",
                "seconds",
                (Query(_top(f"sluiceway_log_group_lag_seconds{{{BROKER}}}"), "{{log}} {{group}}"),),
            ),
            Panel(
                "Lag in messages",
                "Of durable subscriptions and log groups.",
                "count",
                (
                    Query(_top(f"sluiceway_durable_lag_messages{{{WHERE}}}"), "{{client_id}} {{subscription}}"),
                    Query(_top(f"sluiceway_log_group_lag_records{{{BROKER}}}"), "{{log}} {{group}}"),
                ),
            ),
        ),
    ),
    (
        "Store",
        (
            Panel(
                "Written and avoided",
                "Messages that went to the disk, and those that were settled before they had to.",
                "per second",
                (
                    Query(f"sum({_rate('sluiceway_store_messages_written_total', BROKER)})", "written"),
                    Query(f"sum({_rate('sluiceway_store_writes_avoided_total', BROKER)})", "avoided"),
                ),
            ),
            Panel(
                "Time of a sync",
                "From hand-over to the word that it is on the disk; who waits for a RECEIPT waits so long.",
                "seconds",
                (
                    Query(
                        f"{_rate('sluiceway_store_sync_seconds_sum', BROKER)}"
                        f" / {_rate('sluiceway_store_sync_seconds_count', BROKER)}",
                        "sync",
                    ),
                    Query(
                        f"{_rate('sluiceway_store_write_seconds_sum', BROKER)}"
                        f" / {_rate('sluiceway_store_write_seconds_count', BROKER)}",
                        "any write",
                    ),
                ),
            ),
            Panel(
                "Pages out and in",
                "Messages that left memory for the disk, and came back.",
                "per second",
                (
                    Query(f"sum({_rate('sluiceway_store_messages_paged_out_total', BROKER)})", "out"),
                    Query(f"sum({_rate('sluiceway_store_messages_paged_in_total', BROKER)})", "in"),
                ),
            ),
            Panel(
                "Disk",
                "Free space, and what the guard keeps of it.",
                "bytes",
                (
                    Query(f"sluiceway_store_disk_free_bytes{{{BROKER}}}", "free"),
                    Query(f"sluiceway_store_disk_free_min_bytes{{{BROKER}}}", "guard shuts"),
                    Query(f"sluiceway_store_bytes{{{BROKER}}}", "database"),
                    Query(f"sum(sluiceway_log_bytes{{{BROKER}}})", "logs"),
                ),
            ),
            Panel(
                "Written bytes",
                "To the database.",
                "bytes per second",
                (Query(f"sum({_rate('sluiceway_store_written_bytes_total', BROKER)})", "written"),),
            ),
            Panel(
                "Faults",
                "Failed writes (tried again), damaged records, messages in these. All should be 0.",
                "count",
                (
                    Query(f"sum(increase(sluiceway_store_failures_total{{{BROKER}}}[1h]))", "failed writes"),
                    Query(f"sum(increase(sluiceway_store_corrupt_records_total{{{BROKER}}}[1h]))", "damaged records"),
                    Query(f"sum(increase(sluiceway_store_messages_lost_total{{{BROKER}}}[1h]))", "messages lost"),
                ),
                red_from=1,
            ),
        ),
    ),
    (
        "Connections",
        (
            Panel(
                "Connections",
                "By listener.",
                "count",
                (Query(f"sum by (listener) (sluiceway_connections{{{BROKER}}})", "{{listener}}"),),
            ),
            Panel(
                "New and refused",
                "Connections a second. Many new ones are clients that connect for each message.",
                "per second",
                (
                    Query(f"sum({_rate('sluiceway_connections_accepted_total', BROKER)})", "accepted"),
                    Query(f"sum({_rate('sluiceway_connections_refused_total', BROKER)})", "refused"),
                ),
            ),
            Panel(
                "Refused by the guard",
                "Logins that failed, and what users may not do.",
                "per second",
                (
                    Query(f"sum({_rate('sluiceway_logins_failed_total', BROKER)})", "logins"),
                    Query(f"sum by (reason) ({_rate('sluiceway_logins_refused_total', BROKER)})", "login: {{reason}}"),
                    Query(f"sum by (action) ({_rate('sluiceway_permissions_refused_total', BROKER)})", "{{action}}"),
                ),
            ),
            Panel(
                "Subscriptions and consumers",
                "Of all connections; and what they hold.",
                "count",
                (
                    Query(f"sum(sluiceway_subscriptions{{{BROKER}}})", "subscriptions"),
                    Query(f"sum(sluiceway_unacknowledged_messages{{{BROKER}}})", "unacknowledged"),
                ),
                width=16,
            ),
            Panel(
                "Certificates expire",
                "Of listeners with TLS.",
                "time",
                (Query(f"1000 * sluiceway_certificate_expires_timestamp_seconds{{{BROKER}}}", "{{listener}}"),),
                kind="stat",
            ),
        ),
    ),
    (
        "Process",
        (
            Panel(
                "Lag of the loop",
                "How late it comes to what is due: what every message waits at least.",
                "seconds",
                tuple(
                    Query(
                        f"histogram_quantile({quantile}, sum by (le) "
                        f"({_rate('sluiceway_dispatcher_lag_seconds_bucket', BROKER)}))",
                        legend,
                    )
                    for quantile, legend in ((0.5, "half of the time"), (0.9, "90 %"), (0.99, "99 %"))
                ),
            ),
            Panel(
                "Load",
                "Of the loop (1 is all of it), and of the whole process.",
                "share",
                (
                    Query(_rate("sluiceway_dispatcher_busy_seconds_total", BROKER), "dispatcher"),
                    Query(_rate("process_cpu_seconds_total", BROKER + ', job="sluiceway"'), "process"),
                ),
            ),
            Panel(
                "Memory by who holds it",
                "What limiters hold and have leased of the broker's memory, its limit, and what the process has.",
                "bytes",
                (
                    Query(f"sum by (kind) (sluiceway_held_bytes{{{BROKER}}})", "{{kind}}"),
                    Query(f"sluiceway_memory_used_bytes{{{BROKER}}}", "leased"),
                    Query(f"sluiceway_memory_limit_bytes{{{BROKER}}}", "limit"),
                    Query(f'process_resident_memory_bytes{{{BROKER}, job="sluiceway"}}', "process"),
                ),
            ),
            Panel(
                "Turns and dispatches",
                "Sockets are served after each turn.",
                "per second",
                (
                    Query(_rate("sluiceway_dispatcher_turns_total", BROKER), "turns"),
                    Query(_rate("sluiceway_dispatcher_dispatches_total", BROKER), "dispatches"),
                ),
            ),
            Panel(
                "Ready to be dispatched",
                "Contexts in line, by priority.",
                "count",
                (
                    Query(
                        f"sum by (priority) (sluiceway_dispatcher_ready_contexts{{{BROKER}}}) > 0",
                        "priority {{priority}}",
                    ),
                ),
            ),
            Panel(
                "File descriptors",
                "One for each connection, and some more.",
                "count",
                (
                    Query(f'process_open_fds{{{BROKER}, job="sluiceway"}}', "open"),
                    Query(f'process_max_fds{{{BROKER}, job="sluiceway"}}', "limit"),
                ),
            ),
            Panel(
                "Held back for memory",
                "Destinations, logs and stashes that wait because the broker's memory is short.",
                "count",
                (Query(f"sluiceway_memory_held_back{{{BROKER}}}", "held back"),),
            ),
        ),
    ),
)


def dashboard() -> str:
    """The file that Grafana loads."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        panels.append(
            {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": _place(0, y, COLUMNS, 1)}
        )
        y += 1
        x = line_height = 0
        for panel in row:
            if x + panel.width > COLUMNS:
                x, y, line_height = 0, y + line_height, 0
            panels.append(_panel(panel, _place(x, y, panel.width, panel.height)))
            x += panel.width
            line_height = max(line_height, panel.height)
        y += line_height
    for number, made in enumerate(panels, 1):
        made["id"] = number
    return json.dumps(_frame(panels), indent=1, ensure_ascii=False) + "\n"


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.red_from is not None:
        steps.append({"color": "red", "value": panel.red_from})
    defaults: dict[str, Any] = {"unit": UNITS[panel.unit], "min": 0, "thresholds": {"mode": "absolute", "steps": steps}}
    options: dict[str, Any]
    if panel.kind == "stat":
        options = {
            "colorMode": "background" if panel.red_from is not None else "none",
            "graphMode": "area",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        }
    else:
        defaults["custom"] = {
            "fillOpacity": 30 if panel.stacked else 8,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacked else "none"},
            "thresholdsStyle": {"mode": "line" if panel.red_from is not None else "off"},
        }
        options = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": DATASOURCE,
                "expr": query.expr,
                "legendFormat": query.legend,
            }
            for number, query in enumerate(panel.queries)
        ],
    }


def _frame(panels: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "uid": "sluiceway",
        "title": "Sluiceway",
        "description": "Who waits for whom, what flows, what piles up. Generated by scripts/dashboard.py.",
        "tags": ["sluiceway", "stomp"],
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Prometheus",
                    "type": "datasource",
                    "query": "prometheus",
                    "current": {},
                    "hide": 0,
                },
                _variable("instance", "Broker", "label_values(sluiceway_build_info, instance)"),
                _variable(
                    "destination",
                    "Destination",
                    f"label_values(sluiceway_destination_messages{{{BROKER}}}, destination)",
                ),
            ]
        },
        "annotations": {"list": []},
        "panels": panels,
    }


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "refresh": 2,
        "sort": 1,
        "current": {"text": "All", "value": "$__all"},
    }
