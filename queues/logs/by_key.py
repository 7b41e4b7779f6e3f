"""Records of one key go to one consumer of a group at a time, in order; keys wait, not the group.

The group reads on in its log, and places each record by its key (keyed_placing.py): it goes to the consumer that holds
the key, or, if no consumer does, to the next one with credit. Where that one has no credit the record is set aside, by
its index, and so are the later ones of its key; records of other keys pass. A key belongs to a consumer only while
records of it are in its hands, so consumers that join or leave get a key once what is in hands of it is settled or
returned. A record that waits for its next attempt holds its key back. One that failed too often is dead-lettered
(refused.py), and its key continues. Records without a key go to any consumer.

The key of a record is, in this order: its own in its batch, which a MESSAGE says as `key`; the header `key` (or
`key-base64`) of its SEND; the header `group` (or `JMSXGroupID`), as on queues.

Bound: records are read up to `log_ahead_count_max` ahead of the group's front, the lowest unsettled index; each of them
may be in hands, set aside, settled, or wait for its next attempt, and has a key. At the bound nothing new is read: what
was read goes on, and in the end only the key of the record at the front. What is settled beyond the front is kept on
disk, all of it: the bound is at most twice PLACE_RANGES_MAX, so there are never more holes than a place can hold.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Any, Final

from ..fair_share import FairShare, Taken
from ..group_backlog import ANYBODY, GroupBacklog
from ..groups import GroupTable
from ..keyed_placing import KeyedPlacing
from ..message import Message
from ..ranges import stretches
from ..slices import VISIT_COST, Slice, fit
from .log_readers import BATCH_COST, GAP_COST, LOOK_BYTES, STALLED, UNSEEN, LogReaders
from .ordering import BY_KEY
from .ports import DiskError
from .reading import RecordMessage, Unreadable, key_line

if TYPE_CHECKING:
    from ..subscription import Subscription

LOOK_COUNT_MIN: Final = 8
LOOK_COUNT_MAX: Final = 256
"""Records placed in one go: twice as many as the last time, if all of them could be placed."""
PLACED_COST: Final = 4
"""Cost of a record that is placed, in units of a dispatch's budget."""
ASIDE_COST: Final = 24
"""Cost of a record set aside that is looked at: it is read by itself."""
KEY_LENGTH_MAX: Final = 64
"""Longest key kept as it is; of a longer one a digest."""
RECORD_BYTES: Final = 320
"""Memory of a record in hands or set aside: its index, its key in hands."""
LINE_BYTES: Final = 1100
"""Memory of a key with records set aside."""
HEADS_MAX: Final = 64
"""Header blocks whose keys are remembered."""


class _StallError(Exception):
    """The record can't be read now; a dispatch follows."""


class KeyOrder:
    """Order by key of the records of one group."""

    name = BY_KEY
    holds_back = False

    __slots__ = (
        "_aside",
        "_asks",
        "_failures",
        "_head_keys",
        "_kept_bytes",
        "_keys",
        "_look_count",
        "_noted_to",
        "_outlet",
        "_placing",
        "handed_to",
        "lease",
    )

    def __init__(self, outlet: LogReaders) -> None:
        self._outlet = outlet
        self._kept_bytes = 0
        self._head_keys: dict[int, tuple[Any, str | None]] = {}
        self._begin()

    def _begin(self) -> None:
        outlet = self._outlet
        ring: Any = outlet.line.ready
        self._aside = GroupBacklog(ranked=False)
        self._placing = KeyedPlacing(
            GroupTable(), self._aside, ring, message_of=self._waiting_record, on_free=self._key_is_free
        )
        self._keys: dict[int, str] = {}
        """Keys of records in consumers' hands, by index."""
        self._failures: dict[int, int] = {}
        """Failures of records that were handed over before and are set aside, by index."""
        self._look_count = LOOK_COUNT_MIN
        self.handed_to = outlet.position
        """Index below which records may have been handed over."""
        self.lease = self._noted_to = outlet.position
        """Index below which records count as handed over on the disk; what of it the disk has noted."""
        self._asks = False
        for subscription in outlet.subscriptions:
            self._placing.joined(subscription)
        self._count()

    def _count(self) -> None:
        aside = self._aside
        size_bytes = RECORD_BYTES * (len(aside) + len(self._keys)) + LINE_BYTES * aside.line_count
        self._outlet.keep(size_bytes - self._kept_bytes)
        self._kept_bytes = size_bytes

    # ------------------------------------------------------------------ consumers

    def joined(self, subscription: Any) -> None:
        self._placing.joined(subscription)

    def left(self, subscription: Any) -> None:
        self._placing.left(subscription)

    def credited(self, subscription: Any) -> bool:
        self._placing.call(subscription)
        return True

    def moved(self) -> None:
        """Begin anew at the group's position."""
        self._begin()

    def ending(self) -> None:
        """Return what is set aside to the group, whose next consumers want another order. Nothing is in hands."""
        failures = self._failures
        waiting = sorted(self._aside.sequences())
        self._outlet.put_back([(index, index + 1, failures.get(index, UNSEEN)) for index in waiting])
        self._outlet.keep(-self._kept_bytes)
        self._kept_bytes = 0

    # ------------------------------------------------------------------ records that come back

    def answered(self, subscription: Any, sequences: SequenceOf[int]) -> None:
        keys, groups = self._keys, self._placing.groups
        for sequence in sequences:
            key = keys.pop(sequence, None)
            if key is not None:
                groups.done(key)
        self._count()
        self._outlet.context.request_dispatch()  # the front may have moved, and with it the bound

    def returned(self, ranges: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """Put records back into the lines of their keys, each with its number of failures. Returns those whose key is
        not known here.
        """
        aside, placing = self._aside, self._placing
        unknown: list[tuple[int, int, int]] = []
        for start, end, failures in ranges:
            for index in range(start, end):
                key = self._keys.get(index) or placing.held_back.key_of(index)
                if key is None:
                    unknown.append((index, index + 1, failures))
                    continue
                if failures != UNSEEN:
                    self._failures[index] = failures
                aside.put(key, index)
                placing.let_go((index,))
                placing.released(key)
        self._count()
        return unknown

    def hold_back(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Hold the keys back of records that wait for their next attempt."""
        for start, end, _failures in ranges:
            for index in range(start, end):
                key = self._keys.get(index)
                if key is not None:
                    self._placing.hold_back(key, index)

    def let_go(self, start: int, end: int) -> None:
        """Note records that will not come again: they were dead-lettered, or are gone from the log."""
        if end == start + 1:
            self._placing.let_go((start,))
        else:
            self._placing.let_go([index for index in self._placing.held_back.sequences() if start <= index < end])

    def gone(self, start: int, end: int) -> None:
        """Forget records that are gone from the log. O(records set aside)."""
        for index in [index for index in self._aside.sequences() if start <= index < end]:
            self._failures.pop(index, None)
            self._aside.discard(index)
        self.let_go(start, end)
        self._count()

    def failed(self) -> list[tuple[int, int, int]]:
        """Return records set aside that failed before, each as a range with its number of failures."""
        return [(index, index + 1, count) for index, count in self._failures.items() if count > 0]

    def _key_is_free(self, _key: str) -> None:
        self._outlet.context.request_dispatch()

    # ------------------------------------------------------------------ dispatch

    def dispatch(self, budget: int) -> bool:
        """Hand records over; return whether there is more to do now."""
        outlet = self._outlet
        shares = FairShare(outlet.line.ready, self._room_of)  # type: ignore[arg-type]
        has_more = self._fill(shares, budget)
        self._hand_over(shares)
        self._count()
        return (outlet.line.end_turns() or has_more) and not outlet.closed

    def _room_of(self, subscription: Subscription) -> tuple[int, int]:
        if subscription.closed or subscription.source.blocked:
            return 0, 0
        consumer = subscription.consumer
        room_count, room_bytes = consumer.room(subscription)
        if room_count <= 0 or room_bytes <= 0:
            consumer.wait(subscription)
            return 0, 0
        return room_count, room_bytes

    def _fill(self, shares: FairShare, budget: int) -> bool:
        """Place records until none can be placed, or the budget is used up; return whether it was."""
        outlet, placing = self._outlet, self._placing
        ring = outlet.line.ready
        try:
            while budget > VISIT_COST * shares.given_count and not outlet.closed:
                if placing.called:
                    budget -= ASIDE_COST
                    placing.serve_called(shares)
                    continue
                if not ring:
                    return False
                key = self._aside.first_at(ANYBODY)
                if key is not None:
                    budget -= ASIDE_COST
                    if not placing.serve_free(key, shares):
                        return False
                    continue
                before_count = outlet.log.reading.taken_apart_count
                cost = self._read_on(shares)
                if cost == STALLED:
                    return False
                budget -= cost + BATCH_COST * (outlet.log.reading.taken_apart_count - before_count)
        except _StallError:
            return False
        return True

    def _read_on(self, shares: FairShare) -> int:
        """Place the next records of the log; return the cost, STALLED if none can be placed now."""
        outlet = self._outlet
        span = self._next_span()
        if span is None:
            return STALLED
        start, end, failures = span
        subscription = next(iter(outlet.line.ready))
        if outlet.pass_over(subscription):
            return GAP_COST
        if not outlet.is_warm(start):
            return STALLED
        selection = subscription.consumer.selection  # type: ignore[attr-defined]
        count_max = self._look_count if selection is None else min(self._look_count, selection.selector.looks_max)
        try:
            part = outlet.log.reading.part(outlet.log, start, end, count_max, LOOK_BYTES)
        except (Unreadable, IndexError, DiskError) as error:
            return outlet.unread(error, subscription, start, end)
        cost, chosen = 0, None
        if selection is not None:
            before_units = selection.selector.spent_units
            chosen = frozenset(selection.selector.places(part.messages))
            cost = selection.selector.cost_since(before_units)
        passed: list[int] = []
        placed_count = 0
        for place, (index, message) in enumerate(zip(part.sequences, part.messages, strict=True)):
            if chosen is not None and place not in chosen:
                passed.append(index)
            elif not self._place(shares, index, message):
                break
            elif failures != UNSEEN:
                self._failures[index] = failures
            placed_count += 1
        if passed:
            selection.passed_count += len(passed)
            for first, last in stretches(passed):
                outlet.passed(first, last)
        if not placed_count:
            return STALLED
        self._look_count = min(2 * self._look_count, LOOK_COUNT_MAX) if placed_count == len(part) else LOOK_COUNT_MIN
        outlet.moved_to(part.sequences[placed_count - 1] + 1)
        return cost + PLACED_COST * placed_count

    def _next_span(self) -> tuple[int, int, int] | None:
        """Return the records to read next, from their first index to behind the last, and how often they failed before
        (UNSEEN: never handed over). None: there are none now, and a dispatch follows when there are.
        """
        outlet = self._outlet
        limit = outlet.front + self.ahead_count_max
        again, refused = outlet.first_again, outlet.refused
        if again is not None:
            return (again.start, min(again.end, limit), again.failures) if again.start < limit else None
        if refused is not None and (refused.is_crowded or refused.hastens):
            return None
        end = outlet.log.records.next_index
        if outlet.position >= end:
            outlet.log.await_tail(outlet)
            return None
        self._extend_lease()
        end = min(end, limit, self._noted_to)
        return (outlet.position, end, UNSEEN) if outlet.position < end else None

    def _extend_lease(self) -> None:
        """Have the disk note, ahead of time, that records may be handed over: a crash then redelivers them as such."""
        outlet, storage = self._outlet, self._outlet.storage
        ahead = self.ahead_count_max
        if self._asks or storage is None or outlet.position + ahead // 2 < self._noted_to:
            return
        self._asks = True
        self.lease = lease = outlet.position + ahead
        epoch = outlet.epoch

        def noted() -> None:
            if outlet.closed or outlet.epoch != epoch:
                return
            self._asks = False
            self._noted_to = lease
            outlet.context.request_dispatch()

        storage.changed()
        storage.when_settled(noted)

    @property
    def ahead_count_max(self) -> int:
        """Number of records that are read ahead of the front."""
        return self._outlet.log.policy.log_ahead_count_max

    def _place(self, shares: FairShare, index: int, message: Message) -> bool:
        key = self._key_of(message)
        if key is not None:
            return self._placing.place(shares, key, index, message)
        subscription = shares.next_for(message)
        if subscription is None:
            return False
        shares.put(subscription, index, message)
        return True

    def _waiting_record(self, index: int) -> Message | None:
        """Return a record set aside; None if it is gone from the log, and forgotten. Raises _StallError."""
        outlet = self._outlet
        log = outlet.log
        subscription = next(iter(outlet.line.all))
        first = log.records.first_index
        if index < first:
            outlet.tell_missing(subscription, index, first, "retention")
            return None
        gap = log.gap_at(index)
        if gap is not None:
            outlet.tell_missing(subscription, index, gap.to_index, gap.reason)
            return None
        if not outlet.is_warm(index):
            raise _StallError
        try:
            return log.reading.record(log, index)
        except (Unreadable, IndexError, DiskError) as error:
            if outlet.unread(error, subscription, index, index + 1) == STALLED:
                raise _StallError from None
            return None

    def _hand_over(self, shares: FairShare) -> None:
        outlet, line = self._outlet, self._outlet.line
        for each, taken in shares:
            subscription: Any = each
            room_count, room_bytes = self._room_of(subscription)
            count = 0
            if room_count:
                messages = [message for _index, message in taken[:room_count]]
                count, wire_bytes = fit([message.wire for message in messages], room_bytes)
                del messages[count:]
                indexes = [index for index, _message in taken[:count]]
                for index, message in zip(indexes, messages, strict=True):
                    key = self._key_of(message)
                    if key is not None:
                        self._keys[index] = key
                failures = self._failures
                attempts = {index: failures.pop(index) for index in indexes if index in failures} if failures else None
                self.handed_to = max(self.handed_to, indexes[-1] + 1)
                outlet.hand_over_tried(subscription, Slice(messages, indexes, wire_bytes, attempts or None))
            if count < len(taken) and not outlet.closed:
                self._replace(taken[count:])
            line.wake(subscription)
            if not subscription.source.blocked:
                self._placing.call(subscription)

    def _replace(self, taken: Taken) -> None:
        """Put back records that were placed, but not handed over."""
        others: list[tuple[int, int, int]] = []
        for index, message in taken:
            key = self._key_of(message)
            if key is None:
                others.append((index, index + 1, self._failures.pop(index, UNSEEN)))
            else:
                self._aside.put(key, index)
                self._placing.released(key)
                self._placing.groups.done(key)
        self._outlet.put_back(others)

    def _key_of(self, message: Message) -> str | None:
        """Return the key of a record, or None."""
        assert isinstance(message, RecordMessage), "a log has nothing else"
        own = message.own_key
        if own:
            return _kept(own.decode())
        head: Any = message.head
        known = self._head_keys.get(id(head))
        if known is None or known[0] is not head:
            if len(self._head_keys) >= HEADS_MAX:
                self._head_keys.clear()
            known = self._head_keys[id(head)] = head, _key_in(head)
        return known[1]

    # ------------------------------------------------------------------ observation

    @property
    def has_waiting(self) -> bool:
        """Whether records are set aside."""
        return bool(self._aside)

    def facts(self) -> Mapping[str, object]:
        outlet = self._outlet
        facts: dict[str, object] = {"order": BY_KEY, "keys in hands": len(self._placing.groups)}
        if self._aside:
            facts["records set aside"] = len(self._aside)
            facts["keys set aside"] = self._aside.line_count
        if len(self._placing.held_back):
            facts["keys held back"] = self._placing.held_back.key_count
        if outlet.position - outlet.front >= self.ahead_count_max:
            facts["too far ahead"] = (
                f"nothing new is handed out until record {outlet.front} is done: the group has read "
                f"{self.ahead_count_max} ahead of it (log_ahead_count_max)"
            )
        return facts


def _kept(key: str) -> str:
    if len(key) <= KEY_LENGTH_MAX:
        return key
    return "digest:" + hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=24).hexdigest()


def _key_in(head: Any) -> str | None:
    """Return the key that the header block of a record says, or None."""
    key = head.header("key")
    if key:
        return _kept(key_line(key.encode("utf-8", "surrogatepass")).decode()[:-1])
    key = head.header("key-base64")
    if key:
        return _kept(f"key-base64:{key}")
    return None if head.group is None else _kept(f"group:{head.group}")
