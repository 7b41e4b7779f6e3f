"""The browser, and a broker with a bottleneck; every page is watched for errors, violations and requests elsewhere.

Pictures go to .ci/out/console, and with SLUICEWAY_PICTURES=1 those of the docs to docs/images.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import pytest

from tests.architecture.sources import ROOT
from tests.console.scene import CONFIG, BrokerProcess, Traffic, bottleneck, dead_letters, everyday

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request

DEADLINE_MS: Final = 30_000
OUT: Final = ROOT / ".ci" / "out" / "console"
DOCS: Final = ROOT / "docs" / "images"
IN_DOCS: Final = ("flow-map", "overview", "phone", "dead-letters", "message", "hubs")

Open = Callable[..., "Page"]
Picture = Callable[["Page", str], None]


@pytest.fixture(scope="package")
def broker(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """With a bottleneck, dead letters and what flows. (After the browser: without one nothing need start.)"""
    with BrokerProcess(tmp_path_factory.mktemp("broker"), CONFIG) as running, Traffic(running) as traffic:
        everyday(traffic, running)
        dead_letters(traffic, running)
        bottleneck(traffic, running)
        yield running


@pytest.fixture
def traffic(broker: BrokerProcess) -> Iterator[Traffic]:
    """Clients of one test."""
    with Traffic(broker) as clients:
        yield clients


@pytest.fixture
def watched() -> Iterator[list[str]]:
    """What went wrong in the pages of a test: it must be nothing. A test that expects something takes it out."""
    troubles: list[str] = []
    yield troubles
    assert not troubles, "\n".join(troubles)


@pytest.fixture(scope="package")
def window(browser: Browser) -> Iterator[BrowserContext]:
    """What all pages share: what the browser has fetched already. A test leaves nothing else in it."""
    from playwright.sync_api import expect

    opened = browser.new_context()
    opened.set_default_timeout(DEADLINE_MS)
    expect.set_options(timeout=DEADLINE_MS)  # it has one of its own, of five seconds
    yield opened
    opened.close()


@pytest.fixture
def open_page(window: BrowserContext, broker: BrokerProcess, watched: list[str]) -> Iterator[Open]:
    """Opens `#/page` of the console in a browser that remembers nothing."""
    pages: list[Page] = []

    def opened(
        address: str, *, width: int = 1440, height: int = 900, url: str = "", moving: bool = False, dark: bool = False
    ) -> Page:
        base = url or broker.url
        page = window.new_page()
        pages.append(page)
        page.set_viewport_size({"width": width, "height": height})
        # Without movement: drawing it again and again takes what the test itself needs of the machine.
        motion: Literal["no-preference", "reduce"] = "no-preference" if moving else "reduce"
        page.emulate_media(reduced_motion=motion, color_scheme="dark" if dark else "light")

        def said(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                watched.append(f"console {message.type}: {message.text}")

        def asked(request: Request) -> None:
            if not request.url.startswith(f"{base}/"):
                watched.append(f"a request left the origin: {request.url}")

        page.on("console", said)
        page.on("pageerror", lambda error: watched.append(f"error: {error}"))
        page.on("request", asked)
        page.goto(f"{base}/#/{address}")
        return page

    yield opened
    for page in pages:
        if page.url.startswith("http"):  # about:blank has no storage
            page.evaluate("() => localStorage.clear()")
        page.close()
    window.clear_cookies()


@pytest.fixture
def picture() -> Picture:
    """Keeps what a page looks like."""

    def kept(page: Page, name: str) -> None:
        folders: list[Path] = [OUT]
        if os.environ.get("SLUICEWAY_PICTURES") == "1" and name in IN_DOCS:
            folders.append(DOCS)
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{name}.png"
            page.screenshot(path=path, animations="disabled")
            if folder == DOCS:
                from PIL import Image  # comes with the extra `perf`: only who makes pictures for the docs needs it

                # 256 colours are enough for it, and a third of the bytes.
                Image.open(path).convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE).save(
                    path, optimize=True
                )

    return kept
