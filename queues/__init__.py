"""Queues: where messages wait, in order, for consumers with credit.

Kinds: Relay (no buffer), ExclusiveQueue (one consumer), SharedQueue (each message to one of many), Topic (each message
to all), PartitionedQueue (several inside one). All of them keep their elements in a CursoredQueue. Pure: no trio, no
sockets, no clock of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from queues.blocks import QueueInvariantError
    from queues.consumed import ConsumedQueue
    from queues.cursored import CursoredQueue
    from queues.cursors import Cursor
    from queues.durables import (
        Durable,
        DurableInUseError,
        DurableLimitError,
        DurableNameError,
        DurableSelectorError,
    )
    from queues.environment import QueueEnvironment
    from queues.exclusive import ExclusiveQueue
    from queues.exclusivity import Exclusivity
    from queues.gate import QueueFullError, Run
    from queues.groups import GroupTable
    from queues.message import MESSAGE_OVERHEAD_BYTES, PRIORITY_DEFAULT, Envelope, Message, size_of
    from queues.names import Address, DestinationNameError, Kind, parse, parse_composite
    from queues.partitioned import Attachment, PartitionedQueue, PartitionLimitError, by_key, by_priority
    from queues.policy import QueuePolicy
    from queues.queue import MessageQueue
    from queues.registry import (
        Destination,
        DestinationLimitError,
        DestinationRegistry,
        DurableAttachment,
        WildcardConsumer,
    )
    from queues.relay import Relay
    from queues.shared import SharedQueue
    from queues.slices import Slice
    from queues.statistics import QueueStatistics
    from queues.subscription import Consumer, Subscription
    from queues.topic import Topic

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
    "Address": "queues.names",
    "Attachment": "queues.partitioned",
    "ConsumedQueue": "queues.consumed",
    "Consumer": "queues.subscription",
    "Cursor": "queues.cursors",
    "CursoredQueue": "queues.cursored",
    "Destination": "queues.registry",
    "DestinationLimitError": "queues.registry",
    "DestinationNameError": "queues.names",
    "DestinationRegistry": "queues.registry",
    "Durable": "queues.durables",
    "DurableAttachment": "queues.registry",
    "DurableInUseError": "queues.durables",
    "DurableLimitError": "queues.durables",
    "DurableNameError": "queues.durables",
    "DurableSelectorError": "queues.durables",
    "Envelope": "queues.message",
    "ExclusiveQueue": "queues.exclusive",
    "Exclusivity": "queues.exclusivity",
    "GroupTable": "queues.groups",
    "Kind": "queues.names",
    "MESSAGE_OVERHEAD_BYTES": "queues.message",
    "Message": "queues.message",
    "MessageQueue": "queues.queue",
    "PRIORITY_DEFAULT": "queues.message",
    "PartitionLimitError": "queues.partitioned",
    "PartitionedQueue": "queues.partitioned",
    "QueueEnvironment": "queues.environment",
    "QueueFullError": "queues.gate",
    "QueueInvariantError": "queues.blocks",
    "QueuePolicy": "queues.policy",
    "QueueStatistics": "queues.statistics",
    "Relay": "queues.relay",
    "Run": "queues.gate",
    "SharedQueue": "queues.shared",
    "Slice": "queues.slices",
    "Subscription": "queues.subscription",
    "Topic": "queues.topic",
    "WildcardConsumer": "queues.registry",
    "by_key": "queues.partitioned",
    "by_priority": "queues.partitioned",
    "parse": "queues.names",
    "parse_composite": "queues.names",
    "size_of": "queues.message",
}
"""Looked up on first use: Spark starts processes for each micro-batch, which need the framing of records only."""


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'queues' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(home), name)
    globals()[name] = value  # the next look-up does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
