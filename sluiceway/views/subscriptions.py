"""Subscriptions as people see them: what a client asked for, and what a queue or a log delivers to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Final, NamedTuple

from sluiceway.flow import FlowResource
from sluiceway.flow.graph import Steps, sorted_in_steps
from sluiceway.flow.words import age_in_words, count_in_words
from sluiceway.protocols.connection import Connection
from sluiceway.protocols.stomp.delivery import StompSubscription
from sluiceway.protocols.stomp.session import Session
from sluiceway.queues.logs.log import Log
from sluiceway.queues.queue import MessageQueue
from sluiceway.views.waits import STALLED_SECONDS


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
    "slow": lambda held: held.subscription.slow or None,
    "paused": attrgetter("subscription.is_paused"),
    "unsettled_count": lambda held: held.subscription.ledger.unsettled_count if held.subscription.ledger else 0,
    "idle_seconds": lambda held: held.connection.session.hub.clock() - held.subscription.last_settled_seconds,
}

_NAMES: Final = ("name", "destination", "session", "peer", "client_id", "unsettled_count")
"""Figures by which a stalled subscription is known."""


def subscription_figure(name: str, held: Held) -> Any:
    """Read one figure of a subscription. O(1)."""
    return _FIGURES[name](held)


def subscription_report(held: Held) -> dict[str, Any]:
    """Return one subscription as JSON-able data."""
    return {name: read(held) for name, read in _FIGURES.items()}


def why_stalled(subscription: StompSubscription, session: Session) -> tuple[float, str] | None:
    """Return for how many seconds a subscription has stalled, and why; None: it works, or has nothing to do. Stalled is
    a consumer that is at its prefetch limit and acknowledges nothing, or reads nothing, for STALLED_SECONDS.
    """
    outbound_seconds = session.outbound.controller.limiter.describe().throttled_seconds
    if outbound_seconds is not None and outbound_seconds >= STALLED_SECONDS:
        return outbound_seconds, f"the client has read nothing for {age_in_words(outbound_seconds)}"
    window, ledger = subscription.window, subscription.ledger
    if window is None or ledger is None or not ledger.unsettled_count:
        return None
    full_seconds = window.limiter.describe().throttled_seconds
    if full_seconds is None:
        return None
    idle_seconds = session.hub.clock() - subscription.last_settled_seconds
    seconds = min(full_seconds, idle_seconds)
    if seconds < STALLED_SECONDS:
        return None
    held = count_in_words(ledger.unsettled_count, "unacknowledged message")
    return seconds, f"{held}, none acknowledged for {age_in_words(idle_seconds)}"


def stalled_in_steps(connections: Iterable[Connection]) -> Steps[list[dict[str, Any]]]:
    """Return the stalled subscriptions, and slow ones, as JSON-able rows, the longest first."""
    rows: list[dict[str, Any]] = []
    for held in (yield from live_subscriptions(connections)):
        yield
        why = why_stalled(held.subscription, held.connection.session)
        if held.subscription.slow:
            seconds, words = why or (0.0, "")
            why = seconds, f"{words}; slow: {held.subscription.slow}" if words else f"slow: {held.subscription.slow}"
        if why is not None:
            rows.append(
                {
                    **{name: subscription_figure(name, held) for name in _NAMES},
                    "stalled_seconds": why[0],
                    "words": f"{held.subscription.kind} {held.subscription.name}: {why[1]}",
                }
            )
    return (yield from sorted_in_steps(rows, lambda row: -row["stalled_seconds"]))


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
