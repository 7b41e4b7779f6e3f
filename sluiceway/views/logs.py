"""Logs and their groups as people see them. Figures are named as in JSON."""

from __future__ import annotations

from typing import Any

from sluiceway.flow.graph import Steps, sorted_in_steps
from sluiceway.queues.logs.compaction import CompactedFigures
from sluiceway.queues.logs.group import Group
from sluiceway.queues.logs.log import Log
from sluiceway.queues.logs.ports import timestamp_ms_of
from sluiceway.queues.logs.table import LogTable


def log_figures(table: LogTable, log: Log) -> dict[str, Any]:
    """Read one log, without its groups. O(1), and a look into its files for a date."""
    records = log.records
    first, end = records.first_index, records.next_index
    groups_count = len(table.groups.get(log.name, {}))
    return {
        "log": log.name,
        "log_id": log.log_id,
        "first": first,
        "next": end,
        "size": end - first,
        "bytes": records.back_file_size_bytes,
        "first_timestamp_ms": timestamp_ms_of(records, first) if first < end else None,
        "last_timestamp_ms": records.last_timestamp_ms if end > first else None,
        "synced": records.synced_index,
        "waiting": log.pending_count,
        "readers": len(log.outlets) - groups_count,
        "gaps": log.gap_count,
        "failing": log.failing,
        "groups_count": groups_count,
        **_compaction_figures(log),
    }


def _compaction_figures(log: Log) -> dict[str, Any]:
    """Read how far compaction came, and what it has removed since the log was opened."""
    done: CompactedFigures | None = getattr(log.records, "compacted", None)
    return {
        "compacts": log.policy.log_compact or (done is not None and done.clean_index > 0),
        "compacted_to": 0 if done is None else done.clean_index,
        "compacted_count": 0 if done is None else done.removed_count,
        "compacted_bytes": 0 if done is None else done.freed_bytes,
    }


def _group_figures(group: Group, now_ms: int) -> dict[str, Any]:
    records, lag = group.log.records, group.lag_count
    size = records.next_index - records.first_index
    front = max(group.front, records.first_index)
    front_ms = timestamp_ms_of(records, front) if lag and front < records.next_index else None
    return {
        "group": group.group,
        "front": group.front,
        "lag": lag,
        "lag_bytes": records.back_file_size_bytes * lag // size if size else 0,
        "lag_seconds": 0.0 if front_ms is None else max(0, now_ms - front_ms) / 1000,
        "consumers": len(group.subscriptions),
        "unsettled": group.unsettled_count,
        "gaps": group.gap_count,
        "refused": 0 if group.refused is None else group.refused.waiting_count,
        "dead_lettered": 0 if group.refused is None else group.refused.dead_lettered_count,
    }


def groups_report(
    table: LogTable, log: Log, *, offset: int = 0, limit: int | None = None
) -> Steps[list[dict[str, Any]]]:
    """Return a page of the groups of a log by name as JSON-able data, in steps; `limit` None: all."""
    now_ms = log.environment.now_ms()
    named = yield from sorted_in_steps(list(table.groups.get(log.name, {}).items()), lambda each: each[0])
    rows = []
    for _name, group in named[offset : None if limit is None else offset + limit]:
        yield
        rows.append(_group_figures(group, now_ms))
    return rows


def log_report(table: LogTable, log: Log, *, groups_max: int | None = None) -> Steps[dict[str, Any]]:
    """Return one log as JSON-able data in steps, with so many groups at most; None: all."""
    yield
    groups = yield from groups_report(table, log, limit=groups_max)
    return {**log_figures(table, log), "groups": groups}
