"""What belongs to which epoch of an outlet: a group that is moved (seek) begins a new one.

A consumer settles a delivery, or gives it back, by the Subscription that came with it. Of each epoch that is another
one, so ACKs, NACKs, transactions and ends of connections that come later need not know of epochs: what they say of an
earlier one opens their own credit again, and the outlet passes it over.

Moving costs nothing for those who are there: the hand of an epoch is made when something is put into it.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from ..subscription import Subscription

if TYPE_CHECKING:
    from .log_readers import LogConsumer, LogReaders


class Reader(Subscription):
    """One consumer of one outlet, with what it was handed in one epoch."""

    __slots__ = ("_latest", "epoch")

    def __init__(self, outlet: LogReaders, consumer: LogConsumer) -> None:
        queue: Any = outlet
        super().__init__(
            queue,
            consumer,
            exclusive=False,
            clock=outlet.log.environment.clock,
            on_resume=lambda _subscription: outlet.resumed(self),
        )
        self.epoch = outlet.epoch
        self._latest: Reader | None = None

    def hand(self, epoch: int) -> Reader:
        """By which the consumer settles what it is handed in this epoch, the present one. The credit is the same."""
        if epoch == self.epoch:
            return self
        latest = self._latest
        if latest is None or latest.epoch != epoch:
            latest = self._latest = copy(self)
            latest._latest = None
            latest.epoch = epoch
            latest.unsettled_count = latest.settled_count = latest.returned_count = 0
        return latest
