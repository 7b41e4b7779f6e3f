"""The value log: what lies in segments, what is given back and when, and what a damaged one costs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from sluiceway.protocols.stomp.header_codec import HeaderCodec
from sluiceway.store import keys
from sluiceway.store.directory import FormatError, open_directory
from sluiceway.store.engine import (
    CorruptionError,
    DiskFullError,
    EngineError,
    EngineFailedError,
    delete,
    delete_range,
    put,
)
from sluiceway.store.keys import FORMAT_VERSION, FORMAT_VERSION_MIN
from sluiceway.store.leveldb import LevelDbEngine
from sluiceway.store.maintenance.check import check_folder
from sluiceway.store.maintenance.compacting import compact
from sluiceway.store.maintenance.mending import repair
from sluiceway.store.maintenance.opening import open_store
from sluiceway.store.valuecodec import PointerError, ValuePointer, decode_pointer, encode_pointer
from sluiceway.store.values import ValueLog, ValueOptions, ValuesMissingError
from tests.store.faulty import Failure, FaultyEngine, FaultySegments

SMALL = ValueOptions(record_bytes_min=10, batch_bytes_min=20, segment_bytes=400, moved_bytes=100)
NAMES = [keys.chunk_key(1, number) for number in range(20)]


@pytest.fixture
def engine() -> FaultyEngine:
    return FaultyEngine(Random(1))


@pytest.fixture
def segments() -> FaultySegments:
    return FaultySegments(Random(1))


@pytest.fixture
def log(engine: FaultyEngine, segments: FaultySegments) -> ValueLog:
    return ValueLog(engine, segments, SMALL)


def fill(log: ValueLog, *names: bytes, size_bytes: int = 100) -> None:
    log.write([put(name, name[-1:] * size_bytes) for name in names], sync=True)


def test_large_chunks_lie_in_segments_and_the_engine_has_their_places(
    log: ValueLog, engine: FaultyEngine, segments: FaultySegments
) -> None:
    summary = put(keys.summary_key(1, 0), b"s" * 50)
    log.write([put(NAMES[0], b"a" * 100), put(NAMES[1], b"small"), summary], sync=False)
    assert engine.get(NAMES[0]) is None and engine.get(NAMES[1]) == b"small"
    assert engine.get(summary[1]) == summary[2], "nothing but chunks"
    place = decode_pointer(engine.get(keys.value_key(1, 0)) or b"")
    assert segments.read(place.segment, place.offset, place.size_bytes) == b"a" * 100
    assert log.get(NAMES[0]) == b"a" * 100
    assert [key for key, _value in log.iterate(b"", b"\xff")] == [summary[1], NAMES[0], NAMES[1]]


def test_a_batch_with_little_in_it_costs_one_sync(
    log: ValueLog, engine: FaultyEngine, segments: FaultySegments
) -> None:
    log.write([put(NAMES[0], b"a" * 19)], sync=True)
    assert engine.get(NAMES[0]) is not None and not segments.sizes()


def test_a_value_is_synced_before_its_place_is_written(engine: FaultyEngine, segments: FaultySegments) -> None:
    """Also if nobody waits for that batch: what comes back after a power cut is there."""
    log = ValueLog(engine, segments, SMALL)
    written_before: list[int] = []
    segments.before_sync = lambda: written_before.append(engine.write_count)
    log.write([put(NAMES[0], b"a" * 100)], sync=False)
    assert (written_before, engine.write_count) == ([0], 1)


def test_a_segment_goes_with_the_sync_behind_the_last_value_of_it(log: ValueLog, segments: FaultySegments) -> None:
    fill(log, *NAMES[:3])
    log.write([delete(NAMES[0]), delete(NAMES[1])], sync=True)
    assert len(segments.sizes()) == 1
    log.write([delete(NAMES[2])], sync=False)
    assert len(segments.sizes()) == 1, "a power cut could bring its place back"
    assert log.size_bytes() >= 300
    log.write([], sync=True)
    assert not segments.sizes()


def test_who_iterates_finds_all_values_of_that_moment(log: ValueLog, segments: FaultySegments) -> None:
    fill(log, *NAMES[:3])
    steps = log.iterate(*keys.family_range(keys.CHUNK))
    log.write([delete(name) for name in NAMES[:3]], sync=True)
    assert [value[:1] for _key, value in steps] == [name[-1:] for name in NAMES[:3]]
    del steps
    log.write([], sync=True)
    assert not segments.sizes()


def test_one_value_does_not_keep_a_segment(log: ValueLog, segments: FaultySegments) -> None:
    fill(log, NAMES[0], size_bytes=30)
    fill(log, *NAMES[1:8])
    log.write([delete(name) for name in NAMES[1:8]], sync=True)
    log.write([], sync=True)
    assert sum(segments.sizes().values()) == 50
    assert log.get(NAMES[0]) == NAMES[0][-1:] * 30


def test_a_reader_finds_what_was_moved_meanwhile(log: ValueLog, engine: FaultyEngine, segments: FaultySegments) -> None:
    fill(log, NAMES[0])
    found = engine.get(keys.value_key(1, 0))
    assert found is not None
    place = decode_pointer(found)
    moved = ValuePointer(7, 3, place.size_bytes, place.checksum)
    engine_get = engine.get
    answers = [found, encode_pointer(moved)]
    segments.write(7, 3, [log.get(NAMES[0]) or b""], sync=True)
    segments.remove(place.segment)
    log._engine = type("Moving", (), {"get": lambda _self, key: answers.pop(0) if answers else engine_get(key)})()
    assert log.get(NAMES[0]) == NAMES[0][-1:] * 100


class BusyEngine(FaultyEngine):
    """Lets a test do something behind each look."""

    behind_look: Callable[[], None] = staticmethod(lambda: None)

    def get(self, key: bytes) -> bytes | None:
        found = super().get(key)
        self.behind_look()
        return found

    def iterate(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        found = super().iterate(start, stop, reverse=reverse)
        self.behind_look()
        return found


@pytest.mark.parametrize("looks_count", range(4))
@pytest.mark.parametrize("to_segment", [True, False])
@pytest.mark.parametrize("how", ["get", "iterate", "iterate backwards", "iterate_keys"])
def test_a_chunk_that_is_written_anew_meanwhile_is_found_once(
    segments: FaultySegments, how: str, to_segment: bool, looks_count: int
) -> None:
    """Whether it comes to a segment or from one, between whichever two looks."""
    engine = BusyEngine(Random(1))
    log = ValueLog(engine, segments, SMALL)
    fill(log, NAMES[2])
    fill(log, NAMES[1], size_bytes=5 if to_segment else 100)
    left_count = looks_count

    def write_anew() -> None:
        nonlocal left_count
        left_count -= 1
        if left_count < 0:
            engine.behind_look = lambda: None
            fill(log, NAMES[1], size_bytes=100 if to_segment else 5)

    engine.behind_look = write_anew
    both = {NAMES[1][-1:] * 5, NAMES[1][-1:] * 100}
    if how == "get":
        assert log.get(NAMES[1]) in both
    elif how == "iterate_keys":
        assert list(log.iterate_keys(b"", b"\xff")) == NAMES[1:3]
    else:
        found = list(log.iterate(b"", b"\xff", reverse=how != "iterate"))
        assert [key for key, _value in found] == (NAMES[1:3] if how == "iterate" else [NAMES[2], NAMES[1]])
        assert dict(found)[NAMES[1]] in both


def test_a_damaged_value_is_told_and_the_others_are_read(log: ValueLog, segments: FaultySegments) -> None:
    fill(log, *NAMES[:3])
    segments.corrupt(0, 150)
    assert log.get(NAMES[0]) is not None and log.get(NAMES[2]) is not None
    with pytest.raises(CorruptionError, match="segment 0 is damaged or cut at"):
        log.get(NAMES[1])
    assert len(list(log.iterate(*keys.family_range(keys.CHUNK)))) == 3, "whoever takes it apart finds it damaged"


def test_a_segment_that_is_gone_is_told(log: ValueLog, segments: FaultySegments) -> None:
    fill(log, *NAMES[:4])
    fill(log, NAMES[4])
    segments.lose(0)
    with pytest.raises(CorruptionError):
        log.get(NAMES[0])
    assert next(log.iterate(*keys.family_range(keys.CHUNK))) == (NAMES[0], b"")
    log.write([delete(NAMES[0])], sync=True)
    assert log.get(NAMES[0]) is None


def test_where_all_segments_are_gone_reading_is_tried_again(log: ValueLog, segments: FaultySegments) -> None:
    """A disk that is not mounted any more may come back; what is told as damaged is deleted."""
    fill(log, *NAMES[:3])
    segments.lose(0)
    with pytest.raises(EngineFailedError):
        log.get(NAMES[0])


@pytest.mark.parametrize("kept_bytes", [0, 1, 479])
def test_a_start_refuses_missing_and_short_segments_and_changes_nothing(
    log: ValueLog, engine: FaultyEngine, segments: FaultySegments, kept_bytes: int
) -> None:
    fill(log, *NAMES[:4])
    fill(log, *NAMES[4:6])
    whole = segments.sizes()
    engine, segments = engine.crash(), segments.crash()
    there = dict(engine.iterate(b"", b"\xff"))
    segments.lose(0, kept_bytes)
    with pytest.raises(ValuesMissingError, match=r"segment 0 .*Mount the disk.*`sluiceway store repair`"):
        ValueLog(engine, segments, SMALL)
    assert dict(engine.iterate(b"", b"\xff")) == there
    accepted = ValueLog(engine, segments, SMALL, accept_missing=True)
    assert len(accepted.missing) == 1
    with pytest.raises(CorruptionError):
        accepted.get(NAMES[3])
    assert accepted.get(NAMES[4]) is not None
    accepted.write([delete(name) for name in NAMES[:4]], sync=True)
    again = ValueLog(engine, segments, SMALL)
    again.tidy()
    assert not again.missing and segments.sizes() == {1: whole[1]}


def test_a_tool_reads_on_where_all_segments_are_missing(
    log: ValueLog, engine: FaultyEngine, segments: FaultySegments
) -> None:
    fill(log, *NAMES[:2])
    segments.lose(0)
    accepted = ValueLog(engine, segments, SMALL, accept_missing=True)
    assert [value for _key, value in accepted.iterate(*keys.family_range(keys.CHUNK))] == [b"", b""]
    with pytest.raises(CorruptionError):
        accepted.get(NAMES[0])


def test_a_segment_that_nobody_needs_may_be_missing(
    log: ValueLog, engine: FaultyEngine, segments: FaultySegments
) -> None:
    """As a power cut leaves it that takes what was written behind the last sync."""
    fill(log, NAMES[0])
    log.write([put(NAMES[1], b"b" * 100)], sync=False)
    engine, segments = FaultyEngine(Random(2)), segments.power_cut()
    engine.write([], sync=True)
    assert not ValueLog(engine, segments, SMALL).missing


def test_a_damaged_value_stays_where_it_is_when_others_are_moved(log: ValueLog, segments: FaultySegments) -> None:
    fill(log, *NAMES[:10])
    segments.corrupt(0, 50)
    log.write([delete(name) for name in NAMES[1:10]], sync=True)
    for _ in range(5):
        log.write([], sync=True)
    with pytest.raises(CorruptionError):
        log.get(NAMES[0])
    assert 0 in segments.sizes()


def test_what_is_not_written_for_lack_of_space_takes_none(log: ValueLog, segments: FaultySegments) -> None:
    fill(log, NAMES[0])
    segments.fail_next(Failure.DISK_FULL, 3)
    for _ in range(3):
        with pytest.raises(DiskFullError):
            fill(log, *NAMES[1:3])
    assert sum(segments.sizes().values()) == 120
    fill(log, *NAMES[1:3])
    assert log.get(NAMES[2]) is not None


def test_what_was_written_is_not_written_again_when_the_engine_fails(
    log: ValueLog, engine: FaultyEngine, segments: FaultySegments
) -> None:
    """As a disk that fails for an hour would have it: the batch comes again every five seconds."""
    batch = [put(name, name[-1:] * 100) for name in NAMES[:3]]
    for failure in (Failure.WRITE, Failure.SYNC):
        engine.fail_next(failure, 5)
        for _ in range(5):
            with pytest.raises(EngineFailedError):
                log.write(batch, sync=True)
    log.write(batch, sync=True)
    assert sum(segments.sizes().values()) == 360
    log.write([delete(name) for name in NAMES[:3]], sync=True)
    assert not segments.sizes()


def test_a_batch_that_could_not_be_planned_leaves_no_place_behind(
    log: ValueLog, engine: FaultyEngine, segments: FaultySegments
) -> None:
    """Or the next one would not begin its segment, which a power cut would then take away."""
    fill(log, NAMES[0])
    log.write([delete(NAMES[0]), put(NAMES[1], b"a" * 500)], sync=True)
    engine.fail_next(Failure.READ)
    with pytest.raises(EngineFailedError):
        log.write([put(keys.chunk_key(2, 0), b"new" * 100), delete(NAMES[1])], sync=True)
    fill(log, keys.chunk_key(2, 0))
    segments = segments.power_cut()
    assert ValueLog(engine.power_cut(), segments, SMALL).get(keys.chunk_key(2, 0)) is not None
    assert segments.sizes() == {0: 640, 2: 120}


def test_a_segment_that_cannot_be_removed_is_told_once_and_tried_again(
    engine: FaultyEngine, segments: FaultySegments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No write fails for it."""
    told: list[EngineError] = []
    log = ValueLog(engine, segments, SMALL, trouble=told.append)
    fill(log, NAMES[0])

    def refuse(self: FaultySegments, number: int) -> None:
        raise EngineFailedError("busy")

    with monkeypatch.context() as patched:
        patched.setattr(FaultySegments, "remove", refuse)
        for _ in range(3):
            log.write([delete(NAMES[0])], sync=True)
    assert len(told) == 1 and len(segments.sizes()) == 1
    log.write([], sync=True)
    assert not segments.sizes()


def test_a_segment_that_cannot_be_read_does_not_keep_others_from_being_written(
    log: ValueLog, segments: FaultySegments
) -> None:
    fill(log, NAMES[0], size_bytes=30)
    fill(log, *NAMES[1:8])
    segments.fail_next(Failure.READ, 100)
    log.write([delete(name) for name in NAMES[1:8]], sync=True)
    log.write([], sync=True)
    segments.fail_next(Failure.READ, 0)
    assert log.get(NAMES[0]) == NAMES[0][-1:] * 30


def test_a_segment_that_cannot_be_written_anew_is_told_once_and_fails_no_write(
    engine: FaultyEngine, segments: FaultySegments
) -> None:
    """What waits behind it does not need it."""
    told: list[EngineError] = []
    log = ValueLog(engine, segments, SMALL, trouble=told.append)
    fill(log, NAMES[0], size_bytes=30)
    fill(log, *NAMES[1:7])
    fill(log, NAMES[8])
    segments.fail_at_rate(Failure.WRITE, 1)
    for number in range(3):
        log.write([delete(name) for name in NAMES[1:7]], sync=True)
        log.write([put(NAMES[9], b"%d" % number)], sync=True)
    assert len(told) == 1 and log.get(NAMES[9]) == b"2"
    segments.fail_at_rate(Failure.WRITE, 0)
    for _ in range(2):
        log.write([], sync=True)
    assert 0 not in segments.sizes()
    assert log.get(NAMES[0]) == NAMES[0][-1:] * 30


def test_a_segment_with_a_place_that_the_engine_finds_damaged_stays(
    log: ValueLog, engine: FaultyEngine, segments: FaultySegments
) -> None:
    """No write fails for it, and none looks at it again."""
    fill(log, NAMES[0], size_bytes=30)
    fill(log, *NAMES[1:7])
    fill(log, NAMES[8])
    segments.fail_next(Failure.DISK_FULL)
    log.write([delete(name) for name in NAMES[1:7]], sync=True)
    engine.fail_next(Failure.DAMAGE)
    for _ in range(3):
        log.write([], sync=True)
    assert 0 in segments.sizes()
    assert log.get(NAMES[0]) == NAMES[0][-1:] * 30


def test_a_full_segment_whose_successor_had_no_room_is_still_written_anew(
    log: ValueLog, segments: FaultySegments
) -> None:
    fill(log, NAMES[0], size_bytes=30)
    fill(log, *NAMES[1:4])
    log.write([delete(name) for name in NAMES[1:4]], sync=True)
    segments.fail_next(Failure.DISK_FULL)
    with pytest.raises(DiskFullError):
        fill(log, NAMES[4])
    for _ in range(2):
        fill(log, NAMES[4])
    assert 0 not in segments.sizes()
    assert log.get(NAMES[0]) == NAMES[0][-1:] * 30


@pytest.mark.parametrize("family", sorted(keys.FAMILIES - {keys.CHUNK, keys.VALUE}))
def test_a_record_of_another_family_with_the_same_numbers_goes_by_itself(
    log: ValueLog, engine: FaultyEngine, family: bytes
) -> None:
    other = family + NAMES[0][1:]
    engine.write([put(other, b"other")], sync=True)
    log.write([put(NAMES[0], b"a" * 100), delete(other)], sync=True)
    assert log.get(NAMES[0]) == b"a" * 100 and log.get(other) is None
    log.write([delete(other), delete_range(*keys.family_range(family))], sync=True)
    assert log.get(NAMES[0]) == b"a" * 100


def test_a_chunk_whose_place_the_engine_finds_damaged_can_be_deleted(
    log: ValueLog, engine: FaultyEngine, segments: FaultySegments
) -> None:
    """Or the batch that does so, and all behind it, would come again for ever."""
    fill(log, *NAMES[:3])
    fill(log, NAMES[4], size_bytes=5)
    for name in (NAMES[0], NAMES[4]):
        engine.fail_next(Failure.DAMAGE)
        log.write([delete(name), put(NAMES[5], b"x")], sync=True)
    assert dict(log.iterate(*keys.family_range(keys.CHUNK))).keys() == {NAMES[1], NAMES[2], NAMES[5]}
    assert log.get(NAMES[0]) is None and log.get(NAMES[1]) == NAMES[1][-1:] * 100
    again = ValueLog(engine.crash(), segments.crash(), SMALL)
    again.tidy()
    again.write([delete(name) for name in NAMES[:6]], sync=True)
    assert not again._segments.sizes()


def test_compacting_takes_the_room_of_one_segment(log: ValueLog, segments: FaultySegments) -> None:
    """It is called where there is little."""
    names = [keys.chunk_key(1, number) for number in range(100)]
    for at in range(0, 100, 2):
        fill(log, *names[at : at + 2])
    log.write([delete(name) for name in names[::4]], sync=True)
    taken_bytes = [sum(segments.sizes().values())]
    segments.before_sync = lambda: taken_bytes.append(sum(segments.sizes().values()))
    log.compact(b"", b"\xff")
    assert max(taken_bytes) <= taken_bytes[0] + 2 * 480
    assert sum(segments.sizes().values()) == 75 * 120


def test_a_segment_whose_sync_failed_is_not_written_to_again(log: ValueLog, segments: FaultySegments) -> None:
    fill(log, NAMES[0])
    segments.fail_next(Failure.SYNC)
    with pytest.raises(EngineFailedError):
        fill(log, NAMES[1])
    fill(log, NAMES[1])
    assert sorted(segments.sizes()) == [0, 1]


def test_what_nobody_names_is_given_back_by_the_next_start(
    log: ValueLog, engine: FaultyEngine, segments: FaultySegments
) -> None:
    fill(log, NAMES[0])
    engine.fail_next(Failure.WRITE)
    with pytest.raises(EngineFailedError):
        fill(log, *NAMES[1:4])
    engine, segments = engine.crash(), segments.crash()
    segments.make(5)
    segments.write(5, 0, [b"torn"], sync=False)
    again = ValueLog(engine, segments, SMALL)
    assert again.useless_bytes == 3 * 120 + 4
    assert again.tidy() == (1, 3 * 120 + 4)
    assert segments.sizes() == {0: 120} and again.get(NAMES[0]) is not None
    fill(again, NAMES[1])
    assert sorted(segments.sizes()) == [0, 6], "numbers are not given twice, nor segments written to by a second run"


def without_their_places(engine: FaultyEngine, *names: bytes) -> None:
    """As a repair of LevelDB may leave it: the summaries are there."""
    for name in names:
        engine.write([delete(keys.VALUE + name[1:]), put(keys.SUMMARY + name[1:], b"summary")], sync=True)


def test_after_a_repair_of_leveldb_nothing_is_given_back(
    log: ValueLog, engine: FaultyEngine, segments: FaultySegments
) -> None:
    """It may have lost places: whoever looks into the segments finds all that was there."""
    fill(log, *NAMES[:4])
    fill(log, *NAMES[4:8])
    before = segments.sizes()
    engine.write([delete(keys.VALUE + name[1:]) for name in NAMES[3:8]], sync=True)
    again = ValueLog(engine, segments, SMALL, keeps_all=True)
    assert again.tidy() == (0, 0) and "LevelDB was repaired" in (again.kept_because or "")
    again.compact(b"", b"\xff")
    again.write([delete(name) for name in NAMES], sync=True)
    assert segments.sizes() == before


def test_what_has_a_summary_and_no_place_is_not_given_back_before_the_summary_goes(
    log: ValueLog, engine: FaultyEngine, segments: FaultySegments
) -> None:
    fill(log, *NAMES[:4])
    fill(log, *NAMES[4:8])
    without_their_places(engine, NAMES[3], NAMES[7])
    engine.write([delete(keys.VALUE + name[1:]) for name in NAMES[4:7]], sync=True)
    before = segments.sizes()
    again = ValueLog(engine, segments, SMALL)
    assert again.tidy() == (0, 0)
    assert again.kept_because == "chunks are among it that have a summary and no pointer"
    assert segments.sizes() == before
    engine.write([delete(keys.SUMMARY + NAMES[7][1:])], sync=True)
    again = ValueLog(engine, segments, SMALL)
    assert again.tidy() == (1, 480)
    assert segments.sizes() == {0: before[0]}


def test_beside_a_place_that_cannot_be_read_nothing_is_given_back(
    log: ValueLog, engine: FaultyEngine, segments: FaultySegments
) -> None:
    fill(log, *NAMES[:4])
    fill(log, *NAMES[4:8])
    before = segments.sizes()
    engine.write([put(keys.VALUE + NAMES[5][1:], b"?")], sync=True)
    engine.write([delete(keys.VALUE + name[1:]) for name in (NAMES[4], NAMES[6], NAMES[7])], sync=True)
    again = ValueLog(engine, segments, SMALL)
    assert again.tidy() == (0, 0) and again.kept_because == "1 pointer of values can't be read"
    again.write([delete(name) for name in NAMES[:8]], sync=True)
    assert segments.sizes() == before
    again = ValueLog(engine, segments, SMALL)
    assert again.tidy() == (2, 960) and again.kept_because is None


@pytest.mark.parametrize("value", [b"", bytes(24), bytes(25), bytes(26)])
def test_a_place_that_cannot_be_read_is_damage(log: ValueLog, engine: FaultyEngine, value: bytes) -> None:
    fill(log, NAMES[0])
    engine.write([put(keys.value_key(1, 0), value)], sync=True)
    with pytest.raises(PointerError):
        decode_pointer(value)
    with pytest.raises(CorruptionError, match="lies can't be read"):
        log.get(NAMES[0])
    log.write([delete(NAMES[0])], sync=True)
    assert log.get(NAMES[0]) is None
    assert not list(ValueLog(engine, log._segments).iterate(b"", b"\xff"))


# -- in a folder -------------------------------------------------------------------------------------------------------

LARGE = 200_000


def test_a_folder_says_so_before_its_first_segment_and_not_sooner(tmp_path: Path) -> None:
    """Earlier versions open a folder as long as it has none, and refuse it from then on."""
    with open_directory(tmp_path) as directory:
        engine, _report = directory.open_engine()
        engine.write([put(NAMES[0], b"a" * 1000)], sync=True)
        assert (tmp_path / "format").read_text() == f"sluiceway-store {FORMAT_VERSION_MIN}\n"
        assert not (tmp_path / "values").exists()
        engine.write([put(NAMES[1], b"b" * LARGE)], sync=True)
        assert (tmp_path / "format").read_text() == f"sluiceway-store {FORMAT_VERSION}\n"
        assert [path.name for path in (tmp_path / "values").iterdir()] == ["0.values"]
        assert (tmp_path / "values" / "0.values").stat().st_mode & 0o777 == 0o600
        engine.close()
    with open_directory(tmp_path) as directory:
        assert directory.format_version == FORMAT_VERSION
        engine, _report = directory.open_engine()
        assert engine.get(NAMES[1]) == b"b" * LARGE
        assert engine.size_bytes() > LARGE
        engine.close()
    (tmp_path / "format").write_text(f"sluiceway-store {FORMAT_VERSION + 1}\n")
    with pytest.raises(FormatError, match="by a later version"):
        open_directory(tmp_path)


def test_compacting_gives_back_all_that_is_gone_of_segments(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store:
        store.engine.write([put(name, name[-1:] * LARGE) for name in NAMES[:10]], sync=True)
        store.engine.write([delete(name) for name in NAMES[:4]], sync=True)
        before_bytes, after_bytes = compact(store.engine)
        assert before_bytes > 10 * LARGE and after_bytes < 6.2 * LARGE
        assert all(store.engine.get(name) == name[-1:] * LARGE for name in NAMES[4:10])


def test_a_check_names_damaged_values_and_what_is_of_no_use(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store:
        store.engine.write([put(NAMES[0], b"a" * LARGE)], sync=True)
    (tmp_path / "values" / "7.values").write_bytes(bytes(3000))
    report = check_folder(tmp_path, HeaderCodec())
    assert report.fault_counts["corrupt-chunk"] == 1, "it is none"
    assert report.format_version == FORMAT_VERSION
    assert "2.9 KiB in values/ that no message has: the next start gives them back" in report.notes


def stored(folder: Path) -> None:
    """A folder with three values in a segment."""
    with open_store(folder, create=True) as store:
        store.engine.write([put(name, name[-1:] * LARGE) for name in NAMES[:3]], sync=True)


def test_an_empty_mount_point_costs_nothing_and_when_the_disk_is_back_all_is_there(tmp_path: Path) -> None:
    stored(tmp_path)
    (tmp_path / "values").rename(tmp_path / "elsewhere")
    (tmp_path / "values").mkdir()
    for _ in range(2):
        with open_directory(tmp_path) as directory, pytest.raises(ValuesMissingError, match=r"0\.values is missing"):
            directory.open_engine()
    report = check_folder(tmp_path, HeaderCodec())
    assert any("0.values is missing" in note for note in report.notes)
    (tmp_path / "values").rmdir()
    (tmp_path / "elsewhere").rename(tmp_path / "values")
    with open_store(tmp_path) as store:
        assert all(store.engine.get(name) == name[-1:] * LARGE for name in NAMES[:3])


def test_a_repair_accepts_that_segments_are_missing(tmp_path: Path) -> None:
    stored(tmp_path)
    (tmp_path / "values" / "0.values").unlink()
    with open_directory(tmp_path) as directory:
        mended = repair(directory, HeaderCodec())
        assert mended.found.fault_counts["corrupt-chunk"] == 3
        assert mended.left is not None and not mended.left.fault_counts
    with open_store(tmp_path) as store:
        assert not list(store.engine.iterate_keys(*keys.family_range(keys.CHUNK)))


def test_a_folder_that_goes_while_it_is_used_is_tried_again_and_nothing_is_written_beneath_it(tmp_path: Path) -> None:
    """As when a disk is unmounted under a broker."""
    with open_store(tmp_path, create=True) as store:
        engine = store.engine
        engine.write([put(name, name[-1:] * LARGE) for name in NAMES[:3]], sync=True)
        batch = [put(NAMES[3], NAMES[3][-1:] * LARGE)]
        (tmp_path / "values").rename(tmp_path / "elsewhere")
        for make_empty in (False, True):
            if make_empty:
                (tmp_path / "values").mkdir()
            with pytest.raises(EngineFailedError, match=re.escape(str(tmp_path))):
                engine.get(NAMES[0])
            with pytest.raises(EngineFailedError, match=re.escape(str(tmp_path))):
                engine.write(batch, sync=True)
        with pytest.raises(EngineFailedError, match="another folder than at the start"):
            engine.write(batch, sync=True)
        assert not list((tmp_path / "values").iterdir())
        (tmp_path / "values").rmdir()
        (tmp_path / "elsewhere").rename(tmp_path / "values")
        engine.write(batch, sync=True)
        assert all(engine.get(name) == name[-1:] * LARGE for name in NAMES[:4])


def test_the_start_that_repairs_leveldb_keeps_what_no_place_names(tmp_path: Path) -> None:
    """It had been given back in that very start, before anybody could look."""
    stored(tmp_path)
    unnamed = tmp_path / "values" / "7.values"
    unnamed.write_bytes(bytes(3000))
    (tmp_path / "db" / "CURRENT").unlink()
    with open_store(tmp_path) as store:
        assert store.repaired is not None
        assert store.engine.tidy() == (0, 0) and unnamed.exists()
        assert store.engine.useless_bytes == 3000
    with open_store(tmp_path) as store:
        assert store.engine.tidy() == (1, 3000) and not unnamed.exists()


def test_a_check_says_that_values_have_lost_their_places(tmp_path: Path) -> None:
    stored(tmp_path)
    engine = LevelDbEngine(tmp_path / "db")
    engine.write([delete(keys.VALUE + NAMES[2][1:]), put(keys.SUMMARY + NAMES[2][1:], b"summary")], sync=True)
    engine.close()
    report = check_folder(tmp_path, HeaderCodec())
    assert any("kept, for chunks are among it that have a summary and no pointer" in note for note in report.notes)
