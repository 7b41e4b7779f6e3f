"""What an earlier run left: read from the small records only, so that ten million messages take seconds.

The bodies stay where they are: of each block the summaries of its chunks and its state record tell how many elements
are alive, about how large they are and when they expire. Queues page them in when somebody reads.

Elements that were stored without being persistent (paged out) belong to the run that stored them: they are deleted.

Source: DESIGN section 7 "Recovery"; anchors c21, d24.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from queues.blocks import Dates, Outside, bit_range
from store import keys
from store.chunks import decode_summary
from store.engine import Change, Engine, delete_range, put
from store.shelf import StoredBlock
from store.states import (
    KIND_TOPIC,
    CursorRecord,
    DurableRecord,
    decode_clean,
    decode_cursor,
    decode_durable,
    decode_head,
    decode_numbers,
    decode_queue,
    decode_state,
    encode_clean,
    encode_format,
    encode_numbers,
)

PROGRESS_COUNT: Final = 100_000
"""Records between two reports of progress."""

WIPE_COUNT: Final = 20_000
"""Records deleted in one batch."""


@attrs.define
class RecoveredQueue:
    """What was left of one queue."""

    queue_id: int
    name: str
    priority: int
    topic: bool
    next_sequence: int = 0
    handed_to: int = 0
    """Elements below this may have been seen by a consumer; 0: which, the attempts of the blocks say exactly."""
    blocks: dict[int, StoredBlock] = attrs.field(factory=dict)
    outside: dict[int, tuple[Outside, int]] = attrs.field(factory=dict)
    """By block: what the queue has to know, and how many elements are alive."""
    grouped: set[int] = attrs.field(factory=set)
    """Blocks with elements that belong to a message group."""
    cursors: dict[int, CursorRecord] = attrs.field(factory=dict)
    """Of durable subscriptions, by their ids."""
    due: set[int] = attrs.field(factory=set)
    """Blocks with elements that must not be delivered before a time."""

    @property
    def attempts(self) -> dict[int, int]:
        """By sequence: how often elements that came back were handed over."""
        return {
            (index << keys.BLOCK_BITS) + place: count
            for index, block in self.blocks.items()
            for place, count in (block.attempts or {}).items()
        }

    @property
    def live_count(self) -> int:
        return sum(count for _outside, count in self.outside.values())


@attrs.define
class Recovered:
    """All of it."""

    queues: dict[tuple[str, int, bool], RecoveredQueue] = attrs.field(factory=dict)
    next_queue_id: int = 1
    token: bytes | None = None
    """Of the message-ids of this store."""
    next_number: int = 1
    """Message numbers below this may be in use."""
    durables: dict[int, DurableRecord] = attrs.field(factory=dict)
    clean: bool = True
    """The earlier run ended in good order."""
    live_count: int = 0

    def take(self, name: str, priority: int, *, topic: bool) -> RecoveredQueue | None:
        """What was left of this queue, once."""
        return self.queues.pop((name, priority, topic), None)


class _Spans:
    """The chunks of one block, added up."""

    __slots__ = ("count", "due", "earliest_ms", "firsts", "grouped", "latest_ms", "span", "undated", "wire_bytes")

    def __init__(self) -> None:
        self.span = self.count = self.wire_bytes = self.undated = 0
        self.firsts: list[int] = []
        self.earliest_ms = self.latest_ms = 0
        self.grouped = self.due = False


def recover(engine: Engine, progress: Callable[[int], None]) -> Recovered:
    """Read what was left, and delete what belongs to no later run. `progress` gets the number of messages found so far.

    Blocks: for a worker thread, or before anything runs. O(chunks + blocks). Raises EngineError, StoreFormatError.
    """
    found = Recovered()
    found.token = engine.get(keys.META_TOKEN_KEY)
    numbers = engine.get(keys.META_NUMBERS_KEY)
    if numbers is not None:
        found.next_number = decode_numbers(numbers)
    clean = engine.get(keys.META_CLEAN_KEY)
    found.clean = clean is None or decode_clean(clean)
    by_id: dict[int, RecoveredQueue] = {}
    for key, value in engine.iterate(*keys.family_range(keys.QUEUE)):
        kind, priority, name = decode_queue(value)
        queue_id = keys.parse_queue_key(key)
        by_id[queue_id] = RecoveredQueue(queue_id, name, priority, kind == KIND_TOPIC)
        found.next_queue_id = max(found.next_queue_id, queue_id + 1)
    for key, value in engine.iterate(*keys.family_range(keys.HEAD)):
        queue = by_id.get(keys.parse_queue_key(key))
        if queue is not None:
            queue.next_sequence, queue.handed_to = decode_head(value)
    for key, value in engine.iterate(*keys.family_range(keys.DURABLE)):
        found.durables[keys.parse_durable_key(key)] = decode_durable(value)
    for key, value in engine.iterate(*keys.family_range(keys.CURSOR)):
        queue_id, durable_id = keys.parse_cursor_key(key)
        if queue_id in by_id and durable_id in found.durables:
            by_id[queue_id].cursors[durable_id] = decode_cursor(value)
    _wipe(engine, keys.PAGED)
    spans = _read_spans(engine, by_id, progress)
    states = _read_states(engine, by_id)
    for queue_id, queue in by_id.items():
        _put_together(queue, spans.get(queue_id, {}), states.get(queue_id, {}))
        found.live_count += queue.live_count
        found.queues[queue.name, queue.priority, queue.topic] = queue
    return found


def _wipe(engine: Engine, family: bytes) -> None:
    start, stop = keys.family_range(family)
    batch: list[Change] = []
    first = start
    count = 0
    for key in engine.iterate_keys(start, stop):
        count += 1
        if count % WIPE_COUNT == 0:
            batch.append(delete_range(first, key))
            first = key
    if count:
        batch.append(delete_range(first, stop))
    for change in batch:
        engine.write([change], sync=False)


def _read_spans(
    engine: Engine, by_id: dict[int, RecoveredQueue], progress: Callable[[int], None]
) -> dict[int, dict[int, _Spans]]:
    spans: dict[int, dict[int, _Spans]] = {}
    messages_count = 0
    for records_count, (key, value) in enumerate(engine.iterate(*keys.family_range(keys.SUMMARY))):
        queue_id, first = keys.parse_placed_key(key)
        summary = decode_summary(value)
        messages_count += summary.count
        if records_count % PROGRESS_COUNT == PROGRESS_COUNT - 1:
            progress(messages_count)
        if queue_id not in by_id:
            continue
        index = first >> keys.BLOCK_BITS
        part = spans.setdefault(queue_id, {}).setdefault(index, _Spans())
        base = index << keys.BLOCK_BITS
        part.span |= bit_range(first - base, summary.end_sequence - base)
        part.firsts.append(first)
        part.count += summary.count
        part.wire_bytes += summary.wire_bytes
        part.undated += summary.undated_count
        if summary.expires_min_ms:
            earliest_ms = part.earliest_ms
            part.earliest_ms = min(earliest_ms, summary.expires_min_ms) if earliest_ms else summary.expires_min_ms
            part.latest_ms = max(part.latest_ms, summary.expires_max_ms)
        part.grouped = part.grouped or summary.some_grouped
        part.due = part.due or summary.some_due
    progress(messages_count)
    return spans


def _read_states(engine: Engine, by_id: dict[int, RecoveredQueue]) -> dict[int, dict[int, tuple[int, dict[int, int]]]]:
    states: dict[int, dict[int, tuple[int, dict[int, int]]]] = {}
    for key, value in engine.iterate(*keys.family_range(keys.STATE)):
        queue_id, index = keys.parse_placed_key(key)
        if queue_id in by_id:
            states.setdefault(queue_id, {})[index] = decode_state(value)
    return states


def _put_together(
    queue: RecoveredQueue, spans: dict[int, _Spans], states: dict[int, tuple[int, dict[int, int]]]
) -> None:
    for index in sorted(spans):
        part = spans[index]
        settled, attempts = states.get(index, (0, {}))
        live = part.span & ~settled
        stored = StoredBlock(part.span, live, part.firsts)
        stored.attempts = attempts or None
        queue.blocks[index] = stored
        if not live:
            continue  # deleted with the first batch
        live_count = live.bit_count()
        size_bytes = part.wire_bytes * live_count // part.count
        dates = Dates(part.earliest_ms, part.latest_ms, part.undated)
        queue.outside[index] = Outside(live, live.bit_length(), size_bytes, dates), live_count
        if part.grouped:
            queue.grouped.add(index)
        if part.due:
            queue.due.add(index)


def opening_records(token: bytes, numbers_to: int) -> list[Change]:
    """What is written, synced, before a broker uses a store: from here on it is not closed in order."""
    return [
        put(keys.META_FORMAT_KEY, encode_format(keys.FORMAT_VERSION)),
        put(keys.META_TOKEN_KEY, token),
        put(keys.META_NUMBERS_KEY, encode_numbers(numbers_to)),
        put(keys.META_CLEAN_KEY, encode_clean(False)),
    ]


def closing_records(next_number: int) -> list[Change]:
    """What is written last."""
    return [
        put(keys.META_NUMBERS_KEY, encode_numbers(next_number)),
        put(keys.META_CLEAN_KEY, encode_clean(True)),
    ]
