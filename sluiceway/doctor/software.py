"""Python and its packages, compared with the declared dependencies."""

from __future__ import annotations

import re
import sys
from importlib import import_module, metadata
from typing import Final

from sluiceway.doctor.facts import Package, Software

DISTRIBUTION: Final = "sluiceway"
PYTHON_LEAST: Final = (3, 11)
"""Oldest Python, where sluiceway is not installed and has no metadata."""
_REQUIREMENT: Final = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])?(?P<versions>[^;]*)(?:;(?P<marker>.*))?")
_LEAST: Final = re.compile(r">=\s*([0-9][\w.]*)")
_EXTRA: Final = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
_PYTHON: Final = re.compile(r"""python_version\s*(<|>=)\s*['"](\d+)\.(\d+)['"]""")
_FOR_DEVELOPERS: Final = frozenset({"test", "dev", "perf"})


def look_at_software() -> Software:
    """Return the installed software. Imports the LevelDB binding."""
    python = sys.version_info[:3]
    try:
        required = metadata.requires(DISTRIBUTION) or []
        least = _LEAST.search(metadata.metadata(DISTRIBUTION)["Requires-Python"] or "")
    except metadata.PackageNotFoundError:
        required, least = [], None
    python_least = tuple(int(part) for part in least[1].split(".")) if least is not None else PYTHON_LEAST
    packages = [package for text in required if (package := _package(text, python)) is not None]
    return Software(
        python=python,
        python_least=python_least,
        executable=sys.executable,
        packages=tuple(packages),
        binding_fault=_binding_fault(),
    )


def _package(requirement: str, python: tuple[int, int, int]) -> Package | None:
    """Return the package of a requirement; None: it is for another Python, or for developers of the broker."""
    match = _REQUIREMENT.match(requirement)
    if match is None:
        return None
    marker = match["marker"] or ""
    for relation, major, minor in _PYTHON.findall(marker):
        if (python[:2] < (int(major), int(minor))) != (relation == "<"):
            return None
    extra = _EXTRA.search(marker)
    if extra is not None and extra[1] in _FOR_DEVELOPERS:
        return None
    least = _LEAST.search(match["versions"])
    try:
        version = metadata.version(match["name"])
    except metadata.PackageNotFoundError:
        version = None
    return Package(
        name=match["name"],
        version=version,
        least=least[1] if least is not None else "",
        extra=extra[1] if extra is not None else "",
    )


def _binding_fault() -> str:
    try:
        import_module("sluiceway.store.binding")
    except (ImportError, OSError) as error:
        return str(error)
    return ""
