"""Stores that are exported, and what of them is looked at, for the tests of export and import."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sluiceway.protocols.stomp.header_codec import HeaderCodec
from sluiceway.queues.message import DelayedMessage, Envelope, Message
from sluiceway.store import keys, states
from sluiceway.store.chunks import decode_chunk, encode_chunk_and_summary
from sluiceway.store.engine import Change, Engine, put
from sluiceway.store.maintenance.bodies import FolderBodies
from sluiceway.store.maintenance.export import Export, destination_filter
from sluiceway.store.maintenance.importing import Import, ImportReport
from sluiceway.store.maintenance.lines import (
    read_lines,
)
from sluiceway.store.maintenance.records import make_large
from sluiceway.store.memory import MemoryEngine
from sluiceway.store.recovery import recover

HEADS = HeaderCodec()
EVERYTHING = (b"", b"\xff" * 8)
HEADER = '{"line":"header","export":"sluiceway","format":1,"token":"k7q2","next_number":1000}'


def message(number: int, body: bytes = b"hello", *, destination: str = "/queue/a", headers: bytes = b"") -> Message:
    block = b"destination:" + destination.encode() + b"\npersistent:true" + headers
    return Message(HEADS.restore(2, block), block + b"\n\n" + body + b"\0", number)


def chunk(first: int, messages: Sequence[Message], *, queue_id: int = 1, step: int = 1) -> list[Change]:
    sequences = range(first, first + step * len(messages), step)
    value, summary = encode_chunk_and_summary(first, list(sequences), messages, HEADS)
    return [put(keys.chunk_key(queue_id, first), value), put(keys.summary_key(queue_id, first), summary)]


def meta(numbers: int = 1000, token: bytes = b"k7q2") -> list[Change]:
    return [
        put(keys.META_FORMAT_KEY, states.encode_format(keys.FORMAT_VERSION)),
        put(keys.META_TOKEN_KEY, token),
        put(keys.META_NUMBERS_KEY, states.encode_numbers(numbers)),
        put(keys.META_CLEAN_KEY, states.encode_clean(True)),
    ]


def queue(queue_id: int, name: str, priority: int = 4, kind: int = states.KIND_QUEUE) -> Change:
    return put(keys.queue_key(queue_id), states.encode_queue(kind, priority, name))


def store_of(*changes: Change | list[Change]) -> MemoryEngine:
    engine = MemoryEngine()
    engine.write([c for change in changes for c in (change if isinstance(change, list) else [change])], sync=True)
    return engine


def rich_store() -> MemoryEngine:
    """All that an export can hold, but large bodies."""
    dated = message(40, headers=b"\nexpires:1700000000000")
    return store_of(
        meta(),
        queue(1, "/queue/a"),
        put(keys.head_key(1), states.encode_head(2000, 12)),
        chunk(0, [message(k, f"body {k}".encode()) for k in range(1, 5)]),
        chunk(10, [message(5), message(6, b"\xff\x00bytes"), message(7, "über 😀 \u2028".encode())]),
        put(keys.state_key(1, 0), states.encode_state(0b1, {2: 3})),
        chunk(5000, [message(k) for k in range(8, 12)], step=3),
        put(keys.state_key(1, 5000 >> 10), states.encode_state(0b110110110 << (5000 & 1023), {})),
        queue(3, "/queue/a", 9),
        chunk(
            7,
            [
                message(30, b"", headers=b"\npriority:9"),
                Message(dated.head, dated.wire, 40, 1_700_000_000_000),
                DelayedMessage(dated.head, dated.wire, 41, 1_700_000_000_000, 1_600_000_000_000),
            ],
            queue_id=3,
        ),
        queue(4, "/topic/t", kind=states.KIND_TOPIC),
        chunk(100, [message(50 + k, destination="/topic/t") for k in range(5)], queue_id=4),
        put(keys.durable_key(2), states.encode_durable(states.DurableRecord("c", "all", "/topic/>", "x = 1", 11, 12))),
        put(keys.durable_key(5), states.encode_durable(states.DurableRecord("d", "", "/topic/u", "", 0, 0))),
        put(keys.cursor_key(4, 2), states.encode_cursor(101, 104, [102, 104], {101: 2, 103: 0})),
    )


def complaint(_head: Envelope, body_bytes: int, has_nul: bool) -> str | None:
    """In the place of the protocol's."""
    return "a body of 13 bytes with a NUL" if has_nul and body_bytes == 13 else None


def exported(
    engine: Engine, *patterns: str, large_folder: Path | None = None, faults: list[str] | None = None
) -> list[bytes]:
    told: list[str] = [] if faults is None else faults
    export = Export(
        engine,
        HEADS,
        bodies=None if large_folder is None else FolderBodies(large_folder),
        wanted=destination_filter(patterns) if patterns else lambda _name: True,
        on_fault=told.append,
    )
    lines = list(export.lines())
    assert export.faults_count == len(told)
    assert faults is not None or not told
    return lines


def imported(
    engine: Engine, lines: Iterable[bytes | str], *, large_folder: Path | None = None, dry_run: bool = False
) -> ImportReport:
    bodies = None if large_folder is None else FolderBodies(large_folder)
    with Import(engine, HEADS, complaint, bodies=bodies, dry_run=dry_run) as taking:
        for number, line in read_lines([text.encode() if isinstance(text, str) else text for text in lines]):
            taking.take(number, line)
        return taking.finish()


def objects(lines: Iterable[bytes], kind: str = "message") -> list[dict[str, Any]]:
    return [value for line in lines if (value := json.loads(line))["line"] == kind]


def alive(engine: Engine) -> list[tuple[str, int, bytes, int]]:
    """Queue, number and wire of all that is alive, and how often it was handed over (-1: never): as a broker has it."""
    found = recover(engine, lambda _count: None, HEADS)
    assert found.faults == []
    rows = []
    for left in found.queues.values():
        for index, block in left.blocks.items():
            base = index << keys.BLOCK_BITS
            for first in sorted(block.firsts):
                value = engine.get(keys.chunk_key(left.queue_id, first))
                assert value is not None
                for sequence, one in zip(*decode_chunk(first, value, HEADS, make_large), strict=True):
                    if block.live >> (sequence - base) & 1:
                        seen = 0 if sequence < left.handed_to else -1
                        rows.append((left.name, one.number, one.wire, left.attempts.get(sequence, seen)))
    return rows


# -- lines by hand

END_OF_ONE = '{"line":"end","messages":1}'


def plain(**fields: Any) -> str:
    values: dict[str, Any] = {
        "line": "message",
        "destination": "/queue/a",
        "dialect": 2,
        "headers": "destination:/queue/a\npersistent:true",
        "body": "hi",
    }
    values |= fields
    return json.dumps({name: value for name, value in values.items() if value is not None})
