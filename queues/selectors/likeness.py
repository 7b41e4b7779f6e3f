"""LIKE patterns: `%` matches any characters, `_` one; after the ESCAPE character both match themselves.

A pattern is split at each `%` into pieces of fixed length. Each piece is searched from the end of the last one, at the
earliest position: that finds a match if there is one, without backtracking. A piece with `_` is searched by a regular
expression without repetition. So the time is one search per piece; for a piece with `_` it grows with the length, which
LOOSE_CHARS_MAX bounds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

LIKE_CHARS_MAX: Final = 512
"""Maximum length of all patterns of a selector together: bounds the evaluation of one long header."""

LOOSE_CHARS_MAX: Final = 32
"""Maximum length of the longest piece with `_` between two `%`, summed over all patterns of a selector: such a piece
may be compared at each character of a long header. (Only the longest of one pattern counts, as each search starts at
the end of the last one.)
"""


class PatternError(ValueError):
    """Invalid pattern."""


class _Piece:
    """Part of a pattern between two `%`."""

    __slots__ = ("_expression", "_text", "length")

    def __init__(self, parts: list[str | None]) -> None:
        """Take `parts`: a character each, None for any."""
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
    """Return a function that tests texts against the pattern. `escape`: one character. Raises PatternError."""
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
    """Return the length that counts against LOOSE_CHARS_MAX. Raises PatternError."""
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
