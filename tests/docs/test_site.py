"""The site that scripts/docs builds is whole, and needs no other server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

import pytest

import pyspark_stomp
import sluiceway.client
import sluiceway.config
from sluiceway.version import VERSION
from tests.architecture.sources import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

LOADED: Final = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src")}
"""What a browser fetches by itself when it shows a page."""

NOT_THERE: Final = {"DefaultSource"}
"""Stands in the reference under its own name, StompDataSource."""

REL_NOT_LOADED: Final = {"canonical", "next", "prev"}


class Addresses(HTMLParser):
    """Finds what a page makes a browser fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if values.get("rel") not in REL_NOT_LOADED:
            self.loaded += [value or "" for name, value in attrs if (tag, name) in LOADED]


def build(into: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "site" / "build.py"), "--into", str(into)]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, stdin=subprocess.DEVNULL, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a site that was built anew, beside an older version."""
    folder = tmp_path_factory.mktemp("site")
    for older in ("0.0.9", "0.0.10"):
        (folder / older).mkdir()
        (folder / older / "index.html").write_text("older")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    return folder


def pages(site: Path) -> list[Path]:
    return sorted((site / VERSION).rglob("*.html"))


def test_every_link_leads_somewhere_and_every_page_has_a_place(site: Path) -> None:
    """The build fails otherwise; here only that it has not passed pages over."""
    names = {page.relative_to(site / VERSION).as_posix() for page in pages(site)}
    assert {"index.html", "stomp.html", "man/sluiceway.html", "source/ARCHITECTURE.html"} <= names
    assert "source/examples/embedded.py.html" in names
    assert len(names) > 60


def test_the_reference_has_signatures_and_docstrings(site: Path) -> None:
    """Of everything that is public: names that leave the code are missing here first."""
    for module, page in (
        (sluiceway, "broker"),
        (sluiceway, "embedded"),
        (sluiceway.client, "client"),
        (pyspark_stomp, "spark"),
        (sluiceway.config, "configuration"),
    ):
        text = (site / VERSION / "api" / f"{page}.html").read_text(encoding="utf-8")
        ids = set(re.findall(r'id="([\w.]+)"', text))
        public = set(module.__all__) - NOT_THERE
        if module is sluiceway:
            public = {"Broker"} if page == "broker" else {"AsyncEmbeddedBroker", "EmbeddedBroker"}
        assert not [name for name in public if not any(known.endswith(f".{name}") for known in ids)]
        assert "doc-signature" in text


def test_no_page_makes_a_browser_ask_another_server(site: Path) -> None:
    for page in pages(site):
        found = Addresses()
        found.feed(page.read_text(encoding="utf-8"))
        assert not [address for address in found.loaded if "//" in address], page.name
    for sheet in (site / VERSION).rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*['\"]?https?:", sheet.read_text(encoding="utf-8")), sheet.name


def test_readers_can_search_and_choose_their_version(site: Path) -> None:
    index = json.loads((site / VERSION / "search" / "search_index.json").read_text(encoding="utf-8"))
    assert any("prefetch-count" in entry["text"] for entry in index["docs"])
    assert not [entry for entry in index["docs"] if entry["location"].startswith("source/examples/embedded")]
    versions = json.loads((site / "versions.json").read_text(encoding="utf-8"))
    assert [entry["version"] for entry in versions] == [VERSION, "0.0.10", "0.0.9"]
    assert f"url={VERSION}/index.html" in (site / "index.html").read_text(encoding="utf-8")


def test_dark_mode_is_there(site: Path) -> None:
    page = (site / VERSION / "index.html").read_text(encoding="utf-8")
    assert "slate" in page
    assert "prefers-color-scheme: dark" in page
