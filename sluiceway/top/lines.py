"""The lines above and below the table, for any width: what matters most is said first, and what does not fit is left
out.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Final

from sluiceway.flow.words import age_in_words, count_in_words, size_in_words
from sluiceway.top.columns import cut, printable, say_rate
from sluiceway.top.picture import Head, Trouble, View

QUIET: Final = "nothing is blocked"
SHORT_NAMES: Final = {
    View.DESTINATIONS: "dest",
    View.CONNECTIONS: "conn",
    View.SUBSCRIPTIONS: "subs",
    View.LOGS: "logs",
    View.GROUPS: "grps",
    View.STORE: "store",
    View.HUBS: "hubs",
}


def head_line(head: Head, width: int) -> str:
    """Name, state, rates, memory, connections, version: as many of them as fit, in this order of importance."""
    pieces = [
        (0, printable(head.name)),
        (6, head.version),
        (5, "" if head.uptime_seconds is None else f"up {age_in_words(head.uptime_seconds)}"),
        (2, f"in {say_rate(head.in_per_second)}/s"),
        (3, f"out {say_rate(head.out_per_second)}/s"),
        (4, "" if head.rss_bytes is None else size_in_words(head.rss_bytes)),
        (7, count_in_words(head.connections_count, "connection")),
        (1, head.state),
    ]
    return pieced(pieces, width)


def pieced(pieces: Sequence[tuple[int, str]], width: int, gap: str = "  ") -> str:
    """The pieces that fit, the lowest rank first, each in its place; the first one is cut if even that does not fit."""
    kept: set[int] = set()
    left = width + len(gap)
    for rank, text in sorted(pieces):
        if text and (not kept or left >= len(text) + len(gap)):
            kept.add(rank)
            left -= len(text) + len(gap)
    return gap.join(cut(text, width) for rank, text in pieces if rank in kept)


def trouble_lines(found: Sequence[Trouble], width: int, lines_max: int) -> list[str]:
    """Return the causes of blocking, worst first, in at most `lines_max` lines; the last line tells of further ones."""
    if not found:
        return [QUIET]
    lines: list[str] = []
    for number, trouble in enumerate(found):
        wrapped = textwrap.wrap(f"! {printable(trouble.words)}", width=max(20, width), subsequent_indent="  ")
        if lines and len(lines) + len(wrapped) > lines_max:
            rest = f"  … and {len(found) - number} more that hold others up"
            return [*lines[: lines_max - 1], rest] if len(lines) >= lines_max else [*lines, rest]
        lines += wrapped[:lines_max]
    return lines


def views_of(counts: Mapping[View, int]) -> list[View]:
    """Return the views that there are, from the number of their rows: hubs only where there are several."""
    return [view for view in View if view is not View.HUBS or counts.get(view)]


def view_line(chosen: View, counts: dict[View, int], width: int) -> list[tuple[str, bool]]:
    """Return the headings of all views with their numbers; True: the one shown. Short names where they must be."""
    for names in ({view: view.value for view in View}, SHORT_NAMES, dict.fromkeys(View, "")):
        pieces = []
        for number, view in enumerate(views_of(counts), 1):
            name = names[view] or (SHORT_NAMES[view] if view is chosen else "")
            count = f" {counts.get(view, 0):,}" if names[view] == view.value and view is not View.STORE else ""
            text = f"{number} {name}{count}".rstrip()
            # Brackets: which one it is should be seen without colour, too.
            pieces.append((f"[{text}]" if view is chosen else f" {text} ", view is chosen))
        if sum(len(text) for text, _chosen in pieces) <= width:
            return pieces
    return pieces


KEYS: Final = (
    (0, "q quit"),
    (1, "? help"),
    (2, "enter why"),
    (3, "/ filter"),
    (4, "s sort"),
    (5, "p pause"),
    (6, "tab view"),
    (7, "r reverse"),
)


def key_line(width: int) -> str:
    """Return the keys, the most important first."""
    return pieced(KEYS, width)
