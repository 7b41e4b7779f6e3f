"""A store as lines: all its unsettled messages, queue by queue in order; the lines suffice to restore it.

Unsettled are the messages in chunks that no state marks as settled. Not exported: messages that were not persistent
(they belong to the run that paged them out), and the layout of the records.

A record that can't be read is left out and reported; a store that needs more than that is repaired first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from typing import Final

from ...queues.message import Message
from ...queues.names import PART_SEPARATOR, parse
from .. import keys
from ..chunks import ChunkError, HeadCodec, decode_chunk
from ..durables import kept_durables
from ..engine import Engine
from ..keys import StoreFormatError
from ..states import (
    KIND_TOPIC,
    CursorRecord,
    DurableRecord,
    decode_cursor,
    decode_durable,
    decode_head,
    decode_numbers,
    decode_queue,
    decode_state,
)
from .bodies import Bodies
from .lines import (
    BodyLine,
    CursorLine,
    End,
    Header,
    MessageLine,
    SubscriptionLine,
    write_line,
)
from .metadata import metadata_lines
from .producers import producer_lines
from .records import (
    BlockRecords,
    Progress,
    QueueName,
    blocks,
    make_large,
    of_total,
    queue_of,
)

_BLANK_LINE: Final = b"\n\n"
_TERMINATOR: Final = b"\0"


class Export:
    """One export. Run `lines` to its end; then the counters are right."""

    def __init__(
        self,
        engine: Engine,
        heads: HeadCodec,
        *,
        bodies: Bodies | None = None,
        wanted: Callable[[str], bool] = lambda _name: True,
        on_progress: Progress | None = None,
        on_fault: Callable[[str], None],
    ) -> None:
        """Prepare an export. `bodies`: large ones; None: there are none. `wanted` selects destinations; `on_fault` gets
        each record, in words, that is left out because it can't be read; `on_progress` counts settled messages, too.
        """
        self._engine = engine
        self._heads = heads
        self._bodies = bodies
        self._wanted = wanted
        self._on_progress = on_progress
        self._on_fault = on_fault
        self._queues: dict[int, QueueName] = {}
        self._handed_to: dict[int, int] = {}
        self._durables: dict[int, SubscriptionLine] = {}
        self.messages_count = 0
        self.subscriptions_count = 0
        self.metadata_count = 0
        self.producers_count = 0
        self.faults_count = 0

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of the export. Raises EngineError where the store can't be read on."""
        self._read_queues()
        self._tell_of_transactions()
        cursors = self._cursors()
        yield write_line(self._header())
        for line in self._subscriptions({durable_id for _queue_id, durable_id, _record in cursors}):
            self.subscriptions_count += 1
            yield write_line(line)
        yield from self._messages()
        for queue_id, durable_id, record in cursors:
            if durable_id in self._durables:
                yield write_line(self._cursor_line(queue_id, durable_id, record))
        for metadata in metadata_lines(self._engine, self._wanted, self._left_out):
            self.metadata_count += 1
            yield write_line(metadata)
        # Behind the messages: an import that ends early never has the producer without its message.
        for producer in producer_lines(self._engine, self._queues, self._wanted, self._left_out):
            self.producers_count += 1
            yield write_line(producer)
        yield write_line(End(self.messages_count, self.subscriptions_count, self.metadata_count, self.producers_count))

    def _tell_of_transactions(self) -> None:
        """Report committed transactions that are not in their queues yet: the export lacks them."""
        for key in self._engine.iterate_keys(*keys.family_range(keys.SPOOL)):
            self._left_out(
                f"transaction {key[1:].hex()}: it is committed, but not all is in its queues: start a broker with "
                "this store, stop it, and export again"
            )

    def _left_out(self, what: str) -> None:
        self.faults_count += 1
        self._on_fault(what)

    # ------------------------------------------------------------------ small records

    def _header(self) -> Header:
        token = self._engine.get(keys.META_TOKEN_KEY)
        try:
            text = token.decode("ascii") if token is not None else None
        except UnicodeDecodeError:
            text = None  # tokens are ASCII; losing another one costs only a name
        value = self._engine.get(keys.META_NUMBERS_KEY)
        try:
            return Header(text, decode_numbers(value) if value is not None else 1)
        except StoreFormatError as error:
            self._left_out(f"message numbers: {error}")
            return Header(text, 1)

    def _read_queues(self) -> None:
        for key, value in self._engine.iterate(*keys.family_range(keys.QUEUE)):
            try:
                kind, priority, name = decode_queue(value)
                self._queues[keys.parse_queue_key(key)] = QueueName(name, priority, kind == KIND_TOPIC)
            except StoreFormatError as error:
                self._left_out(f"record {key.hex()}: {error}")
        for key, value in self._engine.iterate(*keys.family_range(keys.HEAD)):
            try:
                self._handed_to[keys.parse_queue_key(key)] = decode_head(value)[1]
            except StoreFormatError as error:
                self._left_out(f"record {key.hex()}: {error}")

    def _cursors(self) -> list[tuple[int, int, CursorRecord]]:
        """Return the cursors of the wanted queues."""
        found: list[tuple[int, int, CursorRecord]] = []
        for key, value in self._engine.iterate(*keys.family_range(keys.CURSOR)):
            try:
                queue_id, durable_id = keys.parse_cursor_key(key)
                record = decode_cursor(value)
            except StoreFormatError as error:
                self._left_out(f"record {key.hex()}: {error}")
                continue
            queue = self._queues.get(queue_id)
            if queue is not None and self._wanted(queue.name):
                found.append((queue_id, durable_id, record))
        return found

    def _subscriptions(self, with_cursors: set[int]) -> Iterator[SubscriptionLine]:
        """Yield the subscriptions with a cursor in a wanted queue, or for a wanted destination."""
        for durable_id, record in self._durable_records():
            if durable_id not in with_cursors and not self._wanted(record.destination):
                continue
            line = self._durables[durable_id] = SubscriptionLine(
                record.client_id,
                record.name,
                record.destination,
                record.selector,
                record.created_ms,
                record.last_seen_ms,
            )
            yield line

    def _durable_records(self) -> Iterator[tuple[int, DurableRecord]]:
        def bad(key: bytes, _value: bytes, error: StoreFormatError) -> None:
            self._left_out(f"record {key.hex()}: {error}")

        yield from kept_durables(self._engine, bad)
        for key, value in self._engine.iterate(*keys.family_range(keys.DURABLE)):  # of an earlier version
            try:
                yield keys.parse_durable_key(key), decode_durable(value)
            except StoreFormatError as error:
                bad(key, value, error)

    def _cursor_line(self, queue_id: int, durable_id: int, record: CursorRecord) -> CursorLine:
        queue, subscription = self._queues[queue_id], self._durables[durable_id]
        return CursorLine(
            client_id=subscription.client_id,
            name=subscription.name,
            destination=queue.name,
            topic=queue.topic,
            priority=queue.priority,
            front=record.front,
            handed_to=record.handed_to,
            settled=tuple((run.start, run.stop - 1) for run in record.settled),
            attempts=tuple(sorted(record.attempts.items())),
            wildcard=subscription.destination if subscription.destination != queue.name else "",
        )

    # ------------------------------------------------------------------ messages

    def _messages(self) -> Iterator[bytes]:
        tell = of_total(self._on_progress, self._engine)
        read_count = 0

        def bad_key(key: bytes, _value: bytes) -> None:
            self._left_out(f"record {key.hex()}: its key is none of its family")

        for block in blocks(self._engine, bad_key):
            queue = self._queues.get(block.queue_id)
            if queue is not None and not self._wanted(queue.name):
                read_count += sum(int.from_bytes(value[2:6], "little") for _first, value in block.chunks)
                continue
            settled, attempts = self._state(block)
            for first, value in block.chunks:
                try:
                    sequences, messages = decode_chunk(first, value, self._heads, make_large)
                except ChunkError as error:
                    self._left_out(f"{queue.name if queue is not None else f'queue {block.queue_id}'}: {error}")
                    continue
                read_count += len(messages)
                if queue is None:
                    queue = self._of_its_messages(block.queue_id, messages[0])
                    if queue is None or not self._wanted(queue.name):
                        continue
                yield from self._lines_of(block, queue, sequences, messages, settled, attempts)
                if tell is not None:
                    tell(read_count)

    def _of_its_messages(self, queue_id: int, first: Message) -> QueueName | None:
        """Return the name of a queue whose record is lost."""
        queue = queue_of(first)
        if queue is None:
            self._left_out(f"queue {queue_id}: it has no record, and its messages do not say which queue it is")
            return None
        self._queues[queue_id] = queue
        return queue

    def _state(self, block: BlockRecords) -> tuple[int, dict[int, int]]:
        if block.state is None:
            return 0, {}
        try:
            return decode_state(block.state)
        except StoreFormatError as error:
            self._left_out(f"queue {block.queue_id}: block {block.index}: {error}: all of it counts as unacknowledged")
            return 0, dict.fromkeys(range(keys.BLOCK_SIZE), 0)

    def _lines_of(
        self,
        block: BlockRecords,
        queue: QueueName,
        sequences: SequenceOf[int],
        messages: list[Message],
        settled: int,
        attempts: dict[int, int],
    ) -> Iterator[bytes]:
        base = block.base
        seen_to = self._handed_to.get(block.queue_id, 0)
        describe = self._heads.describe
        for sequence, message in zip(sequences, messages, strict=True):
            # A chunk that crosses its block's border has no state for the part behind it.
            place = sequence - base
            if settled >> place & 1:
                continue
            dialect, block_bytes = describe(message.head)
            wire = message.wire
            rest = wire[block_bytes:]
            large = message.large
            end = len(_BLANK_LINE) if large is not None else -1
            if not rest.startswith(_BLANK_LINE) or (large is None and not rest.endswith(_TERMINATOR)):
                self._left_out(f"{queue.said}: message {sequence} is not complete: {rest[:40]!r} follows its headers")
                continue
            if large is not None and not self._body_is_there(queue, sequence, large):
                continue
            self.messages_count += 1
            yield write_line(
                MessageLine(
                    destination=queue.name,
                    topic=queue.topic,
                    priority=queue.priority,
                    sequence=sequence,
                    number=message.number,
                    dialect=dialect,
                    block=wire[:block_bytes],
                    body=rest[len(_BLANK_LINE) : end],
                    body_bytes=large[1] if large is not None else None,
                    expires_ms=message.expires_at_ms,
                    due_ms=message.due_at_ms,
                    attempts=attempts.get(place, 0 if sequence < seen_to else None),
                )
            )
            if large is not None:
                yield from self._body_lines(*large)

    # ------------------------------------------------------------------ large bodies

    def _body_is_there(self, queue: QueueName, sequence: int, large: tuple[int, int]) -> bool:
        file_id, length_bytes = large
        if self._bodies is None:
            self._left_out(f"{queue.said}: message {sequence}: the folder of large bodies is unknown")
            return False
        path = self._bodies.place(file_id)
        there_bytes = self._bodies.size_bytes(file_id)
        if there_bytes is None:
            self._left_out(f"{queue.said}: message {sequence}: its body {path} is missing")
            return False
        if there_bytes != length_bytes:
            self._left_out(
                f"{queue.said}: message {sequence}: its body {path} has {there_bytes} bytes, not {length_bytes}"
            )
            return False
        return True

    def _body_lines(self, file_id: int, length_bytes: int) -> Iterator[bytes]:
        """Yield the body of the message before, in pieces. Raises OSError or BodyError: half of it is out already."""
        assert self._bodies is not None, "it was looked at before"
        for piece in self._bodies.pieces(file_id, length_bytes):
            yield write_line(BodyLine(piece))


def destination_filter(patterns: SequenceOf[str]) -> Callable[[str], bool]:
    """Return a filter for destinations: names, or patterns with `*` and `>`; a bare name is that of a queue. Raises
    DestinationNameError for an invalid one.
    """
    addresses = [parse(pattern) for pattern in patterns]
    return lambda name: any(address.matches(name.partition(PART_SEPARATOR)[0]) for address in addresses)
