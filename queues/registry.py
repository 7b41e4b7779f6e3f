"""All destinations of a broker: found or made by name, with their policies, wildcard consumers and auto-deletion.

A `Destination` is the queues behind one name (partitioned by priority) and who sends to it. Wildcard consumers are
attached to every destination that matches, also to those that are made later.

Bound: `destinations_max`; idle empty ones are swept away by their policy's `auto_delete_seconds`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from queues.groups import GroupTable
from queues.message import PRIORITY_DEFAULT
from queues.names import Address
from queues.partitioned import Attachment, PartitionedQueue, by_priority
from queues.policy import QueuePolicy
from queues.queue import MessageQueue, QueueEnvironment, TimerHandle
from queues.shared import SharedQueue
from queues.subscription import Consumer
from queues.topic import Topic

SWEEP_SECONDS: Final = 5.0


class DestinationLimitError(Exception):
    """The broker has as many destinations as it is configured for."""


class Destination:
    """One name: its queues by priority, its policy, how many senders are attached."""

    __slots__ = ("address", "idle_since_seconds", "policy", "producers_count", "queue")

    def __init__(self, address: Address, policy: QueuePolicy, environment: QueueEnvironment) -> None:
        self.address = address
        self.policy = policy
        self.producers_count = 0
        self.idle_since_seconds: float | None = None
        groups = GroupTable()

        def make(priority: int) -> MessageQueue:
            name = address.canonical if priority == PRIORITY_DEFAULT else f"{address.canonical} (priority {priority})"
            if address.kind.is_topic:
                return Topic(name, policy, environment, priority=priority)
            return SharedQueue(name, policy, environment, priority=priority, groups=groups)

        self.queue: PartitionedQueue = by_priority(address.canonical, make)

    @property
    def name(self) -> str:
        return self.address.canonical

    def is_deletable(self, by_wildcard: set[int]) -> bool:
        """Empty, no senders, and no consumers but those of wildcards (`by_wildcard`: the ids of their attachments)."""
        return (
            self.producers_count == 0
            and self.queue.is_empty
            and all(id(attachment) in by_wildcard for attachment in self.queue.attachments)
        )


class WildcardConsumer:
    """A consumer's interest in all destinations that match an address."""

    __slots__ = ("_registry", "address", "attachments", "consumer", "exclusive")

    def __init__(self, registry: DestinationRegistry, address: Address, consumer: Consumer, *, exclusive: bool) -> None:
        self._registry = registry
        self.address = address
        self.consumer = consumer
        self.exclusive = exclusive
        self.attachments: list[Attachment] = []

    def close(self) -> None:
        """Detach from all of them."""
        self._registry.forget_wildcard(self)
        for attachment in self.attachments:
            attachment.close()


@attrs.frozen
class RegistryStatistics:
    """Counts over all destinations."""

    destinations_count: int
    wildcards_count: int
    made_count: int
    """Destinations made since the start."""
    deleted_count: int


class DestinationRegistry:
    """Destinations by canonical name."""

    def __init__(
        self,
        environment: QueueEnvironment,
        policy_for: Callable[[Address], QueuePolicy],
        *,
        destinations_max: int = 100_000,
    ) -> None:
        self._environment = environment
        self._policy_for = policy_for
        self._destinations_max = destinations_max
        self._wildcards: dict[int, WildcardConsumer] = {}
        self._sweep_timer: TimerHandle | None = None
        self.destinations: dict[str, Destination] = {}
        self.made_count = 0
        self.deleted_count = 0
        self.unheard_count = 0
        """Messages to temporary destinations whose owner has gone."""

    def start(self) -> None:
        """Begin to sweep idle destinations."""
        self._sweep_timer = self._environment.scheduling.call_later(SWEEP_SECONDS, self._sweep_and_go_on)

    def close(self) -> None:
        """Delete everything and sweep no more."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for destination in list(self.destinations.values()):
            self.delete(destination, "the broker stops")

    def get(self, address: Address) -> Destination:
        """The destination of this name, made if it is not there. Raises DestinationLimitError."""
        destination = self.destinations.get(address.canonical)
        if destination is None:
            if len(self.destinations) >= self._destinations_max:
                raise DestinationLimitError(
                    f"cannot make {address.canonical}: the broker holds {self._destinations_max} destinations already "
                    "(destinations_max): reuse names, or lower auto_delete_seconds"
                )
            destination = Destination(address, self._policy_for(address), self._environment)
            self.destinations[address.canonical] = destination
            self.made_count += 1
            for wildcard in self._wildcards.values():
                if wildcard.address.matches(address.canonical):
                    wildcard.attachments.append(
                        destination.queue.attach(wildcard.consumer, exclusive=wildcard.exclusive)
                    )
        destination.idle_since_seconds = None
        return destination

    def policy_for(self, address: Address) -> QueuePolicy:
        """The policy that a destination of this name has, or would have."""
        return self._policy_for(address)

    def attach(self, address: Address, consumer: Consumer, *, exclusive: bool = False) -> Attachment | WildcardConsumer:
        """Let this consumer take from the destination(s). Raises DestinationLimitError."""
        if not address.wildcard:
            return self.get(address).queue.attach(consumer, exclusive=exclusive)
        wildcard = WildcardConsumer(self, address, consumer, exclusive=exclusive)
        self._wildcards[id(wildcard)] = wildcard
        wildcard.attachments.extend(
            destination.queue.attach(consumer, exclusive=exclusive)
            for name, destination in self.destinations.items()
            if address.matches(name)
        )
        return wildcard

    def forget_wildcard(self, wildcard: WildcardConsumer) -> None:
        """Called by `WildcardConsumer.close`."""
        self._wildcards.pop(id(wildcard), None)

    def delete(self, destination: Destination, reason: str) -> None:
        """Delete it with all that is in it; its subscriptions are cancelled. Deleted already: does nothing.

        Its name is free before anybody is told, so whoever is told may ask for it again and gets a new one.
        """
        if self.destinations.pop(destination.name, None) is None:
            return
        self.deleted_count += 1
        destination.queue.close_queue(reason)
        for wildcard in self._wildcards.values():
            wildcard.attachments = [a for a in wildcard.attachments if not a.is_on(destination.queue)]

    def sweep(self) -> int:
        """Delete what has been idle for its policy's time; returns how many. O(destinations + wildcard attachments)."""
        now_seconds = self._environment.clock()
        swept_count = 0
        by_wildcard = {id(attachment) for wildcard in self._wildcards.values() for attachment in wildcard.attachments}
        for destination in list(self.destinations.values()):
            limit_seconds = destination.policy.auto_delete_seconds
            if limit_seconds is None or not destination.is_deletable(by_wildcard):
                destination.idle_since_seconds = None
            elif destination.idle_since_seconds is None:
                destination.idle_since_seconds = now_seconds
            elif now_seconds - destination.idle_since_seconds >= limit_seconds:
                self.delete(destination, "it was empty and idle")
                swept_count += 1
        return swept_count

    def _sweep_and_go_on(self) -> None:
        self.sweep()
        self.start()

    def statistics(self) -> RegistryStatistics:
        return RegistryStatistics(
            destinations_count=len(self.destinations),
            wildcards_count=len(self._wildcards),
            made_count=self.made_count,
            deleted_count=self.deleted_count,
        )
