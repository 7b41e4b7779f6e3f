"""Nodes of the flow map: several resources of the broker that people see as one thing."""

from __future__ import annotations

from typing import Any

import attrs

from sluiceway.flow import FlowResource
from sluiceway.flow.kinds import Role
from sluiceway.queues.destination import Destination


def node_id(resource_id: int) -> str:
    """Return the id of a node, by the first of its resources."""
    return f"n{resource_id}"


@attrs.define(slots=True)
class Candidate:
    """A node that the map may show."""

    resources: list[FlowResource]
    role: Role
    name: str
    rate_per_second: float = 0.0
    destination: Destination | None = None
    connection: Any = None
    session: Any = None
    """Session of a connection, or of a subscription."""
