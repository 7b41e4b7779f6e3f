"""One log: appending, the way to the disk, and notifications.

Senders `offer` runs of messages. Consecutive messages with one header block become one batch; a message whose content
type says so is a run of batches, taken unchanged. Batches wait (charged to a limiter) until the disk has taken earlier
ones: one write runs at a time, and batches that gather meanwhile go out in the next. Only written records can be read,
so readers see records in the order of their indexes; receipts also wait for the next sync, which all of them share.

When the disk is full or fails, batches stay here and are written again later; the limiter blocks senders, readers
continue.

Invariants: a batch is appended once and whole, or its sender is notified; receipts leave in the order of indexes;
answers (receipts, `when_written`) leave when the state of the log is whole, as an answer may delete the log.
Bound: `memory_bytes`, and one run or transaction more. The waiter counts what a pending answer holds (`answers.py`).
Not here: reading (`reading.py`, `log_readers.py`); the set of logs (`table.py`).

Source: DESIGN section 8; seed 001 "The Design of the Persistent Queue".
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from functools import partial
from itertools import accumulate, chain, groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ...flow import Flow, FlowController, FlowResource, SizeLimiter, SourceController
from ...flow.graph import at_once
from ...flow.kinds import ResourceKind
from ..environment import QueueEnvironment
from ..intake import Run
from ..message import MESSAGE_OVERHEAD_BYTES, PRIORITY_DEFAULT, Message
from ..policy import QueuePolicy
from ..producers import Origin, origin_of
from ..storage import DISK
from .answers import SENDS_PER_ANSWER, Answer, LogAnswers
from .batches import COUNT_MAX, HEAD_BYTES_MAX, BatchError, BatchTooLargeError, encode
from .offers import (
    ENCODED_ELSEWHERE_BYTES,
    HEAD,
    RECORD_OVERHEAD_BYTES,
    Batches,
    OfferCheck,
    OfferedBatches,
    RefusedSendError,
    Stamped,
    Unencoded,
    apart,
    check_markable,
    values_of,
)
from .page_cache import PageCache
from .ports import Disk, DiskError, Missing, Records
from .producers import LogProducers, NoProducers, ProducerKeeper, stamp_of
from .reading import RecordCache

if TYPE_CHECKING:
    from .log_readers import LogReaders

T = TypeVar("T")
WRITE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Approximate size limit of one write."""
WRITE_COUNT_MAX: Final = 512
"""Maximum number of offers per write, all booked in one step."""
WOKEN_PER_STEP: Final = 256
"""Readers at the end of the log dispatched per step when records were added."""
AGAIN_SECONDS: Final = 1.0
"""Delay before repeating a failed write."""
STORED_HEADS_MAX: Final = 256
_LENGTH_LINE: Final = re.compile(rb"^content-length:[0-9]+\n?", re.MULTILINE)

OnDurable = Callable[[str, SequenceOf[tuple[int, int]]], None]
"""Callback with the durability (`disk`, `memory`) and, for each SEND, the index of its first record and the record
count. GONE: the log was deleted before.
"""

NO_KEEPER: Final = NoProducers()
GONE: Final = ""
_END: Final = attrgetter("end_index")

NOT_STORED: Final = frozenset(
    {"destination", "content-length", "receipt", "transaction", "persistent", "log-partitions"}
)
"""Headers of a SEND that are not stored with its record."""


class _Piece:
    """Records of one `offer`."""

    __slots__ = (
        "awaits_sync",
        "batches",
        "charge_bytes",
        "counts",
        "end_index",
        "first_index",
        "must_sync",
        "origins",
        "size_bytes",
        "waiters",
    )

    def __init__(self, batches: SequenceOf[Batches], counts: list[int], charge_bytes: int) -> None:
        self.batches = batches
        """Batches, or runs of them."""
        self.counts = counts
        """Record count of each SEND."""
        self.charge_bytes = charge_bytes
        self.size_bytes = sum(map(len, batches))
        self.waiters: list[OnDurable] = []
        self.origins: SequenceOf[Origin] = ()
        """Producers of its records: of its only SEND, or of a piece of a transaction."""
        self.first_index = -1
        self.end_index = -1
        self.must_sync = False
        """Whether to sync even if the policy does not ask for it."""
        self.awaits_sync = False
        """Whether the waiters are called after the sync."""


class Log(FlowResource):
    """A log destination, as senders see it. Made by `LogTable`."""

    upkeep_bytes = 11 * 1024
    """Size with the log's files, as mapped in this process."""

    rejects = False
    keeps = True
    observer = None
    """No observer: records stay where they are and have no trail."""
    priority = PRIORITY_DEFAULT

    def __init__(
        self,
        name: str,
        records: Records,
        disk: Disk,
        policy: QueuePolicy,
        environment: QueueEnvironment,
        reading: RecordCache,
        *,
        log_id: str,
        on_failing: Callable[[str, str], None],
        make: Callable[[], Records] | None = None,
        durability: str = DISK,
        producer_keeper: ProducerKeeper = NO_KEEPER,
    ) -> None:
        """Take `log_id`, part of the message-ids and constant; `on_failing`, called with the text of a disk failure and
        with an empty text when the disk works again; `make`, which makes the records, empty until then (it blocks and
        raises DiskError). None: the records exist. `durability`: that of what is synced, for RECEIPTs.
        """
        self._durability = durability
        self._producer_keeper = producer_keeper
        self.producers: LogProducers | None = None
        """The producers that number what they send; None: there are none."""
        self.on_failing = on_failing
        super().__init__(name, ResourceKind.LOG, environment.manager)
        self.records = records
        self.policy = policy
        self.log_id = log_id
        self.reading = reading
        self.environment = environment
        self.closed = False
        self.is_deleted = False
        self.is_private = False
        """Whether only the broker appends."""
        self.partition: int | None = None
        """Number of the partition that this log is of another one; None: it is none."""
        self.producers_count = 0
        self.failing = ""
        """Last failure of the disk to write; empty if it works."""
        self.appended_bytes = 0
        self.page_cache: PageCache[LogReaders] = PageCache(records)
        self.gap_count = 0
        """Gap markers sent to readers."""
        self._disk = disk
        self._pending: deque[_Piece] = deque()
        self.pending_count = 0
        """Number of SENDs not written yet."""
        self._accepted: _Piece | None = None
        self._written: deque[_Piece] = deque()
        """Written pieces with waiters, not synced yet."""
        self._writing = False
        self._syncing = False
        self._sync_due = False
        self._timer: Any = None
        self._sync_timer: Any = None
        self._check = OfferCheck(self)
        self._make = make
        self._on_made: list[Callable[[DiskError | None], None]] = []
        self._answers = LogAnswers(environment, self._request_dispatch, owner=log_id)
        self._lines: dict[tuple[Any, bytes], bytes] = {}
        self._last_head: Any = None
        self._last_lines = b""
        self._on_written: deque[tuple[_Piece, Callable[[], None]]] = deque()
        self._tail: dict[LogReaders, None] = {}
        self._waking: deque[LogReaders] = deque()
        """Readers to dispatch, as records were added or removed."""
        self.outlets: dict[LogReaders, None] = {}
        self.controller: FlowController[Run] = FlowController(
            self,
            Flow(name),
            SizeLimiter(policy.memory_bytes, clock=environment.clock),
            accept=self._accept_run,
            schedule=environment.resume,
            clock=environment.clock,
            yields=True,
        )
        self.context = environment.scheduling.register(self._dispatch, f"log {name}", PRIORITY_DEFAULT)
        self.open()
        if make is not None:
            disk.make(make, self._made)

    # ------------------------------------------------------------------ in

    def offer(self, messages: list[Message], wire_bytes: int, source: SourceController) -> bool:
        """Take a run (of any headers) and return True, or block `source` until there is room and return False. Raises
        RefusedSendError for an invalid or too large batch, with nothing of the run taken. Long or numerous batches must
        have come through `checking` before.
        """
        charge_bytes = wire_bytes + len(messages) * MESSAGE_OVERHEAD_BYTES
        store = self.environment.store
        if store is not None and not store.accepts(source):  # the disk is nearly full
            store.hold_back(source)
            return False
        if self.controller.accepts(source):
            messages = at_once(self.checking(messages))
        return self.controller.offer(Run(messages, charge_bytes), len(messages), charge_bytes, source)

    def offer_once(self, messages: list[Message], source: SourceController) -> bool:
        """`offer` the first of these messages, of one origin, unless the log has it. Raises RefusedSendError."""
        message = messages[0]
        origin = origin_of(message)
        assert origin is not None, "asked for before"
        producers = self.open_producers()
        if producers.knows(origin):
            producers.seen_again(origin, len(messages))
            return True
        try:
            check_markable(
                [message], self.stored_lines, self.records.batch_bytes_max, len(stamp_of(self.log_id, origin)) + 1
            )
        except BatchError as error:
            raise RefusedSendError([], error) from None
        if not self.offer([message], len(message.wire), source):
            return False
        producers.duplicates_count += len(messages) - 1
        self._note_origins([origin])
        return True

    def open_producers(self) -> LogProducers:
        """Return the table of its producers, made if need be."""
        if self.producers is None:
            self.producers = LogProducers(
                self.name,
                self.log_id,
                self._producer_keeper,
                lambda: self.policy,
                self.environment.now_ms,
                self.keep,
                self._request_dispatch,
            )
        return self.producers

    def _note_origins(self, origins: SequenceOf[Origin]) -> None:
        """Note the producers of what was taken just before."""
        assert self._accepted is not None, "something was taken"
        self._accepted.origins = origins
        producers = self.open_producers()
        for origin in origins:
            producers.take(origin, self.records.next_index)

    @property
    def promise(self) -> str:
        """Durability that the RECEIPT of a SEND promises."""
        return self._durability if self.policy.log_sync == "receipt" else "memory"

    def fits(self, count: int, wire_bytes: int) -> bool:
        """Return whether `offer` would take this much now."""
        return self.controller.accepting

    def append(self, batches: list[bytes | memoryview], record_count: int) -> None:
        """Append whole, checked batches with nothing in between. They are not charged: their bytes are in mapped
        files.
        """
        self._take_piece(_Piece(batches, [record_count], 0))

    def take_committed(
        self,
        batches: list[bytes | memoryview],
        record_count: int,
        source: SourceController,
        origins: SequenceOf[Origin] = (),
    ) -> bool:
        """Append whole, checked batches of a committed transaction as `append` does, charged and True; or block
        `source` until there is room and return False. `origins`: the producers that they are stamped with.
        """
        store = self.environment.store
        if store is not None and not store.accepts(source):  # the disk is nearly full
            store.hold_back(source)
            return False
        if not self.controller.accepts(source):
            self.controller.wait_in_line(source)
            return False
        piece = _Piece(batches, [record_count], MESSAGE_OVERHEAD_BYTES)
        piece.charge_bytes += piece.size_bytes
        self.controller.charge(1, piece.charge_bytes, source)
        self._take_piece(piece)
        if origins:
            self._note_origins(origins)
        return True

    def take_plain(self, messages: SequenceOf[Message], wire_bytes: int) -> None:
        """Append the messages as plain records, over the limit if need be, ignoring what their headers say of the
        bodies.
        """
        charge_bytes = wire_bytes + len(messages) * MESSAGE_OVERHEAD_BYTES
        self.controller.charge(len(messages), charge_bytes, None)
        batches: list[Batches] = []
        head: Any = messages[0].head
        heads = [message.head for message in messages]
        if heads.count(head) == len(heads):  # nearly always the case: no Python code per message
            offset = head.body_offset
            self._encode([message.wire[offset:-1] for message in messages], self.stored_lines(head), batches)
        else:
            for lines, group in groupby(messages, key=lambda message: self.stored_lines(message.head)):
                values = [message.wire[message.head.body_offset : -1] for message in group]  # type: ignore[attr-defined]
                self._encode(values, lines, batches)
        self._take_piece(_Piece(batches, [1] * len(messages), charge_bytes))

    def when_durable(self, callback: OnDurable, *, synced: bool = False) -> None:
        """Call `callback` when the records of the last `offer` are as durable as the log's policy says; with `synced`
        when they are on disk, whatever the policy.
        """
        assert self._accepted is not None, "something was offered and taken just before"
        self._accepted.waiters.append(callback)
        self._accepted.must_sync |= synced

    def check_plain(self, head: Any, wire_bytes: int) -> None:
        """Raise BatchError if `take_plain` can't append a message with this header block and `wire_bytes` in all."""
        lines_bytes = len(self.stored_lines(head))
        if lines_bytes > HEAD_BYTES_MAX:
            raise BatchTooLargeError(f"{lines_bytes} bytes of headers: a record has {HEAD_BYTES_MAX} at most")
        if wire_bytes + lines_bytes + RECORD_OVERHEAD_BYTES > self.records.batch_bytes_max:
            self._check.refuse_for_file(wire_bytes)

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call `callback` when all records offered so far are durable by the policy, or the log is gone."""
        piece = self._accepted
        if self.closed or piece is None or (piece.end_index >= 0 and piece.end_index <= self.records.synced_index):
            self._answers.tell(callback)  # behind earlier waiters that were not called yet
            return
        if piece.end_index >= 0 and not piece.awaits_sync:  # written, and no waiter awaits the sync
            mark = _Piece((), [], 0)
            mark.first_index = mark.end_index = piece.end_index
            mark.awaits_sync = True
            self._accepted = piece = mark
            self._written.append(mark)
            self._ask_for_sync()
        piece.waiters.append(lambda _how, _indexes: callback())

    def when_synced(self, callback: Callable[[], None]) -> None:
        """Call `callback` when all records offered so far are on disk, whatever the policy, or the log is gone."""
        piece = self._accepted
        if piece is not None and piece.end_index < 0:
            piece.must_sync = True  # not written yet
        self.when_settled(callback)

    def checking(self, messages: SequenceOf[Message]) -> Generator[object, None, list[Message]]:
        """Check the messages in steps; return them as `offer` takes them. Raises RefusedSendError for invalid or too
        large batches.
        """
        return self._check.checking(messages)

    def _accept_run(self, run: Run) -> None:
        """Make batches of a charged run, and have them written."""
        batches: list[Batches] = []
        counts: list[int] = []
        values: list[bytes | memoryview] = []
        lines = b""
        head: Any
        for head, same in groupby(run.messages, key=HEAD):
            messages = list(same)
            if isinstance(messages[0], OfferedBatches):
                if values:
                    self._encode(values, lines, batches)
                    values = []
                start = head.body_offset
                runs = [memoryview(message.wire)[start:-1] for message in messages]
                origin = origin_of(messages[0])
                batches += runs if origin is None else [Stamped(run, stamp_of(self.log_id, origin)) for run in runs]
                counts += [message.records_count for message in messages]  # type: ignore[attr-defined]
                continue
            its_lines = self.stored_lines(head)
            origin = origin_of(messages[0])
            if origin is not None:
                its_lines = b"\n".join(filter(None, (its_lines, stamp_of(self.log_id, origin))))
            if values and its_lines != lines:
                self._encode(values, lines, batches)
                values = []
            lines = its_lines
            values += values_of(messages, head)
            counts += [1] * len(messages)
        if values:
            self._encode(values, lines, batches)
        self._take_piece(_Piece(batches, counts, run.charge_bytes))

    def _encode(self, values: SequenceOf[bytes | memoryview], lines: bytes, batches: list[Batches]) -> None:
        """Append the records to `batches`, as batches that fit into a file."""
        room_bytes = self.records.batch_bytes_max - len(lines) - RECORD_OVERHEAD_BYTES
        if len(values) <= COUNT_MAX and (size_bytes := sum(map(len, values)) + 4 * len(values)) <= room_bytes:
            is_long = size_bytes >= ENCODED_ELSEWHERE_BYTES
            batches.append(Unencoded(values, lines) if is_long else encode(values, head=lines))
            return
        start = size_bytes = 0
        for place, value in enumerate(values):
            size_bytes += len(value) + 4
            if place > start and (size_bytes > room_bytes or place - start >= COUNT_MAX):
                batches.append(encode(values[start:place], head=lines))
                start, size_bytes = place, len(value) + 4
        batches.append(encode(values[start:], head=lines))

    def _take_piece(self, piece: _Piece) -> None:
        self._accepted = piece
        self._pending.append(piece)
        self.pending_count += len(piece.counts)
        if not self._writing:
            self.context.request_dispatch()

    def stored_lines(self, head: Any) -> bytes:
        """Return the header lines stored for a SEND, in the form of 1.2."""
        if head is self._last_head:
            return self._last_lines
        key = head.version, _LENGTH_LINE.sub(b"", head.block)
        lines = self._lines.get(key)
        if lines is None:
            if len(self._lines) >= STORED_HEADS_MAX:
                self._lines.clear()
            lines = self._lines[key] = head.lines_without(NOT_STORED)
        self._last_head, self._last_lines = head, lines
        return lines

    # ------------------------------------------------------------------ to the disk

    def when_made(self, callback: Callable[[DiskError | None], None]) -> None:
        """Call `callback` when the files exist, at once if they do; or with the error of the disk, after which making
        them is tried again. Called with an error, too, if the log is deleted before; not called if the broker stops.
        """
        if self._make is None:
            callback(None)
        elif self.closed:
            callback(self._gone_error)
        else:
            self._on_made.append(callback)

    @property
    def is_made(self) -> bool:
        """Whether the files exist."""
        return self._make is None

    @property
    def _gone_error(self) -> DiskError:
        return DiskError(f"{self.name} was deleted before its files were there")

    def _made(self, result: Records | DiskError) -> None:
        error: DiskError | None = None
        if isinstance(result, DiskError):
            error = result
            if not self.closed:
                self._timer = self.environment.scheduling.call_later(AGAIN_SECONDS, self._make_again)
            self._disk_fails(result)
        else:
            self._make = None
            self.records = result  # also of a log closed meanwhile: the remover closes the records
            self.page_cache = PageCache(result)
            if not self.closed:
                self._disk_works()
                self.context.request_dispatch()
        waiting, self._on_made = self._on_made, []
        self._answers.add((partial(callback, error), 1) for callback in waiting)

    def _make_again(self) -> None:
        self._timer = None
        if self._make is not None:
            self._disk.make(self._make, self._made)

    def _disk_fails(self, what: DiskError) -> None:
        if self.failing != str(what):
            self.failing = str(what)
            self.on_failing(self.name, self.failing)
        waiting, self._on_written = self._on_written, deque()
        self._answers.add((callback, 1) for _piece, callback in waiting)

    def _disk_works(self) -> None:
        if self.failing:
            self.failing = ""
            self.on_failing(self.name, "")

    def _dispatch(self, _budget: int) -> bool:
        if self._pending and not self._writing and self._timer is None and self._make is None and self._may_write:
            self._write()
        has_more = self._wake_some()
        return self._answers.go_on() or has_more

    @property
    def _may_write(self) -> bool:
        """Whether the store knows of the producers of what is to be written: that there are any, at least."""
        return self.producers is None or not self.producers.awaits_mark

    def wake_all(self) -> None:
        """Dispatch all readers after a change other than new records."""
        self.wake(self.outlets)

    def wake(self, outlets: Iterable[LogReaders]) -> None:
        """Dispatch the readers, some at a time."""
        self._waking += outlets
        if self._wake_some():
            self.context.request_dispatch()

    def _wake_some(self) -> bool:
        """Dispatch some of the readers in line; return whether more are left."""
        waking = self._waking
        for _ in range(min(WOKEN_PER_STEP, len(waking))):
            waking.popleft().context.request_dispatch()
        return bool(waking)

    def _request_dispatch(self) -> None:
        self.context.request_dispatch()

    def _write(self) -> None:
        batches: list[Batches] = []
        size_bytes = pieces_count = 0
        for piece in self._pending:
            if pieces_count and (size_bytes + piece.size_bytes > WRITE_BYTES_MAX or pieces_count == WRITE_COUNT_MAX):
                break
            pieces_count += 1
            size_bytes += piece.size_bytes
            batches += piece.batches
        self._writing = True
        records = self.records
        self._disk.append(
            lambda: records.append_batches(apart(batches)), lambda result: self._written_to_disk(pieces_count, result)
        )

    def _written_to_disk(self, pieces_count: int, result: int | DiskError) -> None:
        self._writing = False
        if self.closed:  # the pieces were given up
            return
        if isinstance(result, DiskError):
            self._timer = self.environment.scheduling.call_later(AGAIN_SECONDS, self._write_again)
            self._disk_fails(result)
            return
        self._disk_works()
        index = result
        charge_bytes = charge_count = 0
        must_sync = self.policy.log_sync == "receipt"
        answers: list[Iterable[Answer]] = []
        for _ in range(pieces_count):
            piece = self._pending.popleft()
            self.pending_count -= len(piece.counts)
            piece.first_index = index
            index += sum(piece.counts)
            piece.end_index = index
            piece.batches = ()
            if piece.origins and self.producers is not None:
                count = piece.counts[0] if len(piece.origins) == 1 and len(piece.counts) == 1 else 0
                for origin in piece.origins:
                    self.producers.written(origin, piece.first_index, count)
            self.page_cache.written(piece.first_index, piece.size_bytes)
            charge_bytes += piece.charge_bytes
            charge_count += len(piece.counts) if piece.charge_bytes else 0
            self.appended_bytes += piece.size_bytes
            if piece.waiters:
                if must_sync or piece.must_sync:
                    piece.awaits_sync = True
                    self._written.append(piece)
                else:
                    answers.append(_telling((piece,), "memory"))
        if self._pending and self._may_write:
            self._write()  # before senders continue: the disk is the bottleneck
        if self._written or (self.producers is not None and self.producers.grew(pieces_count, index)):
            self._ask_for_sync()
        elif self.policy.log_sync != "none" and self._sync_timer is None:
            self._sync_timer = self.environment.scheduling.call_later(self.policy.log_sync_seconds, self._interval_over)
        tail, self._tail = self._tail, {}
        self.wake(tail)
        waiting = self._on_written
        written_count = bisect_left(waiting, True, key=_is_unwritten)
        answers.append((callback, 1) for _piece, callback in list(islice(waiting, written_count)))
        self._on_written = deque(islice(waiting, written_count, None))
        self.controller.release(charge_count, charge_bytes)
        self._answers.add(chain.from_iterable(answers))  # last: an answer may delete the log

    def _write_again(self) -> None:
        self._timer = None
        self.context.request_dispatch()

    def _interval_over(self) -> None:
        self._sync_timer = None
        if not self.closed:
            self._ask_for_sync()

    def _ask_for_sync(self) -> None:
        if self._syncing:
            self._sync_due = True
            return
        self._syncing = True
        self._sync_due = False
        self._disk.sync(self.records.flush, self._synced)

    def _synced(self, result: int | DiskError) -> None:
        self._syncing = False
        if self.closed:
            return
        if isinstance(result, DiskError):
            if self.failing != str(result):
                self.failing = str(result)
                self.on_failing(self.name, self.failing)
            if self._sync_timer is None and not self.closed:
                self._sync_timer = self.environment.scheduling.call_later(AGAIN_SECONDS, self._interval_over)
            return
        if not self._timer:
            self._disk_works()
        if self.producers is not None:
            self.producers.synced(result)
        synced_count = bisect_right(self._written, result, key=_END)
        synced = list(islice(self._written, synced_count))
        self._written = deque(islice(self._written, synced_count, None))
        if self._sync_due or self._written:
            self._ask_for_sync()
        self._answers.add(_telling(synced, self._durability))  # last, as above

    # ------------------------------------------------------------------ out

    def await_tail(self, outlet: LogReaders) -> None:
        """Dispatch this reader when records are added."""
        self._tail[outlet] = None

    def elsewhere(self, work: Callable[[], T], done: Callable[[T | DiskError], None]) -> None:
        """Do `work` in the reading thread."""
        self._disk.read(work, done)

    def room(self, size_bytes: int) -> Any:
        """Return a buffer for what the reading thread expands."""
        return self._disk.room(size_bytes)

    def read_ahead(self, start: int, stop: int, done: Callable[[object], None]) -> None:
        """Read these records into the page cache."""
        records = self.records
        self._disk.read(lambda: records.warm(start, stop), done)

    def gap_at(self, index: int) -> Missing | None:
        """Return the gap at `index`; None: nothing is missing there."""
        gaps = self.records.gaps
        if not gaps:
            return None
        place = bisect_right(gaps, index, key=_first_of) - 1
        return gaps[place] if place >= 0 and index < gaps[place].to_index else None

    def end_before_gap(self, start: int, stop: int) -> int:
        """Return the end of the records from `start` on without a gap, `stop` at most."""
        gaps = self.records.gaps
        if not gaps:
            return stop
        place = bisect_right(gaps, start, key=_first_of)
        return min(stop, gaps[place].from_index) if place < len(gaps) else stop

    @property
    def is_idle(self) -> bool:
        """Whether the log has no work pending and no reader."""
        return not (
            self._pending or self._writing or self._written or self._syncing or self._answers.waits or self.outlets
        )

    def when_written(self, callback: Callable[[], None]) -> None:
        """Call `callback` when all records offered so far are in the file; at once if they are, or if the disk does not
        work.
        """
        if self.failing or not self._pending:
            callback()
        else:
            self._on_written.append((self._pending[-1], callback))

    def close(self, *, deleted: bool = False, abandoned: bool = False) -> None:
        """Close the log, as the broker stops, or as it is `deleted`, or `abandoned` after a fault of the broker.
        Records that wait for the disk are given up: none was reported durable. If the log is deleted, waiters are
        notified; if it is abandoned, waiting requests continue and find no log.
        """
        if self.closed:
            return
        self.closed = True
        self.is_deleted = deleted
        for timer in (self._timer, self._sync_timer):
            if timer is not None:
                timer.cancel()
        if not deleted:  # the deletion ends its readers in steps
            for outlet in list(self.outlets):
                outlet.close()
        self.context.close()
        given_up = [*self._written, *self._pending] if deleted else []
        self._pending.clear()
        self.pending_count = 0
        self._written.clear()
        self.controller.close(at_once=not deleted)
        super().close()
        self.environment.resume_sources(self, self.controller)
        if deleted or abandoned:
            waiting, self._on_written = self._on_written, deque()
            self._answers.add((written, 1) for _piece, written in waiting)
        unmade, self._on_made = self._on_made, []
        if deleted and self.producers is not None:
            self.producers.forget()
        if deleted:  # otherwise nothing more is stored: storage has stopped when the last files exist
            self._answers.add((partial(made, self._gone_error), 1) for made in unmade)
        self._answers.add(_telling(given_up, GONE))
        self._answers.close()

    def facts(self) -> Mapping[str, object]:
        facts: dict[str, object] = {"first": self.records.first_index, "next": self.records.next_index}
        if self.failing:
            facts["the disk says"] = self.failing
        return facts


def _telling(pieces: Iterable[_Piece], how: str) -> Iterator[Answer]:
    """Yield the answers to all waiters of the pieces. A piece has its indexes unless `how` is GONE."""
    for piece in pieces:
        piece.awaits_sync = False
        waiters, piece.waiters = piece.waiters, []
        if waiters:
            counts = piece.counts if how != GONE else []
            indexes = list(zip(accumulate(counts, initial=piece.first_index), counts, strict=False))
            weight = 1 + len(counts) // SENDS_PER_ANSWER
            for callback in waiters:
                yield partial(callback, how, indexes), weight


def _is_unwritten(waiting: tuple[_Piece, Callable[[], None]]) -> bool:
    return waiting[0].end_index < 0


def _first_of(gap: Missing) -> int:
    return gap.from_index
