"""Files of what is only paged out: places, who needs them, and what the disk does to them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.queues.policy import QueuePolicy
from sluiceway.queues.shared import shared_queue
from sluiceway.store import keys
from sluiceway.store.engine import Change, CorruptionError, DiskFullError, EngineFailedError
from sluiceway.store.memory import MemoryEngine
from sluiceway.store.pages import PageFiles, PagesError, clear
from sluiceway.store.queue_records import QueueRecords
from tests.queues.rig import Head
from tests.store.rig import OfferingProducer, StoreWorld, shelf_of, tight


@pytest.fixture
def removals() -> list[Callable[[], None]]:
    return []


@pytest.fixture
def files(tmp_path: Path, removals: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch) -> PageFiles:
    monkeypatch.setattr("sluiceway.store.pages.SEGMENT_BYTES", 100)
    return PageFiles(tmp_path, remove_soon=removals.append)


def test_what_was_written_is_read_also_if_it_was_written_twice(files: PageFiles) -> None:
    first, second = files.reserve(1, 9), files.reserve(1, 8)
    files.write([(first, [b"ab", b"cde"]), (second, [b"wxyz"])])
    files.write([(first, [b"ab", b"cde"]), (second, [b"wxyz"])])
    assert (files.read(first)[:-4], files.read(second)[:-4]) == (b"abcde", b"wxyz")


def test_a_write_that_takes_only_a_part_goes_on(files: PageFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    page = files.reserve(1, 54)
    monkeypatch.setattr("os.pwritev", lambda _descriptor, _parts, _offset: 3)
    files.write([(page, [b"ab" * 10, b"c" * 30])])
    assert files.read(page)[:-4] == b"ab" * 10 + b"c" * 30


def test_many_small_parts_and_few_large_ones_read_alike(files: PageFiles) -> None:
    few, many = files.reserve(1, 304), files.reserve(1, 304)
    files.write([(few, [b"a" * 100, b"b" * 200]), (many, [b"a"] * 100 + [b"b"] * 200)])
    assert files.read(few) == files.read(many)


def test_a_segment_goes_when_nobody_needs_anything_of_it(
    files: PageFiles, removals: list[Callable[[], None]], tmp_path: Path
) -> None:
    pages = [files.reserve(1, 60), files.reserve(1, 60), files.reserve(1, 60)]
    assert [page.segment for page in pages] == [0, 0, 1], "one that is full is closed"
    files.write([(page, [bytes(56)]) for page in pages])
    for page in pages:
        files.release(page)  # written
    files.hold(pages[0])  # a read is under way
    files.release(pages[0])
    files.release(pages[1])
    assert not removals
    files.release(pages[0])
    assert files.size_bytes == 60 and len(removals) == 1
    removals[0]()
    assert [path.name for path in tmp_path.iterdir()] == ["1.pages"]
    assert files.reserve(1, 10).offset == 60, "the next one goes on where the last one ended"


def test_queues_do_not_share_segments(files: PageFiles) -> None:
    """One that stands still keeps no other's space."""
    assert files.reserve(1, 10).segment != files.reserve(2, 10).segment


def test_a_page_that_is_cut_off_or_gone_is_damage(files: PageFiles, tmp_path: Path) -> None:
    page = files.reserve(1, 50)
    with pytest.raises(CorruptionError, match="gone"):
        files.read(page)
    files.write([(page, [bytes(46)])])
    os.truncate(tmp_path / "0.pages", 20)
    with pytest.raises(CorruptionError, match="ends within"):
        files.read(page)


def test_a_disk_that_is_full_or_fails_is_told_apart(files: PageFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    page = files.reserve(1, 50)
    for number, kind in ((errno.ENOSPC, DiskFullError), (errno.EIO, EngineFailedError)):

        def fail(*_arguments: object, number: int = number) -> int:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch, pytest.raises(PagesError) as raised:
            patch.setattr("os.pwritev", fail)
            files.write([(page, [bytes(46)])])
        assert isinstance(raised.value.reason.__cause__, OSError) and isinstance(raised.value.reason, kind)
    files.write([(page, [bytes(46)])])
    assert files.read(page)[:-4] == bytes(46)


def test_what_an_earlier_run_left_is_cleared_away(tmp_path: Path) -> None:
    folder = tmp_path / "paged"
    clear(folder)
    (folder / "7.pages").write_bytes(b"of no use")
    clear(folder)
    assert list(folder.iterdir()) == [] and folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_on_another_disk_stays_where_it_is(tmp_path: Path) -> None:
    """A link, or with what that disk's file system has in each of its own."""
    elsewhere, folder = tmp_path / "fast", tmp_path / "paged"
    (elsewhere / "lost+found").mkdir(parents=True)
    (elsewhere / "7.pages").write_bytes(b"of no use")
    folder.symlink_to(elsewhere)
    assert clear(folder) == 9
    assert folder.is_symlink() and [path.name for path in elsewhere.iterdir()] == ["lost+found"]


# ---------------------------------------------------------------------- with a queue


@pytest.fixture
def small_blocks() -> Iterator[None]:
    with tight(block_bits=4, lease_count=1 << 16, seal_count=8, blocks_min=8):
        yield


@pytest.mark.usefixtures("small_blocks")
def test_a_backlog_goes_through_files_and_never_through_the_engine(tmp_path: Path) -> None:
    world = StoreWorld(MemoryEngine(), pages=tmp_path)
    queue = world.queue(memory_bytes=64 * 1024)
    for _ in range(200):
        world.put(queue, 10, wire_bytes=500, persistent=False)
        world.settle_down()
    assert queue.elements.outside_count > 50
    assert world.store.paged.size_bytes > 800_000
    assert all(
        change[1][:1] not in (keys.CHUNK, keys.PAGED) for changes, _sync in world.worker.batches for change in changes
    )
    consumer = world.consumer(auto=True)
    queue.subscribe(consumer)
    world.flush()
    assert [delivery.number for delivery in consumer.deliveries] == list(range(2000))
    assert not world.leftovers() and not list(tmp_path.iterdir())
    assert world.store.paged.size_bytes == 0
    assert world.records(keys.STATE) == world.records(keys.CHUNK) == []


@pytest.mark.usefixtures("small_blocks")
def test_a_queue_that_is_deleted_gives_its_files_back(tmp_path: Path) -> None:
    world = StoreWorld(MemoryEngine(), pages=tmp_path)
    queue = world.queue(memory_bytes=64 * 1024)
    for _ in range(100):
        world.put(queue, 10, wire_bytes=500, persistent=False)
        world.settle_down()
    world.put(queue, 100, wire_bytes=500, persistent=False)
    consumer = world.consumer(3)
    queue.subscribe(consumer)
    world.run()
    assert world.worker.has_work, "some are being written and read"
    queue.close_queue("the test says so")
    world.flush()
    assert not list(tmp_path.iterdir()) and world.store.paged.size_bytes == 0


class SmallDisk:
    """What the folder of pages lies on: as many bytes as it has room for, then it is full."""

    def __init__(self, folder: Path, room_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self.room_bytes = room_bytes
        self.refused_count = 0
        self._write = os.pwrite
        monkeypatch.setattr("os.pwritev", lambda fd, parts, offset: self.write(fd, b"".join(parts), offset))
        monkeypatch.setattr("os.pwrite", self.write)

    @property
    def used_bytes(self) -> int:
        return sum(path.stat().st_size for path in self._folder.iterdir())

    def write(self, descriptor: int, data: Any, offset: int) -> int:
        grows_bytes = offset + len(data) - os.fstat(descriptor).st_size
        fits_bytes = len(data) - max(0, grows_bytes - (self.room_bytes - self.used_bytes))
        if fits_bytes <= 0:
            self.refused_count += 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._write(descriptor, bytes(data[:fits_bytes]), offset)


class SharingEngine(MemoryEngine):
    """Lies on the same disk as the pages."""

    has_room: Callable[[], bool] = staticmethod(lambda: True)

    def write(self, changes: Sequence[Change], *, sync: bool) -> None:
        if not self.has_room():
            raise DiskFullError("no space left for LevelDB")
        super().write(changes, sync=sync)


def fill(world: StoreWorld, queue: ConsumedQueue, count: int) -> OfferingProducer:
    """Offer so many messages that are not persistent, by one who waits while the queue is full."""
    producer = OfferingProducer(world, queue)
    for _ in range(count // 10):
        producer.send(world.messages(10, wire_bytes=500, head=Head(persistent=False)))
        world.settle_down()
    return producer


@pytest.mark.usefixtures("small_blocks")
def test_a_full_disk_keeps_senders_waiting_and_nothing_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SmallDisk(tmp_path, 100_000, monkeypatch)
    world = StoreWorld(MemoryEngine(), pages=tmp_path)
    queue = world.queue(memory_bytes=64 * 1024)
    producer = fill(world, queue, 1000)
    world.flush(seconds=60, steps=600)
    assert producer.is_blocked and queue.elements.outside_count
    assert 80_000 < disk.used_bytes == world.store.paged.size_bytes <= 100_000
    assert disk.refused_count < 25, "it is tried again less and less often"
    assert world.log.names("error") == ["store cannot page out"]
    assert world.store.state == "not paging" and "no space left" in (world.store.trouble or "")
    assert "no space left" in str(world.store.facts()["not paging"])
    disk.room_bytes = 1 << 30
    world.flush(seconds=6)
    assert not producer.is_blocked and world.store.state == "ok"
    assert world.log.names("info") == ["store can page out again"]
    consumer = world.consumer(auto=True)
    queue.subscribe(consumer)
    world.flush()
    assert [delivery.number for delivery in consumer.deliveries] == list(range(1000))
    assert disk.used_bytes == 0 == world.store.paged.size_bytes and not world.leftovers()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("engine_fails", [False, True], ids=["pages only", "all of the disk"])
def test_blocks_that_are_drained_give_a_full_disk_its_room_back(
    engine_fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else waits to be written, and while the batch in front of it can't be."""
    monkeypatch.setattr("sluiceway.store.pages.SEGMENT_BYTES", 20_000)
    disk = SmallDisk(tmp_path, 100_000, monkeypatch)
    engine = SharingEngine()
    world = StoreWorld(engine, pages=tmp_path)
    queue, other = world.queue(memory_bytes=64 * 1024), shared_queue("/queue/b", QueuePolicy(), world.environment)
    if engine_fails:
        engine.has_room = lambda: disk.room_bytes - disk.used_bytes > 50_000
    producer = fill(world, queue, 1000)
    saved: list[str] = []
    world.put(other)
    shelf_of(other).when_saved(0, 1, saved.append)
    world.flush()
    assert producer.is_blocked and saved == ([] if engine_fails else ["disk"])
    consumer = world.consumer(auto=True)
    queue.subscribe(consumer)
    world.flush(seconds=20)
    assert [delivery.number for delivery in consumer.deliveries] == [*range(1000)]
    assert disk.used_bytes == 0 and saved == ["disk"]
    assert world.store.accepting and world.store.state == "ok"
    world.flush()
    assert not world.store.paged.size_bytes


@pytest.mark.usefixtures("small_blocks")
def test_persistent_messages_go_on_while_pages_have_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of pages may be a disk of its own."""
    SmallDisk(tmp_path, 10_000, monkeypatch)
    world = StoreWorld(MemoryEngine(), pages=tmp_path)
    fill(world, world.queue(memory_bytes=64 * 1024), 500)
    other = shared_queue("/queue/b", QueuePolicy(memory_bytes=64 * 1024), world.environment)
    producer = OfferingProducer(world, other)
    for _ in range(100):
        producer.send(world.messages(1, wire_bytes=500))
        world.settle_down()
    saved: list[str] = []
    shelf_of(other).when_saved(0, 100, saved.append)
    world.settle_down()
    assert not producer.is_blocked and saved == ["disk"]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("is_consumed", [False, True])
def test_what_needs_no_page_leaves_memory_while_pages_have_no_room(
    is_consumed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: one block that was refused a page kept the persistent ones of its queue in memory, too."""
    disk = SmallDisk(tmp_path, 10_000, monkeypatch)
    world = StoreWorld(MemoryEngine(), pages=tmp_path)
    queue = world.queue(memory_bytes=64 * 1024)
    if is_consumed:
        queue.subscribe(world.consumer(1))
    fill(world, queue, 70)
    world.flush(seconds=20)
    world.wait_in_vain()
    assert disk.refused_count and not world.store.paged.accepting
    producer = OfferingProducer(world, queue)
    for _ in range(500):
        producer.send(world.messages(1, wire_bytes=500))
        world.settle_down()
    assert not producer.outbox and queue.elements.outside_count > 40
    in_memory = [block for _index, block in queue.elements.blocks() if block.outside is None]
    assert sum(block.live_count for block in in_memory if block.base < 70) > 40, "these need a page"
    refused_count = disk.refused_count
    disk.room_bytes = 1 << 30
    world.flush(seconds=20)
    consumer = world.consumer(auto=True)
    queue.subscribe(consumer)
    world.flush()
    assert len(consumer.deliveries) == 570 - is_consumed
    assert disk.refused_count == refused_count and disk.used_bytes == 0


@pytest.mark.usefixtures("small_blocks")
def test_a_queue_that_is_deleted_while_its_pages_have_no_room_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SmallDisk(tmp_path, 30_000, monkeypatch)
    world = StoreWorld(MemoryEngine(), pages=tmp_path)
    for deleted_in_the_midst in (True, False):
        queue = world.queue(memory_bytes=64 * 1024)
        world.put(queue, 100, wire_bytes=500, persistent=False)
        if deleted_in_the_midst:
            world.run()
            assert world.worker.has_work, "some are being written"
        else:
            world.flush()
        queue.close_queue("the test says so")
        world.flush(seconds=20)
        assert queue.pager is not None and (queue.pager._page_source is None or not queue.pager._page_source.blocked)
        assert disk.used_bytes == 0 == world.store.paged.size_bytes and not world.leftovers()
        assert world.store.state == "ok", "nobody wants to page out any more"


@pytest.mark.usefixtures("small_blocks")
def test_a_page_that_is_damaged_costs_its_messages_and_says_so(tmp_path: Path) -> None:
    world = StoreWorld(MemoryEngine(), pages=tmp_path)
    queue = world.queue(memory_bytes=64 * 1024)
    for _ in range(30):
        world.put(queue, 10, wire_bytes=500, persistent=False)
        world.settle_down()
    for path in tmp_path.iterdir():
        with path.open("r+b") as file:
            file.seek(100)
            file.write(b"damage")
    consumer = world.consumer(auto=True)
    queue.subscribe(consumer)
    world.flush()
    assert queue.pager is not None and 0 < queue.pager.lost_count <= 16, "a block"
    assert len(consumer.deliveries) == 300 - queue.pager.lost_count
    assert world.log.names("error") == ["corrupt record can't be kept", "messages lost"]
    world.flush()
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("small_blocks")
def test_a_broker_that_stops_pages_nothing_out_and_saves_all_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages that wait for their turn would only fill the last batch, which has to have all that is persistent."""
    monkeypatch.setattr("sluiceway.store.batch.PAGES_BYTES", 1000)
    world = StoreWorld(MemoryEngine(), pages=tmp_path)
    queue, other = world.queue(memory_bytes=64 * 1024), shared_queue("/queue/b", QueuePolicy(), world.environment)
    world.put(queue)
    shelf_of(queue).when_saved(0, 1, lambda _how: None)
    world.run()
    assert world.worker.has_work, "a batch is under way"
    world.put(queue, 70, wire_bytes=500, persistent=False)
    world.put(other, 10)
    world.run()
    assert queue.pager is not None and queue.pager._leaving_bytes and not queue.elements.outside_count
    turns = iter(range(100))
    close_in_order = QueueRecords.close_in_order
    monkeypatch.setattr(
        QueueRecords, "close_in_order", lambda shelf, batch: (next(turns), close_in_order(shelf, batch))
    )
    later = StoreWorld(world.close_in_order())
    assert later.recovered.live_count == 11
    assert world.store.paged.size_bytes == 0
