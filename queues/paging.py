"""Paging: which blocks of a queue are in memory, and which are outside.

*Out.* When a queue's messages take more than HIGH of its memory, and its consumers are away or slow for long
(taking.py), blocks go to the store until LOW is reached: the blocks farthest from any cursor that may read them soon.
In a queue that fills up that is the newest full block; in a topic with a stalled subscriber, the blocks that only this
one has yet to read. The block that is being filled stays, and so do blocks with elements held by group (their keys are
needed), and the two blocks that a reader is at. A block leaves memory only when the store has all of it. Candidates are
searched whenever an element is added; while senders wait, after each dispatch; and when a disk that was full or failed
accepts writes again. Pages may be on a disk of their own: while that refuses them, blocks that need no page (the store
has all of them) leave all the same.

*While senders wait*, and the blocks left in memory would keep them waiting (a few messages can take more than half of
it), the near blocks leave, too: the one that is being filled, which is closed by that, the next ones, and if the queue
has no consumers also the first. Blocks that then must stay because a reader is at them are excused: the limiter's
capacity is raised by their size. So senders never wait for a block that will not move.

*In.* A cursor that reaches a block outside waits for it; the next ones are requested at the same time, and whenever the
cursor enters a block, those up to AHEAD further are (seed 000: the next n are always requested, a hit asks for more),
as long as there is memory for them. Where senders have filled the memory, and wait, AHEAD_SHARE of it is allowed on top
for blocks ahead: otherwise the blocks would come in one by one. The block that a cursor waits for always comes in, so
at worst one block per waiting cursor is held beyond that.

Bound: the queue's memory limit, AHEAD_SHARE of it, and a block for each cursor.

Source: seed 002 "CursoredQueue"; seed 000 read-ahead; anchors d7, d8, d17, d25; DESIGN section 6.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from functools import partial
from typing import Final, Protocol

from ..flow import Account, Flow, ResidencyLimiter, SourceController
from .blocks import Block
from .cursored import BLOCK_BITS, CursoredQueue
from .environment import Scheduling, TimerHandle
from .message import MESSAGE_OVERHEAD_BYTES, Message
from .observer import Observer
from .storage import QueueStorage, Room, Store
from .taking import Taking

HIGH: Final = 0.5
"""Share of its memory from which on a queue pages out. The other half takes new elements until the disk has the old
ones.
"""
LOW: Final = 0.375
AHEAD_COUNT: Final = 4
"""Blocks that are asked for before their reader comes to them."""
AHEAD_SHARE: Final = 0.25
"""Part of the memory, beyond it, that blocks ahead of a reader may take where senders have used up the rest."""
BLOCK_BYTES_MAX: Final = 1 << 20
"""A block of large messages is closed at this size, so that it can be moved at once."""
BLOCKS_MIN: Final = 8
"""Least number of blocks into which the memory of a queue is divided: the blocks at its two ends can't leave."""


class Paged(Protocol):
    """Part of a queue that the pager uses."""

    @property
    def elements(self) -> CursoredQueue: ...
    @property
    def observer(self) -> Observer | None:
        """Observer of the blocks that move."""

    @property
    def is_consumed(self) -> bool:
        """Whether a consumer is attached."""

    @property
    def waits_for_consumers(self) -> bool:
        """Whether senders wait while consumers take; otherwise messages without room in memory go to the disk
        at once.
        """

    @property
    def settled_count(self) -> int:
        """Number of elements that consumers have ever taken."""

    def reading_blocks(self) -> Iterable[int]:
        """The blocks that cursors with credit read next."""

    def pinned_below(self) -> int:
        """Elements below this must stay in memory as they are."""

    def paged_in(self, index: int) -> None:
        """Continue with a block that is in memory, or gone."""

    def losing(self, sequences: SequenceOf[int]) -> None:
        """Note elements that can't be read, and leave now even if a consumer holds them."""

    def paged_out(self, indices: list[int]) -> None:
        """Note that blocks are outside."""


class Pager:
    """Moves the blocks of one queue."""

    __slots__ = (
        "_clock",
        "_closed",
        "_controller",
        "_disk_source",
        "_leaving_bytes",
        "_limiter",
        "_looked_at",
        "_page_source",
        "_pages_out",
        "_placeholders",
        "_queue",
        "_scheduling",
        "_storage_of",
        "_store",
        "_taking",
        "_timer",
        "_unpaged",
        "lost_count",
        "paged_in_count",
        "paged_out_count",
    )

    def __init__(
        self,
        queue: Paged,
        controller: Account,
        limiter: ResidencyLimiter,
        storage_of: Callable[[], QueueStorage],
        *,
        pages_out: bool = True,
        placeholders: bool = False,
        store: Store,
        scheduling: Scheduling,
        clock: Callable[[], float],
    ) -> None:
        """`pages_out` False: only elements of an earlier run are outside; `placeholders`: size and date of each element
        stay in memory.
        """
        self._queue = queue
        self._controller: Account = controller
        self._limiter = limiter
        self._storage_of = storage_of
        self._pages_out = pages_out
        self._placeholders = placeholders
        self._store = store
        self._scheduling = scheduling
        self._clock = clock
        self._taking = Taking()
        self._closed = False
        self._timer: TimerHandle | None = None
        """Timer of the next check, after consumers have been waited for."""
        self._disk_source: SourceController | None = None
        """Waits until the store takes something again: nothing leaves meanwhile."""
        self._page_source: SourceController | None = None
        """Waits until there is room for pages: only what needs none leaves meanwhile."""
        self._unpaged: set[int] = set()
        """Blocks that need a page, and were refused one since that waits."""
        self._looked_at = -1
        """The tail's block when nothing was found that needs no page."""
        self._leaving_bytes = 0
        """Bytes on their way out, still counted as memory in use."""
        self.paged_out_count = 0
        """Blocks."""
        self.paged_in_count = 0
        self.lost_count = 0
        """Elements that could not be read back."""
        self._size_blocks()

    def resized(self) -> None:
        """Note that the limiter has another capacity. Later blocks are as large as that allows."""
        self._size_blocks()
        if self.is_over:
            self.relieve()

    def _size_blocks(self) -> None:
        self._queue.elements.block_bytes_max = max(1, min(BLOCK_BYTES_MAX, self._limiter.capacity_bytes // BLOCKS_MIN))

    @property
    def is_over(self) -> bool:
        """Whether more is in memory than should stay. O(1): asked after each run that comes in."""
        limiter = self._limiter
        return (
            self._pages_out
            and limiter.used_bytes - self._leaving_bytes - limiter.excused_bytes > limiter.allowed_bytes * HIGH
        )

    def close(self) -> None:
        """Stop paging: the queue is deleted, or left as it is. A second call does nothing."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for source in (self._disk_source, self._page_source):
            if source is not None:
                source.close()

    # ------------------------------------------------------------------ out

    def relieve(self) -> None:
        """Send blocks out until LOW is reached, or none may go; unless consumers take, for whom senders wait: O(1).
        Else O(blocks in memory · log cursors).
        """
        limiter = self._limiter
        if self._closed:
            return
        if limiter.excused_bytes:
            self._excuse(min(limiter.excused_bytes, self._staying_bytes()))
        # While the broker's memory is short, blocks from the disk go back there rather than fill it.
        is_short = limiter.allowed_bytes < limiter.capacity_bytes and self._queue.elements.outside_count
        if self._queue.waits_for_consumers and not is_short and not self._is_slow():
            return
        excess_bytes = (
            limiter.used_bytes - self._leaving_bytes - limiter.excused_bytes - int(limiter.allowed_bytes * LOW)
        )
        if excess_bytes <= 0:
            return
        if _is_blocked(self._disk_source):
            return
        if not self._store.accepting:
            self._disk_source = self._wait_for(self._store, self._disk_source, "disk", self.relieve)
            return
        tail_index = self._queue.elements.next_sequence >> BLOCK_BITS
        if not _is_blocked(self._page_source):
            self._unpaged.clear()
        elif not limiter.throttled and self._looked_at == tail_index:
            return  # nothing has come since that could go
        leaving_bytes = self._leaving_bytes
        self._send_out(excess_bytes, near=False)
        self._looked_at = tail_index if self._leaving_bytes == leaving_bytes else -1
        excess_bytes = limiter.over_resume_bytes - self._leaving_bytes
        if limiter.throttled and excess_bytes > 0 and self._send_out(excess_bytes, near=True) > 0:
            self._excuse(self._staying_bytes())

    def consumers_left(self) -> None:
        """Note that the last consumer has gone."""
        self._taking.left(self._clock())

    def _is_slow(self) -> bool:
        """Return whether consumers are away or slow for long. If not, the memory is checked again when they have been
        waited for.
        """
        queue, now_seconds = self._queue, self._clock()
        is_slow = self._taking.is_slow(
            now_seconds,
            is_consumed=queue.is_consumed,
            taken_count=queue.settled_count,
            held_count=queue.elements.live_count,
        )
        if not is_slow and self._timer is None:
            delay_seconds = self._taking.next_check_at() - now_seconds
            self._timer = self._scheduling.call_later(delay_seconds, self._look_again)
        return is_slow

    def _look_again(self) -> None:
        """Check the memory again: senders wait and consumers take nothing, so no other call may have come since."""
        self._timer = None
        if self.is_over:
            self.relieve()

    def _send_out(self, excess_bytes: int, *, near: bool) -> int:
        """Send out blocks of `excess_bytes`, the farthest from a reader first. Returns the bytes that are missing."""
        for index, block in self._farthest(near=near):
            block.leaving = True
            self._queue.elements.close_block(index)
            size_bytes = _charge_of(block)
            self._leaving_bytes += size_bytes
            excess_bytes -= size_bytes
            self._storage_of().page_out(
                index, partial(self._stored, size_bytes, block), partial(self._refused, size_bytes, block, index)
            )
            if excess_bytes <= 0:
                break
        return excess_bytes

    def _excuse(self, size_bytes: int) -> None:
        """Excuse `size_bytes` that have to stay: they block no sender."""
        if size_bytes != self._limiter.excused_bytes:
            self._limiter.excuse(size_bytes)
            self._controller.poll()

    def _staying_bytes(self) -> int:
        """Return the bytes that must stay because a consumer reads them. Elements held for a message group do not
        count: they may be held for ever.
        """
        queue = self._queue
        if not queue.is_consumed:
            return 0
        blocks = [queue.elements.block(index) for index in set(queue.reading_blocks())]
        pinned_below = queue.pinned_below()
        return sum(
            [
                _charge_of(block)
                for block in blocks
                if block is not None and block.outside is None and not block.leaving and block.base >= pinned_below
            ]
        )

    def _wait_for(
        self, disk: Store | Room, source: SourceController | None, name: str, go_on: Callable[[], None]
    ) -> SourceController:
        """Wait for `disk` to have room, then call `go_on`: no sender of a queue whose memory is used up would trigger
        it. Returns the source that waits.
        """
        if source is None:
            resource = self._controller.resource
            flow = Flow(f"{resource.name} to {name}")
            source = SourceController(resource, flow, on_resume=lambda _sink: go_on(), clock=self._clock)
        if not source.blocked and not source.closed:
            disk.hold_back(source)
        return source

    def _look_for_pages(self) -> None:
        """Check again: there may be room for pages."""
        self._looked_at = -1
        self.relieve()

    def _farthest(self, *, near: bool) -> list[tuple[int, Block]]:
        """Return the blocks that may leave, the farthest from a reader first. `near`: all but those that a reader is
        at.
        """
        queue = self._queue
        elements = queue.elements
        readers = sorted(set(queue.reading_blocks()))
        tail_index = elements.next_sequence >> BLOCK_BITS
        pinned_below = queue.pinned_below()
        nearest = (1 if queue.is_consumed else 0) if near else 2
        candidates: list[tuple[int, int, Block]] = []
        for index, block in elements.blocks():
            if block.outside is not None or block.leaving or block.base < pinned_below or index in self._unpaged:
                continue
            if index >= tail_index and not near:
                continue
            place = bisect_right(readers, index)
            # Behind all readers (a consumer holds it, or reads there without credit): no reader comes to it soon.
            distance = index - readers[place - 1] if place else 1 << 40
            if distance >= nearest:
                candidates.append((distance, index, block))
        candidates.sort(key=lambda candidate: (-candidate[0], -candidate[1]))
        return [(index, block) for _distance, index, block in candidates]

    def _stored(self, size_bytes: int, block: Block, index: int) -> None:
        """Take a block out of memory that the store has written."""
        self._leaving_bytes -= size_bytes
        elements = self._queue.elements
        if self._closed:
            return
        if elements.block(index) is block and block.leaving:
            if block.base < self._queue.pinned_below():
                block.leaving = False  # a cursor has come here meanwhile
            else:
                count, wire_bytes = elements.move_out(index, placeholders=self._placeholders)
                self.paged_out_count += 1
                self._limiter.move_out(count, wire_bytes + count * MESSAGE_OVERHEAD_BYTES)
                if self._queue.observer is not None:
                    self._queue.observer.paged(block.base, block.base + block.length, paged_in=False)
                self._queue.paged_out([index])
                self._controller.poll()
        if self.is_over:
            self.relieve()  # some of it was settled meanwhile, or pinned: it made less room than expected

    def _refused(self, size_bytes: int, block: Block, index: int) -> None:
        """Keep a block in memory, since the disk has no room for its messages that are not persistent; it may be asked
        for again.
        """
        self._leaving_bytes -= size_bytes
        block.leaving = False
        if self._closed:
            return
        if self._queue.elements.block(index) is block:
            self._unpaged.add(index)
            room = self._store.paged
            self._page_source = self._wait_for(room, self._page_source, "pages", self._look_for_pages)
        if self.is_over:
            self.relieve()

    # ------------------------------------------------------------------ in

    def want(self, index: int, *, ahead: bool = True) -> None:
        """Request a block for which a cursor waits and (`ahead`) those behind it, as far as there is memory."""
        self._ask(index)
        if ahead:
            self.read_ahead(index)

    def read_ahead(self, index: int) -> None:
        """Read ahead: a cursor has reached the block."""
        elements = self._queue.elements
        if not elements.outside_count:
            return
        limiter = self._limiter
        room_bytes = int(limiter.allowed_bytes * HIGH) - limiter.used_bytes
        # Where senders have taken that room: what lies ahead, whether it is in memory yet or not, has some of its own.
        least_bytes = int(limiter.allowed_bytes * AHEAD_SHARE)
        for ahead in range(index, index + 1 + AHEAD_COUNT):
            block = elements.block(ahead)
            if block is None:
                continue
            size_bytes = _charge_of(block)
            least_bytes -= size_bytes
            if block.outside is not None:
                room_bytes -= size_bytes
                if room_bytes < 0 and least_bytes < 0:
                    return
                self._ask(ahead)

    def _ask(self, index: int) -> None:
        block = self._queue.elements.block(index)
        if self._closed:
            return
        if block is None or block.outside is None:
            self._queue.paged_in(index)
        elif not block.outside.wanted:
            block.outside.wanted = True
            self._storage_of().load(index, self._arrived)

    def _arrived(self, index: int, by_sequence: dict[int, Message]) -> None:
        elements = self._queue.elements
        block = elements.block(index)
        if self._closed:
            return
        if block is not None and block.outside is not None:
            missing = [
                s for s in elements.live_sequences(block.base, block.base + block.length) if s not in by_sequence
            ]
            if missing:
                self._lose(index, missing)
            if elements.block(index) is block:
                base = block.base
                messages = {sequence - base: message for sequence, message in by_sequence.items() if sequence >= base}
                count, wire_bytes, expected_bytes = elements.move_in(index, messages)
                self._limiter.correct(wire_bytes - expected_bytes)
                self._limiter.move_in(count, wire_bytes + count * MESSAGE_OVERHEAD_BYTES)
                self.paged_in_count += 1
                if self._queue.observer is not None:
                    self._queue.observer.paged(base, base + block.length, paged_in=True)
        self._queue.paged_in(index)
        if self.is_over:
            self.relieve()

    def _lose(self, index: int, missing: list[int]) -> None:
        """Remove elements whose records could not be read."""
        self.lost_count += len(missing)
        self._queue.losing(missing)
        self._queue.elements.remove(missing, unread=True)
        self._storage_of().lost(index, missing)
        self.account_for_outside_gone()

    def account_for_outside_gone(self) -> None:
        """Release the charge of elements that left while they were outside. May resume sources."""
        count, wire_bytes = self._queue.elements.take_outside_gone()
        if count:
            self._limiter.remove_outside(count, wire_bytes + count * MESSAGE_OVERHEAD_BYTES)
            self._controller.poll()


def _is_blocked(source: SourceController | None) -> bool:
    return source is not None and source.blocked


def _charge_of(block: Block) -> int:
    return block.wire_bytes + block.live_count * MESSAGE_OVERHEAD_BYTES
