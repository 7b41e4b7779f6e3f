"""Checks the words that people read: against scripts/words.txt, which names better ones, and for misspellings.

It reads all pages (generated ones too: command line, configuration, metrics, API) and the texts in the code: errors,
log events, remedies, the console. codespell compares; this program gives it the texts without code. The place of a text
over several lines is its first line.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "scripts" / "words.txt"
PAGES = ("docs", "examples", "store")
CODE = ("sluiceway", "protocols", "queues", "flow", "store", "dispatcher", "pyspark_stomp")

_FENCE = re.compile(r"^\s*```")
_NO_PROSE = re.compile(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->")
_BEGINS_ANEW = re.compile(r"\s*([-*|#>]|\d+\.|$)")
_JS_TEXT = re.compile(r'"(?:[^"\\\n]|\\.)*"|`(?:[^`\\]|\\.)*`')

Lines = dict[int, str]
"""Texts by the number of their first line."""


def markdown(source: str) -> Lines:
    """Return paragraphs, list items and rows of tables, without code."""
    found: Lines = {}
    first, is_code = 0, False
    for number, line in enumerate(source.split("\n"), 1):
        if _FENCE.match(line):
            is_code, first = not is_code, 0
        elif not is_code:
            if first == 0 or _BEGINS_ANEW.match(line):
                first = number
            found[first] = f"{found.get(first, '')} {line.strip()}"
            if not line.strip() or line.startswith("#"):
                first = 0
    return {number: _NO_PROSE.sub(" _ ", text) for number, text in found.items()}


def python(source: str) -> Lines:
    """Return the texts of a module, without docstrings: the help of commands is in the generated pages."""
    return _joined(_texts(ast.parse(source)))


def javascript(source: str) -> Lines:
    """Return the quoted texts of a module."""
    return _joined(
        (source.count("\n", 0, match.start()) + 1, match.group()[1:-1]) for match in _JS_TEXT.finditer(source)
    )


def _texts(node: ast.AST) -> Iterator[tuple[int, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        if isinstance(child, ast.JoinedStr):
            yield child.lineno, "".join(str(v.value) if isinstance(v, ast.Constant) else "_" for v in child.values)
            yield from (text for v in child.values if isinstance(v, ast.FormattedValue) for text in _texts(v))
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.lineno, child.value
        else:
            yield from _texts(child)


def _joined(texts: Iterator[tuple[int, str]]) -> Lines:
    """Join the texts of each line. One or two words are a name or a value, which may be part of an interface."""
    found: Lines = {}
    for number, text in texts:
        if len(words := _NO_PROSE.sub(" _ ", text).split()) > 2:
            found[number] = f"{found.get(number, '')} {' '.join(words)}"
    return found


READERS = {".md": markdown, ".py": python, ".js": javascript}


def files(root: Path) -> list[Path]:
    """Return the files with texts for people. Folders that are links are read at their own place."""
    pages = [*root.glob("*.md"), *(path for folder in PAGES for path in (root / folder).rglob("*.md"))]
    code = [path for folder in CODE for path in (root / folder).rglob("*") if path.suffix in (".py", ".js")]
    return [path for path in (*pages, *code) if path.is_file() and not _is_linked(path, root)]


def _is_linked(path: Path, root: Path) -> bool:
    return any((root / part).is_symlink() for part in path.relative_to(root).parents)


def word_pattern(entries: str) -> str:
    """Return the pattern of what codespell looks up: a phrase of the list, else a word."""
    phrases = [line.partition("->")[0] for line in entries.splitlines()]
    longest_first = sorted((re.escape(phrase) for phrase in phrases if " " in phrase), key=len, reverse=True)
    return r"(?i:\b(?:" + "|".join(longest_first) + r")\b)|[\w\-'’]+"


def check(root: Path, words: Path = LIST) -> int:
    """Print places and better words. Returns the exit code of codespell: 0 if it has found nothing."""
    with tempfile.TemporaryDirectory(prefix="sluiceway-words-") as folder:
        for path in files(root):
            lines = READERS[path.suffix](path.read_text(encoding="utf-8"))
            copy = Path(folder) / path.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text("\n".join(lines.get(number, "") for number in range(1, max(lines, default=0) + 1)) + "\n")
        command = [sys.executable, "-m", "codespell_lib", "--dictionary", str(words), "--dictionary", "-"]
        command += ["--regex", word_pattern(words.read_text(encoding="utf-8")), "."]
        return subprocess.run(command, cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(check(ROOT))
