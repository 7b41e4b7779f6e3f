"""A queue whose messages are shared out among its consumers. Seed 002 "Share Queue".

Round robin by credit: in each round every ready subscription gets the same part of what waits. Two refinements:

- *Exclusive consumer*: if a subscription asked for it, the oldest such one gets everything and the others stand by.
  When it leaves, the next one takes over, but only once the old one holds nothing any more, so that two never work at
  the same time. (What the others hold when the first exclusive one arrives stays with them.)
- *Message groups*: see groups.py. From the first grouped message on, elements are looked at one by one. A message whose
  key is held by a consumer without credit is set aside (aside.py), in order, under its key, and the ones behind it go
  on: the key waits, not the queue. What is set aside stays charged to the queue, whose limiter bounds it.

A key that is set aside is in exactly one of these places, so it is never forgotten:
    awake       to be looked at by the next dispatch;
    asleep      on a consumer that holds it and has no credit, until that one has; or on nobody, until anybody has
    credit; unlisted    its holder has left this queue: the key is free, and awake, when all it holds is settled or
    given back.
A key of which the last message is settled becomes awake wherever it was; its old place may remember it in vain.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Final

from queues.aside import AsideLines
from queues.consumed import UNLIMITED_BYTES, ConsumedQueue
from queues.cursored import Slice
from queues.groups import GroupTable
from queues.message import Message
from queues.policy import QueuePolicy
from queues.queue import QueueEnvironment
from queues.subscription import Subscription

PLACE_COUNT: Final = 64
"""Elements taken at once to be placed by group. What finds no place is put back by moving the cursor, so more would do.
"""

_NOBODY: Final = 0
"""Where keys sleep that nobody holds while nobody has credit. No object has this id."""


class SharedQueue(ConsumedQueue):
    """Many subscriptions, each message to one of them."""

    kind_label = "queue"

    def __init__(
        self,
        name: str,
        policy: QueuePolicy,
        environment: QueueEnvironment,
        *,
        priority: int = 4,
        groups: GroupTable | None = None,
    ) -> None:
        """`groups`: the table of the destination, if this queue is one of its partitions."""
        super().__init__(name, policy, environment, priority=priority)
        self._groups = GroupTable() if groups is None else groups
        self._grouped = False
        self._aside = AsideLines(ranked=self._full == "drop_oldest")
        self._awake: dict[str, None] = {}
        self._asleep: dict[int, set[str]] = {}
        self._subscription_of: dict[int, Subscription] = {}
        self._wanting_all: dict[Subscription, None] = {}
        self._active: Subscription | None = None
        self._groups.on_free(self._group_is_free)

    # ------------------------------------------------------------------ who may get something

    def _subscribed(self, subscription: Subscription) -> None:
        self._subscription_of[id(subscription.consumer)] = subscription
        if subscription.exclusive:
            self._wanting_all[subscription] = None
            self._choose_active()

    def _detached(self, subscription: Subscription) -> None:
        consumer_id = id(subscription.consumer)
        if self._subscription_of.get(consumer_id) is subscription:
            del self._subscription_of[consumer_id]
            self._asleep.pop(consumer_id, None)
        self._wanting_all.pop(subscription, None)
        self._choose_active()

    def _choose_active(self) -> None:
        """The exclusive consumer: stays until it is closed and drained; then the oldest of the others that asked for
        it.
        """
        active = self._active
        if active is not None and (not active.closed or active.unsettled_count):
            return
        chosen = next(iter(self._wanting_all), None)
        if chosen is active:
            return
        self._active = chosen
        for subscription in self.subscriptions.values():
            if self._may_have(subscription) and not subscription.source.blocked:
                self._enter_ring(subscription)

    def _may_have(self, subscription: Subscription) -> bool:
        return self._active is None or subscription is self._active

    def _is_ready(self, subscription: Subscription) -> bool:
        """It may be asked for its room."""
        return not subscription.closed and not subscription.source.blocked and self._may_have(subscription)

    # ------------------------------------------------------------------ dispatch

    def dispatch(self, budget: int) -> bool:
        return self._dispatch_grouped(budget) if self._grouped else self._dispatch_plain(budget)

    def _dispatch_plain(self, budget: int) -> bool:
        ring = self._ring
        cursor = self._cursor
        share_count = turns_left = 0
        while ring:
            subscription = next(iter(ring))
            if not self._is_ready(subscription):
                del ring[subscription]
                continue
            if not cursor.has_more:
                return False
            if budget <= 0:
                return True
            room_count, room_bytes = self._room_of(subscription)
            if not room_count:
                continue
            ready_count = len(ring)
            if ready_count > 1:
                if turns_left <= 0:  # a new round: the same share for everybody
                    turns_left = ready_count
                    share_count = -(-cursor.ahead_count // ready_count)
                turns_left -= 1
                room_count = min(room_count, share_count)
                ring.move_to_end(subscription)
            part = self._take(min(budget, room_count), room_bytes)
            if part is None:
                return False
            if self._grouped:
                # A settlement or an expiry within this dispatch made room, and a sender filled it with grouped ones.
                cursor.untake(part, 0)
                return self._dispatch_grouped(budget)
            budget -= len(part.messages)
            self._hand_over(subscription, part)
        return False

    def _dispatch_grouped(self, budget: int) -> bool:
        """Element by element, with each subscription's share collected and handed over as one slice."""
        while True:
            plan = _Plan(self)
            budget = self._fill(plan, budget)
            handed_count = plan.hand_over()
            if budget <= 0:
                return bool(self._ring)
            if not handed_count or not self._ring:
                return False
            # Somebody took what was planned and has credit still, or again: nobody else would call us for that.
            for subscription in self._ring:  # all of them are ready
                self._wake_keys_of(subscription)

    def _fill(self, plan: _Plan, budget: int) -> int:
        """Plan until nothing more can go anywhere; returns what is left of the budget, 0 if it was used up."""
        cursor = self._cursor
        while budget > 0:
            if self._awake and self._place_awake(plan):
                budget -= 1
                continue
            count_max = 1 if cursor.next_returned is not None else min(budget, PLACE_COUNT)
            part = self._take(count_max, UNLIMITED_BYTES)
            if part is None:
                return budget
            for place, (sequence, message) in enumerate(zip(part.sequences, part.messages, strict=True)):
                if not self._place(plan, sequence, message):
                    cursor.untake(part, place)
                    return budget - place
            budget -= len(part.messages)
        return 0

    def _place(self, plan: _Plan, sequence: int, message: Message) -> bool:
        """Give this element to a subscription, or set it aside under its key. False: nobody has room."""
        key = message.head.group
        if key is None:
            subscription = plan.next_with_room()
            if subscription is None:
                return False
            plan.put(subscription, sequence, message)
            return True
        if self._aside.has_line(key):
            self._aside.put(key, sequence)
            return True
        owner = self._groups.owner(key)
        if owner is None:
            subscription = plan.next_with_room()
            if subscription is None:
                return False
        else:
            own = self._subscription_of.get(id(owner))
            if own is None or not plan.has_room(own):
                self._aside.put(key, sequence)
                self._let_sleep(key, own)
                return True
            subscription = own
        self._groups.handed_over(key, subscription.consumer)
        plan.put(subscription, sequence, message)
        return True

    def _place_awake(self, plan: _Plan) -> bool:
        """Hand over one element of a key that is awake. False: none of them can go on, they sleep again."""
        while self._awake:
            key = next(iter(self._awake))
            sequence = self._aside.first(key)
            if sequence is None:
                del self._awake[key]
                continue
            owner = self._groups.owner(key)
            own: Subscription | None = None
            subscription: Subscription | None
            if owner is None:
                subscription = plan.next_with_room()
            else:
                subscription = own = self._subscription_of.get(id(owner))
                if own is not None and not plan.has_room(own):
                    subscription = None
            if subscription is None:
                del self._awake[key]
                if owner is None:
                    self._asleep.setdefault(_NOBODY, set()).add(key)
                else:
                    self._let_sleep(key, own)
                continue
            message = self.elements.get(sequence)
            assert message is not None, "what is set aside is in the queue"
            self._aside.discard(sequence)
            if 0 < message.expires_at_ms <= self._environment.now_ms():
                self.expired_count += 1
                self._drop((sequence,))
                continue
            self._groups.handed_over(key, subscription.consumer)
            plan.put(subscription, sequence, message)
            return True
        return False

    def _let_sleep(self, key: str, own: Subscription | None) -> None:
        """Wait for the credit of the subscription that holds this key. None: its holder has left, see the module."""
        if own is not None:
            self._asleep.setdefault(id(own.consumer), set()).add(key)

    def _wake_keys_of(self, subscription: Subscription) -> None:
        """It has credit."""
        asleep = self._asleep
        if asleep:
            for consumer_id in (id(subscription.consumer), _NOBODY):
                keys = asleep.pop(consumer_id, None)
                if keys:
                    self._awake.update(dict.fromkeys(sorted(keys)))

    def _group_is_free(self, key: str) -> None:
        if self._aside.has_line(key):
            self._awake[key] = None
            self.context.request_dispatch()

    def _enter_ring(self, subscription: Subscription) -> None:
        if not subscription.closed:
            self._wake_keys_of(subscription)
        super()._enter_ring(subscription)

    def _arrived(self, messages: list[Message]) -> None:
        if messages[0].head.group is not None:
            self._grouped = True

    def attempts_of(self, sequence: int) -> int:
        """How often this element was handed over in vain."""
        return self._cursor.attempts_of(sequence)

    # ------------------------------------------------------------------ settling

    def settled(self, subscription: Subscription, sequences: SequenceOf[int], wire_bytes: int) -> None:
        keys = self._keys(sequences) if self._grouped and not self.closed else ()
        super().settled(subscription, sequences, wire_bytes)
        for key in keys:
            self._groups.done(key)
        if subscription is self._active and subscription.closed:
            self._choose_active()

    def given_back(self, subscription: Subscription, sequences: SequenceOf[int], *, attempted: bool) -> None:
        keys = self._keys(sequences) if self._grouped and not self.closed else ()
        super().given_back(subscription, sequences, attempted=attempted)
        for key in keys:
            self._groups.done(key)
        if subscription is self._active and subscription.closed:
            self._choose_active()

    def _put_back(self, sequences: SequenceOf[int], *, attempted: bool) -> None:
        """What is set aside of a key lies behind what comes back of it, so that goes to the front of the same line."""
        if not self._aside:
            super()._put_back(sequences, attempted=attempted)
            return
        others: list[int] = []
        for sequence in sequences:
            message = self.elements.get(sequence)
            key = message.head.group if message is not None else None
            if key is None or not self._aside.has_line(key):
                others.append(sequence)
                continue
            if attempted:
                self._cursor.count_attempt(sequence)
            self._aside.put(key, sequence)
        super()._put_back(others, attempted=attempted)

    def _keys(self, sequences: SequenceOf[int]) -> list[str]:
        messages = [self.elements.get(sequence) for sequence in sequences]
        return [message.head.group for message in messages if message is not None and message.head.group is not None]

    # ------------------------------------------------------------------ leaving unread

    def _waits(self, sequence: int) -> bool:
        return super()._waits(sequence) or self._aside.key_of(sequence) is not None

    def _drop(self, sequences: SequenceOf[int]) -> None:
        if self._aside:
            for sequence in sequences:
                if self._aside.key_of(sequence) is not None:
                    self._aside.discard(sequence)
        super()._drop(sequences)

    def _make_room(self, over_count: int, over_bytes: int) -> None:
        """The cursor has passed what is set aside, so that is older than all but what was given back."""
        while self._aside and (over_count > 0 or over_bytes > 0):
            oldest = self._aside.oldest()
            assert oldest is not None, "there are elements set aside"
            returned = self._cursor.next_returned
            if returned is not None and returned < oldest:
                part = self._cursor.take(1, UNLIMITED_BYTES)
                assert part is not None, "there is an element that was given back"
                oldest = part.first
            message = self.elements.get(oldest)
            assert message is not None, "what waits is in the queue"
            self.dropped_count += 1
            over_count -= 1
            over_bytes -= message.size_bytes
            self._drop((oldest,))
        super()._make_room(over_count, over_bytes)


class _Plan:
    """Who gets what in one dispatch of grouped elements."""

    __slots__ = ("_queue", "_room", "_taken")

    def __init__(self, queue: SharedQueue) -> None:
        self._queue = queue
        self._room: dict[Subscription, list[int]] = {}
        self._taken: dict[Subscription, list[tuple[int, Message]]] = {}

    def has_room(self, subscription: Subscription) -> bool:
        room = self._room.get(subscription)
        if room is None:
            if not self._queue._is_ready(subscription):
                return False
            room = self._room[subscription] = list(self._queue._room_of(subscription))
        return room[0] > 0 and room[1] > 0

    def next_with_room(self) -> Subscription | None:
        """Round robin over the ring."""
        ring = self._queue._ring
        for _ in range(len(ring)):
            subscription = next(iter(ring))
            ring.move_to_end(subscription)
            if self.has_room(subscription):
                return subscription
        return None

    def put(self, subscription: Subscription, sequence: int, message: Message) -> None:
        room = self._room[subscription]
        room[0] -= 1
        room[1] -= len(message.wire)
        self._taken.setdefault(subscription, []).append((sequence, message))

    def hand_over(self) -> int:
        """Deliver; returns how many messages. Subscriptions that are not ready leave the ring; the others stay."""
        queue = self._queue
        handed_count = 0
        for subscription, taken in self._taken.items():
            taken.sort()  # keys that woke were planned before what lay ahead of the cursor; no two sequences are equal
            sequences = [sequence for sequence, _message in taken]
            messages = [message for _sequence, message in taken]
            attempts = {sequence: count for sequence in sequences if (count := queue.attempts_of(sequence))}
            handed_count += len(taken)
            wire_bytes = sum([len(message.wire) for message in messages])
            queue._hand_over(subscription, Slice(messages, sequences, wire_bytes, attempts or None))
        for subscription in [other for other in queue._ring if not queue._is_ready(other)]:
            del queue._ring[subscription]
        return handed_count
