"""Turns of exclusive consumers.

If there are exclusive subscriptions, the oldest such consumer gets everything and the others stand by. When it leaves,
the next one takes over, but only once the old one holds nothing any more, so that two never work at the same time.
Elements that the others hold when the first exclusive one arrives stay with them.

One object serves all partitions of a destination, as with groups: the active consumer is active in all of them, and the
next one takes over when it is drained in all of them.

Bound: an entry per exclusive consumer that is attached, and one for the last one until it is drained.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from .subscription import Consumer, Subscription


@attrs.define(eq=False)
class _Claim:
    consumer: Consumer
    subscriptions: list[Subscription] = attrs.field(factory=list)
    """One per partition; closed ones too, as they may hold something."""

    @property
    def is_closed(self) -> bool:
        return all(subscription.closed for subscription in self.subscriptions)

    @property
    def is_drained(self) -> bool:
        return all(subscription.is_drained for subscription in self.subscriptions)


class Exclusivity:
    """The exclusive consumers of a destination, in the order in which they came."""

    __slots__ = ("_claims", "_on_change", "active")

    def __init__(self) -> None:
        self._claims: dict[int, _Claim] = {}
        self._on_change: list[Callable[[], None]] = []
        self.active: Consumer | None = None
        """Consumer whose turn it is; None: no exclusive consumer is attached, all share."""

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call this when another consumer has its turn, or all share again."""
        self._on_change.append(callback)

    def allows(self, consumer: Consumer) -> bool:
        """Return whether `consumer` may receive messages now. O(1)."""
        return self.active is None or self.active is consumer

    def joined(self, subscription: Subscription) -> None:
        """Note a new subscription; it matters if it is exclusive."""
        if not subscription.exclusive:
            return
        consumer = subscription.consumer
        claim = self._claims.get(id(consumer))
        if claim is None:
            claim = self._claims[id(consumer)] = _Claim(consumer)
        claim.subscriptions.append(subscription)
        if self.active is None:
            self._choose()

    def left(self, subscription: Subscription) -> None:
        """Note that a subscription was closed, or is closed and holds less than before. O(partitions)."""
        claim = self._claims.get(id(subscription.consumer))
        if claim is None or not claim.is_closed:
            return
        if claim.consumer is not self.active:
            del self._claims[id(subscription.consumer)]
        elif claim.is_drained:
            del self._claims[id(subscription.consumer)]
            self._choose()

    def review(self) -> None:
        """Let the next one take over if the active consumer has left, and is drained by now."""
        active = self.active
        if active is not None:
            self.left(self._claims[id(active)].subscriptions[0])

    def facts(self) -> dict[str, object]:
        """Return facts about the exclusive consumers, for people."""
        return {}

    def _choose(self) -> None:
        oldest = next(iter(self._claims.values()), None)
        self.active = oldest.consumer if oldest is not None else None
        for callback in self._on_change:
            callback()
