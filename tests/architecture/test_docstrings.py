"""Openings of docstrings: a verb or a noun, which names its thing; no pronoun, question or preposition."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.sources import PACKAGES, ROOT, modules, parsed

PRONOUNS: Final = (
    "it its he his she her they their them this that these those there ones "
    "somebody nobody anybody everybody something anything"
)
QUESTIONS: Final = "what whatever who whom whose whoever which whichever how why when where wherever whenever"
FRAGMENTS: Final = (
    "of in on at by to from with without for after before until while since if because unless as so "
    "and but or nor not also too then now once again still yet even just only either neither both"
)
REFUSED: Final = frozenset(f"{PRONOUNS} {QUESTIONS} {FRAGMENTS}".split())
"""First words that leave a reader to guess what a docstring is about."""

VAGUE: Final = re.compile(
    r"whether (it|its|this|that|these|those|they|somebody|nobody|anybody)\b"
    r"|(all|each|some|any|none|most|one|two|three|several|many|few) of (it|its|this|these|those|them)\b"
    r"|(all|some|any|none|one|two|three|many|few) (that|who|which|is|are)\b",
    re.IGNORECASE,
)
"""Openings that are refused as a whole: `Whether it ...`, `All of these`, `One that ...`."""

UNREVIEWED: Final[frozenset[str]] = frozenset()
"""Folders at the root whose docstrings are still to be rewritten. The list may only become shorter."""


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the docstrings of modules, classes and functions, and the texts below assignments that describe them."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            constant = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                yield constant


def refusal(text: str) -> str:
    """Return the opening of a docstring that is refused; empty: it is fine."""
    vague = VAGUE.match(text.strip())
    if vague:
        return vague.group()
    word = re.match(r"[\w']+", text.strip())
    return word.group() if word and word.group().lower() in REFUSED else ""


def refused_in(path: Path) -> list[str]:
    """Return place and opening of each docstring of a module that is refused."""
    return [
        f"{path.relative_to(ROOT)}:{node.lineno}: begins with «{opening}»"
        for node in docstrings(parsed(path.read_text(encoding="utf-8")))
        if (opening := refusal(str(node.value)))
    ]


@pytest.mark.parametrize("folder", sorted({*PACKAGES, "perf", "examples", "scripts"} - UNREVIEWED))
def test_docstrings_begin_with_a_verb_or_a_noun(folder: str) -> None:
    refused = [line for path in modules(folder) for line in refused_in(path)]
    assert not refused, "\n".join(["begin with a verb or a noun, and name the thing:", *refused])


def test_folders_left_the_list_when_they_were_rewritten() -> None:
    clean = {folder for folder in UNREVIEWED if not any(refused_in(path) for path in modules(folder))}
    assert not clean, "take them off the list"


@pytest.mark.parametrize(
    "text",
    [
        "What was refused of one cursor.",
        "These need not come again.",
        "Of one element.",
        "Whether it is short.",
        "One that is locked.",
        "All of these, in any order.",
        "\n    It has credit.",
        "Nobody is told.",
    ],
)
def test_a_vague_opening_is_refused(text: str) -> None:
    assert refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "Return the refused elements of a cursor.",
        "Whether the queue is closed.",
        "One connection, and what waits for it.",
        "All destinations of a broker.",
        "`path`: the folder, which exists.",
        "Theory of operation.",
        "",
    ],
)
def test_a_verb_or_a_noun_is_accepted(text: str) -> None:
    assert not refusal(text)


def test_texts_below_assignments_are_checked_and_values_are_not() -> None:
    tree = ast.parse(
        'A = "it"\n"""Its name."""\nclass B:\n    c: int = 1\n    """These."""\n    def d(self): return "of"\n'
    )
    assert sorted(str(node.value) for node in docstrings(tree)) == ["Its name.", "These."]
