"""Readers of a log: a group, whose position the broker keeps and whose consumers share it, or one consumer with a
position of its own.

To a consumer's subscription a log reader is what a queue is: it delivers slices while there is credit, and takes
settled and requeued records back. A consumer of batches gets *runs* instead: whole batches as stored in the file; one
run is one delivery, under the index of its first record.

Requeued records are redelivered before later ones, to any consumer of the group with credit. A group keeps, as ranges,
what is settled beyond its front; the front is the lowest unsettled index. A single reader keeps nothing: its
acknowledgements only free credit.

A consumer with a selector gets the selected records; the others are settled as they are passed, for its whole group. So
all consumers of a group must have the same selector.

Missing records (retention, a power cut, damage) are reported by a gap marker; a group counts them as settled.

Flow: consumers block only the reader's source for them; a reader at the end waits for the log. Records outside the page
cache are read ahead by a thread, see `page_cache.py`.
Bound: the credit of the consumers (deliveries), and one range for each hole in what is settled.

Source: seed 001 "Logical View" (fan-out queue), DESIGN section 8, anchors e5, e6, e8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, KeysView, Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any, Final, Protocol

from ...flow import FlowResource
from ...flow.kinds import ResourceKind
from ..message import PRIORITY_DEFAULT, Message
from ..ranges import stretches
from ..selectors.selector import Selection
from ..slices import Slice, fit
from ..subscription import Consumer, Subscription
from .codecs import Codec
from .epochs import ReaderSubscription
from .line import ReaderLine
from .log import AGAIN_SECONDS, Log
from .ordering import Order
from .ports import DiskError, GroupPlace
from .reading import NotReadyError, Unreadable
from .redelivery import FOR_GOOD, Again, Redelivery
from .refused import Refused
from .runs import BatchRun, cut_run

SHARE_COUNT: Final = 256
"""Messages per turn of one consumer among several."""
SINGLE_COUNT: Final = 1024
OTHER_LOG: Final = "other-log"
"""Reason for missing records: the log was deleted, and another one has its name."""
LOOK_BYTES: Final = 1024 * 1024
"""Bytes of records that a consumer with a selector examines together."""
LOOKS_PER_COST: Final = 3
"""Records passed over that cost as much of a dispatch's budget as one delivered."""
MADE_COST: Final = 1
"""Cost of each record that was made a message for that."""
SLICE_COST: Final = 16
"""Cost of each slice: redeliveries may come in runs of one."""
BATCH_COST: Final = 32
"""Cost of each batch that is taken apart."""
RUN_COST: Final = 64
"""Cost of one run."""
WAIT_COST: Final = 4
"""Cost of a consumer without credit."""
GAP_COST: Final = 16
"""Cost of reporting a gap,"""
GAP_SHARE: Final = 8
"""plus one for this many refused records that are searched."""
STALLED: Final = -1
"""Value in place of a cost: the next records can't be read now, whatever the credit."""


class LogConsumer(Consumer, Protocol):
    """A consumer that handles logs."""

    @property
    def batch_bytes(self) -> int | None:
        """Approximate size of the runs to deliver; None: deliver messages."""

    @property
    def codecs(self) -> frozenset[Codec]:
        """Codecs of batches that this consumer accepts."""

    @property
    def stops_at_gaps(self) -> bool:
        """Whether a gap ends the subscription with an error."""

    @property
    def selection(self) -> Selection | None:
        """Selection of records (None: all); not with batches. All consumers of a group have the same one."""

    @property
    def order(self) -> str:
        """Order that the consumer asks of its group: ANY, EXCLUSIVE, BY_KEY or PARTITIONS of ordering.py. All consumers
        of a group have the same one.
        """

    def deliver_run(self, subscription: Subscription, run: BatchRun, failures: int | None) -> None:
        """Take a run; `failures`: how often it failed before, None if it was never delivered. Settled and requeued by
        its first index.
        """

    def tell_gap(self, subscription: Subscription, start: int, end: int, reason: str) -> None:
        """Report missing records from `start` to before `end`. For the reason OTHER_LOG: the log read before is gone
        from `start` on, and `end` is where reading continues in this one.
        """

    def tell_end(self, subscription: Subscription, index: int) -> None:
        """Report the end of the range, before `index`."""

    def tell_deleted(self, subscription: Subscription) -> None:
        """Report that the log was deleted."""


UNSEEN: Final = -1


class _Elements:
    """Lookup of messages by sequence."""

    __slots__ = ("_outlet",)

    def __init__(self, outlet: LogReaders) -> None:
        self._outlet = outlet

    def get(self, sequence: int) -> Message | None:
        log = self._outlet.log
        if not log.records.first_index <= sequence < log.records.next_index or log.gap_at(sequence) is not None:
            return None
        try:
            return log.reading.part(log, sequence, sequence + 1, 1, 1).messages[0]
        except (Unreadable, IndexError, DiskError):
            return None


class LogReaders(FlowResource):
    """A reader of a log: a group or a single consumer."""

    upkeep_bytes = 5120  # with a subscription and its position in the log
    storage: GroupPlace | None = None
    """Position storage, which confirms when settled records are on disk; None: nothing is kept."""
    observer = None  # records stay where they are and have no trail

    def __init__(
        self,
        log: Log,
        label: str,
        position: int,
        *,
        stop: int | None = None,
        kind: ResourceKind = ResourceKind.LOG_READER,
    ) -> None:
        """Take `position`, the next index to deliver, and `stop`, where to end."""
        super().__init__(label, kind, log.environment.manager)
        self.log = log
        self.priority = PRIORITY_DEFAULT
        self.position = position
        self.stop = stop
        self.closed = False
        self.elements = _Elements(self)
        self.line: ReaderLine[ReaderSubscription] = ReaderLine()
        self.order: Order | None = None
        """Order of a group's records; None: each consumer gets its share in order."""
        self.epoch = 0
        """Present epoch. Deliveries of earlier ones are neither settled nor redelivered."""
        self.delivered_count = 0
        self.gap_count = 0
        self._again = Redelivery()
        self._attempts: dict[int, int] = {}
        """Failures before delivery of redelivered records (or runs) in consumers' hands, by index (of the run's first
        record).
        """
        self._failed: dict[int, int] = {}
        """Entries of `_attempts` above zero."""
        self._out_count = 0
        self.refused: Refused | None = None
        """Refused records; None if no record ever waited or was given up."""
        self._runs: dict[int, int] = {}
        """Delivered unsettled runs: first index to end."""
        self._told_end = False
        self.unreadable = ""
        """Last failure of the disk to read; empty if it works."""
        self._reading_timer: Any = None
        self.context = log.environment.scheduling.register(self._dispatch, label, PRIORITY_DEFAULT)
        self.open()
        log.outlets[self] = None

    # ------------------------------------------------------------------ consumers

    def subscribe(self, consumer: LogConsumer) -> Subscription:
        """Add a consumer."""
        subscription = ReaderSubscription(self, consumer)
        self.line.add(subscription)
        if self.order is not None:
            self.order.joined(subscription)
        self.context.request_dispatch()
        return subscription

    @property
    def subscriptions(self) -> KeysView[ReaderSubscription]:
        """Subscriptions of all consumers."""
        return self.line.all.keys()

    def has_waiting(self, subscription: Subscription) -> bool:
        """Return whether there is anything to deliver."""
        return bool(self._again) or self.position < self.log.records.next_index

    def unsubscribed(self, subscription: ReaderSubscription) -> None:
        """Remove a subscription. Called by `Subscription.close`."""
        self.line.discard(subscription)
        if self.order is not None:
            self.order.left(subscription)
        self._left()

    def _left(self) -> None:
        """Note that a consumer has left. A single reader ends with it."""
        if not self.subscriptions:
            self.close()

    def close(self) -> None:
        """Stop delivering."""
        if self.closed:
            return
        self.closed = True
        if self._reading_timer is not None:
            self._reading_timer.cancel()
        if self.refused is not None:
            self.refused.close()
        self.context.close()
        self.log.outlets.pop(self, None)
        for subscription in list(self.subscriptions):
            subscription.close()
        super().close()

    def ending_deleted(self) -> Iterator[object]:
        """Notify the consumers of the log's deletion, and close, in steps."""
        for subscription in list(self.subscriptions):
            if subscription not in self.subscriptions:
                continue  # it has left meanwhile
            consumer: Any = subscription.consumer
            consumer.tell_deleted(subscription)
            yield from consumer.cancelled(subscription, f"{self.log.name} was deleted")
            yield None
        self.close()

    # ------------------------------------------------------------------ returned records

    def settled(self, subscription: ReaderSubscription, sequences: SequenceOf[int], wire_bytes: int) -> None:
        """Settle records. Called by `Subscription.settle`."""
        if subscription.epoch != self.epoch:
            return
        self._out_count -= len(sequences)
        attempts, failed = self._attempts, self._failed
        runs = self._runs
        if runs:
            for sequence in sequences:
                attempts.pop(sequence, None)
                failed.pop(sequence, None)
                self._settle(sequence, runs.pop(sequence, sequence + 1))
        else:
            if attempts:
                for sequence in sequences:
                    attempts.pop(sequence, None)
                    failed.pop(sequence, None)
            for start, end in stretches(sequences):
                self._settle(start, end)
        if self.order is not None:
            self.order.answered(subscription, sequences)

    def _settle(self, start: int, end: int) -> None:
        """Settle a range. Hook: a single reader keeps nothing."""

    def requeued(
        self,
        subscription: ReaderSubscription,
        sequences: SequenceOf[int],
        *,
        attempted: bool,
        charged: SequenceOf[int] | None = None,
        for_good: bool = False,
    ) -> None:
        """Requeue records. Called by `Subscription.requeue`."""
        if self.closed or subscription.epoch != self.epoch:
            return
        self._out_count -= len(sequences)
        self._come_back(sequences, attempted=attempted, charged=charged, for_good=for_good)
        if self.order is not None:
            self.order.answered(subscription, sequences)

    def _come_back(
        self, sequences: SequenceOf[int], *, attempted: bool, charged: SequenceOf[int] | None, for_good: bool
    ) -> None:
        failed = sequences if charged is None else frozenset(charged)
        wanted = self._wanted
        back: list[tuple[int, int, int]] = []
        if not (self._attempts or self._runs or (attempted and failed)):  # there are no failures to count
            failures = 0 if attempted else UNSEEN
            ranges = [hole for start, end in stretches(sequences) for hole in wanted(start, end)]
            self.comes_again([(start, end, failures) for start, end in ranges])
            return
        if self._failed:
            for sequence in sequences:
                self._failed.pop(sequence, None)
        refused: list[tuple[int, int, int]] = []
        delays = self.log.policy.redelivery_delay_ms > 0
        for sequence in sequences:
            failures = self._attempts.pop(sequence, UNSEEN)
            charge = attempted and (failed is sequences or sequence in failed)
            if attempted:
                failures = max(0, failures) + charge
            if charge and for_good:
                failures |= FOR_GOOD
            to = refused if charge and (delays or self.is_spent(failures)) else back
            for start, end in wanted(sequence, self._runs.pop(sequence, sequence + 1)):
                to.append((start, end, failures))
        self.comes_again(back)
        if refused:
            self._refuse(refused)

    def _refuse(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Delay or give up records that have failed."""
        self.refused = self.refused or Refused(self)
        self.refused.add(ranges)

    def is_spent(self, failures: int) -> bool:
        """Return whether records that failed `failures` times are given up."""
        most = self.log.policy.redeliveries_max
        return failures >= FOR_GOOD or (most is not None and failures > most)

    def comes_again(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Redeliver the ranges, each with its number of failures, before later records."""
        self._again.add(ranges)
        self._changed()
        self.context.request_dispatch()

    @property
    def first_again(self) -> Again | None:
        """Next range to be redelivered."""
        return self._again.first

    def put_back(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Take ranges back that were not handed over, each with its number of failures."""
        self._again.add(ranges)

    def passed(self, start: int, end: int) -> None:
        """Settle records that were given up."""
        self._settle(start, end)
        self.context.request_dispatch()

    def _changed(self) -> None:
        """Note a change of what is kept. Hook."""

    @property
    def refuser(self) -> str:
        """Name of the refusing reader, for dead letters."""
        return self.name

    @property
    def destination_name(self) -> str:
        """Name of the log."""
        return self.log.name

    def _wanted(self, start: int, end: int) -> Iterable[tuple[int, int]]:
        """Return the parts of a requeued range that are to be redelivered. Hook."""
        return ((start, end),)

    # ------------------------------------------------------------------ dispatch

    def resumed(self, subscription: ReaderSubscription) -> bool:
        """Note that a consumer has credit again; return whether its source holds the turn."""
        if self.order is not None and not self.order.credited(subscription):
            return False
        self.context.request_dispatch()
        return self.line.resumed(subscription)

    def _dispatch(self, budget: int) -> bool:
        line = self.line
        share = SINGLE_COUNT if len(line.all) == 1 else SHARE_COUNT
        reading = self.log.reading
        idle_count = 0
        while not self.closed and idle_count < line.ready_count and (reader := line.first) is not None:
            if budget <= 0:
                return True
            served = 0
            if not reader.source.blocked:
                if not self._has_more():
                    break
                before_count = reading.taken_apart_count
                served = self._serve(reader, min(share, budget))
                if served == STALLED:
                    break
                budget -= BATCH_COST * (reading.taken_apart_count - before_count)
            line.served(reader)
            idle_count = 0 if served else idle_count + (not reader.source.blocked)
            budget -= served or WAIT_COST
        return line.end_turns() and not self.closed

    def _serve(self, subscription: ReaderSubscription, count_max: int) -> int:
        """Deliver something; return the cost, 0 without credit, STALLED if nothing can be read now."""
        consumer: Any = subscription.consumer
        room_count, room_bytes = consumer.room(subscription)
        if room_count <= 0 or room_bytes <= 0:
            consumer.wait(subscription)
            return 0
        if self.pass_over(subscription):
            return GAP_COST if self.refused is None else GAP_COST + self.refused.waiting_count // GAP_SHARE
        again = self._again.first
        start, end = (again.start, again.end) if again is not None else (self.position, self._end())
        if not self.is_warm(start):
            return STALLED
        attempts = UNSEEN if again is None else again.failures
        try:
            if consumer.batch_bytes is not None:
                return self._hand_run(subscription, start, end, min(room_bytes, consumer.batch_bytes), attempts)
            if consumer.selection is not None:
                selector = consumer.selection.selector
                before_units, before_count = selector.spent_units, self.log.reading.made_count
                count_max = min(count_max, selector.looks_max)
                part = self.log.reading.part(self.log, start, end, count_max, LOOK_BYTES)
                looked_count, selected = self._select(consumer.selection, part, room_count, room_bytes)
                looks_cost: int = selector.cost_since(before_units)
                looks_cost += MADE_COST * (self.log.reading.made_count - before_count)
                cost = self._hand_over(subscription, selected, part.first + looked_count, attempts, looked_count)
                return cost + looks_cost
            part = self.log.reading.part(self.log, start, end, min(count_max, room_count), room_bytes)
        except (Unreadable, IndexError, DiskError) as error:
            return self.unread(error, subscription, start, end)
        return self._hand_over(subscription, part, part.end, attempts, len(part))

    def unread(
        self, error: Unreadable | IndexError | DiskError, subscription: Subscription, start: int, end: int
    ) -> int:
        """Deal with an error of reading `start`; return the cost, STALLED if it has to be read again."""
        if isinstance(error, Unreadable) and error.is_compacted:
            self.pass_missing(start, max(start + 1, min(error.end_index, end)))
            return GAP_COST
        if isinstance(error, Unreadable):
            self.tell_missing(subscription, start, max(start + 1, min(error.end_index, end)), "damaged")
            return GAP_COST
        if isinstance(error, NotReadyError):
            self.log.reading.await_batch(error.key, self)
        elif isinstance(error, DiskError):
            self._read_later(str(error))
        else:  # retention has removed it since
            self.context.request_dispatch()
        return STALLED

    def _hand_over(
        self, subscription: ReaderSubscription, part: Slice | None, moved_to: int, attempts: int, looked_count: int
    ) -> int:
        """Deliver the selected records before `moved_to`; return the cost."""
        self.moved_to(moved_to)
        if part is None:
            return 1 + looked_count // LOOKS_PER_COST
        if attempts != UNSEEN:
            tried = dict.fromkeys(part.sequences, attempts)
            self._attempts.update(tried)
            if attempts:
                self._failed.update(tried)
            part = part.tried(attempts)
        self._hand(subscription, part)
        return SLICE_COST + len(part)

    def _hand(self, subscription: ReaderSubscription, part: Slice) -> None:
        self._count(subscription, len(part))
        self._out_count += len(part)
        hand = subscription.hand(self.epoch)
        hand.unsettled_count += len(part)
        hand.consumer.deliver(hand, part, dropped_count=0)

    def hand_over_tried(self, subscription: ReaderSubscription, part: Slice) -> None:
        """Deliver records, of which `part.attempts` has those that were handed over before."""
        if part.attempts:
            self._attempts.update(part.attempts)
            self._failed.update({index: count for index, count in part.attempts.items() if count})
        self._hand(subscription, part)

    def _select(self, selection: Selection, part: Slice, room_count: int, room_bytes: int) -> tuple[int, Slice | None]:
        """Return how many records are done with, and those the consumer selects. Settles the others."""
        places = selection.selector.places(part.messages)
        looked_count = len(part)
        if len(places) == looked_count <= room_count and part.wire_bytes <= room_bytes:
            return looked_count, part
        wire_bytes = 0
        if places:
            count, wire_bytes = fit([part.messages[place].wire for place in places[:room_count]], room_bytes)
            if count < len(places):
                looked_count = places[count]
                places = places[:count]
        chosen = [part.sequences[place] for place in places]
        passed_count = looked_count - len(chosen)
        if passed_count:
            selection.passed_count += passed_count
            kept = set(chosen)
            for start, end in stretches([s for s in part.sequences[:looked_count] if s not in kept]):
                self._settle(start, end)
        if not chosen:
            return looked_count, None
        sequences = part.sequences[:looked_count] if not passed_count else chosen
        return looked_count, Slice([part.messages[place] for place in places], sequences, wire_bytes)

    def go_on(self, error: DiskError | None) -> None:
        """Continue when the awaited batch is ready, or the disk has failed."""
        if error is not None and not self.closed:
            self._read_later(str(error))
        elif not self.closed:
            self.context.request_dispatch()

    def _read_later(self, why: str) -> None:
        """Read again later. The failure says nothing about which records exist."""
        if self.unreadable != why:
            self.unreadable = why
            self.log.on_failing(self.log.name, why)
        if self._reading_timer is None:

            def again() -> None:
                self._reading_timer = None
                self.context.request_dispatch()

            self._reading_timer = self.log.environment.scheduling.call_later(AGAIN_SECONDS, again)

    def _hand_run(self, subscription: ReaderSubscription, start: int, end: int, bytes_max: int, attempts: int) -> int:
        consumer: Any = subscription.consumer
        run = cut_run(self.log, start, end, bytes_max, consumer.codecs)
        self.moved_to(run.end_index)
        self._runs[start] = run.end_index
        if attempts != UNSEEN:
            self._attempts[start] = attempts
            if attempts:
                self._failed[start] = attempts
        self._count(subscription, run.end_index - start)
        self._out_count += 1
        hand = subscription.hand(self.epoch)
        hand.unsettled_count += 1
        consumer.deliver_run(hand, run, None if attempts == UNSEEN else attempts)
        return RUN_COST

    def _count(self, subscription: Subscription, count: int) -> None:
        subscription.delivered_count += count
        self.delivered_count += count

    def moved_to(self, end: int) -> None:
        """Advance past the delivered records before `end`."""
        if self.unreadable:
            self.unreadable = ""
            self.log.on_failing(self.log.name, "")
        if not self._again:
            self.position = end
            return
        self._again.pass_first(end)

    def _end(self) -> int:
        end = self.log.records.next_index
        return end if self.stop is None else min(end, self.stop)

    def _has_more(self) -> bool:
        """Return whether there is something to deliver or report. Otherwise a dispatch follows when there is."""
        if self.order is not None and self.order.holds_back:
            return False
        if self._again:
            return True
        if self.stop is not None and self.position >= self.stop:
            self._tell_end()
            return False
        if self.position >= self.log.records.next_index:
            self.log.await_tail(self)
            return False
        return self.refused is None or not self.refused.is_crowded

    def _tell_end(self) -> None:
        if not self._told_end:
            self._told_end = True
            for subscription in tuple(self.subscriptions):
                consumer: Any = subscription.consumer
                consumer.tell_end(subscription, self.stop)

    def pass_over(self, subscription: Subscription) -> bool:
        """Report a gap at the next index, if there is one; return whether there was."""
        again = self._again.first
        start = self.position if again is None else again.start
        first = self.log.records.first_index
        if start < first:
            self.tell_missing(subscription, start, first if self.stop is None else min(first, self.stop), "retention")
            return True
        gap = self.log.gap_at(start)
        if gap is not None:
            end = gap.to_index if self.stop is None else min(gap.to_index, self.stop)
            self.tell_missing(subscription, start, end, gap.reason)
            return True
        return False

    def tell_missing(self, subscription: Subscription, start: int, end: int, reason: str) -> None:
        """Tell a consumer of missing records, and settle them."""
        self.pass_missing(start, end)
        self.gap_count += 1
        self.log.gap_count += 1
        consumer: Any = subscription.consumer
        consumer.tell_gap(subscription, start, end, reason)

    def pass_missing(self, start: int, end: int) -> None:
        """Settle missing records, and continue behind them."""
        self._again.drop_between(start, end)
        if self.position < end:
            self.position = end
        if self.refused is not None:
            self.refused.forget(start, end)
        self._settle(start, end)

    def tell_other(self, subscription: Subscription, start: int) -> None:
        """Report that the consumer or its group would continue at `start` of a deleted log, and begins anew in this
        one.
        """
        self.gap_count += 1
        self.log.gap_count += 1
        consumer: Any = subscription.consumer
        consumer.tell_gap(subscription, start, self.front, OTHER_LOG)

    def is_warm(self, index: int) -> bool:
        """Return whether `index` is in the page cache. Otherwise it is being read from disk, and a dispatch follows."""
        log = self.log
        page_cache = log.page_cache
        ahead = page_cache.stretch(index)
        if ahead is not None:
            start, stop = ahead
            page_cache.asked[start] = stop

            def warmed(_result: object) -> None:
                waiting = page_cache.warmed(start, stop)  # also after a failure, which the next read of it reports
                log.wake(waiting)

            log.read_ahead(start, stop, warmed)
        return page_cache.covers(index) or not page_cache.awaits(index, self)

    # ------------------------------------------------------------------ observation

    @property
    def unsettled_count(self) -> int:
        """Number of deliveries in consumers' hands."""
        return self._out_count

    @property
    def front(self) -> int:
        """Lowest unsettled index."""
        lowest = None if self.refused is None else self.refused.lowest()
        again = self._again.first
        front = self.position if again is None else min(self.position, again.start)
        return front if lowest is None else min(front, lowest)

    def facts(self) -> Mapping[str, object]:
        facts: dict[str, object] = {"at": self.front, "behind": max(0, self.log.records.next_index - self.front)}
        return facts if self.refused is None else facts | self.refused.facts()
