"""Packages that look their names up on first use offer what they say they do."""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.util import resolve_name
from pathlib import Path

import pytest

LAZY = ("sluiceway", "sluiceway.client", "sluiceway.config")


@pytest.mark.parametrize("package", LAZY)
def test_names_and_their_homes_are_the_same_list(package: str) -> None:
    """`__all__`, the homes, and what type checkers are told."""
    module = import_module(package)
    homes: dict[str, str] = module._HOMES
    assert module.__file__ is not None
    told = {
        name.asname or name.name: resolve_name("." * node.level + (node.module or ""), package)
        for block in ast.parse(Path(module.__file__).read_text()).body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    assert homes == told
    assert set(module.__all__) - {"__version__"} == set(homes)


@pytest.mark.parametrize("package", LAZY)
def test_every_name_is_at_its_home(package: str) -> None:
    module = import_module(package)
    for name, home in module._HOMES.items():
        assert getattr(module, name) is getattr(import_module(home), name)


@pytest.mark.parametrize("package", LAZY)
def test_unknown_names_are_named(package: str) -> None:
    with pytest.raises(AttributeError, match=f"'{package}' has no attribute 'Bogus'"):
        import_module(package).Bogus  # noqa: B018
