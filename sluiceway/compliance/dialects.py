"""Presets of what differs from broker to broker, each from the broker's documentation of STOMP."""

from __future__ import annotations

from typing import Final

import attrs


@attrs.frozen
class Dialect:
    """Names of destinations, headers that the broker wants, and defaults of CONNECT."""

    queue: str = "/queue/{name}"
    """Pattern of a destination that gives each message to one consumer and keeps it meanwhile."""
    topic: str = "/topic/{name}"
    """Pattern of a destination that gives each message to all subscribers."""
    host: str | None = None
    """Header `host` of CONNECT; None: the host of the address."""
    login: str | None = None
    passcode: str | None = None
    subscribe_headers: tuple[tuple[str, str], ...] = ()
    """Headers of each SUBSCRIBE to a queue."""
    send_headers: tuple[tuple[str, str], ...] = ()
    """Headers of each SEND to a queue."""


DIALECTS: Final = {
    "sluiceway": Dialect(),
    # Queues are durable, and stay: they go away a minute after their last use.
    "rabbitmq": Dialect(
        host="/",
        login="guest",
        passcode="guest",
        subscribe_headers=(("x-expires", "60000"),),
        send_headers=(("x-expires", "60000"),),
    ),
    # Subscriptions with ack client get one message at a time by default.
    "activemq": Dialect(subscribe_headers=(("activemq.prefetchSize", "100"),)),
    "artemis": Dialect(
        queue="{name}",
        topic="{name}",
        subscribe_headers=(("subscription-type", "ANYCAST"), ("consumer-window-size", "-1")),
        send_headers=(("destination-type", "ANYCAST"),),
    ),
    "coilmq": Dialect(),
}
