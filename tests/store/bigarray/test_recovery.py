"""After a crash: whatever was torn of what was not flushed, the longest run of whole appends is kept, and no more."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from sluiceway.queues.logs.batches import encode
from sluiceway.queues.logs.codecs import Codec
from sluiceway.store.bigarray import ArrayError, ArrayGap, ArrayGapError, ArrayOptions, BigArray
from sluiceway.store.bigarray.head import SLOT_BYTES, SLOT_OFFSETS, newest
from tests.how_often import rounds
from tests.store.bigarray.twin import Twin

OPTIONS = ArrayOptions(index_page_items=100, data_page_bytes=1 << 16, lease_items=1000)
APPENDS = [(0, 4), (4, 7), (7, 8), (8, 20)]
"""Records of each append after those that were flushed: 8 to 20 are three batches."""


class Torn:
    """An array whose machine died: files can be changed before it is opened again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.twin = Twin(folder, 0, OPTIONS)
        self.twin.open()
        array = self.twin.there
        array.append_batches([encode([b"flushed"] * 10)])
        array.flush()
        self.base = array.next_index
        self.positions = []
        for start, stop in APPENDS:
            values = [b"%d" % index * 20 for index in range(start, stop)]
            parts = [values] if len(values) < 10 else [values[:4], values[4:8], values[8:]]
            self.positions.append(array._reading.slot.data_offset)
            array.append_batches([encode(part) for part in parts])
        self.end_offset = array._reading.slot.data_offset
        self.next = array.next_index
        self.twin.kill()
        self.path = self.twin.folder
        self.whole = {path.name: path.read_bytes() for path in self.path.iterdir()}

    def changed(self, name: str, offset: int, data: bytes) -> None:
        """All files as they were, but for this."""
        for other, content in self.whole.items():
            (self.path / other).write_bytes(content)
        (self.path / "gaps").unlink(missing_ok=True)
        with (self.path / name).open("r+b") as file:
            file.seek(offset)
            file.write(data)

    def opened(self, *, boot: str) -> BigArray:
        return BigArray.open(self.path, OPTIONS, now_ms=lambda: 5, boot_id=boot)

    def kept(self, array: BigArray) -> int:
        """Records after those that were flushed, up to the first that is missing; what is there is as it was."""
        for index in range(self.base, self.next):
            try:
                assert array.read(index) == b"%d" % (index - self.base) * 20
            except ArrayGapError:
                return index - self.base
        return self.next - self.base


@pytest.fixture
def torn(tmp_path: Path) -> Iterator[Torn]:
    yield Torn(tmp_path)


def expected(place: int, starts: list[int]) -> int:
    """How many records are kept if the append that begins before this place is torn."""
    return next(APPENDS[number][0] for number in reversed(range(len(starts))) if starts[number] <= place)


@pytest.mark.parametrize("boot", ["boot 0", "another"])
def test_a_torn_batch_ends_what_is_kept(torn: Torn, boot: str) -> None:
    """Eight bytes that are lost cost the append that they are in, and those behind; the next index is new."""
    for place in range(torn.positions[0], torn.end_offset, 40):
        old = torn.whole["data-0000000000"][place : place + 8]
        torn.changed("data-0000000000", place, bytes(byte ^ 0xFF for byte in old))
        with torn.opened(boot=boot) as array:
            assert torn.kept(array) == expected(place, torn.positions), place
            assert array.append(b"new") >= torn.next
            assert array.gaps[0].from_index == torn.base + expected(place, torn.positions)


@pytest.mark.parametrize("damage", [bytes(16), b"\xff" * 16, bytes(8) + b"\xff" * 8])
def test_a_torn_index_ends_what_is_kept(torn: Torn, damage: bytes) -> None:
    """Any item that is lost, the first one of its batch or not."""
    starts = [start for start, _stop in APPENDS]
    for place in range(torn.next - torn.base):
        torn.changed("index-0000000000000000", (torn.base + place) * 16, damage)
        with torn.opened(boot="another") as array:
            assert torn.kept(array) == expected(place, starts), place


def test_a_power_cut_goes_on_at_the_lease(torn: Torn) -> None:
    """Also when nothing seems to be missing: the head itself may be an old one."""
    torn.changed("lock", 0, b"")
    slot = newest(torn.whole["head"])
    assert slot is not None
    with torn.opened(boot="another") as array:
        assert array.report.power_cut
        assert torn.kept(array) == 20
        assert array.gaps == (ArrayGap(torn.next, slot.lease_index, "lost"),)
        assert array.append(b"new") == slot.lease_index >= torn.next
        assert array.find_closest_index(4) == 0
        array.flush()
    with torn.opened(boot="a third") as array:
        assert not array.report.power_cut, "it was closed in order"
        assert array.next_index == slot.lease_index + 1
        assert array.read(slot.lease_index) == b"new"
        with pytest.raises(ArrayGapError, match=f"Continue at {slot.lease_index}"):
            array.read(torn.next)
        assert array.cut(0, 1 << 40, 1 << 20).end_index == torn.next, "no run goes over a gap"


def test_a_crash_of_the_process_goes_on_where_it_was(torn: Torn) -> None:
    torn.changed("lock", 0, b"")
    with torn.opened(boot="boot 0") as array:
        assert (torn.kept(array), array.next_index, array.gaps) == (20, torn.next, ())
        assert array.synced_index == torn.next
        assert not array.report.clean
        assert array.report.verified_batches_count == 6


def test_without_a_boot_id_each_crash_is_a_power_cut(tmp_path: Path) -> None:
    twin = Twin(tmp_path, 0)
    for _ in range(2):
        array = BigArray.open(twin.folder, twin.options, files=twin.files, boot_id="")
        array.append(b"x")
        twin.kill()
    with BigArray.open(twin.folder, boot_id="") as array:
        assert array.report.power_cut


@pytest.mark.parametrize("slot", [0, 1])
def test_either_slot_may_be_torn_after_a_flush(tmp_path: Path, slot: int) -> None:
    """The other one knows what was flushed, and below which index all lie that were visible."""
    twin = Twin(tmp_path, 0, attrs.evolve(OPTIONS, lease_items=10))
    twin.open()
    array = twin.there
    for _ in range(2):
        array.append_batches([encode([b"x"] * 7)])
        array.flush()
    head = bytearray((twin.folder / "head").read_bytes())  # as it is on the disk
    head[SLOT_OFFSETS[slot] : SLOT_OFFSETS[slot] + SLOT_BYTES] = bytes(SLOT_BYTES)
    array.append_batches([encode([b"y"] * 7)])
    assert array.next_index == 21 == array._reading.slot.lease_index - 3, "without another lease"
    twin.kill()
    (twin.folder / "head").write_bytes(head)
    with BigArray.open(twin.folder, boot_id="another") as array:
        assert [bytes(value) for value in array.read_range(0, 14)] == [b"x"] * 14
        assert array.next_index >= 21


def test_what_a_crash_left_behind_the_head_is_gone_before_it_is_overwritten(tmp_path: Path) -> None:
    """Same place, same size, same time: nothing else would tell the one from the other after a power cut."""
    for seed in range(rounds(12)):
        twin = Twin(tmp_path / str(seed), seed, attrs.evolve(OPTIONS, lease_items=10))
        twin.open()
        twin.append([b"first"], keys=None, head=b"", codec=Codec.NONE)
        twin.flush()
        twin.files.fail(3, errno.EIO)  # bytes and items are written, the head is not
        with pytest.raises(ArrayError):
            twin.append([b"gone.."] * 2, keys=None, head=b"", codec=Codec.NONE)
        for path in twin.folder.glob("*-*"):
            file = twin.files.open(path)
            twin.files.sync(file)  # as the kernel does after a while
            twin.files.close(file)
        if seed % 2:
            twin.kill()
            twin.open()
        twin.append([b"stays."] * 2, keys=None, head=b"", codec=Codec.NONE)
        head = twin.files.open(twin.folder / "head")
        twin.files.sync(head)
        twin.files.close(head)
        twin.power_cut()
        twin.open()
        twin.compare()
        twin.files.kill()


def test_retention_by_time_leaves_the_gap_before_what_stays(tmp_path: Path) -> None:
    """Its readers are told that a power cut took those records, not that they were too old."""
    torn = Torn(tmp_path)
    torn.changed("data-0000000000", torn.positions[0], bytes(8))
    new_ms = torn.twin.now_ms + 1
    with BigArray.open(torn.path, OPTIONS, now_ms=lambda: new_ms, boot_id="another") as array:
        (gap,) = array.gaps
        array.append_batches([encode([b"new"])])
        assert array.item(array.next_index - 1).timestamp_ms == new_ms
        assert array.remove_before(new_ms) == gap.from_index
        assert array.gaps == (gap,)
        assert array.remove_before(new_ms) == gap.from_index
        assert array.remove_to(gap.to_index) == gap.to_index, "who names an index gets it"
        assert array.gaps == ()
