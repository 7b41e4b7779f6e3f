"""Counters of a queue: plain numbers for people and tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final

import attrs


@attrs.frozen
class QueueStatistics:
    """Counters of one queue since it was made, and its depth now."""

    depth_count: int
    """Elements in the queue, unacknowledged ones included."""
    depth_bytes: int
    """Bytes charged for them."""
    memory_bytes: int
    """The part of it that is in memory."""
    outside_count: int
    """Blocks of messages that are on disk only."""
    waiting_count: int
    """Elements that no consumer holds."""
    delayed_count: int
    """Number of them that must not be delivered yet: sent with a delay, or waiting to be tried again."""
    unsettled_count: int
    """Handed to a consumer, not settled yet."""
    overflow_count: int
    """Messages of blocked senders that wait in front of the queue."""
    subscriptions_count: int
    added_count: int
    delivered_count: int
    """Handed to consumers, each time anew."""
    settled_count: int
    returned_count: int
    """Came back: NACK, or their consumer went away."""
    dropped_count: int
    """Went by the full policy, or because a topic subscriber lagged, or were given up without a dead-letter queue."""
    dead_lettered_count: int
    """Went to the dead-letter queue."""
    moved_count: int
    """Went to another queue, by an operator's will."""
    expired_count: int
    """Number of expired messages, dead-lettered ones included."""
    rejected_count: int
    duplicates_count: int
    """SENDs that were confirmed and not taken: their producer had sent them before."""
    idle_seconds: float
    """Seconds since an element was added or settled."""


_ELSEWHERE: Final = {
    "depth_count": "elements.live_count",
    "depth_bytes": "held_bytes",
    "memory_bytes": "controller.limiter.used_bytes",
    "outside_count": "elements.outside_count",
    "overflow_count": "controller.overflow_count",
}
FIGURES: Final[Mapping[str, Callable[[Any], Any]]] = {
    **{field.name: attrgetter(_ELSEWHERE.get(field.name, field.name)) for field in attrs.fields(QueueStatistics)},
    "subscriptions_count": lambda queue: len(queue.subscriptions),
}
"""Getter of each field of QueueStatistics from a queue."""


@attrs.frozen
class RegistryStatistics:
    """Counts over all destinations."""

    destinations_count: int
    wildcards_count: int
    made_count: int
    """Destinations made since the start."""
    deleted_count: int
