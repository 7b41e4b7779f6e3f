"""Sessions by their names: those with a connection, and those whose connection has ended while their SENDs are still on
their way to queues or logs without room.

Bound: those of the second kind are held by their remaining SENDs, which are bounded, not here.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakValueDictionary

from sluiceway.protocols.stomp.session import Session


class SessionTable:
    """Sessions of one broker."""

    __slots__ = ("_connected", "_has_left", "_leaving")

    def __init__(self, has_left: Callable[[str], bool]) -> None:
        """`has_left`: whether something is on its way that a session has left behind."""
        self._has_left = has_left
        self._connected: dict[str, Session] = {}
        self._leaving: WeakValueDictionary[str, Session] = WeakValueDictionary()

    def began(self, session: Session) -> None:
        """Add a session with its connection."""
        self._connected[session.session_id] = session

    def ended(self, session: Session) -> None:
        """Note that the connection of a session has ended, and the session is closed."""
        del self._connected[session.session_id]
        if not session.is_drained:
            self._leaving[session.session_id] = session

    def may_act(self, session_id: str) -> bool:
        """Whether SENDs of the session may still take effect."""
        if session_id in self._connected:
            return True
        leaving = self._leaving.get(session_id)
        return (leaving is not None and not leaving.is_drained) or self._has_left(session_id)
