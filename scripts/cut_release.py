"""Cuts a release in the files of the checkout: version, changelog, and sessions of the pages that print the version.

    python scripts/cut_release.py VERSION [DATE]

DATE defaults to today, in UTC. Called by scripts/release.
"""

from __future__ import annotations

import datetime
import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
VERSION: Final = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
UNRELEASED: Final = "## [Unreleased]"
VERSION_FILE: Final = "sluiceway/version.py"


class CutError(Exception):
    """The release can't be cut. The message has the reason."""


def numbers(version: str) -> tuple[int, ...]:
    """Return MAJOR, MINOR, PATCH of a version."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def cut_changelog(text: str, version: str, date: str) -> str:
    """Return the changelog with what is under Unreleased as the section of `version`. Raises CutError."""
    head, mark, rest = text.partition(f"{UNRELEASED}\n")
    if not mark:
        raise CutError(f"CHANGELOG.md has no heading {UNRELEASED!r}")
    if f"## [{version}]" in text:
        raise CutError(f"CHANGELOG.md has a section {version} already")
    if not rest.partition("\n## [")[0].strip():
        raise CutError("CHANGELOG.md says nothing under Unreleased")
    return f"{head}{mark}\n## [{version}] - {date}\n{rest}"


def cut_version(text: str, version: str) -> tuple[str, str]:
    """Return version.py with the new version, and the old version. Raises CutError."""
    found = re.search(r'^VERSION = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise CutError(f"{VERSION_FILE} has no line VERSION")
    old = found[1]
    if numbers(version) <= numbers(old):
        raise CutError(f"{version} does not come after {old}")
    return text.replace(f'"{old}"', f'"{version}"'), old


def with_version(text: str, old: str, new: str) -> str:
    """Return a page with the version in what commands print: `sluiceway, version 0.1.0`, `sluiceway  0.1.0  up`."""
    return re.sub(rf"(sluiceway(?:, version|,)? +){re.escape(old)}\b", rf"\g<1>{new}", text)


def main(version: str, date: str) -> None:
    """Cut the release. Writes nothing if something is wrong."""
    if VERSION.fullmatch(version) is None:
        raise CutError(f"{version!r} is no version such as 0.3.0")
    code, old = cut_version((ROOT / VERSION_FILE).read_text(encoding="utf-8"), version)
    files = {
        ROOT / VERSION_FILE: code,
        ROOT / "CHANGELOG.md": cut_changelog((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version, date),
    }
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        if not page.name.startswith("performance"):  # says what was measured
            files[page] = with_version(page.read_text(encoding="utf-8"), old, version)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else datetime.datetime.now(datetime.UTC).date().isoformat())
    except CutError as error:
        sys.exit(f"scripts/release: {error}")
