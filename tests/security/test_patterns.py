"""Patterns of permissions: what they cover, held against matching names one by one."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.queues.names import covers_name
from sluiceway.security.patterns import check_pattern, covers, for_user, overlaps

LEVELS = ("a", "b", "")
NAMES = [
    "/" + "".join(level + separator for level, separator in zip(levels, (*separators, ""), strict=True))
    for length in (1, 2, 3)
    for levels in product(LEVELS, repeat=length)
    for separators in product("./", repeat=length - 1)
]


def matched(pattern: str) -> set[str]:
    return {name for name in NAMES if covers_name(pattern, name)}


@st.composite
def patterns(draw: st.DrawFn) -> str:
    """Two levels at most, so that names of three tell all apart."""
    levels = draw(st.lists(st.sampled_from(("a", "b", "*")), min_size=1, max_size=2))
    if draw(st.booleans()):
        levels[-1] = ">"
    separator = draw(st.sampled_from("./"))
    return "/" + separator.join(levels)


@given(wide=patterns(), narrow=patterns())
def test_one_covers_another_exactly_if_it_matches_all_of_its_names(wide: str, narrow: str) -> None:
    assert covers(wide, narrow) == (matched(narrow) <= matched(wide))


@given(one=patterns(), other=patterns())
def test_two_overlap_exactly_if_some_name_is_matched_by_both(one: str, other: str) -> None:
    assert overlaps(one, other) == overlaps(other, one) == bool(matched(one) & matched(other))


@given(
    one=st.lists(st.sampled_from(("a", "*", "#")), min_size=1, max_size=3),
    other=st.lists(st.sampled_from(("a", "b", "*", "#")), min_size=1, max_size=3),
)
def test_patterns_with_hashes_are_compared_on_the_safe_side(one: list[str], other: list[str]) -> None:
    """One that covers another matches all of its names, and two that match one name overlap."""
    wide, narrow = "/topic/" + ".".join(one), "/topic/" + ".".join(other)
    names = [f"/topic{name}" for name in NAMES]
    matched_by_wide, matched_by_narrow = ({n for n in names if covers_name(p, n)} for p in (wide, narrow))
    assert covers(wide, wide) and covers("/>", narrow)
    assert not covers(wide, narrow) or matched_by_narrow <= matched_by_wide
    assert overlaps(wide, narrow) or not matched_by_wide & matched_by_narrow


def test_all_there_is_covers_every_kind_of_name() -> None:
    for name in ("/queue/a", "/topic/a.b", "/log/x", "/anything", "/queue/>", "/*/a"):
        assert covers("/>", name)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("queue/a", "full destination"),
        ("", "full destination"),
        ("/queue/>.x", "must be the last level"),
        ("/queue/>/", "must be the last level"),
        ("/queue/a,/queue/b", "comma"),
        ("/queue/orders*", "whole levels"),
        ("/queue/a>", "whole levels"),
        ("/temp-queue/x", "temporary"),
        ("/remote-temp-queue/>", "temporary"),
        ("/sluiceway/stat", "admin"),
        ("/queue/{usr}", "brace"),
        ("/queue/a\n", "control"),
    ],
)
def test_patterns_that_could_never_mean_anything_are_refused(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_pattern(pattern)


@pytest.mark.parametrize("user", ["a.b", "a/b", "*", ">", "a b", "a,b", ""])
def test_a_user_whose_name_is_more_than_one_level_gets_nothing_by_it(user: str) -> None:
    """Else `>` as a name would be a pattern, and `ann.x` would be within what is ann's."""
    assert for_user("/queue/of.{user}.>", user) is None
    assert for_user("/queue/all", user) == "/queue/all"


def test_the_users_name_is_filled_in() -> None:
    assert for_user("/queue/of.{user}.>", "ann") == "/queue/of.ann.>"
