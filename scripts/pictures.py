"""Draws the pictures of docs/life-of-a-message.md and docs/design/session.md: boxes in a grid, and arrows between them.

Each picture has a ground of its own, so that the same file can be read on light and dark pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 150
HEIGHT: Final = 66
STEP_X: Final = 252
STEP_Y: Final = 118
MARGIN: Final = 18
FILLS: Final = {"client": "#e3eef2", "broker": "#ffffff", "disk": "#efe9dc", "full": "#f6d9d5", "free": "#dcefe0"}


@dataclass(frozen=True)
class Box:
    """A box at a place of the grid: `lines` are its title and what is below."""

    column: float
    row: float
    lines: tuple[str, ...]
    kind: str = "broker"

    @property
    def left(self) -> float:
        return MARGIN + self.column * STEP_X

    @property
    def top(self) -> float:
        return MARGIN + 22 + self.row * STEP_Y


@dataclass(frozen=True)
class Arrow:
    """Arrow from one box to another, by their names."""

    start: str
    end: str
    label: str
    is_dashed: bool = False
    shift: float = 0.0  # of both ends, along the sides of the boxes, in points


def picture(title: str, boxes: dict[str, Box], arrows: list[Arrow]) -> str:
    """The picture as SVG. `title`: what it shows, for those who do not see it."""
    width = max(box.left for box in boxes.values()) + WIDTH + MARGIN
    height = max(box.top for box in boxes.values()) + HEIGHT + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        'font-family="sans-serif">',
        f"<title>{escape(title)}</title>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#0b5d7a"/></marker></defs>',
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="#f7fafb"/>',
        *[part for arrow in arrows for part in _arrow(boxes[arrow.start], boxes[arrow.end], arrow)],
        *[part for box in boxes.values() for part in _box(box)],
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _box(box: Box) -> list[str]:
    middle = box.left + WIDTH / 2
    first = box.top + HEIGHT / 2 + 5 - 8 * (len(box.lines) - 1)
    parts = [
        f'<rect x="{box.left:g}" y="{box.top:g}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{FILLS[box.kind]}" '
        'stroke="#0b5d7a" stroke-width="1.5"/>'
    ]
    for number, line in enumerate(box.lines):
        style = 'font-size="14" font-weight="bold" fill="#12303a"' if number == 0 else 'font-size="11.5" fill="#3d5a64"'
        y = first + 17 * number
        parts.append(f'<text x="{middle:g}" y="{y:g}" text-anchor="middle" {style}>{escape(line)}</text>')
    return parts


def _arrow(start: Box, end: Box, arrow: Arrow) -> list[str]:
    """A line and its label: along a row or a column, or from the side of a box to that of another."""
    dash = ' stroke-dasharray="5 4"' if arrow.is_dashed else ""
    if start.column == end.column:
        up = end.row < start.row
        x1 = x2 = start.left + WIDTH / 2 + arrow.shift
        y1, y2 = (start.top, end.top + HEIGHT + 2) if up else (start.top + HEIGHT, end.top - 2)
        label_x, label_y = x1 + (8 if arrow.shift >= 0 else -8), (y1 + y2) / 2 + 4
        anchor = "start" if arrow.shift >= 0 else "end"
    else:
        back = end.column < start.column
        x1, x2 = (start.left, end.left + WIDTH + 2) if back else (start.left + WIDTH, end.left - 2)
        y1, y2 = (box.top + HEIGHT / 2 + arrow.shift for box in (start, end))
        label_x, label_y, anchor = (x1 + x2) / 2, (y1 + y2) / 2 - (6 if y1 == y2 else 14), "middle"
    return [
        f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="#0b5d7a" stroke-width="1.7"{dash} marker-end="url(#head)"/>',
        f'<text x="{label_x:g}" y="{label_y:g}" text-anchor="{anchor}" font-size="11.5" fill="#12303a" '
        'stroke="#f7fafb" stroke-width="4" paint-order="stroke">'
        f"{escape(arrow.label)}</text>",
    ]


def pictures() -> dict[str, str]:
    """All pictures by the names of their files."""
    arrives = picture(
        "A SEND goes from the producer through its connection into a queue, and to the disk; the RECEIPT comes back",
        {
            "producer": Box(0, 0, ("Producer",), "client"),
            "connection": Box(1, 0, ("Connection", "reads and parses")),
            "queue": Box(2, 0, ("Queue", "charges its limit")),
            "store": Box(2, 1, ("Disk", "written and synced"), "disk"),
        },
        [
            Arrow("producer", "connection", "SEND", shift=-12),
            Arrow("connection", "queue", "message"),
            Arrow("queue", "store", "persistent", shift=12),
            Arrow("store", "queue", "synced", shift=-12, is_dashed=True),
            Arrow("connection", "producer", "RECEIPT", shift=18, is_dashed=True),
        ],
    )
    leaves = picture(
        "A message goes from its queue to a consumer with room in its prefetch; the ACK removes it",
        {
            "queue": Box(0, 0, ("Queue", "the oldest first")),
            "window": Box(1, 0, ("Subscription", "room in its prefetch?")),
            "consumer": Box(2, 0, ("Consumer",), "client"),
            "dead": Box(0, 1, ("Dead letters", "after 20 failures"), "full"),
        },
        [
            Arrow("queue", "window", "delivered", shift=-12),
            Arrow("window", "consumer", "MESSAGE", shift=-12),
            Arrow("consumer", "window", "ACK, NACK", shift=18, is_dashed=True),
            Arrow("window", "queue", "done, or back", shift=18, is_dashed=True),
            Arrow("queue", "dead", "refused too often", shift=12),
        ],
    )
    waits = picture(
        "Queue A is full: senders to queue A wait, senders to queue B do not; a slow consumer is the root cause",
        {
            "producer": Box(0, 0.5, ("Producer", "sends to A and B"), "client"),
            "a": Box(1.2, 0, ("Queue A", "full"), "full"),
            "b": Box(1.2, 1, ("Queue B", "has room"), "free"),
            "slow": Box(2.4, 0, ("Slow consumer", "acknowledges nothing"), "full"),
            "quick": Box(2.4, 1, ("Consumer", "keeps up"), "client"),
        },
        [
            Arrow("producer", "a", "waits", is_dashed=True),
            Arrow("producer", "b", "flows"),
            Arrow("a", "slow", "prefetch is full", is_dashed=True),
            Arrow("b", "quick", "delivers"),
        ],
    )
    return {
        "life-arrives.svg": arrives,
        "life-leaves.svg": leaves,
        "life-waits.svg": waits,
    }
