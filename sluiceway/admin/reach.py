"""Hubs of a cluster that answer a request to the admin port."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import attrs

from sluiceway.admin.merging import Merge


class Reach(enum.Enum):
    """Hubs of a cluster that answer a request, where it is neither all of them nor that of a destination."""

    HERE = "the hub that has the connection"
    NODE = "the hub that the id of a node begins with"
    SESSION = "the hub of the session that the body names"
    NAMED = "the hub that the body names"
    FIRST = "the first hub that has it"


@attrs.frozen(slots=True)
class Together:
    """Place where a request is answered in a cluster: the home of a destination, or all hubs."""

    merge: Merge | None = None
    """Puts the answers of all hubs together; None: one hub answers."""
    home: Callable[[Any], str] | None = None
    """Takes the `Call`, and returns the canonical name of the destination whose hub answers; empty: all hubs do."""
