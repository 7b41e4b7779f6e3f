"""Store of a broker: one queue of operations, with one write under way; all others wait or are cancelled.

*When it writes.* A shelf reports that it has something to write (`touch`). If it is urgent (a receipt waits, a block is
to be paged out) the next batch begins at the end of the dispatch turn, so that all changes of that turn go in one write
and one sync: group commit. While a batch is under way the next one gathers. Otherwise the shelf is checked when its
delay is over. Records written without a sync are synced with the next receipt, or after `sync_interval_seconds`.

*Receipts may be answered early.* Where consumers usually settle sooner than a sync takes, its receipts wait for them
first, for as long as a sync takes: most answers are then "consumed", and sooner; at worst it takes twice the time.

*When the disk fails.* A batch that can't be written is tried again, whole, with growing pauses: batches are idempotent.
Until then the gate is closed: persistent messages wait with their senders; receipts for records in the batch wait;
consumers continue. The same gate closes when the disk, or the share of it that the store may use, is nearly full.

Bound: one batch under way of BATCH_BYTES, one transaction or message more, and changes that belong to no queue, such as
pieces of spooled transactions (spool.py). Messages that wait to be written are in their queue's memory and charged
there.

Source: seed 002 "Persistence Store"; anchors d10, d21, e20, c17, c25, c27; DESIGN section 7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Final

from ..flow import Account, Flow, FlowManager, FlowResource, SizeLimiter, SourceController, WindowLimiter
from ..flow.kinds import ResourceKind
from ..queues.environment import Scheduling, TimerHandle
from ..queues.message import Message
from ..queues.storage import DISK, Confirms, PulledQueue
from . import keys
from .batch import BATCH_BYTES, StoreBatch
from .beside import Beside
from .chunks import HeadCodec
from .config import StoreConfig
from .counters import StoreCounters
from .damage import DamageReports
from .dirty import Dirty
from .diskguard import DiskGuard
from .engine import Change, EngineError, FencedError, put, raise_it
from .going_on import GoingOn
from .gradual import Gradual
from .io_threads import Worker
from .large import BodyFiles
from .paged import PagedBlocks
from .places import GroupRecord
from .ports import DataFolder, Logger
from .queue_records import QueueRecords
from .recovery import Recovered
from .states import encode_numbers
from .together import Shelf, StoreJoint, Together, records_of
from .write_fence import FencedChanges

RETRY_MIN_SECONDS: Final = 0.1
RETRY_MAX_SECONDS: Final = 5.0
GATHER_SHARE: Final = 0.5
"""Share of the time of a batch that the next one waits at most for senders that just got receipts. Tried: not waiting
at all (ten producers that wait for each receipt split into groups which wait for each other's syncs).
"""
ANSWERS_AT_ONCE: Final = 192
ANSWERS_PER_STEP: Final = 4  # trails take 150 lines of Python for each
GATHER_SECONDS_MAX: Final = 0.002
SHELVES_AT_ONCE: Final = 64
"""More than that of one batch are gathered in steps."""
SHELVES_MAX: Final = 4096
"""Number of shelves that one batch checks, if none of them fills it."""
HOPE_SECONDS_MAX: Final = 0.02
"""Longest time that a receipt waits for consumers before it waits for the disk, in seconds. Without (ten producers that
wait for each receipt, a consumer that keeps up; a sync takes 1 ms): 2,100 messages a second, 370 us each; with: 5,400
and 175.
"""
NUMBERS_AHEAD: Final = 1 << 20
"""Message numbers that are reserved on disk at a time."""
OPERATION_BYTES: Final = 10 << 20
"""Capacity of the operation queue on the flow map (the prototype's)."""


class StoreQueue(FlowResource):
    """The store, as queues and the broker see it. See the module."""

    deleted_with: Callable[[Shelf], Iterable[Change]] = staticmethod(
        lambda _shelf: ()
    )  # goes with what deletes a queue

    def __init__(
        self,
        config: StoreConfig,
        *,
        worker: Worker,
        heads: HeadCodec,
        scheduling: Scheduling,
        at_turn_end: Callable[[Callable[[], None]], None],
        clock: Callable[[], float],
        manager: FlowManager,
        log: Logger,
        folder: DataFolder | None = None,
        recovered: Recovered | None = None,
        engine_name: str = "memory",
        durability: str = DISK,
        bodies: BodyFiles | None = None,
        pages: Path | None = None,
        contain: Callable[[Exception], None] = raise_it,
        name: str = "store",
        elsewhere_bytes: Callable[[], int] = lambda: 0,
        fenced: Callable[[FencedError], None] = raise_it,
    ) -> None:
        """`contain` handles errors raised by answers, a mistake of one destination or connection. `worker` does
        blocking work; `heads` reads and writes header blocks; `recovered`: state of an earlier run; `bodies` has the
        files of large bodies; `durability`: what RECEIPTs say of a synced message; `pages`: an empty folder for blocks
        that are only paged out (None: the engine stores them); `name`: on the flow map; `elsewhere_bytes`: size of
        other stores that share `bytes_max`; `fenced`: told once that the shard has another owner, and is to be
        abandoned.
        """
        super().__init__(name, ResourceKind.STORE, manager)
        self.worker = worker
        self.heads = heads
        self.clock = clock
        self.bodies = bodies
        self.paged = PagedBlocks(self, heads, pages, worker, scheduling=scheduling, clock=clock, log=log)
        self._contain = contain
        self.make_large: Callable[..., Message] | None = None if bodies is None else bodies.make_message
        self.loaded_count = 0
        """Messages read back."""
        self.counters = StoreCounters()
        damage = DamageReports(self.counters, folder, log)
        self.corrupt, self.lost = damage.corrupt, damage.lost
        self._config = config
        self.engine_name = engine_name
        self.durability = durability
        """Durability of a message that is written and synced."""
        self._scheduling = scheduling
        self._at_turn_end = at_turn_end
        self._log = log
        self._recovered = recovered or Recovered()
        self._next_queue_id = self._recovered.next_queue_id
        self.shelves: dict[int, Shelf] = {}
        """Shelves of the queues and groups that exist, by their numbers."""
        self._dirty = Dirty()
        self._together = Together(self, self._dirty)
        self._gradual = Gradual(scheduling, "a large batch of the store")
        """Gathers a batch, or answers for one, which counts as under way meanwhile."""
        self._going_on = GoingOn(scheduling, self._tell_all)
        self._places_count = 0  # made so far
        self._beside = Beside()
        self._batch: StoreBatch | None = None
        self._flush_asked = False
        self._timer: TimerHandle | None = None
        self._timer_seconds = float("inf")
        self._unsynced_seconds: float | None = None
        self._pressing = False  # something other than receipts is urgent
        self._waiting_count = 0  # elements with waiting receipts, since the last batch began
        self._expected_count = 0
        self._gather_until_seconds = 0.0
        self._write_seconds = 0.0  # how long a batch takes, averaged
        self._sync_seconds = 0.0  # how long one takes that is synced, averaged
        self._perhaps_consumed: dict[Shelf, None] = {}
        """Shelves to ask at the end of this turn whether their elements are consumed."""
        self._retry_seconds = RETRY_MIN_SECONDS
        self._failing: str | None = None
        self._tell_fenced = fenced
        self._is_fenced = False
        self.disk_is_low = False
        self.size_bytes = 0
        self.numbers_enough_to = -1  # numbers below this are reserved with enough room that no call is needed
        self._closed = False
        self._last_waiters: list[Callable[[], None]] = []
        self._guard: DiskGuard | None = None
        self._operations = Account(
            self,
            Flow("operations of the store"),
            SizeLimiter(OPERATION_BYTES, clock=clock, label="operations"),
            clock=clock,
        )
        self._gate = Account(
            self,
            Flow("gate of the store"),
            WindowLimiter(1, None, clock=clock, label="disk"),
            clock=clock,
            counts_memory=False,
        )
        self.open()
        if folder is not None:
            self._guard = DiskGuard(
                config,
                folder,
                worker,
                scheduling=scheduling,
                beside_bytes=lambda: self.paged.size_bytes,
                elsewhere_bytes=elsewhere_bytes,
                changed=self._disk_changed,
                sized=self._sized,
                fenced=self.fenced,
                trouble=log.error,
            )
            self._guard.start()

    # ------------------------------------------------------------------ the port of queues

    @property
    def accepting(self) -> bool:
        # Not whether nobody waits at it: those that do may all go on, and ask for this when they are told.
        return not self._gate.limiter.throttled

    def accepts(self, source: SourceController) -> bool:
        return self._gate.accepts(source)

    def hold_back(self, source: SourceController) -> None:
        if not self._closed:  # the broker stops: there is nothing to wait for any more
            self._gate.wait_in_line(source)

    def storage_of(self, queue: PulledQueue, *, topic: bool) -> QueueRecords:
        found = self._recovered.take(queue.name_on_disk, queue.priority, topic=topic)
        if found is not None:
            shelf = self.shelves[found.queue_id] = QueueRecords(self, queue, found.queue_id, topic=topic, known=True)
            queue.restored(found)
            shelf.restore(found.blocks, found.handed_to, found.larges)
        else:
            shelf = self.shelves[self._next_queue_id] = QueueRecords(self, queue, self._next_queue_id, topic=topic)
            self._next_queue_id += 1
        return shelf

    def place(self, make: Callable[[int], GroupRecord]) -> GroupRecord:
        """The place of a group of a log; `make` is given its number."""
        self._places_count += 1
        place = self.shelves[-self._places_count] = make(-self._places_count)
        return place

    def abandon(self, shelf: Shelf) -> set[Shelf]:
        """Write nothing more of a shelf, and keep its records on disk. Returns the shelves that transactions not yet on
        disk bind to it: they must not be written without it. Callbacks for its own changes are never called (`undone`
        is); callbacks for everything (`when_all_saved`) wait for the others.
        """
        bound = self._together.abandon(shelf)
        self._gone(shelf)
        self._scheduling.call_later(0.0, partial(self._tell_all, shelf.abandoned()))
        return bound

    def _gone(self, shelf: Shelf) -> None:
        self._dirty.remove(shelf)
        self._together.gone(shelf)
        self.shelves.pop(shelf.queue_id, None)
        if self._dirty.is_asked:  # perhaps it was the last that is waited for
            self.ask()

    def bind(self, shelves: Iterable[Confirms]) -> None:
        self._together.bind(shelves)

    def join(self, owner: FlowResource) -> StoreJoint:
        return self._together.join(owner)

    # ------------------------------------------------------------------ the port of shelves

    @property
    def is_failing(self) -> bool:
        """The last write failed."""
        return self._failing is not None

    def touch(self, shelf: Shelf, *, urgent: bool = False) -> None:
        """Note that a shelf has something to write. Does nothing if its queue is deleted or abandoned."""
        if shelf.queue_id not in self.shelves:
            return
        if urgent:
            self._pressing = shelf.urgent = True
            self._dirty.press(shelf)
            self.ask()
        elif shelf not in self._dirty:
            self._wait_with(shelf, self.clock())
            self._arm(shelf.due_seconds)

    def _wait_with(self, shelf: Shelf, since_seconds: float) -> None:
        """Give its consumers their time."""
        config = self._config
        delay_seconds = shelf.next_delay_seconds(config.flush_delay_min_seconds, config.flush_delay_max_seconds)
        self._dirty.wait(shelf, since_seconds + delay_seconds)

    def receipt_waits(self, shelf: QueueRecords, count: int) -> None:
        """Count `count` more elements of this shelf whose receipts wait for the disk. Receipts of an abandoned shelf
        are never sent.
        """
        if shelf.queue_id not in self.shelves:
            return
        shelf.urgent = True
        self._dirty.press(shelf)
        self._waiting_count += count
        if self._batch is None and not self._flush_asked:
            until_seconds = self._hopes_until(shelf)
            if until_seconds > self.clock():
                self._dirty.hope(shelf, until_seconds)
                self._arm(until_seconds)
            else:
                self._ask_or_gather()

    def perhaps_consumed(self, shelf: QueueRecords) -> None:
        """Note that consumers settled elements of this shelf for which receipts wait."""
        if not self._perhaps_consumed:
            self._at_turn_end(self._answer_consumed)
        self._perhaps_consumed[shelf] = None

    def forget(self, shelf: Shelf) -> None:
        """Drop a shelf whose queue or group is deleted."""
        self.counters.forgotten_cancelled_count += shelf.cancelled_count
        self._gone(shelf)
        self._beside.add([*self.deleted_with(shelf), *(records_of(shelf.queue_id) if shelf.has_records else ())])
        self._arm(self.clock() + self._config.flush_delay_min_seconds)

    def bequeath(self, shelf: Shelf, attached: Iterable[FencedChanges], waiting: list[Callable[[], None]]) -> None:
        """Pass on what was to be written with a shelf, and its waiting callbacks: its queue or group is deleted."""
        self._together.bequeath(shelf, attached, waiting)

    def when_flushed(self, callbacks: list[Callable[[], None]]) -> None:
        """Call `callbacks` when all changes passed so far are synced."""
        if callbacks:
            self._beside.wait(callbacks)
            self.ask()

    def when_all_saved(self, callback: Callable[[], None]) -> None:
        """Call `callback` when everything that is in queues or was settled in them so far is on disk."""
        self._dirty.ask(callback)
        self.ask()

    def change(
        self,
        changes: Iterable[Change],
        done: Callable[[], None] | None = None,
        *,
        written: Callable[[], None] | None = None,
    ) -> None:
        """Write `changes` with the next batch; call `written` when that is done, and `done` when they are synced."""
        self._beside.add(changes, written)
        if done is not None:
            self._beside.wait([done])
        self.ask()

    def read_failed(
        self, error: EngineError, again: Callable[[], None], *, pause_seconds: float = RETRY_MAX_SECONDS
    ) -> None:
        """A read failed: say so, and try again after this time."""
        self.counters.failures_count += 1
        self._log.error("store cannot read", error=str(error), again_after_seconds=pause_seconds)
        self._scheduling.call_later(pause_seconds, again)

    # ------------------------------------------------------------------ numbers

    def reserve_numbers(self, number: int) -> None:
        """Message numbers up to this one are in use: keep the record on disk ahead of them."""
        if number > self.numbers_enough_to:
            self.numbers_enough_to = number + NUMBERS_AHEAD // 2
            self._beside.add([put(keys.META_NUMBERS_KEY, encode_numbers(number + NUMBERS_AHEAD))])
            self.ask()

    # ------------------------------------------------------------------ flushing

    def ask(self) -> None:
        """Begin a batch at the end of this turn, if none is under way."""
        if not self._flush_asked and self._batch is None:
            self._flush_asked = True
            self._at_turn_end(self._flush)

    def _ask_or_gather(self) -> None:
        """Begin a batch for receipts alone, or wait a little: senders that just got receipts will soon send again, so
        it pays to wait until as many have come as were told. One sync serves them all, where each alone would wait for
        the syncs of the others.
        """
        if self._waiting_count >= self._expected_count or self.clock() >= self._gather_until_seconds:
            self.ask()
        else:
            self._arm(self._gather_until_seconds)

    def _hopes_until(self, shelf: Shelf) -> float:
        """Return the clock reading until which this shelf's receipts wait for its consumers; 0 if another request waits
        for all of the store.
        """
        if self._beside.waits or self._dirty.is_asked or self._failing is not None:
            return 0.0
        return shelf.hopes_until(min(self._sync_seconds, HOPE_SECONDS_MAX))

    def _answer_consumed(self) -> None:
        shelves, self._perhaps_consumed = self._perhaps_consumed, {}
        if self._beside.waits:
            return  # they are answered with the next batch, which must have the settled elements, too
        for shelf in shelves:
            self._waiting_count = max(0, self._waiting_count - shelf.answer_consumed())
            if not shelf.urgent and shelf in self._dirty:
                self._wait_with(shelf, self.clock())
                self._arm(shelf.due_seconds)

    def _arm(self, at_seconds: float) -> None:
        if at_seconds < self._timer_seconds and not self._closed:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_seconds = at_seconds
            self._timer = self._scheduling.call_later(max(0.0, at_seconds - self.clock()), self._timed_out)

    def _timed_out(self) -> None:
        self._timer = None
        self._timer_seconds = float("inf")
        self._flush()

    def _flush(self) -> None:
        """Begin a batch, if none is under way and there is something to write."""
        self._flush_asked = False
        if self._batch is not None or self._closed:
            return
        self._pressing = False
        batch = self._gather()
        if self._together.heavy or (self._dirty.is_ready and not batch.is_full):
            self._batch = batch
            self._gradual.begin(self._gathering(batch), partial(self._gathered, batch))
        else:
            self._gathered(batch)

    def finish_gathering(self) -> None:
        """Put all remaining changes into the batch under way, now, and write it."""
        self._gradual.finish()

    def _gathered(self, batch: StoreBatch) -> None:
        """Begin to write `batch`: everything for it is gathered."""
        self._beside.wait(self._dirty.answers())
        self._beside.end()
        self._pressing = self._dirty.is_ready
        self._batch = batch if self._closed else None
        if not self._closed:
            self._together.next_joint()
            self._begin(batch)

    def _begin(self, batch: StoreBatch) -> None:
        """Write this, if there is anything in it."""
        batch.told_count, self._waiting_count = self._waiting_count, 0
        self._tell_all([partial(saved, "consumed") for saved in batch.consumed])
        due_sync = self._unsynced_seconds is not None and (
            self.clock() >= self._unsynced_seconds + self._config.sync_interval_seconds  # the same sum as in _arm_next
        )
        if batch.changes or batch.sync or due_sync or batch.page_outs or batch.noting:
            batch.sync = batch.sync or due_sync
            self._batch = batch
            self._operations.charge(len(batch.changes), batch.size_bytes, None)
            self._write()
        else:
            self._arm_next()

    def _gather(self) -> StoreBatch:
        now_seconds = self.clock()
        batch = StoreBatch(now_seconds, self.durability)
        self._together.begin_gathering()
        self._beside.begin(batch)
        if batch.waiters:
            self._dirty.end_hopes(SHELVES_AT_ONCE)
        left_count = SHELVES_AT_ONCE
        for shelf in self._to_look_at():
            if left_count <= 0 or batch.is_full:
                break
            left_count -= self._look_at(shelf, batch)
        return batch

    def _to_look_at(self) -> list[Shelf]:
        """Return the ready shelves, not too many at once."""
        self._dirty.come_due(self.clock(), SHELVES_AT_ONCE)
        return self._dirty.first(SHELVES_AT_ONCE)

    def _gathering(self, batch: StoreBatch) -> Iterator[None]:
        """Put all other ready shelves into this batch, in steps. Changes made meanwhile may come into it: shelves that
        transactions bind together always do so in one step, or like heavy bonds.
        """
        left_count = SHELVES_MAX
        looked_at = self._to_look_at()
        while left_count > 0 and not batch.is_full and not self._together.heavy and looked_at:
            for shelf in looked_at:
                left_count -= 1
                yield from repeat(None, max(1, self._look_at(shelf, batch)))
                if batch.is_full or self._together.heavy:
                    break
            looked_at = self._to_look_at()
        if self._together.heavy:
            yield from self._together.gathering(batch)

    def _look_at(self, shelf: Shelf, batch: StoreBatch) -> int:
        """Put the changes of a shelf, and of those it is bound to, into this batch. Returns the number of shelves."""
        dirty = self._dirty
        if not dirty.wants(shelf):
            return 0  # written with another one that it is bound to
        together: list[Shelf] = []
        if not self._together.passes_over(shelf):
            if shelf.urgent and not batch.waiters:
                until_seconds = self._hopes_until(shelf)
                if until_seconds > batch.started_seconds:
                    dirty.hope(shelf, until_seconds)
                    return 0
            together = self._together.gathered_with(shelf)
        if self._together.is_kept_back(shelf):
            dirty.keep_back(shelf)
        for one in together:
            self.collect_one(one, batch, urgent=len(together) > 1)
        return len(together)

    def collect_one(self, shelf: Shelf, batch: StoreBatch, *, urgent: bool) -> None:
        """Put the due changes of a shelf into this batch; with `urgent` all of them."""
        if shelf.queue_id not in self.shelves:
            return  # its queue was deleted
        shelf.urgent = shelf.urgent or urgent
        end = shelf.elements_end
        shelf.collect(batch)
        self._dirty.gathered(shelf, end)
        if not shelf.is_clean:
            if shelf.urgent:
                self._dirty.press(shelf)  # behind the others: one that fills each batch does not keep them waiting
            else:
                self._wait_with(shelf, batch.started_seconds)

    def _write(self) -> None:
        batch = self._batch
        assert batch is not None, "a batch is under way"
        self.paged.submit(batch, self._written)

    def _written(self, error: EngineError | None) -> None:
        batch = self._batch
        if batch is None:
            return
        self.paged.tried(batch)
        if error is not None:
            self._write_failed(batch, error)
            return
        now_seconds = self.clock()
        self._operations.release(len(batch.changes), batch.size_bytes)
        self.paged.written(batch)
        self.counters.count(batch, now_seconds)
        if self._failing is not None:
            self._log.info("store writes again", after=self._failing)
            self._failing = None
            self._retry_seconds = RETRY_MIN_SECONDS
            self._set_gate()
        if batch.sync:
            self._unsynced_seconds = None
        elif batch.changes and self._unsynced_seconds is None:
            self._unsynced_seconds = batch.started_seconds
        if batch.answers_count > ANSWERS_AT_ONCE:
            self._gradual.begin(self._answering(batch), partial(self._answered, batch, now_seconds))
            return
        self._batch = None
        self._tell_all(batch.answers())
        self._answered(batch, now_seconds)

    def _answering(self, batch: StoreBatch) -> Iterator[None]:
        """Answer the callbacks of a batch, in steps."""
        for place, answer in enumerate(batch.answers()):
            self._tell_all((answer,))
            if place % ANSWERS_PER_STEP == 0:
                yield

    def _answered(self, batch: StoreBatch, now_seconds: float) -> None:
        """End a batch whose callbacks are all answered; the next one may begin."""
        self._batch = None
        took_seconds = now_seconds - batch.started_seconds
        self._write_seconds += (took_seconds - self._write_seconds) / 8
        if batch.sync:
            known_seconds = self._sync_seconds or took_seconds
            self._sync_seconds = known_seconds + (took_seconds - known_seconds) / 8
        self._expected_count = batch.told_count + self._waiting_count
        self._gather_until_seconds = now_seconds + min(self._write_seconds * GATHER_SHARE, GATHER_SECONDS_MAX)
        if self._pressing or self._beside or self._dirty.is_asked:
            self.ask()
        elif self._has_urgent(now_seconds):
            self._ask_or_gather()
        else:
            self._arm_next()

    def _tell_all(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Run callbacks: an error of one affects neither the others nor the store."""
        for callback in callbacks:
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - a shell: the hook raises it unless told otherwise
                self._contain(error)

    def _has_urgent(self, now_seconds: float) -> bool:
        """Return whether a shelf is ready and does not wait for consumers."""
        for shelf in self._dirty.first(SHELVES_AT_ONCE):
            until_seconds = self._hopes_until(shelf)
            if until_seconds <= now_seconds:
                return True
            self._dirty.hope(shelf, until_seconds)
        return False

    def _arm_next(self) -> None:
        self._dirty.come_due(self.clock(), SHELVES_AT_ONCE)
        if self._dirty.is_ready:
            self.ask()
        else:
            self._arm(self._dirty.next_seconds)
        if self._unsynced_seconds is not None:
            self._arm(self._unsynced_seconds + self._config.sync_interval_seconds)

    # ------------------------------------------------------------------ failing

    def fenced(self, error: FencedError) -> None:
        """Write and confirm nothing more: the shard has another owner, so what is in memory here is no longer true.
        Raises the error, unless somebody is told who abandons the shard.
        """
        if self._is_fenced:
            return
        self._is_fenced = True
        self._failing = str(error)
        self._set_gate()
        if self._guard is not None:
            self._guard.stop()
        self._tell_fenced(error)

    def _write_failed(self, batch: StoreBatch, error: EngineError) -> None:
        if isinstance(error, FencedError):
            self.fenced(error)
            return
        self.counters.failures_count += 1
        if not (was_failing := self.is_failing):
            self._log.error(
                "store cannot write",
                error=str(error),
                effect="persistent messages wait with their senders; consuming continues",
            )
        self._failing = str(error)
        if not was_failing:
            self._going_on.all_readers(self.shelves.values())
            self._together.next_joint()
        self._set_gate()
        self._going_on.refused(page_out for page_out in batch.page_outs if page_out.is_refused)
        batch.page_outs = [page_out for page_out in batch.page_outs if not page_out.is_refused]
        self._scheduling.call_later(self._retry_seconds, self._write_again)
        self._retry_seconds = min(2 * self._retry_seconds, RETRY_MAX_SECONDS)

    def _write_again(self) -> None:
        if self._batch is not None and not self._closed:
            self._write()

    @property
    def is_at_bytes_max(self) -> bool:
        """Whether the store is as large as its `bytes_max` allows."""
        bytes_max = self._config.bytes_max
        return bytes_max is not None and self.size_bytes > bytes_max

    def _disk_changed(self, is_low: bool, free_bytes: int) -> None:
        self.disk_is_low = is_low
        tell = self._log.warning if is_low else self._log.info
        full = "the store has reached its bytes_max" if self.is_at_bytes_max else "disk is nearly full"
        tell(
            full if is_low else "disk has room again",
            free_bytes=free_bytes,
            store_bytes=self.size_bytes,
            effect="persistent messages wait with their senders" if is_low else "they continue",
        )
        self._set_gate()

    def _sized(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes

    def _set_gate(self) -> None:
        shut = self._failing is not None or self.disk_is_low
        is_shut = bool(self._gate.limiter.used_count)
        if shut and not is_shut:
            self._gate.charge(1, 0, None)
        elif is_shut and not shut:
            self._gate.release(1, 0)

    # ------------------------------------------------------------------ end, and what people see

    def last_batch(self) -> list[Change]:
        """Return a batch of everything that is not written yet, and exactly what consumers have seen: the broker stops.
        For the caller to write, synced, when the worker is idle.
        """
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._guard is not None:
            self._guard.stop()
        self._gradual.finish()
        under_way, self._batch = self._batch, None
        changes = list(under_way.changes) if under_way is not None else []
        batch = StoreBatch(self.clock(), self.durability)
        self._beside.begin(batch)
        for shelf in self.shelves.values():
            while True:
                size_bytes = batch.size_bytes
                batch.size_bytes = 0  # no limit: there is no later
                shelf.close_in_order(batch)
                batch.size_bytes += size_bytes
                if shelf.saved_to >= shelf.elements_end:
                    break
        self._beside.wait(self._dirty.take_all_asking())
        self._beside.end()
        self.counters.count(batch, self.clock())
        self.counters.syncs_count += 1
        last = [batch] if under_way is None else [under_way, batch]
        self._last_waiters = [partial(saved, self.durability) for one in last for saved in one.saved]
        self._last_waiters += [partial(saved, "consumed") for one in last for saved in one.consumed]
        self._last_waiters += [waiter for one in last for waiter in [*one.written, *one.waiters]]
        return changes + batch.changes

    def last_batch_is_written(self) -> None:
        """Call all that still wait: the last batch is synced."""
        self._tell_all(self._last_waiters)

    def close(self) -> None:
        """Release the sources that wait at the gate."""
        self._closed = True
        self._operations.close()
        self._gate.close()
        self.paged.close()
        super().close()

    @property
    def state(self) -> str:
        """State of the store in a word or two: `ok` if nothing is wrong."""
        wrong = {
            "failing": self._failing is not None,
            "disk low": self.disk_is_low,
            "not paging": self.paged.fault is not None,
            "damaged": self.counters.corrupt_count > 0,
        }
        return next((state for state, is_so in wrong.items() if is_so), "ok")

    @property
    def trouble(self) -> str | None:
        """Error of the disk, if `state` is due to it; else None."""
        return self._failing or self.paged.fault

    @property
    def under_way_bytes(self) -> int:
        """Size of the batch that is being written."""
        return 0 if self._batch is None else self._batch.size_bytes

    def facts(self) -> Mapping[str, object]:
        facts: dict[str, object] = {"written": self.counters.written_count, "syncs": self.counters.syncs_count}
        for name, fault in (("failing", self._failing), ("not paging", self.paged.fault)):
            if fault is not None:
                facts[name] = fault
        if self.disk_is_low and self.is_at_bytes_max:
            facts["size"] = "at bytes_max of [store]: raise it, or let consumers drain their queues"
        elif self.disk_is_low:
            facts["disk"] = "nearly full: free some space, or let consumers drain their queues"
        return facts


assert BATCH_BYTES < OPERATION_BYTES
