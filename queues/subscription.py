"""Consumers, and their attachments to queues.

A `Consumer` receives messages: one STOMP subscription, a forwarding queue, a test. It owns its credit. A `Subscription`
is one consumer's attachment to one queue (a consumer of a wildcard or of a queue with priorities has several, which
share its credit). It is a flow source: the consumer blocks it while it has no credit, and the queue learns of it at
once, without polling. Subscriptions that wait for the credit of one consumer get it in turn, by the priority of their
queue (flow/waiting.py): a turn lasts until the queue has dispatched, so that each has a chance to use it up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Final, Protocol

from ..flow import Flow, SourceController
from .cursors import TrackingCursor
from .observer import Fate
from .selectors.selector import Selection
from .slices import Slice

if TYPE_CHECKING:
    from .queue import MessageQueue


WHO_LENGTH_MAX: Final = 160
"""Longest label of a consumer that is kept: clients choose parts of it."""


class Consumer(Protocol):
    """Port of a message consumer. All calls are synchronous: delivered messages are charged before `deliver`
    returns.
    """

    @property
    def label(self) -> str:
        """Name of the consumer, for people."""

    @property
    def rank(self) -> int:
        """Consumers of a shared queue with a higher one come first, as long as they have credit. Usually 0."""

    def room(self, subscription: Subscription) -> tuple[int, int]:
        """Messages and wire bytes that may be delivered to `subscription` now. Asked only while it is not blocked.

        Either of them 0: no credit, because another subscription of this consumer has used it up; `wait` is called
        then. One of raised priority may be let beyond a prefetch that the backlog has used up (`may_exceed` of a
        Account). Called in the middle of a dispatch: it must not call back into a queue.
        """

    def wait(self, subscription: Subscription) -> None:
        """`room` had nothing for this subscription: block its source until there is credit.

        With an Account as the window that is `window.wait_in_line(subscription.source)`.
        """

    def deliver(self, subscription: Subscription, part: Slice, *, dropped_count: int) -> None:
        """Deliver the messages of `part`; charge own limiters with `subscription.source` as the source, which may block
        it.

        `dropped_count`: number of messages that this consumer missed just before them (policy, lag). Later (or at once)
        the consumer calls `subscription.settle` or `subscription.requeue` for each, exactly once.
        """

    def cancelled(self, subscription: Subscription, reason: str) -> Iterable[None]:
        """Note that the queue ended this subscription (it was deleted). Settling or giving back does nothing from now
        on. Returns the work that the consumer has to do, in steps.
        """


class Subscription:
    """One consumer on one queue. Made by `MessageQueue.subscribe`."""

    __slots__ = (
        "closed",
        "consumer",
        "cursor",
        "delivered_count",
        "dropped_unreported_count",
        "durable_id",
        "exclusive",
        "observer",
        "queue",
        "returned_count",
        "selection",
        "settled_count",
        "shares",
        "source",
        "unsettled_count",
        "who",
    )

    def __init__(
        self,
        queue: MessageQueue,
        consumer: Consumer,
        *,
        exclusive: bool,
        clock: Callable[[], float],
        on_resume: Callable[[Subscription], bool],
    ) -> None:
        self.queue = queue
        self.consumer = consumer
        self.exclusive = exclusive
        self.observer = queue.observer
        self.who = consumer.label[:WHO_LENGTH_MAX]
        """The consumer, as the observer knows it."""
        self.cursor: TrackingCursor | None = None
        self.durable_id: int | None = None
        """Durable subscription of a topic that it serves; None: none."""
        self.shares = False
        """Others may serve the same durable subscription at the same time."""
        self.selection: Selection | None = None
        """Selection of the messages it takes; None: all."""
        self.closed = False
        self.delivered_count = self.settled_count = self.returned_count = self.unsettled_count = 0
        self.dropped_unreported_count = 0
        """Number of missed elements not yet reported. In a topic, the number that it had dropped on arrival for all
        subscriptions at the last report is subtracted.
        """
        self.source = SourceController(
            queue,
            Flow(f"{queue.name} to {consumer.label}"),
            on_resume=lambda _sink: on_resume(self),
            priority=queue.priority,
            has_waiting=lambda: queue.has_waiting(self),
            clock=clock,
        )

    def delivered(self, count: int) -> None:
        """Count elements that were handed to the consumer."""
        self.delivered_count += count
        self.queue.delivered_count += count

    def settle(self, sequences: SequenceOf[int], wire_bytes: int, *, moved_to: str = "") -> None:
        """Settle elements: acknowledged, or (ack auto) taken by the kernel. `wire_bytes` is their sum as delivered;
        `moved_to`: the destination to which they were moved.
        """
        count = len(sequences)
        observer = self.observer
        if observer is not None:
            if moved_to:
                observer.left(Fate.MOVED, sequences, moved_to)
            else:
                observer.settled(self.who, sequences)
        self.unsettled_count -= count
        self.settled_count += count
        self.queue.settled(self, sequences, wire_bytes)

    def requeue(
        self,
        sequences: SequenceOf[int],
        *,
        attempted: bool,
        charged: SequenceOf[int] | None = None,
        refused: bool = False,
        for_good: bool = False,
    ) -> None:
        """Give elements back that are not done: they come again, here or elsewhere, before anything later.

        `attempted`: they were handed over, so that they come again marked as seen. `charged`: those of them (None: all)
        that failed, which counts against their redeliveries; the others were only handed over with them. `refused`: by
        NACK; `for_good`: failed elements are not tried again, but given up as if they had failed too often.
        """
        count = len(sequences)
        if self.observer is not None:
            self.observer.returned(self.who, sequences, attempted=attempted, refused=refused)
        self.unsettled_count -= count
        self.returned_count += count
        self.queue.requeued(self, sequences, attempted=attempted, charged=charged, for_good=for_good)

    @property
    def is_drained(self) -> bool:
        """Whether nothing of the queue is in the consumer's hands."""
        return not self.unsettled_count

    @property
    def awaits_disk(self) -> bool:
        """Whether the queue has more that is being read from the disk."""
        return self.queue.awaits_disk

    def close(self) -> None:
        """End deliveries. Unsettled elements stay with the consumer until it settles them or gives them back."""
        if not self.closed:
            self.closed = True
            self.source.close()
            self.queue.unsubscribed(self)

    def __repr__(self) -> str:
        return f"<Subscription of {self.consumer.label} to {self.queue.name}, {self.unsettled_count} unacknowledged>"
