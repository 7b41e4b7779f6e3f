"""Messages that subscribers of a topic have refused: tried again later, or given up.

Other subscribers are not affected: the element stays as long as any cursor needs it, and a refused element is
*withdrawn* from one cursor only. It waits for its time (delayed.py) and is then given back; or it was tried too often
and is on its way to the dead letters (dead_letters.py), where it is a copy with its own number, since other subscribers
may refuse the same message, too. When the copy is made, the cursor has settled the element: for a durable subscription
in the very write that stores the dead letter.

When a subscription without a name ends, its refusals are dropped, as are the messages that it has yet to read. The
refusals of a durable subscription stay. Messages that had failed too often before a restart, or that exceed a stricter
policy, are given up when the cursor reaches them.

Bound: `delayed_count_max` delayed elements (beyond it they come again at once); elements given up stay within the
limits of the topic.

Source: issue 3 (redelivery and dead letters).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from collections.abc import Sequence as SequenceOf
from typing import Final

from .blocks import Gone
from .cursors import TrackingCursor
from .dead_letters import FAILED, REJECTED, DeadLettering, FarQueue
from .delayed import DelayedElements, backoff_ms
from .durables import DurableReader
from .environment import QueueEnvironment, TimerHandle
from .observer import Fate
from .overdue import Overdue
from .queue import MessageQueue
from .readers import Readers
from .slices import Slice
from .subscription import Subscription
from .waking import Waking

DUE_COUNT: Final = 512
"""Due elements that are released at once."""


class Refusals:
    """Refused elements of one cursor. Made when the first one is refused."""

    __slots__ = (
        "_dead_lettering", "_environment", "_later", "_queue", "_subscription", "_table", "_timer", "closed", "cursor",
        "reader",
    )  # fmt: skip

    def __init__(
        self,
        queue: MessageQueue,
        table: RefusalTable,
        cursor: TrackingCursor,
        by: Subscription | DurableReader,
        environment: QueueEnvironment,
    ) -> None:
        self._queue = queue
        self._table = table
        self.cursor = cursor
        self.reader = by if isinstance(by, DurableReader) else None
        self._subscription = None if isinstance(by, DurableReader) else by
        self._environment = environment
        self._later = DelayedElements(queue.policy.delayed_count_max)
        self._timer: TimerHandle | None = None
        self._dead_lettering: DeadLettering | None = None
        """None: nothing was ever given up."""
        self.closed = False

    @property
    def subscriptions(self) -> Iterable[Subscription]:
        """The subscriptions that read with this cursor now."""
        if self.reader is not None:
            return self.reader.subscriptions
        return () if self._subscription is None else (self._subscription,)

    @property
    def dead_lettering_count(self) -> int:
        """Number of elements that wait for the dead-letter queue."""
        return 0 if self._dead_lettering is None else len(self._dead_lettering)

    @property
    def waiting_count(self) -> int:
        """Number of elements that wait for their time."""
        return len(self._later)

    @property
    def trouble(self) -> str:
        """Reason why nothing can be moved, other than a lack of room; empty: there is none."""
        return "" if self._dead_lettering is None else self._dead_lettering.trouble

    # ------------------------------------------------------------------ in

    def failed(self, sequences: SequenceOf[int]) -> None:
        """Handle elements that have just been given back and charged: delay them, or give them up."""
        policy, cursor = self._queue.policy, self.cursor
        spent = self.spent_among(sequences)
        if policy.redelivery_delay_ms:
            out, now_ms, soonest = set(spent), self._environment.now_ms(), False
            for sequence in sequences:
                if sequence not in out and cursor.is_given_back(sequence) and not self._later.is_full:
                    cursor.withdraw((sequence,))
                    due_ms = now_ms + backoff_ms(policy, cursor.attempts_of(sequence))
                    soonest = self._later.put((sequence,), due_ms) or soonest
            if soonest:
                self._arm()
        self.give_up([sequence for sequence in spent if cursor.is_given_back(sequence)])

    def spent_among(self, sequences: SequenceOf[int]) -> list[int]:
        """Return the elements of `sequences` that have failed too often."""
        most = self._queue.policy.redeliveries_max
        if most is None or not self._table.gives_up:
            return []
        attempts_of = self.cursor.attempts_of
        return [sequence for sequence in sequences if attempts_of(sequence) > most]

    def give_up(self, sequences: SequenceOf[int], reason: str = FAILED) -> None:
        """Dead-letter elements that the cursor has passed and no consumer holds; drop them if there are no dead
        letters.
        """
        if not sequences:
            return
        queue, to, router = self._queue, self._queue.policy.dead_letter, self._environment.dead_letters
        self.cursor.withdraw(sequences)
        if to is None or router is None:
            queue.dropped_count += len(sequences)
            if queue.observer is not None:
                queue.observer.left(Fate.DROPPED, sequences, "discarded: it has no dead-letter queue")
            self._table.done_with(self, sequences)
            return
        if self._dead_lettering is None:
            reader = self.reader
            assert reader is not None or self._subscription is not None
            label = "" if self._subscription is None else self._subscription.consumer.label
            refused_by = (label, None) if reader is None else router.durable_names(reader.durable_id)
            self._dead_lettering = DeadLettering(queue, self, router, to, self._environment, refused_by=refused_by)
        self._dead_lettering.add(sequences, reason)
        self._dead_lettering.move()

    def forget(self, sequences: Set[int]) -> None:
        """Forget withdrawn elements, which do not come again: the topic has dropped them, or they were settled late."""
        self._later.discard(sequences)
        if self._dead_lettering is not None:
            self._dead_lettering.discard(sequences)

    def forget_below(self, floor: int, sequences: Set[int]) -> None:
        """Forget withdrawn elements below `floor`; `sequences` are all of them."""
        self._later.discard_between(0, floor)
        if self._dead_lettering is not None:
            self._dead_lettering.discard(sequences)

    # ------------------------------------------------------------------ what dead letters need (GivesUp)

    def still_has(self, sequence: int) -> bool:
        """Return whether the element is still there: it may have expired, been skipped, or been lost on disk."""
        return sequence in self.cursor.withdrawn and self._queue.elements.is_alive(sequence)

    def attempts_of(self, sequence: int) -> int:
        """Return the number of the element's failed attempts with this subscriber."""
        return self.cursor.attempts_of(sequence)

    def dead_lettered(self, sequences: SequenceOf[int], to: MessageQueue | FarQueue) -> None:
        queue, store, left = self._queue, self._environment.store, sorted(sequences)
        queue.dead_lettered_count += len(left)
        if queue.observer is not None:
            queue.observer.left(Fate.DEAD_LETTERED, left, f"{to.name}, as a copy")
        self._table.done_with(self, left)
        if store is None or isinstance(to, FarQueue) or store is not to.environment.store:
            return
        if self.reader is not None and queue.storage is not None and to.storage is not None:
            store.bind((queue.storage, to.storage))

    # ------------------------------------------------------------------ out

    def paged_in(self) -> None:
        """Continue: a block is in memory."""
        if self._dead_lettering is not None:
            self._dead_lettering.paged_in()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_ms = self._later.next_ms
        if next_ms is not None and not self.closed:
            delay_ms = max(0, next_ms - self._environment.now_ms())
            self._timer = self._environment.scheduling.call_later(delay_ms / 1000, self._release_due)

    def _release_due(self) -> None:
        self._timer = None
        due = sorted(self._later.take_due(self._environment.now_ms(), DUE_COUNT))
        due = [sequence for sequence in due if sequence in self.cursor.withdrawn]
        if due:
            self._table.again(self, due)
        self._arm()

    def close(self) -> None:
        """Close the refusals: their cursor is gone."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._dead_lettering is not None:
            self._dead_lettering.close()


class RefusalTable:
    """Refused messages of the subscribers of one topic.

    Attributes:
        gives_up: messages may leave a subscriber for having failed too often.
    """

    __slots__ = ("_by_cursor", "_environment", "_overdue", "_queue", "_readers", "_waking", "gives_up")

    def __init__(
        self, queue: MessageQueue, readers: Readers, overdue: Overdue, waking: Waking, environment: QueueEnvironment
    ) -> None:
        self._queue = queue
        self._readers = readers
        self._overdue = overdue
        self._waking = waking
        self._environment = environment
        self._by_cursor: dict[TrackingCursor, Refusals] = {}
        self.gives_up = queue.policy.dead_letter is None or environment.dead_letters is not None

    def __bool__(self) -> bool:
        return bool(self._by_cursor)

    def get(self, cursor: TrackingCursor) -> Refusals | None:
        """Return the refused elements of a cursor; None: there never was one."""
        return self._by_cursor.get(cursor)

    def refuse(self, subscription: Subscription, sequences: SequenceOf[int], *, for_good: bool) -> None:
        """Note elements that a subscription has just given back, and that are charged."""
        policy, cursor = self._queue.policy, subscription.cursor
        assert cursor is not None
        if for_good and self.gives_up:
            self._of(subscription).give_up([s for s in sequences if cursor.is_given_back(s)], REJECTED)
            return
        most = policy.redeliveries_max if self.gives_up else None
        if sequences and (
            policy.redelivery_delay_ms
            or (most is not None and any(cursor.attempts_of(sequence) > most for sequence in sequences))
        ):
            self._of(subscription).failed(sequences)

    def without_spent(self, subscription: Subscription, part: Slice) -> Slice | None:
        """Return the elements of `part` that may be tried again, or None. The others, which failed too often, are given
        up.
        """
        most = self._queue.policy.redeliveries_max
        if most is None or not self.gives_up or part.attempts is None or max(part.attempts.values()) <= most:
            return part
        spent = [sequence for sequence in part.sequences if part.attempts.get(sequence, 0) > most]
        rest = part.without(spent)
        self._of(subscription).give_up(spent)
        return rest

    def _of(self, subscription: Subscription) -> Refusals:
        cursor = subscription.cursor
        assert cursor is not None
        refusals = self._by_cursor.get(cursor)
        if refusals is None:
            by = subscription if subscription.durable_id is None else self._readers.by_id[subscription.durable_id]
            refusals = self._by_cursor[cursor] = Refusals(self._queue, self, cursor, by, self._environment)
        return refusals

    def again(self, refusals: Refusals, sequences: SequenceOf[int]) -> None:
        """Let elements come again that were withdrawn and whose time has come."""
        refusals.cursor.requeue(sequences, attempted=False)
        self._overdue.requeued(sequences)
        if refusals.reader is not None:
            self._waking.wake_all(refusals.reader)
        else:
            for subscription in refusals.subscriptions:
                self._queue.enter_ring(subscription)

    def done_with(self, refusals: Refusals, sequences: SequenceOf[int]) -> None:
        """Settle elements that were withdrawn."""
        self._queue.note_activity()
        self._queue.free(refusals.cursor.settle(sequences))
        if refusals.reader is not None:
            self._readers.moved(refusals.reader)
        if self._overdue.sequences:
            self._overdue.released(sequences)

    def skip(self, cursor: TrackingCursor, floor: int) -> tuple[int, Gone]:
        """See TrackingCursor.skip_to."""
        skipped = cursor.withdrawn_below(floor)
        passed = cursor.skip_to(floor)
        if skipped:
            self._by_cursor[cursor].forget_below(floor, skipped)
        return passed

    def paged_in(self) -> None:
        """Resume dead-lettering, in steps: a block is in memory."""
        if self._by_cursor:
            self._environment.do_in_steps(self._queue, self._coming_in(list(self._by_cursor.values())))

    @staticmethod
    def _coming_in(all_refusals: list[Refusals]) -> Iterator[None]:
        for refusals in all_refusals:
            if not refusals.closed:
                refusals.paged_in()
            yield

    def close_cursor(self, cursor: TrackingCursor) -> None:
        """Close a cursor, and forget its refusals."""
        refusals = self._by_cursor.pop(cursor, None)
        if refusals is not None:
            refusals.close()
        self._queue.free(cursor.close())

    def close(self) -> None:
        """Let nothing come again: the topic is closed."""
        for refusals in self._by_cursor.values():
            refusals.close()

    def facts(self) -> dict[str, object]:
        """Return facts about the refusals, for people."""
        facts: dict[str, object] = {}
        if waiting_count := sum([refusals.waiting_count for refusals in self._by_cursor.values()]):
            facts["wait to be tried again"] = waiting_count
        if dead_lettering_count := sum([refusals.dead_lettering_count for refusals in self._by_cursor.values()]):
            facts["dead letters that wait"] = dead_lettering_count
            if trouble := next((r.trouble for r in self._by_cursor.values() if r.trouble), ""):
                facts["because"] = trouble
        return facts
