"""A queue whose messages are shared out among its consumers. Seed 002 "Share Queue".

Round robin by credit: each ready subscription gets its fair part of what waits, then goes to the end of the ring. Two refinements:

- *Exclusive consumer*: if a subscription asked for it, the oldest such one gets everything and the others stand by. When it leaves, the next
  one takes over, but only once the old one holds nothing any more, so that two never work at the same time.
- *Message groups*: see groups.py. From the first grouped message on, elements are looked at one by one. A message whose key is held by a
  consumer without credit is set aside, in order, under its key, and the ones behind it go on: the key waits, not the queue. What is set aside
  stays charged to the queue, so that the queue's limiter bounds it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as SequenceOf

from queues.consumed import ConsumedQueue
from queues.cursored import Slice
from queues.groups import GroupTable
from queues.message import Message
from queues.policy import QueuePolicy
from queues.queue import QueueEnvironment
from queues.subscription import Subscription


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
        super().__init__(name, policy, environment, priority=priority)
        self._groups = groups or GroupTable()
        self._grouped = False
        self._set_aside: dict[str, deque[int]] = {}
        self._awake_keys: deque[str] = deque()
        self._keys_of_consumer: dict[int, set[str]] = {}
        self._subscription_of: dict[int, Subscription] = {}
        self._active: Subscription | None = None
        self._groups.on_free(self._group_is_free)

    # ------------------------------------------------------------------ who may get something

    def _subscribed(self, subscription: Subscription) -> None:
        self._subscription_of[id(subscription.consumer)] = subscription
        self._choose_active()

    def _detached(self, subscription: Subscription) -> None:
        if self._subscription_of.get(id(subscription.consumer)) is subscription:
            del self._subscription_of[id(subscription.consumer)]
        self._choose_active()

    def _choose_active(self) -> None:
        """The exclusive consumer: stays until it is closed and drained; then the oldest of the others that asked for it."""
        active = self._active
        if active is not None and (not active.closed or active.unsettled_count):
            return
        self._active = next((s for s in self.subscriptions.values() if s.exclusive), None)
        for subscription in self.subscriptions.values():
            if self._may_have(subscription) and not subscription.source.blocked:
                self._enter_ring(subscription)

    def _may_have(self, subscription: Subscription) -> bool:
        return self._active is None or subscription is self._active

    def _next_ready(self) -> Subscription | None:
        """The subscription at the head of the ring that has credit; those without leave the ring until they resume."""
        ring = self._ring
        while ring:
            subscription = ring[0]
            if subscription.closed or subscription.source.blocked or not self._may_have(subscription):
                ring.popleft()
                subscription.in_ring = False
                continue
            return subscription
        return None

    # ------------------------------------------------------------------ dispatch

    def dispatch(self, budget: int) -> bool:
        if self._grouped:
            return self._dispatch_grouped(budget)
        ring = self._ring
        cursor = self._cursor
        while cursor.has_more:
            subscription = self._next_ready()
            if subscription is None:
                return False
            if budget <= 0:
                return True
            room_count, room_bytes = subscription.consumer.room(express=self.express)
            ready_count = len(ring)
            share = budget if ready_count == 1 else min(budget, -(-cursor.ahead_count // ready_count))
            part = self._take(min(share, room_count), room_bytes)
            if part is None:
                return False
            budget -= len(part.messages)
            if ready_count > 1:
                ring.rotate(-1)
            self._hand_over(subscription, part)
        return False

    def _dispatch_grouped(self, budget: int) -> bool:
        """Element by element, with each subscription's share collected and handed over as one slice."""
        plan = _Plan(self)
        more = False
        while True:
            if budget <= 0:
                more = True
                break
            if not self._wake_key(plan):
                part = self._take(1, 1 << 62)
                if part is None:
                    break
                if not self._place(plan, part):
                    self._cursor.give_back(part.sequences, attempted=False)
                    break
            budget -= 1
        plan.hand_over()
        return more

    def _place(self, plan: _Plan, part: Slice) -> bool:
        """Give this element to a subscription, or set it aside under its key. False: nobody has room."""
        sequence, message = part.sequences[0], part.messages[0]
        key = message.head.group
        attempts = part.attempts[sequence] if part.attempts else self._cursor.attempts_of(sequence)
        if key is None:
            subscription = plan.next_with_room()
            if subscription is None:
                return False
            plan.put(subscription, sequence, message, attempts)
            return True
        if key in self._set_aside:
            self._put_aside(key, sequence)
            return True
        owner = self._groups.owner(key)
        if owner is None:
            subscription = plan.next_with_room()
            if subscription is None:
                return False
        else:
            own = self._subscription_of.get(id(owner))
            if own is None or not plan.has_room(own):
                self._put_aside(key, sequence)
                return True
            subscription = own
        self._groups.handed_over(key, subscription.consumer)
        plan.put(subscription, sequence, message, attempts)
        return True

    def _put_aside(self, key: str, sequence: int) -> None:
        waiting = self._set_aside.get(key)
        if waiting is None:
            waiting = self._set_aside[key] = deque()
        if waiting and sequence < waiting[-1]:
            self._set_aside[key] = deque(sorted((*waiting, sequence)))
        else:
            waiting.append(sequence)
        owner = self._groups.owner(key)
        if owner is not None:
            self._keys_of_consumer.setdefault(id(owner), set()).add(key)

    def _wake_key(self, plan: _Plan) -> bool:
        """Hand over one element of a key that was set aside and may go now. False: no key can go on."""
        while self._awake_keys:
            key = self._awake_keys[0]
            waiting = self._set_aside.get(key)
            message: Message | None = None
            while waiting:
                message = self.elements.get(waiting[0])
                if message is not None:
                    break
                waiting.popleft()
            if not waiting or message is None:
                self._set_aside.pop(key, None)
                self._awake_keys.popleft()
                continue
            owner = self._groups.owner(key)
            subscription = plan.next_with_room() if owner is None else self._subscription_of.get(id(owner))
            if subscription is None or not plan.has_room(subscription):
                self._awake_keys.popleft()
                if owner is not None:
                    self._keys_of_consumer.setdefault(id(owner), set()).add(key)
                else:
                    # Nobody has room at all: the key is woken again by the next subscription that resumes.
                    self._keys_of_consumer.setdefault(0, set()).add(key)
                continue
            sequence = waiting.popleft()
            if self._is_expired(message):
                self._drop([sequence])
                self.expired_count += 1
                continue
            self._groups.handed_over(key, subscription.consumer)
            plan.put(subscription, sequence, message, self._cursor.attempts_of(sequence))
            if not waiting:
                del self._set_aside[key]
                self._awake_keys.popleft()
            return True
        return False

    def _group_is_free(self, key: str) -> None:
        if key in self._set_aside:
            self._awake_keys.append(key)
            self.context.request_dispatch()

    def _enter_ring(self, subscription: Subscription) -> None:
        if self._keys_of_consumer:
            for owner in (id(subscription.consumer), 0):
                keys = self._keys_of_consumer.pop(owner, None)
                if keys:
                    self._awake_keys.extend(key for key in sorted(keys) if key in self._set_aside)
        super()._enter_ring(subscription)

    def _arrived(self, messages: list[Message]) -> None:
        if messages[0].head.group is not None:
            self._grouped = True

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
        if keys:
            self._reclaim(sequences)
        super().given_back(subscription, sequences, attempted=attempted)
        for key in keys:
            self._groups.done(key)
        if subscription is self._active and subscription.closed:
            self._choose_active()

    def _expire(self, sequences: range) -> None:
        super()._expire(sequences)
        if self._set_aside:
            aside = {sequence for waiting in self._set_aside.values() for sequence in waiting}
            gone = [s for s in sequences if s in aside and self.elements.get(s) is not None]
            if gone:
                self._drop(gone)
                self.expired_count += len(gone)

    def _keys(self, sequences: SequenceOf[int]) -> list[str]:
        messages = [self.elements.get(sequence) for sequence in sequences]
        return [message.head.group for message in messages if message is not None and message.head.group is not None]

    def _reclaim(self, sequences: SequenceOf[int]) -> None:
        """Elements of a key come back: what is set aside of that key lies behind them, so it goes through the cursor's heap again too."""
        for key in set(self._keys(sequences)):
            waiting = self._set_aside.pop(key, None)
            if waiting:
                self._cursor.give_back(waiting, attempted=False)


class _Plan:
    """Who gets what in one dispatch of grouped elements."""

    __slots__ = ("_queue", "_room", "_taken")

    def __init__(self, queue: SharedQueue) -> None:
        self._queue = queue
        self._room: dict[Subscription, list[int]] = {}
        self._taken: dict[Subscription, list[tuple[int, Message, int]]] = {}

    def has_room(self, subscription: Subscription) -> bool:
        room = self._room.get(subscription)
        if room is None:
            if subscription.closed or subscription.source.blocked or not self._queue._may_have(subscription):
                return False
            room = self._room[subscription] = list(subscription.consumer.room(express=self._queue.express))
        return room[0] > 0 and (room[1] > 0 or subscription not in self._taken)

    def next_with_room(self) -> Subscription | None:
        """Round robin over the ring."""
        ring = self._queue._ring
        for _ in range(len(ring)):
            subscription = ring[0]
            ring.rotate(-1)
            if self.has_room(subscription):
                return subscription
        return None

    def put(self, subscription: Subscription, sequence: int, message: Message, attempts: int) -> None:
        room = self._room[subscription]
        room[0] -= 1
        room[1] -= len(message.wire)
        self._taken.setdefault(subscription, []).append((sequence, message, attempts))

    def hand_over(self) -> None:
        """Deliver. A subscription that got nothing and is blocked leaves the ring; the others stay."""
        for subscription, taken in self._taken.items():
            messages = [message for _sequence, message, _attempts in taken]
            attempts = {sequence: count for sequence, _message, count in taken if count}
            part = Slice(
                messages,
                [sequence for sequence, _message, _attempts in taken],
                sum(len(message.wire) for message in messages),
                attempts or None,
            )
            self._queue._hand_over(subscription, part)
        ring = self._queue._ring
        for _ in range(len(ring)):
            subscription = ring.popleft()
            if subscription.closed or subscription.source.blocked or not self._queue._may_have(subscription):
                subscription.in_ring = False
            else:
                ring.append(subscription)


