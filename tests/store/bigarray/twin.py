"""An array and what it should be: a dictionary of records. Both get the same calls, and are compared.

Used by the stateful test, by the rounds of power cuts, and by the faults at every step.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Final

import attrs
import pytest

from sluiceway.queues.logs.batches import encode, split
from sluiceway.queues.logs.codecs import Codec
from sluiceway.store.bigarray import ArrayError, ArrayGapError, ArrayOptions, BigArray
from sluiceway.store.bigarray.errors import LOST
from tests.store.bigarray.faulty import FaultyFiles

SMALL: Final = ArrayOptions(
    index_page_items=16,
    data_page_bytes=1024,
    mapped_pages_max=2,
    resident_bytes_max=1 << 17,
    lease_items=10,
    dirty_pages_max=3,
)
EPOCH_MS: Final = 1_700_000_000_000


@attrs.frozen
class Record:
    value: bytes
    key: bytes
    head: bytes
    timestamp_ms: int


class Twin:
    """See the module. Every ArrayError of the array is raised on, after the twin has noted what it means."""

    def __init__(self, folder: Path, seed: int, options: ArrayOptions = SMALL) -> None:
        self.random = Random(seed)
        self.folder = folder / "array"
        self.files = FaultyFiles(Random(seed), folder / "vault")
        self.options = options
        self.now_ms = EPOCH_MS
        self.boot = 0
        self.records: dict[int, Record] = {}
        self.ends: set[int] = {0}
        """Indexes at which an append ended."""
        self.first = self.first_sure = 0
        self.next = 0
        self.synced = 0
        self.array: BigArray | None = None
        self.power_cuts_count = 0
        self.lost_count = 0

    # ---------------------------------------------------------------- life

    @property
    def there(self) -> BigArray:
        assert self.array is not None
        return self.array

    def open(self) -> None:
        self.array = BigArray.open(
            self.folder, self.options, files=self.files, now_ms=lambda: self.now_ms, boot_id=f"boot {self.boot}"
        )
        assert self.array.next_index >= self.next, "indexes that were seen are used again"
        assert self.first_sure <= self.array.first_index <= self.first, "first_index"
        self.first = self.first_sure = self.array.first_index
        kept = self.next
        for index in range(max(self.synced, self.first), self.next):
            if index in self.records and not self._is_kept(index):
                kept = index
                break
        for index in [index for index in self.records if index >= kept]:
            assert not self._is_kept(index), f"{index} is there, {kept} is not"
            del self.records[index]
            self.lost_count += 1
        if kept < self.next:
            assert kept in self.ends or kept == self.first, f"a part of an append was kept, up to {kept}"
        self.ends.add(self.array.next_index)
        self.next = self.synced = self.array.next_index
        assert self.array.synced_index == self.next

    def _is_kept(self, index: int) -> bool:
        try:
            value = bytes(self.there.read(index))
        except ArrayGapError as error:
            assert error.reason == LOST
            return False
        assert value == self.records[index].value, f"{index} is something else than it was"
        return True

    def close(self) -> None:
        try:
            self.there.close()
        except ArrayError:
            self.kill()
            raise
        self.synced = self.next
        self.array = None

    def kill(self) -> None:
        self.files.kill()
        if self.array is not None:
            self.synced = max(self.synced, self.array.synced_index)
        self.array = None

    def power_cut(self) -> None:
        self.array = None
        self.files.power_cut()
        self.boot += 1
        self.power_cuts_count += 1

    # ---------------------------------------------------------------- write

    def append(self, values: list[bytes], *, keys: list[bytes] | None, head: bytes, codec: Codec) -> None:
        first = self.there.append_many(values, keys=keys, head=head, codec=codec)
        self._appended(first, [(values, keys, head)])

    def append_batches(self, runs: list[list[bytes]], codec: Codec) -> None:
        first = self.there.append_batches([encode(values, codec=codec) for values in runs])
        self._appended(first, [(values, None, b"") for values in runs])

    def _appended(self, first: int, runs: list[tuple[list[bytes], list[bytes] | None, bytes]]) -> None:
        assert first == self.next
        time = self.there.last_timestamp_ms
        for values, keys, head in runs:
            for place, value in enumerate(values):
                self.records[self.next] = Record(value, keys[place] if keys else b"", head, time)
                self.next += 1
        self.ends.add(self.next)
        assert self.there.next_index == self.next

    def flush(self) -> None:
        self.synced = self.there.flush()
        assert self.synced == self.next == self.there.synced_index

    def remove_to(self, index: int) -> None:
        try:
            first = self.there.remove_to(index)
        finally:
            self.first = self.there.first_index
        assert first == self.first == max(self.first_sure, min(index, self.next))
        self._removed()

    def remove_before(self, timestamp_ms: int) -> None:
        closest = self.closest(timestamp_ms)
        try:
            first = self.there.remove_before(timestamp_ms)
        finally:
            self.first = self.there.first_index
        assert first == self.first <= closest
        assert not any(first <= index < closest for index in self.records)
        assert first == closest or self.there.gaps[0].from_index == first, "only a gap before what stays is left"
        self._removed()

    def limit(self, bytes_max: int) -> None:
        try:
            self.there.limit_back_file_size(bytes_max)
        finally:
            self.first = self.there.first_index
        size = self.there.back_file_size_bytes
        written = f"data-{self.there._reading.slot.data_page:010d}"
        older = [name for name in self.files.names(self.folder) if name.startswith("data-") and name < written]
        assert size <= bytes_max or not older, "more could have been removed"
        self._removed()

    def _removed(self) -> None:
        self.first_sure = self.first
        for index in [index for index in self.records if index < self.first]:
            del self.records[index]

    # ---------------------------------------------------------------- compare

    def closest(self, timestamp_ms: int) -> int:
        found = (i for i, record in self.records.items() if i >= self.first and record.timestamp_ms >= timestamp_ms)
        return min(found, default=self.next)

    def compare(self) -> None:
        array = self.there
        assert (array.first_index, array.next_index) == (self.first, self.next)
        assert array.size == self.next - self.first
        missing = {index for gap in array.gaps for index in range(gap.from_index, gap.to_index)}
        expected = {index for index in range(self.first, self.next) if index not in self.records}
        assert missing == expected, "gaps are exactly where something is missing"
        for index in range(self.first, self.next):
            if index in expected:
                with pytest.raises(ArrayGapError):
                    array.read(index)
                continue
            record = self.records[index]
            item = array.item(index)
            assert (bytes(item.value), item.timestamp_ms) == (record.value, record.timestamp_ms)
            batch = array.batch_of(index, verify=True)
            assert batch.head == record.head
            keys = batch.keys(index - batch.first_index, index - batch.first_index + 1)
            assert bytes(keys[0] if keys else b"") == record.key
        for index in (self.first - 1, self.next):
            with pytest.raises(IndexError):
                array.read(index)

    def compare_range(self, start: int, stop: int) -> None:
        """What is read of a range, up to the first gap."""
        found = []
        try:
            found = [bytes(value) for value in self._until_gap(start, stop)]
        except ArrayGapError as error:
            raise AssertionError("the gap was cut off") from error
        expected = []
        for index in range(start, stop):
            if index not in self.records:
                break
            expected.append(self.records[index].value)
        assert found == expected

    def _until_gap(self, start: int, stop: int) -> list[bytes]:
        found = []
        try:
            for value in self.there.read_range(start, stop):
                found.append(bytes(value))
        except ArrayGapError:
            assert start + len(found) not in self.records
        return found

    def compare_cut(self, start: int, stop: int, bytes_max: int) -> None:
        array = self.there
        if start not in self.records:
            with pytest.raises(ArrayGapError):
                array.cut(start, stop, bytes_max)
            return
        cut = array.cut(start, stop, bytes_max)
        batches = list(split(bytes(cut.data)))
        assert batches[0].first_index == cut.first_index <= start < batches[0].end_index
        assert batches[-1].end_index == cut.end_index
        for before, after in pairwise(batches):
            assert before.end_index == after.first_index
        for batch in batches:
            batch.verify()
            for place, value in enumerate(batch.values()):
                if batch.first_index + place >= self.first:
                    assert bytes(value) == self.records[batch.first_index + place].value
        if len(batches) > 1:
            assert len(cut.data) <= bytes_max
            assert cut.end_index <= stop
        if cut.end_index < min(stop, self.next) and cut.end_index in self.records:
            more = array.batch_of(cut.end_index)
            position = array._reading.position
            assert (
                len(cut.data) + more.total_bytes > bytes_max
                or more.end_index > stop
                or position(cut.end_index) >> 32 != position(cut.end_index - 1) >> 32
            ), "it could have been longer"
