"""LIKE: `%` stands for any characters, `_` for one, and after the ESCAPE character both stand for themselves.

A pattern is cut at its `%` into pieces of fixed length, which are looked for one after the other, each as early as it
can be: that finds a match if there is one, and never goes back. A piece with `_` is looked for with a regular
expression that has nothing that repeats. So the time is that of one search per piece; that of one with `_` grows with
its length, which LOOSE_CHARS_MAX bounds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

LIKE_CHARS_MAX: Final = 512
"""Of all patterns of a selector together: what a look at one long header can cost."""

LOOSE_CHARS_MAX: Final = 32
"""Of the longest piece with `_` between two `%`, of all patterns of a selector together: it may be compared with a long
header at each of its characters. (Of one pattern the longest counts: each is looked for where the last one ended.)"""


class PatternError(ValueError):
    """A pattern that means nothing."""


class _Piece:
    """Between two `%`."""

    __slots__ = ("_expression", "_text", "length")

    def __init__(self, parts: list[str | None]) -> None:
        """`parts`: a character each, None for any."""
        self.length = len(parts)
        self._text = "" if None in parts else "".join(part for part in parts if part is not None)
        self._expression = (
            re.compile("".join("." if part is None else re.escape(part) for part in parts), re.DOTALL)
            if None in parts
            else None
        )

    def find(self, text: str, start: int) -> int:
        if self._expression is None:
            return text.find(self._text, start)
        found = self._expression.search(text, start)
        return -1 if found is None else found.start()

    def is_at(self, text: str, start: int) -> bool:
        if self._expression is None:
            return text.startswith(self._text, start)
        return self._expression.match(text, start) is not None


def like(pattern: str, escape: str | None = None) -> Callable[[str], bool]:
    """Tells whether a text is like this. `escape`: one character. Raises PatternError."""
    pieces = [_Piece(parts) for parts in _cut(pattern, escape)]
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return lambda text: len(text) == first.length and first.is_at(text, 0)
    between = [piece for piece in pieces[1:-1] if piece.length]
    least = sum(piece.length for piece in pieces)

    def matches(text: str) -> bool:
        if len(text) < least or not first.is_at(text, 0):
            return False
        end = len(text) - last.length
        if not last.is_at(text, end):
            return False
        place = first.length
        for piece in between:
            place = piece.find(text, place)
            if place < 0:
                return False
            place += piece.length
        return place <= end

    return matches


def loose_chars(pattern: str, escape: str | None = None) -> int:
    """How much of this counts against LOOSE_CHARS_MAX. Raises PatternError."""
    return max((len(parts) for parts in _cut(pattern, escape)[1:-1] if None in parts), default=0)


def _cut(pattern: str, escape: str | None) -> list[list[str | None]]:
    pieces: list[list[str | None]] = [[]]
    letters = iter(pattern)
    for letter in letters:
        if letter == escape:
            literal = next(letters, None)
            if literal is None:
                raise PatternError(
                    "the pattern ends with its ESCAPE character: nothing follows that it could stand for"
                )
            if literal not in ("%", "_", escape):
                raise PatternError(
                    f"the ESCAPE character stands before {literal!r}: it goes before %, _ and itself only"
                )
            pieces[-1].append(literal)
        elif letter == "%":
            pieces.append([])
        else:
            pieces[-1].append(None if letter == "_" else letter)
    return pieces
