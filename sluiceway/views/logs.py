"""Logs and their groups as people see them. Fields are named as in JSON."""

from __future__ import annotations

from typing import Any

import attrs

from sluiceway.flow.graph import Steps, sorted_in_steps
from sluiceway.queues.logs.group import Group
from sluiceway.queues.logs.log import Log
from sluiceway.queues.logs.ports import timestamp_ms_of
from sluiceway.queues.logs.table import LogTable


@attrs.frozen(slots=True)
class GroupView:
    """One group of a log at one moment."""

    group: str
    front: int
    lag: int
    """Records that are not settled."""
    lag_bytes: int
    """About what they take in the log."""
    lag_seconds: float
    """Age of the record at the front; 0: none is behind it."""
    consumers: int
    unsettled: int
    gaps: int
    refused: int
    """Records that wait to be tried again."""
    dead_lettered: int


@attrs.frozen(slots=True)
class LogView:
    """One log at one moment, without its groups."""

    log: str
    log_id: str
    first: int
    next: int
    size: int
    """Records."""
    bytes: int
    first_timestamp_ms: int | None
    last_timestamp_ms: int | None
    synced: int
    """Index below which all records outlive a power cut."""
    waiting: int
    """Records on their way to the disk."""
    readers: int
    """Without groups."""
    gaps: int
    failing: str
    groups_count: int


def view_log(table: LogTable, log: Log) -> LogView:
    """Read one log. O(1), and perhaps one look into its files."""
    records = log.records
    first, end = records.first_index, records.next_index
    groups_count = len(table.groups.get(log.name, {}))
    return LogView(
        log=log.name,
        log_id=log.log_id,
        first=first,
        next=end,
        size=end - first,
        bytes=records.back_file_size_bytes,
        first_timestamp_ms=timestamp_ms_of(records, first) if first < end else None,
        last_timestamp_ms=records.last_timestamp_ms if end > first else None,
        synced=records.synced_index,
        waiting=log.pending_count,
        readers=len(log.outlets) - groups_count,
        gaps=log.gap_count,
        failing=log.failing,
        groups_count=groups_count,
    )


def _view_group(group: Group, now_ms: int) -> GroupView:
    records, lag = group.log.records, group.lag_count
    size = records.next_index - records.first_index
    front = max(group.front, records.first_index)
    front_ms = timestamp_ms_of(records, front) if lag and front < records.next_index else None
    return GroupView(
        group=group.group,
        front=group.front,
        lag=lag,
        lag_bytes=records.back_file_size_bytes * lag // size if size else 0,
        lag_seconds=0.0 if front_ms is None else max(0, now_ms - front_ms) / 1000,
        consumers=len(group.subscriptions),
        unsettled=group.unsettled_count,
        gaps=group.gap_count,
        refused=0 if group.refused is None else group.refused.waiting_count,
        dead_lettered=0 if group.refused is None else group.refused.dead_lettered_count,
    )


def view_groups(table: LogTable, log: Log, *, offset: int = 0, limit: int | None = None) -> Steps[list[GroupView]]:
    """Read a page of the groups of a log by name, in steps; `limit` None: all."""
    now_ms = log.environment.now_ms()
    named = yield from sorted_in_steps(list(table.groups.get(log.name, {}).items()), lambda each: each[0])
    found = []
    for _name, group in named[offset : None if limit is None else offset + limit]:
        yield
        found.append(_view_group(group, now_ms))
    return found


def log_report(table: LogTable, log: Log, *, groups_max: int | None = None) -> Steps[dict[str, Any]]:
    """Return one log as JSON-able data in steps, with so many groups at most; None: all."""
    yield
    groups = yield from group_reports(table, log, limit=groups_max)
    return {**attrs.asdict(view_log(table, log)), "groups": groups}


def group_reports(
    table: LogTable, log: Log, *, offset: int = 0, limit: int | None = None
) -> Steps[list[dict[str, Any]]]:
    """Return what `view_groups` reads as JSON-able data."""
    rows = []
    for view in (yield from view_groups(table, log, offset=offset, limit=limit)):
        yield
        rows.append(attrs.asdict(view))
    return rows
