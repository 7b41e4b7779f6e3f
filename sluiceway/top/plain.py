"""A picture without a terminal: as text, all views one below the other, or as data for programs."""

from __future__ import annotations

import math
from typing import Any, Final

import attrs
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from sluiceway.top.columns import GAP, SORT_BY, arranged, cell, cut, fitting
from sluiceway.top.course import Age
from sluiceway.top.lines import head_line, trouble_lines
from sluiceway.top.picture import Picture, Row, View

ROWS_MAX: Final = 20
TROUBLES_MAX: Final = 10
_INNER: Final = frozenset({"in_rates", "out_rates", "title", "groups"})


def draw(picture: Picture, console: Console) -> None:
    """Prints it. Views without rows are left out."""
    console.print(Text(head_line(picture.head, console.width), style="bold"), soft_wrap=True)
    style = "bold red" if picture.troubles else "green"
    for line in trouble_lines(picture.troubles, console.width, TROUBLES_MAX):
        console.print(f"[{style}]{escape(line)}[/]", highlight=False, soft_wrap=True)
    for view in View:
        found = arranged(picture.views[view], *SORT_BY[view])
        if found:
            _draw_view(view, found, console)


def _draw_view(view: View, found: list[Row], console: Console) -> None:
    rows = found[:ROWS_MAX]
    columns = fitting(view, console.width, rows)
    lines = [[column.heading for column, _width in columns]]
    lines += [[cell(column, row) for column, _width in columns] for row in rows]
    console.print()
    for number, line in enumerate(lines):
        texts = []
        for text, (column, width) in zip(line, columns, strict=True):
            short = cut(text, width)
            texts.append(short.rjust(width) if column.right else short.ljust(width))
        console.print(Text((" " * GAP).join(texts).rstrip(), style="" if number else "bold underline"), soft_wrap=True)
    if len(found) > len(rows):
        console.print(f"  … and {len(found) - len(rows):,} more", highlight=False)


def as_data(picture: Picture) -> dict[str, Any]:
    """JSON-able: `head`, `bottlenecks`, and the rows of each view under its name in lower case."""
    return {
        "head": attrs.asdict(picture.head),
        "bottlenecks": [attrs.asdict(trouble) for trouble in picture.troubles],
        **{
            view.value.lower(): [
                {key: _plain(value) for key, value in row.items() if key not in _INNER} for row in picture.views[view]
            ]
            for view in View
        },
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Age):
        return {"seconds": value.seconds, "at_least": value.at_least}
    return None if isinstance(value, float) and not math.isfinite(value) else value
