"""What is remembered of what ended subscriptions gave back: bounded, and never too little as far as ACKs of 1.2 go."""

from __future__ import annotations

from sluiceway.protocols.stomp.late import ENTRIES_MAX, RANGES_MAX, GivenBack

TOKEN = b"abc"


def test_it_names_just_what_was_given_back() -> None:
    late = GivenBack()
    late.note(3, "s", TOKEN, [4, 5, 9], [104, 105, 209])
    assert [n for n in range(12) if late.has(b"3-%d" % n, ())] == [4, 5, 9]
    assert [n for n in range(300) if late.has((b"s", b"abc-%d" % n), ())] == [104, 105, 209]
    assert [n for n in range(300) if late.has((None, b"abc-%d" % n), ())] == [104, 105, 209]
    assert not late.has((b"other", b"abc-104"), ())
    assert not late.has((b"s", b"other-104"), ())
    assert late.has(b"abc-104", ())


def test_what_is_delivered_again_is_not_given_back() -> None:
    late = GivenBack()
    late.note(3, "s", TOKEN, range(10), range(100, 110))
    late.delivered("s", TOKEN, [103, 104, 108])
    assert [n for n in range(90, 120) if late.has((b"s", b"abc-%d" % n), ())] == [100, 101, 102, 105, 106, 107, 109]
    assert late.has(b"3-3", ()), "that delivery was given back for ever"
    late.delivered("other", TOKEN, [100])
    assert late.has((b"s", b"abc-100"), ()) and not late.has((None, b"abc-100"), ())


def test_a_message_id_of_its_own_names_one_delivery_for_ever() -> None:
    late = GivenBack()
    late.note(3, "s", TOKEN, range(10), range(100, 110))
    late.delivered("s", TOKEN, range(100, 110))
    assert not late.has((b"s", b"abc-104"), ())
    assert [n for n in range(20) if late.has((b"s", b"abc-104.3.%d" % n), ())] == list(range(10))
    assert not late.has((b"s", b"abc-104.4.4"), ())


def test_what_is_too_scattered_is_remembered_as_one() -> None:
    late = GivenBack()
    scattered = range(0, 4 * RANGES_MAX, 2)
    late.note(1, "s", TOKEN, scattered, scattered)
    assert all(late.has(b"1-%d" % n, ()) for n in range(scattered[-1] + 1))
    assert not late.has(b"1-%d" % (scattered[-1] + 1), ())


def test_what_is_forgotten_counts_as_given_back() -> None:
    late = GivenBack()
    for key in range(1, ENTRIES_MAX + 3):
        late.note(key, f"s{key}", TOKEN, [7], [key])
    assert late.has(b"1-3", ()) and late.has(b"2-7", ())
    assert not late.has(b"1-3", {1: None}), "it is there, and knows what was settled"
    assert not late.has(b"3-3", ()) and late.has(b"3-7", ())
    assert not late.has(b"%d-7" % (ENTRIES_MAX + 3), ())
    assert len(late._by_key) == ENTRIES_MAX and len(late._by_id) <= ENTRIES_MAX


def test_what_names_nothing_was_not_given_back() -> None:
    late = GivenBack()
    late.note(1, "s", TOKEN, [7], [7])
    for name in (
        b"",
        b"-",
        b"1-",
        b"-7",
        b"1-x",
        b"x",
        b"1-" + b"9" * 40,
        b"9" * 40 + b"-7",
        b"1-7.",
        b"1-7.1",
        b"1-7.1.",
    ):
        assert not late.has(name, ()) and not late.has((b"s", name), ())
