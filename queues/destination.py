"""One destination of a broker: the queues behind one name (registry.py has all of them)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import attrs

from .consumed import ConsumedQueue
from .delays import delay_queue
from .environment import PartFunction, QueueEnvironment
from .exclusivity import Exclusivity
from .groups import GroupTable
from .message import PRIORITY_DEFAULT, Envelope
from .names import DestinationName
from .partitioned import PartitionedQueue, by_priority
from .parts import Partitioning, PartShares, by_header, key_of, priority_and_part
from .policy import FUNCTION_PREFIX, HEADER_PREFIX, QueuePolicy
from .queue import MessageQueue
from .relay import relay_queue
from .shared import shared_queue
from .subscription import Consumer
from .topic import Topic

if TYPE_CHECKING:
    from .registry import WildcardConsumer

MAKERS: Final = {"queue": shared_queue, "relay": relay_queue}
"""Functions that make a queue, by kind: `policy.QUEUE_KINDS`."""

NO_CHANGES: Final[Mapping[str, ChangedLimit]] = MappingProxyType({})
NO_LIMITS: Final[Mapping[str, int]] = MappingProxyType({})


@attrs.define
class Welcome:
    """Welcome of a new destination: older wildcards are attached to it in steps, and incoming messages are kept for
    them meanwhile.
    """

    made_count: int
    """Number of the last wildcard made before the destination."""
    left: dict[int, Consumer] = attrs.field(factory=dict)
    """Consumers that were attached and may not have it any more, by their identity. Should they get it again they have
    had the beginning."""

    def is_for(self, wildcard: WildcardConsumer) -> bool:
        """Return whether `wildcard` is to receive the messages that are kept."""
        return wildcard.number <= self.made_count and id(wildcard.consumer) not in self.left


@attrs.frozen(slots=True)
class ChangedLimit:
    """Limit that an operator has changed while the broker runs."""

    value: int | None
    configured: int | None


class Destination:
    """One name: its queues by priority (and part), its policy, how many senders are attached."""

    __slots__ = (
        "address",
        "changed_limits",
        "declared",
        "delay_queues",
        "durable_ids",
        "environment",
        "goes_with_consumers",
        "idle_since_seconds",
        "is_paused",
        "partitioning",
        "passing_ids",
        "policies_age",
        "policy",
        "producers_count",
        "queue",
        "welcome",
        "wildcards",
    )

    def __init__(self, address: DestinationName, policy: QueuePolicy, environment: QueueEnvironment) -> None:
        self.address = address
        self.policy = policy
        self.policies_age = 0
        """Age of the registry's policies when `policy` was looked up."""
        self.environment = environment
        self.delay_queues: dict[int, ConsumedQueue] | None = None
        """Delay queues of a topic, by priority: messages that wait to be published. None: there never was one."""
        self.producers_count = 0
        self.idle_since_seconds: float | None = None
        self.changed_limits: Mapping[str, ChangedLimit] = NO_CHANGES
        """Limits that an operator has changed, by name; see `DestinationRegistry.change_limits`."""
        self.declared: Mapping[str, int] = NO_LIMITS
        """Limits that a consumer has declared, by name; see `DestinationRegistry.declare`."""
        self.goes_with_consumers = False
        """Whether the destination is deleted, with its messages, when its last consumer has left."""
        self.is_paused = False
        """Whether delivery is paused: see `pause`."""
        self.durable_ids: set[int] = set()
        """Durable subscriptions of it."""
        self.passing_ids: set[int] = set()
        """Ids of those that are to wildcards: they keep no empty destination from being forgotten."""
        self.wildcards: dict[WildcardConsumer, None] | None = None
        """Wildcards that are attached; each once. None: there never was one."""
        self.welcome: Welcome | None = None
        """None: all wildcards that were there before it are attached."""
        groups = GroupTable()
        exclusivity = Exclusivity()

        shares: PartShares | None = None
        self.partitioning: Partitioning | None = None
        if policy.partition_by is not None:
            shares = PartShares(environment.carefully)
            self.partitioning = Partitioning(_divided_by(policy.partition_by, environment), policy.partitions_count)

        def make(key: int) -> MessageQueue:
            priority, part = priority_and_part(key)
            name = address.canonical if priority == PRIORITY_DEFAULT else f"{address.canonical} (priority {priority})"
            if part:
                name += f" (part {part})"
            own_name = address.canonical
            lasting = not address.temporary_global
            if address.kind.is_topic:
                topic = Topic(name, self.policy, environment, priority=priority, destination=own_name, lasting=lasting)
                topic.readers.passing_ids = self.passing_ids
                topic.readers.begin_with(self.durable_ids)
                if self.is_paused:
                    topic.pause()
                return topic
            queue = MAKERS[self.policy.kind](
                name,
                self.policy,
                environment,
                priority=priority,
                destination=own_name,
                part=part,
                lasting=lasting,
                groups=groups,
                exclusivity=exclusivity if shares is None else shares.turn(part),
            )
            if self.is_paused:
                queue.pause()
            return queue

        self.queue: PartitionedQueue = by_priority(address.canonical, make, environment, shares)

    @property
    def name(self) -> str:
        return self.address.canonical

    @property
    def queues(self) -> list[MessageQueue]:
        """All queues that hold messages of the destination."""
        return [*self.queue.partitions.values(), *(self.delay_queues or {}).values()]

    def key_of(self, head: Envelope) -> int:
        """Return the key of the partition for messages with this head."""
        part = 0 if self.partitioning is None else self.partitioning.part_of(head)
        return key_of(head.priority, part)

    def partition_for(self, head: Envelope) -> MessageQueue:
        """Return the partition for messages with this head, made if need be."""
        return self.queue.partition(self.key_of(head))

    def queue_for(self, head: Envelope) -> MessageQueue:
        """Return the queue for a message with this head: its partition, or for a delayed message to a topic its delay
        queue.
        """
        if head.delay_ms and self.address.kind.is_topic:
            return self.delay_queue(head.priority)
        return self.partition_for(head)

    def stored_queue(self, priority: int, part: int, *, topic: bool) -> MessageQueue:
        """Return the queue for stored elements of an earlier run, of a topic or of a queue. They may belong to more
        parts than there are now; such parts exist until they are empty and the destination is forgotten.
        """
        if self.address.kind.is_topic and not topic:
            return self.delay_queue(priority)
        return self.queue.partition(key_of(priority, part))

    def delay_queue(self, priority: int) -> ConsumedQueue:
        """Return the queue of messages that wait to be published at `priority`, made if need be."""
        if self.delay_queues is None:
            self.delay_queues = {}
        queue = self.delay_queues.get(priority)
        if queue is None or (queue.closed and not self.queue.closed):
            topic = self.queue.partition(priority)
            queue = self.delay_queues[priority] = delay_queue(
                topic.name,
                self.policy,
                self.environment,
                priority=priority,
                destination=self.name,
                lasting=not self.address.temporary_global,
                topic=lambda: self.queue.partition(priority),
            )
        return queue

    def pause(self) -> None:
        """Deliver nothing until `unpause`, at any priority; see MessageQueue.pause. It is not forgotten meanwhile."""
        self.is_paused = True
        for queue in self.queue.partitions.values():
            queue.pause()

    def unpause(self) -> None:
        """Resume delivery."""
        self.is_paused = False
        for queue in self.queue.partitions.values():
            queue.unpause()

    @property
    def is_left(self) -> bool:
        """Whether the destination is to go with its consumers, and has none but those of wildcards."""
        return self.goes_with_consumers and self.queue.attachments_count == self._wildcards_count

    @property
    def _wildcards_count(self) -> int:
        return 0 if self.wildcards is None else len(self.wildcards)

    @property
    def is_deletable(self) -> bool:
        """Whether the destination is empty, neither paused nor with changed limits, and has no senders and no consumers
        but those of wildcards; and whether no producer may still repeat what it sent. O(partitions).
        """
        return (
            self.producers_count == 0
            and not self.is_paused
            and not self.changed_limits
            and self.queue.attachments_count == self._wildcards_count
            and self.queue.is_empty
            and (self.delay_queues is None or all(queue.is_empty for queue in self.delay_queues.values()))
            and not any(queue.producers is not None and queue.producers.is_wanted for queue in self.queues)
        )

    def close(self, reason: str, *, keep: bool) -> None:
        """Delete all messages (`keep`: stored ones stay in the store)."""

        def close(queue: ConsumedQueue) -> None:
            queue.close_queue(reason, keep=keep)

        for queue in (self.delay_queues or {}).values():
            self.environment.carefully(partial(close, queue))
        self.queue.close_queue(reason, keep=keep)


def _divided_by(partition_by: str, environment: QueueEnvironment) -> PartFunction:
    """Return the function of a value of `partition_by`. Raises ValueError for one that can't be had."""
    if not partition_by.startswith(FUNCTION_PREFIX):
        return by_header(partition_by.removeprefix(HEADER_PREFIX))
    if environment.part_function is None:
        raise ValueError(f"{partition_by}: there are no functions here")
    return environment.part_function(partition_by.removeprefix(FUNCTION_PREFIX))
