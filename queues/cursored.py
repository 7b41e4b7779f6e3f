"""Storage of a queue's elements: a sequence of messages in blocks, read by any number of cursors.

Every message that a queue takes gets the next `Sequence`. Sequences are grouped in blocks of 1,024 by their upper bits;
a block is the unit of residence (blocks.py): in memory, or outside in the store. A block whose elements are all gone is
dropped, so one message that stays unsettled for hours pins one block, not everything that passed since. With
`block_bytes_max` a block of large messages ends early: the sequence continues at the next multiple of 1,024.

Two ways for an element to leave:

- `remove`: removes named sequences. For queues with one consuming `Cursor`, where settling *is* leaving.
- `trim`: removes everything below the lowest front of all `TrackingCursor`s. For topics, where many readers share one
  copy. There `remove` is for elements that no cursor may read any more, such as expired ones: fronts pass over the gap.

Elements outside can leave, be counted and be named, but not be read: `read` then says which block is `missing`.

Invariants: `first_sequence <= every live sequence < next_sequence`; `live_count` is the number of live elements.

Not here: flow control (queue.py), which blocks are paged out and in (paging.py), positions of readers (cursors.py),
distribution (shared.py, topic.py).

Source: seed 002 "CursoredQueue"; DESIGN section 6; anchors d7, d17, d35.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from itertools import accumulate
from typing import Final, cast

from .blocks import NOTHING_GONE, Block, Gone, Outside, QueueInvariantError, bit_range, places_of
from .message import MESSAGE_OVERHEAD_BYTES, Message
from .slices import Slice, fit

BLOCK_BITS: Final = 10
BLOCK_SIZE: Final = 1 << BLOCK_BITS

TRIM_BLOCKS: Final = 4
"""Blocks that are released at once: half a millisecond if they are full."""

FRONTS_MIN: Final = 64
"""Dead entries that may always lie among the fronts."""


class CursoredQueue:
    """Elements in sequence order. No flow control, no wake-ups: the queue kinds add them."""

    __slots__ = (
        "_blocks",
        "_fronts",
        "_fronts_in_order",
        "_lowest_front",
        "_shared_slice",
        "block_bytes_max",
        "live_count",
        "missing",
        "next_sequence",
        "on_trim",
        "outside_count",
        "outside_gone_bytes",
        "outside_gone_count",
        "trims_to",
    )

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, Block] = OrderedDict()
        self._fronts: dict[int, int] = {}
        self._fronts_in_order: list[int] = []
        """A heap of the fronts, with some that are no more."""
        self._shared_slice: Slice | None = None
        self.next_sequence = 0
        self.live_count = 0
        self._lowest_front = 0
        self.block_bytes_max: int | None = None
        self.missing: int | None = None
        """The block that the last `read` or `get` needed, and that is outside; None: it needed none."""
        self.outside_count = 0
        """Blocks that are outside."""
        self.outside_gone_count = 0
        """Number of elements that left while they were outside, since the last call of `take_outside_gone`."""
        self.outside_gone_bytes = 0
        self.trims_to: int | None = None
        """Floor that the last `trim` did not reach; everything below it is to be removed. None: it was reached."""
        self.on_trim: Callable[[int], None] | None = None
        """Called with the floor when everything below it left because all cursors have passed."""

    def extend(self, messages: list[Message], charge_bytes: int = 0) -> int:
        """Append in order; returns the sequence of the first. `charge_bytes` of them all matters only where
        `block_bytes_max` is set: then they may not be contiguous. O(n).
        """
        if self.block_bytes_max is not None:
            return self._extend_by_bytes(messages, charge_bytes, self.block_bytes_max)
        first = sequence = self.next_sequence
        count = len(messages)
        start = 0
        while start < count:
            index = sequence >> BLOCK_BITS
            block = self._blocks.get(index)
            if block is None:
                block = self._blocks[index] = Block(sequence)
            room = ((index + 1) << BLOCK_BITS) - sequence
            part = messages if start == 0 and count <= room else messages[start : start + room]
            block.elements.extend(part)
            block.live_count += len(part)
            start += len(part)
            sequence += len(part)
        self.next_sequence = sequence
        self.live_count += count
        return first

    def _extend_by_bytes(self, messages: list[Message], charge_bytes: int, bytes_max: int) -> int:
        first = -1
        count = len(messages)
        start = 0
        while start < count:
            sequence = self.next_sequence
            index = sequence >> BLOCK_BITS
            block = self._blocks.get(index)
            if block is None:
                block = self._blocks[index] = Block(sequence)
            room = ((index + 1) << BLOCK_BITS) - sequence
            room_bytes = bytes_max - block.filled_bytes
            if start == 0 and count <= room and charge_bytes <= room_bytes:
                part, part_bytes = messages, charge_bytes
            else:
                part = messages[start : start + room]
                totals = list(accumulate([len(message.wire) + MESSAGE_OVERHEAD_BYTES for message in part]))
                fitting = bisect_right(totals, room_bytes) or 1
                part_bytes = totals[fitting - 1]
                part = part[:fitting]
            if block.outside is not None or block.leaving or (part_bytes > room_bytes and block.elements):
                self.next_sequence = (index + 1) << BLOCK_BITS  # the block is closed, or has no room: the next one
                continue
            if first < 0:
                first = sequence
            block.elements.extend(part)
            block.live_count += len(part)
            block.filled_bytes += part_bytes
            start += len(part)
            self.next_sequence = sequence + len(part)
        self.live_count += count
        return first

    def get(self, sequence: int) -> Message | None:
        """The live element at `sequence`, or None: it left, or it is outside (then `missing` is its block). O(1)."""
        block = self._blocks.get(sequence >> BLOCK_BITS)
        if block is None:
            return None
        place = sequence - block.base
        if block.outside is not None:
            if place >= 0 and block.outside.bits >> place & 1:
                self.missing = sequence >> BLOCK_BITS
            return None
        return block.elements[place] if 0 <= place < len(block.elements) else None

    def is_alive(self, sequence: int) -> bool:
        """Return whether the element is still in the queue, in memory or outside. O(1)."""
        block = self._blocks.get(sequence >> BLOCK_BITS)
        if block is None or sequence < block.base:
            return False
        place = sequence - block.base
        if block.outside is not None:
            return bool(block.outside.bits >> place & 1)
        return place < len(block.elements) and block.elements[place] is not None

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
            start = max(0, position - block.base)
            if block.outside is not None:
                bits = block.outside.bits >> start
                if bits:
                    return block.base + start + (bits & -bits).bit_length() - 1
            else:
                elements = block.elements
                for place in range(start, len(elements)):
                    if elements[place] is not None:
                        return block.base + place
            position = (index + 1) << BLOCK_BITS
        return self.next_sequence

    def live_sequences(self, first: int, end: int) -> list[int]:
        """Return the elements of `first` .. `end - 1` that are still in the queue. `end - 1` that are still there.
        O(end - first), less for blocks that left.
        """
        live: list[int] = []
        sequence = first
        while sequence < end:
            index = sequence >> BLOCK_BITS
            stop = min(end, (index + 1) << BLOCK_BITS)
            block = self._blocks.get(index)
            if block is not None:
                start = max(sequence, block.base)
                if block.outside is not None:
                    bits = block.outside.bits & bit_range(start - block.base, max(start, stop) - block.base)
                    live += [block.base + place for place in places_of(bits)]
                else:
                    part = block.elements[start - block.base : max(0, stop - block.base)]
                    live += [start + place for place, message in enumerate(part) if message is not None]
            sequence = stop
        return live

    def read(self, position: int, count_max: int, bytes_max: int, *, share: bool = False) -> tuple[Slice | None, int]:
        """Read the live elements from `position` on, at most `count_max` and (but for the first) `bytes_max` wire
        bytes.

        Returns the slice (None: nothing is ahead, or it is outside: see `missing`) and the position to continue from. A
        slice ends at the end of a block, so a large request may take several reads. `share`: remember the slice for
        other readers at this position. Raises QueueInvariantError for a `count_max` below 1, which would pass elements
        by unread. O(elements read).
        """
        if count_max < 1:
            raise QueueInvariantError(f"a read of {count_max} elements: ask only for a consumer that has credit")
        self.missing = None
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
            if block.outside is not None:
                if block.outside.bits >> place:
                    self.missing = index
                    return None, position
                position = (index + 1) << BLOCK_BITS
                continue
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
        return None, min(position, self.next_sequence)

    def _next_block_base(self, index: int) -> int:
        """First sequence of the next block that is there after `index`; `next_sequence` if none. O(1) if it is the very
        next, else O(blocks).
        """
        following = self._blocks.get(index + 1)
        if following is not None:
            return following.base
        for other in self._blocks:
            if other > index:
                return self._blocks[other].base
        return self.next_sequence

    def forget_missing(self) -> None:
        """Reset `missing`; call this before `get`, if the reason for a None matters."""
        self.missing = None

    def forget_shared_slice(self) -> None:
        """Release the slice kept for other readers (at the end of a dispatch)."""
        self._shared_slice = None

    # ------------------------------------------------------------------ leaving by name

    def remove(self, sequences: SequenceOf[int], *, unread: bool = False) -> None:
        """Remove elements. `unread`: some may be ahead of a cursor. O(n).

        Raises QueueInvariantError if one is not there; those before it have been removed then.
        """
        if unread:
            self._shared_slice = None  # the slice may hold some of the elements
        if isinstance(sequences, range) and sequences.step == 1:
            self._remove_range(sequences.start, sequences.stop, unread)
            return
        index, block = -1, None
        for sequence in sequences:
            if sequence >> BLOCK_BITS != index:
                index = sequence >> BLOCK_BITS
                block = self._blocks.get(index)
            if block is None or block.outside is not None or sequence < block.base:
                self._remove_range(sequence, sequence + 1, unread)
                block = self._blocks.get(index)
                continue
            place, elements = sequence - block.base, block.elements
            if place >= len(elements) or elements[place] is None:
                raise QueueInvariantError(f"element {sequence} left the queue before, or was never in it")
            elements[place] = None
            block.live_count -= 1
            self.live_count -= 1
            if unread:
                block.holed = True
            if block.live_count == 0:
                self._drop(index)
                block = None

    def _remove_range(self, first: int, end: int, unread: bool) -> None:
        sequence = first
        while sequence < end:
            index = sequence >> BLOCK_BITS
            block = self._blocks.get(index)
            stop = min(end, (index + 1) << BLOCK_BITS)
            if block is None or sequence < block.base or stop > block.base + block.length:
                raise QueueInvariantError(f"element {sequence} is not in the queue")
            place, count = sequence - block.base, stop - sequence
            if block.outside is not None:
                self._gone_outside(block.take_bits(bit_range(place, place + count)))
            else:
                elements = block.elements
                if count == 1:
                    if elements[place] is None:
                        raise QueueInvariantError(f"element {sequence} left the queue before")
                    elements[place] = None
                else:
                    whole = count == len(elements) == block.live_count
                    if not whole and not all(elements[place : place + count]):  # messages are true; 2 % of a settlement
                        raise QueueInvariantError(
                            f"some of the elements {sequence} to {stop - 1} left the queue before"
                        )
                    if count < block.live_count:
                        elements[place : place + count] = [None] * count
                block.live_count -= count
            self.live_count -= count
            if unread:
                block.holed = True
            if block.live_count == 0:
                self._drop(index)
            sequence = stop

    def _gone_outside(self, gone: Gone) -> None:
        self.outside_gone_count += gone[0]
        self.outside_gone_bytes += gone[1]

    def take_outside_gone(self) -> Gone:
        """Return the number and bytes of elements that left while they were outside, since the last call."""
        gone = self.outside_gone_count, self.outside_gone_bytes
        self.outside_gone_count = self.outside_gone_bytes = 0
        return gone

    def _drop(self, index: int) -> None:
        if self._blocks.pop(index).outside is not None:
            self.outside_count -= 1

    def holds_any(self, first: int, end: int) -> bool:
        """Whether any element of `first` .. `end - 1` is still there. O(end - first) at worst."""
        sequence = first
        while sequence < end:
            index = sequence >> BLOCK_BITS
            stop = min(end, (index + 1) << BLOCK_BITS)
            block = self._blocks.get(index)
            if block is not None:
                start, last = max(0, sequence - block.base), max(0, stop - block.base)
                if block.outside is not None:
                    if block.outside.bits & bit_range(start, max(start, last)):
                        return True
                elif any(block.elements[start:last]):
                    return True
            sequence = stop
        return False

    def count_live(self, first: int, end: int) -> int:
        """Return the number of elements of `first` .. `end - 1` that are still in the queue. `end - 1` are still there.
        O(blocks among them), in blocks with gaps O(elements).
        """
        count = 0
        indices = range(first >> BLOCK_BITS, ((end - 1) >> BLOCK_BITS) + 1)
        blocks: Iterable[Block] = self._blocks.values()
        if len(indices) < len(self._blocks):
            blocks = [self._blocks[index] for index in indices if index in self._blocks]
        for block in blocks:
            start, stop = max(first, block.base), min(end, block.base + block.length)
            if block.base >= end:
                break
            if start < stop:
                if block.live_count == block.length:
                    count += stop - start
                elif block.outside is not None:
                    count += (block.outside.bits & bit_range(start - block.base, stop - block.base)).bit_count()
                else:
                    count += stop - start - block.elements[start - block.base : stop - block.base].count(None)
        return count

    @property
    def block_count(self) -> int:
        """Blocks, in memory or outside: at most `live_count`."""
        return len(self._blocks)

    # ------------------------------------------------------------------ in memory or outside

    def block(self, index: int) -> Block | None:
        """Return the block with this number, None if all of it is gone."""
        return self._blocks.get(index)

    def extent(self, index: int) -> range:
        """Return the sequences of a block that is in memory; none of one that is outside, or gone."""
        block = self._blocks.get(index)
        return range(0) if block is None or block.outside is not None else range(block.base, block.base + block.length)

    def resident(self, first: int, end: int, *, persistent: bool = False) -> tuple[SequenceOf[int], list[Message]]:
        """Return the live elements from `first` to `end - 1`, which belong to one block, if that is in memory.
        `persistent`: only persistent ones. O(n).
        """
        block = self._blocks.get(first >> BLOCK_BITS)
        if block is None or block.outside is not None:
            return (), []
        start = max(first, block.base)
        part = block.elements[start - block.base : max(0, end - block.base)]
        if persistent:
            messages = [message for message in part if message is not None and message.head.persistent]
        else:
            messages = [message for message in part if message is not None]
        if len(messages) == len(part):
            return range(start, start + len(part)), messages
        sequences = [
            sequence
            for sequence, message in enumerate(part, start)
            if message is not None and (message.head.persistent or not persistent)
        ]
        return sequences, messages

    def blocks(self) -> Iterator[tuple[int, Block]]:
        """All blocks by number, the oldest first."""
        return iter(self._blocks.items())

    def block_indices(self) -> list[int]:
        """Return the numbers of all present blocks, the oldest first."""
        return list(self._blocks)

    def latest_blocks(self) -> Iterator[Block]:
        """All blocks, the newest first."""
        return reversed(self._blocks.values())

    def close_block(self, index: int) -> None:
        """Close the block: later elements go behind it, so the store is given all of it, once. O(1)."""
        self.next_sequence = max(self.next_sequence, (index + 1) << BLOCK_BITS)

    def restore(self, index: int, base: int, outside: Outside, live_count: int) -> None:
        """Restore a block that the store has from an earlier run; the last one last. New elements go behind it, into a
        block of their own.
        """
        block = Block(base)
        block.outside = outside
        block.live_count = live_count
        self._blocks[index] = block
        self.outside_count += 1
        self.live_count += live_count
        self.close_block(index)

    def move_out(self, index: int, *, placeholders: bool = False) -> Gone:
        """Let the elements of this block go from memory. Returns how many, and their wire bytes."""
        block = self._blocks[index]
        block.unload(placeholders=placeholders)
        assert block.outside is not None
        self.outside_count += 1
        self._shared_slice = None
        return block.live_count, block.outside.wire_bytes

    def move_in(self, index: int, messages: dict[int, Message]) -> tuple[int, int, int]:
        """Bring the elements of a block into memory. Returns their number, their wire bytes, and the wire bytes
        expected before.
        """
        block = self._blocks[index]
        assert block.outside is not None
        expected_bytes = block.outside.wire_bytes
        block.load(messages)
        self.outside_count -= 1
        return block.live_count, block.wire_bytes, expected_bytes

    # ------------------------------------------------------------------ leaving when all cursors passed

    def track(self, front: int) -> None:
        """Add a tracking cursor with its front here."""
        self._lowest_front = min(front, self._lowest_front) if self._fronts else front
        self._add_front(front)

    def _add_front(self, front: int) -> None:
        fronts = self._fronts
        count = fronts[front] = fronts.get(front, 0) + 1
        if count == 1:
            in_order = self._fronts_in_order
            heapq.heappush(in_order, front)
            if len(in_order) > 2 * len(fronts) + FRONTS_MIN:
                self._fronts_in_order = sorted(fronts)

    def untrack(self, front: int) -> Gone:
        """Remove a tracking cursor; returns the elements that no cursor needs any more."""
        return self.move_front(front, None)

    def move_front(self, old: int, new: int | None) -> Gone:
        """Move a tracking cursor's front (None: the cursor is gone). Returns what left because of it.

        O(elements that went + log fronts), amortised.
        """
        fronts = self._fronts
        if new is not None:
            self._add_front(new)
        left = fronts[old] - 1
        if left > 0:
            fronts[old] = left
            return NOTHING_GONE
        del fronts[old]
        if old > self._lowest_front:
            return NOTHING_GONE
        in_order = self._fronts_in_order
        while in_order and in_order[0] not in fronts:
            heapq.heappop(in_order)
        self._lowest_front = in_order[0] if fronts else self.next_sequence
        return self.trim(self._lowest_front)

    def trim(self, floor: int, blocks_max: int | None = None) -> Gone:
        """Remove all elements below `floor` and `trims_to`, read or not, of at most `blocks_max` blocks (None:
        TRIM_BLOCKS). The caller checks `trims_to` afterwards and repeats the call if it is set. O(elements removed).
        """
        left_count = TRIM_BLOCKS if blocks_max is None else blocks_max
        gone_count = gone_bytes = 0
        if self.trims_to is not None:
            floor = max(floor, self.trims_to)
        self.trims_to, wanted = None, floor
        while self._blocks:
            index, block = next(iter(self._blocks.items()))
            if block.base >= floor:
                break
            if not left_count:
                self.trims_to, floor = wanted, block.base
                break
            left_count -= 1
            if block.outside is not None:
                bits = block.outside.bits & bit_range(0, min(floor - block.base, block.outside.length))
                gone = block.take_bits(bits)
                self._gone_outside(gone)
                gone_count += gone[0]
                gone_bytes += gone[1]
                if block.live_count == 0:
                    self._drop(index)
                    continue
                break
            part = block.elements[: floor - block.base]
            sizes = [len(message.wire) for message in part if message is not None]
            gone_count += len(sizes)
            gone_bytes += sum(sizes)
            if floor >= block.base + len(block.elements):
                self._drop(index)
                continue
            if block.leaving:  # its places must not change until the store has it
                block.elements[: floor - block.base] = [None] * (floor - block.base)
                block.holed = True
            else:
                del block.elements[: floor - block.base]
                block.base = floor
            block.live_count -= len(sizes)
            if block.live_count == 0:
                self._drop(index)
            break
        self.live_count -= gone_count
        if gone_count and self.on_trim is not None:
            self.on_trim(floor)
        return gone_count, gone_bytes
