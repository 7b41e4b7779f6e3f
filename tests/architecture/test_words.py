"""The words that people read are plain: scripts/words.py finds the others, names their place and a better word."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tests.architecture.sources import ROOT

ENTRIES = "so many->this many\nnobody->no client / no user\n"


@pytest.fixture(scope="module")
def words() -> ModuleType:
    spec = importlib.util.spec_from_file_location("words", ROOT / "scripts" / "words.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def checked(words: ModuleType, root: Path, capfd: pytest.CaptureFixture[str], **sources: str) -> list[str]:
    """Write `sources`, by name with `__` for `/` and `_dot_` for `.`, and return what the check prints of them."""
    for name, source in sources.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    (root / "entries").write_text(ENTRIES)
    code = words.check(root, root / "entries")
    printed = sorted(capfd.readouterr().out.splitlines())
    assert bool(code) == bool(printed)
    return printed


def test_the_checkout_has_plain_words(words: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    assert words.check(ROOT) == 0, capfd.readouterr().out


def test_a_page_is_told_by_place_and_better_word(
    words: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    page = "# Title\n\nGood words.\n\n- item\n- Nobody waits.\n"
    assert checked(words, tmp_path, capfd, docs__page_dot_md=page) == [
        "./docs/page.md:6: Nobody ==> No client / no user"
    ]


def test_a_phrase_over_two_lines_is_found_at_the_first_line_of_its_text(
    words: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert checked(words, tmp_path, capfd, README_dot_md="Title\n\nA text with so\nmany words.\n") == [
        "./README.md:3: so many ==> this many"
    ]


def test_code_in_pages_is_left_alone(words: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    page = "Run `nobody`, see [this](nobody.md).\n\n```console\n$ nobody\n```\n"
    assert checked(words, tmp_path, capfd, docs__page_dot_md=page) == []


def test_texts_in_python_are_found_and_docstrings_and_values_are_not(
    words: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    module = (
        '"""Of interest to nobody."""\n\nVALUE = "nobody"\nraise ValueError(\n    f"{VALUE} has so "\n    "many"\n)\n'
    )
    assert checked(words, tmp_path, capfd, sluiceway__module_dot_py=module) == [
        "./sluiceway/module.py:5: so many ==> this many"
    ]


def test_texts_of_the_console_are_found(words: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    module = '// nobody\nexport const words = `${count} wait for nobody`;\nconst key = "nobody";\n'
    assert checked(words, tmp_path, capfd, sluiceway__console__page_dot_js=module) == [
        "./sluiceway/console/page.js:2: nobody ==> no client / no user"
    ]


def test_misspelled_words_are_found(words: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mistake = "recie" + "ve"
    assert checked(words, tmp_path, capfd, README_dot_md=f"Clients {mistake} messages.\n") == [
        f"./README.md:1: {mistake} ==> receive"
    ]


def test_each_entry_of_the_list_names_a_better_word(words: ModuleType) -> None:
    entries = [line.split("->") for line in words.LIST.read_text(encoding="utf-8").splitlines()]
    assert all(len(entry) == 2 and entry[0] == entry[0].lower().strip() and entry[1] for entry in entries)
    assert entries == sorted(entries)
