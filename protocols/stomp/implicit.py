"""Subscriptions that a `reply-to:/temp-queue/NAME` makes, as RabbitMQ does, for clients that do not SUBSCRIBE to it.

Others do, before the request or right behind it. So the SEND starts a timer; if the queue has no consumer when it is
over, the connection is subscribed, with the name of the queue as `id`, and gives way to a later SUBSCRIBE. Replies that
come earlier wait in the queue.

Bound: a timer or a subscription for each temporary queue of the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ...queues.environment import Scheduling, TimerHandle

WAIT_SECONDS: Final = 0.25
"""Time for a client to subscribe itself: a few round trips behind its SEND."""


class ImplicitSubscriptions:
    """Implicit subscriptions of one connection, by the name of the temporary queue as the client writes it."""

    __slots__ = ("_has_consumer", "_scheduling", "_subscribe", "_timers", "made")

    def __init__(
        self, scheduling: Scheduling, has_consumer: Callable[[str], bool], subscribe: Callable[[str], None]
    ) -> None:
        """`has_consumer`: whether a queue of this name has one; `subscribe`: subscribe to it under its own name."""
        self._scheduling = scheduling
        self._has_consumer = has_consumer
        self._subscribe = subscribe
        self._timers: dict[str, TimerHandle] = {}
        self.made: set[str] = set()
        """Names with a subscription that no SUBSCRIBE has asked for."""

    def await_reply(self, name: str) -> None:
        """Note that a SEND named this queue in its reply-to. O(1)."""
        if name not in self.made and name not in self._timers and not self._has_consumer(name):
            self._timers[name] = self._scheduling.call_later(WAIT_SECONDS, lambda: self._due(name))

    def _due(self, name: str) -> None:
        if self._timers.pop(name, None) is not None and not self._has_consumer(name):
            self.made.add(name)
            self._subscribe(name)

    def close(self) -> None:
        """Make no more of them."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
