"""Keeps the suite from importing the five folders at the root under their bare names.

The suite runs with the checkout on the import path, where `import flow` finds the folder `flow/`. That would load files
of `sluiceway.flow` a second time, with classes of their own that no `isinstance` and no patch of the first ones knows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from tests.architecture.sources import CORE, ROOT


class BareNames(MetaPathFinder):
    """Refuses `import flow` where it means the folder of this checkout; a package of that name elsewhere is none of
    its business.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None and fullname in CORE:
            spec = PathFinder.find_spec(fullname)
            if spec is not None and spec.origin == str(ROOT / fullname / "__init__.py"):
                raise ImportError(f"import sluiceway.{fullname}: {fullname}/ is where it lies, not its name")
        return None


def refuse() -> None:
    """From now on, in this process."""
    if not any(isinstance(finder, BareNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, BareNames())


def loaded_twice() -> dict[str, list[str]]:
    """The files of this checkout from which several modules of this process were made, and the names of these."""
    found: dict[str, dict[int, str]] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and name != "__main__":
            found.setdefault(os.path.realpath(file), {})[id(module)] = name
    inside = f"{ROOT}{os.sep}"
    return {file: sorted(names.values()) for file, names in found.items() if file.startswith(inside) and len(names) > 1}
