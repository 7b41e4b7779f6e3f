"""Sessions by their names: those with a connection, and those whose connection has ended while SENDs of theirs are
still on their way to queues or logs that had no room.

Bound: those of the second kind are not held here, but by what they left behind, which is bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakValueDictionary

from sluiceway.protocols.stomp.session import Session


class SessionTable:
    """Of one broker."""

    __slots__ = ("_connected", "_has_left", "_leaving")

    def __init__(self, has_left: Callable[[str], bool]) -> None:
        """`has_left`: whether something is on its way that a session has left behind."""
        self._has_left = has_left
        self._connected: dict[str, Session] = {}
        self._leaving: WeakValueDictionary[str, Session] = WeakValueDictionary()

    def began(self, session: Session) -> None:
        """It has a connection."""
        self._connected[session.session_id] = session

    def ended(self, session: Session) -> None:
        """Its connection is no more, and the session is closed."""
        del self._connected[session.session_id]
        if not session.is_drained:
            self._leaving[session.session_id] = session

    def may_act(self, session_id: str) -> bool:
        """Whether anything may still come of what it has sent."""
        if session_id in self._connected:
            return True
        leaving = self._leaving.get(session_id)
        return (leaving is not None and not leaving.is_drained) or self._has_left(session_id)
