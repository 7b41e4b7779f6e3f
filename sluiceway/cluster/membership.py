"""Part of one hub in dividing the shards of its cluster up: where it agrees with the others, and how."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import attrs

from .coordination.port import Coordination, Scheduling
from .ownership import SETTLE_SECONDS, DataPlace

Spawn = Callable[[Callable[[], Awaitable[object]]], None]
"""Starts a task that lives no longer than the broker."""


class Loop(Scheduling, Protocol):
    """Part of the dispatcher that a coordination uses."""

    def submit(self, callback: Callable[[], None]) -> None:
        """Run a callback on the dispatch loop, from any thread."""


@attrs.frozen(kw_only=True)
class Membership:
    """Part of one hub in its cluster."""

    coordination: Callable[[Loop, Callable[[], float], Spawn], Coordination]
    """Makes the connection to the service, from the dispatch loop, a monotonic clock (seconds), and a function that
    starts tasks.
    """
    data_place: DataPlace = DataPlace.SHARED
    """Hubs that can open a shard."""
    weight: float = 1.0
    """Share of shards relative to other hubs."""
    expected: Sequence[str] = ()
    """Names of all hubs of the cluster, this one included; empty: not known."""
    settle_seconds: float = SETTLE_SECONDS
    """Time without a change of the list of hubs before a shard moves from one live hub to another."""
