"""Who reads a topic: the cursors of durable subscriptions, which stay when their consumer goes, and what subscribers
refuse.

Base of the topic, which says who gets what, when, and who waits for whom.

A durable subscription is a reader: a cursor, and what of it is on disk. While there are any, persistent messages are
stored. What a subscriber refuses is withdrawn from its cursor (refusals.py). One that has failed too often before is
given up when its cursor comes to it: so it is after a restart, and when the policy has become stricter.

Source: seed 002 ("Durables" as cursors); issue 3 (redelivery and dead letters).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from itertools import islice
from typing import Final, Unpack, cast

from ..flow.kinds import ResourceKind
from .blocks import Gone
from .cursored import BLOCK_BITS, BLOCK_SIZE
from .cursors import TrackingCursor, Wait
from .dead_letters import REJECTED
from .durables import DurableReader
from .environment import QueueEnvironment, TimerHandle
from .expiry import EXPIRE_COUNT
from .observer import Fate
from .policy import QueuePolicy
from .queue import MessageQueue, QueueOptions
from .refusals import Refusals
from .slices import Slice
from .storage import QueueStorage, Restored
from .subscription import Subscription

EXPIRE_LOOKS: Final = 16_384
"""Of a reader at an element past its date, in one go: some two milliseconds."""


WOKEN_AT_ONCE: Final = 16
"""Consumers that share one durable subscription; more are woken in dispatches."""
TOLD_AT_ONCE: Final = 128
"""Of those who wait for one block, so many go on in one dispatch."""

READING_AT_ONCE: Final = 512
"""Subscribers that are asked in one go which block they read."""

MADE_AT_ONCE: Final = 32
"""Places of durable subscriptions: more of them are made in steps."""

READER_BYTES: Final = 1536
"""What a durable subscription takes here, and in the table of all, while nobody reads with it."""


class ReaderQueue(MessageQueue):
    """Tracking cursors over one sequence. Not for direct use."""

    keeps_persistent = False

    def __init__(
        self, name: str, policy: QueuePolicy, environment: QueueEnvironment, **options: Unpack[QueueOptions]
    ) -> None:
        super().__init__(name, policy, environment, kind=ResourceKind.TOPIC, **options)
        self.beginning: TrackingCursor | None = None
        """Keeps what comes in for those who are attached in steps; None: nobody is. It never reads."""
        self._beginning_holds_count = 0
        self._beginning_missed_count = 0
        """Messages that those who are not attached yet have missed already."""
        self.readers: dict[int, DurableReader] = {}
        """Of durable subscriptions, by their ids."""
        self._to_make: dict[int, None] = {}
        """Durable subscriptions that have no place here yet, and are to get that of the beginning."""
        self._noting: dict[DurableReader, None] = {}
        """Those that wait until the disk knows that they may read on, and perhaps some that waited for that."""
        self.gives_up = policy.dead_letter is None or environment.dead_letters is not None
        """Messages may leave a subscriber for having failed too often."""
        self._refusals: dict[TrackingCursor, Refusals] = {}
        """Of those who ever refused something."""
        self._overdue: set[int] = set()
        """Past their date, and in somebody's hands, or withdrawn."""
        self._let_go: set[int] = set()
        """Those of them that somebody has let go, and that are to be looked at."""
        self._all_let_go = False
        self._overdue_timer: TimerHandle | None = None
        self._awaiting: dict[int, dict[Subscription, None]] = {}
        """Who waits for which block."""
        self._reading: set[int] = set()
        """Of a crowd: the blocks that those with credit read, when all of them were looked at last."""
        self._reading_next: set[int] = set()
        self._reading_look: Iterator[Subscription] | None = None
        """They are being looked at anew: those that are left."""
        self._telling: deque[tuple[int, Iterator[Subscription]]] = deque()
        """Blocks that have come, each with those who have yet to be told."""
        self._to_wake: dict[DurableReader, None] = {}
        """Those with many consumers, whose cursors may find something."""
        self._waking: tuple[DurableReader, Iterator[Subscription]] | None = None
        """Of the first of them: those consumers that are left."""

    def _cursors(self) -> list[TrackingCursor]:
        """All of them, also those that nobody reads with now."""
        cursors = [s.cursor for s in self.subscriptions.values() if s.cursor is not None and s.durable_id is None]
        if self.beginning is not None:
            cursors.append(self.beginning)
        return cursors + [reader.cursor for reader in self.readers.values()]

    # ------------------------------------------------------------------ those who are attached in steps

    def hold_beginning(self) -> None:
        self._beginning_holds_count += 1
        if self.beginning is None:
            self.beginning = TrackingCursor(self.elements, self.elements.next_sequence)
            self._beginning_missed_count = 0

    def let_go_of_beginning(self) -> None:
        self._beginning_holds_count -= 1
        if not self._beginning_holds_count and self.beginning is not None:
            beginning, self.beginning = self.beginning, None
            self._gone(beginning.close())
            if self._overdue:
                self._look_at_overdue()

    def _place_of_newcomer(self, subscription: Subscription, from_beginning: bool) -> int:
        """Where it begins: behind all that is there, or where those who are attached in steps do."""
        if not from_beginning or self.beginning is None:
            return self.elements.next_sequence
        subscription.dropped_unreported_count += self._beginning_missed_count
        return self.beginning.front

    def _missed(self, subscription: Subscription, count: int) -> None:
        """It will never get so many messages, and is told with the next one."""
        self.dropped_count += count
        subscription.dropped_unreported_count += count

    # ------------------------------------------------------------------ durable subscriptions

    @property
    def has_durables(self) -> bool:
        """There are durable subscriptions, with a place here or to get one."""
        return bool(self.readers or self._to_make)

    def begin_with_readers(self, durable_ids: Collection[int]) -> None:
        """These durable subscriptions begin here, where nothing is yet. Many of them get their places in steps: what
        comes in meanwhile is kept for them.
        """
        self._to_make = dict.fromkeys(durable_ids)
        if not self._to_make:
            return
        self.keeps = self._may_keep
        self.hold_beginning()
        if len(self._to_make) <= MADE_AT_ONCE:
            self.make_readers(MADE_AT_ONCE)
        else:
            self.environment.do_in_steps(self, self._making_readers())

    def _making_readers(self) -> Iterator[None]:
        while not self.closed and self.make_readers(1):
            yield

    def make_readers(self, count_max: int) -> int:
        for durable_id in list(islice(self._to_make, count_max)):
            self.add_reader(durable_id)
        return len(self._to_make)

    def add_reader(self, durable_id: int) -> DurableReader:
        """A durable subscription begins here, behind all that is there, or where it was to get its place."""
        position = self.elements.next_sequence
        is_late = self._is_made(durable_id)
        if is_late and self.beginning is not None:
            position = self.beginning.front
        reader = DurableReader(durable_id, TrackingCursor(self.elements, position))
        self.readers[durable_id] = reader
        self.keep(READER_BYTES)
        if self._may_keep:
            self.keeps = True
            self.open_storage().reader_moved(durable_id, is_new=True)
        if is_late and not self._to_make:
            self.let_go_of_beginning()
        return reader

    def _is_made(self, durable_id: int) -> bool:
        """Whether it was to get a place, which it needs no more now."""
        if durable_id not in self._to_make:
            return False
        del self._to_make[durable_id]
        return True

    def remove_reader(self, durable_id: int) -> None:
        """A durable subscription is removed, and what only it needed goes. Nobody reads with it any more."""
        if self._is_made(durable_id) and not self._to_make:
            self.let_go_of_beginning()
        reader = self.readers.pop(durable_id, None)
        self.keeps = self._may_keep and self.has_durables
        if reader is None:
            return
        self.keep(-READER_BYTES)
        if self._storage is not None:
            self._storage.reader_gone(durable_id)
        self._close_cursor(reader.cursor)
        if self._overdue:
            self._look_at_overdue()

    def backlog_of(self, durable_id: int) -> int:
        """Messages that this durable subscription has not settled. O(blocks)."""
        reader = self.readers.get(durable_id)
        if reader is None:
            beginning = self.beginning if durable_id in self._to_make else None
            return 0 if beginning is None else beginning.unsettled_count
        cursor = reader.cursor
        return cursor.unsettled_count

    def reader_states(self) -> Mapping[int, DurableReader]:
        """The readers, by durable subscription."""
        return self.readers

    def _reader_moved(self, reader: DurableReader) -> None:
        if self._storage is not None:
            self._storage.reader_moved(reader.durable_id)

    def _note_reader(self, reader: DurableReader) -> None:
        """What is stored is handed to it only when the disk knows that it may have been."""
        storage, cursor = self._storage, reader.cursor
        if storage is None or cursor.waiting_for is not None:
            return
        position = cursor.position = self.elements.first_live(cursor.position)  # what it reads next may be far away
        if not storage.may_hand_over(position, position + BLOCK_SIZE, reader):
            cursor.waiting_for = Wait.NOTED
            self._noting[reader] = None

    def reader_noted(self, reader: DurableReader) -> None:
        reader.lease = max(reader.lease, reader.lease_under_way)
        self._noting.pop(reader, None)
        if reader.cursor.arrived(Wait.NOTED):
            self._wake_readers(reader)

    def may_go_on(self) -> None:
        noting, self._noting = self._noting, {}
        if noting:
            self.environment.do_in_steps(self, self._going_on(noting))

    def _going_on(self, readers: Iterable[DurableReader]) -> Iterator[None]:
        for reader in readers:
            if reader.cursor.arrived(Wait.NOTED):
                self._wake_readers(reader)
            yield

    def open_storage(self) -> QueueStorage:
        if self._storage is None:
            assert self._store is not None, "only a queue with a store asks"
            self._storage = self._store.storage_of(self, topic=True)
            self.elements.on_trim = self._storage.trimmed
            for reader in self.readers.values():
                if reader.lease > self.elements.next_sequence:  # what comes in now was seen by nobody
                    self._storage.reader_moved(reader.durable_id)
        return self._storage

    def restored(self, found: Restored) -> None:
        super().restored(found)
        for record in found.cursors.values():
            # What was not persistent went with that run, but this reader has passed it: what comes in now is behind it.
            passed_to = max([record.front, *(part.stop for part in record.settled)])
            self.elements.next_sequence = max(self.elements.next_sequence, passed_to)
        for durable_id, record in found.cursors.items():
            reader = DurableReader(durable_id, TrackingCursor(self.elements, record.front))
            seen_to = min(record.handed_to, self.elements.next_sequence)  # what comes in from now on is new
            reader.cursor.restore_reader(record.settled, seen_to, record.attempts)
            reader.lease = reader.lease_under_way = record.handed_to
            self.readers[durable_id] = reader
            self.keep(READER_BYTES)
        self.keeps = self._may_keep and self.has_durables

    def open_stored(self) -> None:
        """Take what an earlier run left of it; what no durable subscription needs goes."""
        self.open_storage()
        for reader in self.readers.values():
            self._gone(reader.cursor.pass_over(()))  # what it waited for may have gone with the run that it was sent in
        fronts = [reader.cursor.front for reader in self.readers.values()]
        self._gone(self.elements.trim(min(fronts, default=self.elements.next_sequence)))

    # ------------------------------------------------------------------ settling

    def settled(self, subscription: Subscription, sequences: SequenceOf[int], wire_bytes: int) -> None:
        if self.closed:
            return
        if subscription.closed and not subscription.shares:
            self._settled_late(subscription, sequences)
            return
        self.unsettled_count -= len(sequences)
        if subscription.closed and subscription.durable_id not in self.readers:
            return  # the durable subscription was removed
        self.settled_count += len(sequences)
        self._last_active_seconds = self.environment.clock()
        assert subscription.cursor is not None
        self._gone(subscription.cursor.settle(sequences))
        if subscription.durable_id is not None:
            self._reader_moved(self.readers[subscription.durable_id])
        if self._overdue:
            self._look_at_overdue(sequences)

    def _settled_late(self, subscription: Subscription, sequences: SequenceOf[int]) -> None:
        """A transaction with these was carried out when its subscriber had left: all of it counts, so a durable
        subscription is done with them, even if they are in somebody's hands again.
        """
        reader = None if subscription.durable_id is None else self.readers.get(subscription.durable_id)
        if reader is None:
            return
        cursor, is_alive = reader.cursor, self.elements.is_alive
        left = [sequence for sequence in sequences if is_alive(sequence) and cursor.needs(sequence)]
        if left:
            held = cursor.held_of(left)
            if held:
                reader.settled_late = held | (reader.settled_late or set())
            if withdrawn := cursor.withdrawn.intersection(left):
                self._refusals[cursor].forget(withdrawn)
            self.settled_count += len(left)
            self._gone(cursor.settle(left))
            self._reader_moved(reader)

    def given_back(
        self,
        subscription: Subscription,
        sequences: SequenceOf[int],
        *,
        attempted: bool,
        charged: SequenceOf[int] | None = None,
        for_good: bool = False,
    ) -> None:
        if self.closed or (subscription.closed and not subscription.shares):
            return
        self.unsettled_count -= len(sequences)
        if subscription.closed and subscription.durable_id not in self.readers:
            return  # the durable subscription was removed
        self.returned_count += len(sequences)
        assert subscription.cursor is not None
        late = None if subscription.durable_id is None else self.readers[subscription.durable_id].settled_late
        if late:
            charged = None if charged is None else [sequence for sequence in charged if sequence not in late]
            sequences = [sequence for sequence in sequences if sequence not in late]
        gone_count = subscription.cursor.give_back(sequences, attempted=attempted, charged=charged)
        if gone_count:
            self._missed(subscription, gone_count)
        if attempted:
            if subscription.durable_id is not None:
                self._reader_moved(self.readers[subscription.durable_id])
            self._refuse(subscription, sequences if charged is None else charged, for_good=for_good)
        self._expire_given_back(sequences)
        self._wake(subscription)

    # ------------------------------------------------------------------ what is refused

    def _refuse(self, subscription: Subscription, sequences: SequenceOf[int], *, for_good: bool) -> None:
        """It has just given these back, and they are charged."""
        policy = self.policy
        if for_good and self.gives_up:
            is_given_back = cast(TrackingCursor, subscription.cursor).is_given_back
            self._refusals_of(subscription).give_up([s for s in sequences if is_given_back(s)], REJECTED)
            return
        if not sequences or not (policy.redelivery_delay_ms or (policy.redeliveries_max is not None and self.gives_up)):
            return
        cursor = subscription.cursor
        assert cursor is not None
        most = policy.redeliveries_max
        if policy.redelivery_delay_ms or any(cursor.attempts_of(s) > most for s in sequences if most is not None):
            self._refusals_of(subscription).failed(sequences)

    def _refusals_of(self, subscription: Subscription) -> Refusals:
        cursor = subscription.cursor
        assert cursor is not None
        refusals = self._refusals.get(cursor)
        if refusals is None:
            by = subscription if subscription.durable_id is None else self.readers[subscription.durable_id]
            refusals = self._refusals[cursor] = Refusals(self, cursor, by, self.environment)
        return refusals

    def _without_spent(self, subscription: Subscription, part: Slice) -> Slice | None:
        """What of this, some of which failed before, may be tried again. The rest is given up."""
        most = self.policy.redeliveries_max
        if most is None or not self.gives_up or part.attempts is None or max(part.attempts.values()) <= most:
            return part
        spent = [sequence for sequence in part.sequences if part.attempts.get(sequence, 0) > most]
        rest = part.without(spent)
        self._refusals_of(subscription).give_up(spent)
        return rest

    def again(self, refusals: Refusals, sequences: SequenceOf[int]) -> None:
        """The time of these, which were withdrawn, has come."""
        refusals.cursor.give_back(sequences, attempted=False)
        self._expire_given_back(sequences)
        if refusals.reader is not None:
            self._wake_readers(refusals.reader)
        else:
            for subscription in refusals.subscriptions:
                self.enter_ring(subscription)

    def done_with(self, refusals: Refusals, sequences: SequenceOf[int]) -> None:
        """This cursor needs these, which were withdrawn, no more."""
        self._last_active_seconds = self.environment.clock()
        self._gone(refusals.cursor.settle(sequences))
        if refusals.reader is not None:
            self._reader_moved(refusals.reader)
        if self._overdue:
            self._look_at_overdue(sequences)

    def refused_for_good(self, refusals: Refusals, sequences: SequenceOf[int], to: MessageQueue) -> None:
        """These have gone to that queue."""
        self.dead_lettered_count += len(sequences)
        if self.observer is not None:
            self.observer.left(Fate.DEAD_LETTERED, sequences, f"{to.name}, as a copy")
        self.done_with(refusals, sequences)
        if (
            refusals.reader is not None
            and self._storage is not None
            and to.storage is not None
            and self._store is not None
        ):
            self._store.bind((self._storage, to.storage))

    def _skip(self, cursor: TrackingCursor, floor: int) -> tuple[int, Gone]:
        """See TrackingCursor.skip_to."""
        skipped = cursor.withdrawn_below(floor)
        passed = cursor.skip_to(floor)
        if skipped:
            self._refusals[cursor].forget_below(floor, skipped)
        return passed

    def _expire_given_back(self, sequences: SequenceOf[int]) -> None:
        if self.expiry.is_needed:
            now_ms = self.environment.now_ms()
            get = self.elements.get
            dead = [s for s in sequences if (m := get(s)) is not None and 0 < m.expires_at_ms <= now_ms]
            self.expire(sorted(dead))
            if self._overdue:  # what the topic has dropped since is nobody's now
                self._overdue.difference_update([s for s in sequences if not self.elements.is_alive(s)])

    def _look_at_overdue(self, sequences: SequenceOf[int] | None = None) -> None:
        """Somebody has let go of these (None: of any): what is overdue of them may leave. Soon, in portions, and once
        for all that let go together: a look at one asks all readers. O(sequences).
        """
        if sequences is None:
            self._all_let_go = True
        else:
            self._let_go.update(self._overdue.intersection(sequences))
        if (self._all_let_go or self._let_go) and self._overdue_timer is None and not self.closed:
            self._overdue_timer = self.environment.scheduling.call_later(0, self._expire_overdue)

    def _expire_overdue(self) -> None:
        self._overdue_timer = None
        if self._all_let_go:
            self._all_let_go = False
            self._let_go = set(self._overdue)
        let_go = self._let_go
        portion = [let_go.pop() for _ in range(min(len(let_go), self.expire_count))]
        self.expire(sorted(self._overdue.intersection(portion)))
        self._look_at_overdue(())

    @property
    def expire_count(self) -> int:
        readers_count = len(self.subscriptions) + len(self.readers)
        return min(EXPIRE_COUNT, 1 + EXPIRE_LOOKS // (1 + readers_count))

    def _awaits(self, subscription: Subscription, index: int) -> None:
        """Its cursor waits for this block."""
        waiting = self._awaiting.get(index)
        if waiting is None:
            waiting = self._awaiting[index] = {}
        waiting[subscription] = None

    def came_in(self, index: int) -> None:
        super().came_in(index)
        waiting = self._awaiting.pop(index, None)
        if waiting is not None:
            self._telling.append((index, iter(waiting)))
            self.context.request_dispatch()
        if self._refusals:
            self.environment.do_in_steps(self, self._telling_refusals(list(self._refusals.values())))

    def _tell(self, count: int) -> None:
        """Let so many go on who waited for a block that has come."""
        telling = self._telling
        while telling and count > 0:
            index, waiting = telling[0]
            for subscription in islice(waiting, count):
                count -= 1
                cursor = subscription.cursor
                if cursor is not None and cursor.arrived(index):
                    self._wake(subscription)
            if count > 0:
                telling.popleft()
        if telling:
            self.context.request_dispatch()

    @staticmethod
    def _telling_refusals(all_refusals: list[Refusals]) -> Iterator[None]:
        """What is given up goes on to the dead letters when it is in memory."""
        for refusals in all_refusals:
            if not refusals.closed:
                refusals.came_in()
            yield

    def reading_blocks(self) -> Iterable[int]:
        """Of a crowd: where they were when all of them were looked at last, which begins anew, and where those are who
        are served next.
        """
        if len(self.subscriptions) <= READING_AT_ONCE:
            return self._blocks_of(self.subscriptions.values())
        if self._reading_look is None:
            self._reading_look = iter(list(self.subscriptions.values()))
            self.context.request_dispatch()
        return self._reading | self._blocks_of(islice(self.ring, READING_AT_ONCE)) | {self._foremost >> BLOCK_BITS}

    @staticmethod
    def _blocks_of(subscriptions: Iterable[Subscription]) -> set[int]:
        """The blocks that these, as far as they have credit, read next."""
        return {
            subscription.cursor.position >> BLOCK_BITS
            for subscription in subscriptions
            if subscription.cursor is not None and not subscription.source.blocked
        }

    def _look_at_readers(self) -> None:
        """Go on to look which blocks a crowd reads."""
        assert self._reading_look is not None, "somebody asks"
        part = list(islice(self._reading_look, READING_AT_ONCE))
        self._reading_next |= self._blocks_of(part)
        if len(part) < READING_AT_ONCE:
            self._reading, self._reading_next = self._reading_next, set()
            self._reading_look = None
        else:
            self.context.request_dispatch()

    @property
    def _foremost(self) -> int:
        """Where the foremost reader is."""
        return self.elements.next_sequence

    def _wake(self, subscription: Subscription) -> None:
        """Its cursor may find something: whoever reads with that one may get it."""
        if subscription.durable_id is None:
            self.enter_ring(subscription)
        elif (reader := self.readers.get(subscription.durable_id)) is not None:  # or it was removed meanwhile
            self._wake_readers(reader)

    def _wake_readers(self, reader: DurableReader) -> None:
        """All who read with it: soon and once, however often that is asked for, if they are many."""
        if len(reader.subscriptions) > WOKEN_AT_ONCE:
            self._to_wake[reader] = None
            self.context.request_dispatch()
            return
        for subscription in reader.subscriptions:
            self.enter_ring(subscription)

    def _wake_on(self, count: int) -> None:
        """Wake so many of those who are to be woken."""
        if self._waking is None:
            reader = next(iter(self._to_wake))
            del self._to_wake[reader]
            self._waking = reader, iter(list(reader.subscriptions))
        reader, left = self._waking
        part = list(islice(left, count))
        if self.readers.get(reader.durable_id) is reader:  # it was not removed meanwhile
            for subscription in part:
                self.enter_ring(subscription)
        if len(part) < count:
            self._waking = None
        if self._waking is not None or self._to_wake:
            self.context.request_dispatch()

    def _leave_cursor(self, subscription: Subscription) -> None:
        """It reads no more: its cursor goes, unless it is that of a durable subscription. What one that shares holds
        stays with it until it is settled or given back.
        """
        cursor = subscription.cursor
        assert cursor is not None
        reader = None if subscription.durable_id is None else self.readers.get(subscription.durable_id)
        if subscription.shares:
            if reader is not None:
                del reader.subscriptions[subscription]
                if not reader.subscriptions:
                    cursor.waiting_for = None  # nobody is told when that has come
                self._reader_moved(reader)
            return
        self.unsettled_count -= subscription.unsettled_count
        if reader is None:
            self._close_cursor(cursor)
        else:
            del reader.subscriptions[subscription]
            reader.settled_late = None
            self.returned_count += reader.cursor.let_go()
            self._reader_moved(reader)

    def _close_cursor(self, cursor: TrackingCursor) -> None:
        refusals = self._refusals.pop(cursor, None)
        if refusals is not None:
            refusals.close()
        self._gone(cursor.close())

    def _close_gates(self) -> int:
        for refusals in self._refusals.values():
            refusals.close()
        if self._overdue_timer is not None:
            self._overdue_timer.cancel()
        return super()._close_gates()

    def _refusal_facts(self) -> Mapping[str, object]:
        facts: dict[str, object] = {}
        if waiting_count := sum([refusals.waiting_count for refusals in self._refusals.values()]):
            facts["wait to be tried again"] = waiting_count
        if dead_lettering_count := sum([refusals.dead_lettering_count for refusals in self._refusals.values()]):
            facts["dead letters that wait"] = dead_lettering_count
            if trouble := next((r.trouble for r in self._refusals.values() if r.trouble), ""):
                facts["because"] = trouble
        return facts
