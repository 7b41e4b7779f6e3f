"""What the port of engines promises for power cuts, kept by LevelDB on real files: also where it begins a new log."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from sluiceway.store import keys
from sluiceway.store.engine import Change, DiskFullError, EngineFailedError, delete, put
from sluiceway.store.leveldb import LevelDbEngine
from sluiceway.store.segments import SegmentFiles
from sluiceway.store.values import SUFFIX, ValueLog, ValueOptions
from tests.faults.store.leveldb_cut import SMALL_BUFFER, WatchedLevelDb, reopened
from tests.how_often import rounds

PIECES = [b"piece %04d" % number for number in range(100)]
EVERYTHING = (b"", b"\xff")


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WatchedLevelDb]:
    made = WatchedLevelDb(tmp_path / "store", monkeypatch)
    yield made
    made.close()


def fill_log(engine: WatchedLevelDb, names: list[bytes] = PIECES, size_bytes: int = 1_500) -> list[bytes]:
    """Unsynced batches, until the next one begins a new log. Returns the names that are there."""
    usage = b"leveldb.approximate-memory-usage"
    for count, name in enumerate(names, 1):
        engine.write([put(name, bytes(size_bytes))], sync=False)
        assert engine.logs_count == 1
        assert engine._database is not None
        if int(engine._database.get_property(usage) or 0) > SMALL_BUFFER.write_buffer_bytes:
            return names[:count]
    raise AssertionError("too few names")


@pytest.mark.parametrize("size_bytes", [0, 100, 1_500, 30_000])
def test_what_comes_before_a_synced_write_is_on_the_disk_though_that_began_a_new_log(
    engine: WatchedLevelDb, tmp_path: Path, size_bytes: int
) -> None:
    """LevelDB syncs the new log alone: the record of a COMMIT, without what it commits."""
    names = fill_log(engine, [b"piece %06d" % number for number in range(3_000)], size_bytes)
    engine.write([put(b"commit", b"")], sync=True)
    assert engine.logs_count == 2

    def look(found: LevelDbEngine) -> None:
        assert list(found.iterate_keys(*EVERYTHING)) == [b"commit", *names]

    reopened(engine.power_cut(tmp_path / "found"), look)


def test_a_batch_in_a_new_log_does_not_survive_one_in_the_log_before(engine: WatchedLevelDb, tmp_path: Path) -> None:
    """Nothing is synced by anybody: the system brings the new log to the disk, and not the old one."""
    names = fill_log(engine)
    engine.write([put(b"commit", b"")], sync=False)
    newest = max((engine.folder / "db").glob("*.log"))
    with newest.open("rb") as file:
        os.fdatasync(file.fileno())

    def look(found: LevelDbEngine) -> None:
        assert list(found.iterate_keys(*EVERYTHING)) == [b"commit", *names]

    reopened(engine.power_cut(tmp_path / "found"), look)


@pytest.mark.parametrize("size_bytes", [0, 20, 100, 700, 1_000, 1_400, 5_000])
@pytest.mark.parametrize(("batch_count", "times_max"), [(1, 4), (30, 2)])
def test_the_bound_for_the_table_in_memory_holds_and_is_not_much_too_large(
    tmp_path: Path, batch_count: int, times_max: int, size_bytes: int
) -> None:
    """Or a log would end unsynced; or be synced again and again while the table before it is written."""
    engine = LevelDbEngine(tmp_path / "db")
    assert engine._database is not None and engine._log is not None
    random, usage = Random(1), 0
    while usage < 1 << 20:
        changes = [put(random.randbytes(13), bytes(random.randint(0, 2 * size_bytes))) for _ in range(batch_count)]
        engine.write(changes, sync=False)
        usage = int(engine._database.get_property(b"leveldb.approximate-memory-usage") or 0)
        assert usage <= engine._log._table_bytes_max <= times_max * usage + (30 << 10)
    engine.close()


def test_a_log_of_synced_batches_costs_no_sync_of_ours(engine: WatchedLevelDb) -> None:
    while engine.logs_count < 5:
        engine.write([put(b"a", bytes(20_000))], sync=True)
    assert engine._log is not None and engine._log.sync_count == 0


def test_a_log_of_unsynced_batches_costs_few_syncs(engine: WatchedLevelDb) -> None:
    while engine.logs_count < 2:
        engine.write([put(b"a", bytes(300))], sync=False)
    assert engine._log is not None and engine._log.sync_count <= 2


def test_a_compaction_begins_a_new_log_behind_what_is_on_the_disk(engine: WatchedLevelDb, tmp_path: Path) -> None:
    engine.write([put(b"before", b"")], sync=False)
    engine.compact(*EVERYTHING)
    engine.write([put(b"commit", b"")], sync=True)

    def look(found: LevelDbEngine) -> None:
        assert list(found.iterate_keys(*EVERYTHING)) == [b"before", b"commit"]

    reopened(engine.power_cut(tmp_path / "found"), look)


@pytest.mark.parametrize(("number", "expected"), [(5, EngineFailedError), (28, DiskFullError)])
def test_a_log_that_cannot_be_synced_is_told_and_nothing_is_written_behind_it(
    engine: WatchedLevelDb, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[Exception]
) -> None:
    """The next write opens the database anew, which brings all of it to the disk."""
    names = fill_log(engine)

    def refuse(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", refuse)
        with pytest.raises(expected, match=str(engine.folder)):
            engine.write([put(b"commit", b"")], sync=True)
    assert list(engine.iterate_keys(*EVERYTHING)) == names
    engine.write([put(b"commit", b"")], sync=True)
    assert engine.reopened_count == 1
    assert list(engine.iterate_keys(*EVERYTHING)) == [b"commit", *names]


def test_a_log_that_cannot_be_opened_fails_no_write_that_was_made(
    engine: WatchedLevelDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when no descriptor is left: the next write says so, and the one after it goes on."""
    names = fill_log(engine)
    listdir = os.listdir

    def refuse(path: Path) -> list[str]:
        if path == engine.folder / "db":
            raise OSError(24, os.strerror(24))
        return listdir(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", refuse)
        engine.write([put(b"commit", b"")], sync=True)
        with pytest.raises(EngineFailedError, match="limits of open files"):
            engine.write([put(b"next", b"")], sync=True)
    engine.write([put(b"next", b"")], sync=True)
    assert (engine.reopened_count, list(engine.iterate_keys(*EVERYTHING))) == (0, [b"commit", b"next", *names])


def drawn(random: Random, number: int) -> list[Change]:
    """A batch: chunks, some large; other records, which fill the log; and which batch it was."""
    changes: list[Change] = []
    for _ in range(random.randint(1, 8)):
        key = keys.chunk_key(1, random.randint(0, 30))
        size_bytes = random.choice((10, 3_000, 30_000))
        changes.append(put(key, random.randbytes(size_bytes)) if random.random() < 0.5 else delete(key))
    other = random.randbytes(random.choice((10, 10, 2_000, 40_000)))
    return [*changes, put(keys.transaction_key(1, number), other), put(keys.META_NUMBERS_KEY, b"%d" % number)]


@pytest.mark.parametrize("seed", range(rounds(5)))
def test_a_power_cut_leaves_a_prefix_of_whole_batches_with_all_that_was_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """With values in segments, which move and go: what names them must not come back without them."""
    random = Random(seed)
    options = ValueOptions(record_bytes_min=2_000, batch_bytes_min=5_000, segment_bytes=60_000, moved_bytes=20_000)
    engine = WatchedLevelDb(tmp_path / "store", monkeypatch)
    log = ValueLog(engine, engine.segments, options)
    sync_share = random.choice((0.02, 0.1, 0.4))
    states: list[dict[bytes, bytes]] = [{}]
    synced = 0
    try:
        for number in range(1, 60):
            changes, sync = drawn(random, number), random.random() < sync_share
            log.write(changes, sync=sync)
            states.append(dict(log.iterate(*EVERYTHING)))
            synced = number if sync else synced
            if random.random() < 0.3:
                cut_folder = engine.power_cut(tmp_path / "found", random if random.random() < 0.7 else None)
                reopened(cut_folder, lambda found: looked_at(found, cut_folder, states[synced:]))  # noqa: B023
        assert engine.logs_count > 2
    finally:
        log.close()


def looked_at(found: LevelDbEngine, folder: Path, may_be: list[dict[bytes, bytes]]) -> None:
    """One of these is there, and each value of it can be read."""
    log = ValueLog(found, SegmentFiles(folder / "values", SUFFIX, "values"))
    contents = dict(log.iterate(*EVERYTHING))
    assert contents in may_be
    assert all(log.get(key) == value for key, value in contents.items())
