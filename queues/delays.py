"""Delayed messages to a topic: they wait in a queue in front of it, and are published when they are due.

A topic is read by many cursors at one position, so an element that is not due yet can't stand in it. It waits in a
queue of its own, which is on disk like any other, and whose one consumer is the `Publisher`: what it is handed it gives
to the topic, as a source like any sender. While the topic has no room the message stays where it is. Who is subscribed
when it is due gets it, not who was when it was sent. A persistent one leaves the queue and comes into the topic in one
write.

A topic that refuses what is over its limits (policy `reject`) would have nobody to tell: it is given one message after
the other, and while it has no room for the next it is asked again from time to time.

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
"""After the topic would have refused one."""


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
    """Make the queue for what waits for one priority of one topic. `topic`: the partition to which it is published."""
    if policy.full != "reject":  # nothing of it is old or new: none of it is published yet
        policy = attrs.evolve(policy, full="block")
    queue = ConsumedQueue(
        f"{name} (delayed)",
        policy,
        environment,
        partial(SingleDistribution, senders_wait=False),  # elements go on when their time has come, not sooner
        priority=priority,
        destination=destination,
        lasting=lasting,
        kind=ResourceKind.DELAY_QUEUE,
    )
    queue.subscribe(Publisher(queue.name, queue, topic, environment))
    return queue


class Publisher:
    """The consumer of a delay queue."""

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
        """Only for a topic that refuses; others block it themselves."""
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
        """It holds nothing from one turn to the next."""
        return ()
