"""Cutting a release: the changelog, the version, and pages that print the version."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from scripts.cut_release import CutError, cut_changelog, cut_version, with_version
from sluiceway.version import VERSION
from tests.architecture.sources import ROOT

CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- A thing.\n\n## [0.2.0] - 2026-11-24\n\n- Old.\n"


def test_what_is_unreleased_becomes_the_section_of_the_version() -> None:
    cut = cut_changelog(CHANGELOG, "0.3.0", "2026-12-01")
    assert "## [Unreleased]\n\n## [0.3.0] - 2026-12-01\n\n### Added\n\n- A thing.\n\n## [0.2.0]" in cut


@pytest.mark.parametrize(
    ("text", "version", "why"),
    [
        (CHANGELOG, "0.2.0", "has a section 0.2.0"),
        ("# Changelog\n", "0.3.0", "no heading"),
        ("## [Unreleased]\n\n## [0.2.0] - 2026-11-24\n", "0.3.0", "says nothing"),
    ],
)
def test_a_changelog_that_is_not_ready_is_refused(text: str, version: str, why: str) -> None:
    with pytest.raises(CutError, match=why):
        cut_changelog(text, version, "2026-12-01")


def test_the_version_only_goes_up() -> None:
    text = 'VERSION = "0.9.0"\n'
    assert cut_version(text, "0.10.0") == ('VERSION = "0.10.0"\n', "0.9.0")
    for version in ("0.9.0", "0.8.9"):
        with pytest.raises(CutError, match="does not come after"):
            cut_version(text, version)


def test_printed_versions_follow_and_other_numbers_stay() -> None:
    page = "sluiceway, version 0.1.0, up 1 s\nsluiceway  0.1.0  up 9 s\nother 0.1.0\nsluiceway 0.1.01\n"
    assert with_version(page, "0.1.0", "0.2.0") == (
        "sluiceway, version 0.2.0, up 1 s\nsluiceway  0.2.0  up 9 s\nother 0.1.0\nsluiceway 0.1.01\n"
    )


def test_the_pages_print_the_version_that_this_is() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        if not page.name.startswith("performance"):
            text = page.read_text(encoding="utf-8")
            assert with_version(text, "0.1.0", VERSION) == text, page.name


def test_the_newest_section_of_the_changelog_is_the_version() -> None:
    sections = [
        line.removeprefix("## [").partition("]")[0]
        for line in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("## [")
    ]
    assert sections[:2] == ["Unreleased", VERSION]


def test_a_release_of_what_is_not_committed_is_refused(tmp_path: Path) -> None:
    """Before anything is changed."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "release", tmp_path / "scripts" / "release")
    for command in (["git", "init", "--quiet"], [str(tmp_path / "scripts" / "release"), "0.3.0"]):
        done = subprocess.run(
            command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False
        )
    assert done.returncode == 1
    assert "not committed" in done.stderr
