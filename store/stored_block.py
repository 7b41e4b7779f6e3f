"""The records of a block on disk, as its shelf remembers them."""

from __future__ import annotations

from . import keys
from .batch import ChunkRecord
from .engine import Change, delete, put
from .states import encode_state


class StoredBlock:
    """The records of a block on disk. Bit k is sequence `(index << 10) + k`."""

    __slots__ = ("attempts", "firsts", "is_kept", "live", "paged", "span")

    def __init__(self, span: int = 0, live: int = 0, firsts: list[int] | None = None) -> None:
        self.span = span
        """Bits from the first to the last element of each chunk."""
        self.live = live
        """Bits of the elements that are in a chunk and not settled."""
        self.firsts = firsts if firsts is not None else []
        """First sequence of each chunk: its key. (To look for the keys would read the values, too.)"""
        self.is_kept = bool(firsts)
        """Whether the block has, or had, chunks, and so perhaps a state on disk."""
        self.attempts: dict[int, int] | None = None
        """Number of times that returned elements were handed over, by place."""
        self.paged: ChunkRecord | None = None
        """Record of the elements that are not persistent, for this run."""

    def records(self, queue_id: int) -> list[ChunkRecord]:
        """Return all records that have elements of the block."""
        found = [ChunkRecord(keys.chunk_key(queue_id, first)) for first in self.firsts]
        if self.paged is not None:
            found.append(self.paged)
        return found

    def deletions(self, queue_id: int) -> list[Change]:
        """Return the changes that delete the chunks of the block."""
        found = [delete(keys.chunk_key(queue_id, first)) for first in self.firsts]
        return found + [delete(keys.summary_key(queue_id, first)) for first in self.firsts]

    def state_changes(self, queue_id: int, index: int, *, is_paged: bool) -> list[Change]:
        """Return the changes that write which elements of the block are settled; if none is left, those that delete its
        records, except pages. `is_paged`: elements that are not persistent are left in the block.
        """
        key = keys.state_key(queue_id, index)
        if self.live:
            return [put(key, encode_state(self.span & ~self.live, self.attempts or {}))]
        if is_paged:
            return [put(key, encode_state(self.span, {}))] if self.span else []
        return [*self.deletions(queue_id), *([delete(key)] if self.is_kept else [])]
