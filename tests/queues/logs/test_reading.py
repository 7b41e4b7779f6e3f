"""The cache of records as they are handed over: made once for all readers, bounded, and charged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.queues.logs.codecs import Codec
from sluiceway.queues.logs.log_readers import LogReaders
from sluiceway.queues.logs.reading import CHECKED_COUNT, CHUNK_COUNT, Unreadable
from tests.queues.logs.rig import CACHE_BYTES, LogWorld, texts


def used_bytes(world: LogWorld) -> int:
    (controller,) = world.reading.controllers
    assert controller.sink_limiter is not None
    return controller.sink_limiter.used_bytes


def test_ten_readers_share_one_chunk() -> None:
    """The messages are the same objects, and the file is looked at once."""
    world = LogWorld()
    world.fill(100)
    readers = [world.join(world.outlet(), auto=True) for _ in range(10)]
    looked_at_count = world.records.looked_at_count
    assert looked_at_count <= 2
    first = [id(delivery.message) for delivery in readers[0].deliveries]
    assert len(first) == 100
    assert all([id(delivery.message) for delivery in reader.deliveries] == first for reader in readers)
    assert world.reading.facts() == {"chunks": 1, "batches": 1}
    assert all(len(reader.slices) == 1 for reader in readers)
    assert len({id(reader.slices[0]) for reader in readers}) == 1, "and so is what was rendered of them"


def test_a_compressed_batch_is_expanded_once_for_all() -> None:
    world = LogWorld()
    world.fill(5000, codec=Codec.ZSTD)
    for _ in range(5):
        reader = world.join(world.outlet(), window=7, auto=True)
        assert reader.numbers == list(range(5000))
    assert world.reading.facts()["batches"] == 1


def test_what_is_kept_is_charged_and_bounded() -> None:
    world = LogWorld(cache_bytes=200_000)
    for _ in range(40):
        world.fill(100, value_bytes=100, codec=Codec.GZIP)
    for start in range(0, 4000, 130):
        reader = world.join(world.outlet(start, stop=start + 300), window=50, auto=True)
        assert reader.numbers == list(range(start, min(4000, start + 300)))
        # One chunk and one batch may be more than there is room for.
        assert used_bytes(world) < 200_000 + 2 * CHUNK_COUNT * 1000
    list(world.reading.forgetting(world.log))
    assert used_bytes(world) == 0
    assert world.reading.facts() == {"chunks": 0, "batches": 0}


def test_a_slice_is_at_least_one_record_and_not_more_than_asked_for() -> None:
    world = LogWorld()
    world.fill(50, value_bytes=1000)
    assert len(world.reading.part(world.log, 3, 50, 100, 1)) == 1
    assert len(world.reading.part(world.log, 3, 50, 7, 1 << 30)) == 7
    assert len(world.reading.part(world.log, 3, 9, 100, 1 << 30)) == 6
    part = world.reading.part(world.log, 3, 50, 100, 5000)
    assert len(part) == 4
    assert part.wire_bytes <= 5000


def test_a_chunk_ends_before_a_gap() -> None:
    world = LogWorld()
    world.fill(5)
    world.records.lose(10)
    world.fill(5)
    part = world.reading.part(world.log, 0, 20, 100, 1 << 30)
    assert list(part.sequences) == [0, 1, 2, 3, 4]
    assert texts(world.reading.part(world.log, 15, 20, 100, 1 << 30))[0] == b"15"


@given(
    st.lists(st.tuples(st.integers(1, 30), st.sampled_from(list(Codec))), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 250), st.integers(1, 60), st.integers(1, 2000)), max_size=30),
    st.sampled_from([3000, 20_000, CACHE_BYTES]),
)
def test_any_part_is_what_lies_there(
    batches: list[tuple[int, Codec]], wishes: list[tuple[int, int, int]], cache_bytes: int
) -> None:
    """In whatever order one asks, whatever is kept and forgotten."""
    world = LogWorld(cache_bytes=cache_bytes)
    for count, codec in batches:
        world.fill(count, codec=codec)
    end = world.records.next_index
    for start, count_max, bytes_max in wishes:
        start %= end
        part = world.reading.part(world.log, start, end, count_max, bytes_max)
        assert 1 <= len(part) <= count_max
        assert list(part.sequences) == list(range(start, start + len(part)))
        assert texts(part) == [b"%d" % index for index in part.sequences]
        assert [message.number for message in part.messages] == list(part.sequences)
        assert len(part) == 1 or part.wire_bytes <= bytes_max
        assert part.wire_bytes == sum(len(message.wire) for message in part.messages)
    list(world.reading.forgetting(world.log))
    assert used_bytes(world) == 0


def test_a_damaged_batch_is_unreadable_and_nothing_of_it_stays_charged() -> None:
    world = LogWorld()
    world.fill(5, 5, 5)
    damaged = bytearray(world.records.batches[1])
    damaged[-9] ^= 1
    world.records.batches[1] = bytes(damaged)
    assert list(world.reading.part(world.log, 0, 15, 100, 1 << 30).sequences) == [0, 1, 2, 3, 4]
    with pytest.raises(Unreadable, match="checksum"):
        world.reading.part(world.log, 7, 15, 100, 1 << 30)
    reader = world.join(world.outlet(3), auto=True)
    assert reader.numbers == [3, 4, 10, 11, 12, 13, 14]
    assert reader.gaps == [(5, 10, "damaged")]


def test_the_tail_is_followed_record_by_record() -> None:
    world = LogWorld()
    outlet: LogReaders = world.outlet()
    readers = [world.join(outlet if number == 0 else world.outlet(), auto=True) for number in range(3)]
    for _ in range(200):
        world.fill(1)
    assert all(reader.numbers == list(range(200)) for reader in readers)


@pytest.mark.parametrize("sound", [True, False])
def test_a_long_batch_is_checked_by_the_thread_that_reads(sound: bool) -> None:
    """Who reads from it waits, and goes on when it is ready; once for all of them."""
    world = LogWorld()
    world.fill(CHECKED_COUNT + 1)
    if not sound:
        world.records.batches[0] = world.records.batches[0][:-1] + b"!"
    world.disk.held = True
    first, second = [world.join(world.outlet(CHECKED_COUNT - 3), auto=True) for _ in range(2)]
    assert first.numbers == second.numbers == []
    jobs_count = len(world.disk.jobs)
    world.join(world.outlet(CHECKED_COUNT - 1), auto=True)
    assert len(world.disk.jobs) == jobs_count == 1, "asked for once"
    world.disk.work()
    world.run()
    wanted = list(range(CHECKED_COUNT - 3, CHECKED_COUNT + 1)) if sound else []
    assert first.numbers == second.numbers == wanted
    assert not world.disk.jobs


def test_a_long_batch_that_the_disk_does_not_give_is_asked_for_again() -> None:
    world = LogWorld()
    world.fill(CHECKED_COUNT + 1)
    world.disk.held = True
    reader = world.join(world.outlet(CHECKED_COUNT), auto=True)
    world.disk.failing = "no memory"
    world.disk.work()
    world.run()
    assert not world.disk.jobs
    world.disk.failing = ""
    world.disk.held = False
    world.advance(2)
    world.run()
    assert reader.numbers == [CHECKED_COUNT]
