"""Whatever is in names, headers and bodies is shown as text, and nothing of it runs."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.console.conftest import Open
from tests.console.scene import SCRIPT, BrokerProcess, Traffic

pytestmark = pytest.mark.browser


def test_markup_is_shown_as_text_everywhere(open_page: Open, tmp_path: Path) -> None:
    """In the lists, the map, the page of a destination, and of a message: its headers, its body in each view.

    On a broker of its own: so much may be on that of the others that the map leaves this out.
    """
    name = f"/queue/{SCRIPT}"
    with BrokerProcess(tmp_path, "") as broker, Traffic(broker) as traffic:
        traffic.send(SCRIPT, name, [SCRIPT, f'{{"{SCRIPT}": "{SCRIPT}"}}'], **{f"x{SCRIPT}": SCRIPT})
        traffic.consume(SCRIPT, f"/queue/other{SCRIPT}", SCRIPT)
        page = open_page("destinations?q=script", url=broker.url)
        expect(page.get_by_role("link", name=name, exact=True)).to_be_visible()
        for address in ("overview", "map", "consumers", "connections"):
            page.evaluate("address => { location.hash = address }", f"#/{address}")
            expect(page.locator("main")).to_contain_text("/queue/<" if address == "map" else "<script>")
            assert_harmless(page)
        page.evaluate("address => { location.hash = address }", f"#/destination?name={quote(name)}")
        expect(page.locator("h1")).to_have_text(name)
        page.get_by_role("link", name="Browse messages").click()
        for row, view in ((0, "text"), (1, "JSON")):
            page.locator("td.lead button").nth(row).click()
            detail = page.get_by_label("One message")
            expect(detail.locator("dl")).to_contain_text(f"x{SCRIPT}{SCRIPT}")
            detail.get_by_role("button", name=view).click()
            expect(detail.locator("pre")).to_contain_text(SCRIPT)
            detail.get_by_role("button", name="hex").click()
            expect(detail.locator("pre")).to_contain_text("3c 73 63 72 69 70 74")
        assert_harmless(page)
        page.goto("about:blank")  # nothing is asked for any more when the broker ends


def assert_harmless(page: object) -> None:
    found = page.evaluate(  # type: ignore[attr-defined]
        "() => [window.ranScript, document.images.length, document.querySelectorAll('#app script').length]"
    )
    assert found in ([None, 0, 0],), found


def test_a_script_that_got_into_the_page_would_not_run(open_page: Open, watched: list[str]) -> None:
    """The policy of the page is the second fence: inline scripts and handlers are refused."""
    page = open_page("logs")
    expect(page.locator("h1")).to_have_text("Logs")
    page.evaluate("html => document.querySelector('main').insertAdjacentHTML('beforeend', html)", SCRIPT)
    page.evaluate(
        "() => document.body.append(Object.assign(document.createElement('script'), {text: 'ranScript = 1'}))"
    )
    page.wait_for_function("() => document.images.length === 1 && document.images[0].complete")
    assert page.evaluate("() => window.ranScript") is None
    assert any("Content Security Policy" in trouble for trouble in watched)
    watched.clear()  # that is what was wanted
