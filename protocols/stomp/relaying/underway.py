"""Bytes of one client on their way to other hubs, and whether the client is read meanwhile."""

from __future__ import annotations

from collections.abc import Callable

from ....flow import Flow
from ...link.load import LinkLoad
from ...reading import ReadGate, Reason
from .near import NearSession


class Underway:
    """Bytes of one client on their way to other hubs. Above `stash_bytes_max` the client is not read."""

    def __init__(self, near: NearSession, reading: ReadGate, may_ack: Callable[[], bool]) -> None:
        """`may_ack`: whether bytes that were not read yet may hold ACKs that free the destinations."""
        self._limits = near.limits
        self._may_ack = may_ack
        self._hold = reading.hold(
            Reason.DESTINATIONS, "the hubs that have its destinations", is_passable=self._may_read_on
        )
        self._source = self._hold.source(near.lanes, Flow("to other hubs"), clock=near.hub.clock)
        self._load = LinkLoad(
            lambda: f"to other hubs from {near.lanes.name}",
            near.hub.manager,
            near.hub.clock,
            bytes_max=near.limits.stash_bytes_max,
            source=self._source,
            stays=True,
        )
        self.charge = self._load.charge
        """Counts bytes that are on their way, or fewer: they have arrived, or are dropped."""

    @property
    def is_full(self) -> bool:
        """Whether as much is on its way to other hubs as may be."""
        return self._hold.is_on

    def _may_read_on(self) -> bool:
        return self._load.used_bytes <= self._limits.stash_overfull_bytes_max and self._may_ack()

    def close(self) -> None:
        """Count nothing any more: the connection is gone."""
        self._load.close()
        self._source.close()
        self._hold.release()
