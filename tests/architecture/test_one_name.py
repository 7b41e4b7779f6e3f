"""Each module has one name: the five folders at the root are `sluiceway.flow` and so on, by way of links."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from typing import Final

import pytest

from tests import bare_names
from tests.architecture.sources import CORE, PACKAGES, ROOT, modules, name_of, parsed

#: Imports every module that it is told to, in this order, and says which modules came from the five folders, and which
#: files were loaded under several names. Modules whose extra is not installed are left out.
IMPORTING: Final = """
import importlib, json, os, sys
names, five = sys.argv[2:], sys.argv[1].split(",")
for name in names:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name in names:
            raise
files = {}
for name, module in sys.modules.items():
    file = getattr(module, "__file__", None)
    if file and name != "__main__":
        files.setdefault(os.path.realpath(file), set()).add(id(module))
json.dump(
    {
        "bare": sorted(name for name in sys.modules if name.partition(".")[0] in five),
        "twice": sorted(file for file, loaded in files.items() if len(loaded) > 1),
        "loaded": sorted(name for name in sys.modules if name in names),
    },
    sys.stdout,
)
"""


MAY_IMPORT_BARE: Final = re.compile(rf"\b(?:import|from)\s[^\n]*(?<![\w.])(?:{'|'.join(CORE)})\b|\bimport\b.*\\\n")
"""A line that has one of the five names behind `import` or `from`, or is an import over several lines by backslash."""


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def absolute_imports_of(path: Path) -> set[str]:
    """What a file imports by names that don't begin with a dot."""
    found: set[str] = set()
    for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("name", CORE)
def test_a_link_leads_to_each_of_the_five(name: str) -> None:
    """It is relative, so that a checkout can be moved."""
    assert os.readlink(ROOT / "sluiceway" / name) == f"../{name}"


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout of git")
def test_git_keeps_the_links_as_links() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--stage", *(f"sluiceway/{name}" for name in CORE)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert [line.split()[0] for line in listed.splitlines()] == ["120000"] * len(CORE), listed


def test_inside_the_five_imports_are_relative() -> None:
    """So whatever follows paths finds what is meant at the root, and Python finds it through the links."""
    wrong = [
        f"{relative(path)} imports {name}"
        for path in modules(*CORE)
        for name in sorted(absolute_imports_of(path))
        if name.partition(".")[0] in PACKAGES
    ]
    assert not wrong


def test_nothing_is_imported_by_its_bare_name() -> None:
    wrong = [
        f"{relative(path)} imports {name}, which is sluiceway.{name}"
        for path in modules(*PACKAGES, "perf", "tests", "examples", "scripts")
        if MAY_IMPORT_BARE.search(path.read_text(encoding="utf-8"))  # only these need be parsed
        for name in sorted(absolute_imports_of(path))
        if name.partition(".")[0] in CORE
    ]
    assert not wrong


@pytest.mark.parametrize("name", CORE)
def test_the_suite_can_not_import_a_bare_name(name: str) -> None:
    """Though the checkout is on its import path."""
    assert name not in sys.modules
    with pytest.raises(ImportError, match=rf"import sluiceway\.{name}: {name}/ is where it lies"):
        import_module(name)
    with pytest.raises(ImportError, match="is where it lies"):
        import_module(f"{name}.bogus")
    assert name not in sys.modules


@pytest.mark.parametrize("name", CORE)
def test_a_package_of_that_name_elsewhere_is_left_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("WHOSE = 'another'\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert import_module(name).WHOSE == "another"
    finally:
        sys.modules.pop(name, None)


def test_no_file_has_two_modules_in_this_process() -> None:
    """Whatever was imported so far: run in the whole suite it says most."""
    assert not bare_names.loaded_twice()


def test_a_file_with_two_modules_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    import sluiceway.flow.words as words

    assert words.__file__ is not None
    loader = SourceFileLoader("words_again", str(ROOT / "flow" / "words.py"))
    spec = ModuleSpec("words_again", loader, origin=loader.path)
    spec.has_location = True
    monkeypatch.setitem(sys.modules, "words_again", module_from_spec(spec))
    assert bare_names.loaded_twice() == {os.path.realpath(words.__file__): ["sluiceway.flow.words", "words_again"]}


def test_importing_everything_from_the_root_gives_each_file_one_name() -> None:
    """As `python -m perf` does: there the bare names could be imported, and nothing does it."""
    names = [
        name
        for name in map(name_of, modules(*PACKAGES, "perf"))
        if not name.endswith("__main__")  # they run
    ]
    out = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IMPORTING, ",".join(CORE), *names],
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=50,
    ).stdout
    told = json.loads(out)
    assert len(told["loaded"]) > 300, "most of it was not imported"
    assert (told["bare"], told["twice"]) == ([], [])
