"""Port of a session to the other hubs of a cluster: where a destination is at home, and flows to other hubs.

A session asks once for each destination that it uses, not once for each message, and again when `generation` has
changed. Without a cluster there is no such port, and nothing asks.

`sluiceway.cluster` implements the port. The other end of a flow is an ordinary session at the hub that owns the
destinations (`sluiceway.cluster.proxies`); the end here belongs to `Relay` (relaying.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import attrs

from ..link.flow import FlowUser


@attrs.frozen(slots=True)
class Home:
    """Home of a destination: the hub that has its shard open."""

    hub: str = ""
    """Id of another hub; empty: this hub, or none if `why_not` says so."""
    epoch: int = 0
    """Epoch of its ownership, which grows with each change of owner."""
    why_not: str = ""
    """Reason why no hub has the shard open now, and since when, in words; empty: one has."""


HERE: Final = Home()
"""Home of the destinations of this hub."""


class Placement(Protocol):
    """Knowledge of where destinations are at home."""

    @property
    def generation(self) -> int:
        """Another number whenever an answer of `home_of` may have become another."""

    def home_of(self, name: str) -> Home:
        """Return the home of a destination, by its canonical name. Never blocks."""

    def others(self) -> Sequence[str]:
        """Ids of all other hubs that have a shard open: a wildcard covers destinations there."""


class FlowEnd(Protocol):
    """Near end of a flow to another hub. `sluiceway.protocols.link.flow.Flow` fits."""

    @property
    def unread_bytes(self) -> int:
        """Bytes that were sent and that the other hub has not read."""

    @property
    def sent_bytes(self) -> int:
        """All bytes ever sent."""

    def send_frames(self, data: bytes) -> None:
        """Send bytes of STOMP frames, cut anywhere."""

    def took(self, read_bytes: int, done_bytes: int) -> None:
        """Tell how many bytes were read here in all, and how many have had their effect."""

    def end(self, reason: str) -> None:
        """Send nothing more."""


class Elsewhere(Protocol):
    """The other hubs of the cluster, as a session sees them."""

    @property
    def placement(self) -> Placement: ...

    def open(self, hub: str, opening: Mapping[str, object], user: FlowUser) -> FlowEnd | None:
        """Open a flow to another hub. None: the hub can't be reached now. Raises OpeningTooLargeError."""

    def watch(self, callback: Callable[[], None]) -> None:
        """Call this, until `unwatch`, whenever a hub has become reachable or `generation` has changed."""

    def unwatch(self, callback: Callable[[], None]) -> None:
        """Call this no more."""

    @property
    def term(self) -> str | None:
        """Session in which this hub is in the cluster now: a flow belongs to the one in which it was opened. None: this
        hub is in no cluster now.
        """

    def may_deliver(self, term: str | None) -> bool:
        """Return whether this hub is certain of being in the cluster still, since that term began: else the others may
        have given what flows bring to other clients. Asked at the moment of delivery, for a stopped process wakes up
        before it learns anything.
        """

    def shards_at(self, hub: str) -> frozenset[int]:
        """Return the shards that another hub has open, as far as it has said so since the link was made."""
