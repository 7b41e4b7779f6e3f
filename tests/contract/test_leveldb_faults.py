"""LevelDB's adapter when something goes wrong: killed processes, failed writes, damaged files.

The process dies in a process of its own. Disks that fail are imitated by a limit on the size of files (a torn append,
as when no space is left) and by a database whose batches fail.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluiceway.store.binding import plyvel
from sluiceway.store.engine import (
    CorruptionError,
    DiskFullError,
    EngineClosedError,
    EngineError,
    EngineFailedError,
    delete_range,
    put,
)
from sluiceway.store.leveldb import Database, LevelDbEngine, LevelDbOptions, WriteBatch, mapped_error, open_database

LAST = b"\xff" * 8


def keys_of(engine: LevelDbEngine) -> list[bytes]:
    return list(engine.iterate_keys(b"", LAST))


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a Python program in a process of its own, in which `folder` is that folder."""
    start = (
        "import os, resource, sys\n"
        "from pathlib import Path\n"
        "from sluiceway.store.engine import *\n"
        "from sluiceway.store.leveldb import LevelDbEngine\n"
        "folder = Path(sys.argv[1])\n"
    )
    return subprocess.run(
        [sys.executable, "-c", start + program, str(folder)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_what_was_written_without_sync_survives_kill_9(tmp_path: Path) -> None:
    died = run(
        "engine = LevelDbEngine(folder / 'db')\n"
        "for place in range(100):\n"
        "    engine.write([put(b'%03d' % place, bytes(10_000)), put(b'last', b'%d' % place)], sync=False)\n"
        "os.kill(os.getpid(), 9)\n",
        tmp_path,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    engine = LevelDbEngine(tmp_path / "db")
    assert keys_of(engine) == [*(b"%03d" % place for place in range(100)), b"last"]
    assert engine.get(b"last") == b"99"
    engine.close()


def test_an_interpreter_that_ends_with_an_open_engine_ends_well(tmp_path: Path) -> None:
    """Iterators open, values written a moment ago, nothing closed."""
    ended = run(
        "engine = LevelDbEngine(folder / 'db')\n"
        "engine.write([put(b'%03d' % place, bytes(100_000)) for place in range(100)], sync=False)\n"
        "steps = engine.iterate(b'', b'z'); next(steps)\n"
        "waiting = engine.iterate_keys(b'', b'z')\n",
        tmp_path,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    engine = LevelDbEngine(tmp_path / "db")
    assert len(keys_of(engine)) == 100
    engine.close()


def test_an_append_that_failed_half_way_costs_nothing_written_before_or_after(tmp_path: Path) -> None:
    """LevelDB by itself goes on behind the torn record, and loses what it then writes and syncs."""
    died = run(
        "engine = LevelDbEngine(folder / 'db')\n"
        "engine.write([put(b'before', b'1')], sync=False)\n"
        "_soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))\n"
        "batch = [put(b'torn', bytes(100_000)), put(b'with it', b'2')]\n"
        "try:\n"
        "    engine.write(batch, sync=True)\n"
        "except EngineFailedError as error:\n"
        "    print(error)\n"
        "assert engine.get(b'before') == b'1', 'reading goes on'\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))\n"
        "engine.write([put(b'between', b'3')], sync=False)\n"
        "engine.write(batch, sync=True)\n"
        "engine.write([put(b'after', b'4')], sync=True)\n"
        "print(engine.reopened_count)\n"
        "sys.stdout.flush()\n"
        "os.kill(os.getpid(), 9)\n",
        tmp_path,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    said, reopened_count = died.stdout.splitlines()
    assert str(tmp_path) in said
    assert "File too large" in said
    assert reopened_count == "1"
    engine = LevelDbEngine(tmp_path / "db")
    assert keys_of(engine) == [b"after", b"before", b"between", b"torn", b"with it"]
    engine.close()


class FailingBatch:
    """Takes what it is given, and fails when it is written."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def put(self, key: bytes, value: bytes) -> None: ...

    def delete(self, key: bytes) -> None: ...

    def write(self) -> None:
        raise self._error


class Disk:
    """Opens real databases, whose next writes, or which themselves, fail on demand."""

    def __init__(self) -> None:
        self.write_errors: list[Exception] = []
        self.open_errors: list[plyvel.Error] = []
        self.open_count = 0

    def open(self, path: Path, options: LevelDbOptions) -> Database:
        if self.open_errors:
            raise self.open_errors.pop(0)
        self.open_count += 1
        return FailingDatabase(open_database(path, options), self)


class FailingDatabase:
    """A real database but for its batches."""

    def __init__(self, real: Database, disk: Disk) -> None:
        self._real = real
        self._disk = disk
        self.get = real.get
        self.raw_iterator = real.raw_iterator
        self.compact_range = real.compact_range
        self.get_property = real.get_property
        self.close = real.close

    def write_batch(self, *, sync: bool) -> WriteBatch:
        if self._disk.write_errors:
            return FailingBatch(self._disk.write_errors.pop(0))
        return self._real.write_batch(sync=sync)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def engine(tmp_path: Path, disk: Disk) -> Iterator[LevelDbEngine]:
    made = LevelDbEngine(tmp_path / "db", opener=disk.open)
    made.write([put(b"a", b"1"), put(b"b", b"2")], sync=True)
    yield made
    made.close()


def broken(text: str = "IO error: 000003.log: Input/output error") -> plyvel.Error:
    return plyvel.IOError(text.encode())


@pytest.mark.parametrize(("fails", "words"), [(broken, "Input/output"), (MemoryError, "memory")])
def test_a_failed_write_is_followed_by_one_reopening_and_reading_goes_on_before_it(
    engine: LevelDbEngine, disk: Disk, fails: Callable[[], Exception], words: str
) -> None:
    disk.write_errors.append(fails())
    steps = engine.iterate(b"", LAST)
    with pytest.raises(EngineFailedError, match=words):
        engine.write([put(b"c", b"3")], sync=True)
    assert engine.get(b"a") == b"1"
    assert next(steps) == (b"a", b"1")
    assert disk.open_count == 1
    engine.write([put(b"c", b"3")], sync=True)
    engine.write([put(b"d", b"4")], sync=True)
    assert (disk.open_count, engine.reopened_count) == (2, 1)
    assert keys_of(engine) == [b"a", b"b", b"c", b"d"]


def test_a_reopening_cuts_open_iterations_and_says_so(engine: LevelDbEngine, disk: Disk) -> None:
    """An iteration never just ends early."""
    disk.write_errors.append(broken())
    steps = engine.iterate(b"", LAST)
    next(steps)
    with pytest.raises(EngineFailedError):
        engine.write([], sync=True)
    engine.write([], sync=True)
    with pytest.raises(EngineFailedError, match="opened again"):
        next(steps)


def test_no_database_is_closed_under_a_reader(
    engine: LevelDbEngine, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """plyvel lets that happen, and the process dies of it."""
    disk.write_errors.append(broken())
    with pytest.raises(EngineFailedError):
        engine.write([put(b"c", b"3")], sync=True)
    database = engine._database
    assert isinstance(database, FailingDatabase)
    reading, may_end = threading.Event(), threading.Event()
    order: list[str] = []
    real_get, real_close, real_usage = database.get, database.close, shutil.disk_usage

    def get(key: bytes, *, verify_checksums: bool) -> bytes | None:
        reading.set()
        may_end.wait(10)
        found = real_get(key, verify_checksums=verify_checksums)
        order.append("read")
        return found

    def close() -> None:
        order.append("closed")
        real_close()

    def disk_usage(path: Path) -> tuple[int, int, int]:
        may_end.set()  # the writer is about to give the database up
        return real_usage(path)

    monkeypatch.setattr(database, "get", get)
    monkeypatch.setattr(database, "close", close)
    monkeypatch.setattr("sluiceway.store.leveldb.shutil.disk_usage", disk_usage)
    found: list[bytes | None] = []
    reader = threading.Thread(target=lambda: found.append(engine.get(b"a")))
    reader.start()
    assert reading.wait(10)
    engine.write([put(b"c", b"3")], sync=True)
    reader.join()
    assert (order, found) == (["read", "closed"], [b"1"])
    assert engine.get(b"c") == b"3"


def test_one_call_tries_one_reopening(engine: LevelDbEngine, disk: Disk) -> None:
    disk.write_errors.append(broken())
    disk.open_errors += [broken("IO error: first"), broken("IO error: second"), broken("IO error: third")]
    with pytest.raises(EngineFailedError):
        engine.write([put(b"c", b"3")], sync=True)
    with pytest.raises(EngineFailedError, match="first"):
        engine.write([put(b"c", b"3")], sync=True)
    with pytest.raises(EngineFailedError, match="second"):
        engine.get(b"a")
    with pytest.raises(EngineFailedError, match="third"):
        engine.iterate(b"", LAST)
    assert engine.get(b"a") == b"1"
    engine.write([put(b"c", b"3")], sync=True)
    assert (disk.open_count, engine.reopened_count) == (2, 1)


def test_a_database_that_could_not_be_reopened_closes_like_any(engine: LevelDbEngine, disk: Disk) -> None:
    disk.write_errors.append(broken())
    disk.open_errors.append(broken())
    for _ in range(2):
        with pytest.raises(EngineFailedError):
            engine.write([], sync=True)
    engine.close()
    with pytest.raises(EngineClosedError):
        engine.write([], sync=True)


def test_with_a_full_disk_the_database_stays_open_for_reading(
    engine: LevelDbEngine, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening it anew needs space; a backlog must drain without."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(100, 100, 0))
    disk.write_errors.append(broken(f"IO error: 000003.log: {os.strerror(errno.ENOSPC)}"))
    for _ in range(3):
        with pytest.raises(DiskFullError):
            engine.write([put(b"c", b"3")], sync=True)
        assert keys_of(engine) == [b"a", b"b"]
    assert disk.open_count == 1
    monkeypatch.undo()
    engine.write([put(b"c", b"3")], sync=True)
    assert keys_of(engine) == [b"a", b"b", b"c"]


def test_a_batch_that_is_wrong_in_itself_leaves_the_database_as_it_was(engine: LevelDbEngine, disk: Disk) -> None:
    """The caller's mistake, not the disk's: nothing is written, nothing is opened again."""
    with pytest.raises(TypeError):
        engine.write([put(b"c", b"3"), put("d", b"4")], sync=True)  # type: ignore[arg-type]
    assert keys_of(engine) == [b"a", b"b"]
    engine.write([put(b"c", b"3")], sync=True)
    assert disk.open_count == 1


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (plyvel.IOError(b"IO error: 000003.log: No space left on device"), DiskFullError),
        (plyvel.IOError(f"IO error: 000003.log: {os.strerror(errno.EDQUOT)}".encode()), DiskFullError),
        (plyvel.IOError(b"IO error: 000003.log: Input/output error"), EngineFailedError),
        (plyvel.CorruptionError(b"Corruption: block checksum mismatch"), CorruptionError),
        # A table that was cut off.
        (plyvel.IOError(b"IO error: db/000011.ldb: Invalid argument"), CorruptionError),
        (plyvel.IOError(b"IO error: db/000011.log: Invalid argument"), EngineFailedError),
        (plyvel.Error(b"Invalid argument: what is this"), EngineFailedError),
        (plyvel.Error(), EngineFailedError),
    ],
)
def test_what_leveldb_says_becomes_an_error_that_names_place_and_remedy(
    error: plyvel.Error, expected: type[EngineError]
) -> None:
    mapped = mapped_error(error, Path("somewhere/db"), "writing")
    assert type(mapped) is expected
    assert "somewhere/db" in str(mapped)
    assert "writing" in str(mapped)
    assert "b'" not in str(mapped)


def test_a_database_that_somebody_has_open_is_an_error(tmp_path: Path) -> None:
    engine = LevelDbEngine(tmp_path / "db")
    with pytest.raises(EngineFailedError, match="lock"):
        LevelDbEngine(tmp_path / "db")
    engine.close()


def damaged(folder: Path) -> None:
    """A database with one table of 20 keys, in which one byte of the last value is wrong."""
    engine = LevelDbEngine(folder)
    engine.write([put(b"key %02d" % place, b"%02d" % place * 5000) for place in range(20)], sync=True)
    engine.compact(b"", LAST)
    engine.close()
    changed_count = 0
    for table in folder.glob("*.ldb"):
        data = table.read_bytes()
        at = data.find(b"19" * 100)
        if at >= 0:
            table.write_bytes(data[:at] + b"?" + data[at + 1 :])
            changed_count += 1
    assert changed_count == 1


@pytest.mark.parametrize("reverse", [False, True])
def test_damage_never_makes_a_range_end_early(tmp_path: Path, reverse: bool) -> None:
    """Not even at the end of all data, where plyvel's own iterators stop without a word."""
    damaged(tmp_path / "db")
    engine = LevelDbEngine(tmp_path / "db")
    with pytest.raises(CorruptionError, match="sluiceway store repair"):
        list(engine.iterate(b"", LAST, reverse=reverse))
    with pytest.raises(CorruptionError):
        list(engine.iterate_keys(b"", LAST))
    with pytest.raises(CorruptionError, match=b"key 19".hex()):
        engine.get(b"key 19")
    assert engine.get(b"key 18") == b"18" * 5000
    engine.close()


def test_a_range_that_cannot_be_read_is_not_deleted_in_part(tmp_path: Path) -> None:
    damaged(tmp_path / "db")
    engine = LevelDbEngine(tmp_path / "db")
    with pytest.raises(CorruptionError):
        engine.write([put(b"new", b"1"), delete_range(b"", LAST)], sync=True)
    assert engine.get(b"new") is None
    assert engine.get(b"key 00") == b"00" * 5000
    engine.close()
