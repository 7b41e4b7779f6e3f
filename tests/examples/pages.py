"""Takes the documents apart: shell sessions, files that a reader is told to write, links, tables.

Fences that mean something, by their info string:

    console         commands after `$ `, each with what it prints
    console server  one command that stays: a broker; it ends the one before
    console offline commands that run when the broker before them has ended
    toml, python    a file, if the first line is `# NAME.toml` or `# NAME.py`
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Literal

import attrs

from tests.architecture.sources import ROOT

OF_THE_ROOT: Final = ("README.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES: Final = tuple(sorted([*(ROOT / name for name in OF_THE_ROOT), *(ROOT / "docs").glob("*.md")]))


@attrs.frozen
class Command:
    """What follows a `$ `, and the lines that it prints."""

    line_number: int
    text: str
    expected: str


@attrs.frozen
class Block:
    """One fence of a page."""

    line_number: int
    kind: Literal["session", "server", "offline", "file", "other"]
    text: str

    @property
    def file_name(self) -> str:
        """Of a file: its name."""
        return self.text.split("\n", 1)[0].removeprefix("# ")

    @property
    def commands(self) -> list[Command]:
        """Of a session, server or offline session: the commands, in order."""
        found: list[Command] = []
        for number, line in enumerate(self.text.splitlines(), self.line_number + 1):
            if line.startswith("$ "):
                found.append(Command(number, line[2:], ""))
            else:
                assert found, f"line {number}: a session begins with a command"
                found[-1] = attrs.evolve(found[-1], expected=f"{found[-1].expected}{line}\n")
        return found


def blocks(page: Path) -> list[Block]:
    """The fences of a page, in order."""
    found = []
    lines = page.read_text(encoding="utf-8").splitlines()
    start = None
    for number, line in enumerate(lines, 1):
        if not line.startswith("```"):
            continue
        if start is None:
            start = number
        else:
            text = "".join(f"{inner}\n" for inner in lines[start : number - 1])
            found.append(Block(start, _kind(lines[start - 1][3:].strip(), text), text))
            start = None
    assert start is None, f"{page.name}: the fence of line {start} does not end"
    return found


def _kind(info: str, text: str) -> Literal["session", "server", "offline", "file", "other"]:
    if info == "console":
        return "session"
    if info == "console server":
        return "server"
    if info == "console offline":
        return "offline"
    if info in ("toml", "python") and re.match(r"# [\w.]+\.(toml|py)\n", text):
        return "file"
    return "other"


def links(page: Path) -> list[str]:
    """What it links to, as written, without links to other places of the net."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]


def anchors(page: Path) -> set[str]:
    """What can stand behind a `#`: its headings, as they are turned into anchors."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    """Its links that lead to no file of the project, or to no heading of one."""
    broken = []
    for link in links(page):
        path, _hash, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken
