"""How elements leave a queue without being consumed: given up, past their date, or dropped to make room.

Base of ConsumedQueue, which says how they reach consumers. Nobody holds what leaves here: it lies ahead of the cursor,
was given back, or waits for its time. What is given up stays, in nobody's hands, until it has come to the dead-letter
queue (dead_letters.py); without one it is dropped. What is outside leaves by whole blocks where that can be said of all
of a block, else it has to come in first.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Final, Unpack

from ..flow import SourceController
from ..flow.bounds import UNBOUNDED
from .blocks import Block, Gone
from .cursored import BLOCK_BITS
from .cursors import Wait
from .dead_letters import CROWDED_OUT, EXPIRED, Condemned
from .element_states import WORDS, ElementStates
from .environment import QueueEnvironment
from .message import MESSAGE_OVERHEAD_BYTES, size_of
from .observer import Fate
from .policy import QueuePolicy
from .queue import MessageQueue, QueueOptions

DROP_COUNT: Final = 64
"""Elements looked at together when room must be made."""


class LeavingQueue(MessageQueue):
    """One consuming cursor, and what leaves without it. Not for direct use."""

    def __init__(
        self, name: str, policy: QueuePolicy, environment: QueueEnvironment, **options: Unpack[QueueOptions]
    ) -> None:
        super().__init__(name, policy, environment, **options)
        self.states = ElementStates(self.elements)
        """Where each of its elements is."""
        self._cursor = self.states.cursor

    @property
    def _is_crowded(self) -> bool:
        """Somebody waits until fewer elements wait for their time."""
        return self._cursor.waiting_for is Wait.CROWDED

    def _go_on(self) -> None:
        """Something may be there for the cursor."""
        self._cursor.arrived(Wait.CROWDED)
        self.context.request_dispatch()

    # ------------------------------------------------------------------ giving up

    def _full_action(self) -> str:
        policy, router = self.policy, self._environment.dead_letters
        self._gives_up = policy.dead_letter is None or router is not None
        """Messages may leave for having failed too often."""
        if router is not None and not router.serves(self.name_on_disk):
            self._gives_up = False
        if policy.full == "dead_letter":
            return "block" if not self._gives_up else "drop_oldest" if policy.dead_letter is None else "dead_letter"
        return policy.full or self.full_default

    def _give_up(self, sequences: SequenceOf[int], reason: str) -> None:
        """These, which nobody holds, are to go to the dead-letter queue; without one they are dropped."""
        to, router = self.policy.dead_letter, self._environment.dead_letters
        if not sequences:
            return
        if to is None or router is None or not self._gives_up:
            self._count_dropped(sequences, "given up, and there are no dead letters for it")
            self._drop(sequences)
            return
        if self.observer is not None:
            self.observer.left(Fate.GIVEN_UP, sequences, reason)
        if self.states.dead_lettering is None:
            self.states.dead_lettering = Condemned(self, self, router, to, self._environment)
        self.states.withdraw(sequences)
        self.states.dead_lettering.add(sequences, reason)
        self.states.dead_lettering.move()

    def _give_up_expired(self, sequences: SequenceOf[int]) -> None:
        """These are past their date, and nobody holds them."""
        self.expired_count += len(sequences)
        if self.observer is not None:
            self.observer.left(Fate.EXPIRED, sequences, "")
        if self.policy.dead_letter_expired and self._gives_up and self.policy.dead_letter is not None:
            self._give_up(sequences, EXPIRED)
        else:
            self._drop(sequences)

    def _give_up_for_room(self, sequences: SequenceOf[int]) -> None:
        """These are the oldest that nobody holds, and have to make room."""
        if self.intake.action.gives_up:
            self._give_up(sequences, CROWDED_OUT)
        else:
            self._count_dropped(sequences, "it had to make room (full policy)")
            self._drop(sequences)

    def _count_dropped(self, sequences: SequenceOf[int], reason: str) -> None:
        self.dropped_count += len(sequences)
        if self.observer is not None:
            self.observer.left(Fate.DROPPED, sequences, reason)

    def dead_lettered(self, sequences: SequenceOf[int], to: MessageQueue) -> None:
        """These have gone to that queue."""
        self.dead_lettered_count += len(sequences)
        if self.observer is not None:
            self.observer.left(Fate.DEAD_LETTERED, sequences, to.name)
        self._last_active_seconds = self._environment.clock()
        self._drop(sequences)
        if self._shelf is not None and to.shelf is not None and self._store is not None:
            self._store.bind((self._shelf, to.shelf))

    def still_has(self, sequence: int) -> bool:
        return self.elements.is_alive(sequence)

    # ------------------------------------------------------------------ by an operator's will

    def may_leave(self, sequence: int) -> bool:
        """Whether this is there, and in nobody's hands."""
        return self.elements.is_alive(sequence) and self.states.waits(sequence)

    def purge(self, first: int, end: int) -> int:
        """Drop what of these elements is in nobody's hands, in memory or on disk. Returns how many. O(end - first):
        a quarter of a block takes a millisecond.
        """
        if self.closed:
            return 0
        gone = [sequence for sequence in self.elements.live_sequences(first, end) if self.states.waits(sequence)]
        if gone:
            self._count_dropped(gone, "purged")
            self._last_active_seconds = self._environment.clock()
            self._drop(gone)
        return len(gone)

    def moved(self, sequences: SequenceOf[int], to: MessageQueue) -> None:
        """These are in that queue now (transfers.py), and leave this one; on disk in the same write."""
        self.moved_count += len(sequences)
        if self.observer is not None:
            self.observer.left(Fate.MOVED, sequences, to.name)
        self._last_active_seconds = self._environment.clock()
        self._drop(sequences)
        if self._shelf is not None and to.shelf is not None and self._store is not None:
            self._store.bind((self._shelf, to.shelf))

    def attempts_of(self, sequence: int) -> int:
        """How often this element has failed."""
        return self._cursor.attempts_of(sequence)

    def waits_for_dead_letters(self, count: int, wire_bytes: int, source: SourceController) -> bool:
        condemned = self.states.dead_lettering
        return condemned is not None and not self.fits(count, wire_bytes) and condemned.hold_back(source)

    # ------------------------------------------------------------------ leaving unread

    def _drop(self, sequences: SequenceOf[int]) -> None:
        """Remove elements that nobody holds, and free their space: which may let senders go on before this returns."""
        if not sequences:
            return
        messages = [message for sequence in sequences if (message := self.elements.get(sequence)) is not None]
        # Unread always: a cursor that untakes may come past here again.
        self.elements.remove(sequences, unread=True)
        self.states.forget(sequences)
        if self.states.delayed is not None and self._is_crowded:
            self._go_on()
        if self._shelf is not None:
            self._shelf.settled(sorted(sequences))  # dead letters leave in the order in which they were given up
        if self.elements.outside_gone_count:
            self._account_for_outside_gone()
        if messages:
            self.controller.release(len(messages), size_of(messages))
        waiting_for = self._cursor.waiting_for
        if isinstance(waiting_for, int) and self.elements.block(waiting_for) is None:
            self._cursor.arrived(waiting_for)  # nothing is left of what it waits for
            self.context.request_dispatch()
        elif self.controller.limiter.throttled:
            self.context.request_dispatch()  # other blocks than before may leave memory

    def _drop_expired(self, sequences: SequenceOf[int]) -> SequenceOf[int]:
        """Of elements that come back: drop those past their date, return the others. Those that are not in memory are
        looked at again when they can be.
        """
        now_ms = self._environment.now_ms()
        if self.elements.outside_count:
            for index in {sequence >> BLOCK_BITS for sequence in sequences}:
                block = self.elements.block(index)
                if block is not None and block.outside is not None and 0 < block.outside.dates.earliest_ms <= now_ms:
                    block.outside.dates = block.outside.dates.to_be_looked_at()
                    self.expiry.note(now_ms, block.base, block.base + block.length)
        expired = [
            sequence
            for sequence in sequences
            if (message := self.elements.get(sequence)) is not None and 0 < message.expires_at_ms <= now_ms
        ]
        if not expired:
            return sequences
        self._give_up_expired(expired)
        out = set(expired)
        return [sequence for sequence in sequences if sequence not in out]

    def state_of(self, sequence: int) -> str:
        return WORDS[self.states.of(sequence)]

    def expire(self, sequences: SequenceOf[int]) -> None:
        gone = [s for s in sequences if self.states.waits(s) and self.elements.get(s) is not None]
        if self.elements.outside_count:
            gone += self._expired_outside(sequences)
        if gone:
            self._give_up_expired(gone)

    def _expired_outside(self, sequences: SequenceOf[int]) -> list[int]:
        """Of blocks that are outside: all of one in which everything is past its date and in nobody's hands. Others
        have to come in.
        """
        assert self.pager is not None, "only what pages is outside"
        now_ms = self._environment.now_ms()
        gone: list[int] = []
        for index in dict.fromkeys([sequence >> BLOCK_BITS for sequence in sequences]):
            block = self.elements.block(index)
            if block is None or block.outside is None:
                continue
            dates, placeholders = block.outside.dates, block.outside.placeholders
            if placeholders is not None and placeholders.dates is not None:
                gone += self._expired_placeholders(block, placeholders.dates, now_ms)
                continue
            if dates.all_dated and dates.latest_ms <= now_ms:
                live = self.elements.live_sequences(block.base, block.base + block.length)
                gone += [sequence for sequence in live if self.states.waits(sequence)]
            else:
                block.looked_ms = now_ms
                self.pager.want(index)
        return gone

    def make_room(self, over_count: int, over_bytes: int) -> None:
        self._cursor.arrived(Wait.CROWDED)  # what comes next may go, whether it may be handed over or not
        while over_count > 0 or over_bytes > 0:
            oldest = self._oldest_passed()
            if oldest is not None:
                over_count -= 1
                over_bytes -= self._charge_of(oldest)
                self._give_up_for_room((oldest,))
                continue
            part = self._cursor.take(DROP_COUNT, UNBOUNDED)
            if part is None:
                index = self._cursor.waiting_for
                if index is None:
                    return
                if isinstance(index, Wait):  # before it is handed over: that does not keep it from leaving
                    self._cursor.arrived(index)
                    self.context.request_dispatch()
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
                if self.states.dead_lettering is None or sequence not in self.states.dead_lettering:
                    going.append(sequence)
                    freed_bytes += message.size_bytes
            self._cursor.untake(part, cut)
            self._give_up_for_room(going)
            over_count -= len(going)
            over_bytes -= freed_bytes

    def _oldest_passed(self) -> int | None:
        """The oldest of those that the cursor has passed and that wait for their time, if nothing older was given
        back.
        """
        oldest = None if self.states.delayed is None else self.states.delayed.lowest()
        if oldest is None or oldest >= self._cursor.position:
            return None
        returned = self._cursor.next_returned
        return oldest if returned is None or oldest < returned else None

    def _charge_of(self, sequence: int) -> int:
        """What this element is charged; of one that is outside, its share."""
        message = self.elements.get(sequence)
        if message is not None:
            return message.size_bytes
        block = self.elements.block(sequence >> BLOCK_BITS)
        assert block is not None and block.outside is not None, "it is alive"
        return block.outside.wire_bytes // block.live_count + MESSAGE_OVERHEAD_BYTES

    def _expired_placeholders(self, block: Block, dates: SequenceOf[int], now_ms: int) -> list[int]:
        """Of a block with placeholders: what is past its date and in nobody's hands. Notes the next date."""
        alive = self.elements.live_sequences(block.base, block.base + block.length)
        later = [dates[sequence - block.base] for sequence in alive if dates[sequence - block.base] > now_ms]
        if later:
            self.expiry.note(min(later), block.base, block.base + block.length)
        return [
            sequence for sequence in alive if 0 < dates[sequence - block.base] <= now_ms and self.states.waits(sequence)
        ]

    def _drop_outside(self, index: int) -> Gone:
        """Of a block that is outside, and is the next to be read: all that nobody holds goes, unread. Returns how much
        room that made.
        """
        block = self.elements.block(index)
        cursor = self._cursor
        cursor.waiting_for = None
        if block is None or block.outside is None:
            return 0, 0
        self.context.request_dispatch()
        end = block.base + block.length
        sequences = [s for s in self.elements.live_sequences(block.base, end) if self.states.waits(s)]
        size_bytes = block.outside.wire_bytes * len(sequences) // max(1, block.live_count)
        cursor.position = max(cursor.position, end)
        self._give_up_for_room(sequences)
        return len(sequences), size_bytes + len(sequences) * MESSAGE_OVERHEAD_BYTES
