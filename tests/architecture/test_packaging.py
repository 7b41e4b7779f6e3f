"""pyproject.toml, constraints.txt and the folders tell one story."""

from __future__ import annotations

import re
import tomllib
from typing import Any, Final

import pytest

from sluiceway.version import VERSION
from tests.architecture.sources import CORE, PACKAGES, ROOT

PYPROJECT_TEXT: Final = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
PYPROJECT: Final[dict[str, Any]] = tomllib.loads(PYPROJECT_TEXT)
PROJECT: Final[dict[str, Any]] = PYPROJECT["project"]
DEPENDENCIES: Final[list[str]] = [
    *PROJECT["dependencies"],
    *(requirement for extra in PROJECT["optional-dependencies"].values() for requirement in extra),
]


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def package_of(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None
    return plain(match[0])


def test_every_package_is_one_of_the_two_that_are_installed_or_of_the_five_that_are_linked() -> None:
    """What a wheel holds is in tests/packaging."""
    listed = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert set(listed) == set(PACKAGES) - set(CORE)
    there = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert there - {"tests", "perf", "examples"} == set(PACKAGES)


def test_the_sdist_has_each_of_the_five_once() -> None:
    """Where they are imported from; what is the same folder by another way would be left out there."""
    excluded = PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["exclude"]
    assert set(excluded) >= {f"/{name}" for name in CORE}


@pytest.mark.parametrize("requirement", DEPENDENCIES)
def test_every_dependency_is_pinned_in_the_constraints(requirement: str) -> None:
    pins = {
        plain(line.split("==")[0])
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    }
    assert package_of(requirement) in {*pins, "sluiceway"}


@pytest.mark.parametrize("requirement", DEPENDENCIES)
def test_every_dependency_says_why_it_is_there(requirement: str) -> None:
    """In a comment behind it, or in the line above."""
    lines = PYPROJECT_TEXT.splitlines()
    at = next(number for number, line in enumerate(lines) if f'"{requirement}"' in line)
    above = next(line for line in reversed(lines[:at]) if not line.lstrip().startswith('"plyvel'))
    assert "#" in lines[at] or above.lstrip().startswith("#")


def test_the_changelog_knows_the_version() -> None:
    """Released ones have a heading; the one in the making is under Unreleased."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## [Unreleased]" in text or f"## [{VERSION}]" in text


def test_the_python_floor_is_the_same_everywhere() -> None:
    assert PROJECT["requires-python"] == ">=3.11"
    assert PYPROJECT["tool"]["mypy"]["python_version"] == "3.11"
    assert PYPROJECT["tool"]["ruff"]["target-version"] == "py311"
    assert "(3, 11)" in (ROOT / "scripts" / "setup").read_text(encoding="utf-8")
