"""Placement of destinations on hubs: the port, and a table that implements it.

`Placement` answers where a destination is at home; sessions ask once for each destination. Names of temporary
destinations tell their hub by themselves (`session_prefix`), so no placement knows them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from sluiceway.protocols.stomp.placement import HERE, Home, Placement

__all__ = ["HERE", "Home", "Placement", "TablePlacement", "WithTemporaries", "session_prefix"]

_TEMPORARY: Final = ("/remote-temp-queue/", "/remote-temp-topic/")
_SEPARATOR: Final = "~"

Peers = Callable[[], Mapping[str, str]]
"""Addresses of all other live hubs, by id."""


def session_prefix(hub: str) -> str:
    """Return the beginning of the ids of all sessions of a hub: names of temporary destinations begin with them."""
    return f"{hub}{_SEPARATOR}"


def hub_of_session(session_id: str) -> str:
    """Return the hub of a session; empty: the id names none."""
    hub, separator, _rest = session_id.partition(_SEPARATOR)
    return hub if separator else ""


class TablePlacement:
    """Placement by a function from a name to a hub, for one hub."""

    def __init__(self, hub: str, hub_of: Callable[[str], str], hubs: Sequence[str]) -> None:
        """`hub`: this one; `hub_of`: the owner of a canonical name, empty if there is none; `hubs`: all with shards."""
        self._hub = hub
        self._hub_of = hub_of
        self.hubs = list(hubs)
        self.generation = 0

    def moved(self) -> None:
        """Note that `hub_of` answers otherwise now."""
        self.generation += 1

    def home_of(self, name: str) -> Home:
        """Do `Placement.home_of`."""
        hub = self._hub_of(name)
        if not hub:
            return Home(why_not="no hub owns it")
        return HERE if hub == self._hub else Home(hub)

    def others(self) -> Sequence[str]:
        """Do `Placement.others`."""
        return [hub for hub in self.hubs if hub != self._hub]


class WithTemporaries:
    """A placement that also knows temporary destinations of other hubs' clients.

    A name of a hub that nobody knows is at home here: a temporary destination that is gone.
    """

    def __init__(self, hub: str, placement: Placement, peers: Peers) -> None:
        """`peers`: the other hubs; call `look` when they change."""
        self._hub = hub
        self._placement = placement
        self._peers = peers
        self._known = frozenset(peers())
        self._changes_count = 0

    def look(self) -> None:
        """Act on changed peers."""
        known = frozenset(self._peers())
        if known != self._known:
            self._known = known
            self._changes_count += 1

    def noted(self) -> None:
        """Note that other hubs have subscribers of other topics."""
        self._changes_count += 1

    @property
    def generation(self) -> int:
        """Generation of the placement below, and changes of what is known of other hubs: both only grow."""
        return self._placement.generation + self._changes_count

    def home_of(self, name: str) -> Home:
        """Do `Placement.home_of`."""
        for prefix in _TEMPORARY:
            if name.startswith(prefix):
                hub, separator, _rest = name[len(prefix) :].partition(_SEPARATOR)
                return Home(hub) if separator and hub in self._known else HERE
        return self._placement.home_of(name)

    def others(self) -> Sequence[str]:
        """Do `Placement.others`."""
        return self._placement.others()
