"""The product's code with a counter in it: what each block of statements does is added up where it runs.

While `counted()` is entered, every function of the product has code that was compiled from the same source with one
addition at the head of each block: the number of its statements. So a pass through a loop counts what stands in the
loop, and a branch what stands in the branch; a call counts two more. Passes of comprehensions and calls of lambdas
count one each. A tracer sees the same, and takes several times as long.

Functions are exchanged, not modules: whoever has imported one has the counted one. What runs at that moment keeps the
code that it began with, so a broker has to be started inside.

With LAW_WHERE=1 in the environment it is counted by function, too, which takes longer.
"""

from __future__ import annotations

import ast
import builtins
import gc
import itertools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, TypeAlias, TypeVar

from sluiceway.dispatcher.context import DispatchContext
from tests.architecture.sources import PACKAGES, ROOT

BY_FUNCTION: Final = bool(os.environ.get("LAW_WHERE"))
"""Whether it is counted by function, too."""

CALL_UNITS: Final = 2
"""What a call counts besides the statements of the function's own block."""

_UNITS: Final = "law_units_"
_PASS: Final = "law_pass_"
_FOLDERS: Final = tuple(f"{ROOT / name}/" for name in PACKAGES)
_APART: Final = tuple(
    f"{ROOT / name}/"
    for name in (
        "pyspark_stomp",
        *(f"sluiceway/{name}" for name in ("cli", "client", "compliance", "doctor", "migration", "simulation", "top")),
    )
)
"""What no loop of a broker runs."""

_units: Final = [0]
"""All units, but for passes; with BY_FUNCTION, behind it those of each function."""
_names: Final = ["?"]
_pass: Final[Callable[[], int]] = itertools.count(1).__next__
_looks: Final = itertools.count(1)

_Node = TypeVar("_Node", bound=ast.AST)
_Key: TypeAlias = tuple[str, str, int, bytes]
_counted: Final[dict[_Key, CodeType]] = {}
"""The code that counts, by the key of the plain one."""
_plain: Final[dict[_Key, CodeType]] = {}
"""The other way round."""
_compiled: Final[set[str]] = set()
_rewritten: Final[set[str]] = set()
"""Modules of which pytest has changed the code: the plugin, and what it imports first. No broker's loop runs them."""


def units() -> int:
    """Return what was counted in this process so far."""
    return _units[0] + _pass() - next(_looks)


def where() -> Counter[str]:
    """Return what each function has counted since the last call; nothing unless BY_FUNCTION."""
    result = Counter({_names[number]: taken for number, taken in enumerate(_units) if number and taken})
    _units[1:] = [0] * (len(_units) - 1)
    return result


@contextmanager
def counted() -> Iterator[None]:
    """Have the product's functions count in here, those of all modules that are loaded by now."""
    vars(builtins).update({_UNITS: _units, _PASS: _pass})
    for module in list(sys.modules.values()):
        _compile(module)
    missing = [
        _name(each.__code__)
        for each in _functions()
        if not _exchanged(each, _counted) and each.__module__ not in _rewritten
    ]
    try:
        assert _key(DispatchContext.request_dispatch.__code__) in _plain, (
            "functions are to be exchanged, and were not found"
        )
        assert not missing, f"nothing counts these, which were not made from what their files say: {missing}"
        yield
    finally:
        for function in _functions():
            _exchanged(function, _plain)


def _functions() -> list[FunctionType]:
    is_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()  # what is frozen is not among the objects
    functions = [each for each in gc.get_objects() if type(each) is FunctionType]
    if is_frozen:
        gc.freeze()
    return [each for each in functions if _is_counted(each.__code__.co_filename)]


def _is_counted(path: str) -> bool:
    return path.startswith(_FOLDERS) and not path.startswith(_APART)


def _exchanged(function: FunctionType, codes: dict[_Key, CodeType]) -> bool:
    code = codes.get(_key(function.__code__))
    if code is None:
        return False
    function.__code__ = code
    return True


def _key(code: CodeType) -> _Key:
    return code.co_filename, code.co_qualname, code.co_firstlineno, code.co_linetable


def _name(code: CodeType) -> str:
    return f"{code.co_filename.removeprefix(f'{ROOT}/')}:{code.co_firstlineno} {code.co_qualname}"


def _compile(module: ModuleType) -> None:
    """Make counted code for a module of the product, once."""
    path = getattr(module, "__file__", None) or ""
    if not _is_counted(path) or module.__name__ in _compiled:
        return
    _compiled.add(module.__name__)
    loader: Any = module.__loader__
    if not hasattr(loader, "get_code"):
        _rewritten.add(module.__name__)
        return
    plain = loader.get_code(module.__name__)
    tree = _WithCounter(path).visit(ast.parse(loader.get_source(module.__name__)))
    _pair(plain, compile(tree, plain.co_filename, "exec", dont_inherit=True))


def _pair(plain: CodeType, counted: CodeType) -> None:
    """Note the code of both, and of all that is made in it. Both come from one source, so they have the same parts."""
    _counted[_key(plain)] = counted
    _plain[_key(counted)] = plain
    parts = [[each for each in code.co_consts if isinstance(each, CodeType)] for code in (plain, counted)]
    for ours, theirs in zip(*parts, strict=True):
        assert ours.co_qualname == theirs.co_qualname
        _pair(ours, theirs)


class _WithCounter(ast.NodeTransformer):
    """Puts the counter into a module: `law_units_[0] += N` at the head of blocks."""

    def __init__(self, path: str) -> None:
        self._path = path.removeprefix(f"{ROOT}/")
        self._scope: list[str] = []
        self._number = 0
        """Of the function, in `_names`; 0: outside of all."""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        number, self._number = self._number, 0
        self._scope.append(node.name)
        self.generic_visit(node)
        self._scope.pop()
        self._number = number
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        number = self._number
        self._scope.append(node.name)
        self._number = len(_names)
        _names.append(f"{self._path}:{node.lineno} {'.'.join(self._scope)}")
        _units.append(0)
        self._blocks(node, CALL_UNITS)
        self._scope.pop()
        self._number = number
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self.generic_visit(node)
        node.body = ast.copy_location(ast.BoolOp(ast.And(), [_call_of_pass(node.body), node.body]), node.body)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        node.ifs.insert(0, _call_of_pass(node.target))
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if self._number and isinstance(node, (ast.stmt, ast.excepthandler, ast.match_case)):
            self._blocks(node, 1 if isinstance(node, (ast.For, ast.AsyncFor, ast.While)) else 0)
            return node
        return super().generic_visit(node)

    def _blocks(self, node: ast.AST, more_units: int) -> None:
        """Every block of a node counts its statements; the first one so many more."""
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block:
                self._head(block, more_units if name == "body" else 0)

    def _head(self, block: list[ast.stmt], more_units: int) -> None:
        first = 1 if ast.get_docstring(ast.Module(block, [])) is not None else 0
        at = block[min(first, len(block) - 1)]
        numbers = [0, self._number] if BY_FUNCTION else [0]
        units = len(block) - first + more_units
        block[first:first] = [_at(at, ast.parse(f"{_UNITS}[{number}] += {units}").body[0]) for number in numbers]


def _call_of_pass(near: ast.AST) -> ast.expr:
    return _at(near, ast.parse(f"{_PASS}()", mode="eval").body)


def _at(near: ast.AST, added: _Node) -> _Node:
    for each in ast.walk(added):
        ast.copy_location(each, near)
    return added
