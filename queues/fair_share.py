"""Fair shares of one pass over the elements of a queue, when each element is placed by itself.

A pass collects a share for each subscription, so that a consumer gets one slice, however its elements were mixed with
those of other consumers. A share ends with the room that its subscription had when it was first asked: that is a
promise of the consumer for itself only. Consumers that draw on one credit may promise the same room twice, and a
consumer may be closed by what another one does; so the caller that hands the shares over asks for the room again.

Bound: the elements collected in a pass, which is the budget of one dispatch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from .message import Message
from .subscription import Subscription

Taken = list[tuple[int, Message]]
"""Elements with their sequences."""


class _Share:
    __slots__ = ("room_bytes", "room_count", "taken")

    def __init__(self, room: tuple[int, int]) -> None:
        self.room_count, self.room_bytes = room
        self.taken: Taken = []

    def fits(self, size_bytes: int) -> bool:
        """Return whether an element fits, as with a slice: the first one always does, if there is any room at all.
        After one that does not fit none does.
        """
        if self.room_count <= 0 or self.room_bytes <= 0:
            return False
        if size_bytes > self.room_bytes and self.taken:
            self.room_count = 0
            return False
        return True


class FairShare:
    """Shares by subscription. True if anything is in them."""

    __slots__ = ("_ring", "_room_of", "_shares", "given_count")

    def __init__(
        self, ring: OrderedDict[Subscription, None], room_of: Callable[[Subscription], tuple[int, int]]
    ) -> None:
        """`ring`: subscriptions that may have credit, the next one first; it is rotated, and a subscription leaves it
        when its share is full.

        `room_of`: messages and wire bytes that a subscription takes now, (0, 0) if it may not receive any. Asked once.
        """
        self._ring = ring
        self._room_of = room_of
        self._shares: dict[Subscription, _Share] = {}
        self.given_count = 0
        """Shares that have something in them."""

    def __bool__(self) -> bool:
        return any(share.taken for share in self._shares.values())

    def __iter__(self) -> Iterator[tuple[Subscription, Taken]]:
        """Subscriptions that get anything, with their elements in order."""
        for subscription, share in self._shares.items():
            if share.taken:
                # Elements that were set aside are placed before what lay ahead. No two sequences are equal.
                share.taken.sort()
                yield subscription, share.taken

    def fits(self, subscription: Subscription, message: Message) -> bool:
        """Return whether `message` may be put into the share of `subscription`."""
        share = self._shares.get(subscription)
        if share is None:
            share = self._shares[subscription] = _Share(self._room_of(subscription))
        return share.fits(len(message.wire))

    def next_for(self, message: Message) -> Subscription | None:
        """Return the next subscription in turn that has room for `message`, or None. O(1) amortised."""
        ring = self._ring
        while ring:
            subscription = next(iter(ring))
            if self.fits(subscription, message):
                ring.move_to_end(subscription)
                return subscription
            ring.pop(subscription, None)  # asking for its room may have led to its leaving
        return None

    def put(self, subscription: Subscription, sequence: int, message: Message) -> None:
        """Give it this element, which must fit."""
        share = self._shares[subscription]
        if not share.taken:
            self.given_count += 1
        share.room_count -= 1
        share.room_bytes -= len(message.wire)
        share.taken.append((sequence, message))
