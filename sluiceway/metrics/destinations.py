"""Samples of destinations: counts, contents, ages and trends.

One destination at a time, in some fifty microseconds. Of those without a name of their own (`series`) everything is
added up, but for forecasts and shares, which don't add up; of ages the greatest counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final

from sluiceway.flow.graph import Steps
from sluiceway.metrics.catalogue import OTHERS, TEMPORARY
from sluiceway.metrics.exposition import Gathered
from sluiceway.metrics.series import Joined, Naming, Rest
from sluiceway.queues.destination import Destination
from sluiceway.rates import Trend
from sluiceway.views.destinations import ViewedBroker, destination_figures, oldest_seconds, waiting_since

_COUNTED: Final = {
    "sluiceway_messages_accepted_total": "added_count",
    "sluiceway_messages_delivered_total": "delivered_count",
    "sluiceway_messages_acknowledged_total": "settled_count",
    "sluiceway_messages_returned_total": "returned_count",
    "sluiceway_messages_expired_total": "expired_count",
    "sluiceway_messages_dropped_total": "dropped_count",
    "sluiceway_messages_dead_lettered_total": "dead_lettered_count",
    "sluiceway_messages_rejected_total": "rejected_count",
    "sluiceway_messages_duplicate_total": "duplicates_count",
    "sluiceway_messages_unheard_total": "unheard_count",
}
COUNTERS: Final = (*_COUNTED, "sluiceway_destination_blocked_seconds_total")
"""Metrics that only grow, in the order of `_counters_of`."""

_HELD: Final = {
    "sluiceway_destination_messages": "depth_count",
    "sluiceway_destination_bytes": "depth_bytes",
    "sluiceway_destination_memory_bytes": "memory_bytes",
    "sluiceway_destination_unacknowledged_messages": "unsettled_count",
    "sluiceway_destination_delayed_messages": "delayed_count",
    "sluiceway_destination_consumers": "subscriptions_count",
    "sluiceway_destination_producers": "producers_count",
}
_STATE: Final = (
    *_HELD,
    "sluiceway_destination_oldest_seconds",
    "sluiceway_destination_blocked_senders",
    "sluiceway_destination_paused",
)
"""Metrics of the present state, in the order of `_state_of`."""


class _Course:
    """Trends of one destination, and of each of its queues with a quota, which fill separately."""

    __slots__ = ("filling", "waiting")

    def __init__(self, now_seconds: float, waiting_count: int) -> None:
        self.waiting = Trend(now_seconds, waiting_count)
        self.filling: dict[Hashable, tuple[Trend, Trend]] = {}
        """Messages and bytes, by partition."""

    def filling_of(self, key: Hashable, now_seconds: float, count: int, size_bytes: int) -> tuple[Trend, Trend]:
        """Return the trends of one queue, which holds so much now."""
        trends = self.filling.get(key)
        if trends is None:
            trends = self.filling[key] = Trend(now_seconds, count), Trend(now_seconds, size_bytes)
        else:
            trends[0].note(now_seconds, count)
            trends[1].note(now_seconds, size_bytes)
        return trends


class Destinations:
    """Metrics of the destinations of one broker. Observes deletions in its registry."""

    def __init__(self, broker: ViewedBroker, names_max: Callable[[], int]) -> None:
        """`names_max`: how many destinations have series of their own."""
        self._broker = broker
        self._names_max = names_max
        self._naming = Naming(len(COUNTERS))
        self._temporary = Rest(len(COUNTERS))
        self._courses: dict[str, _Course] = {}
        broker.registry.on_delete = self._gone

    def _gone(self, destination: Destination) -> None:
        counters = self._counters_of(destination, destination_figures(destination))
        self._courses.pop(destination.name, None)
        if destination.address.temporary_global:
            self._temporary.keep(destination.name, counters)
        else:
            self._naming.gone(destination.name, counters)

    def gather(self, gathered: Gathered) -> Steps[None]:
        """Gather the metrics of all destinations, in steps."""
        names_max = self._names_max()
        self._naming.begin()
        self._temporary.begin()
        joined = {OTHERS: Joined(_STATE), TEMPORARY: Joined(_STATE)}
        for destination in list(self._broker.registry.destinations.values()):
            yield
            if destination.queue.closed:
                continue
            name = destination.name
            figures = destination_figures(destination)
            counters, state = self._counters_of(destination, figures), self._state_of(destination, figures)
            if destination.address.temporary_global:
                self._temporary.add(name, counters)
                joined[TEMPORARY].add(state)
                continue
            own = self._naming.own(name, counters, names_max)
            if own is None:
                joined[OTHERS].add(state)
                continue
            gathered.put_all(COUNTERS, own, name)
            gathered.put_all(_STATE, state, name)
            self._put_forecast(gathered, destination, figures)
        for name, rest in ((OTHERS, self._naming.others), (TEMPORARY, self._temporary)):
            if rest.is_used:
                gathered.put_all(COUNTERS, rest.totals(), name)
                gathered.put_all(_STATE, joined[name].values.values(), name)

    def _counters_of(self, destination: Destination, figures: Mapping[str, int]) -> Sequence[float]:
        now_seconds = self._broker.clock()
        blocked = sum([queue.held_up_seconds for queue in destination.queues])
        blocked += sum([now_seconds - since for since in waiting_since(destination)])
        return [*[figures.get(key, 0) for key in _COUNTED.values()], blocked]

    def _state_of(self, destination: Destination, figures: Mapping[str, int]) -> Sequence[float]:
        oldest = oldest_seconds(self._broker, destination) if figures["depth_count"] else 0.0
        held = [figures[key] for key in _HELD.values()]
        return [*held, oldest, len(waiting_since(destination)), destination.is_paused]

    def _put_forecast(self, gathered: Gathered, destination: Destination, figures: Mapping[str, int]) -> None:
        name = destination.name
        now_seconds = self._broker.clock()
        waiting_count = figures["depth_count"] - figures["delayed_count"]
        course = self._courses.get(name)
        if course is None:
            course = self._courses[name] = _Course(now_seconds, waiting_count)
        course.waiting.note(now_seconds, waiting_count)
        gathered.put(
            "sluiceway_destination_drain_seconds",
            0.0 if not waiting_count else course.waiting.seconds_to(0),
            name,
        )
        share, left_seconds = 0.0, math.inf
        limited = known = False
        for key, queue in destination.queue.partitions.items():
            held = queue.elements.live_count, queue.held_bytes
            limits = queue.policy.count_max, queue.intake.bytes_max
            if limits == (None, None):
                continue
            trends = course.filling_of(key, now_seconds, *held)
            for limit, used, trend in zip(limits, held, trends, strict=True):
                if limit is None:
                    continue
                limited = True
                known = known or trend.per_second is not None
                share = max(share, used / limit if limit else 1.0)
                if used >= limit:
                    left_seconds = 0.0
                elif trend.per_second is not None and trend.per_second > 0:
                    left_seconds = min(left_seconds, (limit - used) / trend.per_second)
        if limited:
            gathered.put("sluiceway_destination_quota_used_ratio", share, name)
            gathered.put(
                "sluiceway_destination_quota_seconds", left_seconds if known or not left_seconds else None, name
            )
