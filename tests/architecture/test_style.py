"""What a reader may rely on in every file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.sources import PACKAGES, ROOT, modules, project_files

VAGUE_NAMES: Final = frozenset({"utils", "util", "helpers", "helper", "common", "misc"})
DOCSTRING: Final = re.compile(r'''(?:#.*\n|\s)*r?"""\s*[^\s"]''')
"""How a module with a docstring begins: after comments. To parse all of them would take as long as to compile them."""
ALL_MODULES: Final = modules(*PACKAGES, "perf", "tests", "examples", "scripts")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_module_says_what_it_is_for() -> None:
    """One test for all: a test for each of them would take longer to be called than to look."""
    mute = [relative(path) for path in ALL_MODULES if not DOCSTRING.match(path.read_text(encoding="utf-8"))]
    assert len(ALL_MODULES) > 1000
    assert not mute, f"no docstring: {', '.join(mute)}"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ('"""What it is."""\n', True),
        ('#!/usr/bin/python3\n# A comment.\n\n"""What it is."""\n', True),
        ('r"""\nWhat it is."""\n', True),
        ('""" """\n', False),
        ('import os\n\n"""Too late."""\n', False),
        ("", False),
    ],
)
def test_a_module_without_a_docstring_is_found(source: str, says: bool) -> None:
    assert (DOCSTRING.match(source) is not None) == says


def test_no_module_has_a_name_that_says_nothing() -> None:
    vague = [relative(path) for path in ALL_MODULES if path.stem in VAGUE_NAMES]
    assert not vague, f"name them after what they do: {', '.join(vague)}"


def test_every_folder_of_tests_is_a_package() -> None:
    """Otherwise pytest puts the folder above on the import path, and `tests/flow` could stand in for `flow`."""
    folders = {path.parent for path in modules("tests")}
    missing = sorted(relative(folder) for folder in folders if not (folder / "__init__.py").exists())
    assert not missing, f"no __init__.py in {', '.join(missing)}"


# Put together from parts, or this file would find itself.
FORBIDDEN: Final = {
    "the host of a package registry": re.compile(
        "|".join(["pypi" + r"\.org", "files" + r"\.pythonhosted", "npmjs" + r"\.(com|org)"])
    ),
    "an index option of pip": re.compile("--(extra-)?" + "index-url|--" + "find-links"),
    "a home or work folder of one machine": re.compile(
        r"(?<![\w.~-])/(" + "work/(main|shared)|" + "root/|" + r"home/(?!user\b)[a-z]+/)"
    ),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_names(what: str) -> None:
    """A checkout works anywhere: no address of a registry, no path of the machine it was written on."""
    found = []
    for path in project_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture or other data
        found += [f"{relative(path)}: {match[0]}" for match in FORBIDDEN[what].finditer(text)]
    assert not found, f"{what} in {'; '.join(found[:10])}"
