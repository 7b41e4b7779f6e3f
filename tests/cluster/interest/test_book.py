"""Interest: hubs agree whatever the network does, say nothing when they agree, and miss nobody that is settled."""

from __future__ import annotations

import pytest

from sluiceway.cluster.interest.book import (
    ASK_SECONDS,
    DIGEST_SECONDS,
    STAGGER_SECONDS,
    InterestBook,
    InterestFault,
)
from sluiceway.cluster.interest.messages import Ask, Delta, Digest, Join, Message, Seen, Table
from tests.cluster.interest.simulation import NAMES, World

LOG = 40


@pytest.mark.parametrize("seed", range(30))
def test_hubs_agree_after_faults(seed: int) -> None:
    """Messages lost, delayed, repeated and reordered, links cut, hubs restarted, views late."""
    world = World(seed, 2 + seed % 5, log_names_max=LOG)
    for _ in range(150):
        world.change()
        world.run(world.chance.random() * 0.5)
        world.check_settled()
        world.check_bounds(LOG)
    world.heal()
    world.run(2 * DIGEST_SECONDS + 3 * ASK_SECONDS)
    world.check_agreement()
    world.check_settled()
    world.kinds.clear()
    world.run(10 * DIGEST_SECONDS)
    hubs_count = len(world.hubs)
    assert world.kinds.keys() == {"Digest"}, "nothing else is said while all agree"
    assert world.kinds["Digest"] <= 11 * hubs_count * (hubs_count - 1)
    assert world.injected["lost"]


def test_a_change_is_told_once_to_each_hub() -> None:
    world = World(1, 4)
    world.heal()
    world.run(2 * DIGEST_SECONDS)
    world.kinds.clear()
    world.subscribe(world.hubs["hub-0"], "/topic/new")
    world.subscribe(world.hubs["hub-0"], "/topic/new")
    world.run(1)
    world.kinds.pop("Digest", None)
    assert world.kinds == {"Delta": 3, "Seen": 3}
    world.check_settled()
    assert world.hubs["hub-0"].book.log_names_count == 0, "all have it"


class Line:
    """Messages of one book, by receiver."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Message]] = []

    def __call__(self, to: str, message: Message) -> None:
        self.sent.append((to, message))

    def take(self) -> list[tuple[str, Message]]:
        sent, self.sent = self.sent, []
        return sent


def test_a_joiner_gets_one_snapshot_and_digests_in_turns() -> None:
    """From the first member all tables; from the others their digests, the later the lower their rank."""
    view = {"a": 1, "b": 2, "c": 3, "j": 4}
    for place, name in enumerate("abc"):
        line = Line()
        book = InterestBook(name, view[name], line)
        book.add(f"/topic/of.{name}")
        book.flush()
        book.view({hub: run for hub, run in view.items() if hub != "j"}, 0.0)
        book.linked("j", 0.0)
        for other in set("abc") - {name}:
            book.receive(other, Delta(view[other], 0, 1, (f"/topic/of.{other}",), ()), 0.0)
        book.view(view, 0.0)
        book.tick(0.0)
        line.take()
        book.receive("j", Digest(4, 0, 0, 0, ()), 1.0)
        line.take()
        book.receive("j", Join(4), 1.0)
        told = [message for to, message in line.take() if to == "j"]
        if place:
            assert not told
            book.tick(1.0 + place * STAGGER_SECONDS - 0.001)
            assert not line.take()
            book.tick(1.0 + place * STAGGER_SECONDS)
            ((to, digest),) = line.take()
            assert to == "j"
            assert isinstance(digest, Digest)
        else:
            tables = {table.hub: table.names for table in told if isinstance(table, Table)}
            assert tables == {hub: (f"/topic/of.{hub}",) for hub in "abc"}
            assert len(told) == 3


def known(**names: str) -> tuple[InterestBook, Line]:
    """A book of hub `a` that knows `b`, which is interested in these names."""
    line = Line()
    book = InterestBook("a", 1, line, names_max=10)
    book.view({"a": 1, "b": 2}, 0.0)
    book.linked("b", 0.0)
    theirs = Line()
    other = InterestBook("b", 2, theirs)
    other.view({"a": 1, "b": 2}, 0.0)
    for name in names.values():
        other.add(name)
    other.flush()
    other.linked("a", 0.0)
    other.receive("a", Ask(2, 0, whole=True), 0.0)
    for to, message in theirs.take():
        assert to == "a"
        book.receive("b", message, 0.0)
    book.tick(0.0)
    line.take()
    return book, line


def test_a_hub_counts_as_interested_until_it_is_known() -> None:
    book = InterestBook("a", 1, Line())
    book.view({"a": 1, "b": 2, "c": 3}, 0.0)
    assert book.interested("/topic/t") == ["b", "c"]
    book.view({"a": 1, "b": 2}, 0.0)
    assert book.interested("/topic/t") == ["b"]


def test_names_and_patterns_are_asked_together() -> None:
    book, _line = known(one="/topic/a.*", other="/topic/b")
    assert book.interested("/topic/a.1") == ["b"]
    assert book.interested("/topic/b") == ["b"]
    assert book.interested("/topic/c") == []


def test_another_run_of_a_hub_begins_anew() -> None:
    book, _line = known(one="/topic/b")
    book.view({"a": 1, "b": 5}, 1.0)
    assert book.interested("/topic/c") == ["b"]
    assert book.table_of("b") is None
    book.receive("b", Delta(2, 1, 2, ("/topic/late",), ()), 1.0)
    assert book.table_of("b") is None, "of the run before"


def test_a_missed_delta_is_asked_for_once_in_a_while() -> None:
    book, line = known(one="/topic/b")
    book.receive("b", Delta(2, 2, 3, ("/topic/c",), ()), 1.0)
    book.receive("b", Delta(2, 3, 4, ("/topic/d",), ()), 1.1)
    asked = [message for _to, message in line.take() if isinstance(message, Ask)]
    assert asked == [Ask(2, 1, whole=False)]
    assert book.tick(1.5) == pytest.approx(1.0 + ASK_SECONDS)
    assert not any(isinstance(message, Ask) for _to, message in line.take())
    book.tick(1.0 + ASK_SECONDS)
    assert any(isinstance(message, Ask) for _to, message in line.take())


def test_a_table_with_another_hash_is_asked_for_whole() -> None:
    book, line = known(one="/topic/b")
    book.receive("b", Digest(2, 1, 12345, 0, ()), 3.0)
    assert (("b", Ask(2, 1, whole=True))) in line.take()
    assert book.interested("/topic/other") == ["b"], "until then it may be interested in anything"


def test_a_table_comes_in_parts() -> None:
    book, _line = known()
    book.receive("b", Table("b", 2, 7, False, 1, 2, ("/topic/y",)), 1.0)
    assert book.interested("/topic/y") == []
    book.receive("b", Table("b", 2, 7, False, 0, 2, ("/topic/x",)), 1.0)
    assert book.table_of("b") == (7, frozenset({"/topic/x", "/topic/y"}))


def test_too_many_names_are_everything() -> None:
    book, line = known()
    for number in range(11):
        book.add(f"/topic/{number}")
    book.flush()
    (table,) = [message for _to, message in line.take() if isinstance(message, Table)]
    assert table.covers_all
    assert not table.names
    for number in range(6):
        book.remove(f"/topic/{number}")
    book.flush()
    (table,) = [message for _to, message in line.take() if isinstance(message, Table)]
    assert not table.covers_all
    assert len(table.names) == 5


def test_a_hub_that_tells_too_much_is_refused() -> None:
    book, _line = known()
    names = tuple(f"/topic/{number}" for number in range(30))
    with pytest.raises(InterestFault, match="more than"):
        book.receive("b", Delta(2, 0, 1, names, ()), 1.0)
    with pytest.raises(InterestFault, match="more than"):
        book.receive("b", Table("b", 2, 9, False, 0, 1, names), 1.0)


def test_a_version_is_settled_when_all_live_hubs_have_it() -> None:
    book, _line = known()
    book.add("/topic/t")
    version = book.flush()
    assert book.settled_version < version
    book.receive("b", Seen(1, version, version), 1.0)
    assert book.settled_version == version
    book.add("/topic/u")
    version = book.flush()
    book.view({"a": 1}, 2.0)
    assert book.settled_version == version, "a hub that has left is not waited for"


def test_names_of_the_simulation_are_destinations() -> None:
    assert len(set(NAMES)) == len(NAMES)
