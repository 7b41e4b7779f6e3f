"""What is known of the page cache: what was written of late, and what was read ahead."""

from __future__ import annotations

from sluiceway.queues.logs.page_cache import STRETCH_BYTES, STRETCHES_MAX, TAIL_BYTES, PageCache
from tests.queues.logs.rig import ListRecords


class Big(ListRecords):
    """A log of a million records of a kilobyte."""

    def __init__(self) -> None:
        super().__init__(lambda: 0)
        self.next_index = 1_000_000

    @property
    def back_file_size_bytes(self) -> int:
        return 1_000_000 * 1024


def test_what_was_written_of_late_is_warm_and_no_more_than_that() -> None:
    warmth = PageCache(Big())
    assert not warmth.covers(999_999)
    for index in range(900_000, 1_000_000, 1000):
        warmth.written(index, 1000 * 1024)
    assert warmth.covers(999_999)
    assert warmth.covers(1_000_000 - TAIL_BYTES // 1024 + 1000)
    assert not warmth.covers(900_000)
    assert warmth.stretch(999_000) is None, "nothing to be read ahead"


def test_one_write_that_is_larger_than_the_tail_is_warm() -> None:
    warmth = PageCache(Big())
    warmth.written(0, 10 * TAIL_BYTES)
    assert warmth.covers(0)


def test_the_next_stretch_is_asked_for_half_way() -> None:
    warmth = PageCache(Big())
    first = warmth.stretch(0)
    assert first is not None
    start, stop = first
    assert start == 0
    assert stop == STRETCH_BYTES // 1024
    warmth.asked[start] = stop
    assert warmth.stretch(0) is None, "it is being read"
    assert not warmth.covers(0)
    del warmth.asked[start]
    warmth.warmed(start, stop)
    assert warmth.covers(0)
    assert warmth.covers(stop - 1)
    assert not warmth.covers(stop)
    assert warmth.stretch(stop // 2 - 1) is None
    assert warmth.stretch(stop // 2) == (stop, 2 * stop)
    warmth.asked[stop] = 2 * stop
    assert warmth.stretch(stop // 2 + 5) is None, "a second reader at that place waits for the same"


def test_what_is_read_ahead_ends_where_the_tail_begins() -> None:
    warmth = PageCache(Big())
    warmth.written(1000, 1)
    assert warmth.stretch(0) == (0, 1000)
    warmth.warmed(0, 1000)
    assert warmth.stretch(900) is None


def test_stretches_are_bounded() -> None:
    warmth = PageCache(Big())
    for number in range(3 * STRETCHES_MAX):
        warmth.warmed(number * 10, number * 10 + 10)
    assert not warmth.covers(0)
    assert warmth.covers(3 * STRETCHES_MAX * 10 - 1)
    assert len(warmth._stretches) == STRETCHES_MAX
