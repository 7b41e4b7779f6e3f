"""The store of a broker: one queue of operations, one write under way, everything else waits in it or is cancelled.

*When it writes.* A shelf that has something to write says so (`touch`). If it is urgent (a receipt waits, a block is to
leave memory) the next batch begins at the end of the dispatch turn, so that all that came in that turn goes in one
write and one sync: group commit. While a batch is under way the next one gathers. Otherwise the shelf is looked at when
its delay is over. What was written without a sync is synced with the next receipt, or after `sync_interval_seconds`.

*Who waits for a receipt may be lucky.* Where consumers usually settle sooner than a sync takes, its receipts wait for
them first, for as long as a sync takes: most answers are then "consumed", and sooner; at worst it takes twice the time.

*When the disk fails.* A batch that can't be written is tried again, whole, with growing pauses: batches are idempotent.
Until then the gate is closed: persistent messages wait with their senders; receipts for what is in the batch wait;
consuming goes on. The same gate closes when the disk, or the share of it that the store may use, is nearly full.

Bound: one batch under way of BATCH_BYTES, one transaction or message more, and what came beside queues, which is the
pieces of spooled transactions (spool.py). What waits to be written is in its
queue's memory and charged there.

Source: seed 002 "Persistence Store"; anchors d10, d21, e20, c17, c25, c27; DESIGN section 7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs

from flow import Flow, FlowController, FlowManager, FlowResource, SizeLimiter, SourceController, WindowLimiter
from queues.environment import Scheduling, TimerHandle
from queues.message import Message
from queues.storage import Confirms, Stored
from store import keys
from store.batch import BATCH_BYTES, Batch
from store.chunks import HeadCodec
from store.config import StoreConfig
from store.counters import StoreCounters
from store.directory import DirectoryError
from store.diskguard import DiskGuard
from store.engine import Change, EngineError, delete, delete_range, put
from store.gradual import Gradual
from store.large import BodyFiles
from store.paged import PagedBlocks
from store.places import Place
from store.ports import Housing, Log, raise_it
from store.recovery import Recovered
from store.shelf import Shelf
from store.states import encode_numbers
from store.together import Joint, Kept, Together
from store.worker import Worker

RETRY_MIN_SECONDS: Final = 0.1
RETRY_MAX_SECONDS: Final = 5.0
GATHER_SHARE: Final = 0.5
"""Of the time that a batch takes: so long the next one waits at most for those who were just told. Tried: not waiting
at all (ten producers that wait for each receipt split into groups which wait for each other's syncs).
"""
ANSWERS_AT_ONCE: Final = 1024
ANSWERS_PER_STEP: Final = 16
GATHER_SECONDS_MAX: Final = 0.002
HOPE_SECONDS_MAX: Final = 0.02
"""So long a receipt waits at most for consumers before it waits for the disk. Without (ten producers that wait for
each receipt, a consumer that keeps up; a sync takes 1 ms): 2,100 messages a second, 370 us each; with: 5,400 and 175.
"""
NUMBERS_AHEAD: Final = 1 << 20
"""Message numbers that are reserved on disk at a time."""
OPERATION_BYTES: Final = 10 << 20
"""Capacity of the operation queue on the flow map (the prototype's)."""


class StoreQueue(FlowResource):
    """The store, as queues and the broker see it. See the module."""

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
        log: Log,
        housing: Housing | None = None,
        recovered: Recovered | None = None,
        engine_name: str = "memory",
        bodies: BodyFiles | None = None,
        pages: Path | None = None,
        contain: Callable[[Exception], None] = raise_it,
    ) -> None:
        """`contain` is given what answers raise, a mistake of one destination or connection. `worker` does what blocks;
        `heads` reads and writes header blocks; `recovered`: what an earlier run left; `bodies` has the files of large
        ones; `pages`: an empty folder for what is only paged out (None: the engine takes it).
        """
        super().__init__("store", "store", manager)
        self.worker = worker
        self.heads = heads
        self.clock = clock
        self.bodies = bodies
        self.paged = PagedBlocks(heads, pages, worker, log.error)
        self._contain = contain
        self.make_large: Callable[..., Message] | None = None if bodies is None else bodies.make_message
        self.loaded_count = 0
        """Messages read back."""
        self.counters = StoreCounters()
        self._config = config
        self._engine_name = engine_name
        self._scheduling = scheduling
        self._at_turn_end = at_turn_end
        self._log = log
        self._housing = housing
        self._recovered = recovered or Recovered()
        self._next_queue_id = self._recovered.next_queue_id
        self.shelves: dict[int, Kept] = {}
        """Of queues and groups that are there, by their numbers."""
        self._dirty: dict[Kept, None] = {}
        self._together = Together(self)
        self._gradual = Gradual(scheduling, "a large batch of the store")
        """Gathers a batch, or answers for one, which counts as under way meanwhile."""
        self._places_count = 0
        """Made so far."""
        self._extra: list[Change] = []
        """Changes that belong to no shelf: of queues that were deleted, subscriptions."""
        self._waiting, self._waiting_written = list[Callable[[], None]](), list[Callable[[], None]]()
        self._batch: Batch | None = None
        self._flush_asked = False
        self._timer: TimerHandle | None = None
        self._timer_seconds = float("inf")
        self._unsynced_seconds: float | None = None
        self._pressing = False
        """Something other than receipts is urgent."""
        self._waiting_count = 0
        """Elements for whose receipts somebody waits, since the last batch began."""
        self._expected_count = 0
        self._gather_until_seconds = 0.0
        self._write_seconds = 0.0
        """How long a batch takes, averaged."""
        self._sync_seconds = 0.0
        """How long one takes that is synced, averaged."""
        self._perhaps_consumed: dict[Kept, None] = {}
        """To be asked at the end of this turn."""
        self._retry_seconds = RETRY_MIN_SECONDS
        self._failing: str | None = None
        self.disk_is_low = False
        self.size_bytes = 0
        self._numbers_to = 0
        self._closed = False
        self._last_waiters: list[Callable[[], None]] = []
        self._guard: DiskGuard | None = None
        self._operations: FlowController[None] = FlowController(
            self,
            Flow("operations of the store"),
            SizeLimiter(OPERATION_BYTES, clock=clock, label="operations"),
            accept=_never,
            clock=clock,
        )
        self._gate: FlowController[None] = FlowController(
            self,
            Flow("gate of the store"),
            WindowLimiter(1, None, clock=clock, label="disk"),
            accept=_never,
            clock=clock,
            counts_memory=False,
        )
        self.open()
        if housing is not None:
            self._guard = DiskGuard(
                config,
                housing,
                worker,
                scheduling=scheduling,
                beside_bytes=lambda: self.paged.size_bytes,
                changed=self._disk_changed,
                sized=self._sized,
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
            self._gate.charge(0, 0, source)

    def shelf(self, queue: Stored, *, topic: bool) -> Shelf:
        found = self._recovered.take(queue.name_on_disk, queue.priority, topic=topic)
        if found is not None:
            shelf = Shelf(self, queue, found.queue_id, topic=topic, known=True)
            queue.restored(found)
            shelf.restore(found.blocks, found.handed_to, found.larges)
        else:
            shelf = Shelf(self, queue, self._next_queue_id, topic=topic)
            self._next_queue_id += 1
        self.shelves[shelf.queue_id] = shelf
        return shelf

    def place(self, make: Callable[[int], Place]) -> Place:
        """The place of a group of a log; `make` is given its number."""
        self._places_count += 1
        place = self.shelves[-self._places_count] = make(-self._places_count)
        return place

    def abandon(self, shelf: Kept) -> set[Kept]:
        """Write nothing of this any more, and keep what the disk has of it. Returns what transactions bind to it that
        are not on disk yet: they must not be written without it.
        """
        bound = self._together.abandon(shelf)
        self._dirty.pop(shelf, None)
        self.shelves.pop(shelf.queue_id, None)
        return bound

    def forget_place(self, place: Place) -> None:
        """Its group is deleted."""
        self._dirty.pop(place, None)
        self.shelves.pop(place.queue_id, None)

    def bind(self, shelves: Iterable[Confirms]) -> None:
        self._together.bind(shelves)

    def join(self) -> Joint:
        return self._together.join()

    # ------------------------------------------------------------------ the port of shelves

    @property
    def is_failing(self) -> bool:
        """The last write failed."""
        return self._failing is not None

    def touch(self, shelf: Kept, *, urgent: bool = False) -> None:
        """This shelf has something to write."""
        if urgent:
            self._pressing = True
            if not shelf.urgent or self._batch is None:
                shelf.urgent = True
                self._dirty[shelf] = None
                self.ask()
        elif shelf not in self._dirty:
            self._dirty[shelf] = None
            config = self._config
            delay_seconds = shelf.next_delay_seconds(config.flush_delay_min_seconds, config.flush_delay_max_seconds)
            shelf.due_seconds = self.clock() + delay_seconds
            self._arm(shelf.due_seconds)

    def receipt_waits(self, shelf: Shelf, count: int) -> None:
        """Somebody waits for `count` more elements of this shelf to be on disk."""
        shelf.urgent = True
        self._dirty[shelf] = None
        self._waiting_count += count
        if self._batch is None and not self._flush_asked:
            until_seconds = self._hopes_until(shelf)
            if until_seconds > self.clock():
                self._arm(until_seconds)
            else:
                self._ask_or_gather()

    def perhaps_consumed(self, shelf: Shelf) -> None:
        """Consumers settled something of this shelf for which somebody waits."""
        if not self._perhaps_consumed:
            self._at_turn_end(self._answer_consumed)
        self._perhaps_consumed[shelf] = None

    def forget(self, shelf: Shelf) -> None:
        """Its queue is deleted."""
        self.counters.forgotten_cancelled_count += shelf.cancelled_count
        self._dirty.pop(shelf, None)
        self.shelves.pop(shelf.queue_id, None)
        queue_id = shelf.queue_id
        if not shelf.has_records:
            return
        for family in (keys.CHUNK, keys.PAGED, keys.SUMMARY, keys.STATE, keys.CURSOR):
            self._extra.append(delete_range(*keys.queue_range(family, queue_id)))
        self._extra += [delete(keys.queue_key(queue_id)), delete(keys.head_key(queue_id))]
        self._arm(self.clock() + self._config.flush_delay_min_seconds)

    def when_flushed(self, callbacks: list[Callable[[], None]]) -> None:
        """Call these when all that has been told so far is synced."""
        if callbacks:
            self._waiting += callbacks
            self.ask()

    def when_all_saved(self, callback: Callable[[], None]) -> None:
        """Call this when all that is in queues or was settled in them so far is on disk."""
        waiting = [shelf for shelf in self._dirty if shelf.queue_id in self.shelves]
        left_count = 2 * len(waiting) + 1

        def one_done(_how: str = "") -> None:
            nonlocal left_count
            left_count -= 1
            if not left_count:
                callback()

        for shelf in waiting:
            shelf.when_saved(shelf.saved_to, shelf.elements_end, one_done)
            shelf.when_settled(one_done)  # where nothing is left to be saved, what was settled may be
        self.when_flushed([one_done])

    def change(
        self,
        changes: Iterable[Change],
        done: Callable[[], None] | None = None,
        *,
        written: Callable[[], None] | None = None,
    ) -> None:
        """Write these with the next batch; call `written` when that is done, and `done` when they are synced."""
        self._extra += changes
        if written is not None:
            self._waiting_written.append(written)
        if done is not None:
            self._waiting.append(done)
        self.ask()

    def read_failed(self, error: EngineError, again: Callable[[], None]) -> None:
        """A read failed: say so, and try again later."""
        self.counters.failures_count += 1
        self._log.error("store cannot read", error=str(error), again_after_seconds=RETRY_MAX_SECONDS)
        self._scheduling.call_later(RETRY_MAX_SECONDS, again)

    def corrupt(self, queue_name: str, key: bytes, value: bytes, error: Exception) -> None:
        """A record can't be read: it is moved aside, and said."""
        self.counters.corrupt_count += 1
        place: object = None
        why_not = "the store has no folder" if value else "not even its bytes can be read"
        if self._housing is not None and value:
            try:
                place = self._housing.attic_put(f"chunk-{key.hex()}", value)
                why_not = "it is larger than the whole attic"
            except DirectoryError as full:
                why_not = str(full)
        if place is None:
            self._log.error("corrupt record can't be kept", queue=queue_name, error=str(error), because=why_not)
        else:
            self._log.error("corrupt record moved aside", queue=queue_name, error=str(error), moved_to=str(place))

    def lost(self, queue_name: str, index: int, count: int) -> None:
        """Messages of a block can't be read."""
        self.counters.lost_count += count
        self._log.error(
            "messages lost", queue=queue_name, count=count, block=index, remedy="see the attic of the data folder"
        )

    # ------------------------------------------------------------------ numbers

    def reserve_numbers(self, number: int) -> None:
        """Message numbers up to this one are in use: keep the record on disk ahead of them."""
        if number + NUMBERS_AHEAD // 2 > self._numbers_to:
            self._numbers_to = number + NUMBERS_AHEAD
            self._extra.append(put(keys.META_NUMBERS_KEY, encode_numbers(self._numbers_to)))
            self.ask()

    # ------------------------------------------------------------------ flushing

    def ask(self) -> None:
        """Begin a batch at the end of this turn, if none is under way."""
        if not self._flush_asked and self._batch is None:
            self._flush_asked = True
            self._at_turn_end(self._flush)

    def _ask_or_gather(self) -> None:
        """For receipts alone: whoever has just been told will soon send again, so it pays to wait a little until as
        many have come as were told. One sync serves them all, where each alone would wait for the syncs of the others.
        """
        if self._waiting_count >= self._expected_count or self.clock() >= self._gather_until_seconds:
            self.ask()
        else:
            self._arm(self._gather_until_seconds)

    def _hopes_until(self, shelf: Kept) -> float:
        """Until when this shelf's receipts wait for its consumers; not if anything else waits for all of the store."""
        if self._waiting or self._failing is not None:
            return 0.0
        return shelf.hopes_until(min(self._sync_seconds, HOPE_SECONDS_MAX))

    def _answer_consumed(self) -> None:
        shelves, self._perhaps_consumed = self._perhaps_consumed, {}
        if self._waiting:
            return  # they are told with the next batch, which is to have what was settled, too
        for shelf in shelves:
            self._waiting_count = max(0, self._waiting_count - shelf.answer_consumed())
            if not shelf.urgent and shelf in self._dirty:
                config = self._config
                delay_seconds = shelf.next_delay_seconds(config.flush_delay_min_seconds, config.flush_delay_max_seconds)
                shelf.due_seconds = self.clock() + delay_seconds
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
        if self._together.heavy:
            self._batch = batch
            self._gradual.begin(self._together.gathering(batch), partial(self._gathered, batch))
        else:
            self._gathered(batch)

    def finish_gathering(self) -> None:
        """Put all that is left into the batch under way, now, and write it."""
        self._gradual.finish()

    def _gathered(self, batch: Batch) -> None:
        """All that goes into it is there."""
        self._batch = batch if self._closed else None
        if not self._closed:
            self._together.next_joint()
            self._begin(batch)

    def _begin(self, batch: Batch) -> None:
        """Write this, if there is anything in it."""
        batch.told_count, self._waiting_count = self._waiting_count, 0
        self._tell_all([partial(saved, "consumed") for saved in batch.consumed])
        due_sync = self._unsynced_seconds is not None and (
            self.clock() >= self._unsynced_seconds + self._config.sync_interval_seconds  # the same sum as in _arm_next
        )
        if batch.changes or batch.sync or due_sync or batch.put_outs or batch.noting:
            batch.sync = batch.sync or due_sync
            self._batch = batch
            self._operations.charge(len(batch.changes), batch.size_bytes, None)
            self._write()
        else:
            self._arm_next()

    def _gather(self) -> Batch:
        now_seconds = self.clock()
        batch = Batch(now_seconds)
        self._together.begin_gathering()
        if self._extra:
            for change in self._extra:
                batch.add(change, len(change[2]))
            self._extra = []
        if self._waiting_written:
            batch.written += self._waiting_written
            self._waiting_written = []
        if self._waiting:
            batch.waiters += self._waiting
            self._waiting = []
            batch.sync = True
        extra_bytes, batch.size_bytes = batch.size_bytes, 0  # pieces of transactions take no room from queues
        for shelf in list(self._dirty):
            if shelf not in self._dirty or self._together.passes_over(shelf):
                continue  # written with another one that it is bound to
            if batch.is_full:
                break
            if shelf.urgent and not batch.waiters:
                until_seconds = self._hopes_until(shelf)
                if until_seconds > now_seconds:
                    shelf.due_seconds = until_seconds
                    continue
            if shelf.urgent or shelf.due_seconds <= now_seconds:
                together = self._together.gathered_with(shelf)
                for one in together:
                    self.collect_one(one, batch, urgent=len(together) > 1)
        batch.size_bytes += extra_bytes
        return batch

    def collect_one(self, shelf: Kept, batch: Batch, *, urgent: bool) -> None:
        """Put into this batch what is due of this one; with `urgent` all of it."""
        self._dirty.pop(shelf, None)
        if shelf.queue_id not in self.shelves:
            return  # its queue was deleted
        shelf.urgent = shelf.urgent or urgent
        shelf.collect(batch)
        if not shelf.is_clean:
            self._dirty[shelf] = None  # behind the others: one that fills each batch does not keep them waiting
            config = self._config
            delay_seconds = shelf.next_delay_seconds(config.flush_delay_min_seconds, config.flush_delay_max_seconds)
            shelf.due_seconds = batch.started_seconds + delay_seconds

    def _write(self) -> None:
        batch = self._batch
        assert batch is not None, "a batch is under way"
        self.paged.submit(batch, self._written)

    def _written(self, error: EngineError | None) -> None:
        batch = self._batch
        if batch is None:
            return
        if error is not None:
            self._write_failed(error)
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
        for _step in self._answering(batch):
            pass
        self._answered(batch, now_seconds)

    def _answering(self, batch: Batch) -> Iterator[None]:
        """Tell those who wait for it."""
        for place, answer in enumerate(batch.answers()):
            self._tell_all((answer,))
            if place % ANSWERS_PER_STEP == 0:
                yield

    def _answered(self, batch: Batch, now_seconds: float) -> None:
        """All know, and the next one may begin."""
        self._batch = None
        took_seconds = now_seconds - batch.started_seconds
        self._write_seconds += (took_seconds - self._write_seconds) / 8
        if batch.sync:
            known_seconds = self._sync_seconds or took_seconds
            self._sync_seconds = known_seconds + (took_seconds - known_seconds) / 8
        self._expected_count = batch.told_count + self._waiting_count
        self._gather_until_seconds = now_seconds + min(self._write_seconds * GATHER_SHARE, GATHER_SECONDS_MAX)
        if self._pressing or self._extra or self._waiting:
            self.ask()
        elif any(shelf.urgent and self._hopes_until(shelf) <= now_seconds for shelf in self._dirty):
            self._ask_or_gather()
        else:
            self._arm_next()

    def _tell_all(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Answer these: what one raises is no matter of the others, nor of the store."""
        for callback in callbacks:
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - a shell: the hook raises it unless told otherwise
                self._contain(error)

    def _arm_next(self) -> None:
        due = [shelf.due_seconds for shelf in self._dirty if not self._together.is_kept_back(shelf)]
        if due:
            self._arm(min(due))
        if self._unsynced_seconds is not None:
            self._arm(self._unsynced_seconds + self._config.sync_interval_seconds)

    # ------------------------------------------------------------------ failing

    def _write_failed(self, error: EngineError) -> None:
        self.counters.failures_count += 1
        if not (was_failing := self.is_failing):
            self._log.error(
                "store cannot write",
                error=str(error),
                effect="persistent messages wait with their senders; consuming goes on",
            )
        self._failing = str(error)
        if not was_failing:
            self._tell_all([shelf.go_on_unnoted for shelf in self.shelves.values()])
            self._together.next_joint()
        self._set_gate()
        self._scheduling.call_later(self._retry_seconds, self._write_again)
        self._retry_seconds = min(2 * self._retry_seconds, RETRY_MAX_SECONDS)

    def _write_again(self) -> None:
        if self._batch is not None and not self._closed:
            self._write()

    def _disk_changed(self, is_low: bool, free_bytes: int) -> None:
        self.disk_is_low = is_low
        tell = self._log.warning if is_low else self._log.info
        tell(
            "disk is nearly full" if is_low else "disk has room again",
            free_bytes=free_bytes,
            store_bytes=self.size_bytes,
            effect="persistent messages wait with their senders" if is_low else "they go on",
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
        """The broker stops: all that is not written yet, and exactly what consumers have seen. For the caller to write,
        synced, when the worker is idle.
        """
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._guard is not None:
            self._guard.stop()
        self._gradual.finish()
        under_way, self._batch = self._batch, None
        changes = list(under_way.changes) if under_way is not None else []
        batch = Batch(self.clock())
        for change in self._extra:
            batch.add(change, 0)
        for shelf in self.shelves.values():
            while True:
                size_bytes = batch.size_bytes
                batch.size_bytes = 0  # no limit: there is no later
                shelf.close_in_order(batch)
                batch.size_bytes += size_bytes
                if shelf.saved_to >= shelf.elements_end:
                    break
        self.counters.count(batch, self.clock())
        self.counters.syncs_count += 1
        last = [batch] if under_way is None else [under_way, batch]
        self._last_waiters = [partial(saved, "disk") for one in last for saved in one.saved]
        self._last_waiters += [partial(saved, "consumed") for one in last for saved in one.consumed]
        self._last_waiters += [waiter for one in last for waiter in [*one.written, *one.waiters]]
        self._last_waiters += [*self._waiting_written, *self._waiting]
        return changes + batch.changes

    def last_batch_is_written(self) -> None:
        """It is synced: who still waits is told."""
        self._tell_all(self._last_waiters)

    def close(self) -> None:
        """Let go of those that wait at the gate."""
        self._closed = True
        self._operations.close()
        self._gate.close()
        super().close()

    def report(self) -> dict[str, Any]:
        """What `sluiceway stat` shows of the store."""
        counters = attrs.asdict(self.counters)
        forgotten = counters.pop("forgotten_cancelled_count")
        return {
            "engine": self._engine_name,
            "state": "failing"
            if self._failing is not None
            else "disk low"
            if self.disk_is_low
            else "damaged"
            if self.counters.corrupt_count
            else "ok",
            "error": self._failing,
            "size_bytes": self.size_bytes,
            "queues_count": sum(queue_id > 0 for queue_id in self.shelves),
            "cancelled_count": forgotten + sum(shelf.cancelled_count for shelf in self.shelves.values()),
            "loaded_count": self.loaded_count,
            "under_way_bytes": self._batch.size_bytes if self._batch is not None else 0,
            **counters,
        }

    def facts(self) -> Mapping[str, object]:
        facts: dict[str, object] = {"written": self.counters.written_count, "syncs": self.counters.syncs_count}
        if self._failing is not None:
            facts["failing"] = self._failing
        if self.disk_is_low:
            facts["disk"] = "nearly full: free some space, or let consumers drain their queues"
        return facts


def _never(_element: None) -> None:
    raise AssertionError("the store is charged, nothing is added to it")


assert BATCH_BYTES < OPERATION_BYTES
