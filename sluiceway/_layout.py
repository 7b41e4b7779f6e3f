"""Checks that the core packages are ours.

`flow`, `queues` and the others are plain words: a `queues.py` in the directory where somebody starts Python comes first
on the import path, and the broker would fail far away with an AttributeError. So `import sluiceway` looks where each
name leads, without importing it, and otherwise fails with the path that is in the way and what to do about it.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Final

CORE_PACKAGES: Final = ("flow", "dispatcher", "queues", "store", "protocols")
"""The core folders (the house tests compare this with the folders)."""


def check_layout(root: Path | None = None) -> None:
    """Checks each core package.

    :param root: the folder that should hold them; by default the one that holds `sluiceway`.
    :raises ImportError: one of them leads elsewhere or nowhere. The message names the path and the remedy. Nothing was
        imported.
    """
    if root is None:
        root = Path(__file__).resolve().parent.parent
    for name in CORE_PACKAGES:
        expected = root / name / "__init__.py"
        found = _where(name)
        # The cheap comparison first: nearly always true, and resolving a path costs system calls.
        if found is not None and (found == expected or found.resolve() == expected.resolve()):
            continue
        if not expected.is_file():
            raise ImportError(
                f"Sluiceway is installed incompletely: its package {name!r} is missing beside {root / 'sluiceway'}. "
                "Install it again; from a checkout: scripts/setup, or pip install -e ."
            )
        if found is None:
            raise ImportError(
                f"Sluiceway's package {name!r} can't be found on the import path, though it lies in {expected.parent}. "
                f"Put {root} on the path, or install Sluiceway: pip install -e {root}"
            )
        raise ImportError(
            f"Sluiceway needs its own package {name!r} in {expected.parent}, but on this import path the name leads to "
            f"{found}. Rename or move that file, start Python from another directory, or put {root} before "
            f"{_entry_of(found, name)} in sys.path."
        )


def _where(name: str) -> Path | None:
    """The file (of a folder without `__init__.py`: the folder) that importing `name` would give or gave."""
    loaded = sys.modules.get(name)
    spec: ModuleSpec | None
    if loaded is not None:
        spec = loaded.__spec__
        if spec is None:  # made by hand, such as a stand-in of somebody's test
            file = getattr(loaded, "__file__", None)
            return Path(file or "<a module without a file>")
    else:
        spec = find_spec(name)
    if spec is None:
        return None
    if spec.origin is not None:
        return Path(spec.origin)
    locations = list(spec.submodule_search_locations or ())
    return Path(locations[0]) if locations else Path("<a module without a file>")


def _entry_of(found: Path, name: str) -> Path:
    """The entry of `sys.path` that leads to `found`."""
    if found.name == "__init__.py":
        return found.parent.parent
    return found.parent if found.stem == name else found
