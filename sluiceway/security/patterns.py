"""Patterns of permissions: matching of destinations, and comparison of two patterns.

A pattern is a full destination, or one with `*` for one level and a last `>` for one or more; levels are separated by
`.` or `/`, as in SUBSCRIBE. `/>` matches everything. `{user}` in a level stands for the name of the acting user.

`covers` and `overlaps` are exact: equal names have the same separators at the same places, so patterns can be compared
level by level.
"""

from __future__ import annotations

import re
from typing import Final

from sluiceway.protocols.stomp.dialects import is_foreign, known_as
from sluiceway.queues.names import DestinationNameError
from sluiceway.queues.names import check_pattern as check_levels

USER: Final = "{user}"
"""Placeholder of the user's name."""

EVERYTHING: Final = "/>"

_SEPARATORS: Final = re.compile(r"([./])")
_SPECIAL_IN_USER: Final = re.compile(r"[./*>,\s]")
_TEMPORARY: Final = ("/temp-queue/", "/temp-topic/", "/remote-temp-queue/", "/remote-temp-topic/")


def check_pattern(pattern: str) -> None:
    """Raise ValueError that explains why the pattern is invalid."""
    if not pattern.startswith("/"):
        raise ValueError(
            f"must be a full destination or pattern such as /queue/orders, /queue/orders.> or /> for all, got "
            f"{pattern!r}"
        )
    if not pattern.strip("/"):
        raise ValueError(f"{pattern!r} is the name of no destination: write {EVERYTHING} for all")
    if "," in pattern:
        raise ValueError(f"{pattern!r} holds a comma: give several patterns as a list")
    if pattern.startswith("/sluiceway/"):
        raise ValueError(f"{pattern!r} is no destination: requests to the broker need the action admin")
    if pattern.startswith(_TEMPORARY):
        raise ValueError(
            f"{pattern!r} is temporary: such destinations belong to their connection, and need no permission"
        )
    if is_foreign(pattern):
        raise ValueError(f"{pattern!r} is known as {known_as(pattern)} here, also to clients that say so")
    bare = pattern.replace(USER, "user")
    if "{" in bare or "}" in bare:
        raise ValueError(f"{pattern!r} has a brace that is not part of {USER}, the only thing that is filled in")
    if any(character < " " for character in pattern):
        raise ValueError(f"{pattern!r} holds control characters: no destination has them")
    levels = _SEPARATORS.split(pattern)[::2]
    if any(("*" in level or ">" in level) and level not in ("*", ">") for level in levels):
        raise ValueError(
            f"{pattern!r}: * and > stand for whole levels, so that nothing but . or / is beside them; "
            "write /queue/orders.* rather than /queue/orders*"
        )
    try:
        check_levels(bare)
    except DestinationNameError as error:
        raise ValueError(f"{error}; as it stands it matches nothing at all") from None


def for_user(pattern: str, user: str) -> str | None:
    """Return the pattern with the user's name filled in; None if that name can't be a level of a destination, so that
    the pattern does not apply to this user.
    """
    if USER not in pattern:
        return pattern
    if not user or _SPECIAL_IN_USER.search(user) is not None:
        return None
    return pattern.replace(USER, user)


def covers(wide: str, narrow: str) -> bool:
    """Return whether `wide` matches every name that `narrow` matches."""
    wide_pieces, narrow_pieces = _SEPARATORS.split(wide), _SEPARATORS.split(narrow)
    for place, piece in enumerate(wide_pieces):
        rest = narrow_pieces[place:]
        if piece == ">" and _is_level(place):
            return bool(rest) and rest != [""]
        if not rest:
            return False
        if piece == "*" and _is_level(place):
            if rest[0] in (">", ""):
                return False
        elif piece != rest[0]:
            return False
    return len(wide_pieces) == len(narrow_pieces)


def overlaps(one: str, other: str) -> bool:
    """Return whether some name is matched by both."""
    ones, others = _SEPARATORS.split(one), _SEPARATORS.split(other)
    for place in range(max(len(ones), len(others))):
        rest, other_rest = ones[place:], others[place:]
        if not rest or not other_rest:
            return False
        if _is_level(place):
            if rest[0] == ">":
                return other_rest != [""]
            if other_rest[0] == ">":
                return rest != [""]
            if (rest[0] == "*" and other_rest[0] != "") or (other_rest[0] == "*" and rest[0] != ""):
                continue
        if rest[0] != other_rest[0]:
            return False
    return True


def _is_level(place: int) -> bool:
    """Return whether the place holds a level: levels and separators alternate."""
    return place % 2 == 0
