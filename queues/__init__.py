"""Queues: where messages wait, in order, for consumers with credit.

Kinds: Relay (no buffer), ExclusiveQueue (one consumer), SharedQueue (each message to one of many), Topic (each message
to all), PartitionedQueue (several inside one). All of them keep their elements in a CursoredQueue. Pure: no trio, no
sockets, no clock of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .blocks import QueueInvariantError
    from .consumed import ConsumedQueue
    from .cursored import CursoredQueue
    from .cursors import Cursor
    from .destination import Destination
    from .durables import (
        Durable,
        DurableInUseError,
        DurableLimitError,
        DurableNameError,
        DurableSelectorError,
    )
    from .environment import QueueEnvironment
    from .exclusive import ExclusiveQueue
    from .exclusivity import Exclusivity
    from .gate import QueueFullError, Run
    from .groups import GroupTable
    from .message import MESSAGE_OVERHEAD_BYTES, PRIORITY_DEFAULT, Envelope, Message, size_of
    from .names import Address, DestinationNameError, Kind, parse, parse_composite
    from .partitioned import Attachment, PartitionedQueue, PartitionLimitError, by_key, by_priority
    from .policy import QueuePolicy
    from .queue import MessageQueue
    from .registry import (
        DestinationLimitError,
        DestinationRegistry,
        DurableAttachment,
        WildcardConsumer,
    )
    from .relay import Relay
    from .shared import SharedQueue
    from .slices import Slice
    from .statistics import QueueStatistics
    from .subscription import Consumer, Subscription
    from .topic import Topic

__all__ = [
    "MESSAGE_OVERHEAD_BYTES",
    "PRIORITY_DEFAULT",
    "Address",
    "Attachment",
    "ConsumedQueue",
    "Consumer",
    "Cursor",
    "CursoredQueue",
    "Destination",
    "DestinationLimitError",
    "DestinationNameError",
    "DestinationRegistry",
    "Durable",
    "DurableAttachment",
    "DurableInUseError",
    "DurableLimitError",
    "DurableNameError",
    "DurableSelectorError",
    "Envelope",
    "ExclusiveQueue",
    "Exclusivity",
    "GroupTable",
    "Kind",
    "Message",
    "MessageQueue",
    "PartitionLimitError",
    "PartitionedQueue",
    "QueueEnvironment",
    "QueueFullError",
    "QueueInvariantError",
    "QueuePolicy",
    "QueueStatistics",
    "Relay",
    "Run",
    "SharedQueue",
    "Slice",
    "Subscription",
    "Topic",
    "WildcardConsumer",
    "by_key",
    "by_priority",
    "parse",
    "parse_composite",
    "size_of",
]

_HOMES = {
    "Address": "sluiceway.queues.names",
    "Attachment": "sluiceway.queues.partitioned",
    "ConsumedQueue": "sluiceway.queues.consumed",
    "Consumer": "sluiceway.queues.subscription",
    "Cursor": "sluiceway.queues.cursors",
    "CursoredQueue": "sluiceway.queues.cursored",
    "Destination": "sluiceway.queues.destination",
    "DestinationLimitError": "sluiceway.queues.registry",
    "DestinationNameError": "sluiceway.queues.names",
    "DestinationRegistry": "sluiceway.queues.registry",
    "Durable": "sluiceway.queues.durables",
    "DurableAttachment": "sluiceway.queues.registry",
    "DurableInUseError": "sluiceway.queues.durables",
    "DurableLimitError": "sluiceway.queues.durables",
    "DurableNameError": "sluiceway.queues.durables",
    "DurableSelectorError": "sluiceway.queues.durables",
    "Envelope": "sluiceway.queues.message",
    "ExclusiveQueue": "sluiceway.queues.exclusive",
    "Exclusivity": "sluiceway.queues.exclusivity",
    "GroupTable": "sluiceway.queues.groups",
    "Kind": "sluiceway.queues.names",
    "MESSAGE_OVERHEAD_BYTES": "sluiceway.queues.message",
    "Message": "sluiceway.queues.message",
    "MessageQueue": "sluiceway.queues.queue",
    "PRIORITY_DEFAULT": "sluiceway.queues.message",
    "PartitionLimitError": "sluiceway.queues.partitioned",
    "PartitionedQueue": "sluiceway.queues.partitioned",
    "QueueEnvironment": "sluiceway.queues.environment",
    "QueueFullError": "sluiceway.queues.gate",
    "QueueInvariantError": "sluiceway.queues.blocks",
    "QueuePolicy": "sluiceway.queues.policy",
    "QueueStatistics": "sluiceway.queues.statistics",
    "Relay": "sluiceway.queues.relay",
    "Run": "sluiceway.queues.gate",
    "SharedQueue": "sluiceway.queues.shared",
    "Slice": "sluiceway.queues.slices",
    "Subscription": "sluiceway.queues.subscription",
    "Topic": "sluiceway.queues.topic",
    "WildcardConsumer": "sluiceway.queues.registry",
    "by_key": "sluiceway.queues.partitioned",
    "by_priority": "sluiceway.queues.partitioned",
    "parse": "sluiceway.queues.names",
    "parse_composite": "sluiceway.queues.names",
    "size_of": "sluiceway.queues.message",
}
"""Looked up on first use: Spark starts processes for each micro-batch, which need the framing of records only."""


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(home), name)
    globals()[name] = value  # the next look-up does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
