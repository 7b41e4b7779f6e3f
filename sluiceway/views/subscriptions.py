"""Subscriptions as people see them: what a client asked for, and what a queue or a log delivers to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Final, NamedTuple

from sluiceway.flow import FlowResource
from sluiceway.flow.graph import Steps
from sluiceway.protocols.connection import Connection
from sluiceway.protocols.stomp.delivery import StompSubscription
from sluiceway.queues.logs.log import Log
from sluiceway.queues.queue import MessageQueue


class Held(NamedTuple):
    """A subscription with its connection."""

    connection: Connection
    subscription: StompSubscription


_FIGURES: Final[Mapping[str, Callable[[Held], Any]]] = {
    "name": attrgetter("subscription.name"),
    "destination": attrgetter("subscription.destination"),
    "session": attrgetter("connection.session.session_id"),
    "peer": attrgetter("connection.session.peer"),
    "user": attrgetter("connection.session.user"),
    "client_id": lambda held: held.connection.session.subscriptions.client_id or None,
    "ack": attrgetter("subscription.ack"),
    "selector": lambda held: held.subscription.selection and held.subscription.selection.selector.text,
    "unsettled_count": lambda held: held.subscription.ledger.unsettled_count if held.subscription.ledger else 0,
    "idle_seconds": lambda held: held.connection.session.hub.clock() - held.subscription.last_settled_seconds,
}


def subscription_figure(name: str, held: Held) -> Any:
    """Read one figure of a subscription. O(1)."""
    return _FIGURES[name](held)


def subscription_report(held: Held) -> dict[str, Any]:
    """Return one subscription as JSON-able data."""
    return {name: read(held) for name, read in _FIGURES.items()}


def live_subscriptions(connections: Iterable[Connection], destination: str = "") -> Steps[list[Held]]:
    """Find the live subscriptions of connections in steps; `destination`: only those that asked for just that."""
    found = []
    for connection in list(connections):
        yield
        for subscription in list(connection.session.subscriptions.live.values()):
            yield
            if not destination or subscription.destination == destination:
                found.append(Held(connection, subscription))
    return found


def takers_of(place: FlowResource) -> Iterator[tuple[int, Any]]:
    """Yield the subscriptions to a queue or a log, each with the resource id of its consumer; those inside the broker,
    which are not on the map, are left out.
    """
    crowds: list[Iterable[Any]] = []
    if isinstance(place, Log):
        crowds = [outlet.subscriptions for outlet in place.outlets]
    elif isinstance(place, MessageQueue):
        crowds = [place.subscriptions.values()]
    for crowd in crowds:
        for subscription in list(crowd):
            resource_id = getattr(subscription.consumer, "resource_id", None)
            if resource_id is not None:
                yield resource_id, subscription
