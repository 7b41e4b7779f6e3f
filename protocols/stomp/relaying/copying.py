"""Copies of one client's SENDs to topics, for the subscribers of other hubs.

The client waits for no hub that lags, but where it is the only one to have a message (`copies`): then the copy counts
as bytes of the client that are under way.
"""

from __future__ import annotations

from functools import partial

from ...link.load import LinkLoad
from ..placement import FlowEnd, Topics
from .copies import CopyLine, CopyRun, Missed
from .flows import Away, Flows
from .kept import Kept, rewritten
from .near import NearSession
from .routes import Legs
from .underway import Underway


class Copying:
    """Copies of one client's SENDs to other hubs."""

    def __init__(self, near: NearSession, topics: Topics, underway: Underway) -> None:
        self._topics = topics
        self._underway = underway
        self._missed: dict[str, Missed] = {}
        self._load = LinkLoad(
            lambda: f"copies to other hubs from {near.lanes.name}", near.hub.manager, near.hub.clock, stays=True
        )
        self._is_closed = False

    def line(self, hub: str, flow: FlowEnd) -> CopyLine:
        """Return the line of copies for the subscribers of a hub, over a new flow."""
        return CopyLine(hub, flow, self._topics, self._missed_of(hub), self.charge)

    def charge(self, size_bytes: int) -> None:
        """Count bytes of copies that are under way or kept, or fewer; nothing behind the end."""
        if not self._is_closed:
            self._load.charge(size_bytes)

    def send(self, flows: Flows, legs: Legs, kept: Kept, *, is_begun: bool) -> None:
        """Send SENDs to hubs that give them to their own subscribers. `is_begun`: a hub has them that is not among
        these, or gets them.
        """
        is_composite = "," in kept.head.destination
        run: CopyRun | None = None
        for hub, names in legs:
            try:
                far = flows.to(hub)
            except Away:
                self.missed(hub, names, len(kept.wires))
                continue
            if run is None or is_composite:
                if run is not None:
                    self._hold_for(run)
                wires = kept.wires
                if is_composite:
                    wires = rewritten(wires, kept.head, kept.head.with_headers({"destination": names}))
                run = CopyRun(b"SEND\n" + b"SEND\n".join(wires), len(wires), is_begun)
            far.copies.send(names, run)
        if run is not None:
            self._hold_for(run)

    def copied(self, hub: str, count: int, size_bytes: int) -> None:
        """Count messages that a hub gets."""
        self._topics.copied(hub, count, size_bytes)

    def missed(self, hub: str, names: str, count: int) -> None:
        """Note messages that a hub does not get."""
        self._missed_of(hub).add(names, count)
        self._topics.missed(hub, count)

    def close(self) -> None:
        """Count nothing any more: the connection is gone."""
        self._is_closed = True
        self._load.close()

    def _missed_of(self, hub: str) -> Missed:
        return self._missed.setdefault(hub, Missed())

    def _hold_for(self, run: CopyRun) -> None:
        """Charge the client for a copy that no hub has begun to get."""
        if not run.is_begun:
            size_bytes = len(run.data)
            self._underway.charge(size_bytes)
            run.on_begin = partial(self._underway.charge, -size_bytes)
