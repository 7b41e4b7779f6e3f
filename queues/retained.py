"""Retained messages: the last message of each topic that was sent to be kept for later subscribers.

The retained message of `/topic/NAME` is the only element of a queue, `/retained/NAME`: with its own limits (one
message, the oldest goes), it is stored if it is persistent, expires, is counted by a limiter, and is seen, browsed and
purged like all that lies in queues. Clients can't send to it or consume from it.

A subscriber that comes gets what is retained at the moment when it is attached to the topic: the end of the queue at
that moment is noted (`Place`), and later elements are not shown, for they came to the subscriber live.

Bounds: `count_max` topics with a retained message, `bytes_max` of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Final, Protocol

import attrs

from .consumed import ConsumedQueue
from .message import MESSAGE_OVERHEAD_BYTES, Envelope, Message
from .names import DestinationName, host_prefix_of, parse, without_host
from .partitioned import PartitionedQueue
from .policy import QueuePolicy
from .queue import MessageQueue

RETAINED_PREFIX: Final = "/retained/"
TOPIC_PREFIX: Final = "/topic/"
SET: Final = "set"
REMOVE: Final = "remove"
COUNT_MAX: Final = 10_000
BYTES_MAX: Final = 64 * 1024 * 1024
LOOK_COUNT: Final = 64
"""Topics that are counted anew in one step."""
PURGE_COUNT: Final = 16
"""Elements of a queue that are looked at when it is emptied: it has one."""

Place = tuple[MessageQueue, int]
"""Queue of a retained message, and the sequence behind what may be shown of it."""


class Home(Protocol):
    """Part of a destination that is used here."""

    @property
    def name(self) -> str:
        """Canonical name."""

    @property
    def queue(self) -> PartitionedQueue:
        """Partitions of the destination."""

    @property
    def queues(self) -> Sequence[MessageQueue]:
        """All queues of the destination."""

    def partition_for(self, head: Envelope) -> MessageQueue:
        """Return the partition for a message, made if need be."""


class Names(Protocol):
    """Part of the registry of destinations that is used here."""

    @property
    def destinations(self) -> Mapping[str, Home]:
        """Destinations by their names."""

    def get(self, address: DestinationName) -> Home:
        """Return the destination of this name, made if need be. Raises DestinationLimitError."""

    def matching(self, address: DestinationName) -> Iterator[Home | None]:
        """Yield the destinations that a wildcard covers now; None: a step without a result."""


class RetainedLimitError(Exception):
    """Refusal of a retained message, for which there is no room."""

    code = "too-many-retained"


def retained_name(topic: str) -> str:
    """Return the name of the queue with the retained message of a topic (canonical names, patterns too)."""
    host = host_prefix_of(topic)
    return host + RETAINED_PREFIX + topic[len(host) :].removeprefix(TOPIC_PREFIX)


def is_retained(name: str) -> bool:
    """Return whether a canonical name is that of the queue of a retained message."""
    return without_host(name).startswith(RETAINED_PREFIX)


def topic_of(name: str) -> str:
    """Return the topic whose retained message a queue has."""
    host = host_prefix_of(name)
    return host + TOPIC_PREFIX + name[len(host) :].removeprefix(RETAINED_PREFIX)


def policy_of_retained(configured: QueuePolicy) -> QueuePolicy:
    """Return the policy of the queue of a retained message."""
    return QueuePolicy(
        count_max=1,
        full="drop_oldest",
        memory_bytes=configured.memory_bytes,
        auto_delete_seconds=configured.auto_delete_seconds,
        expires_max_ms=configured.expires_max_ms,
        dead_letter=None,
    )


class RetainedMessages:
    """Retained messages of all topics of a broker."""

    __slots__ = ("_bytes_by_name", "_registry", "_total_bytes", "_turn", "_uncounted", "bytes_max", "count_max")

    def __init__(self, registry: Names) -> None:
        self._registry = registry
        self._bytes_by_name: dict[str, int] = {}
        """Sizes as of the last look, of each topic with a queue of its own."""
        self._total_bytes = 0
        self._turn: Iterator[str] = iter(())
        """Names that are still to be counted anew in this turn."""
        self._uncounted: dict[str, None] = {}
        """Names of an earlier run that are not counted yet."""
        self.count_max = COUNT_MAX
        self.bytes_max = BYTES_MAX

    def __len__(self) -> int:
        """Number of topics that have, or had a moment ago, a retained message."""
        return len(self._bytes_by_name)

    @property
    def total_bytes(self) -> int:
        """Bytes of all of them as of the last look."""
        return self._total_bytes

    def made(self, name: str, *, is_stored: bool) -> None:
        """Note that the queue of a retained message was made. `is_stored`: for one of an earlier run."""
        self._bytes_by_name.setdefault(name, 0)
        if is_stored:
            self._uncounted[name] = None

    def gone(self, name: str) -> None:
        """Note that it was deleted."""
        self._total_bytes -= self._bytes_by_name.pop(name, 0)
        self._uncounted.pop(name, None)

    def _look(self) -> None:
        """Count LOOK_COUNT of them anew, each in its turn: messages expire and are purged without notice."""
        for _ in range(LOOK_COUNT):
            if self._uncounted:
                name = self._uncounted.popitem()[0]
            else:
                following = next(self._turn, None)
                if following is None:
                    self._turn = iter(list(self._bytes_by_name))
                    return
                name = following
            self._count(name)

    def _count(self, name: str) -> None:
        before_bytes = self._bytes_by_name.get(name)
        if before_bytes is None:
            return  # it was deleted meanwhile
        destination = self._registry.destinations.get(name)
        queues = () if destination is None else destination.queues
        size_bytes = self._bytes_by_name[name] = sum(queue.held_bytes for queue in queues)
        self._total_bytes += size_bytes - before_bytes

    def check(self, topic: str, message: Message) -> None:
        """Raise RetainedLimitError if a message can't be retained for a topic."""
        name = retained_name(topic)
        size_bytes = len(message.wire) + MESSAGE_OVERHEAD_BYTES
        if name not in self._bytes_by_name and len(self) >= self.count_max:
            raise RetainedLimitError(
                f"{len(self)} topics have a retained message already (retained_count_max of [broker]): remove some "
                "with retain:remove, or purge their queues below /retained/"
            )
        if self._uncounted:
            self._look()
        for _attempt in range(3):  # the end of a turn, and the next one
            if self._total_bytes - self._bytes_by_name.get(name, 0) + size_bytes <= self.bytes_max:
                return
            self._look()
        raise RetainedLimitError(
            f"retained messages take {self._total_bytes} bytes, and {size_bytes} more are above {self.bytes_max} "
            "(retained_bytes_max of [broker]): remove some with retain:remove, or purge their queues below /retained/"
        )

    def set(self, topic: str, message: Message) -> tuple[MessageQueue, int]:
        """Retain a message in place of the earlier one. Returns its queue, and its sequence. Raises
        DestinationLimitError.
        """
        destination = self._registry.get(parse(retained_name(topic)))
        queue = self._queue_of(destination, message)
        sequence = queue.elements.next_sequence
        queue.add([Message(message.head, message.wire, message.number)], len(message.wire), None)
        name = destination.name
        size_bytes = queue.held_bytes
        self._total_bytes += size_bytes - self._bytes_by_name.get(name, 0)
        self._bytes_by_name[name] = size_bytes
        return queue, sequence

    @staticmethod
    def _queue_of(destination: Home, message: Message) -> MessageQueue:
        """Return the only queue of a destination, whatever the priority of the message."""
        present = next(iter(destination.queue.partitions.values()), None)
        return present if present is not None else destination.partition_for(message.head)

    def remove(self, topic: str) -> list[MessageQueue]:
        """Forget the retained message of a topic. Returns its queues, from which it was removed."""
        destination = self._registry.destinations.get(retained_name(topic))
        if destination is None:
            return []
        for queue in destination.queues:
            first = queue.elements.first_live(0)
            if isinstance(queue, ConsumedQueue) and queue.elements.live_count:
                queue.removal.purge(first, min(first + PURGE_COUNT, queue.elements.next_sequence))
        self._total_bytes -= self._bytes_by_name.get(destination.name, 0)
        self._bytes_by_name[destination.name] = 0
        return list(destination.queues)

    def places(self, topic: str) -> list[Place]:
        """Return what is retained for a topic now."""
        destination = self._registry.destinations.get(retained_name(topic))
        if destination is None:
            return []
        return [(queue, queue.elements.next_sequence) for queue in destination.queues if queue.elements.live_count]


@attrs.define(eq=False)
class Gathering:
    """Retained messages for one new subscriber, of all topics that it is attached to.

    Attributes:
        places: of each topic, as of the moment when the subscriber was attached to it.
    """

    _retained: RetainedMessages
    _registry: Names
    places: dict[str, list[Place]] = attrs.field(factory=dict)

    def attached(self, topic: str) -> None:
        """Note what is retained for a topic that the subscriber is attached to in this very moment."""
        if topic not in self.places and (places := self._retained.places(topic)):
            self.places[topic] = places

    def without_topic(
        self, pattern: DestinationName, admits: Callable[[str], bool] | None
    ) -> Generator[None, None, None]:
        """Note what is retained for topics that a wildcard covers and that are not there: nothing was sent to them
        lately. In steps.
        """
        registry = self._registry
        for destination in registry.matching(parse(retained_name(pattern.canonical))):
            yield
            if destination is None:
                continue
            topic = topic_of(destination.name)
            if topic not in registry.destinations and (admits is None or admits(topic)):
                self.attached(topic)

    def all(self) -> list[Place]:
        """Return all of it."""
        return [place for places in self.places.values() for place in places]
