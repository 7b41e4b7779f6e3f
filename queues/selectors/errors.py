"""What is wrong with a selector, and where."""

from __future__ import annotations

from typing import Final

SHOWN_CHARS: Final = 72
"""Of the line that is shown with a mark below it."""

BEFORE_CHARS: Final = 48
"""Of those, at most so many before the mark."""


class SelectorError(ValueError):
    """A selector that can't be used. `message`: what is wrong; `line` and `column`: where, from 1; `picture`: that line
    and a caret below the place.
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
    # Whatever could spoil the line of the caret, or a terminal, is shown as a blank.
    part = "".join(letter if letter.isprintable() else " " for letter in part)
    return f"{part}\n{' ' * (column - 1 - start)}^"


def quoted(text: str, chars_max: int = 40) -> str:
    """A piece of a selector for a message, cut if it is long."""
    return repr(text if len(text) <= chars_max else text[: chars_max - 1] + "…")
