"""Sessions by their names: those with a connection, and those whose connection has ended while their SENDs are still on
their way to queues or logs without room.

Bound: those of the second kind are held by their remaining SENDs, which are bounded, not here. Clients of other hubs
whose sessions here are over are forgotten as others come: their names are at most as many again as the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final
from weakref import WeakValueDictionary

from sluiceway.protocols.stomp.session import Session

LOOKS_PER_PROXY: Final = 2
"""Clients of other hubs that are looked at, the one looked at longest ago first, when another one comes."""


class SessionTable:
    """Sessions of one broker."""

    __slots__ = ("_connected", "_has_left", "_leaving", "_proxies")

    def __init__(self, has_left: Callable[[str], bool]) -> None:
        """`has_left`: whether something is on its way that a session has left behind."""
        self._has_left = has_left
        self._connected: dict[str, Session] = {}
        self._proxies: dict[str, set[str]] = {}
        """Sessions here by those of their clients at other hubs; what is over is dropped by and by."""
        self._leaving: WeakValueDictionary[str, Session] = WeakValueDictionary()

    def began(self, session: Session) -> None:
        """Add a session with its connection."""
        self._connected[session.session_id] = session

    def ended(self, session: Session) -> None:
        """Note that the connection of a session has ended, and the session is closed."""
        del self._connected[session.session_id]
        if not session.is_drained:
            self._leaving[session.session_id] = session

    def is_proxy_of(self, client_session: str, session_id: str) -> None:
        """Note that a session here is there for a client of another hub, which knows it by the session there."""
        for known in list(islice(self._proxies, LOOKS_PER_PROXY)):
            proxies = self._proxies.pop(known)
            left = {proxy for proxy in proxies if self.may_act(proxy)}
            if left:
                self._proxies[known] = left
        self._proxies.setdefault(client_session, set()).add(session_id)

    def proxies_may_act(self, client_session: str) -> bool:
        """Whether something may still come of what a client of another hub has sent here, by its session there."""
        return any(self.may_act(proxy) for proxy in self._proxies.get(client_session, ()))

    def may_act(self, session_id: str) -> bool:
        """Whether SENDs of the session may still take effect."""
        if session_id in self._connected:
            return True
        leaving = self._leaving.get(session_id)
        return (leaving is not None and not leaving.is_drained) or self._has_left(session_id)
