"""ARCHITECTURE.md and docs/design: short enough to be read, and true about which files there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.sources import CORE, ROOT, modules, parsed
from tests.examples.pages import broken_links, links

ARCHITECTURE: Final = ROOT / "ARCHITECTURE.md"
DESIGN: Final = ROOT / "docs" / "design"
PAGES: Final = (ARCHITECTURE, *sorted(DESIGN.glob("*.md")))
LINES_MAX: Final = 250
LINE_LENGTH_MAX: Final = 130
SELF_EXPLAINING: Final = frozenset({"__init__.py", "errors.py", "config.py", "statistics.py"})
"""Modules that docs/design/modules.md explains once for all folders."""


def test_architecture_is_read_in_ten_minutes() -> None:
    """What does not fit is a decision, a figure or a limit: docs/design has pages for them."""
    assert len(ARCHITECTURE.read_text(encoding="utf-8").splitlines()) <= LINES_MAX


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_fit_an_editor(page: Path) -> None:
    """Rows of tables of docs/design may be longer: Markdown can't break them."""
    long = [
        number
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > LINE_LENGTH_MAX and (page == ARCHITECTURE or not line.startswith("|"))
    ]
    assert not long, f"{page.name}: lines {long} are longer than {LINE_LENGTH_MAX} characters"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    broken = broken_links(page)
    assert not broken, f"{page.name}: {', '.join(broken)}"


def test_every_page_of_the_design_record_is_in_its_index() -> None:
    named = {(DESIGN / link.partition("#")[0]).resolve() for link in links(DESIGN / "README.md")}
    missing = [page.name for page in DESIGN.glob("*.md") if page.name != "README.md" and page not in named]
    assert not missing, f"docs/design/README.md does not name {', '.join(missing)}"


def test_every_module_has_a_row() -> None:
    """A module is named in the section of its folder, or its folder is named in the section of the one above."""
    sections = dict(_sections(DESIGN / "modules.md"))
    missing = []
    for path in modules(*CORE):
        folder = path.parent.relative_to(ROOT)
        if path.name in SELF_EXPLAINING or path.name in sections.get(f"{folder}/", frozenset()):
            continue
        if f"{folder.name}/" not in sections.get(f"{folder.parent}/", frozenset()):
            missing.append(f"{folder / path.name}")
    assert not missing, f"docs/design/modules.md has no row for {', '.join(missing)}"


def test_every_row_is_about_a_module() -> None:
    gone = [
        f"{folder}{name}"
        for folder, names in _sections(DESIGN / "modules.md")
        for name in names
        if name.endswith((".py", "/")) and not (ROOT / folder / name).exists()
    ]
    assert not gone, f"docs/design/modules.md names {', '.join(gone)}"


def test_architecture_names_files_that_are_there() -> None:
    """Of the form `queues/intake.py`: paths below the root."""
    named = re.findall(r"`(\w[\w./]*/[\w.]*)`", ARCHITECTURE.read_text(encoding="utf-8"))
    of_project = [name for name in named if (ROOT / name.partition("/")[0]).is_dir()]
    gone = [name for name in of_project if not (ROOT / name).exists()]
    assert of_project, "it names files"
    assert not gone, f"ARCHITECTURE.md names {', '.join(gone)}"


def test_architecture_names_methods_that_are_there() -> None:
    """Of the form `Pager.relieve`: the walks lead through functions by their names."""
    methods: dict[str, set[str]] = {}
    for path in modules(*CORE, "sluiceway"):
        for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                names = {inner.name for inner in node.body if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)}
                methods.setdefault(node.name, set()).update(names)
    named = re.findall(r"`([A-Z]\w+)\.([a-z_]\w*)`", ARCHITECTURE.read_text(encoding="utf-8"))
    gone = [f"{owner}.{name}" for owner, name in named if name not in methods.get(owner, set())]
    assert named, "it names methods"
    assert not gone, f"ARCHITECTURE.md names {', '.join(gone)}"


def test_decisions_have_dates_and_newest_come_first() -> None:
    for area, text in _parts(DESIGN / "decisions.md"):
        headings = re.findall(r"^### (.*)$", text, re.MULTILINE)
        dates = [heading[:10] for heading in headings if re.match(r"20\d\d-\d\d-\d\d ", heading)]
        assert len(dates) == len(headings), f"decisions.md, {area}: a decision has no date"
        assert dates == sorted(dates, reverse=True), f"decisions.md, {area}: the newest come first"


def _parts(page: Path) -> list[tuple[str, str]]:
    """Headings of the second level, and what stands below each."""
    pieces = re.split(r"^## (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return list(zip(pieces[::2], pieces[1::2], strict=True))


def _sections(page: Path) -> list[tuple[str, frozenset[str]]]:
    """Folders that are headings of a page, with what the first column of their tables names in backticks."""
    return [
        (folder, frozenset(re.findall(r"`([^`]+)`", "".join(re.findall(r"^\|([^|]*)\|", text, re.MULTILINE)))))
        for folder, text in _parts(page)
    ]
