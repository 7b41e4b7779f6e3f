"""A log in an engine against a list: appends, removals, looks by index and by time, with writes that fail before or
behind their effect, crashes, and a cache that has room for a few extents.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Final

import pytest

from sluiceway.flow import FlowManager
from sluiceway.queues.logs.batches import Batch, encode, split
from sluiceway.queues.logs.pending_records import PendingRecords
from sluiceway.queues.logs.ports import AwayError, DiskError, MissingRecordsError, read_here, timestamp_ms_of
from sluiceway.store import keys
from sluiceway.store.engine import Engine, delete, put
from sluiceway.store.engine_log import JOINED_COUNT, EngineLog
from sluiceway.store.engine_logs import EngineLogs
from sluiceway.store.extents import Extent, ExtentCache
from sluiceway.store.memory import MemoryEngine
from tests.store.faulty import Failure, FaultyEngine

NAME: Final = "/log/a"
EPOCH_MS: Final = 1_700_000_000_000
EXTENT_BYTES: Final = 600
CACHE_BYTES: Final = 8_000


def cache_of(capacity_bytes: int = CACHE_BYTES) -> ExtentCache:
    return ExtentCache(capacity_bytes, manager=FlowManager(lambda: 0.0), clock=lambda: 0.0)


def logs_in(engine: Engine, *, capacity_bytes: int = CACHE_BYTES) -> EngineLogs:
    return EngineLogs(engine, cache_of(capacity_bytes), now_ms=lambda: EPOCH_MS, extent_bytes=EXTENT_BYTES)


def log_in(engine: Engine) -> EngineLog:
    """The log NAME, with all its records away."""
    log = logs_in(engine).open(NAME).records
    assert isinstance(log, EngineLog)
    return log


class Twin:
    """A log and what it should be."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.engine = FaultyEngine(Random(seed))
        self.now_ms = EPOCH_MS
        self.values: list[bytes] = []
        self.times: list[int] = []
        self.first = 0
        self.perhaps = 0
        """Records behind the end that a failed append may have left."""
        self.open()

    def open(self) -> None:
        logs = EngineLogs(self.engine, cache_of(), now_ms=lambda: self.now_ms, extent_bytes=EXTENT_BYTES)
        if self.values or self.first:
            assert logs.names() == [NAME]
        log = logs.open(NAME).records
        assert isinstance(log, EngineLog)
        self.log = log
        assert len(self.values) <= log.next_index <= len(self.values) + self.perhaps, "the end"
        assert self.first >= log.first_index, "removed records may come back, others not go"
        self.first = log.first_index
        for index in range(len(self.values), log.next_index):  # nobody was told of them, and they count
            batch = read_here(log, lambda index=index: log.batch_of(index))  # type: ignore[misc]
            self.values.append(bytes(batch.value(index - batch.first_index)))
            self.times.append(batch.timestamp_ms)
        self.perhaps = 0

    def append(self) -> None:
        self.now_ms += self.random.choice((0, 0, 1, 1000))
        size = self.random.choice((1, 20, 200))
        runs = [
            [self.random.randbytes(self.random.randint(0, size)) for _ in range(self.random.randint(1, 5))]
            for _ in range(self.random.choice((1, 1, 4)))
        ]
        self.perhaps = max(self.perhaps, sum(map(len, runs)))
        index = self.log.append_batches([encode(values) for values in runs])
        assert index == len(self.values)
        for values in runs:
            self.values += values
            self.times += [self.log.last_timestamp_ms] * len(values)
        self.perhaps = 0
        assert self.log.next_index == self.log.synced_index == len(self.values)

    def remove(self) -> None:
        log, before = self.log, self.log.first_index
        with suppress(DiskError):
            match self.random.randrange(3):
                case 0:
                    log.remove_to(self.random.randint(0, len(self.values) + 3))
                case 1:
                    log.limit_back_file_size(self.random.randint(0, 4000))
                    assert not self.values or log.first_index < len(self.values) or before == len(self.values)
                case 2:
                    time = self.now_ms - self.random.choice((0, 500, 5000))
                    log.remove_before(time)
                    kept = [at for at in range(before, len(self.values)) if self.times[at] >= time]
                    assert log.first_index <= min(kept, default=len(self.values)), "younger ones stay"
        assert before <= log.first_index <= len(self.values)
        self.first = log.first_index

    def check(self) -> None:
        """What can be read is what was appended, by records, by runs and by time."""
        log = self.log
        assert list(log.gaps) == []
        assert log.first_index == self.first
        index = self.first
        while index < len(self.values):
            batch = read_here(log, lambda index=index: log.batch_of(index, verify=True))  # type: ignore[misc]
            assert batch.first_index <= index < batch.end_index
            for each in range(index, batch.end_index):
                assert bytes(batch.value(each - batch.first_index)) == self.values[each]
                assert batch.timestamp_ms == self.times[each]
            index = batch.end_index
        if self.first < len(self.values):
            start = self.random.randrange(self.first, len(self.values))
            stop, bytes_max = self.random.randint(start + 1, len(self.values)), self.random.choice((1, 500, 5000))
            part = read_here(log, lambda: log.cut(start, stop, bytes_max))
            batches = list(split(part.data))
            assert batches[0].first_index == part.first_index <= start
            assert (batches[-1].end_index, len(batches) == 1 or part.end_index <= stop) == (part.end_index, True)
            assert len(batches) == 1 or len(part.data) <= bytes_max
        time = self.random.choice(self.times or [0]) + self.random.choice((-1, 0, 1))
        closest = read_here(log, lambda: log.find_closest_index(time))
        later = [at for at in range(self.first, len(self.values)) if self.times[at] >= time]
        assert closest == min(later, default=len(self.values))


@pytest.mark.parametrize("seed", range(4))
def test_what_was_appended_is_there_whatever_fails(seed: int) -> None:
    twin = Twin(seed)
    random = twin.random
    for _ in range(120):
        twin.engine.fail_at_rate(Failure.WRITE, random.choice((0.0, 0.0, 0.2)))
        twin.engine.fail_at_rate(Failure.SYNC, random.choice((0.0, 0.0, 0.2)))
        with suppress(DiskError):
            for _ in range(random.choice((1, 1, 30))):
                twin.append()
        if random.random() < 0.15:
            twin.remove()
        if random.random() < 0.1:
            twin.engine = twin.engine.crash() if random.random() < 0.5 else twin.engine.power_cut()
            twin.open()
        twin.engine.fail_at_rate(Failure.WRITE, 0.0)
        twin.engine.fail_at_rate(Failure.SYNC, 0.0)
        if twin.log._joining is None:  # else what is under way is not known: the next append decides it
            twin.check()


def test_small_appends_become_few_extents() -> None:
    """So the index in memory, and a reader's round trips, follow the bytes."""
    engine = MemoryEngine()
    log = log_in(engine)
    for number in range(4 * JOINED_COUNT):
        log.append_batches([encode([b"%d" % number])])
    stored = list(engine.iterate_keys(*keys.family_range(keys.EXTENT)))
    assert len(stored) < JOINED_COUNT
    assert sum(Extent.of_key(key).count for key in stored) == 4 * JOINED_COUNT
    assert sum(Extent.of_key(key).size_bytes for key in stored) == log.back_file_size_bytes


def test_records_that_are_away_are_brought_first() -> None:
    engine = MemoryEngine()
    log_in(engine).append_batches([encode([b"a", b"b"])])
    log = log_in(engine)
    with pytest.raises(AwayError):
        log.batch_of(1)
    with pytest.raises(AwayError):
        log.cut(0, 2, 1000)
    assert timestamp_ms_of(log, 1) == EPOCH_MS, "known without its record"
    assert log.find_closest_index(EPOCH_MS) == 0, "likewise: one append has one time"
    log.warm(0, 2)
    assert bytes(log.batch_of(1).value(1)) == b"b"


@pytest.mark.parametrize("damage", ["gone", "cut", "flipped", "of another log"])
def test_damage_is_a_gap_and_the_rest_is_read(damage: str) -> None:
    engine = MemoryEngine()
    log = log_in(engine)
    for text in (b"a", b"b" * EXTENT_BYTES, b"c" * EXTENT_BYTES):
        log.append_batches([encode([text]), encode([text])])
    victim = list(engine.iterate(*keys.family_range(keys.EXTENT)))[1]
    key, value = victim
    log = log_in(engine)  # it knows of the extent
    if damage == "gone":
        engine.write([delete(key)], sync=True)
    else:
        other = log_in(MemoryEngine())
        other.append_batches([encode([b"x"])])
        changed = {"cut": value[:-8], "flipped": value[:20] + b"?" + value[21:]}.get(damage, bytes(len(value)))
        engine.write([put(key, changed)], sync=True)
    with pytest.raises(MissingRecordsError) as gap:
        read_here(log, lambda: log.batch_of(2))
    assert (gap.value.from_index, gap.value.to_index, gap.value.reason) == (2, 3, "damaged")
    assert bytes(read_here(log, lambda: log.batch_of(3)).value(0)) == b"b" * EXTENT_BYTES
    if damage == "gone":  # the next start knows without a look
        again = log_in(engine)
        assert [(hole.from_index, hole.to_index) for hole in again.gaps] == [(2, 3)]
        with pytest.raises(MissingRecordsError):
            again.batch_of(2)


def test_the_cache_keeps_its_bound_and_pays_for_it() -> None:
    engine = MemoryEngine()
    log = logs_in(engine).open(NAME).records
    for _ in range(50):
        log.append_batches([encode([b"x" * EXTENT_BYTES])])
    assert isinstance(log, EngineLog)
    cache = log._cache
    cache.settle_up()
    assert 0 < cache._account.limiter.used_bytes <= CACHE_BYTES
    log.close()
    cache.settle_up()
    assert cache._account.limiter.used_bytes == 0


def test_a_small_batch_does_not_keep_its_extent_in_memory() -> None:
    engine = MemoryEngine()
    log = log_in(engine)
    log.append_batches([encode([b"x"]) for _ in range(8)])
    batch: Batch = log.batch_of(3)
    assert len(batch.data.obj) == batch.total_bytes  # type: ignore[arg-type]


# ---------------------------------------------------------------------- all logs


def test_a_log_is_made_by_its_make_and_found_by_the_next_run() -> None:
    engine = MemoryEngine()
    opened = logs_in(engine).begin(NAME)
    assert isinstance(opened.records, PendingRecords)
    assert logs_in(engine).names() == []
    assert opened.make is not None
    opened.make().append_batches([encode([b"x"])])
    logs = logs_in(engine)
    assert logs.names() == [NAME]
    again = logs.open(NAME)
    assert (again.log_id, again.records.next_index, again.durability) == (opened.log_id, 1, "shared")
    with pytest.raises(DiskError, match="start it again"):
        logs.begin(NAME)


def test_a_deleted_log_leaves_nothing_and_its_name_gets_another_one() -> None:
    engine = MemoryEngine()
    logs = logs_in(engine)
    opened = logs.open(NAME)
    opened.records.append_batches([encode([b"x"])])
    logs.take_away(NAME)
    opened.records.append_batches([encode([b"y"])])  # it stays open until all readers have gone
    logs.remove(NAME)
    assert list(engine.iterate_keys(b"", b"\xff")) == []
    again = logs.open(NAME)
    assert (again.records.next_index, again.log_id != opened.log_id) == (0, True)


def test_a_deletion_that_was_interrupted_is_ended_by_the_next_start() -> None:
    engine = FaultyEngine(Random(1))
    logs = logs_in(engine)
    logs.open(NAME).records.append_batches([encode([b"x"])])
    logs.take_away(NAME)
    engine = engine.crash()
    assert logs_in(engine).names() == []
    assert list(engine.iterate_keys(b"", b"\xff")) == []


@pytest.mark.parametrize("failure", [Failure.WRITE, Failure.SYNC])
def test_a_log_that_can_not_be_taken_away_stays(failure: Failure) -> None:
    """Whatever the database did of it: with the next append its record is there."""
    engine = FaultyEngine(Random(1))
    logs = logs_in(engine)
    log = logs.open(NAME).records
    log.append_batches([encode([b"x"])])
    engine.fail_next(failure)
    with pytest.raises(DiskError, match="stays as it is"):
        logs.take_away(NAME)
    log.append_batches([encode([b"y"])])
    again = logs_in(engine.crash())
    assert again.names() == [NAME]
    assert again.open(NAME).records.next_index == 2


def test_a_damaged_head_is_named() -> None:
    engine = MemoryEngine()
    logs_in(engine).open(NAME)
    engine.write([put(keys.log_key(NAME), b"?")], sync=True)
    with pytest.raises(DiskError, match=NAME):
        logs_in(engine).open(NAME)
