"""The console's files: nothing from elsewhere, nothing that puts in markup, small modules, colours that can be read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.sources import ROOT

CONSOLE: Final = ROOT / "sluiceway" / "console"
FILES: Final = sorted(path for path in CONSOLE.rglob("*") if path.suffix in (".js", ".css", ".html", ".svg"))
LINES_MAX: Final = 500
IMAGE_BYTES_MAX: Final = 150_000
CONTRAST: Final = 4.5
"""WCAG AA, of text."""


def relative(path: Path) -> str:
    return str(path.relative_to(CONSOLE))


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_a_file_has_one_idea_and_asks_nobody_else(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < LINES_MAX
    elsewhere = [url for url in re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"']*", text) if "www.w3.org" not in url]
    assert elsewhere == []
    if path.suffix == ".js":
        assert text.startswith("// "), "it says what it is for"
        markup = re.findall(r"\b(?:innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval|Function)\b", text)
        assert markup == [], "text is put in as text"
    if path.suffix == ".html":
        assert not re.findall(r"<script(?![^>]*\ssrc=)|\sstyle=|\son\w+=|<style", text), "the policy forbids it"


def test_every_module_that_is_imported_exists() -> None:
    for path in FILES:
        if path.suffix == ".js":
            for name in re.findall(r'from "(\.[^"]+)"', path.read_text(encoding="utf-8")):
                assert (path.parent / name).is_file(), f"{relative(path)} imports {name}"


def palettes() -> dict[str, dict[str, str]]:
    text = (CONSOLE / "css" / "tokens.css").read_text(encoding="utf-8")
    light, dark = re.findall(r":root[^{]*\{(.*?)\n\}", text, re.DOTALL)
    found = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", part)) for part in (light, dark)]
    return {"light": found[0], "dark": {**found[0], **found[1]}}


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    ("text", "ground"),
    [
        *((text, ground) for text in ("text", "muted", "accent") for ground in ("ground", "surface", "sunken")),
        *((f"{state}-text", f"{state}-ground") for state in ("throttled", "blocked", "paused")),
        *((f"{state}-text", "surface") for state in ("open", "throttled", "blocked", "paused")),
        *((text, "accent-ground") for text in ("text", "accent", "muted", "open-text")),
        ("text", "blocked-ground"), ("muted", "blocked-ground"), ("good", "good-ground"), ("good", "surface"),
        ("good", "sunken"), ("throttled-text", "sunken"), ("paused-text", "sunken"), ("on-accent", "accent"),
        ("surface", "text"), ("surface", "blocked-text"),
    ],
)  # fmt: skip
def test_text_can_be_read_on_its_ground(theme: str, text: str, ground: str) -> None:
    colors = palettes()[theme]
    lighter, darker = sorted((luminance(colors[text]), luminance(colors[ground])), reverse=True)
    assert (lighter + 0.05) / (darker + 0.05) >= CONTRAST


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "images").glob("*.png")), ids=lambda path: path.name)
def test_a_picture_of_the_docs_is_small(path: Path) -> None:
    """Made anew by: SLUICEWAY_PICTURES=1 scripts/test -n 0 tests/console"""
    assert path.stat().st_size < IMAGE_BYTES_MAX
