"""All records of one block together, in the order of the table, whatever state they are in.

How it works: chunks, summaries and states are three families, each in order of queue and block; they are merged, so
one pass reads every record once and holds those of one block at a time.

Not here: what is right or wrong with them (survey.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import merge
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

import attrs

from ...queues.large import BodyReference, LargeMessage
from ...queues.message import Envelope, Message
from ...queues.names import DestinationNameError, parse
from .. import keys
from ..chunks import ChunkError, decode_summary
from ..engine import Engine
from ..keys import KeyFormatError

_Placed = tuple[tuple[int, int], bytes, int, bytes]
"""Queue and block; family; what else the key says; value."""

Progress = Callable[[int, int], None]
"""Is told how many messages are done, of how many."""

BadKey = Callable[[bytes, bytes], None]
"""Is told of a key that its family does not have, and its value."""


@attrs.define
class BlockRecords:
    """What the table has of one block."""

    queue_id: int
    index: int
    chunks: list[tuple[int, bytes]] = attrs.field(factory=list)
    """First sequence and value, ascending."""
    summaries: dict[int, bytes] = attrs.field(factory=dict)
    """By first sequence."""
    state: bytes | None = None

    @property
    def base(self) -> int:
        """Its first sequence."""
        return self.index << keys.BLOCK_BITS


def blocks(engine: Engine, bad_key: BadKey) -> Iterator[BlockRecords]:
    """Every block of which there is a record, by queue and block. Raises EngineError from any step."""
    families = [_placed(engine, family, bad_key) for family in (keys.CHUNK, keys.SUMMARY, keys.STATE)]
    for (queue_id, index), group in groupby(merge(*families, key=itemgetter(0)), key=itemgetter(0)):
        block = BlockRecords(queue_id, index)
        for _place, family, number, value in group:
            if family == keys.CHUNK:
                block.chunks.append((number, value))
            elif family == keys.SUMMARY:
                block.summaries[number] = value
            else:
                block.state = value
        yield block


def _placed(engine: Engine, family: bytes, bad_key: BadKey) -> Iterator[_Placed]:
    shift = 0 if family == keys.STATE else keys.BLOCK_BITS
    for key, value in engine.iterate(*keys.family_range(family)):
        try:
            queue_id, number = keys.parse_placed_key(key)
        except KeyFormatError:
            bad_key(key, value)
            continue
        yield (queue_id, number >> shift), family, number, value


def of_total(on_progress: Progress | None, engine: Engine) -> Callable[[int], None] | None:
    """A function that tells how far a pass over all messages is; None if nobody wants to know. O(chunks).

    The total is what the summaries say, settled messages included. Raises EngineError.
    """
    if on_progress is None:
        return None
    total_count = 0
    for _key, value in engine.iterate(*keys.family_range(keys.SUMMARY)):
        try:
            total_count += decode_summary(value).count
        except ChunkError:
            continue  # the survey reports it; this is only for a progress bar

    def tell(done_count: int) -> None:
        on_progress(done_count, max(done_count, total_count))

    return tell


class QueueName(NamedTuple):
    """What tells one queue from the others."""

    name: str
    priority: int
    topic: bool
    """False with the name of a topic: messages that wait for their time in front of it."""

    @property
    def said(self) -> str:
        """The name, for people."""
        return self.name if self.topic or not self.name.startswith("/topic/") else f"{self.name} (delayed)"


def queue_of(message: Message) -> QueueName | None:
    """The queue that a message belongs to, by its own headers: where the record of the queue is lost. None: they name
    none, or several.
    """
    destination = message.head.destination
    try:
        address = parse(destination)
    except DestinationNameError:
        return None
    if address.wildcard or "," in destination:
        return None
    # What is for a topic and has a time waits for it in a queue in front.
    topic = address.kind.is_topic and not message.due_at_ms
    return QueueName(address.canonical, message.head.priority, topic)


def body_path(folder: Path, file_id: int) -> Path:
    """Where a large body is (see store/large.py)."""
    return folder / f"{file_id:016x}"


class _NobodysBodies:
    """Keeps no files: a tool looks at references and lets go of them."""

    def keep(self, file_id: int) -> None:
        return

    def forget(self, file_id: int) -> None:
        return

    def reference_died(self, file_id: int) -> None:
        return


_NOBODYS: Final = _NobodysBodies()


def make_large(
    head: Envelope, wire: bytes, number: int, expires_at_ms: int, due_at_ms: int, file_id: int, length_bytes: int
) -> LargeMessage:
    """For `decode_chunk`: a message with its body in a file, which nobody opens."""
    body = BodyReference(_NOBODYS, file_id, length_bytes)
    return LargeMessage(head, wire, number, body, expires_at_ms, due_at_ms)
