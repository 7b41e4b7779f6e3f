"""Reading a block back: its records by range, from the reader thread, and their messages.

A record that can't be read is moved aside and told; the queue misses its elements and says how many. A read that fails
is tried again: whoever waits for the block waits on, and everybody else goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from queues.message import Message
from store import keys
from store.chunks import ChunkError, decode_chunk
from store.engine import Engine, EngineError

if TYPE_CHECKING:
    from store.storequeue import StoreQueue


def load_block(
    store: StoreQueue,
    queue_id: int,
    index: int,
    queue_name: str,
    is_forgotten: Callable[[], bool],
    arrived: Callable[[int, dict[int, Message]], None],
) -> None:
    """Read this block; `arrived` gets its number and the elements, by sequence, that the store has. None of them if the
    queue was deleted meanwhile.
    """
    ranges = [keys.block_range(family, queue_id, index) for family in (keys.CHUNK, keys.PAGED)]

    def read(engine: Engine) -> list[tuple[bytes, bytes]]:
        return [pair for start, stop in ranges for pair in engine.iterate(start, stop)]

    def loaded(result: list[tuple[bytes, bytes]] | EngineError) -> None:
        if is_forgotten():
            arrived(index, {})  # a browser may wait for it
        elif isinstance(result, EngineError):
            store.read_failed(result, lambda: store.worker.read(read, loaded))
        else:
            arrived(index, _decoded(store, queue_name, result))

    store.worker.read(read, loaded)


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
