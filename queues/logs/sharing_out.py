"""Partitions of a log, shared out among the consumers of a group: each partition has one of them at a time.

To a partition its group is one of the same name; here is which consumer reads it. Partitions are spread evenly, by the
same `PartShares` as the parts of a queue: one goes to another consumer when its own one leaves, or has more than its
share because others came, and the next one begins when the one before has settled, or given back, all that it held. So
nothing is redelivered because a consumer came; what one held that left is.

Bound: an entry for each partition, and for each consumer; it ends with the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any

from ..parts import PartShares, PartTurn, Taker, key_of
from .group import Group
from .ordering import PARTITIONS


class PartitionOrder:
    """Order of one group of a partition: whoever has the partition gets all."""

    name = PARTITIONS

    __slots__ = ("_done", "_group", "_turn")

    def __init__(self, group: Group, turn: PartTurn, done: Callable[[], None]) -> None:
        """`done`: called when a consumer that has left may have given back the last that it held."""
        self._group = group
        self._turn = turn
        self._done = done

    @property
    def holds_back(self) -> bool:
        """Whether a record waits for its next attempt, so that no later one may be handed out."""
        refused = self._group.refused
        return refused is not None and refused.delays_some

    def joined(self, subscription: Any) -> None:
        """Do nothing: only the consumer that has the partition joins."""

    def left(self, subscription: Any) -> None:
        self._turn.left(subscription.root)

    def credited(self, subscription: Any) -> bool:
        return True

    def answered(self, subscription: Any, sequences: SequenceOf[int]) -> None:
        if subscription.root.closed:
            self._turn.left(subscription.root)
            self._done()

    def moved(self) -> None:
        self._turn.moved()
        self._done()

    def facts(self) -> Mapping[str, object]:
        return {"order": "one consumer has the partition", **self._turn.facts()}


class SharedOut:
    """One group over all partitions of one log, while it has consumers."""

    __slots__ = ("_beginning_count", "_ended", "_groups", "_is_known", "_members", "_shares", "selector")

    def __init__(
        self, carefully: Callable[[Callable[[], None]], None], ended: Callable[[], None], *, is_known: bool
    ) -> None:
        """`is_known`: whether some partition had the group before; `carefully`: runs work for one of many objects and
        contains its errors; `ended`: called when the last consumer has left, and nothing is in its hands any more.
        """
        self._shares = PartShares(carefully)
        self._groups: dict[int, Group] = {}
        self._members: dict[Taker, None] = {}
        self._beginning_count = 0
        self._is_known = is_known
        self.selector = ""
        """Selector of the consumers; empty: they have none."""
        self._ended = ended

    @property
    def has_consumers(self) -> bool:
        """Whether there are consumers, or some are about to join."""
        return bool(self._members) or self._beginning_count > 0

    def begin(self) -> None:
        """Note a consumer that is about to join; `began` ends that."""
        self._beginning_count += 1

    def began(self) -> None:
        """Note that a consumer has joined by now, or never will."""
        self._beginning_count -= 1
        self._look()

    def add(self, number: int, group: Group) -> None:
        """Add the group of one partition, in place of one that was deleted with its log."""
        if self._groups.get(number) is group:
            return
        self._groups[number] = group
        group.shared_out = PartitionOrder(group, self._shares.turn(number), self._look)
        queue: Any = group
        self._shares.made(key_of(0, number), queue)

    def is_new(self, number: int) -> bool:
        """Whether the group begins in this partition where its first consumer says. Otherwise it was there, with other
        partitions or before this one was deleted: what the partition has is all new to it.
        """
        return not self._is_known and number not in self._groups

    def group(self, number: int) -> Group | None:
        """Return the group of a partition; None: it was deleted."""
        group = self._groups.get(number)
        return None if group is None or group.closed else group

    def join(self, member: Taker) -> None:
        """Add a consumer: it gets its share as soon as others have released it."""
        self._members[member] = None
        self._shares.joined(member)

    def leave(self, member: Taker) -> None:
        """Remove a consumer: its partitions go to others when it has settled, or given back, what it holds."""
        if member in self._members:
            del self._members[member]
            self._shares.left(member)
            self._look()

    def _look(self) -> None:
        """End if there are no consumers, and nothing is in the hands of earlier ones."""
        if self.has_consumers or self._shares.is_draining:
            return
        groups, self._groups = self._groups, {}
        for group in groups.values():
            group.shared_out = None
        self._ended()
