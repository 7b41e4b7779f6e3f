"""Readers of a log: a group, whose place the broker keeps and whose consumers share it, or one consumer with a place of
its own.

To a consumer's subscription an outlet is what a queue is: it hands slices over while there is credit, and takes back
what is settled or given up. A consumer that takes batches gets *runs* instead: whole batches as they lie in the file;
one run is one delivery, under the index of its first record.

What was given back comes again before anything later, to whoever of the group has credit. Of a group it is known what
is settled beyond its front, as ranges; the front is the lowest unsettled index. Of a single reader nothing is kept:
acknowledging gives credit only.

A consumer with a selector gets what that takes; the other records are settled as it comes by them, for all of its
group, whose consumers therefore all have the same one.

What is not there any more (retention, a power cut, damage) is told by a gap marker; a group counts it as settled.

Flow: consumers block an outlet's source for each of them, nobody else; an outlet at the end waits for the log. What is
not in the page cache is read ahead by a thread, see `page_cache.py`.
Bound: the credit of the consumers (what is out), and one range for each hole in what is settled.
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
from .epochs import Reader
from .line import ReaderLine
from .log import AGAIN_SECONDS, Log
from .ports import DiskError, GroupPlace
from .reading import NotReadyError, Unreadable
from .redelivery import FOR_GOOD, Redelivery
from .refused import Refused
from .runs import Run, cut_run

SHARE_COUNT: Final = 256
"""Messages that one consumer of several gets before the next one has its turn."""
SINGLE_COUNT: Final = 1024
OTHER_LOG: Final = "other-log"
"""Why records are not there: the log was deleted, and this is another one under its name."""
LOOK_BYTES: Final = 1024 * 1024
"""Of records that a consumer with a selector looks at together."""
LOOKS_PER_COST: Final = 3
"""Of a dispatch's budget: so many records passed over cost as much as one that is handed over."""
MADE_COST: Final = 1
"""Likewise, of each that was made a message for that."""
SLICE_COST: Final = 16
"""Of a dispatch's budget, for each slice: what comes again may lie in runs of one."""
BATCH_COST: Final = 32
"""Of a dispatch's budget, for one batch that is taken apart."""
RUN_COST: Final = 64
"""Of a dispatch's budget, for one run."""
WAIT_COST: Final = 4
"""Likewise, for a consumer that has no credit."""
GAP_COST: Final = 16
"""Likewise, for telling of a gap,"""
GAP_SHARE: Final = 8
"""and for so many of those that were refused, among which is looked for it."""
STALLED: Final = -1
"""In place of a cost: what comes next can't be read now, whoever has credit."""


class LogConsumer(Consumer, Protocol):
    """A consumer that knows logs."""

    @property
    def batch_bytes(self) -> int | None:
        """Deliver runs of about this size; None: messages."""

    @property
    def codecs(self) -> frozenset[Codec]:
        """How batches may be compressed that this consumer gets."""

    @property
    def stops_at_gaps(self) -> bool:
        """A gap ends it, with an error."""

    @property
    def selection(self) -> Selection | None:
        """Which records it takes (None: all); not with batches. The consumers of a group have the same."""

    def deliver_run(self, subscription: Subscription, run: Run, failures: int | None) -> None:
        """Take these; `failures`: how often they failed before, None if nobody had them. Settled and given back by the
        run's first index.
        """

    def tell_gap(self, subscription: Subscription, start: int, end: int, reason: str) -> None:
        """Nothing is there from `start` to before `end`; where the reason is OTHER_LOG, nothing from `start` on of the
        log that was read before: `end` is where this one is gone on with.
        """

    def tell_end(self, subscription: Subscription, index: int) -> None:
        """That was all, up to before `index`."""

    def tell_deleted(self, subscription: Subscription) -> None:
        """The log was deleted."""


UNSEEN: Final = -1


class _Elements:
    """For whoever looks a message up by its sequence."""

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
    """One reader: a group or a single consumer."""

    upkeep_bytes = 4608  # with a subscription and its place in the log
    storage: GroupPlace | None = None
    """Says when what was settled is on disk; None: nothing of it is kept."""
    observer = None  # records have no trail: they stay where they are

    def __init__(
        self,
        log: Log,
        label: str,
        position: int,
        *,
        stop: int | None = None,
        kind: ResourceKind = ResourceKind.LOG_READER,
    ) -> None:
        """`position`: what to hand over next; `stop`: where it ends."""
        super().__init__(label, kind, log.environment.manager)
        self.log = log
        self.priority = PRIORITY_DEFAULT
        self.position = position
        self.stop = stop
        self.closed = False
        self.elements = _Elements(self)
        self.line = ReaderLine()
        self.epoch = 0
        """What was handed out in an earlier one is settled by nobody, and comes back for nobody."""
        self.delivered_count = 0
        self.gap_count = 0
        self._again = Redelivery()
        self._attempts: dict[int, int] = {}
        """How often what is out and was out before has failed: by its index, or that of its run."""
        self._failed: dict[int, int] = {}
        """Of these the ones that have."""
        self._out_count = 0
        self.refused: Refused | None = None
        """None: nothing ever waited or was given up."""
        self._runs: dict[int, int] = {}
        """Runs that are out: from which first index, to behind the last."""
        self._told_end = False
        self.unreadable = ""
        """What the disk said last, if it can't be read."""
        self._reading_timer: Any = None
        self.context = log.environment.scheduling.register(self._dispatch, label, PRIORITY_DEFAULT)
        self.open()
        log.outlets[self] = None

    # ------------------------------------------------------------------ consumers

    def subscribe(self, consumer: LogConsumer) -> Subscription:
        """Deliver to this one, too."""
        subscription = Reader(self, consumer)
        self.line.add(subscription)
        self.context.request_dispatch()
        return subscription

    @property
    def subscriptions(self) -> KeysView[Reader]:
        """Of all consumers."""
        return self.line.all.keys()

    def has_waiting(self, _subscription: Subscription) -> bool:
        """Whether there is anything to hand over."""
        return bool(self._again) or self.position < self.log.records.next_index

    def unsubscribed(self, subscription: Reader) -> None:
        """From `Subscription.close`."""
        self.line.discard(subscription)
        self._left()

    def _left(self) -> None:
        """A consumer has left. A single reader ends with it."""
        if not self.subscriptions:
            self.close()

    def close(self) -> None:
        """Hand nothing over any more."""
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
        """The log goes: tell the consumers, and close, in steps."""
        for subscription in list(self.subscriptions):
            if subscription not in self.subscriptions:
                continue  # it has left meanwhile
            consumer: Any = subscription.consumer
            consumer.tell_deleted(subscription)
            yield from consumer.cancelled(subscription, f"{self.log.name} was deleted")
            yield None
        self.close()

    # ------------------------------------------------------------------ what comes back

    def settled(self, subscription: Reader, sequences: SequenceOf[int], wire_bytes: int) -> None:
        """From `Subscription.settle`."""
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

    def _settle(self, start: int, end: int) -> None:
        """Hook: these are done. A single reader forgets them."""

    def given_back(
        self,
        subscription: Reader,
        sequences: SequenceOf[int],
        *,
        attempted: bool,
        charged: SequenceOf[int] | None = None,
        for_good: bool = False,
    ) -> None:
        """From `Subscription.give_back`."""
        if self.closed or subscription.epoch != self.epoch:
            return
        self._out_count -= len(sequences)
        failed = sequences if charged is None else frozenset(charged)
        wanted = self._wanted
        back: list[tuple[int, int, int]] = []
        if not (self._attempts or self._runs or (attempted and failed)):  # nothing of it is counted
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
        """These have failed so often: they wait, or are given up."""
        self.refused = self.refused or Refused(self)
        self.refused.add(ranges)

    def is_spent(self, failures: int) -> bool:
        """Whether what failed so often is to be given up."""
        most = self.log.policy.redeliveries_max
        return failures >= FOR_GOOD or (most is not None and failures > most)

    def comes_again(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """These, with how often they failed, are handed out again, before anything later."""
        self._again.add(ranges)
        self._changed()
        self.context.request_dispatch()

    def passed(self, start: int, end: int) -> None:
        """These were given up, and are done with."""
        self._settle(start, end)
        self.context.request_dispatch()

    def _changed(self) -> None:
        """Hook: what is kept of it is another one."""

    @property
    def refuser(self) -> str:
        """Who refused it, for dead letters."""
        return self.name

    @property
    def name_on_disk(self) -> str:
        """Of the log."""
        return self.log.name

    def _wanted(self, start: int, end: int) -> Iterable[tuple[int, int]]:
        """Hook: what of this, which was given back, is to come again."""
        return ((start, end),)

    # ------------------------------------------------------------------ dispatch

    def resumed(self, subscription: Reader) -> bool:
        """From a consumer: it has credit again."""
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

    def _serve(self, subscription: Reader, count_max: int) -> int:
        """Hand something over; returns its cost, 0 if there was no credit, STALLED if nothing is to be had now."""
        consumer: Any = subscription.consumer
        room_count, room_bytes = consumer.room(subscription)
        if room_count <= 0 or room_bytes <= 0:
            consumer.wait(subscription)
            return 0
        if self._pass_over(subscription):
            return GAP_COST if self.refused is None else GAP_COST + self.refused.waiting_count // GAP_SHARE
        again = self._again.first
        start, end = (again.start, again.end) if again is not None else (self.position, self._end())
        if not self._is_warm(start):
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
        except Unreadable as error:
            self._gap(subscription, start, max(start + 1, min(error.end_index, end)), "damaged")
            return GAP_COST
        except IndexError:  # retention has come by since we looked
            self.context.request_dispatch()
            return STALLED
        except NotReadyError as error:
            self.log.reading.await_batch(error.key, self)
            return STALLED
        except DiskError as error:
            self._read_later(str(error))
            return STALLED
        return self._hand_over(subscription, part, part.end, attempts, len(part))

    def _hand_over(
        self, subscription: Reader, part: Slice | None, moved_to: int, attempts: int, looked_count: int
    ) -> int:
        """These are for this consumer, of those before `moved_to`. Returns what that cost."""
        self._moved(moved_to)
        if part is None:
            return 1 + looked_count // LOOKS_PER_COST
        if attempts != UNSEEN:
            tried = dict.fromkeys(part.sequences, attempts)
            self._attempts.update(tried)
            if attempts:
                self._failed.update(tried)
            part = part.tried(attempts)
        self._count(subscription, len(part))
        self._out_count += len(part)
        hand = subscription.hand(self.epoch)
        hand.unsettled_count += len(part)
        hand.consumer.deliver(hand, part, dropped_count=0)
        return SLICE_COST + len(part)

    def _select(self, selection: Selection, part: Slice, room_count: int, room_bytes: int) -> tuple[int, Slice | None]:
        """How many of these are done with, and which of them the consumer takes. The others are settled."""
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
        """What was awaited is ready, or the disk did not do it."""
        if error is not None and not self.closed:
            self._read_later(str(error))
        elif not self.closed:
            self.context.request_dispatch()

    def _read_later(self, why: str) -> None:
        """It can't be read now, which says nothing of what is there."""
        if self.unreadable != why:
            self.unreadable = why
            self.log.on_failing(self.log.name, why)
        if self._reading_timer is None:

            def again() -> None:
                self._reading_timer = None
                self.context.request_dispatch()

            self._reading_timer = self.log.environment.scheduling.call_later(AGAIN_SECONDS, again)

    def _hand_run(self, subscription: Reader, start: int, end: int, bytes_max: int, attempts: int) -> int:
        consumer: Any = subscription.consumer
        run = cut_run(self.log, start, end, bytes_max, consumer.codecs)
        self._moved(run.end_index)
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

    def _moved(self, end: int) -> None:
        """All before `end` of what comes next is handed over."""
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
        """Something is to be handed over, or told. If not, it will be dispatched when there is."""
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

    def _pass_over(self, subscription: Subscription) -> bool:
        """Tell of what is next and is not there."""
        again = self._again.first
        start = self.position if again is None else again.start
        first = self.log.records.first_index
        if start < first:
            self._gap(subscription, start, first if self.stop is None else min(first, self.stop), "retention")
            return True
        gap = self.log.gap_at(start)
        if gap is not None:
            end = gap.to_index if self.stop is None else min(gap.to_index, self.stop)
            self._gap(subscription, start, end, gap.reason)
            return True
        return False

    def _gap(self, subscription: Subscription, start: int, end: int, reason: str) -> None:
        self._again.drop_below(end)
        if self.position < end:
            self.position = end
        if self.refused is not None:
            self.refused.forget(start, end)
        self._settle(start, end)
        self.gap_count += 1
        self.log.gap_count += 1
        consumer: Any = subscription.consumer
        consumer.tell_gap(subscription, start, end, reason)

    def tell_other(self, subscription: Subscription, start: int) -> None:
        """The consumer, or its group, would go on at `start` of a log that was deleted: it begins anew in this one."""
        self.gap_count += 1
        self.log.gap_count += 1
        consumer: Any = subscription.consumer
        consumer.tell_gap(subscription, start, self.front, OTHER_LOG)

    def _is_warm(self, index: int) -> bool:
        """False: it is being read from the disk, and a dispatch follows."""
        log = self.log
        warmth = log.warmth
        ahead = warmth.stretch(index)
        if ahead is not None:
            start, stop = ahead
            warmth.asked[start] = stop

            def warmed(_result: object) -> None:
                waiting = warmth.warmed(start, stop)  # also if it failed: whoever reads it finds out
                log.wake(waiting)

            log.read_ahead(start, stop, warmed)
        return warmth.covers(index) or not warmth.awaits(index, self)

    # ------------------------------------------------------------------ for people

    @property
    def unsettled_count(self) -> int:
        """Deliveries that are out."""
        return self._out_count

    @property
    def front(self) -> int:
        """The lowest index that is not done."""
        lowest = None if self.refused is None else self.refused.lowest()
        again = self._again.first
        front = self.position if again is None else min(self.position, again.start)
        return front if lowest is None else min(front, lowest)

    def facts(self) -> Mapping[str, object]:
        facts: dict[str, object] = {"at": self.front, "behind": max(0, self.log.records.next_index - self.front)}
        return facts if self.refused is None else facts | self.refused.facts()
