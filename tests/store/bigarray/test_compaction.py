"""Compaction of arrays: wherever it ends, the last record of each key is there, and nothing reads as another."""

from __future__ import annotations

import errno
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final

import attrs
import pytest

from sluiceway.queues.logs.batches import encode, split
from sluiceway.queues.logs.codecs import Codec
from sluiceway.queues.logs.record_keys import CompactionOrder, HeadFacts, LastIndexes, head_facts
from sluiceway.store.bigarray import ArrayError, ArrayGapError, ArrayOptions, BigArray
from tests.store.bigarray.faulty import FaultyFiles

OPTIONS: Final = ArrayOptions(index_page_items=64, data_page_bytes=4096, mapped_pages_max=2, lease_items=10)
KEYS_COUNT: Final = 12
TOMBSTONE_MS: Final = 50


@attrs.frozen
class Sent:
    key: bytes
    value: bytes
    is_tombstone: bool = False


class Ledger:
    """An array and all that was ever appended to it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = Random(seed)
        self.files = FaultyFiles(Random(seed), folder / "vault")
        self.folder = folder / "array"
        self.now_ms = 1000
        self.boot = 0
        self.sent: dict[int, Sent] = {}
        self.array = self.opened()

    def opened(self) -> BigArray:
        return BigArray.open(
            self.folder, OPTIONS, files=self.files, now_ms=lambda: self.now_ms, boot_id=f"boot {self.boot}"
        )

    def append(self) -> None:
        """One batch: of one key as SENDs have it, of tombstones, or of many keys, compressed or not."""
        random, count = self.random, self.random.randrange(1, 9)
        self.now_ms += 1
        keys = [b"key %d" % random.randrange(KEYS_COUNT) for _ in range(count)]
        values = [b"%d of %d " % (random.randrange(10**9), self.now_ms) * random.randrange(6) for _ in range(count)]
        kind = random.randrange(4)
        if kind == 0:
            values = [b""] * count if random.random() < 0.5 else values
            keys = [keys[0]] * count
            batch = encode(values, head=b"tombstone:true\nkey:" + keys[0])
        elif kind == 1:
            keys = [keys[0]] * count
            batch = encode(values, head=b"key:" + keys[0])
        else:
            keys[0] = b"" if random.random() < 0.1 else keys[0]
            batch = encode(values, keys=keys, codec=random.choice((Codec.NONE, Codec.ZSTD)))
        first = self.array.append_batches([batch])
        for index, (key, value) in enumerate(zip(keys, values, strict=True), first):
            self.sent[index] = Sent(key, value, kind == 0 and not value)

    def order(self) -> CompactionOrder:
        keys_max = self.random.choice((5, 100))
        return CompactionOrder(LastIndexes(keys_max), 1 << 20, self.now_ms - TOMBSTONE_MS, 0)

    def check(self) -> int:
        """Compare; returns how many records were removed."""
        array = self.array
        last = {sent.key: index for index, sent in self.sent.items()}
        removed: set[int] = set()
        for index, sent in self.sent.items():
            try:
                assert array.read(index) == sent.value, index
            except ArrayGapError as gap:
                assert gap.reason == "compacted" and sent.key, gap
                assert last[sent.key] > index or sent.is_tombstone, f"the last of {sent.key!r} is gone"
                removed.add(index)
        for key, index in last.items():
            if index in removed:
                assert all(other in removed for other, sent in self.sent.items() if sent.key == key), "it came back"
        index, seen = array.first_index, []
        while index < array.next_index:
            if index not in self.sent:  # after a power cut some indexes are never used
                index += 1
                continue
            stop = next((gap.from_index for gap in array.gaps if gap.from_index > index), array.next_index)
            end = array.end_of_live(index, stop)
            if end == index:
                index += 1
                continue
            seen += list(range(index, end))
            cut = array.cut(index, end, 1 << 16)
            starts = [batch.first_index for batch in split(cut.data)]
            ends = [batch.end_index for batch in split(cut.data)]
            assert [cut.first_index, *ends] == [*starts, cut.end_index], "a run holds what it says"
            index = min(end, cut.end_index)
        assert set(seen) & removed == set()
        return len(removed)


@pytest.mark.parametrize(
    ("end", "seed"), [("in order", 0), ("kill", 0), ("power cut", 0), ("power cut", 1), ("full disk", 0)]
)
def test_whatever_interrupts_it_the_last_of_each_key_is_there(tmp_path: Path, end: str, seed: int) -> None:
    ledger = Ledger(tmp_path, seed)
    removed_count = 0
    for _ in range(5):
        for _ in range(ledger.random.randrange(20, 45)):
            ledger.append()
        ledger.array.flush()
        steps = ledger.array.compacting(ledger.order())
        if end == "full disk":
            ledger.files.fail(ledger.random.randrange(1, 60), errno.ENOSPC)
        try:
            for _ in islice(steps, None if end in ("in order", "full disk") else ledger.random.randrange(250)):
                pass
        except ArrayError as error:
            assert end == "full disk", error
        ledger.files.fail(0, 0)
        ledger.check()
        steps.close()  # only its descriptors
        if end in ("kill", "power cut"):
            ledger.files.power_cut() if end == "power cut" else ledger.files.kill()
            ledger.boot += end == "power cut"
        else:
            ledger.array.close()
        ledger.array = ledger.opened()
        removed_count = ledger.check()
    assert removed_count > (150 if end == "in order" else 20)
    while ledger.array.compaction_is_due:
        for _ in ledger.array.compacting(ledger.order()):
            pass
    ledger.check()
    assert not [name for name in ledger.files.names(ledger.folder) if name.endswith(".new")], "nothing is left over"
    ledger.array.close()


def test_a_page_gives_its_space_back(tmp_path: Path) -> None:
    options = attrs.evolve(OPTIONS, data_page_bytes=1 << 20)
    with BigArray.open(tmp_path / "array", options, now_ms=lambda: 1, boot_id="b") as array:
        for number in range(40):
            array.append_many([bytes([number]) * 1000] * 100, keys=[b"%d" % (place % 5) for place in range(100)])
        array.flush()
        used = sum(path.stat().st_blocks for path in array.folder.glob("data-*"))
        for _ in array.compacting(CompactionOrder(LastIndexes(100), 1 << 20, 0, 0)):
            pass
        left = sum(path.stat().st_blocks for path in array.folder.glob("data-*"))
        assert left < used / 2
        assert array.compacted.freed_bytes > 2_900_000


def test_keys_are_read_from_headers() -> None:
    assert head_facts(b"a:b\nkey:x\\cy\\\\n\nkey:second") == HeadFacts(b"x:y\\n")
    assert head_facts(b"key-base64:AAE=\ntombstone:true") == HeadFacts(b"\0\1", is_tombstone=True)
    assert head_facts(b"sluiceway-commit:t1/2\nkey-base64:no base 64") == HeadFacts(b"", is_marked=True)
    assert head_facts(b"group:g") == HeadFacts()
