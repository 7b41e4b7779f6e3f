"""Placing elements by key: each goes to the consumer that holds its key, or waits in line under its key.

A line of elements that were set aside has one of these places, so it is never forgotten; and it is looked at only when
it may continue, so a settlement costs the same for any number of lines:
    before a subscription   its consumer holds the key: served first when that one has credit;
    before ANYBODY          no consumer holds the key (or another partition has just handed it out): served when any
                            subscription has credit;
    nowhere                 the holder of the key is not attached here any more, or the key is held back: an element of
                            it waits for its next attempt (groups.py).
When the last element of a held key is settled or given back, its line moves to ANYBODY from any place.

Queues use it for message groups, groups of logs for the keys of records. What an element is, and how it is handed over,
is its user's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from .fair_share import FairShare
from .group_backlog import ANYBODY, GroupBacklog
from .groups import GroupTable, HeldBack
from .message import Message
from .subscription import Subscription


class KeyedPlacing:
    """Places of one queue's keyed elements.

    Attributes:
        groups: holders of keys; shared by the partitions of a destination.
        aside: elements that wait for their key.
        held_back: keys of which an element waits for its next attempt.
        called: subscriptions in the ring that lines may wait for.
    """

    __slots__ = ("_message_of", "_on_free", "_ring", "_subscription_of", "aside", "called", "groups", "held_back")

    def __init__(
        self,
        groups: GroupTable,
        aside: GroupBacklog,
        ring: OrderedDict[Subscription, None],
        *,
        message_of: Callable[[int], Message | None],
        on_free: Callable[[str], None],
    ) -> None:
        """`ring`: subscriptions that may have credit; `message_of`: returns an element set aside that is to be placed
        now, or None if it has just left the queue and its line; `on_free`: is told of each key that may continue.
        """
        self.groups = groups
        self.aside = aside
        self.held_back = HeldBack(self.released)
        self.called: OrderedDict[Subscription, None] = OrderedDict()
        self._ring = ring
        self._message_of = message_of
        self._on_free = on_free
        self._subscription_of: dict[int, Subscription] = {}
        groups.on_free(self.released)

    # ------------------------------------------------------------------ subscriptions

    def joined(self, subscription: Subscription) -> None:
        """Note a new subscription."""
        self._subscription_of[id(subscription.consumer)] = subscription

    def left(self, subscription: Subscription) -> None:
        """Forget a subscription: lines before it have no place until their key is free."""
        consumer_id = id(subscription.consumer)
        if self._subscription_of.get(consumer_id) is subscription:
            del self._subscription_of[consumer_id]
        self.aside.clear_place(subscription)
        self.called.pop(subscription, None)

    def subscription_of(self, consumer: object) -> Subscription | None:
        """Return the subscription of a consumer that is attached here, or None."""
        return self._subscription_of.get(id(consumer))

    def call(self, subscription: Subscription) -> None:
        """Continue the lines that wait for a subscription, which has credit."""
        if not subscription.closed and self.aside.first_at(subscription) is not None:
            self.called[subscription] = None

    # ------------------------------------------------------------------ placing

    def place(self, shares: FairShare, key: str, sequence: int, message: Message) -> bool:
        """Give an element to a subscription, or set it aside under its key. Returns False if no subscription has room
        and nothing of the key is in hand or set aside.
        """
        if self.aside.has_line(key):
            self.aside.put(key, sequence)
            return True
        owner = self.groups.owner(key)
        subscription: Subscription | None
        if self.held_back.holds(key):
            self.aside.put(key, sequence)
            return True
        if owner is None:
            subscription = shares.next_for(message)
            if subscription is None:
                return False
        else:
            subscription = self._subscription_of.get(id(owner))
            if subscription is None or subscription.selection is not None or not shares.fits(subscription, message):
                self.aside.put(key, sequence)
                self.wait_for(key, subscription)
                return True
        self.groups.handed_over(key, subscription.consumer)
        shares.put(subscription, sequence, message)
        return True

    def serve_called(self, shares: FairShare) -> None:
        """Place one element of the first line before the first called subscription; a subscription without such a line
        is no longer called.
        """
        subscription = next(iter(self.called))
        key = self.aside.first_at(subscription)
        if key is None or not self._place_next(key, subscription, shares):
            self.called.pop(subscription, None)

    def serve_free(self, key: str, shares: FairShare) -> bool:
        """Place one element of a line that may go to ANYBODY. Returns False if no subscription has room."""
        holder = self.groups.owner(key)
        if holder is None:
            return self._place_next(key, None, shares)
        # Another partition handed out a message of this key since it became free.
        self.wait_for(key, self._subscription_of.get(id(holder)))
        return True

    def _place_next(self, key: str, holder: Subscription | None, shares: FairShare) -> bool:
        """Place the next element set aside of this key. Returns False if its holder (None: any subscription) has no
        room for it.
        """
        aside = self.aside
        sequence = aside.first(key)
        assert sequence is not None, "a line that has a place is not empty"
        message = self._message_of(sequence)
        if message is None:
            return True
        if holder is not None:
            subscription = holder if shares.fits(holder, message) else None
        else:
            subscription = shares.next_for(message)
        if subscription is None:
            return False
        aside.discard(sequence)
        if holder is None and aside.has_line(key):
            self.wait_for(key, subscription)
        self.groups.handed_over(key, subscription.consumer)
        shares.put(subscription, sequence, message)
        return True

    def wait_for(self, key: str, holder: Subscription | None) -> None:
        """Put the line of a key before the subscription that holds the key. None: the holder is not attached. A holder
        with a selector finds its elements by itself.
        """
        if holder is None or holder.selection is not None or self.held_back.holds(key):
            self.aside.unplace(key)
            return
        self.aside.line_up(key, holder)
        if holder in self._ring:
            self.called[holder] = None

    # ------------------------------------------------------------------ keys that wait

    def hold_back(self, key: str, sequence: int) -> None:
        """Let a key wait for an element that is tried again later."""
        self.held_back.add(key, sequence)
        if self.aside.has_line(key):
            self.aside.unplace(key)

    def let_go(self, sequences: Iterable[int]) -> None:
        """Note elements that wait no longer: they are due, or have left."""
        self.held_back.discard(sequences)

    def released(self, key: str) -> None:
        """Continue a key that no consumer holds any more, or that is no longer held back."""
        if self.held_back.holds(key):
            return
        if self.aside.has_line(key):
            owner = self.groups.owner(key)
            if owner is None:
                self.aside.line_up(key, ANYBODY)
            else:
                self.wait_for(key, self._subscription_of.get(id(owner)))
        self._on_free(key)
