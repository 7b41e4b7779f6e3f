"""Patterns of permissions: matching of destinations, and comparison of two patterns.

A pattern is a full destination, or one with `*` for one level and a last `>` for one or more, of topics also `#` for
any number; levels are separated by `.` or `/`, as in SUBSCRIBE. `/>` matches everything. `{user}` in a level stands for
the name of the acting user.

`covers` and `overlaps` are exact without `#`: equal names have the same separators at the same places, so patterns can
be compared level by level. With `#` the first may say no, and the second yes, where that is not so: of a wildcard that
may be allowed, each destination is asked for.
"""

from __future__ import annotations

import re
from typing import Final

from sluiceway.protocols.stomp.dialects import is_foreign, known_as
from sluiceway.queues.names import HASH, DestinationNameError, edges_of, has_hash
from sluiceway.queues.names import check_pattern as check_levels

USER: Final = "{user}"
"""Placeholder of the user's name."""

EVERYTHING: Final = "/>"

_SEPARATORS: Final = re.compile(r"([./])")
_SPECIAL_IN_USER: Final = re.compile(r"[./*>#,\s]")
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
    if has_hash(wide) or has_hash(narrow):
        return _covers_levels(_levels_of(wide, "*"), _levels_of(narrow, ">"))
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
    if has_hash(one) or has_hash(other):
        return _overlap_levels(_levels_of(one, "*"), _levels_of(other, "*"))
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


def _levels_of(pattern: str, beginning: str) -> list[tuple[str, str]]:
    """Return separators and levels. A last `>` is one level, written as `beginning`, and any number of others."""
    levels = [(edge[0], edge[1:]) for edge in edges_of(pattern)]
    if levels and levels[-1][1] == ">":
        levels[-1:] = [(levels[-1][0], beginning), (".", HASH)]
    return levels


def _covers_levels(wide: list[tuple[str, str]], narrow: list[tuple[str, str]]) -> bool:
    """Do the work of `covers` with `#`, place by place of `narrow`, with the places of `wide` that it may have come to.
    O(levels * levels).
    """
    places = _with_behind_hash(wide, {0})
    for separator, level in narrow:
        later = set()
        for place in places:
            if place == len(wide):
                continue
            own_separator, own = wide[place]
            if own == HASH:
                later.add(place)
            elif level in (HASH, ">") or (own_separator != separator and not _is_behind_hash(wide, place)):
                continue
            elif own == level or (own == "*" and level):
                later.add(place + 1)
        places = _with_behind_hash(wide, later)
    return len(wide) in places


def _overlap_levels(ones: list[tuple[str, str]], others: list[tuple[str, str]]) -> bool:
    """Do the work of `overlaps` with `#`: of separators it looks at none. O(levels * levels)."""
    to_do = [(0, 0)]
    seen = set(to_do)
    while to_do:
        one, other = to_do.pop()
        left, right = one < len(ones), other < len(others)
        if not (left or right):
            return True
        level = ones[one][1] if left else None
        other_level = others[other][1] if right else None
        following = []
        if level == HASH:
            following += [(one + 1, other), *([(one, other + 1)] if right else [])]
        if other_level == HASH:
            following += [(one, other + 1), *([(one + 1, other)] if left else [])]
        if (
            level is not None
            and other_level is not None
            and (level == other_level or (level == "*" and other_level) or (other_level == "*" and level))
        ):
            following.append((one + 1, other + 1))
        for pair in following:
            if pair not in seen:
                seen.add(pair)
                to_do.append(pair)
    return False


def _with_behind_hash(levels: list[tuple[str, str]], places: set[int]) -> set[int]:
    return places | {place + 1 for place in places if place < len(levels) and levels[place][1] == HASH}


def _is_behind_hash(levels: list[tuple[str, str]], place: int) -> bool:
    return place > 0 and levels[place - 1][1] == HASH
