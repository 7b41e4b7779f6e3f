"""Reading a block back: its records by their keys, from the reader thread, and their messages.

What the disk has of a block is known in memory (stored_block.py), so a record is asked for by name. To seek it in a
range would walk over all that was deleted there before: LevelDB keeps that until it compacts, and a backlog that is
drained would be read in a time that grows with its square.

A record that can't be read is moved aside and told; the queue misses its elements and says how many. A read that fails
is tried again: whoever waits for the block waits on, and everybody else goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING

from queues.message import Message
from store import keys
from store.chunks import ChunkError, decode_chunk
from store.engine import CorruptionError, Engine, EngineError
from store.paged import PagedBlocks, Record

if TYPE_CHECKING:
    from store.storequeue import StoreQueue

Records = tuple[list[tuple[bytes, bytes]], list[tuple[bytes, Exception]]]
"""What was read, and what is damaged."""


def load_block(
    store: StoreQueue,
    index: int,
    queue_name: str,
    known: SequenceOf[Record],
    is_forgotten: Callable[[], bool],
    arrived: Callable[[int, dict[int, Message]], None],
) -> None:
    """Read this block, whose records are `known`; `arrived` gets its number and the elements, by sequence,
    that the store has. None of them if the queue was deleted meanwhile.
    """

    paged = store.paged
    paged.hold(known)

    def loaded(result: Records | EngineError) -> None:
        if is_forgotten():
            paged.forget(known)
            arrived(index, {})  # a browser may wait for it
        elif isinstance(result, EngineError):
            store.read_failed(result, lambda: store.worker.read(read, loaded))
        else:
            paged.forget(known)
            records, damaged = result
            for key, error in damaged:
                store.corrupt(queue_name, key, b"", error)
            arrived(index, _decoded(store, queue_name, records))

    def read(engine: Engine) -> Records:
        return _read(engine, paged, known)

    store.worker.read(read, loaded)


def _read(engine: Engine, paged: PagedBlocks, known: SequenceOf[Record]) -> Records:
    """What can be read of these, and what the engine finds damaged. Trying again would not help."""
    records: list[tuple[bytes, bytes]] = []
    damaged: list[tuple[bytes, Exception]] = []
    for record in known:
        try:
            value = paged.read(record, engine)
        except CorruptionError as error:
            damaged.append((record.key, error))
            continue
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
