"""Port of a session to the other hubs of a cluster: where a destination is at home, and flows to other hubs.

A session asks once for each destination that it uses, not once for each message, and again when `generation` has
changed. Without a cluster there is no such port, and nothing asks.

Topics are at home at one hub like queues, as far as durable subscriptions go; all other subscribers are served by the
hub of their client, and `Topics` knows which hubs have some.

`sluiceway.cluster` implements the port. The other end of a flow is an ordinary session at the hub that owns the
destinations (`sluiceway.cluster.proxies`); the end here belongs to `Relay` (`relaying`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import attrs

from ...queues.names import DestinationName
from ..link.flow import FlowUser
from ..link.records import Kind


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

    def may_deliver(self) -> bool:
        """Return whether the other hub has not given the link up, so that what the flow brings is not with other
        clients. Asked at the moment of delivery.
        """

    def send_frames(self, data: bytes) -> None:
        """Send bytes of STOMP frames, cut anywhere."""

    def say(self, kind: Kind, payload: bytes) -> None:
        """Send a record that is no data."""

    def took(self, read_bytes: int, done_bytes: int) -> None:
        """Tell how many bytes were read here in all, and how many have had their effect."""

    def end(self, reason: str) -> None:
        """Send nothing more."""


class Topics(Protocol):
    """Knowledge of the hubs that have subscribers of a topic. A change of an answer changes `Placement.generation`."""

    @property
    def is_on(self) -> bool:
        """Whether subscribers are served by their own hub: all hubs tell each other what they are interested in."""

    @property
    def has_ordered(self) -> bool:
        """Whether some topics go by way of their owner: wildcards cover those of all hubs."""

    def goes_direct(self, address: DestinationName) -> bool:
        """Return whether messages to this destination go from the hub of their sender to each hub with interest."""

    def hubs_of(self, name: str) -> Sequence[str]:
        """Return the other hubs that may have a subscriber of a topic."""

    def is_heard_here(self, name: str) -> bool:
        """Return whether this hub has a subscriber of a topic, durable ones included."""

    def may_be_kept(self, owner: str, name: str) -> bool:
        """Return whether a topic may have a durable subscription. `owner`: the hub where it is at home."""

    def is_usable(self, name: str) -> bool:
        """Return whether subscribers can be attached to a topic here: its shard is not being opened or closed."""

    def add(self, name: str) -> None:
        """Note a subscription of a client of this hub, to a topic or a pattern."""

    def remove(self, name: str) -> None:
        """Note the end of one."""

    def when_told(self, callback: Callable[[], None], *, patience_seconds: float | None = None) -> None:
        """Call this, perhaps at once, when every hub that can be reached knows of all subscriptions of this hub, or
        after `patience_seconds`. None: whatever time a hub takes, until its link is given up.
        """

    def copied(self, hub: str, count: int, size_bytes: int) -> None:
        """Count messages that were sent to another hub for its subscribers."""

    def missed(self, hub: str, count: int) -> None:
        """Count messages that another hub does not get."""


class Elsewhere(Protocol):
    """The other hubs of the cluster, as a session sees them."""

    @property
    def placement(self) -> Placement: ...

    @property
    def topics(self) -> Topics: ...

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
