"""What may lie in the checkout: the entries of its root, and no file that a test has left.

A test that writes to a relative path writes into the working folder, which is the checkout. Such a file is found when
the test ends, as far as the root shows it, and at the end of the session wherever it lies.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]

KEPT: Final = frozenset(
    {
        *(".ci", ".dockerignore", ".git", ".github", ".gitignore"),
        *("ARCHITECTURE.md", "CHANGELOG.md", "LICENSE", "README.md", "constraints.txt", "mkdocs.yml", "pyproject.toml"),
        *("CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md"),
        *("deploy", "docs", "examples", "perf", "scripts", "tests"),
        *("dispatcher", "flow", "protocols", "pyspark_stomp", "queues", "sluiceway", "store"),
    }
)
"""What the repository has at its root. Whoever adds an entry adds it here, on purpose."""

_MADE_BY_TOOLS: Final = frozenset(
    {".coverage", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", "__pycache__", "build", "dist", "out"}
)
"""Ignored by git, at any depth, and of no interest here."""

_MADE_BY_HAND: Final = "sluiceway-data"
"""What `scripts/serve` makes at the root. It may be there, but no test may make it."""


def strangers(root: Path = ROOT) -> set[str]:
    """The names at the root that neither the repository nor a tool nor a broker of the developer explains."""
    return {name for name in os.listdir(root) if name not in KEPT and not _of_a_tool(name) and name != _MADE_BY_HAND}


def _of_a_tool(name: str) -> bool:
    return name in _MADE_BY_TOOLS or name.startswith((".venv", ".coverage")) or name.endswith((".egg-info", ".pyc"))


def files(root: Path = ROOT) -> Iterator[str]:
    """Every file that a test could have left. Python sources are not among them: people edit while a suite runs."""
    for here, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not _of_a_tool(name) and name != ".git"]
        if Path(here) == root and _MADE_BY_HAND in folders:
            folders.remove(_MADE_BY_HAND)  # a broker of the developer may run in it
            yield _MADE_BY_HAND
        yield from (
            os.path.relpath(os.path.join(here, name), root) for name in names if not name.endswith((".py", ".pyc"))
        )


class CheckoutStaysClean:
    """A pytest plugin for the process that sees the whole session: compares the files before and after."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._before = set(files(root))
        self.left: list[str] = []

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fails a session, also one that passed, that has left files."""
        self.left = sorted(set(files(self._root)) - self._before)
        if self.left:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.left:
            terminalreporter.section("files left in the checkout", red=True)
            terminalreporter.line("A test (or whoever worked here meanwhile) wrote to a relative path. Use tmp_path:")
            for name in self.left:
                terminalreporter.line(f"  {name}")
