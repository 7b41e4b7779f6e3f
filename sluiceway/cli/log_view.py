"""Display of a broker's answers about logs. Any key may be missing, as in `stat_view`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.markup import escape

from sluiceway.cli.stat_view import GROUPS, LOGS, draw_table
from sluiceway.flow.words import count_in_words, size_in_words


def draw_logs(logs: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Draw a table of logs."""
    draw_table(console, "Logs", LOGS, [log_row(log) for log in logs], None)


def draw_groups(groups: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Draw a table of the groups of one log, if there are some."""
    draw_table(console, "Groups", GROUPS, list(groups), None)


def log_row(log: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with the number of groups and formatted times."""
    return {
        **log,
        "groups_count": len(log.get("groups") or ()),
        "oldest": time_in_words(log.get("first_timestamp_ms")),
        "newest": time_in_words(log.get("last_timestamp_ms")),
    }


def draw_log(log: Mapping[str, Any], console: Console) -> None:
    """Draw the description of one log."""
    lines = [("records", f"{log['size']:,}, {size_in_words(log['bytes'])} on the disk")]
    if log.get("log_id"):
        lines.append(("id", log["log_id"]))
    lines.append(("first", f"index {log['first']}, appended {time_in_words(log.get('first_timestamp_ms')) or '-'}"))
    lines.append(("next", f"index {log['next']}, the last one appended {_last_time(log)}"))
    if log.get("compacted_to"):
        said = f"below index {log['compacted_to']}: one record for each key"
        if log.get("compacted_count"):
            removed = count_in_words(log["compacted_count"], "record")
            said += f"; {removed} ({size_in_words(log['compacted_bytes'])}) removed since the broker started"
        lines.append(("compact", said))
    if log.get("synced", log["next"]) < log["next"]:
        lines.append(("synced", f"up to index {log['synced']}: a power cut now would lose the records behind it"))
    if log.get("waiting"):
        lines.append(("waiting", f"{count_in_words(log['waiting'], 'SEND')} for the disk"))
    if log.get("readers"):
        lines.append(("readers", f"{log['readers']:,}, and those of groups"))
    if log.get("gaps"):
        lines.append(
            ("gaps", f"readers were notified of {count_in_words(log['gaps'], 'gap')} since the broker started")
        )
    if log.get("failing"):
        lines.append(("failing", f"the disk says: {log['failing']}; senders wait"))
    console.print(f"[bold]{escape(str(log['log']))}[/]", highlight=False)
    for name, said in lines:
        console.print(f"  {name:<8} {escape(said)}", highlight=False, soft_wrap=True)


def _last_time(log: Mapping[str, Any]) -> str:
    return time_in_words(log.get("last_timestamp_ms")) or "-"


def time_in_words(timestamp_ms: Any) -> str | None:
    """Return `2026-11-21 20:15:04Z`; None for an invalid time."""
    if not isinstance(timestamp_ms, int):
        return None
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return f"{moment:%Y-%m-%d %H:%M:%S}Z"
