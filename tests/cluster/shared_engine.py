"""A simulated database that hubs share, as `store/postgresql.py` and its tables: engines for shards, with epochs.

An engine is of one owner: it is made with an epoch that nobody had before, and writes only while no later one is known,
which is checked where the batch is written. The database survives the hubs. Faults:

    is_away, unreachable    nobody, or these hubs can't reach it: every call raises
    fails                   asked before each write: a failure, or None
    restart                 it crashes: the last batches that were not synced are gone. The owner has kept them, and
                            writes them again before anything else, as the engine on PostgreSQL does
    end_hub                 the process of a hub is gone, with its engines

Law: an epoch has one owner, and that is what the records of owners say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random

import attrs

from sluiceway.store.engine import Change, EngineClosedError, EngineFailedError, FencedError, put
from sluiceway.store.memory import MemoryEngine


class LawBrokenError(AssertionError):
    """A law did not hold. The message says which one."""


@attrs.define(eq=False)
class _Table:
    """Records of one shard."""

    epoch: int = 0
    hub: str = ""
    seen: MemoryEngine = attrs.field(factory=MemoryEngine)
    durable: MemoryEngine = attrs.field(factory=MemoryEngine)
    unsynced: list[tuple[int, list[Change]]] = attrs.field(factory=list)
    """Batches since the last that was synced, by number."""
    number: int = 0
    """Number of the last batch."""


class SharedDatabase:
    """The records of all shards."""

    def __init__(self, random: Random, fails: Callable[[str], str | None] = lambda _hub: None) -> None:
        """`fails`: returns how the next write of a hub fails: `write`, nothing was written; `answer`, it was; None: it
        does not fail.
        """
        self._random = random
        self.fails = fails
        self._tables: dict[int, _Table] = {}
        self._engines: list[SharedEngine] = []
        self.runs_count = 1
        """Number of times that the database was started."""
        self.is_away = False
        self.unreachable: set[str] = set()
        self.refused_count = 0
        """Writes and reads of owners that are owners no more."""

    def engine_of(self, hub: str) -> Callable[[int, int], SharedEngine]:
        """Return the function of a hub that opens shards."""
        return partial(self._open, hub)

    def _open(self, hub: str, shard: int, epoch: int) -> SharedEngine:
        self.check_reachable(hub)
        table = self._tables.setdefault(shard, _Table())
        if epoch <= table.epoch:
            if epoch == table.epoch and hub != table.hub:
                raise LawBrokenError(f"owners: {hub} and {table.hub} have shard {shard} under epoch {epoch}")
            raise FencedError(f"shard {shard} has an epoch of {epoch} or later: {table.hub} became its owner")
        table.epoch, table.hub = epoch, hub
        engine = SharedEngine(self, table, hub, shard, epoch)
        self._engines = [each for each in self._engines if not each.is_over]
        self._engines.append(engine)
        return engine

    def check_reachable(self, hub: str) -> None:
        """Raise EngineFailedError if a hub can't reach the database."""
        if self.is_away or hub in self.unreachable:
            raise EngineFailedError("the database can't be reached")

    def restart(self) -> None:
        """Crash the database and start it again."""
        self.runs_count += 1
        for table in self._tables.values():
            kept = table.unsynced[: self._random.randint(0, len(table.unsynced))]
            table.seen = MemoryEngine()
            table.seen.write([put(key, value) for key, value in table.durable.contents()], sync=False)
            for number, batch in kept:
                table.seen.write(batch, sync=False)
                table.durable.write(batch, sync=False)
                table.number = number
            if len(kept) < len(table.unsynced):
                table.number = table.unsynced[len(kept)][0] - 1
            table.unsynced.clear()

    def end_hub(self, hub: str) -> None:
        """End all engines of a hub, as they are."""
        for engine in self._engines:
            if engine.hub == hub:
                engine.is_over = True

    def owner(self, shard: int) -> tuple[str, int]:
        """Return the last owner of a shard, and its epoch."""
        table = self._tables.get(shard, _Table())
        return table.hub, table.epoch


class SharedEngine:
    """Engine of one owner of a shard."""

    def __init__(self, database: SharedDatabase, table: _Table, hub: str, shard: int, epoch: int) -> None:
        self._database = database
        self._table = table
        self.hub = hub
        self._shard = shard
        self._epoch = epoch
        self._run = database.runs_count
        self._kept: list[tuple[int, list[Change]]] = []
        self.is_over = False
        self._is_fenced = False

    def check_open(self) -> None:
        """Raise the reason why nothing can be read or written now."""
        if self.is_over:
            raise EngineClosedError("the store is closed; nothing can be read or written")
        if not self._is_fenced:
            self._database.check_reachable(self.hub)
        if self._is_fenced or self._epoch != self._table.epoch:
            self._is_fenced = True
            self._database.refused_count += 1
            raise FencedError(f"shard {self._shard} is {self._table.hub}'s, with epoch {self._table.epoch}")
        if self._run != self._database.runs_count:
            self._run = self._database.runs_count
            lost = [change for number, batch in self._kept if number > self._table.number for change in batch]
            if lost:
                self._apply(lost, sync=True)

    def get(self, key: bytes) -> bytes | None:
        """Do `Engine.get`."""
        self.check_open()
        return self._table.seen.get(key)

    def iterate(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Do `Engine.iterate`."""
        self.check_open()
        return self._walk(self._table.seen.iterate(start, stop, reverse=reverse), self._run)

    def _walk(self, found: Iterator[tuple[bytes, bytes]], run: int) -> Iterator[tuple[bytes, bytes]]:
        for pair in found:
            self.check_open()
            if run != self._run:
                raise EngineFailedError("the connection was lost, which cut an iteration. Begin it again.")
            yield pair

    def iterate_keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """Do `Engine.iterate_keys`."""
        return (key for key, _value in self.iterate(start, stop))

    def write(self, changes: Sequence[Change], *, sync: bool) -> None:
        """Do `Engine.write`."""
        self.check_open()
        failure = self._database.fails(self.hub)
        if failure == "write":
            raise EngineFailedError("the database ended the transaction: it was told to fail")
        self._apply(list(changes), sync=sync)
        if failure == "answer":
            raise EngineFailedError("the connection was lost in the midst of a commit: it was told to fail")

    def _apply(self, changes: list[Change], *, sync: bool) -> None:
        table = self._table
        table.seen.write(changes, sync=False)
        table.number += 1
        table.unsynced.append((table.number, changes))
        self._kept.append((table.number, changes))
        if sync:
            for _number, batch in table.unsynced:
                table.durable.write(batch, sync=False)
            table.unsynced.clear()
            self._kept.clear()

    def size_bytes(self) -> int:
        """Do `Engine.size_bytes`."""
        self.check_open()
        return self._table.seen.size_bytes()

    def compact(self, start: bytes, stop: bytes) -> None:
        """Do `Engine.compact`."""
        self.check_open()

    def close(self) -> None:
        """Do `Engine.close`."""
        self.is_over = True
