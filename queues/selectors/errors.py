"""Errors in selectors, with their position."""

from __future__ import annotations

from typing import Final

SHOWN_CHARS: Final = 72
"""Length of the excerpt shown with a mark below it."""

BEFORE_CHARS: Final = 48
"""Maximum part of the excerpt before the mark."""


class SelectorError(ValueError):
    """Invalid selector. `message`: the fault; `line` and `column`: its position, from 1; `picture`: that line with a
    caret below the position.
    """

    def __init__(self, message: str, text: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {message}")
        self.message = message
        self.line = line
        self.column = column
        self.picture = _picture(text, line, column)


def _picture(text: str, line: int, column: int) -> str:
    lines = text.split("\n")
    shown = lines[line - 1] if line <= len(lines) else ""
    start = max(0, min(column - 1 - BEFORE_CHARS, len(shown) - SHOWN_CHARS))
    part = shown[start : start + SHOWN_CHARS]
    # Characters that could shift the caret or disturb a terminal are shown as blanks.
    part = "".join(letter if letter.isprintable() else " " for letter in part)
    return f"{part}\n{' ' * (column - 1 - start)}^"


def quoted(text: str, chars_max: int = 40) -> str:
    """Return part of a selector for a message, cut if it is long."""
    return repr(text if len(text) <= chars_max else text[: chars_max - 1] + "…")
