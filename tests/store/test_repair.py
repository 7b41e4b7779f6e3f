"""A damaged database is mended when it is opened: as little as will do, with copies, and it is reported."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from sluiceway.store.directory import Directory, open_directory
from sluiceway.store.engine import CorruptionError, Engine, EngineFailedError, put
from sluiceway.store.quarantine import Quarantine

LAST = b"\xff" * 8
TABLED = [b"tabled %02d" % place for place in range(10)]
LOGGED = [b"noted %02d" % place for place in range(10)]


def keys_of(engine: Engine) -> list[bytes]:
    return list(engine.iterate_keys(b"", LAST))


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    """A data folder whose database has ten keys in a table and ten in its log."""
    with open_directory(tmp_path / "data") as opened:
        engine, report = opened.open_engine()
        assert report is None
        engine.write([put(key, key * 500) for key in TABLED], sync=True)
        engine.compact(b"", LAST)
        for key in LOGGED:
            engine.write([put(key, key * 500)], sync=True)
        engine.close()
        return opened


def only(directory: Directory, pattern: str) -> Path:
    """The one such file that is not empty."""
    (path,) = (path for path in directory.database_path.glob(pattern) if path.stat().st_size)
    return path


def kept_names(directory: Directory) -> list[str]:
    return [path.name.partition("-")[2] for path in directory.attic.files()]


def test_a_whole_database_is_not_touched(directory: Directory) -> None:
    engine, report = directory.open_engine()
    assert report is None
    assert keys_of(engine) == LOGGED + TABLED
    assert directory.attic.files() == []
    engine.close()


def test_a_log_that_just_stops_is_no_damage(directory: Directory) -> None:
    """As after a crash in the middle of a write: the torn record is dropped, nothing else."""
    log = only(directory, "*.log")
    log.write_bytes(log.read_bytes()[:-100])
    engine, report = directory.open_engine()
    assert report is None
    assert keys_of(engine) == LOGGED[:-1] + TABLED
    engine.close()


def test_garbage_at_the_end_of_the_log_is_cut_and_costs_nothing_before_it(directory: Directory) -> None:
    log = only(directory, "*.log")
    log.write_bytes(log.read_bytes() + Random(1).randbytes(100_000))
    engine, report = directory.open_engine()
    assert keys_of(engine) == LOGGED + TABLED
    assert report is not None
    assert report.log_cut
    assert report.cause in str(report)
    assert log.name in kept_names(directory)
    assert not list(directory.database_path.glob("lost/*")), "no full repair"
    engine.close()
    engine, report = directory.open_engine()
    assert report is None, "mended once and for all"
    engine.close()


def test_damage_in_the_middle_of_the_log_costs_batches_of_the_log_only(directory: Directory) -> None:
    log = only(directory, "*.log")
    data = log.read_bytes()
    at = data.index(LOGGED[4] * 10)
    log.write_bytes(data[:at] + b"?" + data[at + 1 :])
    engine, report = directory.open_engine()
    assert report is not None
    assert report.log_cut
    found = keys_of(engine)
    assert LOGGED[4] not in found
    assert found[: len(LOGGED[:4])] == LOGGED[:4]
    assert found[-len(TABLED) :] == TABLED
    engine.close()


def test_a_damaged_list_of_tables_is_made_anew(directory: Directory) -> None:
    manifest = only(directory, "MANIFEST-*")
    data = manifest.read_bytes()
    manifest.write_bytes(data[:10] + bytes(len(data) - 10))
    engine, report = directory.open_engine()
    assert report is not None
    assert not report.log_cut
    assert "repaired" in str(report)
    assert keys_of(engine) == LOGGED + TABLED
    assert all(engine.get(key) == key * 500 for key in LOGGED + TABLED)
    assert manifest.name in kept_names(directory)
    assert not list(directory.database_path.glob("lost/*")), "what is left of the old one is in the attic"
    engine.close()


def test_a_table_that_is_gone_costs_what_was_in_it(directory: Directory) -> None:
    only(directory, "*.ldb").unlink()
    engine, report = directory.open_engine()
    assert report is not None
    assert "missing" in report.cause
    assert keys_of(engine) == LOGGED
    engine.close()


def test_asked_for_repair_drops_damaged_blocks_and_keeps_the_table_aside(directory: Directory) -> None:
    """Damage inside a table shows when it is read, not when the database is opened."""
    table = only(directory, "*.ldb")
    data = table.read_bytes()
    at = data.index(TABLED[4] * 10)
    table.write_bytes(data[:at] + b"?" + data[at + 1 :])
    engine, report = directory.open_engine()
    assert report is None
    with pytest.raises(CorruptionError):
        keys_of(engine)
    engine.close()
    report = directory.repair()
    assert table.name in kept_names(directory)
    engine, again = directory.open_engine()
    assert again is None
    found = keys_of(engine)
    assert TABLED[4] not in found
    assert set(LOGGED) < set(found)
    assert set(found) & set(TABLED)
    engine.close()


def test_what_is_too_large_for_the_attic_stays_where_it_is(directory: Directory) -> None:
    only(directory, "*.log")
    directory.attic = Quarantine(directory.path / "attic", bytes_max=20_000)
    report = directory.repair()
    assert [path.suffix for path in report.not_kept] == [".log"]
    engine, _report = directory.open_engine()
    assert keys_of(engine) == LOGGED + TABLED
    engine.close()


def test_without_room_for_copies_nothing_is_repaired(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = only(directory, "MANIFEST-*")
    manifest.write_bytes(bytes(100))

    def full(_attic: Quarantine, _name: str, _data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Quarantine, "put", full)
    with pytest.raises(EngineFailedError, match="quarantine"):
        directory.open_engine()
    assert manifest.read_bytes() == bytes(100)
