"""What one subscriber of a topic has refused: tried again later, or given up.

The other subscribers know nothing of it: the element is there as long as any cursor needs it, and what is refused is
*withdrawn* from this cursor only. It waits for its time (delayed.py) and is given back then; or it was tried too often
and is on its way to the dead letters (dead_letters.py), where it is a copy under a number of its own, since the same
message may be refused by others, too. When that is done the cursor has settled it: for a durable subscription in the
very write that stores the dead letter.

The end of a subscription without a name ends all this: it loses what it has yet to read anyway. With a durable one it
stays; after a restart what had failed too often is given up when it is read again.

Bound: `delayed_count_max` of those that wait (beyond it they come again at once); what is given up stays within the
limits of the topic.
Source: issue 3 (redelivery and dead letters).
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING

from .cursors import TrackingCursor
from .dead_letters import FAILED, DeadLettering
from .delayed import DelayedElements, backoff_ms
from .durables import DurableReader
from .environment import QueueEnvironment, TimerHandle
from .observer import Fate

if TYPE_CHECKING:
    from .queue import MessageQueue
    from .readers import ReaderQueue
    from .subscription import Subscription

DUE_COUNT = 512
"""Elements whose time has come that are let go in one go."""


class Refusals:
    """See the module. Made when the first is refused."""

    __slots__ = (
        "_dead_lettering",
        "_environment",
        "_later",
        "_subscription",
        "_timer",
        "_topic",
        "closed",
        "cursor",
        "reader",
    )

    def __init__(
        self,
        topic: ReaderQueue,
        cursor: TrackingCursor,
        by: Subscription | DurableReader,
        environment: QueueEnvironment,
    ) -> None:
        self._topic = topic
        self.cursor = cursor
        self.reader = by if isinstance(by, DurableReader) else None
        self._subscription = None if isinstance(by, DurableReader) else by
        self._environment = environment
        self._later = DelayedElements(topic.policy.delayed_count_max)
        self._timer: TimerHandle | None = None
        self._dead_lettering: DeadLettering | None = None
        """None: nothing was ever given up."""
        self.closed = False

    @property
    def subscriptions(self) -> Iterable[Subscription]:
        """Who reads with this cursor now."""
        if self.reader is not None:
            return self.reader.subscriptions
        return () if self._subscription is None else (self._subscription,)

    @property
    def dead_lettering_count(self) -> int:
        """How many wait for the dead-letter queue."""
        return 0 if self._dead_lettering is None else len(self._dead_lettering)

    @property
    def waiting_count(self) -> int:
        """How many wait for their time."""
        return len(self._later)

    @property
    def trouble(self) -> str:
        """Why nothing can be moved, if it is not for want of room."""
        return "" if self._dead_lettering is None else self._dead_lettering.trouble

    # ------------------------------------------------------------------ in

    def failed(self, sequences: SequenceOf[int]) -> None:
        """These have just been given back, and charged."""
        policy, cursor = self._topic.policy, self.cursor
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
        """Those of these that have failed too often."""
        most = self._topic.policy.redeliveries_max
        if most is None or not self._topic.gives_up:
            return []
        attempts_of = self.cursor.attempts_of
        return [sequence for sequence in sequences if attempts_of(sequence) > most]

    def give_up(self, sequences: SequenceOf[int], reason: str = FAILED) -> None:
        """These, which the cursor has passed and nobody holds, go to the dead letters; without any they are dropped."""
        if not sequences:
            return
        topic, to, router = self._topic, self._topic.policy.dead_letter, self._environment.dead_letters
        self.cursor.withdraw(sequences)
        if to is None or router is None:
            topic.dropped_count += len(sequences)
            if topic.observer is not None:
                topic.observer.left(Fate.DROPPED, sequences, "given up, and there are no dead letters for it")
            topic.done_with(self, sequences)
            return
        if self._dead_lettering is None:
            reader = self.reader
            assert reader is not None or self._subscription is not None
            label = "" if self._subscription is None else self._subscription.consumer.label
            refused_by = (label, None) if reader is None else router.durable_names(reader.durable_id)
            self._dead_lettering = DeadLettering(topic, self, router, to, self._environment, refused_by=refused_by)
        self._dead_lettering.add(sequences, reason)
        self._dead_lettering.move()

    def forget(self, sequences: Set[int]) -> None:
        """These, which were withdrawn, are not to come again: the topic has dropped them, or they were settled late."""
        self._later.discard(sequences)
        if self._dead_lettering is not None:
            self._dead_lettering.discard(sequences)

    def forget_below(self, floor: int, sequences: Set[int]) -> None:
        """The same for all below `floor`, which these are."""
        self._later.discard_between(0, floor)
        if self._dead_lettering is not None:
            self._dead_lettering.discard(sequences)

    # ------------------------------------------------------------------ what dead letters need (GivesUp)

    def still_has(self, sequence: int) -> bool:
        """It may have left: expired, skipped, or lost on disk."""
        return sequence in self.cursor.withdrawn and self._topic.elements.is_alive(sequence)

    def attempts_of(self, sequence: int) -> int:
        """How often it has failed here."""
        return self.cursor.attempts_of(sequence)

    def dead_lettered(self, sequences: SequenceOf[int], to: MessageQueue) -> None:
        """These have gone to that queue."""
        self._topic.refused_for_good(self, sorted(sequences), to)

    # ------------------------------------------------------------------ out

    def came_in(self) -> None:
        """A block is in memory."""
        if self._dead_lettering is not None:
            self._dead_lettering.came_in()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_ms = self._later.next_ms
        if next_ms is not None and not self.closed:
            delay_ms = max(0, next_ms - self._environment.now_ms())
            self._timer = self._environment.scheduling.call_later(delay_ms / 1000, self._let_due_go)

    def _let_due_go(self) -> None:
        self._timer = None
        due = sorted(self._later.take_due(self._environment.now_ms(), DUE_COUNT))
        due = [sequence for sequence in due if sequence in self.cursor.withdrawn]
        if due:
            self._topic.again(self, due)
        self._arm()

    def close(self) -> None:
        """Its cursor is gone."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._dead_lettering is not None:
            self._dead_lettering.close()
