"""Epochs of a log reader: seeking a group begins a new epoch.

A consumer settles or requeues a delivery through the Subscription it was delivered with, which differs per epoch. So
ACKs, NACKs, transactions and ends of connections need not know of epochs: what they settle of an earlier epoch frees
their own credit, and the log reader ignores it.

Seeking costs the present consumers nothing: the Subscription of an epoch is made with its first delivery.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from ..subscription import Subscription
from .ordering import EXCLUSIVE

if TYPE_CHECKING:
    from .log_readers import LogConsumer, LogReaders


class ReaderSubscription(Subscription):
    """Subscription of one consumer of a log reader, for the deliveries of one epoch."""

    __slots__ = ("_latest", "epoch", "root")

    def __init__(self, outlet: LogReaders, consumer: LogConsumer) -> None:
        queue: Any = outlet
        super().__init__(
            queue,
            consumer,
            exclusive=consumer.order == EXCLUSIVE,
            clock=outlet.log.environment.clock,
            on_resume=lambda _subscription: outlet.resumed(self),
        )
        self.epoch = outlet.epoch
        self._latest: ReaderSubscription | None = None
        self.root = self
        """Subscription of the consumer itself, which is closed when it leaves."""

    def hand(self, epoch: int) -> ReaderSubscription:
        """Return the Subscription by which the consumer settles deliveries of `epoch`, the present one. All share one
        credit.
        """
        if epoch == self.epoch:
            return self
        latest = self._latest
        if latest is None or latest.epoch != epoch:
            latest = self._latest = copy(self)
            latest._latest = None
            latest.epoch = epoch
            latest.unsettled_count = latest.settled_count = latest.returned_count = 0
        return latest

    @property
    def is_drained(self) -> bool:
        """Whether nothing of the present epoch is in the consumer's hands."""
        queue: Any = self.queue
        each = self if self.epoch == queue.epoch else self._latest
        return each is None or each.epoch != queue.epoch or not each.unsettled_count
