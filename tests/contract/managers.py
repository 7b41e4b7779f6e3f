"""The metadata managers that the contract is for, each with a loop that is cranked by hand.

A maker for managers in a cluster would bring its own: all that is asked of it is in `Maker`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import Any, Protocol

from sluiceway.cluster.coordination.port import Hub
from sluiceway.cluster.coordination.simulated import Faults, HubTime, SimulatedService, VirtualTime
from sluiceway.store.engine import Engine
from sluiceway.store.io_threads import InlineWorker, ThreadWorker, Worker
from sluiceway.store.leveldb import LevelDbEngine
from sluiceway.store.memory import MemoryEngine
from sluiceway.store.metadata import MetadataManagers, StoredMetadata
from sluiceway.store.metadata.recorded import RecordedMetadata
from tests.cluster.coordination.worlds import Heard
from tests.contract.engines import postgresql_opener
from tests.store.faulty import FaultyEngine

ANSWER_SECONDS_MAX = 20.0


class Loop:
    """In place of the dispatch loop: runs what it was given when it is turned."""

    def __init__(self) -> None:
        self._callbacks: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def submit(self, callback: Callable[[], None]) -> None:
        """From any thread."""
        self._callbacks.put(callback)

    def turn(self) -> None:
        """Run the next callback; waits for it, as another thread may bring it."""
        self._callbacks.get(timeout=ANSWER_SECONDS_MAX)()

    def turn_all(self) -> None:
        """Run those that are there."""
        while not self._callbacks.empty():
            self._callbacks.get()()


class Answer:
    """One answer that is awaited."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._results: list[Any] = []

    def __call__(self, result: Any) -> None:
        self._results.append(result)
        assert len(self._results) == 1, "an operation is answered once"

    @property
    def came(self) -> bool:
        return bool(self._results)

    @property
    def result(self) -> Any:
        """Turns the loop until it comes."""
        while not self._results:
            self._loop.turn()
        return self._results[0]


class Maker(Protocol):
    """Makes managers of one kind, all on one store."""

    loop: Loop

    def open(self) -> MetadataManagers:
        """On an empty store."""

    def reopen(self) -> MetadataManagers | None:
        """Closes them in order and opens what they left; None if they leave nothing."""

    def close(self) -> None:
        """Everything."""


class MakesStoredManagers:
    """Behind an engine."""

    def __init__(
        self, opener: Callable[[], Engine], *, threads: bool, again: Callable[[Engine], Engine | None]
    ) -> None:
        """`again` closes an engine and opens what it left."""
        self.loop = Loop()
        self._opener = opener
        self._threads = threads
        self._again = again
        self.engine: Engine | None = None
        self._worker: Worker | None = None
        self._managers: StoredMetadata | None = None

    def open(self) -> StoredMetadata:
        return self._on(self._opener())

    def _on(self, engine: Engine) -> StoredMetadata:
        self.engine = engine
        self._worker = (
            ThreadWorker(engine, self.loop.submit) if self._threads else InlineWorker(engine, self.loop.submit)
        )
        self._managers = StoredMetadata(self._worker)
        return self._managers

    def reopen(self) -> MetadataManagers | None:
        engine = self.stop()
        following = self._again(engine)
        self.engine = following
        return None if following is None else self._on(following)

    def stop(self) -> Engine:
        """Ends the managers as a broker does; the engine stays open."""
        assert self._managers is not None and self._worker is not None and self.engine is not None, "it is open"
        self._managers.close()
        self._worker.close()
        self.loop.turn_all()
        self._worker = None
        return self.engine

    def close(self) -> None:
        if self._worker is not None:
            self.stop()
        if self.engine is not None:
            self.engine.close()


class TimeLoop(Loop):
    """Virtual time that passes when the loop is turned."""

    def __init__(self, time: VirtualTime) -> None:
        super().__init__()
        self._time = time

    def turn(self) -> None:
        self._time.run(0.01)

    def turn_all(self) -> None:
        self._time.run(1.0)


class MakesRecordedManagers:
    """Over the records that the hubs of a cluster share."""

    def __init__(self) -> None:
        time = VirtualTime()
        self.loop = TimeLoop(time)
        service = SimulatedService(time, Random(1), Faults(delay_seconds_max=0.005, stale_chance=0.5))
        self._records = service.channel(HubTime(time)).client
        self._records.start(Hub("hub-1"), Heard())
        self.loop.turn_all()

    def open(self) -> MetadataManagers:
        self._managers = RecordedMetadata(self._records)
        return self._managers

    def reopen(self) -> MetadataManagers | None:
        self._managers.close()
        self.loop.turn_all()
        return self.open()

    def close(self) -> None:
        """Nothing is open."""


def faulty(*, seed: int = 1) -> MakesStoredManagers:
    """On an engine that fails when told to, and opens as after a crash."""

    def crashed(engine: Engine) -> Engine:
        assert isinstance(engine, FaultyEngine)
        return engine.crash()

    return MakesStoredManagers(lambda: FaultyEngine(Random(seed)), threads=False, again=crashed)


def maker_of(kind: str, folder: Path) -> Maker:
    """By name."""

    def closed(engine: Engine) -> None:
        engine.close()

    def reopened(engine: Engine) -> Engine:
        engine.close()
        return LevelDbEngine(folder / "db")

    match kind:
        case "memory":
            return MakesStoredManagers(MemoryEngine, threads=False, again=closed)
        case "coordination":
            return MakesRecordedManagers()
        case "postgresql":
            opener = postgresql_opener()

            def opened_again(engine: Engine) -> Engine:
                engine.close()
                return opener()

            return MakesStoredManagers(opener, threads=True, again=opened_again)
        case "leveldb":
            return MakesStoredManagers(lambda: LevelDbEngine(folder / "db"), threads=True, again=reopened)
    return faulty()
