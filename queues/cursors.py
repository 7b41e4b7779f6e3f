"""Cursors in a CursoredQueue: elements handed out, requeued, settled.

Reading removes nothing: `Cursor.acquire` hands out a `Slice` of the elements ahead of the cursor and moves on. Requeued
elements are in the cursor's heap of returns and go first, in order, with their number of attempts.

Where the next element is not in memory `acquire` finds nothing, and the cursor is *waiting* for its block: `has_more`
is False until `arrived`.

A search by selector takes elements at any place (`acquire_at`): those ahead of the cursor are remembered as *out* until
they are settled or come back, and the cursor passes over them.

Invariants: the position of a cursor goes back only by `rewind`; a sequence is in at most one of {ahead of the cursor,
returned, handed out, settled}. An element that is out is held by a consumer.

Source: seed 002 "CursoredQueue"; anchors d7, d17.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Set
from collections.abc import Sequence as SequenceOf
from enum import Enum
from typing import Final

from .blocks import NOTHING_GONE, Gone, QueueInvariantError
from .cursored import CursoredQueue
from .message import Message
from .ranges import RangeSet
from .slices import Slice

RETURNED_MIN: Final = 64
"""Dead entries that may always lie in the heap of returns."""

AGAIN_COUNT_MAX: Final = 256
"""Elements that are handed out again at once."""

PUSHED_SHARE: Final = 16
"""Factor for pushes into a heap: if the heap is this many times as large as the batch, its elements are pushed one by
one.
"""


class Wait(Enum):
    """Reasons for which a cursor or a search waits, other than for a block to come into memory."""

    NOTED = "the store notes that what comes next may have been handed out"
    CROWDED = "fewer of the elements that were passed wait for their time"
    GROUPS = "some message group is free"


class Cursor:
    """Cursor in a CursoredQueue. `acquire` hands out requeued elements first, then those ahead. The owner of the queue
    removes settled elements.
    """

    __slots__ = (
        "_attempts",
        "_out",
        "_queue",
        "_returned",
        "_returned_set",
        "noted_to",
        "out_to",
        "position",
        "seen_exactly",
        "seen_to",
        "waiting_for",
    )

    _shares_slices = False

    def __init__(self, queue: CursoredQueue, position: int) -> None:
        self._queue = queue
        self.position = position
        self._returned: list[int] = []
        self._returned_set: set[int] = set()
        self._attempts: dict[int, int] = {}
        self._out: set[int] = set()
        """Elements handed out from ahead of the position; the cursor may have passed them since."""
        self.out_to = 0
        """Position from which on nothing was ever taken out."""
        self.waiting_for: int | Wait | None = None
        """The block that has to come into memory before `acquire` finds anything, or what else has to happen."""
        self.seen_to = 0
        """Elements below this may have been seen by a consumer of an earlier run of the broker: all of them, or
        (`seen_exactly`) just those with a number of attempts.
        """
        self.seen_exactly = False
        self.noted_to = 0
        """Position from which on no element ahead has attempts: a clean shutdown before a crash may have noted some
        beyond `seen_to`, and elements that were taken out may be ahead again.
        """

    @property
    def ahead_count(self) -> int:
        """Number of elements not handed out: requeued, or ahead (an upper bound if some of those left unread). O(1)."""
        ahead_count = len(self._returned_set) + self._queue.next_sequence - self.position
        return min(ahead_count, self._queue.live_count)

    @property
    def has_more(self) -> bool:
        """Whether `acquire` may find something. O(1)."""
        return self.waiting_for is None and (bool(self._returned) or self.position < self._queue.next_sequence)

    def arrived(self, what: int | Wait) -> bool:
        """Note that a block is in memory or gone, or that the reason of a wait has ended. Returns whether the cursor
        waited for it.
        """
        if self.waiting_for != what:
            return False
        self.waiting_for = None
        return True

    @property
    def next_returned(self) -> int | None:
        """Return the lowest element that was requeued and not handed out again, or None. O(1) amortised."""
        returned = self._returned
        while returned and returned[0] not in self._returned_set:
            heapq.heappop(returned)
        return returned[0] if returned else None

    def is_available(self, sequence: int) -> bool:
        """Return whether no consumer holds the element."""
        return (sequence >= self.position and sequence not in self._out) or sequence in self._returned_set

    def acquire(self, count_max: int, bytes_max: int) -> Slice | None:
        """The next elements in order: at most `count_max` (at least 1), and `bytes_max` wire bytes but for the first.

        They count as handed out. None: nothing lies ahead, or what does is not in memory (then `waiting_for` says so).
        """
        if self.waiting_for is not None:
            return None
        if self._returned:
            taken = self._take_returned(count_max, bytes_max)
            if taken is not None or self.waiting_for is not None:
                return taken
        queue = self._queue
        result, self.position = queue.read(self.position, count_max, bytes_max, share=self._shares_slices)
        while self._out and result is not None:
            there = result.without(self._out) if not self._out.isdisjoint(result.sequences) else result
            if there is not None:
                result = there
                break
            result, self.position = queue.read(self.position, count_max, bytes_max)
        if result is None:
            self.waiting_for = queue.missing
        elif result.first < self.noted_to:
            seen = self.seen_of(result.sequences)
            if seen:
                return Slice(result.messages, result.sequences, result.wire_bytes, seen)
        return result

    def restore(self, seen_to: int, attempts: Mapping[int, int]) -> None:
        """Restore the state of an earlier run: elements below `seen_to` may have been seen, or (0) just those in
        `attempts`.
        """
        self._attempts.update(attempts)
        self.seen_exactly = not seen_to
        self.noted_to = max(seen_to, max(attempts, default=-1) + 1)
        self.seen_to = seen_to or self.noted_to

    def seen(self) -> dict[int, int]:
        """Elements that are still there and may have been seen by a consumer, with their attempts. O(n)."""
        seen = dict(self._attempts)
        if self.seen_to and not self.seen_exactly:
            for sequence in self._queue.live_sequences(0, self.seen_to):
                seen.setdefault(sequence, 0)
        return seen

    def seen_of(self, sequences: Iterable[int]) -> dict[int, int]:
        """Return the attempts of each element of `sequences` that a consumer may have seen. O(n)."""
        attempts = self._attempts
        seen_to = 0 if self.seen_exactly else self.seen_to
        return {
            sequence: attempts.get(sequence, 0) for sequence in sequences if sequence < seen_to or sequence in attempts
        }

    def _take_returned(self, count_max: int, bytes_max: int) -> Slice | None:
        messages: list[Message] = []
        sequences: list[int] = []
        attempts: dict[int, int] = {}
        wire_bytes = 0
        queue = self._queue
        count_max = min(count_max, AGAIN_COUNT_MAX)
        while self._returned and len(messages) < count_max:
            sequence = self._returned[0]
            queue.forget_missing()
            message = queue.get(sequence) if sequence in self._returned_set else None
            if queue.missing is not None:
                if not messages:
                    self.waiting_for = queue.missing
                break
            if message is not None:
                if messages and wire_bytes + len(message.wire) > bytes_max:
                    break
                messages.append(message)
                sequences.append(sequence)
                wire_bytes += len(message.wire)
                if sequence in self._attempts or (sequence < self.seen_to and not self.seen_exactly):
                    attempts[sequence] = self._attempts.get(sequence, 0)
            heapq.heappop(self._returned)
            self._returned_set.discard(sequence)
        return Slice(messages, sequences, wire_bytes, attempts or None, returned=True) if messages else None

    def rewind(self, part: Slice, start: int) -> None:
        """Go back to element `start` of `part`, as if the rest had not been acquired. Not for tracking cursors.

        Only for the latest `acquire` of which something is left. O(1), but O(n log n) for requeued elements.
        """
        if start >= len(part.messages):
            return
        if part.returned:
            self.requeue(part.sequences[start:], attempted=False)
            return
        if part.end > self.position:
            raise QueueInvariantError(f"elements up to {part.end - 1} were not taken: the cursor is at {self.position}")
        self.position = part.sequences[start]

    def requeue(self, sequences: SequenceOf[int], *, attempted: bool, charged: SequenceOf[int] | None = None) -> int:
        """Put elements back, to be handed out again before anything later. `attempted`: they were handed over, which
        counts as an attempt of the `charged` ones among them (None: of all).

        Returns the number of elements that will never be handed out again: 0, but for a TrackingCursor that has given
        them up since. O(n log n). Raises QueueInvariantError for an element that no consumer can hold.
        """
        passed = sequences
        if self._out and not self._out.isdisjoint(sequences):
            ahead = [sequence for sequence in sequences if sequence >= self.position and sequence in self._out]
            if ahead:  # they are there, as before
                self.noted_to = max(self.noted_to, max(ahead) + 1)
                passed = [sequence for sequence in sequences if sequence < self.position or sequence not in self._out]
            self._out.difference_update(sequences)
        if passed:
            if max(passed) >= self.position or not self._returned_set.isdisjoint(passed):
                wrong = next(s for s in passed if s >= self.position or s in self._returned_set)
                raise QueueInvariantError(f"element {wrong} is not acquired: it can't be requeued")
            self._returned_set.update(passed)
            self._push(passed)
        if sequences:
            self.waiting_for = None  # returned elements go first, and may be in memory
        if attempted:
            self.mark_seen(sequences)
            for sequence in sequences if charged is None else charged:
                self.count_attempt(sequence)
        return 0

    def _push(self, sequences: SequenceOf[int]) -> None:
        """Push elements into the heap. O(n log all), or O(all) at once if they are a good part of it."""
        returned = self._returned
        if len(sequences) * PUSHED_SHARE < len(returned):
            for sequence in sequences:
                heapq.heappush(returned, sequence)
        else:
            returned.extend(sequences)
            heapq.heapify(returned)

    def acquire_at(self, sequences: SequenceOf[int]) -> None:
        """Hand out elements, which ascend and are available, wherever they are. O(n), and O(block) for the position."""
        first, end = sequences[0], sequences[-1] + 1
        self.out_to = max(self.out_to, end)
        if self._returned_set:
            self._returned_set.difference_update(sequences)
            if len(self._returned) > 2 * len(self._returned_set) + RETURNED_MIN:
                self._returned = sorted(self._returned_set)
        if end <= self.position:
            return
        if len(sequences) == end - first and self._comes_to(first):
            self.position = end  # from the very front: as if the cursor had taken them
        else:
            self._out.update(sequences)

    def _comes_to(self, first: int) -> bool:
        """Whether nothing is there between the position, which moves on then, and `first`."""
        if self.position < first and self._queue.first_live(self.position) == first:
            self.position = first
        return self.position == first

    def release_acquired(self, sequences: Iterable[int]) -> None:
        """Take elements out of the hands of consumers. They stay in their places; another index knows why they wait."""
        for sequence in sequences if self._out else ():
            self._out.discard(sequence)
            self.noted_to = max(self.noted_to, sequence + 1)

    def is_out(self, sequences: SequenceOf[int]) -> bool:
        """Return whether elements of `sequences`, which consumers hold, are ahead of the position. O(1) if nothing is
        out.
        """
        return bool(self._out) and max(sequences) >= self.position

    def are_ahead(self, sequences: SequenceOf[int]) -> bool:
        """Return whether all elements, which ascend, are ahead of the position and available. O(n), O(1) if nothing is
        out.
        """
        return sequences[0] >= self.position and (not self._out or self._out.isdisjoint(sequences))

    @property
    def returned_sequences(self) -> Iterable[int]:
        """Elements that were requeued and not handed out again, in any order."""
        return self._returned_set

    def mark_seen(self, sequences: Iterable[int]) -> None:
        """Note that a consumer has had the elements: they are marked when they come again, charged or not."""
        attempts = self._attempts
        new = dict.fromkeys(sequences, 0)
        if known := attempts.keys() & new.keys():
            new.update({sequence: attempts[sequence] for sequence in known})
        attempts.update(new)

    def count_attempt(self, sequence: int) -> int:
        """Count one more failed attempt of an element. Returns its attempts."""
        count = self._attempts[sequence] = self._attempts.get(sequence, 0) + 1
        return count

    def withdraw(self, sequences: Iterable[int]) -> None:
        """Withdraw elements, requeued or not: they are not handed out any more, but stay in the queue."""
        self._returned_set.difference_update(sequences)

    def forget(self, sequences: Iterable[int]) -> None:
        """Drop what is remembered of elements that left the queue. Cheap when there is nothing to remember."""
        if self._attempts:
            for sequence in sequences:
                self._attempts.pop(sequence, None)
        if self._returned_set:
            self._returned_set.difference_update(sequences)
        if self._out:
            self._out.difference_update(sequences)

    def attempts_among(self, sequences: SequenceOf[int]) -> dict[int, int]:
        """Return the failed attempts of each element of `sequences` that came back. O(n), O(1) if none ever did."""
        attempts = self._attempts
        return {s: attempts[s] for s in sequences if s in attempts} if attempts else {}

    def is_noted(self, sequence: int) -> bool:
        """Return whether this very element is known to have been seen by a consumer."""
        return sequence in self._attempts

    def attempts_of(self, sequence: int) -> int:
        """Return the number of failed attempts of an element."""
        return self._attempts.get(sequence, 0)


class TrackingCursor(Cursor):
    """Cursor of one of many readers of the same elements, as topics have them.

    It keeps its own settled set above a *front*, the lowest element that it may still need, and tells the queue when
    the front moves. A slice is shared with the others at the same position. Do not `rewind`.
    """

    __slots__ = ("_settled", "front", "withdrawn")

    _shares_slices = True

    def __init__(self, queue: CursoredQueue, position: int) -> None:
        super().__init__(queue, position)
        self.front = position
        self._settled = RangeSet()
        """Above the front; some of it may have left the queue."""
        self.withdrawn: set[int] = set()
        """Elements that their consumer refused: held by none, and not to be handed out."""
        queue.track(position)

    def settled_above(self) -> tuple[tuple[int, int], ...]:
        """Return the settled elements above the front as runs, each from its first to behind its last, ascending."""
        return tuple(self._settled)

    @property
    def unsettled_count(self) -> int:
        """Elements of the queue from the front on that it may still need. O(runs, blocks)."""
        count_live, end = self._queue.count_live, self._queue.next_sequence
        return count_live(self.front, end) - sum([count_live(first, stop) for first, stop in self._settled])

    def attempts_noted(self) -> dict[int, int]:
        """Return the failed attempts of elements that came back."""
        return self._above_front(self._attempts)

    def seen(self) -> dict[int, int]:
        return self._above_front(super().seen())

    def _above_front(self, attempts: Mapping[int, int]) -> dict[int, int]:
        """Return the attempts of elements from the front on: those below it could not be read and were lost."""
        front = self.front
        return {sequence: count for sequence, count in attempts.items() if sequence >= front}

    def restore_reader(self, settled: Iterable[range], seen_to: int, attempts: Mapping[int, int]) -> None:
        """Restore the state of an earlier run: elements settled above the front, and elements that may have been seen.
        O(n).

        Elements that have left the queue since are passed over: that run could not note it here.
        """
        is_alive, live_sequences = self._queue.is_alive, self._queue.live_sequences
        self.restore(seen_to, {sequence: count for sequence, count in attempts.items() if is_alive(sequence)})
        position = self.position
        for part in settled:
            for sequence in live_sequences(part.start, part.stop):
                self._settled.add(sequence, sequence + 1)
            position = max(position, part.stop)
        if position > self.position:
            self.position = position
            left = [s for s in live_sequences(self.front, self.position) if s not in self._settled]
            self._returned = left  # ascending: a heap
            self._returned_set = set(left)

    def requeue_held(self) -> int:
        """Requeue the elements that a consumer held which has gone, marked as seen. Returns their number."""
        held = sorted(self.held_of(self._queue.live_sequences(self.front, self.position)))
        for sequence in held:
            self._attempts.setdefault(sequence, 0)
        super().requeue(held, attempted=False)
        self.waiting_for = None
        return len(held)

    def needs(self, sequence: int) -> bool:
        """Return whether the element, if it is still in the queue, is not settled yet."""
        return sequence >= self.front and sequence not in self._settled

    def held_of(self, sequences: Iterable[int]) -> set[int]:
        """Return the elements, all of them still in the queue, that its consumer holds. O(n)."""
        front, position, settled, returned = self.front, self.position, self._settled, self._returned_set
        held = {s for s in sequences if front <= s < position and s not in settled and s not in returned}
        return held - self.withdrawn

    def withdraw(self, sequences: Iterable[int]) -> None:
        """See Cursor. They are given back later, or settled."""
        super().withdraw(sequences)
        self.withdrawn.update(sequences)

    def is_given_back(self, sequence: int) -> bool:
        """Return whether the element was requeued and not handed out again."""
        return sequence in self._returned_set

    def forget(self, sequences: Iterable[int]) -> None:
        super().forget(sequences)
        if self.withdrawn:
            self.withdrawn.difference_update(sequences)

    def settle(self, sequences: SequenceOf[int]) -> Gone:
        """Settle elements: this reader needs them no more. Returns what left the queue because all cursors have passed
        it.

        Ignores elements that the cursor has given up since.
        """
        self.forget(sequences)
        if (
            not self._settled
            and isinstance(sequences, range)
            and (sequences.start == self.front or sequences.start == self._queue.first_live(self.front))
        ):
            front = sequences.stop
        else:
            self._settled.add_all(sequences, floor=self.front)
            front = self._needed_from(self.front)
        return self._move_front(front)

    def requeue(self, sequences: SequenceOf[int], *, attempted: bool, charged: SequenceOf[int] | None = None) -> int:
        wanted = [sequence for sequence in sequences if sequence >= self.front]
        for sequence in wanted:
            if sequence in self._settled:
                raise QueueInvariantError(f"element {sequence} was acknowledged: it can't be requeued")
        front = self.front
        counted = None if charged is None else [sequence for sequence in charged if sequence >= front]
        super().requeue(wanted, attempted=attempted, charged=counted)
        if self.withdrawn:
            self.withdrawn.difference_update(wanted)
        return sum(1 for sequence in sequences if sequence < self.front)

    def skip_to(self, floor: int) -> tuple[int, Gone]:
        """Give up everything below `floor`.

        Returns the number of these elements that no consumer held (never handed out, or requeued, or withdrawn), and
        what left the queue because of it. Held elements may still be settled or requeued; both find them gone.
        """
        missed_count = 0
        if returned := self._skipped_of(self._returned_set, floor):
            missed_count = len(returned)
            self._returned_set -= returned
            self._returned = sorted(self._returned_set)
        if withdrawn := self.withdrawn_below(floor):
            missed_count += len(withdrawn)
            self.withdrawn -= withdrawn
        if floor > self.position:
            missed_count += self._queue.count_live(self.position, floor)
            self.position = floor
            self.waiting_for = None
        for sequence in self._skipped_of(self._attempts.keys(), floor):
            del self._attempts[sequence]
        self._settled.drop_below(floor)
        return missed_count, self._move_front(self._needed_from(max(self.front, floor)))

    def withdrawn_below(self, floor: int) -> set[int]:
        """Return the withdrawn elements that `skip_to` gives up."""
        return self._skipped_of(self.withdrawn, floor)

    def _skipped_of(self, among: Set[int], floor: int) -> set[int]:
        """Return the elements of `among` from the front to before `floor`. O(the fewer), without a line of Python for
        each.
        """
        skipped = range(self.front, floor)
        if len(skipped) < len(among):
            return set(filter(among.__contains__, skipped))
        return set(filter(skipped.__contains__, among))

    def pass_over(self, sequences: SequenceOf[int]) -> Gone:
        """Pass over elements that were removed from the queue. Returns what left because the front could move. O(n) at
        most.
        """
        self.forget(sequences)
        if not self._settled:
            return NOTHING_GONE  # a front at a gap with nothing settled behind it pins nothing
        return self._move_front(self._needed_from(self.front))

    def close(self) -> Gone:
        """Close the cursor. Returns what left the queue because of it."""
        return self._queue.untrack(self.front)

    def _needed_from(self, front: int) -> int:
        """Return the first element from `front` on that is neither settled nor gone."""
        settled = self._settled
        while settled:
            passed = settled.first_gap(front)
            live = self._queue.first_live(passed)
            settled.drop_below(live)
            if live == front:
                break
            front = live
        return front

    def _move_front(self, front: int) -> Gone:
        if front == self.front:
            return NOTHING_GONE
        old, self.front = self.front, front
        return self._queue.move_front(old, front)
