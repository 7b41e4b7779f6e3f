"""Export and import: what goes out comes back."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.queues.logs.producers import KnownProducer, ProducerSnapshot
from sluiceway.queues.message import DelayedMessage, Message
from sluiceway.store import keys, states
from sluiceway.store.durables import durable_changes
from sluiceway.store.engine import Change, delete, put
from sluiceway.store.log_producers import encode_producers, kept_producers
from sluiceway.store.maintenance.bodies import PIECE_BYTES, FolderBodies
from sluiceway.store.maintenance.check import check, check_folder
from sluiceway.store.maintenance.importing import import_folder
from sluiceway.store.maintenance.lines import (
    ExportFormatError,
)
from sluiceway.store.maintenance.opening import open_store
from sluiceway.store.maintenance.records import make_large
from sluiceway.store.memory import MemoryEngine
from sluiceway.store.recovery import recover
from tests.store.exports import (
    END_OF_ONE,
    EVERYTHING,
    HEADER,
    HEADS,
    alive,
    chunk,
    complaint,
    exported,
    imported,
    message,
    meta,
    objects,
    plain,
    queue,
    rich_store,
    store_of,
)

# -- what goes out comes back ------------------------------------------------------------------------------------------


def test_export_import_export_is_identical() -> None:
    lines = exported(rich_store())
    copy = MemoryEngine()
    report = imported(copy, lines)
    assert exported(copy) == lines
    assert (report.messages_count, report.renumbered_count, report.subscriptions_added_count) == (18, 0, 2)
    assert [(q.name, q.kind, q.priority, q.messages_count, q.appended) for q in report.queues] == [
        ("/queue/a", "queue", 4, 10, False),
        ("/queue/a", "queue", 9, 3, False),
        ("/topic/t", "topic", 4, 5, False),
    ]


def test_a_broker_finds_the_same_in_the_copy() -> None:
    original, copy = rich_store(), MemoryEngine()
    imported(copy, exported(original))
    assert alive(copy) == alive(original)
    found, before = (recover(engine, lambda _count: None, HEADS) for engine in (copy, original))
    assert (found.token, found.next_number, found.clean) == (before.token, before.next_number, True)
    assert sorted(found.durables.values(), key=str) == sorted(before.durables.values(), key=str)
    [cursor] = found.queues["/topic/t", 4, True].cursors.values()
    assert cursor == states.CursorRecord(101, 104, (range(102, 103), range(104, 105)), {101: 2, 103: 0})


def test_what_was_imported_has_no_faults() -> None:
    copy = MemoryEngine()
    imported(copy, exported(rich_store()))
    imported(copy, exported(rich_store()))
    report = check(copy, HEADS)
    assert dict(report.fault_counts) == {}
    assert report.messages_count == 36


def test_the_lines_are_what_the_page_says() -> None:
    lines = exported(rich_store())
    assert lines[0].decode() == HEADER + "\n"
    assert json.loads(lines[-1]) == {"line": "end", "messages": 18, "subscriptions": 2}
    first, second, third = objects(lines)[:3]
    assert first == {
        "line": "message",
        "destination": "/queue/a",
        "kind": "queue",
        "priority": 4,
        "sequence": 1,
        "number": 2,
        "dialect": 2,
        "headers": "destination:/queue/a\npersistent:true",
        "attempts": 0,
        "body": "body 2",
    }
    assert second["attempts"] == 3
    assert third["sequence"] == 3
    odd = next(row for row in objects(lines) if row["number"] == 6)
    assert (odd["body_base64"], odd.get("body")) == ("/wBieXRlcw==", None)
    assert "attempts" not in objects(lines)[-1]
    assert [line.count(b"\n") for line in lines] == [1] * len(lines)


def test_a_pattern_chooses_destinations() -> None:
    lines = exported(rich_store(), "/topic/>")
    assert {row["destination"] for row in objects(lines)} == {"/topic/t"}
    assert len(objects(lines, "subscription")) == 2
    assert {row["destination"] for row in objects(exported(rich_store(), "a"))} == {"/queue/a"}
    assert objects(exported(rich_store(), "/queue/nothing")) == []


def test_tens_of_thousands_of_messages_come_through() -> None:
    store = store_of(meta(60_000), queue(1, "/queue/a"))
    for first in range(0, 30_000, 1024):
        count = min(1024, 30_000 - first)
        store.write(chunk(first, [message(1 + first + k, b"x" * 100) for k in range(count)]), sync=False)
    lines = exported(store)
    assert len(lines) == 30_002
    copy = MemoryEngine()
    assert imported(copy, lines).messages_count == 30_000
    assert list(copy.iterate(*EVERYTHING))[-3:] == list(store.iterate(*EVERYTHING))[-3:]
    report = check(copy, HEADS)
    assert (report.messages_count, dict(report.fault_counts)) == (30_000, {})


def test_chunks_of_the_copy_are_bounded() -> None:
    store = store_of(meta(), queue(1, "/queue/a"), chunk(0, [message(k, bytes(1 << 20)) for k in range(1, 12)]))
    copy = MemoryEngine()
    lines = exported(store)
    imported(copy, lines)
    sizes = [len(value) for _key, value in copy.iterate(*keys.family_range(keys.CHUNK))]
    assert len(sizes) > 2 and max(sizes) < 5 << 20
    assert exported(copy) == lines


@given(seed=st.integers(0, 2**32))
def test_random_stores_come_through_and_appending_keeps_the_order(seed: int) -> None:
    """Gaps, settled and returned messages, several chunks a block, several queues; then the same behind it."""
    chance = random.Random(seed)
    changes: list[Change] = meta(10_000)
    number = 1
    for queue_id in range(1, chance.randint(1, 4)):
        changes.append(queue(queue_id, f"/queue/{queue_id}"))
        for index in sorted(chance.sample(range(6), chance.randint(0, 3))):
            place, span = chance.randint(0, 900), 0
            while place < 1000:
                count = chance.randint(1, 5)
                step = chance.randint(1, 3)
                first = (index << 10) + place
                changes += chunk(
                    first,
                    [message(number + k, destination=f"/queue/{queue_id}") for k in range(count)],
                    queue_id=queue_id,
                    step=step,
                )
                for k in range(step * (count - 1) + 1):
                    if k % step or chance.random() < 0.3:
                        span |= 1 << (place + k)
                number += count
                place += step * count + chance.randint(0, 40)
            changes.append(put(keys.state_key(queue_id, index), states.encode_state(span, {})))
    store = store_of(changes)
    assert dict(check(store, HEADS).fault_counts) == {}
    lines = exported(store)
    copy = MemoryEngine()
    imported(copy, lines)
    assert exported(copy) == lines
    assert dict(check(copy, HEADS).fault_counts) == {}
    imported(copy, lines)
    assert dict(check(copy, HEADS).fault_counts) == {}
    once = [(name, wire) for name, _number, wire, _seen in alive(store)]
    twice = [(name, wire) for name, _number, wire, _seen in alive(copy)]
    for name in {name for name, _wire in once}:
        wires = [wire for there, wire in once if there == name]
        assert [wire for there, wire in twice if there == name] == wires + wires


def test_what_waits_in_front_of_a_topic_stays_there() -> None:
    one = message(1, destination="/topic/t")
    store = store_of(
        meta(),
        queue(1, "/topic/t"),
        chunk(0, [DelayedMessage(one.head, one.wire, 1, 0, 5000)]),
        queue(2, "/topic/t", kind=states.KIND_TOPIC),
        chunk(0, [message(2, destination="/topic/t")], queue_id=2),
    )
    assert dict(check(store, HEADS).fault_counts) == {}
    copy = MemoryEngine()
    report = imported(copy, exported(store))
    assert [(q.name, q.kind) for q in report.queues] == [("/topic/t (delayed)", "queue"), ("/topic/t", "topic")]
    assert exported(copy) == exported(store)
    store.write([delete(keys.queue_key(1))], sync=True)
    assert [row["kind"] for row in objects(exported(store))] == ["queue", "topic"]


@pytest.mark.parametrize("destination", ["/queue/a\x1f256", "/queue/a\x1f1000", "/topic/a\x1f3", "/queue/a\x1f03"])
def test_parts_that_no_queue_has_are_refused(destination: str) -> None:
    with pytest.raises(ExportFormatError, match="line 2"):
        imported(store_of(meta()), [HEADER, plain(destination=destination), END_OF_ONE])


def test_parts_are_imported_and_named_for_people() -> None:
    report = imported(store_of(meta()), [HEADER, plain(destination="/queue/a\x1f255"), END_OF_ONE])
    assert [queue.name for queue in report.queues] == ["/queue/a part 255"]


# -- into a store that has something -----------------------------------------------------------------------------------


def test_an_import_goes_behind_what_is_there() -> None:
    there = store_of(meta(500), queue(1, "/queue/a"), chunk(0, [message(k, b"old") for k in (1, 2)]))
    report = imported(there, exported(rich_store(), "/queue/a"))
    assert [q.appended for q in report.queues] == [True, False]
    rows = [row for row in alive(there) if row[0] == "/queue/a"]
    assert [row[2][-4:-1] for row in rows[:2]] == [b"old", b"old"]
    assert len(rows) == 2 + 13


def test_message_numbers_stay_where_they_are_free() -> None:
    there = store_of(meta(9), queue(1, "/queue/a"), chunk(0, [message(1)]))
    report = imported(there, exported(rich_store(), "/queue/a"))
    numbers = [row[1] for row in alive(there)]
    assert len(numbers) == len(set(numbers))
    assert {9, 10, 11, 30, 40, 41} <= set(numbers), "those from 9 on were free"
    assert report.renumbered_count == 7
    assert sorted(number for number in numbers if number >= 1000) == list(range(1000, 1007))
    assert recover(there, lambda _count: None, HEADS).next_number == 1007


def test_what_was_never_seen_is_not_marked_because_of_an_old_lease() -> None:
    """The lease of a queue runs ahead of what it has."""
    there = store_of(
        meta(),
        queue(1, "/queue/a"),
        put(keys.head_key(1), states.encode_head(2, 65_538)),
        chunk(0, [message(1), message(2)]),
    )
    imported(there, [HEADER, plain(), END_OF_ONE])
    assert [row[3] for row in alive(there)] == [0, 0, -1]


def test_what_was_seen_is_marked_in_a_queue_with_a_lease() -> None:
    there = store_of(
        meta(),
        queue(1, "/queue/a"),
        put(keys.head_key(1), states.encode_head(2, 65_538)),
        chunk(0, [message(1), message(2)]),
    )
    imported(there, [HEADER, plain(attempts=2), END_OF_ONE])
    assert [row[3] for row in alive(there)] == [0, 0, 2]


def test_a_subscription_that_is_there_gets_what_is_imported() -> None:
    there = rich_store()
    report = imported(there, exported(rich_store()))
    assert (report.subscriptions_added_count, report.subscriptions_there_count) == (0, 2)
    found = recover(there, lambda _count: None, HEADS)
    [cursor] = found.queues["/topic/t", 4, True].cursors.values()
    assert cursor.front == 101
    assert found.queues["/topic/t", 4, True].live_count == 10


def test_a_new_subscription_does_not_get_what_was_there_before() -> None:
    there = store_of(
        meta(),
        queue(1, "/topic/t", kind=states.KIND_TOPIC),
        chunk(0, [message(1 + k, destination="/topic/t") for k in range(3)]),
    )
    imported(there, exported(rich_store(), "/topic/>"))
    found = recover(there, lambda _count: None, HEADS).queues["/topic/t", 4, True]
    [cursor] = found.cursors.values()
    assert cursor == states.CursorRecord(
        1024 + 101, 1024 + 104, (range(1126, 1127), range(1128, 1129)), {1125: 2, 1127: 0}
    )
    assert sorted(found.blocks) == [0, 1]


def test_the_same_subscription_for_another_destination_is_refused() -> None:
    there = store_of(
        meta(), put(keys.durable_key(1), states.encode_durable(states.DurableRecord("c", "all", "/topic/u", "", 0, 0)))
    )
    with pytest.raises(ExportFormatError, match="is there already, for /topic/u"):
        imported(there, exported(rich_store()))


def test_lines_do_not_tell_where_durable_subscriptions_were_kept() -> None:
    """Those of an earlier version's store are those of this one's: each reads what the other has written."""
    earlier = rich_store()
    later = rich_store()
    for key, value in list(later.iterate(*keys.family_range(keys.DURABLE))):
        changes = durable_changes(keys.parse_durable_key(key), states.decode_durable(value))
        later.write([*changes, delete(key)], sync=True)
    assert sorted(exported(later)) == sorted(exported(earlier))
    copy = MemoryEngine()
    imported(copy, exported(earlier))
    assert not list(copy.iterate(*keys.family_range(keys.DURABLE)))
    assert len(list(copy.iterate(*keys.family_range(keys.PREFERENCES)))) == 2
    for there in (earlier, later, copy):
        report = imported(there, exported(later))
        assert (report.subscriptions_added_count, report.subscriptions_there_count) == (0, 2)


def test_names_of_a_durable_subscription_that_no_key_can_hold_are_refused() -> None:
    lines = exported(rich_store())
    wrong = [line.replace(b'"client_id":"d"', b'"client_id":"' + b"d" * 5000 + b'"') for line in lines]
    with pytest.raises(ExportFormatError, match=r"line 3: client id and name .* have 5001 bytes"):
        imported(MemoryEngine(), wrong)


def test_two_queues_of_one_name_become_one() -> None:
    """What a repair can't do."""
    torn = store_of(
        meta(),
        queue(1, "/queue/a"),
        queue(2, "/queue/a"),
        chunk(0, [message(k) for k in (1, 2, 3)]),
        chunk(0, [message(k) for k in (4, 5)], queue_id=2),
        chunk(1, [message(6)], queue_id=9),
    )
    copy = MemoryEngine()
    imported(copy, exported(torn))
    assert [row[1] for row in alive(copy)] == [1, 2, 3, 4, 5, 6]
    assert dict(check(copy, HEADS).fault_counts) == {}


def test_ids_of_lost_queues_are_not_used_again() -> None:
    there = store_of(meta(), queue(1, "/queue/b"), chunk(0, [message(1)], queue_id=7))
    imported(there, [HEADER, plain(), END_OF_ONE])
    found = recover(there, lambda _count: None, HEADS)
    assert found.queues["/queue/a", 4, False].queue_id == 8


def test_a_dry_run_writes_nothing_and_says_the_same() -> None:
    there, lines = rich_store(), exported(rich_store())
    before = list(there.iterate(*EVERYTHING))
    dry = imported(there, lines, dry_run=True)
    assert list(there.iterate(*EVERYTHING)) == before
    assert imported(there, lines) == dry


# -- faults of the store -----------------------------------------------------------------------------------------------


def test_what_cannot_be_read_is_left_out_and_told() -> None:
    store = rich_store()
    value = store.get(keys.chunk_key(1, 0))
    assert value is not None
    store.write(
        [
            put(keys.chunk_key(1, 0), value[:-1] + b"?"),
            put(keys.durable_key(5), b"?"),
            put(keys.state_key(1, 5000 >> 10), b"?"),
            delete(keys.summary_key(1, 10)),
            put(b"m1", b"?"),
        ],
        sync=True,
    )
    faults: list[str] = []
    lines = exported(store, faults=faults)
    assert [row["sequence"] for row in objects(lines) if row["priority"] == 4 and row["kind"] == "queue"] == [
        10, 11, 12, 5000, 5003, 5006, 5009,
    ]  # fmt: skip
    assert len(faults) == 4
    assert any("/queue/a: chunk from 0: its checksum" in fault for fault in faults)
    copy = MemoryEngine()
    imported(copy, lines)
    assert exported(copy) == lines


def test_committed_transactions_on_their_way_are_told_of() -> None:
    """Their messages are in no queue yet."""
    store = rich_store()
    store.write([put(b"t" + bytes(8), b"commit"), put(keys.transaction_key(0, 0), b"piece")], sync=True)
    faults: list[str] = []
    exported(store, faults=faults)
    assert len(faults) == 1 and "start a broker with this store" in faults[0]


# -- large bodies ------------------------------------------------------------------------------------------------------


def large_store(folder: Path, bodies: dict[int, bytes]) -> MemoryEngine:
    plain = message(1)
    messages: list[Message] = []
    for file_id, body in bodies.items():
        (folder / f"{file_id:016x}").write_bytes(body)
        messages.append(make_large(plain.head, plain.wire[: -len(b"hello\0")], file_id, 0, 0, file_id, len(body)))
    return store_of(meta(), queue(1, "/queue/a"), chunk(0, messages))


def test_large_bodies_go_in_pieces_and_come_back_as_files(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    bodies = {3: random.Random(1).randbytes(2 * PIECE_BYTES + 17), 4: b"x", 5: b""}
    lines = exported(large_store(here, bodies), large_folder=here)
    assert [row["body_bytes"] for row in objects(lines)] == [2 * PIECE_BYTES + 17, 1, 0]
    assert len(objects(lines, "body")) == 4
    (there / f"{9:016x}").write_bytes(b"somebody's")
    copy = store_of(meta(1), queue(5, "/queue/z"), chunk(0, [large_message(20)], queue_id=5))
    imported(copy, lines, large_folder=there)
    again = exported(copy, "/queue/a", large_folder=there)
    assert again[1:] == lines[1:]
    assert sorted(int(path.name, 16) for path in there.iterdir()) == [9, 21, 22, 23]
    assert dict(check(copy, HEADS, bodies=FolderBodies(there)).fault_counts) == {"bad-body": 1}, "that of file 20"


def large_message(file_id: int) -> Message:
    plain = message(1)
    return make_large(plain.head, plain.wire[: -len(b"hello\0")], 1, 0, 0, file_id, 5)


def test_a_missing_body_is_left_out(tmp_path: Path) -> None:
    store = large_store(tmp_path, {3: b"three", 4: b"four"})
    (tmp_path / f"{3:016x}").unlink()
    faults: list[str] = []
    lines = exported(store, large_folder=tmp_path, faults=faults)
    assert [row["number"] for row in objects(lines)] == [4]
    assert len(faults) == 1 and "is missing" in faults[0]


def test_a_body_that_does_not_come_to_its_end_leaves_no_file(tmp_path: Path) -> None:
    lines = exported(large_store(tmp_path, {3: bytes(2 * PIECE_BYTES)}), large_folder=tmp_path)
    there = tmp_path / "there"
    there.mkdir()
    del lines[3]
    with pytest.raises(ExportFormatError, match="line 4: the large body of the message before it is not complete"):
        imported(MemoryEngine(), lines, large_folder=there)
    assert list(there.iterdir()) == []


# -- into a folder -----------------------------------------------------------------------------------------------------


def opener(lines: Sequence[bytes]) -> Any:
    @contextmanager
    def opened() -> Iterator[Iterable[bytes]]:
        yield iter(lines)

    return opened


def test_a_new_folder_is_made(tmp_path: Path) -> None:
    lines = exported(rich_store())
    import_folder(tmp_path / "data", opener(lines), HEADS, complaint, again=True)
    with open_store(tmp_path / "data") as opened:
        assert exported(opened.engine) == lines
    assert dict(check_folder(tmp_path / "data", HEADS).fault_counts) == {}


def test_a_dry_run_makes_no_folder(tmp_path: Path) -> None:
    report = import_folder(
        tmp_path / "data", opener(exported(rich_store())), HEADS, complaint, again=True, dry_run=True
    )
    assert report.messages_count == 18
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_leaves_nothing_behind(tmp_path: Path) -> None:
    lines = exported(rich_store())
    folder = tmp_path / "data"
    with pytest.raises(ExportFormatError):
        import_folder(folder, opener(lines[:-1]), HEADS, complaint, again=True)
    assert not folder.exists()
    import_folder(folder, opener(lines), HEADS, complaint, again=True)
    with pytest.raises(ExportFormatError):
        import_folder(folder, opener(lines[:-1]), HEADS, complaint, again=True)
    with open_store(folder) as opened:
        assert exported(opened.engine) == lines


def test_progress_goes_over_both_passes(tmp_path: Path) -> None:
    lines = exported(rich_store())
    told: list[int] = []
    import_folder(tmp_path / "data", opener(lines), HEADS, complaint, again=True, on_progress=told.append)
    assert told[-1] == 2 * len(lines)


# -- producers ---------------------------------------------------------------------------------------------------------


def known_producers() -> MemoryEngine:
    """A store with producers, of queues with messages and without, and of a log."""
    snapshot = ProducerSnapshot("ab", 7, (KnownProducer("p", 5, 1700, ((5, 6, 1),)),))
    return store_of(
        meta(),
        queue(1, "/queue/a"),
        chunk(0, [message(1)]),
        put(keys.producer_key(1, "pbilling"), states.encode_producer(1042, 1700)),
        put(keys.producer_key(1, "iorder-7"), states.encode_producer(-1, 1800)),
        queue(2, "/queue/consumed", 9),
        put(keys.producer_key(2, "pbilling"), states.encode_producer(3, 1900)),
        put(keys.log_producers_key("/log/a"), encode_producers(snapshot)),
    )


def test_producers_and_ids_come_along() -> None:
    store, copy = known_producers(), MemoryEngine()
    lines = exported(store)
    report = imported(copy, lines)
    assert exported(copy) == lines and report.producers_count == 4
    assert dict(check(copy, HEADS).fault_counts) == {}
    found, before = (recover(engine, lambda _count: None, HEADS).queues for engine in (copy, store))
    for name in [("/queue/a", 4, False), ("/queue/consumed", 9, False)]:
        assert found[name].producers == before[name].producers != {}
    assert [row["line"] for row in map(json.loads, exported(store, "/queue/a"))][-3:-1] == ["duplicate-id", "producer"]


def test_of_two_records_of_a_producer_the_higher_counts() -> None:
    lines = exported(known_producers())
    there = known_producers()
    there.write([put(keys.producer_key(1, "pbilling"), states.encode_producer(2000, 100))], sync=True)
    kept = ProducerSnapshot("cd", 1)
    there.write([put(keys.log_producers_key("/log/a"), encode_producers(kept))], sync=True)
    imported(there, lines)
    found = recover(there, lambda _count: None, HEADS).queues["/queue/a", 4, False]
    assert found.producers == {"pbilling": (2000, 1700), "iorder-7": (-1, 1800)}
    assert kept_producers(there, lambda _key, _error: None) == {"/log/a": kept}, "what the store has stays"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"line": "producer", "destination": "/queue/a", "producer": "", "sequence": 1}, "has 1 to 200 bytes"),
        ({"line": "producer", "destination": "/queue/a", "producer": "p", "sequence": 2**63}, "'sequence' should be"),
        ({"line": "duplicate-id", "destination": "/queue/a", "id": "i" * 201}, "has 1 to 200 bytes"),
        ({"line": "log-producers", "log": "/queue/a", "log_id": "ab", "end_index": 0}, "'/queue/a' is no log"),
        (
            {"line": "log-producers", "log": "/log/a", "log_id": "ab", "end_index": 0, "producers": [["p", 1, 2]]},
            "'producers' should have name",
        ),
    ],
)
def test_lines_of_producers_are_judged(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ExportFormatError, match=f"line 2: .*{said}"):
        imported(store_of(meta()), [HEADER, json.dumps(fields)])
