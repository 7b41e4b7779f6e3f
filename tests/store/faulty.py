"""Segments for tests that fail on request, and lose what is not synced at a power cut.

The engine that does so is `sluiceway.simulation.faulty_engine`; tests import both from here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from sluiceway.simulation.faulty_engine import Failing, Failure, FaultyEngine, WriteTimes, flipped
from sluiceway.store.chunks import Part
from sluiceway.store.engine import CorruptionError, EngineClosedError, EngineError, EngineFailedError, UnreadableError
from sluiceway.store.segments import read_around

__all__ = ["Failure", "FaultyEngine", "FaultySegments", "WriteTimes"]


class FaultySegments(Failing):
    """Segments (segments.py) in memory, with the same faults; a part of a write that fails is there.

    After a power cut everything synced is there, and some of what was written after it, perhaps damaged; and a segment
    that was removed may be back.
    """

    __slots__ = ("_durable", "_is_closed", "_seen", "bad", "before_sync")

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._seen: dict[int, bytearray] = {}
        self._durable: dict[int, bytes] = {}
        self._is_closed = False
        self.before_sync: Callable[[], None] = lambda: None
        self.bad: list[tuple[int, int, int]] = []
        """Segment, start and end of what can't be read, as with bad sectors."""

    def sizes(self) -> dict[int, int]:
        self._check_open()
        return {number: len(data) for number, data in self._seen.items()}

    def make(self, segment: int) -> None:
        self._check_open()
        self.perhaps_fail(Failure.DISK_FULL, f"making segment {segment}")
        self._seen[segment] = bytearray()
        self._durable[segment] = b""

    def write(self, segment: int, offset: int, parts: Sequence[Part], *, sync: bool) -> None:
        self._check_open()
        data = b"".join(parts)
        there = self._seen.setdefault(segment, bytearray())
        there.extend(bytes(max(0, offset - len(there))))
        try:
            self.perhaps_fail(Failure.DISK_FULL, f"writing segment {segment}")
            self.perhaps_fail(Failure.WRITE, f"writing segment {segment}")
        except EngineError:
            data = data[: self._random.randint(0, len(data))]
            there[offset : offset + len(data)] = data
            raise
        there[offset : offset + len(data)] = data
        if sync:
            self.before_sync()
            self._check_open()
            self.perhaps_fail(Failure.SYNC, f"syncing segment {segment}")
            if segment in self._durable:  # else its folder does not name it
                self._durable[segment] = bytes(there)

    def read(self, segment: int, offset: int, size_bytes: int, ahead_bytes: int = 0) -> bytes:
        self._check_open()
        self.perhaps_fail(Failure.READ, f"reading segment {segment}")
        for number, start, stop in self.bad:
            if number == segment and start < offset + size_bytes and offset < stop:
                raise UnreadableError(
                    f"segment {segment} can't be read between {offset} and {offset + size_bytes}",
                    partial(read_around, self, segment, offset, size_bytes),
                )
        data = self._seen.get(segment)
        if data is None and not self._seen:
            raise EngineFailedError("all segments are gone")
        if data is None:
            raise CorruptionError(f"segment {segment} is gone")
        return bytes(data[offset : offset + size_bytes])

    def cut(self, segment: int, size_bytes: int) -> None:
        self._check_open()
        del self._seen[segment][size_bytes:]

    def remove(self, segment: int) -> None:
        self._check_open()
        self._seen.pop(segment, None)

    def name(self, segment: int) -> str:
        return f"segment {segment}"

    def lose(self, segment: int, kept_bytes: int = 0) -> None:
        """Remove a segment, or all of it but its first `kept_bytes`, as another program might."""
        if kept_bytes:
            self.cut(segment, kept_bytes)
            self._durable[segment] = self._durable[segment][:kept_bytes]
        else:
            del self._seen[segment], self._durable[segment]

    def corrupt(self, segment: int, offset: int) -> None:
        """Flips a bit."""
        self._seen[segment][offset] ^= 1

    def crash(self) -> FaultySegments:
        """Return the segments as the next process finds them. Closes this object."""
        return self._successor({number: bytes(data) for number, data in self._seen.items()})

    def power_cut(self) -> FaultySegments:
        """Return the segments as they are found when power is back. Closes this object."""
        random = self._random
        found: dict[int, bytes] = {}
        for number, durable in self._durable.items():
            seen = self._seen.get(number)
            if seen is None:
                if random.random() < 0.5:
                    found[number] = durable
                continue
            tail = bytes(seen[len(durable) :])
            tail = tail[: random.randint(0, len(tail))]
            if tail and random.random() < 0.5:
                tail = flipped(tail, random.randrange(len(tail) * 8))
            found[number] = durable + tail
        return self._successor(found)

    def _successor(self, found: dict[int, bytes]) -> FaultySegments:
        successor = FaultySegments(self._random)
        successor._seen = {number: bytearray(data) for number, data in found.items()}
        successor._durable = {number: data for number, data in self._durable.items() if number in found}
        self._is_closed = True
        return successor

    def _check_open(self) -> None:
        if self._is_closed:
            raise EngineClosedError("these segments are of another life")
