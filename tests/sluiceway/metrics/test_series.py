"""Who has series of its own, and sums that never go back: a model test, and the cases by name."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.metrics.series import Naming, Rest


def page(naming: Naming, counts: dict[str, int], names_max: int) -> tuple[dict[str, float], float]:
    """What a page says of these: by name, and of the others."""
    naming.begin()
    own = {name: naming.own(name, [count], names_max) for name, count in counts.items()}
    return {name: said[0] for name, said in own.items() if said is not None}, naming.others.totals()[0]


def test_the_first_ones_have_names() -> None:
    naming = Naming(1)
    named, others = page(naming, {"a": 1, "b": 2, "c": 4, "d": 8}, 2)
    assert (named, others) == ({"a": 1, "b": 2}, 12)


def test_a_name_that_is_free_is_given_to_the_next_and_no_count_is_said_twice() -> None:
    """What it counted among the others stays there; its own series begins at 0."""
    naming = Naming(1)
    page(naming, {"a": 1, "b": 2}, 1)
    naming.gone("a", [1])
    assert page(naming, {"b": 5}, 1) == ({"b": 0}, 5)
    assert page(naming, {"b": 9}, 1) == ({"b": 4}, 5)


def test_what_a_deleted_one_counted_stays_in_the_sum() -> None:
    naming = Naming(1)
    page(naming, {"a": 1, "b": 2}, 1)
    naming.gone("b", [7])
    assert page(naming, {"a": 1}, 1) == ({"a": 1}, 7)


def test_one_that_goes_while_the_page_is_made_counts_once() -> None:
    naming = Naming(1)
    naming.begin()
    naming.own("a", [5], 0)
    naming.gone("a", [5])
    assert naming.others.totals() == [5]
    assert page(naming, {}, 0) == ({}, 5)


def test_a_name_comes_back_with_its_destination() -> None:
    """Deleted and made anew, it begins at 0, as every counter may."""
    naming = Naming(1)
    assert page(naming, {"a": 3}, 1)[0] == {"a": 3}
    naming.gone("a", [3])
    assert page(naming, {"a": 1}, 1)[0] == {"a": 1}


def test_a_sum_never_goes_back() -> None:
    rest = Rest(1)
    rest.begin()
    rest.add("a", [10])
    assert rest.totals() == [10]
    rest.begin()
    assert rest.totals() == [10]


@settings(max_examples=200)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("count"), st.sampled_from("abcde"), st.integers(1, 5)),
            st.tuples(st.just("delete"), st.sampled_from("abcde"), st.just(0)),
            st.tuples(st.just("page"), st.just(""), st.integers(0, 3)),
        ),
        max_size=60,
    )
)
def test_what_grows_between_two_pages_is_what_was_counted(steps: list[tuple[str, str, int]]) -> None:
    """Whatever comes, goes and takes whose place: added up over all series, the increases are the counts, but for those
    of a named one that is gone (its series ends). So `sum(rate(...))` is right.
    """
    naming = Naming(1)
    counts: dict[str, int] = {}
    before: dict[str, float] = {}
    counted_since: dict[str, int] = {}
    for what, name, amount in steps:
        if what == "count":
            counts[name] = counts.get(name, 0) + amount
            counted_since[name] = counted_since.get(name, 0) + amount
        elif what == "delete" and name in counts:
            count = counts.pop(name)
            naming.gone(name, [count])
            if name in before:  # its series ended: what it counted since the last page is not seen
                del before[name]
                counted_since.pop(name, None)
        elif what == "page":
            named, others = page(naming, counts, amount)
            now = {**named, "": others}
            increases = {series: value - before.get(series, 0) for series, value in now.items()}
            assert all(increase >= 0 for increase in increases.values())
            assert sum(increases.values()) == sum(counted_since.values())
            before, counted_since = now, {}
