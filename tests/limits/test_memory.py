"""What each frame and request makes the broker hold is counted by its limiters, or not held: the law about memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.limits.apart import Scales
from tests.limits.cases import CASES
from tests.limits.weighed import DEADLY, PARTS, UNCOUNTED_ON_PURPOSE


@pytest.fixture(scope="module")
def scales() -> Iterator[Scales]:
    """A process that weighs."""
    with Scales() as scales:
        yield scales


@pytest.mark.parametrize("name", CASES)
def test_what_is_held_is_counted(scales: Scales, name: str) -> None:
    """In a second round, by each act."""
    scales.weigh(name)


def test_what_other_threads_allocate_is_not_weighed(scales: Scales) -> None:
    """Such as those of clients that a fixture keeps for longer than a test."""
    over, kept = threading.Event(), []

    def run() -> None:
        while not over.is_set():
            kept.append(bytes(100_000))
            over.wait(0.001)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        scales.weigh("SEND of priorities")
    finally:
        over.set()
        thread.join()
    assert kept


def test_what_is_not_counted_is_found(scales: Scales) -> None:
    """Of a case that makes the broker keep something aside."""
    with pytest.raises(AssertionError, match=r"bytes more of which .* uncounted by each of 200"):
        scales.weigh(UNCOUNTED_ON_PURPOSE)


def test_a_case_that_ends_the_process_costs_no_other_case(scales: Scales) -> None:
    """The next one is weighed by another process."""
    with pytest.raises(AssertionError, match="ended with code 7"):
        scales.weigh(DEADLY)
    scales.weigh("SEND of priorities")


def test_each_part_has_cases() -> None:
    """One that is not imported would be weighed by nobody."""
    homes = {made.__module__ for made, _count in CASES.values()}
    assert homes >= {part.__name__ for part in PARTS}
