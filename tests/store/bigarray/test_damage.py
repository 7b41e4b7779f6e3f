"""Files that are missing, short, corrupt or somebody else's: a clear error or a gap, and nobody else is hurt."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from sluiceway.queues.logs.batches import BatchError, encode
from sluiceway.store.bigarray import (
    ArrayBatchTooLargeError,
    ArrayError,
    ArrayFormatError,
    ArrayGap,
    ArrayGapError,
    ArrayLockedError,
    ArrayReadOnlyError,
    BigArray,
)
from sluiceway.store.bigarray.head import FIXED, SLOT_BYTES, SLOT_OFFSETS, encode_fixed
from tests.store.bigarray.twin import SMALL

OPTIONS = attrs.evolve(SMALL, mapped_pages_max=16)


def opened(folder: Path, *, boot: str = "boot", read_only: bool = False) -> BigArray:
    return BigArray.open(folder, OPTIONS, now_ms=lambda: 1_000, boot_id=boot, read_only=read_only)


def pages(folder: Path, kind: str) -> list[Path]:
    return sorted(folder.glob(f"{kind}-*"))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """With an array, closed in order: records 0 .. 59 in batches of two, of 112 bytes each."""
    folder = tmp_path / "array"
    with opened(folder) as array:
        for index in range(0, 60, 2):
            array.append_many([b"%d" % index + b"." * 20, b"%d" % (index + 1)])
    yield folder


def readable(array: BigArray) -> set[int]:
    there = set()
    for index in range(array.first_index, array.next_index):
        try:
            assert array.read(index)[: len(str(index))] == b"%d" % index
            there.add(index)
        except ArrayGapError as error:
            assert error.from_index <= index < error.to_index
            assert error.reason == "damaged"
    return there


def missing(array: BigArray) -> set[int]:
    return {index for gap in array.gaps for index in range(gap.from_index, gap.to_index)}


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("place", [0, 1, -1])
@pytest.mark.parametrize("kind", ["index", "data"])
@pytest.mark.parametrize("keep_bytes", [None, 100])
def test_a_missing_or_short_page_is_a_gap(
    folder: Path, kind: str, place: int, keep_bytes: int | None, read_only: bool
) -> None:
    """Exactly what was in it; the rest is read, the next record gets the next index."""
    page = pages(folder, kind)[place]
    if keep_bytes is None:
        page.unlink()
    else:
        os.truncate(page, keep_bytes)
    with opened(folder, read_only=read_only) as array:
        assert (array.first_index, array.next_index) == (0, 60)
        there = readable(array)
        assert missing(array) == set(range(60)) - there
        assert 0 < len(missing(array)) < 32 or keep_bytes == 500
        assert array.find_closest_index(0) == min(there)
        if not read_only:
            assert array.report.new_gaps == tuple(array.gaps)
            assert array.append(b"60 more") == 60
            assert array.read(60) == b"60 more"
            assert array.cut(60, 61, 1000).end_index == 61
            array.remove_to(40)
            assert readable(array) - {60} == {index for index in there if index >= 40}
    if not read_only:
        with opened(folder) as array:
            assert array.report.clean
            assert not array.report.new_gaps, "it was recorded"
            assert set(readable(array)) - {60} == {index for index in there if index >= 40}


def test_a_damaged_batch_costs_its_records_only(folder: Path) -> None:
    with opened(folder) as array:
        batch_bytes = array.batch_of(0).total_bytes
    with pages(folder, "data")[0].open("r+b") as file:
        file.seek(batch_bytes + 8)
        file.write(b"\xff\xff")
    with opened(folder) as array:
        assert readable(array) == set(range(60)) - {2, 3}
        with pytest.raises(ArrayGapError) as caught:
            array.cut(3, 60, 1000)
        assert caught.value.gap == ArrayGap(2, 4, "damaged")
        assert array.cut(4, 60, 1 << 20).first_index == 4
        assert [bytes(value) for value in array.read_range(4, 6)] == [b"4" + b"." * 20, b"5"]


def test_damaged_records_are_found_when_they_are_verified(folder: Path) -> None:
    with pages(folder, "data")[0].open("r+b") as file:
        file.seek(70)
        file.write(b"\xff")
    with opened(folder) as array:
        array.batch_of(0)
        with pytest.raises(ArrayGapError, match="checksum"):
            array.batch_of(0, verify=True)
        array.batch_of(2, verify=True)


def test_any_damage_to_a_data_page_is_survived(folder: Path) -> None:
    """No byte makes it read what was not written, or die."""
    page = pages(folder, "data")[0]
    whole = page.read_bytes()
    for place in range(300):
        broken = bytearray(whole)
        broken[place] ^= 1 << place % 8
        page.write_bytes(broken)
        with opened(folder, read_only=True) as array:
            for index in range(8):
                try:
                    batch = array.batch_of(index, verify=True)
                    assert bytes(batch.value(index - batch.first_index)).startswith(b"%d" % index)
                    cut = array.cut(index, 60, 600)
                    assert cut.first_index <= index < cut.end_index
                except ArrayGapError:
                    pass


def test_any_damage_to_an_index_page_is_survived(folder: Path) -> None:
    page = pages(folder, "index")[0]
    whole = page.read_bytes()
    for place in range(len(whole)):
        broken = bytearray(whole)
        broken[place] ^= 1 << place % 8
        page.write_bytes(broken)
        with opened(folder, read_only=True) as array:
            for index in range(18):
                for look in (lambda i=index: array.read(i), lambda i=index: array.cut(i, 60, 600)):  # type: ignore[misc]
                    try:
                        look()
                    except ArrayGapError:
                        pass
            array.find_closest_index(1_000)


def test_each_half_of_the_head_can_be_lost(folder: Path) -> None:
    whole = (folder / "head").read_bytes()
    for offset in SLOT_OFFSETS:
        (folder / "head").write_bytes(whole[:offset] + bytes(SLOT_BYTES) + whole[offset + SLOT_BYTES :])
        with opened(folder, read_only=True) as array:
            assert readable(array) == set(range(60))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda head: b"", "not the head of an array"),
        (lambda head: b"something else" + head[14:], "not the head of an array"),
        (lambda head: head[:20] + b"\xff" + head[21:], "checksum is wrong"),
        (lambda head: head[:100] + bytes(3996), "neither of its slots"),
        (lambda head: struct.pack("<8sI", b"SLUICEAR", 2) + head[12:], "has format 2, .* knows format 1"),
    ],
    ids=["empty", "foreign", "sizes", "slots", "later version"],
)
@pytest.mark.parametrize("read_only", [False, True])
def test_a_head_that_cannot_be_read_is_an_error(folder: Path, damage, says: str, read_only: bool) -> None:  # type: ignore[no-untyped-def]
    """And nothing is changed."""
    head = damage((folder / "head").read_bytes())
    (folder / "head").write_bytes(head)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}
    with pytest.raises(ArrayFormatError, match=says):
        opened(folder, read_only=read_only)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"} == before


def test_pages_without_a_head_are_not_overwritten(folder: Path) -> None:
    (folder / "head").unlink()
    with pytest.raises(ArrayFormatError, match="has pages of an array, but no head"):
        opened(folder)


def test_one_writer_any_number_of_readers(folder: Path) -> None:
    with opened(folder) as array:
        with pytest.raises(ArrayLockedError, match=f"process {os.getpid()} on host"):
            opened(folder)
        readers = [opened(folder, read_only=True) for _ in range(3)]
        array.append(b"60")
        for reader in readers:
            assert reader.next_index == 60
            with pytest.raises(IndexError):
                reader.read(60)
            assert reader.refresh() == 61
            assert reader.read(60) == b"60"
            for write in (
                lambda reader=reader: reader.append(b""),
                lambda reader=reader: reader.flush(),
                lambda reader=reader: reader.remove_to(1),
            ):
                with pytest.raises(ArrayReadOnlyError):
                    write()
            reader.close()
    opened(folder).close()


def test_a_closed_array_takes_nothing(folder: Path) -> None:
    array = opened(folder)
    array.close()
    array.close()
    for write in (lambda: array.append(b""), array.flush, lambda: array.remove_to(1)):
        with pytest.raises(ArrayReadOnlyError):
            write()


def test_a_folder_without_an_array_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ArrayError, match="there is no array in"):
        opened(tmp_path / "none", read_only=True)
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").touch()
    with pytest.raises(ArrayError, match="Move the obstacle away"):
        opened(tmp_path / "file")


def test_the_folder_keeps_its_sizes_of_pages(folder: Path) -> None:
    with BigArray.open(folder, boot_id="boot") as array:
        assert (array.options.index_page_items, array.options.data_page_bytes) == (16, 1024)
        assert readable(array) == set(range(60))


def test_damaged_gaps_are_survived(folder: Path) -> None:
    (folder / "gaps").write_bytes(b"nonsense")
    with opened(folder) as array:
        assert readable(array) == set(range(60))


def test_a_view_outlives_its_page(folder: Path) -> None:
    """Retention, forgetting, closing: a view stays what it is."""
    array = opened(folder)
    view = array.read(0)
    array.remove_to(60)
    assert not pages(folder, "index")[0].name.endswith("0000")
    array.close()
    assert view == b"0" + b"." * 20
    with pytest.raises(IndexError):
        array.read(0)


def test_what_does_not_fit_is_refused(folder: Path) -> None:
    with opened(folder) as array:
        with pytest.raises(ArrayBatchTooLargeError, match="does not fit into a data page"):
            array.append(b"x" * 1024)
        whole = encode([b"x"])
        for broken in (b"", whole[:-8], whole + b"12345678", whole[:32] + bytes(4) + whole[36:]):
            with pytest.raises(BatchError):
                array.append_batches([whole, broken])
            with pytest.raises(BatchError):
                array.append_batches([broken])
        assert array.next_index == 60
        assert array.append_batches([]) == array.append_many([]) == 60


def test_more_than_a_page_holds_is_appended_as_several_batches(folder: Path) -> None:
    """Bytes of the values in use, with their keys."""
    with opened(folder) as array:
        values = [b"%d" % index for index in range(60, 760)]
        assert array.append_many(values, keys=[value[::-1] for value in values]) == 60
        assert readable(array) == set(range(760))
        batch = array.batch_of(700)
        assert [bytes(key) for key in batch.keys() or ()] == [bytes(value)[::-1] for value in batch.values()]


def test_the_fixed_part_says_what_it_says() -> None:
    assert len(encode_fixed(16, 1024)) == FIXED.size
