"""Slow subscribers of a topic: which messages go to the disk for them, and how they lose the oldest.

A subscriber that is stuck must not slow down the others. If the topic receives little, all messages that the subscriber
still needs go to the disk; if it receives more than the disk is meant to take for it, the subscriber keeps what memory
holds, and loses the oldest messages.

*Room is made* in this order: elements that no subscriber needs, but that stay behind one that is held, are freed
(pinned.py); the topic checks whether any subscriber lags so far that moving it would help; and all slow subscribers are
moved forward. Each of these steps asks every subscriber: up to DROP_COUNT of them at once; if there are more, a part at
each dispatch, in proportion to what comes in meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from ..flow.bounds import UNBOUNDED
from .blocks import NOTHING_GONE, Gone
from .chores import Chores
from .cursors import TrackingCursor
from .durables import DurableReader
from .fan_out import FanOut
from .lead import Lead
from .message import MESSAGE_OVERHEAD_BYTES
from .overdue import Overdue
from .pinned import Pinned
from .policy import QueuePolicy
from .queue import MessageQueue
from .readers import Readers
from .refusals import RefusalTable
from .slices import FAN_OUT_COUNT, VISIT_COST
from .subscription import Subscription
from .topic_intake import TopicIntake

DROP_SHARE: Final = 16
"""A lagging subscriber loses at least this part of the limit at once, so that making room is not done for each run."""

DROP_COUNT: Final = 64
"""Subscribers that are moved on at once when room is made: less than a millisecond."""


class LagBudget:
    """Bytes that may go out, refilled as time goes by. Used up it stays so until half of it is there again."""

    __slots__ = ("_burst_bytes", "_clock", "_exhausted", "_left_bytes", "_per_second", "_seen_seconds")

    def __init__(self, per_second: float, burst_bytes: int, clock: Callable[[], float]) -> None:
        """`per_second`: bytes; `burst_bytes`: the most that gathers."""
        self._per_second = per_second
        self._burst_bytes = burst_bytes
        self._left_bytes = float(burst_bytes)
        self._clock = clock
        self._seen_seconds = clock()
        self._exhausted = False

    def resize(self, burst_bytes: int) -> None:
        """Gather at most `burst_bytes` from now on."""
        self._refill()
        self._burst_bytes = burst_bytes
        self._left_bytes = min(float(burst_bytes), self._left_bytes)

    def spend(self, size_bytes: int) -> None:
        """Spend `size_bytes` that go out to the disk."""
        self._refill()
        self._left_bytes -= size_bytes
        if self._left_bytes <= 0:
            self._exhausted = True

    def is_exhausted(self) -> bool:
        """Return whether nothing should go out now."""
        if self._exhausted:
            self._refill()
            if self._left_bytes * 2 >= self._burst_bytes:
                self._exhausted = False
        return self._exhausted

    def _refill(self) -> None:
        now_seconds = self._clock()
        gained_bytes = (now_seconds - self._seen_seconds) * self._per_second
        self._left_bytes = min(float(self._burst_bytes), self._left_bytes + gained_bytes)
        self._seen_seconds = now_seconds


class _Making:
    """Room is made, some steps at a time: at each dispatch, and by as much as comes in meanwhile. It is through before
    half as much has come as it makes room for.
    """

    __slots__ = ("_before", "_count", "_done_count", "_runs", "_share", "_steps", "is_done")

    def __init__(self, steps: Iterator[Gone], count: int, before: tuple[int, int], share: tuple[int, int]) -> None:
        """`steps`: about `count` steps, each yielding what left because of it; `before`: excess of elements and bytes
        over their limits; `share`: elements and bytes of room to make at least.
        """
        self._steps = steps
        self._count = count
        self._before = before
        self._share = share
        self._done_count = 0
        self._runs = False
        self.is_done = False

    def due_count(self, over_count: int, over_bytes: int) -> int:
        """Return the number of steps it is behind, now that the limits are exceeded by `over_count` and
        `over_bytes`.
        """
        more_count = (over_count - self._before[0]) / self._share[0] if self._share[0] else over_count > self._before[0]
        more_bytes = (over_bytes - self._before[1]) / max(1, self._share[1])
        return int(2 * self._count * max(more_count, more_bytes)) - self._done_count

    def go_on(self, count: int) -> Gone:
        """Do `count` steps, unless a step is running. Returns the elements that left."""
        if self._runs:
            return NOTHING_GONE  # freed room resumed a sender
        self._runs = True
        done = list(islice(self._steps, count))
        self._runs = False
        self._done_count += count
        self.is_done = len(done) < count
        return sum([gone[0] for gone in done]), sum([gone[1] for gone in done])


class Laggards:
    """The subscribers of one topic, as far as they lag."""

    __slots__ = (
        "_budget", "_chores", "_drops_durables", "_elements", "_fan_out", "_intake", "_is_asked", "_lead", "_making",
        "_overdue", "_pinned", "_queue", "_readers", "_refusals",
    )  # fmt: skip

    def __init__(
        self,
        queue: MessageQueue,
        intake: TopicIntake,
        chores: Chores,
        lead: Lead,
        readers: Readers,
        refusals: RefusalTable,
        overdue: Overdue,
        pinned: Pinned,
        fan_out: FanOut,
    ) -> None:
        self._queue = queue
        self._elements = queue.elements
        self._intake = intake
        self._chores = chores
        self._lead = lead
        self._readers = readers
        self._refusals = refusals
        self._overdue = overdue
        self._pinned = pinned
        self._fan_out = fan_out
        policy = queue.policy
        self._drops_durables = policy.full == "drop_oldest"
        """Whether messages that a durable subscription has yet to read are dropped, too."""
        self._budget: LagBudget | None = None
        """Budget of messages that may go to the disk; None: no limit."""
        if intake.may_page_out and intake.follows_fastest and policy.lag_bytes_per_second is not None:
            self._budget = LagBudget(policy.lag_bytes_per_second, policy.memory_bytes, queue.environment.clock)
        self._making: _Making | None = None
        self._is_asked = False
        """Whether the messages that need the room are not in the topic yet."""

    def follow(self, policy: QueuePolicy) -> None:
        """Follow other limits of the topic."""
        if self._budget is not None:
            self._budget.resize(policy.memory_bytes)

    def spare_disk(self) -> bool:
        """Return whether laggards must do with memory: too much goes to the disk for them, and none is durable."""
        return self._budget is not None and not self._readers.count and self._budget.is_exhausted()

    def paged_out(self, indices: list[int]) -> None:
        """Note blocks that went to the disk."""
        if self._budget is not None and not self._readers.count:
            for block in map(self._elements.block, indices):
                if block is not None and block.outside is not None:
                    self._budget.spend(block.outside.wire_bytes + block.live_count * MESSAGE_OVERHEAD_BYTES)

    @property
    def busy(self) -> bool:
        """Room is being made."""
        return self._making is not None

    def close(self) -> None:
        """No room is needed any more."""
        self._making = None

    def make_room(self, over_count: int, over_bytes: int) -> None:
        """Move every cursor that lags past the oldest elements, by a little more than asked (DROP_SHARE). If many lag,
        the rest follows in later dispatches, and as more comes in.
        """
        if self._making is not None:
            self._advance(self._making.due_count(over_count, over_bytes))
            return
        share_bytes = min(self._queue.policy.limit_bytes, self._intake.memory_limit_bytes) // DROP_SHARE
        share_count = (self._queue.policy.count_max or 0) // DROP_SHARE
        over, share = (over_count, over_bytes), (share_count, share_bytes)
        passes_count = 1 + self._pinned.may_be_there + self._may_be_vain
        looks_count = passes_count * (len(self._queue.subscriptions) + len(self._readers.by_id))
        self._making = _Making(self._steps(over, share), looks_count, over, share)
        self._is_asked = True
        self._advance(passes_count * DROP_COUNT)
        self._is_asked = False

    def _advance(self, count: int) -> None:
        """Do `count` steps."""
        making = self._making
        if count <= 0 or making is None:
            return
        gone = making.go_on(count)
        if making.is_done:
            self._making = None
        elif self._making is making:  # not closed meanwhile
            self._chores.add(self._go_on)
        self._queue.free(gone)

    def _go_on(self, _budget: int) -> int:
        if self._making is None:
            return 0
        self._advance(DROP_COUNT)
        return DROP_COUNT * VISIT_COST

    @property
    def _may_be_vain(self) -> bool:
        """Durable subscriptions that lose nothing may hold all the room."""
        return self._intake.residency is not None and self._readers.count > 0 and not self._drops_durables

    def _steps(self, over: tuple[int, int], share: tuple[int, int]) -> Iterator[Gone]:
        """Make room in steps, for at least this share. Yields the elements that left at each step."""
        over_count, over_bytes = over
        before_count, before_bytes = self._intake.overhang(0, 0)
        if self._pinned.may_be_there:
            yield from self._pinned.letting_go()
        may_be_vain, front = self._may_be_vain, self._lead.position
        if may_be_vain:
            if (beginning := self._readers.beginning.cursor) is not None:
                front = min(front, beginning.front)
            for subscription in list(self._queue.subscriptions.values()):
                cursor = subscription.cursor
                if cursor is not None and cursor.front < front and subscription.durable_id is None:
                    front = cursor.front
                yield NOTHING_GONE
        now_count, now_bytes = self._intake.overhang(0, 0)
        if self._is_asked:  # a part has left
            over_count += now_count - before_count
            over_bytes += now_bytes - before_bytes
        else:  # the messages that asked are in it, and more may have come
            over_count, over_bytes = now_count, now_bytes
        if over_count <= 0 and over_bytes <= 0:
            return
        if may_be_vain and self._is_vain(front, over_count, over_bytes):
            return  # durable subscriptions hold it, which nothing can be done about
        over_count = max(over_count, share[0]) if over_count > 0 else over_count
        over_bytes = max(over_bytes, share[1]) if over_bytes > 0 else over_bytes
        yield from self._drop_below(self._floor(over_count, over_bytes))

    def _is_vain(self, front: int, over_count: int, over_bytes: int) -> bool:
        """Return whether moving the slowest subscriber that may lose messages, at `front`, would not make enough room.
        O(blocks that it lags).
        """
        residency = self._intake.residency
        assert residency is not None, "or nothing would be held beyond memory"
        left_count, left_bytes = residency.total_count - over_count, residency.total_bytes - over_bytes
        for block in self._elements.latest_blocks():
            if block.base + block.length <= front:
                break
            left_count -= block.live_count
            # For blocks in memory the charge of all elements ever added, which need not be summed.
            left_bytes -= block.filled_bytes or block.wire_bytes + block.live_count * MESSAGE_OVERHEAD_BYTES
            if left_count < 0 or left_bytes < 0:
                return False
        return True

    def _floor(self, over_count: int, over_bytes: int) -> int:
        """Return the position up to which the oldest elements take the excess, at most that of the foremost reader."""
        elements, lead = self._elements, self._lead
        position = floor = elements.first_sequence
        if self.spare_disk() and over_count <= 0:
            floor = self._floor_by_blocks(over_bytes)
            over_bytes = 0
        while (over_count > 0 or over_bytes > 0) and position < lead.position:
            count_max = FAN_OUT_COUNT if over_bytes > 0 else min(FAN_OUT_COUNT, over_count)
            part, position = elements.read(position, count_max, over_bytes if over_bytes > 0 else UNBOUNDED)
            if part is None:
                block = None if elements.missing is None else elements.block(elements.missing)
                if block is None:
                    break
                floor = position = block.base + block.length
                over_count -= block.live_count
                over_bytes -= block.wire_bytes + block.live_count * MESSAGE_OVERHEAD_BYTES
                continue
            floor = part.end
            over_count -= len(part.messages)
            over_bytes -= part.charge_bytes
        return min(floor, lead.position)

    def _floor_by_blocks(self, over_bytes: int) -> int:
        """Return the position up to which whole blocks take `over_bytes` of memory, by their sums alone. Blocks outside
        take none.
        """
        floor = self._elements.first_sequence
        for _index, block in self._elements.blocks():
            if over_bytes <= 0 or block.base + block.length > self._lead.position:
                break
            if block.outside is None:
                over_bytes -= block.filled_bytes or block.wire_bytes + block.live_count * MESSAGE_OVERHEAD_BYTES
            floor = block.base + block.length
        return floor

    def _drop_below(self, floor: int) -> Iterator[Gone]:
        """Move every cursor that lags past everything below `floor`, one after the other. Yields what left because of
        each. Subscriptions that come meanwhile begin above the floor.
        """
        readers = self._readers
        yield readers.beginning.skip_to(floor) if readers.are_made or self._drops_durables else NOTHING_GONE
        for reader in list(readers.by_id.values()) if self._drops_durables else ():
            gone = NOTHING_GONE
            if not reader.subscriptions and reader.cursor.front < floor and reader.durable_id in readers.by_id:
                gone = self._reader_skips(reader, floor)
            yield gone
        for subscription in list(self._queue.subscriptions.values()):
            cursor, gone = subscription.cursor, NOTHING_GONE
            if (
                cursor is not None
                and cursor.front < floor
                and not subscription.closed
                and (subscription.durable_id is None or self._drops_durables)
            ):
                gone = self._subscription_skips(subscription, cursor, floor)
            yield gone
        overdue = self._overdue
        if overdue.sequences and self._refusals:  # withdrawn elements have no holder now
            overdue.released([sequence for sequence in overdue.sequences if sequence < floor])

    def _reader_skips(self, reader: DurableReader, floor: int) -> Gone:
        """Make a durable subscription without consumers give up all elements below `floor`. Returns what left because
        of it.
        """
        queue = self._queue
        if queue.observer is not None:
            queue.observer.missed(f"durable subscription {reader.durable_id}", reader.cursor.front, floor)
        missed_count, gone = self._refusals.skip(reader.cursor, floor)
        queue.dropped_count += missed_count
        self._readers.moved(reader)
        return gone

    def _subscription_skips(self, subscription: Subscription, cursor: TrackingCursor, floor: int) -> Gone:
        """Make a subscription give up all elements below `floor`, and report that with its next message. Returns what
        left.
        """
        queue = self._queue
        if queue.observer is not None:
            queue.observer.missed(subscription.who, cursor.front, floor)
        missed_count, gone = self._refusals.skip(cursor, floor)
        queue.dropped_count += missed_count
        subscription.dropped_unreported_count += missed_count
        self._fan_out.skipped(subscription)
        return gone
