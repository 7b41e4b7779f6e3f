"""Positions of groups of logs, written in one batch with the queues: one batch has both, or neither.

A *place* is to the store queue what a shelf is: it reports that it has changed, and is asked for its record when a
batch is gathered (pull). So a transaction that acknowledges records and sends to a queue is bound together like one
over two queues (`StoreQueue.bind`), and nothing older ever overwrites anything newer: all records of groups go through
the same line of batches, their creation and their end as well.

Invariant: no record of a group is written before the group is created, nor after it is deleted. Bound: a record of 64
KiB at most for each group, once a second or when a callback waits for it.

Source: issue 13 item 4; seed 003 (SubscriptionState). Normative: FORMAT.md, "Metadata".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final

from ..queues.logs.ports import PLACE_RANGES_MAX, GroupState
from ..queues.logs.producers import ProducerSnapshot
from . import keys
from .batch import StoreBatch
from .engine import Change, delete, put
from .log_producers import encode_producers
from .metadata.records import (
    SubscriptionData,
    SubscriptionPreferences,
    SubscriptionState,
    encode_preferences,
    encode_subscription_state,
)
from .write_fence import FencedChanges

if TYPE_CHECKING:
    from .bonds import Bond
    from .storequeue import StoreQueue

GROUP_KIND: Final = "log group"
SAVE_SECONDS: Final = 1.0
"""Seconds that the position of a group on disk may be behind when no callback waits for it."""

Done = Callable[[Exception | None], None]


def group_state_of(data: SubscriptionData) -> GroupState | None:
    """Return the state of the group that has this record; None: the record belongs to no group of a log."""
    if data.preferences.values.get("kind") != GROUP_KIND:
        return None
    state = data.state
    log_id = data.preferences.values.get("log_id", "")
    return GroupState(state.front, state.settled, state.handed_to, state.failures, log_id)


def _record(state: GroupState) -> SubscriptionState:
    return SubscriptionState(
        state.front,
        tuple(islice(state.settled, PLACE_RANGES_MAX)),
        max(0, state.handed_to),
        tuple(islice(state.failures, PLACE_RANGES_MAX)),
    )


class GroupRecord:
    """Record of one group, as a shelf of the store queue. Satisfies `sluiceway.queues.logs.ports.GroupPlace`."""

    __slots__ = (
        "_attached",
        "_changed",
        "_forgotten",
        "_is_created",
        "_key",
        "_state",
        "_store",
        "_version",
        "_waiting",
        "bond",
        "bound_to",
        "due_seconds",
        "is_bound",
        "queue_id",
        "urgent",
    )

    cancelled_count = 0
    saved_to = 0
    elements_end = 0
    """Number of elements: always 0."""
    has_records = False
    """Whether deletion removes further records; a group has none: see `StoredPlaces.delete`."""

    def __init__(
        self, store: StoreQueue, place_id: int, key: bytes, state: Callable[[], GroupState], version: int | None
    ) -> None:
        """`place_id`: below 0, where no queue has its number; `version`: of the record that is there, None: none is."""
        self._store = store
        self.queue_id = place_id
        self.bound_to = 0
        self.is_bound = False
        self.bond: Bond | None = None
        self.urgent = False
        self.due_seconds = 0.0
        self._key = key
        self._state = state
        self._is_created = version is not None
        self._version = -1 if version is None else version
        self._changed = False
        self._forgotten = False
        self._waiting: list[Callable[[], None]] = []
        self._attached: list[FencedChanges] = []

    @property
    def owner(self) -> object:
        """The group that the place belongs to."""
        return getattr(self._state, "__self__", None)

    # ------------------------------------------------------------------ calls of the group

    @property
    def log_id(self) -> str:
        """Id of the log of the group."""
        return self._state().log_id

    def create(self, preferences_key: bytes, preferences: SubscriptionPreferences, done: Callable[[], None]) -> None:
        """Write the group's first records; `done` is called when they are on disk."""
        self._is_created = True
        self._changed = False
        records = [put(preferences_key, encode_preferences(preferences)), self._next_record()]
        waiting, self._waiting = self._waiting, []
        attached, self._attached = self._attached, []
        self._store.change(records, done)
        for each in attached:
            self._store.change(each.changes, written=each.done)
        self._store.when_flushed(waiting)

    def changed(self) -> None:
        if self._is_created and not self._forgotten:
            self._changed = True
            self._store.touch(self)

    def when_settled(self, callback: Callable[[], None]) -> None:
        if self._forgotten:
            self._store.when_flushed([callback])
            return
        self._waiting.append(callback)
        if self._is_created:
            self._store.touch(self, urgent=True)

    def forget(self) -> None:
        self._forgotten = True
        attached, self._attached = self._attached, []
        waiting, self._waiting = self._waiting, []
        self._store.bequeath(self, attached, waiting)
        self._store.forget(self)

    def abandoned(self) -> list[Callable[[], None]]:
        """Drop everything that is not yet written. Returns the callbacks to call because of that."""
        attached, self._attached = self._attached, []
        return [each.undone for each in attached if each.undone is not None]

    # ------------------------------------------------------------------ as a shelf

    def when_saved(self, _first: int, _end: int, callback: Callable[[str], None]) -> None:
        """Call back when settled records are saved: a place has no elements."""
        self.when_settled(lambda: callback(self._store.durability))

    def attach(
        self,
        first: int,
        end: int,
        changes: list[Change],
        done: Callable[[], None] | None = None,
        undone: Callable[[], None] | None = None,
    ) -> None:
        """Put changes into the next batch that has this place."""
        if self._forgotten:
            self._store.change(changes, written=done)
            return
        self._attached.append(FencedChanges(first, end, changes, done, undone))
        self._store.touch(self, urgent=True)

    @property
    def is_clean(self) -> bool:
        """Whether nothing is to be written, and no callback waits."""
        return not (self._changed or self._attached or (self._waiting and self._is_created))

    def next_delay_seconds(self, _least_seconds: float, _most_seconds: float) -> float:
        """Return the seconds that a change made now may wait to be written."""
        return SAVE_SECONDS

    def hopes_until(self, _patience_seconds: float) -> float:
        """Return 0: no consumer can spare this write."""
        return 0.0

    def answer_consumed(self) -> int:
        """Return 0: no callback of a group is answered before it is written."""
        return 0

    def go_on_unnoted(self) -> None:
        """No reader of a log waits for the store."""

    def collect(self, batch: StoreBatch) -> None:
        """Put the position of the group into `batch`, with the callbacks to call when it is written."""
        self.urgent = self.is_bound = False
        if not self._is_created:
            return
        if self._changed:
            self._changed = False
            record = self._next_record()
            batch.add(record, len(record[2]))
        for each in self._attached:
            for change in each.changes:
                batch.add(change, len(change[2]))
            if each.done is not None:
                batch.written.append(each.done)
        self._attached = []
        if self._waiting:
            batch.waiters += self._waiting
            self._waiting = []
            batch.sync = True

    def close_in_order(self, batch: StoreBatch) -> None:
        """Note exactly which records were handed over: the broker stops."""
        self._changed = self._is_created
        self.collect(batch)

    def _next_record(self) -> Change:
        self._version += 1
        return put(self._key, encode_subscription_state(_record(self._state()), self._version))


class StoredPlaces:
    """Keeps groups and producers of logs in the store. Satisfies `sluiceway.queues.logs.producers.LogKeeper`."""

    def __init__(self, store: StoreQueue, now_ms: Callable[[], int], versions: Mapping[tuple[str, str], int]) -> None:
        """`versions`: of the records that an earlier run left, by log and group."""
        self._store = store
        self._now_ms = now_ms
        self._versions = dict(versions)

    def place(self, log: str, group: str, state: Callable[[], GroupState]) -> GroupRecord:
        key = keys.subscription_key(keys.SUBSCRIPTION, log, group)
        version = self._versions.pop((log, group), None)
        return self._store.place(lambda place_id: GroupRecord(self._store, place_id, key, state, version))

    def create(self, log: str, group: str, place: object, done: Done) -> None:
        assert isinstance(place, GroupRecord), "made by `place`"
        values = {"kind": GROUP_KIND, "created_ms": str(self._now_ms()), "log_id": place.log_id}
        preferences = SubscriptionPreferences(values)
        key = keys.subscription_key(keys.PREFERENCES, log, group)
        place.create(key, preferences, lambda: done(None))

    def delete(self, log: str, group: str, done: Done) -> None:
        self._versions.pop((log, group), None)
        records = [
            delete(keys.subscription_key(family, log, group)) for family in (keys.PREFERENCES, keys.SUBSCRIPTION)
        ]
        self._store.change(records, lambda: done(None))

    def save_producers(self, log: str, snapshot: ProducerSnapshot, done: Callable[[], None]) -> None:
        self._store.change([put(keys.log_producers_key(log), encode_producers(snapshot))], done)

    def forget_producers(self, log: str) -> None:
        self._store.change([delete(keys.log_producers_key(log))])
