"""The project's own files, and what their modules import."""

from __future__ import annotations

import ast
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
    package = name_of(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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
