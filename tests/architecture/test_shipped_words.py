"""What users read names nothing that an installation lacks: pages of docs/ are in the checkout and on the site."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

import click
import pytest

from sluiceway.cli import main
from tests.architecture.sources import PACKAGES, ROOT, modules, parsed

PAGE: Final = re.compile(r"docs/[\w/-]+\.\w+")


def texts(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yield the texts of a module that are no docstrings."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings | statements:
            yield node


def test_no_text_names_a_page() -> None:
    named = [
        f"{file.relative_to(ROOT)}:{node.lineno}: {found[0]}"
        for package in PACKAGES
        for file in modules(package)
        for node in texts(parsed(file.read_text(encoding="utf-8")))
        if (found := PAGE.search(node.value))
    ]
    assert not named, "name a command, such as `sluiceway config`, or say it: " + ", ".join(named)


def commands(command: click.Command, path: tuple[str, ...] = ("sluiceway",)) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(path), command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (found := command.get_command(context, name)) is not None:
                yield from commands(found, (*path, name))


def test_no_help_names_a_page() -> None:
    named = [name for name, command in commands(main) if PAGE.search(command.help or "")]
    assert not named


@pytest.mark.parametrize("text", ["see docs/permissions.md", "docs/design/cluster.md"])
def test_a_page_is_found(text: str) -> None:
    [found] = texts(ast.parse(f"'''docs/fine.md'''\nprint({text!r})"))
    assert PAGE.search(found.value)
