"""CursoredQueue and Cursor alone: blocks, slices, returns. The whole against a plain list: test_cursored_model.py."""

from __future__ import annotations

import pytest

from sluiceway.queues.blocks import QueueInvariantError
from sluiceway.queues.cursored import BLOCK_SIZE, CursoredQueue
from sluiceway.queues.cursors import Cursor, TrackingCursor
from sluiceway.queues.message import Message
from sluiceway.queues.slices import fit
from tests.queues.rig import Head, numbers


def make(count: int, *, first: int = 0, wire_bytes: int = 10) -> list[Message]:
    return [Message(Head(), b"x" * wire_bytes, number) for number in range(first, first + count)]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluiceway.queues.cursored.BLOCK_BITS", 2)


def test_one_stuck_element_pins_one_block_however_many_pass() -> None:
    """100,000 messages pass beside one that is never settled: at most its block and the last one are left."""
    queue = CursoredQueue()
    cursor = Cursor(queue, 0)
    queue.extend(make(1))
    cursor.acquire(1, 1 << 30)
    run = make(500)
    block_count_max = 0
    for _ in range(200):
        queue.extend(run)
        while (part := cursor.acquire(1 << 30, 1 << 30)) is not None:
            queue.remove(part.sequences)
        block_count_max = max(block_count_max, queue.block_count)
    assert queue.live_count == 1
    assert block_count_max <= 3
    assert queue.get(0) is not None


def test_a_slice_ends_at_a_block_and_the_next_goes_on() -> None:
    queue = CursoredQueue()
    cursor = Cursor(queue, 0)
    queue.extend(make(BLOCK_SIZE + 10))
    first = cursor.acquire(1 << 30, 1 << 30)
    second = cursor.acquire(1 << 30, 1 << 30)
    assert first is not None and second is not None
    assert (len(first), len(second)) == (BLOCK_SIZE, 10)
    assert isinstance(first.sequences, range)
    assert cursor.acquire(1, 1) is None


def test_the_first_element_passes_whatever_its_size() -> None:
    queue = CursoredQueue()
    cursor = Cursor(queue, 0)
    queue.extend(make(3, wire_bytes=100))
    part = cursor.acquire(10, 1)
    assert part is not None and len(part) == 1


@pytest.mark.parametrize(
    ("bytes_max", "expected"), [(0, (1, 3)), (3, (1, 3)), (4, (1, 3)), (8, (2, 8)), (9, (3, 9)), (99, (3, 9))]
)
def test_fit_counts_what_goes_into_a_number_of_bytes(bytes_max: int, expected: tuple[int, int]) -> None:
    assert fit([b"aaa", b"bbbbb", b"c"], bytes_max) == expected


def test_a_read_of_nothing_is_refused() -> None:
    """It would pass elements by."""
    queue = CursoredQueue()
    cursor = Cursor(queue, 0)
    queue.extend(make(3))
    with pytest.raises(QueueInvariantError, match="a read of 0 elements"):
        cursor.acquire(0, 100)
    assert cursor.position == 0


@pytest.mark.parametrize("again", [range(1), range(3), range(2, 5), [1, 2], [99], range(3, 99)])
def test_what_is_not_there_cannot_be_removed(again: range | list[int]) -> None:
    queue = CursoredQueue()
    queue.extend(make(6))
    queue.remove(range(3))
    with pytest.raises(QueueInvariantError):
        queue.remove(again)


@pytest.mark.usefixtures("small_blocks")
def test_a_block_that_was_emptied_and_filled_again_keeps_its_sequences() -> None:
    queue = CursoredQueue()
    queue.extend(make(2))
    queue.remove(range(2))
    assert queue.extend(make(1, first=2)) == 2
    message = queue.get(2)
    assert message is not None and message.number == 2
    assert queue.get(0) is None and queue.get(1) is None and queue.get(3) is None


@pytest.mark.usefixtures("small_blocks")
def test_elements_that_left_unread_are_skipped_also_whole_blocks_of_them() -> None:
    queue = CursoredQueue()
    cursor = Cursor(queue, 0)
    queue.extend(make(20))
    queue.remove([1, *range(4, 13), 19], unread=True)
    seen: list[int] = []
    while (part := cursor.acquire(3, 1 << 30)) is not None:
        assert list(part.sequences) == numbers(part.messages)
        seen += part.sequences
    assert seen == [0, 2, 3, 13, 14, 15, 16, 17, 18]


def test_returns_come_first_in_order_with_their_attempts() -> None:
    queue = CursoredQueue()
    cursor = Cursor(queue, 0)
    queue.extend(make(10))
    cursor.acquire(6, 1 << 30)
    cursor.requeue([4], attempted=True)
    cursor.requeue([1, 3], attempted=False)
    part = cursor.acquire(10, 1 << 30)
    assert part is not None and part.returned
    assert (list(part.sequences), part.attempts) == ([1, 3, 4], {4: 1})
    following = cursor.acquire(10, 1 << 30)
    assert following is not None and list(following.sequences) == [6, 7, 8, 9]


def test_an_element_cannot_come_back_twice_nor_from_nobody() -> None:
    queue = CursoredQueue()
    cursor = Cursor(queue, 0)
    queue.extend(make(4))
    cursor.acquire(2, 1 << 30)
    cursor.requeue([1], attempted=True)
    for sequence in (1, 2):
        with pytest.raises(QueueInvariantError, match=f"element {sequence} is not acquired"):
            cursor.requeue([sequence], attempted=True)


@pytest.mark.parametrize("back_first", [False, True])
def test_untake_is_as_if_it_had_not_been_taken(back_first: bool) -> None:
    queue = CursoredQueue()
    cursor = Cursor(queue, 0)
    queue.extend(make(6))
    if back_first:
        cursor.acquire(6, 1 << 30)
        cursor.requeue(range(6), attempted=True)
    part = cursor.acquire(4, 1 << 30)
    assert part is not None
    cursor.rewind(part, 1)
    again = cursor.acquire(9, 1 << 30)
    assert again is not None and list(again.sequences) == [1, 2, 3, 4, 5]
    assert again.attempts == (dict.fromkeys(range(1, 6), 1) if back_first else None)
    cursor.rewind(again, 5)
    assert cursor.acquire(1, 1) is None


def test_readers_at_the_same_position_share_one_slice() -> None:
    queue = CursoredQueue()
    cursors = [TrackingCursor(queue, 0) for _ in range(3)]
    queue.extend(make(10))
    parts = [cursor.acquire(10, 1 << 30) for cursor in cursors]
    assert parts[0] is not None and parts[0] is parts[1] is parts[2]
    queue.forget_shared_slice()
    late = TrackingCursor(queue, 0)
    assert late.acquire(10, 1 << 30) is not parts[0]


def test_a_shared_slice_never_exceeds_the_credit_of_a_reader() -> None:
    queue = CursoredQueue()
    rich, poor, poorer = (TrackingCursor(queue, 0) for _ in range(3))
    queue.extend(make(10))
    assert len(rich.acquire(10, 1 << 30) or ()) == 10
    assert len(poor.acquire(4, 1 << 30) or ()) == 4
    assert len(poorer.acquire(10, 25) or ()) == 2


def test_an_element_goes_when_the_last_cursor_has_passed_it() -> None:
    queue = CursoredQueue()
    quick, slow = TrackingCursor(queue, 0), TrackingCursor(queue, 0)
    queue.extend(make(6))
    quick.acquire(6, 1 << 30)
    slow.acquire(6, 1 << 30)
    assert quick.settle(range(6)) == (0, 0)
    assert slow.settle([1, 2]) == (0, 0)
    assert slow.settle([0]) == (3, 30)
    assert (queue.live_count, queue.first_sequence) == (3, 3)
    assert slow.close() == (3, 30)
    assert (queue.live_count, queue.block_count) == (0, 0)


def test_a_cursor_that_skips_says_how_many_it_missed() -> None:
    """What it holds in its hands is not missed; what was given back or lies ahead is."""
    queue = CursoredQueue()
    cursor = TrackingCursor(queue, 0)
    queue.extend(make(10))
    cursor.acquire(4, 1 << 30)
    cursor.requeue([1], attempted=True)
    missed_count, gone = cursor.skip_to(6)
    assert (missed_count, gone, queue.first_sequence) == (1 + 2, (6, 60), 6)
    assert cursor.settle([0, 2]) == (0, 0)
    assert cursor.requeue([3], attempted=True) == 1
    part = cursor.acquire(10, 1 << 30)
    assert part is not None and list(part.sequences) == [6, 7, 8, 9]


def test_without_keeps_what_it_does_not_take_out() -> None:
    queue = CursoredQueue()
    cursor = Cursor(queue, 0)
    queue.extend(make(4))
    part = cursor.acquire(4, 1 << 30)
    assert part is not None
    rest = part.without([0, 2])
    assert rest is not None
    assert (list(rest.sequences), numbers(rest.messages), rest.wire_bytes) == ([1, 3], [1, 3], 20)
    assert part.without(range(4)) is None


@pytest.mark.usefixtures("small_blocks")
def test_holds_any_looks_into_every_block_of_the_range() -> None:
    queue = CursoredQueue()
    queue.extend(make(12))
    queue.remove(range(6))
    assert not queue.holds_any(0, 6)
    assert queue.holds_any(0, 7)
    assert queue.holds_any(3, 99)
    assert not queue.holds_any(12, 99)


def test_a_front_passes_over_what_was_removed() -> None:
    """What lies behind a gap that nobody needs is not pinned by it."""
    queue = CursoredQueue()
    cursor = TrackingCursor(queue, 0)
    queue.extend(make(6))
    cursor.acquire(4, 1 << 30)
    cursor.settle([2, 3])
    cursor.requeue([0, 1], attempted=True)
    queue.remove([0, 1, 5], unread=True)
    assert cursor.pass_over([0, 1, 5]) == (2, 20)
    assert (cursor.front, queue.live_count, queue.first_sequence) == (4, 1, 4)
    part = cursor.acquire(9, 1 << 30)
    assert part is not None and list(part.sequences) == [4]
    assert cursor.settle([4]) == (1, 10)
    queue.extend(make(2))
    part = cursor.acquire(9, 1 << 30)
    assert part is not None and cursor.settle(part.sequences) == (2, 20)
    assert queue.block_count == 0


def test_what_was_removed_is_not_missed_by_a_cursor_that_skips() -> None:
    queue = CursoredQueue()
    cursor = TrackingCursor(queue, 0)
    queue.extend(make(10))
    queue.remove(range(2, 6), unread=True)
    assert cursor.skip_to(8) == (4, (4, 40))


def test_a_reader_with_little_credit_in_bytes_looks_only_at_what_may_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """One large message at a time must not cost a look at the whole block each time."""
    looked_at: list[int] = []

    def counting_fit(wires: list[bytes], bytes_max: int) -> tuple[int, int]:
        looked_at.append(len(wires))
        return fit(wires, bytes_max)

    monkeypatch.setattr("sluiceway.queues.cursored.fit", counting_fit)
    queue = CursoredQueue()
    cursor = Cursor(queue, 0)
    queue.extend(make(BLOCK_SIZE))
    for _ in range(10):
        part = cursor.acquire(BLOCK_SIZE, 10)
        assert part is not None and len(part) == 1
    assert max(looked_at) <= 2


def test_live_sequences_and_counts_agree_over_blocks_and_gaps(small_blocks: None) -> None:
    queue = CursoredQueue()
    queue.extend(make(12))
    queue.remove([1, 4, 5, 6, 7, 9], unread=True)
    for first in range(13):
        for end in range(first, 14):
            alive = [s for s in (0, 2, 3, 8, 10, 11) if first <= s < end]
            assert queue.live_sequences(first, end) == alive
            assert queue.count_live(first, end) == len(alive)
    assert [queue.first_live(s) for s in range(14)] == [0, 2, 2, 3, 8, 8, 8, 8, 8, 10, 10, 11, 12, 12]


def test_a_shared_slice_is_forgotten_when_something_of_it_leaves_unread() -> None:
    queue = CursoredQueue()
    one, two = TrackingCursor(queue, 0), TrackingCursor(queue, 0)
    queue.extend(make(4))
    assert len(one.acquire(4, 1 << 30) or ()) == 4
    queue.remove([1, 2], unread=True)
    part = two.acquire(4, 1 << 30)
    assert part is not None and list(part.sequences) == [0, 3]


def test_a_cursor_that_closes_while_all_is_trimmed_does_not_end_that(
    small_blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue was deleted: the places of others hold nothing any more."""
    monkeypatch.setattr("sluiceway.queues.cursored.TRIM_BLOCKS", 1)
    queue = CursoredQueue()
    lowest, other = TrackingCursor(queue, 0), TrackingCursor(queue, 0)
    queue.extend(make(40))
    part = other.acquire(10, 1 << 30)
    assert part is not None
    other.settle(part.sequences)
    queue.trim(queue.next_sequence)
    lowest.close()
    while queue.trims_to is not None:
        queue.trim(queue.trims_to, 1)
    assert queue.live_count == 0
