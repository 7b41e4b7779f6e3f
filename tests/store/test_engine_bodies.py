"""Large bodies in an engine: pieces and a length as records; those that need not survive in a folder."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from sluiceway.queues.large import BodyError
from sluiceway.store import engine_bodies
from sluiceway.store.engine_bodies import BODY_PIECE_BYTES, EngineBodies, SharedBodies
from sluiceway.store.large import BodyFiles, FolderShelf
from sluiceway.store.memory import MemoryEngine
from tests.store.faulty import Failure, FaultyEngine
from tests.store.test_large import Rig


def shelf_over(engine: FaultyEngine | MemoryEngine, folder: Path) -> SharedBodies:
    return SharedBodies(EngineBodies(engine, "the database", patience_seconds=0), FolderShelf(folder))


class EngineRig(Rig):
    """The rig of files, with another shelf."""

    def __init__(self, engine: FaultyEngine | MemoryEngine, folder: Path) -> None:
        super().__init__(folder)
        self.files: BodyFiles
        self.files._shelf = shelf_over(engine, folder)
        self.run()

    def whole(self, body: object, length_bytes: int) -> bytes:
        found: list[bytes | Exception] = []
        for offset in range(0, length_bytes, 100_000):
            self.files.read(body, offset, min(100_000, length_bytes - offset), found.append)  # type: ignore[arg-type]
        self.run()
        assert all(isinstance(part, bytes) for part in found), found
        return b"".join(part for part in found if isinstance(part, bytes))


@pytest.mark.parametrize("length_bytes", [0, 1, BODY_PIECE_BYTES, BODY_PIECE_BYTES + 1, 5 * BODY_PIECE_BYTES + 77])
@pytest.mark.parametrize("durable", [True, False])
def test_a_body_is_read_as_it_was_written(length_bytes: int, durable: bool, tmp_path: Path) -> None:
    """However it arrived; one that need not survive leaves nothing in the database."""
    engine, random = MemoryEngine(), Random(length_bytes)
    rig = EngineRig(engine, tmp_path)
    body = random.randbytes(length_bytes)
    staging = rig.begin(length_bytes, durable=durable)
    at = 0
    while at < length_bytes:
        size = random.choice((1, 1000, 100_000, 700_000))
        staging.write(body[at : at + size])
        assert staging.collected_bytes < BODY_PIECE_BYTES
        at += size
    reference = rig.commit(staging)
    assert not isinstance(reference, BodyError)
    assert rig.whole(reference, length_bytes) == body
    assert bool(list(engine.iterate_keys(b"", b"\xff"))) is durable
    assert bool(list(tmp_path.iterdir())) is not durable
    del reference
    rig.run()
    assert list(engine.iterate_keys(b"", b"\xff")) == []
    assert list(tmp_path.iterdir()) == []


def test_the_next_run_has_what_records_name_and_nothing_half_written(tmp_path: Path) -> None:
    engine = FaultyEngine(Random(1))
    rig = EngineRig(engine, tmp_path)
    kept, unnamed = rig.store(b"x" * 700_000, durable=True), rig.store(b"y", durable=True)
    local = rig.store(b"z", durable=False)
    half = rig.begin(durable=True)
    half.write(b"h" * 3 * BODY_PIECE_BYTES)
    rig.run()
    engine = engine.power_cut()
    again = EngineRig(engine, tmp_path)
    found = again.files.recover({kept.file_id: 1})
    assert (found.kept_count, found.missing) == (1, frozenset())
    assert again.whole(again.files.refer(kept.file_id, 700_000), 700_000) == b"x" * 700_000
    assert [file_id for file_id, _size in again.files._shelf.found()] == [kept.file_id]
    assert list(tmp_path.iterdir()) == []
    assert again.store(b"new", durable=True).file_id > unnamed.file_id
    del local


def test_a_large_body_is_removed_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_bodies, "REMOVED_COUNT", 2)
    engine = FaultyEngine(Random(1))
    rig = EngineRig(engine, tmp_path)
    body, other = rig.store(b"x" * 5 * BODY_PIECE_BYTES, durable=True), rig.store(b"y", durable=True)
    before_count = engine.write_count
    del body
    rig.run()
    assert engine.write_count == before_count + 4
    assert rig.whole(other, 1) == b"y"


@pytest.mark.parametrize("failure", [Failure.WRITE, Failure.DISK_FULL, Failure.SYNC])
def test_a_database_that_fails_gives_the_body_up(failure: Failure, tmp_path: Path) -> None:
    engine = FaultyEngine(Random(1))
    rig = EngineRig(engine, tmp_path)
    staging = rig.begin(durable=True)
    staging.write(b"x" * BODY_PIECE_BYTES)
    rig.run()
    engine.fail_next(failure)
    staging.write(b"x" * BODY_PIECE_BYTES)
    result = rig.commit(staging)
    assert isinstance(result, BodyError)
    rig.run()
    assert list(engine.iterate_keys(b"", b"\xff")) == []
    assert rig.warnings


def test_a_database_that_is_away_for_a_while_costs_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_bodies, "AGAIN_SECONDS", 0.0)
    engine = FaultyEngine(Random(1))
    shelf = EngineBodies(engine, "the database", patience_seconds=60)
    engine.fail_next(Failure.WRITE, 3)
    staged = shelf.stage(1, durable=True)
    staged.write(b"abc")
    engine.fail_next(Failure.SYNC, 3)
    staged.finish()
    engine.fail_next(Failure.READ, 3)
    assert shelf.read(1, 1, 2) == b"bc"


def test_a_piece_that_is_gone_is_told(tmp_path: Path) -> None:
    engine = MemoryEngine()
    shelf = shelf_over(engine, tmp_path)
    staged = shelf.stage(1, durable=True)
    staged.write(b"abc")
    staged.finish()
    with pytest.raises(BodyError, match="has no byte 3 of large body 1"):
        shelf.read(1, 2, 2)
