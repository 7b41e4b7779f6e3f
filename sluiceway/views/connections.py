"""Connections as people see them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sluiceway.flow.resource import ResourceId
from sluiceway.protocols.connection import Connection

_FIGURES: Final[Mapping[str, Callable[[Connection], Any]]] = {
    "peer": lambda connection: connection.session.peer,
    "session": lambda connection: connection.session.session_id,
    "user": lambda connection: connection.session.user,
    "client_id": lambda connection: connection.session.subscriptions.client_id or None,
    "host": lambda connection: connection.session.virtual_host,
    "version": lambda connection: connection.session.version if connection.session.connected else None,
    "subscriptions_count": lambda connection: len(connection.session.subscriptions.live),
    "unsettled_count": lambda connection: connection.session.unsettled_count,
    "parked_count": lambda connection: connection.session.lanes.parked_count,
    "stash_bytes": lambda connection: connection.session.lanes.stash_bytes,
    "waiting_bytes": lambda connection: connection.session.outbound.waiting_bytes,
    "transactions_count": lambda connection: len(connection.session.transactions),
    "in_bytes": lambda connection: connection.session.totals.bytes_in,
    "out_bytes": lambda connection: connection.session.outbound.taken_bytes,
    "in_count": lambda connection: connection.session.totals.messages_in_count,
    "blocked_seconds": lambda connection: _blocked_seconds(connection),
    "waiting_on": lambda connection: connection.session.lanes.waiting_for or None,
}


def connection_figure(name: str, connection: Connection) -> Any:
    """Read one figure of a connection. O(1), but O(lanes) for `blocked_seconds`."""
    return _FIGURES[name](connection)


def connection_report(connection: Connection) -> dict[str, Any]:
    """Return one connection as JSON-able data."""
    return {name: read(connection) for name, read in _FIGURES.items()}


def id_of(connection: Connection) -> ResourceId:
    """Return the resource id that a connection is known by: that of its producing side."""
    return connection.session.lanes.resource_id


def _blocked_seconds(connection: Connection) -> float:
    """Return the time for which sends to some destination have been blocked; 0: none are."""
    lanes = connection.session.lanes
    since = [
        since for controller in lanes.controllers if controller.blocked for since in controller.blocked_by.values()
    ]
    return lanes.manager.clock() - min(since) if since else 0.0
