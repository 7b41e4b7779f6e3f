"""Tries of patterns and of names, held against matching one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.queues.names import DestinationNameError, covers_name, edges_of, parse
from sluiceway.queues.wildcards import NameTrie, PatternTrie, path_of

levels = st.sampled_from(("a", "b", "c", "", "*", ">", "#", "a*"))
separators = st.sampled_from("./")


@st.composite
def full_names(draw: st.DrawFn) -> str:
    count = draw(st.integers(1, 4))
    start = draw(st.sampled_from(("/queue", "/topic", "", "/log")))
    return start + "/" + "".join(draw(levels) + draw(separators) for _ in range(count - 1)) + draw(levels)


def all_of(found: object) -> list[object]:
    assert hasattr(found, "__iter__")
    return sorted(thing for thing in found if thing is not None)


def is_pattern(name: str) -> bool:
    try:
        return parse(name).canonical == name
    except DestinationNameError:
        return False


def is_name(name: str) -> bool:
    return is_pattern(name) and not parse(name).wildcard


@given(st.lists(full_names().filter(is_pattern)), st.lists(full_names()), st.data())
def test_patterns_match_as_they_do_one_by_one(patterns: list[str], names: list[str], data: st.DataObject) -> None:
    """Also after some have been taken out; each is found once."""
    trie: PatternTrie[int] = PatternTrie()
    kept = dict(enumerate(patterns))
    for number, pattern in kept.items():
        trie.add(edges_of(pattern), number)
    for number in data.draw(st.sets(st.sampled_from(range(len(patterns))))) if patterns else ():
        trie.discard(edges_of(kept.pop(number)), number)
    assert len(trie) == len(kept)
    for name in names:
        expected = sorted(number for number, pattern in kept.items() if covers_name(pattern, name))
        assert all_of(trie.matching(edges_of(name))) == expected
    for number, pattern in kept.items():
        trie.discard(edges_of(pattern), number)
    assert not len(trie)
    assert not trie._root.children


@given(st.sets(full_names().filter(is_name)), st.lists(full_names().filter(is_pattern)), st.data())
def test_names_are_matched_as_they_are_one_by_one(names: set[str], patterns: list[str], data: st.DataObject) -> None:
    """Within their kind, also after some have been taken out; each is found once."""
    trie: NameTrie[str] = NameTrie()
    for name in names:
        trie.put(path_of(name), name)
    gone = data.draw(st.sets(st.sampled_from(sorted(names)))) if names else set()
    for name in gone:
        trie.remove(path_of(name))
    for pattern in patterns:
        expected = sorted(name for name in names - gone if parse(pattern).matches(name))
        assert all_of(trie.matching(path_of(pattern))) == expected
    for name in names:
        trie.remove(path_of(name))
    assert trie._root.children is None


@given(
    st.lists(full_names().filter(is_pattern), min_size=1),
    st.lists(full_names().filter(is_name), unique=True),
    st.data(),
)
def test_a_subscription_is_found_for_a_new_name_of_its_kind(
    patterns: list[str], names: list[str], data: st.DataObject
) -> None:
    trie: PatternTrie[int] = PatternTrie()
    for number, pattern in enumerate(patterns):
        trie.add(path_of(pattern), number)
    for name in names:
        expected = [number for number, pattern in enumerate(patterns) if parse(pattern).matches(name)]
        assert all_of(trie.matching(path_of(name))) == expected


@given(st.lists(full_names().filter(is_name), unique=True, min_size=1), full_names().filter(is_pattern), st.data())
def test_a_walk_that_is_left_finds_what_stays(names: list[str], pattern: str, data: st.DataObject) -> None:
    """Names that come and go in the middle change nothing for the others."""
    trie: NameTrie[str] = NameTrie()
    for name in names:
        trie.put(path_of(name), name)
    walk = trie.matching(path_of(pattern))
    found: list[str] = []
    gone: set[str] = set()
    come: set[str] = set()
    strangers = st.sampled_from(["/queue/a.new", "/queue/new.a", "/topic/new", "/queue/a/new"])
    for step in walk:
        if step is not None:
            found.append(step)
        if data.draw(st.booleans()):
            name = data.draw(st.sampled_from(names))
            trie.remove(path_of(name))
            gone.add(name)
        if data.draw(st.booleans()):
            name = data.draw(strangers)
            if name not in names:
                trie.put(path_of(name), name)
                come.add(name)
    expected = {name for name in names if parse(pattern).matches(name)}
    assert len(found) == len(set(found))
    assert expected - gone <= set(found) <= expected | come


def test_what_does_not_agree_costs_nothing() -> None:
    """Ten thousand patterns and as many names beside those that are looked for: the steps are the same without them."""
    patterns: PatternTrie[str] = PatternTrie()
    names: NameTrie[str] = NameTrie()
    patterns.add(path_of("/topic/a.*.c"), "wanted")
    names.put(path_of("/topic/a.b.c"), "wanted")

    def steps() -> tuple[int, int]:
        return (
            sum(1 for _ in patterns.matching(path_of("/topic/a.b.c"))),
            sum(1 for _ in names.matching(path_of("/topic/a.*.c"))),
        )

    before = steps()
    for number in range(10_000):
        patterns.add(path_of(f"/topic/{number}.*.c"), f"pattern {number}")
        names.put(path_of(f"/topic/{number}.b.c"), f"name {number}")
        patterns.add(path_of(f"/queue/a.*.{number}"), f"queue {number}")
    assert steps() == before


def test_destinations_that_come_match_more_patterns_than_any_cache_keeps() -> None:
    """No pattern is compiled: a thousand and more differ without a cost for those that do not agree."""
    patterns: PatternTrie[int] = PatternTrie()
    for number in range(5_000):
        patterns.add(path_of(f"/topic/{number}.>"), number)
    assert all_of(patterns.matching(path_of("/topic/4711.x.y"))) == [4711]
    assert sum(1 for _ in patterns.matching(path_of("/topic/4711.x.y"))) <= 6


def test_a_walk_counts_what_it_has_copied_until_that_is_gone_through() -> None:
    """Or until it is given up."""
    kept: list[int] = []
    trie: NameTrie[int] = NameTrie(kept.append)
    for number in range(1000):
        trie.put(path_of(f"/queue/{number}"), number)
    kept.clear()
    walk = trie.matching(path_of("/queue/*"))
    assert sum(thing is not None for thing in walk) == 1000
    assert max(kept) == 8000 and sum(kept) == 0
    walk = trie.matching(path_of("/queue/>"))
    for _ in range(10):
        next(walk)
    assert sum(kept) == 8000
    del walk
    assert sum(kept) == 0


@pytest.mark.parametrize(
    ("pattern", "covered", "others"),
    [
        ("/topic/a.#.z", ["a.z", "a.b.z", "a.b.z.c.z", "a.z.z", "a/b.z"], ["a", "z", "a.b", "b.a.z", "a.z.b"]),
        ("/topic/#.error", ["error", "a.error", "a.b.error", "error.error"], ["error.a", "errors", "a"]),
        ("/topic/#.*.#", ["a", "a.b"], []),
        ("/topic/*.#.*", ["a.b", "a.b.c"], ["a"]),
        ("/topic/#.a.#.b.#", ["a.b", "x.a.x.b.x", "a.a.b.b"], ["b.a", "a", "b"]),
        ("/topic/a.#", ["a", "a.b", "a..b"], ["ab", "b.a"]),
    ],
)
def test_a_hash_is_any_number_of_words(pattern: str, covered: list[str], others: list[str]) -> None:
    """As in the topic exchanges of AMQP."""
    address = parse(pattern)
    assert address.wildcard
    assert [name for name in (*covered, *others) if address.matches(f"/topic/{name}")] == covered
    assert not any(address.matches(f"/queue/{name}") for name in covered)


def test_hashes_do_not_multiply_the_work() -> None:
    """At most one step for each place of the pattern and the name together, though it could be taken in 2**40 ways."""
    pattern, name = "/topic/" + "#.a." * 15 + "b", "/topic/" + "a." * 500 + "c"
    patterns: PatternTrie[int] = PatternTrie()
    patterns.add(path_of(pattern), 1)
    assert sum(1 for _ in patterns.matching(path_of(name))) < 33 * 502
    assert not covers_name(pattern, name)
    names: NameTrie[int] = NameTrie()
    names.put(path_of(name), 1)
    assert sum(1 for _ in names.matching(path_of(pattern))) <= 504


@pytest.mark.parametrize("pattern", ["/topic/a.#.>", "/topic/#" + ".*" * 32])
def test_patterns_that_are_dear_or_say_two_things_are_refused(pattern: str) -> None:
    with pytest.raises(DestinationNameError):
        parse(pattern)
