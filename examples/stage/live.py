"""The screen for terminals: the acts and their marks, a progress bar, and the flow map while it changes.

rich redraws the screen eight times a second from the state kept here. Attributes that two threads touch are replaced
whole, never changed in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from examples.stage.account import Check
from examples.stage.flow_map import waits_in_words
from examples.stage.screen import NOBODY_WAITS, marks
from sluiceway.flow.words import size_in_words

FRAMES_PER_SECOND = 8
DESTINATIONS_SHOWN_MAX = 3
TALL_LINES_MIN = 36
"""Below this height the programme shrinks to one line, so that the flow map is not cut off."""


class _Act:
    """One line of the programme, and the result of its act."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.promise = ""
        self.checks: tuple[Check, ...] = ()
        self.began = False


class LiveScreen:
    """Draws over itself. Needs a terminal that can move its cursor."""

    reading_seconds = 0.9

    def __init__(self, console: Console) -> None:
        self._console = console
        self._acts: list[_Act] = []
        self._now: _Act | None = None
        self._saying = ""
        self._progress: tuple[str, int, int] | None = None
        self._names: dict[str, str] = {}
        self._report: Mapping[str, Any] | None = None
        self._yes, self._no = marks()
        self._live = Live(
            get_renderable=self._draw,
            console=console,
            refresh_per_second=FRAMES_PER_SECOND,
            vertical_overflow="crop",
            transient=True,
        )

    def open(self, titles: Sequence[str]) -> None:
        self._acts = [_Act(title) for title in titles]
        self._live.start()

    def act(self, number: int, title: str, promise: str) -> None:
        self._now = self._acts[number - 1]
        self._now.promise = promise
        self._now.began = True
        self._saying = ""
        self._progress = None

    def say(self, text: str) -> None:
        self._saying = text
        self._progress = None

    def progress(self, what: str, done_count: int, total_count: int) -> None:
        self._progress = (what, done_count, total_count)

    def report(self, report: Mapping[str, Any]) -> None:
        self._report = report

    def name(self, address: str, name: str) -> None:
        self._names = {**self._names, address: name}

    def checked(self, check: Check) -> None:
        if self._now is not None:
            self._now.checks = (*self._now.checks, check)

    def close(self) -> None:
        """Stop drawing; the picture goes, the programme with its marks stays."""
        self._live.stop()
        self._console.print(Padding(self._programme(with_checks=True), (0, 1)))

    # ------------------------------------------------------------------ the picture

    def _draw(self) -> RenderableType:
        return Group(
            Padding(self._programme(with_checks=False), (1, 1, 0, 1)),
            Padding(self._happening(), (1, 1)),
            self._flow(),
        )

    def _programme(self, *, with_checks: bool) -> RenderableType:
        if not with_checks and self._console.height < TALL_LINES_MIN:
            return self._short_programme()
        table = Table.grid(padding=(0, 1))
        table.add_column(width=max(len(self._yes), 1))
        table.add_column()
        for number, act in enumerate(self._acts, 1):
            here = act is self._now and not with_checks
            style = "bold" if here else "" if act.began else "dim"
            table.add_row(self._mark(act, here), Text(f"{number}. {act.title}", style=style))
            for check in act.checks if with_checks or here else ():
                table.add_row("", self._proved(check))
        return table

    def _short_programme(self) -> RenderableType:
        line = Text()
        for number, act in enumerate(self._acts, 1):
            here = act is self._now
            line.append_text(self._mark(act, here))
            line.append(f" {number}. {act.title}   " if here else f" {number}   ", "bold" if here else "dim")
        return Group(line, *(self._proved(check) for check in (self._now.checks if self._now is not None else ())))

    def _proved(self, check: Check) -> RenderableType:
        row = Table.grid(padding=(0, 1))
        mark = Text(self._yes, "green") if check.met else Text(self._no, "bold red")
        row.add_row("  ", mark, Text.assemble(check.claim, ": ", (check.numbers, "dim")))
        return row

    def _mark(self, act: _Act, here: bool) -> Text:
        if any(not check.met for check in act.checks):
            return Text(self._no, "bold red")
        if here:
            return Text(">", "bold cyan")
        return Text(self._yes, "green") if act.checks else Text(" ")

    def _happening(self) -> RenderableType:
        lines: list[RenderableType] = [
            Text(self._now.promise if self._now is not None else "The broker starts.", "italic"),
            Text(self._saying or " "),
        ]
        if self._progress is None:
            lines.append(Text(" "))
        else:
            what, done_count, total_count = self._progress
            what = f"{done_count:,} of {total_count:,} {what}"
            row = Table.grid(padding=(0, 1))
            row.add_row(
                ProgressBar(total=max(total_count, 1), completed=min(done_count, total_count), width=30), Text(what)
            )
            lines.append(row)
        return Group(*lines)

    def _flow(self) -> RenderableType:
        report = self._report
        if report is None:
            return Panel(Text(" "), title="who waits for whom", title_align="left", border_style="dim")
        waits = waits_in_words(report, self._names)
        lines: list[RenderableType] = []
        if waits:
            lines.append(Text(waits[0], "bold red"))
            lines.extend(Text(words) for words in waits[1:])
        else:
            lines.append(Text(NOBODY_WAITS, "green"))
        memory = f"memory of the broker: {size_in_words(report['broker']['rss_bytes'])}"
        return Panel(
            Group(*lines, Text(" "), self._destinations(report)),
            title="who waits for whom",
            title_align="left",
            subtitle=escape(memory),
            subtitle_align="right",
            border_style="red" if waits else "dim",
        )

    def _destinations(self, report: Mapping[str, Any]) -> RenderableType:
        rows = [row for row in report["destinations"] if not row["name"].startswith("/remote-temp")]
        rows.sort(key=lambda row: row["idle_seconds"])
        table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
        table.add_column("destination", no_wrap=True)
        for heading in ("in", "settled", "holds", "unsettled", "dropped"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in rows[:DESTINATIONS_SHOWN_MAX]:
            counts = ("added_count", "settled_count", "depth_count", "unsettled_count", "dropped_count")
            table.add_row(row["name"], *(f"{row[key]:,}" for key in counts))
        return table
