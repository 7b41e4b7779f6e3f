"""A row of 64-bit numbers that the runner and its workers share through a mapped file.

This is all that they say to each other while a run lasts: the runner writes the mode, the quotas and the measured
window; every producer and consumer writes how far it is. Reading or writing a number costs no system call, so a
producer can watch its consumers and the runner can watch everybody without disturbing them. Each slot has exactly one
writer, and an aligned 64-bit store is whole on every machine we know, so no lock is needed. x86 keeps the order of
stores; a weaker machine would only see progress a little later, since no slot guards another's content except MODE,
which the runner writes before the quota that lets anything be sent.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from pathlib import Path

MODE = 0
"""CHECK, LOAD or QUIT."""
QUOTA = 1
"""Number of messages that each stream of the measured load may have sent so far; lowering it stops the streams."""
FLOOD_QUOTA = 2
"""The same for the flood of a disturbance."""
WINDOW_FROM_NS = 3
"""Start of the measured window on the monotonic clock; 0: not yet."""
WINDOW_TO_NS = 4
"""End of the window; 0: not yet."""
FIRST_FREE = 8

CHECK = 1
LOAD = 2
QUIT = 3

UNLIMITED = 1 << 62


class Board:
    """The mapped row. Index it by slot. `close()` when done; the file belongs to who made it."""

    __slots__ = ("_map", "_numbers")

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._numbers = memoryview(self._map).cast("q")

    @classmethod
    def create(cls, path: Path, slot_count: int) -> Board:
        """Make the file with all slots zero (it must not exist) and map it."""
        with path.open("xb") as file:
            file.truncate(8 * slot_count)
        return cls(path)

    @property
    def numbers(self) -> memoryview:
        """The slots as a memoryview of signed 64-bit numbers, for loops that index it often."""
        return self._numbers

    def __getitem__(self, slot: int) -> int:
        return int(self._numbers[slot])

    def __setitem__(self, slot: int, value: int) -> None:
        self._numbers[slot] = value

    def total(self, slots: Iterable[int]) -> int:
        """The sum of some slots."""
        return sum(self._numbers[slot] for slot in slots)

    def close(self) -> None:
        """Unmap. The numbers must not be used afterwards."""
        self._numbers.release()
        self._map.close()
