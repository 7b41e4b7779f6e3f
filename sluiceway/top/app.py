"""The terminal of `sluiceway top`: Textual around pictures.

One line about the broker, the causes of blocking, the views, one table, the keys. All of it is drawn from the last
`Picture`; no request and no computation is made here. Only changed cells of the table are drawn again, so a slow
terminal gets a few hundred bytes a second.

Everything that comes from a client is drawn as plain text, never as markup.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from typing import ClassVar, Final

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen
from textual.widgets import DataTable, Input, Static

from sluiceway.flow.words import age_in_words
from sluiceway.top.chains import Chain
from sluiceway.top.columns import GAP, SORT_BY, Column, arranged, cell, cut, fitting
from sluiceway.top.feed import Gone, News, gone_in_words
from sluiceway.top.lines import head_line, key_line, trouble_lines, view_line, views_of
from sluiceway.top.picture import Painter, Picture, Row, View
from sluiceway.top.screens import ChainScreen, HelpScreen

ROWS_MAX: Final = 200
"""Rows of the table. More are counted, and found with a filter."""
TROUBLE_LINES_MAX: Final = 3
TALL_LINES: Final = 30
"""Number of lines from which on a terminal has room for more causes."""
JOIN_SECONDS: Final = 1.0

Watch = Callable[[Callable[[News], None], threading.Event], None]
"""Asks the broker until the event is set, and tells; run in a thread of its own."""

STATE_STYLES: Final = {
    "full": "bold red",
    "blocked": "bold red",
    "waits": "yellow",
    "paused": "yellow",
    "no reader": "yellow",
    "grows": "yellow",
    "falls behind": "yellow",
    "parked": "yellow",
}
"""Beside the word, which says it all."""


class Rows(DataTable[Text]):
    """The table; left and right are for the views."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "app.view(-1)", show=False),
        Binding("right", "app.view(1)", show=False),
        Binding("tab", "app.view(1)", show=False),
        Binding("shift+tab", "app.view(-1)", show=False),
    ]


class TopApp(App[None]):
    """See the module."""

    TITLE = "sluiceway top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    #head { height: 1; text-style: bold; }
    #troubles { height: auto; }
    #views { height: 1; }
    #filter { height: 1; border: none; padding: 0; display: none; background: ansi_default; color: ansi_default; }
    Rows { height: 1fr; background: ansi_default; color: ansi_default; scrollbar-size: 1 1; overflow-x: hidden; }
    Rows > .datatable--header { background: ansi_default; color: ansi_default; text-style: bold underline; }
    Rows > .datatable--cursor { background: ansi_default; color: ansi_default; text-style: reverse; }
    Rows > .datatable--hover { background: ansi_default; }
    #status { height: 1; }
    #keys { height: 1; text-style: dim; }
    ModalScreen { align: center middle; background: ansi_default; }
    .over { width: 100%; height: 100%; background: ansi_default; color: ansi_default; border: none; padding: 0 1; }
    #chain-head { height: 1; text-style: bold; }
    #steps { height: auto; max-height: 50%; border: none; background: ansi_default; color: ansi_default; padding: 0; }
    #steps > .option-list--option-highlighted { background: ansi_default; color: ansi_default; text-style: reverse; }
    #details-pane { height: 1fr; margin-top: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", priority=True),
        Binding("question_mark,h,f1", "help", "help"),
        Binding("p,space", "pause", "pause"),
        Binding("s", "sort", "sort"),
        Binding("r", "reverse", "reverse"),
        Binding("slash", "filter", "filter"),
        Binding("escape", "clear", "all rows"),
        *(Binding(str(number), f"choose({number})", show=False) for number in range(1, len(View) + 1)),
    ]

    class Came(Message):
        """News from the thread that asks."""

        def __init__(self, news: News) -> None:
            super().__init__()
            self.news = news

    def __init__(self, watch: Watch | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Make the app. `watch`: None: the caller calls `take`. `clock` in seconds."""
        super().__init__(ansi_color=True)
        self.animation_level = "none"
        self._watch = watch
        self._clock = clock
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._painter = Painter()
        self._picture: Picture | None = None
        self._latest: Picture | None = None
        """Latest picture while the display is paused."""
        self._gone: Gone | None = None
        self._gone_since_seconds = 0.0
        self._paused = False
        self._view = View.DESTINATIONS
        self._sort = dict(SORT_BY)
        self._wanted = ""
        self._drawn_columns: list[tuple[Column, int]] = []
        self._drawn_rows: list[list[tuple[str, str]]] = []
        self._rows: list[Row] = []
        self._hidden_count = 0
        self._can_draw = False

    # ------------------------------------------------------------------ life

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield Static(id="troubles")
        yield Static(id="views")
        yield Input(id="filter", placeholder="text to look for; Enter keeps it, Escape shows all", compact=True)
        yield Rows(cursor_type="row", cell_padding=0, zebra_stripes=False)
        yield Static(id="status")
        yield Static(id="keys")

    def on_mount(self) -> None:
        """Begin to ask."""
        self._can_draw = True
        self.query_one(Rows).focus()
        self._draw()
        if self._watch is None:
            return
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, self.exit)
        watch = self._watch
        self._thread = threading.Thread(target=lambda: watch(self._tell, self._stop), name="sluiceway top", daemon=True)
        self._thread.start()

    def on_unmount(self) -> None:
        """Stop asking. A thread that waits for a broker which does not answer is left: it is a daemon."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS)

    def _tell(self, news: News) -> None:
        self.post_message(self.Came(news))

    def on_top_app_came(self, came: Came) -> None:
        """See `take`."""
        self.take(came.news)

    def take(self, news: News) -> None:
        """Show an answer of the broker, or its absence."""
        if isinstance(news, Gone):
            if self._gone is None:
                self._gone_since_seconds = self._clock()
            self._gone = news
            self._draw_status()
            return
        self._gone = None
        self._latest = self._painter.paint(news.report)
        if not self._paused:
            self._picture = self._latest
            self._draw()

    # ------------------------------------------------------------------ keys

    def action_view(self, step: int) -> None:
        """The next view, or the one before."""
        views = self._views
        self._choose(views[(views.index(self._view) + step) % len(views)])

    def action_choose(self, number: int) -> None:
        """The view of that number, from 1; nothing happens if there is none."""
        if number <= len(self._views):
            self._choose(self._views[number - 1])

    @property
    def _views(self) -> list[View]:
        picture = self._picture
        counts = {} if picture is None else {view: len(rows) for view, rows in picture.views.items()}
        return views_of({**counts, self._view: counts.get(self._view) or 1})

    def _choose(self, view: View) -> None:
        self._view = view
        self._base.query_one(Rows).move_cursor(row=0)
        self._draw()

    def action_help(self) -> None:
        """All keys."""
        self.push_screen(HelpScreen(self._view))

    def action_pause(self) -> None:
        """Pause the display, or continue it."""
        self._paused = not self._paused
        if not self._paused and self._latest is not None:
            self._picture = self._latest
        self._draw()

    def action_sort(self) -> None:
        """Sort by the next column that is shown."""
        keys = [column.key for column, _width in self._drawn_columns]
        if not keys:
            return
        at = keys.index(self._sort[self._view][0]) if self._sort[self._view][0] in keys else -1
        self._sort_by(self._drawn_columns[(at + 1) % len(keys)][0])

    def action_reverse(self) -> None:
        """The other way round."""
        key, descending = self._sort[self._view]
        self._sort[self._view] = (key, not descending)
        self._draw()

    def _sort_by(self, column: Column) -> None:
        # Numbers are looked at for the largest, names from A on.
        self._sort[self._view] = (column.key, column.right)
        self._draw()

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """A heading was clicked."""
        column = self._drawn_columns[event.column_index][0]
        if self._sort[self._view][0] == column.key:
            self.action_reverse()
        else:
            self._sort_by(column)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter: why does it stand still?"""
        if event.cursor_row >= len(self._rows):
            return
        key, view = self._rows[event.cursor_row]["key"], self._view

        def follow() -> Chain | None:
            rows = self._picture.views[view] if self._picture is not None else ()
            row = next((row for row in rows if row["key"] == key), None)
            return self._picture.chain(row) if self._picture is not None and row is not None else None

        self.push_screen(ChainScreen(follow))

    def action_filter(self) -> None:
        """Ask for a text."""
        box = self.query_one("#filter", Input)
        box.display = True
        box.focus()

    def action_clear(self) -> None:
        """All rows again."""
        box = self.query_one("#filter", Input)
        box.value = ""
        box.display = False
        self._wanted = ""
        self.query_one(Rows).focus()
        self._draw()

    def on_input_changed(self, event: Input.Changed) -> None:
        """The text is being typed."""
        self._wanted = event.value
        self._draw()

    def on_input_submitted(self) -> None:
        """The text stays, the keys are the table's again."""
        if not self._wanted:
            self.action_clear()
        self.query_one(Rows).focus()

    def on_resize(self, _event: events.Resize) -> None:
        """All lines anew, for this width."""
        self._draw()

    # ------------------------------------------------------------------ drawing

    @property
    def _base(self) -> Screen[object]:
        """Screen of the table, whatever lies over it."""
        return self.screen_stack[0]

    def _draw(self) -> None:
        if not self._can_draw:
            return
        width, height = self.size.width, self.size.height
        self._base.query_one("#keys", Static).update(Text(key_line(width), no_wrap=True))
        picture = self._picture
        if picture is None:
            self._base.query_one("#head", Static).update(Text("asking the broker …", no_wrap=True))
            self._draw_status()
            return
        self._base.query_one("#head", Static).update(Text(head_line(picture.head, width), no_wrap=True))
        lines_max = TROUBLE_LINES_MAX if height < TALL_LINES else 2 * TROUBLE_LINES_MAX
        lines = trouble_lines(picture.troubles, width, lines_max)
        self._base.query_one("#troubles", Static).update(
            Text("\n".join(lines), style="bold red" if picture.troubles else "green", no_wrap=True)
        )
        tabs = Text(no_wrap=True)
        for text, chosen in view_line(self._view, {view: len(rows) for view, rows in picture.views.items()}, width):
            tabs.append(text, style="bold reverse" if chosen else "")
        self._base.query_one("#views", Static).update(tabs)
        self._draw_table(picture, width)
        self._draw_status()
        if isinstance(self.screen, ChainScreen):
            self.screen.renew()

    def _draw_table(self, picture: Picture, width: int) -> None:
        table = self._base.query_one(Rows)
        sort_key, descending = self._sort[self._view]
        found = arranged(picture.views[self._view], sort_key, descending, self._wanted)
        rows = found[:ROWS_MAX]
        self._hidden_count = len(found) - len(rows)
        columns = fitting(self._view, width - table.scrollbar_size_vertical, rows)
        standing = self._rows[table.cursor_row]["key"] if 0 <= table.cursor_row < len(self._rows) else None
        same_rows = [row["key"] for row in rows] == [row["key"] for row in self._rows]
        drawn = [[_content(column, row) for column, _width in columns] for row in rows]
        headings = [(column.key, width) for column, width in columns]
        self._rows = rows
        if headings != [(column.key, width) for column, width in self._drawn_columns] or not table.columns:
            table.clear(columns=True)
            for column, column_width in columns:
                table.add_column(_text(column.heading, "", column, column_width), width=column_width + GAP)
            same_rows = False
        if same_rows:
            for row_number, (old, new) in enumerate(zip(self._drawn_rows, drawn, strict=True)):
                for column_number, (column, column_width) in enumerate(columns):
                    if old[column_number] != new[column_number]:
                        table.update_cell_at(
                            (row_number, column_number),  # type: ignore[arg-type]  # a Coordinate is such a tuple
                            _text(*new[column_number], column, column_width),
                        )
        else:
            top = table.scroll_y
            table.clear()
            for new in drawn:
                table.add_row(
                    *(_text(*content, column, width) for content, (column, width) in zip(new, columns, strict=True))
                )
            keys = [row["key"] for row in rows]
            table.move_cursor(row=keys.index(standing) if standing in keys else 0, scroll=False)
            table.scroll_to(y=top, animate=False, force=True)
        self._drawn_columns, self._drawn_rows = columns, drawn

    def _draw_status(self) -> None:
        said = Text(no_wrap=True)
        if self._gone is not None:
            away_seconds = self._clock() - self._gone_since_seconds
            away = f"gone for {age_in_words(away_seconds)}; " if away_seconds >= 1 else ""
            said.append(f"! {away}{gone_in_words(self._gone)}", style="bold red")
        elif self._paused:
            said.append("paused: p continues", style="bold yellow")
        else:
            key, descending = self._sort[self._view]
            heading = next((column.heading for column, _width in self._drawn_columns if column.key == key), key)
            said.append(f"by {heading} {'↓' if descending else '↑'}" if key else "")
            if self._wanted:
                said.append(f"  with '{self._wanted}': Escape shows all", style="bold")
            if self._hidden_count:
                said.append(f"  {self._hidden_count:,} more rows: / finds them")
            if self._picture is not None and not self._rows:
                said.append("  nothing to show" if self._wanted else f"  {_nothing(self._view)}")
        self._base.query_one("#status", Static).update(said)


def _content(column: Column, row: Row) -> tuple[str, str]:
    """Text and style of a cell."""
    text = cell(column, row)
    return text, STATE_STYLES.get(text, "") if column.key == "state" else ""


def _text(text: str, style: str, column: Column, width: int) -> Text:
    short = cut(text, width)
    return Text(short.rjust(width) if column.right else short, style=style, no_wrap=True, end="")


def _nothing(view: View) -> str:
    if view is View.SUBSCRIPTIONS:
        return "none holds anything: all is acknowledged"
    return f"no {view.value.lower()}" if view is not View.STORE else "this broker has no store: nothing outlives it"


def run(watch: Watch) -> int:
    """Show it until the user has seen enough. Blocks; the terminal is as before when it returns.

    Returns the exit code.
    """
    app = TopApp(watch)
    app.run()
    return app.return_code or 0
