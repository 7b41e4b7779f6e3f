"""Check, repair and compact: every kind of damage is found, what can be mended is, and a whole store is left alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sluiceway.protocols.stomp.header_codec import HeaderCodec
from sluiceway.queues.message import DelayedMessage, Message
from sluiceway.store import keys, states
from sluiceway.store.chunks import decode_chunk, decode_summary, encode_chunk_and_summary
from sluiceway.store.directory import FormatError, LockedError, MissingError, open_directory
from sluiceway.store.durables import durable_changes
from sluiceway.store.engine import Change, Engine, delete, put
from sluiceway.store.leveldb import LevelDbEngine
from sluiceway.store.maintenance.check import CheckReport, check, check_folder
from sluiceway.store.maintenance.compacting import compact
from sluiceway.store.maintenance.mending import Mended, repair
from sluiceway.store.maintenance.opening import open_folder, open_store
from sluiceway.store.maintenance.records import make_large
from sluiceway.store.memory import MemoryEngine
from sluiceway.store.metadata.records import (
    SubscriptionPreferences,
    SubscriptionState,
    encode_preferences,
    encode_subscription_state,
)
from sluiceway.store.recovery import Recovered, recover

HEADS = HeaderCodec()
QUEUE_ID = 1
EVERYTHING = (b"", b"\xff" * 8)


def message(number: int, body: bytes = b"hello", *, destination: str = "/queue/a", headers: bytes = b"") -> Message:
    block = b"destination:" + destination.encode() + b"\npersistent:true" + headers
    return Message(HEADS.restore(2, block), block + b"\n\n" + body + b"\0", number)


def chunk(first: int, messages: Sequence[Message], *, queue_id: int = QUEUE_ID, step: int = 1) -> list[Change]:
    sequences = range(first, first + step * len(messages), step)
    value, summary = encode_chunk_and_summary(first, list(sequences), messages, HEADS)
    return [put(keys.chunk_key(queue_id, first), value), put(keys.summary_key(queue_id, first), summary)]


def whole_store() -> list[Change]:
    """Two queues and a topic with a durable subscription; a message was settled, one came back."""
    topic = [message(20 + k, destination="/topic/t") for k in range(3)]
    return [
        put(keys.META_FORMAT_KEY, states.encode_format(keys.FORMAT_VERSION)),
        put(keys.META_TOKEN_KEY, b"k7q2"),
        put(keys.META_NUMBERS_KEY, states.encode_numbers(1000)),
        put(keys.META_CLEAN_KEY, states.encode_clean(True)),
        put(keys.queue_key(1), states.encode_queue(states.KIND_QUEUE, 4, "/queue/a")),
        put(keys.head_key(1), states.encode_head(2000, 0)),
        *chunk(0, [message(k) for k in range(1, 5)]),
        *chunk(10, [message(k) for k in range(5, 8)]),
        put(keys.state_key(1, 0), states.encode_state(0b1, {2: 1})),
        *chunk(1024, [message(k) for k in range(8, 12)]),
        put(keys.queue_key(2), states.encode_queue(states.KIND_TOPIC, 4, "/topic/t")),
        *chunk(0, topic, queue_id=2),
        put(keys.durable_key(1), states.encode_durable(states.DurableRecord("c", "all", "/topic/t", "", 1, 2))),
        put(keys.cursor_key(2, 1), states.encode_cursor(1, 2, [2], {1: 1})),
    ]


def stored(engine: Engine) -> dict[bytes, bytes]:
    return dict(engine.iterate(*EVERYTHING))


@pytest.fixture
def engine() -> MemoryEngine:
    made = MemoryEngine()
    made.write(whole_store(), sync=True)
    return made


def kinds(report: CheckReport) -> dict[str, int]:
    return dict(report.fault_counts)


def checked(engine: Engine) -> CheckReport:
    return check(engine, HEADS)


def numbers_alive(engine: Engine, queue_id: int = QUEUE_ID) -> list[int]:
    """Message numbers of a queue that are not settled, read without the code under test."""
    found = []
    for key, value in engine.iterate(*keys.queue_range(keys.CHUNK, queue_id)):
        first = keys.parse_placed_key(key)[1]
        sequences, messages = decode_chunk(first, value, HEADS, make_large)
        state = engine.get(keys.state_key(queue_id, first >> keys.BLOCK_BITS))
        settled = states.decode_state(state)[0] if state is not None else 0
        found += [
            one.number
            for sequence, one in zip(sequences, messages, strict=True)
            if not settled >> (sequence & (keys.BLOCK_SIZE - 1)) & 1
        ]
    return found


def recovered(engine: Engine) -> Recovered:
    """As a broker reads it."""
    return recover(engine, lambda _count: None, HEADS)


# -- check -------------------------------------------------------------------------------------------------------------


def test_a_whole_store_has_no_faults_and_is_counted(engine: MemoryEngine) -> None:
    before = stored(engine)
    report = checked(engine)
    assert kinds(report) == {}
    assert [(q.name, q.kind, q.priority, q.messages_count, q.seen_count, q.settled_count) for q in report.queues] == [
        ("/queue/a", "queue", 4, 10, 1, 1),
        ("/topic/t", "topic", 4, 3, 0, 0),
    ]
    assert report.queues[0].wire_bytes == 10 * len(message(1).wire)
    assert (report.messages_count, report.durables_count, report.clean, report.notes) == (13, 1, True, [])
    assert stored(engine) == before


def test_an_empty_store_has_no_faults() -> None:
    assert kinds(checked(MemoryEngine())) == {}


def test_what_a_killed_broker_leaves_is_a_note_and_no_fault(engine: MemoryEngine) -> None:
    [paged, _summary] = chunk(30, [message(12)])
    engine.write(
        [put(keys.paged_key(1, 30), paged[2]), put(keys.META_CLEAN_KEY, states.encode_clean(False))], sync=True
    )
    report = checked(engine)
    assert kinds(report) == {}
    assert not report.clean
    assert any("did not stop cleanly" in note for note in report.notes)
    assert any("1 messages that were not persistent" in note for note in report.notes)


def test_cursors_of_what_was_removed_are_a_note_and_no_fault(engine: MemoryEngine) -> None:
    """A broker that is killed between the two writes of a removal leaves them."""
    engine.write([put(keys.cursor_key(2, 5), states.encode_cursor(0, 0, [], {}))], sync=True)
    report = checked(engine)
    assert (kinds(report), report.notes) == (
        {},
        ["1 cursor of durable subscriptions that were removed: the next start deletes them"],
    )


def test_durable_subscriptions_are_found_where_they_are_kept_and_where_they_were(engine: MemoryEngine) -> None:
    engine.write(durable_changes(7, states.DurableRecord("d", "kept", "/topic/t", "", 1, 2)), sync=True)
    report = checked(engine)
    assert (kinds(report), report.durables_count, report.subscriptions_count) == ({}, 2, 0)
    engine.write(durable_changes(7, states.DurableRecord("e", "kept", "/topic/t", "", 1, 2)), sync=True)
    assert kinds(checked(engine)) == {"double-durable": 1}


def test_without_a_client_id_each_topic_has_a_name_of_its_own(engine: MemoryEngine) -> None:
    for durable_id, topic in ((7, "/topic/t"), (8, "/topic/u")):
        engine.write(durable_changes(durable_id, states.DurableRecord("", "kept", topic, "", 1, 2)), sync=True)
    assert kinds(checked(engine)) == {}


def test_preferences_that_make_no_durable_subscription_are_a_fault(folder: Path) -> None:
    key, *_rest = (change[1] for change in durable_changes(7, states.DurableRecord("d", "kept", "/topic/t", "", 1, 2)))
    value = encode_preferences(SubscriptionPreferences({"kind": "durable subscription", "durable_id": "x"}))
    damage(folder, written(put(key, value), put(b"v" + key[1:], encode_subscription_state(SubscriptionState(), 0))))
    assert kinds(check_folder(folder, HEADS)) == {"corrupt-durable": 1}
    assert mended(folder).done_count == 1
    assert kinds(check_folder(folder, HEADS)) == {}


def test_records_of_later_versions_are_noted_and_left_alone(engine: MemoryEngine) -> None:
    engine.write([put(b"zz", b"1"), put(b"a", b"2"), put(b"l1", b"3"), put(b"\0later", b"4")], sync=True)
    report = checked(engine)
    assert kinds(report) == {}
    assert any(note.startswith("3 records of kinds") for note in report.notes)
    assert any("'later'" in note for note in report.notes)


def test_transactions_on_their_way_are_noted(engine: MemoryEngine) -> None:
    engine.write([put(keys.transaction_key(9, 0), b"piece")], sync=True)
    report = checked(engine)
    assert kinds(report) == {}
    assert report.notes == ["large transactions that were not committed: the next start deletes them"]
    engine.write([put(b"t" + bytes(8), b"commit")], sync=True)
    assert checked(engine).notes[0].startswith("1 large transactions are committed, not all in their queues yet")


def test_seen_counts_what_lies_below_the_lease(engine: MemoryEngine) -> None:
    engine.write([put(keys.head_key(1), states.encode_head(2000, 12))], sync=True)
    assert checked(engine).queues[0].seen_count == 5  # 1 to 3, 10, 11; 0 is settled


def test_progress_comes_to_its_end(engine: MemoryEngine) -> None:
    told: list[tuple[int, int]] = []
    check(engine, HEADS, on_progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (14, 14)


# -- every kind of damage ----------------------------------------------------------------------------------------------


def flipped(key: bytes) -> Callable[[Engine], list[Change]]:
    """One bit of a value is another."""

    def change(engine: Engine) -> list[Change]:
        value = engine.get(key)
        assert value is not None
        middle = len(value) // 2
        return [put(key, value[:middle] + bytes((value[middle] ^ 1,)) + value[middle + 1 :])]

    return change


def written(*changes: Change) -> Callable[[Engine], list[Change]]:
    return lambda _engine: list(changes)


def without_length(change: Change) -> Change:
    return put(change[1], change[2][:-1])


def damaged_durable(value: bytes | None) -> Callable[[Engine], list[Change]]:
    """A durable subscription whose preferences are this (None: missing)."""
    preferences, state = durable_changes(7, states.DurableRecord("d", "kept", "/topic/t", "", 1, 2))
    return written(state, *([] if value is None else [put(preferences[1], value)]))


DAMAGES = {
    "corrupt-chunk": (flipped(keys.chunk_key(1, 10)), 3, {1: 7}),
    "missing-summary": (written(delete(keys.summary_key(1, 0))), 0, {1: 10}),
    "corrupt-summary": (written(put(keys.summary_key(1, 0), b"?")), 0, {1: 10}),
    "wrong-summary": (written(chunk(0, [message(9)] * 3)[1]), 0, {1: 10}),
    "orphan-summary": (written(delete(keys.chunk_key(1, 10))), 3, {1: 7}),
    "corrupt-state": (written(put(keys.state_key(1, 0), b"?")), 0, {1: 11}),
    "orphan-state": (written(put(keys.state_key(1, 77), states.encode_state(0b11, {}))), 0, {1: 10}),
    "state-beyond-chunks": (
        written(put(keys.state_key(1, 0), states.encode_state(1 | 1 << 500, {2: 1}))),
        0,
        {1: 10},
    ),
    "missing-messages": (written(*chunk(2000, [message(k) for k in (30, 31)], step=4)), 3, {1: 12}),
    "corrupt-queue": (written(put(keys.queue_key(1), b"\x09\x09")), 0, {1: 10}),
    "unknown-queue": (written(delete(keys.queue_key(1))), 0, {1: 10}),
    "corrupt-head": (written(put(keys.head_key(1), b"?")), 0, {1: 10}),
    "orphan-record": (written(put(keys.head_key(9), states.encode_head(1, 0))), 0, {1: 10}),
    "corrupt-durable": (written(put(keys.durable_key(1), b"?")), 0, {1: 10}),
    "corrupt-preferences": (damaged_durable(b"?"), 0, {1: 10}),
    "missing-preferences": (damaged_durable(None), 0, {1: 10}),
    "corrupt-producer": (written(put(keys.producer_key(1, "pa"), b"?")), 0, {1: 10}),
    "corrupt-cursor": (written(put(keys.cursor_key(2, 1), b"?")), 0, {1: 10}),
    "low-numbers": (written(put(keys.META_NUMBERS_KEY, states.encode_numbers(5))), 0, {1: 10}),
    "missing-meta": (written(delete(keys.META_NUMBERS_KEY)), 0, {1: 10}),
    "corrupt-meta": (written(put(keys.META_CLEAN_KEY, b"?")), 0, {1: 10}),
    "bad-key": (written(put(b"m123", b"?")), 0, {1: 10}),
}
"""By the kind that is reported: the damage, how many messages are lost, and how many are alive after the repair."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    with open_store(path, create=True) as opened:
        opened.engine.write(whole_store(), sync=True)
    return path


def damage(folder: Path, change: Callable[[Engine], list[Change]]) -> None:
    with open_store(folder) as opened:
        opened.engine.write(change(opened.engine), sync=True)


def mended(folder: Path, *, dry_run: bool = False) -> Mended:
    with open_folder(folder) as directory:
        return repair(directory, HEADS, dry_run=dry_run)


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_found_mended_and_gone(folder: Path, kind: str) -> None:
    change, lost_count, alive_counts = DAMAGES[kind]
    damage(folder, change)
    report = check_folder(folder, HEADS)
    assert kind in report.fault_counts
    assert report.lost_count == lost_count
    with open_store(folder) as opened:
        before = stored(opened.engine)

    dry = mended(folder, dry_run=True)
    assert (kinds(dry.found), dry.done_count, dry.left) == (kinds(report), 0, None)
    with open_store(folder) as opened:
        assert stored(opened.engine) == before, "a dry run changes nothing"

    done = mended(folder)
    assert kinds(done.found) == kinds(report)
    assert done.done_count == report.fault_counts.total()
    assert done.left is not None and kinds(done.left) == {}
    assert kinds(check_folder(folder, HEADS)) == {}
    with open_store(folder) as opened:
        for queue_id, count in alive_counts.items():
            assert len(numbers_alive(opened.engine, queue_id)) == count
        found = recovered(opened.engine)
        assert found.live_count == sum(queue.messages_count for queue in done.left.queues)
        assert found.faults == []

    again = mended(folder)
    assert (kinds(again.found), again.done_count) == ({}, 0)


def attic_names(folder: Path) -> list[str]:
    return [path.name.partition("-")[2] for path in sorted((folder / "attic").iterdir())]


def test_a_corrupt_chunk_is_kept_in_the_attic_byte_for_byte(folder: Path) -> None:
    damage(folder, flipped(keys.chunk_key(1, 10)))
    with open_store(folder) as opened:
        value = opened.engine.get(keys.chunk_key(1, 10))
    assert mended(folder).aside_count == 1
    [kept] = (folder / "attic").iterdir()
    assert kept.name.endswith(f"chunk-{keys.chunk_key(1, 10).hex()}")
    assert kept.read_bytes() == value


def test_the_attic_keeps_all_of_a_repair(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bound is for brokers: here a copy that goes would be the only one."""
    monkeypatch.setattr("sluiceway.store.quarantine.ATTIC_COUNT_MAX", 2)
    for first in (0, 10, 1024):
        damage(folder, flipped(keys.chunk_key(1, first)))
    assert mended(folder).aside_count == 3
    assert len(attic_names(folder)) == 3


def test_what_comes_again_without_its_state_is_marked_as_seen(folder: Path) -> None:
    damage(folder, written(put(keys.state_key(1, 0), b"?")))
    mended(folder)
    with open_store(folder) as opened:
        state = opened.engine.get(keys.state_key(1, 0))
    assert state is not None
    assert states.decode_state(state) == (0, dict.fromkeys([0, 1, 2, 3, 10, 11, 12], 0))


def test_a_queue_is_made_again_from_its_messages(folder: Path) -> None:
    damage(folder, written(delete(keys.queue_key(2))))
    mended(folder)
    with open_store(folder) as opened:
        assert states.decode_queue(opened.engine.get(keys.queue_key(2)) or b"") == (states.KIND_TOPIC, 4, "/topic/t")
        assert opened.engine.get(keys.cursor_key(2, 1)) is not None, "its durable subscription stands where it stood"


def test_leftovers_of_a_queue_without_messages_are_deleted(folder: Path) -> None:
    damage(
        folder,
        written(
            put(keys.state_key(9, 3), states.encode_state(1, {})),
            put(keys.cursor_key(9, 1), states.encode_cursor(0, 0, [], {})),
        ),
    )
    mended(folder)
    with open_store(folder) as opened:
        assert not list(opened.engine.iterate(*keys.queue_range(keys.STATE, 9)))
        assert not list(opened.engine.iterate(*keys.queue_range(keys.CURSOR, 9)))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("double-queue", [put(keys.queue_key(3), states.encode_queue(states.KIND_QUEUE, 4, "/queue/a"))]),
        ("overlapping-chunks", chunk(2, [message(50)])),
        ("crossing-chunk", chunk(2040, [message(40 + k) for k in range(20)])),
        ("unknown-queue", chunk(0, [message(50)], queue_id=7)),
        (
            "double-durable",
            [put(keys.durable_key(2), states.encode_durable(states.DurableRecord("c", "all", "/topic/t", "", 1, 2)))],
        ),
    ],
)
def test_what_cannot_be_derived_is_reported_and_left_alone(folder: Path, kind: str, changes: list[Change]) -> None:
    damage(folder, written(*changes))
    with open_store(folder) as opened:
        before = stored(opened.engine)
    done = mended(folder)
    assert done.done_count == 0
    assert done.left is not None and kinds(done.left) == {kind: 1}
    with open_store(folder) as opened:
        assert stored(opened.engine) == before


def test_large_bodies_are_held_against_their_files(folder: Path) -> None:
    plain = message(60)
    larges = [make_large(plain.head, plain.wire[:-6], 60 + k, 0, 0, 7 + k, 5) for k in range(3)]
    damage(folder, written(*chunk(2048, larges)))
    (folder / "large" / f"{7:016x}").write_bytes(b"12345")
    (folder / "large" / f"{8:016x}").write_bytes(b"123")
    (folder / "large" / f"{99:016x}").write_bytes(b"nobody's")
    report = check_folder(folder, HEADS)
    assert kinds(report) == {"bad-body": 2}
    assert [fault.what for fault in report.faults] == [
        "the file of a large body has 3 bytes, not 5",
        "the file of a large body is missing",
    ]
    assert any(note.startswith("1 file in large/ with bodies that no message has") for note in report.notes)


def test_a_rebuilt_summary_says_what_the_chunk_has(folder: Path) -> None:
    one = message(70, headers=b"\ngroup:g")
    two = DelayedMessage(one.head, one.wire, 71, expires_at_ms=500, due_at_ms=400)
    changes = chunk(3000, [one, two])
    damage(folder, written(changes[0]))
    mended(folder)
    with open_store(folder) as opened:
        summary = opened.engine.get(keys.summary_key(1, 3000))
    assert summary == changes[1][2]
    rebuilt = decode_summary(summary)
    assert (rebuilt.some_due, rebuilt.some_grouped, rebuilt.expires_max_ms) == (True, True, 500)


def test_many_faults_are_all_counted_and_some_listed(engine: MemoryEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluiceway.store.maintenance.check.FAULTS_KEPT_MAX", 3)
    engine.write([put(keys.head_key(100 + k), states.encode_head(1, 0)) for k in range(50)], sync=True)
    report = checked(engine)
    assert kinds(report) == {"orphan-record": 50}
    assert len(report.faults) == 3
    assert report.to_dict()["faults_count"] == 50


# -- LevelDB's own part ------------------------------------------------------------------------------------------------


def test_a_database_without_its_list_of_tables_is_repaired(folder: Path) -> None:
    with open_store(folder) as opened:
        opened.engine.compact(*EVERYTHING)
    (folder / "db" / "CURRENT").unlink()
    report = check_folder(folder, HEADS)
    assert (kinds(report), report.complete) == ({"database": 1}, False)
    dry = mended(folder, dry_run=True)
    assert (kinds(dry.found), dry.database) == ({"database": 1}, None)
    assert not (folder / "db" / "CURRENT").exists()
    done = mended(folder)
    assert done.database is not None
    assert kinds(done.found) == {"database": 1}
    assert done.left is not None and kinds(done.left) == {}
    assert done.left.messages_count == 13


def test_a_broker_does_not_begin_anew_where_the_list_of_tables_is_lost(folder: Path) -> None:
    """LevelDB by itself would, and remove the tables."""
    with open_store(folder) as opened:
        opened.engine.compact(*EVERYTHING)
    (folder / "db" / "CURRENT").unlink()
    with open_directory(folder) as directory:
        engine, report = directory.open_engine()
        assert report is not None and not report.log_cut
        assert recovered(engine).live_count == 13
        engine.close()


def test_damage_that_shows_while_reading_is_repaired_as_well(folder: Path) -> None:
    """A table that opens, with a block in it that does not read."""
    with open_store(folder) as opened:
        opened.engine.write(chunk(4096, [message(100 + k, bytes(3000)) for k in range(100)]), sync=True)
        opened.engine.compact(*EVERYTHING)
    table = max((folder / "db").glob("*.ldb"), key=lambda path: path.stat().st_size)
    data = bytearray(table.read_bytes())
    place = data.find(bytes(3000)) + 1000
    data[place] ^= 1
    table.write_bytes(data)
    report = check_folder(folder, HEADS)
    assert not report.complete
    assert report.fault_counts["database"] == 1
    done = mended(folder)
    assert done.database is not None
    assert done.left is not None and kinds(done.left) == {}
    assert kinds(check_folder(folder, HEADS)) == {}


# -- opening -----------------------------------------------------------------------------------------------------------


def test_a_folder_that_is_in_use_is_refused(folder: Path) -> None:
    with open_store(folder), pytest.raises(LockedError, match="is in use by process"):
        open_store(folder)
    open_store(folder).close()


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(MissingError):
        open_store(tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="holds no store"):
        open_store(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_another_format_is_refused(folder: Path) -> None:
    damage(folder, written(put(keys.META_FORMAT_KEY, states.encode_format(3))))
    with pytest.raises(FormatError, match=r"records .* have format 3"):
        open_store(folder)
    with pytest.raises(FormatError):
        mended(folder)
    (folder / "format").write_text("sluiceway-store 9\n")
    with pytest.raises(FormatError, match="has format 9"):
        open_store(folder)


# -- compact -----------------------------------------------------------------------------------------------------------


def test_compacting_gives_space_back_and_keeps_what_is_alive(folder: Path) -> None:
    bulk = [chunk(first, [message(1, bytes(100_000))] * 20, queue_id=3) for first in range(0, 1000, 20)]
    paged = [put(keys.paged_key(1, first), bytes(100_000)) for first in range(100)]
    with open_store(folder) as opened:
        before = stored(opened.engine)
        for changes in bulk:
            opened.engine.write(changes, sync=False)
        opened.engine.write(paged, sync=False)
        for changes in bulk:
            opened.engine.write([delete(change[1]) for change in changes], sync=False)
        told: list[tuple[int, int]] = []
        before_bytes, after_bytes = compact(opened.engine, lambda done, total: told.append((done, total)))
        assert stored(opened.engine) == before
    assert after_bytes < before_bytes / 5
    assert told[-1] == (len(keys.FAMILIES), len(keys.FAMILIES))


def test_a_tool_opens_what_a_broker_left_without_its_engine_closed(folder: Path) -> None:
    """After kill -9 the log is replayed, and nothing is a fault."""
    with open_folder(folder) as directory:
        engine = LevelDbEngine(directory.database_path)
        engine.write(chunk(5000, [message(200)]), sync=False)
        engine.close()
    assert checked_count(folder) == 14


def checked_count(folder: Path) -> int:
    report = check_folder(folder, HEADS)
    assert kinds(report) == {}
    return report.messages_count


def test_new_messages_go_behind_chunks_that_wait_to_be_deleted() -> None:
    """A crash may leave chunks of which all is settled; what got their sequences would be read from them later."""
    engine = MemoryEngine()
    engine.write(
        [
            put(keys.queue_key(1), states.encode_queue(states.KIND_QUEUE, 4, "/queue/a")),
            *chunk(0, [message(k) for k in range(1, 6)]),
            *chunk(5, [message(k) for k in range(6, 11)]),
            put(keys.state_key(1, 0), states.encode_state(0b1111111111, {})),
        ],
        sync=True,
    )
    [queue] = recovered(engine).queues.values()
    assert queue.live_count == 0
    assert queue.next_sequence >= 10
