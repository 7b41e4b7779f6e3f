"""What a class may be: short chains of inheritance, and properties that only read.

The second rule has exceptions of old. They are listed, and the list may only become shorter.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Set
from typing import Final

import pytest

from tests.architecture.sources import PACKAGES, modules, name_of, parsed, statements

CHAIN_MAX: Final = 3
"""A class, what it inherits from, and what that inherits from: as far as they are of the product."""

WRITING: Final = frozenset(
    {
        "sluiceway.store.bonds.Bond.whole",
        "sluiceway.store.dirty.Dirty.next_seconds",
        "sluiceway.store.log_storage.LogStorage.folder",
    }
)
"""Properties that write."""


class Classes:
    """The classes of some modules, sources by their names, and the chains that they stand in."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._bases: dict[str, list[str]] = {}
        self._homes: dict[str, list[str]] = {}
        roots = {module.partition(".")[0] for module in sources}
        for module, source in sources.items():
            tree = parsed(source)
            imported = _imported(tree, roots)
            for node in statements(tree):
                if isinstance(node, ast.ClassDef):
                    self._bases[f"{module}.{node.name}"] = [_class_named(base, imported) for base in node.bases]
                    self._homes.setdefault(node.name, []).append(f"{module}.{node.name}")

    def chain(self, name: str) -> int:
        """How many classes of these stand above one another, this one included. Of several with the same name in other
        modules the longest chain counts.
        """
        own = name.rpartition(".")[0]
        longest = 0
        for base in self._bases[name]:
            homes = self._homes.get(base, [])
            inside = [home for home in homes if home == f"{own}.{base}" and home != name]
            longest = max([longest, *(self.chain(home) for home in inside or homes if home != name)])
        return 1 + longest

    def longer_than(self, count: int) -> dict[str, int]:
        return {name: self.chain(name) for name in self._bases if self.chain(name) > count}


def _imported(tree: ast.Module, roots: Set[str]) -> dict[str, str]:
    """Imported names, by what they are called at home; empty: what is from elsewhere."""
    found: dict[str, str] = {}
    for node in statements(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                home = alias.name if isinstance(node, ast.Import) else (node.module or "")
                inside = (isinstance(node, ast.ImportFrom) and node.level) or home.partition(".")[0] in roots
                name = alias.asname or alias.name.partition(".")[0]
                found[name] = alias.name.rpartition(".")[2] if inside else ""
    return found


def _class_named(base: ast.expr, imported: Mapping[str, str]) -> str:
    """`Sink` for `Sink`, `flow.Sink` and `Sink[Message]`; empty: a class from elsewhere."""
    while isinstance(base, ast.Subscript):
        base = base.value
    first, _dot, rest = ast.unparse(base).partition(".")
    home = imported.get(first, first)
    return rest.rpartition(".")[2] if home and rest else home


def writing_properties(module: str, source: str) -> Iterator[str]:
    """Properties whose body assigns to an attribute, or to a part of one, or deletes it."""
    for node in statements(parsed(source)):
        if isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and _is_property(method) and _writes(method):
                    yield f"{module}.{node.name}.{method.name}"


def _is_property(method: ast.FunctionDef) -> bool:
    """Setters are none: they are there to write."""
    return any(
        ast.unparse(decorator).rpartition(".")[2] in ("property", "cached_property")
        for decorator in method.decorator_list
    )


def _writes(method: ast.FunctionDef) -> bool:
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            target: ast.expr = node
            while isinstance(target, ast.Subscript):
                target = target.value
            if isinstance(target, ast.Attribute):
                return True
    return False


@pytest.fixture(scope="module")
def product() -> dict[str, str]:
    return {name_of(path): path.read_text(encoding="utf-8") for path in modules(*PACKAGES)}


def test_chains_of_inheritance_are_short(product: dict[str, str]) -> None:
    wrong = Classes(product).longer_than(CHAIN_MAX)
    assert not wrong, f"more than {CHAIN_MAX} classes above one another: {wrong}; let the class have a part instead"


def test_properties_only_read(product: dict[str, str]) -> None:
    found = {name for module, source in product.items() for name in writing_properties(module, source)}
    new, gone = sorted(found - WRITING), sorted(WRITING - found)
    assert not new, f"writes: {', '.join(new)}; make it a method with a verb for a name"
    assert not gone, f"writes no more: {', '.join(gone)}; remove it from the list"


MADE_UP: Final = {
    "house.low": "class A: ...\nclass B(A): ...\nclass Error(Exception): ...",
    "house.high": "from .low import B as Base\nfrom house import low\nclass C(Base[int]): ...\nclass D(C): ...\n"
    "class E(low.A, Generic[T]): ...\nimport click\nfrom click import D as Other\nclass F(click.D, Other): ...",
}


def test_a_long_chain_is_found() -> None:
    classes = Classes(MADE_UP)
    assert {name: classes.chain(f"house.{name}") for name in ("low.A", "low.Error", "high.C", "high.E", "high.F")} == {
        "low.A": 1, "low.Error": 1, "high.C": 3, "high.E": 2, "high.F": 1,
    }  # fmt: skip
    assert classes.longer_than(CHAIN_MAX) == {"house.high.D": 4}


def test_a_class_that_shares_the_name_of_its_base_has_a_chain() -> None:
    classes = Classes({"house.low": "class A: ...", "house.high": "from house import low\nclass A(low.A): ..."})
    assert classes.chain("house.high.A") == 2


@pytest.mark.parametrize(
    ("body", "writes"),
    [
        ("self.seen = True", True),
        ("self.count += 1", True),
        ("self.lanes.waiting_for = ''", True),
        ("self._by_name['a'] = 1", True),
        ("del self._by_name['a']", True),
        ("other.seen = True", True),
        ("a, self.b = 1, 2", True),
        ("found = self.seen", False),
        ("found = {}; found['a'] = self.seen", False),
        ("found: int = 1; found += 1", False),
    ],
)
def test_a_property_that_writes_is_found(body: str, writes: bool) -> None:
    for decorator in ("property", "functools.cached_property"):
        source = f"class A:\n    @{decorator}\n    def b(self):\n        {body}\n"
        assert list(writing_properties("house.low", source)) == (["house.low.A.b"] if writes else [])


def test_a_setter_may_write() -> None:
    source = "class A:\n    @b.setter\n    def b(self, value):\n        self.c = value\n    def d(self): self.c = 1\n"
    assert not list(writing_properties("house.low", source))
