"""A group of a log: an outlet whose place outlives its consumers and the broker.

What of it is kept is bounded (PLACE_RANGES_MAX): beyond that what was settled in between comes again after a restart,
and how often a record failed is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Final

from ...flow.kinds import ResourceKind
from ..ranges import RangeSet
from .log import Log
from .log_readers import UNSEEN, LogReaders
from .ports import PLACE_RANGES_MAX, GroupKeeper, GroupState
from .redelivery import Redelivery
from .refused import Refused, joined, overlaid

LOOKED_AT_MAX: Final = 2 * PLACE_RANGES_MAX
"""Of what comes again, and of what is out, for those that have failed."""


class Group(LogReaders):
    """A fan-out group: its place outlives its consumers and the broker."""

    def __init__(self, log: Log, group: str, state: GroupState, keeper: GroupKeeper) -> None:
        self.group = group
        self._front = state.front
        self._settled = RangeSet(state.settled)
        self.deleted = False
        self.creating: list[Callable[[Exception | None], None]] | None = None
        """Wait until it is on disk; None: it is."""
        super().__init__(log, f"{log.name} group {group}", state.front, kind=ResourceKind.LOG_GROUP)
        self.place = self.storage = keeper.place(log.name, group, self.state)
        # What was settled beyond the front does not come again, what may have been seen comes marked.
        end = max(state.handed_to, state.settled[-1][1] if state.settled else 0)
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
        """It stays."""

    @property
    def front(self) -> int:
        return self._front

    @property
    def refuser(self) -> str:
        return self.group

    def _settle(self, start: int, end: int) -> None:
        if end <= self._front:
            return  # it had gone from the log before
        settled = self._settled
        settled.add(max(start, self._front), end)
        if start <= self._front:
            self._front = settled.first_gap(self._front)
            settled.drop_below(self._front)
        self._changed()

    def _wanted(self, start: int, end: int) -> Iterable[tuple[int, int]]:
        # It may have gone from the log while it was out, and then it counts as settled.
        return self._settled.holes(max(start, self._front), end)

    def seek(self, index: int) -> None:
        """Go on from here, in a new epoch: what is out and comes back from before counts for nothing. Consumers keep
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
        self._changed()
        self.context.request_dispatch()

    @property
    def lag_count(self) -> int:
        """Records that are not settled."""
        end = self.log.records.next_index
        return max(0, end - self._front) - self._settled.number_count

    # ------------------------------------------------------------------ its place on disk

    def state(self) -> GroupState:
        """How far it is."""
        settled = tuple(islice(self._settled, PLACE_RANGES_MAX))
        return GroupState(self._front, settled, self.position, tuple(self._failures()), self.log.log_id)

    def _failures(self) -> list[tuple[int, int, int]]:
        """What has failed and is not settled, wherever it is now: about the first PLACE_RANGES_MAX."""
        first = islice(self._again, LOOKED_AT_MAX)
        found = [(again.start, again.end, again.failures) for again in first if again.failures > 0]
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
        """It ends for good: what is acknowledged from now on is nobody's place, and nobody waits for that."""
        self.deleted = True
        self.close()
        self.place.forget()

    def facts(self) -> Mapping[str, object]:
        return dict(super().facts()) | {"consumers": len(self.subscriptions)}
