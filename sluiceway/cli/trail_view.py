"""Display of message trails as time lines. Any key may be missing, as in `stat_view`; names and headers chosen by
clients are shown as text, whatever they contain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sluiceway.cli.answers import list_of, number_of
from sluiceway.top.columns import printable

_COLOURS: Final = {
    "accepted": "cyan",
    "parked": "yellow",
    "stored": "blue",
    "paged_out": "blue",
    "paged_in": "blue",
    "sent": "cyan",
    "acked": "green",
    "consumed": "green",
    "nacked": "red",
    "returned": "yellow",
    "expired": "red",
    "dropped": "red",
    "dead_lettered": "red",
    "moved": "magenta",
}


def draw_trails(trails: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Draw the trails one after the other."""
    for place, trail in enumerate(trails):
        if place:
            console.print()
        draw_trail(trail, console)


def draw_trail(trail: Mapping[str, Any], console: Console) -> None:
    """Draw identity, outcome and time line of a message."""
    title = f"[bold]{_text(trail.get('message_id', 'message'))}[/]"
    if trail.get("correlation_id") is not None:
        title += f"  correlation-id {_text(trail['correlation_id'])}"
    console.print(title, highlight=False, soft_wrap=True)
    console.print(_text(trail.get("words", "")), highlight=False, soft_wrap=True)
    entries = [entry for entry in list_of(trail, "entries") if isinstance(entry, Mapping)]
    if trail.get("complete") is False:
        console.print("[dim]  … what happened before is forgotten[/]", highlight=False)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right", style="dim")
    for _ in range(3):
        table.add_column(overflow="fold")
    first_ms = number_of(entries[0], "at_ms") if entries else None
    for entry in entries:
        at_ms = number_of(entry, "at_ms")
        what = str(entry.get("what", "?"))
        table.add_row(
            "  " + _moment(at_ms),
            "" if at_ms is None or first_ms is None else _since((at_ms - first_ms) / 1000),
            f"[{_COLOURS.get(what, 'white')}]{_text(what.replace('_', ' '))}[/]",
            _text(f"{entry.get('where', '')} on {entry['hub']}" if "hub" in entry else entry.get("where", "")),
            _text(entry.get("detail", "")),
        )
    if entries:
        console.print(table, highlight=False)
    omitted = number_of(trail, "omitted_count")
    if omitted:
        console.print(f"[dim]  … {omitted:,.0f} entries are left out[/]", highlight=False)


def _text(value: Any) -> str:
    return escape(printable(str(value)))


def _moment(at_ms: float | None) -> str:
    """Return `2026-11-22 10:04:05.123Z`."""
    if at_ms is None:
        return ""
    try:
        moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return ""
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d}Z"


def _since(seconds: float) -> str:
    """Return the time since the first entry."""
    if seconds < 0.0005:
        return ""
    if seconds < 1:
        return f"+{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"+{seconds:.1f} s"
    if seconds < 7200:
        return f"+{seconds / 60:.0f} min"
    return f"+{seconds / 3600:.1f} h"
