"""FORMAT.md is what the code does: every example in it is decoded, compared with what it says, and written again."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import astuple

import sluiceway.store.keys
from sluiceway.queues.logs.batches import encode, split, stamped
from sluiceway.queues.logs.producers import KnownProducer, ProducerSnapshot
from sluiceway.queues.message import Message
from sluiceway.store import chunks, durables, keys, log_producers, spool_records, states, valuecodec
from sluiceway.store.engine_bodies import EngineBodies
from sluiceway.store.engine_log import LogHead
from sluiceway.store.extents import Contents, Extent
from sluiceway.store.metadata import records
from tests.store.heads import FiledMessage, PlainHead, PlainHeads, Row, message_of, row_of

DOCUMENT: Final = (Path(sluiceway.store.keys.__file__).parent / "FORMAT.md").read_text(encoding="utf-8")


class Example:
    """One fenced block: key, value and what they read as. `value` is empty for a key without one."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        fields = {"key": "", "value": "", "reads": ""}
        label = ""
        for line in text.splitlines():
            found = re.match(r"(key|value|reads)\s+(.*)", line)
            label, rest = (found[1], found[2]) if found else (label, line)
            fields[label] += (rest if label == "reads" else rest.partition("#")[0]) + "\n"
        self.key = bytes.fromhex(fields["key"])
        self.value = bytes.fromhex(fields["value"])
        self.reads: Any = worth(ast.parse(fields["reads"].strip(), mode="eval").body)


def worth(node: ast.expr) -> Any:
    """A literal, in which integers may be given as sums and powers."""
    match node:
        case ast.Tuple(elts=parts):
            return tuple(worth(part) for part in parts)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return worth(left) - worth(right)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return worth(left) ** worth(right)
    return ast.literal_eval(node)


EXAMPLES: Final = [
    Example(name, text) for name, text in re.findall(r"^```hex (\S+)\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
]


def chunk_reads(key: bytes, value: bytes) -> list[Row]:
    _queue_id, first = keys.parse_placed_key(key)
    found = chunks.decode_chunk(first, value, PlainHeads(), FiledMessage)
    return [row_of(sequence, message) for sequence, message in zip(*found, strict=True)]


def chunk_again(key: bytes, rows: list[Row]) -> bytes:
    _queue_id, first = keys.parse_placed_key(key)
    table: dict[tuple[int, bytes], PlainHead] = {}
    messages: list[Message] = []
    for row in rows:
        head = table.setdefault((row[2], row[3]), PlainHead(row[2], row[3]))
        messages.append(message_of(head, row))
    return chunks.encode_chunk(first, [row[0] for row in rows], messages, PlainHeads())


def segment_reads(key: bytes, value: bytes) -> bytes:
    start = valuecodec.decode_start(value)
    assert start is not None
    end = valuecodec.START_BYTES + start[0]
    assert value[valuecodec.START_BYTES : end] == key
    assert len(value) == end + start[1]
    return value[end:]


def summary_reads(_key: bytes, value: bytes) -> tuple[Any, ...]:
    return astuple(chunks.decode_summary(value))


def cursor_reads(_key: bytes, value: bytes) -> tuple[Any, ...]:
    found = states.decode_cursor(value)
    return found.front, found.handed_to, [(run.start, run.stop) for run in found.settled], found.attempts


def cursor_again(_key: bytes, reads: Any) -> bytes:
    front, handed_to, runs, attempts = reads
    return states.encode_cursor(front, handed_to, [s for run in runs for s in range(*run)], attempts)


def durable_reads(_key: bytes, value: bytes) -> tuple[Any, ...]:
    return astuple(states.decode_durable(value))


def piece_reads(_key: bytes, value: bytes) -> tuple[Any, list[Row]]:
    piece = spool_records.decode_piece(value)
    return piece.target, chunk_reads(keys.chunk_key(0, 0), piece.chunk)


def piece_again(_key: bytes, reads: Any) -> bytes:
    target, rows = reads
    return spool_records.encode_piece(target, chunk_again(keys.chunk_key(0, 0), rows))


def commit_reads(_key: bytes, value: bytes) -> tuple[Any, ...]:
    record = spool_records.decode_commit(value)
    return record.commit_number, record.pieces_count, record.dropped


def log_producers_reads(_key: bytes, value: bytes) -> tuple[Any, ...]:
    snapshot = log_producers.decode_producers(value)
    return snapshot.log_id, snapshot.end_index, [astuple(each) for each in snapshot.producers]


def owner_reads(_key: bytes, value: bytes) -> tuple[Any, ...]:
    owner, version = records.decode_owner(value)
    return *astuple(owner), version


def extent_reads(key: bytes, value: bytes) -> tuple[Any, ...]:
    contents = Contents(Extent.of_key(key), value)
    assert not contents.why
    (batch,) = split(value)
    assert len(value) == contents.extent.size_bytes
    return *keys.parse_extent_key(key)[:5], batch.first_index, tuple(map(bytes, batch.values()))


def extent_again(_key: bytes, reads: tuple[Any, ...]) -> bytes:
    batch = encode(reads[6])
    return stamped(batch, reads[1], reads[3]) + batch[32:]


def page_ranges_reads(_key: bytes, value: bytes) -> tuple[Any, ...]:
    ranges, version = records.decode_page_ranges(value)
    return [astuple(one) for one in ranges], version


def subscription_reads(_key: bytes, value: bytes) -> tuple[Any, ...]:
    state, version = records.decode_subscription_state(value)
    return state.front, list(state.settled), state.handed_to, version, list(state.failures)


def durable_preferences_reads(key: bytes, value: bytes) -> tuple[Any, ...]:
    topic, _subscriber = keys.parse_subscription_key(key)
    durable_id, record = durables.durable_of(topic, records.decode_preferences(value))
    return durable_id, *astuple(record)


Reads = Callable[[bytes, bytes], Any]
Again = Callable[[bytes, Any], bytes]

RECORDS: Final[dict[str, tuple[Callable[[bytes], bytes], Reads, Again]]] = {
    # How its key is made again from its key, how it is read, how its value is made again from what was read.
    "meta-format": (
        lambda _key: keys.META_FORMAT_KEY,
        lambda _key, value: states.decode_format(value),
        lambda _key, reads: states.encode_format(reads),
    ),
    "meta-token": (lambda _key: keys.META_TOKEN_KEY, lambda _key, value: value, lambda _key, reads: bytes(reads)),
    "meta-numbers": (
        lambda _key: keys.META_NUMBERS_KEY,
        lambda _key, value: states.decode_numbers(value),
        lambda _key, reads: states.encode_numbers(reads),
    ),
    "meta-clean": (
        lambda _key: keys.META_CLEAN_KEY,
        lambda _key, value: states.decode_clean(value),
        lambda _key, reads: states.encode_clean(reads),
    ),
    "queue": (
        lambda key: keys.queue_key(keys.parse_queue_key(key)),
        lambda _key, value: states.decode_queue(value),
        lambda _key, reads: states.encode_queue(*reads),
    ),
    "head": (
        lambda key: keys.head_key(keys.parse_queue_key(key)),
        lambda _key, value: states.decode_head(value),
        lambda _key, reads: states.encode_head(*reads),
    ),
    "chunk": (lambda key: keys.chunk_key(*keys.parse_placed_key(key)), chunk_reads, chunk_again),
    "pointer": (
        lambda key: keys.value_key(*keys.parse_placed_key(key)),
        lambda _key, value: astuple(valuecodec.decode_pointer(value)),
        lambda _key, reads: valuecodec.encode_pointer(valuecodec.ValuePointer(*reads)),
    ),
    "value-in-segment": (
        lambda key: keys.chunk_key(*keys.parse_placed_key(key)),
        segment_reads,
        lambda key, reads: valuecodec.encode_start(key, len(reads)) + reads,
    ),
    "paged-chunk": (lambda key: keys.paged_key(*keys.parse_placed_key(key)), chunk_reads, chunk_again),
    "summary": (
        lambda key: keys.summary_key(*keys.parse_placed_key(key)),
        summary_reads,
        lambda _key, reads: chunks.encode_summary(chunks.Summary(*reads)),
    ),
    "state-bitmap": (
        lambda key: keys.state_key(*keys.parse_placed_key(key)),
        lambda _key, value: states.decode_state(value),
        lambda _key, reads: states.encode_state(*reads),
    ),
    "state-runs": (
        lambda key: keys.state_key(*keys.parse_placed_key(key)),
        lambda _key, value: states.decode_state(value),
        lambda _key, reads: states.encode_state(*reads),
    ),
    "durable": (
        lambda key: keys.durable_key(keys.parse_durable_key(key)),
        durable_reads,
        lambda _key, reads: states.encode_durable(states.DurableRecord(*reads)),
    ),
    "cursor": (lambda key: keys.cursor_key(*keys.parse_cursor_key(key)), cursor_reads, cursor_again),
    "producer": (
        lambda key: keys.producer_key(*keys.parse_producer_key(key)),
        lambda _key, value: states.decode_producer(value),
        lambda _key, reads: states.encode_producer(*reads),
    ),
    "log-producers": (
        lambda key: keys.log_producers_key(keys.parse_log_producers_key(key)),
        log_producers_reads,
        lambda _key, reads: log_producers.encode_producers(
            ProducerSnapshot(reads[0], reads[1], tuple(KnownProducer(*one) for one in reads[2]))
        ),
    ),
    "piece": (lambda key: keys.transaction_key(*keys.parse_transaction_key(key)), piece_reads, piece_again),
    "commit": (
        lambda key: keys.spool_key(keys.parse_spool_key(key)),
        commit_reads,
        lambda _key, reads: spool_records.encode_commit(spool_records.CommitRecord(*reads)),
    ),
    "commit-dropped": (
        lambda key: keys.spool_key(keys.parse_spool_key(key)),
        commit_reads,
        lambda _key, reads: spool_records.encode_commit(spool_records.CommitRecord(*reads)),
    ),
    "owner": (
        lambda key: keys.topic_key(keys.OWNER, keys.parse_topic_key(key)),
        owner_reads,
        lambda _key, reads: records.encode_owner(records.HubInfo(*reads[:3]), reads[3]),
    ),
    "page-ranges": (
        lambda key: keys.topic_key(keys.PAGE_RANGES, keys.parse_topic_key(key)),
        page_ranges_reads,
        lambda _key, reads: records.encode_page_ranges(
            records.PageRanges(records.PageRange(*one) for one in reads[0]), reads[1]
        ),
    ),
    "preferences": (
        lambda key: keys.subscription_key(keys.PREFERENCES, *keys.parse_subscription_key(key)),
        lambda _key, value: records.decode_preferences(value).values,
        lambda _key, reads: records.encode_preferences(records.SubscriptionPreferences(reads)),
    ),
    "durable-preferences": (
        lambda key: keys.subscription_key(keys.PREFERENCES, *keys.parse_subscription_key(key)),
        durable_preferences_reads,
        lambda _key, reads: durables.durable_changes(reads[0], states.DurableRecord(*reads[1:]))[0][2],
    ),
    "subscription": (
        lambda key: keys.subscription_key(keys.SUBSCRIPTION, *keys.parse_subscription_key(key)),
        subscription_reads,
        lambda _key, reads: records.encode_subscription_state(
            records.SubscriptionState(*reads[:3], reads[4]), reads[3]
        ),
    ),
    "log": (
        lambda key: keys.log_key(keys.parse_log_key(key)),
        lambda key, value: (keys.parse_log_key(key), *astuple(LogHead.decoded("it", value))),
        lambda _key, reads: LogHead(*reads[1:]).encoded(),
    ),
    "body-length": (
        lambda key: keys.body_key(keys.parse_body_key(key)),
        lambda _key, value: EngineBodies._length(value),
        lambda _key, reads: reads.to_bytes(8, "little"),
    ),
    "body-piece": (
        lambda key: keys.piece_key(*keys.parse_piece_key(key)),
        lambda _key, value: value,
        lambda _key, reads: reads,
    ),
    "extent": (lambda key: keys.extent_key(*keys.parse_extent_key(key)), extent_reads, extent_again),
}


def test_every_record_has_one_example() -> None:
    assert sorted(example.name for example in EXAMPLES) == sorted(RECORDS)
    assert {keys.family_of(example.key) for example in EXAMPLES} == keys.FAMILIES


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_reads_as_it_says(example: Example) -> None:
    _key_again, reads, _value_again = RECORDS[example.name]
    assert reads(example.key, example.value) == example.reads


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_is_what_the_code_writes(example: Example) -> None:
    key_again, _reads, value_again = RECORDS[example.name]
    assert key_again(example.key) == example.key
    assert value_again(example.key, example.reads) == example.value


def test_the_table_of_keys_has_every_family_and_the_right_sizes() -> None:
    rows = re.findall(r"^\| `([0-9a-f]{2})`[^|]*\| ([^|]*)\| ([^|]*)\|", DOCUMENT, re.MULTILINE)
    widths = {"u32": 4, "u64": 8}
    assert {bytes.fromhex(family) for family, _follows, _size in rows} == keys.FAMILIES
    for family, follows, size in rows:
        if not size.strip().isdigit():
            continue  # family 00 and those that are reserved have no fixed length
        assert int(size) == 1 + sum(widths[width] for width in re.findall(r"u32|u64", follows)), family
        lengths = {len(example.key) for example in EXAMPLES if keys.family_of(example.key).hex() == family}
        assert lengths == {int(size)}, family


def test_the_document_is_about_this_version() -> None:
    assert DOCUMENT.startswith(f"# Format of the store\n\nVersion {keys.FORMAT_VERSION}.")
    assert f"`sequence >> {keys.BLOCK_BITS}`" in DOCUMENT
