"""Queues: where messages wait, in order, for consumers with credit.

Kinds: Relay (no buffer), ExclusiveQueue (one consumer), SharedQueue (each message to one of many), Topic (each message
to all), PartitionedQueue (several inside one). All of them keep their elements in a CursoredQueue. Pure: no trio, no
sockets, no clock of its own.
"""

from __future__ import annotations

from queues.blocks import QueueInvariantError
from queues.consumed import ConsumedQueue
from queues.cursored import CursoredQueue
from queues.cursors import Cursor
from queues.durables import Durable, DurableInUseError, DurableLimitError, DurableNameError
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
