"""The page of hubs: which has which shard, and the links between them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import stomp
from playwright.sync_api import Browser, expect

from tests.console.conftest import Open, Picture
from tests.console.scene import BrokerProcess, wait_until

pytestmark = pytest.mark.browser

CONFIG = """
[logging]
level = "warning"

[broker]
data_dir = "data"
"""


@pytest.fixture
def broker(browser: Browser, tmp_path: Path) -> Iterator[BrokerProcess]:
    """Two hubs with messages in some queues. (After the browser: without one nothing need start.)"""
    with BrokerProcess(tmp_path, CONFIG, "--hubs", "2") as running:

        def are_linked() -> bool:
            found = running.ask("/cluster")
            return all(shard["open"] and not shard["to"] for shard in found["shards"]) and all(
                len(hub.get("links", ())) == 1 for hub in found["hubs"]
            )

        wait_until(are_linked, "all shards are open, and the hubs linked")
        client = stomp.Connection12([(running.host, running.port)])
        client.connect(wait=True)
        for number in range(24):
            for copy in range(1 + number % 5):
                client.send(f"/queue/orders.{number}", "x" * 500 * (1 + copy))
        wait_until(lambda: running.ask("/overview")["totals"]["depth_count"] == 70, "all messages are there")
        yield running
        client.disconnect()


def test_the_page_of_hubs_shows_owners_sizes_and_links(
    open_page: Open, broker: BrokerProcess, picture: Picture
) -> None:
    page = open_page("overview", url=broker.url)
    page.locator(".nav").get_by_text("Hubs").click()
    expect(page.locator("h1")).to_have_text("Hubs")
    expect(page.locator(".hubs-map .shard.is-open")).to_have_count(32)
    expect(page.locator(".hubs-map .hub-link")).to_have_count(1)
    expect(page.locator(".hub-box .facts")).to_have_text(["16 shards", "16 shards"])
    picture(page, "hubs")
    page.locator(".hubs-map .shard", has_text="").nth(0).evaluate("node => node.dispatchEvent(new Event('click'))")
    expect(page.get_by_role("heading", name="Shard 0", exact=True)).to_be_visible()
