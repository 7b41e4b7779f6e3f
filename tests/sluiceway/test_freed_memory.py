"""What a flood has left goes back to the system when it is over, and not while anybody is served."""

from __future__ import annotations

import pytest

from sluiceway.tuning import KEPT_BYTES_MAX, QUIET_COUNT, FreedMemory

MIB = 1024 * 1024


@pytest.fixture
def given_back() -> list[None]:
    return []


@pytest.fixture
def memory(given_back: list[None]) -> FreedMemory:
    return FreedMemory(lambda: given_back.append(None))


def test_it_is_given_back_once_when_a_flood_is_over(memory: FreedMemory, given_back: list[None]) -> None:
    for second in range(10):
        memory.look(second * 20 * MIB, second * 20_000)
    for second in range(10):
        memory.look((10 - second) * 20 * MIB, 200_000)
        assert not given_back, "it is being drained"
    memory.look(0, 200_000)
    for _ in range(10):
        memory.look(0, 200_000)
    assert len(given_back) == 1


def test_it_is_not_while_messages_pass(memory: FreedMemory, given_back: list[None]) -> None:
    memory.look(500 * MIB, 1)
    for second in range(1, 10):
        memory.look(0, second * (QUIET_COUNT + 1))
    assert not given_back
    for asked in range(5):
        memory.look(1000, 1000 + asked)
    assert len(given_back) == 1, "a question each second does not matter"


def test_little_is_kept_for_the_next_messages(memory: FreedMemory, given_back: list[None]) -> None:
    memory.look(KEPT_BYTES_MAX - 1, 10)
    for _ in range(5):
        memory.look(0, 10)
    assert not given_back


def test_a_second_flood_is_given_back_too(memory: FreedMemory, given_back: list[None]) -> None:
    for _flood in range(3):
        memory.look(100 * MIB, 0)
        for _ in range(3):
            memory.look(10 * MIB, 0)
    assert len(given_back) == 3
