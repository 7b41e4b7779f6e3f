"""Partitioning of queues by a header or a function: the part of a message, and the consumer of a part.

Seed 002 "Partitioning of queues". Messages with the same value belong to one part, which is a queue with limits of its
own. A part has one consumer at a time, so that order holds until its messages are acknowledged, and parts
are spread evenly over consumers. A part goes to another consumer when its own one leaves, or has more than its share
because others came. The next consumer begins when the one before has settled, or given back, all that it held.

Two kinds of consumers differ:

- The oldest exclusive consumer has all parts while it is attached.
- A consumer with a selector takes what it selects from all parts, beside their consumers: order does not hold for that.

Bound: an entry for each part, and for each consumer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol
from zlib import crc32

import attrs

from .environment import PartFunction
from .exclusivity import Exclusivity
from .message import Envelope
from .queue import MessageQueue
from .subscription import Subscription

PRIORITIES_COUNT: Final = 10


def key_of(priority: int, part: int) -> int:
    """Return the key of the queue for this priority of this part."""
    return priority + PRIORITIES_COUNT * part


def priority_and_part(key: int) -> tuple[int, int]:
    """Undo `key_of`."""
    part, priority = divmod(key, PRIORITIES_COUNT)
    return priority, part


def by_header(name: str) -> PartFunction:
    """Return the function that divides by a header."""
    return lambda header_of: header_of(name)


@attrs.frozen
class Partitioning:
    """Partitioning: by which value, and into how many parts."""

    value_of: PartFunction
    count: int

    def part_of(self, head: Envelope) -> int:
        """Return the part of messages with this head: CRC-32 of the value, modulo the number of parts. Without a value
        it is part 0.
        """
        value = self.value_of(head.header)
        return 0 if value is None else crc32(value.encode("utf-8", "surrogatepass")) % self.count


class Taker(Protocol):
    """A consumer, as parts see it."""

    @property
    def exclusive(self) -> bool: ...
    def open_on(self, queue: MessageQueue) -> None:
        """Take from this queue."""

    def close_on(self, queue: MessageQueue) -> Subscription | None:
        """Take from this queue no more. Return the subscription to it, which is not closed yet; None: there is none."""


class PartTurn(Exclusivity):
    """Turns of one part: tells the shares when the consumer before has released the part. Any subscription may have its
    messages.
    """

    __slots__ = ("_part", "_shares")

    def __init__(self, shares: PartShares, part: _Part) -> None:
        super().__init__()
        self._shares = shares
        self._part = part

    def joined(self, subscription: Subscription) -> None:
        """Do nothing: whose turn it is not is not subscribed."""

    def left(self, subscription: Subscription) -> None:
        self._shares.released(self._part, subscription)

    def moved(self) -> None:
        """Note that what is in consumers' hands may count for nothing any more."""
        for subscription in tuple(self._part.draining):
            self._shares.released(self._part, subscription)

    def facts(self) -> dict[str, object]:
        holding = next(iter(self._part.draining), None)
        if holding is None or self._part.taker is not None:
            return {}
        who = holding.consumer.label
        return {"consumers": f"none now: the next one begins when {who} has settled {holding.unsettled_count} messages"}


@attrs.define(eq=False)
class _Part:
    taker: Taker | None = None
    draining: dict[Subscription, None] = attrs.field(factory=dict)
    """Subscriptions of earlier takers of the part that still hold elements of it."""
    queues: dict[int, MessageQueue] = attrs.field(factory=dict)
    """Queues by priority."""


class PartShares:
    """Parts of one destination, with the consumer of each."""

    __slots__ = ("_carefully", "_counts", "_exclusive", "_parts")

    def __init__(self, carefully: Callable[[Callable[[], None]], None]) -> None:
        """`carefully`: runs work for one of many objects and contains its errors."""
        self._carefully = carefully
        self._parts: dict[int, _Part] = {}
        self._counts: dict[Taker, int] = {}
        """Number of parts of each consumer, in the order in which the consumers came."""
        self._exclusive: dict[Taker, None] = {}

    @property
    def is_draining(self) -> bool:
        """Whether consumers hold elements of parts that are not theirs any more. O(parts)."""
        return any(part.draining for part in self._parts.values())

    def turn(self, part: int) -> PartTurn:
        """Return the object that a queue of this part asks for turns."""
        return PartTurn(self, self._parts.setdefault(part, _Part()))

    def made(self, key: int, queue: MessageQueue) -> None:
        """Note a new queue: the consumer of its part takes from it."""
        priority, number = priority_and_part(key)
        part = self._parts.setdefault(number, _Part())
        part.queues[priority] = queue
        if part.taker is not None:
            self._carefully(partial(part.taker.open_on, queue))
        else:
            self._give(part)

    def joined(self, taker: Taker) -> None:
        """Note a new consumer: it gets its share as soon as others have released it. O(parts)."""
        self._counts[taker] = 0
        if taker.exclusive:
            self._exclusive[taker] = None
        only = next(iter(self._exclusive), None)
        fair_count, left_count = divmod(len(self._parts), len(self._counts))
        held: Counter[Taker] = Counter()
        for part in self._parts.values():
            if part.taker is None:
                self._give(part)
            elif only is not None:
                if part.taker is not only:
                    self._take_away(part)
            else:
                held[part.taker] += 1
                if held[part.taker] > fair_count:
                    if held[part.taker] == fair_count + 1 and left_count:
                        left_count -= 1
                    else:
                        self._take_away(part)

    def left(self, taker: Taker) -> None:
        """Note that a consumer is leaving: its parts go to others when it has settled what it holds. O(parts)."""
        if self._counts.pop(taker, None) is None:
            return
        self._exclusive.pop(taker, None)
        for part in self._parts.values():
            if part.taker is taker:
                self._take_away(part)

    def released(self, part: _Part, subscription: Subscription) -> None:
        """Note that a subscription was closed, or is closed and holds less than before. O(1)."""
        if subscription in part.draining and _is_released(subscription):
            del part.draining[subscription]
            self._give(part)

    def _take_away(self, part: _Part) -> None:
        taker, part.taker = part.taker, None
        assert taker is not None, "a consumer has it"
        if taker in self._counts:
            self._counts[taker] -= 1
        closing = [s for queue in part.queues.values() if (s := taker.close_on(queue)) is not None]
        part.draining |= dict.fromkeys(closing)
        for subscription in closing:
            self._carefully(subscription.close)
            if _is_released(subscription):  # also if its end was not heard of here, for something raised
                part.draining.pop(subscription, None)
        self._give(part)

    def _give(self, part: _Part) -> None:
        """Give a part that has no taker, and of which no consumer holds elements, to the taker with the fewest."""
        if part.taker is not None or part.draining or not self._counts:
            return
        taker = next(iter(self._exclusive), None) or self._idlest()
        part.taker = taker
        self._counts[taker] += 1
        for queue in part.queues.values():
            if part.taker is not taker:
                break  # it was ended for what it raised, and another consumer has the part
            if not queue.closed:
                self._carefully(partial(taker.open_on, queue))

    def _idlest(self) -> Taker:
        """Return the taker with the fewest parts. O(parts)."""
        idlest = next(iter(self._counts))
        for taker, count in self._counts.items():
            if count < self._counts[idlest]:
                idlest = taker
            if not self._counts[idlest]:
                break
        return idlest


def _is_released(subscription: Subscription) -> bool:
    return subscription.is_drained or subscription.queue.closed
