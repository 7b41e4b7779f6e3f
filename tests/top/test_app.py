"""The terminal of `sluiceway top`, driven by Textual's own pilot: keys in, lines out."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from rich.color import Color
from textual.pilot import Pilot

from sluiceway.top.app import ROWS_MAX, TopApp
from sluiceway.top.feed import Answer, Gone, News
from tests.asyncio_apart import run_apart
from tests.top.reports import HELD_UP, chain, destination, report

SECONDS_MAX = 60.0


class Driven:
    """A running app, its screen as text, and a clock that a test moves."""

    def __init__(self, app: TopApp, pilot: Pilot[None], now: list[float]) -> None:
        self.app = app
        self.now = now
        self._pilot = pilot

    async def take(self, news: News) -> None:
        self.app.take(news)
        await self._pilot.pause()

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)
        await self._pilot.pause()

    async def resize(self, width: int, height: int) -> None:
        await self._pilot.resize_terminal(width, height)
        await self._pilot.pause()

    async def click(self, x: int, y: int) -> None:
        await self._pilot.click(offset=(x, y))
        await self._pilot.pause()

    @property
    def lines(self) -> list[str]:
        strips = self.app.screen._compositor.render_strips()
        return ["".join(segment.text for segment in strip).rstrip() for strip in strips]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def names(self) -> list[str]:
        """The destinations in the table, from top to bottom."""
        return [match[0] for line in self.lines if (match := re.match(r"/\w+/[\w.-]+", line))]


def drive(act: Callable[[Driven], Awaitable[None]], *, size: tuple[int, int] = (80, 24)) -> TopApp:
    """Run the app, let `act` use it, end it."""

    async def run() -> TopApp:
        now = [100.0]
        app = TopApp(None, clock=lambda: now[0])
        async with asyncio.timeout(SECONDS_MAX), app.run_test(size=size) as pilot:
            await act(Driven(app, pilot, now))
        return app

    return run_apart(run())


def many(count: int, **values: Any) -> dict[str, Any]:
    return report(1.0, destinations=[destination(f"/queue/q{n}", added=n, **values) for n in range(count)])


@pytest.mark.parametrize("size", [(80, 24), (40, 16), (132, 50), (30, 8)])
def test_it_shows_broker_bottleneck_views_and_rows_at_any_size(size: tuple[int, int]) -> None:
    async def act(top: Driven) -> None:
        await top.take(Answer(report(50.0, **HELD_UP)))
        assert top.lines[0].startswith("b  ")
        assert "blocked" in top.lines[0]
        assert "subscription 1 of peer-c" in top.text
        assert "[1 " in top.text
        assert "q quit" in top.lines[-1]
        assert all(len(line) <= size[0] for line in top.lines)
        assert any(line.startswith("/queue/orders") for line in top.lines) or size[1] < 10

    drive(act, size=size)


def test_rates_appear_with_the_second_answer() -> None:
    async def act(top: Driven) -> None:
        await top.take(Answer(report(1.0, destinations=[destination("/queue/a")])))
        await top.take(Answer(report(3.0, destinations=[destination("/queue/a", added=500, settled=100)])))
        assert "in 250/s" in top.lines[0]
        [row] = [line for line in top.lines if line.startswith("/queue/a")]
        assert row.split()[1:4] == ["250", "50", "400"]
        assert row.endswith("grows")

    drive(act)


def test_enter_follows_the_chain_step_by_step_and_escape_leaves() -> None:
    async def act(top: Driven) -> None:
        await top.take(Answer(report(50.0, **HELD_UP)))
        await top.press("2", "enter")
        assert "connection peer-a, 30 s" in top.text
        assert "waits on queue /queue/orders (memory full)" in top.text
        await top.press("enter", "enter", "enter")
        assert "what to do: Client peer-c" in top.text
        later = {**HELD_UP, "chains": [chain(*[{**wait, "age_seconds": 77.0} for wait in HELD_UP["edges"]])]}
        await top.take(Answer(report(51.0, **later)))
        assert "connection peer-a, 77 s" in top.text, "it follows the broker"
        assert "what to do: Client peer-c" in top.text, "and stays where it was"
        await top.press("escape")
        assert "q quit" in top.lines[-1]

    drive(act)


def test_a_chain_whose_row_is_gone_says_so() -> None:
    async def act(top: Driven) -> None:
        await top.take(Answer(report(50.0, **HELD_UP)))
        await top.press("enter")
        await top.take(Answer(report(51.0)))
        assert "It is gone." in top.text
        await top.press("escape")

    drive(act)


def test_sort_goes_through_the_columns_and_reverse_turns_it_round() -> None:
    async def act(top: Driven) -> None:
        rows = [destination("/queue/a", added=1, unsettled_count=9), destination("/queue/b", added=5)]
        await top.take(Answer(report(1.0, destinations=rows)))
        assert top.names() == ["/queue/b", "/queue/a"], "the deepest first"
        await top.press("r")
        assert top.names() == ["/queue/a", "/queue/b"]
        while "by unacked" not in top.text:
            await top.press("s")
        assert top.names() == ["/queue/a", "/queue/b"]
        await top.press("r")
        assert top.names() == ["/queue/b", "/queue/a"]

    drive(act)


def test_a_click_on_a_heading_sorts_by_it() -> None:
    async def act(top: Driven) -> None:
        await top.take(Answer(report(1.0, destinations=[destination("/queue/b", added=1), destination("/queue/a")])))
        at = next(number for number, line in enumerate(top.lines) if line.startswith("destination"))
        await top.click(2, at)
        assert top.names() == ["/queue/a", "/queue/b"]
        assert "by destination ↑" in top.text

    drive(act)


def test_a_filter_keeps_what_has_the_text_and_escape_shows_all_again() -> None:
    async def act(top: Driven) -> None:
        await top.take(Answer(many(30)))
        await top.press("slash", "q", "1", "7")
        assert top.names() == ["/queue/q17"]
        await top.press("enter")
        assert "with 'q17'" in top.text
        await top.press("p", "p")  # keys are keys again, not text
        assert top.names() == ["/queue/q17"]
        await top.press("escape")
        assert len(top.names()) > 10

    drive(act)


def test_a_filter_that_finds_nothing_says_so() -> None:
    async def act(top: Driven) -> None:
        await top.take(Answer(many(3)))
        await top.press("slash", "x", "y", "enter")
        assert "nothing to show" in top.text

    drive(act)


def test_pause_keeps_the_picture_until_it_goes_on() -> None:
    async def act(top: Driven) -> None:
        await top.take(Answer(report(1.0, destinations=[destination("/queue/a", added=1)])))
        await top.press("p")
        await top.take(Answer(report(2.0, destinations=[destination("/queue/b", added=1)])))
        assert top.names() == ["/queue/a"]
        assert "paused" in top.text
        await top.press("p")
        assert top.names() == ["/queue/b"]
        assert "in 1.0/s" in top.lines[0], "what came meanwhile was counted"

    drive(act)


def test_a_broker_that_is_gone_is_told_and_the_last_picture_stays() -> None:
    async def act(top: Driven) -> None:
        await top.take(Answer(report(50.0, **HELD_UP)))
        await top.take(Gone("stomp://x closed the connection", 0.5))
        assert "! no answer: stomp://x closed the connection; next try in 500 ms" in top.text
        assert "/queue/orders" in top.text
        top.now[0] += 12
        await top.take(Gone("no broker answers at stomp://x", 4.0))
        assert "! gone for 12 s; no answer: no broker answers at stomp://x" in top.text
        await top.take(Answer(report(1.0)))
        assert "no answer" not in top.text

    drive(act)


def test_a_broker_that_was_never_there_is_waited_for() -> None:
    async def act(top: Driven) -> None:
        assert "asking the broker" in top.text
        await top.take(Gone("no broker answers", 1.0))
        assert "no broker answers" in top.text
        await top.press("s", "r", "enter", "tab", "question_mark", "escape")

    drive(act)


def test_the_cursor_stays_with_its_row_when_the_order_changes() -> None:
    async def act(top: Driven) -> None:
        a, b = destination("/queue/a", added=9), destination("/queue/b", added=5)
        await top.take(Answer(report(1.0, destinations=[a, b])))
        await top.press("down")
        await top.take(Answer(report(2.0, destinations=[a, destination("/queue/b", added=50)])))
        assert top.names() == ["/queue/b", "/queue/a"]
        await top.press("enter")
        assert "/queue/b" in top.lines[1]
        assert "/queue/a" not in top.text

    drive(act)


def test_every_view_can_be_reached_and_is_named() -> None:
    async def act(top: Driven) -> None:
        logs = [{"log": "/log/l", "next": 5, "size": 5, "groups": [{"group": "g", "lag": 5, "front": 0}]}]
        await top.take(Answer(report(1.0, **HELD_UP, logs=logs, store={"state": "ok", "syncs_count": 3})))
        for keys, shown in (("2", "peer-a"), ("tab", "peer-c"), ("right", "/log/l"), ("5", "g"), ("6", "syncs")):
            await top.press(keys)
            assert any(line.lstrip().startswith(("peer-a", "1 ", "/log/l", "g ", "syncs")) for line in top.lines), keys
            assert shown in top.text
        await top.press("right")
        assert "/queue/orders" in top.text, "the views are a ring"

    drive(act, size=(100, 30))


def test_views_with_nothing_in_them_say_so() -> None:
    async def act(top: Driven) -> None:
        await top.take(Answer(report(1.0)))
        assert "no destinations" in top.text
        await top.press("3")
        assert "all is acknowledged" in top.text
        await top.press("6")
        assert "has no store" in top.text

    drive(act)


def test_the_help_explains_keys_and_columns() -> None:
    async def act(top: Driven) -> None:
        await top.take(Answer(report(1.0, **HELD_UP)))
        await top.press("question_mark")
        assert "Enter           why is it blocked?" in top.text
        await top.press("pagedown", "pagedown")
        assert "messages acknowledged" in top.text
        await top.press("escape")
        assert "q quit" in top.lines[-1]

    drive(act)


def test_many_rows_are_cut_and_the_rest_is_counted() -> None:
    async def act(top: Driven) -> None:
        await top.take(Answer(many(ROWS_MAX + 1234)))
        assert "1,234 more rows: / finds them" in top.text

    drive(act)


def test_names_of_clients_are_shown_as_text() -> None:
    """Neither markup nor control characters do anything."""

    async def act(top: Driven) -> None:
        evil = "/queue/[bold red]x[/]\x1b[2J\x07"
        words = "queue [link=http://x]y[/link]\x1b]0;title\x07 blocks 1 flow"
        rows = [destination(evil, added=1)]
        await top.take(
            Answer(report(1.0, destinations=rows, bottlenecks=[{"words": words, "oldest_seconds": 5.0, "sink": "x"}]))
        )
        assert "/queue/[bold red]x[/]\\x1b[2J\\x07" in top.text
        assert "[link=http://x]y[/link]\\x1b]0;title\\x07" in top.text
        await top.press("enter")
        assert "[bold red]x[/]\\x1b[2J" in top.text
        assert not re.search(r"[\x00-\x09\x0b-\x1f]", top.text)

    drive(act, size=(120, 24))


def test_a_smaller_terminal_is_drawn_anew() -> None:
    async def act(top: Driven) -> None:
        await top.take(Answer(report(50.0, **HELD_UP)))
        await top.resize(40, 12)
        assert all(len(line) <= 40 for line in top.lines)
        assert "[1 dest]" in top.text

    drive(act)


def test_without_colours_nothing_is_coloured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def act(top: Driven) -> None:
        await top.take(Answer(report(50.0, **HELD_UP)))
        app = top.app
        for strip in app.screen._compositor.render_strips():
            for line_filter in app._filters:
                strip = strip.apply_filter(line_filter, app.background_colors[0])
            for segment in strip:
                colours = segment.style and {segment.style.color, segment.style.bgcolor}
                assert not colours or colours <= {None, Color.default()}

    drive(act)


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
def test_it_ends_cleanly(key: str) -> None:
    async def act(top: Driven) -> None:
        await top.take(Answer(report(50.0, **HELD_UP)))
        await top.press(key)

    app = drive(act)
    assert app.return_code == 0


def test_what_the_thread_tells_is_shown_and_the_thread_is_told_to_end() -> None:
    ended = threading.Event()

    def watch(tell: Callable[[News], None], stop: threading.Event) -> None:
        tell(Answer(report(1.0, destinations=[destination("/queue/from-thread")])))
        stop.wait(SECONDS_MAX)
        ended.set()

    async def run() -> None:
        app = TopApp(watch)
        async with asyncio.timeout(SECONDS_MAX), app.run_test(size=(80, 24)) as pilot:
            top = Driven(app, pilot, [0.0])
            while "/queue/from-thread" not in top.text:
                await pilot.pause()

    run_apart(run())
    assert ended.wait(SECONDS_MAX)
