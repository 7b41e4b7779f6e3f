"""A store in memory that remembers what each batch left, so that a crash behind any of them can be played."""

from __future__ import annotations

from collections.abc import Sequence

from sluiceway.store.engine import Change
from sluiceway.store.memory import MemoryEngine


class JournalEngine(MemoryEngine):
    """`batches` are in the order in which they were written."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[Change]] = []

    def write(self, changes: Sequence[Change], *, sync: bool) -> None:
        super().write(changes, sync=sync)
        self.batches.append(list(changes))

    def after(self, count: int) -> MemoryEngine:
        """As it was behind so many batches."""
        engine = MemoryEngine()
        for batch in self.batches[:count]:
            engine.write(batch, sync=False)
        return engine
