"""Reading a block back: its records by their keys, from the reader thread, and their messages.

The records of a block are known in memory (stored_block.py), so a record is asked for by name. To seek it in a range
would walk over all records deleted there before: LevelDB keeps them until it compacts, and a backlog that is drained
would be read in a time that grows with its square.

A record that can't be read is moved aside and logged; the queue misses its elements and says how many. A read that
fails is tried again: readers of the block wait on, all others go on. A read that meets a bad sector is tried a few
times; then the record counts as damaged, its readable part is moved aside, and the other records of the block arrive.
If no place of the disk can be read, the cause is not a bad sector, and the read is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Final

from ..queues.message import Message
from . import keys
from .batch import ChunkRecord
from .chunks import ChunkError, decode_chunk
from .engine import CorruptionError, Engine, EngineError, UnreadableError
from .paged import PagedBlocks

if TYPE_CHECKING:
    from .storequeue import StoreQueue

UNREADABLE_PAUSES: Final = (1.0, 5.0, 25.0)
"""Seconds before a record in a bad sector is read again: sectors come back rarely, cables and controllers do."""

Records = tuple[list[tuple[bytes, bytes]], list[tuple[bytes, Exception]]]
"""Records that were read, and damaged ones with their errors."""


def load_block(
    store: StoreQueue,
    index: int,
    queue_name: str,
    known: SequenceOf[ChunkRecord],
    is_forgotten: Callable[[], bool],
    arrived: Callable[[int, dict[int, Message]], None],
) -> None:
    """Read this block, whose records are `known`; `arrived` gets its number and the elements, by sequence,
    that the store has. None of them if the queue was deleted meanwhile.
    """

    paged = store.paged
    paged.hold(known)
    pauses = list(UNREADABLE_PAUSES)

    def loaded(result: Records | EngineError) -> None:
        if is_forgotten():
            paged.forget(known)
            arrived(index, {})  # a browser may wait for it
        elif isinstance(result, UnreadableError) and pauses:
            store.read_failed(result, again, pause_seconds=pauses.pop(0))
        elif isinstance(result, EngineError):
            store.read_failed(result, again)
        else:
            paged.forget(known)
            records, damaged = result
            for key, error in damaged:
                store.corrupt(queue_name, key, b"", error)
            arrived(index, _decoded(store, queue_name, records))

    def again() -> None:
        store.worker.read(lambda engine: _read(engine, paged, known, reads_around=not pauses), loaded)

    again()


def _read(engine: Engine, paged: PagedBlocks, known: SequenceOf[ChunkRecord], *, reads_around: bool) -> Records:
    """Read records as far as possible; also return those that the engine finds damaged, which another attempt would not
    help. `reads_around`: count bad sectors as damage. Raises EngineError where another attempt may help.
    """
    records: list[tuple[bytes, bytes]] = []
    damaged: list[tuple[bytes, Exception]] = []
    for record in known:
        try:
            value = paged.read(record, engine)
        except CorruptionError as error:
            damaged.append((record.key, error))
            continue
        except UnreadableError as error:
            value = error.read_around() if reads_around else None
            if value is None:
                raise
            if record.page is not None or not value:
                damaged.append((record.key, error))
                continue
            # Its checksum says whether it is whole, now that it was read in small pieces.
        if value is not None:
            records.append((record.key, value))
    return records, damaged


def _decoded(store: StoreQueue, queue_name: str, records: list[tuple[bytes, bytes]]) -> dict[int, Message]:
    found: dict[int, Message] = {}
    for key, value in records:
        _queue_id, first = keys.parse_placed_key(key)
        try:
            # Pages were checked by the thread that read them.
            is_checked = store.paged.files is not None and key.startswith(keys.PAGED)
            sequences, messages = decode_chunk(first, value, store.heads, store.make_large, is_checked=is_checked)
        except ChunkError as error:
            store.corrupt(queue_name, key, value, error)
            continue
        found.update(zip(sequences, messages, strict=True))
    store.loaded_count += len(found)
    return found
