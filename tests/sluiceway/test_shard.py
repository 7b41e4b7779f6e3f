"""Shards of one process: each with a folder of its own; sets of them, each with its own end."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from sluiceway.config import Config
from sluiceway.dispatcher import Dispatcher
from sluiceway.flow import FlowManager
from sluiceway.memory import BrokerMemory
from sluiceway.protocols.stomp.header_codec import HeaderCodec
from sluiceway.queues.message import Message
from sluiceway.queues.names import parse
from sluiceway.shard import Location, ShardEnvironment
from sluiceway.shards import Shards
from sluiceway.store.directory import DirectoryError, LockedError, MissingError, open_directory
from sluiceway.store.io_threads import READERS_COUNT, WRITERS_COUNT
from sluiceway.store.shard_folders import make_shards

DEADLINE_SECONDS = 20
HEADS = HeaderCodec()


class Process:
    """What the shards of a test share, and the shards themselves."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.dispatcher = Dispatcher()
        self.manager = FlowManager(trio.current_time)
        self.memory = BrokerMemory(Config(), manager=self.manager, timers=self.dispatcher, clock=self.manager.clock)
        self.nursery = nursery
        self.errors: list[Exception] = []
        self.shards: list[Shards] = []

    def shard(self, folder: Path, *, observe: Callable[[bytes], None] = lambda _token: None) -> Shards:
        environment = ShardEnvironment(
            self.dispatcher, self.manager, trio.current_time, lambda: 1_700_000_000_000, self.errors.append
        )
        self.shards.append(Shards(Config(), Location("leveldb", folder), environment, observe=observe))
        return self.shards[-1]

    async def run(self, *shards: Shards) -> None:
        """Open these, then let the dispatcher run and recover them."""
        for shard in shards:
            await shard.open()
        await self.nursery.start(self.dispatcher.run)
        for shard in shards:
            await shard.recover()


@asynccontextmanager
async def process() -> AsyncIterator[Process]:
    with trio.fail_after(DEADLINE_SECONDS):
        async with trio.open_nursery() as nursery:
            one = Process(nursery)
            try:
                yield one
            finally:
                for shard in one.shards:
                    shard.abandon()
                nursery.cancel_scope.cancel()
    assert not one.errors


async def send(shard: Shards, name: str, text: str) -> None:
    """Send a persistent message, and wait until the disk has it."""
    block = b"destination:" + name.encode() + b"\npersistent:true"
    message = Message(HEADS.restore(2, block), block + b"\n\n" + text.encode() + b"\0", shard.take_numbers(1))
    queue = shard.registry.get(parse(name)).queue.partition_for(message)
    sequence = queue.elements.next_sequence
    queue.add([message], len(message.wire), None)
    saved = trio.Event()
    assert queue.storage is not None
    queue.storage.when_saved(sequence, sequence + 1, lambda _durability: saved.set())
    await saved.wait()


def depths(shard: Shards) -> dict[str, int]:
    """How many messages each destination has."""
    return {
        name: sum(queue.statistics().depth_count for queue in destination.queues)
        for name, destination in shard.registry.destinations.items()
    }


async def found_in(folder: Path) -> tuple[dict[str, int], list[str]]:
    """What the next process finds: messages by destination, and the names of logs."""
    async with process() as later:
        shard = later.shard(folder)
        await later.run(shard)
        assert shard.logs is not None
        found = depths(shard), sorted(shard.logs.logs)
        await shard.close()
        return found


async def test_when_one_of_two_shards_is_closed_the_other_goes_on(tmp_path: Path) -> None:
    one_folder, other_folder = tmp_path / "one", tmp_path / "other"
    async with process() as both:
        one, other = both.shard(one_folder), both.shard(other_folder)
        await both.run(one, other)
        assert one.token != other.token
        assert (one.folder, other.folder) == (one_folder, other_folder)
        await send(one, "/queue/a", "first")
        await send(other, "/queue/b", "second")
        assert one.logs is not None and other.logs is not None
        one.logs.get("/log/l")
        await one.close()
        await one.close()
        assert (one.store, one.spools, one.bodies, one.logs, one.claims, one.folder) == (None,) * 6
        open_directory(one_folder).close()  # free for others
        with pytest.raises(LockedError):
            open_directory(other_folder)
        await send(other, "/queue/b", "third")
        other.logs.get("/log/m")
        assert depths(other) == {"/queue/b": 2}
        await other.close()
        assert both.manager.resources == (both.memory.budget, both.memory.upkeep), "nothing of either shard"
        both.memory.close()
        assert (both.memory.upkeep.things.used_bytes, both.memory.budget.used_bytes) == (0, 0)
    assert await found_in(one_folder) == ({"/queue/a": 1}, ["/log/l"])
    assert await found_in(other_folder) == ({"/queue/b": 2}, ["/log/m"])


async def test_when_one_of_two_shards_is_abandoned_the_other_goes_on(tmp_path: Path) -> None:
    """The abandoned one is as a crash leaves a broker: what was confirmed is there again."""
    one_folder, other_folder = tmp_path / "one", tmp_path / "other"
    async with process() as both:
        one, other = both.shard(one_folder), both.shard(other_folder)
        await both.run(one, other)
        await send(one, "/queue/a", "first")
        one.abandon()
        one.abandon()
        await one.close()  # nothing is left to close
        await send(other, "/queue/b", "second")
        await other.close()
    async with process() as later:
        shard = later.shard(one_folder)
        await shard.open()
        found = next(iter(shard)).recovered
        assert found is not None and not found.clean
        assert depths(shard) == {"/queue/a": 1}
    assert await found_in(other_folder) == ({"/queue/b": 1}, [])


async def test_a_shard_that_can_not_be_opened_leaves_nothing_open(tmp_path: Path) -> None:
    async with process() as one:

        def breaks(_token: bytes) -> None:
            raise ZeroDivisionError("nobody to observe")

        shard = one.shard(tmp_path / "folder", observe=breaks)
        with pytest.raises(ZeroDivisionError):
            await shard.open()
        with pytest.raises(LockedError):
            open_directory(tmp_path / "folder")
        shard.abandon()
        open_directory(tmp_path / "folder").close()


# ---------------------------------------------------------------------- several in one folder


async def test_a_folder_of_several_shards_is_opened_as_one_broker(tmp_path: Path) -> None:
    folders = make_shards(tmp_path, 4)
    assert folders is not None
    names = [f"/queue/{number}" for number in range(12)]
    async with process() as one:
        shards = one.shard(tmp_path)
        await one.run(shards)
        assert (shards.count, shards.token, shards.folder) == (4, folders.token, tmp_path)
        for name in names:
            await send(shards, name, name)
        assert shards.logs is not None
        for name in names:
            shards.logs.get(name.replace("queue", "log"))
        await shards.close()
        assert one.manager.resources == (one.memory.budget, one.memory.upkeep), "nothing of any shard"
    assert await found_in(tmp_path) == (dict.fromkeys(names, 1), sorted(f"/log/{number}" for number in range(12)))


async def test_shards_share_a_few_threads(tmp_path: Path) -> None:
    make_shards(tmp_path, 32)
    async with process() as one:
        shards = one.shard(tmp_path)
        await one.run(shards)
        for number in range(64):
            await send(shards, f"/queue/{number}", "x")
        ours = [thread.name for thread in threading.enumerate() if thread.name.startswith("sluiceway")]
        assert len(ours) <= WRITERS_COUNT + READERS_COUNT + 6, ours
        await shards.close()


async def test_swapped_folders_and_a_wrong_number_of_shards_are_refused_in_words(tmp_path: Path) -> None:
    """Messages would never be found again under their names."""
    folders = make_shards(tmp_path, 2)
    assert folders is not None
    async with process() as one:
        shards = one.shard(tmp_path)
        await one.run(shards)
        for number in range(8):
            await send(shards, f"/queue/{number}", "x")
        await shards.close()
    folders.folder(0).rename(tmp_path / "other")
    folders.folder(1).rename(folders.folder(0))
    (tmp_path / "other").rename(folders.folder(1))
    async with process() as one:
        with pytest.raises(DirectoryError, match="belongs to shard"):
            await one.shard(tmp_path).open()


async def test_a_shard_of_another_broker_is_refused_in_words(tmp_path: Path) -> None:
    one_folder, other_folder = make_shards(tmp_path / "one", 2), make_shards(tmp_path / "other", 2)
    assert one_folder is not None and other_folder is not None
    for folder in (one_folder, other_folder):
        async with process() as one:
            shards = one.shard(folder.path)
            await one.run(shards)
            await shards.close()
    one_folder.folder(1).rename(tmp_path / "aside")
    other_folder.folder(1).rename(one_folder.folder(1))
    async with process() as one:
        with pytest.raises(DirectoryError, match="shard of another broker"):
            await one.shard(one_folder.path).open()


async def test_a_missing_shard_is_not_made_anew(tmp_path: Path) -> None:
    folders = make_shards(tmp_path, 2)
    assert folders is not None
    folders.folder(1).rename(tmp_path / "aside")
    async with process() as one:
        with pytest.raises(MissingError, match="no data folder"):
            await one.shard(tmp_path).open()
