"""Engine without a disk: for embedded brokers that keep nothing, and for tests.

Values are in a dict, its keys also in a sorted list. Few keys that come or go are placed in the list one by one; many
in one pass: appended and sorted in (one merge, both parts are in order), or filtered out.

A snapshot costs nothing until the next write: an iterator reads the live data; before a write, each open iterator
copies the rest of its range. A dropped one is gone by then.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import Final
from weakref import WeakSet

from .engine import DELETE, PUT, Change, EngineClosedError

ONE_BY_ONE_COUNT_MAX: Final = 32
"""Keys that come or go with one batch, up to which each is placed by itself (a memmove); more take one pass over
all.
"""


class MemoryEngine:
    """Engine in memory: its contents are gone with the object, and `sync` has no effect."""

    __slots__ = ("_closed", "_keys", "_size_bytes", "_values", "_walks")

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self._size_bytes = 0
        self._walks: WeakSet[_Walk] = WeakSet()
        self._closed = False

    def get(self, key: bytes) -> bytes | None:
        self.check_open()
        return self._values.get(key)

    def iterate(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        self.check_open()
        first = bisect_left(self._keys, start)
        end = max(first, bisect_left(self._keys, stop))
        walk = _Walk(self, range(end - 1, first - 1, -1) if reverse else range(first, end))
        self._walks.add(walk)
        return walk

    def iterate_keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        return (key for key, _value in self.iterate(start, stop))

    def write(self, changes: Sequence[Change], *, sync: bool) -> None:
        self.check_open()
        for walk in list(self._walks):
            walk.take_rest(self._keys, self._values)
        self._walks.clear()
        values, keys = self._values, self._keys
        fresh: set[bytes] = set()  # have a value, but no place in the list yet
        stale: set[bytes] = set()  # have a place in the list, but no value any more
        for kind, key, value in changes:
            if kind == PUT:
                old = values.get(key)
                if old is not None:
                    self._size_bytes += len(value) - len(old)
                else:
                    self._size_bytes += len(key) + len(value)
                    if key in stale:
                        stale.discard(key)
                    else:
                        fresh.add(key)
                values[key] = value
                continue
            if kind == DELETE:
                doomed = [key]
            else:
                doomed = keys[bisect_left(keys, key) : bisect_left(keys, value)]
                doomed += [new for new in fresh if key <= new < value]
            for gone in doomed:
                old = values.pop(gone, None)
                if old is None:
                    continue
                self._size_bytes -= len(gone) + len(old)
                if gone in fresh:
                    fresh.discard(gone)
                else:
                    stale.add(gone)
        self._place(fresh, stale)

    def size_bytes(self) -> int:
        self.check_open()
        return self._size_bytes

    def compact(self, start: bytes, stop: bytes) -> None:
        self.check_open()  # nothing deleted is left

    def close(self) -> None:
        self._closed = True
        self._walks.clear()
        self._values = {}
        self._keys = []
        self._size_bytes = 0

    def contents(self) -> list[tuple[bytes, bytes]]:
        """All keys and values, in order."""
        self.check_open()
        return [(key, self._values[key]) for key in self._keys]

    def check_open(self) -> None:
        """Check that the engine is open. Raises EngineClosedError if it is closed."""
        if self._closed:
            raise EngineClosedError("this store in memory is closed; nothing can be read or written any more")

    def _place(self, fresh: set[bytes], stale: set[bytes]) -> None:
        """Brings the list of keys up to date."""
        keys = self._keys
        if len(stale) <= ONE_BY_ONE_COUNT_MAX:
            for key in stale:
                del keys[bisect_left(keys, key)]
        else:
            keys[:] = [key for key in keys if key not in stale]
        if len(fresh) <= ONE_BY_ONE_COUNT_MAX:
            for key in fresh:
                insort(keys, key)
        else:
            keys.extend(sorted(fresh))
            keys.sort()


class _Walk(Iterator[tuple[bytes, bytes]]):
    """One iteration: places in the list of keys, until a write comes; from then on a copy of the rest."""

    __slots__ = ("__weakref__", "_engine", "_places", "_rest")

    def __init__(self, engine: MemoryEngine, places: range) -> None:
        self._engine = engine
        self._places: Iterator[int] = iter(places)
        self._rest: Iterator[tuple[bytes, bytes]] | None = None

    def __next__(self) -> tuple[bytes, bytes]:
        engine = self._engine
        engine.check_open()
        if self._rest is not None:
            return next(self._rest)
        key = engine._keys[next(self._places)]
        return key, engine._values[key]

    def take_rest(self, keys: list[bytes], values: dict[bytes, bytes]) -> None:
        """Take a copy of the rest: the engine is about to change."""
        self._rest = iter([(key, values[key]) for key in map(keys.__getitem__, self._places)])
