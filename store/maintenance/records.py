"""All records of one block together, in the order of the table, valid or not.

How it works: chunks, summaries and states are three families, each in order of queue and block; they are merged, so one
pass reads every record once and holds those of one block at a time.

Not here: checks of the records (survey.py).
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
from ...queues.names import DestinationNameError, parse, part_in_words, without_host
from .. import keys
from ..chunks import ChunkError, decode_summary
from ..engine import Engine
from ..keys import KeyFormatError

_Placed = tuple[tuple[int, int], bytes, int, bytes]
"""Queue and block; family; the rest of the key; value."""

Progress = Callable[[int, int], None]
"""Gets the number of messages done, and of all."""

BadKey = Callable[[bytes, bytes], None]
"""Gets a key that its family does not have, and its value."""


@attrs.define
class BlockRecords:
    """Records of one block."""

    queue_id: int
    index: int
    chunks: list[tuple[int, bytes]] = attrs.field(factory=list)
    """First sequence and value, ascending."""
    summaries: dict[int, bytes] = attrs.field(factory=dict)
    """Summaries by first sequence."""
    state: bytes | None = None

    @property
    def base(self) -> int:
        """First sequence of the block."""
        return self.index << keys.BLOCK_BITS


def blocks(engine: Engine, bad_key: BadKey) -> Iterator[BlockRecords]:
    """Yield every block that has a record, by queue and block. Raises EngineError from any step."""
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
    """Return a function that reports the progress of a pass over all messages; None without `on_progress`. O(chunks).

    The total comes from the summaries, settled messages included. Raises EngineError.
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
    """Identity of a queue."""

    name: str
    priority: int
    topic: bool
    """False with the name of a topic: delayed messages in front of it."""

    @property
    def said(self) -> str:
        """Name, for people."""
        said = part_in_words(self.name)
        return said if self.topic or not without_host(self.name).startswith("/topic/") else f"{said} (delayed)"


def queue_of(message: Message) -> QueueName | None:
    """Return the queue of a message by its own headers, for a lost queue record. None: they name none, or several."""
    destination = message.head.destination
    try:
        address = parse(destination)
    except DestinationNameError:
        return None
    if address.wildcard or "," in destination:
        return None
    # A delayed message for a topic waits in a queue in front of it.
    topic = address.kind.is_topic and not message.due_at_ms
    return QueueName(address.canonical, message.head.priority, topic)


def body_path(folder: Path, file_id: int) -> Path:
    """Return the path of a large body (see store/large.py)."""
    return folder / f"{file_id:016x}"


class _NobodysBodies:
    """Reference counts for a tool, which keeps no files."""

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
    """Make a message for `decode_chunk` with its body in a file that is never opened."""
    body = BodyReference(_NOBODYS, file_id, length_bytes)
    return LargeMessage(head, wire, number, body, expires_at_ms, due_at_ms)
