"""Slices as queues deliver them, and subscriptions to name where they came from."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import cast

import attrs

from sluiceway.queues.message import Message
from sluiceway.queues.queue import MessageQueue
from sluiceway.queues.slices import Slice
from sluiceway.queues.subscription import Subscription
from tests.queues.rig import Head

HEAD = Head()


@attrs.define(eq=False)
class Origin:
    """What a ledger looks at in a queue's subscription: which one it is, and its queue."""

    queue: object = attrs.field(factory=object)


def origin() -> Subscription:
    """A subscription to a queue of its own."""
    return cast(Subscription, Origin())


def queue_of(subscription: Subscription) -> MessageQueue:
    """The queue of a subscription made by `origin`."""
    return subscription.queue


def slice_of(sequences: SequenceOf[int], *, number: int = 0, size_bytes: int = 10) -> Slice:
    """One message for each sequence, numbered from `number`; each is a byte longer than the one before."""
    messages = [Message(HEAD, b"x" * (size_bytes + n), number + n) for n in range(len(sequences))]
    return Slice(messages, sequences, sum(len(message.wire) for message in messages))
