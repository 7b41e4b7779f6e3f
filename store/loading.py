"""Reading a block back: its records by range, from the reader thread, and their messages.

A record that can't be read is moved aside and told; the queue misses its elements and says how many. A read that fails
is tried again: whoever waits for the block waits on, and everybody else goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from queues.message import Message
from store import keys
from store.chunks import ChunkError, decode_chunk
from store.engine import CorruptionError, Engine, EngineError

if TYPE_CHECKING:
    from store.storequeue import StoreQueue

Records = tuple[list[tuple[bytes, bytes]], list[tuple[bytes, Exception]]]
"""What was read, and what is damaged."""


def load_block(
    store: StoreQueue,
    queue_id: int,
    index: int,
    queue_name: str,
    known: Iterable[bytes],
    is_forgotten: Callable[[], bool],
    arrived: Callable[[int, dict[int, Message]], None],
) -> None:
    """Read this block; `arrived` gets its number and the elements, by sequence, that the store has. None of them if the
    queue was deleted meanwhile. `known`: the keys of its records, for the case that a part of the range is damaged.
    """
    ranges = [keys.block_range(family, queue_id, index) for family in (keys.CHUNK, keys.PAGED)]

    by_key = list(known)

    def read(engine: Engine) -> Records:
        try:
            return [pair for start, stop in ranges for pair in engine.iterate(start, stop)], []
        except CorruptionError:
            return _read_one_by_one(engine, by_key)

    def loaded(result: Records | EngineError) -> None:
        if is_forgotten():
            arrived(index, {})  # a browser may wait for it
        elif isinstance(result, EngineError):
            store.read_failed(result, lambda: store.worker.read(read, loaded))
        else:
            records, damaged = result
            for key, error in damaged:
                store.corrupt(queue_name, key, b"", error)
            arrived(index, _decoded(store, queue_name, records))

    store.worker.read(read, loaded)


def _read_one_by_one(engine: Engine, by_key: list[bytes]) -> Records:
    """What can be read of these, and what the engine finds damaged. Trying again would not help."""
    records: list[tuple[bytes, bytes]] = []
    damaged: list[tuple[bytes, Exception]] = []
    for key in by_key:
        try:
            value = engine.get(key)
        except CorruptionError as error:
            damaged.append((key, error))
            continue
        if value is not None:
            records.append((key, value))
    return records, damaged


def _decoded(store: StoreQueue, queue_name: str, records: list[tuple[bytes, bytes]]) -> dict[int, Message]:
    found: dict[int, Message] = {}
    for key, value in records:
        _queue_id, first = keys.parse_placed_key(key)
        try:
            sequences, messages = decode_chunk(first, value, store.heads, store.make_large)
        except ChunkError as error:
            store.corrupt(queue_name, key, value, error)
            continue
        found.update(zip(sequences, messages, strict=True))
    store.loaded_count += len(found)
    return found
