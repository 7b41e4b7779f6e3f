"""State of the value log (values.py): its segments, a batch on its way, and readers; no logic."""

from __future__ import annotations

from collections.abc import Iterator

from .engine import Change
from .valuecodec import START_BYTES, ValuePointer


class KnownSegment:
    """State of a segment."""

    __slots__ = ("is_stuck", "live_bytes", "live_count", "looked_to", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = 0
        self.live_count = 0
        self.live_bytes = 0
        """Bytes of the values in use, with their keys."""
        self.looked_to = 0
        """Offset up to which the segment's values were written anew."""
        self.is_stuck = False
        """Whether a value of the segment can't be read, so that the segment stays as it is."""

    def add(self, name: bytes, pointer: ValuePointer) -> None:
        """One more value."""
        self.size_bytes = max(self.size_bytes, pointer.offset + pointer.size_bytes)
        self.live_count += 1
        self.live_bytes += taken_bytes(name, pointer)

    def is_sparse(self, share: int) -> bool:
        """Less than this part of it is left."""
        return self.live_bytes * share < self.size_bytes and not self.is_stuck


class ValuePlan:
    """A batch on its way."""

    __slots__ = ("changes", "closed", "gone", "new", "values", "writes")

    def __init__(self) -> None:
        self.closed: set[int] = set()
        """Segments that were full."""
        self.changes: list[Change] = []
        """Changes for the engine."""
        self.new: dict[bytes, ValuePointer] = {}
        """Pointers of the plan's new values, by key."""
        self.gone: dict[bytes, ValuePointer | None] = {}
        """Pointers that are deleted, by key; None: a pointer that can't be read."""
        self.values: dict[bytes, bytes] = {}
        """Values at the new pointers, by key."""
        self.writes: dict[int, tuple[int, list[bytes]]] = {}
        """Writes by segment: the offset, and the parts."""


class ValueWalk(Iterator[tuple[bytes, bytes]]):
    """One iteration. As long as it is there, no segment goes."""

    __slots__ = ("__weakref__", "rows")

    def __init__(self) -> None:
        self.rows: Iterator[tuple[bytes, bytes]] = iter(())

    def __next__(self) -> tuple[bytes, bytes]:
        return next(self.rows)


def taken_bytes(name: bytes, pointer: ValuePointer) -> int:
    """Return the bytes that a value takes of a segment, key included."""
    return START_BYTES + len(name) + pointer.size_bytes
