"""Faults of a store, as data: for the survey that finds them, the report, and the repair."""

from __future__ import annotations

from typing import Final

import attrs

from ...queues.blocks import bit_range
from .. import keys
from ..chunks import ChunkError, Summary, decode_summary
from ..engine import Change
from .records import BlockRecords, QueueName

CARRY_OVER: Final = "nothing here; `sluiceway store export` and `import` into a new folder put it in order"
NO_MEND: Final = "nothing: it is left alone"


@attrs.frozen
class StoreFault:
    """One fault, and its repair."""

    kind: str
    """Kind of the fault, for programs."""
    where: str
    """Queue or record."""
    what: str
    """Description, in words."""
    mend: str
    """Effect of a repair."""
    lost_count: int = 0
    """Number of messages lost, as far as known."""
    changes: tuple[Change, ...] = ()
    """Changes of the repair; none: not repairable."""
    aside: tuple[tuple[str, bytes], ...] = ()
    """Names and values moved to quarantine before the repair."""


@attrs.define
class QueueCount:
    """Stored messages of one queue."""

    queue_id: int
    name: str
    priority: int
    topic: bool
    messages_count: int = 0
    """Number of unsettled messages."""
    wire_bytes: int = 0
    """Bytes of unsettled messages, without bodies in files."""
    seen_count: int = 0
    """Number of unsettled messages that a consumer may have had already."""
    settled_count: int = 0
    """Number of settled messages; deleted with the rest of their block."""
    chunks_count: int = 0

    @property
    def said(self) -> str:
        """Name of the queue, for people."""
        return QueueName(self.name, self.priority, self.topic).said

    @property
    def kind(self) -> str:
        return "topic" if self.topic else "queue"


def alive_count(summary_value: bytes | None, first: int, block: BlockRecords, settled: int) -> int:
    """Return the number of unsettled messages in an unreadable chunk; 0 if unknown."""
    if summary_value is None:
        return 0
    try:
        summary = decode_summary(summary_value)
    except ChunkError:
        return 0
    end = min(summary.end_sequence - block.base, keys.BLOCK_SIZE)
    start = first - block.base
    return 0 if end <= start else (bit_range(start, end) & ~settled).bit_count()


def summary_fault(value: bytes | None, summary: Summary, first: int, where: str) -> StoreFault | None:
    """Return the fault of this chunk's summary, or None."""
    mend = "made again from the chunk"
    if value is None:
        return StoreFault(
            "missing-summary",
            where,
            f"the chunk from {first} has no summary: a broker does not see its {summary.count} messages",
            mend,
        )
    try:
        stored = decode_summary(value)
    except ChunkError as error:
        return StoreFault("corrupt-summary", where, f"of the chunk from {first}: {error}", mend)
    if stored == summary:
        return None
    differing = [
        f"{field.name} {getattr(stored, field.name)} instead of {getattr(summary, field.name)}"
        for field in attrs.fields(Summary)
        if getattr(stored, field.name) != getattr(summary, field.name)
    ]
    return StoreFault(
        "wrong-summary", where, f"the summary of the chunk from {first} says otherwise: {', '.join(differing)}", mend
    )
