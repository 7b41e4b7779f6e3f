"""Which blocks of a queue are in memory, and which are outside.

*Out.* When a queue's messages take more than HIGH of its memory, and its consumers are away or slow for long
(taking.py), blocks go to the store until LOW is reached: those
that are farthest from any cursor that may read them soon. Of a queue that fills up that is the newest full block; of a
topic with a stalled subscriber, what only that one has yet to read. The block that is being filled stays, and so do
those in which elements are held by group (their keys are needed), and the two that a reader is at. A block leaves
memory only when the store has all of it. It is looked for whenever something comes in; while senders wait, after each
dispatch; and when a disk that was full or failed takes something again. Pages may lie on a disk of their own: while
that refuses them, what needs none (the store has all of it) leaves all the same.

*While senders wait*, and what is left in memory would keep them waiting (a few messages can take more than half of it),
the near blocks go, too: the one that is being filled, which is closed by that, the next ones, and if nobody consumes
also the first. What then must stay because a reader is at it is excused: the limiter's capacity lies above it. So
senders never wait for what nobody is going to move.

*In.* A cursor that comes to a block that is outside waits for it; the next ones are asked for at the same time, and
whenever the cursor enters a block, those up to AHEAD further are (seed 000: the next n are always requested, a hit asks
for more), as long as there is memory for them. Where senders have filled that, and wait, AHEAD_SHARE of it is let in on
top for what lies ahead: else the blocks that they wait for would come in one by one. The one that is waited for always
comes in, so at worst one block per waiting cursor is held beyond that.

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
"""Share of its memory from which on a queue pages out. The other half takes what comes in until the disk has it."""
LOW: Final = 0.375
AHEAD_COUNT: Final = 4
"""Blocks that are asked for before their reader comes to them."""
AHEAD_SHARE: Final = 0.25
"""Of the memory, beyond it: what lies ahead of a reader may take so much where senders have used up the rest."""
BLOCK_BYTES_MAX: Final = 1 << 20
"""A block of large messages is closed at this size, so that it can be moved at once."""
BLOCKS_MIN: Final = 8
"""Into so many blocks the memory of a queue is divided at least: those at its two ends can't leave."""


class Paged(Protocol):
    """What the pager asks of its queue."""

    @property
    def elements(self) -> CursoredQueue: ...
    @property
    def observer(self) -> Observer | None:
        """Is told which blocks move."""

    @property
    def is_consumed(self) -> bool:
        """Somebody takes from it."""

    @property
    def waits_for_consumers(self) -> bool:
        """Its senders wait while consumers take. Else what has no room in memory goes to the disk at once."""

    @property
    def settled_count(self) -> int:
        """How many elements consumers have ever taken."""

    def reading_blocks(self) -> Iterable[int]:
        """The blocks that cursors with credit read next."""

    def pinned_below(self) -> int:
        """Elements below this must stay in memory as they are."""

    def paged_in(self, index: int) -> None:
        """This block is in memory, or gone: go on."""

    def losing(self, sequences: SequenceOf[int]) -> None:
        """These can't be read, and leave now, whoever holds them."""

    def paged_out(self, indices: list[int]) -> None:
        """These blocks are outside."""


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
        """`pages_out` False: only what an earlier run left is outside; `placeholders`: size and date of each element
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
        """Looks again when consumers have been waited for."""
        self._disk_source: SourceController | None = None
        """Waits until the store takes something again: nothing leaves meanwhile."""
        self._page_source: SourceController | None = None
        """Waits until there is room for pages: only what needs none leaves meanwhile."""
        self._unpaged: set[int] = set()
        """Blocks that need a page, and were refused one since that waits."""
        self._looked_at = -1
        """The tail's block when nothing was found that needs no page."""
        self._leaving_bytes = 0
        """What is on its way out, and still counted as memory in use."""
        self.paged_out_count = 0
        """Blocks."""
        self.paged_in_count = 0
        self.lost_count = 0
        """Elements that could not be read back."""
        queue.elements.block_bytes_max = max(1, min(BLOCK_BYTES_MAX, limiter.capacity_bytes // BLOCKS_MIN))

    @property
    def is_over(self) -> bool:
        """There is more in memory than should stay. O(1): asked after each run that comes in."""
        limiter = self._limiter
        return (
            self._pages_out
            and limiter.used_bytes - self._leaving_bytes - limiter.excused_bytes > limiter.allowed_bytes * HIGH
        )

    def close(self) -> None:
        """The queue is deleted, or left as it is: nothing goes out or comes in any more. A second call does nothing."""
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
        # While the broker's memory is short, what has come from the disk goes back there rather than fill it.
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
        """The last consumer has gone."""
        self._taking.left(self._clock())

    def _is_slow(self) -> bool:
        """Whether consumers are away or slow for long. If not it is looked again when they have been waited for."""
        queue, now_seconds = self._queue, self._clock()
        is_slow = self._taking.is_slow(
            now_seconds,
            is_consumed=queue.is_consumed,
            taken_count=queue.settled_count,
            held_count=queue.elements.live_count,
        )
        if not is_slow and self._timer is None:
            delay_seconds = self._taking.looks_again_at() - now_seconds
            self._timer = self._scheduling.call_later(delay_seconds, self._look_again)
        return is_slow

    def _look_again(self) -> None:
        """Nobody may have come by since: senders wait, and consumers take nothing."""
        self._timer = None
        if self.is_over:
            self.relieve()

    def _send_out(self, excess_bytes: int, *, near: bool) -> int:
        """Send out so much, the farthest from a reader first. Returns what is missing of it."""
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
        """So much has to stay, and holds nobody back."""
        if size_bytes != self._limiter.excused_bytes:
            self._limiter.excuse(size_bytes)
            self._controller.poll()

    def _staying_bytes(self) -> int:
        """What must stay because somebody reads it. What is held for a message group is not that: it has no end."""
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
        """Nobody sends to a queue whose memory is used up: so nobody else would look again. Returns who waits."""
        if source is None:
            resource = self._controller.resource
            flow = Flow(f"{resource.name} to {name}")
            source = SourceController(resource, flow, on_resume=lambda _sink: go_on(), clock=self._clock)
        if not source.blocked and not source.closed:
            disk.hold_back(source)
        return source

    def _look_for_pages(self) -> None:
        """There may be room for pages again."""
        self._looked_at = -1
        self.relieve()

    def _farthest(self, *, near: bool) -> list[tuple[int, Block]]:
        """Blocks that may go, the farthest from a reader first. `near`: all but those that somebody is at."""
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
            # Behind all readers (somebody holds it, or reads there without credit): nobody comes to it soon.
            distance = index - readers[place - 1] if place else 1 << 40
            if distance >= nearest:
                candidates.append((distance, index, block))
        candidates.sort(key=lambda candidate: (-candidate[0], -candidate[1]))
        return [(index, block) for _distance, index, block in candidates]

    def _stored(self, size_bytes: int, block: Block, index: int) -> None:
        """The store has this block."""
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
        """There is no room on the disk for what of it is not persistent: it stays, and may be asked for again."""
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
        """A cursor waits for this block. Ask for it and (`ahead`) for those behind it, as far as there is memory."""
        self._ask(index)
        if ahead:
            self.read_ahead(index)

    def read_ahead(self, index: int) -> None:
        """A cursor has come to this block."""
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
        """What was kept of these could not be read."""
        self.lost_count += len(missing)
        self._queue.losing(missing)
        self._queue.elements.remove(missing, unread=True)
        self._storage_of().lost(index, missing)
        self.account_for_outside_gone()

    def account_for_outside_gone(self) -> None:
        """Elements left while they were outside: take them off what is held. May let sources go on."""
        count, wire_bytes = self._queue.elements.take_outside_gone()
        if count:
            self._limiter.remove_outside(count, wire_bytes + count * MESSAGE_OVERHEAD_BYTES)
            self._controller.poll()


def _is_blocked(source: SourceController | None) -> bool:
    return source is not None and source.blocked


def _charge_of(block: Block) -> int:
    return block.wire_bytes + block.live_count * MESSAGE_OVERHEAD_BYTES
