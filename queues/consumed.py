"""Queues whose messages are consumed: one cursor; an element leaves when it is settled, or unconsumed (removal.py).

Its strategy decides which consumer gets which element (distribution.py).

Two kinds of elements are neither held by a consumer nor available; the cursor passes over both:

- *DelayedElements* (delayed.py): sent with a delay, or to be tried again after a while. Known by number only, so their
  blocks may be outside. When they are due they are where they would be without a delay: ahead of the cursor, or, if the
  cursor has passed them, among the returned elements, which go first. After a restart delayed messages still know when
  they are due; a wait before the next attempt ends with a restart.
- *DeadLettering* (dead_letters.py): given up, on their way to the dead-letter queue.

Charging. A returned element was seen, and is marked so. It is charged against the limit of redeliveries only if it is
named as failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import Final, Unpack

from ..flow import SourceController
from ..flow.kinds import ResourceKind
from .cursored import BLOCK_BITS
from .cursors import Wait
from .dead_letters import FAILED, REJECTED
from .delay_timer import DelayTimer
from .delayed import DelayedElements, backoff_ms
from .distribution import ConsumedDistribution
from .element_states import WORDS, ElementStates
from .environment import QueueEnvironment
from .intake import Run
from .message import MESSAGE_OVERHEAD_BYTES, Message, size_of
from .observer import Fate
from .policy import QueuePolicy
from .queue import MessageQueue, QueueOptions
from .removal import Removal, gives_up
from .slices import Slice
from .storage import Restored
from .subscription import Subscription

PASS_COUNT: Final = 4096
"""Elements that one look for something to deliver passes over at most."""

DUE_MS_MAX: Final = 2**63 - 1


class ConsumedQueue(MessageQueue):
    """One consuming cursor; each message goes to one consumer."""

    distribution: ConsumedDistribution

    def __init__(
        self,
        name: str,
        policy: QueuePolicy,
        environment: QueueEnvironment,
        distribution: Callable[[ConsumedQueue], ConsumedDistribution],
        *,
        kind: ResourceKind = ResourceKind.QUEUE,
        **options: Unpack[QueueOptions],
    ) -> None:
        """`distribution`: makes the strategy that says which consumer gets what."""
        super().__init__(name, policy, environment, kind=kind, **options)
        self.states = ElementStates(self.elements)
        """State of each element of the queue."""
        self._cursor = self.states.cursor
        self.removal = Removal(self, self.states, environment, self._drop, self._give_back)
        """Removal of elements that were not consumed."""
        self.delays = DelayTimer(self, self.states, environment, self._is_due)
        """Release of delayed elements when they are due."""
        self._reading_index = -1
        self._restored_ms = 0
        self._lost_in_hand: set[int] = set()
        """Elements that a consumer holds although they left the queue: their records could not be read."""
        self.distribution = distribution(self)
        self._distribute_by(self.distribution)

    def _full_action(self) -> str:
        policy = self.policy
        if policy.full != "dead_letter":
            return policy.full or self.full_default
        if not gives_up(self.destination_name, policy, self.environment):
            return "block"
        return "drop_oldest" if policy.dead_letter is None else "dead_letter"

    @property
    def waits_for_consumers(self) -> bool:
        return self.distribution.senders_wait and self.intake.action.holds_back

    def has_waiting(self, subscription: Subscription) -> bool:
        return self.elements.live_count > self.unsettled_count or self.intake.blocks_somebody

    def acquire(self, count_max: int, bytes_max: int) -> Slice | None:
        """Return the next elements that have not expired; expired ones are removed. None: nothing is ahead, or it has
        to be paged in first.
        """
        cursor = self._cursor
        passed_count = 0
        while passed_count < PASS_COUNT:
            part = cursor.acquire(count_max, bytes_max)
            if part is not None and self.storage is not None and not self.storage.may_hand_over(part.first, part.end):
                cursor.rewind(part, 0)
                cursor.waiting_for = Wait.NOTED
                return None
            if part is None and self.states.delayed is not None and (count := self._pass_block(self.states.delayed)):
                passed_count += count
                continue
            if self.pager is not None:
                self._page_in(part)
            if part is not None and (self.states.delayed is not None or self.states.dead_lettering is not None):
                passed_count += len(part.messages)
                part = self._available_of(part)
                if part is None:
                    continue
            if part is None or not self.expiry.is_needed:
                return part
            expired = part.expired(self.environment.now_ms())
            if not expired:
                return part
            rest = part.without(expired)
            self.removal.drop_expired(expired)
            if rest is not None:
                return rest
            passed_count += len(expired)
        self.context.request_dispatch()  # enough for once: let others have a turn
        return None

    def _available_of(self, part: Slice) -> Slice | None:
        """Return the elements of `part` that may be handed over now, or None. The cursor passes over delayed and
        dead-lettering ones.
        """
        now_ms = self.environment.now_ms()
        later, letters, passed = self.states.delayed, self.states.dead_lettering, list[int]()
        for place, (sequence, message) in enumerate(zip(part.sequences, part.messages, strict=True)):
            if (later is not None and later.holds(sequence)) or (letters is not None and sequence in letters):
                passed.append(sequence)
            elif message.due_at_ms > now_ms:
                later = self.delays.index()
                if later.is_full and not part.returned:
                    self._cursor.rewind(part, place)
                    self._cursor.waiting_for = Wait.CROWDED
                    passed += part.sequences[place:]
                    break
                passed.append(sequence)
                self.delays.put([sequence], message.due_at_ms)
        rest = part.without(passed) if passed else part
        if rest is not None and rest.attempts is not None:
            rest.attempts = self.seen_of(rest.sequences, rest.messages)
        return rest

    def seen_of(self, sequences: SequenceOf[int], messages: SequenceOf[Message]) -> dict[int, int] | None:
        """Return the number of failures of each element among `sequences` that a consumer may have seen; None: there is
        none.

        After a crash every element below the lease counts as seen, but for those that were not due then.
        """
        seen = self._cursor.seen_of(sequences)
        if seen and self.states.delayed is not None:
            for sequence, message in zip(sequences, messages, strict=True):
                if message.due_at_ms > self._restored_ms and not self._cursor.is_noted(sequence):
                    seen.pop(sequence, None)
        return seen or None

    def _pass_block(self, later: DelayedElements) -> int:
        """Pass the cursor over a block outside if all of it is delayed. Returns the number of elements passed; 0: the
        block has to be paged in.
        """
        cursor = self._cursor
        index = cursor.waiting_for
        block = self.elements.block(index) if isinstance(index, int) else None
        if block is None or block.outside is None:
            return 0
        end = block.base + block.length
        returned = cursor.next_returned
        start = max(block.base, cursor.position)
        ahead = block.outside.bits >> (start - block.base)
        if (returned is not None and returned < end) or ahead & ~later.bits_from(start):
            return 0
        cursor.waiting_for = None
        cursor.position = max(end, cursor.position)
        return ahead.bit_count() or 1

    def _page_in(self, part: Slice | None) -> None:
        """Request the block that is read next."""
        assert self.pager is not None, "only what pages is outside"
        waiting_for = self._cursor.waiting_for
        if waiting_for is not None and part is None:
            if isinstance(waiting_for, int):
                self.pager.want(waiting_for)
        elif part is not None:
            index = (part.first if part.returned else self._cursor.position) >> BLOCK_BITS
            if index != self._reading_index:
                self._reading_index = index
                self.pager.read_ahead(index)

    def paged_in(self, index: int) -> None:
        super().paged_in(index)
        self.distribution.resume(index)
        self.delays.paged_in(index)
        if self.states.dead_lettering is not None:
            self.states.dead_lettering.paged_in()
        if self._cursor.arrived(index):
            self.context.request_dispatch()

    @property
    def awaits_disk(self) -> bool:
        waiting_for = self._cursor.waiting_for
        return isinstance(waiting_for, int) or waiting_for is Wait.NOTED or self.distribution.awaits_disk

    def may_go_on(self) -> None:
        if self._cursor.arrived(Wait.NOTED):
            self.context.request_dispatch()
        self.distribution.resume(Wait.NOTED)

    def may_hand_over(self, first: int, end: int) -> bool:
        """Return whether the store has noted that `first` .. `end - 1` may be handed out; otherwise ask it to."""
        cursor = self._cursor
        cursor.out_to = max(cursor.out_to, end)  # how far it is to know
        return self.storage is None or self.storage.may_hand_over(first, end)

    def restored(self, found: Restored) -> None:
        super().restored(found)
        self.distribution.restored(found.grouped)
        seen_to = min(found.handed_to, self.elements.next_sequence)  # later elements are new
        self._cursor.restore(seen_to, found.attempts)
        self._restored_ms = self.environment.now_ms()
        self.delays.restored(found.due)
        most = self.policy.redeliveries_max
        spent = [] if most is None or not self.removal.gives_up else [s for s, n in found.attempts.items() if n > most]
        if self.delays.has_unknown or spent:
            # Not from in here: the storage is not ready yet.
            self.environment.scheduling.call_later(0.0, lambda: self._take_up(spent))

    def _take_up(self, spent: list[int]) -> None:
        """Dead-letter what an earlier run had given up, and look up what it had delayed."""
        if self.closed:
            return
        if spent := [
            sequence for sequence in spent if self.states.waits(sequence) and self.elements.is_alive(sequence)
        ]:
            self.removal.give_up(spent, FAILED)
        if self.delays.has_unknown:
            self.delays.look_up()

    def reading_blocks(self) -> Iterable[int]:
        returned = self._cursor.next_returned
        here = self._cursor.position >> BLOCK_BITS
        blocks = (here,) if returned is None else (here, returned >> BLOCK_BITS)
        return (*blocks, *super().reading_blocks())

    def pinned_below(self) -> int:
        return self.distribution.pinned_below()

    def seen(self) -> Mapping[int, int]:
        seen, later, cursor = self._cursor.seen(), self.states.delayed, self._cursor
        if later is None:
            return seen
        return {s: n for s, n in seen.items() if cursor.is_noted(s) or not later.holds(s)}

    def attempts_among(self, sequences: SequenceOf[int]) -> Mapping[int, int]:
        return self._cursor.attempts_among(sequences)

    @property
    def handed_to(self) -> int:
        cursor = self._cursor
        handed_to = max(cursor.position, cursor.out_to)
        return handed_to if cursor.seen_exactly else max(handed_to, cursor.seen_to)

    # ------------------------------------------------------------------ consumers

    def hand_over(self, subscription: Subscription, part: Slice) -> None:
        """Deliver acquired elements."""
        count = len(part.messages)
        self.unsettled_count += count
        subscription.unsettled_count += count
        subscription.delivered(count)
        subscription.consumer.deliver(subscription, part, dropped_count=0)

    def settled(self, subscription: Subscription, sequences: SequenceOf[int], wire_bytes: int) -> None:
        distribution = self.distribution
        if self.closed:
            distribution.settled(subscription, ())
            return
        keys = distribution.keys_of(sequences) if distribution.grouped_count else ()
        if self._lost_in_hand:
            sequences, wire_bytes = self._without_lost(sequences)
            if not sequences:
                distribution.settled(subscription, keys)
                return
        count = len(sequences)
        inside_count = count
        if self.elements.outside_count and (outside_count := self._count_outside(sequences)):
            inside_count -= outside_count
            wire_bytes = sum([len(m.wire) for s in sequences if (m := self.elements.get(s)) is not None])
        cursor = self._cursor
        self.elements.remove(sequences, unread=cursor.is_out(sequences) or distribution.may_read(sequences))
        cursor.forget(sequences)
        self.unsettled_count -= count
        self.settled_count += count
        self._last_active_seconds = self.environment.clock()
        if self.storage is not None:
            self.storage.settled(sequences)
        if inside_count < count:
            self._account_for_outside_gone()
        self.controller.release(inside_count, wire_bytes + inside_count * MESSAGE_OVERHEAD_BYTES)
        distribution.settled(subscription, keys)

    def _count_outside(self, sequences: SequenceOf[int]) -> int:
        """Return the number of elements of `sequences` that are not in memory."""
        elements = self.elements
        first, last = elements.block(sequences[0] >> BLOCK_BITS), elements.block(sequences[-1] >> BLOCK_BITS)
        if first is last and first is not None:
            return len(sequences) if first.outside is not None else 0
        return sum([elements.get(sequence) is None for sequence in sequences])

    def requeued(
        self,
        subscription: Subscription,
        sequences: SequenceOf[int],
        *,
        attempted: bool,
        charged: SequenceOf[int] | None = None,
        for_good: bool = False,
    ) -> None:
        distribution = self.distribution
        if self.closed:
            distribution.requeued(subscription, ())
            return
        keys = distribution.keys_of(sequences) if distribution.grouped_count else ()
        if self._lost_in_hand:
            sequences, _wire_bytes = self._without_lost(sequences)
        self.unsettled_count -= len(sequences)
        self.returned_count += len(sequences)
        if self.expiry.is_needed:
            sequences = self.removal.without_expired(sequences)
        if attempted:
            self._come_back(sequences, sequences if charged is None else charged, for_good=for_good)
        else:
            distribution.requeue(sequences)
        self.context.request_dispatch()
        distribution.requeued(subscription, keys)

    def _come_back(self, sequences: SequenceOf[int], charged: SequenceOf[int], *, for_good: bool) -> None:
        """Make elements available again that were seen; the `charged` ones have failed once more."""
        self._cursor.mark_seen(sequences)
        spent: list[int] = []
        if charged:
            sequences, spent = self._charge(sequences, charged, for_good=for_good)
        self.distribution.requeue(sequences)
        if self.storage is not None:
            attempts_of = self._cursor.attempts_of
            self.storage.returned({sequence: attempts_of(sequence) for sequence in [*sequences, *charged]})
        if spent:
            self.removal.give_up(spent, REJECTED if for_good else FAILED)

    def _give_back(self, sequence: int) -> None:
        """Make a withdrawn element available again."""
        if not self.elements.is_alive(sequence):
            return
        if sequence < self._cursor.position:
            self.distribution.requeue([sequence])
        else:
            self.distribution.available_again([sequence])
        self.context.request_dispatch()

    def losing(self, sequences: SequenceOf[int]) -> None:
        if self.observer is not None:
            self.observer.left(Fate.DROPPED, sequences, "it could not be read from the disk")
        waiting = [sequence for sequence in sequences if self.states.waits(sequence)]
        letters = self.states.dead_lettering or ()  # checks itself which elements are still there
        self._lost_in_hand.update({s for s in sequences if s not in letters}.difference(waiting))
        self.states.forget(waiting)

    def _without_lost(self, sequences: SequenceOf[int]) -> tuple[SequenceOf[int], int]:
        """Return the elements of `sequences` that are still in the queue, and their bytes in memory."""
        lost = self._lost_in_hand.intersection(sequences)
        self._lost_in_hand -= lost
        self.unsettled_count -= len(lost)
        self._cursor.forget(lost)
        left = [sequence for sequence in sequences if sequence not in lost]
        return left, sum([len(message.wire) for s in left if (message := self.elements.get(s)) is not None])

    def _charge(
        self, sequences: SequenceOf[int], charged: SequenceOf[int], *, for_good: bool
    ) -> tuple[SequenceOf[int], list[int]]:
        """Charge a failed attempt. Returns the elements of `sequences` that may be handed out again at once, and those
        that have failed too often (`for_good`: all of them); the others wait for their time.
        """
        policy, cursor = self.policy, self._cursor
        most = None if not self.removal.gives_up else 0 if for_good else policy.redeliveries_max
        spent: list[int] = []
        waiting: dict[int, list[int]] = {}
        alive = sequences if charged is sequences else set(sequences)  # others have expired, and are gone
        for sequence in filter(alive.__contains__, charged):
            count = cursor.count_attempt(sequence)
            if most is not None and count > most:
                spent.append(sequence)
            elif policy.redelivery_delay_ms:
                waiting.setdefault(count, []).append(sequence)
        now_ms = self.environment.now_ms()
        for count, failed in waiting.items():
            self.delays.put(failed, now_ms + backoff_ms(policy, count))
            if self.distribution.grouped_count:
                self.distribution.hold_back(failed)
        if out := set(spent).union(*waiting.values()):
            cursor.release_acquired(out)
            sequences = [sequence for sequence in sequences if sequence not in out]
        return sequences, spent

    # ------------------------------------------------------------------ leaving unread

    def expire(self, sequences: SequenceOf[int]) -> None:
        self.removal.expire(sequences)

    def make_room(self, over_count: int, over_bytes: int) -> None:
        self.removal.make_room(over_count, over_bytes)

    def waits_for_dead_letters(self, count: int, wire_bytes: int, source: SourceController) -> bool:
        return self.removal.waits_for_dead_letters(count, wire_bytes, source)

    def _drop(self, sequences: SequenceOf[int]) -> None:
        """Remove elements that no consumer holds, and free their space, which may resume senders before this
        returns.
        """
        if not sequences:
            return
        messages = [message for sequence in sequences if (message := self.elements.get(sequence)) is not None]
        # Unread always: a cursor that untakes may come past here again.
        self.elements.remove(sequences, unread=True)
        self.states.forget(sequences)
        if self.states.delayed is not None:
            self._resume_if_crowded()
        if self.storage is not None:
            self.storage.settled(sorted(sequences))  # dead letters leave in the order in which they were given up
        if self.elements.outside_gone_count:
            self._account_for_outside_gone()
        if messages:
            self.controller.release(len(messages), size_of(messages))
        waiting_for = self._cursor.waiting_for
        if isinstance(waiting_for, int) and self.elements.block(waiting_for) is None:
            self._cursor.arrived(waiting_for)  # the block that it waits for is gone
            self.context.request_dispatch()
        elif self.controller.limiter.throttled:
            self.context.request_dispatch()  # other blocks than before may leave memory
        self.distribution.dropped(messages)

    # ------------------------------------------------------------------ delayed elements

    def _resume_if_crowded(self) -> None:
        """Continue what waited for fewer elements to be delayed."""
        if self._cursor.arrived(Wait.CROWDED):
            self.context.request_dispatch()
        self.distribution.resume(Wait.CROWDED)

    def _delayed(self, run: Run) -> Run:
        messages = run.messages
        due_ms = min(self.environment.now_ms() + messages[0].head.delay_ms, DUE_MS_MAX)
        return Run([message.delayed(due_ms) for message in messages], run.charge_bytes)

    def _append(self, messages: list[Message], run: Run) -> int:
        first = self.elements.extend(messages, run.charge_bytes)
        if messages[0].due_at_ms:
            later = self.delays.index()
            if len(later) + len(messages) <= later.count_max:  # otherwise the cursor stops when it gets there
                self.delays.put(self.elements.live_sequences(first, self.elements.next_sequence), messages[0].due_at_ms)
        return first

    def _is_due(self, sequences: list[int]) -> None:
        """Make due elements available: those that the cursor has passed count as returned."""
        position = self._cursor.position
        self.distribution.requeue([sequence for sequence in sequences if sequence < position])
        self.distribution.available_again([sequence for sequence in sequences if sequence >= position])
        self.distribution.let_go(sequences)
        self._resume_if_crowded()
        self.context.request_dispatch()

    @property
    def delayed_count(self) -> int:
        return 0 if self.states.delayed is None else len(self.states.delayed)

    # ------------------------------------------------------------------ end, and what people see

    def state_of(self, sequence: int) -> str:
        return WORDS[self.states.of(sequence)]

    def close_gates(self) -> int:
        self.delays.close()
        self.distribution.close()
        return super().close_gates()

    def facts(self) -> Mapping[str, object]:
        facts = dict(super().facts())
        if self.delayed_count:
            facts["delayed"] = self.delayed_count
        if self._cursor.waiting_for is Wait.CROWDED:
            facts["too many are delayed"] = "senders wait until some of them are due (delayed_count_max)"
        if self.states.dead_lettering:
            facts["dead letters that wait"] = len(self.states.dead_lettering)
            if self.states.dead_lettering.trouble:
                facts["because"] = self.states.dead_lettering.trouble
        return facts | self.distribution.facts()
