"""Values in selectors: headers as numbers or truth values, and three-valued logic.

A header is a text. In a comparison with a number it is a number if it reads like one; with TRUE or FALSE a truth value
if it is one of these words. Otherwise the result is unknown, represented by None.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

Raw = str | int | None
"""A header as looked up; None: it is missing."""

Number = int | float
Values = list[Raw]
"""Values of a selector's names, in their order."""

Test = Callable[[Values], bool | None]
"""A condition; None: unknown."""
Look = Callable[[Values], Raw]
Count = Callable[[Values], Number | None]

NUMBER_CHARS_MAX: Final = 64
"""Maximum length of a text that is read as a number."""

INTEGER_END: Final = 1 << 63
"""Bound of integers: beyond it whole numbers become floating point, so that no product grows without bound."""

_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WHOLE: Final = re.compile(r"[+-]?[0-9]+")


def as_number(raw: Raw) -> Number | None:
    """Return the value as a number, if it reads like one. Blanks around it are ignored."""
    if raw is None or isinstance(raw, int):
        return raw
    length = len(raw)
    if length < 19 and raw.isdigit() and raw.isascii():  # most values are like that
        return int(raw)
    if length > NUMBER_CHARS_MAX:
        return None
    text = raw.strip(" \t")
    if _WHOLE.fullmatch(text) is not None:
        return bounded(int(text))
    return float(text) if _NUMBER.fullmatch(text) is not None else None


def as_boolean(raw: Raw) -> bool | None:
    """Return the value as a truth value, if it is one."""
    if not isinstance(raw, str) or len(raw) > NUMBER_CHARS_MAX:
        return None
    word = raw.strip(" \t").lower()
    return True if word == "true" else False if word == "false" else None


def as_text(raw: Raw) -> str | None:
    """Return the value as a text."""
    return str(raw) if isinstance(raw, int) else raw


def bounded(number: Number) -> Number | None:
    """Return a result in the range of further arithmetic; None if it is not a number."""
    if isinstance(number, int):
        return number if -INTEGER_END <= number < INTEGER_END else float(number)
    return number if number == number else None  # not-a-number differs from itself


def same(left: Raw, right: Raw) -> bool | None:
    """Return whether two headers are equal: as texts, or as numbers."""
    if left is None or right is None:
        return None
    if as_text(left) == as_text(right):
        return True
    first, second = as_number(left), as_number(right)
    return first is not None and second is not None and first == second


def negated(value: bool | None) -> bool | None:
    """Return NOT `value`."""
    return None if value is None else not value
