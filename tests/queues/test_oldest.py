"""The oldest element that somebody could have."""

from __future__ import annotations

from sluiceway.queues.cursored import CursoredQueue
from sluiceway.queues.message import Message
from sluiceway.queues.oldest import LOOK_COUNT, Oldest, oldest_of
from tests.queues.rig import Head


def message(number: int, due_at_ms: int = 0) -> Message:
    plain = Message(Head(), b"x", number)
    return plain.delayed(due_at_ms) if due_at_ms else plain


def test_an_empty_queue_has_none() -> None:
    assert oldest_of(CursoredQueue(), 0) is None


def test_it_is_the_first_one_that_is_still_there() -> None:
    queue = CursoredQueue()
    queue.extend([message(number) for number in range(100, 110)])
    queue.remove([0, 1, 2])
    assert oldest_of(queue, 0) == Oldest(103, 0)
    assert oldest_of(queue, 0, 5) == Oldest(105, 0)


def test_what_is_not_due_yet_is_passed_over() -> None:
    queue = CursoredQueue()
    queue.extend([message(1, due_at_ms=5_000), message(2)])
    assert oldest_of(queue, 1_000) == Oldest(2, 0)
    assert oldest_of(queue, 5_000) == Oldest(1, 5_000)


def test_it_does_not_search_for_ever() -> None:
    """A queue full of delayed messages costs a bounded look."""
    queue = CursoredQueue()
    queue.extend([message(n, due_at_ms=5_000) for n in range(LOOK_COUNT + 1)])
    assert oldest_of(queue, 0) is None


def test_a_block_outside_is_as_old_as_its_first_message_was() -> None:
    queue = CursoredQueue()
    queue.extend([message(number) for number in range(50, 60)])
    queue.remove([0, 1])
    block = queue.block(0)
    assert block is not None
    block.unload()
    assert oldest_of(queue, 0) == Oldest(52, 0)
