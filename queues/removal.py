"""Removal of elements from a consumed queue that were not consumed: given up, expired, or dropped to make room.

No consumer holds an element that leaves here: it is ahead of the cursor, was given back, waits for its time, or for its
message group. An element that is given up stays, held by no consumer, until it has been moved to the dead-letter queue
(dead_letters.py); without one it is dropped. Elements outside leave by whole blocks where that applies to all of a
block; otherwise the block has to be paged in first.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import Final

from ..flow import SourceController
from ..flow.bounds import UNBOUNDED
from .blocks import Block, Gone
from .cursored import BLOCK_BITS
from .cursors import Wait
from .dead_letters import CROWDED_OUT, EXPIRED, DeadLettering, FarQueue, when_taken
from .element_states import ElementStates
from .environment import QueueEnvironment
from .message import MESSAGE_OVERHEAD_BYTES
from .observer import Fate
from .policy import QueuePolicy
from .queue import MessageQueue

DROP_COUNT: Final = 64
"""Elements checked together when room must be made."""


def gives_up(name: str, policy: QueuePolicy, environment: QueueEnvironment) -> bool:
    """Whether messages may leave the queue of this name for having failed too often."""
    router = environment.dead_letters
    return policy.dead_letter is None if router is None else router.serves(name)


class Removal:
    """Removal of the elements of one queue that leave unconsumed.

    Attributes:
        gives_up: messages may leave for having failed too often.
    """

    __slots__ = ("_drop", "_environment", "_give_back", "_queue", "_states", "gives_up")

    def __init__(
        self,
        queue: MessageQueue,
        states: ElementStates,
        environment: QueueEnvironment,
        drop: Callable[[SequenceOf[int]], None],
        give_back: Callable[[int], None],
    ) -> None:
        """`drop`: removes elements that no consumer holds, and frees their space; `give_back`: makes a withdrawn
        element available again.
        """
        self._queue = queue
        self._states = states
        self._environment = environment
        self._drop = drop
        self._give_back = give_back
        self.gives_up = gives_up(queue.destination_name, queue.policy, environment)

    # ------------------------------------------------------------------ giving up

    def give_up(self, sequences: SequenceOf[int], reason: str) -> None:
        """Send elements that no consumer holds to the dead-letter queue; without one they are dropped."""
        if not sequences:
            return
        queue, states = self._queue, self._states
        to, router = queue.policy.dead_letter, self._environment.dead_letters
        if to is None or router is None or not self.gives_up:
            self._drop_for(sequences, "discarded: it has no dead-letter queue")
            return
        if queue.observer is not None:
            queue.observer.left(Fate.GIVEN_UP, sequences, reason)
        if states.dead_lettering is None:
            states.dead_lettering = DeadLettering(queue, self, router, to, self._environment)
        states.dead_lettering.send_to(to)
        states.withdraw(sequences)
        states.dead_lettering.add(sequences, reason)
        states.dead_lettering.move()

    def waits_for_dead_letters(self, count: int, wire_bytes: int, source: SourceController) -> bool:
        letters = self._states.dead_lettering
        return letters is not None and not self._queue.fits(count, wire_bytes) and letters.hold_back(source)

    def dead_lettered(self, sequences: SequenceOf[int], to: MessageQueue | FarQueue) -> None:
        """Remove elements that have been added to the dead-letter queue `to`."""
        self._queue.dead_lettered_count += len(sequences)
        self._gone_to(to, Fate.DEAD_LETTERED, sequences)

    def still_has(self, sequence: int) -> bool:
        """Return whether the element is in the queue."""
        return self._queue.elements.is_alive(sequence)

    def attempts_of(self, sequence: int) -> int:
        """Return the number of failed attempts of the element."""
        return self._states.cursor.attempts_of(sequence)

    # ------------------------------------------------------------------ by an operator's will

    def may_leave(self, sequence: int) -> bool:
        """Return whether the element is in the queue, and no consumer holds it."""
        return self._queue.elements.is_alive(sequence) and self._states.waits(sequence)

    def purge(self, first: int, end: int) -> int:
        """Drop the elements from `first` to `end - 1` that no consumer holds, in memory or on disk. Returns their
        number. O(end - first): a quarter of a block takes a millisecond.
        """
        queue, waits = self._queue, self._states.waits
        if queue.closed:
            return 0
        gone = [sequence for sequence in queue.elements.live_sequences(first, end) if waits(sequence)]
        if gone:
            queue.note_activity()
            self._drop_for(gone, "purged")
        return len(gone)

    def moved(self, sequences: SequenceOf[int], to: MessageQueue) -> None:
        """Remove elements that were just added to the queue `to` (transfers.py); on disk in the same write, or, in
        another shard, behind it.
        """
        queue, environment = self._queue, self._environment
        if to.environment.shard != environment.shard:
            self._states.withdraw(sequences)  # no consumer gets them meanwhile

        def done() -> None:
            queue.moved_count += len(sequences)
            self._gone_to(to, Fate.MOVED, sequences)

        when_taken(to, len(sequences), done, environment=environment, is_closed=lambda: queue.closed)

    def hold(self, sequence: int) -> bool:
        """Keep an element from consumers while it is on its way to another hub: `gone_far` or `given_back` follows.
        False: it is not there any more, a consumer has it, or it is delayed.
        """
        queue, states, router = self._queue, self._states, self._environment.dead_letters
        is_delayed = states.delayed is not None and states.delayed.holds(sequence)
        if router is None or is_delayed or not self.may_leave(sequence):
            return False
        if states.dead_lettering is None:
            to = queue.policy.dead_letter or queue.destination_name  # nothing is given up to itself
            states.dead_lettering = DeadLettering(queue, self, router, to, self._environment)
        states.withdraw([sequence])
        states.dead_lettering.hold(sequence)
        return True

    def gone_far(self, sequence: int, to: FarQueue) -> None:
        """Remove an element that a queue of another hub has taken."""
        letters = self._states.dead_lettering
        if letters is not None and letters.let_go(sequence):
            self._queue.moved_count += 1
            self._gone_to(to, Fate.MOVED, [sequence])

    def given_back(self, sequence: int) -> None:
        """Make an element available again that no other queue has taken."""
        letters = self._states.dead_lettering
        if letters is not None and letters.let_go(sequence):
            self._give_back(sequence)

    # ------------------------------------------------------------------ past their date

    def drop_expired(self, sequences: SequenceOf[int]) -> None:
        """Let elements that are past their date, and that no consumer holds, leave."""
        queue = self._queue
        queue.expired_count += len(sequences)
        if queue.observer is not None:
            queue.observer.left(Fate.EXPIRED, sequences, "")
        if queue.policy.dead_letter_expired and self.gives_up and queue.policy.dead_letter is not None:
            self.give_up(sequences, EXPIRED)
        else:
            self._drop(sequences)

    def without_expired(self, sequences: SequenceOf[int]) -> SequenceOf[int]:
        """Drop expired ones of the elements that come back, and return the others. Elements that are not in memory are
        checked when they are.
        """
        elements, now_ms = self._queue.elements, self._environment.now_ms()
        if elements.outside_count:
            for index in {sequence >> BLOCK_BITS for sequence in sequences}:
                block = elements.block(index)
                if block is not None and block.outside is not None and 0 < block.outside.dates.earliest_ms <= now_ms:
                    block.outside.dates = block.outside.dates.unchecked()
                    self._queue.expiry.note(now_ms, block.base, block.base + block.length)
        expired = [
            sequence
            for sequence in sequences
            if (message := elements.get(sequence)) is not None and 0 < message.expires_at_ms <= now_ms
        ]
        if not expired:
            return sequences
        self.drop_expired(expired)
        out = set(expired)
        return [sequence for sequence in sequences if sequence not in out]

    def expire(self, sequences: SequenceOf[int]) -> None:
        elements, waits = self._queue.elements, self._states.waits
        gone = [s for s in sequences if waits(s) and elements.get(s) is not None]
        if elements.outside_count:
            gone += self._expired_outside(sequences)
        if gone:
            self.drop_expired(gone)

    def _expired_outside(self, sequences: SequenceOf[int]) -> list[int]:
        """Return the elements, held by no consumer, of blocks outside in which everything has expired. Other blocks
        have to be paged in.
        """
        pager, elements = self._queue.pager, self._queue.elements
        assert pager is not None, "only what pages is outside"
        now_ms = self._environment.now_ms()
        gone: list[int] = []
        for index in dict.fromkeys([sequence >> BLOCK_BITS for sequence in sequences]):
            block = elements.block(index)
            if block is None or block.outside is None:
                continue
            dates, placeholders = block.outside.dates, block.outside.placeholders
            if placeholders is not None and placeholders.dates is not None:
                gone += self._expired_placeholders(block, placeholders.dates, now_ms)
            elif dates.all_dated and dates.latest_ms <= now_ms:
                gone += self._waiting_in(block)
            else:
                block.looked_ms = now_ms
                pager.want(index)
        return gone

    def _expired_placeholders(self, block: Block, dates: SequenceOf[int], now_ms: int) -> list[int]:
        """Return the expired elements of a block with placeholders that no consumer holds. Notes the next date."""
        end = block.base + block.length
        later = [
            date
            for s in self._queue.elements.live_sequences(block.base, end)
            if (date := dates[s - block.base]) > now_ms
        ]
        if later:
            self._queue.expiry.note(min(later), block.base, end)
        return [sequence for sequence in self._waiting_in(block) if 0 < dates[sequence - block.base] <= now_ms]

    # ------------------------------------------------------------------ to make room

    def make_room(self, over_count: int, over_bytes: int) -> None:
        """Make room: see IntakeOwner. The elements that the cursor has passed are older than all but the
        returned ones.
        """
        states, cursor = self._states, self._states.cursor
        cursor.arrived(Wait.CROWDED)  # the next elements may leave, even if they may not be handed over
        while over_count > 0 or over_bytes > 0:
            oldest = self._oldest_passed()
            if oldest is not None:
                over_count -= 1
                over_bytes -= self._charge_of(oldest)
                self._drop_for_room((oldest,))
                continue
            part = cursor.acquire(DROP_COUNT, UNBOUNDED)
            if part is None:
                index = cursor.waiting_for
                if index is None:
                    return
                if isinstance(index, Wait):  # before it is handed over: that does not keep it from leaving
                    cursor.arrived(index)
                    self._queue.context.request_dispatch()
                    continue
                freed = self._drop_outside(index)
                over_count -= freed[0]
                over_bytes -= freed[1]
                continue
            cut = freed_bytes = 0
            going: list[int] = []
            for sequence, message in zip(part.sequences, part.messages, strict=True):
                if over_count <= len(going) and over_bytes <= freed_bytes:
                    break
                cut += 1
                if states.dead_lettering is None or sequence not in states.dead_lettering:
                    going.append(sequence)
                    freed_bytes += message.size_bytes
            cursor.rewind(part, cut)
            self._drop_for_room(going)
            over_count -= len(going)
            over_bytes -= freed_bytes

    def _oldest_passed(self) -> int | None:
        """Find the oldest element that the cursor has passed and that waits for its time or for its message group.
        None: nothing does, or something older was given back; where some wait for a group that is found here, too.
        """
        delayed, aside, cursor = self._states.delayed, self._states.set_aside, self._states.cursor
        oldest, returned = None if delayed is None else delayed.lowest(), cursor.next_returned
        if oldest is not None and oldest >= cursor.position:
            oldest = None
        if aside:
            return min(s for s in (oldest, aside.oldest(), returned) if s is not None)
        return oldest if oldest is not None and (returned is None or oldest < returned) else None

    def _charge_of(self, sequence: int) -> int:
        """Return what this element is charged; of one that is outside, its share."""
        message = self._queue.elements.get(sequence)
        if message is not None:
            return message.size_bytes
        block = self._queue.elements.block(sequence >> BLOCK_BITS)
        assert block is not None and block.outside is not None, "it is alive"
        return block.outside.wire_bytes // block.live_count + MESSAGE_OVERHEAD_BYTES

    def _drop_outside(self, index: int) -> Gone:
        """Drop, unread, all elements that no consumer holds of a block that is outside and the next to be read. Returns
        the room made.
        """
        block = self._queue.elements.block(index)
        cursor = self._states.cursor
        cursor.waiting_for = None
        if block is None or block.outside is None:
            return 0, 0
        self._queue.context.request_dispatch()
        sequences = self._waiting_in(block)
        size_bytes = block.outside.wire_bytes * len(sequences) // max(1, block.live_count)
        cursor.position = max(cursor.position, block.base + block.length)
        self._drop_for_room(sequences)
        return len(sequences), size_bytes + len(sequences) * MESSAGE_OVERHEAD_BYTES

    def _drop_for_room(self, sequences: SequenceOf[int]) -> None:
        """Let the oldest elements that no consumer holds leave, as the full policy says."""
        if self._queue.intake.action.gives_up:
            self.give_up(sequences, CROWDED_OUT)
        else:
            self._drop_for(sequences, "it had to make room (full policy)")

    # ------------------------------------------------------------------ of all that leaves

    def _waiting_in(self, block: Block) -> list[int]:
        """Return the elements of a block that no consumer holds, and that were not given up."""
        waits = self._states.waits
        live = self._queue.elements.live_sequences(block.base, block.base + block.length)
        return [sequence for sequence in live if waits(sequence)]

    def _drop_for(self, sequences: SequenceOf[int], reason: str) -> None:
        queue = self._queue
        queue.dropped_count += len(sequences)
        if queue.observer is not None:
            queue.observer.left(Fate.DROPPED, sequences, reason)
        self._drop(sequences)

    def _gone_to(self, to: MessageQueue | FarQueue, fate: Fate, sequences: SequenceOf[int]) -> None:
        """Remove elements that another queue has taken. Stored ones are removed in the same write, in one shard."""
        queue, store = self._queue, self._environment.store
        if queue.observer is not None:
            queue.observer.left(fate, sequences, to.name)
        queue.note_activity()
        self._drop(sequences)
        if store is None or isinstance(to, FarQueue) or store is not to.environment.store:
            return
        if queue.storage is not None and to.storage is not None:
            store.bind((queue.storage, to.storage))
