"""A value log through failures, crashes and power cuts: what is found is a prefix of whole batches."""

from __future__ import annotations

from random import Random

import pytest

from sluiceway.store import keys
from sluiceway.store.engine import Change, Engine, EngineError, delete, delete_range, put
from sluiceway.store.values import ValueLog, ValueOptions
from tests.how_often import rounds
from tests.store.faulty import Failure, FaultyEngine, FaultySegments

LIVES = 6
BATCHES = 25


def drawn(random: Random, number: int) -> list[Change]:
    """A batch: chunks of two queues, small and large, put, deleted and written anew; a summary that goes with them."""
    changes: list[Change] = []
    for _ in range(random.randint(1, 6)):
        key = keys.chunk_key(random.randint(1, 2), random.randint(0, 12))
        what = random.random()
        if what < 0.55:
            value = b"%d:%d:" % (number, len(changes)) + random.randbytes(random.choice((3, 30, 300)))
            changes += [delete(key)] if random.random() < 0.2 else []
            changes.append(put(key, value))
        elif what < 0.95:
            changes.append(delete(key))
        else:
            changes.append(delete_range(*keys.queue_range(keys.CHUNK, random.randint(1, 2))))
    return [*changes, put(keys.META_NUMBERS_KEY, b"%d" % number)]


def applied(state: dict[bytes, bytes], changes: list[Change]) -> dict[bytes, bytes]:
    engine = FaultyEngine(Random(0))
    engine.write([put(*item) for item in state.items()], sync=False)
    engine.write(changes, sync=False)
    return dict(engine.iterate(b"", b"\xff"))


def found_in(log: Engine) -> dict[bytes, bytes]:
    found = dict(log.iterate(b"", b"\xff"))
    assert all(log.get(key) == value for key, value in found.items())
    assert list(log.iterate_keys(b"", b"\xff")) == list(found)
    return found


def written(log: ValueLog, changes: list[Change], sync: bool, *fail_to_read: FaultyEngine | FaultySegments) -> None:
    """As the store does: again and again, until it succeeds. These disks can't always be read meanwhile."""
    for disk in fail_to_read:
        disk.fail_at_rate(Failure.READ, 0.05)
    while True:
        try:
            log.write(changes, sync=sync)
        except EngineError:
            continue
        break
    for disk in fail_to_read:
        disk.fail_at_rate(Failure.READ, 0)


@pytest.mark.parametrize("seed", range(rounds(15)))
def test_what_is_found_is_a_prefix_of_whole_batches_with_all_that_was_synced(seed: int) -> None:
    random = Random(seed)
    engine, segments = FaultyEngine(Random(random.random())), FaultySegments(Random(random.random()))
    options = ValueOptions(
        record_bytes_min=random.choice((1, 20)),
        batch_bytes_min=random.choice((1, 200)),
        segment_bytes=random.choice((1, 700, 3000)),
        moved_bytes=random.choice((1, 500)),
    )
    is_hard_to_read = random.random() < 0.5
    states: list[dict[bytes, bytes]] = [{}]
    synced = 0
    for _life in range(LIVES):
        disks = (engine, segments)
        log = ValueLog(engine, segments, options)
        log.tidy()
        assert found_in(log) == states[-1]
        for failure in (Failure.WRITE, Failure.SYNC, Failure.DISK_FULL):
            for disk in (engine, segments):
                disk.fail_at_rate(failure, random.choice((0, 0, 0.1, 0.4)))
        for number in range(random.randint(1, BATCHES)):
            changes, sync = drawn(random, number), random.random() < 0.4
            written(log, changes, sync, *(disks if is_hard_to_read else ()))
            states.append(applied(states[-1], changes))
            synced = len(states) - 1 if sync else synced
            assert found_in(log) == states[-1]
        if random.random() < 0.3:
            engine, segments = engine.crash(), segments.crash()
            continue
        engine, segments = engine.power_cut(), segments.power_cut()
        survived = found_in(ValueLog(engine, segments, options))
        assert survived in states[synced:]
        states = states[: states.index(survived, synced) + 1]
    log = ValueLog(engine, segments, options)
    log.tidy()
    written(log, [delete_range(*keys.family_range(keys.CHUNK))], sync=True)
    assert not segments.sizes(), "nothing is needed, and nothing is left"
    assert not list(engine.iterate(*keys.family_range(keys.VALUE)))


@pytest.mark.parametrize("seed", range(10))
def test_segments_take_a_few_times_what_they_hold(seed: int) -> None:
    """Of each hundred values one stays, which would keep them all."""
    random = Random(seed)
    segments = FaultySegments(random)
    options = ValueOptions(record_bytes_min=1, batch_bytes_min=1, segment_bytes=5_000, moved_bytes=1_000)
    log = ValueLog(FaultyEngine(random), segments, options)
    kept: dict[bytes, bytes] = {}
    for number in range(200):
        names = [keys.chunk_key(1, number * 10 + place) for place in range(10)]
        values = {name: random.randbytes(100) for name in names}
        log.write([put(*item) for item in values.items()], sync=False)
        if not number % 10:
            kept[names[0]] = values.pop(names[0])
        log.write([delete(name) for name in values], sync=True)
    for _ in range(5):
        log.write([], sync=True)
    assert dict(log.iterate(*keys.family_range(keys.CHUNK))) == kept
    needed_bytes = sum(map(len, kept.values())) + len(kept) * 20
    assert sum(segments.sizes().values()) <= options.sparse_share * needed_bytes + options.segment_bytes
    assert log.size_bytes() - sum(segments.sizes().values()) < 10_000
