"""Group of a log: a reader whose position outlives its consumers and the broker.

The part kept on disk is bounded (PLACE_RANGES_MAX). Beyond the bound, settled records between unsettled ones are
redelivered after a restart, and failure counts are forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Final

from ...flow.kinds import ResourceKind
from ...flow.snapshot import Circumstances
from ..ranges import RangeSet
from ..subscription import Subscription
from .by_key import KeyOrder
from .exclusive_order import ExclusiveOrder
from .log import Log
from .log_readers import UNSEEN, LogConsumer, LogReaders
from .ordering import ANY, BY_KEY, EXCLUSIVE, IN_WORDS, PARTITIONS, Order
from .ports import PLACE_RANGES_MAX, GroupKeeper, GroupState
from .redelivery import Redelivery
from .refused import Refused, joined, overlaid

LOOKED_AT_MAX: Final = 2 * PLACE_RANGES_MAX
"""Maximum numbers of redeliveries, and of deliveries in consumers' hands, searched for failed records."""


class Group(LogReaders):
    """Consumer group whose position outlives its consumers and the broker."""

    def __init__(self, log: Log, group: str, state: GroupState, keeper: GroupKeeper) -> None:
        self.group = group
        self._front = state.front
        self._settled = RangeSet(state.settled)
        self.deleted = False
        self._by_key: KeyOrder | None = None
        """Order by key; None: another one."""
        self.shared_out: Order | None = None
        """Order while the partitions of a log are shared out among consumers of all; None: they are not."""
        self.creating: list[Callable[[Exception | None], None]] | None = None
        """Callbacks for the group's creation on disk; None: it is on disk."""
        super().__init__(log, f"{log.name} group {group}", state.front, kind=ResourceKind.LOG_GROUP)
        self.place = self.storage = keeper.place(log.name, group, self.state)
        # Records settled beyond the front are not redelivered; records that may have been seen are redelivered as such.
        end = min(state.handed_to, log.records.next_index)  # a lease may go beyond the log
        if state.settled:
            end = max(end, state.settled[-1][1])
        holes = [
            (start, stop, 0 if stop <= state.handed_to else UNSEEN)
            for start, stop in self._settled.holes(state.front, end)
        ]
        again = list(overlaid(holes, state.failures))
        spent = [each for each in again if self.is_spent(each[2])]
        self._again = Redelivery([each for each in again if not self.is_spent(each[2])] if spent else again)
        self.position = max(state.front, end)
        if spent:
            self.refused = Refused(self)
            self.refused.stand_by(spent)

    def _left(self) -> None:
        """Stay without consumers."""

    def why_not(self, order: str) -> str:
        """Return why no consumer that asks for this order can join now; empty: it can."""
        has = ANY if self.order is None else self.order.name
        if self.shared_out is not None and order != PARTITIONS:
            return f"group {self.group} has consumers of {IN_WORDS[PARTITIONS]}, this one asks for {IN_WORDS[order]}"
        if order == has:
            return ""
        if self.subscriptions:
            return f"the consumers of group {self.group} have {IN_WORDS[has]}, this one asks for {IN_WORDS[order]}"
        if self._out_count:
            return (
                f"group {self.group} has {self._out_count} unacknowledged records that were handed out with "
                f"{IN_WORDS[has]}"
            )
        return ""

    def subscribe(self, consumer: LogConsumer) -> Subscription:
        """Add a consumer, whose order is that of the group (`why_not`)."""
        if consumer.order == PARTITIONS or consumer.order != (ANY if self.order is None else self.order.name):
            self._take_order(consumer.order)
        return super().subscribe(consumer)

    def _take_order(self, order: str) -> None:
        by_key, self._by_key, self.order = self._by_key, None, None
        if by_key is not None:
            by_key.ending()
        if order == EXCLUSIVE:
            self.order = ExclusiveOrder(self)
        elif order == PARTITIONS:
            self.order = self.shared_out
        elif order == BY_KEY:
            self.order = self._by_key = KeyOrder(self)
            if self.refused is not None:
                self.refused.hasten()  # the keys of what waits for its time are not known

    @property
    def front(self) -> int:
        return self._front

    @property
    def refuser(self) -> str:
        return self.group

    def _settle(self, start: int, end: int) -> None:
        if end <= self._front:
            return  # retention had removed the record before
        settled = self._settled
        settled.add(max(start, self._front), end)
        if start <= self._front:
            self._front = settled.first_gap(self._front)
            settled.drop_below(self._front)
        self._changed()

    def _wanted(self, start: int, end: int) -> Iterable[tuple[int, int]]:
        # Retention may have removed the record while it was delivered; then the record counts as settled.
        return self._settled.holes(max(start, self._front), end)

    # ------------------------------------------------------------------ by key

    def _dispatch(self, budget: int) -> bool:
        return super()._dispatch(budget) if self._by_key is None else self._by_key.dispatch(budget)

    def has_waiting(self, subscription: Subscription) -> bool:
        return super().has_waiting(subscription) or (self._by_key is not None and self._by_key.has_waiting)

    def comes_again(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        super().comes_again(ranges if self._by_key is None else self._by_key.returned(ranges))

    def _refuse(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        if self._by_key is not None:
            ranges = list(ranges)
            self._by_key.hold_back([each for each in ranges if not self.is_spent(each[2])])
        super()._refuse(ranges)

    def passed(self, start: int, end: int) -> None:
        if self._by_key is not None:
            self._by_key.let_go(start, end)
        super().passed(start, end)

    def pass_missing(self, start: int, end: int) -> None:
        if self._by_key is not None:
            self._by_key.gone(start, end)
        super().pass_missing(start, end)

    # ------------------------------------------------------------------ positions

    def seek(self, index: int) -> None:
        """Continue at `index` in a new epoch: deliveries of earlier epochs that come back are ignored. Consumers keep
        what they have.
        """
        self.epoch += 1
        self._front = self.position = index
        self._settled = RangeSet()
        self._again = Redelivery()
        self._attempts.clear()
        self._failed.clear()
        self._out_count = 0
        self._runs.clear()
        if self.refused is not None:
            self.refused.forget(0, self.log.records.next_index)
        if self.order is not None:
            self.order.moved()
        self._changed()
        self.context.request_dispatch()

    @property
    def lag_count(self) -> int:
        """Number of unsettled records."""
        end = self.log.records.next_index
        return max(0, end - self._front) - self._settled.number_count

    # ------------------------------------------------------------------ position on disk

    def state(self) -> GroupState:
        """Return the position to keep."""
        settled = tuple(islice(self._settled, PLACE_RANGES_MAX))
        by_key = self._by_key
        handed_to = self.position if by_key is None else by_key.handed_to if self.closed else by_key.lease
        return GroupState(self._front, settled, handed_to, tuple(self._failures()), self.log.log_id)

    def _failures(self) -> list[tuple[int, int, int]]:
        """Return the failed unsettled records, wherever they are: about the first PLACE_RANGES_MAX."""
        first = islice(self._again, LOOKED_AT_MAX)
        found = [(again.start, again.end, again.failures) for again in first if again.failures > 0]
        if self._by_key is not None:
            found += self._by_key.failed()
        if self._failed:
            ends = self._runs
            out = islice(self._failed.items(), LOOKED_AT_MAX)
            found += [(start, ends.get(start, start + 1), count) for start, count in out]
        if self.refused is not None:
            found += self.refused.ranges()
        return joined(found, self._front)

    def _changed(self) -> None:
        self.place.changed()

    def delete(self) -> None:
        """Delete the group. Later acknowledgements change no position, and no waiter waits for its storage."""
        self.deleted = True
        self.close()
        self.place.forget()

    def circumstances(self) -> Circumstances:
        return Circumstances(self.name, has_consumers=bool(self.subscriptions))

    def facts(self) -> Mapping[str, object]:
        facts = dict(super().facts()) | {"consumers": len(self.subscriptions)}
        return facts if self.order is None else facts | dict(self.order.facts())
