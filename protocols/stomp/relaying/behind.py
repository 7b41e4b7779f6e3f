"""Requests of a client to the broker, each made when a hub has read what the client sent to it before."""

from __future__ import annotations

from collections.abc import Callable

from .far import Far
from .flows import Flows
from .sends import Sends


class BehindSends:
    """Callbacks behind the SENDs of one client. `behind` satisfies `hub.Behind`."""

    def __init__(self, flows: Flows, sends: Sends) -> None:
        self._flows = flows
        self._sends = sends
        self._waiting: list[tuple[str, Callable[[], None]]] = []
        """Hubs, and what is to be called when they have read the SENDs that wait for them."""

    def behind(self, hub: str, callback: Callable[[], None]) -> None:
        """Call this when that hub has read what the client has sent to it. Satisfies `Behind`."""
        far = self._flows.at(hub)
        if self._sends.waits_for(hub):
            self._waiting.append((hub, callback))
        elif far is None:
            callback()
        else:
            far.when_read(callback)

    def take_marks(self, far: Far) -> None:
        """Keep what waits for a flow, which is over."""
        self._waiting += [(far.hub, callback) for callback in far.take_marks()]

    def look(self) -> None:
        """Call what has nothing to wait for any more."""
        waiting, self._waiting = self._waiting, []
        for hub, callback in waiting:
            self.behind(hub, callback)
