"""Names of a package that are looked up on first use, so that importing the package costs next to nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, names: dict[str, Any], homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package. `names`: its `globals()`; `homes`: by name, the module of
    origin.
    """

    def look_up(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it offers {', '.join(sorted(homes))}")
        value: object = getattr(import_module(home), name)
        names[name] = value  # the next look-up does not come here
        return value

    def listed() -> list[str]:
        return sorted({*names, *homes})

    return look_up, listed
