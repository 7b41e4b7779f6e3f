"""Regular expressions mean the same on every CPython from 3.11.0 on.

CPython 3.11.0 to 3.11.4 match possessive groups wrongly: one that fails in its next round leaves its position in the
middle of what that round had matched (gh-106052). Debian 12 ships 3.11.2. Atomic groups came with the same change and
take the same care to get right; nothing here needs one. A possessive *character* or set is another instruction of the
engine, right in all of them.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from re import _constants, _parser
from typing import Any, Final

import pytest

from tests.architecture.sources import PACKAGES, ROOT, modules, name_of, parsed

#: Prints every expression that a module of the project compiles while it is imported. Modules whose extra is not
#: installed are left out.
COMPILED_ON_IMPORT: Final = """
import importlib, json, re, sys
from re import _parser
names = set(sys.argv[1:])
found, parse = [], _parser.parse
def noting(source, flags=0, state=None):
    frame = sys._getframe(1)
    while frame.f_globals["__name__"].partition(".")[0] in ("re", "functools"):
        frame = frame.f_back
    if frame.f_globals["__name__"] in names:
        found.append((frame.f_globals["__name__"], repr(source), flags))
    return parse(source, flags, state)
_parser.parse = noting
for name in sorted(names):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name in names:
            raise
json.dump(found, sys.stdout)
"""

#: Modules that run something when they are imported.
NOT_IMPORTED: Final = frozenset({"sluiceway.__main__", "perf.__main__"})


def forbidden_in(expression: str | bytes, flags: int = 0) -> list[str]:
    """The possessive groups and atomic groups of an expression, by the names of the engine's instructions."""
    return list(_operators(_parser.parse(expression, flags)))


def _operators(parsed: Any) -> Iterator[str]:
    for operator, argument in parsed:
        possessive = operator is _constants.POSSESSIVE_REPEAT
        if operator is _constants.ATOMIC_GROUP or (possessive and not _is_one_character(argument[2])):
            yield str(operator)
        yield from _inside(argument)


def _inside(argument: Any) -> Iterator[str]:
    if isinstance(argument, _parser.SubPattern):
        yield from _operators(argument)
    elif isinstance(argument, list | tuple):
        for part in argument:
            yield from _inside(part)


def _is_one_character(parsed: Any) -> bool:
    single = {_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN}
    return len(parsed) == 1 and parsed[0][0] in single


@pytest.mark.parametrize(
    ("expression", "count"),
    [
        ("(?:ab)++", 1),
        ("(a)*+", 1),
        ("x(?:y(?:ab){2,3}+)?", 1),
        ("(?>a|b)c", 1),
        ("(a)(?(1)(?>a)|b)", 1),
        ("(?!(?>ab))", 1),
        ("a|(?:b|c(?:de)?+)", 1),
        (rb"[^\n]{1,256}+a++.?+", 0),
        ("(?:ab)+(?:cd)*?", 0),
    ],
)
def test_the_search_finds_what_is_forbidden_and_nothing_else(expression: str | bytes, count: int) -> None:
    assert len(forbidden_in(expression)) == count


def test_no_expression_made_on_import_has_a_possessive_or_atomic_group() -> None:
    """Whatever its source is put together from."""
    names = [name_of(path) for path in modules(*PACKAGES, "perf")]
    out = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILED_ON_IMPORT, *(set(names) - NOT_IMPORTED)],
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=50,
    ).stdout
    compiled = json.loads(out)
    assert len(compiled) > 40, "the expressions were not seen"
    assert "sluiceway.protocols.stomp.acks" in {name for name, _, _ in compiled}
    found = [f"{name}: {text}" for name, text, flags in compiled if forbidden_in(ast.literal_eval(text), flags)]
    assert not found, "; ".join(found)


def test_no_expression_written_in_a_call_has_a_possessive_or_atomic_group() -> None:
    """Those that are made when a function runs."""
    looked_at, found = 0, []
    for path in modules(*PACKAGES, "perf", "examples", "scripts"):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(parsed(source)) if re.search(r"\bre\.", source) else ():
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "re"
                and node.args
                and isinstance(node.args[0], ast.Constant)
            ):
                expression = node.args[0].value
                assert isinstance(expression, str | bytes)
                looked_at += 1
                if forbidden_in(expression):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert looked_at > 40, "the expressions were not seen"
    assert not found, "; ".join(found)
