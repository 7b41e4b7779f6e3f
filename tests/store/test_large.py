"""Files of large bodies: complete or gone, kept as long as somebody refers to them, whatever the disk does."""

from __future__ import annotations

import errno
import gc
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import Queue

import pytest

from sluiceway.dispatcher import DispatcherClosedError
from sluiceway.flow import Flow, FlowManager, FlowResource, SourceController
from sluiceway.queues.large import BodyError, BodyReference
from sluiceway.store.io_threads import InlineRunner, IoThread, Job
from sluiceway.store.large import PIECE_BYTES, SYNC_BYTES, WAITING_BYTES_MAX, BodyFiles, FolderShelf, Staging


class Rig:
    """Files in a folder, on a loop that runs when the test says so."""

    def __init__(self, folder: Path, *, disk_bytes_max: int | None = None) -> None:
        self.folder = folder
        self.loop: deque[Callable[[], None]] = deque()
        self.manager = FlowManager(lambda: 0.0)
        self.warnings: list[str] = []
        self.files = BodyFiles(
            FolderShelf(folder),
            writer=InlineRunner(self.loop.append),
            reader=InlineRunner(self.loop.append),
            manager=self.manager,
            clock=lambda: 0.0,
            disk_bytes_max=disk_bytes_max,
            warn=lambda error: self.warnings.append(str(error)),
        )
        self.files.recover({})
        self.resource = FlowResource("client", "connection", self.manager)
        self.source = SourceController(self.resource, Flow("in"), clock=lambda: 0.0)
        self.failures: list[BodyError] = []

    def run(self) -> None:
        while self.loop:
            self.loop.popleft()()

    def begin(self, length_bytes: int = -1, *, durable: bool = False) -> Staging:
        return self.files.begin(length_bytes, durable=durable, source=self.source, failed=self.failures.append)

    def store(self, body: bytes, *, durable: bool = False) -> BodyReference:
        staging = self.begin(len(body), durable=durable)
        staging.write(body)
        result = self.commit(staging)
        assert isinstance(result, BodyReference)
        return result

    def commit(self, staging: Staging) -> BodyReference | BodyError:
        results: list[BodyReference | BodyError] = []
        staging.commit(results.append)
        assert results == [], "never at once"
        self.run()
        return results.pop()

    def read(self, body: BodyReference, offset: int, size_bytes: int) -> bytes | Exception:
        results: list[bytes | Exception] = []
        self.files.read(body, offset, size_bytes, results.append)
        self.run()
        return results.pop()

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_a_body_is_read_as_it_was_written(rig: Rig) -> None:
    """However its pieces came: single bytes, large ones, both."""
    staging = rig.begin()
    pieces = [b"a", b"b" * PIECE_BYTES, b"", b"c" * 10, b"d" * (3 * PIECE_BYTES), b"e"]
    for piece in pieces:
        staging.write(piece)
    body = rig.commit(staging)
    assert isinstance(body, BodyReference)
    whole = b"".join(pieces)
    assert body.length_bytes == len(whole)
    assert rig.read(body, 0, len(whole)) == whole
    assert rig.read(body, 1, 5) == b"b" * 5
    assert rig.files.statistics().disk_bytes == len(whole)


def test_small_pieces_are_collected(rig: Rig) -> None:
    """A way to the disk for each would cost more than writing it; what waits is bounded and can be charged."""
    staging = rig.begin()
    for _ in range(1000):
        staging.write(b"x")
    assert staging.collected_bytes == 1000
    assert not rig.loop
    staging.write(b"x" * PIECE_BYTES)
    assert (staging.collected_bytes, rig.manager.used_bytes) == (0, 1000 + PIECE_BYTES)
    rig.commit(staging)
    assert rig.manager.used_bytes == 0


def test_a_disk_that_does_not_keep_up_blocks_the_source(rig: Rig) -> None:
    """At the limit, until half of it is written."""
    staging = rig.begin()
    for _ in range(WAITING_BYTES_MAX // PIECE_BYTES):
        assert not rig.source.blocked
        staging.write(b"x" * PIECE_BYTES)
    assert rig.source.blocked
    while rig.source.blocked:
        rig.loop.popleft()()
    assert rig.files.statistics().waiting_bytes == WAITING_BYTES_MAX // 2
    staging.abort()
    rig.run()


def test_only_a_durable_body_is_synced(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """And while it comes, so that the last sync is short; then the folder, or the name could be lost."""
    synced: list[str] = []
    for name in ("fsync", "fdatasync"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda fd, name=name, real=real: (synced.append(name), real(fd)))
    body = rig.store(b"x" * 1000)
    assert synced == []
    del body
    staging = rig.begin(durable=True)
    for _ in range(SYNC_BYTES // PIECE_BYTES + 1):
        staging.write(b"x" * PIECE_BYTES)
    rig.commit(staging)
    assert synced == ["fdatasync", "fsync", "fsync"]


# ---------------------------------------------------------------------- who keeps a file


def test_a_file_goes_with_its_last_reference(rig: Rig) -> None:
    first = rig.store(b"x" * 10)
    second = rig.files.refer(first.file_id, 10)
    assert rig.files.references_count == 2
    del first
    rig.run()
    assert len(rig.names) == 1
    del second
    rig.run()
    assert rig.names == []
    assert (rig.files.references_count, rig.files.statistics().disk_bytes) == (0, 0)


def test_a_file_that_a_record_names_outlives_its_references(rig: Rig) -> None:
    """One that two records name outlives the first of them."""
    body = rig.store(b"x" * 10)
    file_id = body.file_id
    body.keep()
    body.keep()
    del body
    rig.run()
    assert len(rig.names) == 1
    again = rig.files.refer(file_id, 10)
    assert rig.read(again, 0, 10) == b"x" * 10
    again.forget()
    del again
    rig.run()
    assert len(rig.names) == 1
    rig.files.forget(file_id)
    rig.run()
    assert rig.names == []


def test_a_file_whose_records_are_gone_stays_for_its_references(rig: Rig) -> None:
    body = rig.store(b"x" * 10)
    body.keep()
    body.forget()
    rig.run()
    assert rig.read(body, 0, 10) == b"x" * 10
    del body
    rig.run()
    assert rig.names == []


def test_a_body_that_is_given_up_leaves_nothing(rig: Rig) -> None:
    """Announced or not; before its first piece or after; and a second time does nothing."""
    for length_bytes in (-1, 10_000):
        for size_bytes in (0, 1000, PIECE_BYTES):
            staging = rig.begin(length_bytes)
            if size_bytes:
                staging.write(b"x" * size_bytes)
            staging.abort()
            staging.abort()
            rig.run()
            assert rig.names == []
    statistics = rig.files.statistics()
    assert (statistics.staged_count, statistics.disk_bytes, statistics.waiting_bytes) == (0, 0, 0)
    assert (rig.failures, rig.warnings) == ([], [])


# ---------------------------------------------------------------------- another run


def test_what_nobody_names_is_removed_at_the_start(rig: Rig, tmp_path: Path) -> None:
    """Half-written ones and those of messages that were in memory only. Other things in the folder stay."""
    body = rig.store(b"in memory")
    half = rig.begin()
    half.write(b"x" * PIECE_BYTES)
    rig.loop.popleft()()
    (tmp_path / "README").write_text("not ours")
    assert len(rig.names) == 3
    Rig(tmp_path)
    assert rig.names == ["README"]
    del body


def test_recovery_keeps_what_records_name(rig: Rig, tmp_path: Path) -> None:
    bodies = [rig.store(b"%d" % number * 100) for number in range(3)]
    one, two, _orphan = bodies
    (tmp_path / "README").write_text("not ours")
    manager = FlowManager(lambda: 0.0)
    loop: deque[Callable[[], None]] = deque()
    files = BodyFiles(
        FolderShelf(tmp_path),
        writer=InlineRunner(loop.append),
        reader=InlineRunner(loop.append),
        manager=manager,
        clock=lambda: 0.0,
        warn=lambda error: None,
    )
    found = files.recover({one.file_id: 1, two.file_id: 2, 99: 1})
    assert (found.kept_count, found.removed_count, found.removed_bytes, found.missing) == (2, 1, 100, {99})
    assert rig.names == sorted(["README", f"{one.file_id:016x}", f"{two.file_id:016x}"])
    for file_id, left_count in ((one.file_id, 2), (two.file_id, 2), (two.file_id, 1)):
        files.forget(file_id)
        while loop:
            loop.popleft()()
        assert len(rig.names) == left_count
    files.forget(99)


def test_where_records_may_be_lost_no_file_is_removed(rig: Rig, tmp_path: Path) -> None:
    """The start that finds a damaged chunk had removed the bodies of its messages, before anybody could look."""
    one, two = rig.store(b"x" * 100), rig.store(b"y" * 50)
    (tmp_path / "empty").mkdir()
    again = Rig(tmp_path / "empty")
    again.files._shelf = FolderShelf(tmp_path)
    found = again.files.recover({one.file_id: 1}, keeps_all=True)
    assert (found.kept_count, found.removed_count, found.unnamed_count, found.unnamed_bytes) == (1, 0, 1, 50)
    assert all((tmp_path / f"{body.file_id:016x}").exists() for body in (one, two))
    assert again.store(b"z").file_id > two.file_id


def test_numbers_are_never_used_again(rig: Rig, tmp_path: Path) -> None:
    """Not even those of files that are lost while records still name them: such a record must not find another body."""
    rig.store(b"x")
    again = Rig(tmp_path)
    again.files.recover({500: 1})
    assert again.store(b"y").file_id == 501


def test_a_stop_in_order_removes_what_no_record_names(rig: Rig) -> None:
    kept, other = rig.store(b"kept"), rig.store(b"other")
    kept.keep()
    half = rig.begin()
    half.write(b"x" * PIECE_BYTES)
    rig.files.stop()
    rig.files.join()
    assert rig.names == [f"{kept.file_id:016x}"]
    del other
    half.abort()
    rig.files.stop()
    rig.files.join()
    assert rig.names == [f"{kept.file_id:016x}"]


# ---------------------------------------------------------------------- when the disk fails


def test_a_full_disk_gives_the_body_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sender is told once, the log hears which file and what to do, and the space is free again."""

    def full(_descriptor: int, _data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    staging = rig.begin(5 * PIECE_BYTES)
    staging.write(b"x" * PIECE_BYTES)
    rig.run()
    monkeypatch.setattr(os, "write", full)
    for _ in range(3):
        staging.write(b"x" * PIECE_BYTES)
    rig.run()
    assert len(rig.failures) == 1
    staging.abort()
    rig.run()
    assert rig.names == []
    assert len(rig.warnings) == 1
    assert "0000000000000001" in rig.warnings[0]
    assert "free space" in rig.warnings[0]
    assert (rig.files.statistics().disk_bytes, rig.manager.used_bytes) == (0, 0)
    monkeypatch.undo()
    assert rig.store(b"fits").length_bytes == 4


def test_a_body_that_fails_at_its_end_is_no_body(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    staging = rig.begin(durable=True)
    staging.write(b"x")
    result = rig.commit(staging)
    assert isinstance(result, BodyError)
    assert "look at the disk" in str(result)
    assert rig.names == []
    assert rig.files.statistics().disk_bytes == 0


def test_the_limit_of_the_disk_counts_what_is_announced(tmp_path: Path) -> None:
    """A body that will not fit is refused before it comes; one of unknown length when it has grown too large."""
    rig = Rig(tmp_path, disk_bytes_max=1000)
    body = rig.store(b"x" * 600)
    with pytest.raises(BodyError, match="600 bytes of large bodies, and may have 1000"):
        rig.begin(401)
    first = rig.begin(300)
    second = rig.begin()
    second.write(b"x" * 100)
    with pytest.raises(BodyError):
        second.write(b"x")
    second.abort()
    first.abort()
    rig.run()
    del body
    rig.run()
    assert rig.store(b"x" * 1000).length_bytes == 1000


@pytest.mark.parametrize(
    "damage, said",
    [("removed", "bring it back; or stop the broker: `sluiceway store export`"), ("cut", "ends at 5 bytes")],
)
def test_a_damaged_file_says_so_when_it_is_read(rig: Rig, damage: str, said: str) -> None:
    body = rig.store(b"x" * 10)
    path = rig.folder / rig.names[0]
    if damage == "removed":
        path.unlink()
    else:
        os.truncate(path, 5)
    error = rig.read(body, 2, 6)
    assert isinstance(error, BodyError)
    assert said in str(error)
    assert rig.warnings == [str(error)]
    del body
    rig.run()
    assert rig.names == []


# ---------------------------------------------------------------------- the thread


def test_a_thread_does_jobs_in_order_and_tells_on_the_loop() -> None:
    told: Queue[Callable[[], None]] = Queue()
    results: list[object] = []
    thread = IoThread("test", told.put)
    for number in range(100):
        thread.put(Job(lambda number=number: (number, threading.current_thread().name), results.append))
    for _ in range(100):
        told.get(timeout=10)()
    assert results == [(number, "test") for number in range(100)]
    thread.close()
    thread.put(Job(lambda: results.append("too late"), results.append))
    assert len(results) == 100


def test_a_thread_goes_on_when_the_loop_has_ended() -> None:
    """Files are still removed; nobody is there to be told."""
    done: list[int] = []

    def submit(_callback: Callable[[], None]) -> None:
        raise DispatcherClosedError("over")

    thread = IoThread("test", submit)
    for number in range(3):
        thread.put(Job(lambda number=number: done.append(number), lambda _result: None))
    thread.close()
    assert done == [0, 1, 2]


def test_a_bug_in_a_job_is_raised_on_the_loop() -> None:
    job = Job(lambda: 1 / 0, lambda _result: None)
    job.run()
    with pytest.raises(ZeroDivisionError):
        job.tell()


def test_a_job_without_memory_has_failed_like_the_disk() -> None:
    told: list[object] = []
    job = Job(_without_memory, told.append)
    job.run()
    job.tell()
    assert [type(each) for each in told] == [BodyError]


def _without_memory() -> None:
    raise MemoryError


def test_what_a_job_told_of_holds_nothing() -> None:
    """A reference that is in the hands of a thread would die there."""

    class Held:
        pass

    held = Held()
    job = Job(lambda: held, lambda _result: None)
    before = len(gc.get_referrers(held))
    job.run()
    job.tell()
    assert len(gc.get_referrers(held)) <= before
    assert all(getattr(job, name) is None for name in ("_done", "_fault", "_result", "_work"))
