"""What can be wrong with a store, as data: for the survey that finds it, for a report, and for the repair."""

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
class Fault:
    """Something that is wrong, and what would mend it."""

    kind: str
    """One of a few, for programs."""
    where: str
    """The queue, or the record."""
    what: str
    """In words."""
    mend: str
    """What a repair does about it."""
    lost_count: int = 0
    """Messages that are lost by it, as far as one can know."""
    changes: tuple[Change, ...] = ()
    """The repair; none: there is none."""
    aside: tuple[tuple[str, bytes], ...] = ()
    """Names and values that are moved to the attic before."""


@attrs.define
class QueueCount:
    """What is stored of one queue."""

    queue_id: int
    name: str
    priority: int
    topic: bool
    messages_count: int = 0
    """Alive."""
    wire_bytes: int = 0
    """Of those alive, bodies in files not counted."""
    seen_count: int = 0
    """Of those alive, how many a consumer may have had already."""
    settled_count: int = 0
    """Settled, and deleted with the rest of their block."""
    chunks_count: int = 0

    @property
    def said(self) -> str:
        """The name, for people."""
        return QueueName(self.name, self.priority, self.topic).said

    @property
    def kind(self) -> str:
        return "topic" if self.topic else "queue"


def alive_count(summary_value: bytes | None, first: int, block: BlockRecords, settled: int) -> int:
    """How many messages of a chunk that can't be read were alive; 0 where nobody knows."""
    if summary_value is None:
        return 0
    try:
        summary = decode_summary(summary_value)
    except ChunkError:
        return 0
    end = min(summary.end_sequence - block.base, keys.BLOCK_SIZE)
    start = first - block.base
    return 0 if end <= start else (bit_range(start, end) & ~settled).bit_count()


def summary_fault(value: bytes | None, summary: Summary, first: int, where: str) -> Fault | None:
    """What is wrong with the summary of this chunk."""
    mend = "made again from the chunk"
    if value is None:
        return Fault(
            "missing-summary",
            where,
            f"the chunk from {first} has no summary: a broker does not see its {summary.count} messages",
            mend,
        )
    try:
        stored = decode_summary(value)
    except ChunkError as error:
        return Fault("corrupt-summary", where, f"of the chunk from {first}: {error}", mend)
    if stored == summary:
        return None
    differing = [
        f"{field.name} {getattr(stored, field.name)} instead of {getattr(summary, field.name)}"
        for field in attrs.fields(Summary)
        if getattr(stored, field.name) != getattr(summary, field.name)
    ]
    return Fault(
        "wrong-summary", where, f"the summary of the chunk from {first} says otherwise: {', '.join(differing)}", mend
    )
