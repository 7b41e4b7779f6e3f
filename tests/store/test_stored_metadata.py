"""Metadata behind an engine: what is written when, what a failing disk costs, and what damage does."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.config import Config
from sluiceway.data_folder import open_data_folder
from sluiceway.protocols.stomp.header_codec import HeaderCodec
from sluiceway.store import keys
from sluiceway.store.directory import open_directory
from sluiceway.store.engine import Engine, delete, put
from sluiceway.store.io_threads import InlineWorker
from sluiceway.store.keys import KeyFormatError
from sluiceway.store.maintenance.check import check
from sluiceway.store.maintenance.export import Export
from sluiceway.store.maintenance.importing import Import
from sluiceway.store.maintenance.lines import ExportFormatError, read_lines
from sluiceway.store.memory import MemoryEngine
from sluiceway.store.metadata import (
    BadVersionError,
    HubInfo,
    MetadataFailedError,
    NoSubscriptionStateError,
    PageRange,
    PageRanges,
    StoredMetadata,
    SubscriptionData,
    SubscriptionPreferences,
    SubscriptionState,
    Version,
    Versioned,
    records,
)
from sluiceway.store.metadata.records import MetadataFormatError
from sluiceway.store.recovery import recover
from tests.contract.managers import Answer, Loop, MakesStoredManagers, faulty
from tests.queues.rig import World
from tests.store.faulty import Failure, FaultyEngine

LOG = "/log/a"
WANTS = SubscriptionPreferences({"from": "latest"})
DATA = SubscriptionData(WANTS, SubscriptionState(3, [(5, 6)]))
HEADS = HeaderCodec()


class Disk:
    """Managers on an engine that fails when told to."""

    def __init__(self, seed: int = 1) -> None:
        self.maker: MakesStoredManagers = faulty(seed=seed)
        self.managers: StoredMetadata = self.maker.open()

    @property
    def engine(self) -> FaultyEngine:
        assert isinstance(self.maker.engine, FaultyEngine)
        return self.maker.engine

    def begin(self, operation: Callable[..., None], *arguments: Any, **options: Any) -> Answer:
        answer = Answer(self.maker.loop)
        operation(*arguments, answer, **options)
        return answer

    def ask(self, operation: Callable[..., None], *arguments: Any, **options: Any) -> Any:
        return self.begin(operation, *arguments, **options).result

    def created(self, subscriber: str = "g") -> Version:
        version = self.ask(self.managers.subscriptions.create, LOG, subscriber, DATA)
        assert isinstance(version, Version)
        return version


@pytest.fixture
def disk() -> Disk:
    return Disk()


def state_key(subscriber: str = "g") -> bytes:
    return keys.subscription_key(keys.SUBSCRIPTION, LOG, subscriber)


def preferences_key(subscriber: str = "g") -> bytes:
    return keys.subscription_key(keys.PREFERENCES, LOG, subscriber)


# ---------------------------------------------------------------------- writing


def test_a_state_update_writes_the_record_of_the_state_alone(disk: Disk) -> None:
    version = disk.created()
    written: list[bytes] = []
    write = disk.engine.write

    class Watching:
        def __getattr__(self, name: str) -> Any:
            return getattr(disk.engine, name)

        def write(self, changes: Any, *, sync: bool) -> None:
            written.extend(key for _kind, key, _value in changes)
            write(changes, sync=sync)

    managers = StoredMetadata(InlineWorker(Watching(), disk.maker.loop.submit))
    updated = disk.ask(managers.subscriptions.update_state, LOG, "g", SubscriptionState(9), version)
    assert written == [state_key()]
    disk.ask(managers.subscriptions.update_preferences, LOG, "g", SubscriptionPreferences(), updated)
    assert sorted(written) == [preferences_key(), state_key(), state_key()]


def test_durable_operations_that_come_at_once_share_a_sync(disk: Disk) -> None:
    """The first goes at once; those that come while it is under way go together."""
    answers = [disk.begin(disk.managers.subscriptions.create, LOG, f"g{k}", DATA) for k in range(100)]
    assert all(isinstance(answer.result, Version) for answer in answers)
    statistics = disk.managers.statistics()
    assert (statistics.operations_count, statistics.batches_count, statistics.syncs_count) == (100, 2, 2)
    assert disk.engine.sync_count == 2


def test_what_need_not_be_durable_is_written_without_a_sync(disk: Disk) -> None:
    version = disk.created()
    disk.ask(disk.managers.subscriptions.update_state, LOG, "g", SubscriptionState(9), version, durable=False)
    assert disk.engine.unsynced_count == 1
    assert disk.ask(disk.managers.flush) is None
    assert disk.engine.unsynced_count == 0


def test_reading_and_being_refused_write_nothing(disk: Disk) -> None:
    disk.created()
    before = disk.engine.write_count
    disk.ask(disk.managers.subscriptions.read, LOG, "g")
    disk.ask(disk.managers.subscriptions.read_subscriptions, LOG)
    refused = disk.ask(disk.managers.subscriptions.update_state, LOG, "g", SubscriptionState(9), Version(7))
    assert isinstance(refused, BadVersionError)
    assert disk.engine.write_count == before


def test_what_was_not_synced_is_after_the_interval() -> None:
    world = World()
    engine = FaultyEngine(random.Random(1))
    managers = StoredMetadata(InlineWorker(engine, world.core.submit), scheduling=world.core, sync_interval_seconds=1.0)
    managers.subscriptions.create(LOG, "g", DATA, lambda _version: None, durable=False)
    world.run()
    assert engine.unsynced_count == 1
    engine.fail_next(Failure.SYNC)
    for _ in range(2):  # the first fails: it is tried again
        world.advance(1.1)
        world.run()
    assert engine.unsynced_count == 0
    assert managers.statistics().failures_count == 1
    before = engine.sync_count
    world.advance(5.0)
    world.run()
    assert engine.sync_count == before, "there is nothing left to sync"


# ---------------------------------------------------------------------- a disk that fails


@pytest.mark.parametrize("failure", [Failure.DISK_FULL, Failure.WRITE, Failure.SYNC])
def test_a_write_that_failed_is_told_with_a_remedy_and_what_is_there_can_be_read(disk: Disk, failure: Failure) -> None:
    version = disk.created()
    disk.engine.fail_next(failure)
    failed = disk.ask(disk.managers.subscriptions.update_state, LOG, "g", SubscriptionState(9), version)
    assert isinstance(failed, MetadataFailedError)
    assert "Then read it again." in str(failed)
    there = disk.ask(disk.managers.subscriptions.read, LOG, "g")
    assert there.value.state.front in (3, 9)
    again = disk.ask(disk.managers.subscriptions.update_state, LOG, "g", SubscriptionState(10), there.version)
    assert isinstance(again, Version)
    assert disk.engine.unsynced_count == 0
    assert disk.managers.statistics().failures_count == 1


def test_while_the_disk_is_full_reading_goes_on_and_changes_are_refused(disk: Disk) -> None:
    version = disk.created()
    disk.engine.fail_at_rate(Failure.DISK_FULL, 1)
    for front in range(5):
        change = disk.ask(disk.managers.subscriptions.update_state, LOG, "g", SubscriptionState(front), version)
        assert isinstance(change, MetadataFailedError)
        assert disk.ask(disk.managers.subscriptions.read, LOG, "g") == Versioned(DATA, version)
    disk.engine.fail_at_rate(Failure.DISK_FULL, 0)
    updated = disk.ask(disk.managers.subscriptions.update_state, LOG, "g", SubscriptionState(9), version)
    assert isinstance(updated, Version)


def test_who_may_have_seen_a_change_that_failed_is_told_so(disk: Disk) -> None:
    """Operations of one batch: what came before the first change stands, what came after may be wrong."""
    version = disk.created()
    subscriptions = disk.managers.subscriptions
    first = disk.begin(subscriptions.read, LOG, "g")  # goes alone; the others gather
    answers = [
        disk.begin(subscriptions.read, LOG, "g"),
        disk.begin(subscriptions.update_state, LOG, "h", SubscriptionState(), Version.ANY),
        disk.begin(subscriptions.update_state, LOG, "g", SubscriptionState(9), version),
        disk.begin(subscriptions.read, LOG, "g"),
        disk.begin(subscriptions.update_state, LOG, "g", SubscriptionState(10), version),
    ]
    disk.engine.fail_next(Failure.WRITE)
    results = [answer.result for answer in answers]
    assert first.result == results[0] == Versioned(DATA, version)
    assert isinstance(results[1], NoSubscriptionStateError)
    assert isinstance(results[2], MetadataFailedError)
    assert isinstance(results[3], MetadataFailedError)
    assert isinstance(results[4], BadVersionError), "it had lost against the other one, whatever became of that"
    assert disk.ask(subscriptions.read, LOG, "g") == Versioned(DATA, version)


@pytest.mark.parametrize("failure", [Failure.READ, Failure.DAMAGE])
def test_a_read_that_failed_is_told_and_costs_that_operation_only(disk: Disk, failure: Failure) -> None:
    version = disk.created()
    before = disk.begin(disk.managers.ownership.read, LOG)
    answers = [disk.begin(disk.managers.subscriptions.read, LOG, "g") for _ in range(2)]
    assert before.result is None
    disk.engine.fail_next(failure)
    assert isinstance(answers[0].result, MetadataFailedError)
    assert answers[1].result == Versioned(DATA, version)


def test_a_failed_flush_is_told(disk: Disk) -> None:
    disk.engine.fail_next(Failure.SYNC)
    assert isinstance(disk.ask(disk.managers.flush), MetadataFailedError)
    assert disk.ask(disk.managers.flush) is None


@given(
    steps=st.lists(st.tuples(st.booleans(), st.sampled_from([None, *Failure])), min_size=1, max_size=20),
    seed=st.integers(0, 1000),
)
def test_what_was_told_to_be_durable_survives_a_power_cut(steps: list[tuple[bool, Failure | None]], seed: int) -> None:
    """And what survives is some state that it had, not older than the last durable one."""
    disk = Disk(seed)
    disk.created()
    version, front, durable_front = Version(0), 3, 3
    for durable, failure in steps:
        if failure is not None:
            disk.engine.fail_next(failure)
        state = SubscriptionState(front + 1)
        answer = disk.ask(disk.managers.subscriptions.update_state, LOG, "g", state, version, durable=durable)
        for kind in Failure:
            disk.engine.fail_next(kind, 0)
        if isinstance(answer, Version):
            version, front = answer, front + 1
            durable_front = front if durable else durable_front
        else:
            assert isinstance(answer, MetadataFailedError)
            there = disk.ask(disk.managers.subscriptions.read, LOG, "g")
            version, front = there.version, there.value.state.front
    after = disk.engine.power_cut()
    loop = Loop()
    answer = Answer(loop)
    StoredMetadata(InlineWorker(after, loop.submit)).subscriptions.read(LOG, "g", answer)
    assert durable_front <= answer.result.value.state.front <= front
    assert answer.result.value.preferences == WANTS


# ---------------------------------------------------------------------- damage


def metadata_store() -> MemoryEngine:
    engine = MemoryEngine()
    engine.write(
        [
            put(keys.topic_key(keys.OWNER, LOG), records.encode_owner(HubInfo("h", 1, 2), 4)),
            put(
                keys.topic_key(keys.PAGE_RANGES, LOG),
                records.encode_page_ranges(PageRanges([PageRange(3, 5, "ä"), PageRange(5, None, "")]), 0),
            ),
            *[
                change
                for name in ("g", "h")
                for change in (
                    put(preferences_key(name), records.encode_preferences(WANTS)),
                    put(state_key(name), records.encode_subscription_state(DATA.state, 17)),
                )
            ],
        ],
        sync=True,
    )
    return engine


DAMAGE: dict[str, tuple[str, Any]] = {
    "owner": ("corrupt-owner", put(keys.topic_key(keys.OWNER, LOG), b"\x01")),
    "page ranges": ("corrupt-page-ranges", put(keys.topic_key(keys.PAGE_RANGES, LOG), b"\x09" + bytes(12))),
    "preferences": ("corrupt-preferences", put(preferences_key(), b"")),
    "state": ("corrupt-subscription", put(state_key(), b"\x02" + bytes(30))),
    "no preferences": (
        "missing-preferences",
        delete(
            preferences_key(),
        ),
    ),
    "no state": ("missing-subscription", delete(state_key())),
    "topic key": ("bad-key", put(keys.OWNER + b"\x00\x05abc", b"x")),
    "subscription key": ("bad-key", put(preferences_key() + b"\xfe", b"x")),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_mended_and_the_others_stay(name: str) -> None:
    engine = metadata_store()
    assert not check(engine, HEADS).fault_counts
    kind, change = DAMAGE[name]
    engine.write([change], sync=True)
    found: list[Any] = []
    report = check(engine, HEADS, on_fault=found.append)
    assert dict(report.fault_counts) == {kind: 1}
    assert report.subscriptions_count == 2
    assert report.notes == []
    assert bool(found[0].aside) == (not kind.startswith("missing"))
    engine.write(found[0].changes, sync=True)
    assert not check(engine, HEADS).fault_counts
    loop = Loop()
    answer = Answer(loop)
    StoredMetadata(InlineWorker(engine, loop.submit)).subscriptions.read_subscriptions(LOG, answer)
    assert answer.result["h"] == Versioned(DATA, Version(17))
    assert answer.result["g"].value.state in (DATA.state, SubscriptionState(0))
    assert answer.result["g"].value.preferences in (WANTS, SubscriptionPreferences())


@pytest.mark.parametrize("name", DAMAGE)
def test_a_start_tells_of_damage_and_has_what_mends_it(name: str) -> None:
    engine = metadata_store()
    engine.write([DAMAGE[name][1]], sync=True)
    (fault,) = recover(engine, lambda _count: None, HEADS).faults
    assert fault.effect
    engine.write(fault.changes, sync=True)
    assert recover(engine, lambda _count: None, HEADS).faults == []


async def test_a_broker_that_starts_moves_damage_to_the_attic_and_mends_it(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    engine, _repaired = directory.open_engine()
    engine.write([put(key, value) for key, value in metadata_store().contents()], sync=True)
    engine.write([put(state_key(), b"\x02damaged")], sync=True)
    engine.close()
    directory.close()
    config = attrs.evolve(Config(), broker=attrs.evolve(Config().broker, data_dir=tmp_path))
    house = await open_data_folder(config.broker.data_dir, "leveldb")
    assert house is not None
    try:
        state, _version = records.decode_subscription_state(house.engine.get(state_key()) or b"")
        assert state == SubscriptionState(0), "it begins with the oldest"
        assert [path.read_bytes() for path in (tmp_path / "attic").iterdir()] == [b"\x02damaged"]
    finally:
        house.abandon()


def test_a_record_that_can_not_be_read_fails_those_who_want_it_with_a_remedy() -> None:
    engine = metadata_store()
    engine.write([put(state_key(), b"\x07" + bytes(30))], sync=True)
    loop = Loop()
    managers = StoredMetadata(InlineWorker(engine, loop.submit))
    answers = [Answer(loop) for _ in range(3)]
    managers.subscriptions.read(LOG, "g", answers[0])
    managers.subscriptions.update_state(LOG, "g", SubscriptionState(), Version.ANY, answers[1])
    managers.subscriptions.read(LOG, "h", answers[2])
    for answer in answers[:2]:
        assert isinstance(answer.result, MetadataFailedError)
        assert "unknown layout 7" in str(answer.result)
        assert "sluiceway store repair" in str(answer.result)
    assert answers[2].result == Versioned(DATA, Version(17))


# ---------------------------------------------------------------------- export and import


def exported(engine: Engine, wanted: Callable[[str], bool] = lambda _name: True) -> list[bytes]:
    told: list[str] = []
    lines = list(Export(engine, HEADS, wanted=wanted, on_fault=told.append).lines())
    assert not told
    return lines


def imported(engine: Engine, lines: list[bytes]) -> tuple[int, int]:
    with Import(engine, HEADS, lambda _head, _bytes, _nul: None) as taking:
        for number, line in read_lines(lines):
            taking.take(number, line)
        report = taking.finish()
    return report.metadata_added_count, report.metadata_there_count


def test_an_export_has_all_metadata_and_an_import_takes_it() -> None:
    lines = exported(metadata_store())
    assert lines[-1] == b'{"line":"end","messages":0,"subscriptions":0,"metadata":4}\n'
    engine = MemoryEngine()
    assert imported(engine, lines) == (4, 0)
    assert exported(engine) == lines
    assert not check(engine, HEADS).fault_counts


def test_what_is_there_stays_as_it_is_when_something_is_imported() -> None:
    engine = metadata_store()
    lines = exported(engine)
    engine.write([put(state_key(), records.encode_subscription_state(SubscriptionState(99), 18))], sync=True)
    before = list(engine.iterate(b"o", b"w"))
    assert imported(engine, lines) == (0, 4)
    assert list(engine.iterate(b"o", b"w")) == before


def test_only_topics_that_are_wanted_are_exported() -> None:
    assert len(exported(metadata_store(), lambda name: name == "/log/b")) == 2
    assert len(exported(metadata_store(), lambda name: name == LOG)) == 6


HEADER = b'{"line":"header","export":"sluiceway","format":1}'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"line":"topic-owner","topic":"","host":"h","port":1}', "line 2: the topic '' has 0 bytes"),
        ('{"line":"topic-owner","topic":"t","host":"h","port":65536}', "'port' should be a whole number"),
        ('{"line":"page-ranges","topic":"t","ranges":[[1,2]]}', "'ranges' should have first index"),
        ('{"line":"page-ranges","topic":"t","ranges":[[5,9,"a"],[6,10,"b"]]}', "from 6 begins before"),
        ('{"line":"page-ranges","topic":"t","ranges":[[-1,9,"a"]]}', "first_index must be"),
        (
            '{"line":"subscription-data","topic":"t","subscriber":"g","front":5,"settled":[[5,6]]}',
            "5 to 7 is not beyond",
        ),
        ('{"line":"subscription-data","topic":"t","subscriber":"g","front":5,"preferences":{"a":1}}', "text values"),
        ('{"line":"subscription-data","topic":"t","subscriber":"","front":5}', "the subscriber '' has 0 bytes"),
        ('{"line":"subscription-data","topic":"t","subscriber":"g","front":5,"preferences":{"\\ud800":""}}', "Unicode"),
    ],
)
def test_lines_of_metadata_are_judged(line: str, said: str) -> None:
    engine = MemoryEngine()
    lines = [HEADER, line.encode(), b'{"line":"end","messages":0,"metadata":1}']
    with pytest.raises(ExportFormatError, match=said):
        imported(engine, lines)
    assert not list(engine.iterate(b"", b"\xff"))


def test_metadata_that_is_missing_or_comes_twice_is_noticed() -> None:
    lines = exported(metadata_store())
    with pytest.raises(ExportFormatError, match="counts 4 lines of metadata, there are 3"):
        imported(MemoryEngine(), [*lines[:2], *lines[3:]])
    with pytest.raises(ExportFormatError, match="a second line for the same metadata"):
        imported(MemoryEngine(), [*lines[:2], *lines[1:]])


# ---------------------------------------------------------------------- records and keys

u64 = st.integers(0, 2**64 - 2)
name_texts = st.text(min_size=1, max_size=20)
texts = st.text(max_size=20)
borders = st.lists(st.integers(1, 2**63), unique=True, max_size=10).map(sorted)


@st.composite
def states(draw: st.DrawFn) -> SubscriptionState:
    front, *rest = draw(st.lists(st.integers(0, 2**64 - 1), unique=True, min_size=1, max_size=9).map(sorted))
    failed = draw(st.lists(st.integers(0, 2**64 - 1), unique=True, max_size=8).map(sorted))
    failures = [(start, end, draw(st.integers(1, 99))) for start, end in zip(failed[::2], failed[1::2], strict=False)]
    return SubscriptionState(front, zip(rest[::2], rest[1::2], strict=False), failures=failures)


@st.composite
def page_ranges(draw: st.DrawFn) -> PageRanges:
    marks = draw(st.lists(u64, unique=True, max_size=8).map(sorted))
    ranges = [PageRange(a, b, draw(texts)) for a, b in zip(marks[::2], marks[1::2], strict=False)]
    if len(marks) % 2:
        ranges.append(PageRange(marks[-1], None, draw(texts)))
    return PageRanges(ranges)


@given(
    owner=st.builds(HubInfo, texts, st.integers(0, 65_535), u64),
    ranges=page_ranges(),
    preferences=st.builds(SubscriptionPreferences, st.dictionaries(texts, texts, max_size=5)),
    state=states(),
    version=u64,
    later=st.binary(max_size=5),
)
def test_records_read_back_whatever_a_later_version_adds(
    owner: HubInfo,
    ranges: PageRanges,
    preferences: SubscriptionPreferences,
    state: SubscriptionState,
    version: int,
    later: bytes,
) -> None:
    assert records.decode_owner(records.encode_owner(owner, version) + later) == (owner, version)
    assert records.decode_page_ranges(records.encode_page_ranges(ranges, version) + later) == (ranges, version)
    assert records.decode_preferences(records.encode_preferences(preferences) + later) == preferences
    encoded = records.encode_subscription_state(state, version)
    assert records.decode_subscription_state(encoded + later) == (state, version)


@given(value=st.binary(max_size=60) | st.binary(max_size=60).map(lambda data: b"\x01" + data))
def test_whatever_the_bytes_are_they_are_a_record_or_an_error_of_the_format(value: bytes) -> None:
    for decode in (
        records.decode_owner, records.decode_page_ranges, records.decode_preferences,
        records.decode_subscription_state,
    ):  # fmt: skip
        try:
            decode(value)
        except MetadataFormatError as error:
            assert " of a " in str(error)


@pytest.mark.parametrize(
    "decode_and_value",
    [
        (records.decode_owner, records.encode_owner(HubInfo("host", 1, 2), 3)),
        (records.decode_page_ranges, records.encode_page_ranges(PageRanges([PageRange(3, 5, "ä")]), 3)),
        (records.decode_preferences, records.encode_preferences(WANTS)),
        (records.decode_subscription_state, records.encode_subscription_state(DATA.state, 3)),
        (
            records.decode_subscription_state,
            records.encode_subscription_state(SubscriptionState(3, [(5, 6)], 7, [(3, 5, 2)]), 3),
        ),
    ],
    ids=["owner", "page ranges", "preferences", "state", "state with failures"],
)
def test_a_cut_record_is_an_error_of_the_format(decode_and_value: tuple[Callable[[bytes], Any], bytes]) -> None:
    decode, value = decode_and_value
    for end in range(len(value)):
        with pytest.raises(MetadataFormatError):
            decode(value[:end])


@pytest.mark.parametrize(
    "make",
    [
        lambda: HubInfo("\ud800", 1, 1),
        lambda: HubInfo("h", 65_536, 1),
        lambda: HubInfo("h", 1, -1),
        lambda: PageRange(5, 5, "a"),
        lambda: PageRange(-1, 5, "a"),
        lambda: PageRange(0, 5, "a" * 5000),
        lambda: PageRanges([PageRange(0, None, "a"), PageRange(5, None, "b")]),
        lambda: PageRanges([PageRange(5, 6, "a"), PageRange(0, 2, "b")]),
        lambda: SubscriptionPreferences({"a": "x" * 70_000}),
        lambda: SubscriptionPreferences({f"{k}": "x" * 100 for k in range(900)}),
        lambda: SubscriptionPreferences({f"{k}": "" for k in range(1_001)}),
        lambda: SubscriptionState(-1),
        lambda: SubscriptionState(5, [(5, 6)]),
        lambda: SubscriptionState(5, [(7, 7)]),
        lambda: SubscriptionState(5, [(7, 8), (8, 9)]),
        lambda: SubscriptionState(0, ((2 * k + 1, 2 * k + 2) for k in range(70_000))),
    ],
)
def test_what_can_not_be_stored_is_refused_when_it_is_made(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"must be|at most|begins before|ends behind|not beyond|Unicode"):
        make()


def test_preferences_are_a_copy_that_nobody_changes() -> None:
    given_values = {"a": "1"}
    preferences = SubscriptionPreferences(given_values)
    given_values["a"] = "2"
    assert preferences.values == {"a": "1"}
    with pytest.raises(TypeError):
        preferences.values["a"] = "3"  # type: ignore[index]


def test_page_ranges_say_where_a_record_lies() -> None:
    ranges = PageRanges([PageRange(3, 5, "a"), PageRange(7, None, "b")])
    assert [found and found.location for found in map(ranges.of, range(9))] == [
        None, None, None, "a", "a", None, None, "b", "b",
    ]  # fmt: skip


def test_a_hub_has_an_address() -> None:
    assert HubInfo("h", 5, 0).address == "h:5"
    assert HubInfo("::1", 5, 0).address == "[::1]:5"


@given(topic=name_texts, other=name_texts, subscriber=name_texts)
def test_keys_of_metadata_read_back_and_a_topic_has_its_own_range(topic: str, other: str, subscriber: str) -> None:
    for family in (keys.OWNER, keys.PAGE_RANGES):
        assert keys.parse_topic_key(keys.topic_key(family, topic)) == topic
    for family in (keys.PREFERENCES, keys.SUBSCRIPTION):
        key = keys.subscription_key(family, topic, subscriber)
        assert keys.parse_subscription_key(key) == (topic, subscriber)
        start, stop = keys.subscriptions_range(family, other)
        assert (start <= key < stop) == (topic == other)


@given(key=st.binary(max_size=20).map(lambda rest: b"o" + rest) | st.binary(max_size=20).map(lambda rest: b"u" + rest))
def test_whatever_is_no_key_of_metadata_is_an_error_of_the_format(key: bytes) -> None:
    readings: list[Callable[[], bytes]] = [
        lambda: keys.topic_key(keys.OWNER, keys.parse_topic_key(key)),
        lambda: keys.subscription_key(keys.PREFERENCES, *keys.parse_subscription_key(key)),
    ]
    for reading in readings:
        try:
            again = reading()
        except KeyFormatError as error:
            assert "key" in str(error)
        else:
            assert again == key


def test_names_that_no_key_can_hold_are_refused() -> None:
    for topic, subscriber in (("", "g"), ("t", ""), ("x" * 70_000, "g"), ("\ud800", "g"), ("t", "\ud800")):
        with pytest.raises(KeyFormatError):
            keys.subscription_key(keys.SUBSCRIPTION, topic, subscriber)
    with pytest.raises(KeyFormatError):
        keys.topic_key(keys.QUEUE, "t")
    with pytest.raises(KeyFormatError):
        keys.subscription_key(keys.OWNER, "t", "g")
    with pytest.raises(KeyFormatError):
        keys.subscriptions_range(keys.OWNER, "t")
