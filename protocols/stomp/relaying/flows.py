"""The open flows of one client to other hubs, each opened when something is to go there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from ...framing import PLAIN, Framing
from ...link.records import WORDS_BYTES_MAX, OpeningTooLargeError
from ..authorization import Identity
from ..errors import ProtocolError
from ..escaping import Version
from ..limits import StompLimits
from ..placement import Elsewhere
from .far import Far, FarOwner
from .near import NearSession
from .routes import NOWHERE


class Away(Exception):
    """No hub has the destination now, or none can be reached."""


class Flows:
    """Flows of one client, by hub."""

    def __init__(self, near: NearSession, elsewhere: Elsewhere, owner: FarOwner, look: Callable[[], None]) -> None:
        """`look`: called when a hub has become reachable, or destinations have moved, while it is waited for."""
        self._near = near
        self._elsewhere = elsewhere
        self._owner = owner
        self._look = look
        self._fars: dict[str, Far] = {}
        self.last_serial = 0
        """Number of flows that this client ever had."""
        self._is_watching = False

    def __iter__(self) -> Iterator[Far]:
        """Iterate over a copy: a flow that ends is forgotten."""
        return iter(tuple(self._fars.values()))

    def __len__(self) -> int:
        return len(self._fars)

    def at(self, hub: str) -> Far | None:
        """Return the open flow to a hub, if there is one."""
        return self._fars.get(hub)

    def to(self, hub: str) -> Far:
        """Return the flow to a hub, opened if need be. Raises Away, and ProtocolError for a client of which too much
        would have to be told.
        """
        far = self._fars.get(hub)
        if far is not None:
            return far
        if not hub.startswith(NOWHERE):
            self.last_serial += 1
            far = Far(self._owner, hub, self.last_serial, self._near.outbound)
            try:
                is_open = far.open(self._elsewhere, self._near.opening())
            except OpeningTooLargeError as error:
                raise ProtocolError(
                    "identity-too-large",
                    f"client-id, user and groups of this connection take {error.size_bytes} bytes on the way to hub "
                    f"{hub!r}: {WORDS_BYTES_MAX} are allowed",
                    "Connect with a shorter client-id, or as a user of fewer groups.",
                ) from None
            if is_open:
                self._fars[hub] = far
                return far
        self.watch()
        raise Away

    def of_prefix(self, prefix: bytes) -> Far | None:
        """Return the flow whose deliveries begin so."""
        return next((far for far in self._fars.values() if far.prefix == prefix), None)

    def forget(self, far: Far) -> None:
        """Open another flow to that hub when something is to go there."""
        if self._fars.get(far.hub) is far:
            del self._fars[far.hub]

    def watch(self) -> None:
        """Look from now on whenever other hubs come or destinations move."""
        if not self._is_watching:
            self._is_watching = True
            self._elsewhere.watch(self._look)

    def unwatch(self) -> None:
        """Look no more."""
        if self._is_watching:
            self._is_watching = False
            self._elsewhere.unwatch(self._look)

    def close(self) -> None:
        """End all flows: the connection is gone. What was sent takes effect at the other hubs."""
        self.unwatch()
        for far in self:
            far.close()
        self._fars.clear()


def opening_of(
    identity: Identity,
    version: Version,
    framing: Framing,
    limits: StompLimits,
    *,
    peer: str,
    session_id: str,
    client_id: str,
) -> dict[str, object]:
    """Return the facts about a client that the other hub needs."""
    return {
        "user": identity.user,
        "groups": sorted(identity.groups),
        "origin": identity.origin,
        "source": identity.source,
        "version": version,
        "framing": "plain" if framing is PLAIN else "websocket",
        "limits": attrs.asdict(limits),
        "peer": peer,
        "session": session_id,
        "client_id": client_id,
    }
