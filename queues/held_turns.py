"""Turns of consumers' limiters that a queue's subscriptions hold until the queue's next dispatch.

A consumer's window or buffer resumes one subscription at a time, and that one holds its turn (flow/account.py): it can
use it in its queue's next dispatch only. Behind that dispatch a turn ends if its subscription is not in line any more,
got something, or was blocked again. Where there are many, that takes the next dispatches, which do nothing else: each
turn that ends may let another subscription begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from .subscription import Subscription

TURNS_BEHIND_DISPATCH: Final = 64
TURNS_AT_ONCE: Final = 256
"""Turns that are ended behind a dispatch, and in one that does nothing else."""


class HeldTurns:
    """Turns that subscriptions of one queue hold.

    Attributes:
        under_way: whether turns are still to be checked after the last dispatch, before the next one.
    """

    __slots__ = ("_had_more", "_held", "_is_in_line", "_left", "under_way")

    def __init__(self, is_in_line: Callable[[Subscription], bool]) -> None:
        """`is_in_line`: whether this subscription waits to be served by the next dispatch."""
        self._is_in_line = is_in_line
        self._held: dict[Subscription, int] = {}
        """Subscriptions that hold a turn, with their `delivered_count` when they got it."""
        self._left: Iterator[tuple[Subscription, int]] = iter(())
        self._had_more = False
        self.under_way = False

    def __bool__(self) -> bool:
        return bool(self._held)

    def hold(self, subscription: Subscription) -> None:
        """`subscription` has got a turn."""
        self._held[subscription] = subscription.delivered_count

    def forget(self, subscription: Subscription) -> None:
        """Forget a subscription that is gone; its turn has ended with it."""
        self._held.pop(subscription, None)

    def end(self, *, more: bool) -> bool:
        """End turns behind a dispatch; `more`: it said that there is more to do. Return whether there is."""
        turns = list(self._held.items())
        if len(turns) > TURNS_BEHIND_DISPATCH:
            self._left, self._had_more, self.under_way = iter(turns), more, True
            return True
        self._end(turns, more=more)
        return more

    def go_on(self) -> None:
        """Check some of the remaining turns, in a dispatch that does nothing else."""
        turns = list(islice(self._left, TURNS_AT_ONCE))
        self._end(turns, more=self._had_more)
        if len(turns) < TURNS_AT_ONCE:
            self.under_way = False
            self._left = iter(())

    def _end(self, turns: Iterable[tuple[Subscription, int]], *, more: bool) -> None:
        held, is_in_line = self._held, self._is_in_line
        for subscription, delivered_count in turns:
            if (
                not more
                or subscription.source.blocked
                or subscription.delivered_count != delivered_count
                or not is_in_line(subscription)
            ) and held.pop(subscription, None) is not None:
                subscription.source.end_turn()
