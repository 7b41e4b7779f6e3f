"""Import of lines into a store: into an empty one, which becomes a copy of the exported one, or appended to existing
queues.

How it works: messages of one queue are gathered up to the end of their block, written as chunks, and chunks as batches
of some megabytes; each batch leaves the store consistent. The last batch is synced, and so is all before it. A file is
read through before the first batch is written, so that a damaged one leaves nothing behind; a pipe can be read once
only, so there the lines before the fault stay.

Message numbers are kept where they are free: at or above all that the store may have used. Others are replaced by new
ones, above all that either store may have used.

Large bodies are written and synced before the record that names them; the broker's start removes bodies left by a
failed import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final

import attrs

from ...queues.durables import DurableKey, key_of
from ...queues.message import DelayedMessage, Envelope, Message
from ...queues.names import DestinationNameError, name_of_part, parse, part_in_words, split_part
from ...queues.policy import PARTITIONS_COUNT_MAX
from ...queues.shard_hash import first_number, shard_of
from .. import keys
from ..chunks import LARGE, HeadCodec, decode_chunk
from ..directory import told_of
from ..durables import durable_changes, kept_durables
from ..engine import Change, Engine, put
from ..keys import StoreFormatError
from ..memory import MemoryEngine
from ..states import (
    DurableRecord,
    decode_durable,
    decode_numbers,
    encode_clean,
    encode_cursor,
    encode_format,
    encode_numbers,
)
from .bodies import Bodies, BodyWriter, FolderBodies, StoredBodies
from .lines import (
    BodyLine,
    CursorLine,
    DuplicateIdLine,
    ExportFormatError,
    Header,
    Line,
    LogProducersLine,
    MessageLine,
    OwnerLine,
    PageRangesLine,
    ProducerLine,
    SubscriptionDataLine,
    SubscriptionLine,
    read_lines,
)
from .metadata import MetadataImport
from .opening import open_store
from .producers import ProducersImport
from .records import QueueName, make_large
from .targets import ImportedQueue, Targets

BATCH_BYTES: Final = 4 << 20
"""Size of a write, about, and the most that one chunk has of wires."""

CURSOR_SETTLED_MAX: Final = 100_000_000
"""Number of messages acknowledged ahead of the front: more is a mistake, and would not fit into memory."""

_PROGRESS_LINES: Final = 1_000
_FLAGS_AT: Final = 1
"""Offset of the flags in a chunk."""

Complaint = Callable[[Envelope, int, bool], str | None]
"""Fault of a body of this length, with a NUL in it or not, under these headers; None: none. The protocol decides: a
length that differs from the body's would break the framing for every consumer.
"""

OpenLines = Callable[[], AbstractContextManager[Iterable[bytes]]]
"""Function that opens an export; each call from its beginning."""


@attrs.define
class QueueImport:
    """Result of an import into one queue."""

    name: str
    """Name, for people."""
    kind: str
    priority: int
    messages_count: int
    appended: bool
    """Whether the queue existed before."""


@attrs.define
class ImportReport:
    """Result of an import, or of its dry run."""

    queues: list[QueueImport]
    messages_count: int
    renumbered_count: int
    """Number of messages whose own number may have been used before: they got new ones."""
    subscriptions_added_count: int
    subscriptions_there_count: int
    """Number of durable subscriptions that existed before: their cursors stay, and they get all imported messages."""
    metadata_added_count: int = 0
    """Number of metadata records."""
    metadata_there_count: int = 0
    """Number of records that existed before, and are unchanged."""
    producers_count: int = 0
    """Number of lines of what queues and logs remember of producers."""


@attrs.frozen
class Share:
    """Part of a cluster's destinations that a store has."""

    shard: int
    shards_count: int


def import_folder(
    path: Path,
    open_lines: OpenLines,
    heads: HeadCodec,
    complaint: Complaint,
    *,
    again: bool,
    dry_run: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> ImportReport:
    """Import into the store of a folder, created if missing.

    `again`: the lines can be opened twice, so read them all before anything is written. `on_progress` gets the number
    of lines so far; with `again`, of both passes together. Raises ExportFormatError for lines that are invalid or do
    not fit; DirectoryError, EngineError, StoreFormatError for the store; OSError if a large body can't be written or
    the lines can't be read.
    """
    with told_of(path):
        is_there = (path / "format").exists() or (path / "db").exists()
    lines_count = 0

    def told(count: int) -> None:
        if on_progress is not None:
            on_progress(lines_count + count)

    if not is_there:
        if again or dry_run:
            report, lines_count = _import(MemoryEngine(), open_lines, heads, complaint, None, dry_run=True, told=told)
            if dry_run:
                return report
        with open_store(path, create=True) as store:
            bodies = FolderBodies(store.directory.large_path)
            return _import(store.engine, open_lines, heads, complaint, bodies, dry_run=False, told=told)[0]
    with open_store(path, create=True) as store:
        bodies = FolderBodies(store.directory.large_path)
        if again or dry_run:
            report, lines_count = _import(store.engine, open_lines, heads, complaint, bodies, dry_run=True, told=told)
            if dry_run:
                return report
        return _import(store.engine, open_lines, heads, complaint, bodies, dry_run=False, told=told)[0]


def import_engine(
    engine: Engine,
    open_lines: OpenLines,
    heads: HeadCodec,
    complaint: Complaint,
    *,
    again: bool,
    dry_run: bool = False,
    share: Share | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> ImportReport:
    """Import into an open engine that keeps large bodies, too, as a database does. Arguments and errors are those of
    `import_folder`; `share`: shard of a cluster that the engine has; BodyError if a large body can't be written.
    """
    take = partial(_import, engine, open_lines, heads, complaint, StoredBodies(engine), share=share)
    lines_count = 0

    def told(count: int) -> None:
        if on_progress is not None:
            on_progress(lines_count + count)

    if again or dry_run:
        report, lines_count = take(dry_run=True, told=told)
        if dry_run:
            return report
    return take(dry_run=False, told=told)[0]


def _import(
    engine: Engine,
    open_lines: OpenLines,
    heads: HeadCodec,
    complaint: Complaint,
    bodies: Bodies | None,
    *,
    dry_run: bool,
    told: Callable[[int], None],
    share: Share | None = None,
) -> tuple[ImportReport, int]:
    """Return the report and the number of lines."""
    number = 0
    with (
        open_lines() as lines,
        Import(engine, heads, complaint, bodies=bodies, dry_run=dry_run, share=share) as taking,
    ):
        for number, line in read_lines(lines):
            taking.take(number, line)
            if number % _PROGRESS_LINES == 0:
                told(number)
        told(number)
        return taking.finish(), number


class Import:
    """One import under way. A context manager: leaving it closes the file of an incomplete body."""

    def __init__(
        self,
        engine: Engine,
        heads: HeadCodec,
        complaint: Complaint,
        *,
        bodies: Bodies | None = None,
        dry_run: bool = False,
        share: Share | None = None,
    ) -> None:
        """Prepare an import. `complaint` judges bodies. `bodies`: for large bodies. `dry_run`: everything but writing.
        `share`: shard of a cluster that the store is; None: it has all destinations.
        """
        self._engine = engine
        self._heads = heads
        self._complaint = complaint
        self._bodies = bodies
        self._share = share
        self._dry_run = dry_run
        self._targets = Targets(engine)
        self._metadata = MetadataImport(engine)
        self._producers = ProducersImport(engine)
        self._is_new = engine.get(keys.META_FORMAT_KEY) is None
        numbers = engine.get(keys.META_NUMBERS_KEY)
        self._numbers_from = max(
            decode_numbers(numbers) if numbers is not None else 1, 1 if share is None else first_number(share.shard)
        )
        """First free number."""
        self._given_from = self._given_to = self._numbers_from
        """Numbers of the export are below the first; new ones were given up to the second."""
        self._durables: dict[DurableKey, int] = {}
        self._durables_there: set[int] = set()
        self._destinations: dict[int, str] = {}
        self._next_durable_id = 1
        there = [(keys.parse_durable_key(key), decode_durable(value)) for key, value in _old_durables(engine)]
        for durable_id, record in [*there, *kept_durables(engine, lambda _key, _value, _error: None)]:
            self._durables[key_of(record.client_id, record.name, record.destination)] = durable_id
            self._durables_there.add(durable_id)
            self._destinations[durable_id] = record.destination
            self._next_durable_id = max(self._next_durable_id, durable_id + 1)
        self._imported_durables: set[int] = set()
        self._changes: list[Change] = []
        self._changes_bytes = 0
        # The messages in hand: of one queue and one block.
        self._target: ImportedQueue | None = None
        self._sequences: list[int] = []
        self._messages: list[Message] = []
        self._attempts: dict[int, int] = {}
        self._wire_bytes = 0
        # The large message whose body is arriving.
        self._large: MessageLine | None = None
        self._body: _Body | None = None
        self._next_file_id = 0
        self._messages_count = self._renumbered_count = 0
        self._has_cursors = False

    def __enter__(self) -> Import:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._body is not None:
            self._body.give_up()

    def take(self, number: int, line: Line) -> None:
        """Take the next line, the `number`th. Raises ExportFormatError if it does not fit, and all that writing
        raises.
        """
        if self._large is not None and not isinstance(line, BodyLine):
            raise ExportFormatError(f"line {number}: the large body of the message before it is not complete")
        try:
            match line:
                case MessageLine():
                    self._take_message(number, line)
                case BodyLine():
                    self._take_piece(number, line)
                case Header():
                    self._take_header(line)
                case SubscriptionLine():
                    self._take_subscription(number, line)
                case CursorLine():
                    self._take_cursor(number, line)
                case OwnerLine() | PageRangesLine() | SubscriptionDataLine():
                    self._put(self._metadata.take(number, line))
                    self._flush()
                case ProducerLine() | DuplicateIdLine():
                    self._take_producer(number, line)
                case LogProducersLine():
                    self._check_share(line.log)
                    self._flush()
                    self._put(self._producers.take_log(number, line))
                case _:
                    return
        except DestinationNameError as error:
            raise ExportFormatError(f"line {number}: {error}") from error

    def finish(self) -> ImportReport:
        """Write the rest, synced, after the last line, and return the report."""
        if self._large is not None:
            raise ExportFormatError("it ends in the middle of a large body")
        self._flush()
        self._write(sync=True)
        imported_there_count = len(self._imported_durables & self._durables_there)
        return ImportReport(
            queues=[
                QueueImport(
                    target.name.said,
                    "topic" if target.name.topic else "queue",
                    target.name.priority,
                    target.messages_count,
                    target.is_appended_to,
                )
                for target in self._targets.used()
            ],
            messages_count=self._messages_count,
            renumbered_count=self._renumbered_count,
            subscriptions_added_count=len(self._imported_durables) - imported_there_count,
            subscriptions_there_count=imported_there_count,
            metadata_added_count=self._metadata.added_count,
            metadata_there_count=self._metadata.there_count,
            producers_count=self._producers.count,
        )

    # ------------------------------------------------------------------ writing

    def _put(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self._changes.append(change)
            self._changes_bytes += len(change[1]) + len(change[2])

    def _flush(self) -> None:
        """Turn the gathered messages into a chunk, and enough chunks into a batch."""
        target = self._target
        if target is not None and self._messages:
            try:
                self._put(target.chunk(self._sequences, self._messages, self._attempts, self._heads))
            except StoreFormatError as error:
                raise ExportFormatError(f"{target.name.name}: {error}") from error
            self._sequences, self._messages, self._attempts, self._wire_bytes = [], [], {}, 0
        if self._changes_bytes >= BATCH_BYTES:
            self._write(sync=False)

    def _write(self, *, sync: bool) -> None:
        changes, self._changes, self._changes_bytes = self._changes, [], 0
        # Numbers first: all numbers in the batch are below the record's.
        changes.insert(0, put(keys.META_NUMBERS_KEY, encode_numbers(self._given_to)))
        if not self._dry_run:
            self._engine.write(changes, sync=sync)

    # ------------------------------------------------------------------ lines

    def _take_header(self, line: Header) -> None:
        self._given_from = self._given_to = max(self._numbers_from, line.next_number)
        if self._is_new:
            self._put(
                [
                    put(keys.META_FORMAT_KEY, encode_format(keys.FORMAT_VERSION_MIN)),
                    put(keys.META_CLEAN_KEY, encode_clean(True)),
                ]
            )
            if line.token is not None and self._share is None:  # of a cluster all shards have the same
                self._put([put(keys.META_TOKEN_KEY, line.token.encode())])

    def _number(self, wanted: int | None) -> int:
        if wanted is not None:
            if self._numbers_from <= wanted < self._given_from:
                return wanted
            self._renumbered_count += 1
        number = self._given_to
        self._given_to += 1
        return number

    def _take_message(self, number: int, line: MessageLine) -> None:
        if self._has_cursors:
            raise ExportFormatError(f"line {number}: a message behind a cursor: cursors come after all messages")
        if line.body_bytes is not None:
            self._large = line
            if line.body_bytes:
                self._body = self._begin_body(line.body_bytes)
                return
            self._body = self._begin_body(0)
            self._end_body(number)
            return
        wire = line.block + b"\n\n" + line.body + b"\0"
        self._append(number, line, wire, len(line.body), b"\0" in line.body, None)

    def _append(
        self,
        number: int,
        line: MessageLine,
        wire: bytes,
        body_bytes: int,
        has_nul: bool,
        large: tuple[int, int] | None,
    ) -> None:
        try:
            head = self._heads.restore(line.dialect, line.block)
        except ValueError as error:
            raise ExportFormatError(f"line {number}: {error}") from error
        if self._heads.describe(head) != (line.dialect, len(line.block)):
            raise ExportFormatError(
                f"line {number}: its headers hold some that only a broker writes (such as message-id), or line ends "
                "other than LF: take them out"
            )
        if not head.persistent:
            raise ExportFormatError(
                f"line {number}: the message is not persistent, and a store keeps no others: add persistent:true to "
                "its headers"
            )
        wrong = self._complaint(head, body_bytes, has_nul)
        if wrong is not None:
            raise ExportFormatError(f"line {number}: {wrong}")
        target = self._find(line.destination, line.priority, topic=line.topic)
        sequence = target.place(line.sequence)
        if self._messages and (
            target is not self._target
            or sequence >> keys.BLOCK_BITS != self._sequences[0] >> keys.BLOCK_BITS
            or self._wire_bytes + len(wire) > BATCH_BYTES
        ):
            self._flush()
        self._target = target
        message_number = self._number(line.number)
        message: Message
        if large is not None:
            message = make_large(head, wire, message_number, line.expires_ms, line.due_ms, *large)
        elif line.due_ms:
            message = DelayedMessage(head, wire, message_number, line.expires_ms, line.due_ms)
        else:
            message = Message(head, wire, message_number, line.expires_ms)
        self._sequences.append(sequence)
        self._messages.append(message)
        self._wire_bytes += len(wire)
        if line.attempts is not None:
            self._attempts[sequence] = line.attempts
        self._messages_count += 1

    def _find(self, destination: str, priority: int, *, topic: bool) -> ImportedQueue:
        name = QueueName(destination, priority, topic)
        if self._target is not None and self._target.name == name:
            return self._target
        canonical, part = split_part(destination)
        address = parse(canonical)
        if address.wildcard or address.temporary_local or "," in destination:
            raise DestinationNameError(f"{destination!r} is no destination that messages can be in")
        if topic and not address.kind.is_topic:
            raise DestinationNameError(f"{destination!r} is a queue, the line says otherwise")
        if part and (part >= PARTITIONS_COUNT_MAX or address.kind.is_topic):
            said, last = part_in_words(destination), PARTITIONS_COUNT_MAX - 1
            raise DestinationNameError(f"{said!r}: only queues have parts, and those from 0 to {last}")
        self._check_share(canonical)
        return self._targets.find(name._replace(name=name_of_part(address.canonical, part)))

    def _check_share(self, name: str) -> None:
        """Raises DestinationNameError for a name that belongs to another shard."""
        share = self._share
        if share is not None and (other := shard_of(name, share.shards_count)) != share.shard:
            raise DestinationNameError(
                f"{name!r} belongs to shard {other} of {share.shards_count}, not to shard {share.shard}: import it "
                "there, or export with --queue what belongs here"
            )

    def _take_subscription(self, number: int, line: SubscriptionLine) -> None:
        key = key_of(line.client_id, line.name, line.destination)
        known = self._durables.get(key)
        if known is not None:
            if self._destinations[known] != line.destination:
                raise ExportFormatError(
                    f"line {number}: the durable subscription {line.name!r} of client {line.client_id!r} is there "
                    f"already, for {self._destinations[known]}: unsubscribe one of the two"
                )
            self._imported_durables.add(known)
            return
        durable_id = self._next_durable_id
        self._next_durable_id += 1
        self._durables[key] = durable_id
        self._destinations[durable_id] = line.destination
        self._imported_durables.add(durable_id)
        self._check_share(parse(line.destination).canonical)
        record = DurableRecord(
            line.client_id, line.name, line.destination, line.selector, line.created_ms, line.last_seen_ms
        )
        try:
            self._put(durable_changes(durable_id, record))
        except StoreFormatError as error:
            raise ExportFormatError(f"line {number}: {error}") from error

    def _take_cursor(self, number: int, line: CursorLine) -> None:
        durable_id = self._durables.get(key_of(line.client_id, line.name, line.wildcard or line.destination))
        if durable_id is None:
            raise ExportFormatError(
                f"line {number}: a cursor of the durable subscription {line.name!r} of client {line.client_id!r}, of "
                "which there is no line"
            )
        self._flush()
        self._has_cursors = True
        target = self._find(line.destination, line.priority, topic=line.topic)
        if durable_id in self._durables_there:
            return  # its cursor is before all imported messages
        if sum([last - first for first, last in line.settled]) > CURSOR_SETTLED_MAX:
            raise ExportFormatError(f"line {number}: a cursor that has settled more than {CURSOR_SETTLED_MAX} messages")
        shift = target.moved(line.front) - line.front
        # Messages from before the subscription are not for it.
        front = max(line.front + shift, target.base)
        settled = [
            sequence for first, last in line.settled for sequence in range(max(first + shift, front), last + shift + 1)
        ]
        attempts = {sequence + shift: count for sequence, count in line.attempts if sequence + shift >= front}
        handed_to = line.handed_to + shift if line.handed_to else 0
        try:
            value = encode_cursor(front, handed_to, settled, attempts)
        except StoreFormatError as error:
            raise ExportFormatError(f"line {number}: {error}") from error
        target.next_sequence = max(target.next_sequence, front)
        self._put(target.introduce())
        self._put([put(keys.cursor_key(target.queue_id, durable_id), value), target.head()])

    def _take_producer(self, number: int, line: ProducerLine | DuplicateIdLine) -> None:
        self._flush()  # messages first: what is known is there
        target = self._find(line.destination, line.priority, topic=line.topic)
        try:
            change = self._producers.take(number, line, target.queue_id)
        except StoreFormatError as error:
            raise ExportFormatError(f"line {number}: {error}") from error
        self._put(target.introduce())
        self._put([change, target.head()])

    # ------------------------------------------------------------------ large bodies

    def _begin_body(self, length_bytes: int) -> _Body:
        if self._dry_run:
            return _Body(None, 0, length_bytes)
        assert self._bodies is not None, "a writer needs a place for large bodies"
        if not self._next_file_id:
            self._next_file_id = _free_file_id(self._engine, self._heads, self._bodies)
        file_id = self._next_file_id
        self._next_file_id += 1
        return _Body(self._bodies.begin(file_id), file_id, length_bytes)

    def _take_piece(self, number: int, line: BodyLine) -> None:
        body = self._body
        if body is None:
            raise ExportFormatError(f"line {number}: a piece of a body, but the message before has no large one")
        if len(line.data) > body.left_bytes:
            raise ExportFormatError(f"line {number}: the body is longer than the message before says")
        body.write(line.data)
        if not body.left_bytes:
            self._end_body(number)

    def _end_body(self, number: int) -> None:
        body, line = self._body, self._large
        assert body is not None and line is not None, "it has begun"
        body.finish()
        self._body = self._large = None
        large = body.file_id, body.length_bytes
        self._append(number, line, line.block + b"\n\n", body.length_bytes, body.has_nul, large)


class _Body:
    """Large body being written; without a writer nothing is."""

    __slots__ = ("_writer", "file_id", "has_nul", "left_bytes", "length_bytes")

    def __init__(self, writer: BodyWriter | None, file_id: int, length_bytes: int) -> None:
        self._writer = writer
        self.file_id = file_id
        self.length_bytes = self.left_bytes = length_bytes
        self.has_nul = False

    def write(self, data: bytes) -> None:
        self.left_bytes -= len(data)
        self.has_nul = self.has_nul or b"\0" in data
        if self._writer is not None:
            self._writer.write(data)

    def finish(self) -> None:
        """Sync and close the complete body."""
        if self._writer is not None:
            self._writer.finish()

    def give_up(self) -> None:
        if self._writer is not None:
            self._writer.give_up()


def _old_durables(engine: Engine) -> Iterable[tuple[bytes, bytes]]:
    """Return the records of an earlier version; a broker's start moves them."""
    return engine.iterate(*keys.family_range(keys.DURABLE))


def _free_file_id(engine: Engine, heads: HeadCodec, bodies: Bodies) -> int:
    """Return an id above those of all bodies and records. Reads all chunks that name bodies."""
    highest = bodies.highest_id()
    for key, value in engine.iterate(*keys.family_range(keys.CHUNK)):
        if len(value) <= _FLAGS_AT or not value[_FLAGS_AT] & LARGE:
            continue
        try:
            _sequences, messages = decode_chunk(keys.parse_placed_key(key)[1], value, heads, make_large)
        except StoreFormatError:
            continue  # a repair moves it aside, and nothing reads it before
        highest = max([highest, *[message.large[0] for message in messages if message.large is not None]])
    return highest + 1
