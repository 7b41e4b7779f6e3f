"""The project's own files, and what their modules import."""

from __future__ import annotations

import ast
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
CORE: Final = ("flow", "dispatcher", "queues", "store", "protocols")
"""Folders at the root that are imported as `sluiceway.flow` and so on, by way of the links in `sluiceway/`."""
PACKAGES: Final = (*CORE, "sluiceway", "pyspark_stomp")
SKIPPED_FOLDERS: Final = frozenset({"__pycache__", "build", "dist", "out", "node_modules", "sluiceway-data"})


def modules(*folders: str) -> list[Path]:
    """All Python files below these folders of the checkout, those that exist."""
    return sorted(
        path for folder in folders for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts
    )


def project_files() -> Iterator[Path]:
    """Every file that belongs to the project; hidden folders but .ci are somebody's tools."""
    for here, folders, names in os.walk(ROOT):
        folders[:] = [
            name
            for name in folders
            if name not in SKIPPED_FOLDERS
            and not name.endswith(".egg-info")
            and (name == ".ci" or not name.startswith("."))
        ]
        for name in names:
            if not name.startswith(".") or name == ".gitignore":
                yield Path(here) / name


def name_of(path: Path) -> str:
    """`protocols/stomp/parser.py` as `sluiceway.protocols.stomp.parser`, a package by its own name."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] in CORE:
        parts = ("sluiceway", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def folder_of(name: str) -> str:
    """The folder at the root that holds a module: `queues` for `sluiceway.queues.names`, `perf` for `perf.turns`."""
    first, _dot, rest = name.partition(".")
    second = rest.partition(".")[0]
    return second if first == "sluiceway" and second in CORE else first


def imports_of(path: Path) -> set[str]:
    """The modules that a file names in import statements, wherever they stand in it; relative ones made absolute."""
    return imports_in(path.read_text(encoding="utf-8"), name_of(path), is_package=path.name == "__init__.py")


def imports_in(source: str, name: str, *, is_package: bool, for_types: bool = True) -> set[str]:
    """What the source of the module `name` imports; without `for_types`, only what is imported while it runs."""
    package = name.split(".") if is_package else name.split(".")[:-1]
    found: set[str] = set()
    for node in statements(parsed(source), for_types=for_types):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = package[: len(package) - node.level + 1]
                module = ".".join([*base, *([node.module] if node.module else [])])
            else:
                module = node.module or ""
            found.add(module)
            # `from sluiceway.protocols import stomp` imports a module too.
            found.update(f"{module}.{alias.name}" for alias in node.names)
    return found


@functools.cache
def parsed(source: str) -> ast.Module:
    """The syntax tree of a source, which several rules look at: parsed once."""
    return ast.parse(source)


def statements(tree: ast.Module, *, for_types: bool = True) -> Iterator[ast.AST]:
    """All statements, wherever they stand; without `for_types`, not those that only type checkers see."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if not for_types and isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            waiting.extend(node.orelse)
        else:
            # Expressions are the larger part of a tree, and import nothing.
            waiting.extend(child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr))
