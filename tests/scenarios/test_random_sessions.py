"""Random sessions against small limits, with and without a store: whatever they do, the books are in order.

What is done, and what is claimed, is in random_sessions.py and random_books.py. A failure says the command that plays
the same round again; thousands of rounds: `python -m tests.scenarios.random_sessions --from 1000 --rounds 5000`.
"""

from __future__ import annotations

import pytest

from tests.how_often import rounds
from tests.scenarios.random_books import Books, BrokenClaimError, Entry, Reader
from tests.scenarios.random_sessions import run_round

PARTS_COUNT = rounds(1)
ROUNDS_PER_PART = 10


@pytest.mark.parametrize("paging", [False, True], ids=["in memory", "paging"])
@pytest.mark.parametrize("part", range(PARTS_COUNT))
def test_random_sessions_break_no_claim(part: int, paging: bool) -> None:
    """And they do meet what they are made for."""
    rounds = [run_round(seed, paging=paging) for seed in range(part * ROUNDS_PER_PART, (part + 1) * ROUNDS_PER_PART)]
    assert sum(played.books.taken_count for played in rounds) > 500
    assert sum(played.books.left_count for played in rounds) > 500
    assert sum(played.books.settled_count for played in rounds) > 20
    assert (sum(played.outside_count for played in rounds) > 50) is paging


def test_a_round_can_be_played_again() -> None:
    """The same seed, the same frames, to the last one."""
    first: list[str] = []
    second: list[str] = []
    for log in (first, second):
        run_round(3, paging=True, log=log.append)
    assert _without_tokens(first) == _without_tokens(second)


def _without_tokens(lines: list[str]) -> list[list[str]]:
    """Without the first part of message ids: chance of the broker's own."""
    return [[word for word in line.split() if "-" not in word] for line in lines]


# ---------------------------------------------------------------------- the books notice


def entry(number: int, **more: object) -> Entry:
    """A SEND to /queue/plain that took effect."""
    fields: dict[str, object] = {"is_accepted": True, "place": number, **more}
    made = Entry(number, "c1", "/queue/plain", "4", None, may_expire=False, transaction=None)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def books_with(*entries: Entry) -> Books:
    books = Books()
    for one in entries:
        books.sent(one)
    return books


def left(*numbers: int) -> list[tuple[str, bytes]]:
    return [("/queue/plain", f"{number} xxx".encode()) for number in numbers]


HEADERS = {"destination": "/queue/plain"}


def test_the_books_notice_what_is_lost() -> None:
    books_with(entry(1), entry(2)).close(left(1, 2), [])
    books_with(entry(1), entry(2, may_be_settled=True)).close(left(1), [])
    with pytest.raises(BrokenClaimError, match="is lost"):
        books_with(entry(1), entry(2)).close(left(1), [])


@pytest.mark.parametrize(
    ("numbers", "about"), [((1, 1, 2), "left twice"), ((2, 1), "behind place 2"), ((1, 2, 3), "never sent")]
)
def test_the_books_notice_what_is_left_and_should_not_be(numbers: tuple[int, ...], about: str) -> None:
    with pytest.raises(BrokenClaimError, match=about):
        books_with(entry(1), entry(2)).close(left(*numbers), [])


def test_the_books_notice_what_comes_again_or_out_of_order() -> None:
    books = books_with(entry(1), entry(2))
    reader = Reader("s", "/queue/plain", "client")
    second = books.arrived(reader, HEADERS, b"2 x", alive=True)
    assert second is not None
    with pytest.raises(BrokenClaimError, match="after place 2"):
        books.arrived(reader, HEADERS, b"1 x", alive=True)
    books.gave_back(reader)
    books.arrived(reader, HEADERS, b"1 x", alive=True)
    books.settled([second])
    with pytest.raises(BrokenClaimError, match="came again"):
        books.arrived(reader, HEADERS, b"2 x", alive=True)
    with pytest.raises(BrokenClaimError, match="was acknowledged"):
        books.close(left(2), [])


def test_the_books_notice_what_was_not_committed() -> None:
    books = books_with(entry(1, place=0))
    with pytest.raises(BrokenClaimError, match="not committed"):
        books.arrived(Reader("s", "/queue/plain", "auto"), HEADERS, b"1 x", alive=True)
