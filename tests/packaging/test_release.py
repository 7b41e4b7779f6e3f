"""Cutting a release: the changelog, the version, and pages that print the version."""

from __future__ import annotations

import pytest

from scripts.cut_release import CutError, cut_changelog, cut_version, with_version

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
