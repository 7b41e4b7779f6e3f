"""The one place where elements live: a sequence of messages in blocks, read by any number of cursors.

Every message that a queue takes gets the next `Sequence`. Sequences are grouped in blocks of 1,024 by their upper bits;
a block is the unit of residence (in memory today; the store pages whole blocks out and in). A block whose elements are
all gone is dropped, so one message that stays unsettled for hours pins one block, not everything that passed since.

Two ways for an element to leave:

- `remove`: named sequences go. For queues with one consuming `Cursor`, where settling *is* leaving.
- `trim`: everything below the lowest front of all `TrackingCursor`s goes. For topics, where many share one copy.
  There `remove` is for what no cursor is to have any more, such as elements past their date: fronts pass over the gap.

Reading never takes anything out: `Cursor.take` hands a `Slice` of what lies ahead of the cursor and moves on. What is
given back lies in the cursor's heap of returns and goes first, in order, with its number of attempts.

Invariants: `first_sequence <= every live sequence < next_sequence`; `live_count` is the number of live elements; the
position of a cursor goes back only by `untake`; a sequence is in at most one of {ahead of the cursor, returned, handed
out, settled}.

Not here: flow control (queue.py), who gets what (shared.py, topic.py).
Source: seed 002 "CursoredQueue"; DESIGN section 6; anchors d7, d17, d35.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from itertools import accumulate
from typing import Final, cast

from queues.message import MESSAGE_OVERHEAD_BYTES, Message

BLOCK_BITS: Final = 10
BLOCK_SIZE: Final = 1 << BLOCK_BITS


Gone = tuple[int, int]
"""What left: how many elements, and their wire bytes."""

NOTHING_GONE: Final[Gone] = (0, 0)


class QueueInvariantError(AssertionError):
    """A broken invariant: a bug of ours, never the fault of a peer. Stops loudly."""


class Slice:
    """Some elements in order, as handed to one consumer. Shared by cursors at the same position; not changed once made.

    `neutral`: every header block reads the same in all dialects. `sequences` is a range where nothing is missing, else
    a list. `attempts`: how often each was handed over before, None if none was. `returned`: these had been given back.
    `rendered` is scratch space for the consumers: bytes that one of them made of this slice, so that ten subscribers
    at one position cost one rendering.
    """

    __slots__ = ("attempts", "end", "first", "messages", "neutral", "rendered", "returned", "sequences", "wire_bytes")

    def __init__(
        self,
        messages: list[Message],
        sequences: SequenceOf[int],
        wire_bytes: int,
        attempts: dict[int, int] | None = None,
        *,
        returned: bool = False,
    ) -> None:
        self.messages = messages
        self.sequences = sequences
        self.wire_bytes = wire_bytes
        self.attempts = attempts
        self.returned = returned
        self.first = sequences[0]
        self.end = sequences[-1] + 1
        self.neutral = all([message.head.neutral for message in messages])  # noqa: C419 (a list is twice as fast here)
        self.rendered: list[bytes] | None = None

    def __len__(self) -> int:
        return len(self.messages)

    def without(self, sequences: Iterable[int]) -> Slice | None:
        """What is left when these are taken out; None if nothing is."""
        out = set(sequences)
        left = [(s, message) for s, message in zip(self.sequences, self.messages, strict=True) if s not in out]
        if not left:
            return None
        messages = [message for _sequence, message in left]
        wire_bytes = sum([len(message.wire) for message in messages])
        return Slice(messages, [s for s, _message in left], wire_bytes, self.attempts, returned=self.returned)

    @property
    def charge_bytes(self) -> int:
        """What these elements are charged in the queue that holds them."""
        return self.wire_bytes + len(self.messages) * MESSAGE_OVERHEAD_BYTES


class _Block:
    """Elements `base` .. `base + len(elements) - 1`; None where one left. `holed`: one left before it was read."""

    __slots__ = ("base", "elements", "holed", "live_count")

    def __init__(self, base: int) -> None:
        self.base = base
        self.elements: list[Message | None] = []
        self.live_count = 0
        self.holed = False


def fit(wires: Iterable[bytes], bytes_max: int) -> tuple[int, int]:
    """How many of these fit into `bytes_max` (always at least one), and their bytes. O(n)."""
    totals = list(accumulate(map(len, wires)))
    if totals[-1] <= bytes_max:
        return len(totals), totals[-1]
    count = max(1, bisect_right(totals, bytes_max))
    return count, totals[count - 1]


class CursoredQueue:
    """Elements in sequence order. No flow control, no wake-ups: the queue kinds add those."""

    __slots__ = ("_blocks", "_fronts", "_lowest_front", "_shared_slice", "live_count", "next_sequence")

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, _Block] = OrderedDict()
        self._fronts: dict[int, int] = {}
        self._shared_slice: Slice | None = None
        self.next_sequence = 0
        self.live_count = 0
        self._lowest_front = 0

    def extend(self, messages: list[Message]) -> int:
        """Append in order; returns the sequence of the first. O(n)."""
        first = sequence = self.next_sequence
        count = len(messages)
        start = 0
        while start < count:
            index = sequence >> BLOCK_BITS
            block = self._blocks.get(index)
            if block is None:
                block = self._blocks[index] = _Block(sequence)
            room = ((index + 1) << BLOCK_BITS) - sequence
            part = messages if start == 0 and count <= room else messages[start : start + room]
            block.elements.extend(part)
            block.live_count += len(part)
            start += len(part)
            sequence += len(part)
        self.next_sequence = sequence
        self.live_count += count
        return first

    def get(self, sequence: int) -> Message | None:
        """The live element at `sequence`, or None. O(1)."""
        block = self._blocks.get(sequence >> BLOCK_BITS)
        if block is None:
            return None
        place = sequence - block.base
        return block.elements[place] if 0 <= place < len(block.elements) else None

    @property
    def first_sequence(self) -> int:
        """Lowest live sequence, `next_sequence` when empty. O(block)."""
        return self.first_live(0)

    def first_live(self, position: int) -> int:
        """Lowest live sequence from `position` on, `next_sequence` if there is none. O(1) if `position` is alive, else
        O(block + blocks).
        """
        while position < self.next_sequence:
            index = position >> BLOCK_BITS
            block = self._blocks.get(index)
            if block is None:
                position = self._next_block_base(index)
                continue
            elements = block.elements
            for place in range(max(0, position - block.base), len(elements)):
                if elements[place] is not None:
                    return block.base + place
            position = (index + 1) << BLOCK_BITS
        return self.next_sequence

    def live_sequences(self, first: int, end: int) -> list[int]:
        """Those of `first` .. `end - 1` that are still there. O(end - first), less for blocks that left."""
        live: list[int] = []
        sequence = first
        while sequence < end:
            index = sequence >> BLOCK_BITS
            stop = min(end, (index + 1) << BLOCK_BITS)
            block = self._blocks.get(index)
            if block is not None:
                start = max(sequence, block.base)
                part = block.elements[start - block.base : max(0, stop - block.base)]
                live += [start + place for place, message in enumerate(part) if message is not None]
            sequence = stop
        return live

    def read(self, position: int, count_max: int, bytes_max: int, *, share: bool = False) -> tuple[Slice | None, int]:
        """Live elements from `position` on, at most `count_max` and (but for the first) `bytes_max` wire bytes.

        Returns the slice (None: nothing lies ahead) and the position to go on from. A slice ends at the end of a block,
        so a large request may take several reads. `share`: remember the slice for other readers at this position.
        Raises QueueInvariantError for a `count_max` below 1, which would pass elements by unread. O(elements read).
        """
        if count_max < 1:
            raise QueueInvariantError(f"a read of {count_max} elements: ask only for a consumer that has credit")
        if share:
            shared = self._shared_slice
            if (
                shared is not None
                and shared.first == position
                and len(shared.messages) <= count_max
                and (shared.wire_bytes <= bytes_max or len(shared.messages) == 1)
            ):
                return shared, shared.end
        while position < self.next_sequence:
            index = position >> BLOCK_BITS
            block = self._blocks.get(index)
            if block is None:
                position = self._next_block_base(index)
                continue
            place = max(0, position - block.base)
            elements = block.elements
            look_count = count_max
            if place < len(elements) and (first := elements[place]) is not None:
                # Not more than would fit if all were as long as this one: a reader with little credit in bytes must
                # not pay for the whole block each time. Where the others are shorter the slice is, too.
                look_count = min(count_max, bytes_max // (len(first.wire) or 1) + 1)
            part = elements[place : place + look_count]
            sequences: SequenceOf[int] = range(block.base + place, block.base + place + len(part))
            if not part:
                position = (index + 1) << BLOCK_BITS
                continue
            if block.holed:
                sequences = [block.base + place + i for i, message in enumerate(part) if message is not None]
                if not sequences:
                    position = block.base + place + len(part)
                    continue
            live = [message for message in part if message is not None] if block.holed else cast("list[Message]", part)
            count, wire_bytes = fit([message.wire for message in live], bytes_max)
            if count < len(live):
                live = live[:count]
                sequences = sequences[:count]
            result = Slice(live, sequences, wire_bytes)
            if share:
                self._shared_slice = result
            return result, result.end
        return None, position

    def _next_block_base(self, index: int) -> int:
        """First sequence of the next block that is there after `index`; `next_sequence` if none. O(blocks)."""
        for other in self._blocks:
            if other > index:
                return self._blocks[other].base
        return self.next_sequence

    def forget_shared_slice(self) -> None:
        """Let go of the slice kept for other readers (at the end of a dispatch)."""
        self._shared_slice = None

    # ------------------------------------------------------------------ leaving by name

    def remove(self, sequences: SequenceOf[int], *, unread: bool = False) -> None:
        """Take these out. `unread`: some may lie ahead of a cursor. O(n).

        Raises QueueInvariantError if one is not there; those before it are out then.
        """
        if unread:
            self._shared_slice = None  # it may hold some of these
        if isinstance(sequences, range) and sequences.step == 1:
            self._remove_range(sequences.start, sequences.stop, unread)
            return
        for sequence in sequences:
            self._remove_range(sequence, sequence + 1, unread)

    def _remove_range(self, first: int, end: int, unread: bool) -> None:
        sequence = first
        while sequence < end:
            index = sequence >> BLOCK_BITS
            block = self._blocks.get(index)
            stop = min(end, (index + 1) << BLOCK_BITS)
            if block is None or sequence < block.base or stop > block.base + len(block.elements):
                raise QueueInvariantError(f"element {sequence} is not in the queue")
            place, count = sequence - block.base, stop - sequence
            elements = block.elements
            if count == 1:
                if elements[place] is None:
                    raise QueueInvariantError(f"element {sequence} left the queue before")
                elements[place] = None
            else:
                if not all(elements[place : place + count]):  # messages are true; this costs 2 % of a settlement
                    raise QueueInvariantError(f"some of the elements {sequence} to {stop - 1} left the queue before")
                if count < block.live_count:
                    elements[place : place + count] = [None] * count
            block.live_count -= count
            self.live_count -= count
            if unread:
                block.holed = True
            if block.live_count == 0:
                del self._blocks[index]
            sequence = stop

    def holds_any(self, first: int, end: int) -> bool:
        """Whether any element of `first` .. `end - 1` is still there. O(end - first) at worst."""
        sequence = first
        while sequence < end:
            index = sequence >> BLOCK_BITS
            stop = min(end, (index + 1) << BLOCK_BITS)
            block = self._blocks.get(index)
            if block is not None and any(block.elements[max(0, sequence - block.base) : max(0, stop - block.base)]):
                return True
            sequence = stop
        return False

    def count_live(self, first: int, end: int) -> int:
        """How many of `first` .. `end - 1` are still there. O(blocks), in blocks with gaps O(elements)."""
        count = 0
        for block in self._blocks.values():
            start, stop = max(first, block.base), min(end, block.base + len(block.elements))
            if block.base >= end:
                break
            if start < stop:
                count += stop - start
                if block.live_count < len(block.elements):
                    count -= block.elements[start - block.base : stop - block.base].count(None)
        return count

    @property
    def block_count(self) -> int:
        """Blocks in memory: what the elements pin, at most `live_count`."""
        return len(self._blocks)

    # ------------------------------------------------------------------ leaving when all cursors passed

    def track(self, front: int) -> None:
        """A tracking cursor has its front here."""
        self._lowest_front = min(front, self._lowest_front) if self._fronts else front
        self._fronts[front] = self._fronts.get(front, 0) + 1

    def untrack(self, front: int) -> Gone:
        """A tracking cursor is gone; returns what nobody needs any more."""
        return self.move_front(front, None)

    def move_front(self, old: int, new: int | None) -> Gone:
        """A tracking cursor's front moved (None: it is gone). Returns what left because of it.

        O(elements that went + distinct fronts, when the lowest one moved).
        """
        fronts = self._fronts
        if new is not None:
            fronts[new] = fronts.get(new, 0) + 1
        left = fronts[old] - 1
        if left > 0:
            fronts[old] = left
            return NOTHING_GONE
        del fronts[old]
        if old > self._lowest_front:
            return NOTHING_GONE
        self._lowest_front = min(fronts) if fronts else self.next_sequence
        return self.trim(self._lowest_front)

    def trim(self, floor: int) -> Gone:
        """Everything below `floor` goes, read or not. O(elements that went)."""
        gone_count = gone_bytes = 0
        while self._blocks:
            index, block = next(iter(self._blocks.items()))
            if block.base >= floor:
                break
            part = block.elements[: floor - block.base]
            sizes = [len(message.wire) for message in part if message is not None]
            gone_count += len(sizes)
            gone_bytes += sum(sizes)
            if floor >= block.base + len(block.elements):
                del self._blocks[index]
                continue
            del block.elements[: floor - block.base]
            block.base = floor
            block.live_count -= len(sizes)
            if block.live_count == 0:
                del self._blocks[index]
            break
        self.live_count -= gone_count
        return gone_count, gone_bytes


class Cursor:
    """A place in a CursoredQueue. `take` hands out what was given back first, then what lies ahead. The owner of the
    queue removes what is settled.
    """

    __slots__ = ("_attempts", "_queue", "_returned", "_returned_set", "position")

    _shares_slices = False

    def __init__(self, queue: CursoredQueue, position: int) -> None:
        self._queue = queue
        self.position = position
        self._returned: list[int] = []
        self._returned_set: set[int] = set()
        self._attempts: dict[int, int] = {}

    @property
    def ahead_count(self) -> int:
        """Elements not handed out: given back, or ahead (an upper bound if some of those left unread). O(1)."""
        return len(self._returned_set) + self._queue.next_sequence - self.position

    @property
    def has_more(self) -> bool:
        """Whether `take` may find something. O(1)."""
        return bool(self._returned) or self.position < self._queue.next_sequence

    @property
    def next_returned(self) -> int | None:
        """The lowest element that was given back and not handed out again. O(1) amortised."""
        returned = self._returned
        while returned and returned[0] not in self._returned_set:
            heapq.heappop(returned)
        return returned[0] if returned else None

    def is_available(self, sequence: int) -> bool:
        """Whether this element is not in a consumer's hands."""
        return sequence >= self.position or sequence in self._returned_set

    def take(self, count_max: int, bytes_max: int) -> Slice | None:
        """The next elements in order: at most `count_max` (at least 1), and `bytes_max` wire bytes but for the first.

        They count as handed out. None: nothing lies ahead.
        """
        if self._returned:
            taken = self._take_returned(count_max, bytes_max)
            if taken is not None:
                return taken
        result, self.position = self._queue.read(self.position, count_max, bytes_max, share=self._shares_slices)
        return result

    def _take_returned(self, count_max: int, bytes_max: int) -> Slice | None:
        messages: list[Message] = []
        sequences: list[int] = []
        attempts: dict[int, int] = {}
        wire_bytes = 0
        while self._returned and len(messages) < count_max:
            sequence = self._returned[0]
            message = self._queue.get(sequence) if sequence in self._returned_set else None
            if message is not None:
                if messages and wire_bytes + len(message.wire) > bytes_max:
                    break
                messages.append(message)
                sequences.append(sequence)
                wire_bytes += len(message.wire)
                if sequence in self._attempts:
                    attempts[sequence] = self._attempts[sequence]
            heapq.heappop(self._returned)
            self._returned_set.discard(sequence)
        return Slice(messages, sequences, wire_bytes, attempts or None, returned=True) if messages else None

    def untake(self, part: Slice, start: int) -> None:
        """Nobody wanted `part` from its element `start` on: as if it had not been taken. Not for tracking cursors.

        Only for the latest `take` of which something is left. O(1), but O(n log n) for what had been given back.
        """
        if start >= len(part.messages):
            return
        if part.returned:
            self.give_back(part.sequences[start:], attempted=False)
            return
        if part.end > self.position:
            raise QueueInvariantError(f"elements up to {part.end - 1} were not taken: the cursor is at {self.position}")
        self.position = part.sequences[start]

    def give_back(self, sequences: Iterable[int], *, attempted: bool) -> int:
        """These come back, to be handed out again before anything later. `attempted`: they were really handed over.

        Returns how many of them will never come again: none, but for a TrackingCursor that has given them up since.
        O(n log n). Raises QueueInvariantError for one that nobody can hold.
        """
        for sequence in sequences:
            if sequence in self._returned_set or sequence >= self.position:
                raise QueueInvariantError(f"element {sequence} is in nobody's hands: it can't be given back")
            if attempted:
                self.count_attempt(sequence)
            self._returned_set.add(sequence)
            heapq.heappush(self._returned, sequence)
        return 0

    def count_attempt(self, sequence: int) -> None:
        """This element was handed over once more, in vain."""
        self._attempts[sequence] = self._attempts.get(sequence, 0) + 1

    def forget(self, sequences: Iterable[int]) -> None:
        """These left the queue: drop what is remembered of them. Cheap when there is nothing to remember."""
        if self._attempts or self._returned_set:
            for sequence in sequences:
                self._attempts.pop(sequence, None)
                self._returned_set.discard(sequence)

    def attempts_of(self, sequence: int) -> int:
        """How often this element was handed over before."""
        return self._attempts.get(sequence, 0)


class TrackingCursor(Cursor):
    """One of many readers of the same elements: the discipline of topics.

    It keeps its own settled set above a *front*, the lowest element that it may still need, and tells the queue when
    the front moves. A slice is shared with the others at the same position. Do not `untake`.
    """

    __slots__ = ("_settled", "front")

    _shares_slices = True

    def __init__(self, queue: CursoredQueue, position: int) -> None:
        super().__init__(queue, position)
        self.front = position
        self._settled: set[int] = set()
        queue.track(position)

    def held_of(self, sequences: Iterable[int]) -> set[int]:
        """Which of these, all of them still in the queue, are in the hands of its consumer. O(n)."""
        front, position, settled, returned = self.front, self.position, self._settled, self._returned_set
        return {s for s in sequences if front <= s < position and s not in settled and s not in returned}

    def settle(self, sequences: SequenceOf[int]) -> Gone:
        """These need not come again. Returns what left the queue because all cursors passed.

        What the cursor has given up since is ignored.
        """
        self.forget(sequences)
        if (
            not self._settled
            and isinstance(sequences, range)
            and (sequences.start == self.front or sequences.start == self._queue.first_live(self.front))
        ):
            front = sequences.stop
        else:
            self._settled.update([sequence for sequence in sequences if sequence >= self.front])
            front = self._needed_from(self.front)
        return self._move_front(front)

    def give_back(self, sequences: Iterable[int], *, attempted: bool) -> int:
        """See Cursor."""
        wanted = [sequence for sequence in sequences if sequence >= self.front]
        for sequence in wanted:
            if sequence in self._settled:
                raise QueueInvariantError(f"element {sequence} was settled: it can't be given back")
        super().give_back(wanted, attempted=attempted)
        return sum(1 for sequence in sequences if sequence < self.front)

    def skip_to(self, floor: int) -> tuple[int, Gone]:
        """Give up everything below `floor`.

        Returns how many of these elements were not in anybody's hands (never handed out, or given back), and what left
        the queue because of it. What is in somebody's hands may still be settled or given back; both find it gone.
        """
        missed_count = sum(1 for sequence in self._returned_set if sequence < floor)
        if floor > self.position:
            missed_count += self._queue.count_live(self.position, floor)
            self.position = floor
        self._returned_set = {sequence for sequence in self._returned_set if sequence >= floor}
        self._returned = sorted(self._returned_set)
        self._attempts = {sequence: n for sequence, n in self._attempts.items() if sequence >= floor}
        self._settled = {sequence for sequence in self._settled if sequence >= floor}
        return missed_count, self._move_front(self._needed_from(max(self.front, floor)))

    def pass_over(self, sequences: SequenceOf[int]) -> Gone:
        """These were removed from the queue. Returns what left because the front could pass them. O(n) at most."""
        self.forget(sequences)
        if not self._settled:
            return NOTHING_GONE  # a front at a gap with nothing settled behind it pins nothing
        self._settled.difference_update(sequences)
        return self._move_front(self._needed_from(self.front))

    def close(self) -> Gone:
        """The cursor is gone. Returns what left the queue because of it."""
        return self._queue.untrack(self.front)

    def _needed_from(self, front: int) -> int:
        """The first element from `front` on that is neither settled nor gone."""
        settled = self._settled
        while settled:
            if front in settled:
                settled.discard(front)
                front += 1
                continue
            live = self._queue.first_live(front)
            if live == front:
                break
            front = live
        return front

    def _move_front(self, front: int) -> Gone:
        if front == self.front:
            return NOTHING_GONE
        old, self.front = self.front, front
        return self._queue.move_front(old, front)
