"""Bad sectors in the files of stored values: what they cost, who is told, and what is tried before."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from sluiceway.config import BrokerConfig, Config
from sluiceway.data_folder import _open_folder, _Share
from sluiceway.protocols.stomp.header_codec import HeaderCodec
from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.queues.message import Message
from sluiceway.store import keys, states
from sluiceway.store.chunks import encode_chunk_and_summary
from sluiceway.store.directory import open_directory
from sluiceway.store.engine import CorruptionError, EngineFailedError, UnreadableError, put
from sluiceway.store.maintenance.check import check_folder
from sluiceway.store.maintenance.export import Export
from sluiceway.store.maintenance.mending import repair
from sluiceway.store.maintenance.opening import open_store
from sluiceway.store.maintenance.records import make_large
from sluiceway.store.memory import MemoryEngine
from sluiceway.store.recovery import recover
from sluiceway.store.segments import BAD_SECTORS_MAX, SegmentFiles, read_around
from sluiceway.store.values import ValueLog, ValueOptions
from tests.queues.rig import FakeConsumer
from tests.store.faulty import FaultyEngine, FaultySegments
from tests.store.rig import FakeFolder, StoreWorld, shelf_of, tight

SMALL = ValueOptions(record_bytes_min=10, batch_bytes_min=20, segment_bytes=100_000)
NAMES = [keys.chunk_key(1, number) for number in range(5)]
HEADS = HeaderCodec()


@pytest.fixture
def segments() -> FaultySegments:
    return FaultySegments(Random(1))


@pytest.fixture
def log(segments: FaultySegments) -> ValueLog:
    return ValueLog(FaultyEngine(Random(1)), segments, SMALL)


def fill(log: ValueLog, *names: bytes, size_bytes: int) -> None:
    log.write([put(name, name[-1:] * size_bytes) for name in names], sync=True)


def test_a_bad_sector_costs_the_value_in_it(log: ValueLog, segments: FaultySegments) -> None:
    fill(log, *NAMES[:3], size_bytes=10_000)
    segments.bad = [(0, 14_000, 14_001)]
    assert log.get(NAMES[0]) is not None and log.get(NAMES[2]) is not None
    with pytest.raises(UnreadableError, match="segment 0 can't be read between") as caught:
        log.get(NAMES[1])
    start = 10_020 + 20  # of the value
    found = caught.value.read_around()
    one = NAMES[1][-1:]
    assert found == one * (12_288 - start) + bytes(4096) + one * (start + 10_000 - 16_384)


def test_an_iteration_goes_on_behind_a_bad_sector_and_says_where_it_is(log: ValueLog, segments: FaultySegments) -> None:
    fill(log, *NAMES[:3], size_bytes=10_000)
    segments.bad = [(0, 14_000, 14_001)]
    found = dict(log.iterate(*keys.family_range(keys.CHUNK)))
    assert found[NAMES[0]] == NAMES[0][-1:] * 10_000 and found[NAMES[2]] == NAMES[2][-1:] * 10_000
    assert len(found[NAMES[1]]) == 10_000 and bytes(4000) in found[NAMES[1]]
    assert len(log.unreadable) == 1 and "segment 0" in log.unreadable[0]


def test_a_value_that_is_bad_all_through_costs_no_other(log: ValueLog, segments: FaultySegments) -> None:
    fill(log, *NAMES[:3], size_bytes=10_000)
    segments.bad = [(0, 10_020, 20_040)]
    assert [len(value) for _key, value in log.iterate(*keys.family_range(keys.CHUNK))] == [10_000, 0, 10_000]


def test_of_a_disk_that_reads_nothing_at_all_nothing_counts_as_damaged(log: ValueLog, segments: FaultySegments) -> None:
    """A cable that is loose for an hour must not cost what is read meanwhile, nor what a repair would delete."""
    fill(log, *NAMES[:3], size_bytes=10_000)
    fill(log, *NAMES[3:5], size_bytes=10_000)
    segments.bad = [(number, 0, 1 << 30) for number in segments.sizes()]
    with pytest.raises(UnreadableError) as caught:
        log.get(NAMES[1])
    assert caught.value.read_around() is None
    with pytest.raises(UnreadableError):
        list(log.iterate(*keys.family_range(keys.CHUNK)))


class CountedSegments(FaultySegments):
    """Counts what is read."""

    reads_count = 0

    def read(self, segment: int, offset: int, size_bytes: int, ahead_bytes: int = 0) -> bytes:
        self.reads_count += 1
        return super().read(segment, offset, size_bytes, ahead_bytes)


def test_of_many_bad_sectors_some_are_tried() -> None:
    """A disk may try for seconds with each."""
    segments = CountedSegments(Random(1))
    segments.write(0, 0, [bytes(3 << 20)], sync=False)
    segments.bad = [(0, 10_000, 1 << 20)]
    assert read_around(segments, 0, 0, 1 << 20) == bytes(1 << 20)
    assert segments.reads_count <= BAD_SECTORS_MAX + 3
    segments.bad = [(0, 0, 1 << 20)]
    assert read_around(segments, 0, 0, 1 << 20) == b""
    assert segments.reads_count <= 2 * BAD_SECTORS_MAX + 10


# -- a queue -----------------------------------------------------------------------------------------------------------


class Stored:
    """A queue of three chunks of eight messages that an earlier world left, in one block; and who wants them."""

    def __init__(self) -> None:
        self.segments = FaultySegments(Random(1))
        world = StoreWorld(self._opened(FaultyEngine(Random(1))))
        queue = world.queue()
        for _ in range(3):
            world.put(queue, 8, wire_bytes=2_000)
            world.flush(seconds=0.1)
        engine = world.engine
        assert isinstance(engine, ValueLog) and isinstance(engine._engine, FaultyEngine)
        assert len(self.segments.sizes()) == 1
        self.segments = self.segments.crash()
        self.folder = FakeFolder()
        self.world = StoreWorld(self._opened(engine._engine.crash()), now_seconds=world.now_seconds, folder=self.folder)

    def _opened(self, engine: FaultyEngine) -> ValueLog:
        return ValueLog(engine, self.segments, SMALL)

    def consume(self) -> FakeConsumer:
        """Somebody subscribes to it."""
        queue: ConsumedQueue = self.world.restored()
        consumer = self.world.consumer(100)
        queue.subscribe(consumer)
        assert shelf_of(queue) is not None
        self.world.settle_down()
        return consumer


@pytest.fixture
def stored() -> Iterator[Stored]:
    with tight(block_bits=6, lease_count=1 << 16, seal_count=8):
        yield Stored()


def test_a_bad_sector_that_comes_back_costs_nothing(stored: Stored) -> None:
    stored.segments.bad = [(0, 20_000, 20_001)]
    consumer = stored.consume()
    stored.world.flush(seconds=5.0, steps=10)
    assert consumer.numbers == []
    stored.segments.bad = []
    stored.world.flush(seconds=3.0, steps=6)
    assert consumer.numbers == [*range(24)]
    assert stored.world.log.names("error") == ["store cannot read"] * 2
    assert stored.world.store.counters.lost_count == 0


def test_a_bad_sector_that_stays_costs_its_record_and_the_others_of_the_block_come(stored: Stored) -> None:
    """It had held up the whole block for ever."""
    stored.segments.bad = [(0, 20_000, 20_001)]
    consumer = stored.consume()
    stored.world.flush(seconds=30.0, steps=60)
    assert consumer.numbers == []
    pauses = [facts["again_after_seconds"] for _level, _event, facts in stored.world.log.events if len(facts) == 2]
    assert pauses == [1.0, 5.0, 25.0]
    stored.world.flush(seconds=3.0, steps=6)
    assert consumer.numbers == [*range(8), *range(16, 24)]
    assert (stored.world.store.counters.corrupt_count, stored.world.store.counters.lost_count) == (1, 8)
    [(name, aside)] = stored.folder.attic
    assert name.startswith("chunk-") and len(aside) > 12_000
    assert b"13.xxxx" in aside and bytes(4096) in aside


def test_a_disk_that_reads_nothing_for_an_hour_costs_nothing(stored: Stored) -> None:
    stored.segments.bad = [(0, 0, 1 << 30)]
    consumer = stored.consume()
    stored.world.flush(seconds=3600.0, steps=1200)
    assert consumer.numbers == [] and stored.folder.attic == []
    stored.segments.bad = []
    stored.world.flush(seconds=10.0)
    assert consumer.numbers == [*range(24)]
    assert stored.world.store.counters.lost_count == 0


# -- in a folder -------------------------------------------------------------------------------------------------------


@pytest.fixture
def bad_bytes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Ranges of all files that can't be read from here on."""
    bad: list[tuple[int, int]] = []
    pread = os.pread

    def refuse(descriptor: int, size_bytes: int, offset: int) -> bytes:
        if any(start < offset + size_bytes and offset < stop for start, stop in bad):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(descriptor, size_bytes, offset)

    monkeypatch.setattr(os, "pread", refuse)
    return bad


@pytest.mark.parametrize("number", [errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.ENODATA, errno.EACCES])
def test_what_the_system_says_of_bad_sectors_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    files = SegmentFiles(tmp_path, ".values", "values")
    files.write(3, 0, [bytes(100)], sync=False)

    def refuse(_descriptor: int, _size_bytes: int, _offset: int) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pread", refuse)
    with pytest.raises(EngineFailedError, match=os.strerror(number)) as caught:
        files.read(3, 10, 10)
    assert isinstance(caught.value, UnreadableError) == (number != errno.EACCES)


def folder_of_three(folder: Path) -> None:
    """A queue of three messages, each a chunk in `values/`."""
    changes = [
        put(keys.META_FORMAT_KEY, states.encode_format(keys.FORMAT_VERSION)),
        put(keys.META_NUMBERS_KEY, states.encode_numbers(1000)),
        put(keys.META_CLEAN_KEY, states.encode_clean(True)),
        put(keys.queue_key(1), states.encode_queue(states.KIND_QUEUE, 4, "/queue/a")),
        put(keys.head_key(1), states.encode_head(2000, 0)),
    ]
    block = b"destination:/queue/a\npersistent:true"
    for place in range(3):
        message = Message(HEADS.restore(2, block), block + b"\n\n" + b"%d" % place * 100_000 + b"\0", place + 1)
        value, summary = encode_chunk_and_summary(place, [place], [message], HEADS)
        changes += [put(keys.chunk_key(1, place), value), put(keys.summary_key(1, place), summary)]
    with open_store(folder, create=True) as store:
        store.engine.write(changes, sync=True)


class DamagedChunks(MemoryEngine):
    """Finds chunks damaged, as a value log does."""

    def get(self, key: bytes) -> bytes | None:
        if key.startswith(keys.CHUNK):
            raise CorruptionError("segment 0 is damaged")
        return super().get(key)


def test_a_damaged_chunk_with_large_bodies_does_not_keep_a_broker_from_starting() -> None:
    """Who reads its block says so."""
    engine = DamagedChunks()
    block = b"destination:/queue/a\npersistent:true"
    large = make_large(HEADS.restore(2, block), block + b"\n\n\0", 1, 0, 0, 7, 1 << 20)
    value, summary = encode_chunk_and_summary(0, [0], [large], HEADS)
    engine.write(
        [
            put(keys.queue_key(1), states.encode_queue(states.KIND_QUEUE, 4, "/queue/a")),
            put(keys.chunk_key(1, 0), value),
            put(keys.summary_key(1, 0), summary),
        ],
        sync=True,
    )
    found = recover(engine, lambda _count: None, HEADS)
    assert found.live_count == 1
    assert found.may_miss_bodies, "or the files of its bodies would go as nobody's"


def test_a_check_names_a_bad_sector_an_export_goes_on_and_a_repair_moves_it_aside(
    tmp_path: Path, bad_bytes: list[tuple[int, int]]
) -> None:
    folder_of_three(tmp_path)
    bad_bytes.append((150_000, 150_001))
    report = check_folder(tmp_path, HEADS)
    assert report.complete and dict(report.fault_counts) == {"corrupt-chunk": 1}
    assert any("0.values can't be read between" in note and "Input/output" in note for note in report.notes)
    said: list[str] = []
    with open_store(tmp_path) as store:
        export = Export(store.engine, HEADS, on_fault=said.append)
        list(export.lines())
    assert (export.messages_count, len(said)) == (2, 1)
    with open_directory(tmp_path) as directory:
        mended = repair(directory, HEADS)
        [aside] = directory.attic.files()
    assert mended.left is not None and not mended.left.fault_counts
    assert b"1" * 40_000 in aside.read_bytes() and bytes(4096) in aside.read_bytes()
    assert check_folder(tmp_path, HEADS).messages_count == 2


def test_the_start_that_repairs_leveldb_knows_that_bodies_may_be_missed(tmp_path: Path) -> None:
    folder_of_three(tmp_path)
    config = Config(broker=BrokerConfig(data_dir=str(tmp_path)))
    for is_damaged in (True, False):
        if is_damaged:
            (tmp_path / "db" / "CURRENT").unlink()
        house = _open_folder(config.broker.data_dir, None, _Share(0, 1, None))
        try:
            assert house.recovered.may_miss_bodies == is_damaged
        finally:
            house.abandon()


def test_a_repair_deletes_nothing_where_the_disk_reads_nothing(
    tmp_path: Path, bad_bytes: list[tuple[int, int]]
) -> None:
    folder_of_three(tmp_path)
    bad_bytes.append((0, 1 << 30))
    with open_directory(tmp_path) as directory, pytest.raises(UnreadableError):
        repair(directory, HEADS)
    bad_bytes.clear()
    assert check_folder(tmp_path, HEADS).messages_count == 3
