"""Destinations and durable subscriptions as people see them: partitions are added up.

Reading one figure costs a microsecond for each partition, a whole row some thirty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final, Protocol

import attrs

from sluiceway.loop_monitor import LoopMonitor
from sluiceway.queues.destination import Destination
from sluiceway.queues.durables import Durable
from sluiceway.queues.oldest import Oldest, oldest_of
from sluiceway.queues.registry import DestinationRegistry
from sluiceway.queues.statistics import FIGURES
from sluiceway.queues.topic import Topic

HELD: Final = (
    "depth_count",
    "depth_bytes",
    "memory_bytes",
    "outside_count",
    "waiting_count",
    "delayed_count",
    "overflow_count",
    "expired_count",
    "rejected_count",
    "duplicates_count",
)
"""Figures of all queues, of those in front of a topic too, whose messages have yet to be published; see
QueueStatistics.
"""
_PASSED: Final = (
    "unsettled_count",
    "added_count",
    "delivered_count",
    "settled_count",
    "returned_count",
    "dropped_count",
    "dead_lettered_count",
    "moved_count",
)
"""Figures of partitions: what a topic has yet to publish is in what it holds, not in what it took in."""
_WHOLE: Final[Mapping[str, Callable[[Destination], int]]] = {
    "producers_count": attrgetter("producers_count"),
    "subscriptions_count": attrgetter("queue.attachments_count"),
}


class ViewedBroker(Protocol):
    """Part of the broker that a view needs."""

    @property
    def clock(self) -> Callable[[], float]: ...
    @property
    def now_ms(self) -> Callable[[], int]: ...
    @property
    def pulse(self) -> LoopMonitor: ...
    @property
    def registry(self) -> DestinationRegistry: ...


def figure(name: str, destination: Destination) -> int:
    """Read one figure of a destination. O(partitions)."""
    whole = _WHOLE.get(name)
    if whole is not None:
        return whole(destination)
    return sum(map(FIGURES[name], destination.queues if name in HELD else destination.queue.partitions.values()))


def destination_figures(destination: Destination) -> dict[str, int]:
    """Read all figures of a destination; `unheard_count` only of a topic. O(partitions)."""
    queues, partitions = destination.queues, list(destination.queue.partitions.values())
    figures = {name: read(destination) for name, read in _WHOLE.items()}
    figures |= {name: sum(map(FIGURES[name], queues)) for name in HELD}
    figures |= {name: sum(map(FIGURES[name], partitions)) for name in _PASSED}
    if destination.address.kind.is_topic:
        figures["unheard_count"] = sum([queue.unheard_count for queue in partitions if isinstance(queue, Topic)])
    return figures


def changed_limits(destination: Destination) -> dict[str, dict[str, int | None]]:
    """Return the limits that an operator has changed at run time, each with its value and the configured one."""
    return {limit: attrs.asdict(changed) for limit, changed in destination.changed_limits.items()}


def destination_report(destination: Destination) -> dict[str, Any]:
    """Return one destination as JSON-able data. O(partitions)."""
    return {
        "name": destination.name,
        "kind": destination.address.kind.value,
        "paused": destination.is_paused,
        "changed_limits": changed_limits(destination),
        "idle_seconds": min([queue.idle_seconds for queue in destination.queue.partitions.values()]),
        **destination_figures(destination),
    }


def age_seconds(broker: ViewedBroker, oldest: Oldest | None) -> float:
    """Return how old an element is, of one that had to wait for its date since then; 0: there is none."""
    if oldest is None:
        return 0.0
    age = max(0.0, broker.clock() - broker.pulse.ages.came_at(oldest.number))
    return min(age, max(0, broker.now_ms() - oldest.due_at_ms) / 1000) if oldest.due_at_ms else age


def oldest_seconds(broker: ViewedBroker, destination: Destination) -> float:
    """Return the age of the oldest message that is not acknowledged; of a delayed one since it was due. 0: there is
    none. O(partitions, and what `oldest_of` takes).
    """
    now_ms = broker.now_ms()
    queues = destination.queue.partitions.values()
    return max([age_seconds(broker, oldest_of(queue.elements, now_ms)) for queue in queues], default=0.0)


def waiting_since(destination: Destination) -> list[float]:
    """Return since when each sender waits for the destination, as clock readings."""
    return [since for queue in destination.queues for since in queue.intake.waiting_since()]


def _topics_of(broker: ViewedBroker, durable: Durable) -> list[Topic]:
    return [
        topic
        for destination in broker.registry.topics_of(durable)
        for topic in destination.queue.partitions.values()
        if isinstance(topic, Topic)
    ]


def backlog_count(broker: ViewedBroker, durable: Durable) -> int:
    """Return how many messages a durable subscription has yet to settle. O(partitions)."""
    return sum([topic.readers.backlog_of(durable.durable_id) for topic in _topics_of(broker, durable)])


def lag_seconds(broker: ViewedBroker, durable: Durable) -> float:
    """Return the age of the oldest message that a durable subscription has yet to settle; 0: there is none."""
    now_ms, seconds = broker.now_ms(), 0.0
    for topic in _topics_of(broker, durable):
        reader = topic.readers.by_id.get(durable.durable_id)
        if reader is not None and reader.cursor.unsettled_count:
            oldest = oldest_of(topic.elements, now_ms, reader.cursor.front)
            seconds = max(seconds, age_seconds(broker, oldest))
    return seconds


def durable_report(broker: ViewedBroker, durable: Durable) -> dict[str, Any]:
    """Return one durable subscription as JSON-able data: its backlog, and the time without a consumer."""
    now_ms = broker.now_ms()
    return {
        "name": durable.name,
        "client_id": durable.client_id,
        "destination": durable.destination,
        "attached": durable.attached,
        "consumers_count": durable.consumers_count,
        "backlog_count": backlog_count(broker, durable),
        "age_seconds": max(0, now_ms - durable.created_ms) / 1000,
        "away_seconds": 0.0 if durable.attached else max(0, now_ms - durable.last_seen_ms) / 1000,
    }
