"""Delayed messages to a topic: they wait in a queue in front of it, and are published when they are due.

A topic is read by many cursors at one position, so an element that is not due yet can't be in it. It waits in a queue
of its own, which is stored like any other, and whose one consumer is the `Publisher`: it sends each message to the
topic, as a source like any sender. While the topic has no room the message stays in the queue. The message goes to the
subscribers at the time when it is due, not to those at the time when it was sent. A persistent one leaves the queue and
is added to the topic in one write.

A topic that refuses messages over its limits (policy `reject`) would have no sender to notify: it is given one message
after the other, and while it has no room for the next one it is asked again from time to time.

Source: DESIGN section 9 (`delay`); issue 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import groupby
from typing import Final

import attrs

from ..flow import Account, Flow, WindowLimiter
from ..flow.kinds import ResourceKind
from .consumed import ConsumedQueue
from .environment import QueueEnvironment
from .exclusive import SingleDistribution
from .message import Message, wire_bytes_of
from .policy import QueuePolicy
from .queue import MessageQueue
from .slices import Slice
from .subscription import Subscription

PUBLISH_COUNT: Final = 512
"""Messages given to the topic in one go."""

RETRY_SECONDS: Final = 0.1
"""Seconds until the next attempt after the topic would have refused a message."""


def delay_queue(
    name: str,
    policy: QueuePolicy,
    environment: QueueEnvironment,
    *,
    priority: int,
    destination: str,
    lasting: bool,
    topic: Callable[[], MessageQueue],
) -> ConsumedQueue:
    """Make the queue of delayed messages for one priority of one topic. `topic`: the partition to which they are
    published.
    """
    if policy.full != "reject":  # nothing of it is old or new: none of it is published yet
        policy = attrs.evolve(policy, full="block")
    queue = ConsumedQueue(
        f"{name} (delayed)",
        policy,
        environment,
        partial(SingleDistribution, senders_wait=False),  # elements continue when they are due, not sooner
        priority=priority,
        destination=destination,
        lasting=lasting,
        kind=ResourceKind.DELAY_QUEUE,
    )
    queue.subscribe(Publisher(queue.name, queue, topic, environment))
    return queue


class Publisher:
    """The consumer of a delay queue."""

    rank = 0

    __slots__ = ("_environment", "_label", "_queue", "_refused", "_topic")

    def __init__(
        self, label: str, queue: MessageQueue, topic: Callable[[], MessageQueue], environment: QueueEnvironment
    ) -> None:
        self._label = label
        self._queue = queue
        self._topic = topic
        self._environment = environment
        self._refused = Account(
            queue,
            Flow(f"{label} until its topic has room"),
            WindowLimiter(1, None, clock=environment.clock, label="room that the topic does not have"),
            schedule=environment.resume,
            clock=environment.clock,
            counts_memory=False,
        )

    @property
    def label(self) -> str:
        return f"publisher of {self._label}"

    def room(self, subscription: Subscription) -> tuple[int, int]:
        return (0, 0) if self._refused.limiter.throttled else (PUBLISH_COUNT, 1 << 20)

    def wait(self, subscription: Subscription) -> None:
        """Wait in line for a topic that refuses; other topics block the subscription themselves."""
        self._refused.wait_in_line(subscription.source)

    def deliver(self, subscription: Subscription, part: Slice, *, dropped_count: int) -> None:
        topic = self._topic()
        refuses = topic.rejects
        done = 0
        for _same, run in groupby(
            part.messages, key=lambda message: (id(message.head), message.expires_at_ms, refuses and message.number)
        ):
            messages: list[Message] = list(run)
            wire_bytes = wire_bytes_of(messages)
            if refuses and not topic.fits(len(messages), wire_bytes):
                self._wait_for_room()
                break
            first = topic.elements.next_sequence
            if not topic.offer(messages, wire_bytes, subscription.source):
                break
            if topic.keeps and topic.storage is not None and messages[0].head.persistent:
                topic.storage.hold(first, topic.elements.next_sequence)
            subscription.settle(part.sequences[done : done + len(messages)], wire_bytes, moved_to=topic.name)
            done += len(messages)
        if done < len(part.messages):
            subscription.requeue(part.sequences[done:], attempted=False)
        store, storage, other = self._environment.store, self._queue.storage, topic.storage
        if done and store is not None and storage is not None and other is not None:
            store.bind((storage, other))

    def _wait_for_room(self) -> None:
        self._refused.charge(1, 0, None)
        self._environment.scheduling.call_later(RETRY_SECONDS, self._ask_again)

    def _ask_again(self) -> None:
        if not self._refused.closed:
            self._refused.release(1, 0)

    def cancelled(self, subscription: Subscription, reason: str) -> Iterable[None]:
        """Do nothing: a publisher holds nothing from one turn to the next."""
        return ()
