"""Values in selectors: what a header's text is when a number or a truth value is wanted, and three-valued logic.

A header is a text. Compared with a number it is a number, if it reads like one; with TRUE or FALSE a truth value, if it
is one of these words. Otherwise the result is unknown, and unknown is None here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

Raw = str | int | None
"""A header as it is looked up; None: it is not there."""

Number = int | float
Values = list[Raw]
"""Of the names of a selector, in their order."""

Test = Callable[[Values], bool | None]
"""None: unknown."""
Look = Callable[[Values], Raw]
Count = Callable[[Values], Number | None]

NUMBER_CHARS_MAX: Final = 64
"""A longer text is no number."""

INTEGER_END: Final = 1 << 63
"""From here on whole numbers go on as floating point ones: so no product grows without end."""

_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WHOLE: Final = re.compile(r"[+-]?[0-9]+")


def as_number(raw: Raw) -> Number | None:
    """This as a number, if it reads like one. Blanks around it don't count."""
    if raw is None or isinstance(raw, int):
        return raw
    length = len(raw)
    if length < 19 and raw.isdigit() and raw.isascii():  # most are like that
        return int(raw)
    if length > NUMBER_CHARS_MAX:
        return None
    text = raw.strip(" \t")
    if _WHOLE.fullmatch(text) is not None:
        return bounded(int(text))
    return float(text) if _NUMBER.fullmatch(text) is not None else None


def as_boolean(raw: Raw) -> bool | None:
    """This as a truth value, if it says one."""
    if not isinstance(raw, str) or len(raw) > NUMBER_CHARS_MAX:
        return None
    word = raw.strip(" \t").lower()
    return True if word == "true" else False if word == "false" else None


def as_text(raw: Raw) -> str | None:
    """This as a text."""
    return str(raw) if isinstance(raw, int) else raw


def bounded(number: Number) -> Number | None:
    """A result that can be gone on with. None: it is no number."""
    if isinstance(number, int):
        return number if -INTEGER_END <= number < INTEGER_END else float(number)
    return number if number == number else None  # not-a-number is unlike itself


def same(left: Raw, right: Raw) -> bool | None:
    """Whether two headers say the same: the same text, or the same number."""
    if left is None or right is None:
        return None
    if as_text(left) == as_text(right):
        return True
    first, second = as_number(left), as_number(right)
    return first is not None and second is not None and first == second


def negated(value: bool | None) -> bool | None:
    """NOT."""
    return None if value is None else not value
