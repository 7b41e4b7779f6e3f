"""The engines that the contract is for, and how each is opened again."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Protocol

from store.engine import Engine
from store.faulty import FaultyEngine
from store.leveldb import LevelDbEngine
from store.memory import MemoryEngine


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


class MakesFaulty:
    def open(self) -> Engine:
        return FaultyEngine(Random(1))

    def reopen(self, engine: Engine) -> Engine | None:
        assert isinstance(engine, FaultyEngine)
        engine.close()
        return engine.crash()
