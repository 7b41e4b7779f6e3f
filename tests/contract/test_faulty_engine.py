"""The engine that fails on demand: what it promises beyond the contract of all engines."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.store.engine import (
    CorruptionError,
    DiskFullError,
    Engine,
    EngineClosedError,
    EngineError,
    EngineFailedError,
    delete_range,
    put,
)
from tests.how_often import rounds
from tests.store.faulty import Failure, FaultyEngine, WriteTimes

LAST = b"\xff" * 8


def keys_of(engine: Engine) -> list[bytes]:
    return list(engine.iterate_keys(b"", LAST))


def write(engine: Engine, *names: str, sync: bool = False) -> None:
    engine.write([put(name.encode(), b"value") for name in names], sync=sync)


def test_a_power_cut_keeps_everything_that_was_synced() -> None:
    for seed in range(20):
        engine = FaultyEngine(Random(seed))
        write(engine, "a", "b")
        write(engine, "c", sync=True)
        assert keys_of(engine.power_cut()) == [b"a", b"b", b"c"]


def test_an_empty_synced_batch_syncs_what_was_written_before() -> None:
    for seed in range(20):
        engine = FaultyEngine(Random(seed))
        write(engine, "a")
        engine.write([], sync=True)
        assert engine.unsynced_count == 0
        assert keys_of(engine.power_cut()) == [b"a"]


def test_a_power_cut_leaves_every_prefix_of_whole_batches_and_nothing_else() -> None:
    found = set()
    for seed in range(rounds(20)):
        engine = FaultyEngine(Random(seed))
        write(engine, "a", sync=True)
        write(engine, "b1", "b2")
        write(engine, "c1", "c2")
        engine.write([delete_range(b"a", b"c")], sync=False)
        found.add(tuple(keys_of(engine.power_cut())))
    assert found == {
        (b"a",),
        (b"a", b"b1", b"b2"),
        (b"a", b"b1", b"b2", b"c1", b"c2"),
        (b"c1", b"c2"),
    }


@given(st.integers(0, 1000), st.lists(st.booleans(), max_size=12))
def test_what_survives_a_power_cut_is_all_up_to_the_last_sync_and_a_prefix_after_it(
    seed: int, syncs: list[bool]
) -> None:
    engine = FaultyEngine(Random(seed))
    for place, sync in enumerate(syncs):
        engine.write([put(bytes([place]), b"value")], sync=sync)
    survived = keys_of(engine.power_cut())
    assert survived == [bytes([place]) for place in range(len(survived))]
    assert len(survived) >= max((place + 1 for place, sync in enumerate(syncs) if sync), default=0)


def test_what_survived_a_power_cut_may_still_be_lost_in_the_next() -> None:
    """Until it is synced: the engine does not claim more than it knows."""
    sizes = set()
    for seed in range(rounds(20)):
        engine = FaultyEngine(Random(seed))
        write(engine, "a")
        first = engine.power_cut()
        kept = keys_of(first)
        second = keys_of(first.power_cut())
        assert set(second) <= set(kept)
        sizes.add((len(kept), len(second)))
    assert sizes == {(0, 0), (1, 0), (1, 1)}


def test_a_crash_keeps_everything_that_was_written() -> None:
    engine = FaultyEngine(Random(1))
    write(engine, "a", sync=True)
    write(engine, "b")
    found = engine.crash()
    assert keys_of(found) == [b"a", b"b"]
    assert found.unsynced_count == 1


def test_the_same_seed_and_the_same_calls_are_the_same_run() -> None:
    def run(seed: int) -> list[list[bytes]]:
        engine, seen = FaultyEngine(Random(seed)), []
        engine.fail_at_rate(Failure.WRITE, 0.3)
        for turn in range(10):
            for place in range(5):
                try:
                    write(engine, f"{turn}-{place}")
                except EngineFailedError:
                    seen.append([b"failed"])
            engine = engine.power_cut()
            engine.fail_at_rate(Failure.WRITE, 0.3)
            seen.append(keys_of(engine))
        return seen

    assert run(7) == run(7)
    assert run(7) != run(8)


def test_an_engine_is_closed_once_its_successor_is_there() -> None:
    engine = FaultyEngine(Random(1))
    engine.power_cut()
    with pytest.raises(EngineClosedError):
        engine.get(b"a")
    with pytest.raises(EngineClosedError):
        engine.write([], sync=True)


def test_an_engine_that_was_closed_in_good_order_can_still_lose_its_power() -> None:
    engine = FaultyEngine(Random(1))
    write(engine, "a", sync=True)
    engine.close()
    assert keys_of(engine.power_cut()) == [b"a"]


@pytest.mark.parametrize(("failure", "error"), [(Failure.DISK_FULL, DiskFullError), (Failure.WRITE, EngineFailedError)])
def test_a_write_that_fails_applies_nothing_and_the_next_goes_through(
    failure: Failure, error: type[EngineError]
) -> None:
    engine = FaultyEngine(Random(1))
    engine.fail_next(failure, times=2)
    for _ in range(2):
        with pytest.raises(error):
            write(engine, "a", "b", sync=True)
    assert keys_of(engine) == []
    assert (engine.write_count, engine.sync_count, engine.unsynced_count) == (0, 0, 0)
    write(engine, "a", "b", sync=True)
    assert keys_of(engine) == [b"a", b"b"]
    assert (engine.write_count, engine.sync_count) == (1, 1)


def test_a_sync_that_fails_leaves_the_batch_applied_but_not_safe() -> None:
    survivors = set()
    for seed in range(20):
        engine = FaultyEngine(Random(seed))
        engine.fail_next(Failure.SYNC)
        write(engine, "a")  # is not synced, so it can't fail like that
        with pytest.raises(EngineFailedError):
            write(engine, "b", sync=True)
        assert keys_of(engine) == [b"a", b"b"]
        survivors.add(tuple(keys_of(engine.power_cut())))
    assert survivors == {(), (b"a",), (b"a", b"b")}


def test_the_sync_after_one_that_failed_makes_all_of_it_safe() -> None:
    for seed in range(20):
        engine = FaultyEngine(Random(seed))
        engine.fail_next(Failure.SYNC)
        with pytest.raises(EngineFailedError):
            write(engine, "a", sync=True)
        write(engine, "a", sync=True)
        assert keys_of(engine.power_cut()) == [b"a"]


@pytest.mark.parametrize(("failure", "error"), [(Failure.READ, EngineFailedError), (Failure.DAMAGE, CorruptionError)])
def test_reads_fail_on_demand(failure: Failure, error: type[EngineError]) -> None:
    engine = FaultyEngine(Random(1))
    write(engine, "a")
    for read in (lambda: engine.get(b"a"), lambda: engine.iterate(b"", LAST), lambda: engine.iterate_keys(b"", LAST)):
        engine.fail_next(failure)
        with pytest.raises(error):
            read()
        read()


def test_a_rate_of_failures_is_met_about_and_can_be_switched_off() -> None:
    engine = FaultyEngine(Random(1))
    engine.fail_at_rate(Failure.DISK_FULL, 0.25)
    failed_count = 0
    for place in range(1000):
        try:
            write(engine, str(place))
        except DiskFullError:
            failed_count += 1
    assert 200 < failed_count < 300
    engine.fail_at_rate(Failure.DISK_FULL, 0)
    for place in range(100):
        write(engine, str(place))


def test_a_rate_that_is_no_share_is_refused() -> None:
    with pytest.raises(ValueError, match="0 to 1"):
        FaultyEngine(Random(1)).fail_at_rate(Failure.READ, 1.5)


def test_nothing_fails_after_a_crash_or_a_power_cut_unless_told_again() -> None:
    engine = FaultyEngine(Random(1))
    engine.fail_next(Failure.READ, times=100)
    engine.fail_at_rate(Failure.WRITE, 1)
    for found in (engine.crash(), engine.power_cut()):
        found.get(b"a")
        write(found, "a", sync=True)


def test_corrupting_flips_one_bit_and_nothing_else() -> None:
    for sync in (False, True):
        engine = FaultyEngine(Random(1))
        engine.write([put(b"a", bytes(100)), put(b"b", b"other")], sync=sync)
        engine.corrupt(b"a")
        value = engine.get(b"a")
        assert value is not None
        assert len(value) == 100
        assert sum(byte.bit_count() for byte in value) == 1
        assert engine.get(b"b") == b"other"
        assert engine.crash().get(b"a") == value


def test_corruption_survives_a_power_cut_with_the_value() -> None:
    for seed in range(20):
        engine = FaultyEngine(Random(seed))
        engine.write([put(b"a", b"old")], sync=True)
        engine.write([put(b"a", b"new and longer")], sync=False)
        engine.corrupt(b"a")
        assert engine.power_cut().get(b"a") not in (b"old", b"new and longer", None)


def test_what_is_not_there_cannot_be_corrupted() -> None:
    engine = FaultyEngine(Random(1))
    engine.write([put(b"empty", b"")], sync=True)
    for key in (b"nothing", b"empty"):
        with pytest.raises(ValueError, match=key.hex()):
            engine.corrupt(key)


def test_slowness_is_counted_in_virtual_seconds() -> None:
    spent: list[float] = []
    engine = FaultyEngine(
        Random(1), times=WriteTimes(write_seconds=1.0, sync_seconds=10.0, seconds_per_byte=0.5), spend=spent.append
    )
    engine.write([put(b"ab", b"cd")], sync=False)
    engine.write([put(b"ab", b"cd")], sync=True)
    engine.fail_next(Failure.DISK_FULL)
    with pytest.raises(DiskFullError):
        engine.write([], sync=False)
    engine.power_cut().write([], sync=True)
    assert spent == [3.0, 13.0, 1.0, 11.0]
