"""Exclusive consumers of a group: the one that joined first gets all records in order, the others stand by.

When it leaves, the next one takes over once nothing of the group is in its hands. A record that waits for its next
attempt holds back all later ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any

from ..exclusivity import Exclusivity
from .log_readers import LogReaders
from .ordering import EXCLUSIVE


class ExclusiveOrder:
    """Turns of the exclusive consumers of a group."""

    name = EXCLUSIVE

    __slots__ = ("_outlet", "_turns")

    def __init__(self, outlet: LogReaders) -> None:
        self._outlet = outlet
        self._turns = Exclusivity()
        self._turns.on_change(self._changed)

    @property
    def holds_back(self) -> bool:
        """Whether a record waits for its next attempt, so that no later one may be handed out."""
        refused = self._outlet.refused
        return refused is not None and refused.delays_some

    def joined(self, subscription: Any) -> None:
        self._turns.joined(subscription)
        if not self.credited(subscription):
            self._outlet.line.rest(subscription)

    def left(self, subscription: Any) -> None:
        self._turns.left(subscription)

    def credited(self, subscription: Any) -> bool:
        return self._turns.allows(subscription.consumer)

    def answered(self, subscription: Any, sequences: SequenceOf[int]) -> None:
        if subscription.root.closed:
            self._turns.left(subscription.root)

    def moved(self) -> None:
        self._turns.review()

    def _changed(self) -> None:
        outlet = self._outlet
        active = self._turns.active
        ready = [each for each in outlet.subscriptions if each.consumer is active]
        for subscription in ready:
            outlet.line.wake(subscription)
        outlet.context.request_dispatch()

    def facts(self) -> Mapping[str, object]:
        active = self._turns.active
        facts: dict[str, object] = {"order": EXCLUSIVE}
        if active is not None:
            facts["active consumer"] = active.label
        if self.holds_back:
            facts["held back"] = "a record waits for its next attempt, and the later ones for it"
        return facts
