"""What reading a backlog back asks of the engine: counted, for time depends on the machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sluiceway.store.memory import MemoryEngine
from tests.store.rig import StoreWorld


class CountingEngine(MemoryEngine):
    """Counts what is read of it."""

    def __init__(self) -> None:
        super().__init__()
        self.gets_count = 0
        self.seeks_count = 0

    def get(self, key: bytes) -> bytes | None:
        self.gets_count += 1
        return super().get(key)

    def iterate(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        self.seeks_count += 1
        return super().iterate(start, stop, reverse=reverse)

    def iterate_keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        self.seeks_count += 1
        return super().iterate_keys(start, stop)


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("blocks_count", [10, 40])
def test_a_block_is_read_by_its_keys_and_no_range_is_searched(blocks_count: int, persistent: bool) -> None:
    """A search would walk over all that was deleted before: a drain would take a time that grows with its square."""
    engine = CountingEngine()
    world = StoreWorld(engine)
    queue = world.queue(memory_bytes=64 * 1024)
    for _ in range(blocks_count * 8):
        world.put(queue, 128, persistent=persistent)
        world.settle_down()
    assert queue.elements.outside_count >= blocks_count
    engine.gets_count = engine.seeks_count = 0
    consumer = world.consumer(auto=True)
    queue.subscribe(consumer)
    world.settle_down()
    assert queue.settled_count == blocks_count * 1024
    assert queue.pager is not None
    assert engine.seeks_count == 0
    assert engine.gets_count <= 2 * queue.pager.paged_in_count, "one record of a kind for each block"
