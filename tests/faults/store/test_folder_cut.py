"""Whatever the moment at which the power fails: a broker on a real data folder, with LevelDB, keeps all promises.

`SLUICEWAY_TEST_TIMES=50 scripts/test tests/faults/store/test_folder_cut.py` plays fifty times as many rounds; one that
fails says where its folders are, and the command that tries it again.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Final

import pytest

from sluiceway.store.engine import put
from sluiceway.store.folders import make_private_folder, sync_folder
from sluiceway.store.leveldb import LevelDbEngine
from tests.faults.store.folder_cut import FolderDisk, run_round
from tests.faults.store.leveldb_cut import SMALL_BUFFER
from tests.faults.store.power_cut import LARGE_SEEDS
from tests.faults.store.watched_folder import WatchedFolder
from tests.how_often import rounds

ROUNDS_COUNT: Final = rounds(10)
ROUNDS_AT_ONCE: Final = 5


@pytest.mark.parametrize("first", range(20_000, 20_000 + ROUNDS_COUNT, ROUNDS_AT_ONCE))
def test_promises_are_kept_on_a_real_folder(first: int) -> None:
    for seed in range(first, min(first + ROUNDS_AT_ONCE, 20_000 + ROUNDS_COUNT)):
        run_round(seed)


@pytest.mark.parametrize("seed", range(LARGE_SEEDS + 500, LARGE_SEEDS + 500 + max(1, ROUNDS_COUNT // 12)))
def test_promises_are_kept_on_a_real_folder_with_large_transactions(seed: int) -> None:
    run_round(seed)


def test_rounds_meet_what_they_are_for() -> None:
    """Or the tests above would say nothing."""
    disks = [run_round(seed).disk for seed in range(20_100, 20_105)]
    watched = [disk.watched for disk in disks if isinstance(disk, FolderDisk)]
    assert sum(each.lost_bytes for each in watched) > 0
    assert sum(each.synced_count for each in watched) > 0


# ---------------------------------------------------------------------- what a cut leaves


@pytest.fixture
def watched(tmp_path: Path) -> WatchedFolder:
    return WatchedFolder(tmp_path, Random(1))


def cut_often(watched: WatchedFolder, name: str, write: object, *, count: int = 20) -> set[bytes | None]:
    """What lives find under this name, after power cuts behind the same writes."""
    assert callable(write)
    found: set[bytes | None] = set()
    for _ in range(count):
        watched.begin()
        with watched.watching():
            watched.folder.mkdir(exist_ok=True)
            (watched.folder / name).unlink(missing_ok=True)
            sync_folder(watched.folder)
            write(watched.folder)
            watched.end(power_cut=True)
        path = watched.folder / name
        found.add(path.read_bytes() if path.exists() else None)
    return found


def test_what_was_synced_with_its_folder_is_there(watched: WatchedFolder) -> None:
    def write(folder: Path) -> None:
        with (folder / "it").open("wb") as file:
            file.write(b"synced")
            file.flush()
            os.fsync(file.fileno())
            sync_folder(folder)
            file.write(b"not")
            file.flush()

    found = cut_often(watched, "it", write)
    assert all(each is not None and each.startswith(b"synced") for each in found)
    assert {b"synced", b"syncednot"} < found


def test_what_was_not_synced_may_be_lost_and_what_was_removed_may_be_back(watched: WatchedFolder) -> None:
    def write(folder: Path) -> None:
        with (folder / "it").open("wb") as file:
            file.write(b"once")
            file.flush()
            os.fsync(file.fileno())

    assert cut_often(watched, "it", write) == {b"once", None}

    def remove(folder: Path) -> None:
        write(folder)
        sync_folder(folder)
        (folder / "it").unlink()

    assert cut_often(watched, "it", remove) == {b"once", None}


def test_a_crash_loses_nothing_but_what_it_leaves_is_not_synced(watched: WatchedFolder) -> None:
    found: set[bytes | None] = set()
    with watched.watching():
        for _ in range(30):
            watched.begin()
            watched.folder.mkdir(exist_ok=True)
            path = watched.folder / "it"
            if path.exists():
                path.unlink()
                sync_folder(watched.folder)
            path.write_bytes(b"written")
            watched.end(power_cut=False)
            assert (watched.folder / "it").read_bytes() == b"written"
            watched.begin()
            watched.end(power_cut=True)
            path = watched.folder / "it"
            found.add(path.read_bytes() if path.exists() else None)
    assert {None, b"", b"written"} < found


@pytest.mark.parametrize("sync", [False, True])
def test_of_leveldb_a_prefix_is_there_with_all_that_was_synced(watched: WatchedFolder, sync: bool) -> None:
    """Also where tables were made meanwhile, and never reached the disk."""
    batch_bytes = SMALL_BUFFER.write_buffer_bytes // 7
    lost_counts: set[int] = set()
    written_count = synced_count = 0
    with watched.watching():
        for _ in range(15):
            watched.begin()
            make_private_folder(watched.folder / "db")
            engine = LevelDbEngine(watched.folder / "db", SMALL_BUFFER)
            found = [int(key) for key in engine.iterate_keys(b"", b"\xff")]
            assert found == list(range(len(found))) and len(found) >= synced_count
            lost_counts.add(written_count - len(found))
            synced_count = len(found) + (17 if sync else 0)
            written_count = len(found) + 20
            for number in range(len(found), written_count):
                engine.write([put(b"%04d" % number, bytes(batch_bytes))], sync=sync and number + 1 == synced_count)
            watched.end(power_cut=True)
            engine.close()
    assert watched.tables_were_lost_count > 0
    assert len(lost_counts) > 1, "only where LevelDB is slow to make tables is nearly all of its log synced"
