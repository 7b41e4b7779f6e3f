"""The engines that the contract is for, and how each is opened again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final, Protocol

from sluiceway.store import keys
from sluiceway.store.engine import DELETE_RANGE, Change, Engine
from sluiceway.store.leveldb import LevelDbEngine
from sluiceway.store.memory import MemoryEngine
from sluiceway.store.segments import SegmentFiles
from sluiceway.store.values import SUFFIX, ValueLog, ValueOptions
from tests.postgresql_server import server
from tests.store.faulty import FaultyEngine, FaultySegments

TINY: Final = ValueOptions(record_bytes_min=2, batch_bytes_min=3, segment_bytes=200, moved_bytes=40, ahead_bytes=100)
"""So that values of some bytes lie in segments, and segments come and go."""


class Maker(Protocol):
    """Makes engines of one kind."""

    def open(self) -> Engine:
        """A new one that is empty."""

    def reopen(self, engine: Engine) -> Engine | None:
        """Closes it and opens what it left; None if it leaves nothing."""


class MakesLevelDb:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def open(self) -> Engine:
        self._count += 1
        return LevelDbEngine(self._folder / str(self._count))

    def reopen(self, engine: Engine) -> Engine | None:
        engine.close()
        return LevelDbEngine(self._folder / str(self._count))


class MakesMemory:
    def open(self) -> Engine:
        return MemoryEngine()

    def reopen(self, engine: Engine) -> Engine | None:
        engine.close()
        return None


def postgresql_opener() -> Callable[[], Engine]:
    """Return what opens a shard in a schema of its own."""
    from sluiceway.store.postgresql import PostgresqlEngine

    url = server().new_schema()
    return lambda: PostgresqlEngine(url)


@contextmanager
def postgresql_engines() -> Iterator[Callable[[], Engine]]:
    """Open one shard of one schema again and again; each engine is closed with the next one, or at the end."""
    opens = postgresql_opener()
    opened: list[Engine] = []

    def opener() -> Engine:
        for engine in opened:
            engine.close()
        opened.append(opens())
        return opened[-1]

    yield opener
    for engine in opened:
        engine.close()


class MakesPostgresql:
    """On a real server; a new one is another shard, in tables that were emptied."""

    def __init__(self) -> None:
        self._shard = 0

    def open(self) -> Engine:
        from sluiceway.store.postgresql import PostgresqlEngine

        self._shard += 1
        schema = "contract"
        server().execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        self._url = server().url_of(schema)
        engine = PostgresqlEngine(self._url, shard=self._shard)
        server().execute(f"TRUNCATE {schema}.sluiceway_records")
        return engine

    def reopen(self, engine: Engine) -> Engine | None:
        from sluiceway.store.postgresql import PostgresqlEngine

        engine.close()
        return PostgresqlEngine(self._url, shard=self._shard)


class MakesFaulty:
    def open(self) -> Engine:
        return FaultyEngine(Random(1))

    def reopen(self, engine: Engine) -> Engine | None:
        assert isinstance(engine, FaultyEngine)
        engine.close()
        return engine.crash()


class AllChunks:
    """An engine of which all keys are those of chunks, so that a value log has to do with them."""

    def __init__(self, engine: ValueLog) -> None:
        self.engine = engine

    def get(self, key: bytes) -> bytes | None:
        return self.engine.get(keys.CHUNK + key)

    def iterate(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        found = self.engine.iterate(keys.CHUNK + start, keys.CHUNK + stop, reverse=reverse)
        return ((key[1:], value) for key, value in found)

    def iterate_keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        return (key[1:] for key in self.engine.iterate_keys(keys.CHUNK + start, keys.CHUNK + stop))

    def write(self, changes: Sequence[Change], *, sync: bool) -> None:
        def renamed(change: Change) -> Change:
            kind, key, value = change
            return kind, keys.CHUNK + key, keys.CHUNK + value if kind == DELETE_RANGE else value

        self.engine.write([renamed(change) for change in changes], sync=sync)

    def size_bytes(self) -> int:
        return self.engine.size_bytes()

    def compact(self, start: bytes, stop: bytes) -> None:
        self.engine.compact(keys.CHUNK + start, keys.CHUNK + stop)

    def close(self) -> None:
        self.engine.close()


class MakesValueLogs:
    """On LevelDB, with files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def open(self) -> Engine:
        self._count += 1
        (self._folder / f"values {self._count}").mkdir()
        return self._opened()

    def _opened(self) -> Engine:
        segments = SegmentFiles(self._folder / f"values {self._count}", SUFFIX, "values", is_lasting=True)
        return AllChunks(ValueLog(LevelDbEngine(self._folder / str(self._count)), segments, TINY))

    def reopen(self, engine: Engine) -> Engine | None:
        engine.close()
        return self._opened()


class MakesFaultyValueLogs:
    """On what a fault round has."""

    def open(self) -> Engine:
        self._segments = FaultySegments(Random(1))
        self._engine = FaultyEngine(Random(1))
        return AllChunks(ValueLog(self._engine, self._segments, TINY))

    def reopen(self, engine: Engine) -> Engine | None:
        engine.close()
        self._engine, self._segments = self._engine.crash(), self._segments.crash()
        return AllChunks(ValueLog(self._engine, self._segments, TINY))
