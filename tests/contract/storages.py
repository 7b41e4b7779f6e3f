"""Worlds with a store: the two kinds that the contract of the port of queues holds for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self

from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.queues.environment import QueueEnvironment
from sluiceway.queues.message import Message
from sluiceway.queues.topic import Topic
from sluiceway.store.diskguard import GUARD_SECONDS
from sluiceway.store.durables import durable_changes
from sluiceway.store.engine import Engine
from sluiceway.store.states import DurableRecord
from tests.queues.memory_store import Disk, MemoryStore
from tests.queues.rig import FakeConsumer, Head, World
from tests.store.rig import FakeFolder, StoreWorld

DURABLE_ID = 1
"""The durable subscription that each world knows of."""


class StorageWorld(Protocol):
    """A world with a store whose disk works when a test says so."""

    environment: QueueEnvironment

    def run(self) -> None: ...
    def shared(self, **policy: object) -> ConsumedQueue: ...
    def topic(self, **policy: object) -> Topic: ...
    def consumer(self, window: int | None = None, *, auto: bool = False) -> FakeConsumer: ...
    def messages(self, count: int, *, head: Head | None = None) -> list[Message]: ...

    def flush(self) -> None:
        """Let the disk do all that waits for it."""

    def crashed(self) -> Self:
        """The next world, on what the disk has now."""

    def stopped(self) -> Self:
        """The next world, after this one was closed in good order."""

    def fill_disk(self) -> None:
        """The disk has no room."""

    def empty_disk(self) -> None:
        """The disk has room again."""


class MemoryWorld(World):
    """With the store in memory."""

    def __init__(self, disk: Disk | None = None) -> None:
        super().__init__()
        self.store = MemoryStore(self, disk)

    def flush(self) -> None:
        for _ in range(3):
            self.store.answer(self)
            self.store.write()
            self.run()

    def crashed(self) -> MemoryWorld:
        return MemoryWorld(self.store.disk)

    def stopped(self) -> MemoryWorld:
        self.store.write(exactly=True)
        return self.crashed()

    def fill_disk(self) -> None:
        self.store.shut()

    def empty_disk(self) -> None:
        self.store.reopen()


class EngineWorld(StoreWorld):
    """With the store of the broker on a real engine."""

    def __init__(self, opener: Callable[[], Engine]) -> None:
        self._opener = opener
        self._room = FakeFolder()
        engine = opener()
        engine.write(durable_changes(DURABLE_ID, DurableRecord("c", "d", "/topic/a", "", 1, 1)), sync=True)
        super().__init__(engine, folder=self._room)

    def crashed(self) -> EngineWorld:
        self.engine.close()
        return EngineWorld(self._opener)

    def stopped(self) -> EngineWorld:
        self.close_in_order()
        return self.crashed()

    def fill_disk(self) -> None:
        self._set_room(0)

    def empty_disk(self) -> None:
        self._set_room(1 << 40)

    def _set_room(self, free_bytes: int) -> None:
        self._room.room_bytes = free_bytes
        self.now_seconds += GUARD_SECONDS
        self.run()
