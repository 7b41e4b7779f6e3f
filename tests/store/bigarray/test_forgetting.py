"""With `cached_bytes_max` the page cache is told to forget what lies further back, once it is synced, and nothing
else."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluiceway.store.bigarray import ArrayError, ArrayOptions, BigArray, RealFiles


class _Recorded(RealFiles):
    """Notes what is to be forgotten instead of forgetting it."""

    __slots__ = ("forgotten",)

    def __init__(self) -> None:
        self.forgotten: list[tuple[int, int]] = []

    def forget(self, file: int, offset: int, count_bytes: int) -> None:
        self.forgotten.append((offset, count_bytes))


def _options(cached_bytes_max: int) -> ArrayOptions:
    return ArrayOptions(data_page_bytes=4096, index_page_items=64, cached_bytes_max=cached_bytes_max)


def test_each_byte_before_the_end_is_forgotten_once_and_the_end_stays(tmp_path: Path) -> None:
    """All pages but about the last 8 KiB, piece by piece as it is flushed; the records are all still there."""
    files = _Recorded()
    with BigArray.open(tmp_path / "a", _options(8192), files=files, boot_id="b") as array:
        for number in range(40):
            array.append(b"%04d" % number * 250)
            if number % 10 == 9:
                array.flush()
                total_bytes = sum(count for _offset, count in files.forgotten)
                held_bytes = array.back_file_size_bytes - 16 * array.size
                assert total_bytes == max(0, held_bytes - 8192)
        assert [bytes(array.read(index)[:4]) for index in range(40)] == [b"%04d" % number for number in range(40)]
    assert all(offset + count <= 4096 for offset, count in files.forgotten)


def test_without_it_nothing_is_forgotten(tmp_path: Path) -> None:
    """The system decides."""
    files = _Recorded()
    with BigArray.open(tmp_path / "a", _options(0), files=files, boot_id="b") as array:
        for _ in range(20):
            array.append(b"x" * 1000)
            array.flush()
    assert files.forgotten == []


def test_less_than_nothing_is_refused(tmp_path: Path) -> None:
    """The message says what is possible."""
    with pytest.raises(ArrayError, match="0 or more"):
        BigArray.open(tmp_path / "a", _options(-1), boot_id="b")
