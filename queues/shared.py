"""Shared distribution: a queue whose messages are shared out among its consumers. Seed 002 "Share Queue".

Round robin by credit: in each round every ready subscription gets an equal part of the waiting elements. Three
refinements:

- *Rank*: subscriptions of the highest rank in the ring come first; others when none of them has credit. Consumers with
  a selector, and messages with a group, have their turns whatever the ranks.
- *Exclusive consumer*: see exclusivity.py. Subscriptions of other consumers are not ready.
- *Message groups*: see groups.py. Ungrouped messages go in slices, grouped ones are placed one by one (fair_share.py).
  A message whose key is held by a consumer without credit is set aside (group_backlog.py), in order, under its key, and
  the messages behind it continue: the key waits, not the queue. Elements set aside stay charged to the queue, whose
  limiter bounds them.

Lines of elements set aside (keyed_placing.py) go before the elements ahead of the cursor. Each look at a line or at an
element counts against the budget.

Consumers with a selector are not in the ring: they look for what they select by themselves (selector_scan.py), also
among elements set aside. While one of them holds a key, the line of that key has no place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from functools import partial
from itertools import islice
from typing import Final, Unpack

from ..flow.bounds import UNBOUNDED
from ..flow.kinds import ResourceKind
from .consumed import ConsumedQueue
from .cursors import Wait
from .distribution import ConsumedDistribution
from .environment import QueueEnvironment
from .exclusivity import Exclusivity
from .fair_share import FairShare, Taken
from .group_backlog import ANYBODY, GroupBacklog
from .groups import GroupTable
from .keyed_placing import KeyedPlacing
from .message import Message
from .policy import QueuePolicy
from .queue import QueueOptions
from .selector_scan import SelectorScan
from .slices import VISIT_COST, Slice, fit
from .subscription import Subscription

LOOK_COUNT_MIN: Final = 4
"""Elements taken at once, at first, where grouped and ungrouped ones may be mixed: elements that can't be placed were
read without use. If all could be placed, twice as many are taken the next time.
"""

LOOK_COUNT_MAX: Final = 256
"""Elements taken at once to be placed by group."""

RANKED_PER_COST: Final = 8
"""Subscriptions whose ranks are compared at the cost of an element."""

PLACED_COST: Final = 4
"""Cost of an element that is placed by group, in other elements; one that comes again, or from a line, costs twice
that.
"""


class SharedDistribution(ConsumedDistribution):
    """Many subscriptions, each message to one of them."""

    __slots__ = (
        "_aside",
        "_cursor",
        "_environment",
        "_exclusivity",
        "_groups",
        "_others_first",
        "_placing",
        "_queue",
        "_ranked_count",
        "_returning",
        "_ring",
        "_sought_keys",
        "_uncounted",
        "scan",
    )

    def __init__(self, queue: ConsumedQueue, groups: GroupTable, exclusivity: Exclusivity) -> None:
        """`groups`, `exclusivity`: objects of the destination, if the queue is one of its partitions."""
        super().__init__()
        self._queue = queue
        self._environment = queue.environment
        self._ring = queue.ring
        self._cursor = queue.states.cursor
        self.scan = SelectorScan(queue, self, queue.environment)
        self._others_first = False
        """Whether subscriptions without a selector came first the last time that there was less than one element for
        each.
        """
        self._sought_keys: dict[int, str] = {}
        """Group keys of elements that were taken out for a search and that a consumer holds: their block may be outside
        when they come back.
        """
        self._uncounted: set[int] = set()
        """Blocks of an earlier run with groups, that were not in memory yet."""
        self._ranked_count = 0
        """Number of subscriptions with a rank other than 0. Without one nothing is asked for ranks."""
        self._groups = groups
        self._exclusivity = exclusivity
        self._aside = queue.states.set_aside = GroupBacklog(ranked=queue.intake.action.lets_oldest_leave)
        self._placing = KeyedPlacing(
            groups, self._aside, queue.ring, message_of=self._waiting_message, on_free=self._group_is_free
        )
        queue.states.held_back = self._placing.held_back
        self._returning: dict[int, str] = {}
        """Group keys of elements that were taken out for a search and that come back just now."""
        self._exclusivity.on_change(self._turn_has_changed)

    # ------------------------------------------------------------------ who may get something

    def joined(self, subscription: Subscription) -> None:
        self._placing.joined(subscription)
        self._ranked_count += subscription.consumer.rank != 0
        if subscription.selection is not None:
            self.scan.begin(subscription, subscription.selection)
        self._exclusivity.joined(subscription)

    def left(self, subscription: Subscription) -> None:
        self._ranked_count -= subscription.consumer.rank != 0
        self._placing.left(subscription)
        if subscription.selection is not None:
            self.scan.end(subscription)
        self._exclusivity.left(subscription)

    def _turn_has_changed(self) -> None:
        active = self._exclusivity.active
        if active is None:
            self._environment.do_in_steps(self._queue.destination_name, self._sharing_again())
            return
        subscription = self._placing.subscription_of(active)
        if subscription is not None:
            self._share_with(subscription)

    def _sharing_again(self) -> Iterator[None]:
        """End exclusivity: put all subscriptions that may receive elements in line, in steps. One that gets credit
        later enters the line then.
        """
        for subscription in list(self._queue.subscriptions.values()):
            if self._queue.closed or self._exclusivity.active is not None:
                return
            self._environment.carefully(partial(self._share_with, subscription))
            yield

    def _share_with(self, subscription: Subscription) -> None:
        if self.is_ready(subscription):
            self._queue.enter_ring(subscription)

    def is_ready(self, subscription: Subscription) -> bool:
        """Return whether the subscription may be asked for its room."""
        return (
            not subscription.closed
            and not subscription.source.blocked
            and self._exclusivity.allows(subscription.consumer)
        )

    def _ready_room_of(self, subscription: Subscription) -> tuple[int, int]:
        return self._queue.room_of(subscription) if self.is_ready(subscription) else (0, 0)

    def takes_more(self) -> bool:
        """Whether some consumer takes more now than what it has not come to yet: the first of the ring with room, or
        any with a selector. O(1) amortised, and O(n) of consumers with a selector.
        """
        ring = self._ring
        while ring:
            subscription = next(iter(ring))
            room = self._ready_room_of(subscription)
            if self._exceeds(room, self._cursor.ahead_count):
                return True
            if room[0]:
                break
            ring.pop(subscription, None)  # it is added again with its credit, or its turn
        for subscription, search in list(self.scan.searches.items()):
            if search.waiting_for is None:
                ahead_count = self._queue.elements.next_sequence - search.looked_to + search.again_count
                if self._exceeds(self._ready_room_of(subscription), ahead_count):
                    return True
        return False

    def _exceeds(self, room: tuple[int, int], count: int) -> bool:
        """Return whether `room` is for more than `count` messages of the mean size in this queue."""
        room_count, room_bytes = room
        mean_bytes = self._queue.held_bytes // max(1, self._queue.elements.live_count)
        return room_count > count and room_bytes > count * mean_bytes

    def credited(self, subscription: Subscription) -> bool:
        if subscription.selection is None:
            self._placing.call(subscription)
            return True
        if not subscription.closed:
            self.scan.seek(self.scan.searches[subscription])
        return False

    def is_seeking(self, subscription: Subscription) -> bool:
        search = self.scan.searches.get(subscription)
        return search is not None and search in self.scan.seeking

    # ------------------------------------------------------------------ dispatch

    def dispatch(self, budget: int) -> bool:
        if self.scan.searches:
            return self._dispatch_sought(budget)
        while budget > 0:
            before = budget
            if self.grouped_count:
                budget = self._dispatch_grouped(budget)
            budget = self._dispatch_ungrouped(budget)
            if budget == before:
                return False
        return bool(self._ring) and (self._cursor.has_more or bool(self._aside))

    def _dispatch_sought(self, budget: int) -> bool:
        """Dispatch with consumers that have a selector. See selector_scan.py for the order of turns."""
        others_first = False
        if self._ring and self._cursor.ahead_count < len(self._ring) + len(self.scan.seeking):
            others_first = self._others_first = not self._others_first
        while budget > 0:
            before = budget
            if not others_first:
                budget = self.scan.serve(budget)
            if self._ring and budget > 0:
                if self.grouped_count:
                    budget = self._dispatch_grouped(budget)
                budget = self._dispatch_ungrouped(budget)
            if budget == before and not others_first:
                return False
            others_first = False
        if self.scan.has_more:
            return True
        return bool(self._ring) and (self._cursor.has_more or bool(self._aside))

    def _dispatch_ungrouped(self, budget: int) -> int:
        """Hand over slices up to the next grouped element. Returns what is left of the budget."""
        queue, ring, cursor = self._queue, self._ring, self._cursor
        share_count = turns_left = 0
        look_count = LOOK_COUNT_MIN
        while ring and budget > 0:
            subscription = next(iter(ring))
            ready_count = len(ring)
            if self._ranked_count:
                subscription, ready_count = self._foremost()
                budget -= len(ring) // RANKED_PER_COST
            if not self.is_ready(subscription):
                del ring[subscription]
                budget -= 1
                continue
            if not cursor.has_more:
                break
            room_count, room_bytes = queue.room_of(subscription)
            if not room_count:
                continue
            if ready_count > 1:
                if turns_left <= 0:  # a new round: the same share for all
                    turns_left = ready_count
                    # None ahead: what the cursor has not passed yet has been removed. Taking finds that out.
                    share_count = max(1, -(-cursor.ahead_count // ready_count))
                turns_left -= 1
                room_count = min(room_count, share_count)
                ring.move_to_end(subscription)
            if self.grouped_count:
                room_count = min(room_count, look_count)
                look_count *= 2
            part = queue.acquire(min(budget, room_count), room_bytes)
            # Asked anew: an expiry may have made room, which a sender filled with grouped ones.
            if part is not None and self.grouped_count:
                part = self._ungrouped_head(part)
            if part is None:
                break
            budget -= VISIT_COST + part.cost
            queue.hand_over(subscription, part)
        return budget

    def _foremost(self) -> tuple[Subscription, int]:
        """Return the first subscription in the ring of the highest rank there, and the number of those of that rank.
        O(ring).
        """
        ranks = [subscription.consumer.rank for subscription in self._ring]
        highest = max(ranks)
        place = ranks.index(highest)
        return next(islice(self._ring, place, None)), ranks.count(highest)

    def _ungrouped_head(self, part: Slice) -> Slice | None:
        """Return the elements before the first grouped one, or None; the rest is put back."""
        count = 0
        for message in part.messages:
            if message.head.group is not None:
                break
            count += 1
        else:
            return part
        self._cursor.rewind(part, count)
        if not count:
            return None
        return part.head(count)

    def _dispatch_grouped(self, budget: int) -> int:
        """Place lines, and elements up to the next ungrouped one; each subscription gets its share as one slice.

        Ungrouped elements are not placed here: a share that is not taken goes back, and in between another subscription
        may have got the elements behind it. Keys wait in line then; ungrouped elements would get out of order.
        """
        if self._ring:
            shares = FairShare(self._ring, self._ready_room_of)
            budget = self._fill(shares, budget) - VISIT_COST * shares.given_count
            self._hand_over_shares(shares)
        return budget

    def _fill(self, shares: FairShare, budget: int) -> int:
        """Place elements until none can be placed; returns what is left of the budget."""
        look_count = LOOK_COUNT_MIN
        placing = self._placing
        while budget > VISIT_COST * shares.given_count:
            if placing.called:
                budget -= 2 * PLACED_COST
                placing.serve_called(shares)
                continue
            if not self._ring:
                break
            key = self._aside.first_at(ANYBODY)
            if key is not None:
                budget -= 2 * PLACED_COST
                if not placing.serve_free(key, shares):
                    break
                continue
            # Putting returned elements back is not free, so they are taken one by one.
            count_max = 1 if self._cursor.next_returned is not None else min(budget, look_count)
            part = self._queue.acquire(count_max, UNBOUNDED)
            if part is None:
                break
            cost = PLACED_COST << part.returned
            for place, (sequence, message) in enumerate(zip(part.sequences, part.messages, strict=True)):
                key = message.head.group
                if key is None or not self._placing.place(shares, key, sequence, message):
                    self._cursor.rewind(part, place)
                    return budget - place * cost
            budget -= len(part.messages) * cost
            look_count = min(2 * look_count, LOOK_COUNT_MAX)
        return budget

    def _waiting_message(self, sequence: int) -> Message | None:
        """Return an element set aside that is to be placed; None if it has expired, and left."""
        message = self._queue.elements.get(sequence)
        assert message is not None, "what is set aside is in the queue"
        if 0 < message.expires_at_ms <= self._environment.now_ms():
            self._queue.removal.drop_expired((sequence,))
            return None
        return message

    def _hand_over_shares(self, shares: FairShare) -> None:
        """Deliver the shares; elements that a subscription no longer takes, because others took its credit or closed
        it, go back.
        """
        for subscription, taken in shares:
            room_count, room_bytes = self._ready_room_of(subscription)
            count = 0
            if room_count:
                messages = [message for _sequence, message in taken[:room_count]]
                count, wire_bytes = fit([message.wire for message in messages], room_bytes)
                first, last = taken[0][0], taken[count - 1][0]
                sequences: SequenceOf[int] = range(first, last + 1)  # settled much faster than a list
                if len(sequences) > count:
                    sequences = [sequence for sequence, _message in taken[:count]]
                attempts = self._queue.seen_of(sequences, messages[:count])
                self._queue.hand_over(subscription, Slice(messages[:count], sequences, wire_bytes, attempts))
            if count < len(taken) and not self._queue.closed:
                self._replace(taken[count:])
            if self.is_ready(subscription):
                self._ring[subscription] = None
                self._placing.call(subscription)

    def _replace(self, taken: Taken) -> None:
        """Put back elements that were placed, but not handed over."""
        self.requeue([sequence for sequence, _message in taken])
        for _sequence, message in taken:
            if message.head.group is not None:
                self._groups.done(message.head.group)

    def _group_is_free(self, key: str) -> None:
        if self._aside.has_line(key):
            self._queue.context.request_dispatch()
        if self.scan.searches:
            self.scan.group_is_free(key)

    def hold_back(self, sequences: SequenceOf[int]) -> None:
        for sequence in sequences:
            message = self._queue.elements.get(sequence)
            key = self._returning.get(sequence) if message is None else message.head.group
            if key is not None:
                self._placing.hold_back(key, sequence)

    def let_go(self, sequences: SequenceOf[int]) -> None:
        self._placing.let_go(sequences)

    # ------------------------------------------------------------------ searches by selector

    @property
    def has_groups(self) -> bool:
        return bool(self.grouped_count or self._uncounted)

    def group_is_held(self, key: str, subscription: Subscription) -> bool:
        owner = self._groups.owner(key)
        return (owner is not None and owner is not subscription.consumer) or self._placing.held_back.holds(key)

    def taken_out(self, subscription: Subscription, sequences: SequenceOf[int], messages: list[Message]) -> None:
        for sequence in sequences if self._aside else ():
            if self._aside.key_of(sequence) is not None:
                self._aside.discard(sequence)
        self._cursor.acquire_at(sequences)
        if self.grouped_count:
            for sequence, message in zip(sequences, messages, strict=True):
                key = message.head.group
                if key is not None:
                    self._sought_keys[sequence] = key
                    self._groups.handed_over(key, subscription.consumer)

    # ------------------------------------------------------------------ elements

    def arrived(self, messages: list[Message]) -> None:
        if messages[0].head.group is not None:
            self.grouped_count += len(messages)
        if self.scan.searches:
            self.scan.seek_all()

    def available_again(self, sequences: SequenceOf[int]) -> None:
        if self.scan.searches:
            self.scan.available_again(sequences)

    def dropped(self, messages: SequenceOf[Message]) -> None:
        if self.grouped_count:
            self.grouped_count -= sum([message.head.group is not None for message in messages])
        if self.scan.searches:
            self.scan.after_drop()

    def resume(self, why: int | Wait) -> None:
        if isinstance(why, int) and why in self._uncounted:
            block = self._queue.elements.block(why)
            if block is not None and block.outside is None:
                self._uncounted.discard(why)
                self.grouped_count += sum(m is not None and m.head.group is not None for m in block.elements)
        if self.scan.searches:
            self.scan.resume(why)

    def restored(self, grouped: Iterable[int]) -> None:
        self._uncounted = set(grouped)

    def pinned_below(self) -> int:
        """Position below which blocks are needed: the keys of held and set-aside elements are read again when they are
        settled.
        """
        return self._cursor.position if self.grouped_count else 0

    def may_read(self, sequences: SequenceOf[int]) -> bool:
        return bool(self.scan.searches) and self.scan.may_read(sequences)

    def reading_blocks(self) -> Iterable[int]:
        return self.scan.reading_blocks()

    @property
    def awaits_disk(self) -> bool:
        return self.scan.awaits_disk

    # ------------------------------------------------------------------ settling

    def settled(self, subscription: Subscription, keys: SequenceOf[str]) -> None:
        self.grouped_count -= len(keys)
        if not self._queue.elements.live_count:
            self.grouped_count = 0  # blocks that left unread took theirs along
        if keys and not self.grouped_count:
            self._queue.context.request_dispatch()  # blocks that were held in memory for their keys may leave
        self.requeued(subscription, keys)

    def requeued(self, subscription: Subscription, keys: SequenceOf[str]) -> None:
        for key in keys:
            self._groups.done(key)
        if self._returning:
            self._returning = {}
        if subscription.closed:
            self._exclusivity.left(subscription)

    def requeue(self, sequences: SequenceOf[int]) -> None:
        """Put elements back. Those of a key that is set aside go to the front of its line, before the elements set
        aside.
        """
        others = sequences if not self._aside else [s for s in sequences if not self._returns_to_line(s)]
        self._cursor.requeue(others, attempted=False)
        if self.scan.searches:
            self.scan.available_again(sequences)

    def _returns_to_line(self, sequence: int) -> bool:
        """Put an element into the line of its key. Returns False if there is none, or if the element was taken from
        ahead of the cursor, and is there again.
        """
        message = self._queue.elements.get(sequence)
        key = message.head.group if message is not None else None
        if key is None or not self._aside.has_line(key) or sequence >= self._cursor.position:
            return False
        self._aside.put(key, sequence)
        return True

    def keys_of(self, sequences: SequenceOf[int]) -> SequenceOf[str]:
        if self._sought_keys:
            self._returning = {s: key for s in sequences if (key := self._key_of(s)) is not None}
            return list(self._returning.values())
        messages = [self._queue.elements.get(sequence) for sequence in sequences]
        return [message.head.group for message in messages if message is not None and message.head.group is not None]

    def _key_of(self, sequence: int) -> str | None:
        """Return the group key of an element that no consumer holds, and forget the noted one."""
        key = self._sought_keys.pop(sequence, None)
        if key is None:
            message = self._queue.elements.get(sequence)
            key = message.head.group if message is not None else None
        return key

    # ------------------------------------------------------------------ end, and what people see

    def close(self) -> None:
        self.scan.close()

    def facts(self) -> dict[str, object]:
        facts = self.scan.facts() | self._exclusivity.facts()
        longest = self._aside.longest()
        if longest is not None:
            key, count = longest
            holder = self._groups.owner(key)
            held_by = f"held by subscription {holder.label}" if holder is not None else "free"
            if self._placing.held_back.holds(key):
                held_by = "held back by a message that waits for its next attempt"
            facts["set_aside_count"] = len(self._aside)
            facts["most_for_group"] = f"{key} ({count}), {held_by}"
        return facts


def shared_queue(
    name: str,
    policy: QueuePolicy,
    environment: QueueEnvironment,
    *,
    groups: GroupTable | None = None,
    exclusivity: Exclusivity | None = None,
    distribution: type[SharedDistribution] = SharedDistribution,
    kind: ResourceKind = ResourceKind.QUEUE,
    **options: Unpack[QueueOptions],
) -> ConsumedQueue:
    """Make a queue whose messages are shared out by a strategy of this class. `groups`, `exclusivity`: see
    SharedDistribution; None: its own.
    """
    distribute = partial(
        distribution,
        groups=GroupTable() if groups is None else groups,
        exclusivity=Exclusivity() if exclusivity is None else exclusivity,
    )
    return ConsumedQueue(name, policy, environment, distribute, kind=kind, **options)
